package health

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// rocePort is the UDP port of RoCE v2.
const rocePort = 4791

// softFacts are the facts about a software device of this process.
type softFacts struct {
	setting string // of GOVERBS_SOFT
	soft.NetworkInfo
	addr      netip.Addr     // of the device
	hostAddrs []string       // addresses of this host that others reach
	stranded  netip.AddrPort // of a device of another process that has soft.AutoPort, if this one has not; or the zero value
}

// liveSoft collects the facts of a device.
func liveSoft(name string) softFacts {
	f := softFacts{setting: os.Getenv("GOVERBS_SOFT")}
	if d := soft.ByName(name); d != nil {
		f.NetworkInfo, f.addr = d.Network(), d.Addr()
		f.stranded = findStranded(f.Local)
	}
	links, _ := net.Interfaces() // for hints only
	for _, link := range links {
		addrs, _ := link.Addrs()
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err == nil && !p.Addr().IsLoopback() && !p.Addr().IsLinkLocalUnicast() {
				f.hostAddrs = append(f.hostAddrs, fmt.Sprintf("%s of %s", p.Addr(), link.Name))
			}
		}
	}
	return f
}

// mostStranded is how many loopback addresses findStranded looks at. Devices with Auto get the first ones.
const mostStranded = 16

// findStranded returns the address of a device on soft.AutoPort that a device on port 4791 of a loopback
// address does not reach, or the zero value. It takes every user of the port for a device.
func findStranded(local netip.AddrPort) netip.AddrPort {
	if !local.Addr().IsLoopback() || !local.Addr().Is4() || local.Port() != rocePort {
		return netip.AddrPort{}
	}
	at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), soft.AutoPort)
	for range mostStranded {
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		if errors.Is(err, syscall.EADDRINUSE) {
			return at
		}
		if err == nil {
			c.Close()
		}
		at = netip.AddrPortFrom(at.Addr().Next(), at.Port())
	}
	return netip.AddrPort{}
}

// probeTime bounds how long a datagram may take within this host.
const probeTime = time.Second

// liveProbe sends a datagram to a device and reports whether it has arrived. It is too short to be a
// packet, so the device counts it and drops it.
func liveProbe(ctx context.Context, name string) (arrived bool, err error) {
	d := soft.ByName(name)
	if d == nil {
		return false, fmt.Errorf("%s is closed", name)
	}
	before := d.Network()
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(before.Local))
	if err != nil {
		return false, err
	}
	defer c.Close()
	if _, err := c.Write([]byte{0}); err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	for tick := time.NewTicker(time.Millisecond); d.Network().Received == before.Received; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return false, nil
		case <-tick.C:
		}
	}
	return true, nil
}

// needsKernel reports whether a Report is about devices of the kernel: not if there are only
// software devices, or only those are named.
func needsKernel(devs []netlinkrdma.Device, infos []uverbs.DeviceInfo, names []string) bool {
	inProcess := func(name string) bool {
		return slices.ContainsFunc(infos, func(i uverbs.DeviceInfo) bool { return i.InProcess && i.Name == name })
	}
	if len(names) > 0 {
		return !slices.ContainsFunc(names, inProcess) || slices.ContainsFunc(names, func(n string) bool { return !inProcess(n) })
	}
	return len(devs) > 0 || !slices.ContainsFunc(infos, func(i uverbs.DeviceInfo) bool { return i.InProcess })
}

