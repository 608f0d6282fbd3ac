package memory

import (
	"math"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAdvise compares with ib_uverbs_advise_mr's checks of flags, rxe_ib_advise_mr,
// rxe_ib_prefetch_sg_list and ib_umem_odp_map_dma_and_lock.
func TestAdvise(t *testing.T) {
	b := mapped(t, 6)[page : 5*page] // there is memory on both sides
	unmap(t, b[2*page:3*page])
	protect(t, b[3*page:], unix.PROT_READ)
	a, size := addr(b), uint64(page)
	table := newTable()
	m := register(t, table, b[100:4*page-100], OnDemand|LocalWrite)
	pinned := register(t, table, b[:page], LocalWrite)
	noWrite := register(t, table, b, OnDemand|RemoteRead)
	other, _ := table.RegMR(2, a, size, a, OnDemand|LocalWrite)
	for _, c := range []struct {
		name          string
		advice        uint32
		r             Range
		want, noFlush syscall.Errno
	}{
		{"a page", AdvicePrefetch, Range{a + 100, size - 100, m.LKey()}, 0, 0},
		{"for writing", AdvicePrefetchWrite, Range{a + 100, size - 100, m.LKey()}, 0, 0},
		{"without a fault", AdvicePrefetchNoFault, Range{a + 100, 4*size - 200, m.LKey()}, 0, 0},
		{"all of the first page", AdvicePrefetch, Range{a, size, m.LKey()}, 0, 0},
		{"before the first page", AdvicePrefetch, Range{a - 1, size, m.LKey()}, syscall.EFAULT, 0},
		{"to the end of the last page", AdvicePrefetchNoFault, Range{a, 4 * size, m.LKey()}, 0, 0},
		{"after the last page", AdvicePrefetchNoFault, Range{a, 4*size + 1, m.LKey()}, syscall.EFAULT, 0},
		{"an end that overflows", AdvicePrefetchNoFault, Range{a, math.MaxUint64, m.LKey()}, syscall.EFAULT, 0},
		{"not mapped", AdvicePrefetch, Range{a + 2*size, 1, m.LKey()}, syscall.EFAULT, 0},
		{"not mapped, for writing", AdvicePrefetchWrite, Range{a + 2*size, 1, m.LKey()}, syscall.EFAULT, 0},
		{"read-only", AdvicePrefetch, Range{a + 3*size, 1, m.LKey()}, 0, 0},
		{"read-only, for writing", AdvicePrefetchWrite, Range{a + 3*size, 1, m.LKey()}, syscall.EPERM, 0},
		{"unknown advice", 3, Range{a, 1, m.LKey()}, syscall.EOPNOTSUPP, syscall.EOPNOTSUPP},
		{"other low bits", AdvicePrefetch, Range{a, 1, m.LKey() ^ 1}, syscall.EINVAL, syscall.EINVAL},
		{"no key", AdvicePrefetch, Range{a, 1, 0}, syscall.EINVAL, syscall.EINVAL},
		{"another PD", AdvicePrefetch, Range{a, 1, other.LKey()}, syscall.EINVAL, syscall.EINVAL},
		{"not on demand", AdvicePrefetch, Range{a, 1, pinned.LKey()}, syscall.EINVAL, syscall.EINVAL},
		{"without local write", AdvicePrefetch, Range{a, 1, noWrite.LKey()}, syscall.EINVAL, syscall.EINVAL},
	} {
		good := Range{a + 100, 1, m.LKey()}
		wantErrno(t, c.name, table.Advise(1, c.advice, AdviseFlush, []Range{good, c.r}), c.want)
		wantErrno(t, c.name+", in the background", table.Advise(1, c.advice, 0, []Range{good, c.r}), c.noFlush)
	}
	wantErrno(t, "no range", table.Advise(1, AdvicePrefetch, AdviseFlush, nil), 0)
	wantErrno(t, "unknown flags", table.Advise(1, AdvicePrefetch, 2, nil), syscall.EINVAL)
}

// TestAdviseResident: pages are present after advice, those of the range alone, and none without a
// fault.
func TestAdviseResident(t *testing.T) {
	b := mapped(t, 4)
	table := newTable()
	m := register(t, table, b, OnDemand|LocalWrite)
	resident := func() []byte {
		r := make([]byte, 4)
		if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(addr(b)), uintptr(len(b)), uintptr(addr(r))); errno != 0 {
			t.Fatal(errno)
		}
		return r
	}
	for _, c := range []struct {
		advice uint32
		flags  uint32
		r      Range
		want   []byte
	}{
		{AdvicePrefetchNoFault, AdviseFlush, Range{addr(b), 4 * uint64(page), m.LKey()}, []byte{0, 0, 0, 0}},
		{AdvicePrefetchWrite, AdviseFlush, Range{addr(b) + 10, 1, m.LKey()}, []byte{1, 0, 0, 0}},
		{AdvicePrefetchWrite, 0, Range{addr(b) + 2*uint64(page) - 1, 2, m.LKey()}, []byte{1, 1, 1, 0}},
	} {
		wantErrno(t, "Advise", table.Advise(1, c.advice, c.flags, []Range{c.r}), 0)
		if got := resident(); canPopulate() && !slices.Equal(got, c.want) {
			t.Errorf("advice %d: pages in memory %v, want %v", c.advice, got, c.want)
		}
	}
}
