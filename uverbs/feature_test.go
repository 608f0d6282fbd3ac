package uverbs

import (
	"errors"
	"strings"
	"syscall"
	"testing"

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

// TestSandbox: in gVisor EINVAL says that a command is not offered, unless gVisor passes the command on.
func TestSandbox(t *testing.T) {
	inSandbox(t)
	for _, c := range []struct {
		verb  string
		errno syscall.Errno
		text  string
	}{
		{"CREATE_SRQ", syscall.EINVAL, "uverbs: CREATE_SRQ not supported by the sandbox gVisor: rxe0: CREATE_SRQ: invalid argument"},
		{"RESIZE_CQ", syscall.EFAULT, "uverbs: RESIZE_CQ not supported by the sandbox gVisor: rxe0: RESIZE_CQ: bad address"},
		{"QUERY_PORT_SPEED", syscall.EPROTONOSUPPORT, "uverbs: QUERY_PORT_SPEED not supported by the sandbox gVisor: rxe0: QUERY_PORT_SPEED: protocol not supported: a guess"},
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
	for _, c := range []struct {
		inproc bool
		want   bool
	}{{false, true}, {true, false}} {
		d, k := fakeDevice(t, pathAuto)
		if c.inproc {
			d.cmd.inproc = inprocFake{}
		}
		calls := len(k.calls)
		_, err := d.CreateCompChannel()
		var f *FeatureError
		if got := errors.As(err, &f) && f.Sandbox == "gVisor"; got != c.want || (len(k.calls) == calls) != c.want {
			t.Errorf("in process %v: CreateCompChannel returns %v after %d commands", c.inproc, err, len(k.calls)-calls)
		}
	}
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
}
