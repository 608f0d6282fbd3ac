package netlinkrdma

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
)

// Error is a failed call. It unwraps to its cause, usually an errno, and matches the errors of
// [io/fs] as the package documentation says.
type Error struct {
	Op     string // Op is the operation that failed, such as "list devices".
	Device string // Device is the RDMA device or link, if the call named one.
	Netdev string // Netdev is the network interface, if the call named one.
	Err    error  // Err is the cause.
	Hint   string // Hint is the likely cause or what to do, if known.

	is error // another error that this one matches
}

// Error returns one line with the operation, the cause and the hint.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("netlinkrdma: " + e.Op)
	if e.Device != "" {
		b.WriteString(" " + e.Device)
	}
	if e.Netdev != "" {
		b.WriteString(" on " + e.Netdev)
	}
	b.WriteString(": " + e.Err.Error())
	if e.Hint != "" {
		b.WriteString("; " + e.Hint)
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether the errno means target for this operation. For example, ENODEV for a missing
// network interface is [fs.ErrNotExist].
func (e *Error) Is(target error) bool { return e.is != nil && target == e.is }

// noDevice is the cause if a device does not exist, or no longer exists.
type noDevice struct{}

func (noDevice) Error() string { return "no such RDMA device" }

func (noDevice) Is(target error) bool { return target == fs.ErrNotExist }

// noPort is the cause if a device has no port with the given number.
type noPort struct{}

func (noPort) Error() string { return "no such port" }

func (noPort) Is(target error) bool { return target == fs.ErrNotExist }

var errBadName = errors.New("not a valid name")

// explain adds a hint if the kernel could not be asked.
func explain(e *Error) error {
	var u *unreachable
	if !errors.As(e.Err, &u) {
		return e
	}
	switch {
	case errors.Is(u.err, syscall.EPROTONOSUPPORT):
		e.Hint = unlessSandboxed("RDMA core not loaded: modprobe ib_uverbs, and for software RoCE rdma_rxe")
	case errors.Is(u.err, fs.ErrPermission):
		e.Hint = "a security policy or sandbox forbids NETLINK_RDMA sockets; in a container: --security-opt seccomp=FILE that allows socket(), or let it have /sys"
	}
	return e
}

// gone turns the EINVAL of a command that only names a device into noDevice, since the kernel has
// no other reason for it.
func gone(err error, index uint32) error {
	if errors.Is(err, syscall.EINVAL) {
		return fmt.Errorf("%w with index %d in this network namespace: %w", noDevice{}, index, err)
	}
	return err
}

// bothFailed is the cause if neither netlink nor sysfs gave an answer.
func bothFailed(netlink, sysfs error) error {
	return fmt.Errorf("over netlink: %w; from sysfs: %w", netlink, sysfs)
}
