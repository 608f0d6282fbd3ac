package perf

import (
	"context"
	"math"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/uverbs"
)

// flow is the traffic of a queue pair.
type flow struct {
	qp     *uverbs.QP
	remote Peer
	ah     *uverbs.AH
	srq    *uverbs.SRQ // has the receives of DC, or those of all queue pairs

	wrs  []uverbs.SendWR // used again and again, as a ring
	sges []uverbs.SGE    // of wrs
	next int             // in wrs

	goal      int // messages to post
	posted    int
	completed int

	recvs []uverbs.SGE // of the receives, nil until they are posted
	credit

	end *End
}

// pace has a goroutine that is always busy let others run before Go's scheduler asks for it, which it
// does after 10 ms, and by a signal that is ignored: see occupy.
type pace struct {
	left   int // steps until the next look at the clock, which costs something as well
	stride int // steps between the last two
	last   time.Time
}

// often is the time between two looks, and seldom the most steps: what they do may become slower.
const (
	often  = 5 * time.Millisecond
	seldom = 1 << 7
)

// look lets others run, and sets after how many steps to do so again.
func (p *pace) look() {
	runtime.Gosched()
	now := time.Now()
	p.stride = stride(p.stride, now.Sub(p.last))
	p.left, p.last = p.stride, now
}

// stride returns how many steps to take until the next look if so many took so long.
func stride(n int, took time.Duration) int {
	return max(1, min(int(time.Duration(n)*often/max(took, 1)), 2*n, seldom))
}

// The ID of a send holds the number of its queue pair, and how many it had posted with it; that
// of a receive the queue pair and the slot.
const (
	sendShift = 40
	recvShift = 32
	sendMask  = 1<<sendShift - 1
	recvMask  = 1<<recvShift - 1
)

// build makes the work requests for a size.
func (f *flow) build(e *End, qp, size int) {
	c := &e.Config
	list := c.list()
	n := list * ((e.places(size) + list - 1) / list)
	f.wrs = make([]uverbs.SendWR, n)
	f.sges = make([]uverbs.SGE, n)
	f.next, f.posted, f.completed = 0, 0, 0
	for i := range f.wrs {
		at, remote := e.sendAt(qp, i, size)
		f.sges[i] = e.MR.SGE(at, size)
		if e.Local.NullMR {
			f.sges[i].LKey = e.nullKey
		}
		wr := &f.wrs[i]
		wr.SGL = f.sges[i : i+1 : i+1]
		wr.RemoteAddr, wr.RKey = f.remote.Addr+uint64(remote), f.remote.RKey
		switch c.Op {
		case Send:
			wr.Opcode = uverbs.WRSend
			if c.Imm {
				wr.Opcode, wr.Imm = uverbs.WRSendWithImm, immOf(qp)
			}
			wr.RemoteAddr, wr.RKey = 0, 0
		case Write:
			wr.Opcode = uverbs.WRRDMAWrite
			if c.Imm {
				wr.Opcode, wr.Imm = uverbs.WRRDMAWriteWithImm, immOf(qp)
			}
		case Read:
			wr.Opcode = uverbs.WRRDMARead
		case Atomic:
			wr.Opcode = uverbs.WRFetchAdd
			wr.CompareAdd = 1
			if c.AtomicType == Swap { // the first finds 0, and the others 1
				wr.Opcode, wr.CompareAdd, wr.Swap = uverbs.WRCompareSwap, 0, 1
			}
		}
		if c.datagrams() {
			wr.AH, wr.RemoteQPN, wr.RemoteQKey = f.ah, f.remote.QPN, qkey
			if c.CM {
				wr.RemoteQKey = qkeyCM
			}
		}
		if c.Type == XRC {
			wr.RemoteSRQN = f.remote.SRQN
		}
		if c.Type == DC {
			wr.AH, wr.RemoteQPN, wr.DCAccessKey = f.ah, f.remote.QPN, dcKey
			wr.DCStream = uint16(i & (1<<c.Streams - 1))
		}
		if (c.Op == Send || c.Op == Write) && size <= e.Inline && !e.Local.Foreign() && !e.Local.NullMR {
			wr.SGL, wr.Inline = nil, e.MR.Bytes()[at:at+size]
		}
	}
}

// fillQueue posts all receives, unless they are posted already.
func (f *flow) fillQueue(e *End, qp, size int) error {
	if f.recvs != nil || !e.Config.receives(e.Server) {
		return nil
	}
	for slot := range e.memory.slots {
		at := e.recvAt(qp, slot, size)
		if e.Config.Type == UD {
			at -= uverbs.GRHSize
		}
		f.recvs = append(f.recvs, e.MR.SGE(at, e.memory.recvSize))
		if err := f.postRecv(uint64(qp)<<recvShift|uint64(slot), f.recvs[slot:slot+1]...); err != nil {
			return err
		}
	}
	return nil
}

