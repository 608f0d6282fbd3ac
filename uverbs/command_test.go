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

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// pipeFile returns a command file over a pipe, which takes write() and knows no ioctl
// (ENOTTY), like a kernel without the ioctl interface; and the pipe's other end.
func pipeFile(t testing.TB, path abiPath) (*commandFile, *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	c, err := newCommandFile(w, path, abi.RDMA_DRIVER_RXE, "rxe0")
	if err != nil {
		t.Fatal(err)
	}
	return c, r
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

// TestWriteCommand lays out ALLOC_PD with four bytes of a driver's data each way
// (struct ib_uverbs_cmd_hdr: sizes in words of 4 bytes, in_words with the header).
func TestWriteCommand(t *testing.T) {
	req, resp := &abi.AllocPD{}, &abi.AllocPDResp{}
	w := newWriteCommand(abi.IB_USER_VERBS_CMD_ALLOC_PD, bytesOf(req), bytesOf(resp), udata{in: []byte{1, 2, 3, 4}, out: make([]byte, 8)})
	defer w.pin.Unpin()
	compare(t, w.wire, []word{
		{"command", 4, 3},
		{"in_words", 2, (8 + 8 + 4) / 4},
		{"out_words", 2, (4 + 8) / 4},
		{"response", 8, addrOf(w.resp)},
		{"driver data", 4, 0x04030201},
	})
	if len(w.resp) != 12 {
		t.Errorf("the response has %d bytes, want 12", len(w.resp))
	}
	copy(w.resp, []byte{9, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8})
	drv := make([]byte, 8)
	w.copyOut(bytesOf(resp), udata{out: drv})
	if resp.PDHandle != 9 || drv[0] != 1 || drv[7] != 8 {
		t.Errorf("the response is split into %+v and %v", resp, drv)
	}
}

// TestWriteCommandUnwritten: what a kernel does not write of a response is as the caller left it.
func TestWriteCommandUnwritten(t *testing.T) {
	resp, drv := &abi.AllocPDResp{PDHandle: 5}, []byte{1, 2, 3, 4}
	w := newWriteCommand(abi.IB_USER_VERBS_CMD_ALLOC_PD, bytesOf(&abi.AllocPD{}), bytesOf(resp), udata{out: drv})
	defer w.pin.Unpin()
	w.copyOut(bytesOf(resp), udata{out: drv})
	if resp.PDHandle != 5 || !cmp.Equal(drv, []byte{1, 2, 3, 4}) {
		t.Errorf("the response is %+v and %v", resp, drv)
	}
}

// TestWriteCommandNoResponse: a command without a response starts with its own field.
func TestWriteCommandNoResponse(t *testing.T) {
	req := &abi.DeallocPD{PDHandle: 77}
	w := newWriteCommand(abi.IB_USER_VERBS_CMD_DEALLOC_PD, bytesOf(req), nil, udata{})
	compare(t, w.wire, []word{{"command", 4, 4}, {"in_words", 2, 3}, {"out_words", 2, 0}, {"pd_handle", 4, 77}})
}

// TestWriteCommandExtended lays out QUERY_DEVICE (struct ib_uverbs_ex_cmd_hdr: sizes in
// words of 8 bytes, without the headers and without what the driver's counts cover, as
// _execute_cmd_write_ex of libibverbs/cmd_fallback.c has it).
func TestWriteCommandExtended(t *testing.T) {
	req, resp := &abi.ExQueryDevice{CompMask: 5}, &abi.ExQueryDeviceResp{}
	w := newWriteCommand(abi.IB_USER_VERBS_EX_CMD_QUERY_DEVICE|abi.IB_USER_VERBS_CMD_FLAG_EXTENDED,
		bytesOf(req), bytesOf(resp), udata{in: make([]byte, 16), out: make([]byte, 8)})
	defer w.pin.Unpin()
	compare(t, w.wire, []word{
		{"command", 4, 0x80000001},
		{"in_words", 2, 1},
		{"out_words", 2, uint64(len(bytesOf(resp)) / 8)},
		{"response", 8, addrOf(w.resp)},
		{"provider_in_words", 2, 2},
		{"provider_out_words", 2, 1},
		{"reserved", 4, 0},
		{"comp_mask", 4, 5},
		{"reserved", 4, 0},
		{"driver data", 8, 0},
		{"driver data", 8, 0},
	})
}

// TestIoctlCommand lays out INVOKE_WRITE (struct ib_uverbs_ioctl_hdr and ib_uverbs_attr).
func TestIoctlCommand(t *testing.T) {
	req, resp := &abi.DeallocPD{PDHandle: 77}, &abi.DestroyCQResp{}
	c := invokeWrite(4, bytesOf(req), bytesOf(resp), udata{in: make([]byte, 9)})
	defer c.pin.Unpin()
	c.finish(14)
	compare(t, bytesOf(&c.wire)[:24+4*16], []word{
		{"length", 2, 24 + 4*16},
		{"object", 2, abi.UVERBS_OBJECT_DEVICE},
		{"method", 2, abi.UVERBS_METHOD_INVOKE_WRITE},
		{"num_attrs", 2, 4},
		{"reserved", 8, 0},
		{"driver_id", 4, 14},
		{"reserved", 4, 0},

		{"id", 2, abi.UVERBS_ATTR_CORE_IN}, {"len", 2, 4}, {"flags", 2, 1}, {"enum", 2, 0}, {"inline data", 8, 77},
		{"id", 2, abi.UVERBS_ATTR_CORE_OUT}, {"len", 2, 8}, {"flags", 2, 1}, {"enum", 2, 0}, {"address", 8, addrOf(bytesOf(resp))},
		{"id", 2, abi.UVERBS_ATTR_WRITE_CMD}, {"len", 2, 8}, {"flags", 2, 1}, {"enum", 2, 0}, {"inline data", 8, 4},
		{"id", 2, abi.UVERBS_ATTR_UHW_IN}, {"len", 2, 9}, {"flags", 2, 1}, {"enum", 2, 0}, {"address", 8, anyValue},
	})
}

// TestAttrs covers the other kinds of attributes.
func TestAttrs(t *testing.T) {
	c := newIoctl(1, 2)
	c.obj(10, 0xfffffffe)
	c.newObj(11)
	c.fd(12, 5)
	c.u32(13, 0x80000001)
	c.in(14, []byte{1, 2, 3, 4, 5, 6, 7, 8})
	c.finish(0)
	compare(t, bytesOf(&c.wire)[24:24+5*16], []word{
		{"id", 2, 10}, {"len", 2, 0}, {"flags", 2, 1}, {"enum", 2, 0}, {"handle", 8, 0xfffffffe},
		{"id", 2, 11}, {"len", 2, 0}, {"flags", 2, 1}, {"enum", 2, 0}, {"new handle", 8, 0},
		{"id", 2, 12}, {"len", 2, 0}, {"flags", 2, 1}, {"enum", 2, 0}, {"fd", 8, 5},
		{"id", 2, 13}, {"len", 2, 4}, {"flags", 2, 1}, {"enum", 2, 0}, {"u32", 8, 0x80000001},
		{"id", 2, 14}, {"len", 2, 8}, {"flags", 2, 1}, {"enum", 2, 0}, {"eight bytes", 8, 0x0807060504030201},
	})
}

// TestPaths: auto falls back to write() where there is no ioctl, ioctl does not, and
// write does not try the ioctl.
func TestPaths(t *testing.T) {
	for _, path := range []abiPath{pathAuto, pathWrite} {
		c, r := pipeFile(t, path)
		req := &abi.DeallocPD{PDHandle: 77}
		if errno := c.legacy(abi.IB_USER_VERBS_CMD_DEALLOC_PD, bytesOf(req), nil, udata{}); errno != 0 {
			t.Fatalf("path %d: %v", path, errno)
		}
		var b [12]byte
		if _, err := io.ReadFull(r, b[:]); err != nil || b[0] != 4 || b[8] != 77 {
			t.Errorf("path %d: %v written, %v", path, b, err)
		}
	}
	c, _ := pipeFile(t, pathIoctl)
	if errno := c.legacy(4, make([]byte, 4), nil, udata{}); errno != syscall.ENOTTY {
		t.Errorf("ioctl only: %v, want ENOTTY", errno)
	}
}

// newFastCommand makes a fastCommand by itself.
func newFastCommand(c *commandFile, cmd uint32, in, out []byte) *fastCommand {
	f := new(fastCommand)
	f.init(c, cmd, in, out)
	return f
}

// TestFastCommand: the same bytes go out each time, without an allocation; by ioctl
// alone nothing is written.
func TestFastCommand(t *testing.T) {
	c, r := pipeFile(t, pathAuto)
	f := newFastCommand(c, abi.IB_USER_VERBS_CMD_REQ_NOTIFY_CQ, bytesOf(&abi.ReqNotifyCQ{CQHandle: 3, SolicitedOnly: 1}), nil)
	var b [16]byte
	for i, long := range []bool{false, true, false} {
		if errno := f.issue(long); errno != 0 {
			t.Fatal(errno)
		}
		if _, err := io.ReadFull(r, b[:]); err != nil {
			t.Fatal(err)
		}
		if want := [16]byte{0: 23, 4: 4, 8: 3, 12: 1}; b != want {
			t.Errorf("issue %d wrote %v, want %v", i, b, want)
		}
	}
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if c, err = newCommandFile(null, pathAuto, 14, "null"); err != nil {
		t.Fatal(err)
	}
	f = newFastCommand(c, 23, make([]byte, 8), nil)
	if n := testing.AllocsPerRun(100, func() { f.issue(false); f.issue(true) }); n != 0 {
		t.Errorf("issuing makes %v allocations, want 0", n)
	}
	c, _ = pipeFile(t, pathIoctl)
	if errno := newFastCommand(c, 23, make([]byte, 8), nil).issue(false); errno != syscall.ENOTTY {
		t.Errorf("ioctl only: %v, want ENOTTY", errno)
	}
}

// TestFastCommandResponse: the kernel gets the address of the room behind the command.
func TestFastCommandResponse(t *testing.T) {
	c, _ := pipeFile(t, pathAuto)
	f := newFastCommand(c, abi.IB_USER_VERBS_CMD_POST_SEND, bytesOf(&abi.PostSend{}), bytesOf(&abi.PostSendResp{}))
	hot = f // on the heap, as the QPs are that have one
	room := f.buf[f.size:]
	if got := binary.LittleEndian.Uint64(f.wire()[8:]); got != addrOf(room) || len(room) < len(bytesOf(&abi.PostSendResp{})) {
		t.Errorf("the response goes to %#x, %d bytes are at %#x", got, len(room), addrOf(room))
	}
}

// hot keeps a command.
var hot *fastCommand

// TestFastCommandRefused: where write() is refused, the ioctl is tried, and the refusal
// is what the caller learns if there is no ioctl either.
func TestFastCommandRefused(t *testing.T) {
	c, _ := pipeFile(t, pathAuto)
	f := newFastCommand(c, 23, make([]byte, 8), nil)
	for refused, want := range map[syscall.Errno]syscall.Errno{
		syscall.EACCES: errWriteDenied,
		syscall.EINVAL: syscall.EINVAL,
	} {
		if errno := f.retry(refused); errno != want || f.useIoctl {
			t.Errorf("after %v: %v and ioctl %v, want %v", refused, errno, f.useIoctl, want)
		}
	}
}

// TestFastCommandTakenOver: where write() is refused and the ioctl is there, it is the
// ioctl from then on. /dev/urandom has no ENOTTY: it says EINVAL to every ioctl.
func TestFastCommandTakenOver(t *testing.T) {
	random := value(os.OpenFile("/dev/urandom", os.O_RDWR, 0))(t)
	defer random.Close()
	for _, path := range []abiPath{pathAuto, pathWrite} {
		c, err := newCommandFile(random, path, 14, "random")
		must(t, err)
		f := newFastCommand(c, 23, make([]byte, 8), nil)
		if errno := f.issue(false); errno != 0 || f.useIoctl {
			t.Fatalf("write() is not the first choice: %v", errno)
		}
		if errno := f.retry(syscall.EINTR); errno != 0 || f.useIoctl {
			t.Errorf("path %d: a write() that was interrupted is not repeated: %v", path, errno)
		}
		want := map[abiPath]syscall.Errno{pathAuto: syscall.EINVAL, pathWrite: syscall.EPERM}[path]
		if errno := f.retry(syscall.EPERM); errno != want || f.useIoctl != (path == pathAuto) {
			t.Errorf("path %d: %v and ioctl %v, want %v", path, errno, f.useIoctl, want)
		}
		for _, long := range []bool{false, true} {
			if errno := f.issue(long); (errno == syscall.EINVAL) != f.useIoctl {
				t.Errorf("path %d, ioctl %v: issued with %v", path, f.useIoctl, errno)
			}
		}
	}
}

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
	c := &commandFile{device: "rxe0"}
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
	if err := c.fail("POST_SEND", errClosedFile, ""); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a closed file gives %v, want os.ErrClosed", err)
	}
}

