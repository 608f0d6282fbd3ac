package memory

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRegMR compares the refused arguments and their errnos with ib_uverbs_reg_mr, ib_check_mr_access,
// rxe_reg_user_mr, __ib_umem_get_va, rxe_mr_fill_pages_from_sgt and rxe_odp_mr_init_user.
func TestRegMR(t *testing.T) {
	b := mapped(t, 6)
	protect(t, b[page:2*page], unix.PROT_READ)
	unmap(t, b[3*page:4*page])
	a, size := addr(b), uint64(page)
	for _, c := range []struct {
		name                string
		start, length, iova uint64
		access              Access
		want                syscall.Errno
	}{
		{"no rights", a, size, a, 0, 0},
		{"all rights", a, size, a, allRemote | MWBind | FlushGlobal, 0},
		{"not at a page", a + 1, 100, a + 1, LocalWrite, 0},
		{"another address for peers", a + 1, 100, 1<<40 + 1, LocalWrite, 0},
		{"address 0 for peers", a, size, 0, LocalWrite, 0},
		{"another offset in the page", a + 1, 100, a + 2, 0, syscall.EINVAL},
		{"an optional right that nobody knows", a, size, a, 1 << 29, 0},
		{"relaxed ordering", a, size, a, 1 << 20, 0},
		{"remote write without local write", a, size, a, RemoteWrite, syscall.EINVAL},
		{"remote atomics without local write", a, size, a, RemoteAtomic, syscall.EINVAL},
		{"remote read without local write", a, size, a, RemoteRead, 0},
		{"a right that nobody knows", a, size, a, 1 << 10, syscall.EINVAL},
		{"the rights after the optional ones", a, size, a, 1 << 30, syscall.EINVAL},
		{"zero-based", a, size, a, ZeroBased, syscall.EOPNOTSUPP},
		{"huge pages", a, size, a, HugeTLB, syscall.EOPNOTSUPP},
		{"unknown rights come before unsupported ones", a, size, a, 1<<10 | ZeroBased, syscall.EINVAL},
		{"persistent", a, size, a, FlushPersistent, syscall.EINVAL},
		{"persistent and not mapped", a + 3*size, size, a, FlushPersistent, syscall.EFAULT},
		{"nothing at a page", a, 0, a, 0, syscall.EINVAL},
		{"nothing within a page", a + 8, 0, a + 8, 0, 0},
		{"past the end of memory", a, math.MaxUint64, a, 0, syscall.EINVAL},
		{"up to the last page", a, math.MaxUint64 - a, a, 0, syscall.EINVAL},
		{"more pages than 32 bits count", a, 1 << 45, a, 0, syscall.EINVAL},
		{"read-only for reading", a + size, size, a, RemoteRead, 0},
		{"read-only for writing", a + size, size, a, LocalWrite, syscall.EFAULT},
		{"read-only for windows", a + size, size, a, MWBind, syscall.EFAULT},
		{"read-only in the middle", a, 3 * size, a, LocalWrite, syscall.EFAULT},
		{"not mapped", a + 3*size, size, a, 0, syscall.EFAULT},
		{"not mapped in the middle", a + 2*size, 3 * size, a, 0, syscall.EFAULT},
		{"not mapped, its last byte", a + 2*size, size + 1, a, 0, syscall.EFAULT},
		{"address 0", 0, size, 0, 0, syscall.EFAULT},
		{"on demand", a, size, a, OnDemand | allRemote, 0},
		{"on demand, persistent", a, size, a, OnDemand | FlushPersistent, 0},
		{"on demand, not mapped", a + 3*size, size, a, OnDemand, 0},
		{"on demand, read-only", a + size, size, a, OnDemand | LocalWrite, 0},
		{"on demand, all memory", 0, math.MaxUint64, 0, OnDemand, syscall.EINVAL},
		{"on demand, all memory from another address", 0, math.MaxUint64, size, OnDemand, syscall.EINVAL},
		{"on demand, past the end of memory", a, math.MaxUint64, a, OnDemand, syscall.EOVERFLOW},
		{"on demand, up to the last page", a, math.MaxUint64 - a, a, OnDemand, syscall.EOVERFLOW},
		{"on demand, nothing at a page", a, 0, a, OnDemand, syscall.EINVAL},
	} {
		table := newTable()
		m, errno := table.RegMR(7, c.start, c.length, c.iova, c.access)
		wantErrno(t, c.name, errno, c.want)
		if (m == nil) != (c.want != 0) {
			t.Errorf("%s: %v, MR %v", c.name, errno, m)
		}
		if n, _ := table.Len(); (n == 1) != (c.want == 0) {
			t.Errorf("%s: %d MRs", c.name, n)
		}
		if m == nil {
			continue
		}
		if pd, access := m.Rights(); pd != 7 || access != c.access || m.Start() != c.start || m.Length() != c.length || m.IOVA() != c.iova {
			t.Errorf("%s: PD %d, rights %#x, %d bytes at %#x for %#x", c.name, pd, access, m.Length(), m.Start(), m.IOVA())
		}
	}
}

