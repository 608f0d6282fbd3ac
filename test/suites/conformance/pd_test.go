package conformance

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// allRights are the access rights of newSide's region.
const allRights = remoteRights | uverbs.AccessRemoteAtomic

// oneSided are the operations that name memory of the peer, and the right that each needs.
var oneSided = []struct {
	op    uverbs.WROpcode
	done  uverbs.WCOpcode
	right uverbs.Access
}{
	{uverbs.WRRDMAWrite, uverbs.WCRDMAWrite, uverbs.AccessRemoteWrite},
	{uverbs.WRRDMARead, uverbs.WCRDMARead, uverbs.AccessRemoteRead},
	{uverbs.WRFetchAdd, uverbs.WCFetchAdd, uverbs.AccessRemoteAtomic},
	{uverbs.WRCompareSwap, uverbs.WCCompareSwap, uverbs.AccessRemoteAtomic},
}

// Where request works, and what there is before it. An atomic adds addend, or replaces
// before by it.
const (
	ourPlace   = 1024
	theirPlace = 2048
	before     = 1000
	ours       = 5
	addend     = 7
)

// request is a signalled request of 8 bytes from ourPlace of side a to addr, which is at
// theirPlace of side b.
func request(a, b *side, op uverbs.WROpcode, sge uverbs.SGE, addr uint64, rkey uint32) uverbs.SendWR {
	a.setWord(ourPlace, ours)
	b.setWord(theirPlace, before)
	wr := uverbs.SendWR{ID: 1, Opcode: op, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{sge}, RemoteAddr: addr, RKey: rkey}
	switch op {
	case uverbs.WRFetchAdd:
		wr.CompareAdd = addend
	case uverbs.WRCompareSwap:
		wr.CompareAdd, wr.Swap = before, addend
	}
	return wr
}

// words checks what a request has left in memory.
func words(t *testing.T, a, b *side, our, their uint64) {
	t.Helper()
	if a.word(ourPlace) != our || b.word(theirPlace) != their {
		t.Errorf("the words are %d here and %d there, want %d and %d", a.word(ourPlace), b.word(theirPlace), our, their)
	}
}

// effect returns what an operation that succeeds leaves in memory, here and there.
func effect(op uverbs.WROpcode) (our, their uint64) {
	switch op {
	case uverbs.WRRDMARead:
		return before, before
	case uverbs.WRFetchAdd:
		return before, before + addend
	case uverbs.WRCompareSwap:
		return before, addend
	}
	return ours, ours
}

// breaksWith waits for a work request to end with a status, which breaks the QP. The error
// names the request, unless say is empty.
func (s *side) breaksWith(t *testing.T, id uint64, want uverbs.WCStatus, say string) {
	t.Helper()
	s.endsWith(t, id, want, say)
	s.inError(t)
}

// endsWith waits for a work request to end with a status. The error names the request, unless say is empty.
func (s *side) endsWith(t *testing.T, id uint64, want uverbs.WCStatus, say string) {
	t.Helper()
	wc := s.next(t)
	if wc.ID != id || wc.Status != want || wc.QPN != s.qp.QPN() {
		t.Fatalf("completion of %d on QP %d: %v, want %d on QP %d with %s", wc.ID, wc.QPN, s.qp.Err(&wc), id, s.qp.QPN(), want)
	}
	if err := s.qp.Err(&wc); !strings.Contains(err.Error(), say) {
		t.Errorf("the error does not say %q: %v", say, err)
	}
}

// fails is endsWith for a send that fails on this side, which stops the send queue. Where it is flushed with the
// others, the error tells all the same that it was this one, and with what.
func (s *side) fails(t *testing.T, id uint64, want uverbs.WCStatus, say string) {
	t.Helper()
	got := ownFault(t, want)
	s.endsWith(t, id, got, say)
	s.reaches(t, s.stopped())
	if s.stopped() == ib.QPRTS { // no other request is flushed
		return
	}
	flushed := uverbs.WC{ID: id + 1000, Status: uverbs.WCWRFlushErr, QPN: s.qp.QPN()} // one that could come
	s.blames(t, &flushed, id, want, say)
}

// stopped returns the state of the QP after a send that has failed on this side. UC and UD still receive, but rxe
// breaks them, too.
func (s *side) stopped() ib.QPState {
	if rig.EFA() {
		return ib.QPRTS
	}
	if (s.typ == ib.UC || s.typ == ib.UD) && !onRxe {
		return ib.QPSQE
	}
	return ib.QPErr
}