// post posts the next n work requests by one doorbell; the last of each group of moderate has
// a completion, and the last of all.
func (f *flow) post(qp, n, moderate int, last bool) error {
	wrs := f.wrs[f.next : f.next+n]
	for i := range wrs {
		f.posted++
		wrs[i].ID = uint64(qp)<<sendShift | uint64(f.posted)
		wrs[i].Flags = 0
		if f.posted%moderate == 0 || f.posted == f.goal || last && i == n-1 {
			wrs[i].Flags = uverbs.SendSignaled
		}
	}
	f.credit.sent += uint32(n)
	if f.next += n; f.next == len(f.wrs) {
		f.next = 0
	}
	if err := f.qp.PostSend(wrs...); err != nil {
		return err
	}
	return f.end.turn()
}

// postOne is post for a single message on the only queue pair of a latency test, which has one work request.
func (f *flow) postOne(signaled bool) error {
	f.posted++
	wr := &f.wrs[0]
	wr.ID, wr.Flags = uint64(f.posted), 0
	if signaled {
		wr.Flags = uverbs.SendSignaled
	}
	f.credit.sent++
	return f.qp.PostSend(f.wrs...)
}

// Run is what one side has measured of one size.
type Run struct {
	Latencies []int64       // Latencies are in nanoseconds, of a latency test's client: half of the round trip of a message, or the time of a READ or atomic. Without warm-up the first message is not counted.
	Took      time.Duration // Took is the time of the messages that count.
	CPU       time.Duration // CPU is what this process has used of its processors meanwhile.
	Sent      int64         // Sent are the messages that count, of all queue pairs.
	Received  int64         // Received are all that came, those of the warm-up included.
	AllSent   int64         // AllSent are all messages sent, including the warm-up.
	Counters  []Counter     `json:"-"` // Counters say how much the counters of Local have grown.
}

// meter takes the time of a run.
type meter struct {
	clock
	times   []int64 // before each doorbell, as the clock counts
	ns      float64 // of a count
	cpu     time.Duration
	running bool
}

// newMeter makes a meter.
func newMeter() *meter { return &meter{clock: newClock(countable())} }

// begin begins what counts.
func (m *meter) begin() {
	m.mark()
	m.running = true
}

// mark has the time that counts begin now, of a side that takes no latencies.
func (m *meter) mark() {
	m.cpu = cpuTime()
	m.start()
}

// stamp records the time before a message is posted. It allocates nothing.
func (m *meter) stamp() { m.times = append(m.times, m.now()) }

// end ends it.
func (m *meter) end(r *Run) {
	r.Took, m.ns = m.stop()
	r.CPU = cpuTime() - m.cpu
}

// cpuTime returns the processor time that this process has used, its own and the kernel's.
func cpuTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// sampled is how many latencies there is room for at once, if it is not known how many come.
const sampled = 1 << 20

