package uverbs

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// MR is a memory region: memory that a device may access, and the keys to it (struct ibv_mr). It is
// safe for concurrent use, except for [MR.Rereg].
type MR struct {
	object
	handle uint32
	lkey   uint32
	rkey   uint32
	addr   uint64 // address of the first byte for the device
	length uint64
	mem    region
	pd     *PD
	answer abi.RegMRResp  // of the kernel: its memory must not move
	record *mrRecord      // in the device's index, or nil
	pin    runtime.Pinner // keeps mem.slice where it is
}

// region is a registration: the arguments for the kernel and the memory.
type region struct {
	access       Access
	start        uint64 // address of the memory, or offset in a dma-buf
	iova, length uint64
	file         bool    // it is of a dma-buf
	buf          *Buffer // the memory of RegMR
	offset       int     // in buf
	slice        []byte  // the memory of RegSlice
	direct       bool    // MROptions.DataDirect
}

// pinnedMRs holds every MR that pins a slice. If a program drops such an MR without Close, the
// memory stays in place, because the device may still write to it.
var pinnedMRs sync.Map // of *MR

// setRegion records a successful registration.
func (m *MR) setRegion(s *region, lkey, rkey uint32) {
	m.lkey, m.rkey, m.addr, m.length = lkey, rkey, s.iova, s.length
	if s != &m.mem {
		m.mem = *s
	}
	if m.dev.driver.capabilities().copiesMemory {
		m.removeRecord()
		m.record = m.newRecord()
		m.dev.mrs.insert(m.record)
	}
}

// newRecord returns a record of the registration.
func (m *MR) newRecord() *mrRecord {
	access := m.mem.access
	if m.imported && access == 0 { // unknown, so nothing is blamed on it
		access = accessMR
	}
	return &mrRecord{lkey: m.lkey, mem: m.Bytes(), addr: m.addr, length: m.length, access: access, pd: m.pd.handle}
}

// removeRecord removes the record that setRegion has added.
func (m *MR) removeRecord() {
	if m.record != nil {
		m.dev.mrs.remove(m.record)
	}
}

// LKey returns the key for local work requests.
func (m *MR) LKey() uint32 { return m.lkey }

// RKey returns the key for the peer.
func (m *MR) RKey() uint32 { return m.rkey }

// Handle returns the kernel's handle of the region, for [PD.ImportMR] in a process that shares the
// device.
func (m *MR) Handle() uint32 { return m.handle }

// Access returns the access rights.
func (m *MR) Access() Access { return m.mem.access }

// Addr returns the address of the region's first byte in work requests and for the peer.
func (m *MR) Addr() uint64 { return m.addr }

// Len returns the region's length in bytes. That of [PD.RegImplicit] is math.MaxInt.
func (m *MR) Len() int { return int(min(m.length, math.MaxInt)) }

// Bytes returns the region's memory, or nil if it is a dma-buf, device memory, from
// [PD.RegImplicit], or imported without [ImportMROptions].Memory. The slice must not be used after its [Buffer] is closed.
func (m *MR) Bytes() []byte {
	s := &m.mem
	if s.buf == nil {
		return s.slice
	}
	b := s.buf.Bytes()
	if b == nil {
		return nil
	}
	return b[s.offset:][:s.length:s.length]
}

// SGE returns the scatter/gather element for length bytes at offset. If they are not inside the
// region, posting the element fails with [ErrSGERange].
func (m *MR) SGE(offset, length int) SGE {
	if offset < 0 || length < 0 || uint64(offset) > m.length || uint64(length) > m.length-uint64(offset) || uint64(length) > math.MaxUint32 {
		return SGE{Addr: uint64(offset), Length: uint32(max(min(length, math.MaxInt32), -1)), LKey: m.lkey, outside: true}
	}
	return SGE{Addr: m.addr + uint64(offset), Length: uint32(length), LKey: m.lkey}
}

// Close deregisters the region (ibv_dereg_mr). Work requests that use it must have completed.
// Memory windows bound to it must be closed or bound elsewhere first. A region of [PD.ImportMR] stays
// registered (ibv_unimport_mr).
func (m *MR) Close() error {
	return m.close(func() error {
		if m.imported {
			m.removeRecord()
			return nil
		}
		errno := syscall.ENOTTY
		if !m.dev.cmd.Writes(abi.IB_USER_VERBS_CMD_DEREG_MR) {
			errno = m.dev.cmd.destroy(abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_MR_DESTROY, abi.UVERBS_ATTR_DESTROY_MR_HANDLE, m.handle)
		}
		if absent(errno) {
			req := abi.DeregMR{MRHandle: m.handle}
			errno = m.dev.cmd.LegacyBrief(abi.IB_USER_VERBS_CMD_DEREG_MR, bytesOf(&req), nil, m.closesFast())
		}
		if errno != 0 {
			hint := ""
			if errno == syscall.EINVAL || errno == syscall.EBUSY {
				hint = "a memory window may still be bound to it"
			}
			return about(m.dev.cmd.fail(m.destroy, errno, hint), fmt.Sprintf("MR with lkey %#x", m.lkey), "")
		}
		m.removeRecord()
		m.releaseMemory(&m.mem)
		return nil
	}, nil)
}

// closesFast reports whether the kernel of a software device deregisters the region without a wait. It
// waits while a WRITE of a peer to the region is incomplete, and a large region takes long.
func (m *MR) closesFast() bool {
	const most = 1 << 20 // bytes
	return m.length <= most && m.mem.access&^(AccessLocalWrite|AccessRelaxedOrdering) == 0
}

// releaseMemory releases memory that the device no longer uses.
func (m *MR) releaseMemory(s *region) {
	switch {
	case s.buf != nil:
		s.buf.release()
	case s.slice != nil:
		m.pin.Unpin()
		pinnedMRs.Delete(m)
	}
}
