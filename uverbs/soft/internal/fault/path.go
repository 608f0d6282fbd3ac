package fault

import (
	"container/heap"
	"net/netip"
	"slices"
	"time"

	"github.com/goverbs/goverbs/uverbs/soft/internal/udp"
)

// A Path is the place between one local address of a device and what carries its packets: a socket, or
// another device in the process. It is safe for concurrent use.
type Path struct {
	PathOptions
	injector *Injector
}

// PathOptions are the options of a [Path]. The functions keep nothing of what they are given, and do
// not change packets that they receive.
type PathOptions struct {
	// Local is the local address.
	Local netip.AddrPort
	// Send sends packets. It is called by [Path.Send], and for packets that are sent later in a
	// goroutine of the clock.
	Send func(*udp.Batch) error
	// Late takes received packets that are delivered later by a goroutine of the clock. All calls of
	// Late and Flush come one after the other. nil: the handler that was given to [Path.Handler] takes
	// them, and must be safe for concurrent use.
	Late udp.Handler
	// Flush is called after one or more calls of Late. It may be nil.
	Flush func()
}

// Path returns a Path for a local address.
func (f *Injector) Path(o PathOptions) *Path { return &Path{o, f} }

// sentInfo is what a batch knows of a packet besides its bytes.
type sentInfo struct {
	ip   udp.IP
	flip int // the bit to flip behind the ICRC, -1 for none
}

// Send sends the packets of a batch, apart from those that a rule or a partition stops. Packets that
// are delayed or held back are copied, so the caller may reuse the batch. Send returns the first error
// of the function that sends; errors for packets that are sent later are lost.
func (p *Path) Send(b *udp.Batch) error {
	f := p.injector
	s := f.active.Load()
	if f.trace == nil && (s == nil || !s.concerns(p, b)) {
		return p.PathOptions.Send(b)
	}
	f.mu.Lock()
	if f.closed {
		s = nil
	}
	out := f.takeOutbox()
	now := f.clock.Now()
	for i := range b.Len() {
		to, data := b.Packet(i)
		info := sentInfo{b.IP(i), -1}
		if bit, ok := b.Flipped(i); ok {
			info.flip = bit
		}
		p.judgeSent(s, now, to, data, info, out)
	}
	f.arm(now)
	f.mu.Unlock()
	err := out.send(p)
	f.mu.Lock()
	f.putOutbox(out)
	f.mu.Unlock()
	return err
}

// Quiet reports whether nothing happens to any packet, and none is recorded.
func (p *Path) Quiet() bool { return p.injector.trace == nil && p.injector.active.Load() == nil }

// concerns reports whether any packet of a batch is selected by a rule or stopped by a partition.
func (s *state) concerns(p *Path, b *udp.Batch) bool {
	for i := range b.Len() {
		to, data := b.Packet(i)
		pk := look(Sent, to, data)
		if s.parted(p.Local.Addr(), &pk) || s.matches(&pk) >= 0 {
			return true
		}
	}
	return false
}

// judgeSent decides about a packet, puts the copies to send now into an outbox, and keeps the others.
// Preconditions: f.mu is held.
func (p *Path) judgeSent(s *state, now time.Time, to netip.AddrPort, data []byte, info sentInfo, out *outbox) {
	f := p.injector
	pk := look(Sent, to, data)
	v := f.judge(s, p, &pk)
	passed := false
	for i := range v.copies {
		info := info // of this copy
		if v.fates[i].corrupt {
			info.flip = flip(v.fates[i].bit, len(data))
		}
		if h, now := f.hold(s, p, &v, i, now, &pk, data); now {
			out.add(to, data, info)
			passed = true
		} else if h != nil {
			h.sent = info
		}
	}
	f.record(now, p, &pk, &v, data, info.ip, 0)
	if passed && v.stream != nil {
		for h := f.overtake(&v); h != nil; h = f.recycle(h) {
			out.add(h.peer, h.data, h.sent)
		}
	}
}

