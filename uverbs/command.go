package uverbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/diag"
	"github.com/goverbs/goverbs/uverbs/internal/inproc"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// abiPath is how commands reach the kernel.
type abiPath = kernel.Path

const (
	pathAuto  = kernel.PathAuto
	pathIoctl = kernel.PathIoctl
	pathWrite = kernel.PathWrite
)

// abiPathEnv is the environment variable that forces one path.
const abiPathEnv = "RDMAABI"

// pathFromEnv reads abiPathEnv.
func pathFromEnv() (abiPath, error) {
	switch v := os.Getenv(abiPathEnv); v {
	case "", "auto":
		return pathAuto, nil
	case "ioctl":
		return pathIoctl, nil
	case "write":
		return pathWrite, nil
	default:
		return 0, argErr("Open", "environment variable "+abiPathEnv, fmt.Sprintf("%q", v), `"ioctl", "write", "auto" or unset`)
	}
}

// commands issues the commands of a device and turns an errno into an error. It is safe for
// concurrent use.
type commands struct {
	*kernel.Conn
	device string        // for errors
	driver namedDriver   // likewise
	inproc inproc.Device // nil for a device of the kernel
}

// namedDriver is what an error says of a driver: see [driver].
type namedDriver interface {
	name() string
	refusal() string
}

// newCommands returns the commands of an open device.
func newCommands(dev kernel.Device, path abiPath, device string, drv namedDriver) *commands {
	return &commands{Conn: kernel.NewConn(dev, path, device), device: device, driver: drv}
}

// kernelVersion returns the version of the kernel that carries out the commands, or that a device in
// the process plays. It is zero if it is unknown.
func (c *commands) kernelVersion() Version {
	if c.inproc != nil {
		return c.inproc.Info().Linux
	}
	return runningKernel()
}

// sandbox returns the name of the sandbox that the commands have to pass, or "".
func (c *commands) sandbox() string {
	if c.inproc != nil {
		return ""
	}
	return sandbox()
}

// untranslated returns an error in a sandbox, else nil. It is for what would pass an address or a descriptor of this
// process to the kernel of the host, where it means something else, because gVisor does not translate it.
func (c *commands) untranslated(feature string) error {
	if s := c.sandbox(); s != "" {
		return &FeatureError{Feature: feature, Sandbox: s}
	}
	return nil
}

// older reports whether errno is of a kernel that creates an object by a legacy command only. In a sandbox there is no such
// command, since gVisor translates addresses in those of REG_MR alone.
func (c *commands) older(errno syscall.Errno) bool { return absent(errno) && c.sandbox() == "" }

// ioctl issues a method of the ioctl interface.
func (c *commands) ioctl(cmd *ioctlCommand) syscall.Errno { return c.Do((*kernel.Command)(cmd)) }

// destroy issues a method whose only attribute is the handle of an object.
func (c *commands) destroy(object, method, attr uint16, handle uint32) syscall.Errno {
	cmd := newIoctl(object, method)
	defer cmd.done()
	cmd.obj(attr, handle)
	errno := c.ioctl(cmd)
	if errno == syscall.EINVAL && object < abi.UVERBS_ID_DRIVER_NS && c.sandbox() != "" { // it does not know the method, but may pass on the legacy command
		errno = syscall.EPROTONOSUPPORT
	}
	return errno
}

// legacy issues a command of the write() interface: see [kernel.Conn.Legacy].
func (c *commands) legacy(number uint32, in, out []byte, u udata) syscall.Errno {
	return c.Legacy(number, in, out, u.in, u.out)
}

// writes reports whether the command with the kernel's name at the beginning of verb was issued with write(),
// although the path is not pathWrite.
func (c *commands) writes(verb string) bool {
	number, ok := map[string]uint32{
		"MODIFY_QP": abi.IB_USER_VERBS_CMD_MODIFY_QP, "REG_MR": abi.IB_USER_VERBS_CMD_REG_MR, "DEREG_MR": abi.IB_USER_VERBS_CMD_DEREG_MR,
		"CREATE_COMP_CHANNEL": abi.IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL,
	}[nameOf(verb)]
	return ok && c.Writes(number)
}

// fail returns the error for an errno of a command, or nil for 0.
func (c *commands) fail(verb string, errno syscall.Errno, hint string) error {
	if errno == 0 {
		return nil
	}
	if errno == errClosedFile {
		return fmt.Errorf("uverbs: %s: %s: %w", c.device, verb, os.ErrClosed)
	}
	// Linux 5.10 returns EINVAL, no such object, for an object of a removed device.
	if errno == syscall.EINVAL && c.Removed() {
		errno, hint = syscall.EIO, ""
	}
	err := &Error{Op: verb, Device: c.device, Path: "ioctl", Errno: errno, Hint: hint}
	if c.inproc == nil {
		err.Netns = netns()
	}
	if c.Path() == pathWrite || errno == errWriteDenied || c.writes(verb) {
		err.Path = "write"
	}
	refused := ""
	if !absent(errno) {
		refused = c.driver.refusal()
	}
	switch {
	case kernel.Unsupported(errno), errno == syscall.EINVAL && c.sandbox() != "" && slices.Contains(notOffered, nameOf(verb)):
		return c.missing(verb, err, c.kernelVersion())
	case errno == errWriteDenied:
		err.Errno = syscall.EACCES
		if hint == "" {
			err.Hint = "the kernel refuses write() to a file opened under other credentials; open the device after changing user or group, or set " + abiPathEnv + "=ioctl"
		}
	case refused != "" && hint != "":
		err.Hint = refused + "; " + hint
	case refused != "":
		err.Hint = refused
	case errno == syscall.EMFILE && hint == "":
		err.Hint = (&diag.Registration{Errno: errno}).Hint()
	case errno == syscall.EIO && hint == "":
		err.Hint = "the device has been removed"
	}
	return err
}

