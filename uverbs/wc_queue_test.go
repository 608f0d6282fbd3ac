package uverbs

import (
	"encoding/binary"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/mmio/siw"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/diag"
)

// sharedID is the ID of a send and of a receive.
const sharedID = 7

// queueRig is a QP whose device the test plays: both queues hold sharedID.
type queueRig struct {
	name     string
	qp       *QP
	fail     func(recv bool, status WCStatus) WC // completes the send or the receive
	knowsAll bool                                // the completions say to which queue they belong
}

// queueRigs makes a rig of each driver.
func queueRigs(t *testing.T) []queueRig {
	post := func(q *QP) {
		t.Helper()
		must(t, q.PostSend(SendWR{ID: sharedID, Opcode: WRSend}), q.PostRecv(sharedID))
	}
	pollOne := func(cq *CQ) WC {
		t.Helper()
		wcs := make([]WC, 1)
		if n, err := cq.Poll(wcs); n != 1 || err != nil {
			t.Fatalf("Poll is %d, %v, want 1", n, err)
		}
		return wcs[0]
	}

	card := newMlx5Card(t, true, false, 64)
	post(card.qp)
	onMlx5 := queueRig{name: "mlx5", qp: card.qp, knowsAll: true, fail: func(recv bool, status WCStatus) WC {
		opcode := byte(13)
		if recv {
			opcode = 14
		}
		syndrome := map[WCStatus]byte{WCWRFlushErr: 5, WCLocProtErr: 4, WCRemAccessErr: 0x13}[status]
		card.put(opcode, map[int][]byte{60: b16(0), 55: {syndrome}})
		return pollOne(card.cq)
	}}

	iwarp := newSiwRig(t)
	iwarp.qp.movingToErr.Store(true)
	post(iwarp.qp)
	onSiw := queueRig{name: "siw", qp: iwarp.qp, knowsAll: true, fail: func(recv bool, status WCStatus) WC {
		op := uint8(siw.Send)
		if recv {
			op = siw.Recv
		}
		number := map[WCStatus]uint16{WCWRFlushErr: siw.StatusWRFlushErr, WCLocProtErr: siw.StatusLocProtErr, WCRemAccessErr: siw.StatusRemAccessErr}[status]
		iwarp.put(sharedID, op, number, 0)
		return pollOne(iwarp.cq)
	}}
	return []queueRig{onMlx5, onSiw, rxeQueueRig(t, false), rxeQueueRig(t, true)}
}

// rxeQueueRig makes a rig of rxe, with one CQ or with two.
func rxeQueueRig(t *testing.T, two bool) queueRig {
	rig, name := newQuietRig(t, 3), "rxe, one CQ"
	rig.qp.qpn = 9
	cq, ring := newPollRig(t, 3)
	rig.qp.sendCQ, rig.qp.recvCQ = cq, cq
	recvCQ, recvRing := cq, ring
	cq.qps.Store(rig.qp.qpn, rig.qp)
	if two {
		name = "rxe, two CQs"
		recvCQ, recvRing = newPollRig(t, 3)
		rig.qp.recvCQ = recvCQ
		recvCQ.qps.Store(rig.qp.qpn, rig.qp)
	}
	must(t, rig.qp.PostSend(SendWR{ID: sharedID, Opcode: WRSend}), rig.qp.PostRecv(sharedID))
	at := map[*ringBytes]uint32{}
	return queueRig{name: name, qp: rig.qp, knowsAll: two, fail: func(recv bool, status WCStatus) WC {
		cq, ring := cq, ring
		if recv {
			cq, ring = recvCQ, recvRing
		} else if status != WCWRFlushErr { // the kernel notes it
			binary.NativeEndian.PutUint32(rig.sq.slot(0)[rxeStatusAt:], uint32(status))
		}
		wc := ring.slot(at[ring])
		clear(wc)
		copy(wc, host64(sharedID))
		copy(wc[8:], host32(uint32(status)))
		copy(wc[28:], host32(rig.qp.qpn))
		at[ring]++
		ring.put(1)
		wcs := make([]WC, 2)
		if n, err := cq.Poll(wcs); n != 1 || err != nil {
			t.Fatalf("Poll is %d, %v, want 1", n, err)
		}
		return wcs[0]
	}}
}

