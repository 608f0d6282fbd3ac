package uverbs

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// newBusyChannel returns a channel whose next wait is a busy wait of up to d, and the slot that it
// uses.
func newBusyChannel(t *testing.T, d time.Duration) (*testChannel, *busySlot) {
	t.Helper()
	c := newTestChannel(t, d)
	endedWaits.last = [2]endedWait{} // of other tests
	for range 100 {                  // on a slow machine the time may be over before the wait begins
		c.known, c.often = d, true
		crowdedUntil.Store(0)
		c.raise(t, 1)
		c.expect(t, t.Context(), 1)
		if c.slot != nil {
			return c, c.slot
		}
	}
	t.Fatal("no wait was a busy wait")
	return nil, nil
}

// untilBusy waits until a goroutine is in a busy wait. On a slow machine it may be parked already,
// because the time is over.
func untilBusy(s *busySlot) {
	for parkedWaits.Load() == 0 && s.mu.TryLock() {
		s.mu.Unlock()
		time.Sleep(100 * time.Microsecond)
	}
}

// untilParked waits until a goroutine is parked in a Wait.
func untilParked() {
	for parkedWaits.Load() == 0 {
		time.Sleep(100 * time.Microsecond)
	}
}

// wait is a Wait in a goroutine of its own.
func (c *testChannel) wait(ctx context.Context) chan error {
	got := make(chan error, 1)
	go func() {
		_, err := c.Next(ctx)
		got <- err
	}()
	return got
}

// TestBusyWaitLetsGo: the garbage collector looks at the stack of every goroutine, so it must not
// have to wait for the end of a busy wait. A slow machine has ten chances; a busy wait that does not
// stop for the collector uses none of them.
func TestBusyWaitLetsGo(t *testing.T) {
	for range 10 {
		c, s := newBusyChannel(t, maxBusyWait) // a wait that was over has the next one park
		got := c.wait(t.Context())
		untilBusy(s)
		runtime.GC()
		parked := parkedWaits.Load() > 0 // the time was over before the collector was done
		c.raise(t, 1)
		must(t, <-got)
		if !parked {
			return
		}
	}
	t.Error("the garbage collector has to wait until a busy wait is over")
}

// TestBusyWaitAdapts: a wait is a busy wait if the one before it was short, and a busy wait in vain
// is the last one until a wait is short again.
func TestBusyWaitAdapts(t *testing.T) {
	c := newTestChannel(t, 0)
	setTime := func(d time.Duration, often bool) {
		c.busyTime.Store(int64(d))
		c.known, c.often = d, often
	}
	setTime(time.Hour, false) // every wait is short
	busy := func() bool {
		c.slot = nil
		crowdedUntil.Store(0)
		c.raise(t, 1)
		c.expect(t, t.Context(), 1)
		return c.slot != nil
	}
	if busy() {
		t.Error("the first wait is a busy wait")
	}
	waits := 0
	for try := 0; try < 100 && waits < 2; try++ { // on a slow machine a series may fail
		if busy() {
			waits++
		}
	}
	if waits < 2 {
		t.Errorf("%d busy waits after short ones, want 2", waits)
	}
	setTime(time.Nanosecond, false) // every wait is long
	c.raise(t, 1)
	c.expect(t, t.Context(), 1)
	if c.often {
		t.Error("after a long wait the next one is a busy wait")
	}

	setTime(50*time.Millisecond, true)
	crowdedUntil.Store(0)
	got := c.wait(t.Context())
	untilParked() // the busy wait was in vain, and the parked one is short
	c.raise(t, 1)
	if must(t, <-got); c.often {
		t.Error("after a busy wait in vain the next one is a busy wait, too")
	}
}

// TestBusyWaitSeriesEnds: a series of busy waits ends although events keep coming, and then a wait
// parks. Without an end, the pipe of the events breaks.
func TestBusyWaitSeriesEnds(t *testing.T) {
	c, s := newBusyChannel(t, time.Millisecond)
	for range 3 {
		for c.often = true; c.often; {
			c.raise(t, 1)
			c.expect(t, t.Context(), 1)
		}
		c.raise(t, 1)
		if c.expect(t, t.Context(), 1); s.series != 0 {
			t.Error("after the end of a series, the next wait begins another one")
		}
	}
}

// TestBusyWaitSeriesAllocs: the beginning of a series does not allocate.
func TestBusyWaitSeriesAllocs(t *testing.T) {
	c, s := newBusyChannel(t, maxBusyWait)
	event, began := binary.NativeEndian.AppendUint64(nil, 1), s.number.Load()
	n := testing.AllocsPerRun(100, func() {
		s.mu.Lock()
		s.series = 0 // it is over
		s.mu.Unlock()
		runtime.Gosched() // the goroutine of the last series ends, and the next one is made of it
		c.often = true
		_, err := c.w.Write(event)
		must(t, err)
		c.expect(t, t.Context(), 1)
	})
	if n != 0 {
		t.Errorf("the beginning of a series makes %v allocations, want 0", n)
	}
	if s.number.Load() < began+50 {
		t.Errorf("%d series have begun, want about 100", s.number.Load()-began)
	}
}

