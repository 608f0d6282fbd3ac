//go:build !linux

package kernel

import "syscall"

// EREMOTEIO is Linux's errno for a command that the firmware of a device has refused. Other systems have no
// errno of this name.
const EREMOTEIO = syscall.Errno(121)
