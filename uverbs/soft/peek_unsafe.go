//go:build windows

package soft

import (
	"unsafe"

	"golang.org/x/sys/windows"
)

var peekNamedPipe = windows.NewLazySystemDLL("kernel32.dll").NewProc("PeekNamedPipe")

// unread returns the number of bytes in a pipe, by its read end.
func unread(fd int) int {
	var n uint32
	if ok, _, _ := peekNamedPipe.Call(uintptr(fd), 0, 0, 0, uintptr(unsafe.Pointer(&n)), 0); ok == 0 {
		return 0
	}
	return int(n)
}
