package cm

import (
	_ "embed"
	"time"

	"github.com/goverbs/goverbs/cm/internal/ucm"
	"github.com/goverbs/goverbs/test/softrig"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/soft/gsi"
)

// lackingSoft lists what software devices lack in addition to rxe, which they play.
//
//go:embed lacking_soft.txt
var lackingSoft string

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

// makeSoft makes the software devices of the rig. The function that it returns closes them. If the devices
// lose packets, the time of the connection manager passes faster.
func makeSoft() (closeAll func() error, err error) {
	if testenv.SoftFaults() != "" {
		softHost = ucm.New(ucm.Options{Clock: fastClock{time.Now()}})
		gsi.SetManager(softHost)
	}
	return softrig.Make()
}
