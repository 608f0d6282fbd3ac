package engine

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
	"github.com/goverbs/goverbs/uverbs/soft/internal/udp"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// holdRig is a QP whose device lets acknowledgements wait, and what it has sent.
type holdRig struct {
	t    *testing.T
	net  *fakeNetwork
	a, b *side // b receives
	recv *Receiver
}

func newHoldRig(t *testing.T) *holdRig {
	r := &holdRig{t: t, net: &fakeNetwork{clock: newFakeClock()}}
	r.a, r.b = networkPair(t, r.net, sideOptions{}, connOptions{timeout: 20})
	r.recv = r.b.d.NewReceiver()
	return r
}

// message sends a message to b, and reports whether b lets the acknowledgement wait.
func (r *holdRig) message(id uint64, receive bool) bool {
	r.t.Helper()
	if receive {
		r.b.recv(id, r.b.sge(0, 8))
	}
	r.a.post(signaled(id, ring.OpSend, r.a.sge(0, 8)))
	return r.take()
}

// take gives the packets on the way to b, and reports whether acknowledgements wait.
func (r *holdRig) take() bool {
	r.t.Helper()
	packets := r.net.packets
	r.net.packets = nil
	for _, k := range packets {
		r.recv.Packet(&Meta{From: k.from, To: k.to, IP: udp.IP{}}, k.data)
	}
	return r.recv.FlushBehind()
}

// sent checks the opcodes of the packets that are on the way, and delivers them.
func (r *holdRig) sent(want ...wire.Opcode) {
	r.t.Helper()
	var got []wire.Opcode
	for _, k := range r.net.packets {
		got = append(got, wire.Opcode(k.data[0]))
	}
	if !slices.Equal(got, want) {
		r.t.Errorf("packets %v, want %v", got, want)
	}
	r.net.deliver()
}

// waits checks whether an acknowledgement waits.
func (r *holdRig) waits(id uint64, want bool) {
	r.t.Helper()
	if got := r.message(id, true); got != want {
		r.t.Fatalf("message %d: the acknowledgement waits: %v, want %v", id, got, want)
	}
}

// TestHold: an acknowledgement goes behind the answer of the program, and both sends complete.
func TestHold(t *testing.T) {
	r := newHoldRig(t)
	for id := range uint64(3) {
		r.waits(id, true)
		r.sent()
		r.b.want(id, ring.WCRecv)
		r.a.recv(10+id, r.a.sge(0, 8))
		r.b.post(signaled(20+id, ring.OpSend, r.b.sge(0, 8)))
		r.sent(wire.SendOnly, wire.Acknowledge)
		r.a.want(10+id, ring.WCRecv)
		r.a.want(id, ring.WCSend)
		r.b.want(20+id, ring.WCSend)
	}
}

// TestHoldUnsent: an acknowledgement that goes behind an answer counts as sent when the network has it, so that Close of
// its QP waits for that.
func TestHoldUnsent(t *testing.T) {
	r := newHoldRig(t)
	r.waits(1, true)
	acknowledgements := 0
	r.net.tap = func(_, _ netip.Addr, b []byte) bool {
		if u := r.b.qp.resp.unsent; wire.Opcode(b[0]) == wire.Acknowledge {
			if acknowledgements++; u.by.n.Load() != u.n {
				t.Error("the acknowledgement counts as sent while it is on its way to the network")
			}
		}
		return true
	}
	r.a.recv(11, r.a.sge(0, 8))
	r.b.post(signaled(21, ring.OpSend, r.b.sge(0, 8)))
	if u := r.b.qp.resp.unsent; acknowledgements != 1 || u.by.n.Load() == u.n {
		t.Errorf("%d acknowledgements were sent; the last one waits to be sent: %v", acknowledgements, u.by.n.Load() == u.n)
	}
}

// TestHoldEnds: what ends the waiting of an acknowledgement, which then goes alone. The next ones do not wait.
func TestHoldEnds(t *testing.T) {
	for name, end := range map[string]func(*holdRig){
		"time":  func(r *holdRig) { r.net.clock.advance(holdTime) },
		"poll":  func(r *holdRig) { r.b.d.FlushHeld() },
		"QP":    func(r *holdRig) { check(r.t, r.b.qp.Close()) },
		"ERR":   func(r *holdRig) { check(r.t, r.b.qp.Modify(&QPAttr{State: Err}, AttrState)) },
		"RESET": func(r *holdRig) { check(r.t, r.b.qp.Modify(&QPAttr{State: Reset}, AttrState)) },
		"close": func(r *holdRig) { r.b.d.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			r := newHoldRig(t)
			r.waits(1, true)
			r.sent()
			end(r)
			r.sent(wire.Acknowledge)
			r.a.want(1, ring.WCSend)
		})
	}
	r := newHoldRig(t)
	r.waits(1, true)
	check(t, r.b.d.SendMAD(MADAddr{Local: netip.MustParseAddr("10.0.0.2"), Remote: netip.MustParseAddr("10.0.0.1")}, make([]byte, MADSize)))
	r.sent(wire.Acknowledge, wire.UD|wire.SendOnly)
	r.a.want(1, ring.WCSend)

	r = newHoldRig(t)
	for round := range uint64(3) {
		r.waits(100*round, true)
		r.net.clock.advance(holdTime)
		r.sent(wire.Acknowledge)
		for i := range uint64(holdPause) {
			r.waits(100*round+1+i, false)
			r.sent(wire.Acknowledge)
		}
	}
}

// TestHoldTwice: the acknowledgement of a message that comes before the program has answered the one before goes at
// once, and takes the one that waits along.
func TestHoldTwice(t *testing.T) {
	r := newHoldRig(t)
	r.waits(1, true)
	r.waits(2, false)
	r.sent(wire.Acknowledge, wire.Acknowledge)
	r.a.want(1, ring.WCSend)
	r.a.want(2, ring.WCSend)
}

// TestHoldOther: only positive acknowledgements wait: the peer waits for the others.
func TestHoldOther(t *testing.T) {
	r := newHoldRig(t)
	if r.message(1, false) {
		t.Error("the answer that the receiver is not ready waits")
	}
	r.sent(wire.Acknowledge)

	for what, c := range map[string]struct {
		op     uint32
		answer wire.Opcode
		done   uint32
	}{
		"the response to a READ": {ring.OpRead, wire.ReadResponseOnly, ring.WCRead},
		"the acknowledgement of a WRITE, of which the program knows nothing": {ring.OpWrite, wire.Acknowledge, ring.WCWrite},
	} {
		r = newHoldRig(t)
		r.a.post(signaled(1, c.op, r.a.sge(0, 8)).to(r.b, 0))
		if r.take() {
			t.Errorf("%s waits", what)
		}
		r.sent(c.answer)
		r.a.want(1, c.done)
	}

	r = newHoldRig(t)
	for i := range uint64(2) {
		r.b.recv(i, r.b.sge(0, 8))
	}
	r.a.post(signaled(1, ring.OpSend, r.a.sge(0, 8)))
	r.net.packets = nil // lost
	r.a.post(signaled(2, ring.OpSend, r.a.sge(0, 8)))
	if r.take() {
		t.Error("the answer that a packet is missing waits")
	}
	r.sent(wire.Acknowledge)
}
