package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// examineDevice makes the checks of a device and reports whether a ping-pong went
// through.
func (m *machine) examineDevice(ctx context.Context, dev netlinkrdma.Device, info uverbs.DeviceInfo) (bool, []Finding) {
	ports, portsErr := m.ports(dev)
	ethernet := func(p netlinkrdma.Port) bool { return p.LinkLayer != ib.LinkLayerInfiniBand }
	if len(ports) > 0 && !slices.ContainsFunc(ports, ethernet) {
		m.onInfiniBand = append(m.onInfiniBand, dev.Name)
	}
	all := []Finding{checkDriver(info, ports)}
	cd, err := m.uverbsDev(dev)
	if err != nil {
		f := Finding{Code: CodeCharDev, Device: dev.Name}
		f.see("%s", err)
		f.fix("modprobe ib_uverbs")
		return false, append(all, f.conclude(LevelError, "the kernel has no character device for it"))
	}
	node := m.checkNode(Finding{Code: CodeCharDev, Device: dev.Name}, cd, LevelError, "the device")
	all = append(all, node)
	if unsupported(info) || node.Level == LevelError {
		// The device cannot be opened, but netlink lists its ports.
		if portsErr == nil {
			for _, p := range ports {
				all = append(all, m.checkPort(info, portFacts{state: p.State, phys: p.PhysState.String(), Port: p}))
			}
		}
		return false, all
	}
	p, err := m.probe(dev.Name)
	if err != nil {
		f := Finding{Code: CodeOpen, Device: dev.Name}
		f.see("%s", err)
		return false, append(all, f.conclude(LevelError, "the device cannot be opened and asked"))
	}
	all = append(all, checkRegister(dev.Name, p.registered))
	if p.efa != nil {
		all = append(all, checkEFA(dev.Name, *p.efa))
	}
	known := withNetdevs(p.ports, ports)
	for i := range known {
		facts := &known[i]
		facts.own, facts.udpPort = m.own(*facts, info.IWARP()), rocePort
		all = append(all, m.checkPort(info, *facts))
		if facts.elsewhere() && len(facts.own) > 0 {
			facts.NetdevIndex = facts.own[0].index
		}
		if info.IWARP() {
			all = append(all, m.checkAddress(dev.Name, *facts))
			continue
		}
		if onEFA(info) {
			all = append(all, checkEFAGID(dev.Name, *facts))
			continue
		}
		all = append(all, m.checkMTU(dev.Name, *facts), m.checkGIDs(dev.Name, *facts))
	}
	ok, traffic := m.checkTraffic(ctx, info, known)
	return ok, append(all, traffic...)
}

// checkTraffic plays ping-pong on a device and connects from its ports to themselves and to the peer. It reports
// whether all of that works on the device; of several ports, one is enough for connections.
func (m *machine) checkTraffic(ctx context.Context, info uverbs.DeviceInfo, ports []portFacts) (bool, []Finding) {
	m.progress(fmt.Sprintf("%s: a ping-pong within this process, up to %s", info.Name, loopbackTime))
	ok, f := m.checkLoopback(ctx, info.Name)
	all := []Finding{f}
	if !ok || m.noConnect {
		return ok, all
	}
	if onEFA(info) {
		ok, f := m.withoutCM(info.Name)
		return ok, append(all, f)
	}
	for _, peer := range slices.Compact([]string{"", m.peer}) {
		if ctx.Err() != nil {
			break
		}
		if m.noCM && ofKernel(info) || peer != "" && len(m.peers) == 0 { // another finding says why
			ok = ok && peer == ""
			continue
		}
		went, active := false, 0
		for _, p := range ports {
			if p.state == ib.PortActive {
				works, f := m.checkConnections(ctx, info, p, peer)
				active, went, all = active+1, went || works, append(all, f)
			}
		}
		ok = ok && (went || active == 0 && peer == "")
	}
	return ok, all
}

