package netlinkrdma

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/goverbs/goverbs/netlinkrdma/internal/abi"
)

// Version is a mainline kernel version, such as {6, 12}; the zero value means unknown.
type Version [2]int

// String returns the version in the usual form, "6.12".
func (v Version) String() string {
	if v == (Version{}) {
		return "unknown"
	}
	return fmt.Sprintf("%d.%d", v[0], v[1])
}

// FeatureError reports a feature that the kernel or the driver does not support. Packages
// netlinkrdma, uverbs and cm return it as a *FeatureError. It matches [errors.ErrUnsupported].
type FeatureError struct {
	Feature string  // Feature is the name used in the documentation.
	Since   Version // Since is the first mainline kernel that supports it; zero if unknown.
	Driver  string  // Driver is the driver that does not support it; empty if it is the kernel.
	Sandbox string  // Sandbox is the sandbox that does not offer it, as [Sandbox] returns it; else empty.
	Err     error   // Err is the kernel's answer, normally an *Error of the package; may be nil.

	pkg string // the package in the text; empty means uverbs
}

// Error returns one line with everything that is known.
func (e *FeatureError) Error() string {
	pkg := cmp.Or(e.pkg, "uverbs") + ": "
	text := pkg + e.Feature + " not supported"
	switch {
	case e.Sandbox != "":
		text += " by the sandbox " + e.Sandbox
	case e.Driver != "":
		text += " by driver " + e.Driver
	case e.Since != Version{}:
		text += fmt.Sprintf(" by this kernel (needs Linux %s)", e.Since)
	case errors.Is(e.Err, syscall.ENOTTY):
		text += " without ioctl"
	default:
		text += " by this kernel"
	}
	if e.Err != nil {
		text += ": " + strings.TrimPrefix(e.Err.Error(), pkg)
	}
	return text
}

// Is reports whether target is [errors.ErrUnsupported].
func (e *FeatureError) Is(target error) bool { return target == errors.ErrUnsupported }

// Unwrap returns the kernel's answer.
func (e *FeatureError) Unwrap() error { return e.Err }

// feature is a feature that a command needs. The zero value is for commands that every supported
// kernel and driver has.
type feature struct {
	name   string
	since  Version // zero if the driver decides
	einval bool    // if a driver does not support it, the kernel fails with EINVAL, as an old kernel always does
}

// missing returns the FeatureError for f.
func (f feature) missing(dev Device, err error) error {
	if s := sandbox(); s != "" {
		return &FeatureError{Feature: f.name, Sandbox: s, Err: err, pkg: "netlinkrdma"}
	}
	e := &FeatureError{Feature: f.name, Since: f.since, Err: err, pkg: "netlinkrdma"}
	if e.Since == (Version{}) {
		e.Driver = dev.DriverID.String()
	}
	return e
}

// errNoIndex is the cause when a Device was listed from sysfs.
var errNoIndex = errors.New("the device was read from sysfs, which does not have its index")

// command is a command for one device.
type command struct {
	op   string // for errors, as in Error.Op
	dev  Device
	need feature
	port *uint32 // the port that the command names, if it names one
}

// run calls do with a session and explains its error. The kernel identifies devices by index, so
// run first checks that the index still belongs to the device.
func (c *client) run(cmd command, do func(s *session, index uint32) error) error {
	e := &Error{Op: cmd.op, Device: cmd.dev.Name}
	switch {
	case cmd.dev.FromSysfs:
		e.Err = errNoIndex
		return e
	case cmd.port != nil && (*cmd.port < 1 || *cmd.port > cmd.dev.Ports):
		e.Err = noPort{}
		e.Hint = fmt.Sprintf("port %d, allowed are 1 to %d", *cmd.port, cmd.dev.Ports)
		return e
	}
	s, err := c.open()
	if err == nil {
		defer s.close()
		err = s.check(cmd.dev)
		if err == nil {
			err = do(s, cmd.dev.Index)
		}
	}
	if err == nil {
		return nil
	}
	e.Err = err
	switch {
	case errors.Is(err, syscall.EINVAL) && !errors.Is(err, noDevice{}):
		// EINVAL is also the answer to an unknown command, and to a command for a device
		// that was just removed.
		if err := s.check(cmd.dev); errors.Is(err, noDevice{}) {
			e.Err = err
		} else if cmd.need.einval || cmd.need.since != (Version{}) {
			return cmd.need.missing(cmd.dev, e)
		}
	case errors.Is(err, syscall.EOPNOTSUPP) && cmd.need.name != "":
		return feature{name: cmd.need.name}.missing(cmd.dev, e)
	case errors.Is(err, syscall.EPERM):
		e.Hint = "this needs CAP_NET_ADMIN"
	}
	return explain(e)
}

// check returns noDevice unless the device still has its index and its name.
func (s *session) check(dev Device) error {
	b, err := s.get(abi.RDMA_NLDEV_CMD_GET, u32Attr(abi.RDMA_NLDEV_ATTR_DEV_INDEX, dev.Index))
	if err != nil {
		return gone(err, dev.Index)
	}
	now, err := decodeDevice(b)
	if err == nil && now.Name != dev.Name {
		return fmt.Errorf("%w: index %d belongs to %s", noDevice{}, dev.Index, now.Name)
	}
	return err
}
