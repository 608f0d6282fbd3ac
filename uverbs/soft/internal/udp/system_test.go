package udp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// errorIs checks which error a call returned.
var errorIs = testenv.ErrorIs

// needsLinux skips a test of what only the transport of Linux can do.
func needsLinux(t *testing.T) {
	t.Helper()
	testenv.NeedsOS(t, "linux")
}

// TestIPFields: the receiver is told traffic class and hop limit.
func TestIPFields(t *testing.T) {
	needsLinux(t)
	forFamilies(t, func(t *testing.T, local netip.AddrPort) {
		for _, m := range modes[:4] {
			t.Run(m.name, func(t *testing.T) {
				a, b := open(t, local, m.o), open(t, local, m.o)
				var batch Batch
				chosen := []IP{{}, {TrafficClass: 0x28}, {HopLimit: 7}, {TrafficClass: 0x29, HopLimit: 255}, {TrafficClass: 0x29, HopLimit: 255}, {HopLimit: defaultHop}}
				for i, ip := range chosen {
					fill(t, &batch, b.LocalAddr(), 64, uint64(i))
					batch.SetIP(ip)
				}
				must(t, a.Send(&batch))
				_, metas := collect(t, b, len(chosen))
				var got []IP
				for _, m := range metas {
					got = append(got, m.IP)
				}
				want := []IP{{HopLimit: defaultHop}, {TrafficClass: 0x28, HopLimit: defaultHop}, {HopLimit: 7}, {TrafficClass: 0x29, HopLimit: 255}, {TrafficClass: 0x29, HopLimit: 255}, {HopLimit: defaultHop}}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		}
	})
}

const defaultHop = 64

func TestMulticast(t *testing.T) {
	needsLinux(t)
	t.Run("IPv4", func(t *testing.T) {
		testMulticast(t, netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("239.192.17.4"))
	})
	t.Run("IPv6", func(t *testing.T) { testMulticast(t, testenv.LinkLocal(t), netip.MustParseAddr("ff05::1704")) })
	t.Run("IPv6 link-local", func(t *testing.T) {
		testMulticast(t, testenv.LinkLocal(t), netip.MustParseAddr("ff02::1704"))
	})
}

func testMulticast(t *testing.T, local, group netip.Addr) {
	a, b := open(t, netip.AddrPortFrom(local, 0), Options{}), open(t, netip.AddrPortFrom(local, 0), Options{})
	to := netip.AddrPortFrom(group, a.LocalAddr().Port())
	got := make(chan received)
	if err := a.JoinGroup(group, func(from netip.AddrPort, packet []byte, meta Meta) {
		got <- received{from.String(), meta.To.String(), string(packet[:len(packet)-wire.ICRCSize])}
	}); err != nil {
		t.Fatal(err)
	}
	errorIs(t, a.JoinGroup(group, nil), errAddrInUse, "second JoinGroup")
	var own, batch Batch
	fill(t, &own, to, 64, 1)
	fill(t, &batch, to, 64, 2)
	fill(t, &batch, to, 64, 3)
	for s, batch := range map[*Socket]*Batch{a: &own, b: &batch} {
		must(t, s.Send(batch))
		for i, want := range sent(s, batch) {
			if diff := cmp.Diff(want, <-got); diff != "" {
				t.Errorf("packet %d (-sent +received):\n%s", i, diff)
			}
		}
	}
	if n := a.Counters().Received; n != 3 {
		t.Errorf("%d packets received, want 3", n)
	}
	if err := a.LeaveGroup(group); err != nil {
		t.Error(err)
	}
	errorIs(t, a.LeaveGroup(group), errAddrNotAvail, "second LeaveGroup")
	if err := a.JoinGroup(group, nil); err != nil { // Close leaves it
		t.Error(err)
	}
}

// TestBadGroups: a group that is not a multicast address of the socket's family is refused.
func TestBadGroups(t *testing.T) {
	s := open(t, netip.MustParseAddrPort("127.0.0.1:0"), Options{})
	for _, bad := range []netip.Addr{s.LocalAddr().Addr(), netip.MustParseAddr("ff05::1704"), {}} {
		errorIs(t, s.JoinGroup(bad, nil), syscall.EINVAL, "JoinGroup(%v)", bad)
	}
	p := open(t, netip.MustParseAddrPort("127.0.0.1:0"), Options{Plain: true})
	errorIs(t, p.JoinGroup(netip.MustParseAddr("239.192.17.4"), nil), errors.ErrUnsupported, "JoinGroup of a plain socket")
}

// TestLinkLocal: peers get the zone of the socket.
func TestLinkLocal(t *testing.T) {
	local := netip.AddrPortFrom(testenv.LinkLocal(t), 0)
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			a, b := open(t, local, m.o), open(t, local, m.o)
			if got, want := b.LocalAddr().Addr(), local.Addr(); got != want {
				t.Errorf("LocalAddr is %v, want %v", got, want)
			}
			to := netip.AddrPortFrom(local.Addr().WithZone(""), b.LocalAddr().Port())
			var batch Batch
			fill(t, &batch, to, 64, 1)
			fill(t, &batch, to, 64, 2)
			must(t, a.Send(&batch))
			got, _ := collect(t, b, 2)
			if from := netip.AddrPortFrom(to.Addr(), a.LocalAddr().Port()); got[0].From != from.String() || got[0].To != to.String() {
				t.Errorf("received %+v, want from %v to %v", got[0], from, to)
			}
		})
	}
	_, err := Open(netip.MustParseAddrPort("[fe80::1%nosuchlink]:0"), Options{})
	if err == nil {
		t.Error("Open with the zone of a link that does not exist succeeded")
	}
}