// withNetdevs returns the ports of a probe with their network interfaces, which netlink knows.
func withNetdevs(all []portFacts, ports []netlinkrdma.Port) []portFacts {
	all = slices.Clone(all)
	for i := range all {
		for _, n := range ports {
			if n.Num == all[i].Num {
				all[i].Netdev, all[i].NetdevIndex = n.Netdev, n.NetdevIndex
			}
		}
	}
	return all
}

// checkDriver checks that the library supports the device's driver.
func checkDriver(info uverbs.DeviceInfo, ports []netlinkrdma.Port) Finding {
	f := Finding{Code: CodeDevice, Device: info.Name}
	f.see("driver %s, protocol %q, node GUID %s, firmware %q", info.Driver, info.Protocol, info.NodeGUID, info.Firmware)
	for _, p := range ports {
		name := p.Netdev
		if name == "" {
			name = choose(onEFA(info), "none, as on every EFA device", "none, or in another network namespace")
		}
		f.see("port %d: network interface %s", p.Num, name)
	}
	if info.Err != nil {
		f.see("%s", info.Err)
	}
	if unsupported(info) {
		return f.conclude(LevelError, "driver %s cannot be used by this library", info.Driver)
	}
	if info.CharDev == "" {
		return f.conclude(LevelWarning, "the driver is not known, as the device has no character device")
	}
	return f.conclude(LevelOK, "driver %s is supported", info.Driver)
}

// checkNode looks at a character device in /dev. bad is the level of one that cannot be
// opened.
func (m *machine) checkNode(f Finding, cd netlinkrdma.CharDev, bad Level, what string) Finding {
	file := cd.Path()
	inContainer := func() {
		if m.container() != "" {
			f.fix("docker run --device %s ...", file)
		}
	}
	f.see("the kernel's %s is device %d:%d, ABI %d", cd.Name, cd.Major, cd.Minor, cd.ABI)
	f.see("this process is %s", m.who)
	n, err := m.stat(file)
	if err != nil {
		f.see("%s", err)
		inContainer()
		f.fix("mkdir -p /dev/infiniband; mknod -m 666 %s c %d %d (or run udev, which does it)", file, cd.Major, cd.Minor)
		if errors.Is(err, fs.ErrPermission) {
			return f.conclude(bad, "%s: its directory is closed to this user", file)
		}
		return f.conclude(bad, "%s is missing, so %s cannot be opened", file, what)
	}
	f.see("%s: %s", file, n)
	if n.mode&fs.ModeCharDevice == 0 || n.major != cd.Major || n.min != cd.Minor {
		f.fix("rm %s; mknod -m 666 %s c %d %d", file, file, cd.Major, cd.Minor)
		return f.conclude(bad, "%s is not the kernel's device, but an old or wrong node", file)
	}
	err = m.openNode(file)
	switch {
	case err == nil:
		return f.conclude(LevelOK, "%s can be opened", file)
	case errors.Is(err, syscall.EPERM):
		f.see("%s", err)
		inContainer()
		f.fix("DeviceAllow=char-infiniband_verbs rw and DeviceAllow=char-infiniband_cm rw in a systemd unit")
		return f.conclude(bad, "a device control group forbids %s", file)
	case errors.Is(err, fs.ErrPermission):
		f.see("%s", err)
		switch {
		case m.nodev(file): // the kernel looks at that first
			inContainer()
			f.fix("mount its directory without the option nodev")
			return f.conclude(bad, "%s is on a mount with the option nodev, which permits no devices", file)
		case n.mode&0o006 == 0o006:
			f.fix("have the security module (SELinux, AppArmor) permit it")
			return f.conclude(bad, "%s cannot be opened, although its mode permits it: likely a security module forbids it", file)
		case m.who.uid == 0:
			f.fix("give the process CAP_DAC_OVERRIDE or chmod 666 %s", file)
		case n.mode&0o060 == 0o060 && n.gid != 0:
			f.fix("add the user to group %d: usermod -aG %d USER", n.gid, n.gid)
		default:
			f.fix("chmod 666 %s", file)
		}
		f.fix(`lasting, a udev rule: KERNEL=="uverbs*|rdma_cm", MODE="0666"`)
		return f.conclude(bad, "%s is closed to this user", file)
	}
	f.see("%s", err)
	return f.conclude(bad, "%s cannot be opened", file)
}

