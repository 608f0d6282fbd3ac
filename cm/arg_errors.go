package cm

import (
	"fmt"
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
