package uverbs

import (
	"fmt"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/diag"
)

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
	more.AtPeer, more.peerKnows = q.atPeer(e)
	if why := q.ownPathFault(e); why != "" {
		more.Hint, more.peerKnows = why, false
	}
	if e.WC.Status == WCRetryExcErr {
		more.CounterDelta = q.dev.counterGrowth(uint8(q.port.Load()))
	}
	return &more
}

// ownPathFault says what is wrong with this side's end of the path of a send that has failed for its path, or
// returns "". It reads the state of the port and the GID table.
func (q *QP) ownPathFault(e *WCError) string {
	if e.Hint == "" || e.WC.Status != WCRetryExcErr && e.Hint != diag.NoRoute {
		return ""
	}
	port := uint8(q.port.Load())
	now, err := q.dev.QueryPort(port)
	if err != nil {
		return ""
	}
	if now.State != ib.PortActive {
		return fmt.Sprintf("port %d is %s (%s); on RoCE it follows its network interface", port, now.State, now.PhysState.Words())
	}
	attr, err := q.Query()
	table, tableErr := q.dev.GIDTable(port)
	if err != nil || tableErr != nil || !attr.AH.Global {
		return ""
	}
	for _, entry := range table {
		if entry.Index == int(attr.AH.GRH.SGIDIndex) {
			return ""
		}
	}
	return fmt.Sprintf("GID index %d, from which it sends, is no longer in the table of port %d; connect it again; in use: %s", attr.AH.GRH.SGIDIndex, port, gidList(table))
}
