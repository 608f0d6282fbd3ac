package perf

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// processor returns the number of the processor that the calling thread runs on (getcpu).
func processor() (int, bool) {
	var cpu uint32
	_, _, errno := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0)
	return int(cpu), errno == 0
}
