package udp

import (
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
