package ucm

import (
	"unsafe"

	"github.com/goverbs/goverbs/cm/internal/abi"
)

// view returns memory as a struct of the kernel's interface, or nil if there is too little. The
// memory is aligned to 8 bytes.
func view[T any](b []byte) *T {
	var t T
	if uintptr(len(b)) < unsafe.Sizeof(t) {
		return nil
	}
	return (*T)(unsafe.Pointer(unsafe.SliceData(b)))
}

// bytesOf returns the memory of a struct.
func bytesOf[T any](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// pointed returns the n bytes that a field of a request points to, or nil if it points nowhere.
func pointed(p *abi.Ptr, n uint32) []byte {
	if p.IsNil() {
		return nil
	}
	return unsafe.Slice(*(**byte)(unsafe.Pointer(p)), n)
}
