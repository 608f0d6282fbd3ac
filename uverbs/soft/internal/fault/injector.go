package fault

import (
	"container/heap"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/uverbs/soft/internal/udp"
)

// DefaultMaxHeld is the default of Options.MaxHeld.
const DefaultMaxHeld = 4096

// Options are the options of an [Injector].
type Options struct {
	Config  Config // what happens at first
	Clock   Clock  // nil: the clock of the operating system
	MaxHeld int    // number of delayed and held-back packets that are kept; 0: DefaultMaxHeld. More are dropped.

	// Trace gets a line for each packet: the time since New in seconds, the direction, the addresses,
	// the packet in words, and what was decided about it. nil: none. Every write is one line.
	Trace io.Writer
	// Capture gets the packets in the pcapng format, each of them once, with what was decided about it
	// as a comment. Packets that are lost are there too, and a corrupt packet is there with the damage of
	// its first copy. nil: none. Every write is one block.
	Capture io.Writer
	// Device is the name of the device in the capture.
	Device string

	// Remove removes the device, see Rule.Remove. It is called while packets wait, so it must not wait for
	// them. nil: it stays.
	Remove func()
}

// An Injector injects faults into the packets of one device. It is safe for concurrent use.
type Injector struct {
	clock   Clock
	maxHeld int
	trace   *tracer // nil: none
	remove  func()  // nil: none
	counts  [2]counters

	config atomic.Pointer[Config]
	active atomic.Pointer[state] // nil: nothing happens to any packet

	mu       sync.Mutex
	idle     sync.Cond // signalled when flushing becomes false
	held     heldHeap  // delayed and held-back packets
	free     *held     // unused, with memory
	outboxes []*outbox // unused, with memory
	order    uint64    // of the next packet in held
	timer    Timer     // nil until the first packet is held
	wakeAt   time.Time // when the timer calls, zero if it does not
	flushing bool      // flush is delivering packets
	closed   bool
}

// state is what decides about packets. It is never changed, apart from what its pointers refer to.
type state struct {
	seed  uint64
	rules []Rule
	live  *live
	cuts  []cut
}

// live is what changes with every packet. It is guarded by Injector.mu.
type live struct {
	streams map[streamKey]*stream
	limits  []([2]limit) // by rule and direction
	removal []uint64     // by rule: packets of one with Rule.Remove
}

// maxStreams bounds the memory for streams. Beyond it, all streams begin again.
const maxStreams = 1 << 16

// stream is the state of one stream.
type stream struct {
	random uint64
	n      uint64  // number of the next packet
	behind []*held // held-back packets, the oldest first
}

// limit is the state of a rate limit.
type limit struct {
	next    time.Time // when the next packet may go
	pending int       // packets that wait for it
}

// cut is a partition from one address to another. An invalid address stands for all.
type cut struct{ from, to netip.Addr }

// New returns an injector. It fails if the Config is not valid.
func New(o Options) (*Injector, error) {
	f := &Injector{clock: o.Clock, maxHeld: o.MaxHeld, remove: o.Remove}
	f.idle.L = &f.mu
	if f.clock == nil {
		f.clock = SystemClock{}
	}
	if f.maxHeld == 0 {
		f.maxHeld = DefaultMaxHeld
	}
	if f.maxHeld < 0 {
		return nil, fmt.Errorf("fault: MaxHeld is %d; it must not be negative", o.MaxHeld)
	}
	if o.Trace != nil || o.Capture != nil {
		var err error
		if f.trace, err = newTracer(&o, f.clock.Now()); err != nil {
			return nil, err
		}
	}
	return f, f.SetConfig(o.Config)
}

// SetConfig replaces the rules, the plan and the seed. All streams begin again with packet 0, even if
// the new Config is the old one. Packets that are delayed or held back at this moment stay so.
// Partitions stay as they are.
func (f *Injector) SetConfig(c Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	c.Rules, c.Plan = slices.Clone(c.Rules), slices.Clone(c.Plan)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	f.config.Store(&c)
	next := &state{seed: c.Seed, rules: c.Rules, cuts: f.cuts()}
	next.live = &live{streams: make(map[streamKey]*stream), limits: make([][2]limit, len(c.Rules)), removal: make([]uint64, len(c.Rules))}
	f.activate(next)
	return nil
}

// Config returns the present configuration. The caller must not change its slices.
func (f *Injector) Config() Config { return *f.config.Load() }

// Plan returns the present plan, nil for a nil Injector.
func (f *Injector) Plan() Plan {
	if f == nil {
		return nil
	}
	return f.config.Load().Plan
}

// Partition stops all packets between two addresses, in both directions. Packets that are delayed or
// held back at this moment are delivered. The zero Addr stands for all addresses, so
// Partition(local, netip.Addr{}) isolates an address. Only the addresses of the [Path] and of the
// peer count.
func (f *Injector) Partition(a, b netip.Addr) {
	f.addCuts(cut{plain(a), plain(b)}, cut{plain(b), plain(a)})
}

