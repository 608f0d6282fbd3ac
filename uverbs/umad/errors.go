package umad

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// ErrNoQP0 matches the errors for an agent of subnet management on a port that cannot have one, and for what
// one sends on a port without a subnet management interface.
var ErrNoQP0 = errors.New("the port has no QP0")

// ErrDeviceRemoved matches the errors of all calls but Close after the device was removed.
var ErrDeviceRemoved = errors.New("the device has been removed")

// Error is a failed call. It unwraps to its cause, usually an errno.
type Error struct {
	Op     string // Op is the operation that failed, such as "register agent".
	Device string // Device is the name of the RDMA device.
	Port   int    // Port is the number of the port.
	Err    error  // Err is the cause.
	Hint   string // Hint is the likely cause or what to do, or empty.
}

// Error implements error.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "umad: %s port %d: %s: %s", e.Device, e.Port, e.Op, e.Err)
	if e.Hint != "" {
		b.WriteString("; " + e.Hint)
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is [errors.ErrUnsupported] and the port has no QP0.
func (e *Error) Is(target error) bool {
	return target == errors.ErrUnsupported && errors.Is(e.Err, ErrNoQP0)
}

// TimeoutError says that a request was not answered.
type TimeoutError struct {
	Device  string        // Device is the name of the RDMA device.
	Port    int           // Port is the number of the port.
	To      Addr          // To is where the request went.
	Request string        // Request names the request, such as "SubnGet(NodeInfo)".
	Waited  time.Duration // Waited is the time since the request was sent first.
	Tries   int           // Tries is how often it was tried.
}

// Error implements error.
func (e *TimeoutError) Error() string {
	return fmt.Sprintf("umad: %s port %d: no answer to %s from %v within %v (tries: %d)",
		e.Device, e.Port, e.Request, e.To, e.Waited.Round(time.Millisecond), e.Tries)
}

// Is reports whether target is [os.ErrDeadlineExceeded].
func (e *TimeoutError) Is(target error) bool { return target == os.ErrDeadlineExceeded }

// Timeout returns true, as net.Error has it.
func (e *TimeoutError) Timeout() bool { return true }

// badValue is the error for a value of the caller that is out of range.
func badValue(field string, given any, allowed string) error {
	return fmt.Errorf("%s is %v, allowed: %s: %w", field, given, allowed, syscall.EINVAL)
}

// err returns an Error of the port. It knows what errnos mean.
func (p *Port) err(op string, err error) error {
	e := &Error{Op: op, Device: p.device, Port: p.number, Err: err}
	if errors.Is(err, syscall.EPROTONOSUPPORT) {
		e.Err = fmt.Errorf("%w: %w", ErrNoQP0, err)
		e.Hint = "it is a port of RoCE, or one of several planes whose QP0 belongs to another device"
	}
	return e
}

// sendErr returns the error of sending a MAD. The driver mlx5 lets agents of subnet management register for any
// port, and refuses what they send if the port has no subnet management interface.
func (a *Agent) sendErr(p *mad.Packet, to Addr, err error) error {
	toItself := p.Class == mad.ClassSubnDirected && p.ClassSpecific&0xff == 0 // a route of no hops
	noSMI := p.Class.SMP() && (errors.Is(err, syscall.EPERM) || toItself && errors.Is(err, syscall.EINVAL))
	if noSMI {
		err = fmt.Errorf("%w: %w", ErrNoQP0, err)
	}
	err = a.port.trafficErr(fmt.Sprintf("send %v to %v", p, to), err)
	var e *Error
	if noSMI && errors.As(err, &e) {
		e.Hint = "it is a port without a subnet management interface (SMI), as most virtual functions have"
	}
	return err
}

// trafficErr is err for MADs that are sent or received. The kernel refuses them with EIO after it has removed the
// device.
func (p *Port) trafficErr(op string, err error) error {
	if errors.Is(err, syscall.EIO) {
		err = fmt.Errorf("%w: %w", ErrDeviceRemoved, err)
	}
	return p.err(op, err)
}

// registerErr returns the error of a registration.
func (p *Port) registerErr(r Registration, err error) error {
	if errors.Is(err, syscall.EPIPE) {
		err = fmt.Errorf("%w: %w", ErrDeviceRemoved, err)
	}
	wrapped := p.err(fmt.Sprintf("register agent for QP%d", r.QPN), err)
	var e *Error
	switch errors.As(wrapped, &e); {
	case errors.Is(err, syscall.EINVAL) && len(r.Methods) > 0:
		e.Hint = "another agent, perhaps of another program, serves one of the methods; or a vendor class (0x30 to 0x4f) has no OUI"
	case errors.Is(err, syscall.ENOMEM):
		e.Hint = "an open port has at most 32 agents"
	}
	return wrapped
}