// rxeStatusAt is rxe_send_wqe.status.
const rxeStatusAt = 144

// TestSharedID: a completion is explained by the queue that it belongs to, where a send and a
// receive have one ID.
func TestSharedID(t *testing.T) {
	for _, status := range []WCStatus{WCWRFlushErr, WCLocProtErr} {
		for _, recv := range []bool{true, false} {
			for _, r := range queueRigs(t) {
				wc := r.fail(recv, status)
				if wc.ID != sharedID || wc.Status != status {
					t.Fatalf("%s: completion %+v", r.name, wc)
				}
				known := r.knowsAll || status != WCWRFlushErr
				if known && (wc.Opcode == WCRecv) != recv {
					t.Errorf("%s, receive %v, %s: the opcode is %s", r.name, recv, status, wc.Opcode)
				}
				var e *WCError
				err := r.qp.Err(&wc)
				if !errors.As(err, &e) {
					t.Fatalf("%s: error is %v", r.name, err)
				}
				want := ""
				switch {
				case known && recv:
					want = requestRecv
				case known:
					want = "SEND of 0 bytes"
				}
				if !strings.HasPrefix(e.Request, want) || want == "" && e.Request != "" {
					t.Errorf("%s, receive %v, %s: the request is %q, want %q", r.name, recv, status, e.Request, want)
				}
				if recv && strings.Contains(err.Error(), "SEND") {
					t.Errorf("%s: a receive is described as a send: %v", r.name, err)
				}
			}
		}
	}
}

// TestRecvOnly: rxe's rings tell the queue where only one of them holds the ID.
func TestRecvOnly(t *testing.T) {
	r := newQuietRig(t, 3)
	r.qp.sendCQ = new(CQ)
	r.qp.recvCQ = r.qp.sendCQ
	clear(r.sq.mem[ringData:]) // as the kernel makes them
	clear(r.rq.mem[ringData:])
	must(t, r.qp.PostSend(SendWR{ID: 1, Opcode: WRSend}), r.qp.PostRecv(2))
	for id, want := range map[uint64]diag.Queue{0: diag.UnknownQueue, 1: diag.SendQueue, 2: diag.RecvQueue, 3: diag.UnknownQueue} {
		if got := r.qp.queueOf(&WC{ID: id, Status: WCWRFlushErr}); got != want {
			t.Errorf("ID %d is of queue %d, want %d", id, got, want)
		}
	}
	must(t, r.qp.PostRecv(0))
	if got := r.qp.queueOf(&WC{ID: 0, Status: WCWRFlushErr}); got != diag.RecvQueue {
		t.Errorf("an empty receive with ID 0 is of queue %d", got)
	}
	if got := r.qp.queueOf(&WC{ID: 1, Status: WCRemAccessErr}); got != diag.UnknownQueue {
		t.Errorf("a status that the send's element does not have: queue %d", got)
	}
}

// TestDeepFlush: once the first flush was polled, the queue of the others is known without reading the
// rings again.
func TestDeepFlush(t *testing.T) {
	const n = 500
	rig := newQuietRig(t, 9)
	cq, ring := newPollRig(t, 10)
	rig.qp.qpn, rig.qp.sendCQ, rig.qp.recvCQ = 9, cq, cq
	cq.qps.Store(rig.qp.qpn, rig.qp)
	for id := range uint64(n) {
		must(t, rig.qp.PostSend(SendWR{ID: id + 1, Opcode: WRSend, Flags: SendSignaled}), rig.qp.PostRecv(n+id+1))
	}
	var wcs [1]WC
	for i := range uint32(2 * n) { // sends and receives in turn
		id := i/2 + 1 + i%2*n
		wc := ring.slot(i)
		clear(wc)
		copy(wc, host64(uint64(id)))
		copy(wc[8:], host32(uint32(WCWRFlushErr)))
		copy(wc[28:], host32(rig.qp.qpn))
		ring.put(1)
		if k, err := cq.Poll(wcs[:]); k != 1 || err != nil || wcs[0].ID != uint64(id) {
			t.Fatalf("Poll is %d, %v, ID %d, want %d", k, err, wcs[0].ID, id)
		}
		if isRecv := id > n; (wcs[0].Opcode == WCRecv) != isRecv {
			t.Fatalf("the opcode of ID %d is %s", id, wcs[0].Opcode)
		}
		for slot := range uint32(n - 1) { // not the newest
			if i == 0 {
				copy(rig.sq.slot(slot), host64(1<<60))
				copy(rig.rq.slot(slot), host64(1<<60))
			}
		}
	}
}