// Run does the traffic of a size, for which Prepare has made ready. Sent is called when all
// that this side sends on its own account has been sent, if it is not nil.
func (e *End) Run(ctx context.Context, size int, sent func(messages int64) error) (_ *Run, err error) {
	if !e.Dev.Info().InProcess { // whose goroutines need a processor and its monitor
		defer occupy()()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	e.ctx = ctx
	waiting, wake := context.WithCancel(ctx)
	defer wake()
	e.waiting = waiting
	e.wake.Store(&wake)
	if e.peerHas.Load() != 0 {
		wake()
	}
	e.armed, e.empty, e.pace = [2]*uverbs.CQ{}, 0, pace{}
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		e.impatience(ctx, cancel)
	}()
	defer func() {
		cancel(nil)
		<-watching
		if e.timer != nil {
			e.timer.Stop()
		}
	}()
	room := e.Config.total() + 1
	if room == 1 {
		room = sampled
	}
	m := newMeter()
	r := &Run{}
	if e.Config.Metric == Lat && !e.Server {
		m.times = make([]int64, 0, room)
	}
	defer e.running.Store(false)
	runtime.GC() // now rather than later
	err = e.Local.count(e.Dev, e.Port, r, func() error {
		m.mark()
		switch {
		case e.Config.Metric == BW:
			return e.bandwidth(size, m, r, sent)
		case e.Config.messages():
			return e.sendLat(size, m, r)
		case e.Config.Op == Write:
			return e.writeLat(size, m, r)
		case !e.Server:
			return e.readLat(size, m, r)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if e.Config.Metric == Lat {
		if e.Server && e.Config.sends(true) {
			m.end(r)
		}
		r.Latencies = m.latencies(e.Config.Op, r.Took)
		if sent != nil && !e.Server {
			err = sent(r.AllSent)
		}
	}
	return r, err
}

// latencies turns the times at which messages were posted into how long each took. A message that
// was the only one took all of the time.
func (m *meter) latencies(op string, took time.Duration) []int64 {
	l := m.times
	switch len(l) {
	case 0:
		return nil
	case 1:
		l = append(l, l[0]+int64(float64(took)/m.ns))
	}
	ns := m.ns
	if op == Send || op == Write {
		ns /= 2
	}
	for i := range len(l) - 1 {
		l[i] = int64(math.Round(float64(l[i+1]-l[i]) * ns))
	}
	return l[:len(l)-1]
}

// impatience ends a run in which nothing happens for too long.
func (e *End) impatience(ctx context.Context, cancel context.CancelCauseFunc) {
	Watch(ctx, e.Config.Timeout, &e.count, func() {
		cancel(refusef("nothing was completed for %s: the peer may be gone, or a message lost", e.Config.Timeout))
	})
}

// politeness is the number of fruitless polls after which the processor is offered to others, where
// it is not the next completion alone that counts: software devices do their work in threads of
// the kernel's, which get to run sooner then. Where there are no others it costs little.
const politeness = 1 << 8

// spins is the number of fruitless looks between those at the context.
const spins = 1 << 12

// idle is called after each fruitless poll.
func (e *End) idle(a, b *uverbs.CQ) error {
	if e.Channel != nil {
		return e.sleep(a, b)
	}
	e.empty++
	if e.Config.Metric == BW && e.empty%politeness == 0 {
		unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) // always succeeds
	}
	if e.empty%spins == 0 {
		return e.breathe()
	}
	return nil
}

// turn is called for each message of a loop that may never wait. It calls look now and then.
func (e *End) turn() error {
	if e.pace.left--; e.pace.left > 0 {
		return nil
	}
	return e.look()
}

// look lets others run, publishes how many messages are done, and checks whether the run is over.
func (e *End) look() error {
	e.pace.look()
	e.count.Store(e.progress())
	return e.cancelled()
}

// cancelled returns why the context has ended, if it has.
func (e *End) cancelled() error {
	if e.ctx.Err() != nil {
		return context.Cause(e.ctx)
	}
	return nil
}

// breathe checks whether the run is over, publishes how many messages are done, and lets others
// run.
func (e *End) breathe() error {
	if err := e.cancelled(); err != nil {
		return err
	}
	e.count.Store(e.progress())
	runtime.Gosched()
	return nil
}

// sleep arms completion queues the first time, and sleeps the second. They must be the same then: a
// completion that came before its queue was armed raises no event, and whoever has found it by
// polling may wait for another queue next.
func (e *End) sleep(a, b *uverbs.CQ) error {
	if e.peerHas.Load() != 0 { // no completion may come
		time.Sleep(time.Millisecond)
		return e.breathe()
	}
	if want := [2]*uverbs.CQ{a, b}; e.armed != want {
		e.armed = want
		if b != nil {
			if err := b.Notify(); err != nil {
				return err
			}
		}
		return a.Notify()
	}
	e.armed = [2]*uverbs.CQ{}
	e.count.Store(e.progress())
	ch := e.Channel
	if a == e.SendCQ {
		ch = e.SendChannel
	}
	_, err := ch.Next(e.waiting)
	switch {
	case err == nil:
		return nil
	case e.ctx.Err() != nil:
		return context.Cause(e.ctx)
	case e.waiting.Err() != nil:
		return nil
	}
	return err
}

// quiet is the time without a message after which the rest counts as lost.
const quiet = 300 * time.Millisecond

// over reports, after a fruitless poll, whether all that the peer has sent has come or is lost.
func (e *End) over(received int64, last *time.Time) bool {
	sent := e.peerHas.Load()
	if sent == 0 {
		return false
	}
	if received >= sent-1 {
		return true
	}
	if last.IsZero() {
		*last = time.Now()
	}
	return time.Since(*last) > quiet
}

// arrived looks at the completion of a receive, and at the message if that is wanted.
func (e *End) arrived(wc *uverbs.WC, size int) error {
	qp, slot := int(wc.ID>>recvShift), int(wc.ID&recvMask)
	if wc.Status != uverbs.WCSuccess {
		return e.receiver(qp).Err(wc)
	}
	want := size
	if e.Config.Type == UD {
		want += uverbs.GRHSize
	}
	if wc.Opcode != e.takes || wc.Flags&e.flags != e.flags { // WRITE with immediate data takes a receive, too
		return e.errKind(wc)
	}
	if int(wc.ByteLen) != want {
		return refusef("a message of %d bytes has come, expected %d", wc.ByteLen, want)
	}
	if e.Config.Verify {
		return e.checkMessage(wc, qp, slot, size)
	}
	return nil
}

// recvAgain posts a receive again whose completion has been looked at.
func (e *End) recvAgain(wc *uverbs.WC) error {
	qp, slot := wc.ID>>recvShift, wc.ID&recvMask
	f := &e.flows[qp]
	f.credit.taken++
	return f.postRecv(wc.ID, f.recvs[slot:slot+1]...)
}
