package uverbs

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goverbs/goverbs/uverbs/internal/diag"
)

// WCError tells what a failed completion means, and with which peer it happened.
type WCError struct {
	WC     WC       // WC is the completion.
	Device string   // Device is the name of the RDMA device.
	Peer   Endpoint // Peer is the other side; the zero Endpoint if the QP was never connected.

	// Vendor says what WC.VendorErr means, if the library knows the vendor.
	Vendor string
	// Request says what the work request was: a receive, or a send that is still in the ring.
	Request string
	// First is the failure that brought the QP into error, if this work request was flushed
	// for it and a poll has seen it, or the kernel noted it. Its WC.ID tells which work request
	// failed: this one itself, where a kernel flushes that as well.
	First *WCError
	// Cause is why the QP is in state Err, if this work request was flushed and First is nil: this
	// program moved the QP to Err or Reset or closed it, [Device.WaitEvent] returned an asynchronous
	// event of the QP that says so, or [QP.SetErrCause] gave a cause, such as that the peer has
	// disconnected. It is nil if the cause is not known.
	Cause error
	Hint  string // Hint says what is wrong or, if that is not known, what usually is.
	// CounterDelta says by how much the port's hardware counters have grown since a QP of this
	// [Device] first used it, if the peer did not acknowledge and the device counts.
	CounterDelta string
	// AtPeer says what the other side has to do with it, if the peer is a QP of this program:
	// how many receives it has when none was there, and what is wrong with the key, the range
	// or the rights of the memory that was named.
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

// Err explains a completion of this queue pair: nil if it succeeded, and otherwise a
// [WCError] that names the peer and what usually causes the status. It allocates, so
// it is for failures only.
func (q *QP) Err(wc *WC) error {
	if wc == nil || wc.Status == WCSuccess {
		return nil
	}
	switch first := q.first.Load(); {
	case first != nil && first.WC == *wc:
		return q.withMore(first) // it was explained when it was polled
	case first != nil && wc.Status == WCWRFlushErr:
		e := &WCError{WC: *wc, Device: q.dev.Name(), Peer: first.Peer, First: q.withMore(first)}
		if q.queueOf(wc) == diag.RecvQueue {
			e.Request = requestRecv
		}
		return e
	}
	return q.withMore(q.explain(wc))
}

// withMore adds what takes system calls to find out, which polling leaves out: what the port has
// counted, if the peer did not acknowledge, and what a peer of this program knows.
func (q *QP) withMore(e *WCError) *WCError {
	more := *e
	more.AtPeer = q.atPeer(e)
	if e.WC.Status == WCRetryExcErr {
		more.CounterDelta = q.dev.counterGrowth(uint8(q.port.Load()))
	}
	return &more
}

// failed records the completion that brought the QP into error; later ones only say
// that they were flushed. It is called for each completion that failed.
//
// rxe of Linux 6.12 and 7.2 flushes a request that it cannot execute because of its local memory,
// window, key or address, and the completion does not say so. The ring does, which is read once, when
// the first request is flushed.
func (q *QP) failed(wc *WC) {
	if q.bound.Load() && q.queueOf(wc) == diag.SendQueue {
		if sent := q.sent(wc.ID); sent != nil && sent.op == WRBindMW {
			q.dev.bindFailed(sent.mwRKey, sent.rkey)
		}
	}
	if q.first.Load() != nil {
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

// requestRecv describes a receive in [WCError].
const requestRecv = "receive"

// explain makes the error of a failed completion, from the queue that it belongs to.
func (q *QP) explain(wc *WC) *WCError {
	queue := q.queueOf(wc)
	if queue == diag.SendQueue {
		return q.explainSent(wc, q.sent(wc.ID), queue)
	}
	return q.explainSent(wc, nil, queue)
}

// explainSent is explain for a send request that was found in the ring, or nil.
func (q *QP) explainSent(wc *WC, sent *sentWR, queue diag.Queue) *WCError {
	e := &WCError{WC: *wc, Device: q.dev.Name(), Vendor: q.dev.driver.vendorText(wc.VendorErr)}
	c := diag.Completion{Status: diag.Status(wc.Status), Queue: queue, IWARP: q.dev.driver.capabilities().connectionManaged}
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
		c.Peer = &diag.Peer{Attempts: int(p.retries) + 1, Timeout: p.timeout.Duration(), RNRAttempts: int(p.rnrRetries) + 1, MTU: p.mtu.Bytes()}
	}
	if wc.Status == WCWRFlushErr {
		e.Cause = q.whyFlushed()
		c.Cause = e.Cause
	}
	e.Hint = c.Hint()
	return e
}

// IsFlush reports whether an error is that of a flushed work request, which follows
// from an earlier failure or from a change to state Err.
func IsFlush(err error) bool { return errors.Is(err, WCWRFlushErr) }