// Sizes of the MRs that are tried.
const (
	smallMR = 1 << 20
	bigMR   = 64 << 20
)

// checkRegister reports how much memory can be registered.
func checkRegister(device string, tries []registration) Finding {
	f := Finding{Code: CodeRegister, Device: device}
	var most, least uint64 // that went, and that did not
	for _, t := range tries {
		if t.err != nil {
			f.see("an MR of %s: %s", limitText(t.size), t.err)
			if least == 0 {
				least = t.size
			}
			continue
		}
		f.see("an MR of %s: registered", limitText(t.size))
		most = max(most, t.size)
	}
	if least == 0 {
		return f.conclude(LevelOK, "%s can be registered", limitText(most))
	}
	if slices.ContainsFunc(tries, func(t registration) bool { return errors.Is(t.err, syscall.ENOMEM) }) {
		f.Fix = memlockFixes()
	}
	return f.conclude(LevelWarning, "%s cannot be registered", limitText(least))
}

// portFacts is what is known of a port. GIDs and MTU are there if the device could be
// opened.
type portFacts struct {
	netlinkrdma.Port
	state  ib.PortState
	phys   string
	attr   uverbs.PortAttr
	gids   []uverbs.GIDEntry
	gidErr error
	own    []ownAddr

	udpPort uint16 // of RoCE v2
}

// elsewhere reports whether the network interface of the port itself is in another network namespace, or is none.
func (p *portFacts) elsewhere() bool {
	return p.NetdevIndex == 0 && p.LinkLayer == ib.LinkLayerEthernet
}

// checkPort looks at a port's state and its network interface. An interface of another network namespace is as good
// if one of this namespace, such as a macvlan, has an address of the port.
func (m *machine) checkPort(info uverbs.DeviceInfo, p portFacts) Finding {
	f := Finding{Code: CodePort, Device: info.Name, Port: int(p.Num)}
	f.see("state %s, physical state %s, link layer %s", p.state, p.phys, p.LinkLayer)
	ethernet, iface := p.LinkLayer == ib.LinkLayerEthernet, p.Netdev
	if p.elsewhere() {
		f.see("no network interface, or it is in another network namespace")
		switch {
		case len(p.own) == 0:
			f.fix("run in the network namespace of the port's interface, or, with a card, have its owner give this one an interface on top of it, such as a macvlan")
			return f.conclude(LevelWarning, "%s, but no network interface of it is in this network namespace", p.state)
		case info.Driver == netlinkrdma.DriverRXE.String():
			f.see("rxe looks up routes in the network namespace of its own interface only")
			f.fix("run in the network namespace of the port's interface")
			return f.conclude(LevelWarning, "%s, but its network interface is not in this network namespace, and rxe sends from that of its interface only", p.state)
		}
		p.NetdevIndex = p.own[0].index
	}
	if ethernet {
		n, err := m.netdev(p.NetdevIndex)
		if err != nil {
			f.see("network interface %s: %s", p.Netdev, err)
		} else {
			f.see("network interface %s: %s, %s, MTU %d", n.Name, choose(n.Up, "up", "down"), choose(n.Running, "carrier", "no carrier"), n.MTU)
			iface = n.Name + choose(n.Kind != "", " ("+n.Kind+")", "")
		}
	}
	if p.state == ib.PortActive {
		return f.conclude(LevelOK, "%s%s", p.state, choose(iface != "", " on "+iface, ""))
	}
	switch {
	case ethernet:
		f.fix("ip link set %s up, and look after its cable or peer", p.Netdev)
		return f.conclude(LevelError, "%s: network interface %s has to be up", p.state, p.Netdev)
	case p.state == ib.PortInit || p.state == ib.PortArmed:
		f.fix("start a subnet manager in this fabric: systemctl start opensm")
		return f.conclude(LevelError, "%s: it waits for a subnet manager", p.state)
	}
	if onEFA(info) {
		f.fix("look for errors of the driver: dmesg | grep efa; then stop and start the instance, which moves it to other hardware")
	} else {
		f.fix("look after the cable and the switch's port")
	}
	return f.conclude(LevelError, "%s: there is no link", p.state)
}

