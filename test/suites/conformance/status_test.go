package conformance

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// localFault are the statuses of a send with a faulty SGE: those of Linux 5.10, of 6.1, where
// a key is concerned, and of later kernels.
var localFault = []uverbs.WCStatus{uverbs.WCLocProtErr, uverbs.WCLocQPOpErr, uverbs.WCWRFlushErr}

// statusCase is a request that completes with an error.
type statusCase struct {
	name string
	old  bool // before 6.0 rxe does not answer such a request
	post func(t *testing.T, a, b *side) uverbs.SendWR
	want []uverbs.WCStatus
	say  []string
}

// statusCases are the requests of TestCompletionStatus.
var statusCases = []statusCase{
	{"remote access, wrong rkey", true, func(t *testing.T, a, b *side) uverbs.SendWR {
		wr := send(1, a.mr.SGE(0, 100))
		wr.Opcode, wr.RemoteAddr, wr.RKey = uverbs.WRRDMAWrite, b.mr.Addr(), b.mr.RKey()^0x5500
		return wr
	}, []uverbs.WCStatus{uverbs.WCRemAccessErr}, []string{"RDMA_WRITE of 100 bytes", "no MR and no memory window has rkey"}},
	{"remote access, past the end", true, func(t *testing.T, a, b *side) uverbs.SendWR {
		wr := send(1, a.mr.SGE(0, 100))
		wr.Opcode, wr.RemoteAddr, wr.RKey = uverbs.WRRDMARead, b.mr.Addr()+bufferSize-50, b.mr.RKey()
		return wr
	}, []uverbs.WCStatus{uverbs.WCRemAccessErr}, []string{"RDMA_READ of 100 bytes", "the peer is of this program: QP ", "+100 is outside"}},
	{"receive too short", false, func(t *testing.T, a, b *side) uverbs.SendWR {
		must(t, b.qp.PostRecv(9, b.mr.SGE(0, 10)))
		return send(1, a.mr.SGE(0, 100))
	}, []uverbs.WCStatus{uverbs.WCRemInvReqErr, uverbs.WCRemOpErr}, []string{"SEND of 100 bytes"}},
	{"SGE with a wrong lkey", false, func(t *testing.T, a, b *side) uverbs.SendWR {
		sge := a.mr.SGE(0, 100)
		sge.LKey ^= 0x5500
		return send(1, sge)
	}, localFault, []string{"SEND of 100 bytes", "no MR of this device has the lkey"}},
	{"SGE past the end", false, func(t *testing.T, a, b *side) uverbs.SendWR {
		sge := a.mr.SGE(bufferSize-50, 50)
		sge.Length = 100
		return send(1, sge)
	}, localFault, []string{"SEND of 100 bytes", "SGE 0 is outside its MR"}},
	{"SGE of another PD", false, func(t *testing.T, a, b *side) uverbs.SendWR {
		return send(1, b.mr.SGE(0, 100))
	}, localFault, []string{"SEND of 100 bytes", "SGE 0 is of another PD"}},
	{"READ into memory without LOCAL_WRITE", false, func(t *testing.T, a, b *side) uverbs.SendWR {
		mr, err := a.pd.RegMR(a.buf, uverbs.MROptions{})
		must(t, err)
		closeLater(t, mr)
		wr := send(1, mr.SGE(0, 100))
		wr.Opcode, wr.RemoteAddr, wr.RKey = uverbs.WRRDMARead, b.mr.Addr(), b.mr.RKey()
		return wr
	}, localFault, []string{"RDMA_READ of 100 bytes", "SGE 0 does not have AccessLocalWrite"}},
	{"atomic without REMOTE_ATOMIC", true, func(t *testing.T, a, b *side) uverbs.SendWR {
		testenv.Skip(t, noAtomics(a.dev))
		mr, err := b.pd.RegMR(b.buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite})
		must(t, err)
		closeLater(t, mr)
		wr := send(1, a.mr.SGE(0, 8))
		wr.Opcode, wr.RemoteAddr, wr.RKey = uverbs.WRAtomicFAA, mr.Addr(), mr.RKey()
		return wr
	}, []uverbs.WCStatus{uverbs.WCRemAccessErr}, []string{"ATOMIC_FETCH_AND_ADD of 8 bytes", "does not have REMOTE_ATOMIC: its access is LOCAL_WRITE|REMOTE_WRITE"}},
	{"access that the peer's QP does not allow", true, func(t *testing.T, a, b *side) uverbs.SendWR {
		must(t, b.qp.Modify(uverbs.QPAttr{Access: uverbs.AccessRemoteRead}, uverbs.AttrAccess))
		wr := send(1, a.mr.SGE(0, 100))
		wr.Opcode, wr.RemoteAddr, wr.RKey = uverbs.WRRDMAWrite, b.mr.Addr(), b.mr.RKey()
		return wr
	}, []uverbs.WCStatus{uverbs.WCRemAccessErr, uverbs.WCRemInvReqErr}, []string{"RDMA_WRITE of 100 bytes", "does not permit RDMA_WRITE: its access is REMOTE_READ"}},
}