// Handler returns a handler for the packets that the device receives. It calls h for a packet unless a
// rule or a partition stops the packet or delays it. It may also call h for packets that were held back
// before, also those that came through another handler of the Path.
func (p *Path) Handler(h udp.Handler) udp.Handler {
	return func(from netip.AddrPort, pkt []byte, m udp.Meta) { p.receive(h, from, pkt, m) }
}

// receive handles a received packet.
func (p *Path) receive(handle udp.Handler, from netip.AddrPort, pkt []byte, m udp.Meta) {
	f := p.injector
	s := f.active.Load()
	if s == nil && f.trace == nil {
		handle(from, pkt, m)
		return
	}
	pk := look(Received, from, pkt)
	if f.trace == nil && !s.parted(p.Local.Addr(), &pk) && s.matches(&pk) < 0 {
		handle(from, pkt, m)
		return
	}
	times, late := p.judgeReceived(s, handle, &pk, pkt, m)
	for range times {
		handle(from, pkt, m)
	}
	for h := late; h != nil; h = h.next {
		handle(h.peer, h.data, h.got)
	}
	if late != nil {
		f.mu.Lock()
		for h := late; h != nil; h = f.recycle(h) {
		}
		f.mu.Unlock()
	}
}

// judgeReceived decides about a packet. It returns how often the device gets the packet now, and a
// list of packets that it gets behind it.
func (p *Path) judgeReceived(s *state, handle udp.Handler, pk *packet, data []byte, m udp.Meta) (times int, late *held) {
	f := p.injector
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		s = nil
	}
	now := f.clock.Now()
	v := f.judge(s, p, pk)
	for i := range v.copies {
		if v.fates[i].corrupt {
			continue
		}
		if h, now := f.hold(s, p, &v, i, now, pk, data); now {
			times++
		} else if h != nil {
			h.got, h.handle = m, handle
		}
	}
	f.record(now, p, pk, &v, data, m.IP, m.ID)
	if times > 0 && v.stream != nil {
		late = f.overtake(&v)
	}
	f.arm(now)
	return times, late
}

// verdict is a decision with what it refers to.
type verdict struct {
	decision
	rule   int     // index of the rule, -1 for none
	n      uint64  // number of the packet in its stream
	stream *stream // nil without a rule
	parted bool    // stopped by a partition

	// What became of the copies:
	held  [2]*held         // kept
	waits [2]time.Duration // how long at most
	full  [2]bool          // dropped because too many packets are held
}

// judge decides about a packet. Preconditions: f.mu is held.
func (f *Injector) judge(s *state, p *Path, pk *packet) (v verdict) {
	v.rule, v.copies = -1, 1
	if s == nil {
		return v
	}
	if v.rule = s.matches(pk); v.rule >= 0 {
		v.stream = s.live.stream(s.seed, pk.key(v.rule))
		v.n = v.stream.n
		v.stream.n++
		v.decision = s.rules[v.rule].decide(v.stream.random, v.n)
		if f.removes(s, v.rule) {
			v.decision = decision{lost: true}
		}
	}
	if s.parted(p.Local.Addr(), pk) {
		v.decision = decision{}
		v.parted = true
	}
	for i := range v.fates {
		switch a := &v.fates[i]; {
		case !a.corrupt:
		case pk.size < minPacket:
			a.corrupt = false
		case pk.dir == Received: // the receiver's check of the ICRC drops the packet at once
			*a = fate{corrupt: true, bit: a.bit}
		}
	}
	f.counts[pk.dir-Sent].add(&v)
	return v
}

// removes counts a packet of a rule and reports whether the rule has removed the device. Preconditions:
// f.mu is held.
func (f *Injector) removes(s *state, rule int) bool {
	at, n := s.rules[rule].Remove, &s.live.removal[rule]
	if at == 0 {
		return false
	}
	*n++
	if *n == at && f.remove != nil {
		f.remove()
	}
	return *n >= at
}