// TestRegPopulates: as when the kernel pins them, pages are present afterwards, whatever their place
// in the range.
func TestRegPopulates(t *testing.T) {
	if !canPopulate() {
		t.Log("this kernel is older than Linux 5.14")
	}
	b := mapped(t, 4)
	register(t, newTable(), b[1:3*page+1], LocalWrite)
	resident := make([]byte, 4)
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(addr(b)), uintptr(len(b)), uintptr(addr(resident))); errno != 0 {
		t.Fatal(errno)
	}
	if want := []byte{1, 1, 1, 1}; canPopulate() && !bytes.Equal(resident, want) {
		t.Errorf("pages in memory: %v, want %v", resident, want)
	}
}

// private returns how many KiB of b are resident, without the kernel's page of zeros.
func private(t *testing.T, b []byte) (kib int) {
	t.Helper()
	smaps, err := os.ReadFile("/proc/self/smaps")
	must(t, err)
	var start, end uint64
	for line := range strings.Lines(string(smaps)) {
		if n, _ := fmt.Sscanf(line, "%x-%x ", &start, &end); n == 2 {
			continue
		}
		var rss int
		if n, _ := fmt.Sscanf(line, "Rss: %d kB", &rss); n == 1 && start >= addr(b) && end <= addr(b)+uint64(len(b)) {
			kib += rss
		}
	}
	return kib
}

// TestRegTakesNoMemory: a buffer takes no memory when it is registered, but when it is written to.
func TestRegTakesNoMemory(t *testing.T) {
	const pages = 256
	b := mapped(t, pages+2)
	protect(t, b[:page], unix.PROT_NONE) // so that b is a mapping of its own
	protect(t, b[(pages+1)*page:], unix.PROT_NONE)
	b = b[page:][:pages*page]
	if !writableAnonymous(addr(b), uint64(len(b))) {
		var u unix.Utsname
		must(t, unix.Uname(&u))
		var major, minor int
		if fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); major > 6 || major == 6 && minor >= 11 {
			t.Fatal("the kernel does not say what is mapped")
		}
		t.Log("this kernel is older than Linux 6.11")
		return
	}
	m := register(t, newTable(), b, LocalWrite)
	if n := private(t, b); n != 0 {
		t.Errorf("after the registration the buffer takes %d KiB, want 0", n)
	}
	wantErrno(t, "Dereg", m.Dereg(), 0)
	b[0], b[len(b)-1] = 1, 1
	if n, want := private(t, b), 2*page>>10; n != want {
		t.Errorf("after two writes the buffer takes %d KiB, want %d", n, want)
	}
}

