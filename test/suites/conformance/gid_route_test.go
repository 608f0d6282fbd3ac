package conformance

import (
	"net"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// TestGIDByRoute: on a port with several addresses the library chooses the one in the peer's subnet,
// or the one that the route to the peer uses, and connects with it.
func TestGIDByRoute(t *testing.T) {
	testenv.NeedsIB(t, "GIDs")
	testenv.NeedsRoCE(t, "Ethernet")
	testenv.Guest(t)
	testenv.NeedsKernel(t, "addresses and routes")
	testenv.Tags(t, testenv.Machine)
	devs := []*uverbs.Device{openDevice(t, rig.Devices[0]), openDevice(t, rig.Devices[1])}
	var gids []uverbs.GIDEntry
	for i, cidr := range []string{"10.77.0.1/24", "10.77.0.2/24"} {
		link, err := netlink.LinkByName(rig.Netdevs[i])
		must(t, err)
		addr, err := netlink.ParseAddr(cidr)
		must(t, err, netlink.AddrAdd(link, addr))
		t.Cleanup(func() { must(t, netlink.AddrDel(link, addr)) })
		gids = append(gids, waitGID(t, devs[i], addr.IP))
	}
	first, err := devs[0].GID(1, ipv4Index)
	must(t, err)
	table, err := devs[0].GIDTable(1)
	must(t, err)
	link, err := netlink.LinkByName(rig.Netdevs[0])
	must(t, err)
	_, far, err := net.ParseCIDR("172.30.0.0/24")
	must(t, err)
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: far, Gw: net.ParseIP("10.77.0.9")}
	must(t, netlink.RouteAdd(route))
	t.Cleanup(func() { must(t, netlink.RouteDel(route)) })
	for peer, want := range map[string]uverbs.GIDEntry{
		"10.1.0.9": first, "10.77.0.9": gids[0], "10.77.0.2": gids[0], "172.30.0.1": gids[0],
	} {
		gid, err := ib.ParseGID(peer)
		must(t, err)
		if got, ok := uverbs.ChooseGID(table, gid); !ok || got.GID != want.GID {
			t.Errorf("to %s the library chooses %s, want %s of %v", peer, got, want, table)
		}
	}

	var path uverbs.PathOptions          // the library chooses
	if os.Getenv("RDMAABI") == "write" { // else newSide chooses, as the table is slow to read there
		path.GIDIndex = new(gids[0].Index)
	}
	a := newSide(t, devs[0], uverbs.QPOptions{Path: path})
	b := newSide(t, devs[0], uverbs.QPOptions{Path: uverbs.PathOptions{GIDIndex: new(gids[0].Index)}})
	eb, err := b.qp.Endpoint()
	must(t, err)
	ea, err := a.qp.EndpointFor(eb)
	must(t, err)
	if ea.GID != gids[0].GID || eb.GID != gids[0].GID {
		t.Fatalf("the endpoints are %s and %s, want %s", ea, eb, gids[0].GID.Addr())
	}
	must(t, a.qp.Connect(t.Context(), eb), b.qp.Connect(t.Context(), ea))
	want := a.fill(0, 3000, 1)
	must(t, b.qp.PostRecv(1, b.mr.SGE(0, 4000)), a.qp.PostSend(send(2, a.mr.SGE(0, 3000))))
	a.want(t, 2, uverbs.WCSend)
	b.want(t, 1, uverbs.WCRecv)
	b.holds(t, 0, want)
}

// waitGID waits until a device has the GID of an address, and returns the entry for RoCE v2.
func waitGID(t *testing.T, dev *uverbs.Device, ip net.IP) uverbs.GIDEntry {
	t.Helper()
	want, err := ib.ParseGID(ip.String())
	must(t, err)
	for end := time.Now().Add(deadline); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		table, err := dev.GIDTable(1)
		must(t, err)
		for _, e := range table {
			if e.GID == want && e.Type == ib.GIDTypeRoCEv2 {
				return e
			}
		}
	}
	t.Fatalf("%s has no GID of %s after %s", dev.Name(), ip, deadline)
	return uverbs.GIDEntry{}
}