// TestCompletionStatus provokes completions with an error and checks what their errors say: the work request,
// and for those that are flushed after it the first failure.
func TestCompletionStatus(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.NeedsIB(t, "acknowledgements")
	eachPath(t, func(t *testing.T) {
		for _, c := range statusCases {
			t.Run(c.name, func(t *testing.T) { checkStatus(t, c) })
		}
	})
}

// checkStatus posts the request of a case and another one behind it.
func checkStatus(t *testing.T, c statusCase) {
	if c.old && rxeBefore(t, 6, 0) {
		c.want, c.say = []uverbs.WCStatus{uverbs.WCRetryExcErr}, c.say[:1:1]
	}
	a, b := pair(t, refusing)
	wr := c.post(t, a, b)
	must(t, a.qp.PostSend(wr, send(2, a.mr.SGE(0, 1))))
	wc := a.next(t)
	err := a.qp.Err(&wc)
	var e *uverbs.WCError
	if !errors.As(err, &e) || wc.ID != 1 || !slices.Contains(c.want, wc.Status) {
		t.Fatalf("completion of %d: %v, want 1 with %v", wc.ID, err, c.want)
	}
	for _, s := range append(c.say, "peer "+peerName) {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("the error does not say %q: %v", s, err)
		}
	}
	flushed := a.next(t)
	err = a.qp.Err(&flushed)
	if !errors.As(err, &e) || flushed.ID != 2 || !uverbs.IsFlush(err) || e.First == nil || e.First.WC.ID != 1 ||
		!strings.Contains(err.Error(), c.say[0]) {
		t.Errorf("completion of %d afterwards: %v, want 2, flushed because of 1", flushed.ID, err)
	}
	if a.qp.State() != ib.QPErr {
		if attr, err := a.qp.Query(); err != nil || attr.State != ib.QPErr {
			t.Errorf("state %s, %v, want ERR", attr.State, err)
		}
	}
	// A reset forgets.
	must(t, a.qp.Modify(uverbs.QPAttr{State: ib.QPReset}, uverbs.AttrState))
	if errors.As(a.qp.Err(&flushed), &e) && e.First != nil {
		t.Error("the first failure outlives a reset")
	}
}

// TestSRQLimitEvent checks that one event comes when fewer receives are left than the limit says.
func TestSRQLimitEvent(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		pd, srq := newSRQ(t, dev, uverbs.SRQOptions{MaxWR: 20})
		a := newSide(t, dev, uverbs.QPOptions{Type: ib.UD})
		b := newSide(t, dev, uverbs.QPOptions{Type: ib.UD, SRQ: srq})
		ah := wayTo(t, a, b)
		mr := srqMemory(t, pd, b)
		for i := range 6 {
			must(t, srq.PostRecv(uint64(i), mr.SGE(0, 100)))
		}
		must(t, srq.SetLimit(4))
		for i := range 4 {
			must(t, a.qp.PostSend(datagram(1, ah, b, a.mr.SGE(0, 10))))
			a.want(t, 1, uverbs.WCSend)
			b.want(t, uint64(i), uverbs.WCRecv)
		}
		ev, err := dev.WaitEvent(withDeadline(t))
		must(t, err)
		if ev.Type != uverbs.EventSRQLimitReached || ev.SRQ != srq {
			t.Errorf("event %s, want %s of the SRQ", ev, uverbs.EventSRQLimitReached)
		}
		if attr, err := srq.Query(); err != nil || attr.Limit != 0 {
			t.Errorf("the limit is %d, %v after its event, want 0", attr.Limit, err)
		}
	})
}
