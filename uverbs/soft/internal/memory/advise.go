package memory

import "syscall"

// Advice of Advise (enum ib_uverbs_advise_mr_advice).
const (
	AdvicePrefetch        uint32 = 0
	AdvicePrefetchWrite   uint32 = 1
	AdvicePrefetchNoFault uint32 = 2
)

// AdviseFlush makes Advise report errors of pages (IB_UVERBS_ADVISE_MR_FLAG_FLUSH).
const AdviseFlush uint32 = 1

// A Range is a part of an MR.
type Range struct {
	Addr   uint64
	Length uint64 // in bytes
	LKey   uint32
}

// Advise makes pages of on-demand MRs present (rxe_ib_advise_mr). The errors are EOPNOTSUPP for
// unknown advice, EINVAL for unknown flags and for a key that is not that of an on-demand MR of the
// PD with LocalWrite, and with AdviseFlush EFAULT for addresses outside the MR or without memory,
// and EPERM for memory that cannot be accessed so. Without AdviseFlush rxe works in the background
// and ignores what fails; here the pages are present when Advise returns.
func (t *Table) Advise(pd PD, advice, flags uint32, ranges []Range) syscall.Errno {
	if flags&^AdviseFlush != 0 {
		return syscall.EINVAL
	}
	if advice > AdvicePrefetchNoFault {
		return syscall.EOPNOTSUPP
	}
	if flags&AdviseFlush == 0 {
		for _, r := range ranges {
			if errno := t.advise(pd, r, func(*MR) syscall.Errno { return 0 }); errno != 0 {
				return errno
			}
		}
	}
	for _, r := range ranges {
		errno := t.advise(pd, r, func(m *MR) syscall.Errno { return m.prefetch(advice, r) })
		if errno != 0 && flags&AdviseFlush != 0 {
			return errno
		}
	}
	return 0
}

// advise calls f with the MR of a range.
func (t *Table) advise(pd PD, r Range, f func(*MR) syscall.Errno) syscall.Errno {
	m := t.mrs.Find(r.LKey >> 8)
	if m == nil {
		return syscall.EINVAL
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	// rxe takes any MR for an on-demand one.
	if m.permits(r.LKey, pd, LocalWrite) != OK || !m.onDemand {
		return syscall.EINVAL
	}
	return f(m)
}

// prefetch makes the pages of a range present (rxe_odp_do_pagefault_and_lock).
//
// Preconditions: m.mu is held.
func (m *MR) prefetch(advice uint32, r Range) syscall.Errno {
	// Whole pages belong to the MR (ib_umem_odp_map_dma_and_lock).
	first, end := m.iova&^pageMask, (m.iova+m.length+pageMask)&^pageMask
	if r.Addr < first || r.Addr+r.Length < r.Addr || r.Addr+r.Length > end {
		return syscall.EFAULT
	}
	if advice == AdvicePrefetchNoFault {
		return 0
	}
	from := m.at(r.Addr) &^ pageMask
	length := (m.at(r.Addr+r.Length)+pageMask)&^pageMask - from
	write := advice == AdvicePrefetchWrite
	switch {
	case populate(from, length, write):
		return 0
	case write && populate(from, length, false): // hmm_vma_fault
		return syscall.EPERM
	}
	return syscall.EFAULT
}
