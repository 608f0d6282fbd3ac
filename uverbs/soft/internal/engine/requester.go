package engine

import (
	"time"

	"github.com/goverbs/goverbs/uverbs/soft/internal/memory"
	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

const (
	// maxUnacked limits the PSNs under way, as in rxe (RXE_MAX_UNACKED_PSNS). The last packet of a
	// message asks for an acknowledgement, and one in half as many others.
	maxUnacked = 128

	// readWindow limits the PSNs under way before a READ within the host, whose data never waits.
	readWindow = 1 << 20

	// networkWindow limits the bytes under way on a network, and readChunk those of a READ: the
	// receive buffer of a socket is small, and what does not fit is lost. A longer READ is sent as
	// several requests, one after the other, each of a whole number of packets. So is one of the
	// largest on one host, as a READ of 2 GiB with the smallest MTU has as many PSNs as can be told apart.
	networkWindow  = 256 << 10
	readChunk      = 64 << 10
	localReadChunk = 1 << 30

	// leastTimeout is the shortest time that the QP waits for anything. rxe waits for a jiffy.
	leastTimeout = time.Millisecond

	qpnMask = wire.QPNMask

	// noLimit is the RNRRetry that does not count down.
	noLimit = 7
)

// slotState is how far a work request is.
type slotState uint8

const (
	posted   slotState = iota // nothing of it was sent
	assigned                  // it has PSNs: it is being sent, or waits for its acknowledgement
	done                      // it is complete, but one before it is not
)

// A sendState is what the device knows of a work request in the send ring, apart from what the program
// can write there.
type sendState struct {
	state       slotState
	flags       uint8 // IB_SEND flags
	opcode      uint8
	rdAtomic    bool   // it counts as a READ or atomic under way
	first, last uint32 // PSNs, of an assigned request
	length      uint32 // in bytes
	wrID        uint64
}

// sendStates are the states of the requests of a send ring, in parts that are made when they are used.
type sendStates []*[statesPerPart]sendState

// statesPerPart is the number of states of a part.
const statesPerPart = 64

// newSendStates returns the states of n slots of a ring.
func newSendStates(n int) sendStates { return make(sendStates, (n+statesPerPart-1)/statesPerPart) }

// at returns the state of the request in a slot.
func (s sendStates) at(i uint32) *sendState {
	part := &s[i/statesPerPart]
	if *part == nil {
		*part = new([statesPerPart]sendState)
	}
	return &(*part)[i%statesPerPart]
}

// answered reports whether a request is complete only when its response comes. An acknowledgement of
// a later one means that it was lost.
func (s *sendState) answered() bool {
	return s.opcode == ring.OpRead || s.opcode == ring.OpAtomicCAS || s.opcode == ring.OpAtomicFAA
}

// A requester sends the requests of a QP. Requests from head to next are sent, and at next the first
// offset bytes. PSNs from una to psn are sent and not acknowledged. After a loss next and psn move
// back; end does not.
type requester struct {
	slots  sendStates // by index of the send ring
	head   uint32     // oldest request that is not complete
	next   uint32     // request to send
	offset uint32     // bytes of it that are sent, 0 at its start
	una    uint32     // oldest PSN that is not acknowledged
	psn    uint32     // next PSN to send
	end    uint32     // PSN after the last one that was ever sent

	completed uint64 // number of requests that are complete, or were forgotten
	number    uint64 // number of requests that are complete since the last reset
	before    uint64 // those when the plan of faults was set
	rdAtomics int    // READs and atomics under way
	sinceAck  int    // packets since one asked for an acknowledgement

	unsent unsent // UC and UD: the packet that was generated last, as its completion does not wait for the peer

	timeout      time.Duration // 0: never
	retry        bool          // send again from una
	retryStarted bool          // it was, and nothing was acknowledged since
	rnrWait      bool          // wait for rnrAt first
	retriesLeft  uint8
	rnrLeft      uint8
}

// setPSN sets the first PSN.
func (r *requester) setPSN(psn uint32) { r.una, r.psn, r.end = psn, psn, psn }

// reset forgets all requests.
func (r *requester) reset(sq *ring.Ring) {
	clear(r.slots)
	r.head = sq.Producer()
	r.next = r.head
	sq.SetConsumer(r.head)
	r.offset, r.sinceAck, r.rdAtomics, r.number, r.before = 0, 0, 0, 0, 0
	r.retry, r.retryStarted, r.rnrWait = false, false, false
	r.una, r.end = r.psn, r.psn
	r.completed += uint64(sq.Slots()) // no request has the number of one before
}

// outcome is the result of a step of the requester.
type outcome uint8

const (
	progress outcome = iota
	blocked          // there is nothing that may be sent now
	full             // the worker has no room for more packets
)

// send generates packets until it is blocked. It reports whether it stopped because the worker has
// no room. The caller holds mu.
func (q *QP) send(w *worker) (more bool) {
	for budget := roundPackets; budget > 0; budget-- {
		switch q.sendStep(w) {
		case blocked:
			return false
		case full:
			return true
		}
	}
	return true
}

// sendStep generates at most one packet.
func (q *QP) sendStep(w *worker) outcome {
	r := &q.req
	if q.closed || q.state < RTS {
		return blocked
	}
	switch q.state { // what was posted since
	case Err:
		q.flush()
		return blocked
	case SQE:
		q.flushSends()
		return blocked
	}
	if r.retry && !r.rnrWait {
		q.rewind()
	}
	if r.next == q.sq.Producer() {
		q.checkDrained()
		return blocked
	}
	s := r.slots.at(r.next)
	if s.state == done {
		r.next = q.sq.Next(r.next)
		return progress
	}
	if q.state != RTS && s.state == posted {
		q.checkDrained()
		return blocked
	}
	if !w.loadSend(q) {
		return q.fail(StatusLocQPOpErr)
	}
	if r.rnrWait && (s.state != posted || !isLocal(w.wr.Opcode)) {
		return blocked
	}
	if s.state == posted {
		if o := q.begin(w, s); o != progress || s.state != assigned {
			return o
		}
	}
	if s.length != w.wr.Length || uint32(s.opcode) != w.wr.Opcode { // the program has changed it
		return q.fail(StatusLocQPOpErr)
	}
	return q.sendPacket(w, s)
}

// loadSend reads the work request that the QP sends next, unless w has just read it. It reports false
// if the program wrote nonsense.
func (w *worker) loadSend(q *QP) bool {
	key := sendKey{q, q.req.completed + uint64(q.sq.Count(q.req.head, q.req.next))}
	if w.wrKey == key {
		return true
	}
	w.wrKey = sendKey{}
	if !q.sq.ReadSend(q.req.next, &w.wr, q.caps.MaxSendSGE) {
		return false
	}
	w.wrKey = key
	w.cursor = sgeCursor{}
	return true
}

// begin starts a work request: it waits for what must come before, and carries out a local operation.
// When it returns progress, the request is assigned, or it was a local operation.
func (q *QP) begin(w *worker, s *sendState) outcome {
	r, wr := &q.req, &w.wr
	*s = sendState{opcode: uint8(wr.Opcode), flags: uint8(wr.Flags & 0xff), length: wr.Length, wrID: wr.WRID}
	if wr.Opcode == ring.OpLocalInv && r.next != r.head {
		return blocked // it waits for all requests before it
	}
	if wr.Flags&ring.SendFence != 0 && r.rdAtomics > 0 {
		return blocked
	}
	if isLocal(wr.Opcode) {
		return q.local(wr, s)
	}
	kind, ok := requestKind(q.typ, wr.Opcode)
	if !ok {
		return q.fail(StatusLocQPOpErr)
	}
	if wr.Length > MaxMessage || q.typ == UD && wr.Length > uint32(q.dev.MTU()) {
		return q.fail(StatusLocLenErr)
	}
	if q.typ == RC && !q.mayStart(wr.Opcode) {
		return blocked
	}
	if kind.rdAtomic {
		if r.rdAtomics >= int(q.attr.MaxRdAtomic) {
			return blocked
		}
		r.rdAtomics++
		s.rdAtomic = true
	}
	s.state, s.first, s.last = assigned, r.psn, r.psn
	if q.typ != UD && (kind.data || wr.Opcode == ring.OpRead) {
		s.last = wire.Add(r.psn, q.packets(wr.Length)-1)
	}
	r.offset = 0
	return progress
}

// window returns how many PSNs may be under way.
func (q *QP) window() int {
	if q.path != nil && q.path.local == nil {
		return min(maxUnacked, networkWindow/q.mtu)
	}
	return maxUnacked
}

// mayStart reports whether there is room in the window for another packet, or for all of a READ. A READ within the host
// needs none, unless faults may lose its data: as many READs are under way as with a card.
func (q *QP) mayStart(opcode uint32) bool {
	under := wire.Diff(q.req.psn, q.req.una)
	return under <= q.window() ||
		opcode == ring.OpRead && under <= readWindow && q.path != nil && q.path.local != nil && q.dev.filter.Load() == nil
}

// packets returns the number of packets of a message.
func (q *QP) packets(length uint32) int {
	return max(int((uint64(length)+uint64(q.mtu)-1)/uint64(q.mtu)), 1)
}

// local carries out LOCAL_INV or BIND_MW (rxe_do_local_ops).
func (q *QP) local(wr *ring.Send, s *sendState) outcome {
	if wr.Opcode == ring.OpLocalInv {
		if q.typ != RC {
			return q.fail(StatusLocQPOpErr)
		}
		if !q.dev.config.Memory.Invalidate(q.ref(), wr.ImmOrKey) {
			return q.fail(StatusMWBindErr) // which is the error of all operations on memory
		}
	} else if q.typ == UD {
		return q.fail(StatusLocQPOpErr)
	} else if !q.bind(wr) {
		return q.fail(StatusMWBindErr)
	}
	s.state = done
	q.req.next = q.sq.Next(q.req.next)
	q.completeDone()
	return progress
}

// isLocal reports whether a request causes no packets.
func isLocal(opcode uint32) bool { return opcode == ring.OpLocalInv || opcode == ring.OpBindMW }

// fail ends a request that cannot be sent, and all of the send queue, when the requests before it are complete.
func (q *QP) fail(status Status) outcome {
	r := &q.req
	if r.next != r.head {
		return blocked
	}
	if s := r.slots.at(r.head); s.state == posted {
		s.wrID = q.sq.SendID(r.head)
	}
	q.failHead(status, 0)
	return blocked
}

// rewind goes back to the oldest PSN that is not acknowledged.
func (q *QP) rewind() {
	r := &q.req
	r.retry = false
	r.psn, r.next, r.offset = r.una, r.head, 0
	producer := q.sq.Producer()
	for r.next != producer && r.slots.at(r.next).state == done {
		r.next = q.sq.Next(r.next)
	}
	s := r.slots.at(r.next)
	if r.next != producer && s.state == assigned {
		r.offset = min(uint32(max(wire.Diff(r.una, s.first), 0))*uint32(q.mtu), s.length)
		r.psn = wire.Add(s.first, int(r.offset)/q.mtu)
	}
}

// checkDrained reports that a QP in state SQD has no request under way any more.
func (q *QP) checkDrained() {
	r := &q.req
	if q.state == SQD && q.draining && r.una == r.end && r.slots.at(r.head).state == posted {
		q.draining = false
		if q.attr.SQDNotify {
			q.raise(EventSQDrained)
		}
	}
}

// toError moves the QP to the error state and flushes its queues. A QP with an SRQ tells that it takes
// no more receives. From now on, a program that posts a receive rings the doorbell, which flushes it.
func (q *QP) toError() {
	was := q.state
	q.state = Err
	if q.srq == nil && was != Err {
		// A program that posts now may not see it, as its store of the producer index may come later than its
		// load of this word. So flush looks again.
		q.rq.WantDoorbell(true)
		q.deadlines.after(q, flushDeadline, leastTimeout)
	}
	q.flush()
	if q.srq != nil && was != Err {
		q.raise(EventLastWQE)
	}
}

// flush completes all work requests with an error: those of a QP in state Err (flush_send_queue, flush_recv_queue).
func (q *QP) flush() {
	q.deadlines.stopSends()
	q.flushSends()
	q.flushRecvs()
}

// flushSends flushes the send queue.
func (q *QP) flushSends() {
	r := &q.req
	for producer := q.sq.Producer(); r.head != producer; r.head = q.sq.Next(r.head) {
		wrID := r.slots.at(r.head).wrID
		if r.slots.at(r.head).state == posted {
			wrID = q.sq.SendID(r.head)
		}
		*r.slots.at(r.head) = sendState{}
		q.post(q.sendCQ, &ring.Completion{WRID: wrID, Status: uint32(StatusFlushErr), QPN: q.num}, false)
	}
	q.sq.SetConsumer(r.head)
	r.setPSN(r.end) // nothing is under way any more
	r.next, r.offset, r.rdAtomics = r.head, 0, 0
	r.retry, r.rnrWait = false, false
}

// expire is called when the QP's entry of the device's timers, of a certain time, has been taken out.
func (q *QP) expire(at, now time.Duration) {
	q.mu.Lock()
	if !q.deadlines.begin(at) || q.closed {
		q.mu.Unlock()
		return
	}
	start := false
	if q.deadlines.due(rnrDeadline, now) {
		q.req.rnrWait, q.req.retry = false, true
		start = q.claim()
	}
	if q.deadlines.due(retryDeadline, now) && q.timedOut() {
		start = q.claim() || start
	}
	answer := false
	if q.deadlines.due(slowDeadline, now) {
		answer = !q.resp.busy && q.waitingDue()
		q.resp.busy = q.resp.busy || answer
	}
	if q.deadlines.due(flushDeadline, now) && q.state == Err {
		q.flush()
	}
	q.deadlines.end(q)
	q.mu.Unlock()
	if start {
		q.dev.run(q)
	}
	if answer {
		q.dev.finishWaiting(q)
	}
}

// timedOut handles requests that were not acknowledged in time. It reports whether to send again.
func (q *QP) timedOut() bool {
	r := &q.req
	if q.state < RTS || q.state == Err || r.una == r.end {
		return false
	}
	if r.rnrWait {
		return false // which sends again
	}
	if r.retry { // the goroutine that sends was held up, and has not begun to repeat them
		q.deadlines.after(q, retryDeadline, r.timeout)
		return true
	}
	return q.sendAgain()
}

// sendAgain makes the QP repeat the unacknowledged packets, if it has not done so too
// often.
func (q *QP) sendAgain() bool {
	r := &q.req
	if r.retriesLeft == 0 {
		q.dev.stats.retryExceeded.Add(1)
		q.failHead(StatusRetryExcErr, 0)
		return false
	}
	r.retriesLeft--
	q.dev.stats.retries.Add(1)
	r.retry, r.retryStarted = true, true
	q.awaitAcknowledgement()
	return true
}

// awaitAcknowledgement sets the time at which the QP repeats what is not acknowledged then, or removes it if
// there is nothing to wait for.
func (q *QP) awaitAcknowledgement() {
	r := &q.req
	if r.una == r.end || r.timeout == 0 || r.rnrWait {
		q.deadlines.clear(retryDeadline)
		return
	}
	q.deadlines.after(q, retryDeadline, r.timeout)
}

// bind binds a memory window.
func (q *QP) bind(wr *ring.Send) bool {
	return q.dev.config.Memory.Bind(q.ref(), &memory.Binding{
		MWKey: wr.MWRKey, NewKey: wr.RKey, LKey: wr.MRLKey,
		Addr: wr.BindAddr, Length: wr.BindLength, Access: memory.Access(wr.BindAccess),
	})
}
