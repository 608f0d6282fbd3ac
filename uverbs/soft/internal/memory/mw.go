package memory

import (
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// Types of windows (enum ib_uverbs_mw_type of libibverbs, enum ib_mw_type of the kernel).
const (
	MWType1 uint8 = 1 // any QP of the PD may use it; it can be bound while it is bound
	MWType2 uint8 = 2 // only the QP that bound it may use it; it must be invalidated before it is bound again
)

// An MW is a memory window: a key that gives rights to a part of an MR. It is safe for concurrent use.
type MW struct {
	table *Table
	index uint32
	pd    PD
	typ   uint8

	// mu is held for reading while memory is accessed through the window. It is taken before that of
	// an MR.
	mu     sync.RWMutex
	key    uint32
	free   bool // a window of type 2 that is not bound (RXE_MW_STATE_FREE)
	dead   bool
	mr     *MR    // nil if it is not bound
	qpn    uint32 // the QP that bound it
	access Access
	addr   uint64 // of the part, as an IOVA of the MR
	length uint64 // of the part, in bytes
}

// AllocMW allocates a window. The error is EINVAL for an unknown type, or if there are as many
// windows as rxe can have.
func (t *Table) AllocMW(pd PD, typ uint8) (*MW, syscall.Errno) {
	if typ != MWType1 && typ != MWType2 { // ib_uverbs_alloc_mw
		return nil, syscall.EINVAL
	}
	w := &MW{table: t, pd: pd, typ: typ, free: typ == MWType2}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mws.Len() >= mostOfAll {
		return nil, syscall.EINVAL
	}
	w.index = t.mws.Choose(t.rand, firstMW, lastIndex)
	w.key = w.index<<8 | t.rand()&0xff
	t.mws.Add(w.index, w)
	return w, 0
}

// RKey returns the window's key, whose low 8 bits change with each bind.
func (w *MW) RKey() uint32 {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.key
}

// Dealloc frees the window, whether or not it is bound (rxe_mw_cleanup). It waits for accesses
// through the window that are under way. Calling it again has no effect.
func (w *MW) Dealloc() {
	w.mu.Lock()
	if w.dead {
		w.mu.Unlock()
		return
	}
	w.unbind()
	w.dead = true
	w.mu.Unlock()
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	w.table.mws.Remove(w.index)
}

// unbind takes the window from its MR.
//
// Preconditions: w.mu is held.
func (w *MW) unbind() {
	if w.mr != nil {
		w.mr.windows.Add(-1)
		w.mr = nil
	}
	w.qpn, w.access, w.addr, w.length = 0, 0, 0, 0
	w.free = w.typ == MWType2
}

// A Binding is what a bind work request says.
type Binding struct {
	MWKey  uint32 // key of the window before the bind
	NewKey uint32 // key afterwards; only its low 8 bits count
	LKey   uint32 // of the MR
	Addr   uint64 // IOVA in the MR
	Length uint64 // in bytes; 0 unbinds a window of type 1
	Access Access
}

// Bind binds a window to a part of an MR, or unbinds one of type 1 (rxe_bind_mw). It reports false,
// and changes nothing, if the request is not permitted: a completion with MW_BIND_ERR.
func (t *Table) Bind(qp QPRef, b *Binding) bool {
	w := t.window(b.MWKey)
	if w == nil || b.Access&^mwSupported != 0 {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead || w.key != b.MWKey || !w.bindable(qp, b) {
		return false
	}
	var mr *MR
	if b.Length != 0 {
		if mr = t.mrs.Find(b.LKey >> 8); mr == nil || !mr.hold(qp.PD, b) {
			return false
		}
	}
	w.unbind()
	w.key = w.key&^0xff | b.NewKey&0xff
	w.free = false
	w.mr, w.access, w.addr, w.length = mr, b.Access, b.Addr, b.Length
	w.qpn = qp.QPN
	return true
}

// bindable reports whether the window can be bound now (the first half of rxe_check_bind_mw).
//
// Preconditions: w.mu is held.
func (w *MW) bindable(qp QPRef, b *Binding) bool {
	if w.pd != qp.PD {
		return false
	}
	if w.typ == MWType1 {
		return b.Access&ZeroBased == 0
	}
	return w.free && b.Length != 0
}

// hold counts a window of the MR, if it can be bound to it (the second half of rxe_check_bind_mw).
func (m *MR) hold(pd PD, b *Binding) bool {
	m.mu.RLock() // keeps Dereg from missing the window
	defer m.mu.RUnlock()
	if m.permits(b.LKey, pd, MWBind) != OK {
		return false
	}
	if b.Access&(RemoteWrite|RemoteAtomic) != 0 && m.access&LocalWrite == 0 {
		return false
	}
	if m.contains(b.Addr, b.Length) != OK {
		return false
	}
	m.windows.Add(1)
	return true
}

// Invalidate takes a window of type 2 from its MR, for a LOCAL_INV of the QP that bound it or for a
// request of that QP's peer. It reports false for any other key: a completion with LOC_QP_OP_ERR or
// REM_INV_REQ_ERR. The MRs of programs cannot be invalidated (rxe_invalidate_mr). rxe_invalidate_mw does
// not look at the QP, so there a peer can take away any window of the device.
func (t *Table) Invalidate(qp QPRef, key uint32) bool {
	w := t.window(key)
	if w == nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead || w.key != key || w.typ != MWType2 || w.free || w.pd != qp.PD || w.qpn != qp.QPN {
		return false
	}
	w.unbind()
	return true
}

// ReleaseQP unbinds the windows of type 2 that a QP bound. Call it when the QP is gone, so that no later
// QP with its number gets them.
func (t *Table) ReleaseQP(qpn uint32) {
	t.mu.Lock()
	var all []*MW
	t.mws.All(func(_ uint32, w *MW) {
		if w.typ == MWType2 {
			all = append(all, w)
		}
	})
	t.mu.Unlock() // Dealloc takes the locks in the other order
	for _, w := range all {
		w.mu.Lock()
		if !w.dead && !w.free && w.qpn == qpn {
			w.unbind()
		}
		w.mu.Unlock()
	}
}

// window returns the window that a key's index belongs to, or nil.
func (t *Table) window(key uint32) *MW {
	if !isMW(key) {
		return nil
	}
	return t.mws.Find(key >> 8)
}

// permits returns whether a QP may use the window's key for an access (rxe_lookup_mw). If so, the
// window has an MR.
//
// Preconditions: w.mu is held.
func (w *MW) permits(key uint32, qp QPRef, need Access) Fault {
	switch {
	case w.dead || w.key != key || w.pd != qp.PD || w.mr == nil || w.typ == MWType2 && w.qpn != qp.QPN:
		return BadKey
	case w.access&need != need:
		return NoAccess
	}
	return OK
}

// within returns the IOVA of an operation whose range lies in the window. The addresses of a zero-based window
// count from its start. An operation on all of the window gets its range.
//
// Preconditions: w.mu is held.
func (w *MW) within(addr uint64, o *operation) (uint64, Fault) {
	if o.whole {
		o.whole, o.length = false, w.length
		return w.addr, OK
	}
	if w.access&ZeroBased == 0 {
		if addr < w.addr {
			return 0, OutOfRange
		}
		addr -= w.addr
	}
	if addr > w.length || o.length > w.length-addr {
		return 0, OutOfRange
	}
	return w.addr + addr, OK
}

// Values of a flush (enum ib_placement_type, enum ib_selectivity_level).
const (
	flushGlobal     = abi.IB_FLUSH_GLOBAL
	flushPersistent = abi.IB_FLUSH_PERSISTENT
	flushMR         = abi.IB_FLUSH_MR
)
