package memory

import (
	"sync"

	"github.com/goverbs/goverbs/uverbs/soft/internal/number"
)

// A key is an index and 8 more bits. Indices of windows begin with firstMW, and there are fewer objects of a kind
// than rxe can have (RXE_MAX_MR, RXE_MAX_MW).
const (
	firstMR   = 1
	firstMW   = 1 << 23
	lastIndex = 1<<24 - 1
	mostOfAll = 1<<19 - 1
)

// isMW reports whether a key belongs to a window.
func isMW(key uint32) bool { return key>>8 >= firstMW }

// A Table holds the MRs and MWs of a device by key. It is safe for concurrent use. An access takes
// the lock of its MR, and of its window, for reading, and no other.
type Table struct {
	mu   sync.Mutex // for adding and removing
	rand func() uint32
	mrs  number.Map[MR] // by index
	mws  number.Map[MW]
}

// NewTable returns an empty table. Keys come from rand, which is called by one goroutine at a time.
func NewTable(rand func() uint32) *Table { return &Table{rand: rand} }

// Len returns how many MRs and MWs there are.
func (t *Table) Len() (mrs, mws int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mrs.Len(), t.mws.Len()
}

// An operation is what an access does with an address range of this process.
type operation struct {
	kind    kind
	read    []byte // gets the memory
	write   []byte // goes to the memory
	compare uint64
	value   uint64 // to swap in, to add or to store; the old value afterwards
	whole   bool   // all of the MR, or of the window, not the range
	length  uint64 // of the range, in bytes
}

type kind uint8

const (
	check kind = iota // access nothing
	read
	write
	compareSwap
	fetchAdd
	store
	persist
)

// run does the operation on an MR.
//
// Preconditions: m.mu is held, and m permits the operation.
func (o *operation) run(m *MR, addr uint64) Fault {
	if !o.whole {
		if f := m.contains(addr, o.length); f != OK {
			return f
		}
	}
	switch o.kind {
	case read:
		return copyOut(o.read, m.at(addr))
	case write:
		return copyIn(m.at(addr), o.write)
	case compareSwap, fetchAdd, store:
		if addr%8 != 0 {
			return Misaligned
		}
		return o.atomic(m.at(addr))
	case persist:
		if o.whole {
			addr, o.length = m.iova, m.length
		}
		first := m.at(addr) &^ pageMask
		last := (m.at(addr) + o.length + pageMask) &^ pageMask
		return writeBack(first, last-first)
	}
	return OK
}

// local does an operation by the lkey of an MR (copy_data).
func (t *Table) local(pd PD, lkey uint32, addr uint64, need Access, o *operation) Fault {
	m := t.mrs.Find(lkey >> 8)
	if m == nil {
		return BadKey
	}
	m.mu.RLock()
	f := m.permits(lkey, pd, need)
	if f == OK {
		f = o.run(m, addr)
	}
	m.mu.RUnlock()
	return f
}

// remote does an operation by the rkey of an MR or a window (check_rkey).
func (t *Table) remote(qp QPRef, rkey uint32, addr uint64, need Access, o *operation) Fault {
	if !isMW(rkey) {
		return t.local(qp.PD, rkey, addr, need, o)
	}
	w := t.mws.Find(rkey >> 8)
	if w == nil {
		return BadKey
	}
	w.mu.RLock()
	f := w.permits(rkey, qp, need)
	if f == OK {
		addr, f = w.within(addr, o)
	}
	if f == OK {
		// Only the window's rights count. The MR cannot be deregistered while the window is bound.
		w.mr.mu.RLock()
		if f = BadKey; w.mr.pd == w.pd { // REREG_MR may have changed it
			f = o.run(w.mr, addr)
		}
		w.mr.mu.RUnlock()
	}
	w.mu.RUnlock()
	return f
}

// ReadLocal copies memory at addr to dst, for a work request of the program. An access of no bytes
// succeeds with any key.
func (t *Table) ReadLocal(dst []byte, pd PD, lkey uint32, addr uint64) Fault {
	if len(dst) == 0 {
		return OK
	}
	o := operation{kind: read, read: dst, length: uint64(len(dst))}
	return t.local(pd, lkey, addr, 0, &o)
}

