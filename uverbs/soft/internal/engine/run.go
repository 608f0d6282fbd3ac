package engine

import (
	"runtime"
	"sync"

	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
	"github.com/goverbs/goverbs/uverbs/soft/internal/udp"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// How much a worker does at a time.
const (
	queueBytes   = 128 << 10 // bytes of the packets of a queue
	queuePackets = 128
	maxPacket    = wire.MaxHeaderSize + 4096 + wire.ICRCSize // bytes

	roundPackets = 64 // packets that a QP generates before its packets are delivered
	runRounds    = 32 // rounds of a call of the program, before another goroutine goes on
)

// A queue holds packets that go to devices of the same host. The zero value is empty.
type queue struct {
	memory  []byte
	packets []queued
}

// queued is a packet in a queue.
type queued struct {
	way      *path
	off, end int
}

// reserve returns memory for a packet of n bytes, or nil if there is no room.
func (u *queue) reserve(way *path, n int) []byte {
	if u.memory == nil {
		u.memory = make([]byte, 0, queueBytes)
		u.packets = make([]queued, 0, queuePackets)
	}
	off := len(u.memory)
	if n > cap(u.memory)-off || len(u.packets) == cap(u.packets) {
		return nil
	}
	u.memory = u.memory[:off+n]
	u.packets = append(u.packets, queued{way, off, off + n})
	return u.memory[off : off+n : off+n]
}

// room reports whether the largest packet fits.
func (u *queue) room() bool {
	return u.memory == nil || cap(u.memory)-len(u.memory) >= maxPacket && len(u.packets) < cap(u.packets)
}

// drop removes the last packet.
func (u *queue) drop() {
	last := len(u.packets) - 1
	u.memory = u.memory[:u.packets[last].off]
	u.packets = u.packets[:last]
}

// reset empties the queue.
func (u *queue) reset() {
	clear(u.packets)
	u.memory, u.packets = u.memory[:0], u.packets[:0]
}

// A sendKey names a work request: the n-th of a QP.
type sendKey struct {
	qp *QP
	n  uint64
}

// A worker runs requesters and delivers packets, in one goroutine at a time.
type worker struct {
	runnable  []*QP // with QP.running set
	requests  queue
	responses queue

	net       udp.Batch // packets to the network
	netSource *path     // of the first one; nil: there are none
	filtered  udp.Batch // a packet to a filter

	received bool // since its first packet, a program has got a message

	number        uint64 // which no other worker has
	batch         uint64 // of packets that it brings, which no other batch has
	responseRound uint64 // counts how often responses were delivered
	flushes       *flushes

	wr         ring.Send // what QP.send has read
	wrKey      sendKey
	cursor     sgeCursor
	read       ring.Send // what QP.readData has read
	readKey    sendKey
	readCursor sgeCursor

	arrival arrival
	source  source
	grh     [GRHSize]byte
}

// workers are workers for reuse, as their queues are large. A sync.Pool would lose them to the garbage
// collector.
var workers = spares{most: 8}

// spares are workers that nobody uses.
type spares struct {
	most int // how many are kept

	mu   sync.Mutex
	list []*worker // guarded by mu
	made uint64    // guarded by mu: number of workers that were made
}

// get returns a worker that is not in use.
func (s *spares) get() *worker {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := len(s.list) - 1
	if last < 0 {
		s.made++
		return &worker{number: s.made, batch: s.made << 40, flushes: newFlushes()}
	}
	w := s.list[last]
	s.list[last] = nil
	s.list = s.list[:last]
	w.batch++
	return w
}

// put gives a worker back.
func (s *spares) put(w *worker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.list) < s.most {
		s.list = append(s.list, w)
	}
}

// run runs the requester of a QP that the caller has claimed.
func (d *Device) run(q *QP) {
	w := workers.get()
	w.runnable = append(w.runnable, q)
	w.run(d)
}

// run works until nothing is left to do, or goes on in another goroutine after a while. The worker
// must not be used afterwards.
func (w *worker) run(d *Device) {
	if !w.rounds(runRounds) {
		d.config.Go(func() {
			for !w.rounds(runRounds) {
				runtime.Gosched()
			}
		})
	}
}

// rounds does some rounds. It reports whether all is done; the worker must not be used then.
func (w *worker) rounds(n int) bool {
	for ; n > 0 && len(w.runnable) > 0; n-- {
		w.round()
	}
	if len(w.runnable) > 0 {
		return false
	}
	w.release()
	return true
}

// release makes the worker available.
func (w *worker) release() {
	w.wrKey, w.readKey = sendKey{}, sendKey{}
	w.wr.Inline, w.read.Inline = nil, nil
	w.arrival, w.source, w.received = arrival{}, source{}, false
	workers.put(w)
}

