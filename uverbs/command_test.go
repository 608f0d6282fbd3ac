package uverbs

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// fileCommands returns the commands of a device behind any file.
func fileCommands(t testing.TB, f *os.File, path abiPath, drv driver) *commands {
	t.Helper()
	return newCommands(value(kernel.NewCharDevice(f, kernel.CharOptions{}))(t), path, drv.name()+"0", drv)
}

// pipeFile returns the commands of a device behind a pipe, which takes write() and knows no ioctl
// (ENOTTY), and the pipe's other end.
func pipeFile(t testing.TB, path abiPath) (*commands, *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	must(t, err)
	t.Cleanup(func() { r.Close(); w.Close() })
	return fileCommands(t, w, path, rxeDriver{}), r
}

// word is a piece of a command with its meaning.
type word struct {
	name string
	size int
	want uint64
}

// compare checks a command word by word; a size of 0 skips the rest.
func compare(t *testing.T, b []byte, words []word) {
	t.Helper()
	for _, w := range words {
		if len(b) < w.size {
			t.Fatalf("the command ends before %s", w.name)
		}
		var field [8]byte
		copy(field[:], b[:w.size])
		if got := binary.LittleEndian.Uint64(field[:]); got != w.want && w.want != anyValue {
			t.Errorf("%s is %#x, want %#x", w.name, got, w.want)
		}
		b = b[w.size:]
	}
	if len(b) != 0 {
		t.Errorf("%d bytes follow the last word", len(b))
	}
}

// anyValue stands for an address.
const anyValue = 1<<64 - 1

func TestPathFromEnv(t *testing.T) {
	for v, want := range map[string]abiPath{"": pathAuto, "auto": pathAuto, "ioctl": pathIoctl, "write": pathWrite} {
		t.Setenv(abiPathEnv, v)
		if got, err := pathFromEnv(); err != nil || got != want {
			t.Errorf("%q gives %v, %v, want %v", v, got, err, want)
		}
	}
	t.Setenv(abiPathEnv, "netlink")
	if _, err := pathFromEnv(); err == nil || !strings.Contains(err.Error(), `RDMAABI is "netlink", allowed: "ioctl", "write"`) {
		t.Errorf("a wrong value: %v", err)
	}
}

// TestFail: errno meaning is decided in one place.
func TestFail(t *testing.T) {
	c := newCommands(nil, pathAuto, "rxe0", rxeDriver{})
	if err := c.fail("REG_MR", 0, "hint"); err != nil {
		t.Errorf("no errno is %v", err)
	}
	for _, errno := range []syscall.Errno{syscall.ENOTTY, syscall.EPROTONOSUPPORT, syscall.EOPNOTSUPP, syscall.ENOSYS} {
		err := c.fail("REG_MR", errno, "")
		var f *FeatureError
		if !errors.Is(err, errors.ErrUnsupported) || !errors.As(err, &f) || !errors.Is(err, errno) {
			t.Errorf("%v gives %v, want a FeatureError with the errno", errno, err)
		}
		if byDriver := errno == syscall.EOPNOTSUPP || errno == syscall.ENOSYS; byDriver != (f.Driver != "") {
			t.Errorf("%v: driver is %q", errno, f.Driver)
		}
	}
	err := c.fail("REG_MR", syscall.ENOMEM, "buy more")
	if want := "uverbs: rxe0: REG_MR: cannot allocate memory: buy more"; err.Error() != want || !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("error is %q, want %q", err, want)
	}
	if err := c.fail("POST_SEND", errWriteDenied, ""); !errors.Is(err, syscall.EACCES) || !strings.Contains(err.Error(), "other credentials") {
		t.Errorf("EACCES of write() has no hint: %v", err)
	}
	if err := c.fail("POST_SEND", syscall.EACCES, ""); !errors.Is(err, syscall.EACCES) || strings.Contains(err.Error(), "credentials") {
		t.Errorf("EACCES of an ioctl has the hint on write(): %v", err)
	}
	errorIs(t, c.fail("POST_SEND", errClosedFile, ""), os.ErrClosed, "a closed file gives")
}

// TestClosedFile: a command on a closed device says so.
func TestClosedFile(t *testing.T) {
	c, _ := pipeFile(t, pathAuto)
	must(t, c.Close())
	errno := c.legacy(4, make([]byte, 4), nil, udata{})
	errorIs(t, c.fail("DEALLOC_PD", errno, ""), os.ErrClosed, "error")
}

func TestErrorTexts(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{argErr("CreateCQ", "cqe", 70000, "1 to %d (max_cqe of %s)", 32767, "rxe0"), "uverbs: CreateCQ: cqe is 70000, allowed: 1 to 32767 (max_cqe of rxe0)"},
		{postErr(3, ErrTooManySGE), "uverbs: post: work request 3: SGL: too many SGEs for this QP"},
		{postErr(0, errNothingBegun), "uverbs: post: work request 0: no work request was begun"},
		{postErr(2, errNoAtomics), "uverbs: post: work request 2: Opcode: atomics not supported by this kernel: atomic_cap of the device is ATOMIC_NONE"},
		{&FeatureError{Feature: "dm", Since: Version{5, 12}}, "uverbs: dm not supported by this kernel (needs Linux 5.12)"},
		{&FeatureError{Feature: "dm", Driver: "rxe"}, "uverbs: dm not supported by driver rxe"},
		{&FeatureError{Feature: "dm", Driver: "rxe", Err: &Error{Op: "ALLOC_DM", Device: "rxe0", Errno: syscall.EOPNOTSUPP}},
			"uverbs: dm not supported by driver rxe: rxe0: ALLOC_DM: operation not supported"},
		{&DeviceError{Name: "x", Devices: []DeviceInfo{{Name: "rxe0"}, {Name: "rxe1", Err: io.EOF}}, Err: ErrNoDevice},
			"uverbs: open x: no usable RDMA device; devices here: rxe0, \"rxe1\" (cannot be used: EOF)"},
		{&WCError{WC: WC{ID: 5, QPN: 17, Status: WCRetryExcErr, VendorErr: 0x81}, Device: "rxe0", Peer: Endpoint{QPN: 18, GID: ib.GID{10: 0xff, 11: 0xff, 12: 10, 15: 1}}, Hint: "gone"},
			"uverbs: rxe0 QP 17: transport retry counter exceeded: gone; work request 5, peer 10.0.0.1 QP 18, vendor error 0x81"},
	} {
		if diff := cmp.Diff(c.want, c.err.Error()); diff != "" {
			t.Errorf("text (-want +got):\n%s", diff)
		}
	}
	var status WCStatus
	if err := error(&WCError{WC: WC{Status: WCRemOpErr}}); !errors.As(err, &status) || status != WCRemOpErr {
		t.Errorf("the status of a WCError is %v", status)
	}
	if !errors.Is(&PostError{Err: ErrOpcode}, ErrOpcode) {
		t.Error("a PostError hides its cause")
	}
	if !errors.Is(argErr("", "", 0, ""), syscall.EINVAL) {
		t.Error("an ArgError is not EINVAL")
	}
}
