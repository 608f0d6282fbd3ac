package uverbs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/netlinkrdma"
)

// TestABIRange: a driver's ABI version out of range is a reason not to use the device.
func TestABIRange(t *testing.T) {
	info := DeviceInfo{Name: "rxe0", Driver: "rxe", driver: rxeDriver{}, char: netlinkrdma.CharDev{ABI: 3}}
	err := info.suits()
	if !errors.Is(err, errABI) || !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "ABI version 3, the library speaks 2 to 2") {
		t.Errorf("ABI 3: %v", err)
	}
	info.char.ABI = 1
	if err := info.suits(); !errors.Is(err, errABI) {
		t.Errorf("ABI 1: %v", err)
	}
}

func TestUnknownDriver(t *testing.T) {
	info := DeviceInfo{Name: "mlx4_0", Driver: "mlx4"}
	err := info.suits()
	if !errors.Is(err, errDriver) || !strings.Contains(err.Error(), "driver mlx4") || !strings.Contains(err.Error(), "rxe") {
		t.Errorf("error is %v, want the driver and those that there are", err)
	}
}

// TestCharDev: a missing node, and one that is something else.
func TestCharDev(t *testing.T) {
	info := DeviceInfo{
		Name: "rxe0", Driver: "rxe", driver: rxeDriver{}, CharDev: filepath.Join(t.TempDir(), "uverbs0"),
		char: netlinkrdma.CharDev{Name: "uverbs0", ABI: 2, Major: 231, Minor: 192},
	}
	err := info.check()
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "mknod -m 666 "+info.CharDev+" c 231 192") {
		t.Errorf("no node: %v", err)
	}
	if err := os.WriteFile(info.CharDev, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := info.check(); err == nil || !strings.Contains(err.Error(), "stale node") {
		t.Errorf("a regular file: %v", err)
	}
	plain := info
	plain.char.Major, plain.char.Minor = 0, 0 // as st_rdev of the file
	if err := plain.check(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a regular file with the right numbers: %v", err)
	}
	zero := info
	zero.CharDev, zero.char.Major, zero.char.Minor = "/dev/zero", 1, 3 // it is 1:5
	if err := zero.check(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("another minor number: %v", err)
	}
	info.CharDev = "/dev/null"
	if err := info.check(); err == nil || !strings.Contains(err.Error(), "is device 1:3, but the kernel's uverbs0 is 231:192") {
		t.Errorf("another device: %v", err)
	}
	if hint := info.openHint(syscall.EPERM); !strings.Contains(hint, "control group") || !strings.Contains(hint, "231:192") {
		t.Errorf("hint of EPERM is %q", hint)
	}
}

// TestPermissionHint tells what the file's mode and owner are and who this process is.
func TestPermissionHint(t *testing.T) {
	info := DeviceInfo{CharDev: filepath.Join(t.TempDir(), "uverbs0")}
	if err := os.WriteFile(info.CharDev, nil, 0o640); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf(" (mode -rw-r-----, owner %d, group %d; this process is user %d, group %d)", os.Geteuid(), os.Getegid(), os.Geteuid(), os.Getegid())
	if got := info.openHint(syscall.EACCES); got != want {
		t.Errorf("hint is %q, want %q", got, want)
	}
	if got := info.openHint(syscall.EBUSY); got != "" {
		t.Errorf("hint of EBUSY is %q", got)
	}
	info.CharDev += "x"
	if got := info.openHint(syscall.EACCES); got != "" {
		t.Errorf("hint of a file that cannot be looked at is %q", got)
	}
}

// TestOpenFails: what is not a device has no verbs, and is closed again.
func TestOpenFails(t *testing.T) {
	info := DeviceInfo{
		Name: "null", Driver: "rxe", driver: rxeDriver{}, id: rxeDriverID, CharDev: "/dev/null",
		char: netlinkrdma.CharDev{Name: "null", ABI: 2, Major: 1, Minor: 3},
	}
	must(t, info.check())
	files := func() int { return len(value(os.ReadDir("/proc/self/fd"))(t)) }
	t.Setenv(abiPathEnv, "ioctl")
	before := files()
	var f *FeatureError
	if _, err := open(info); !errors.As(err, &f) || f.Feature != "GET_CONTEXT" || !errors.Is(err, syscall.ENOTTY) {
		t.Errorf("open: %v", err)
	}
	t.Setenv(abiPathEnv, "netlink")
	var arg *ArgError
	if _, err := open(info); !errors.As(err, &arg) {
		t.Errorf("open by a way that there is not: %v", err)
	}
	if after := files(); after != before {
		t.Errorf("%d files are open, %d before", after, before)
	}
}

// TestOpenUnknown: whatever this machine has, it is not this.
func TestOpenUnknown(t *testing.T) {
	_, err := Open("no such device")
	var d *DeviceError
	if !errors.As(err, &d) || d.Name != "no such device" || d.Unwrap() == nil || !strings.HasPrefix(err.Error(), "uverbs: open no such device: ") {
		t.Errorf("error is %v", err)
	}
	var a *ArgError
	if _, err := Open(""); !errors.As(err, &a) || a.Field != "name" {
		t.Errorf("without a name the error is %v", err)
	}
	err = &DeviceError{Err: fmt.Errorf("there is none: %w", ErrNoDevice)}
	if !errors.Is(err, ErrNoDevice) || err.Error() != "uverbs: open first device: there is none: no usable RDMA device" {
		t.Errorf("error is %v", err)
	}
}