// wait returns how long a copy of a packet waits, and the rate limit that it waits for. queue is false
// if the copy does not wait at all. Preconditions: f.mu is held.
func (s *state) wait(v *verdict, copy int, now time.Time, pk *packet) (d time.Duration, l *limit, queue bool) {
	if v.rule < 0 {
		return 0, nil, false
	}
	r, a := &s.rules[v.rule], &v.fates[copy]
	if a.behind > 0 {
		return r.hold(), nil, true
	}
	if r.Rate == 0 {
		return a.delay, nil, a.delay > 0
	}
	l = &s.live.limits[v.rule][pk.dir-Sent]
	d = l.wait(now, pk.size, r.Rate) + a.delay
	return d, l, d > 0 || l.pending > 0
}

// hold keeps a copy of a packet if it is delayed or held back. Otherwise, pass is true. h is nil if
// the packet passes, or if it is dropped because too many are held. Preconditions: f.mu is held.
func (f *Injector) hold(s *state, p *Path, v *verdict, copy int, now time.Time, pk *packet, data []byte) (h *held, pass bool) {
	d, l, queue := s.wait(v, copy, now, pk)
	if !queue {
		return nil, true
	}
	if len(f.held) >= f.maxHeld {
		f.counts[pk.dir-Sent].overflowed.Add(1)
		v.full[copy] = true
		return nil, false
	}
	h = f.unused()
	*h = held{at: now.Add(d), order: f.order, path: p, dir: pk.dir, peer: pk.peer, data: append(h.data[:0], data...), limit: l}
	f.order++
	heap.Push(&f.held, h)
	if l != nil {
		l.pending++
	}
	if n := v.fates[copy].behind; n > 0 {
		h.stream, h.behind = v.stream, n
		v.stream.behind = append(v.stream.behind, h)
	}
	v.held[copy], v.waits[copy] = h, d
	return h, false
}

// unused returns a held packet to fill, perhaps with memory. Preconditions: f.mu is held.
func (f *Injector) unused() *held {
	h := f.free
	if h == nil {
		return new(held)
	}
	f.free = h.next
	return h
}

// overtake counts a packet that passes, for the older packets of its stream that are held back. It
// returns a list of those that have been overtaken by enough packets. Preconditions: f.mu is held.
func (f *Injector) overtake(v *verdict) (first *held) {
	last := &first
	v.stream.behind = slices.DeleteFunc(v.stream.behind, func(h *held) bool {
		if h == v.held[0] || h == v.held[1] {
			return false
		}
		if h.behind--; h.behind > 0 {
			return false
		}
		heap.Remove(&f.held, h.index)
		h.stream = nil
		*last, last = h, &h.next
		return true
	})
	return first
}

// recycle keeps the memory of a packet that was delivered, and returns the next one of its list.
// Preconditions: f.mu is held.
func (f *Injector) recycle(h *held) (next *held) {
	next = h.next
	if h.limit != nil {
		h.limit.pending--
	}
	if f.closed {
		return next
	}
	*h = held{data: h.data, next: f.free}
	f.free = h
	return next
}

// arm makes the timer call when the first held packet is due. Preconditions: f.mu is held.
func (f *Injector) arm(now time.Time) {
	if len(f.held) == 0 || f.flushing {
		return
	}
	at := f.held[0].at
	if !f.wakeAt.IsZero() && !at.Before(f.wakeAt) {
		return
	}
	f.wakeAt = at
	if d := at.Sub(now); f.timer == nil {
		f.timer = f.clock.AfterFunc(d, f.flush)
	} else {
		f.timer.Reset(d)
	}
}

// flushAtOnce is the number of packets that flush delivers before it looks at the time again.
const flushAtOnce = 64

