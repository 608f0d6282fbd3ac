package uverbs

import (
	"errors"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/inproc"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

func TestParseRelease(t *testing.T) {
	for release, want := range map[string]Version{
		"5.10.0-46-amd64": {5, 10}, "6.12.117+deb13-amd64": {6, 12}, "7.2.13+deb14": {7, 2}, "6.1": {6, 1}, "": {}, "linux": {}, "6": {},
	} {
		if got := parseRelease(release); got != want {
			t.Errorf("%q is %v, want %v", release, got, want)
		}
	}
	if v := runningKernel(); v[0] < 3 {
		t.Errorf("this kernel is %v", v)
	}
}

// TestMissing: whether the kernel or the driver does not support a verb depends on the errno, the
// verb, the kernel and the interface of the command.
func TestMissing(t *testing.T) {
	for _, c := range []struct {
		name    string
		path    abiPath
		verb    string
		errno   syscall.Errno
		running Version
		want    FeatureError // Err is not compared
		text    string       // part of the error's text
	}{
		{"older kernel", pathAuto, "REG_DMABUF_MR", syscall.EPROTONOSUPPORT, Version{5, 10}, FeatureError{Feature: "REG_DMABUF_MR", Since: Version{5, 12}}, "needs Linux 5.12"},
		{"lost method", pathAuto, "REG_DMABUF_MR", syscall.EPROTONOSUPPORT, Version{6, 1}, FeatureError{Feature: "REG_DMABUF_MR", Since: Version{5, 12}}, "5.12"},
		{"driver", pathAuto, "REG_DMABUF_MR", syscall.EOPNOTSUPP, Version{6, 1}, FeatureError{Feature: "REG_DMABUF_MR", Driver: "rxe"}, "by driver rxe"},
		{"hidden, older kernel", pathAuto, "ALLOC_DMAH", syscall.EPROTONOSUPPORT, Version{6, 12}, FeatureError{Feature: "ALLOC_DMAH", Since: Version{6, 17}}, "6.17"},
		{"hidden, first kernel", pathAuto, "ALLOC_DMAH", syscall.EPROTONOSUPPORT, Version{6, 17}, FeatureError{Feature: "ALLOC_DMAH", Driver: "rxe"}, "by driver rxe"},
		{"hidden always", pathIoctl, "ALLOC_DM", syscall.EPROTONOSUPPORT, Version{5, 10}, FeatureError{Feature: "ALLOC_DM", Driver: "rxe"}, "by driver rxe"},
		{"no ioctl", pathAuto, "ALLOC_DM", syscall.ENOTTY, Version{5, 10}, FeatureError{Feature: "ALLOC_DM"}, "not supported without ioctl"},
		{"ioctl ruled out", pathWrite, "REG_DMABUF_MR", syscall.ENOTTY, Version{6, 1}, FeatureError{Feature: "REG_DMABUF_MR"}, "RDMAABI=write rules out"},
		{"unknown verb", pathAuto, "DANCE", syscall.EPROTONOSUPPORT, Version{6, 1}, FeatureError{Feature: "DANCE"}, "by this kernel"},
		{"suffix", pathAuto, "MODIFY_QP INIT to RTR", syscall.ENOSYS, Version{6, 1}, FeatureError{Feature: "MODIFY_QP", Driver: "rxe"}, "MODIFY_QP INIT to RTR: function not implemented"},
		{"suffix of a new verb", pathAuto, "QUERY_PORT_SPEED of 1", syscall.EPROTONOSUPPORT, Version{6, 1}, FeatureError{Feature: "QUERY_PORT_SPEED", Since: Version{7, 0}}, "7.0"},
	} {
		f := newCommands(nil, c.path, "rxe0", rxeDriver{})
		got := f.missing(c.verb, &Error{Op: c.verb, Device: "rxe0", Errno: c.errno}, c.running)
		if !errors.Is(got, c.errno) || !strings.Contains(got.Error(), c.text) {
			t.Errorf("%s: text is %q, want %q in it", c.name, got, c.text)
		}
		if got.Err = nil; *got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, *got, c.want)
		}
	}
}

// TestFailSince: the version comes along from the place where errno gets its meaning.
func TestFailSince(t *testing.T) {
	c := newCommands(nil, pathAuto, "rxe0", rxeDriver{})
	var f *FeatureError
	if err := c.fail("REG_DMABUF_MR", syscall.EPROTONOSUPPORT, ""); !errors.As(err, &f) {
		t.Fatalf("error is %v", err)
	}
	if f.Feature != "REG_DMABUF_MR" || f.Since != (Version{5, 12}) || f.Driver != "" {
		t.Errorf("%+v", f)
	}
}

// TestWriteDenied: EACCES of write() carries the hint, that of INVOKE_WRITE does not.
func TestWriteDenied(t *testing.T) {
	for path, hint := range map[abiPath]bool{pathAuto: false, pathIoctl: false, pathWrite: true} {
		d, k := fakeDevice(t, path)
		k.refuse["ALLOC_PD"] = syscall.EACCES
		if _, err := d.AllocPD(); !errors.Is(err, syscall.EACCES) || strings.Contains(err.Error(), "credentials") != hint {
			t.Errorf("path %d: %v, hint wanted: %v", path, err, hint)
		}
	}
}

