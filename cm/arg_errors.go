package cm

import (
	"fmt"
	"strings"
	"syscall"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs"
)

// Error reports a command that failed, normally because the kernel refused it. It unwraps to the
// errno.
type Error = rdmacm.Error

// ArgError reports an argument or option that is not valid. The kernel was not asked. The fields are
// Package, which is "cm", Op, Field, Given and Allowed. It unwraps to EINVAL.
type ArgError = uverbs.ArgError

// EventError is the failure of an operation of the connection manager, such as a rejection by the peer.
type EventError = rdmacm.EventError

// argErr returns an ArgError of this package for any printable value.
func argErr(op, field string, given any, allowed string, args ...any) error {
	return &ArgError{Package: "cm", Op: op, Field: field, Given: fmt.Sprint(given), Allowed: fmt.Sprintf(allowed, args...)}
}

// errRemoved returns the error of an object whose device is being removed. The name may be empty.
func errRemoved(device string) error {
	if device != "" {
		device = " " + device
	}
	return fmt.Errorf("device%s is being removed: %w", device, syscall.ENODEV)
}

// addressed is an error with what was tried and the address. Its text names the address and the package once,
// though the text of err does it, too.
type addressed struct {
	what, address string
	err           error
}

// Error implements the error interface.
func (e *addressed) Error() string {
	why := strings.TrimPrefix(e.err.Error(), "cm: ")
	return "cm: " + e.what + " " + e.address + ": " + strings.Replace(why, " "+e.address+": ", ": ", 1)
}

// Unwrap returns the cause.
func (e *addressed) Unwrap() error { return e.err }
