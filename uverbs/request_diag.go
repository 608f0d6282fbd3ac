package uverbs

import "github.com/goverbs/goverbs/uverbs/internal/diag"

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
	case WRAtomicCAS, WRAtomicFAA:
		return AccessRemoteAtomic
	}
	return 0
}

// request returns the facts about a send request and the memory that it names.
func (q *QP) request(w *sentWR) *diag.Request {
	r := &diag.Request{Op: w.op.String(), Length: w.length, PD: q.pd, Remote: w.needs() != 0 || w.op == WRFlush,
		RemoteAddr: w.raddr, RKey: w.rkey, RemoteQPN: w.qpn, Invalidates: w.invalid}
	switch w.op {
	case WRRDMARead, WRRDMAReadWithInv, WRAtomicCAS, WRAtomicFAA:
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
	for _, e := range w.sges {
		s := diag.SGE{Addr: e.Addr, Length: e.Length, LKey: e.LKey, MR: q.dev.diagMR(e.LKey)}
		s.IsWindow = s.MR == nil && q.dev.windowOf(e.LKey) != nil
		r.SGEs = append(r.SGEs, s)
	}
	return r
}

// diagMR returns the facts about the MR with an lkey, or nil.
func (d *Device) diagMR(lkey uint32) *diag.MR {
	mr := d.mrOf(lkey)
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