// TestMemlockHint: the limit, what is used of it and what to do.
func TestMemlockHint(t *testing.T) {
	var lim unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim))
	low := unix.Rlimit{Cur: 8192, Max: lim.Max}
	must(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &low))
	defer unix.Setrlimit(unix.RLIMIT_MEMLOCK, &lim)
	page := value(unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS))(t)
	defer unix.Munmap(page)
	must(t, unix.Mlock(page))
	d, _ := fakeDevice(t, pathAuto)
	hint := d.memoryHint(12345)
	if readStatus().mayLock {
		if want := "RLIMIT_MEMLOCK does not matter, as the process has CAP_IPC_LOCK"; !strings.Contains(hint, want) || strings.Contains(hint, "ulimit") {
			t.Errorf("hint is %q, want %q in it", hint, want)
		}
		return
	}
	for _, want := range []string{"registering 12345 bytes", "RLIMIT_MEMLOCK is 8192 bytes", fmt.Sprintf("0 pinned and %d locked", len(page)), "ulimit -l", "LimitMEMLOCK", "--ulimit", "CAP_IPC_LOCK"} {
		if !strings.Contains(hint, want) {
			t.Errorf("hint is %q, want %q in it", hint, want)
		}
	}
}

func TestRegHints(t *testing.T) {
	d, _ := fakeDevice(t, pathAuto)
	d.attr.MaxMRSize = 50 // bytes
	if hint := d.regHint(syscall.EFAULT, &region{start: 16, length: 1}); hint != "the memory at 0x10 is not mapped" {
		t.Errorf("EFAULT: %q", hint)
	}
	if hint := d.regHint(syscall.EINVAL, &region{length: 100}); !strings.Contains(hint, "length is 100 bytes, the device allows 50") {
		t.Errorf("EINVAL: %q", hint)
	}
	if hint := d.regHint(syscall.EINVAL, &region{length: 50}); hint != "" {
		t.Errorf("EINVAL for another reason: %q", hint)
	}
	if hint := d.regHint(syscall.ENOMEM, &region{length: 12345}); !strings.Contains(hint, "RLIMIT_MEMLOCK") {
		t.Errorf("ENOMEM: %q", hint)
	}
}

// TestMemoryHint: a limit that is not in the way is not blamed, and one that is comes with its
// figures.
func TestMemoryHint(t *testing.T) {
	const room = "so the machine has no memory for 4096 bytes"
	plenty := memoryFacts{memlock: 1 << 20, maps: 100, maxMaps: 65530, mrs: 3, maxMR: 1000}
	for want, change := range map[string]func(m *memoryFacts){
		"RLIMIT_MEMLOCK of 1048576 bytes leaves room, " + room:                func(*memoryFacts) {},
		"RLIMIT_MEMLOCK is 1048576 bytes, in use are 1048575 pinned":          func(m *memoryFacts) { m.status.pinned = 1<<20 - 1 },
		"RLIMIT_MEMLOCK is 4095 bytes, in use are 0 pinned":                   func(m *memoryFacts) { m.memlock = 4095 },
		"RLIMIT_MEMLOCK is unlimited, " + room:                                func(m *memoryFacts) { m.memlock = unix.RLIM_INFINITY },
		"does not matter, as the process has CAP_IPC_LOCK, " + room:           func(m *memoryFacts) { m.memlock, m.status.mayLock = 1, true },
		"container); siw of Linux 6.1 counts it in spite of CAP_IPC_LOCK":     func(m *memoryFacts) { m.memlock, m.status.mayLock, m.forAll = 1, true, true },
		"of 1048576 bytes leaves room, so the machine":                        func(m *memoryFacts) { m.status.mayLock, m.forAll = true, true },
		"65529 mappings, of 65530 that vm.max_map_count allows":               func(m *memoryFacts) { m.maps = 65529 },
		"rxe0 has 1000 MRs, of 1000 that it allows (max_mr), in this program": func(m *memoryFacts) { m.mrs = 1000 },
	} {
		m := plenty
		change(&m)
		if hint := m.hint(4096, "rxe0"); !strings.Contains(hint, want) {
			t.Errorf("%q, want %q in it", hint, want)
		}
	}
}

// TestFaultHint: what of the memory is in the way, and not what comes before or after it.
func TestFaultHint(t *testing.T) {
	const maps = `1000-3000 rw-p 00000000 00:00 0
3000-4000 r--p 00000000 08:01 77                         /lib/some file
4000-5000 rw-p 00000000 00:00 0                          [heap]
6000-7000 ---p 00000000 00:00 0
7000-9000 rw-s 00001000 00:05 12                         /dev/gpu0
`
	for _, c := range []struct {
		addr, length uint64
		writing      bool
		want         string
	}{
		{0x1800, 0x1000, true, "its pages cannot be pinned"},
		{0x2800, 0x2000, false, "the pages of [heap] cannot be pinned"},
		{0x2800, 0x2000, true, "at 0x3000 is not writable (r--p)"},
		{0x3800, 0x100, false, "the pages of /lib/some file cannot be pinned"},
		{0x4800, 0x1000, true, "at 0x5000 is not mapped"},
		{0x100, 0x1000, true, "at 0x100 is not mapped"},
		{0x6800, 0x1000, true, "at 0x6800 is not readable (---p)"},
		{0x8000, 0x100, true, "the pages of /dev/gpu0 cannot be pinned: memory of a device is registered as a dma-buf"},
		{0x8800, 0x1000, true, "at 0x9000 is not mapped"},
	} {
		if got := faultHint(strings.NewReader(maps), c.addr, c.length, c.writing); !strings.Contains(got, c.want) {
			t.Errorf("%#x+%d: %q, want %q in it", c.addr, c.length, got, c.want)
		}
	}
}

func TestFirmware(t *testing.T) {
	for v, want := range map[uint64]string{0: "", 16<<32 | 35<<16 | 2000: "16.35.2000"} {
		if got := firmware(v); got != want {
			t.Errorf("firmware %#x is %q, want %q", v, got, want)
		}
	}
}
