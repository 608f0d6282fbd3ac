package ring

import (
	"os"
	"runtime"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/mmio"
)

// heapMost is the largest size in bytes of a ring in the Go heap. Go ends the process if the heap
// cannot grow, and the garbage collector runs less often the larger the heap is, so larger rings are
// mapped. Pages of those take no memory until they are used.
const heapMost = 1 << 20

// collectAt is after how many mapped bytes the garbage collector runs. It does not know their number.
const collectAt = 256 << 20

// mapped is the number of bytes that were mapped since the garbage collector ran for them.
var mapped atomic.Int64

// A mapping is memory outside the Go heap. It is unmapped when neither the device nor the program
// refers to the mapping any more: each may use a ring for a while that the other one has given up.
type mapping struct{ region *mmio.Region }

// alloc returns n zeroed bytes and what must stay reachable while they are in use. They begin at a cache line, or at
// a page if they are more than one: only its first pages take memory in a ring that is not full, and short rings share
// pages. The errno is ENOMEM if the process cannot have them.
func alloc(n int) (mem []byte, owner any, errno syscall.Errno) {
	align := cacheLine
	if page := os.Getpagesize(); n > page {
		align = page
	}
	if n <= heapMost {
		return heapAligned((n+align-1)&^(align-1), align), nil, 0
	}
	if mapped.Add(int64(n)) > collectAt {
		mapped.Store(0)
		runtime.GC()
	}
	region, err := mmio.MapAnonymous(n, false)
	if err != nil {
		return nil, nil, syscall.ENOMEM
	}
	m := &mapping{region}
	runtime.AddCleanup(m, func(region *mmio.Region) { region.Close() }, region)
	return region.Bytes(), m, 0
}

// heapAligned returns n bytes of the Go heap that begin at a multiple of align, as n is.
func heapAligned(n, align int) []byte {
	b := make([]byte, n)
	if address(b)&(align-1) == 0 { // as the runtime does it for pages of 4 KiB, and for most smaller sizes
		return b
	}
	b = make([]byte, n+align)
	skip := -address(b) & (align - 1)
	return b[skip : skip+n : skip+n]
}
