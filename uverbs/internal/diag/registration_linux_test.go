package diag

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"slices"
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
	users, err := os.ReadFile("/proc/self/uid_map")
	must(err)
	initial := slices.Equal(strings.Fields(string(users)), []string{"0", "0", "4294967295"})
	if has := data[0].Effective&(1<<unix.CAP_IPC_LOCK) != 0; readStatus().mayLock != (has && initial) {
		t.Errorf("mayLock is %t; the thread has CAP_IPC_LOCK: %t, in the initial user namespace: %t", readStatus().mayLock, has, initial)
	}
	data[0].Effective &^= 1 << unix.CAP_IPC_LOCK
	must(unix.Capset(&header, &data[0]))
	if readStatus().mayLock {
		t.Error("mayLock is true, but the thread has dropped CAP_IPC_LOCK")
	}
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
		"RLIMIT_MEMLOCK of 1048576 bytes leaves room, " + room:                                               {func(*memory) {}, ""},
		"RLIMIT_MEMLOCK is 1048576 bytes, too few for 4096 more; in use are 1048575 pinned":                  {func(m *memory) { m.status.pinned = 1<<20 - 1 }, ""},
		"RLIMIT_MEMLOCK is 4095 bytes, too few for 4096 more; in use are 0 pinned":                           {func(m *memory) { m.memlock = 4095 }, ""},
		"RLIMIT_MEMLOCK is unlimited, " + room:                                                               {func(m *memory) { m.memlock = unix.RLIM_INFINITY }, ""},
		"does not matter, as the process has CAP_IPC_LOCK, " + room:                                          {func(m *memory) { m.memlock, m.status.mayLock = 1, true }, ""},
		"container); siw of Linux 6.1 counts it in spite of CAP_IPC_LOCK":                                    {func(m *memory) { m.memlock, m.status.mayLock = 1, true }, siw},
		"of 1048576 bytes leaves room, so the machine":                                                       {func(m *memory) { m.status.mayLock = true }, siw},
		"is 1048576 bytes, which may be too few for 4096 more, as /proc does not show what is in use: raise": {func(m *memory) { m.status.known = false }, ""},
		"; or the machine has no memory for 4096 bytes":                                                      {func(m *memory) { m.status.known = false }, ""},
		"is 4095 bytes, too few for 4096 more; /proc does not show what is in use; raise it":                 {func(m *memory) { m.memlock, m.status.known = 4095, false }, ""},
		"CAP_IPC_LOCK, so the machine":                                                                       {func(m *memory) { m.status = processStatus{mayLock: true} }, ""},
		"what is in use; the process has 65530 mappings":                                                     {func(m *memory) { m.maps, m.status.known = 65530, false }, ""},
		"what is in use; rxe0 has 1001 MRs":                                                                  {func(m *memory) { m.mrs, m.status.known = 1001, false }, ""},
		"65529 mappings, of 65530 that vm.max_map_count allows":                                              {func(m *memory) { m.maps = 65529 }, ""},
		"rxe0 has 1000 MRs, of 1000 that it allows (max_mr), in this program":                                {func(m *memory) { m.mrs = 1000 }, ""},
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
10000-11000 rw-s 00000000 00:01 81                       /dev/zero (deleted)
11000-12000 rw-p 00000000 00:0f 82                       /anon_hugepage (deleted)
12000-13000 rw-s 00000000 00:30 83                       /dev/hugepages/pool
13000-14000 rw-s 00000000 00:31 84                       /run/ring
14000-15000 r--s 00000000 00:01 85                       /dev/zero (deleted)
15000-16000 rw-p 00000000 00:05 86                       /dev/zero
`
	kinds := map[string]fileKind{
		"/dev/gpu0": ofDevice, "/lib/some file": ordinary, "/srv/table": ordinary, "/dev/hugepages/pool": inHugePool, "/run/ring": inTmpfs,
	}
	const end, noHugePage = "likely the file ends before the memory: ", "likely the pool of huge pages is empty (sysctl vm.nr_hugepages)"
	old, middle, young := [2]int{6, 1}, [2]int{6, 4}, [2]int{6, 5}
	kind := func(name string) fileKind {
		if k, ok := kinds[name]; ok {
			return k
		}
		return kindOf(name)
	}
	for _, c := range []struct {
		addr, length uint64
		writing      bool
		kernel       [2]int
		want         string
	}{
		{0x1800, 0x1000, true, young, "its pages cannot be pinned"},
		{0x2800, 0x2000, false, young, "the pages of [heap] cannot be pinned"},
		{0x2800, 0x2000, true, young, "at 0x3000 is not writable (r--p)"},
		{0x3800, 0x100, false, young, "the pages of some file cannot be pinned; likely the file ends before"},
		{0x4800, 0x1000, true, young, "at 0x5000 is not mapped"},
		{0x100, 0x1000, true, young, "at 0x100 is not mapped"},
		{0x6800, 0x1000, true, young, "at 0x6800 is not readable (---p)"},
		{0x8000, 0x100, true, young, "the pages of /dev/gpu0 cannot be pinned; memory of a device is registered as a dma-buf"},
		{0x8800, 0x1000, true, young, "at 0x9000 is not mapped"},
		{0xa000, 0x100, false, old, "the pages of table cannot be pinned; before Linux 6.2"},
		{0xa000, 0x100, false, middle, "the pages of table cannot be pinned; " + end + "/srv/table"},
		{0xa000, 0x100, false, [2]int{}, "the pages of table cannot be pinned; " + end + "/srv/table"},
		{0xc000, 0x100, true, [2]int{}, "the pages of table cannot be pinned; " + end + "/srv/table"},
		{0xa000, 0x100, true, young, "at 0xa000 is not writable (r--s)"},
		{0xc000, 0x100, true, young, "the pages of table cannot be pinned; since Linux 6.5"},
		{0xc000, 0x100, true, middle, "the pages of table cannot be pinned; " + end + "/srv/table"},
		{0xc000, 0x100, false, young, "the pages of table cannot be pinned; likely the file ends before"},
		{0xe000, 0x100, true, young, "the pages of memfd:ring (deleted) cannot be pinned; likely the file ends before"},
		{0x10000, 0x100, true, young, "the pages of shared memory cannot be pinned; likely mremap(2) has made the memory longer"},
		{0x11000, 0x100, true, young, "the pages of memory of MAP_HUGETLB cannot be pinned; " + noHugePage},
		{0x12000, 0x100, true, young, "the pages of pool cannot be pinned; " + noHugePage + ", or the file ends before the memory: /dev/hugepages/pool"},
		{0x13000, 0x100, true, young, "the pages of ring cannot be pinned; " + end + "/run/ring, or there is no room left for it"},
		{0x14000, 0x100, false, old, "the pages of shared memory cannot be pinned; before Linux 6.2 the mapping"},
		{0x14000, 0x100, false, old, "even for reading; or mremap(2) has made the memory longer"},
		{0x15000, 0x100, true, young, "its pages cannot be pinned"},
	} {
		r := Registration{Start: c.addr, Length: c.length, Write: c.writing, Kernel: c.kernel}
		if got := r.mappingHint(strings.NewReader(maps), kind); !strings.Contains(got, c.want) {
			t.Errorf("%#x+%d: %q, want %q in it", c.addr, c.length, got, c.want)
		}
	}
}

// TestKindOfFile: memory without a file is known by the name that the kernel gives it, a file by its file system.
func TestKindOfFile(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	size := os.Getpagesize()
	fd, err := unix.MemfdCreate("ring", unix.MFD_CLOEXEC)
	must(err)
	defer unix.Close(fd)
	id, err := unix.SysvShmGet(unix.IPC_PRIVATE, size, unix.IPC_CREAT|0o600)
	must(err)
	sysv, err := unix.SysvShmAttach(id, 0, 0)
	_, removeErr := unix.SysvShmCtl(id, unix.IPC_RMID, nil)
	must(errors.Join(err, removeErr))
	defer unix.SysvShmDetach(sysv)
	anonymous, err := unix.Mmap(-1, 0, size, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	must(err)
	defer unix.Munmap(anonymous)
	ring, err := unix.Mmap(fd, 0, size, unix.PROT_READ, unix.MAP_SHARED)
	must(err)
	defer unix.Munmap(ring)
	nameOf := func(mem []byte) string {
		maps, err := os.Open("/proc/self/maps")
		must(err)
		defer maps.Close()
		for m := range mappings(maps) {
			if m.start == uint64(reflect.ValueOf(mem).Pointer()) {
				return m.name
			}
		}
		return "no mapping"
	}
	for name, want := range map[string]fileKind{
		nameOf(anonymous):           sharedPages,
		nameOf(sysv):                sharedPages,
		nameOf(ring):                inTmpfs,
		"/anon_hugepage (deleted)":  hugePages,
		"/dmabuf:":                  ofDevice,
		"/dev/null":                 ofDevice,
		"/dev/gone (deleted)":       inTmpfs, // its directory is
		"/proc/self/status":         ordinary,
		"/no such directory/a file": ordinary,
	} {
		if got := kindOf(name); got != want {
			t.Errorf("%q: kind %d, want %d", name, got, want)
		}
	}
}
