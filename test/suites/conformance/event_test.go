package conformance

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// TestCompChannelWait waits with and without busy-waiting. There is one event for each Notify.
func TestCompChannelWait(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		a, b := pair(t, uverbs.QPOptions{})
		for i := range uint64(20) {
			must(t, b.ch.SetBusyWait(time.Duration(i/3%2)*20*time.Millisecond))
			must(t, b.cq.Notify(), b.qp.PostRecv(i, b.mr.SGE(0, 8)))
			got := make(chan error, 1)
			go func() {
				cq, err := b.ch.Next(withDeadline(t))
				if err == nil && cq != b.cq {
					err = errors.New("event for another CQ")
				}
				got <- err
			}()
			if i%2 == 0 {
				time.Sleep(5 * time.Millisecond) // let the waiter park
			}
			must(t, a.qp.PostSend(send(i, a.mr.SGE(0, 8))), <-got)
			b.want(t, i, uverbs.WCRecv)
			a.want(t, i, uverbs.WCSend)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if cq, err := b.ch.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Wait returned CQ %p, %v once more", cq, err)
		}
	})
}

// TestNotifyRace arms after the completion came: rxe raises no event for it, and ConnectX and the
// model of EFA do, at once; the documented order, Notify, Poll, Wait, loses nothing.
func TestNotifyRace(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		a, b := pair(t, uverbs.QPOptions{})
		must(t, b.qp.PostRecv(1, b.mr.SGE(0, 8)), a.qp.PostSend(send(1, a.mr.SGE(0, 8))))
		a.want(t, 1, uverbs.WCSend)
		must(t, b.cq.Notify())
		b.want(t, 1, uverbs.WCRecv)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := b.ch.Next(ctx)
		if rig.EFA() || onMLX5 { // what it is armed with is the index of the last completion that was polled
			must(t, err, b.cq.Notify())
		} else if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Wait: %v, want the context's error", err)
		}
		// The CQ is still armed.
		must(t, b.qp.PostRecv(2, b.mr.SGE(0, 8)), a.qp.PostSend(send(2, a.mr.SGE(0, 8))))
		if _, err := b.ch.Next(withDeadline(t)); err != nil {
			t.Fatal(err)
		}
		b.want(t, 2, uverbs.WCRecv)
		a.want(t, 2, uverbs.WCSend)
	})
}

func TestSolicited(t *testing.T) {
	testenv.NeedsIB(t, "solicited events")
	eachPath(t, func(t *testing.T) {
		a, b := pair(t, uverbs.QPOptions{})
		must(t, b.cq.NotifySolicited(), b.qp.PostRecv(1, b.mr.SGE(0, 8)), b.qp.PostRecv(2, b.mr.SGE(0, 8)))
		must(t, a.qp.PostSend(send(1, a.mr.SGE(0, 8))))
		a.want(t, 1, uverbs.WCSend)
		b.want(t, 1, uverbs.WCRecv)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := b.ch.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("an unsolicited message raised an event: %v", err)
		}
		wr := send(2, a.mr.SGE(0, 8))
		wr.Flags |= uverbs.SendSolicited
		must(t, a.qp.PostSend(wr))
		if _, err := b.ch.Next(withDeadline(t)); err != nil {
			t.Fatal(err)
		}
		a.want(t, 2, uverbs.WCSend)
		b.want(t, 2, uverbs.WCRecv)
	})
}

// TestCloseWithEvents closes a CQ whose event nobody has waited for, or one that nobody has waited for
// anything since: it must not hang, and the event must not reach the CQ that comes after it.
func TestCloseWithEvents(t *testing.T) {
	testenv.Tags(t, testenv.Long)
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		ch, err := dev.CreateCompChannel()
		must(t, err)
		closeLater(t, ch)
		pd, err := dev.AllocPD()
		must(t, err)
		closeLater(t, pd)
		for i := range 6 {
			must(t, ch.SetBusyWait(time.Duration(i/2)*20*time.Millisecond))
			cq, err := dev.CreateCQ(uverbs.CQOptions{Size: 8, Channel: ch})
			must(t, err)
			qp, err := pd.CreateQP(uverbs.QPOptions{Type: reliable, SendCQ: cq, RecvCQ: cq})
			must(t, err)
			must(t, cq.Notify(), initQP(qp), qp.PostRecv(1, noMemory(t, pd)...), qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState))
			wc := (&side{cq: cq}).next(t)
			if !uverbs.IsFlush(qp.Err(&wc)) {
				t.Fatalf("status %s, want a flush", wc.Status)
			}
			if i >= 2 {
				if got, err := ch.Next(withDeadline(t)); err != nil || got != cq {
					t.Fatalf("Wait returned CQ %p, %v; want %p", got, err, cq)
				}
			}
			must(t, qp.Close(), cq.Close())
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if cq, err := ch.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Wait returned CQ %p, %v", cq, err)
		}
	})
}

// TestAllocs runs the data path in steady state and counts allocations.
func TestAllocs(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink, testenv.Memory, testenv.Long)
	eachPath(t, func(t *testing.T) {
		a, b := pair(t, uverbs.QPOptions{MaxInline: 32})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		sgl := []uverbs.SGE{a.mr.SGE(0, 64)}
		rsgl := []uverbs.SGE{b.mr.SGE(0, 64)}
		var wcs [4]uverbs.WC
		var failed error
		drain := func(s *side) {
			for n := 0; n == 0; {
				var err error
				if n, err = s.cq.Poll(wcs[:]); err != nil {
					failed = err
					return
				}
			}
		}
		wr := a.qp.addressed(uverbs.SendWR{ID: 2, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled | uverbs.SendSolicited, SGL: sgl})
		round := func() {
			failed = errors.Join(failed,
				b.qp.PostRecv(1, rsgl...),
				b.cq.Notify(),
				a.qp.PostSend(wr))
			drain(a)
			if _, err := b.ch.Next(ctx); err != nil {
				failed = err
			}
			drain(b)
		}
		round()
		must(t, failed)
		allocs := testing.AllocsPerRun(200, round)
		must(t, failed)
		if allocs != 0 {
			t.Errorf("a round of post, notify, poll and wait makes %v allocations, want 0", allocs)
		}
	})
}
