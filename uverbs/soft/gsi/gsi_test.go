package gsi

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
)

// port is a port that does nothing.
type port struct {
	Port
	name string
}

// log is a manager that writes down what it is told.
type log []string

func (l *log) Add(p Port) { *l = append(*l, "add "+p.(*port).name) }
func (l *log) Remove(p Port) {
	*l = append(*l, "remove "+p.(*port).name)
	if p.(*port).name == "c" { // the end of a connection makes another port receive
		Receive(p, netip.Addr{}, netip.Addr{}, nil)
	}
}
func (l *log) Receive(p Port, src, dst netip.Addr, mad []byte) {
	*l = append(*l, fmt.Sprintf("%s: %s to %s: %d", p.(*port).name, src, dst, mad))
}

func TestDemand(t *testing.T) {
	Demand()
	calls := 0
	OnDemand(func() { calls++ })
	defer demand.Store(nil)
	Demand()
	if calls != 1 {
		t.Errorf("%d calls", calls)
	}
}

func TestRegistry(t *testing.T) {
	a, b, c := &port{name: "a"}, &port{name: "b"}, &port{name: "c"}
	src, dst := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	Add(a)
	Add(b)
	Remove(b)
	Receive(a, src, dst, []byte{1}) // to nobody
	var l log
	SetManager(&l)
	Add(c)
	Receive(c, src, dst, []byte{2})
	Remove(a)
	Remove(a)
	Remove(c)
	want := log{"add a", "add c", "c: 10.0.0.1 to 10.0.0.2: [2]", "remove a", "remove c", "c: invalid IP to invalid IP: []"}
	if !slices.Equal(l, want) {
		t.Errorf("%q, want %q", l, want)
	}
}
