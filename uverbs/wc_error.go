package uverbs

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goverbs/goverbs/mmio/mlx5"
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
	// Counted says by how much the port's hardware counters have grown since a QP of this
	// [Device] first used it, if the peer did not acknowledge and the device counts.
	Counted string
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
	if e.Counted != "" {
		b.WriteString("; since this device was first used the port has counted: " + e.Counted)
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
		if q.queueOf(wc) == queueRecv {
			e.Request = requestRecv
		}
		return e
	}
	return q.withMore(q.explain(wc))
}

// withMore adds what takes some calls to find out, which is why polling leaves it out: what
// the port has counted, to the error of a peer that did not acknowledge, and what a peer of
// this program has to do with it.
func (q *QP) withMore(e *WCError) *WCError {
	more := *e
	more.AtPeer = q.atPeer(e)
	if e.WC.Status == WCRetryExcErr {
		more.Counted = q.dev.counterGrowth(uint8(q.port.Load()))
	}
	return &more
}

// failed remembers the completion that brought the QP into error; later ones only say
// that they were flushed. It is called for each completion that failed.
//
// rxe of Linux 6.12 and 7.2 flushes what it cannot execute, and the completion says no more: a
// request whose local memory, window, key or address is at fault. What was the matter is noted in
// the ring, which is looked at when the first one was flushed.
func (q *QP) failed(wc *WC) {
	if q.bound.Load() && q.queueOf(wc) == queueSend {
		if sent := q.sent(wc.ID); sent.op == WRBindMW && sent.text != "" {
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
	if q.kind == kindRxe && q.lookedAt.CompareAndSwap(false, true) {
		if id, status, i, ok := q.sq.FindFailed(uint32(WCWRFlushErr), q.typ == UD); ok && !q.gone.Load() {
			sent := sentRxe(&i)
			q.first.CompareAndSwap(nil, q.explainSent(&WC{ID: id, Status: WCStatus(status), QPN: q.qpn}, &sent, queueSend))
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
	var sent sentWR
	queue := q.queueOf(wc)
	if queue == queueSend {
		sent = q.sent(wc.ID)
	}
	return q.explainSent(wc, &sent, queue)
}

// explainSent is explain for a work request that was found.
func (q *QP) explainSent(wc *WC, sent *sentWR, queue wcQueue) *WCError {
	e := &WCError{WC: *wc, Device: q.dev.Name(), Request: sent.text}
	if queue == queueRecv {
		e.Request = requestRecv
	}
	if q.kind == kindMlx5 && wc.VendorErr != 0 {
		e.Vendor = mlx5.VendorText(uint8(wc.VendorErr))
	}
	p := q.peer.Load()
	if p != nil {
		e.Peer = p.Endpoint
	}
	switch {
	case wc.Status == WCWRFlushErr:
		if e.Cause = q.whyFlushed(); e.Cause == nil {
			e.Hint = q.fault(sent)
		}
		if e.Hint == "" {
			e.Hint = q.flushHint(e.Cause, queue)
		}
		return e
	case queue == queueRecv:
		e.Hint = recvHints[wc.Status]
		return e
	}
	switch wc.Status {
	case WCRetryExcErr:
		wait := "after all retries"
		if p != nil && p.timeout != 0 {
			wait = fmt.Sprintf("for %d attempts of %s each", int(p.retries)+1, p.timeout.Duration())
		}
		e.Hint = "it did not acknowledge " + wait + "; it is gone, its QP is not ready to receive, or UDP port 4791 does not get through"
		if p != nil && p.mtu != 0 {
			e.Hint += fmt.Sprintf(", or not with packets of the path MTU, %d bytes", p.mtu.Bytes())
		}
	case WCRNRRetryExcErr:
		e.Hint = "it had no receive posted"
		if p != nil {
			e.Hint += fmt.Sprintf(" at %d attempts; the time between them is its MinRNRTimer", int(p.rnrRetries)+1)
		}
	case WCRemAccessErr:
		e.Hint = "the rkey, the address range or the access rights of the peer's MR or MW do not permit it, or the MR or MW is gone, as when the peer ends"
	case WCRemInvReqErr:
		e.Hint = "the peer's receive buffer may be too short, or its QP does not permit the operation"
		if sent.op == WRSendWithInv && sent.text != "" {
			e.Hint = "the key that it invalidates may not be one of an MR or MW that the peer's QP may invalidate, or " + e.Hint
		}
	case WCLocProtErr, WCLocQPOpErr, WCMWBindErr:
		e.Hint = q.fault(sent)
		if e.Hint == "" && wc.Status == WCLocProtErr {
			e.Hint = "an SGE is outside its MR, has a wrong lkey, or the MR lacks AccessLocalWrite"
		}
		switch {
		case e.Hint != "" || wc.Status != WCLocQPOpErr || sent.text == "":
		case q.kind == kindSiw && sent.op == WRLocalInv:
			e.Hint = "the key that it invalidates may not be one of the QP's protection domain"
		case q.kind == kindSiw:
			e.Hint = "nothing is wrong with its memory; the connection has broken, as when the peer is gone or TCP does not get through"
		default:
			e.Hint = "nothing is wrong with its memory; the device may find no way to the peer, as when the port is down"
		}
	case WCLocLenErr:
		e.Hint = "the message is longer than the buffers of the receive"
	}
	return e
}

// recvHints say what is wrong with a receive, or with the request of the peer that it was for.
var recvHints = map[WCStatus]string{
	WCLocLenErr:    "the message is longer than the buffers of the receive",
	WCLocProtErr:   "an SGE of the receive is outside its MR, has a wrong lkey, or the MR lacks AccessLocalWrite",
	WCLocQPOpErr:   "the receive is not valid, such as one with an SGE that is outside its MR or has a wrong lkey",
	WCLocAccessErr: "a request of the peer named memory of this side that its rkey, address range or access rights do not permit",
	WCRemAccessErr: "a request of the peer named memory of this side that its rkey, address range or access rights do not permit",
	WCRemInvReqErr: "a request of the peer was refused here: the message is longer than the buffers of the receive, or the QP does not permit the operation",
	WCRemAbortErr:  "the peer ended the message before its end",
	WCGeneralErr:   "the connection broke while the message arrived",
}

// sentWR is what is left of a send work request in the ring, for messages.
type sentWR struct {
	text   string // empty if it is not there any more
	op     WROpcode
	sges   []SGE
	writes bool   // the operation writes to the SGEs
	raddr  uint64 // of the peer's memory
	length uint32 // in bytes
	rkey   uint32 // of the peer's memory; the new key of a window that is bound
	mwRKey uint32 // the key of that window before

	bind    boundTo // what a window is bound to
	invalid uint32  // the key that is invalidated here
}

// sent finds a send work request, as long as the ring has it.
func (q *QP) sent(id uint64) sentWR {
	wr := q.lookAt(id)
	if q.gone.Load() { // so is the ring, perhaps since before it was read
		return sentWR{}
	}
	return wr
}

func (q *QP) lookAt(id uint64) sentWR {
	switch q.kind {
	case kindRxe:
		if i, ok := q.sq.Find(id, q.typ == UD); ok {
			return sentRxe(&i)
		}
	case kindMlx5:
		if q.msq == nil {
			break
		}
		if i, ok := q.msq.Find(id); ok {
			return sentMlx5(&i)
		}
	case kindSiw:
		if i, ok := q.siwSQ.Find(id); ok {
			return sentSiw(&i)
		}
	}
	return sentWR{}
}

// faultySGE looks for what is wrong with local memory, and returns "" if nothing is.
func (q *QP) faultySGE(wr *sentWR) string {
	for i, e := range wr.sges {
		mr := q.dev.mrs.get(e.LKey)
		if mr == nil {
			if q.dev.windowOf(e.LKey) != nil {
				return fmt.Sprintf("the lkey %#x of SGE %d is the key of a memory window, which is for the peer alone", e.LKey, i)
			}
			return fmt.Sprintf("no MR of this device has the lkey %#x of SGE %d", e.LKey, i)
		}
		switch end := e.Addr + uint64(e.Length); {
		case mr.pd != q.pd:
			return fmt.Sprintf("the MR of SGE %d is of another PD than the QP", i)
		case e.Addr < mr.addr || end < e.Addr || end > mr.addr+mr.length:
			return fmt.Sprintf("SGE %d is outside its MR, which is %#x+%d", i, mr.addr, mr.length)
		case wr.writes && mr.access&AccessLocalWrite == 0:
			return fmt.Sprintf("the MR of SGE %d lacks AccessLocalWrite", i)
		}
	}
	return ""
}

// IsFlush reports whether an error is that of a flushed work request, which follows
// from an earlier failure or from a change to state Err.
func IsFlush(err error) bool { return errors.Is(err, WCWRFlushErr) }
