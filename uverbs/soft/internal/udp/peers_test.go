package udp

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// put reserves a packet with an opcode.
func put(t *testing.T, b *Batch, to netip.AddrPort, op wire.Opcode, size int) {
	t.Helper()
	fill(t, b, to, size, uint64(op))
	_, data := b.Packet(b.Len() - 1)
	data[0] = byte(op)
}

// unsealedOf returns which packets of a batch that was sent have no ICRC.
func unsealedOf(b *Batch) (all []bool) {
	for i := range b.Len() {
		_, data := b.Packet(i)
		all = append(all, data[4]&bitUnsealed != 0)
	}
	return all
}

// TestUnsealed: once two sockets with loopback addresses have heard from each other, packets of connected QPs have no
// ICRC, and arrive. Datagrams and damaged packets have one.
func TestUnsealed(t *testing.T) {
	forFamilies(t, func(t *testing.T, local netip.AddrPort) {
		for _, mode := range modes {
			t.Run(mode.name, func(t *testing.T) {
				a, b := open(t, local, mode.o), open(t, local, Options{})
				exchange := func(from, to *Socket, want ...bool) {
					t.Helper()
					var batch Batch
					put(t, &batch, to.LocalAddr(), wire.RC|wire.SendOnly, 64)
					put(t, &batch, to.LocalAddr(), wire.UC|wire.SendOnly, 64)
					put(t, &batch, to.LocalAddr(), wire.UD|wire.SendOnly, 64)
					must(t, from.Send(&batch))
					if diff := cmp.Diff(want, unsealedOf(&batch)); diff != "" {
						t.Errorf("packets without ICRC (-want +got):\n%s", diff)
					}
					got, _ := collect(t, to, batch.Len())
					if diff := cmp.Diff(sent(from, &batch), got); diff != "" {
						t.Errorf("-sent +received:\n%s", diff)
					}
				}
				exchange(a, b, false, false, false)
				exchange(b, a, true, true, false)
				exchange(a, b, true, true, false)

				var batch Batch
				put(t, &batch, b.LocalAddr(), wire.RC|wire.SendOnly, 64)
				batch.Flip(100)
				put(t, &batch, b.LocalAddr(), wire.RC|wire.SendOnly, 64)
				must(t, a.Send(&batch))
				collect(t, b, 1)
				if n := b.Counters().BadICRC; n != 1 {
					t.Errorf("%d packets have a bad ICRC, want the damaged one", n)
				}
			})
		}
	})
}

// TestUnsealedEnds: a peer that does not say that it takes packets without ICRC gets none: another program, the one
// that has taken its place, and one that is silent.
func TestUnsealedEnds(t *testing.T) {
	peer := netip.MustParseAddrPort("127.0.0.2:4791")
	marked, plain := []byte{4: bitTakesUnsealed, 19: 0}, []byte{19: 0}
	heard := func(p *peers, b []byte) { p.received(peer, append([]byte(nil), b...)) }
	p := &peers{loopback: true}
	want := func(marks uint8) {
		t.Helper()
		if got := p.marks(peer, 1); got != marks {
			t.Errorf("marks %#x, want %#x", got, marks)
		}
	}
	want(bitTakesUnsealed)
	heard(p, plain)
	want(bitTakesUnsealed)
	heard(p, marked)
	want(bitTakesUnsealed | bitUnsealed)
	heard(p, plain)
	want(bitTakesUnsealed)
	heard(p, marked)
	for range trustedPackets {
		want(bitTakesUnsealed | bitUnsealed)
	}
	want(bitTakesUnsealed)
	heard(p, marked)
	want(bitTakesUnsealed | bitUnsealed)

	for port := range uint16(2 * mostPeers) {
		p.received(netip.AddrPortFrom(peer.Addr(), 1+port), []byte{4: bitTakesUnsealed, 19: 0})
	}
	if len(p.all) != mostPeers {
		t.Errorf("%d peers, want %d", len(p.all), mostPeers)
	}
	want(bitTakesUnsealed | bitUnsealed)
}