// TestBusyWaitSeriesShared: a goroutine that waits on several channels in turn continues one series of
// busy waits, so it does not keep its processor. A channel whose time is shorter than the series begins
// one of its own, which is the series of all from then on.
func TestBusyWaitSeriesShared(t *testing.T) {
	_, s := newBusyChannel(t, maxBusyWait)
	for i, test := range []struct {
		d      time.Duration
		begins bool
	}{{maxBusyWait, false}, {maxBusyWait / 2, true}, {maxBusyWait, false}, {maxBusyWait / 2, false}} {
		got, begins := newTestChannel(t, test.d).busySlot(test.d)
		if got != s || begins != test.begins {
			t.Errorf("channel %d: slot %p, series begins: %t; want %p, %t", i+2, got, begins, s, test.begins)
		}
		got.mu.Unlock()
	}
}

// TestBusyWaitSlots: one processor is left to other goroutines. No busy wait begins while others wait
// that have just had events; those that wait for a long time do not matter.
func TestBusyWaitSlots(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	const d = time.Second // the most; a machine may stand still for a part of it
	active := newTestChannel(t, d)
	for _, test := range []struct {
		procs  int
		parked int32
		ended  time.Duration // how long ago a wait of active has ended
		want   int
	}{
		{1, 0, 0, 1}, {1, 1, 0, 0}, {1, 1, d, 1}, {2, 0, 0, 1}, {3, 0, 0, 2}, {3, 7, 0, 0}, {3, 7, 2 * d, 2},
		{len(busySlots) + 9, 0, 0, len(busySlots)},
	} {
		runtime.GOMAXPROCS(test.procs)
		parkedWaits.Add(test.parked)
		var slots []*busySlot
		for range len(busySlots) + 2 {
			endedWaits.last = [2]endedWait{}
			active.parkedWaitEnded(time.Since(started) - test.ended)
			if s, _ := newTestChannel(t, d).busySlot(d); s != nil {
				slots = append(slots, s)
			}
		}
		for _, s := range slots {
			s.mu.Unlock()
		}
		parkedWaits.Add(-test.parked)
		if got := len(slots); got != test.want {
			t.Errorf("GOMAXPROCS=%d with %d parked, an event of one %s ago: %d busy waits at a time, want %d", test.procs, test.parked, test.ended, got, test.want)
		}
	}
}

// TestBusyWaitOthers: an event of a channel does not keep the channel itself from a busy wait, but others,
// also if the channel has had more events since.
func TestBusyWaitOthers(t *testing.T) {
	defer parkedWaits.Add(-1)
	parkedWaits.Add(1)
	a, b := newTestChannel(t, 0), newTestChannel(t, 0)
	endedWaits.last = [2]endedWait{}
	check := func(when string, wantA, wantB bool) {
		t.Helper()
		if gotA, gotB := a.othersWait(time.Hour), b.othersWait(time.Hour); gotA != wantA || gotB != wantB {
			t.Errorf("%s: others wait for a: %t, for b: %t; want %t, %t", when, gotA, gotB, wantA, wantB)
		}
	}
	check("no event", false, false)
	a.parkedWaitEnded(time.Since(started))
	a.parkedWaitEnded(time.Since(started))
	check("two events of a", false, true)
	b.parkedWaitEnded(time.Since(started) - 2*time.Hour)
	check("an old event of b", false, true)
	b.parkedWaitEnded(time.Since(started))
	b.parkedWaitEnded(time.Since(started))
	check("events of both", true, true)
}

// TestBusyWaitBesideIdle: a goroutine that waits for a long time leaves busy waits to others.
func TestBusyWaitBesideIdle(t *testing.T) {
	idle := newTestChannel(t, defaultBusyWait)
	got := idle.wait(t.Context())
	untilParked()
	newBusyChannel(t, maxBusyWait) // fails if no wait is a busy wait
	idle.raise(t, 1)
	must(t, <-got)
}

