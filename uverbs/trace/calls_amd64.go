//go:build linux

package trace

import "golang.org/x/sys/unix"

// auditArch is the architecture in struct seccomp_data.
const auditArch = unix.AUDIT_ARCH_X86_64

// Calls that only some architectures have.
const (
	sysOpen = unix.SYS_OPEN
	sysDup2 = unix.SYS_DUP2
)

// otherCalls are the calls at which the filter always stops.
var otherCalls = []uint32{
	unix.SYS_READ, unix.SYS_WRITE, unix.SYS_OPEN, unix.SYS_OPENAT, unix.SYS_OPENAT2, unix.SYS_CLOSE, unix.SYS_CLOSE_RANGE,
	unix.SYS_DUP, unix.SYS_DUP2, unix.SYS_DUP3,
}
