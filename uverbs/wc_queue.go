package uverbs

import "github.com/goverbs/goverbs/uverbs/internal/diag"

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