// TestBusyWaitCrowded: if no other processor of GOMAXPROCS is free, a series ends after trialTime, and
// after the second one no other begins for a while. If one is free, the series goes on.
func TestBusyWaitCrowded(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	defer crowdedUntil.Store(0)
	const longest = 50 * time.Millisecond
	endSeries := func() {
		for i := range busySlots {
			s := &busySlots[i]
			s.mu.Lock()
			s.series = 0
			s.mu.Unlock()
		}
	}
	// trial reports whether the next series has passed its trial.
	trial := func() bool {
		endSeries()
		c, s := newBusyChannel(t, longest)
		for c.often = true; c.slot == s && s.trial; c.often = true {
			c.raise(t, 1)
			c.expect(t, t.Context(), 1)
		}
		return c.slot == s
	}
	ever := func(does func() bool) bool { // a slow machine may take the other processor away, or a spinner from its own
		for range 100 {
			if does() {
				return true
			}
		}
		return false
	}
	if !ever(trial) {
		t.Error("no series goes on although another processor is free")
	}
	var over atomic.Bool
	var spinner sync.WaitGroup
	spinner.Go(func() {
		for !over.Load() {
		}
	})
	crowdedUntil.Store(0) // which a slow machine may have set
	crowded := ever(func() bool { return !trial() && crowdedUntil.Load() != 0 })
	over.Store(true)
	spinner.Wait()
	if !crowded {
		t.Error("all series go on although the other processor is busy")
	}

	failedTrials.Store(0)
	crowdedUntil.Store(0)
	slow := &busySlot{}
	slow.number.Store(1) // whose goroutine has not run
	for i, want := range []bool{false, true} {
		if slow.passes(longest) || (crowdedUntil.Load() != 0) != want {
			t.Errorf("after %d series that failed, others may begin: %v, want %v", i+1, crowdedUntil.Load() == 0, !want)
		}
	}

	endSeries()
	c := newTestChannel(t, longest)
	crowdedUntil.Store(int64(time.Since(started) + time.Hour))
	if s, _ := c.busySlot(longest); s != nil {
		t.Error("a series begins while other processors are busy")
		s.mu.Unlock()
	}
}

// TestBusyWaitEnds: what ends a parked wait also ends a busy wait.
func TestBusyWaitEnds(t *testing.T) {
	for name, test := range map[string]struct {
		end  func(c *testChannel, cancel func()) error
		want error
	}{
		"context":  {func(_ *testChannel, cancel func()) error { cancel(); return nil }, context.Canceled},
		"Shutdown": {func(c *testChannel, _ func()) error { return c.Shutdown() }, os.ErrClosed},
		"Close":    {func(c *testChannel, _ func()) error { return c.Close() }, os.ErrClosed},
		"removal":  {func(c *testChannel, _ func()) error { return c.w.Close() }, ErrDeviceRemoved},
	} {
		t.Run(name, func(t *testing.T) {
			c, s := newBusyChannel(t, 100*time.Millisecond)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			got := c.wait(ctx)
			untilBusy(s)
			must(t, test.end(c, cancel))
			errorIs(t, <-got, test.want, "Wait")
		})
	}
}

// TestBusyWaitBesideGoroutines: with one processor, other goroutines get it although every wait is a
// busy wait: the events come from another goroutine, which could otherwise never raise them.
func TestBusyWaitBesideGoroutines(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	c, _ := newBusyChannel(t, time.Millisecond)
	turn := make(chan bool)
	var group sync.WaitGroup
	group.Go(func() {
		for range turn {
			c.raise(t, 1)
		}
	})
	for range 20 {
		c.often = true
		turn <- true
		c.expect(t, t.Context(), 1)
	}
	close(turn)
	group.Wait()
}

// TestBusyWaitYields: with one processor, other goroutines get it after a series of busy waits
// although each wait finds an event, so that none parks. Go's scheduler would let them wait for 10 ms.
func TestBusyWaitYields(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	c, _ := newBusyChannel(t, time.Millisecond)
	most := 0
	for range 5 {
		var ran atomic.Bool
		go ran.Store(true)
		series := 0
		for ; !ran.Load(); series++ {
			for c.often = true; c.often; {
				c.raise(t, 1)
				c.expect(t, t.Context(), 1)
			}
			c.raise(t, 1)
			c.expect(t, t.Context(), 1)
		}
		most = max(most, series)
	}
	if most > 3 {
		t.Errorf("a goroutine ran after %d series of busy waits", most)
	}
}

// TestSetBusyWaitDuringWait: the time may be set during a Wait, and applies to the next one.
func TestSetBusyWaitDuringWait(t *testing.T) {
	c, s := newBusyChannel(t, maxBusyWait)
	got := c.wait(t.Context())
	untilBusy(s)
	must(t, c.SetBusyWait(0))
	c.raise(t, 1)
	must(t, <-got)
	c.slot = nil
	c.raise(t, 1)
	if c.expect(t, t.Context(), 1); c.slot != nil {
		t.Error("busy wait after SetBusyWait(0)")
	}
	must(t, c.SetBusyWait(maxBusyWait))
	for range 100 { // on a slow machine the last event may be too long ago
		c.raise(t, 1)
		if c.expect(t, t.Context(), 1); c.slot != nil {
			return
		}
	}
	t.Error("no busy wait after SetBusyWait")
}

