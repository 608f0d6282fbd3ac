package kernel

import (
	"errors"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// must fails a test on an error.
var must = testenv.Must

// openChar returns a Conn over a file, and closes it at the end of the test.
func openChar(t testing.TB, f *os.File, path Path) *Conn {
	t.Helper()
	t.Cleanup(func() { f.Close() })
	d, err := NewCharDevice(f, CharOptions{DriverID: 14})
	must(t, err)
	return NewConn(d, path, "rxe0")
}

// openFile is openChar of a file by its name.
func openFile(t testing.TB, name string, path Path) *Conn {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	must(t, err)
	return openChar(t, f, path)
}

// openPipe returns a Conn over a pipe, which takes write() and knows no ioctl (ENOTTY), like a
// kernel without the ioctl interface; and the pipe's other end.
func openPipe(t testing.TB, path Path) (*Conn, *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	must(t, err)
	t.Cleanup(func() { r.Close() })
	return openChar(t, w, path), r
}

// deallocPD issues a legacy command without a response.
func deallocPD(c *Conn) syscall.Errno {
	return c.Legacy(abi.IB_USER_VERBS_CMD_DEALLOC_PD, Bytes(&abi.DeallocPD{PDHandle: 77}), nil, nil, nil)
}

// TestPaths: auto falls back to write() if there is no ioctl, ioctl does not, and write does not
// try the ioctl.
func TestPaths(t *testing.T) {
	for _, path := range []Path{PathAuto, PathWrite} {
		c, r := openPipe(t, path)
		if errno := deallocPD(c); errno != 0 {
			t.Fatalf("path %d: %v", path, errno)
		}
		b := make([]byte, 12)
		if _, err := io.ReadFull(r, b); err != nil {
			t.Fatal(err)
		}
		same(t, b, words(uint32(4), uint16(3), uint16(0), uint32(77)))
		if errno := c.Do(NewCommand(1, 2)); errno != syscall.ENOTTY {
			t.Errorf("path %d: a method is %v, want ENOTTY", path, errno)
		}
	}
	c, _ := openPipe(t, PathIoctl)
	if errno := deallocPD(c); errno != syscall.ENOTTY {
		t.Errorf("ioctl only: %v, want ENOTTY", errno)
	}
}

// TestWriteResponse: what the kernel does not write of a response is as the caller left it.
func TestWriteResponse(t *testing.T) {
	c := openFile(t, os.DevNull, PathWrite)
	out, drv := []byte{5, 0, 0, 0}, []byte{1, 2, 3, 4}
	if errno := c.Legacy(abi.IB_USER_VERBS_CMD_ALLOC_PD, make([]byte, 8), out, nil, drv); errno != 0 {
		t.Fatal(errno)
	}
	same(t, out, []byte{5, 0, 0, 0})
	same(t, drv, []byte{1, 2, 3, 4})
}

// TestSetResponse: both parts of the response arrive.
func TestSetResponse(t *testing.T) {
	l := Legacy{Out: make([]byte, 4), DrvOut: make([]byte, 8)}
	l.setResponse([]byte{9, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8})
	same(t, l.Out, []byte{9, 0, 0, 0})
	same(t, l.DrvOut, []byte{1, 2, 3, 4, 5, 6, 7, 8})
}

// answering is a device with another Do.
type answering struct {
	Device
	answer func(c *Command, byWrite bool) syscall.Errno
}

// Do implements [Device].
func (a *answering) Do(c *Command, byWrite bool) syscall.Errno { return a.answer(c, byWrite) }

// TestErrnoOfWrite: EACCES is marked if it came from write().
func TestErrnoOfWrite(t *testing.T) {
	for path, want := range map[Path]syscall.Errno{PathAuto: syscall.EACCES, PathIoctl: syscall.EACCES, PathWrite: ErrnoWriteDenied} {
		c := NewConn(&answering{answer: func(*Command, bool) syscall.Errno { return syscall.EACCES }}, path, "rxe0")
		if errno := deallocPD(c); errno != want {
			t.Errorf("path %d: %v, want %v", path, errno, want)
		}
	}
}

func TestRemoved(t *testing.T) {
	for errno, want := range map[syscall.Errno]bool{0: false, syscall.EINVAL: false, syscall.EIO: true} {
		c := NewConn(&answering{answer: func(*Command, bool) syscall.Errno { return errno }}, PathAuto, "rxe0")
		if got := c.Removed(); got != want {
			t.Errorf("%v: removed is %v, want %v", errno, got, want)
		}
	}
}

// TestEventsClosed: a device that wants to know is told which channel was closed.
func TestEventsClosed(t *testing.T) {
	d := &counting{}
	NewConn(d, PathAuto, "soft0").EventsClosed(7)
	if !slices.Equal(d.closed, []uint32{7}) {
		t.Errorf("the device was told of %v, want 7", d.closed)
	}
	NewConn(&answering{}, PathAuto, "rxe0").EventsClosed(7) // it does not want to know
}

// TestCloseWhileCommanding: a command reaches the device, or fails because it is closed.
func TestCloseWhileCommanding(t *testing.T) {
	for path, allowed := range map[Path][]syscall.Errno{
		PathWrite: {0, ErrnoClosed},
		PathIoctl: {syscall.ENOTTY, ErrnoClosed},
		PathAuto:  {0, ErrnoClosed},
	} {
		for range 20 {
			c := openFile(t, os.DevNull, path)
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() {
					for range 3 {
						if errno := deallocPD(c); !slices.Contains(allowed, errno) {
							t.Errorf("path %d: %v, want one of %v", path, errno, allowed)
						}
					}
				})
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			wg.Wait()
			if errno := deallocPD(c); errno != ErrnoClosed {
				t.Errorf("path %d: %v after Close", path, errno)
			}
		}
	}
}

