package qemu

import (
	"sync"
	"time"
)

// tscKHz is how many times in a millisecond the host's time stamp counter counts, 0 if it has
// none. It is what an emulated processor counts, too, and its kernel cannot find out on a busy
// host: it compares with a timer that is emulated, may be off by a multiple, and its seconds are
// then as wrong as that.
var tscKHz = sync.OnceValue(func() uint64 {
	if !hasTSC {
		return 0
	}
	const span = 20 * time.Millisecond
	from, c0 := stamp()
	time.Sleep(span)
	to, c1 := stamp()
	return (c1 - c0) * uint64(time.Millisecond) / uint64(to.Sub(from))
})

// stamp returns a time and the counter at it: of several, the two that were read with the least
// between them.
func stamp() (at time.Time, count uint64) {
	least := uint64(1) << 63
	for range 10 {
		before := tsc()
		now := time.Now()
		if after := tsc(); after-before < least {
			at, count, least = now, before+(after-before)/2, after-before
		}
	}
	return at, count
}
