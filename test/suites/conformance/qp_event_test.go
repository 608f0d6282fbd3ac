package conformance

import (
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// TestSQDrainedEvent: a QP that nobody waits with tells that it has drained. Of several QPs
// the event names the right one, and not one that is closed.
func TestSQDrainedEvent(t *testing.T) {
	testenv.NeedsIB(t, "manual QP state changes")
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "state SQD", "rxe") // mlx5_ib knows no way there
		a, b := pair(t, uverbs.QPOptions{})
		for _, s := range []*side{b, a} {
			must(t, s.qp.Modify(uverbs.QPAttr{State: ib.QPSQD, EnSQDAsyncNotify: true}, uverbs.AttrState|uverbs.AttrEnSQDAsyncNotify))
			want := uverbs.Event{Type: uverbs.EventSQDrained, QP: s.qp.QP}
			if ev := event(t, s.dev, uverbs.EventSQDrained); ev != want {
				t.Errorf("event is %s, want %s", ev, want)
			}
			must(t, s.qp.Modify(uverbs.QPAttr{State: ib.QPRTS}, uverbs.AttrState))
		}
		must(t, b.qp.Modify(uverbs.QPAttr{State: ib.QPSQD}, uverbs.AttrState), b.qp.Close())
		noEvent(t, b.dev)
	})
}

// TestQPAccessErrEvent: a peer that accesses what it may not breaks the QP, and that is
// told on this side too. ConnectX does so, and rxe of Linux 7.2; of 6.12 and before it does not.
func TestQPAccessErrEvent(t *testing.T) {
	testenv.NotOnEFA(t, "asynchronous events of objects")
	testenv.NeedsIB(t, "acknowledgements")
	eachPath(t, func(t *testing.T) {
		for _, op := range []uverbs.WROpcode{uverbs.WRRDMAWrite, uverbs.WRRDMARead} {
			a, b := pair(t, refusing)
			wr := send(1, a.mr.SGE(0, 8))
			wr.Opcode, wr.RemoteAddr, wr.RKey = op, 1, ^b.mr.RKey()
			must(t, a.qp.PostSend(wr))
			if wc := a.next(t); wc.Status == uverbs.WCSuccess {
				t.Fatalf("a %s of anything succeeds", op)
			}
			if !since(t, 7, 2) && !onMLX5 {
				noEvent(t, a.dev)
				continue
			}
			want := uverbs.Event{Type: uverbs.EventQPAccessErr, QP: b.qp.QP}
			if ev := event(t, a.dev, uverbs.EventQPAccessErr); ev != want {
				t.Errorf("%s: event is %s, want %s", op, ev, want)
			}
		}
	})
}

// TestQPReqErrEvent: a request that the QP allows nobody breaks the QP. ConnectX reports this by an
// event, rxe does not.
func TestQPReqErrEvent(t *testing.T) {
	testenv.NotOnEFA(t, "asynchronous events of objects")
	testenv.NeedsIB(t, "acknowledgements")
	eachPath(t, func(t *testing.T) {
		for op, allowed := range map[uverbs.WROpcode]uverbs.Access{uverbs.WRRDMAWrite: uverbs.AccessRemoteRead, uverbs.WRRDMARead: uverbs.AccessRemoteWrite} {
			a, b := pair(t, uverbs.QPOptions{})
			must(t, b.qp.Modify(uverbs.QPAttr{Access: allowed}, uverbs.AttrAccess))
			wr := send(1, a.mr.SGE(0, 8))
			wr.Opcode, wr.RemoteAddr, wr.RKey = op, b.mr.Addr(), b.mr.RKey()
			must(t, a.qp.PostSend(wr))
			want := uverbs.WCRemInvReqErr
			if rxeBefore(t, 6, 0) && testenv.KnownBug(t, "no-nak") {
				want = uverbs.WCRetryExcErr
			}
			if wc := a.next(t); wc.Status != want {
				t.Errorf("%s: status %s, want %s", op, wc.Status, want)
			}
			if !onMLX5 {
				noEvent(t, b.dev)
				continue
			}
			if ev := event(t, b.dev, uverbs.EventQPReqErr); ev != (uverbs.Event{Type: uverbs.EventQPReqErr, QP: b.qp.QP}) {
				t.Errorf("%s: event is %s, want %s of QP %#x", op, ev, uverbs.EventQPReqErr, b.qp.QPN())
			}
			b.reaches(t, ib.QPErr)
		}
	})
}

// TestLastWQEEvent: a QP that goes to ERR tells that it takes no more receives from its SRQ,
// which is when the SRQ's other users need not fear it. ConnectX does so, and rxe of Linux 6.12;
// of 6.1 and before it does not, nor does siw.
func TestLastWQEEvent(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		pd := newPD(t, dev)
		srq, err := pd.CreateSRQ(uverbs.SRQOptions{})
		testenv.Skip(t, err)
		must(t, err)
		closeLater(t, srq)
		types := []ib.QPType{ib.RC}
		if !onMLX5 { // whether a card tells it of UD is not known here
			types = append(types, ib.UD)
		}
		for _, typ := range types {
			s := newSide(t, dev, uverbs.QPOptions{Type: typ, SRQ: srq})
			if typ == ib.RC {
				must(t, s.qp.Init())
			}
			must(t, s.qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState))
			if rig.IWARP() || rxeBefore(t, 6, 12) && testenv.KnownBug(t, "no-last-wqe-event") {
				noEvent(t, dev)
				continue
			}
			want := uverbs.Event{Type: uverbs.EventQPLastWQEReached, QP: s.qp.QP}
			if ev := event(t, dev, uverbs.EventQPLastWQEReached); ev != want {
				t.Errorf("%s: event is %s, want %s", typ, ev, want)
			}
		}
	})
}

// TestCommEst: a message that comes before the QP is ready to send raises an event, once.
func TestCommEst(t *testing.T) {
	testenv.NeedsIB(t, "manual QP state changes")
	testenv.Guest(t)
	testenv.Needs(t, "events of a message in state RTR", "mlx5")
	a, b := twoSides(t)
	rtrA, rtsA := rcSteps(t, a, b)
	rtrB, rtsB := rcSteps(t, b, a)
	rtrA()
	rtsA()
	rtrB()
	for i := range uint64(2) {
		must(t, b.qp.PostRecv(10+i, b.mr.SGE(0, 100)), a.qp.PostSend(send(i, a.mr.SGE(0, 100))))
		a.want(t, i, uverbs.WCSend)
		b.want(t, 10+i, uverbs.WCRecv)
	}
	if ev := event(t, b.dev, uverbs.EventCommEst); ev.QP != b.qp.QP || ev.Type != uverbs.EventCommEst {
		t.Errorf("event %s, want one of QP %#x", ev, b.qp.QPN())
	}
	rtsB()
	must(t, a.qp.PostRecv(20, a.mr.SGE(0, 100)), b.qp.PostSend(send(21, b.mr.SGE(0, 100))))
	b.want(t, 21, uverbs.WCSend)
	a.want(t, 20, uverbs.WCRecv)
	noEvent(t, b.dev)
}
