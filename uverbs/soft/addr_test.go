package soft

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// TestAuto: each device gets an address whose port is free, whoever uses the others.
func TestAuto(t *testing.T) {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(t, err)
	defer c.Close()
	o := Options{Auto: true, Port: c.LocalAddr().(*net.UDPAddr).AddrPort().Port()}
	first := newDevice(t, o)
	local := newDevice(t, Options{Addr: netip.MustParseAddr("127.0.0.3"), Port: o.Port})
	second := newDevice(t, o)
	for d, want := range map[*Device]string{first: "127.0.0.2", local: "127.0.0.3", second: "127.0.0.4"} {
		if d.Addr().String() != want || d.network == nil {
			t.Errorf("%s has the address %s, want %s and a socket", d.Name(), d.Addr(), want)
		}
	}
	must(t, first.Close())
	if d := newDevice(t, o); d.Addr() != first.Addr() {
		t.Errorf("after %s was closed, a device has the address %s", first.Addr(), d.Addr())
	}
}

// TestAutoTogether: devices that are made at the same time have different addresses.
func TestAutoTogether(t *testing.T) {
	port := freePort(t)
	var mu sync.Mutex
	all := map[netip.Addr]bool{}
	var done sync.WaitGroup
	for range 8 {
		done.Go(func() {
			d, err := New(Options{Auto: true, Port: port})
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { d.Close() })
			mu.Lock()
			defer mu.Unlock()
			all[d.Addr()] = true
		})
	}
	done.Wait()
	if len(all) != 8 {
		t.Errorf("8 devices have the addresses %v", all)
	}
}

// freePort returns a port that nobody uses.
func freePort(t *testing.T) uint16 {
	t.Helper()
	c, err := net.ListenUDP("udp4", nil)
	must(t, err)
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Port()
}

// TestAutoNone: if the port is taken on all addresses, the error says by whom.
func TestAutoNone(t *testing.T) {
	c, err := net.ListenUDP("udp4", nil)
	must(t, err)
	defer c.Close()
	for _, o := range []Options{{Auto: true}, {Addr: netip.MustParseAddr("127.0.0.9")}} {
		o.Port = c.LocalAddr().(*net.UDPAddr).AddrPort().Port()
		d, err := New(o)
		var e *OptionError
		if !errors.As(err, &e) || e.Field != "Port" || e.Value != o.Port || !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "this process") {
			t.Errorf("%s: %v, %v", o, d, err)
		}
	}
}

// TestAutoRefused: an address that is chosen cannot be given, too.
func TestAutoRefused(t *testing.T) {
	d, err := New(Options{Auto: true, Addr: netip.MustParseAddr("127.0.0.2")})
	var e *OptionError
	if !errors.As(err, &e) || e.Field != "Auto" {
		t.Errorf("%v, %v", d, err)
	}
}
