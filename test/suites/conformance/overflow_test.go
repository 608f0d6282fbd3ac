package conformance

import (
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// overflowing are connections, some of whose completions go to one CQ that is too small.
type overflowing struct {
	dev  *uverbs.Device
	cq   *uverbs.CQ
	from []*side
	to   []*side
	n    int // messages of a connection
}

// newOverflowing connects pairs; the completions of receives go to the small CQ, or those
// of sends.
func newOverflowing(t *testing.T, pairs int, receives bool) *overflowing {
	t.Helper()
	o := &overflowing{dev: openDevice(t, deviceName)}
	var err error
	o.cq, err = o.dev.CreateCQ(uverbs.CQOptions{Size: 10})
	must(t, err)
	closeLater(t, o.cq)
	o.n = o.cq.Size() + 10
	breaks(t, o.dev, "cq-overrun")
	for range pairs {
		a, b := newSide(t, o.dev, uverbs.QPOptions{}), newSide(t, o.dev, uverbs.QPOptions{})
		for s, full := range map[*side]bool{a: !receives, b: receives} {
			if full {
				s.cq = o.cq
			}
			s.qp, err = asSide(s.pd.CreateQP(uverbs.QPOptions{
				SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: o.n, MaxRecvWR: o.n,
				Path: uverbs.PathOptions{Timeout: 14, RetryCount: 3},
			}))
			must(t, err)
			closeLater(t, s.qp)
		}
		connect(t, a, b)
		o.from, o.to = append(o.from, a), append(o.to, b)
	}
	return o
}

// post has every connection post one list, all at the same time, of what request returns.
func (o *overflowing) post(t *testing.T, request func(a, b *side, i int) uverbs.SendWR) {
	t.Helper()
	var group sync.WaitGroup
	for i, a := range o.from {
		var wrs []uverbs.SendWR
		for j := range o.n {
			wrs = append(wrs, request(a, o.to[i], j))
		}
		group.Go(func() {
			if err := a.qp.PostSend(wrs...); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
}

// ids polls the small CQ until it is empty and returns the IDs of each QP.
func (o *overflowing) ids(t *testing.T, op uverbs.WCOpcode) map[uint32][]uint64 {
	t.Helper()
	wcs := make([]uverbs.WC, 1000)
	n, err := o.cq.Poll(wcs)
	must(t, err)
	want := o.cq.Size()
	if onMLX5 {
		want++ // mlx5_ib keeps an entry free
	}
	if n != want {
		t.Errorf("the CQ holds %d completions, want %d", n, want)
	}
	ids := map[uint32][]uint64{}
	for _, wc := range wcs[:n] {
		if wc.Status != uverbs.WCSuccess || wc.Opcode != op {
			t.Errorf("completion %+v, want a success of %s", wc, op)
		}
		ids[wc.QPN] = append(ids[wc.QPN], wc.ID)
	}
	return ids
}

// first are the numbers from 0 to n-1.
func first(n int) (ids []uint64) {
	for i := range n {
		ids = append(ids, uint64(i))
	}
	return ids
}

// counts are how many connections are tried.
var counts = map[string]int{"one QP": 1, "five QPs": 5}

// breaks waits for the events of the CQ and of QPs that complete to it, once a completion was lost: the QPs are in
// state ERR.
func (o *overflowing) breaks(t *testing.T, sides []*side) {
	t.Helper()
	if ev := event(t, o.dev, uverbs.EventCQErr); ev.CQ != o.cq {
		t.Errorf("event is %s, want one of CQ %p", ev, o.cq)
	}
	events := map[*uverbs.QP]int{}
	for range sides {
		events[event(t, o.dev, uverbs.EventQPFatal).QP]++
	}
	noEvent(t, o.dev)
	for _, s := range sides {
		if events[s.qp.QP] != 1 {
			t.Errorf("%d events of QP %d, want 1", events[s.qp.QP], s.qp.QPN())
		}
		s.reaches(t, ib.QPErr)
	}
}

// staysBroken checks that the CQ takes no completion any more, although there is room.
func (o *overflowing) staysBroken(t *testing.T, s *side) {
	t.Helper()
	must(t, s.qp.PostRecv(1), s.qp.PostSend(send(2))) // in state ERR, which flushes them
	if n, err := o.cq.Poll(make([]uverbs.WC, 10)); n != 0 || err != nil {
		t.Errorf("Poll of the broken CQ: %d, %v, want no completion", n, err)
	}
	errorIs(t, o.cq.Resize(4*o.n), syscall.EINVAL, "Resize of the broken CQ")
}

// TestCQOverflowBySends: a completion of a send for which the CQ has no room breaks the CQ, and its QP. With rxe, QP
// and CQ keep working. There is one event, however many completions are lost. Earlier completions stay, and the data has arrived.
func TestCQOverflowBySends(t *testing.T) {
	testenv.NotOnEFA(t, "asynchronous events of objects")
	testenv.NeedsIB(t, "send queues that fill up")
	testenv.Guest(t)
	for name, pairs := range counts {
		t.Run(name, func(t *testing.T) {
			o := newOverflowing(t, pairs, false)
			for _, a := range o.from {
				a.fill(0, o.n, 9)
			}
			o.post(t, func(a, b *side, i int) uverbs.SendWR {
				wr := send(uint64(i), a.mr.SGE(i, 1))
				wr.Opcode, wr.RemoteAddr, wr.RKey = uverbs.WRRDMAWrite, b.mr.Addr()+uint64(i), b.mr.RKey()
				return wr
			})
			if !onRxe {
				o.breaks(t, o.from)
			} else {
				if ev := event(t, o.dev, uverbs.EventCQErr); ev.CQ != o.cq {
					t.Errorf("event is %s, want one of CQ %p", ev, o.cq)
				}
				for _, a := range o.from { // no other event of the CQ comes before those of the drained QPs
					must(t, a.qp.Modify(uverbs.QPAttr{State: ib.QPSQD}, uverbs.AttrState))
					if ev, err := o.dev.NextEvent(withDeadline(t)); err != nil || ev.Type != uverbs.EventSQDrained || ev.QP != a.qp.QP {
						t.Errorf("event is %s, %v, want one of a drained QP", ev, err)
					}
					must(t, a.qp.Modify(uverbs.QPAttr{State: ib.QPRTS}, uverbs.AttrState))
				}
			}
			for qpn, ids := range o.ids(t, uverbs.WCRDMAWrite) {
				if !slices.Equal(ids, first(len(ids))) {
					t.Errorf("QP %d completed %d, want the first ones in order", qpn, ids)
				}
			}
			if !onRxe {
				o.staysBroken(t, o.from[0])
				return
			}
			for i, a := range o.from {
				o.to[i].holds(t, 0, a.buf.Bytes()[:o.n])
				wr := send(1000, a.mr.SGE(0, 8))
				wr.Opcode, wr.RemoteAddr, wr.RKey = uverbs.WRRDMARead, o.to[i].mr.Addr(), o.to[i].mr.RKey()
				must(t, a.qp.PostSend(wr))
				a.want(t, 1000, uverbs.WCRDMARead)
			}
		})
	}
}

// TestCQOverflowByReceives checks that a receive for whose completion the CQ has no room breaks its
// QP, and that its sender gets an error: every message that the sender believes to be received has
// a completion in the CQ. Except with rxe, that breaks the CQ, too.
func TestCQOverflowByReceives(t *testing.T) {
	testenv.NotOnEFA(t, "asynchronous events of objects")
	testenv.NeedsNoLoss(t, "a QP that the overflow has stopped acknowledges nothing again")
	testenv.NeedsIB(t, "immediate data")
	testenv.Guest(t)
	testenv.Needs(t, "messages that are complete before they are acknowledged", "rxe")
	for name, pairs := range counts {
		t.Run(name, func(t *testing.T) {
			o := newOverflowing(t, pairs, true)
			for i, b := range o.to {
				for j := range o.n {
					must(t, b.qp.PostRecv(uint64(j), b.mr.SGE(j, 1)))
				}
				o.from[i].fill(0, o.n, 9)
			}
			o.post(t, func(a, _ *side, i int) uverbs.SendWR { return send(uint64(i), a.mr.SGE(i, 1)) })
			sent := make([]int, pairs) // successfully
			for i, a := range o.from {
				for j := range o.n {
					wc := a.next(t)
					want := uverbs.WCSuccess
					switch {
					case wc.Status == want && sent[i] == j:
						sent[i]++
					case sent[i] == j:
						want = uverbs.WCRetryExcErr // without an acknowledgement
					default:
						want = uverbs.WCWRFlushErr
					}
					if wc.ID != uint64(j) || wc.Status != want {
						t.Errorf("completion of %d: %v, want of %d: %s", wc.ID, wc.Status, j, want)
					}
				}
			}
			if !onRxe {
				o.breaks(t, o.to)
			} else if ev := event(t, o.dev, uverbs.EventCQErr); ev.CQ != o.cq {
				t.Errorf("event is %s, want one of CQ %p", ev, o.cq)
			}
			ids := o.ids(t, uverbs.WCRecv)
			for i, b := range o.to {
				if got := ids[b.qp.QPN()]; !slices.Equal(got, first(sent[i])) {
					t.Errorf("QP %d received %d, and its sender knows of %d", b.qp.QPN(), got, sent[i])
				}
				b.holds(t, 0, o.from[i].buf.Bytes()[:sent[i]])
				for _, s := range []*side{b, o.from[i]} {
					s.reaches(t, ib.QPErr)
				}
			}
			if !onRxe {
				o.staysBroken(t, o.to[0])
			}
		})
	}
}

// TestCQSizes creates a CQ as large as it can be, and what cannot be.
func TestCQSizes(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		most := int(dev.Attr().MaxCQE)
		cq, err := dev.CreateCQ(uverbs.CQOptions{Size: most})
		must(t, err)
		closeLater(t, cq)
		if cq.Size() < most {
			t.Errorf("the CQ holds %d completions, want %d", cq.Size(), most)
		}
		for _, n := range []int{-1, most + 1} {
			_, err := dev.CreateCQ(uverbs.CQOptions{Size: n})
			argError(t, err, "Size")
		}
		_, err = dev.CreateCQ(uverbs.CQOptions{Size: 10, Vector: -1})
		argError(t, err, "Vector")
	})
}