// inSandbox has devices of the kernel be in gVisor until the test ends.
func inSandbox(t *testing.T) {
	before := sandbox
	t.Cleanup(func() { sandbox = before })
	sandbox = func() string { return "gVisor" }
}

// TestSandbox: in gVisor EINVAL says that a command is not offered, if gVisor does not pass the command on.
func TestSandbox(t *testing.T) {
	inSandbox(t)
	for _, c := range []struct {
		verb  string
		errno syscall.Errno
		text  string
	}{
		{"CREATE_SRQ", syscall.EINVAL, "uverbs: CREATE_SRQ not supported by the sandbox gVisor: rxe0: CREATE_SRQ: invalid argument"},
		{"QUERY_PORT_SPEED", syscall.EPROTONOSUPPORT, "uverbs: QUERY_PORT_SPEED not supported by the sandbox gVisor: rxe0: QUERY_PORT_SPEED: protocol not supported"},
		{"ADVISE_MR", syscall.EFAULT, "uverbs: rxe0: ADVISE_MR: bad address: a guess"},
		{"DETACH_MCAST", syscall.EINVAL, "uverbs: rxe0: DETACH_MCAST: invalid argument: a guess"},
		{"REREG_MR", syscall.EINVAL, "uverbs: rxe0: REREG_MR: invalid argument: a guess"},
		{"REREG_MR", syscall.EFAULT, "uverbs: rxe0: REREG_MR: bad address: a guess"},
		{"REG_DMABUF_MR", syscall.EBADF, "uverbs: rxe0: REG_DMABUF_MR: bad file descriptor: a guess"},
		{"ALLOC_MW", syscall.EOPNOTSUPP, "uverbs: ALLOC_MW not supported by driver rxe: rxe0: ALLOC_MW: operation not supported: a guess"},
		{"MODIFY_QP INIT to RTR", syscall.EINVAL, "uverbs: rxe0: MODIFY_QP INIT to RTR: invalid argument: a guess"},
		{"CREATE_SRQ", syscall.ENOMEM, "uverbs: rxe0: CREATE_SRQ: cannot allocate memory: a guess"},
	} {
		d, _ := fakeDevice(t, pathIoctl)
		err := d.cmd.fail(c.verb, c.errno, "a guess")
		var e *Error
		if !errors.As(err, &e) {
			t.Fatalf("%s: %v has no *Error", c.verb, err)
		}
		e.Netns = ""
		if err.Error() != c.text || !errors.Is(err, c.errno) || errors.Is(err, errors.ErrUnsupported) != strings.Contains(c.text, "not supported by") {
			t.Errorf("%s: %q, want %q", c.verb, err, c.text)
		}
	}
}

// TestSandboxAddresses: in gVisor no command carries an address or a descriptor of this process that gVisor does not
// translate. A device in the process gets such commands.
func TestSandboxAddresses(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	d.attr.ODPGeneralCaps = abi.IB_UVERBS_ODP_SUPPORT | abi.IB_UVERBS_ODP_SUPPORT_IMPLICIT
	pd := value(d.AllocPD())(t)
	cq := value(d.CreateCQ(CQOptions{Size: 10}))(t)
	first, second := value(AllocBuffer(4096, BufferOptions{}))(t), value(AllocBuffer(4096, BufferOptions{}))(t)
	mr := value(pd.RegMR(first, MROptions{Access: AccessLocalWrite}))(t)
	file := value(os.Open(t.TempDir()))(t)
	defer file.Close()
	raw := func() error {
		_, err := mlx5Driver{}.prepareQP(&QP{object: object{dev: d}}, &qpSpec{QPOptions: QPOptions{Type: ib.RawPacket}})
		return err
	}
	d.mlx5 = &mlx5Context{}
	inSandbox(t)
	for _, c := range []struct {
		feature string
		call    func() error
		others  bool // a device in the process gets a command
	}{
		{"CREATE_COMP_CHANNEL", func() error { _, err := d.CreateCompChannel(); return err }, true},
		{"RESIZE_CQ", func() error { return cq.Resize(20) }, true},
		{"OPEN_XRCD with a file", func() error { _, err := d.OpenXRCD(XRCDOptions{File: file, Flags: os.O_CREATE}); return err }, true},
		{"implicit on-demand paging", func() error { _, err := pd.RegImplicit(0); return err }, true},
		{"REREG_MR with new memory", func() error { return mr.Rereg(ReregOptions{Buffer: second}) }, true},
		{"CREATE_QP for raw packets", raw, false}, // it is prepared only
	} {
		d.cmd.inproc = nil
		k.took()
		var f *FeatureError
		if err := c.call(); !errors.As(err, &f) || f.Feature != c.feature || f.Sandbox != "gVisor" || f.Err != nil {
			t.Errorf("%s: %v", c.feature, err)
		}
		if took := k.took(); len(took) > 0 {
			t.Errorf("%s: the kernel gets %q", c.feature, took)
		}
		d.cmd.inproc = inprocFake{}
		_ = c.call() // whether it works is not the point
		if took := k.took(); c.others != (len(took) > 0) {
			t.Errorf("%s in the process: the device gets %q", c.feature, took)
		}
	}
}

