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

	"github.com/goverbs/goverbs/netlinkrdma"
)

// TestABIRange: a driver's ABI version out of range is a reason not to use the device.
func TestABIRange(t *testing.T) {
	info := DeviceInfo{Name: "rxe0", Driver: "rxe", driver: rxeDriver{}, char: netlinkrdma.CharDev{ABI: 3}}
	err := info.checkDriver()
	if !errors.Is(err, errABI) || !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "ABI version 3, the library supports 2 to 2") {
		t.Errorf("ABI 3: %v", err)
	}
	info.char.ABI = 1
	errorIs(t, info.checkDriver(), errABI, "ABI 1")
}

func TestUnknownDriver(t *testing.T) {
	info := DeviceInfo{Name: "mlx4_0", Driver: "mlx4"}
	err := info.checkDriver()
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
	must(t, os.WriteFile(info.CharDev, nil, 0o600))
	if err := info.check(); err == nil || !strings.Contains(err.Error(), "stale node") {
		t.Errorf("a regular file: %v", err)
	}
	plain := info
	plain.char.Major, plain.char.Minor = 0, 0 // as st_rdev of the file
	errorIs(t, plain.check(), fs.ErrNotExist, "a regular file with the right numbers")
	zero := info
	zero.CharDev, zero.char.Major, zero.char.Minor = "/dev/zero", 1, 3 // it is 1:5
	errorIs(t, zero.check(), fs.ErrNotExist, "another minor number")
	info.CharDev = "/dev/null"
	if err := info.check(); err == nil || !strings.Contains(err.Error(), "is device 1:3, but the kernel's uverbs0 is 231:192") {
		t.Errorf("another device: %v", err)
	}
	if hint := info.openHint(syscall.EPERM); !strings.Contains(hint, "control group") || !strings.Contains(hint, "231:192") || !strings.Contains(hint, "--device /dev/null") {
		t.Errorf("hint of EPERM is %q", hint)
	}
}

// TestPermissionHint tells what the file's mode and owner are and who this process is.
func TestPermissionHint(t *testing.T) {
	info := DeviceInfo{CharDev: filepath.Join(t.TempDir(), "uverbs0")}
	must(t, os.WriteFile(info.CharDev, nil, 0o640))
	want := fmt.Sprintf(" (mode -rw-r-----, owner %d, group %d; this process is user %d, group %d; on the host: chmod 666 %s)", os.Geteuid(), os.Getegid(), os.Geteuid(), os.Getegid(), info.CharDev)
	if got := info.openHint(syscall.EACCES); got != want {
		t.Errorf("hint is %q, want %q", got, want)
	}
	must(t, os.Chmod(info.CharDev, 0o660))
	want = fmt.Sprintf("; join the group, in a container by --group-add %d)", os.Getegid())
	if got := info.openHint(syscall.EACCES); !strings.HasSuffix(got, want) {
		t.Errorf("hint is %q, want it to end in %q", got, want)
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
	files := func() (n int) { // of the device; other files of the process may come and go
		for _, f := range value(os.ReadDir("/proc/self/fd"))(t) {
			if is, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil && is == info.CharDev {
				n++
			}
		}
		return n
	}
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
	_, err := Open("no such device", OpenOptions{})
	var d *DeviceError
	if !errors.As(err, &d) || d.Name != "no such device" || d.Unwrap() == nil || !strings.HasPrefix(err.Error(), "uverbs: open no such device: ") {
		t.Errorf("error is %v", err)
	}
	var a *ArgError
	if _, err := Open("", OpenOptions{}); !errors.As(err, &a) || a.Field != "name" {
		t.Errorf("without a name the error is %v", err)
	}
	err = &DeviceError{Err: fmt.Errorf("there is none: %w", ErrNoDevice)}
	if !errors.Is(err, ErrNoDevice) || err.Error() != "uverbs: open first device: there is none: no usable RDMA device" {
		t.Errorf("error is %v", err)
	}
}

// TestRegHints: the error of a registration has the hint for its errno, the memory and the device.
func TestRegHints(t *testing.T) {
	d, _ := fakeDevice(t, pathAuto)
	d.attr.MaxMRSize = 50 // bytes
	for _, c := range []struct {
		errno syscall.Errno
		mem   region
		want  string
	}{
		{syscall.EFAULT, region{start: 16, length: 1}, "the memory at 0x10 is not mapped"},
		{syscall.EINVAL, region{length: 100}, "length is 100 bytes, the device allows 50"},
		{syscall.ENOMEM, region{length: 12345}, "RLIMIT_MEMLOCK"},
	} {
		err := d.regError("REG_MR", c.errno, &c.mem)
		if e, ok := errors.AsType[*Error](err); !ok || !strings.Contains(e.Hint, c.want) {
			t.Errorf("%v: %v, want %q in the hint", c.errno, err, c.want)
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