// TestSharedRecvLocked: a failed completion is explained without waiting for the lock of an SRQ, and
// while the SRQ is locked it is not known whether the SRQ holds the ID.
func TestSharedRecvLocked(t *testing.T) {
	r := newQuietRig(t, 3)
	r.qp.sendCQ = new(CQ)
	r.qp.recvCQ = r.qp.sendCQ
	clear(r.sq.mem[ringData:]) // as the kernel makes them
	clear(r.rq.mem[ringData:])
	must(t, r.qp.PostSend(SendWR{ID: 1, Opcode: WRSend}), r.qp.PostRecv(2))
	srq := &SRQ{srqDrivers: srqDrivers{rxe: rxeSRQ{rq: &r.qp.rxe.rq}}}
	r.qp.srq = srq
	binary.NativeEndian.PutUint32(r.sq.slot(0)[rxeStatusAt:], uint32(WCLocProtErr))
	check := func(state string, want map[WC]diag.Queue) {
		t.Helper()
		for wc, want := range want {
			if got := r.qp.queueOf(&wc); got != want {
				t.Errorf("%s SRQ: ID %d, %s is of queue %d, want %d", state, wc.ID, wc.Status, got, want)
			}
		}
	}
	flushed1, flushed2, failed1 := WC{ID: 1, Status: WCWRFlushErr}, WC{ID: 2, Status: WCWRFlushErr}, WC{ID: 1, Status: WCLocProtErr}
	check("free", map[WC]diag.Queue{flushed1: diag.SendQueue, flushed2: diag.RecvQueue, failed1: diag.SendQueue})
	srq.post.Lock()
	check("locked", map[WC]diag.Queue{flushed1: diag.UnknownQueue, flushed2: diag.UnknownQueue, failed1: diag.SendQueue})
	srq.post.Unlock()
	check("free again", map[WC]diag.Queue{flushed1: diag.SendQueue, flushed2: diag.RecvQueue, failed1: diag.SendQueue})
}

// TestInitForgets: completions of before that are polled between Reset and Init do not explain what
// fails afterwards.
func TestInitForgets(t *testing.T) {
	f := connectable(t, QPOptions{})
	qp := f.qp
	toReset := func() { must(t, qp.Modify(QPAttr{State: ib.QPReset}, AttrState)) }
	must(t, qp.Init())
	toReset()
	qp.failed(&WC{ID: 1, Status: WCWRFlushErr})
	qp.failed(&WC{ID: 2, Status: WCRemAccessErr})
	if first := qp.first.Load(); first == nil || first.WC.ID != 2 || !qp.ringChecked.Load() {
		t.Fatalf("what was polled after Reset is not noted: %v", first)
	}
	must(t, qp.Init())
	if first := qp.first.Load(); first != nil || qp.ringChecked.Load() || qp.flushSeen.Load() {
		t.Errorf("after Init: first failure %v, ring looked at %v, flush seen %v", first, qp.ringChecked.Load(), qp.flushSeen.Load())
	}
}

// TestRefusedModifyCause: after a Modify that the kernel refuses, the asynchronous event is the
// cause as before.
func TestRefusedModifyCause(t *testing.T) {
	f := newFakeQP(t, QPOptions{})
	f.qp.SetErrCause(eventCause(EventQPFatal.String()))
	f.refuse["MODIFY_QP"] = syscall.EINVAL
	if err := f.qp.Modify(QPAttr{State: ib.QPReset}, AttrState); !errors.Is(err, syscall.EINVAL) {
		t.Fatalf("Modify: %v", err)
	}
	if got := f.qp.whyFlushed(); got != eventCause(EventQPFatal.String()) {
		t.Errorf("the cause is %v", got)
	}
}