// failSince is fail for a method without a legacy command. If the kernel does not know the method,
// the FeatureError has the version since. It does not if RDMAABI=write rules out the ioctl.
func (c *commands) failSince(verb string, errno syscall.Errno, hint string, since Version) error {
	err := c.fail(verb, errno, hint)
	var f *FeatureError
	if absent(errno) && c.Path() != pathWrite && errors.As(err, &f) {
		f.Since = since
	}
	return err
}

const (
	errClosedFile  = kernel.ErrnoClosed      // the device is closed
	errWriteDenied = kernel.ErrnoWriteDenied // EACCES from write()
)

// fastCommand is a legacy command that is issued many times.
type fastCommand = kernel.Repeated

// udata is the driver's own part of a command and of its response.
type udata struct {
	in, out []byte

	// addAttrs adds attributes of the driver that only the ioctl has, or is nil.
	addAttrs func(cmd *ioctlCommand)

	// unsupported is the error of CREATE_CQ if the kernel does not know addAttrs, and that of MODIFY_QP
	// if the kernel answers EOPNOTSUPP because of in; or it is nil.
	unsupported *FeatureError
}

// ioctlCommand is a [kernel.Command] with short names for the kinds of attributes.
type ioctlCommand kernel.Command

// newIoctl starts a command.
func newIoctl(object, method uint16) *ioctlCommand {
	return (*ioctlCommand)(kernel.NewCommand(object, method))
}

// done ends the use of a command and of its attributes, so that a later command can use them.
func (c *ioctlCommand) done() { (*kernel.Command)(c).Done() }

// attr adds a mandatory attribute.
func (c *ioctlCommand) attr(id uint16) *kernel.Attr { return (*kernel.Command)(c).Add(id) }

// obj adds the handle of an object.
func (c *ioctlCommand) obj(id uint16, handle uint32) { c.attr(id).Data = uint64(handle) }

// newObj adds the handle of an object to be created and returns the attribute, whose Data is the
// handle afterwards.
func (c *ioctlCommand) newObj(id uint16) *kernel.Attr { return c.attr(id) }

// fd adds a file descriptor.
func (c *ioctlCommand) fd(id uint16, fd int) *kernel.Attr {
	a := c.attr(id)
	a.Data = uint64(fd)
	return a
}

// u64 and u32 add integers.
func (c *ioctlCommand) u64(id uint16, v uint64) { c.attr(id).SetUint(v, 8) }
func (c *ioctlCommand) u32(id uint16, v uint32) { c.attr(id).SetUint(uint64(v), 4) }

// in and out add input and room for output.
func (c *ioctlCommand) in(id uint16, b []byte)  { c.attr(id).SetIn(b) }
func (c *ioctlCommand) out(id uint16, b []byte) { c.attr(id).SetOut(b) }

// udata adds the driver's part.
func (c *ioctlCommand) udata(u udata) {
	(*kernel.Command)(c).AddDriver(u.in, u.out)
	if u.addAttrs != nil {
		u.addAttrs(c)
	}
}

// bytesOf returns the memory of a command struct, sliceBytes that of a slice of them.
func bytesOf[T any](p *T) []byte     { return kernel.Bytes(p) }
func sliceBytes[T any](s []T) []byte { return kernel.SliceBytes(s) }

// addrOf returns the address of a buffer's first byte. The caller must keep b alive and in place:
// outside the Go heap, or pinned.
func addrOf(b []byte) uint64 { return kernel.Addr(b) }

// errnoOf returns the errno inside an error.
func errnoOf(err error) syscall.Errno {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return 0
}

// exCommand is the flag of extended commands.
const exCommand = abi.IB_USER_VERBS_CMD_FLAG_EXTENDED

// missing returns the error for a verb that the kernel reports as unknown or not supported. It says
// whether the kernel or the driver does not support it.
func (c *commands) missing(verb string, err *Error, running Version) *FeatureError {
	name := nameOf(verb)
	f := &FeatureError{Feature: name, Err: err}
	driver := c.driver.name()
	known := features()[name]
	switch {
	case c.sandbox() != "" && err.Errno != syscall.EOPNOTSUPP:
		if f.Sandbox, err.Hint = c.sandbox(), ""; c.Path() == pathWrite {
			err.Hint = "it refuses write(), which " + abiPathEnv + "=write asks for"
		}
	case !absent(err.Errno):
		f.Driver = driver
	case err.Errno == syscall.ENOTTY && c.Path() == pathWrite:
		// Neither kernel nor driver refused it, so no version would help.
		if err.Hint == "" {
			err.Hint = "the command needs the ioctl interface, which " + abiPathEnv + "=write rules out"
		}
	case err.Errno == syscall.EPROTONOSUPPORT && known.hidden && slices.Compare(running[:], known.since[:]) >= 0:
		f.Driver = driver
	default:
		f.Since = known.since
	}
	return f
}

// le32 and le64 read the little-endian words of a response buffer.
func le32(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }
func le64(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }
