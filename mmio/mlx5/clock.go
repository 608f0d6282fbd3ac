package mlx5

import (
	"fmt"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/mlx5/internal/abi"
)

// A Clock is the device's free-running counter, which the timestamps of completions come from. It
// is safe for concurrent use.
type Clock struct {
	high, low *uint32 // big-endian
}

// ClockMap returns the mmap offset of the page with the clock, which must be mapped read-only.
func ClockMap(pageSize int) uint64 { return mapOffset(mapCoreClock, 0, pageSize) }

// NewClock makes a Clock of a mapped page. offset is [Context].ClockOffset.
func NewClock(page []byte, offset uint64) (*Clock, error) {
	at := offset % uint64(max(len(page), 1))
	if at%4 != 0 || at+8 > uint64(len(page)) {
		return nil, fmt.Errorf("mlx5: clock at %#x of a page of %d bytes: %w", offset, len(page), ErrLayout)
	}
	return &Clock{high: (*uint32)(unsafe.Pointer(&page[at])), low: (*uint32)(unsafe.Pointer(&page[at+4]))}, nil
}

// Read returns the value of the counter.
func (c *Clock) Read() uint64 {
	high := bits.ReverseBytes32(mmio.Load32(c.high))
	for {
		low := bits.ReverseBytes32(mmio.Load32(c.low))
		// The halves are read one after the other. If the upper half has changed meanwhile,
		// it is not known which value the lower half belongs to.
		again := bits.ReverseBytes32(mmio.Load32(c.high))
		if again == high {
			return uint64(high)<<32 | uint64(low)
		}
		high = again
	}
}

// A ClockInfo is a page in which the kernel records how the device's counter relates to the time of
// day (struct ib_uverbs_clock_info). It is safe for concurrent use.
type ClockInfo struct {
	info *abi.IbUverbsClockInfo
}

// ClockInfoMap returns the mmap offset of the page, which must be mapped read-only.
func ClockInfoMap(pageSize int) uint64 { return mapOffset(mapClockInfo, 0, pageSize) }

// NewClockInfo makes a ClockInfo of a mapped page.
func NewClockInfo(page []byte) (*ClockInfo, error) {
	if len(page) < int(unsafe.Sizeof(abi.IbUverbsClockInfo{})) {
		return nil, fmt.Errorf("mlx5: clock info of %d bytes: %w", len(page), ErrLayout)
	}
	return &ClockInfo{info: (*abi.IbUverbsClockInfo)(unsafe.Pointer(&page[0]))}, nil
}

// clockTries is how often a read is repeated if the kernel updates the page meanwhile. An update
// takes a few nanoseconds and happens a few times a minute.
const clockTries = 1 << 20

// Nanoseconds converts a value of the device's counter to nanoseconds since the Unix epoch. ok is
// false if the kernel never finishes an update, or if the page is not valid.
func (c *ClockInfo) Nanoseconds(stamp uint64) (ns uint64, ok bool) {
	for range clockTries {
		// A sequence lock: pairs with the kernel's smp_store_mb and smp_store_release of sign
		// in mlx5_update_clock_info_page.
		sign := atomic.LoadUint32(&c.info.Sign)
		if sign&abi.MLX5_IB_CLOCK_INFO_KERNEL_UPDATING != 0 {
			continue
		}
		at, cycles, frac := atomic.LoadUint64(&c.info.Nsec), atomic.LoadUint64(&c.info.Cycles), atomic.LoadUint64(&c.info.Frac)
		mult, shift, mask := atomic.LoadUint32(&c.info.Mult), atomic.LoadUint32(&c.info.Shift), atomic.LoadUint64(&c.info.Mask)
		if atomic.LoadUint32(&c.info.Sign) != sign {
			continue
		}
		if shift > 63 {
			return 0, false
		}
		// The stamp may be older or newer than the kernel's last reading.
		delta := (stamp - cycles) & mask
		if delta > mask/2 {
			delta = (cycles - stamp) & mask
			return at - scale(delta, mult, -frac, shift), true
		}
		return at + scale(delta, mult, frac, shift), true
	}
	return 0, false
}

// scale converts cycles to nanoseconds.
func scale(cycles uint64, mult uint32, frac uint64, shift uint32) uint64 {
	high, low := bits.Mul64(cycles, uint64(mult))
	var carry uint64
	low, carry = bits.Add64(low, frac, 0)
	high += carry
	if int64(frac) < 0 {
		high--
	}
	return high<<(64-shift) | low>>shift
}