// TestUnsealedElsewhere: where a packet may have crossed a network, its ICRC counts, and none has a mark.
func TestUnsealedElsewhere(t *testing.T) {
	for _, c := range []struct {
		own, peer string
		local     bool
	}{
		{"127.0.0.1:4791", "127.0.0.2:4791", true},
		{"[::1]:4791", "[::1]:4792", true},
		{"127.0.0.1:4791", "192.0.2.1:4791", false},
		{"192.0.2.1:4791", "127.0.0.1:4791", false},
		{"192.0.2.1:4791", "192.0.2.1:4791", false},
		{"[fd00::1]:4791", "[::1]:4791", false},
	} {
		own, peer := netip.MustParseAddrPort(c.own), netip.MustParseAddrPort(c.peer)
		p := &peers{loopback: own.Addr().IsLoopback()}
		packet := make([]byte, 64)
		packet[4] = bitTakesUnsealed | bitUnsealed
		if _, ok := p.check(peer, own, packet); ok != c.local {
			t.Errorf("%v takes a packet without ICRC from %v: %v", own, peer, ok)
		}
		p.received(peer, packet)
		if marks := p.marks(peer, 1); (marks != 0) != c.local {
			t.Errorf("packets from %v to %v have marks %#x", own, peer, marks)
		}
	}
}

// TestLarge: once two sockets with loopback addresses have heard from each other, both of which take large packets now,
// each may send them. A socket whose buffers are too small takes none, and one that the system has refused a large
// packet sends no other.
func TestLarge(t *testing.T) {
	forFamilies(t, func(t *testing.T, local netip.AddrPort) {
		for _, mode := range modes {
			t.Run(mode.name, func(t *testing.T) {
				takes := true
				large := Options{Large: func() bool { return takes }}
				mode.o.Large = large.Large
				a, b := open(t, local, mode.o), open(t, local, large)
				send := func(from, to *Socket, size int) {
					t.Helper()
					var batch Batch
					put(t, &batch, to.LocalAddr(), wire.RC|wire.SendOnly, size)
					must(t, from.Send(&batch))
					got, _ := collect(t, to, 1)
					if diff := cmp.Diff(sent(from, &batch), got); diff != "" {
						t.Errorf("-sent +received:\n%s", diff)
					}
				}
				want := func(want bool) {
					t.Helper()
					want = want && !mode.o.NoGRO && !mode.o.Plain
					if x, y := a.TakesLarge(b.LocalAddr()), b.TakesLarge(a.LocalAddr()); x != want || y != want {
						t.Errorf("b takes large packets from a: %v, and a from b: %v, want %v", x, y, want)
					}
				}
				send(a, b, 64)
				send(b, a, 64)
				want(true)
				if a.TakesLarge(b.LocalAddr()) {
					send(a, b, maxLarge)
					send(b, a, maxLarge)
				}
				takes = false
				want(false)
				send(a, b, 64)
				send(b, a, 64)
				takes = true
				want(false)
				send(a, b, 64)
				send(b, a, 64)
				want(true)

				var batch Batch
				put(t, &batch, b.LocalAddr(), wire.RC|wire.SendOnly, 70000)
				if err := a.Send(&batch); !errors.Is(err, errMsgSize) {
					t.Errorf("Send returned %v, want EMSGSIZE", err)
				}
				if a.TakesLarge(b.LocalAddr()) {
					t.Error("large packets are sent though the system has refused one")
				}
			})
		}
	})
}

// TestLargeElsewhere: a packet that is larger than the MTU counts only from a loopback address.
func TestLargeElsewhere(t *testing.T) {
	p := &peers{loopback: true, large: func() bool { return true }}
	for addr, want := range map[string]int{"127.0.0.2:4791": maxLarge, "192.0.2.1:4791": maxPacket} {
		from := netip.MustParseAddrPort(addr)
		p.received(from, []byte{4: bitTakesUnsealed | bitTakesLarge, 19: 0})
		if p.most(from) != want || p.takesLarge(from) != (want == maxLarge) {
			t.Errorf("%v: packets of up to %d bytes, want %d; takes them itself: %v", from, p.most(from), want, p.takesLarge(from))
		}
	}
}