func TestOpenErrors(t *testing.T) {
	taken := open(t, netip.MustParseAddrPort("127.0.0.1:0"), Options{})
	for _, plain := range []bool{false, true} {
		for _, c := range []struct {
			addr string
			want string
			err  error
		}{
			{"198.51.100.7:4791", "udp 198.51.100.7:4791: 198.51.100.7 is not an address of this host: ", errAddrNotAvail},
			{"0.0.0.0:4791", "udp 0.0.0.0:4791: the local address must be one address of this host", nil},
			{"239.1.1.1:4791", "udp 239.1.1.1:4791: the local address must be one address of this host", nil},
			{taken.LocalAddr().String(), "udp " + taken.LocalAddr().String() + ": the port is taken", errAddrInUse},
		} {
			s, err := Open(netip.MustParseAddrPort(c.addr), Options{Plain: plain})
			if err == nil {
				s.Close()
				t.Errorf("Open(%s) succeeded", c.addr)
				continue
			}
			if got := err.Error(); len(got) < len(c.want) || got[:len(c.want)] != c.want || c.err != nil && !errors.Is(err, c.err) {
				t.Errorf("Open(%s): %q (%v), want %q (%v)", c.addr, got, errors.Unwrap(err), c.want, c.err)
			}
		}
	}
	if runtime.GOOS == "linux" {
		_, err := Open(taken.LocalAddr(), Options{})
		want := fmt.Sprintf("udp %v: the port is taken by this process: bind: address already in use", taken.LocalAddr())
		if err == nil || err.Error() != want {
			t.Errorf("Open of a taken port: %v, want %s", err, want)
		}
	}
}

func TestMTU(t *testing.T) {
	for _, c := range []struct{ link, want int }{
		{65536, 4096}, {9000, 4096}, {4176, 4096}, {4175, 2048}, {1500, 1024}, {1400, 1024}, {1103, 512}, {336, 256}, {335, 0}, {0, 1024},
	} {
		if got := MaxMTU(c.link); got != c.want {
			t.Errorf("MaxMTU(%d) is %d, want %d", c.link, got, c.want)
		}
	}
	err := checkMTU(&net.Interface{Name: "eth7", MTU: 1500}, 2048)
	want := "interface eth7 has an MTU of 1500 bytes, which is too small for an MTU of RoCE of 2048 bytes: at least 2128 are needed"
	if err == nil || err.Error() != want {
		t.Errorf("checkMTU returned %v, want %s", err, want)
	}
	if err := checkMTU(&net.Interface{Name: "eth7", MTU: 1500}, 1024); err != nil {
		t.Error(err)
	}
	s, err := Open(netip.MustParseAddrPort("127.0.0.1:0"), Options{MTU: 8192}) // lo would carry it
	if err == nil {
		s.Close()
		t.Error("Open with an MTU of 8192 succeeded")
	}
	open(t, netip.MustParseAddrPort("127.0.0.3:0"), Options{MTU: 4096})
}

func TestReceiveBuffer(t *testing.T) {
	for _, m := range modes {
		if n := open(t, netip.MustParseAddrPort("127.0.0.1:0"), m.o).ReceiveBuffer(); n < 4096 {
			t.Errorf("%s: the receive buffer has %d bytes", m.name, n)
		}
	}
}

// TestRefusals: every reason of the system is counted and said in words.
func TestRefusals(t *testing.T) {
	for _, r := range refusals {
		var c counters
		err := c.refused(netip.MustParseAddrPort("10.0.0.1:4791"), 64, r.errno)
		if r.count(&c).Load() != 1 {
			t.Errorf("%v is not counted", r.errno)
		}
		if want := "udp: send of 64 bytes to 10.0.0.1:4791: " + r.reason + ": " + r.errno.Error(); err.Error() != want {
			t.Errorf("%q, want %q", err.Error(), want)
		}
	}
	var c counters
	if err := c.refused(netip.AddrPort{}, 64, net.ErrClosed); c.sendFailures.Load() != 1 || err.Unwrap() != net.ErrClosed {
		t.Errorf("an unknown reason: %v, %d failures", err, c.sendFailures.Load())
	}
}

// TestCounterNames: All yields every counter under a name of its own.
func TestCounterNames(t *testing.T) {
	c := Counters{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17}
	names, values := map[string]bool{}, map[uint64]bool{}
	for name, value := range c.All() {
		names[name], values[value] = true, true
	}
	if len(names) != 17 || len(values) != 17 {
		t.Errorf("%d names of %d counters, want 17", len(names), len(values))
	}
}