// PartitionOneWay is like Partition for packets from one address to the other.
func (f *Injector) PartitionOneWay(from, to netip.Addr) {
	f.addCuts(cut{plain(from), plain(to)})
}

// Heal ends all partitions that Partition or PartitionOneWay made with these two addresses, in both
// directions.
func (f *Injector) Heal(a, b netip.Addr) {
	f.changeCuts(func(cuts []cut) []cut {
		return slices.DeleteFunc(cuts, func(c cut) bool {
			return c == cut{plain(a), plain(b)} || c == cut{plain(b), plain(a)}
		})
	})
}

// HealAll ends all partitions.
func (f *Injector) HealAll() { f.changeCuts(func([]cut) []cut { return nil }) }

// addCuts adds partitions.
func (f *Injector) addCuts(add ...cut) {
	f.changeCuts(func(cuts []cut) []cut {
		for _, c := range add {
			if !slices.Contains(cuts, c) {
				cuts = append(cuts, c)
			}
		}
		return cuts
	})
}

// changeCuts replaces the partitions.
func (f *Injector) changeCuts(change func([]cut) []cut) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	next := state{live: new(live)}
	if old := f.active.Load(); old != nil {
		next = *old
	}
	next.cuts = change(slices.Clone(next.cuts))
	f.activate(&next)
}

// cuts returns the partitions. Preconditions: f.mu is held.
func (f *Injector) cuts() []cut {
	if s := f.active.Load(); s != nil {
		return s.cuts
	}
	return nil
}

// activate stores a state, or nil if it does nothing. Preconditions: f.mu is held.
func (f *Injector) activate(s *state) {
	if len(s.rules) == 0 && len(s.cuts) == 0 {
		s = nil
	}
	f.active.Store(s)
}

// Close drops all packets that are delayed or held back, and ends the trace. From now on, nothing
// happens to any packet. Close waits for deliveries that are under way in goroutines of the
// injector: a Send or Receive function of a Path must not call it.
func (f *Injector) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	f.active.Store(nil)
	f.config.Store(new(Config))
	if f.timer != nil {
		f.timer.Stop()
	}
	f.held, f.free, f.outboxes = nil, nil, nil
	for f.flushing {
		f.idle.Wait()
	}
	if f.trace != nil {
		f.trace.lines, f.trace.capture = nil, nil
	}
}

// TraceErr returns the errors of the writers of the trace. After an error, a writer is not used any more.
func (f *Injector) TraceErr() error {
	if f.trace == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.trace.failed
}

// matches returns the index of the rule that selects a packet, -1 for none.
func (s *state) matches(p *packet) int {
	for i := range s.rules {
		if s.rules[i].selects(p) {
			return i
		}
	}
	return -1
}

// parted reports whether a partition stops a packet.
func (s *state) parted(local netip.Addr, p *packet) bool {
	if len(s.cuts) == 0 {
		return false
	}
	from, to := plain(local), plain(p.peer.Addr())
	if p.dir == Received {
		from, to = to, from
	}
	for _, c := range s.cuts {
		if (!c.from.IsValid() || c.from == from) && (!c.to.IsValid() || c.to == to) {
			return true
		}
	}
	return false
}

// stream returns the state of a packet's stream.
func (l *live) stream(seed uint64, k streamKey) *stream {
	st := l.streams[k]
	if st == nil {
		if len(l.streams) >= maxStreams {
			clear(l.streams)
		}
		st = &stream{random: k.random(seed)}
		l.streams[k] = st
	}
	return st
}

// wait returns how long a packet must wait for the limit, and counts it.
func (l *limit) wait(now time.Time, size int, rate uint64) time.Duration {
	if l.next.Before(now) {
		l.next = now
	}
	d := l.next.Sub(now)
	l.next = l.next.Add(time.Duration(float64(size) * 8 * float64(time.Second) / float64(rate)))
	return d
}

// held is a packet that is delayed or held back, with its own copy of the bytes.
type held struct {
	at    time.Time // when it is delivered at the latest
	order uint64    // decides between packets of one time
	index int       // in the heap

	path *Path
	dir  Direction
	peer netip.AddrPort
	data []byte

	sent   sentInfo    // of a packet that is sent
	got    udp.Meta    // of a received packet
	handle udp.Handler // of a received packet: where it came in

	stream *stream // of a packet that is held back
	behind int     // how many packets must still overtake it
	limit  *limit  // rate limit that it waits for
	next   *held   // in a list
}

// heldHeap is a heap by time.
type heldHeap []*held

func (h heldHeap) Len() int { return len(h) }

func (h heldHeap) Less(i, j int) bool {
	if h[i].at.Equal(h[j].at) {
		return h[i].order < h[j].order
	}
	return h[i].at.Before(h[j].at)
}

func (h heldHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements heap.Interface.
func (h *heldHeap) Push(x any) {
	p := x.(*held)
	p.index = len(*h)
	*h = append(*h, p)
}

// Pop implements heap.Interface.
func (h *heldHeap) Pop() any {
	last := len(*h) - 1
	p := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return p
}

var _ heap.Interface = (*heldHeap)(nil)
