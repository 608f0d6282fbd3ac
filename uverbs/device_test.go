package uverbs

import (
	"errors"
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
	err := info.check()
	if !errors.Is(err, errABI) || !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "ABI version 3, the library speaks 2 to 2") {
		t.Errorf("ABI 3: %v", err)
	}
	info.char.ABI = 1
	if err := info.check(); !errors.Is(err, errABI) {
		t.Errorf("ABI 1: %v", err)
	}
}

func TestUnknownDriver(t *testing.T) {
	info := DeviceInfo{Name: "mlx4_0", Driver: "mlx4"}
	err := info.check()
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
	info.CharDev = "/dev/null"
	if err := info.check(); err == nil || !strings.Contains(err.Error(), "is device 1:3, but the kernel's uverbs0 is 231:192") {
		t.Errorf("another device: %v", err)
	}
	if hint := info.openHint(syscall.EPERM); !strings.Contains(hint, "control group") || !strings.Contains(hint, "231:192") {
		t.Errorf("hint of EPERM is %q", hint)
	}
}

func TestRegHints(t *testing.T) {
	if hint := regHint(syscall.EFAULT, 1, 0); !strings.Contains(hint, "not mapped") {
		t.Errorf("EFAULT: %q", hint)
	}
	if hint := regHint(syscall.EINVAL, 100, 50); !strings.Contains(hint, "length is 100 bytes, the device allows 50") {
		t.Errorf("EINVAL: %q", hint)
	}
	if hint := regHint(syscall.EINVAL, 100, 200); hint != "" {
		t.Errorf("EINVAL for another reason: %q", hint)
	}
	if hint := regHint(syscall.ENOMEM, 12345, 0); !strings.Contains(hint, "RLIMIT_MEMLOCK") {
		t.Errorf("ENOMEM: %q", hint)
	}
}

func TestFirmware(t *testing.T) {
	for v, want := range map[uint64]string{0: "", 16<<32 | 35<<16 | 2000: "16.35.2000"} {
		if got := firmware(v); got != want {
			t.Errorf("firmware %#x is %q, want %q", v, got, want)
		}
	}
}
