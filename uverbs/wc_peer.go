package uverbs

import (
	"fmt"
	"sync"
	"weak"
)

// opened are the devices that this program has open, for messages: what a failed request met
// is known if the peer is a QP of this program, and of no other. It keeps no device alive.
var opened struct {
	mu   sync.Mutex
	devs map[weak.Pointer[Device]]struct{}
}

// noteOpen remembers a device until noteClosed.
func (d *Device) noteOpen() {
	opened.mu.Lock()
	defer opened.mu.Unlock()
	if opened.devs == nil {
		opened.devs = map[weak.Pointer[Device]]struct{}{}
	}
	for w := range opened.devs {
		if w.Value() == nil { // it was never closed
			delete(opened.devs, w)
		}
	}
	opened.devs[weak.Make(d)] = struct{}{}
}

func (d *Device) noteClosed() {
	opened.mu.Lock()
	delete(opened.devs, weak.Make(d))
	opened.mu.Unlock()
}

// atPeer says what the peer's side knows of a completion, if the peer is a QP of this program
// and it knows something. It asks the kernel for the addresses of both.
func (q *QP) atPeer(e *WCError) string {
	switch e.WC.Status {
	case WCRNRRetryExcErr, WCRemAccessErr, WCRemInvReqErr, WCRemOpErr:
	default:
		return ""
	}
	if q.queueOf(&e.WC) != queueSend {
		return ""
	}
	peer := q.findPeer()
	if peer == nil {
		return ""
	}
	text := fmt.Sprintf("QP %d of %s", peer.qpn, peer.dev.Name())
	if e.WC.Status == WCRNRRetryExcErr {
		text += " has " + peer.postedText()
		if p := peer.peer.Load(); p != nil {
			text += fmt.Sprintf(" and a MinRNRTimer of %s", p.minRNRTimer.Duration())
		}
		return text
	}
	sent := q.sent(e.WC.ID)
	if right := sent.needs(); right != 0 {
		return text + peer.keyText(&sent, right)
	}
	return ""
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

// qpsHere returns the open QPs of this program with a number, one of a device at most.
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
			if q, ok := o.(*QP); ok && q.qpn == qpn && !q.gone.Load() {
				all = append(all, q)
			}
		}
		d.targets.mu.RUnlock()
	}
	return all
}

// hasAddress reports whether an address is that of the QP's port.
func (q *QP) hasAddress(e Endpoint) bool {
	port := uint8(q.port.Load())
	if e.GID.IsZero() {
		attr, err := q.dev.QueryPort(port)
		return err == nil && attr.LID == e.LID
	}
	table, err := q.dev.GIDTable(port)
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

// postedText says how many receives wait for messages.
func (q *QP) postedText() string {
	n, where := 0, ""
	switch {
	case q.srq != nil:
		n, where = q.srq.posted(), " in its SRQ"
	case q.noRecv != nil:
	case q.kind == kindRxe:
		n = q.rq.Posted()
	case q.kind == kindMlx5 && q.mrq != nil:
		n = q.mrq.Posted()
	}
	return fmt.Sprintf("%d receives posted%s now", n, where)
}

// posted returns how many receives wait for messages.
func (s *SRQ) posted() int {
	s.post.Lock()
	defer s.post.Unlock()
	switch {
	case s.gone.Load():
	case s.kind == kindRxe:
		return s.rq.Posted()
	case s.kind == kindMlx5:
		return s.mrq.Posted()
	}
	return 0
}

// needs returns the right that a request needs of the peer's memory, 0 if it names none.
func (w *sentWR) needs() Access {
	switch w.op {
	case WRRDMAWrite, WRRDMAWriteWithImm, WRAtomicWrite:
		return AccessRemoteWrite
	case WRRDMARead, WRRDMAReadWithInv:
		return AccessRemoteRead
	case WRAtomicCAS, WRAtomicFAA:
		return AccessRemoteAtomic
	}
	return 0
}

// keyText says what is wrong with the memory that a request for this QP named, as far as this
// program knows it.
func (q *QP) keyText(w *sentWR, right Access) string {
	if attr, err := q.Query(); err == nil && attr.Access&right == 0 {
		return fmt.Sprintf(" does not permit %s: its access is %s", w.op, attr.Access)
	}
	if mw := q.dev.windowOf(w.rkey); mw != nil {
		if now := mw.RKey(); now != w.rkey {
			return fmt.Sprintf(": rkey %#x was that of a memory window of %s, which has %#x now", w.rkey, mw.typ, now)
		}
		return fmt.Sprintf(": rkey %#x is that of a memory window of %s, which its last bind limits", w.rkey, mw.typ)
	}
	mr := q.dev.mrs.get(w.rkey) // these drivers give an MR one key for both sides
	if mr == nil {
		return fmt.Sprintf(": no MR and no memory window has rkey %#x", w.rkey)
	}
	what := fmt.Sprintf(": the MR with rkey %#x ", w.rkey)
	switch end := w.raddr + uint64(w.length); {
	case mr.pd != q.pd:
		return what + "is of another PD than this QP"
	case w.raddr < mr.addr || end < w.raddr || end > mr.addr+mr.length:
		return what + fmt.Sprintf("is %#x+%d, and %#x+%d is outside", mr.addr, mr.length, w.raddr, w.length)
	case mr.access&right == 0:
		return what + fmt.Sprintf("lacks %s: its access is %s", right, mr.access)
	}
	return what + "permits it now"
}