// choose is what C's ?: does.
func choose[T any](cond bool, yes, no T) T {
	if cond {
		return yes
	}
	return no
}

// Bytes of headers besides a packet's payload that the kernel leaves room for: least is
// what rxe does, most any other driver (iboe_get_mtu).
const (
	leastHeaders = 80
	mostHeaders  = 96
)

// jumboMTU is an interface's MTU that gives a path MTU of 4096 with any driver.
const jumboMTU = 4200

// checkMTU compares a RoCE port's MTU with its network interface's.
func (m *machine) checkMTU(device string, p portFacts) Finding {
	if p.LinkLayer == ib.LinkLayerInfiniBand || p.NetdevIndex == 0 {
		return Finding{}
	}
	n, err := m.netdev(p.NetdevIndex)
	if err != nil || n.MTU == 0 { // gVisor reports 0 for the interfaces of the host
		return Finding{}
	}
	f := Finding{Code: CodeMTU, Device: device, Port: int(p.Num)}
	active := p.attr.ActiveMTU.Bytes()
	f.see("active path MTU %d, at most %d; MTU of %s is %d", active, p.attr.MaxMTU.Bytes(), n.Name, n.MTU)
	f.see("packets have up to %d bytes of headers: 4096 takes an interface's MTU of %d", mostHeaders, jumboMTU)
	switch {
	case active+leastHeaders > n.MTU:
		f.fix("ip link set dev %s mtu %d", n.Name, max(active+mostHeaders, 1500))
		return f.conclude(LevelWarning, "path MTU %d does not fit into %s, whose MTU is %d", active, n.Name, n.MTU)
	case active < 4096:
		f.fix("for 4096: ip link set dev %s mtu %d, also on the peer and on all switches between", n.Name, jumboMTU)
		return f.conclude(LevelInfo, "path MTU %d, as MTU of %s is %d", active, n.Name, n.MTU)
	}
	return f.conclude(LevelOK, "path MTU %d, MTU of %s is %d", active, n.Name, n.MTU)
}

// Peers to choose a GID for: documentation addresses of the two families.
var (
	peerIPv4, _ = ib.ParseGID("::ffff:192.0.2.1")
	peerIPv6, _ = ib.ParseGID("2001:db8::1")
)

// checkGIDs lists the GIDs of a port and the one that the library uses by default.
func (m *machine) checkGIDs(device string, p portFacts) Finding {
	f := Finding{Code: CodeGID, Device: device, Port: int(p.Num)}
	if p.gidErr != nil {
		f.see("%s", p.gidErr)
		f.fix("mount -t sysfs sysfs /sys, or let the library use ioctl: unset RDMAABI")
		return f.conclude(LevelError, "the GID table cannot be read")
	}
	var routable, v2 int
	for _, e := range p.gids {
		f.see("GID %s, network interface %d", e, e.Netdev)
		if !e.GID.LinkLocal() {
			routable++
		}
		if e.Type == ib.GIDTypeRoCEv2 {
			v2++
		}
	}
	iface, addrs := cmp.Or(p.Netdev, "its network interface"), ""
	if n, err := m.netdev(p.NetdevIndex); err == nil {
		iface, addrs = n.Name, strings.Join(n.Addrs, ", ")
		f.see("IP addresses of %s: %s", n.Name, choose(addrs != "", addrs, "none"))
	}
	if p.LinkLayer == ib.LinkLayerInfiniBand {
		if len(p.gids) == 0 {
			return f.conclude(LevelError, "no GID")
		}
		return f.conclude(LevelOK, "%s; InfiniBand peers are reached by LID", plural(len(p.gids), "GID"))
	}
	f.see("to reach an IPv4 peer: %s", chosenGID(p.gids, peerIPv4))
	f.see("to reach an IPv6 peer: %s", chosenGID(p.gids, peerIPv6))
	address := fmt.Sprintf("ip address add ADDRESS/24 dev %s", iface)
	switch {
	case len(p.gids) == 0:
		f.fix("%s, and set the interface up", address)
		return f.conclude(LevelError, "no GID: %s has no address", iface)
	case routable == 0:
		f.fix("%s", address)
		return f.conclude(LevelWarning, "only link-local GIDs: %s has no IP address%s", iface, choose(addrs != "", " beside "+addrs, ""))
	case v2 == 0:
		f.fix("use a driver or firmware setting with RoCE v2; v1 is not routed and RoCE v2 peers are not reached")
		return f.conclude(LevelWarning, "only RoCE v1 GIDs")
	}
	e, _ := uverbs.ChooseGID(p.gids, ib.GID{})
	return f.conclude(LevelOK, "%s, by default index %d: %s, %s", plural(len(p.gids), "GID"), e.Index, e.GID.Addr(), e.Type)
}