// round has each QP send some packets and delivers them. QPs with nothing more to send leave.
func (w *worker) round() {
	n := 0
	for ; n < len(w.runnable) && w.requests.room(); n++ {
		q := w.runnable[n]
		q.mu.Lock()
		if q.send(w) {
			q.wanted = true
		}
		q.mu.Unlock()
	}
	w.deliver()
	for _, q := range w.runnable[:n] {
		q.mu.Lock()
		if q.wanted && !q.closed {
			q.wanted = false
			w.runnable = append(w.runnable, q)
		} else {
			q.running, q.wanted = false, false
		}
		q.mu.Unlock()
	}
	rest := copy(w.runnable, w.runnable[n:])
	clear(w.runnable[rest:])
	w.runnable = w.runnable[:rest]
}

// wake has the worker run a QP, unless another one does that. The caller holds the lock of q.
func (w *worker) wake(q *QP) {
	if q.claim() {
		w.runnable = append(w.runnable, q)
	}
}

// deliver delivers all packets.
func (w *worker) deliver() {
	w.batch++
	for i := 0; i < len(w.requests.packets); i++ {
		w.makeRoom()
		p := &w.requests.packets[i]
		w.deliverOne(p.way, w.requests.memory[p.off:p.end])
	}
	w.requests.reset()
	w.flush()
}

// flush delivers the responses and what goes to the network.
func (w *worker) flush() {
	w.deliverResponses()
	w.flushNetwork()
	w.flushes.done()
}

// makeRoom makes room for the response to a request.
func (w *worker) makeRoom() {
	if !w.responses.room() {
		w.deliverResponses()
	}
}

// deliverResponses delivers the responses, which cause no packets themselves.
func (w *worker) deliverResponses() {
	w.responseRound++
	for i := 0; i < len(w.responses.packets); i++ {
		p := &w.responses.packets[i]
		w.deliverOne(p.way, w.responses.memory[p.off:p.end])
	}
	w.responses.reset()
}

// deliverOne delivers a packet to a device of the same host, or to the members of a group.
func (w *worker) deliverOne(way *path, b []byte) {
	w.source = source{src: way.src, dst: way.dst, ip: way.ip, size: len(b)}
	switch f := way.device.filter.Load(); {
	case f != nil:
		w.sendThrough(*f, way, b)
	case way.local != nil:
		if d := way.destination(); d != nil {
			d.arrive(w, b)
		}
		return
	default:
		w.deliverToGroup(way.device.config.Host, b)
	}
	if way.to.IsValid() {
		copy(w.reserveNetwork(way, len(b)), b)
	}
}

// queued reports whether the packets of a path go through a queue.
func (p *path) queued() bool { return p.local != nil || p.group }

// reserve returns memory for a packet with its ICRC, in a queue or for the network. It returns nil if
// the queue has no room.
func (w *worker) reserve(u *queue, way *path, n int) []byte {
	if way.queued() {
		return u.reserve(way, n)
	}
	return w.reserveNetwork(way, n)
}

// packets returns the number of packets in a queue or to the network.
func (w *worker) packets(u *queue, way *path) int {
	if way.queued() {
		return len(u.packets)
	}
	return w.net.Len()
}

// packet returns a packet by its index there.
func (w *worker) packet(u *queue, way *path, i int) []byte {
	if way.queued() {
		p := &u.packets[i]
		return u.memory[p.off:p.end]
	}
	_, b := w.net.Packet(i)
	return b
}

// drop removes the packet that was reserved last.
func (w *worker) drop(u *queue, way *path) {
	if way.queued() {
		u.drop()
	} else {
		w.net.Drop()
	}
}

// reserveNetwork returns memory for a packet to the network. If there is no room, or packets of
// another address wait, it sends these first.
func (w *worker) reserveNetwork(way *path, n int) []byte {
	if w.netSource != nil && (w.netSource.device != way.device || w.netSource.src != way.src) {
		w.flushNetwork()
	}
	b := w.net.Reserve(way.to, n)
	if b == nil {
		w.flushNetwork()
		b = w.net.Reserve(way.to, n)
	}
	w.net.SetIP(way.ip)
	w.netSource = way
	return b
}

// flushNetwork sends the packets that go to the network.
func (w *worker) flushNetwork() {
	if w.net.Len() > 0 {
		w.responseRound++
		h := w.takeHeld()
		w.netSource.device.config.Network.Send(w.netSource.src, &w.net)
		w.net.Reset()
		if h != nil { // not before: Close of a QP waits for its acknowledgement
			h.flush()
			h.release()
		}
	}
	w.netSource = nil
}
