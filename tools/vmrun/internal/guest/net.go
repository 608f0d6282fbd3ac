package guest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// end is one end of a veth pair, or of the link between hosts.
type end struct {
	dev      string // the network device
	rdma     string // the RDMA device on it
	ip4, ip6 string
	mac      net.HardwareAddr
}

// The pairs are the same in every run, so that tests can name them: ve0 and ve1 for the
// first kind of device, ve2 and ve3 for the second.
func pairAt(n int) []end {
	var pair []end
	for i := range 2 {
		pair = append(pair, end{
			dev: fmt.Sprintf("ve%d", 2*n+i), ip4: fmt.Sprintf("10.1.%d.%d/24", n, i+1), ip6: fmt.Sprintf("fd00:%d::%d/64", n+1, i+1),
			mac: net.HardwareAddr{2, 0, 0, 0, byte(n), byte(i + 1)},
		})
	}
	return pair
}

// MaxHosts is how many hosts a link may join. All of them share the processors of one machine.
const MaxHosts = 8

// linked gives the end of the link between hosts that a host has.
func linked(host int) end {
	return end{
		dev: linkDevice, ip4: fmt.Sprintf("10.2.0.%d/24", host), ip6: fmt.Sprintf("fd02::%d/64", host),
		mac: net.HardwareAddr{2, 0, 0, 0, 1, byte(host)},
	}
}

// linkDevice is the network device at the link between hosts.
const linkDevice = "eth0"

// endsOf gives the ends that a machine has for its nth kind of device: one if a link joins
// it with other hosts, both of a veth pair if it is alone.
func endsOf(host, n int) []end {
	if host == 0 {
		return pairAt(n)
	}
	return []end{linked(host)}
}

// cables gives the ends of the links that the kernel's own drivers make.
func cables(kinds string, host int) []end {
	var all []end
	for n, kind := range strings.Split(kinds, NetAnd) {
		if kind != NetNone && kind != NetIB && kind != NetRoCE && kind != NetEFA {
			all = append(all, endsOf(host, n)...)
		}
	}
	return all
}

// LinkMAC gives the address of a host's network card.
func LinkMAC(host int) string { return linked(host).mac.String() }

// PeerIP gives the IPv4 address of a host's peer: that of host 2 for host 1, and of host 1
// for the others.
func PeerIP(host int) string {
	if host == 1 {
		return hostIP(2)
	}
	return hostIP(1)
}

// hostIP gives the IPv4 address of a host.
func hostIP(host int) string {
	ip, _, _ := strings.Cut(linked(host).ip4, "/")
	return ip
}

// setupNet sets up the loopback device and the networks that the configuration names.
func (p *initProc) setupNet() error {
	kinds, host := p.cfg.Net, p.host
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("device lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	if kinds == NetNone {
		return nil
	}
	for n, kind := range strings.Split(kinds, NetAnd) {
		var err error
		switch kind {
		case NetIB:
			err = setupCards(lo, host, n, "mlx5")
		case NetEFA:
			err = setupCards(lo, host, n, "efa")
		case NetRoCE:
			err = setupRoCE(host, n)
		case NetIPoIB:
			err = p.setupIPoIB(n)
		default:
			err = setupSoft(kind, host, n)
		}
		if err != nil {
			return err
		}
	}
	if host == 0 {
		return nil
	}
	for other := 1; other <= len(p.cfg.Hosts); other++ {
		if other == host {
			continue
		}
		if err := waitPeer(hostIP(other), peerPatience); err != nil {
			return err
		}
	}
	return nil
}

// setupSoft sets up a link of the kernel's own, and the RDMA devices on it that are
// software.
func setupSoft(kind string, host, n int) error {
	mine := endsOf(host, n)
	if host == 0 {
		if err := addVeth(mine); err != nil {
			return err
		}
	}
	for _, e := range mine {
		if err := address(e); err != nil {
			return err
		}
	}
	for _, e := range mine {
		if err := setUp(e.dev); err != nil {
			return err
		}
	}
	for _, e := range mine { // siw on a device without it is down for good
		if err := waitCarrier(e.dev, 20*time.Second); err != nil {
			return err
		}
	}
	if kind != NetRxe && kind != NetSiw {
		return nil
	}
	for i := range mine {
		mine[i].rdma = fmt.Sprint(kind, i)
		if err := netlink.RdmaLinkAdd(mine[i].rdma, kind, mine[i].dev); err != nil {
			return fmt.Errorf("add %s device %s on %s: %w", kind, mine[i].rdma, mine[i].dev, err)
		}
	}
	for _, e := range mine {
		if kind == NetSiw {
			e.ip4, e.ip6 = "", "" // iWARP's GID is the link's address
		}
		if err := waitDevice(e, 20*time.Second); err != nil {
			return err
		}
	}
	return nil
}