// WriteLocal copies src to memory at addr, for a work request of the program. An access of no bytes
// succeeds with any key.
func (t *Table) WriteLocal(pd PD, lkey uint32, addr uint64, src []byte) Fault {
	if len(src) == 0 {
		return OK
	}
	o := operation{kind: write, write: src, length: uint64(len(src))}
	return t.local(pd, lkey, addr, LocalWrite, &o)
}

// CheckRemote checks the key and the range of a peer's request, at the first packet of the message.
// A read or write of no bytes succeeds with any key (C9-88 of the InfiniBand specification).
func (t *Table) CheckRemote(qp QPRef, rkey uint32, addr, length uint64, need Access) Fault {
	if length == 0 && need&(RemoteRead|RemoteWrite) != 0 {
		return OK
	}
	o := operation{kind: check, length: length}
	return t.remote(qp, rkey, addr, need, &o)
}

// ReadRemote copies memory at addr to dst, for a peer's read.
func (t *Table) ReadRemote(dst []byte, qp QPRef, rkey uint32, addr uint64) Fault {
	if len(dst) == 0 {
		return OK
	}
	o := operation{kind: read, read: dst, length: uint64(len(dst))}
	return t.remote(qp, rkey, addr, RemoteRead, &o)
}

// WriteRemote copies src to memory at addr, for a peer's write.
func (t *Table) WriteRemote(qp QPRef, rkey uint32, addr uint64, src []byte) Fault {
	if len(src) == 0 {
		return OK
	}
	o := operation{kind: write, write: src, length: uint64(len(src))}
	return t.remote(qp, rkey, addr, RemoteWrite, &o)
}

// CompareSwap does a peer's compare-and-swap on 8 bytes at addr, in the host's byte order, and returns
// the value of before (rxe_mr_do_atomic_op). It is atomic for the whole process.
func (t *Table) CompareSwap(qp QPRef, rkey uint32, addr, compare, swap uint64) (old uint64, f Fault) {
	o := operation{kind: compareSwap, compare: compare, value: swap, length: 8}
	f = t.remote(qp, rkey, addr, RemoteAtomic, &o)
	return o.value, f
}

// FetchAdd does a peer's fetch-and-add, as CompareSwap.
func (t *Table) FetchAdd(qp QPRef, rkey uint32, addr, add uint64) (old uint64, f Fault) {
	o := operation{kind: fetchAdd, value: add, length: 8}
	f = t.remote(qp, rkey, addr, RemoteAtomic, &o)
	return o.value, f
}

// AtomicWrite stores 8 bytes at addr at once, for a peer's atomic write (rxe_mr_do_atomic_write).
func (t *Table) AtomicWrite(qp QPRef, rkey uint32, addr uint64, value [8]byte) Fault {
	o := operation{kind: store, value: native(value), length: 8}
	return t.remote(qp, rkey, addr, RemoteWrite, &o)
}

// flushRights returns the rights that a flush needs (check_rkey).
func flushRights(typ uint8) Access {
	need := Access(0)
	if typ&flushGlobal != 0 {
		need |= FlushGlobal
	}
	if typ&flushPersistent != 0 {
		need |= FlushPersistent
	}
	return need
}

// CheckFlush checks the key and the range of a peer's flush: typ is of enum ib_placement_type, level of
// enum ib_selectivity_level. The range does not count if all of the MR is flushed.
func (t *Table) CheckFlush(qp QPRef, rkey uint32, addr, length uint64, typ, level uint8) Fault {
	o := operation{kind: check, length: length, whole: level == flushMR}
	return t.remote(qp, rkey, addr, flushRights(typ), &o)
}

// Flush does a peer's flush (process_flush). Memory is visible to all of the process in any case; for
// persistence, the pages of a mapped file are written to it.
func (t *Table) Flush(qp QPRef, rkey uint32, addr, length uint64, typ, level uint8) Fault {
	o := operation{kind: check, length: length, whole: level == flushMR}
	if typ&flushPersistent != 0 && (length != 0 || o.whole) {
		o.kind = persist
	}
	return t.remote(qp, rkey, addr, flushRights(typ), &o)
}
