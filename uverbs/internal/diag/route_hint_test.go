package diag

import (
	"net/netip"
	"strings"
	"syscall"
	"testing"
)

// TestPathHint: a path that the kernel refuses is described by the errno and the GID table.
func TestPathHint(t *testing.T) {
	v4 := &GIDEntry{Addr: netip.MustParseAddr("10.1.0.1"), Text: "1: the IPv4 GID"}
	v6 := &GIDEntry{Addr: netip.MustParseAddr("fd00:1::1"), Text: "2: the IPv6 GID"}
	ib := &GIDEntry{Addr: netip.MustParseAddr("fe80::1"), Text: "3: the IB GID", InfiniBand: true}
	lost := &GIDEntry{Addr: v4.Addr, Netdev: 1 << 30, Text: v4.Text}
	for name, c := range map[string]struct {
		path Path
		to   string
		want string
	}{
		"no neighbour":          {Path{Errno: syscall.ETIMEDOUT, From: v4}, "10.1.0.2", "peer 10.1.0.2 from GID 1: the IPv4 GID: it cannot be reached"},
		"another namespace":     {Path{Errno: syscall.ENETUNREACH, From: lost}, "10.1.0.2", "it cannot be reached"},
		"unused index":          {Path{Errno: syscall.EHOSTUNREACH, Index: 7, Better: v4}, "10.1.0.2", "peer 10.1.0.2 from GID 7 (unused): it cannot be reached"},
		"no interface":          {Path{Errno: syscall.ENODEV, From: lost}, "10.1.0.2", "network interface is not in this network namespace"},
		"invalid":               {Path{Errno: syscall.EINVAL, Index: 7}, "10.1.0.2", "7 (unused): the GID index may be unused or the path MTU above the port's"},
		"no GRH":                {Path{Errno: syscall.EINVAL, From: v4, Port: 3, Device: "rxe0", GRHMissing: true}, "10.1.0.2", "port 3 of rxe0 needs a GRH in every packet: Global is not set"},
		"IPv6 peer":             {Path{Errno: syscall.EINVAL, From: v4, Better: v6}, "fd00:1::2", "the peer is IPv6 and the GID IPv4; GID 2: the IPv6 GID matches the peer's family"},
		"IPv4 peer":             {Path{Errno: syscall.ENETUNREACH, From: v6, Better: v4}, "10.1.0.2", "the peer is IPv4 and the GID IPv6; GID 1: the IPv4 GID matches"},
		"no GID of that family": {Path{Errno: syscall.EINVAL, From: v4, Better: v4}, "fd00:1::2", "; no GID of this port matches the peer's family"},
		"multicast":             {Path{Errno: syscall.EINVAL, From: v4, Better: v6}, "ff02::1", "the GID index may be unused"},
		"InfiniBand":            {Path{Errno: syscall.EINVAL, From: ib, Better: ib}, "10.1.0.2", "the GID index may be unused"},
		"EFA":                   {Path{Errno: syscall.EINVAL, From: ib, Better: ib, Fabric: true}, "fe80::2", "peer fe80::2 from GID 3: the IB GID: likely its network does not lead to the peer: on AWS both must be in one VPC and one availability zone"},
		"EFA, another index":    {Path{Errno: syscall.EINVAL, Index: 1, Fabric: true}, "fe80::2", "1 (unused): the GID index may be unused"},
		"another errno":         {Path{Errno: syscall.ENOMEM, From: v4, Better: v6}, "fd00:1::2", ""},
	} {
		c.path.To = netip.MustParseAddr(c.to)
		if got := c.path.Hint(); !strings.Contains(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestRouteHint: the facts about a network interface that explain why a peer cannot be reached by it.
func TestRouteHint(t *testing.T) {
	from := GIDEntry{Addr: netip.MustParseAddr("10.1.0.1")}
	own := netifAddr{Prefix: netip.MustParsePrefix("10.1.0.1/24")}
	checked := netifAddr{Prefix: netip.MustParsePrefix("fd00:1::1/64"), tentative: true}
	hop4, hop6 := netip.MustParseAddr("10.1.0.254"), netip.MustParseAddr("fd00:1::99")
	for name, c := range map[string]struct {
		netif netif
		from  netip.Addr
		want  string
	}{
		"down":                       {netif{nextHop: hop4}, from.Addr, "eth0 is down"},
		"duplicate check":            {netif{up: true, addrs: []netifAddr{own, checked}, nextHop: hop6}, checked.Addr(), "fd00:1::1 of eth0 is not usable yet: it is being checked for duplicates, which takes a second or two"},
		"another address's check":    {netif{up: true, addrs: []netifAddr{own, checked}}, from.Addr, "there is no route to it by eth0, which has 10.1.0.1/24, fd00:1::1/64"},
		"no route":                   {netif{up: true}, from.Addr, "there is no route to it by eth0, which has no address"},
		"subnet of another":          {netif{up: true, addrs: []netifAddr{own}, nearer: "2: fd00"}, from.Addr, "which has 10.1.0.1/24; GID 2: fd00 is on its subnet"},
		"no ARP answer":              {netif{up: true, nextHop: hop4, silent: true}, from.Addr, "10.1.0.254 does not answer ARP on eth0; it is not there, or eth0 is not on its network"},
		"no neighbour's answer":      {netif{up: true, nextHop: hop6, silent: true}, from.Addr, "fd00:1::99 does not answer neighbour discovery on eth0; "},
		"no answer, not known why":   {netif{up: true, nextHop: hop4}, from.Addr, "there is a route by eth0 to 10.1.0.254, but no answer to ARP"},
		"no answer over IPv6 so far": {netif{up: true, nextHop: hop6}, from.Addr, "by eth0 to fd00:1::99, but no answer to neighbour discovery"},
	} {
		c.netif.name, from.Addr = "eth0", c.from
		if got := c.netif.routeHint(&Path{From: &from}); !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestReaches: a peer is on the subnet of one address of an interface and not of another.
func TestReaches(t *testing.T) {
	h := &netif{addrs: []netifAddr{{Prefix: netip.MustParsePrefix("10.1.0.1/24")}, {Prefix: netip.MustParsePrefix("10.2.0.1/16")}}}
	for own, want := range map[string]bool{"10.1.0.1": false, "10.2.0.1": true, "10.2.9.9": false} {
		if got := h.reaches(netip.MustParseAddr(own), netip.MustParseAddr("10.2.9.9")); got != want {
			t.Errorf("10.2.9.9 from %s: %t", own, got)
		}
	}
}

// TestInterface: the network interface of a GID is read from the host.
func TestInterface(t *testing.T) {
	lo := &GIDEntry{Addr: netip.MustParseAddr("127.0.0.1"), Netdev: 1, Text: "0: lo"}
	p := &Path{Errno: syscall.ENODEV, From: lo, To: netip.MustParseAddr("127.0.0.1")}
	if got := p.Hint(); !strings.Contains(got, "the kernel does not send by lo") && !strings.Contains(got, "lo is down") {
		t.Errorf("the interface of a GID: %q", got)
	}
}