func addVeth(pair []end) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = pair[0].dev, pair[0].mac
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: pair[1].dev, PeerHardwareAddr: pair[1].mac}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("add the veth pair of %s: %w", pair[0].dev, err)
	}
	for _, e := range pair {
		if err := acceptLocal(e.dev); err != nil {
			return err
		}
	}
	return nil
}

// address gives a device its addresses.
func address(e end) error {
	link, err := netlink.LinkByName(e.dev)
	if err != nil {
		return fmt.Errorf("device %s: %w", e.dev, err)
	}
	for _, s := range []string{e.ip4, e.ip6} {
		addr, err := netlink.ParseAddr(s)
		if err != nil {
			return fmt.Errorf("address %s: %w", s, err)
		}
		if addr.IP.To4() == nil {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("add %s to %s: %w", s, e.dev, err)
		}
	}
	return noDAD(e.dev)
}

func setUp(dev string) error {
	link, err := netlink.LinkByName(dev)
	if err != nil {
		return fmt.Errorf("device %s: %w", dev, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", dev, err)
	}
	return nil
}

// waitCarrier waits until a device that is up has found its link, which may take a second.
func waitCarrier(dev string, timeout time.Duration) error {
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if b, err := os.ReadFile("/sys/class/net/" + dev + "/carrier"); err == nil && string(b) == "1\n" {
			return nil
		}
	}
	return fmt.Errorf("device %s has no carrier after %v", dev, timeout)
}

// peerPatience is how long one host may boot longer than another.
const peerPatience = 60 * time.Second

// waitPeer waits until another host answers. Nothing listens at the port, so its
// kernel refuses the connection: it is there.
func waitPeer(ip string, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	for {
		conn, err := net.DialTimeout("tcp4", net.JoinHostPort(ip, "1"), 200*time.Millisecond)
		if err == nil {
			return conn.Close()
		}
		if errors.Is(err, unix.ECONNREFUSED) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the host %s does not answer after %v: %w", ip, timeout, err)
		}
		time.Sleep(5 * time.Millisecond) // an error may come at once
	}
}

// noDAD spares the link-local address the second of duplicate address detection.
func noDAD(dev string) error {
	return os.WriteFile("/proc/sys/net/ipv6/conf/"+dev+"/accept_dad", []byte("0"), 0)
}

// acceptLocal has the device take packets, ARP requests among them, from the address
// of the other end, which is one of this very host: so the two rxe devices reach each
// other.
func acceptLocal(dev string) error {
	return os.WriteFile("/proc/sys/net/ipv4/conf/"+dev+"/accept_local", []byte("1"), 0)
}

// waitDevice waits until the port is active and both addresses are in the GID
// table: the kernel fills it in from a work queue.
func waitDevice(e end, timeout time.Duration) error {
	var ips []net.IP
	for _, cidr := range []string{e.ip4, e.ip6} {
		if cidr == "" {
			continue // InfiniBand's and iWARP's GIDs come from elsewhere
		}
		ip, _, err := net.ParseCIDR(cidr)
		if err != nil {
			return err
		}
		ips = append(ips, ip)
	}
	var missing string
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if missing = missingOf(e, ips...); missing == "" {
			return nil
		}
	}
	return fmt.Errorf("RDMA device %s: %s after %v", e.rdma, missing, timeout)
}

// missingOf says what the device does not have yet, or nothing.
func missingOf(e end, ips ...net.IP) string {
	port := "/sys/class/infiniband/" + e.rdma + "/ports/1/"
	state, err := os.ReadFile(port + "state")
	if err != nil {
		return err.Error()
	}
	if !bytes.Contains(state, []byte("ACTIVE")) {
		return "port is " + strings.TrimSpace(string(state))
	}
	for _, ip := range ips {
		if !hasGID(port+"gids/", ip) {
			return "no GID for " + ip.String()
		}
	}
	return ""
}

func hasGID(dir string, want net.IP) bool {
	for i := range 16 {
		b, err := os.ReadFile(fmt.Sprint(dir, i))
		if err != nil {
			continue
		}
		if ip := net.ParseIP(strings.TrimSpace(string(b))); ip != nil && ip.Equal(want) {
			return true
		}
	}
	return false
}