// blames checks what a flush is said to follow from.
func (s *side) blames(t *testing.T, flushed *uverbs.WC, id uint64, want uverbs.WCStatus, say string) {
	t.Helper()
	var e *uverbs.WCError
	if err := s.qp.Err(flushed); !errors.As(err, &e) || !uverbs.IsFlush(err) || e.First == nil ||
		e.First.WC.ID != id || e.First.WC.Status != want || !strings.Contains(e.First.Error(), say) {
		t.Errorf("a flush: %v, want the cause %d with %s, which says %q", err, id, want, say)
	}
}

// inError waits for the state of a QP that the device breaks. The completion which says so
// may come before it. EFA breaks none.
func (s *side) inError(t *testing.T) {
	t.Helper()
	if s.typ == ib.SRD {
		s.reaches(t, ib.QPRTS)
		return
	}
	for end := time.Now().Add(deadline); ; {
		attr, err := s.qp.Query()
		must(t, err)
		if attr.State == ib.QPErr {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("state of QP %d is %s, want ERR", s.qp.QPN(), attr.State)
		}
	}
}

// refusal is what a request gets that the peer refuses, and the options of QPs for it: rxe
// before Linux 6.0 does not answer.
func refusal(t *testing.T) (uverbs.WCStatus, uverbs.QPOptions) {
	if rxeBefore(t, 6, 0) && testenv.KnownBug(t, "no-nak") {
		return uverbs.WCRetryExcErr, refusing
	}
	return uverbs.WCRemAccessErr, uverbs.QPOptions{}
}

// ownFault is what a request gets that fails on this side, before anything of it is sent,
// and should end with a status. Since some Linux after 6.1 rxe flushes it with the others.
func ownFault(t *testing.T, want uverbs.WCStatus) uverbs.WCStatus {
	if since(t, 6, 12) && !onMLX5 && !rig.EFA() && testenv.KnownBug(t, "failed-request-flushed") {
		return uverbs.WCWRFlushErr
	}
	return want
}

// noSource is what a request gets whose data is not the QP's to send.
func noSource(t *testing.T) uverbs.WCStatus {
	if !since(t, 6, 1) || onMLX5 || rig.EFA() {
		return uverbs.WCLocProtErr // as it should be
	}
	if !since(t, 6, 12) && testenv.KnownBug(t, "lkey-status") {
		return uverbs.WCLocQPOpErr
	}
	return ownFault(t, uverbs.WCLocProtErr)
}

// noPlace is what a receive completes with whose memory cannot be used.
func noPlace(t *testing.T) uverbs.WCStatus {
	if onMLX5 || rig.EFA() || !testenv.KnownBug(t, "receive-status") {
		return uverbs.WCLocProtErr
	}
	return uverbs.WCLocQPOpErr
}

// TestOtherPD: a QP cannot use memory that is registered in another PD, neither its own nor
// the peer's.
func TestOtherPD(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.NeedsIB(t, "acknowledgements")
	testenv.Guest(t)
	for _, c := range oneSided {
		t.Run(c.op.String()+" from", func(t *testing.T) {
			a, b := pair(t, uverbs.QPOptions{})
			needsAtomics(t, a.dev, c.op)
			mr := foreignMR(t, a)
			must(t, a.qp.PostSend(request(a, b, c.op, mr.SGE(ourPlace, 8), b.mr.Addr()+theirPlace, b.mr.RKey())))
			if c.op == uverbs.WRRDMAWrite {
				a.breaksWith(t, 1, noSource(t), c.op.String())
				words(t, a, b, ours, before)
				return
			}
			a.breaksWith(t, 1, uverbs.WCLocProtErr, c.op.String())
			_, their := effect(c.op) // an atomic is done; only its answer has no place
			if onMLX5 || rig.EFA() { // whose models look at local memory first
				their = before
			}
			words(t, a, b, ours, their)
		})
		t.Run(c.op.String()+" to", func(t *testing.T) {
			want, o := refusal(t)
			a, b := pair(t, o)
			needsAtomics(t, a.dev, c.op)
			mr := foreignMR(t, b)
			must(t, a.qp.PostSend(request(a, b, c.op, a.mr.SGE(ourPlace, 8), mr.Addr()+theirPlace, mr.RKey())))
			a.breaksWith(t, 1, want, c.op.String())
			b.inError(t)
			words(t, a, b, ours, before)
		})
	}
	t.Run("SEND from", func(t *testing.T) {
		a, b := pair(t, uverbs.QPOptions{})
		must(t, b.qp.PostRecv(2, b.mr.SGE(theirPlace, 8)))
		must(t, a.qp.PostSend(request(a, b, uverbs.WRSend, foreignMR(t, a).SGE(ourPlace, 8), 0, 0)))
		a.breaksWith(t, 1, noSource(t), "SEND")
		b.none(t)
		words(t, a, b, ours, before)
	})
	t.Run("SEND to", func(t *testing.T) {
		a, b := pair(t, uverbs.QPOptions{})
		must(t, b.qp.PostRecv(2, foreignMR(t, b).SGE(theirPlace, 8)))
		must(t, a.qp.PostSend(request(a, b, uverbs.WRSend, a.mr.SGE(ourPlace, 8), 0, 0)))
		mine := uverbs.WCRemOpErr
		if rig.EFA() { // by the choice of its model
			mine = uverbs.WCBadRespErr
		}
		a.breaksWith(t, 1, mine, "SEND")
		b.breaksWith(t, 2, noPlace(t), "")
		words(t, a, b, ours, before)
	})
}

