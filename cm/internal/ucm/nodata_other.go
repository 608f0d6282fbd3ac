//go:build !freebsd

package ucm

import "syscall"

// errNoData is ENODATA.
const errNoData = syscall.ENODATA
