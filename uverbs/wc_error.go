package uverbs

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/diag"
)

// WCError explains a failed completion. It matches the [WCStatus], and Cause.
type WCError struct {
	WC     WC       // WC is the completion.
	Device string   // Device is the name of the RDMA device.
	Peer   Endpoint // Peer is the peer; the zero Endpoint if the QP was never connected.

	// Vendor says what WC.VendorErr means, if the library knows the vendor.
	Vendor string
	// Request describes the work request: a receive, or a send that is still in the ring.
	Request string
	// First is the failure that moved the QP to state QPErr, if this work request was flushed and the
	// failure is known from a poll or from the kernel. It may be a failure of this work request
	// itself, which some kernels report as flushed: compare WC.ID.
	First *WCError
	// Cause is why the QP is in state QPErr, if this work request was flushed and First is nil. This
	// program may have moved the QP to QPErr or QPReset or closed it, [Device.NextEvent] may have
	// returned an event of the QP, or [QP.SetErrCause] may have set a cause. It is nil if the cause
	// is not known.
	Cause error
	Hint  string // Hint says what is wrong or, if that is not known, what usually is wrong.
	// CounterDelta lists by how much the port's hardware counters have grown since a QP of this
	// [Device] first used the port. It is set if the peer did not acknowledge and the device has
	// counters.
	CounterDelta string
	// AtPeer describes the peer's side, if the peer is a QP of this program: how many receives it has,
	// if it had none, what is wrong with the key, the range or the rights of its memory, or that its
	// path MTU is another one.
	AtPeer string

	peerKnows bool // AtPeer is the cause, so that Hint says no more
}

// Error implements error. The first sentence says what has happened and why; the details follow.
func (e *WCError) Error() string {
	var b strings.Builder
	status, _, _ := strings.Cut(e.WC.Status.String(), ": ") // that of a flush has a second part
	fmt.Fprintf(&b, "uverbs: %s QP %d: %s", e.Device, e.WC.QPN, status)
	switch {
	case e.AtPeer != "" && e.peerKnows:
		b.WriteString(": " + e.AtPeer)
	case e.Hint != "" && e.AtPeer != "":
		b.WriteString(": " + e.Hint + "; " + e.AtPeer)
	case e.Hint != "":
		b.WriteString(": " + e.Hint)
	}
	fmt.Fprintf(&b, "; work request %d", e.WC.ID)
	if e.Request != "" {
		fmt.Fprintf(&b, " (%s)", e.Request)
	}
	if e.Peer != (Endpoint{}) {
		fmt.Fprintf(&b, ", peer %s", e.Peer)
	}
	switch {
	case e.Vendor != "":
		b.WriteString(", " + e.Vendor)
	case e.WC.VendorErr != 0:
		fmt.Fprintf(&b, ", vendor error %#x", e.WC.VendorErr)
	}
	if e.CounterDelta != "" {
		b.WriteString("; since this device was first used, this side's port has counted: " + e.CounterDelta)
	}
	if e.First != nil {
		b.WriteString("; the cause: ")
		b.WriteString(e.First.Error())
	}
	return b.String()
}

// Unwrap returns the [WCStatus], and Cause if there is one.
func (e *WCError) Unwrap() []error {
	if e.Cause != nil {
		return []error{e.WC.Status, e.Cause}
	}
	return []error{e.WC.Status}
}