// TestIdleWaitsPark: all goroutines that wait for events that do not come are parked, and take no
// processor time.
func TestIdleWaitsPark(t *testing.T) {
	const goroutines = 100
	channels := make([]*testChannel, goroutines)
	errs := make([]chan error, goroutines)
	for i := range channels {
		channels[i] = newTestChannel(t, channelHold)
		errs[i] = channels[i].wait(t.Context())
	}
	for parkedWaits.Load() < goroutines {
		time.Sleep(time.Millisecond)
	}
	var before, after unix.Rusage
	must(t, unix.Getrusage(unix.RUSAGE_SELF, &before))
	time.Sleep(500 * time.Millisecond)
	must(t, unix.Getrusage(unix.RUSAGE_SELF, &after))
	if n := after.Nvcsw - before.Nvcsw; n > goroutines/2 { // some are of the runtime
		t.Errorf("the threads of the program have slept %d times while all goroutines wait", n)
	}
	for i, c := range channels {
		c.raise(t, 1)
		must(t, <-errs[i])
	}
	if n := parkedWaits.Load(); n != 0 {
		t.Errorf("%d goroutines are parked after their events, want 0", n)
	}
}

// BenchmarkWaitExchange exchanges events with another process, with parked waits only and with busy
// waits. In each operation another goroutine sleeps meanwhile, and the benchmark reports how late it is
// woken.
func BenchmarkWaitExchange(b *testing.B) {
	for _, procs := range []int{1, 2} {
		for _, busy := range []time.Duration{0, defaultBusyWait} {
			b.Run(fmt.Sprintf("procs=%d/busy=%s", procs, busy), func(b *testing.B) {
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
				exchange(b, newTestChannel(b, busy))
			})
		}
	}
}

// BenchmarkWaitWithin exchanges events between two goroutines of the process. At most one of them has
// busy waits, and the other one must be woken during them.
func BenchmarkWaitWithin(b *testing.B) {
	for _, procs := range []int{1, 2} {
		for _, busy := range []time.Duration{0, defaultBusyWait} {
			b.Run(fmt.Sprintf("procs=%d/busy=%s", procs, busy), func(b *testing.B) {
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
				c, d := newTestChannel(b, busy), newTestChannel(b, busy)
				var group sync.WaitGroup
				group.Go(func() {
					for range b.N {
						d.expect(b, b.Context(), 1)
						c.raise(b, 1)
					}
				})
				for range b.N {
					d.raise(b, 1)
					c.expect(b, b.Context(), 1)
				}
				group.Wait()
			})
		}
	}
}

func exchange(b *testing.B, c *testChannel) {
	echo := exec.Command("cat")
	in := value(echo.StdinPipe())(b)
	echo.Stdout = c.w
	must(b, echo.Start(), c.w.Close())
	ctx, cancel := context.WithCancel(context.Background())
	event, rounds := host64(1), 0
	var group sync.WaitGroup
	group.Go(func() {
		defer in.Close()
		for ; ctx.Err() == nil; rounds++ {
			in.Write(event)
			c.Next(ctx)
		}
	})
	late := make([]time.Duration, b.N)
	begin := time.Now()
	for i := range late {
		due := time.Now().Add(300 * time.Microsecond)
		time.Sleep(time.Until(due))
		late[i] = time.Since(due)
	}
	took := time.Since(begin)
	cancel()
	group.Wait()
	echo.Wait()
	slices.Sort(late)
	b.ReportMetric(float64(took.Microseconds())/float64(rounds), "µs/exchange")
	b.ReportMetric(float64(late[len(late)/2].Microseconds()), "median-µs-late")
	b.ReportMetric(float64(late[len(late)*99/100].Microseconds()), "p99-µs-late")
	b.ReportMetric(0, "ns/op")
}

// TestWaitTwice: a second goroutine that waits on the channel gets an error, and the first one its
// event.
func TestWaitTwice(t *testing.T) {
	eachHold(t, func(t *testing.T, c *testChannel) {
		got := c.wait(t.Context())
		for !c.waiting.Load() {
			time.Sleep(100 * time.Microsecond)
		}
		c.expectErr(t, t.Context(), syscall.EBUSY)
		c.raise(t, 1)
		must(t, <-got)
		c.raise(t, 2)
		c.expect(t, t.Context(), 2)
	})
}

// TestBusyClocksClosed: the clocks of busy waits are closed with the last channel.
func TestBusyClocksClosed(t *testing.T) {
	others := openChannels.Swap(0)
	defer func() { openChannels.Add(others) }()
	c, s := newBusyChannel(t, time.Millisecond)
	d := newTestChannel(t, time.Millisecond)
	must(t, d.Close())
	if !s.clock.open {
		t.Error("the clock is closed while there is a channel")
	}
	must(t, c.Close())
	if s.clock.open {
		t.Error("the clock is open without a channel")
	}
}