// flush delivers the packets that are due. The timer calls it.
func (f *Injector) flush() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wakeAt = time.Time{}
	if f.flushing || f.closed {
		return // the goroutine that flushes will see packets which are due
	}
	f.flushing = true
	out := f.takeOutbox()
	now := f.clock.Now()
	for list := f.due(now); list != nil; list = f.due(now) {
		f.mu.Unlock()
		out.deliver(list)
		f.mu.Lock()
		for h := list; h != nil; h = f.recycle(h) {
		}
		now = f.clock.Now()
	}
	f.putOutbox(out)
	f.flushing = false
	f.idle.Broadcast()
	f.arm(now)
}

// due removes packets that are due from those that are held, and returns them as a list.
// Preconditions: f.mu is held.
func (f *Injector) due(now time.Time) (first *held) {
	last := &first
	for range flushAtOnce {
		if len(f.held) == 0 || f.held[0].at.After(now) {
			break
		}
		h := heap.Pop(&f.held).(*held)
		if h.stream != nil {
			h.stream.behind = slices.DeleteFunc(h.stream.behind, func(o *held) bool { return o == h })
		}
		*last, last = h, &h.next
	}
	return first
}

// outbox is a list of batches to send.
type outbox struct {
	batches []*udp.Batch
	used    int
}

// Limits for outboxes that are kept for later use: each batch has 256 KiB.
const (
	keptOutboxes = 4
	keptBatches  = 2 // of each
)

// takeOutbox returns an empty outbox. Preconditions: f.mu is held.
func (f *Injector) takeOutbox() *outbox {
	last := len(f.outboxes) - 1
	if last < 0 {
		return new(outbox)
	}
	o := f.outboxes[last]
	f.outboxes = f.outboxes[:last]
	return o
}

// putOutbox keeps an outbox that is empty again. Preconditions: f.mu is held.
func (f *Injector) putOutbox(o *outbox) {
	if len(f.outboxes) >= keptOutboxes || f.closed {
		return
	}
	if len(o.batches) > keptBatches {
		clear(o.batches[keptBatches:])
		o.batches = o.batches[:keptBatches]
	}
	f.outboxes = append(f.outboxes, o)
}

// deliver sends and hands over a list of packets in order. The outbox is empty before and after.
func (o *outbox) deliver(list *held) {
	var last *held // the packet before h
	for h := list; h != nil; h = h.next {
		if last != nil && (h.path != last.path || h.dir != last.dir) {
			o.end(last)
		}
		switch last = h; {
		case h.dir == Sent:
			o.add(h.peer, h.data, h.sent)
		case h.path.Late != nil:
			h.path.Late(h.peer, h.data, h.got)
		default:
			h.handle(h.peer, h.data, h.got)
		}
	}
	o.end(last)
}

// end ends a series of packets of one path and direction.
func (o *outbox) end(last *held) {
	if last.dir == Sent {
		o.send(last.path)
	} else if last.path.Flush != nil {
		last.path.Flush()
	}
}

// add copies a packet into the last batch.
func (o *outbox) add(to netip.AddrPort, data []byte, info sentInfo) {
	var room []byte
	if o.used > 0 {
		room = o.batches[o.used-1].Reserve(to, len(data))
	}
	if room == nil {
		if o.used == len(o.batches) {
			o.batches = append(o.batches, new(udp.Batch))
		}
		o.used++
		if room = o.batches[o.used-1].Reserve(to, len(data)); room == nil {
			return // larger than any packet in the batch that it came from can be
		}
	}
	copy(room, data)
	o.batches[o.used-1].SetIP(info.ip)
	if info.flip >= 0 {
		o.batches[o.used-1].Flip(info.flip)
	}
}

// send sends the batches of a path and empties the outbox. It returns the first error.
func (o *outbox) send(p *Path) (err error) {
	for _, b := range o.batches[:o.used] {
		if e := p.PathOptions.Send(b); err == nil {
			err = e
		}
		b.Reset()
	}
	o.used = 0
	return err
}
