package uverbs

import (
	"fmt"

	"github.com/goverbs/goverbs/uverbs/internal/diag"
)

// atPeer describes a failure from the peer's side, if the peer is a QP of this program, and
// otherwise returns "". It reads the addresses of both from the kernel.
func (q *QP) atPeer(e *WCError) string {
	if _, injected := q.dev.driver.vendorText(e.WC.VendorErr); injected || e.Cause != nil {
		return ""
	}
	peer := q.findPeer()
	if peer == nil {
		return ""
	}
	var sent *sentWR
	if q.queueOf(&e.WC) == diag.SendQueue {
		sent = q.sent(e.WC.ID)
	}
	f := peer.facts()
	if here, there := q.peer.Load().mtu, peer.peer.Load().mtu; here != there {
		switch e.WC.Status {
		case WCRemInvReqErr, WCRemOpErr, WCRetryExcErr, WCLocLenErr, WCLocQPOpErr, WCWRFlushErr:
			if sent == nil || int(sent.length) > min(here, there).Bytes() {
				return f.MTUText(here.Bytes(), there.Bytes())
			}
		}
	}
	switch e.WC.Status {
	case WCRNRRetryExcErr, WCRemAccessErr, WCRemInvReqErr, WCRemOpErr:
	default:
		return ""
	}
	if q.queueOf(&e.WC) != diag.SendQueue {
		return ""
	}
	if e.WC.Status == WCRNRRetryExcErr {
		f.Recvs, f.SharedRecvs = peer.dev.driver.postedRecvs(peer), peer.srq != nil
		if p := peer.peer.Load(); p != nil {
			f.MinRNRTimer = p.minRNRTimer.Duration()
		}
		return f.RecvText()
	}
	if sent != nil && sent.needs() != 0 {
		return peer.memoryText(sent)
	}
	return ""
}

// facts returns the facts about this QP as the peer of another one.
func (q *QP) facts() diag.LocalPeer {
	return diag.LocalPeer{Name: fmt.Sprintf("QP %d of %s", q.qpn, q.dev.Name()), PD: q.pd}
}

// memoryText describes what is wrong with the memory of this side that a request of the peer names.
func (q *QP) memoryText(w *sentWR) string {
	f, right := q.facts(), w.needs()
	attr, err := q.Query()
	f.Right, f.QPAccess, f.QPPermits = right.String(), attr.Access.String(), err != nil || attr.Access&right != 0
	f.Window = q.dev.diagWindow(w.rkey)
	if mr := q.dev.mrOf(w.rkey); mr != nil { // with every driver an MR has the same lkey and rkey
		f.MR, f.MRPermits = q.dev.diagMR(w.rkey), mr.access&right != 0
	}
	return f.MemoryText(q.request(w))
}

// findPeer returns the QP of this program that this one is connected to, or nil.
func (q *QP) findPeer() *QP {
	p := q.peer.Load()
	if p == nil {
		return nil
	}
	for _, c := range qpsHere(p.QPN) {
		theirs := c.peer.Load()
		if theirs != nil && theirs.QPN == q.qpn && c.hasAddress(p.Endpoint) && q.hasAddress(theirs.Endpoint) {
			return c
		}
	}
	return nil
}

// qpsHere returns the open QPs of this program with a number, at most one per device.
func qpsHere(qpn uint32) []*QP {
	opened.mu.Lock()
	var devs []*Device
	for w := range opened.devs {
		if d := w.Value(); d != nil {
			devs = append(devs, d)
		}
	}
	opened.mu.Unlock()
	var all []*QP
	for _, d := range devs {
		d.targets.mu.RLock()
		for _, o := range d.targets.all {
			if q, ok := o.(*QP); ok && q.qpn == qpn && !q.closed.Load() {
				all = append(all, q)
			}
		}
		d.targets.mu.RUnlock()
	}
	return all
}

// hasAddress reports whether the endpoint has an address of the QP's port.
func (q *QP) hasAddress(e Endpoint) bool {
	port := uint8(q.port.Load())
	if e.GID.IsZero() {
		attr, err := q.dev.QueryPort(port)
		return err == nil && attr.LID == e.LID
	}
	table, err := q.dev.currentGIDs(port)
	if err != nil {
		return false
	}
	for _, entry := range table {
		if entry.GID == e.GID {
			return true
		}
	}
	return false
}
