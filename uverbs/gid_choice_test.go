package uverbs

import (
	"net/netip"
	"testing"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// TestChooseGID: routable first, then the family, then RoCE v2.
func TestChooseGID(t *testing.T) {
	entry := func(index int, addr string, typ ib.GIDType) GIDEntry {
		return GIDEntry{Port: 1, Index: index, GID: gid(t, addr), Type: typ, Netdev: 3}
	}
	table := []GIDEntry{
		entry(0, "fe80::1", ib.GIDTypeRoCEv1),
		entry(1, "fe80::1", ib.GIDTypeRoCEv2),
		entry(2, "10.1.0.1", ib.GIDTypeRoCEv1),
		entry(3, "10.1.0.1", ib.GIDTypeRoCEv2),
		entry(4, "fd00:1::1", ib.GIDTypeRoCEv1),
		entry(5, "fd00:1::1", ib.GIDTypeRoCEv2),
	}
	foreign := entry(6, "10.2.0.1", ib.GIDTypeRoCEv2)
	foreign.Netdev = 0
	for _, c := range []struct {
		name  string
		table []GIDEntry
		peer  string
		want  int
	}{
		{"no peer", table, "::", 3},
		{"IPv4 peer", table, "10.1.0.2", 3},
		{"IPv6 peer", table, "fd00:1::2", 5},
		{"link-local peer", table, "fe80::2", 1},
		{"only link-local", table[:2], "::", 1},
		{"no IPv4", append(table[:2:2], table[4:]...), "::", 5},
		{"IPv4 peer, no IPv4 here", append(table[:2:2], table[4:]...), "10.1.0.2", 5},
		{"only v1", table[2:3], "::", 2},
		{"link-local v2 or routable v1", []GIDEntry{table[1], {Port: 1, Index: 4, GID: table[4].GID, Type: ib.GIDTypeRoCEv1}}, "::", 4},
		{"IPv6 v2 or IPv4 v1", []GIDEntry{table[5], table[2]}, "10.1.0.2", 2},
		{"netdev elsewhere", []GIDEntry{foreign, table[3]}, "::", 3},
		{"order decides", []GIDEntry{table[3], entry(9, "10.3.0.1", ib.GIDTypeRoCEv2)}, "::", 3},
	} {
		got, ok := chooseGID(c.table, gid(t, c.peer), func(ib.GID) gidRoute { return gidRoute{} })
		if !ok || got.Index != c.want {
			t.Errorf("%s: index %d, %v, want %d", c.name, got.Index, ok, c.want)
		}
	}
	if _, ok := ChooseGID(nil, ib.GID{}); ok {
		t.Error("something is chosen from an empty table")
	}
}

// TestRouted: the host looks up the route to a peer, except to one whose address is on every link.
func TestRouted(t *testing.T) {
	for peer, want := range map[string]bool{
		"::": false, "fe80::1": false, "febf::1": false, "ff02::1": false, "224.0.0.1": false,
		"169.254.1.2": true, "10.1.0.1": true, "fd00::1": true, "fec0::1": true,
	} {
		if got := routed(gid(t, peer)); got != want {
			t.Errorf("%s: routed is %v, want %v", peer, got, want)
		}
	}
}

// TestGIDIndex: any index can be selected, 0 too, and the QP keeps it when the caller's variable changes.
func TestGIDIndex(t *testing.T) {
	for want, addr := range map[int]string{0: "fe80::1", 2: "fd00:1::1"} {
		index := want
		f := connectable(t, QPOptions{Path: PathOptions{GIDIndex: &index}})
		index = 1
		if e := value(f.qp.Endpoint())(t); e.GID.Addr().String() != addr {
			t.Errorf("the GID of index %d is %s, want %s", want, e.GID.Addr(), addr)
		}
	}
}

// TestChooseGIDByRoute: among addresses that suit alike the host's route decides, before RoCE v2 and
// the index.
func TestChooseGIDByRoute(t *testing.T) {
	entry := func(index int, addr string, typ ib.GIDType, netdev int) GIDEntry {
		return GIDEntry{Port: 1, Index: index, GID: gid(t, addr), Type: typ, Netdev: netdev}
	}
	addr := netip.MustParseAddr
	table := []GIDEntry{
		entry(0, "fe80::1", ib.GIDTypeRoCEv2, 3),
		entry(1, "10.1.0.1", ib.GIDTypeRoCEv1, 3), entry(2, "10.1.0.1", ib.GIDTypeRoCEv2, 3),
		entry(3, "10.2.0.1", ib.GIDTypeRoCEv1, 3), entry(4, "10.2.0.1", ib.GIDTypeRoCEv2, 3), // a second address
		entry(5, "10.3.0.1", ib.GIDTypeRoCEv1, 4), entry(6, "10.3.0.1", ib.GIDTypeRoCEv2, 4), // a VLAN
		entry(7, "10.3.0.9", ib.GIDTypeRoCEv2, 4),
		entry(8, "10.4.0.1", ib.GIDTypeRoCEv1, 5), // v1 only
		entry(9, "10.5.0.1", ib.GIDTypeRoCEv2, 0), // of another namespace
	}
	for _, c := range []struct {
		name  string
		peer  string
		route gidRoute
		want  int
	}{
		{"nothing known", "10.9.0.2", gidRoute{}, 2},
		{"subnet of a second address", "10.2.0.2", gidRoute{near: []netip.Addr{addr("10.2.0.1")}}, 4},
		{"subnet of a VLAN", "10.3.0.2", gidRoute{near: []netip.Addr{addr("10.3.0.1"), addr("10.3.0.9")}, link: 4}, 6},
		{"source address", "10.3.0.2", gidRoute{near: []netip.Addr{addr("10.3.0.1"), addr("10.3.0.9")}, link: 4, source: addr("10.3.0.9")}, 7},
		{"route by a VLAN", "172.16.0.1", gidRoute{link: 4}, 6},
		{"source on another interface", "172.16.0.1", gidRoute{link: 4, source: addr("10.1.0.1")}, 6},
		{"the host's own address", "10.2.0.1", gidRoute{source: addr("10.2.0.1")}, 4},
		{"subnet before RoCE v2", "10.4.0.2", gidRoute{near: []netip.Addr{addr("10.4.0.1")}}, 8},
		{"subnet before route", "10.2.0.2", gidRoute{near: []netip.Addr{addr("10.2.0.1")}, link: 4}, 4},
		{"RoCE v2 before an interface that is up", "::", gidRoute{up: []int{5}}, 2},
		{"an interface that is up", "::", gidRoute{up: []int{4, 5}}, 6},
		{"an address of this namespace before the subnet", "10.4.0.2", gidRoute{near: []netip.Addr{addr("10.4.0.1")}, own: []hostAddr{{addr("10.3.0.9"), 4}}}, 7},
		{"link-local whatever the route", "fe80::2", gidRoute{link: 4}, 0},
	} {
		asked := ib.GID{1}
		got, ok := chooseGID(table, gid(t, c.peer), func(peer ib.GID) gidRoute {
			asked = peer
			return c.route
		})
		if !ok || got.Index != c.want {
			t.Errorf("%s: index %d, %v, want %d", c.name, got.Index, ok, c.want)
		}
		if peer := gid(t, c.peer); asked != peer && !peer.LinkLocal() {
			t.Errorf("%s: the host looked up the route to %s", c.name, asked)
		}
	}
}

// TestChooseGIDOfNamespace: a container sees the GIDs of the host and of other containers, whose interfaces
// have the indices of its own ones.
func TestChooseGIDOfNamespace(t *testing.T) {
	addr := netip.MustParseAddr
	entry := func(index int, addr string, typ ib.GIDType, netdev int) GIDEntry {
		return GIDEntry{Port: 1, Index: index, GID: gid(t, addr), Type: typ, Netdev: netdev}
	}
	table := []GIDEntry{
		entry(0, "fe80::ff:fe00:1", ib.GIDTypeRoCEv2, 2), // of the host
		entry(3, "10.0.0.5", ib.GIDTypeRoCEv2, 2),
		entry(4, "192.168.1.10", ib.GIDTypeRoCEv2, 9), // the same address as here, in another container
		entry(6, "fe80::ff:fe00:2", ib.GIDTypeRoCEv2, 3),
		entry(7, "192.168.1.10", ib.GIDTypeRoCEv1, 3),
		entry(8, "fe80::77", ib.GIDTypeRoCEv2, 3),
	}
	v6 := append(table[:2:2], entry(5, "fd00::5", ib.GIDTypeRoCEv2, 2), table[3], table[5])
	// Interface 2 is another one here, which has no device.
	route := gidRoute{up: []int{1, 2, 3}, own: []hostAddr{{addr("127.0.0.1"), 1}, {addr("10.7.0.1"), 2}, {addr("192.168.1.10"), 3}, {addr("fe80::ff:fe00:2"), 3}}}
	by2, near := route, route
	by2.link, by2.source = 2, addr("10.7.0.1")
	near.link, near.source, near.near = 3, addr("192.168.1.10"), []netip.Addr{addr("192.168.1.10")}
	unread := by2
	unread.own = nil
	for _, c := range []struct {
		name  string
		table []GIDEntry
		peer  string
		route gidRoute
		want  int
	}{
		{"no peer", table, "::", route, 7},
		{"a peer on the subnet", table, "192.168.1.20", near, 7},
		{"a peer behind an interface whose index is one of the host", table, "192.168.9.20", by2, 7},
		{"a link-local peer", table, "fe80::9", route, 6},
		{"no peer, and only a link-local address here", v6, "::", route, 6},
		{"a peer of a family that is not here", v6, "fd00::9", route, 5},
		{"addresses cannot be read", table, "192.168.9.20", unread, 3},
	} {
		got, ok := chooseGID(c.table, gid(t, c.peer), func(ib.GID) gidRoute { return c.route })
		if !ok || got.Index != c.want {
			t.Errorf("%s: index %d, %v, want %d", c.name, got.Index, ok, c.want)
		}
	}
}

// TestChooseGIDOnInfiniBand: the subnet prefix decides and then the index, and the host is not asked.
func TestChooseGIDOnInfiniBand(t *testing.T) {
	entry := func(index int, addr string) GIDEntry {
		return GIDEntry{Port: 1, Index: index, GID: gid(t, addr), Type: ib.GIDTypeIB}
	}
	table := []GIDEntry{entry(0, "fe80::1"), entry(1, "fe80::2"), entry(2, "fec0:0:0:7::1"), entry(3, "fec0:0:0:7::2")}
	for peer, want := range map[string]int{"::": 0, "fe80::9": 0, "fec0:0:0:7::9": 2, "fec0:0:0:8::9": 0} {
		got, ok := chooseGID(table, gid(t, peer), func(ib.GID) gidRoute {
			t.Error("the host looked up a route")
			return gidRoute{}
		})
		if !ok || got.Index != want {
			t.Errorf("to %s: index %d, %v, want %d", peer, got.Index, ok, want)
		}
	}
}
