package conformance

import (
	"errors"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// flushedReceive polls for a receive that was flushed and checks what its error says. One with an ID
// that a send had too is never described as that send.
func (s *side) flushedReceive(t *testing.T, id uint64, say ...string) *uverbs.WCError {
	t.Helper()
	wc := s.next(t)
	err := s.qp.Err(&wc)
	var e *uverbs.WCError
	if !errors.As(err, &e) || wc.ID != id || !uverbs.IsFlush(err) {
		t.Fatalf("completion of %d: %v, want a flush of %d", wc.ID, err, id)
	}
	says(t, err, say...)
	for _, not := range []string{"SEND", "earlier"} {
		if strings.Contains(err.Error(), not) {
			t.Errorf("the error says %q: %v", not, err)
		}
	}
	return e
}

// talked returns two connected sides with receive 7 posted at each, where a SEND with ID 7 has
// completed at each.
func talked(t *testing.T) (a, b *side) {
	t.Helper()
	a, b = pair(t, refusing)
	must(t, a.qp.PostRecv(1, a.mr.SGE(0, 100)), b.qp.PostRecv(1, b.mr.SGE(0, 100)), a.qp.PostRecv(7, a.mr.SGE(0, 100)), b.qp.PostRecv(7, b.mr.SGE(0, 100)))
	for _, s := range []struct{ from, to *side }{{a, b}, {b, a}} {
		must(t, s.from.qp.PostSend(send(7, s.from.mr.SGE(200, 10))))
		s.from.want(t, 7, uverbs.WCSend)
		s.to.want(t, 1, uverbs.WCRecv)
	}
	return a, b
}

// TestFlushCause checks that the error of a flushed receive says what moved the QP to ERR, as far
// as this side knows, and mentions no failure that did not happen.
func TestFlushCause(t *testing.T) {
	testenv.Guest(t)
	byModify := "this program moved the QP to state ERR, by Modify"
	t.Run("Modify", func(t *testing.T) {
		a, _ := talked(t)
		must(t, a.qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState))
		e := a.flushedReceive(t, 7, byModify, "that were still posted are flushed")
		if e.First != nil || e.Cause == nil {
			t.Errorf("first %v, cause %v, want a cause alone", e.First, e.Cause)
		}
		must(t, a.qp.PostSend(send(8, a.mr.SGE(0, 1))))
		wc := a.next(t)
		says(t, a.qp.Err(&wc), "work request 8", byModify, "sends that were still posted are flushed")
		if rig.Driver != "rxe" { // which has no doorbell for receives
			must(t, a.qp.PostRecv(9))
			a.flushedReceive(t, 9, byModify)
		}
		if !rig.IWARP() { // where a QP that was in use cannot be reset
			must(t, a.qp.Modify(uverbs.QPAttr{State: ib.QPReset}, uverbs.AttrState))
			says(t, a.qp.Err(&e.WC), byModify)
			must(t, initQP(a.qp.QP)) // another life of the QP
			saysNot(t, a.qp.Err(&e.WC), byModify)
		}
	})
	t.Run("peer", func(t *testing.T) {
		testenv.NotOnEFA(t, "states that a failed request leads to")
		a, b := talked(t)
		must(t, b.qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState))
		b.flushedReceive(t, 7, byModify)
		if rig.IWARP() { // TCP's connection ends with the QP
			a.flushedReceive(t, 7, "the connection has ended; the peer disconnected", "receives that were still posted are flushed")
			return
		}
		// Nothing says so at this side, until it sends.
		a.none(t)
		must(t, a.qp.PostSend(send(9, a.mr.SGE(200, 10))))
		if wc := a.next(t); wc.ID != 9 || wc.Status != uverbs.WCRetryExcErr {
			t.Fatalf("completion of %d: %v, want 9 with %v", wc.ID, a.qp.Err(&wc), uverbs.WCRetryExcErr)
		}
		wc := a.next(t)
		var e *uverbs.WCError
		if err := a.qp.Err(&wc); !errors.As(err, &e) || wc.ID != 7 || e.First == nil || e.First.WC.ID != 9 {
			t.Errorf("completion of %d: %v, want 7, flushed because of 9", wc.ID, err)
		}
	})
	t.Run("connection manager", func(t *testing.T) {
		a, _ := talked(t)
		cause := errors.New("the peer said good-bye")
		a.qp.SetErrCause(cause)
		must(t, a.qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState))
		if e := a.flushedReceive(t, 7, cause.Error()); !errors.Is(e, cause) {
			t.Errorf("the error does not match its cause: %v", e)
		}
	})
	t.Run("access", func(t *testing.T) {
		testenv.NotOnEFA(t, "states that a failed request leads to")
		a, b := talked(t)
		wr := send(9, a.mr.SGE(0, 8))
		wr.Opcode, wr.RemoteAddr, wr.RKey = uverbs.WRRDMAWrite, b.mr.Addr(), b.mr.RKey()^0x5500
		must(t, a.qp.PostSend(wr))
		switch {
		case rig.IWARP():
			b.flushedReceive(t, 7, "this side refused a message of the peer")
		case onMLX5:
			for ctx := withDeadline(t); ; {
				e, err := b.dev.NextEvent(ctx)
				must(t, err)
				if e.Type == uverbs.EventQPAccessErr && e.QP == b.qp.QP {
					break
				}
			}
			b.flushedReceive(t, 7, "local access violation work queue error", "receives that were still posted are flushed")
		default:
			b.flushedReceive(t, 7, "the device moved the QP to state ERR")
		}
	})
}

// TestFlushedQueue checks that with a CQ for each queue a flushed receive is recognized as one,
// even if another request had its ID.
func TestFlushedQueue(t *testing.T) {
	testenv.Guest(t)
	dev := openDevice(t, deviceName)
	a, b := newSide(t, dev, uverbs.QPOptions{}), newSide(t, dev, uverbs.QPOptions{})
	recv, err := dev.CreateCQ(uverbs.CQOptions{Size: 16})
	must(t, err)
	closeLater(t, recv)
	own := *a
	own.qp, err = asSide(a.pd.CreateQP(uverbs.QPOptions{Type: reliable, SendCQ: a.cq, RecvCQ: recv, Path: uverbs.PathOptions{GIDIndex: new(ipv4Index)}}))
	must(t, err)
	closeLater(t, own.qp)
	must(t, initQP(own.qp.QP))
	connect(t, &own, b)
	must(t, b.qp.PostRecv(1, b.mr.SGE(0, 100)), own.qp.PostRecv(7, a.mr.SGE(0, 100)), own.qp.PostSend(send(7, a.mr.SGE(200, 10))))
	own.want(t, 7, uverbs.WCSend)
	must(t, own.qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState))
	own.cq = recv
	if e := own.flushedReceive(t, 7, "work request 7 (receive)"); e.WC.Opcode != uverbs.WCRecv {
		t.Errorf("the opcode is %s", e.WC.Opcode)
	}
}
