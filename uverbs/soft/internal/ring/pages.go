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

// pages returns at least n zeroed bytes, a whole number of pages, that begin at a page, and what must
// stay reachable while they are in use. The errno is ENOMEM if the process cannot have them.
func pages(n int) (mem []byte, owner any, errno syscall.Errno) {
	page := os.Getpagesize()
	n = (n + page - 1) &^ (page - 1)
	if n <= heapMost {
		return heapPages(n, page), nil, 0
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

// heapPages returns n bytes of the Go heap, whole pages.
func heapPages(n, page int) []byte {
	b := make([]byte, n)
	if address(b)&(page-1) == 0 { // as the runtime does it for pages of 4 KiB
		return b
	}
	b = make([]byte, n+page)
	skip := -address(b) & (page - 1)
	return b[skip : skip+n : skip+n]
}