// TestWritableAnonymous: memory that is mapped in part, in part for reading, or of a file is not.
func TestWritableAnonymous(t *testing.T) {
	b := mapped(t, 8)
	protect(t, b[3*page:4*page], unix.PROT_READ)
	protect(t, b[6*page:7*page], unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC)
	unmap(t, b[7*page:])
	_, shared := file(t, 1)
	whole := writableAnonymous(addr(b), uint64(3*page))
	for name, c := range map[string]struct {
		b    []byte
		want bool
	}{
		"all of it": {b[:3*page], whole}, "two mappings": {b[4*page : 7*page], whole},
		"its end is read-only": {b[:4*page], false}, "its beginning is read-only": {b[3*page : 5*page], false}, "its middle is read-only": {b[:5*page], false},
		"its end cannot be accessed": {b[5*page:], false}, "a file": {shared, false},
	} {
		if got := writableAnonymous(addr(c.b), uint64(len(c.b))); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestTouch checks what kernels without MADV_POPULATE_READ can be told of memory.
func TestTouch(t *testing.T) {
	b := mapped(t, 3)
	protect(t, b[page:2*page], unix.PROT_READ)
	unmap(t, b[2*page:])
	wantFault(t, "two pages", touch(addr(b), uint64(2*page)), OK)
	wantFault(t, "three pages", touch(addr(b), uint64(3*page)), MemoryGone)
	wantFault(t, "no page", touch(addr(b)+uint64(2*page), 0), OK)
}

// TestKeys: lkey and rkey are the same, keys of MRs and of windows differ in their high bit, and the next key is
// far from those before.
func TestKeys(t *testing.T) {
	table := NewTable(rand.New(rand.NewPCG(1, 2)).Uint32)
	b := mapped(t, 1)
	near := 0
	for last := [2]uint32{}; near < 1000; near++ {
		m, w := register(t, table, b, 0), allocMW(t, table, MWType2)
		if m.LKey() != m.RKey() || m.LKey()>>8 == 0 || isMW(m.LKey()) || !isMW(w.RKey()) {
			t.Fatalf("the keys of an MR are %#x and %#x, that of a window is %#x", m.LKey(), m.RKey(), w.RKey())
		}
		for i, key := range [2]uint32{m.RKey(), w.RKey()} {
			if d := key>>8 - last[i]>>8; d+4 <= 8 {
				t.Errorf("key %#x follows %#x", key, last[i])
			}
			last[i] = key
		}
		wantErrno(t, "Dereg", m.Dereg(), 0)
	}
}

// TestLimits: there are as many MRs and windows as rxe has (RXE_MAX_MR, RXE_MAX_MW), and one more is
// EINVAL (__rxe_add_to_pool).
func TestLimits(t *testing.T) {
	table := newTable()
	b := mapped(t, 1)
	for i := range uint32(mostOfAll - 1) {
		table.mrs.Add(firstMR+i, new(MR))
		table.mws.Add(firstMW+i, new(MW))
	}
	register(t, table, b, 0)
	if _, errno := table.AllocMW(1, MWType1); errno != 0 {
		t.Fatal(errno)
	}
	_, errno := table.RegMR(1, addr(b), 1, addr(b), 0)
	wantErrno(t, "one MR too many", errno, syscall.EINVAL)
	_, errno = table.AllocMW(1, MWType1)
	wantErrno(t, "one window too many", errno, syscall.EINVAL)
}

// TestBounds compares the range of an MR with mr_check_range, with addresses for peers that are not
// those of the process.
func TestBounds(t *testing.T) {
	const iova, size = 1<<40 + 16, 100
	b := mapped(t, 1)
	table := newTable()
	m, errno := table.RegMR(1, addr(b)+16, size, iova, allRemote)
	wantErrno(t, "RegMR", errno, 0)
	for _, c := range []struct {
		at   uint64
		n    int
		want Fault
	}{
		{iova, 1, OK},
		{iova, size, OK},
		{iova + size - 1, 1, OK},
		{iova + 50, 50, OK},
		{iova + 50, 51, OutOfRange},
		{iova, size + 1, OutOfRange},
		{iova - 1, 1, OutOfRange},
		{iova - 1, 2, OutOfRange},
		{iova + size, 1, OutOfRange},
		{addr(b) + 16, 1, OutOfRange},
		{0, 1, OutOfRange},
		{math.MaxUint64, 1, OutOfRange},
		{math.MaxUint64, 2, OutOfRange},
	} {
		for i := range b {
			b[i] = byte(i)
		}
		want := append([]byte(nil), b...)
		at := int(c.at - iova + 16)
		got, data := make([]byte, c.n), bytes.Repeat([]byte{0xee}, c.n)
		wantFault(t, "ReadLocal", table.ReadLocal(got, 1, m.LKey(), c.at), c.want)
		if c.want == OK && !bytes.Equal(got, b[at:at+c.n]) {
			t.Errorf("read of %d at %#x: %x", c.n, c.at, got)
		}
		clear(got)
		wantFault(t, "ReadRemote", table.ReadRemote(got, QPRef{1, 5}, m.RKey(), c.at), c.want)
		if c.want == OK && !bytes.Equal(got, b[at:at+c.n]) {
			t.Errorf("remote read of %d at %#x: %x", c.n, c.at, got)
		}
		wantFault(t, "CheckRemote", table.CheckRemote(QPRef{1, 5}, m.RKey(), c.at, uint64(c.n), RemoteWrite), c.want)
		if c.want == OK {
			copy(want[at:], data)
		}
		wantFault(t, "WriteLocal", table.WriteLocal(1, m.LKey(), c.at, data), c.want)
		if !bytes.Equal(b, want) {
			t.Errorf("write of %d at %#x: %x, want %x", c.n, c.at, b[:128], want[:128])
		}
		clear(b)
		clear(want)
		if c.want == OK {
			copy(want[at:], data)
		}
		wantFault(t, "WriteRemote", table.WriteRemote(QPRef{1, 5}, m.RKey(), c.at, data), c.want)
		if !bytes.Equal(b, want) {
			t.Errorf("remote write of %d at %#x: %x, want %x", c.n, c.at, b[:128], want[:128])
		}
	}
	for _, n := range []uint64{size + 1, math.MaxUint64, math.MaxUint64 - iova, 1 << 63} {
		wantFault(t, "a long range", table.CheckRemote(QPRef{1, 5}, m.RKey(), iova, n, RemoteRead), OutOfRange)
		wantFault(t, "a long range at the end", table.CheckRemote(QPRef{1, 5}, m.RKey(), iova+size, n, RemoteRead), OutOfRange)
	}
}

// TestContains compares with mr_check_range where sums overflow: addresses for peers may do so.
func TestContains(t *testing.T) {
	const top = math.MaxUint64
	for _, c := range []struct {
		iova, size, at, n uint64
		want              Fault
	}{
		{0, 100, 0, 100, OK},
		{0, 100, top, 1, OutOfRange},
		{0, 100, top, 2, OutOfRange},
		{0, 100, 100, 0, OK},
		{0, 100, 101, 0, OutOfRange},
		{top - 99, 100, top, 1, OK},
		{top - 99, 100, top, 2, OutOfRange},
		{top - 99, 200, top, 2, OK},
		{top - 99, 200, 0, 1, OutOfRange},
		{top - 99, 200, 50, 1, OutOfRange},
	} {
		m := &MR{iova: c.iova, length: c.size}
		if got := m.contains(c.at, c.n); got != c.want {
			t.Errorf("%d bytes at %#x of %d at %#x: %v, want %v", c.n, c.at, c.size, c.iova, got, c.want)
		}
	}
}

// TestFoundTooLate: a goroutine that has found an MR or a window while another deregisters it gets no
// access.
func TestFoundTooLate(t *testing.T) {
	table := newTable()
	m := register(t, table, mapped(t, 1), allRemote|MWBind)
	w := allocMW(t, table, MWType2)
	key := bound(t, table, qp1, w, m, windowRights)
	w.dead = true
	wantFault(t, "a window", table.ReadRemote(make([]byte, 1), qp1, key, m.IOVA()), BadKey)
	if table.Invalidate(qp1, key) {
		t.Error("a window was invalidated")
	}
	w.unbind()
	if table.Bind(qp1, whole(w, m, 0)) {
		t.Error("a window was bound")
	}
	m.dead = true
	wantFault(t, "an MR", table.ReadLocal(make([]byte, 1), 1, m.LKey(), m.IOVA()), BadKey)
}

// TestPanicOnFault: an access leaves the goroutine's own setting alone.
func TestPanicOnFault(t *testing.T) {
	table := newTable()
	b := mapped(t, 1)
	m := register(t, table, b, allRemote)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(false))
	for _, gone := range []bool{false, true} {
		if gone {
			unmap(t, b)
		}
		for _, own := range []bool{false, true} {
			debug.SetPanicOnFault(own)
			table.ReadLocal(make([]byte, 1), 1, m.LKey(), m.IOVA())
			table.WriteLocal(1, m.LKey(), m.IOVA(), make([]byte, 1))
			table.FetchAdd(qp1, m.RKey(), m.IOVA(), 1)
			if got := debug.SetPanicOnFault(false); got != own {
				t.Errorf("memory gone %t: the setting is %t, was %t", gone, got, own)
			}
		}
	}
}

// TestRights does every access with all rights but one, and with that alone (lookup_mr, check_rkey).
func TestRights(t *testing.T) {
	b := mapped(t, 1)
	qp := QPRef{1, 5}
	for _, c := range []struct {
		name string
		need Access // rights that the MR needs
		with Access // and without which it cannot have them
		do   func(table *Table, key uint32) Fault
	}{
		{"ReadLocal", 0, 0, func(table *Table, key uint32) Fault { return table.ReadLocal(make([]byte, 8), 1, key, addr(b)) }},
		{"WriteLocal", LocalWrite, 0, func(table *Table, key uint32) Fault { return table.WriteLocal(1, key, addr(b), make([]byte, 8)) }},
		{"ReadRemote", RemoteRead, 0, func(table *Table, key uint32) Fault { return table.ReadRemote(make([]byte, 8), qp, key, addr(b)) }},
		{"WriteRemote", RemoteWrite, LocalWrite, func(table *Table, key uint32) Fault { return table.WriteRemote(qp, key, addr(b), make([]byte, 8)) }},
		{"CompareSwap", RemoteAtomic, LocalWrite, func(table *Table, key uint32) Fault {
			_, f := table.CompareSwap(qp, key, addr(b), 0, 1)
			return f
		}},
		{"FetchAdd", RemoteAtomic, LocalWrite, func(table *Table, key uint32) Fault {
			_, f := table.FetchAdd(qp, key, addr(b), 1)
			return f
		}},
		{"AtomicWrite", RemoteWrite, LocalWrite, func(table *Table, key uint32) Fault { return table.AtomicWrite(qp, key, addr(b), [8]byte{}) }},
		{"CheckRemote", RemoteRead, 0, func(table *Table, key uint32) Fault { return table.CheckRemote(qp, key, addr(b), 8, RemoteRead) }},
		{"Flush", FlushGlobal, 0, func(table *Table, key uint32) Fault { return table.Flush(qp, key, addr(b), 8, flushGlobal, 0) }},
		{"Flush persistent", FlushPersistent, OnDemand, func(table *Table, key uint32) Fault {
			return table.Flush(qp, key, addr(b), 8, flushPersistent, 0)
		}},
		{"Flush both", FlushPersistent | FlushGlobal, OnDemand, func(table *Table, key uint32) Fault {
			return table.Flush(qp, key, addr(b), 8, flushPersistent|flushGlobal, 0)
		}},
		{"CheckFlush", FlushGlobal, 0, func(table *Table, key uint32) Fault {
			return table.CheckFlush(qp, key, addr(b), 8, flushGlobal, flushMR)
		}},
	} {
		table := newTable()
		with := register(t, table, b, c.need|c.with)
		wantFault(t, c.name, c.do(table, with.LKey()), OK)
		wantFault(t, c.name+" with other low bits", c.do(table, with.LKey()^1), BadKey)
		wantFault(t, c.name+" with another index", c.do(table, with.LKey()+0x100), BadKey)
		wantFault(t, c.name+" with key 0", c.do(table, 0), BadKey)
		wantFault(t, c.name+" with the largest key", c.do(table, math.MaxUint32), BadKey)
		if c.need != 0 {
			all := allRemote | MWBind | FlushGlobal | FlushPersistent | OnDemand
			if c.need == LocalWrite { // without which there are no others
				all = RemoteRead | MWBind | OnDemand
			}
			without := register(t, table, b, all&^c.need)
			wantFault(t, c.name+" without the right", c.do(table, without.LKey()), NoAccess)
			if half := c.need & -c.need; half != c.need {
				without = register(t, table, b, half|c.with)
				wantFault(t, c.name+" with one right of two", c.do(table, without.LKey()), NoAccess)
			}
		}
		other, _ := table.RegMR(2, addr(b), 8, addr(b), c.need|c.with)
		wantFault(t, c.name+" in another PD", c.do(table, other.LKey()), BadKey)
		wantErrno(t, "Dereg", with.Dereg(), 0)
		wantFault(t, c.name+" after Dereg", c.do(table, with.LKey()), BadKey)
	}
}

// TestNothing: an access of no bytes needs no key: copy_data returns at once, and check_rkey does so
// for reads and writes (C9-88), and for nothing else.
func TestNothing(t *testing.T) {
	table := newTable()
	qp := QPRef{1, 5}
	for _, key := range []uint32{0, 0x12345678, firstMW << 8, lastIndex << 8} {
		wantFault(t, "ReadLocal", table.ReadLocal(nil, 1, key, 0), OK)
		wantFault(t, "WriteLocal", table.WriteLocal(1, key, 0, []byte{}), OK)
		wantFault(t, "ReadRemote", table.ReadRemote([]byte{}, qp, key, 0), OK)
		wantFault(t, "WriteRemote", table.WriteRemote(qp, key, 0, nil), OK)
		wantFault(t, "CheckRemote for a read", table.CheckRemote(qp, key, 0, 0, RemoteRead), OK)
		wantFault(t, "CheckRemote for a write", table.CheckRemote(qp, key, 0, 0, RemoteWrite), OK)
		wantFault(t, "CheckRemote for an atomic", table.CheckRemote(qp, key, 0, 0, RemoteAtomic), BadKey)
		wantFault(t, "Flush", table.Flush(qp, key, 0, 0, flushGlobal, 0), BadKey)
	}
}

// TestAtomics compares with rxe_mr_do_atomic_op and rxe_mr_do_atomic_write: values in the host's byte order, the old
// value comes back, the range is checked before the alignment.
func TestAtomics(t *testing.T) {
	b := mapped(t, 1)
	table := newTable()
	m := register(t, table, b[:20], allRemote)
	qp, a, key := QPRef{1, 5}, addr(b), m.RKey()
	word := func() uint64 { return native([8]byte(b[8:16])) }

	wantFault(t, "AtomicWrite", table.AtomicWrite(qp, key, a+8, [8]byte{1, 2, 3, 4, 5, 6, 7, 8}), OK)
	if !bytes.Equal(b[:24], []byte{8: 1, 9: 2, 10: 3, 11: 4, 12: 5, 13: 6, 14: 7, 15: 8, 23: 0}) {
		t.Errorf("after an atomic write there is %x", b[:24])
	}
	start := word()
	old, f := table.CompareSwap(qp, key, a+8, start+1, 99)
	if f != OK || old != start || word() != start {
		t.Errorf("a compare that fails: %v, old %#x, now %#x, want %#x", f, old, word(), start)
	}
	old, f = table.CompareSwap(qp, key, a+8, start, 99)
	if f != OK || old != start || word() != 99 {
		t.Errorf("a compare that succeeds: %v, old %#x, now %d", f, old, word())
	}
	old, f = table.FetchAdd(qp, key, a+8, math.MaxUint64)
	if f != OK || old != 99 || word() != 98 {
		t.Errorf("an add of -1: %v, old %d, now %d", f, old, word())
	}
	for _, c := range []struct {
		at   uint64
		want Fault
	}{{a + 4, Misaligned}, {a + 1, Misaligned}, {a + 12, Misaligned}, {a + 13, OutOfRange}, {a + 16, OutOfRange}, {a - 1, OutOfRange}, {a - 8, OutOfRange}} {
		_, f = table.CompareSwap(qp, key, c.at, 0, 1)
		wantFault(t, "CompareSwap", f, c.want)
		_, f = table.FetchAdd(qp, key, c.at, 1)
		wantFault(t, "FetchAdd", f, c.want)
		wantFault(t, "AtomicWrite", table.AtomicWrite(qp, key, c.at, [8]byte{1}), c.want)
	}
	if word() != 98 {
		t.Errorf("what was refused made it %d", word())
	}
}

// TestFlush compares the checks of a flush with check_rkey and process_flush.
func TestFlush(t *testing.T) {
	_, b := file(t, 2)
	table := newTable()
	m := register(t, table, b[100:page+100], OnDemand|FlushPersistent|FlushGlobal)
	qp, a, key := QPRef{1, 5}, addr(b)+100, m.RKey()
	for _, c := range []struct {
		name          string
		addr, length  uint64
		typ, level    uint8
		check, doesit Fault
	}{
		{"a range", a, uint64(page), flushPersistent, 0, OK, OK},
		{"a range that is not in the MR", a + 1, uint64(page), flushPersistent, 0, OutOfRange, OutOfRange},
		{"an empty range", a, 0, flushPersistent, 0, OK, OK},
		{"an empty range that is not in the MR", a - 1, 0, flushPersistent, 0, OutOfRange, OutOfRange},
		{"the MR, any range", 0, math.MaxUint64, flushPersistent, flushMR, OK, OK},
		{"a range, visible", a, 1, flushGlobal, 0, OK, OK},
		{"of no kind", a, 1, 0, 0, OK, OK},
		{"both kinds", a + uint64(page) - 1, 1, flushGlobal | flushPersistent, 0, OK, OK},
	} {
		wantFault(t, c.name+", check", table.CheckFlush(qp, key, c.addr, c.length, c.typ, c.level), c.check)
		wantFault(t, c.name, table.Flush(qp, key, c.addr, c.length, c.typ, c.level), c.doesit)
	}
	unmapped := mapped(t, 1)
	gone := register(t, table, unmapped, OnDemand|FlushPersistent|FlushGlobal)
	unix.Munmap(unmapped)
	wantFault(t, "what is not mapped", table.Flush(qp, gone.RKey(), 0, 0, flushPersistent, flushMR), MemoryGone)
}

// TestRereg compares with ib_uverbs_rereg_mr, rxe_rereg_user_mr and ib_umem_check_rereg.
func TestRereg(t *testing.T) {
	b := mapped(t, 1)
	a := addr(b)
	for _, c := range []struct {
		name        string
		before      Access
		flags       uint32
		start, iova uint64
		access      Access
		want        syscall.Errno
	}{
		{"nothing", allRemote, 0, 0, 0, 0, syscall.EINVAL},
		{"unknown flags", allRemote, 8, 0, 0, 0, syscall.EOPNOTSUPP},
		{"memory", allRemote, ReregTrans, a, a, 0, syscall.EOPNOTSUPP},
		{"memory with another offset", allRemote, ReregTrans, a + 1, a, 0, syscall.EINVAL},
		{"memory and invalid rights", allRemote, ReregTrans | ReregAccess, a, a, RemoteWrite, syscall.EINVAL},
		{"memory and rights", allRemote, ReregTrans | ReregAccess, a, a, LocalWrite, syscall.EOPNOTSUPP},
		{"PD", allRemote, ReregPD, a + 1, a, RemoteWrite, 0},
		{"rights", LocalWrite, ReregAccess, 0, 0, allRemote, 0},
		{"fewer rights", allRemote, ReregAccess, 0, 0, 0, 0},
		{"PD and rights", LocalWrite, ReregPD | ReregAccess, 0, 0, allRemote, 0},
		{"invalid rights", allRemote, ReregAccess, 0, 0, RemoteWrite, syscall.EINVAL},
		{"unsupported rights", allRemote, ReregAccess, 0, 0, ZeroBased, syscall.EOPNOTSUPP},
		{"read-only memory for writing", RemoteRead, ReregAccess, 0, 0, LocalWrite, syscall.EACCES},
		{"read-only memory for writing, unsupported", RemoteRead, ReregAccess, 0, 0, LocalWrite | ZeroBased, syscall.EACCES},
		{"read-only memory for windows", RemoteRead, ReregAccess, 0, 0, MWBind, syscall.EACCES},
		{"read-only memory, no rights", RemoteRead, ReregAccess, 0, 0, 0, 0},
		{"memory for windows, for writing", MWBind, ReregAccess, 0, 0, allRemote, 0},
	} {
		table := newTable()
		m := register(t, table, b, c.before)
		key := m.RKey()
		wantErrno(t, c.name, m.Rereg(c.flags, c.start, c.iova, 2, c.access), c.want)
		wantPD, wantAccess := PD(1), c.before
		if c.want == 0 && c.flags&ReregPD != 0 {
			wantPD = 2
		}
		if c.want == 0 && c.flags&ReregAccess != 0 {
			wantAccess = c.access
		}
		if pd, access := m.Rights(); pd != wantPD || access != wantAccess || m.RKey() != key {
			t.Errorf("%s: PD %d, rights %#x, want %d and %#x; key %#x, was %#x", c.name, pd, access, wantPD, wantAccess, m.RKey(), key)
		}
		wantFault(t, c.name+", read", table.ReadLocal(make([]byte, 1), wantPD, key, a), OK)
		wantFault(t, c.name+", read in the other PD", table.ReadLocal(make([]byte, 1), 3-wantPD, key, a), BadKey)
		f := OK
		if wantAccess&RemoteWrite == 0 {
			f = NoAccess
		}
		wantFault(t, c.name+", write", table.WriteRemote(QPRef{wantPD, 1}, key, a, []byte{1}), f)
	}
	m := register(t, newTable(), b, allRemote)
	wantErrno(t, "Dereg", m.Dereg(), 0)
	wantErrno(t, "Rereg after Dereg", m.Rereg(ReregPD, 0, 0, 2, 0), syscall.EINVAL)
	wantErrno(t, "Dereg after Dereg", m.Dereg(), syscall.EINVAL)
}

// TestGone accesses memory that is not there any more: unmapped, protected, or of a file that became
// shorter. Each access faults, and those of other pages go on.
func TestGone(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(t *testing.T) (b []byte, lose func())
	}{
		{"unmapped", func(t *testing.T) ([]byte, func()) {
			b := mapped(t, 3)
			return b, func() { unmap(t, b[page:2*page]) }
		}},
		{"protected", func(t *testing.T) ([]byte, func()) {
			b := mapped(t, 3)
			return b, func() { protect(t, b[page:2*page], unix.PROT_NONE) }
		}},
		{"truncated", func(t *testing.T) ([]byte, func()) {
			f, b := file(t, 3)
			return b, func() {
				must(t, f.Truncate(int64(page)))
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, lose := c.make(t)
			table := newTable()
			m := register(t, table, b, allRemote)
			qp, key := QPRef{1, 5}, m.RKey()
			a := addr(b) + uint64(page)
			all := func() (faults []Fault) {
				_, swapped := table.CompareSwap(qp, key, a, 0, 1)
				_, added := table.FetchAdd(qp, key, a, 1)
				return []Fault{
					table.ReadLocal(make([]byte, 100), 1, key, a-50),
					table.ReadLocal(make([]byte, 100), 1, key, a),
					table.ReadRemote(make([]byte, page), qp, key, a),
					table.WriteLocal(1, key, a-50, make([]byte, 100)),
					table.WriteRemote(qp, key, a, make([]byte, 1)),
					table.AtomicWrite(qp, key, a, [8]byte{}),
					swapped, added,
				}
			}
			for i, f := range all() {
				if f != OK {
					t.Fatalf("before it, access %d: %v", i, f)
				}
			}
			lose()
			for i, f := range all() {
				if f != MemoryGone {
					t.Errorf("access %d: %v, want MemoryGone", i, f)
				}
			}
			wantFault(t, "the page before", table.ReadLocal(make([]byte, page), 1, key, addr(b)), OK)
			wantErrno(t, "Dereg", m.Dereg(), 0)
		})
	}
}

// TestGoneWriting writes to memory that can only be read now.
func TestGoneWriting(t *testing.T) {
	b := mapped(t, 1)
	table := newTable()
	m := register(t, table, b, allRemote)
	protect(t, b, unix.PROT_READ)
	wantFault(t, "ReadLocal", table.ReadLocal(make([]byte, 8), 1, m.LKey(), addr(b)), OK)
	wantFault(t, "WriteLocal", table.WriteLocal(1, m.LKey(), addr(b), make([]byte, 8)), MemoryGone)
	if !raceEnabled { // see operation.atomic
		_, f := table.FetchAdd(QPRef{1, 5}, m.RKey(), addr(b), 1)
		wantFault(t, "FetchAdd", f, MemoryGone)
		wantFault(t, "AtomicWrite", table.AtomicWrite(QPRef{1, 5}, m.RKey(), addr(b), [8]byte{}), MemoryGone)
	}
}

// TestMove copies any number of bytes between any addresses, and no byte more.
func TestMove(t *testing.T) {
	src := make([]byte, 300)
	for i := range src {
		src[i] = byte(i + 1)
	}
	for n := range 200 {
		dst := make([]byte, 300)
		at, from := n%17, n%13
		move(dst[at:at+n], src[from:from+n])
		want := make([]byte, 300)
		copy(want[at:], src[from:from+n])
		if !bytes.Equal(dst, want) {
			t.Fatalf("%d bytes: %x, want %x", n, dst, want)
		}
	}
}

// TestPanics: only faults of memory are caught. Anything else is a mistake of this package.
func TestPanics(t *testing.T) {
	defer func() {
		if r := recover(); r != "another" {
			t.Errorf("recovered %v", r)
		}
	}()
	var f Fault
	defer caught(&f, false)
	panic("another")
}

// TestHeap accesses memory of the Go heap.
func TestHeap(t *testing.T) {
	b := make([]byte, 3*page)
	table := newTable()
	m := register(t, table, b[7:], allRemote)
	wantFault(t, "WriteRemote", table.WriteRemote(QPRef{1, 1}, m.RKey(), addr(b)+100, []byte("hello")), OK)
	got := make([]byte, 5)
	wantFault(t, "ReadLocal", table.ReadLocal(got, 1, m.LKey(), addr(b)+100), OK)
	if string(got) != "hello" || string(b[100:105]) != "hello" {
		t.Errorf("%q is in memory, %q was read", b[100:105], got)
	}
}

// TestOnDemand: memory can be mapped after it was registered, unmapped and mapped again
// (rxe_odp_mr_copy), with addresses for peers that are not those of the process.
func TestOnDemand(t *testing.T) {
	b := mapped(t, 1)
	unmap(t, b)
	table := newTable()
	const iova = 1 << 44
	m, errno := table.RegMR(1, addr(b), uint64(page), iova, OnDemand|allRemote)
	wantErrno(t, "RegMR", errno, 0)
	write := func() Fault { return table.WriteRemote(QPRef{1, 1}, m.RKey(), iova+10, []byte{1}) }
	wantFault(t, "not mapped", write(), MemoryGone)
	for range 2 {
		protect(t, b, unix.PROT_READ|unix.PROT_WRITE)
		wantFault(t, "mapped", write(), OK)
		if b[10] != 1 {
			t.Error("nothing was written")
		}
		unmap(t, b)
		wantFault(t, "not mapped again", write(), MemoryGone)
	}
}
