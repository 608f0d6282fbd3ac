package engine

import (
	"runtime"
	"testing"

	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
)

// armed returns how many timers the clock has made.
func (c *fakeClock) armed() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.timers)
}

// closing closes the QP of a side in a goroutine, and returns when that waits or is done. The channel has
// the number of packets that were sent when Close returned.
func closing(s *side, net *fakeNetwork) (sent chan int, waits bool) {
	sent = make(chan int, 1)
	before := net.clock.armed()
	go func() {
		s.qp.Close()
		sent <- net.sent
	}()
	for len(sent) == 0 && net.clock.armed() == before {
		runtime.Gosched()
	}
	return sent, net.clock.armed() > before
}

// receiveSends has a worker of the second side's device take a SEND to each of its QPs, without a flush.
func receiveSends(t *testing.T, net *fakeNetwork, pairs ...[2]*side) *Receiver {
	t.Helper()
	r := pairs[0][1].d.NewReceiver()
	for _, p := range pairs {
		p[1].recv(9, p[1].sge(0, 8))
		p[0].post(signaled(5, ring.OpSend, p[0].sge(0, 8)))
		for _, k := range net.packets {
			r.Packet(&Meta{From: k.from, To: k.to}, k.data)
		}
		net.packets = nil
		p[1].want(9, ring.WCRecv)
	}
	return r
}

// TestCloseSendsAcknowledgement: Close returns only when the acknowledgement of a message that has completed
// is sent.
func TestCloseSendsAcknowledgement(t *testing.T) {
	net := &fakeNetwork{clock: newFakeClock()}
	a, b := networkPair(t, net, sideOptions{}, connOptions{})
	r := receiveSends(t, net, [2]*side{a, b})
	sent, waits := closing(b, net)
	if !waits {
		t.Fatal("Close has not waited for the acknowledgement")
	}
	r.Flush()
	if n := <-sent; n != 2 {
		t.Errorf("%d packets were sent when Close returned, want a SEND and its acknowledgement", n)
	}
	net.deliver()
	a.want(5, ring.WCSend)
	if sent, waits := closing(a, net); waits || <-sent != 2 {
		t.Error("Close waits, though all is sent")
	}
}

// TestCloseSendsDatagram: Close returns only when a datagram that has completed is sent.
func TestCloseSendsDatagram(t *testing.T) {
	net := &fakeNetwork{clock: newFakeClock()}
	a, b := networkSides(t, net, sideOptions{typ: UD})
	a.put(datagram(1, a.handle("10.0.0.2", nil), b, a.sge(0, 8)))
	w := workers.get()
	a.qp.mu.Lock()
	a.qp.send(w)
	a.qp.mu.Unlock()
	a.want(1, ring.WCSend)
	sent, waits := closing(a, net)
	if !waits {
		t.Fatal("Close has not waited for the datagram")
	}
	w.deliver()
	w.release()
	if n := <-sent; n != 1 {
		t.Errorf("%d packets were sent when Close returned, want 1", n)
	}
}

// TestCloseWaitsOnce: if the packets are not sent, Close returns after a time, and other QPs do not wait for
// the same worker again.
func TestCloseWaitsOnce(t *testing.T) {
	net := &fakeNetwork{clock: newFakeClock()}
	a, b := networkPair(t, net, sideOptions{}, connOptions{})
	c, d := newSide(t, a.d, sideOptions{}), newSide(t, b.d, sideOptions{})
	connect(c, d, connOptions{})
	r := receiveSends(t, net, [2]*side{a, b}, [2]*side{c, d})
	sent, waits := closing(b, net)
	net.clock.advance(closeWait - 1)
	if !waits || len(sent) > 0 {
		t.Fatal("Close has not waited")
	}
	net.clock.advance(1)
	<-sent
	sent, waits = closing(d, net)
	if waits {
		t.Error("another QP has waited for the same worker")
		net.clock.advance(closeWait)
	}
	<-sent
	r.Flush()
}
