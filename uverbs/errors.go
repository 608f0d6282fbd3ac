package uverbs

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/goverbs/goverbs/netlinkrdma"
)

// Errors of the data path.
var (
	// ErrQueueFull is returned by the post methods if the batch does not fit into the queue. Nothing
	// was posted; poll the CQ and try again.
	ErrQueueFull = errors.New("uverbs: queue full: poll the CQ, which makes room as requests complete")

	// ErrCQOverrun is returned by [CQ.Poll] if the CQ contains invalid data: completions were lost,
	// or memory was overwritten.
	ErrCQOverrun = errors.New("uverbs: completion queue overrun or corrupt")

	// ErrQueueCorrupt is returned by the post methods if the index that the device writes to the
	// queue is invalid.
	ErrQueueCorrupt = errors.New("uverbs: work queue corrupt")
)

// Version is a mainline kernel version, such as {5, 12}; the zero value means unknown.
type Version = netlinkrdma.Version

// Error reports a command that failed, normally because the kernel refused it. It unwraps to Errno,
// and matches [ErrDeviceRemoved] after the device was removed.
type Error struct {
	Op     string        // Op is the kernel's name of the command, such as "REG_MR".
	Device string        // Device is the name of the RDMA device.
	Object string        // Object is the object that the command was for, such as "QP 17", or empty.
	Given  string        // Given lists arguments of the command, such as the port, or is empty.
	Path   string        // Path is "ioctl" or "write"; empty if the kernel was not asked.
	Netns  string        // Netns is the network namespace, such as "net:[4026532281]"; empty if process 1 has the same.
	Errno  syscall.Errno // Errno is the error number.
	Hint   string        // Hint is the likely cause and what to do, or empty.

	refused bool // an EIO is the firmware's refusal of a command, and does not say that the device is gone
}

// Error implements error. The first sentence has the cause; the details follow.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "uverbs: %s: %s", e.Device, e.Op)
	if e.Object != "" {
		b.WriteString(" of " + e.Object)
	}
	if e.Path == "write" {
		b.WriteString(" by write()")
	}
	if e.Netns != "" {
		b.WriteString(" in " + e.Netns)
	}
	b.WriteString(": " + e.Errno.Error())
	if e.Hint != "" {
		b.WriteString(": ")
		b.WriteString(e.Hint)
	}
	if e.Given != "" {
		b.WriteString("; given: " + e.Given)
	}
	return b.String()
}

// within returns an error of a step as that of the whole.
func within(what string, err error) error {
	return &reason{"uverbs: " + what + ": " + strings.TrimPrefix(err.Error(), "uverbs: "), err}
}

// about adds the object and the arguments of a command to its error.
func about(err error, object, given string) error {
	var e *Error
	if errors.As(err, &e) {
		e.Object, e.Given = object, given
	}
	return err
}

// netns returns the network namespace of this thread, or "" if process 1 has the same or it is
// unknown.
func netns() string {
	ours, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		return ""
	}
	first, err := os.Readlink("/proc/1/ns/net")
	if err != nil || ours == first {
		return ""
	}
	return ours
}

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return e.Errno }

// Is reports whether target is [ErrDeviceRemoved] and the device was removed.
func (e *Error) Is(target error) bool {
	return target == ErrDeviceRemoved && e.Errno == syscall.EIO && !e.refused
}

// ErrDeviceRemoved matches the errors of all commands after the device was removed, or reset by its
// driver, while it was open. Only closing the device and its objects still works.
var ErrDeviceRemoved = errors.New("uverbs: the device has been removed")

// reason is an error with a fixed text that wraps another error. It replaces fmt.Errorf in package
// variables, which would run at every program start.
type reason struct {
	text string
	err  error
}

// Error returns the text, and Unwrap the wrapped error.
func (r *reason) Error() string { return r.text }
func (r *reason) Unwrap() error { return r.err }

// FeatureError reports a feature that the kernel or the driver does not support. It matches
// [errors.ErrUnsupported]. Its fields are:
//
//   - Feature, the name of the feature;
//   - Since, the first mainline kernel that supports it, or zero;
//   - Driver, the driver that does not support it, or empty if the kernel does not;
//   - Sandbox, the sandbox that does not offer it ([netlinkrdma.Sandbox]), or empty;
//   - Err, the kernel's answer, normally an [*Error], or nil.
type FeatureError = netlinkrdma.FeatureError

// ArgError reports an argument or option that package uverbs or cm refused without asking the
// kernel. It unwraps to EINVAL.
type ArgError struct {
	Package string // Package is the package that refused the argument, "uverbs", "mlx5" or "cm".
	Op      string // Op is the method that was called, such as "CreateCQ".
	Field   string // Field is the name of the parameter or option, such as "MTU".
	Given   string // Given is the value that was passed.
	Allowed string // Allowed says which values are valid.
}

// Error implements error.
func (e *ArgError) Error() string {
	return fmt.Sprintf("%s: %s: %s is %s, allowed: %s", e.Package, e.Op, e.Field, e.Given, e.Allowed)
}

// Unwrap returns EINVAL.
func (e *ArgError) Unwrap() error { return syscall.EINVAL }

// argErr returns an ArgError of this package.
func argErr(op, field string, given any, allowed string, args ...any) error {
	return &ArgError{
		Package: "uverbs",
		Op:      op,
		Field:   field,
		Given:   fmt.Sprint(given),
		Allowed: fmt.Sprintf(allowed, args...),
	}
}

// usedUp returns the hint that a device may have no more objects of a kind. rxe returns EINVAL
// then.
func usedUp(device, kind string, limit uint32) string {
	return fmt.Sprintf("all %d %s of %s may be in use, by this program or others", limit, kind, device)
}

// inUse says how many objects of a kind are in use, of those that the device has.
func inUse(device, kind string, used uint64, limit uint32) string {
	if used >= uint64(limit) {
		return fmt.Sprintf("all %d %s of %s are in use", limit, kind, device)
	}
	return fmt.Sprintf("%d of the %d %s of %s are in use; the device or the host may lack something else", used, limit, kind, device)
}
