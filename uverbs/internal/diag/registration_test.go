package diag

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMemlockHint: a registration beyond RLIMIT_MEMLOCK is told the limit, what is used of it and what to do.
func TestMemlockHint(t *testing.T) {
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	var lim unix.Rlimit
	must(unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim))
	low := unix.Rlimit{Cur: 8192, Max: lim.Max}
	must(unix.Setrlimit(unix.RLIMIT_MEMLOCK, &low))
	defer unix.Setrlimit(unix.RLIMIT_MEMLOCK, &lim)
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	must(err)
	defer unix.Munmap(page)
	must(unix.Mlock(page))
	runtime.LockOSThread() // for good: a thread that has dropped a capability is of no use any more
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	must(unix.Capget(&header, &data[0]))
	data[0].Effective &^= 1 << unix.CAP_IPC_LOCK
	must(unix.Capset(&header, &data[0]))
	hint := (&Registration{Errno: syscall.ENOMEM, Device: "rxe0", Length: 12345}).Hint()
	for _, want := range []string{"RLIMIT_MEMLOCK is 8192 bytes, too few for 12345 more", fmt.Sprintf("0 pinned and %d locked", len(page)), "ulimit -l", "LimitMEMLOCK", "--ulimit", "CAP_IPC_LOCK"} {
		if !strings.Contains(hint, want) {
			t.Errorf("hint is %q, want %q in it", hint, want)
		}
	}
}

// TestRegistrationHint: each errno has its own explanation.
func TestRegistrationHint(t *testing.T) {
	const max = 50 // bytes
	for _, c := range []struct {
		r    Registration
		want string
	}{
		{Registration{Errno: syscall.EFAULT, Start: 16, Length: 1}, "the memory at 0x10 is not mapped"},
		{Registration{Errno: syscall.EINVAL, Length: 100, MaxSize: max}, "length is 100 bytes, the device allows 50 (max_mr_size)"},
		{Registration{Errno: syscall.EINVAL, Length: max, MaxSize: max}, ""},
		{Registration{Errno: syscall.EINVAL, Length: 100}, ""},
		{Registration{Errno: syscall.EACCES, Length: 100, MaxSize: max}, ""},
	} {
		if hint := c.r.Hint(); hint != c.want {
			t.Errorf("%+v: %q, want %q", c.r, hint, c.want)
		}
	}
	if hint := (&Registration{Errno: syscall.ENOMEM, Length: 12345}).Hint(); !strings.Contains(hint, "RLIMIT_MEMLOCK") {
		t.Errorf("ENOMEM: %q", hint)
	}
}

// TestMemoryHint: the limit that is reached is named with its figures, and no other.
func TestMemoryHint(t *testing.T) {
	const (
		room = "so the machine has no memory for 4096 bytes"
		siw  = "siw of Linux 6.1"
	)
	plenty := memory{memlock: 1 << 20, status: processStatus{known: true}, maps: 100, maxMaps: 65530, mrs: 3}
	for want, c := range map[string]struct {
		change func(m *memory)
		forAll string
	}{
		"RLIMIT_MEMLOCK of 1048576 bytes leaves room, " + room:                              {func(*memory) {}, ""},
		"RLIMIT_MEMLOCK is 1048576 bytes, too few for 4096 more; in use are 1048575 pinned": {func(m *memory) { m.status.pinned = 1<<20 - 1 }, ""},
		"RLIMIT_MEMLOCK is 4095 bytes, too few for 4096 more; in use are 0 pinned":          {func(m *memory) { m.memlock = 4095 }, ""},
		"RLIMIT_MEMLOCK is unlimited, " + room:                                              {func(m *memory) { m.memlock = unix.RLIM_INFINITY }, ""},
		"does not matter, as the process has CAP_IPC_LOCK, " + room:                         {func(m *memory) { m.memlock, m.status.mayLock = 1, true }, ""},
		"container); siw of Linux 6.1 counts it in spite of CAP_IPC_LOCK":                   {func(m *memory) { m.memlock, m.status.mayLock = 1, true }, siw},
		"of 1048576 bytes leaves room, so the machine":                                      {func(m *memory) { m.status.mayLock = true }, siw},
		"is 1048576 bytes, likely too few for 4096 more; /proc does not show":               {func(m *memory) { m.status.known = false }, ""},
		"65529 mappings, of 65530 that vm.max_map_count allows":                             {func(m *memory) { m.maps = 65529 }, ""},
		"rxe0 has 1000 MRs, of 1000 that it allows (max_mr), in this program":               {func(m *memory) { m.mrs = 1000 }, ""},
	} {
		m := plenty
		c.change(&m)
		if hint := m.hint(&Registration{Device: "rxe0", Length: 4096, MaxMR: 1000, MemlockForAll: c.forAll}); !strings.Contains(hint, want) {
			t.Errorf("%q, want %q in it", hint, want)
		}
	}
}

// TestMappingHint: the first byte of the memory that cannot be registered is named.
func TestMappingHint(t *testing.T) {
	const maps = `1000-3000 rw-p 00000000 00:00 0
3000-4000 r--p 00000000 08:01 77                         /lib/some file
4000-5000 rw-p 00000000 00:00 0                          [heap]
6000-7000 ---p 00000000 00:00 0
7000-9000 rw-s 00001000 00:05 12                         /dev/gpu0
a000-b000 r--s 00000000 08:01 78                         /srv/table
c000-d000 rw-s 00000000 08:01 79                         /srv/table
e000-f000 rw-s 00000000 00:01 80                         /memfd:ring (deleted)
`
	for _, c := range []struct {
		addr, length uint64
		writing      bool
		want         string
	}{
		{0x1800, 0x1000, true, "its pages cannot be pinned"},
		{0x2800, 0x2000, false, "the pages of [heap] cannot be pinned"},
		{0x2800, 0x2000, true, "at 0x3000 is not writable (r--p)"},
		{0x3800, 0x100, false, "the pages of some file cannot be pinned; likely the file ends before"},
		{0x4800, 0x1000, true, "at 0x5000 is not mapped"},
		{0x100, 0x1000, true, "at 0x100 is not mapped"},
		{0x6800, 0x1000, true, "at 0x6800 is not readable (---p)"},
		{0x8000, 0x100, true, "the pages of /dev/gpu0 cannot be pinned; memory of a device is registered as a dma-buf"},
		{0x8800, 0x1000, true, "at 0x9000 is not mapped"},
		{0xa000, 0x100, false, "the pages of table cannot be pinned; before Linux 6.2"},
		{0xa000, 0x100, true, "at 0xa000 is not writable (r--s)"},
		{0xc000, 0x100, true, "the pages of table cannot be pinned; since Linux 6.5"},
		{0xc000, 0x100, false, "the pages of table cannot be pinned; likely the file ends before"},
		{0xe000, 0x100, true, "the pages of memfd:ring (deleted) cannot be pinned; likely the file ends before"},
	} {
		r := Registration{Start: c.addr, Length: c.length, Write: c.writing}
		if got := r.mappingHint(strings.NewReader(maps)); !strings.Contains(got, c.want) {
			t.Errorf("%#x+%d: %q, want %q in it", c.addr, c.length, got, c.want)
		}
	}
}