// slow is a device whose commands end when the test says so.
type slow struct {
	Device
	begun, end chan struct{}
}

// Do implements [Device].
func (s *slow) Do(*Command, bool) syscall.Errno {
	close(s.begun)
	<-s.end
	return 0
}

// Close implements [Device].
func (s *slow) Close() error { return nil }

// TestCommandsWhileClosing: while Close waits for a command, others fail and do not wait.
func TestCommandsWhileClosing(t *testing.T) {
	d := &slow{begun: make(chan struct{}), end: make(chan struct{})}
	c := NewConn(d, PathAuto, "rxe0")
	var calls sync.WaitGroup
	calls.Go(func() {
		if errno := deallocPD(c); errno != 0 {
			t.Errorf("the command that had begun: %v", errno)
		}
	})
	<-d.begun
	calls.Go(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	for c.mu.TryRLock() { // until Close waits
		c.mu.RUnlock()
		runtime.Gosched()
	}
	if errno := deallocPD(c); errno != ErrnoClosed {
		t.Errorf("a command: %v, want ErrnoClosed", errno)
	}
	_, mapErr := c.Map(0, 1)
	_, fileErr := c.File()
	if !errors.Is(mapErr, os.ErrClosed) || !errors.Is(fileErr, os.ErrClosed) {
		t.Errorf("Map: %v, File: %v, want ErrClosed", mapErr, fileErr)
	}
	close(d.end)
	calls.Wait()
}

// TestMap maps the file of a CharDevice.
func TestMap(t *testing.T) {
	fd, err := unix.MemfdCreate("uverbs0", unix.MFD_CLOEXEC)
	must(t, err)
	c := openChar(t, os.NewFile(uintptr(fd), "uverbs0"), PathAuto)
	page := os.Getpagesize()
	must(t, unix.Ftruncate(fd, int64(2*page)))
	r, err := c.Map(uint64(page), page)
	must(t, err)
	defer r.Close()
	r.Bytes()[5] = 7
	again, err := c.MapReadOnly(uint64(page), page)
	must(t, err)
	defer again.Close()
	if again.Bytes()[5] != 7 {
		t.Error("the two mappings are not the same memory")
	}
	if _, err := c.Map(1, page); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("an odd offset: %v, want EINVAL", err)
	}
	must(t, c.Close())
	if _, err := c.Map(0, page); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after Close: %v, want os.ErrClosed", err)
	}
}

