package engine

import (
	"encoding/binary"
	"net/netip"
	"runtime"
	"time"

	"github.com/goverbs/goverbs/uverbs/soft/internal/udp"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

const (
	readRounds = 64      // rounds of a response, before another goroutine goes on
	maxWaiting = 1 << 20 // bytes of requests that wait for the response to a READ
)

// receive handles a packet, from the BTH to the ICRC, which was checked. Packets that are wrong are
// dropped, as rxe_rcv does.
func (d *Device) receive(w *worker, from *source, b []byte) {
	if d.closed.Load() {
		return
	}
	a := &w.arrival
	a.from = from
	var err error
	if a.payload, err = wire.Parse(b, &a.header); err != nil {
		if e, ok := err.(wire.ParseError); ok {
			d.stats.malformed[e].Add(1)
		}
		return
	}
	d.stats.receivedPackets.Add(1)
	d.stats.receivedBytes.Add(uint64(len(b)))
	h := &a.header
	switch {
	case from.dst.IsMulticast():
		if h.DestQP != wire.MulticastQP {
			d.stats.wrongGroup.Add(1)
			return
		}
		if !d.groups.isJoined(from.dst) {
			d.stats.notJoined.Add(1)
			return
		}
		for _, q := range d.groups.find(from.dst) {
			d.deliverTo(w, q, a, b)
		}
	case h.DestQP == wire.GSIQP:
		d.receiveMAD(a)
	case h.DestQP == wire.MulticastQP:
		d.stats.wrongGroup.Add(1)
	default:
		if q := d.qps.Find(h.DestQP); q != nil {
			d.deliverTo(w, q, a, b)
		} else {
			d.stats.unknownQP.Add(1)
		}
	}
}

// deliverTo gives a packet to a QP. The worker has room for a response.
func (d *Device) deliverTo(w *worker, q *QP, a *arrival, b []byte) {
	if a.header.Opcode.IsResponse() {
		q.mu.Lock()
		if q.accepts(a) {
			d.stats.responses.Add(1)
			q.response(w, &a.header, a.payload)
		}
		q.mu.Unlock()
		return
	}
	q.mu.Lock()
	reading := false
	if q.accepts(a) {
		if needsSlot(a.header.Opcode) {
			a.answers = q.resp.answersBefore(w.batch)
		}
		if wait := q.slowness(); wait > 0 || q.resp.busy || len(q.resp.waiting) > 0 {
			q.postpone(a, b, wait)
		} else {
			q.request(w, a)
			reading = q.resp.reading != nil
			q.resp.busy = reading
		}
	}
	q.mu.Unlock()
	if reading && !w.finishRead(q, readRounds) {
		d.finishLater(q)
	}
}

// finishLater sends the rest of a long response in a goroutine of its own.
func (d *Device) finishLater(q *QP) {
	d.config.Go(func() {
		w := workers.get()
		for !w.finishRead(q, readRounds) {
			runtime.Gosched()
		}
		w.flush()
		w.run(d)
	})
}

// finishRead goes on with the response to a READ, and with the requests that came meanwhile. It reports
// whether all is done. The QP is busy until the last packet of these is on its way: another goroutine that
// has its next request must not answer that first.
func (w *worker) finishRead(q *QP, rounds int) bool {
	for range rounds {
		w.flush()
		q.mu.Lock()
		if q.resp.reading == nil && !q.waitingDue() {
			q.resp.busy = false
			q.awaitWaiting()
			q.mu.Unlock()
			return true
		}
		q.sendReadResponse(w)
		for q.resp.reading == nil && q.waitingDue() && w.responses.room() {
			q.handleWaiting(w)
		}
		q.mu.Unlock()
	}
	w.flush()
	return false
}

// waitingHeader is the size of what precedes a packet that waits: when it may be handled, 0 for at once,
// arrival.answers, and its length.
const waitingHeader = 8 + 4 + 4

// postpone keeps a request until the response to the READ before it was sent, and for a time if the
// responder is slow. A peer sends no more than a window of packets; the rest is dropped. The caller
// holds mu.
func (q *QP) postpone(a *arrival, b []byte, wait time.Duration) {
	r := &q.resp
	if len(r.waiting)+len(b)+waitingHeader > maxWaiting {
		q.dev.stats.overflow.Add(1)
		return
	}
	at := time.Duration(0)
	if wait > 0 {
		at = q.dev.now() + wait
	}
	r.waiting = binary.NativeEndian.AppendUint64(r.waiting, uint64(at))
	r.waiting = binary.NativeEndian.AppendUint32(r.waiting, a.answers)
	r.waiting = binary.NativeEndian.AppendUint32(r.waiting, uint32(len(b)))
	r.waiting = append(r.waiting, b...)
	if !r.busy {
		q.awaitWaiting()
	}
}

// waitingAt returns when the first request that was postponed may be handled.
func (q *QP) waitingAt() time.Duration {
	return time.Duration(binary.NativeEndian.Uint64(q.resp.waiting))
}

// waitingDue reports whether there is a request that was postponed and may be handled now.
func (q *QP) waitingDue() bool {
	if len(q.resp.waiting) == 0 {
		return false
	}
	at := q.waitingAt()
	return at == 0 || at <= q.dev.now()
}

// awaitWaiting sets the timer for the first request that was postponed, if there is one.
func (q *QP) awaitWaiting() {
	if len(q.resp.waiting) > 0 {
		q.deadlines.set(q, slowDeadline, max(q.waitingAt(), 1))
	}
}

// finishWaiting handles the requests that have waited long enough. The caller has set resp.busy.
func (d *Device) finishWaiting(q *QP) {
	w := workers.get()
	if !w.finishRead(q, readRounds) {
		d.finishLater(q)
	}
	w.flush()
	w.run(d)
}

// handleWaiting handles the first of the requests that were postponed. The caller holds mu.
func (q *QP) handleWaiting(w *worker) {
	r := &q.resp
	answers, n := binary.NativeEndian.Uint32(r.waiting[8:]), binary.NativeEndian.Uint32(r.waiting[12:])
	b := r.waiting[waitingHeader : waitingHeader+n]
	r.waiting = r.waiting[waitingHeader+n:]
	if len(r.waiting) == 0 {
		r.waiting = nil
	}
	a := &w.arrival
	*a = arrival{answers: answers}
	var err error
	if a.payload, err = wire.Parse(b, &a.header); err == nil && q.state >= RTR && !q.closed {
		q.request(w, a)
	} else {
		q.dev.stats.refusedState.Add(1)
	}
}

// accepts checks whether a packet may be for the QP: its type, state, addresses and keys (hdr_check of
// rxe_recv.c). The caller holds mu.
func (q *QP) accepts(a *arrival) bool {
	h := &a.header
	least := RTR
	if h.Opcode.IsResponse() {
		least = RTS
	}
	if q.closed || q.state < least || h.Opcode.Transport() != transports[q.typ] {
		q.dev.stats.refusedState.Add(1)
		return false
	}
	if q.typ != UD && (q.path == nil || a.from.src != q.path.dst || a.from.dst != q.path.src) {
		q.dev.stats.wrongAddress.Add(1)
		return false
	}
	if h.PKey&0x7fff != wire.DefaultPKey&0x7fff {
		q.dev.stats.badPKey.Add(1)
		return false
	}
	if q.typ == UD && h.QKey != q.attr.QKey {
		q.dev.stats.badQKey.Add(1)
		return false
	}
	return true
}

// transports are the transports of packets by the type of QP.
var transports = [...]wire.Opcode{RC: wire.RC, UC: wire.UC, UD: wire.UD}

// A Meta says what the header of a received packet was.
type Meta struct {
	From, To netip.Addr
	IP       udp.IP
	ID       uint16 // of an IPv4 header
}

// A Receiver handles packets from the network, for one goroutine. Answers to them are sent at Flush
// at the latest.
type Receiver struct {
	device *Device
	worker *worker
}

// NewReceiver makes a Receiver.
func (d *Device) NewReceiver() *Receiver { return &Receiver{device: d} }

// Packet handles a packet, from the BTH to the ICRC, which the caller has checked. It keeps nothing of
// the packet. One to a group from a device of the same host is ignored: the members have it already.
func (r *Receiver) Packet(m *Meta, b []byte) {
	if m.To.IsMulticast() && r.device.config.Host.find(m.From) != nil {
		return
	}
	if r.worker == nil {
		r.worker = workers.get()
	}
	w := r.worker
	w.makeRoom()
	w.source = source{src: m.From, dst: m.To, ip: m.IP, id: m.ID, size: len(b)}
	r.device.receive(w, &w.source, b)
}

// Flush ends a batch of packets: it sends the responses, and what QPs may send now.
func (r *Receiver) Flush() {
	w := r.worker
	if w == nil {
		return
	}
	r.worker = nil
	w.flush()
	if len(w.runnable) == 0 {
		w.release()
		return
	}
	w.run(r.device)
}
