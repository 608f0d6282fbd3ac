package uverbs

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/diag"
)

// Err explains a completion of this queue pair; what it says of another one's is wrong, and [CQ.Err] finds the right
// one. It returns nil if the work request succeeded, and otherwise a [WCError], with the peer and the likely cause. For
// a failed completion it allocates and may make system calls.
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

// Err explains a completion of this CQ like [QP.Err] of its queue pair, which it finds by WC.QPN. The
// [WCError] of a queue pair that is closed has no more than the completion.
func (c *CQ) Err(wc *WC) error {
	if wc == nil || wc.Status == WCSuccess {
		return nil
	}
	if q, ok := c.qps.Load(wc.QPN); ok {
		return q.Err(wc)
	}
	e := &WCError{WC: *wc}
	if c.dev != nil {
		e.Device = c.dev.Name()
	}
	return e
}

// Completions returns an iterator over the completions of the CQ, for which it waits as [CQ.Wait] does. The
// error is nil, or that of [CQ.Err] for a work request that has failed, after which the loop can go on. Any other
// error, such as the end of the context, comes from Wait; it comes with the zero WC and ends the loop.
//
// No completion is lost if the loop is left: each is taken from the CQ when its turn comes. A loop allocates once,
// and not for completions that are no failures. [CQ.Poll] and Wait, which take many at once, are faster.
func (c *CQ) Completions(ctx context.Context) iter.Seq2[WC, error] {
	return func(yield func(WC, error) bool) {
		var wcs [1]WC
		for {
			n, err := c.Wait(ctx, wcs[:])
			if err != nil {
				yield(WC{}, err)
				return
			}
			if n > 0 && !yield(wcs[0], c.Err(&wcs[0])) {
				return
			}
		}
	}
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
	now, err := q.dev.Port(port)
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
			return q.dev.routesElsewhere()
		}
	}
	return fmt.Sprintf("GID index %d, from which it sends, is no longer in the table of port %d; connect it again; in use: %s", attr.AH.GRH.SGIDIndex, port, gidList(table))
}

// routesElsewhere says so if packets take the routes of another network namespace than this one, as in a pod whose
// interface is a macvlan on the device's. Otherwise, and for most devices, it returns "".
func (d *Device) routesElsewhere() string {
	if !d.driver.capabilities().hostRoutes || d.info.InProcess {
		return ""
	}
	ports, err := netlinkrdma.Ports(netlinkrdma.Device{Name: d.info.Name, Index: d.info.Index, Ports: uint32(d.info.Ports)})
	if err != nil || slices.ContainsFunc(ports, func(p netlinkrdma.Port) bool { return p.NetdevIndex != 0 }) {
		return ""
	}
	return d.info.Name + " sends in the network namespace of its own interface, which is not this one; use a card or a software device here"
}

// atPeer describes a failure from the peer's side, if the peer is a QP of this program, and
// otherwise returns "". It reads the addresses of both from the kernel. sure means that it is the cause.
func (q *QP) atPeer(e *WCError) (text string, sure bool) {
	if q.typ == ib.SRD {
		return q.atPeerSRD(e)
	}
	if _, injected := q.dev.driver.vendorText(e.WC.VendorErr); injected || e.Cause != nil {
		return "", false
	}
	peer := q.findPeer()
	if peer == nil {
		return "", false
	}
	var sent *sentWR
	if q.queueOf(&e.WC) == diag.SendQueue {
		sent = q.sent(e.WC.ID)
	}
	f := peer.facts()
	theirs := peer.peer.Load()
	if theirs == nil {
		theirs = &peerInfo{mtu: q.peer.Load().mtu}
	}
	if here, there := q.peer.Load().mtu, theirs.mtu; here != there && theirs.QPN == q.qpn {
		switch e.WC.Status {
		case WCRemInvReqErr, WCRemOpErr, WCRetryExcErr, WCLocLenErr, WCLocQPOpErr, WCWRFlushErr:
			if sent == nil || int(sent.length) > min(here, there).Bytes() {
				return f.MTUText(here.Bytes(), there.Bytes()), true
			}
		}
	}
	switch e.WC.Status {
	case WCRNRRetryExcErr, WCRemAccessErr, WCRemInvReqErr, WCRemOpErr:
	case WCRetryExcErr:
		if attr, err := peer.Query(); err == nil && attr.State != ib.QPRTR && attr.State != ib.QPRTS && attr.State != ib.QPSQD {
			return f.StateText(attr.State.String()), attr.State != ib.QPErr || peer.first.Load() == nil // else both may have failed for one cause
		}
		if theirs.QPN != q.qpn && theirs.QPN != 0 {
			return f.OtherText(theirs.QPN, q.qpn), true
		}
		return "", false
	default:
		return "", false
	}
	if theirs.QPN != q.qpn {
		return "", false
	}
	if q.queueOf(&e.WC) != diag.SendQueue {
		return "", false
	}
	if e.WC.Status == WCRNRRetryExcErr {
		f.Recvs, f.SharedRecvs = peer.dev.driver.postedRecvs(peer), peer.srq != nil
		if p := peer.peer.Load(); p != nil {
			f.MinRNRTimer = p.minRNRTimer.Duration()
		}
		return f.RecvText(), false
	}
	if sent != nil && sent.needs() != 0 {
		return peer.memoryText(sent)
	}
	if first := peer.first.Load(); first != nil && first.Hint != "" && strings.HasPrefix(first.Request, requestRecv) {
		return f.ReceiveText(first.Hint), true
	}
	return "", false
}

