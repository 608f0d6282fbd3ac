package engine

import (
	"container/heap"
	"math/rand/v2"
	"sync"
	"time"
)

// FabricConfig says how a fabric behaves. The zero value is a fabric that runs by itself
// and loses nothing.
type FabricConfig struct {
	Manual    bool          // Manual: nothing happens outside of Run, and time is virtual.
	Seed      uint64        // Seed of everything that is left to chance.
	Loss      float64       // Loss is the probability that a packet is lost.
	Duplicate float64       // Duplicate is the probability that a packet arrives twice.
	Delay     time.Duration // Delay is the longest time that a packet takes; each takes its own, so that they overtake.
}

// Fabric joins devices, and is the clock and the worker of all of them.
type Fabric struct {
	mu      sync.Mutex
	cfg     FabricConfig
	rng     *rand.Rand
	devices []*Device
	ids     int
	tasks   taskHeap
	seq     uint64
	virtual time.Duration
	start   time.Time
	wake    chan struct{}
	done    chan struct{}
	closed  bool
	faults  []*packetFault
	idle    []func() // to do at the next Run, of a manual fabric
}

// NewFabric makes a fabric. One that isn't manual has a goroutine until Close.
func NewFabric(cfg FabricConfig) *Fabric {
	f := &Fabric{
		cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0x6663)), start: time.Now(),
		wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	if cfg.Manual {
		close(f.done)
	} else {
		go f.work()
	}
	return f
}

// Close stops the fabric. Its devices execute nothing any more.
func (f *Fabric) Close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.poke()
	<-f.done
}

// Configure changes loss, duplication and delay from now on. Manual and Seed stay.
func (f *Fabric) Configure(cfg FabricConfig) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cfg.Loss, f.cfg.Duplicate, f.cfg.Delay = cfg.Loss, cfg.Duplicate, cfg.Delay
}

// join adds a device and gives it a number.
func (f *Fabric) join(d *Device) int {
	f.devices = append(f.devices, d)
	f.ids++
	return f.ids
}

// leave takes a device off.
func (f *Fabric) leave(d *Device) {
	for i, e := range f.devices {
		if e == d {
			f.devices = append(f.devices[:i:i], f.devices[i+1:]...)
			return
		}
	}
}

// timer is something to do at a time.
type timer struct {
	at   time.Duration
	seq  uint64
	fn   func()
	dead bool
}

type taskHeap []*timer

func (h taskHeap) Len() int { return len(h) }
func (h taskHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h taskHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *taskHeap) Push(x any)   { *h = append(*h, x.(*timer)) }
func (h *taskHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return t
}

// clock is the time since the fabric was made.
func (f *Fabric) clock() time.Duration {
	if f.cfg.Manual {
		return f.virtual
	}
	return time.Since(f.start)
}

// after schedules fn. It runs with the lock held.
func (f *Fabric) after(delay time.Duration, fn func()) *timer {
	f.seq++
	t := &timer{at: f.clock() + delay, seq: f.seq, fn: fn}
	heap.Push(&f.tasks, t)
	f.poke()
	return t
}

// soon schedules fn for now: after what is due already, timers too.
func (f *Fabric) soon(fn func()) { f.after(0, fn) }

// cancel forgets a timer.
func (f *Fabric) cancel(t **timer) {
	if *t != nil {
		(*t).dead = true
		*t = nil
	}
}

// poke wakes the worker.
func (f *Fabric) poke() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// work runs what is due, in real time, until the fabric is closed.
func (f *Fabric) work() {
	defer close(f.done)
	sleep := time.NewTimer(0)
	for {
		f.mu.Lock()
		if f.closed {
			f.mu.Unlock()
			return
		}
		wait := time.Hour
		if len(f.tasks) > 0 {
			wait = f.tasks[0].at - f.clock()
		}
		if wait <= 0 {
			f.step()
			f.mu.Unlock()
			continue
		}
		f.mu.Unlock()
		sleep.Reset(wait)
		select {
		case <-f.wake:
		case <-sleep.C:
		}
	}
}

// step runs the first task.
func (f *Fabric) step() {
	t := heap.Pop(&f.tasks).(*timer)
	if t.dead {
		return
	}
	if f.cfg.Manual {
		f.virtual = max(f.virtual, t.at)
	}
	t.fn()
}

// Run lets a manual fabric do all that is to do, timers included, until nothing is left
// or the number of steps is reached. It reports whether nothing is left.
func (f *Fabric) Run(steps int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.look()
	for ; len(f.tasks) > 0; steps-- {
		if steps <= 0 {
			return false
		}
		f.step()
	}
	return true
}

// look does what a fabric that runs by itself does from time to time.
func (f *Fabric) look() {
	idle := f.idle
	f.idle = nil
	for _, fn := range idle {
		fn()
	}
}

// RunFor lets a manual fabric do what is to do in a span of virtual time.
func (f *Fabric) RunFor(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.look()
	end := f.virtual + d
	for len(f.tasks) > 0 && f.tasks[0].at <= end {
		f.step()
	}
	f.virtual = max(f.virtual, end)
}

// Now is the fabric's time.
func (f *Fabric) Now() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.clock()
}

// now is the device's clock in ticks of a nanosecond, as CQEs carry it.
func (d *Device) now() uint64 { return uint64(d.f.clock()) }