// failed is called for each failed completion. It records the one that moved the QP to QPErr; later
// ones only report a flush.
//
// rxe of Linux 6.12 and 7.2 reports a flush for a request that it cannot execute because of local
// memory, a window, a key or an address. The failure is only in the ring, which failed searches
// once, at the first flush.
func (q *QP) failed(wc *WC) {
	if q.bound.Load() && q.queueOf(wc) == diag.SendQueue {
		if sent := q.sent(wc.ID); sent != nil && sent.op == WRBindMW {
			q.dev.bindFailed(sent.mwRKey, sent.rkey)
		}
	}
	if q.first.Load() != nil || q.typ == ib.DCT || q.dev.driver.capabilities().failsAlone { // a failure of one initiator is not that of the DCT
		return
	}
	if wc.Status != WCWRFlushErr {
		q.first.CompareAndSwap(nil, q.explain(wc))
		return
	}
	if q.ringChecked.CompareAndSwap(false, true) {
		if failed, sent, ok := q.dev.driver.failedRequest(q); ok && !q.closed.Load() {
			q.first.CompareAndSwap(nil, q.explainSent(&failed, &sent, diag.SendQueue))
		}
	}
	if cause := q.cause.Load(); q.first.Load() == nil && (cause == nil || cause.isEvent()) {
		q.flushSeen.Store(true)
	}
}

// requestRecv is WCError.Request of a receive.
const requestRecv = "receive"

// explain returns the error for a failed completion.
func (q *QP) explain(wc *WC) *WCError {
	queue := q.queueOf(wc)
	if queue == diag.SendQueue {
		return q.explainSent(wc, q.sent(wc.ID), queue)
	}
	return q.explainSent(wc, nil, queue)
}

// explainSent is explain for a send request from the ring, or nil, and a known queue.
func (q *QP) explainSent(wc *WC, sent *sentWR, queue diag.Queue) *WCError {
	vendor, known := q.dev.driver.vendorText(wc.VendorErr)
	e := &WCError{WC: *wc, Device: q.dev.Name(), Vendor: vendor}
	can := q.dev.driver.capabilities()
	c := diag.Completion{Status: diag.Status(wc.Status), Queue: queue, IWARP: can.connectionManaged, NoRoute: can.hostRoutes, Datagram: q.typ == ib.UD}
	if v := runningKernel(); can.hostRoutes && !q.dev.info.InProcess && v != (Version{}) && v[0] < 6 {
		c.OldRoute = true
	}
	port := q.dev.ports.ports[uint8(q.port.Load())].Load() // no system call: this may be Poll
	if port != nil {
		c.MTU = port.value.ActiveMTU.Bytes()
	}
	if queue == diag.RecvQueue {
		e.Request = requestRecv
		if r := q.receive(wc); r != nil {
			c.Request, e.Request = r, r.String()
		}
	}
	if sent != nil {
		c.Request = q.request(sent)
		c.SendInv, c.Inv = sent.op == WRSendWithInv, sent.op == WRLocalInv
		e.Request = c.Request.String()
	}
	if p := q.peer.Load(); p != nil {
		e.Peer = p.Endpoint
		c.Peer = &diag.Peer{Attempts: int(p.retries) + 1, Timeout: p.timeout.Duration(), RNRAttempts: int(p.rnrRetries) + 1, MTU: p.mtu.Bytes(), NoReads: p.noReads}
		c.Peer.InfiniBand = port != nil && port.value.LinkLayer == ib.LinkLayerInfiniBand
	}
	if wc.Status == WCWRFlushErr {
		e.Cause = q.whyFlushed()
		c.Cause = e.Cause
	}
	if !known {
		e.Hint = c.Hint()
	}
	if q.typ == ib.DCI && wc.Status == WCRetryExcErr {
		e.Hint = "the DCT did not acknowledge: it is gone or not in RTR, the access key is wrong, or packets do not get through"
	}
	return e
}

// IsFlush reports whether err is the error of a flushed work request. A flush follows from an
// earlier failure or from a change of the QP to state [ib.QPErr].
func IsFlush(err error) bool { return errors.Is(err, WCWRFlushErr) }

// sent returns a send work request, or nil if the ring does not hold it any more.
func (q *QP) sent(id uint64) *sentWR {
	wr, ok := q.dev.driver.findRequest(q, id)
	if !ok || q.closed.Load() { // the ring may have been unmapped before it was read
		return nil
	}
	return &wr
}

