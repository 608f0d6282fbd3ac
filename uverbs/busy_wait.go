package uverbs

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// A goroutine that parks in the netpoller is woken by way of Go's scheduler: the thread that polls
// the network hands the processor over, the scheduler's monitor wakes up, and often a further
// thread does, too. When events come often, Wait therefore sleeps in the kernel without telling the
// scheduler, and keeps its thread and its processor (one of GOMAXPROCS). That is a busy wait,
// although it takes no processor time.
//
// Five rules limit what other goroutines lose:
//
//   - The wait before it was shorter than [CompChannel.SetBusyWait] says.
//   - A series of busy waits lasts no longer than that time. Then one wait parks, which lets the
//     scheduler run timers, the network and other goroutines.
//   - One processor is left to other goroutines, if there are several. No busy wait begins while
//     another goroutine is parked in a Wait that may end soon, since a parked wait of another channel
//     has just ended: what that goroutine does could be what this one waits for.
//   - At the beginning of a series, a goroutine is started, which makes another thread look for work.
//     The thread of the busy wait may have been the one that polled the network and timers, in which
//     case nobody else would do so.
//   - If that goroutine has not run after trialTime, the other processors are busy, or a thread had
//     to be made for it. Then the series ends, and if it happens twice, no other one begins for
//     crowdedTime.

// Times of [CompChannel.SetBusyWait]. Go's scheduler lets a goroutine run for 10 ms before others get
// their turn.
const (
	defaultBusyWait = 10 * time.Millisecond
	soleBusyWait    = time.Millisecond // the default if GOMAXPROCS is 1
	maxBusyWait     = time.Second
)

const (
	trialTime   = time.Millisecond
	crowdedTime = 100 * time.Millisecond
)

var (
	crowdedUntil atomic.Int64 // when series may begin again, in nanoseconds since started
	failedTrials atomic.Int32 // in a row
)

// busySlot permits one busy wait at a time, and measures how long a series of them has lasted. A
// slot belongs to no channel: if it did, a goroutine that waits on two channels in turn could begin
// a new series each time. The clock is one of the kernel, since it must also end a sleep. A timeout
// for each sleep would set and cancel a timer each time, which is expensive.
type busySlot struct {
	mu     sync.Mutex    // held during a busy wait
	series time.Duration // guarded by mu: how long the series lasts from its beginning, 0 if there is none
	clock  busyClock     // guarded by mu
	trial  bool          // guarded by mu: the clock fires after trialTime
	number atomic.Int64  // of the series; changed with mu held
	ran    atomic.Int64  // the number of the latest series during which a goroutine has run
}

// busySlots are the slots of the process.
var busySlots [64]busySlot

// parkedWaits is the number of goroutines that are parked in [CompChannel.Next].
var parkedWaits atomic.Int32

// endedWaits has the last parked waits that have ended, of two different channels, the later one first.
var endedWaits struct {
	mu   sync.Mutex
	last [2]endedWait // guarded by mu
}

// endedWait is a parked wait that has ended.
type endedWait struct {
	number int64         // of the channel; 0 means that there is none
	at     time.Duration // when it has ended, since started
}

// parkedWaitEnded records that a parked wait of the channel ends.
func (c *CompChannel) parkedWaitEnded(at time.Duration) {
	e := &endedWaits
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.last[0].number != c.number {
		e.last[1] = e.last[0]
	}
	e.last[0] = endedWait{c.number, at}
}

// othersWait reports whether another goroutine is parked in a Wait, and a parked wait of another channel
// has ended within the last d. A goroutine that waits for a long time does not matter.
func (c *CompChannel) othersWait(d time.Duration) bool {
	if parkedWaits.Load() == 0 {
		return false
	}
	e := &endedWaits
	e.mu.Lock()
	defer e.mu.Unlock()
	w := e.last[0]
	if w.number == c.number {
		w = e.last[1]
	}
	return w.number != 0 && time.Since(started)-w.at < d
}

// busyWait waits for an event in the kernel for up to d. It returns the size of the event that it
// has read, or the CQ of an event that it has not read, or neither if the wait must go on in the
// netpoller. Then vain reports whether it has lasted for all of d.
func (c *CompChannel) busyWait(d time.Duration) (n int, cq *CQ, vain bool) {
	if runtime.GOMAXPROCS(0) == 1 { // others that are ready to run may be what this one waits for
		runtime.Gosched()
	}
	s, begins := c.busySlot(d)
	if s == nil {
		return 0, nil, false
	}
	defer s.mu.Unlock()
	n, cq, over := s.clock.wait(c)
	if over && s.trial && s.passes(d) {
		over = false
		if n == 0 && cq == nil {
			n, cq, over = s.clock.wait(c)
		}
	}
	if over {
		s.series = 0
		c.slot, c.often, c.over = nil, false, true
	}
	return n, cq, over && begins && n == 0 && cq == nil
}

// busySlot returns a slot whose mutex is held, or nil if there is none or its clock fails. The slot
// has a series of d or less; begins reports whether the series has just begun.
func (c *CompChannel) busySlot(d time.Duration) (s *busySlot, begins bool) {
	if c.othersWait(d) {
		return nil, false
	}
	if s = c.slot; s == nil || !s.mu.TryLock() {
		if s = freeBusySlot(); s == nil {
			return nil, false
		}
		c.slot = s
	}
	if s.series != 0 && s.series <= d {
		return s, false
	}
	first := d
	if s.trial = runtime.GOMAXPROCS(0) > 1; s.trial {
		first = min(d, trialTime)
	}
	if s.trial && int64(time.Since(started)) < crowdedUntil.Load() || !s.clock.start(first) {
		s.series = 0
		s.mu.Unlock()
		return nil, false
	}
	s.series = d
	s.number.Add(1)
	go noteRun() // on another processor, as this goroutine keeps this one
	return s, true
}

// noteRun records in all slots that a goroutine runs. It has no arguments, since a go statement allocates
// memory for them.
func noteRun() {
	for i := range busySlots {
		s := &busySlots[i]
		s.ran.Store(s.number.Load())
	}
}

// passes ends the trial of a series of d. It reports whether the series goes on. The caller holds mu.
func (s *busySlot) passes(d time.Duration) bool {
	s.trial = false
	if s.ran.Load() != s.number.Load() {
		if failedTrials.Add(1) > 1 {
			crowdedUntil.Store(int64(time.Since(started) + crowdedTime))
		}
		return false
	}
	failedTrials.Store(0)
	return d > trialTime && s.clock.start(d-trialTime)
}

// freeBusySlot returns a slot whose mutex is held, or nil if there is none.
func freeBusySlot() *busySlot {
	n := max(runtime.GOMAXPROCS(0)-1, 1)
	for i := range min(n, len(busySlots)) {
		if s := &busySlots[i]; s.mu.TryLock() {
			return s
		}
	}
	return nil
}

// openChannels is the number of completion channels that may have busy waits, and lastChannel the number
// of the last one that was opened.
var (
	openChannels atomic.Int32
	lastChannel  atomic.Int64
)

// channelClosed releases the clocks if no channel needs them.
func channelClosed() {
	if openChannels.Add(-1) > 0 {
		return
	}
	for i := range busySlots {
		if s := &busySlots[i]; s.mu.TryLock() { // a new channel may use it already
			s.series = 0
			s.clock.close()
			s.mu.Unlock()
		}
	}
}