// chosenGID describes the GID that the library uses for a peer, and why.
func chosenGID(table []uverbs.GIDEntry, peer ib.GID) string {
	e, ok := uverbs.ChooseGID(table, peer)
	family := choose(peer.Addr().Is4(), "IPv4", "IPv6")
	if !ok || e.GID.Addr().Is4() != peer.Addr().Is4() {
		return fmt.Sprintf("none, as there is no %s address", family)
	}
	why := []string{choose(e.GID.LinkLocal(), "there is no other than link-local", "routable"), family, e.Type.String()}
	return fmt.Sprintf("index %d, %s (%s)", e.Index, e.GID.Addr(), strings.Join(why, ", "))
}

// checkFirewall reminds of what cannot be seen from here.
func (m *machine) checkFirewall(infos []uverbs.DeviceInfo) Finding {
	f := Finding{Code: CodeFirewall}
	iwarp := slices.ContainsFunc(infos, uverbs.DeviceInfo.IWARP)
	roce := slices.ContainsFunc(infos, func(i uverbs.DeviceInfo) bool {
		return otherThanEFA(i) && !i.IWARP() && !slices.Contains(m.onInfiniBand, i.Name)
	})
	if roce {
		f.see("not looked at: RoCE v2 is UDP to port 4791, from any port")
		f.fix("nft add rule inet filter input udp dport 4791 accept (hardware RoCE passes this host's firewall by)")
	}
	if iwarp {
		f.see("not looked at: iWARP is TCP to the port that the program listens on")
		f.fix("nft add rule inet filter input tcp dport PORT accept")
	}
	switch {
	case iwarp && roce:
		return f.conclude(LevelInfo, "UDP port 4791 must get through between peers, and for iWARP the TCP ports that programs listen on")
	case iwarp:
		return f.conclude(LevelInfo, "the TCP ports that programs listen on must get through between peers")
	case roce:
		return f.conclude(LevelInfo, "UDP port 4791 must get through between peers")
	}
	f.see("packets on InfiniBand do not pass this host's kernel")
	return f.conclude(LevelOK, "no firewall is between InfiniBand ports")
}

// checkLoopback plays ping-pong.
func (m *machine) checkLoopback(ctx context.Context, device string) (bool, Finding) {
	f := Finding{Code: CodeLoopback, Device: device}
	told, err := m.loopback(ctx, device)
	f.see("%s", choose(told != "", told, "no two QPs could be made ready"))
	if err != nil {
		if errors.Is(err, syscall.ENOMEM) {
			f.Fix = memlockFixes()
		}
		return false, f.conclude(LevelError, "no ping-pong: %s", err)
	}
	return true, f.conclude(LevelOK, "ping-pong within this process went through, polled%s", choose(strings.Contains(told, " polled, "), "", " and with events"))
}
