package kernel

import "syscall"

// EREMOTEIO is the errno for a command that the firmware of a device has refused.
const EREMOTEIO = syscall.EREMOTEIO