// TestClosedFile: a command on a closed device says so.
func TestClosedFile(t *testing.T) {
	c, _ := pipeFile(t, pathAuto)
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	errno := c.legacy(4, make([]byte, 4), nil, udata{})
	if err := c.fail("DEALLOC_PD", errno, ""); !errors.Is(err, os.ErrClosed) {
		t.Errorf("error is %v, want os.ErrClosed", err)
	}
}

func TestErrorTexts(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{argErr("CreateCQ", "cqe", 70000, "1 to %d (max_cqe of %s)", 32767, "rxe0"), "uverbs: CreateCQ: cqe is 70000, allowed: 1 to 32767 (max_cqe of rxe0)"},
		{&PostError{Index: 3, Err: ErrTooManySGE}, "uverbs: post: work request 3: too many SGEs for this QP"},
		{&FeatureError{Feature: "dm", Since: Version{5, 12}}, "uverbs: dm is not supported by this kernel (Linux has it since 5.12)"},
		{&FeatureError{Feature: "dm", Driver: "rxe"}, "uverbs: dm is not supported by driver rxe"},
		{&DeviceError{Name: "x", Devices: []DeviceInfo{{Name: "rxe0"}, {Name: "rxe1", Err: io.EOF}}, Err: ErrNoDevice},
			"uverbs: open x: no usable RDMA device; devices here: rxe0, rxe1 (cannot be used: EOF)"},
		{&WCError{WC: WC{ID: 5, QPN: 17, Status: WCRetryExcErr, VendorErr: 0x81}, Device: "rxe0", Peer: Endpoint{QPN: 18, GID: GID{10: 0xff, 11: 0xff, 12: 10, 15: 1}}, Hint: "gone"},
			"uverbs: rxe0 QP 17: work request 5, peer 10.0.0.1 QP 18: transport retry counter exceeded (vendor error 0x81): gone"},
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
	feature, since := (&FeatureError{Feature: "dm", Since: Version{5, 12}}).Unsupported()
	if feature != "dm" || since != [2]int{5, 12} {
		t.Errorf("Unsupported tells %s, %v", feature, since)
	}
	if _, since := (&FeatureError{Driver: "rxe", Since: Version{5, 12}}).Unsupported(); since != [2]int{} {
		t.Errorf("a driver's lack has a kernel version, %v", since)
	}
}
