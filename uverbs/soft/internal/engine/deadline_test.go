package engine

import (
	"net/netip"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// TestNAKAfterReceiverNotReady: a NAK that comes between the end of the wait for a receive and the repetition
// does not keep the QP from repeating the packets again.
func TestNAKAfterReceiverNotReady(t *testing.T) {
	net := &fakeNetwork{clock: newFakeClock()}
	a, _ := networkPair(t, net, sideOptions{}, connOptions{timeout: 14, retry: 3})
	psn := a.qp.Query().SQPSN
	a.post(signaled(1, ring.OpSend, a.sge(0, 8)), signaled(2, ring.OpSend, a.sge(0, 8)))
	net.deliver() // an RNR NAK
	q := a.qp
	if !q.req.rnrWait {
		t.Fatal("the QP does not wait")
	}
	q.mu.Lock()
	q.running = true // by a worker that has not come to the QP yet
	q.mu.Unlock()
	net.clock.advance(20 * time.Millisecond)
	if q.req.rnrWait || !q.req.retry {
		t.Fatal("the wait is not over")
	}
	q.mu.Lock()
	q.response(new(worker), &wire.Header{Opcode: wire.Acknowledge, Syndrome: wire.SyndromeSequence, PSN: psn}, nil)
	q.running = false
	start := q.claim()
	q.mu.Unlock()
	net.tap = func(_, _ netip.Addr, _ []byte) bool { return false } // nothing arrives any more
	if start {
		q.dev.run(q)
	}
	net.settle()
	a.fails(1, StatusRetryExcErr)
}

// TestTimeoutWhileWaiting: a timeout that a QP gets while it waits for an acknowledgement holds for that, too.
func TestTimeoutWhileWaiting(t *testing.T) {
	net := &fakeNetwork{clock: newFakeClock()}
	a, b := networkPair(t, net, sideOptions{}, connOptions{retry: 1})
	check(t, a.qp.Modify(&QPAttr{}, AttrTimeout))
	a.post(signaled(1, ring.OpWrite, a.sge(0, 8)).to(b, 0))
	net.packets = nil
	check(t, a.qp.Modify(&QPAttr{State: SQD}, AttrState), a.qp.Modify(&QPAttr{Timeout: 10}, AttrTimeout))
	net.settle()
	a.want(1, ring.WCWrite)
}

// TestDeadlines: each deadline that is set has an entry of the device's timers that is not later.
func TestDeadlines(t *testing.T) {
	clock := newFakeClock()
	a, _ := networkPair(t, &fakeNetwork{clock: clock}, sideOptions{}, connOptions{})
	q := a.qp
	for what := range numDeadlines {
		for other := range numDeadlines {
			if what == other || what == slowDeadline && other == flushDeadline {
				continue
			}
			q.mu.Lock()
			now := q.dev.now()
			q.deadlines.set(q, what, now+3*time.Second)
			q.deadlines.set(q, other, now+2*time.Second)
			q.deadlines.clear(other)
			q.mu.Unlock()
			clock.advance(4 * time.Second)
			if q.deadlines.isSet(what) || q.deadlines.entry != 0 {
				t.Errorf("deadline %d is still set after its time: %+v", what, q.deadlines)
			}
		}
	}
}
