package uverbs

import (
	"errors"
	"fmt"
	"strings"

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
	// program may have moved the QP to QPErr or QPReset or closed it, [Device.WaitEvent] may have
	// returned an event of the QP, or [QP.SetErrCause] may have set a cause. It is nil if the cause
	// is not known.
	Cause error
	Hint  string // Hint says what is wrong or, if that is not known, what usually is wrong.
	// CounterDelta lists by how much the port's hardware counters have grown since a QP of this
	// [Device] first used the port. It is set if the peer did not acknowledge and the device has
	// counters.
	CounterDelta string
	// AtPeer describes the peer's side, if the peer is a QP of this program: how many receives it has,
	// if it had none, or what is wrong with the key, the range or the rights of its memory.
	AtPeer string
}

// Error implements error.
func (e *WCError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "uverbs: %s QP %d: work request %d", e.Device, e.WC.QPN, e.WC.ID)
	if e.Request != "" {
		fmt.Fprintf(&b, " (%s)", e.Request)
	}
	if e.Peer != (Endpoint{}) {
		fmt.Fprintf(&b, ", peer %s", e.Peer)
	}
	b.WriteString(": " + e.WC.Status.String())
	switch {
	case e.Vendor != "":
		fmt.Fprintf(&b, " (%s)", e.Vendor)
	case e.WC.VendorErr != 0:
		fmt.Fprintf(&b, " (vendor error %#x)", e.WC.VendorErr)
	}
	if e.Hint != "" {
		b.WriteString(": ")
		b.WriteString(e.Hint)
	}
	if e.AtPeer != "" {
		b.WriteString("; the peer is of this program: " + e.AtPeer)
	}
	if e.CounterDelta != "" {
		b.WriteString("; since this device was first used the port has counted: " + e.CounterDelta)
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

// Err explains a completion of this queue pair. It returns nil if the work request succeeded, and
// otherwise a [WCError], with the peer and the likely cause. For a failed completion it allocates
// and may make system calls.
func (q *QP) Err(wc *WC) error {
	if wc == nil || wc.Status == WCSuccess {
		return nil
	}
	if q.dev == nil {
		return &WCError{WC: *wc}
	}
	switch first := q.first.Load(); {
	case first != nil && first.WC == *wc:
		return q.withMore(first) // explained when it was polled
	case first != nil && wc.Status == WCWRFlushErr:
		e := &WCError{WC: *wc, Device: q.dev.Name(), Peer: first.Peer, First: q.withMore(first)}
		if q.queueOf(wc) == diag.RecvQueue {
			e.Request = requestRecv
		}
		return e
	}
	return q.withMore(q.explain(wc))
}

// withMore adds the details that take system calls, which Poll must not make: the growth of the
// port's counters, if the peer did not acknowledge, and the side of a peer in this program.
func (q *QP) withMore(e *WCError) *WCError {
	more := *e
	more.AtPeer = q.atPeer(e)
	if e.WC.Status == WCRetryExcErr {
		more.CounterDelta = q.dev.counterGrowth(uint8(q.port.Load()))
	}
	return &more
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
	if q.first.Load() != nil || q.typ == DCT { // a failure of one initiator is not that of the DCT
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
	vendor, injected := q.dev.driver.vendorText(wc.VendorErr)
	e := &WCError{WC: *wc, Device: q.dev.Name(), Vendor: vendor}
	can := q.dev.driver.capabilities()
	c := diag.Completion{Status: diag.Status(wc.Status), Queue: queue, IWARP: can.connectionManaged, NoRoute: can.noRouteStatus}
	if queue == diag.RecvQueue {
		e.Request = requestRecv
	}
	if sent != nil {
		c.Request = q.request(sent)
		c.SendInv, c.Inv = sent.op == WRSendWithInv, sent.op == WRLocalInv
		e.Request = c.Request.String()
	}
	if p := q.peer.Load(); p != nil {
		e.Peer = p.Endpoint
		c.Peer = &diag.Peer{Attempts: int(p.retries) + 1, Timeout: p.timeout.Duration(), RNRAttempts: int(p.rnrRetries) + 1, MTU: p.MTU.Bytes()}
		port := q.dev.ports.ports[uint8(q.port.Load())].Load() // no system call: this may be Poll
		c.Peer.InfiniBand = port != nil && port.value.LinkLayer == LinkLayerInfiniBand
	}
	if wc.Status == WCWRFlushErr {
		e.Cause = q.whyFlushed()
		c.Cause = e.Cause
	}
	if !injected {
		e.Hint = c.Hint()
	}
	if q.typ == DCI && wc.Status == WCRetryExcErr {
		e.Hint = retryHintDC
	}
	return e
}

// IsFlush reports whether err is the error of a flushed work request. A flush follows from an
// earlier failure or from a change of the QP to state [QPErr].
func IsFlush(err error) bool { return errors.Is(err, WCWRFlushErr) }
