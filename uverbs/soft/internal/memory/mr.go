package memory

import (
	"math"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
)

var pageMask = uint64(os.Getpagesize() - 1)

// Flags of Rereg (enum ib_uverbs_rereg_mr_flags of libibverbs, IB_MR_REREG_* of the kernel).
const (
	ReregTrans  uint32 = 1 << 0 // change the memory
	ReregPD     uint32 = 1 << 1 // change the PD
	ReregAccess uint32 = 1 << 2 // change the rights
)

// An MR is a registered address range. It is safe for concurrent use.
type MR struct {
	table    *Table
	key      uint32
	start    uint64 // address in this process
	iova     uint64 // address that work requests and peers use
	length   uint64 // in bytes
	onDemand bool
	writable bool // the memory was writable when it was registered

	windows atomic.Int32 // bound to this MR

	// mu is held for reading while memory is accessed.
	mu     sync.RWMutex
	pd     PD
	access Access
	dead   bool
}

// LKey returns the key for the program's own work requests.
func (m *MR) LKey() uint32 { return m.key }

// RKey returns the key for peers, which is the same (rxe_mr_init).
func (m *MR) RKey() uint32 { return m.key }

// Start returns the address in this process.
func (m *MR) Start() uint64 { return m.start }

// IOVA returns the address that work requests and peers use.
func (m *MR) IOVA() uint64 { return m.iova }

// Length returns the length in bytes.
func (m *MR) Length() uint64 { return m.length }

// Rights returns the PD and the rights.
func (m *MR) Rights() (PD, Access) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.pd, m.access
}

// RegMR registers length bytes at start, which work requests and peers address from iova on. It
// returns the errors of the command: EINVAL for invalid arguments and a full table, EOPNOTSUPP for
// rights that rxe refuses, EFAULT for memory that cannot be accessed with these rights.
func (t *Table) RegMR(pd PD, start, length, iova uint64, access Access) (*MR, syscall.Errno) {
	if (start^iova)&pageMask != 0 { // ib_uverbs_reg_mr
		return nil, syscall.EINVAL
	}
	if errno := access.check(); errno != 0 {
		return nil, errno
	}
	if access&^mrSupported != 0 { // rxe_reg_user_mr
		return nil, syscall.EOPNOTSUPP
	}
	errno := checkPinned(start, length, access)
	if access&OnDemand != 0 {
		errno = checkOnDemand(start, length)
	}
	if errno != 0 {
		return nil, errno
	}
	m := &MR{
		table: t, start: start, iova: iova, length: length,
		onDemand: access&OnDemand != 0, writable: access.writable(),
		pd: pd, access: access,
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mrs.Len() >= mostOfAll {
		return nil, syscall.EINVAL
	}
	index := t.mrs.Choose(t.rand, firstMR, firstMW)
	m.key = index<<8 | t.rand()&0xff
	t.mrs.Add(index, m)
	return m, 0
}

// checkPinned returns what the kernel answers when it pins memory (__ib_umem_get_va,
// rxe_mr_fill_pages_from_sgt).
func checkPinned(start, length uint64, access Access) syscall.Errno {
	if access&OnDemand != 0 {
		return 0
	}
	end := start + length
	last := (end + pageMask) &^ pageMask
	if end < start || last < end {
		return syscall.EINVAL
	}
	first := start &^ pageMask
	if pages := (last - first) / (pageMask + 1); pages == 0 || pages > math.MaxUint32 {
		return syscall.EINVAL
	}
	if !accessible(first, last-first, access.writable()) {
		return syscall.EFAULT
	}
	if access&FlushPersistent != 0 { // is_pmem_page: the device has no persistent memory
		return syscall.EINVAL
	}
	return 0
}

// checkOnDemand returns what the kernel answers about memory that is mapped on demand
// (rxe_odp_mr_init_user, ib_init_umem_odp). Nothing need be mapped there yet. All memory at once
// (implicit on-demand paging) is not supported.
func checkOnDemand(start, length uint64) syscall.Errno {
	if start == 0 && length == math.MaxUint64 {
		return syscall.EINVAL
	}
	end := start + length
	last := (end + pageMask) &^ pageMask
	if end < start || last < pageMask+1 {
		return syscall.EOVERFLOW
	}
	if last == start&^pageMask {
		return syscall.EINVAL
	}
	return 0
}

// Rereg changes the PD or the rights of the MR. As with rxe, the memory cannot be changed
// (EOPNOTSUPP), and memory that was registered for reading only does not become writable (EACCES).
// start and iova are what the command says, and are checked with ReregTrans alone.
func (m *MR) Rereg(flags uint32, start, iova uint64, pd PD, access Access) syscall.Errno {
	switch { // ib_uverbs_rereg_mr
	case flags == 0:
		return syscall.EINVAL
	case flags&^(ReregTrans|ReregPD|ReregAccess) != 0:
		return syscall.EOPNOTSUPP
	case flags&ReregTrans != 0 && (start^iova)&pageMask != 0:
		return syscall.EINVAL
	}
	if flags&ReregAccess != 0 {
		if errno := access.check(); errno != 0 {
			return errno
		}
	}
	switch { // rxe_rereg_user_mr
	case flags&ReregTrans != 0:
		return syscall.EOPNOTSUPP
	case flags&ReregAccess != 0 && access.writable() && !m.writable: // ib_umem_check_rereg
		return syscall.EACCES
	case flags&ReregAccess != 0 && access&^mrSupported != 0:
		return syscall.EOPNOTSUPP
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return syscall.EINVAL
	}
	if flags&ReregPD != 0 {
		m.pd = pd
	}
	if flags&ReregAccess != 0 {
		m.access = access
	}
	return 0
}

// Dereg makes the MR's key invalid. It waits for accesses that are under way; there is none
// afterwards. It fails with EINVAL if a window is bound to the MR (rxe_dereg_mr), or after it
// succeeded.
func (m *MR) Dereg() syscall.Errno {
	m.mu.Lock()
	if m.dead || m.windows.Load() > 0 {
		m.mu.Unlock()
		return syscall.EINVAL
	}
	m.dead = true
	m.mu.Unlock()
	m.table.mu.Lock()
	defer m.table.mu.Unlock()
	m.table.mrs.Remove(m.key >> 8)
	return 0
}

// permits returns whether a key, a PD and rights match (lookup_mr).
//
// Preconditions: m.mu is held.
func (m *MR) permits(key uint32, pd PD, need Access) Fault {
	switch {
	case m.dead || m.key != key || m.pd != pd:
		return BadKey
	case m.access&need != need:
		return NoAccess
	}
	return OK
}

// contains returns whether all addresses belong to the MR (mr_check_range).
func (m *MR) contains(addr, length uint64) Fault {
	if addr < m.iova || length > m.length || addr-m.iova > m.length-length {
		return OutOfRange
	}
	return OK
}

// at returns the address in this process.
//
// Preconditions: contains(addr, ...) is OK.
func (m *MR) at(addr uint64) uint64 { return m.start + (addr - m.iova) }
