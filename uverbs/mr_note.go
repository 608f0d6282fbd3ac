package uverbs

import "sync"

// mrNote is what is known of an MR, for messages and for drivers that look into its memory. It does not change.
type mrNote struct {
	lkey         uint32
	mem          []byte // nil if it is none of the program's
	addr, length uint64
	access       Access
	pd           uint32 // the kernel's handle, which a parent domain has of its PD
}

// mrNotes finds MRs by their keys, which may be any numbers (those of siw are random). Looking one up
// allocates nothing.
type mrNotes struct {
	mu    sync.RWMutex
	notes map[uint32]*mrNote
}

// enter notes an MR.
func (m *mrNotes) enter(n *mrNote) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.notes == nil {
		m.notes = map[uint32]*mrNote{}
	}
	m.notes[n.lkey] = n
}

// leave removes an MR, if it is still what its key is for.
func (m *mrNotes) leave(n *mrNote) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.notes[n.lkey] == n {
		delete(m.notes, n.lkey)
	}
}

// get returns the MR with a key, nil if there is none.
func (m *mrNotes) get(lkey uint32) *mrNote {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.notes[lkey]
}

// find returns the MR with a key and so many bytes of its memory, which ok says that it has there.
func (m *mrNotes) find(addr uint64, length, lkey uint32) (mr *mrNote, mem []byte, ok bool) {
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
