package uverbs

import (
	"fmt"
	"sync"
)

// mrRecord describes a registered MR. It does not change.
type mrRecord struct {
	lkey         uint32
	mem          []byte // nil if the program cannot access the memory
	addr, length uint64
	access       Access
	pd           uint32 // the kernel's handle, which a parent domain shares with its PD
}

// mrIndex finds the MRs of a device by lkey, for drivers that copy registered memory. The zero value is
// empty. A lookup does not allocate.
type mrIndex struct {
	mu     sync.RWMutex
	byLKey map[uint32]*mrRecord // guarded by mu
}

// insert adds an MR.
func (m *mrIndex) insert(r *mrRecord) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byLKey == nil {
		m.byLKey = map[uint32]*mrRecord{}
	}
	m.byLKey[r.lkey] = r
}

// remove removes an MR, unless another one has its key now.
func (m *mrIndex) remove(r *mrRecord) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byLKey[r.lkey] == r {
		delete(m.byLKey, r.lkey)
	}
}

// get returns the MR with the given lkey, or nil.
func (m *mrIndex) get(lkey uint32) *mrRecord {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.byLKey[lkey]
}

// mrOf returns the MR with the given lkey, or nil. It is for errors: without an index it looks at every
// object of the device.
func (d *Device) mrOf(lkey uint32) *mrRecord {
	if r := d.mrs.get(lkey); r != nil {
		return r
	}
	return d.mrWhere(func(m *MR) bool { return m.lkey == lkey })
}

// mrOfRKey is mrOf for an rkey. Drivers with an index have one number for both keys.
func (d *Device) mrOfRKey(rkey uint32) *mrRecord {
	if r := d.mrs.get(rkey); r != nil {
		return r
	}
	return d.mrWhere(func(m *MR) bool { return m.rkey == rkey })
}

// mrWhere returns an MR that a function accepts, or nil.
func (d *Device) mrWhere(accepts func(m *MR) bool) *mrRecord {
	d.tree.Lock()
	defer d.tree.Unlock()
	for o := d.newest; o != nil; o = o.older {
		if m, ok := o.self.(*MR); ok && accepts(m) {
			return m.newRecord()
		}
	}
	return nil
}

// find returns the MR with the given lkey and length bytes of its memory at addr. It reports false if
// there is no such MR or the bytes are not in the program's memory.
func (m *mrIndex) find(addr uint64, length, lkey uint32) (mr *mrRecord, mem []byte, ok bool) {
	mr = m.get(lkey)
	if mr == nil || addr < mr.addr || addr-mr.addr > uint64(len(mr.mem)) {
		return nil, nil, false
	}
	mem = mr.mem[addr-mr.addr:]
	if uint64(len(mem)) < uint64(length) {
		return nil, nil, false
	}
	return mr, mem[:length], true
}

// given adds what was given, and the limit, to the error of a work request that exceeds one.
func given(err error, wr *SendWR, caps QPCaps, d *Device) error {
	text := ""
	switch err {
	case ErrTooManySGE:
		text = fmt.Sprintf("%d, allowed: up to %d", len(wr.SGL), caps.MaxSendSGE)
	case ErrInlineTooLong:
		text = fmt.Sprintf("%d bytes, allowed: up to %d", len(wr.Inline), caps.MaxInline)
	case errAtomicAddr:
		text = fmt.Sprintf("%#x", wr.RemoteAddr)
	case errAtomicData:
		text = fmt.Sprintf("%d bytes", sglBytes(wr.SGL))
	case ErrSGERange:
		for i, e := range wr.SGL {
			if mr := d.mrOf(e.LKey); e.outside && mr != nil {
				text = fmt.Sprintf("SGE %d is %d bytes at offset %d, the MR has %d bytes", i, int32(e.Length), int64(e.Addr), mr.length)
				break
			}
		}
	}
	if text == "" {
		return err
	}
	return &reason{err.Error() + ": " + text, err}
}

// givenRecv is given for the error of a batch of receives.
func givenRecv(err error, wrs []RecvWR, maxSGE int, d *Device) error {
	if p, ok := err.(*PostError); ok {
		p.Err = given(p.Err, &SendWR{SGL: wrs[p.Index].SGL}, QPCaps{MaxSendSGE: maxSGE}, d)
	}
	return err
}