// needs returns the right that a request needs to the peer's memory, or 0 if it names none.
func (w *sentWR) needs() Access {
	switch w.op {
	case WRRDMAWrite, WRRDMAWriteWithImm, WRAtomicWrite:
		return AccessRemoteWrite
	case WRRDMARead, WRRDMAReadWithInv:
		return AccessRemoteRead
	case WRCompareSwap, WRFetchAdd:
		return AccessRemoteAtomic
	}
	return 0
}

// request returns the facts about a send request and the memory that it names.
func (q *QP) request(w *sentWR) *diag.Request {
	r := &diag.Request{Op: w.op.String(), Length: w.length, PD: q.pd, Remote: w.needs() != 0 || w.op == WRFlush,
		RemoteAddr: w.raddr, RKey: w.rkey, RemoteQPN: w.qpn, Invalidates: w.invalid}
	switch w.op {
	case WRRDMARead, WRRDMAReadWithInv, WRCompareSwap, WRFetchAdd:
		r.Writes = true
	case WRBindMW:
		r.Bind = &diag.Bind{OldKey: w.mwRKey, NewKey: w.rkey, Window: q.dev.diagWindow(w.mwRKey)}
		if b := w.bind; b != nil {
			r.Bind.To = &diag.Range{Addr: b.addr, Length: b.length, LKey: b.lkey, MR: q.dev.diagMR(b.lkey), ZeroBased: b.access&AccessZeroBased != 0}
			if writing := b.access & (AccessRemoteWrite | AccessRemoteAtomic); writing != 0 {
				r.Bind.To.Writing = writing.String()
			}
		}
	case WRLocalInv:
		if w.windowOnly {
			r.Invalidated = &diag.Invalidate{Window: q.dev.diagWindow(*w.invalid), IsMR: q.dev.mrOf(*w.invalid) != nil}
		}
	}
	r.SGEs = q.diagSGEs(w.sges)
	return r
}

// receive returns the facts about a failed receive that its ring still has, or nil.
func (q *QP) receive(wc *WC) *diag.Request {
	if wc.Status == WCWRFlushErr {
		return nil
	}
	sges, ok := q.dev.driver.findReceive(q, wc.ID)
	if !ok || q.closed.Load() { // the ring may have been unmapped before it was read
		return nil
	}
	r := &diag.Request{Op: requestRecv, PD: q.pd, Writes: true, SGEs: q.diagSGEs(sges)}
	for i, e := range sges {
		if mr := r.SGEs[i].MR; q.srq != nil && mr != nil && mr.PD != q.pd {
			return nil // devices differ in whether the memory must be of the PD of the QP or the SRQ
		}
		r.Length += e.Length
	}
	return r
}

// diagSGEs returns the facts about scatter/gather elements.
func (q *QP) diagSGEs(sges []SGE) (all []diag.SGE) {
	for _, e := range sges {
		s := diag.SGE{Addr: e.Addr, Length: e.Length, LKey: e.LKey, MR: q.dev.diagMR(e.LKey)}
		s.IsWindow = s.MR == nil && q.dev.windowOf(e.LKey) != nil
		all = append(all, s)
	}
	return all
}

// diagMR returns the facts about the MR with an lkey, or nil.
func (d *Device) diagMR(lkey uint32) *diag.MR {
	return d.mrOf(lkey).facts()
}

// facts returns the facts about an MR, which may be nil.
func (mr *mrRecord) facts() *diag.MR {
	if mr == nil {
		return nil
	}
	return &diag.MR{Addr: mr.addr, Length: mr.length, PD: mr.pd, Access: mr.access.String(),
		LocalWrite: mr.access&AccessLocalWrite != 0, MWBind: mr.access&AccessMWBind != 0}
}

// diagWindow returns the facts about the window that has or had a key, or nil.
func (d *Device) diagWindow(rkey uint32) *diag.Window {
	mw := d.windowOf(rkey)
	if mw == nil {
		return nil
	}
	return &diag.Window{Type2: mw.typ == MWType2, PD: mw.pd, RKey: mw.RKey()}
}

