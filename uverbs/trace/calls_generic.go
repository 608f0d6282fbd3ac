//go:build linux && (arm64 || riscv64)

package trace

import "golang.org/x/sys/unix"

// Calls that only some architectures have.
const (
	sysOpen = ^uint64(0)
	sysDup2 = ^uint64(0) - 1
)

// otherCalls are the calls at which the filter always stops.
var otherCalls = []uint32{
	unix.SYS_READ, unix.SYS_WRITE, unix.SYS_OPENAT, unix.SYS_OPENAT2, unix.SYS_CLOSE, unix.SYS_CLOSE_RANGE, unix.SYS_DUP, unix.SYS_DUP3,
}
