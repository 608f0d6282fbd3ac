package uverbs

import (
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// withGID gives a fake a GID with the index of a network interface, and returns its device.
func withGID(t *testing.T, f *fakeQP, addr string, typ ib.GIDType, netdev uint32) *Device {
	t.Helper()
	e := abi.GIDEntry{GIDIndex: 1, PortNum: 1, GIDType: uint32(typ), NetdevIfindex: netdev}
	g := gid(t, addr)
	copy(bytesOf(&e.GID), g[:])
	f.gids = []abi.GIDEntry{e}
	f.dev.ports.gids.Store(nil)
	return f.dev
}

// TestFitness: a device whose GIDs are all of other network namespaces is worse than one that has one of this
// namespace, and better than one without an active port.
func TestFitness(t *testing.T) {
	own := []hostAddr{{netip.MustParseAddr("10.5.0.2"), 3}, {netip.MustParseAddr("fe80::ff:fe00:2"), 3}}
	for _, c := range []struct {
		name   string
		addr   string
		typ    ib.GIDType
		netdev uint32
		state  ib.PortState
		own    []hostAddr
		want   fitness
	}{
		{"an own address", "10.5.0.2", ib.GIDTypeRoCEv2, 3, ib.PortActive, own, allGood},
		{"an own MAC address", "fe80::ff:fe00:2", ib.GIDTypeRoCEv1, 3, ib.PortActive, own, allGood},
		{"the index of an own interface", "10.1.0.1", ib.GIDTypeRoCEv2, 3, ib.PortActive, own, noOwnGID},
		{"the address of an own interface", "10.5.0.2", ib.GIDTypeRoCEv2, 4, ib.PortActive, own, noOwnGID},
		{"addresses cannot be read", "10.1.0.1", ib.GIDTypeRoCEv2, 3, ib.PortActive, nil, allGood},
		{"InfiniBand", "fe80::1", ib.GIDTypeIB, 0, ib.PortActive, own, allGood},
		{"port down", "10.5.0.2", ib.GIDTypeRoCEv2, 3, ib.PortDown, own, noPort},
	} {
		f := newFakeQP(t, QPOptions{})
		f.port.State = uint8(c.state)
		d := withGID(t, f, c.addr, c.typ, c.netdev)
		if got := d.fitness(func() gidRoute { return gidRoute{own: c.own} }); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

// TestForeignGID: the index of a network interface of another namespace is not that of the loopback interface,
// and the error of a path from there says so.
func TestForeignGID(t *testing.T) {
	f := newFakeQP(t, QPOptions{})
	d := withGID(t, f, "127.0.0.1", ib.GIDTypeRoCEv2, 1)
	if !d.hasLink(1) || d.hasLink(2) {
		t.Error("the device of 127.0.0.1 is not found by interface 1, or also by 2")
	}
	connect := func() string {
		t.Helper()
		err := f.qp.Connect(t.Context(), Endpoint{QPN: 7, GID: gid(t, "10.9.0.2")})
		if err == nil {
			t.Fatal("no error")
		}
		return err.Error()
	}
	const foreign = "peer 10.9.0.2 from GID 1: 0000:0000:0000:0000:0000:ffff:0a09:0001 (10.9.0.1, RoCE v2): GID 1 belongs to an interface of another network namespace; "
	must(t, f.qp.Init())
	f.refuse["MODIFY_QP"] = syscall.ENODEV
	if got := connect(); strings.Contains(got, "namespace;") {
		t.Errorf("an own GID: %s", got)
	}
	if withGID(t, f, "10.9.0.1", ib.GIDTypeRoCEv2, 1).hasLink(1) {
		t.Error("a GID of another namespace makes the device one of interface 1")
	}
	if got := connect(); !strings.Contains(got, foreign) {
		t.Errorf("got %s, want %q", got, foreign)
	}
}