// TestEventsRefused: a descriptor that cannot be polled is closed. One of O_PATH has no flags to
// set.
func TestEventsRefused(t *testing.T) {
	c := openFile(t, os.DevNull, PathAuto)
	fd, err := unix.Open(t.TempDir(), unix.O_PATH|unix.O_CLOEXEC, 0)
	must(t, err)
	if f, err := c.Events(uint32(fd), "a path"); f != nil || !errors.Is(err, syscall.EBADF) || !strings.Contains(err.Error(), "a path") {
		t.Errorf("%v, %v, want EBADF", f, err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != unix.EBADF {
		t.Errorf("the descriptor is still open: %v", err)
	}
}

// TestTrace: with RDMADEBUG=level=1 each command is a line on standard error.
func TestTrace(t *testing.T) {
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	level, stderr := traceLevel, os.Stderr
	traceLevel, os.Stderr = func() int { return 1 }, w
	defer func() { traceLevel, os.Stderr = level, stderr }()
	c := NewConn(&answering{answer: func(c *Command, byWrite bool) syscall.Errno {
		switch {
		case byWrite:
			return syscall.ENOMEM
		case c.Object == abi.UVERBS_OBJECT_DEVICE:
			return syscall.ENOTTY
		}
		return 0
	}}, PathAuto, "rxe0")
	c.Do(NewCommand(16, 3))
	deallocPD(c)
	c.Do(NewCommand(abi.UVERBS_OBJECT_QP, abi.UVERBS_METHOD_QP_CREATE))
	w.Close()
	lines, err := io.ReadAll(r)
	want := "uverbs: rxe0: ioctl object 16 method 3: ok\n" +
		"uverbs: rxe0: ioctl INVOKE_WRITE of DEALLOC_PD: inappropriate ioctl for device\n" +
		"uverbs: rxe0: write DEALLOC_PD: cannot allocate memory\n" +
		"uverbs: rxe0: ioctl QP_CREATE: ok\n"
	if diff := cmp.Diff(want, string(lines)); diff != "" || err != nil {
		t.Errorf("%v; trace (-want +got):\n%s", err, diff)
	}
}

// TestWrites: on PathAuto commands that many programs repeat go by write(), with the same bytes as on
// PathWrite and with the address of the response; the ioctl has its turn if write() is not permitted.
func TestWrites(t *testing.T) {
	for number, want := range map[uint32]bool{
		abi.IB_USER_VERBS_CMD_MODIFY_QP: true, abi.IB_USER_VERBS_CMD_REG_MR: true, abi.IB_USER_VERBS_CMD_DEREG_MR: true,
		abi.IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL: true,
		abi.IB_USER_VERBS_CMD_DEALLOC_PD:          false, abi.IB_USER_VERBS_CMD_FLAG_EXTENDED | abi.IB_USER_VERBS_EX_CMD_MODIFY_QP: false,
	} {
		for path := range PathWrite + 1 {
			if c, _ := openPipe(t, path); c.Writes(number) != (want && path == PathAuto) {
				t.Errorf("command %d on path %d: %v", number, path, c.Writes(number))
			}
		}
	}
	c, r := openPipe(t, PathAuto)
	reg, modify := &abi.RegMR{Start: 1, Length: 2, HCAVA: 3, PDHandle: 4, AccessFlags: 5}, &abi.ModifyQP{QPHandle: 6, AttrMask: 7}
	resp := Bytes(&abi.RegMRResp{})
	for _, l := range []Legacy{
		{Number: abi.IB_USER_VERBS_CMD_REG_MR, In: Bytes(reg), Out: resp},
		{Number: abi.IB_USER_VERBS_CMD_MODIFY_QP, In: Bytes(modify)},
	} {
		want := l.Request(0)
		if len(l.Out) > 0 {
			want = l.Request(Addr(l.Out))
		}
		if len(want) > maxWritten {
			t.Fatalf("command %d has %d bytes", l.Number, len(want))
		}
		for i, errno := range []syscall.Errno{c.Legacy(l.Number, l.In, l.Out, nil, nil), c.LegacyBrief(l.Number, l.In, l.Out, true), c.LegacyBrief(l.Number, l.In, l.Out, false)} {
			b := make([]byte, len(want))
			if _, err := io.ReadFull(r, b); err != nil || errno != 0 {
				t.Fatalf("way %d: %v, %v", i, errno, err)
			}
			same(t, b, want)
		}
	}
	null := openFile(t, os.DevNull, PathAuto)
	if n := testing.AllocsPerRun(100, func() {
		dereg := abi.DeregMR{MRHandle: 8}
		null.LegacyBrief(abi.IB_USER_VERBS_CMD_DEREG_MR, Bytes(&dereg), nil, true)
	}); n != 0 {
		t.Errorf("a command without an answer makes %v allocations, want 0", n)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if errno := c.Legacy(abi.IB_USER_VERBS_CMD_MODIFY_QP, Bytes(modify), nil, nil, nil); errno != ErrnoClosed {
		t.Errorf("after Close: %v", errno)
	}
	if errno := c.LegacyBrief(abi.IB_USER_VERBS_CMD_MODIFY_QP, Bytes(modify), nil, true); errno != ErrnoClosed {
		t.Errorf("after Close, brief: %v", errno)
	}

	// A sealed file permits no write(), and knows no ioctl either.
	fd, err := unix.MemfdCreate("uverbs0", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	sealed := openChar(t, os.NewFile(uintptr(fd), "uverbs0"), PathAuto)
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); err != nil {
		t.Fatal(err)
	}
	var seen []string
	stderr, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	level, old := traceLevel, os.Stderr
	traceLevel, os.Stderr = func() int { return 1 }, stderr
	errno := sealed.Legacy(abi.IB_USER_VERBS_CMD_MODIFY_QP, Bytes(modify), nil, nil, nil)
	traceLevel, os.Stderr = level, old
	text, err := os.ReadFile(stderr.Name())
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		seen = append(seen, strings.Fields(line)[2])
	}
	if want := []string{"write", "ioctl"}; errno != syscall.EPERM || !slices.Equal(seen, want) {
		t.Errorf("not permitted: %v, commands by %v, want EPERM and %v\n%s", errno, seen, want, text)
	}
}

// TestWriteRefused: EINVAL may say that write() is refused, as in gVisor, or be the answer to a command.
// Until a write() has succeeded, the ioctl gets each command once, and it decides.
func TestWriteRefused(t *testing.T) {
	const refusing = "/proc/self/oom_score_adj" // takes a number as text, and answers EINVAL to anything else
	for _, x := range []struct {
		name   string
		before int32         // what is known of write()
		ioctl  syscall.Errno // the answer to the ioctl
		want   syscall.Errno
		after  int32
		asked  int // ioctls
	}{
		{"gVisor", writeUnknown, 0, 0, writeRefused, 1},
		{"gVisor, a command that fails otherwise", writeUnknown, syscall.ENOMEM, syscall.ENOMEM, writeRefused, 1},
		{"a wrong command", writeUnknown, syscall.EINVAL, syscall.EINVAL, writeUnknown, 1},
		{"a wrong command, no ioctl", writeUnknown, syscall.ENOTTY, syscall.EINVAL, writeUnknown, 1},
		{"a wrong command, no INVOKE_WRITE", writeUnknown, syscall.EPROTONOSUPPORT, syscall.EINVAL, writeUnknown, 1},
		{"a wrong command, later", writeWorks, 0, syscall.EINVAL, writeWorks, 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			for _, brief := range []bool{false, true} {
				asked := 0
				dev := &answering{answer: func(cmd *Command, byWrite bool) syscall.Errno {
					if l, ok := cmd.Legacy(); !ok || byWrite || l.Number != abi.IB_USER_VERBS_CMD_REG_MR {
						t.Errorf("the device gets object %d, method %d, by write() %v", cmd.Object, cmd.Method, byWrite)
					}
					asked++
					return x.ioctl
				}}
				c := NewConn(dev, PathAuto, "mlx5_0")
				c.write = openFile(t, refusing, PathWrite).dev.(*CharDevice)
				c.written.Store(x.before)
				in, out := Bytes(&abi.RegMR{}), Bytes(&abi.RegMRResp{})
				command := func() syscall.Errno { return c.Legacy(abi.IB_USER_VERBS_CMD_REG_MR, in, out, nil, nil) }
				if brief {
					command = func() syscall.Errno { return c.LegacyBrief(abi.IB_USER_VERBS_CMD_REG_MR, in, out, true) }
				}
				if errno := command(); errno != x.want || asked != x.asked || c.written.Load() != x.after {
					t.Errorf("%v after %d ioctls, write() %d, want %v after %d, %d", errno, asked, c.written.Load(), x.want, x.asked, x.after)
				}
			}
		})
	}
}