// TestSandboxOlder: if the kernel of the host does not know the method that creates an object, no legacy command follows in
// gVisor, which would pass its addresses and descriptors on as they are.
func TestSandboxOlder(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	pd := value(d.AllocPD())(t)
	cq := value(d.CreateCQ(CQOptions{Size: 10}))(t)
	inSandbox(t)
	for _, c := range []struct {
		verb   string
		create func() error
	}{
		{"CREATE_CQ", func() error { _, err := d.CreateCQ(CQOptions{Size: 10}); return err }},
		{"CREATE_QP", func() error { _, err := pd.CreateQP(QPOptions{SendCQ: cq, RecvCQ: cq}); return err }},
		{"CREATE_SRQ", func() error { _, err := pd.CreateSRQ(SRQOptions{}); return err }},
		{"CREATE_WQ", func() error { _, err := pd.CreateWQ(WQOptions{CQ: cq}); return err }},
		{"GET_CONTEXT", func() error { return d.getContext(devxOff) }},
	} {
		k.refuse[c.verb] = syscall.EPROTONOSUPPORT
		k.took()
		var f *FeatureError
		if err := c.create(); !errors.As(err, &f) || f.Feature != c.verb || f.Sandbox != "gVisor" {
			t.Errorf("%s: %v", c.verb, err)
		}
		if took := k.took(); !slices.Equal(took, []string{"ioctl " + c.verb}) {
			t.Errorf("%s: the kernel gets %q", c.verb, took)
		}
	}
}

// TestSandboxWrite: gVisor refuses write(), so a program that asks for nothing else learns why it gets no device.
func TestSandboxWrite(t *testing.T) {
	inSandbox(t)
	const want = "uverbs: GET_CONTEXT not supported by the sandbox gVisor: rxe0: GET_CONTEXT by write(): "
	_, k, err := openFake(t, pathWrite, func(*fakeKernel) {})
	if err == nil || !strings.HasPrefix(err.Error(), want) || !strings.Contains(err.Error(), "it refuses write(), which RDMAABI=write asks for") {
		t.Errorf("%v", err)
	}
	if took := k.took(); len(took) > 0 {
		t.Errorf("the kernel gets %q", took)
	}
}

// TestSandboxEvents: the files of events that gVisor passes on cannot be waited for. EAGAIN of another file is an error of it.
func TestSandboxEvents(t *testing.T) {
	r, w, err := os.Pipe()
	must(t, err)
	defer w.Close()
	defer r.Close()
	d, _ := fakeDevice(t, pathAuto)
	must(t, d.async.Close())
	fd := value(unix.Dup(int(r.Fd())))(t) // Fd makes it wait in read(), so package os does not wait for it
	d.async = os.NewFile(uintptr(fd), "events")
	must(t, unix.SetNonblock(fd, true))
	wait := func(inside bool) {
		t.Helper()
		var f *FeatureError
		_, err := waitEvent(t, d)
		if !errors.Is(err, syscall.EAGAIN) || errors.As(err, &f) != inside || inside && (f.Feature != "ASYNC_EVENT" || f.Sandbox != "gVisor") {
			t.Errorf("in a sandbox %v: %v", inside, err)
		}
	}
	wait(false)
	inSandbox(t)
	wait(true)
}

// inprocFake is a device in the process.
type inprocFake struct{ inproc.Device }

// Info implements [inproc.Device].
func (inprocFake) Info() inproc.Info { return inproc.Info{Linux: Version{6, 1}} }

// knowsNothing is a device that answers EINVAL to every method.
type knowsNothing struct{ kernel.Device }

// Do implements [kernel.Device].
func (knowsNothing) Do(*kernel.Command, bool) syscall.Errno { return syscall.EINVAL }

// TestSandboxDestroy: a sandbox that does not know a method is treated as a kernel without it, so the legacy command follows.
func TestSandboxDestroy(t *testing.T) {
	c := newCommands(knowsNothing{}, pathAuto, "mlx5_0", rxeDriver{})
	destroy := func() syscall.Errno {
		return c.destroy(abi.UVERBS_OBJECT_MW, abi.UVERBS_METHOD_MW_DESTROY, abi.UVERBS_ATTR_DESTROY_MW_HANDLE, 1)
	}
	if errno := destroy(); errno != syscall.EINVAL {
		t.Errorf("without a sandbox: %v", errno)
	}
	inSandbox(t)
	if errno := destroy(); !absent(errno) {
		t.Errorf("in a sandbox: %v", errno)
	}
	if errno := c.destroy(mlx5.ObjectUAR, mlx5.MethodUARDestroy, mlx5.AttrUARDestroy, 1); errno != syscall.EINVAL { // gVisor knows it
		t.Errorf("UAR: %v", errno)
	}
}
