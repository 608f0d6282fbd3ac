package uverbs

import "github.com/goverbs/goverbs/uverbs/internal/diag"

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