// examineSoft is examineDevice for a software device.
func (m *machine) examineSoft(ctx context.Context, info uverbs.DeviceInfo) (bool, []Finding) {
	facts := m.soft(info.Name)
	all := []Finding{checkSoft(info, facts)}
	if info.Err != nil {
		return false, all
	}
	p, err := m.probe(info.Name)
	if err != nil {
		f := Finding{Code: CodeOpen, Device: info.Name}
		f.see("%s", err)
		return false, append(all, f.conclude(LevelError, "the device cannot be opened and asked"))
	}
	all = append(all, checkReach(info.Name, facts), checkRegister(info.Name, p.registered))
	for i := range p.ports {
		port := &p.ports[i]
		for _, e := range port.gids {
			port.NetdevIndex = max(port.NetdevIndex, e.Netdev)
		}
		if n, err := m.netdev(port.NetdevIndex); err == nil {
			port.Netdev = n.Name
		}
		port.own, port.udpPort = []ownAddr{{facts.addr, port.NetdevIndex}}, facts.Local.Port()
		all = append(all, m.checkPort(info, *port), m.checkMTU(info.Name, *port), m.checkGIDs(info.Name, *port),
			m.checkReceiveBuffer(info.Name, facts, *port))
	}
	ok, traffic := m.checkTraffic(ctx, info, p.ports)
	return ok, append(append(all, traffic...), m.checkSoftFirewall(ctx, info.Name, facts))
}

// checkSoft says what the device is, and why it could not be made.
func checkSoft(info uverbs.DeviceInfo, facts softFacts) Finding {
	f := Finding{Code: CodeDevice, Device: info.Name}
	f.see("GOVERBS_SOFT=%q; each program that has this in its environment makes a device of its own", facts.setting)
	f.see("it behaves like %s of Linux 7.2, and needs no module, no rights and no character device", info.Driver)
	if info.Err != nil {
		f.see("%s", info.Err)
		f.see("addresses of this host that others reach: %s", orNone(facts.hostAddrs))
		f.fix("GOVERBS_SOFT=auto chooses an address that is free; https://pkg.go.dev/github.com/goverbs/goverbs/uverbs/soft#ParseOptions describes the other values")
		return f.conclude(LevelError, "the software device cannot be created")
	}
	return f.conclude(LevelOK, "a software device, inside this process")
}

// orNone lists words.
func orNone(words []string) string { return choose(len(words) > 0, strings.Join(words, ", "), "none") }

// checkReach reports which hosts can reach the device.
func checkReach(device string, facts softFacts) Finding {
	f := Finding{Code: CodeAddress, Device: device}
	at := facts.Local
	if !at.IsValid() {
		f.see("it has no UDP socket")
		f.fix("for other programs on this host: GOVERBS_SOFT=auto; for other hosts: GOVERBS_SOFT=ADDRESS")
		return f.conclude(LevelInfo, "only this process reaches it")
	}
	f.see("it sends and receives RoCE v2 with a UDP socket on %s", at)
	f.see("a peer needs a GID of type RoCE v2: packets of RoCE v1 are no UDP and never reach it, so nothing counts them")
	f.see("addresses of this host that others reach: %s", orNone(facts.hostAddrs))
	switch at.Port() {
	case rocePort:
	case soft.AutoPort:
		f.see("it sends to port %d of its peers, as GOVERBS_SOFT=auto does where port %d is taken on all addresses, such as by rdma_rxe", at.Port(), rocePort)
		f.see("devices that were made before that have port %d, and it does not reach them", rocePort)
	default:
		f.see("it sends to port %d of its peers; network cards, rxe and devices with another port use others (%d)", at.Port(), rocePort)
	}
	if facts.stranded.IsValid() {
		f.see("there is a device at %s, made while port %d was taken on all addresses; this one does not reach it", facts.stranded, rocePort)
		f.fix("start the program with the device at %s again, now that port %d is free", facts.stranded, rocePort)
		return f.conclude(LevelWarning, "programs on this host that were started at another time have another port than %s", at)
	}
	if at.Addr().IsLoopback() {
		f.fix("for other hosts: GOVERBS_SOFT=ADDRESS, with an address of this host")
		return f.conclude(LevelInfo, "programs on this host reach it at %s, other hosts do not", at)
	}
	return f.conclude(LevelOK, "other hosts reach it at %s", at)
}

// A peer sends so many packets before it waits for an acknowledgement.
const packetsAhead = 128