// foreignMR registers a side's buffer in another PD.
func foreignMR(t *testing.T, s *side) *uverbs.MR {
	t.Helper()
	mr, err := newPD(t, s.dev).RegMR(s.buf, uverbs.MROptions{Access: rightsOnDevice(s.dev, allRights|uverbs.AccessMWBind)})
	must(t, err)
	closeLater(t, mr)
	return mr
}

// TestAHOfOtherPD checks that a QP cannot use an AH of another PD. rxe of Linux 5.10 does not
// check, nor does ConnectX, which has the address in the work request.
func TestAHOfOtherPD(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.Guest(t)
	dev := openDevice(t, deviceName)
	a, b := newSide(t, dev, uverbs.QPOptions{Type: ib.UD}), newSide(t, dev, uverbs.QPOptions{Type: ib.UD})
	want := a.fill(0, 1000, 3)
	must(t, b.qp.PostRecv(1, b.mr.SGE(0, 2000)))
	must(t, a.qp.PostSend(datagram(2, wayTo(t, &side{dev: dev, pd: newPD(t, dev)}, b), b, a.mr.SGE(0, 1000))))
	if refuses := since(t, 6, 1) && !onMLX5; refuses {
		a.fails(t, 2, uverbs.WCLocQPOpErr, "SEND")
		b.none(t)
	} else {
		a.want(t, 2, uverbs.WCSend)
		b.want(t, 1, uverbs.WCRecv)
		b.holds(t, uverbs.GRHSize, want)
	}
}

// srqMemory returns memory for receives of an SRQ of a PD, which a side of another PD takes. The specification and
// software devices want it to be of the SRQ's PD, the others of that of the QP.
func srqMemory(t *testing.T, pd *uverbs.PD, s *side) *uverbs.MR {
	t.Helper()
	if !rig.Soft {
		return s.mr
	}
	mr, err := pd.RegMR(s.buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite})
	must(t, err)
	closeLater(t, mr)
	return mr
}

// TestOtherPDSRQ: a QP takes its receives from an SRQ of another PD. rxe wants the memory
// to be of the QP's PD; the specification wants that of the SRQ.
func TestOtherPDSRQ(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.NeedsIB(t, "acknowledgements")
	testenv.Guest(t)
	for _, c := range []struct {
		name string
		of   string // whose PD the receive's memory is of
		op   uverbs.WROpcode
		ok   bool
	}{
		{"SEND, memory of the QP's PD", "QP", uverbs.WRSend, true},
		{"SEND, memory of the SRQ's PD", "SRQ", uverbs.WRSend, false},
		{"RDMA_WRITE_WITH_IMM, memory of the SRQ's PD", "SRQ", uverbs.WRRDMAWriteWithImm, true}, // nothing is written to it
	} {
		t.Run(c.name, func(t *testing.T) {
			if rig.Soft && c.op == uverbs.WRSend { // follows the specification
				c.ok = !c.ok
			}
			dev := openDevice(t, deviceName)
			pd, srq := newSRQ(t, dev, uverbs.SRQOptions{})
			a := newSide(t, dev, uverbs.QPOptions{})
			b := newSide(t, dev, uverbs.QPOptions{SRQ: srq})
			connect(t, a, b)
			mr := b.mr
			if c.of == "SRQ" {
				var err error
				mr, err = pd.RegMR(b.buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite})
				must(t, err)
				closeLater(t, mr)
			}
			must(t, srq.PostRecv(2, mr.SGE(theirPlace, 8)))
			must(t, a.qp.PostSend(request(a, b, c.op, a.mr.SGE(ourPlace, 8), b.mr.Addr()+theirPlace, b.mr.RKey())))
			if !c.ok {
				a.breaksWith(t, 1, uverbs.WCRemOpErr, c.op.String())
				b.breaksWith(t, 2, noPlace(t), "")
				words(t, a, b, ours, before)
				return
			}
			if c.op == uverbs.WRSend {
				a.want(t, 1, uverbs.WCSend)
				b.want(t, 2, uverbs.WCRecv)
			} else {
				a.want(t, 1, uverbs.WCRDMAWrite)
				b.want(t, 2, uverbs.WCRecvRDMAWrite)
			}
			words(t, a, b, ours, ours)
		})
	}
}
