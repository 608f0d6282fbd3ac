package soft

import (
	"runtime/debug"
	"syscall"
	"unsafe"
)

// store writes to an address of this process that a command has passed. It returns EFAULT if there
// is no writable memory, as the kernel does.
//
// The address is an integer, so the checks of pointers and of races do not apply.
//
//go:nocheckptr
//go:norace
//go:noinline
func store(addr uint64, b []byte) (errno syscall.Errno) {
	if addr == 0 {
		return syscall.EFAULT
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			errno = syscall.EFAULT
		}
	}()
	p := *(*unsafe.Pointer)(unsafe.Pointer(&addr))
	copy(unsafe.Slice((*byte)(p), len(b)), b)
	return 0
}