// atPeerSRD is atPeer for SRD.
func (q *QP) atPeerSRD(e *WCError) (text string, sure bool) {
	if q.queueOf(&e.WC) != diag.SendQueue {
		return "", false
	}
	sent := q.sent(e.WC.ID)
	if sent == nil || sent.qpn == 0 {
		return "", false
	}
	gid, ok := q.gidOfAH(sent.ah)
	if !ok {
		return "", false
	}
	all := qpsHere(sent.qpn)
	i := slices.IndexFunc(all, func(p *QP) bool { return p.typ == ib.SRD && p.hasAddress(Endpoint{GID: gid}) })
	if i < 0 {
		return "", false
	}
	peer := all[i]
	f := peer.facts()
	f.Datagram = true
	switch e.WC.Status {
	case WCRNRRetryExcErr:
		f.Recvs = peer.dev.driver.postedRecvs(peer)
		return f.RecvText(), true
	case WCRemAccessErr:
		return peer.memoryText(sent)
	case WCRemInvRDReqErr:
		switch attr, err := peer.Query(); {
		case err != nil:
		case attr.State != ib.QPRTR && attr.State != ib.QPRTS && attr.State != ib.QPSQD:
			return f.StateText(attr.State.String()), true
		case attr.QKey != sent.qkey:
			return f.QKeyText(sent.qkey, attr.QKey), true
		}
	}
	return "", false
}

// facts returns the facts about this QP as the peer of another one.
func (q *QP) facts() diag.LocalPeer {
	return diag.LocalPeer{Name: fmt.Sprintf("QP %d of %s", q.qpn, q.dev.Name()), PD: q.pd}
}

// memoryText describes what is wrong with the memory of this side that a request of the peer names.
func (q *QP) memoryText(w *sentWR) (text string, wrong bool) {
	f, right := q.facts(), w.needs()
	attr, err := q.Query()
	f.Right, f.QPAccess = right.String(), attr.Access.String()
	queries := q.dev.driver.capabilities().queries
	f.QPPermits = err != nil || attr.Access&right != 0 || queries != 0 && queries&AttrAccess == 0
	f.Window = q.dev.diagWindow(w.rkey)
	if mr := q.dev.mrOfRKey(w.rkey); mr != nil {
		f.MR, f.MRPermits = mr.facts(), mr.access&right != 0
	}
	return f.MemoryText(q.request(w))
}

// findPeer returns the QP of this program that this one is connected to, or nil. The peer may have been
// reset, or be connected to another QP.
func (q *QP) findPeer() *QP {
	p := q.peer.Load()
	if p == nil {
		return nil
	}
	for _, c := range qpsHere(p.QPN) {
		if c.hasAddress(p.Endpoint) {
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
	port := uint8(max(q.port.Load(), 1)) // the first, before Init
	if e.GID.IsZero() {
		attr, err := q.dev.Port(port)
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
