//go:build race

package memory

import "unsafe"

// raceEnabled reports whether the race detector is on.
const raceEnabled = true

// move copies src to dst, which is as long. The runtime tells the race detector of every copy, also in
// a function that the compiler does not instrument, so this one copies by assignment.
//
//go:nocheckptr
//go:norace
func move(dst, src []byte) {
	d, s := unsafe.Pointer(unsafe.SliceData(dst)), unsafe.Pointer(unsafe.SliceData(src))
	n, i := len(dst), 0
	for ; n-i >= 64; i += 64 {
		*(*[64]byte)(unsafe.Add(d, i)) = *(*[64]byte)(unsafe.Add(s, i))
	}
	for ; i < n; i++ {
		*(*byte)(unsafe.Add(d, i)) = *(*byte)(unsafe.Add(s, i))
	}
}