// TestFlushCause: a flush says what moved the QP to ERR, and which requests are flushed.
func TestFlushCause(t *testing.T) {
	reset := &reason{"the peer disconnected", syscall.ECONNRESET}
	for name, c := range map[string]struct {
		move func(q *QP)
		say  string
		is   error
	}{
		"Modify": {func(q *QP) { q.movedTo(ib.QPErr) }, "this program moved the QP to state ERR, by Modify; receives that were still posted are flushed", errMovedToErr.err},
		"reset":  {func(q *QP) { q.movedTo(ib.QPReset) }, "this program moved the QP to state RESET", errMovedToReset.err},
		"peer":   {func(q *QP) { q.SetErrCause(reset); q.movedTo(ib.QPErr); q.SetErrCause(syscall.EIO) }, "the peer disconnected; receives", syscall.ECONNRESET},
		"event":  {func(q *QP) { q.SetErrCause(eventCause(EventQPAccessErr.String())) }, "local access violation", eventCause(EventQPAccessErr.String())},
		"event, peer": {func(q *QP) {
			q.SetErrCause(eventCause(EventQPAccessErr.String()))
			q.SetErrCause(reset)
			q.SetErrCause(eventCause(EventQPFatal.String()))
		}, ": the peer disconnected; receives", syscall.ECONNRESET},
		"event, Modify": {func(q *QP) {
			q.SetErrCause(eventCause(EventQPAccessErr.String()))
			q.movedTo(ib.QPErr)
			q.SetErrCause(reset)
		}, "by Modify; before that the device reported", errMovedToErr.err},
		"event, flush": {func(q *QP) {
			q.SetErrCause(eventCause(EventQPFatal.String()))
			q.failed(&WC{Status: WCWRFlushErr, Opcode: WCRecv})
			q.movedTo(ib.QPErr)
		}, ": the device reported", eventCause(EventQPFatal.String())},
		"later event": {func(q *QP) {
			q.SetErrCause(eventCause(EventQPFatal.String()))
			q.SetErrCause(eventCause(EventQPReqErr.String()))
		}, "invalid request", eventCause(EventQPReqErr.String())},
		"closed":        {func(q *QP) { q.closed.Store(true) }, "this program closed the QP", errQPClosed},
		"flushed first": {func(q *QP) { q.failed(&WC{Status: WCWRFlushErr, Opcode: WCRecv}); q.movedTo(ib.QPErr) }, "the device moved the QP to state ERR", nil},
		"nothing":       {func(q *QP) { q.SetErrCause(nil); q.movedTo(ib.QPRTS) }, "the device moved the QP to state ERR", nil},
	} {
		q := &QP{kind: mlx5Driver{}.kind()}
		q.dev = &Device{info: DeviceInfo{Name: "mlx5_0"}, driver: mlx5Driver{}}
		c.move(q)
		var e *WCError
		err := q.Err(&WC{ID: 3, Status: WCWRFlushErr, Opcode: WCRecv})
		if !errors.As(err, &e) || !IsFlush(err) || !strings.Contains(err.Error(), "work request 3 (receive)") || !strings.Contains(err.Error(), c.say) {
			t.Errorf("%s: %v, want %q", name, err, c.say)
		}
		if (e.Cause == nil) != (c.is == nil) || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: the cause is %v, want %v", name, e.Cause, c.is)
		}
		if strings.Contains(err.Error(), "earlier") {
			t.Errorf("%s: the error hints at an earlier failure: %v", name, err)
		}
	}
	// On iWARP the kernel moves the QP when the connection ends.
	q := &QP{kind: siwDriver{}.kind()}
	q.dev = &Device{info: DeviceInfo{Name: "siw0"}, driver: siwDriver{}}
	if err := q.Err(&WC{ID: 3, Status: WCWRFlushErr, Opcode: WCRecv}); !strings.Contains(err.Error(), "the connection has ended; the peer disconnected") {
		t.Errorf("on iWARP: %v", err)
	}
}
