//go:build !freebsd

package kernel

import "syscall"

// ENODATA is the errno for an entry that is not in use. FreeBSD has no errno of this name.
const ENODATA = syscall.ENODATA