// checkReceiveBuffer checks that the packets of a peer fit into the receive buffer of the socket.
func (m *machine) checkReceiveBuffer(device string, facts softFacts, p portFacts) Finding {
	if !facts.Local.IsValid() {
		return Finding{}
	}
	f := Finding{Code: CodeReceiveBuffer, Device: device, Port: int(p.Num)}
	mtu := p.attr.ActiveMTU.Bytes()
	most := uint64(packetsAhead * 2 * (mtu + 128)) // the system counts twice the size of a packet, about
	have, wanted := uint64(facts.ReceiveBuffer), uint64(facts.WantedBuffer)
	f.see("the device asked for %s, and the system gave %s", limitText(wanted), limitText(have))
	f.see("a peer sends up to %d packets at once, which take about %s with an MTU of %d; what does not fit is lost and sent again", packetsAhead, limitText(most), mtu)
	if limit, err := m.text("/proc/sys/net/core/rmem_max"); err == nil {
		f.see("net.core.rmem_max: %s bytes, which the system doubles", limit)
	} else {
		f.see("net.core.rmem_max: %s", err)
	}
	if facts.Overflows > 0 {
		f.see("packets lost so far since the buffer was full: %d", facts.Overflows)
	}
	if have >= wanted {
		return f.conclude(LevelOK, "a receive buffer of %s", limitText(have))
	}
	f.fix("sysctl net.core.rmem_max=%d (permanently: in /etc/sysctl.d/90-rdma.conf)", wanted/2)
	if have < most {
		return f.conclude(LevelWarning, "a receive buffer of %s is too small for the packets of one QP, %s", limitText(have), limitText(most))
	}
	return f.conclude(LevelInfo, "a receive buffer of %s, for the packets of %s", limitText(have), plural(int(have/most), "QP"))
}

// checkSoftFirewall sends a datagram to the device.
func (m *machine) checkSoftFirewall(ctx context.Context, device string, facts softFacts) Finding {
	at := facts.Local
	if !at.IsValid() {
		return Finding{}
	}
	f := Finding{Code: CodeFirewall, Device: device}
	list, _ := m.text("/proc/modules")
	for line := range strings.Lines(list) {
		if name, _, _ := strings.Cut(line, " "); name == "nf_tables" || name == "ip_tables" {
			f.see("module %s is loaded: rules are in %s", name, choose(name == "nf_tables", `"nft list ruleset"`, `"iptables -S"`))
		}
	}
	arrived, err := m.probeSoft(ctx, device)
	switch {
	case errors.Is(err, syscall.EPERM):
		f.see("a datagram to %s: %s", at, err)
		f.fix("nft insert rule inet filter output udp dport %d accept (or as this host's firewall has it)", at.Port())
		return f.conclude(LevelError, "a firewall of this host forbids UDP to port %d", at.Port())
	case err != nil:
		f.see("a datagram to %s: %s", at, err)
		return f.conclude(LevelWarning, "no datagram can be sent to %s", at)
	case !arrived:
		f.see("a datagram to %s was sent and did not arrive within %s", at, probeTime)
		f.fix("nft insert rule inet filter input udp dport %d accept (or as this host's firewall has it)", at.Port())
		return f.conclude(LevelError, "a firewall of this host drops UDP to port %d, also within the host", at.Port())
	}
	f.see("a datagram from this host to %s arrived", at)
	if at.Addr().IsLoopback() {
		return f.conclude(LevelOK, "UDP to %s gets through", at)
	}
	f.see("not looked at: packets from other hosts, for which a firewall here or on the way may have other rules")
	f.see("not looked at: NAT, which changes what the checksum of RoCE covers; its packets are dropped")
	f.fix("nft insert rule inet filter input udp dport %d accept", at.Port())
	return f.conclude(LevelInfo, "UDP to %s gets through from this host, and must do so from peers", at)
}
