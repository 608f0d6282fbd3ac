package mmio

import (
	"unsafe"

	"golang.org/x/sys/windows"
)

// mapPrivate returns zeroed memory.
func mapPrivate(size int) ([]byte, error) {
	addr, err := windows.VirtualAlloc(0, uintptr(size), windows.MEM_RESERVE|windows.MEM_COMMIT, windows.PAGE_READWRITE)
	if err != nil {
		return nil, err
	}
	// The address is outside the Go heap, so the garbage collector ignores the pointer.
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&addr)), size), nil
}

// cover replaces memory by zeroed memory at the same address.
func cover(mem []byte) error {
	addr := uintptr(unsafe.Pointer(&mem[0]))
	if err := windows.VirtualFree(addr, uintptr(len(mem)), windows.MEM_DECOMMIT); err != nil {
		return err
	}
	_, err := windows.VirtualAlloc(addr, uintptr(len(mem)), windows.MEM_COMMIT, windows.PAGE_READWRITE)
	return err
}

// joins says that cover and munmap do not take memory that several mappings have.
const joins = false

func munmap(mem []byte) error {
	return windows.VirtualFree(uintptr(unsafe.Pointer(&mem[0])), 0, windows.MEM_RELEASE)
}