// errCause is why a queue pair is in state QPErr, if no failed completion says so.
type errCause struct {
	err    error
	before *errCause // the asynchronous event that Modify has replaced, or nil
}

// Causes in this program.
var (
	errMovedToErr   = &errCause{err: errors.New("this program moved the QP to state ERR, by Modify")}
	errMovedToReset = &errCause{err: errors.New("this program moved the QP to state RESET, by Modify")}
	errQPClosed     = errors.New("this program closed the QP")
)

// eventCause is the name of an asynchronous event of a QP that the device moved to QPErr.
type eventCause string

func (e eventCause) Error() string {
	return fmt.Sprintf("the device reported an asynchronous event of the QP, %q", string(e))
}

// SetErrCause records why the queue pair is in state [ib.QPErr], or is about to be. It is for causes
// that the library cannot know: a connection manager calls it when the peer has disconnected, and
// before it calls [QP.Modify] itself. For a request that is flushed, [QP.Err] then returns an error
// that names cause and matches it.
//
// The first cause is kept until the QP leaves [ib.QPReset] again. A nil cause is ignored. The library
// itself records an asynchronous event that [Device.NextEvent] returns. Because the event may be
// about an earlier connection, SetErrCause and Modify replace it.
func (q *QP) SetErrCause(cause error) {
	if cause != nil {
		q.recordCause(&errCause{err: cause})
	}
}

// recordCause records a cause unless there is one already that is not an event. It reports whether
// it did.
func (q *QP) recordCause(c *errCause) bool {
	for {
		old := q.cause.Load()
		if old != nil && !old.isEvent() {
			return false
		}
		if q.cause.CompareAndSwap(old, c) {
			return true
		}
	}
}

// isEvent reports whether the cause is an asynchronous event.
func (c *errCause) isEvent() bool {
	_, ok := c.err.(eventCause)
	return ok
}

// movedTo records and returns the cause that the program moves the QP to QPErr or QPReset. It
// returns nil if a request was flushed before, because then the device has moved the QP.
func (q *QP) movedTo(state ib.QPState) *errCause {
	cause := errMovedToErr
	if state == ib.QPReset {
		cause = errMovedToReset
	}
	if state != ib.QPErr && state != ib.QPReset || q.flushSeen.Load() || q.first.Load() != nil {
		return nil
	}
	if event := q.cause.Load(); event != nil && event.isEvent() {
		cause = &errCause{fmt.Errorf("%w; before that %w", cause.err, event.err), event}
	}
	if !q.recordCause(cause) {
		return nil
	}
	return cause
}

// whyFlushed returns why the QP flushes requests, or nil if that is not known.
func (q *QP) whyFlushed() error {
	if c := q.cause.Load(); c != nil {
		return c.err
	}
	if q.closed.Load() && !q.flushSeen.Load() {
		return errQPClosed
	}
	return nil
}

// queueOf returns the queue that a failed completion belongs to. The opcode determines it, or else
// the CQ, if the QP has one for each queue (see [CQ.failed]), or else the driver.
func (q *QP) queueOf(wc *WC) diag.Queue {
	switch {
	case wc.Opcode == WCRecv || wc.Opcode == WCRecvRDMAWrite:
		return diag.RecvQueue
	case q.sendCQ != q.recvCQ:
		return diag.SendQueue
	}
	return q.dev.driver.queueOf(q, *wc)
}

// setRecvOpcode sets the opcode of a failed receive to WCRecv, if the driver has not done so.
func (c *CQ) setRecvOpcode(q *QP, wc *WC) {
	switch {
	case wc.Opcode == WCRecv || wc.Opcode == WCRecvRDMAWrite:
	case q.sendCQ != q.recvCQ && c == q.recvCQ, q.queueOf(wc) == diag.RecvQueue:
		wc.Opcode = WCRecv
	}
}
