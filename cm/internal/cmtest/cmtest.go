// Package cmtest has what the tests of the connection manager's packages share.
package cmtest

import (
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/cm/internal/inprocess"
	"github.com/goverbs/goverbs/cm/internal/ucm"
	"github.com/goverbs/goverbs/test/softrig"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/soft/gsi"
)

// fastClock is a clock for the connection manager whose time passes faster than that of the system.
type fastClock struct{ start time.Time }

// speedup is how much faster it passes: a message that is lost costs 0.3 s instead of 6 s.
const speedup = 20

// Now implements [ucm.Clock].
func (c fastClock) Now() time.Time { return c.start.Add(speedup * time.Since(c.start)) }

// AfterFunc implements [ucm.Clock].
func (c fastClock) AfterFunc(d time.Duration, f func()) ucm.Timer {
	return fastTimer{time.AfterFunc(d/speedup, f)}
}

// fastTimer is a timer of a fastClock.
type fastTimer struct{ *time.Timer }

// Reset implements [ucm.Timer].
func (t fastTimer) Reset(d time.Duration) bool { return t.Timer.Reset(d / speedup) }

// MakeSoft makes the software devices of the rig. The function that it returns closes them. If the devices
// lose packets, the time of the connection manager passes faster.
func MakeSoft() (closeAll func() error, err error) {
	if testenv.SoftFaults() != "" {
		inprocess.Host = ucm.New(ucm.Options{Clock: fastClock{time.Now()}})
		gsi.SetManager(inprocess.Host)
	}
	return softrig.Make()
}

// Addresses returns the addresses of the first two devices, and one that no device has.
func Addresses() (first, second, noHost netip.Addr) {
	addrs, none := [2]string{"10.1.0.1", "10.1.0.2"}, "10.1.0.99"
	if rig := testenv.TheRig(); rig.Soft {
		addrs, none = rig.Addrs, "127.0.0.99"
	}
	return netip.MustParseAddr(addrs[0]), netip.MustParseAddr(addrs[1]), netip.MustParseAddr(none)
}

// NoRoute returns the errno of an attempt to reach 192.0.2.1, to which guests have no route. A host with
// software devices may have one, through an interface without a device.
func NoRoute() syscall.Errno {
	c, err := net.Dial("udp", "192.0.2.1:9")
	if err != nil {
		return syscall.ENETUNREACH
	}
	c.Close()
	return syscall.ENODEV
}
