package ib

import (
	"strconv"
	"time"
)

// MTU is a path MTU in the encoding of the InfiniBand standard (enum ib_mtu).
type MTU uint8

// Path MTUs.
const (
	MTU256 MTU = 1 + iota
	MTU512
	MTU1024
	MTU2048
	MTU4096
)

// Bytes returns the MTU in bytes, or 0 if it is not one of the constants.
func (m MTU) Bytes() int {
	if m < MTU256 || m > MTU4096 {
		return 0
	}
	return 128 << m
}

// String returns the name of the constant.
func (m MTU) String() string {
	if n := m.Bytes(); n != 0 {
		return "MTU" + strconv.Itoa(n)
	}
	return "MTU(" + strconv.Itoa(int(m)) + ")"
}

// AckTimeout is a time in the encoding of the InfiniBand standard: 4.096 µs·2ⁿ for n from 1 to 31.
// 0 means forever.
type AckTimeout uint8

// AckTimeoutFor returns the shortest timeout that is at least d, or else the longest, about 2.4
// hours.
func AckTimeoutFor(d time.Duration) AckTimeout {
	t := AckTimeout(1)
	for t < 31 && t.Duration() < d {
		t++
	}
	return t
}

// Duration returns the timeout; 0 means forever.
func (t AckTimeout) Duration() time.Duration {
	if t == 0 {
		return 0
	}
	return 4096 * time.Nanosecond << min(t, 31)
}

// RNRTimer is a time in the encoding of the InfiniBand standard, from 0 to 31: 10 µs (1) to 491.52
// ms (31), and 655.36 ms (0).
type RNRTimer uint8

// rnrTimes are the values of an RNRTimer in units of 10 µs.
var rnrTimes = [32]int{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// RNRTimerFor returns the shortest timer that is at least d, or else the longest, 655.36 ms.
func RNRTimerFor(d time.Duration) RNRTimer {
	for t := RNRTimer(1); t < 32; t++ {
		if t.Duration() >= d {
			return t
		}
	}
	return 0
}

// Duration returns the time.
func (t RNRTimer) Duration() time.Duration {
	return time.Duration(rnrTimes[t&31]) * 10 * time.Microsecond
}
