package uverbs

import (
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/test/testenv"
)

// TestHostRoute reads a network namespace with a subnet, a gateway and a neighbour.
func TestHostRoute(t *testing.T) {
	runtime.LockOSThread() // and never unlock: the thread ends with the test
	testenv.NeedsRights(t, "a network namespace", unix.Unshare(unix.CLONE_NEWNET))
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "link"
	attrs.HardwareAddr = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	link := &netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}
	testenv.Must(t, netlink.LinkAdd(link))
	lo, err := netlink.LinkByIndex(1)
	testenv.Must(t, err)
	testenv.Must(t, netlink.LinkSetUp(lo), netlink.LinkSetUp(link))
	addr, err := netlink.ParseAddr("10.9.0.1/24")
	testenv.Must(t, err)
	gateway := net.IPv4(10, 9, 0, 2)
	_, behind, err := net.ParseCIDR("10.20.0.0/16")
	testenv.Must(t, err)
	index := link.Index
	testenv.Must(t, netlink.AddrAdd(link, addr), netlink.RouteAdd(&netlink.Route{LinkIndex: index, Dst: behind, Gw: gateway}),
		netlink.NeighAdd(&netlink.Neigh{LinkIndex: index, IP: gateway, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 2}, State: netlink.NUD_PERMANENT}))

	own := netip.MustParseAddr("10.9.0.1")
	for peer, want := range map[string]gidRoute{
		"10.9.0.7":  {source: own, link: index, near: []netip.Addr{own}},
		"10.20.0.1": {source: own, link: index},
		"10.9.0.1":  {source: own, near: []netip.Addr{own}}, // by the loopback interface
		"192.0.2.1": {},
	} {
		r := hostRoute(gid(t, peer))
		if r.source != want.source || r.link != want.link || !slices.Equal(r.near, want.near) {
			t.Errorf("the route to %s is %+v, want %+v", peer, r, want)
		}
		mac, _ := ofMAC(attrs.HardwareAddr)
		for _, want := range []hostAddr{{own, index}, {mac, index}} {
			if !slices.Contains(r.own, want) || !slices.Contains(r.up, index) {
				t.Errorf("own addresses %v, interfaces that are up %v; want %v", r.own, r.up, want)
			}
		}
	}

	for peer, want := range map[string][6]byte{"10.9.0.1": {2, 0, 0, 0, 0, 1}, "10.9.0.2": {2, 0, 0, 0, 0, 2}, "10.20.0.1": {2, 0, 0, 0, 0, 2}} {
		if got, err := ethernetAddr(gid(t, peer), index); err != nil || got != want {
			t.Errorf("the Ethernet address of %s is %x, %v; want %x", peer, got, err, want)
		}
	}
	_, err = ethernetAddr(gid(t, "10.9.0.7"), index)
	testenv.ErrorIs(t, err, syscall.EHOSTUNREACH, "no neighbour")
	_, err = ethernetAddr(gid(t, "127.0.0.1"), 1)
	if testenv.ErrorIs(t, err, syscall.EINVAL, "the loopback interface"); !strings.Contains(err.Error(), "not an Ethernet address") {
		t.Errorf("the loopback interface: %v", err)
	}
}
