package cm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs"
)

// hostilePeer plays a peer, and the device, for a Conn without a device. Everything but what posts to
// the queue pair is the Conn's own code.
type hostilePeer struct {
	t       *testing.T
	c       *Conn
	posted  []int    // slots of the receives that the device has
	sent    [][]byte // messages in the order in which they were sent
	taken   int
	granted int // credits that the Conn has granted
	used    int // credits that the peer has used, perhaps more
}

// post is the device's part of postRecv.
func (p *hostilePeer) post(slot int) {
	if slices.Contains(p.posted, slot) {
		p.t.Fatalf("the receive of slot %d is posted twice", slot)
	}
	p.posted = append(p.posted, slot)
	if len(p.posted) > p.c.recvs() {
		p.t.Fatalf("%d receives are posted, of %d", len(p.posted), p.c.recvs())
	}
}

// postLarge is the device's part of postLarge.
func (p *hostilePeer) postLarge() {
	for slot := range p.c.inbox {
		p.post(slot)
	}
}

// deliver completes the oldest receive.
func (p *hostilePeer) deliver(wc uverbs.WC, frame []byte) error {
	c := p.c
	if len(p.posted) == 0 { // the peer is told that there is no receive
		return nil
	}
	slot := p.posted[0]
	p.posted = p.posted[1:]
	m, i := c.slotMemory(slot)
	if wc.Opcode == uverbs.WCRecv {
		copy(m.bytes(i), frame)
	}
	wc.ID = recvBit | uint64(slot)
	waiting := c.inTail
	again, grown, err := c.received(&wc)
	if err != nil {
		return err
	}
	if wc.Opcode != uverbs.WCRecv || wc.Flags&(uverbs.WCWithImm|uverbs.WCWithInv) != 0 || int(wc.ByteLen) != len(frame) {
		p.t.Fatalf("a completion %+v is taken for a message", wc)
	}
	switch {
	case c.inTail != waiting:
		p.sent = append(p.sent, bytes.Clone(frame[headerSize:]))
		p.used++
		if again >= 0 {
			p.t.Fatalf("the receive of a message that waits is posted again")
		}
	case frame[0] == msgWant:
		p.used++
	}
	if grown {
		p.postLarge()
	}
	if again >= 0 {
		p.post(again)
	}
	return nil
}

// respond has the Conn grow and return credits, as poll does, and the peer take what it sends.
func (p *hostilePeer) respond() {
	c := p.c
	if c.needsLarge() {
		p.grow()
	}
	h, due := c.dueControl()
	if !due {
		return
	}
	id, i := c.stageControl(h)
	got, err := parseHeader(c.ctl.bytes(i)[:headerSize])
	if err != nil || got.kind != h.kind || c.consumed != 0 || id != c.posted-1 || got.credits == 0 {
		p.t.Fatalf("%+v, which is due, is sent as %+v with request %d: %v", h, got, id, err)
	}
	if got.kind == msgGrown && got.recvs < uint32(firstRecvs) {
		p.t.Fatalf("%d small receives are announced, %d were posted at the start", got.recvs, firstRecvs)
	}
	p.granted += got.credits
}

// grow has the Conn grow if it may.
func (p *hostilePeer) grow() {
	grown, err := p.c.allocLarge()
	if err != nil {
		p.t.Fatal(err)
	}
	if grown {
		p.postLarge()
	}
}

// take has the program take a message, and end its use of the one before.
func (p *hostilePeer) take() {
	c := p.c
	if slot := c.heldSlot; slot >= 0 && c.err == nil && c.countRepost(slot) {
		p.post(slot)
	}
	if c.heldSlot = -1; c.inHead == c.inTail {
		return
	}
	var got []byte
	if c.heldSlot, got = c.takeMessage(); !bytes.Equal(got, p.sent[p.taken]) {
		p.t.Fatalf("message %d is %q, was sent as %q", p.taken, got, p.sent[p.taken])
	}
	p.taken++
}

// act does one step: it returns the error of the Conn, and whether the step keeps to the protocol, so
// that it must not cause an error.
func (p *hostilePeer) act(act, kind byte, size int, random []byte) (good bool, err error) {
	c := p.c
	frame := func(h header, extra int) []byte {
		b := bytes.Repeat([]byte{kind}, headerSize+extra)
		h.put(b)
		return b
	}
	switch send := (uverbs.WC{Opcode: uverbs.WCRecv}); act {
	case 0: // a message
		size %= firstData + 1
		b := frame(header{kind: msgData, length: size}, size)
		send.ByteLen = uint32(len(b))
		good = !c.eof && !c.peerClosedRead && c.inTail-c.inHead < c.o.Depth && size <= c.maxSend
		if p.used < p.granted && len(p.posted) == 0 && good {
			p.t.Fatalf("the peer has %d credits, and there is no receive", p.granted-p.used)
		}
		err = p.deliver(send, b)
	case 1: // bytes at random as a message
		b := append([]byte{kind % 9}, random...)
		b = append(b, make([]byte, size%40)...)
		send.ByteLen = uint32(len(b))
		err = p.deliver(send, b)
	case 2: // any length, also of more than a receive takes; the bytes are no header
		send.ByteLen = uint32(size) << (kind % 17)
		err = p.deliver(send, bytes.Repeat([]byte{0xff}, min(int(send.ByteLen), 2*c.o.MessageSize)))
	case 3: // another operation
		err = p.deliver(uverbs.WC{Opcode: uverbs.WCRecvRDMAWrite, Flags: uverbs.WCWithImm, ByteLen: uint32(size)}, nil)
	case 4: // flags
		b := frame(header{kind: msgData, length: 3}, 3)
		err = p.deliver(uverbs.WC{Opcode: uverbs.WCRecv, Flags: []uverbs.WCFlags{uverbs.WCWithImm, uverbs.WCWithInv}[kind%2], ByteLen: uint32(len(b))}, b)
	case 5: // credits, forged or not
		send.ByteLen = headerSize
		good = !c.peerClosedRead && c.credits+size <= c.peerDepth
		err = p.deliver(send, frame(header{kind: msgCredits, credits: size}, 0))
	case 6: // an end
		send.ByteLen = headerSize
		err = p.deliver(send, frame(header{kind: msgEnd, closesRead: kind&1 != 0}, 0))
	case 7: // memory is wanted, announced, or used up
		send.ByteLen = headerSize
		h := header{kind: []uint8{msgWant, msgGrown, msgPad}[kind%3]}
		if h.kind == msgGrown {
			h.recvs = uint32(size) << (kind % 17)
		}
		good = h.kind == msgWant && p.used < p.granted && !c.peerClosedRead
		err = p.deliver(send, frame(h, 0))
	case 8:
		p.take()
	case 9: // this side sends
		if c.credits > 0 && c.peerTakes(size) {
			c.credits--
			c.peer.sent++
		}
	case 10: // Accept returns the connection
		if c.win.attendAt = time.Now(); c.win.wantedEarly {
			p.grow()
		}
	case 11: // the peer's device acknowledges a control message
		if c.completed < c.posted {
			c.handleCompletion(&uverbs.WC{ID: c.completed, Opcode: uverbs.WCSend})
			err = c.err
		}
	case 12:
		p.breakDown([]uverbs.WCStatus{uverbs.WCLocLenErr, uverbs.WCRemInvReqErr, uverbs.WCLocAccessErr, uverbs.WCRetryExcErr}[kind%4])
		return false, c.err
	}
	if err == nil {
		p.respond()
	}
	return good, err
}

// breakDown has the device fail a request, and flush the others. Messages that had arrived before
// can still be received.
func (p *hostilePeer) breakDown(status uverbs.WCStatus) {
	c, want := p.c, syscall.EPROTO
	failed := uverbs.WC{ID: recvBit, Status: status}
	switch {
	case status == uverbs.WCRetryExcErr: // of a request that the peer has not acknowledged
		failed.ID, want = c.completed, syscall.ETIMEDOUT
	case len(p.posted) > 0:
		failed.ID |= uint64(p.posted[0])
	}
	credits, end := c.credits, c.eof
	c.handleCompletion(&failed)
	first := c.err
	if !errors.Is(first, want) {
		p.t.Fatalf("after %s: %v, want %v", status, first, want)
	}
	for _, slot := range p.posted {
		c.handleCompletion(&uverbs.WC{ID: recvBit | uint64(slot), Status: uverbs.WCWRFlushErr})
	}
	if c.err != first || c.credits != credits || c.eof != end {
		p.t.Fatalf("after %s and flushed receives: %v, %d credits, end %v", status, c.err, c.credits, c.eof)
	}
	for c.inHead != c.inTail {
		p.take()
	}
	if p.taken != len(p.sent) {
		p.t.Fatalf("%d messages were taken, %d had arrived", p.taken, len(p.sent))
	}
}

// checkState checks the counts of the Conn.
func (p *hostilePeer) checkState() {
	c := p.c
	left := int32(c.peer.smallTotal - c.peer.sent)
	depth := c.o.Depth // that the Conn has receives for
	if c.win.startsSmall && !c.win.grown {
		depth = firstDepth
	}
	switch n := c.inTail - c.inHead; {
	case c.credits < 0 || c.credits > c.peerDepth:
		p.t.Fatalf("%d credits, of %d", c.credits, c.peerDepth)
	case n < 0 || n > c.o.Depth || n != len(p.sent)-p.taken:
		p.t.Fatalf("%d messages wait, of %d that were sent and %d that were taken", n, len(p.sent), p.taken)
	case c.peer.grown && left > firstRecvs:
		p.t.Fatalf("%d pads before a large message", left)
	case c.win.startsSmall && c.win.grown && c.win.smallInUse < 0:
		p.t.Fatalf("%d small slots", c.win.smallInUse)
	case p.granted-p.used+c.consumed+n != depth:
		p.t.Fatalf("%d credits were granted and %d used, %d must be returned, %d messages wait: of %d credits", p.granted, p.used, c.consumed, n, depth)
	case c.ctlPosted-c.ctlDone > ctlSlots:
		p.t.Fatalf("%d control messages are on their way, of %d", c.ctlPosted-c.ctlDone, ctlSlots)
	}
}

// FuzzHostilePeer: whatever a peer does, in whatever order, a Conn gives the program nothing but the messages
// that were sent, or ends with EPROTO. Each step of the input is an action with a size.
func FuzzHostilePeer(f *testing.F) {
	f.Add(false, []byte{0, 5, 0, 0, 1, 9, 0, 0})
	f.Add(true, []byte{0, 5, 0, 0, 6, 0, 0, 0, 4, 1, 0, 0, 0, 200, 1, 0, 3, 9, 0, 0, 7, 1, 2, 3})
	f.Add(false, []byte{4, 1, 0, 0})
	f.Add(false, []byte{4, 0, 0, 0})
	f.Add(true, []byte{9, 0, 0, 0, 8, 9, 0, 0, 10, 0, 0, 0, 2, 1, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0})
	// Messages with large receives that are wanted before Accept; all of them are taken.
	f.Add(true, slices.Concat(bytes.Repeat([]byte{0, 1, 0, 9}, 3), []byte{7, 0, 0, 0, 10, 0, 0, 0}, bytes.Repeat([]byte{0, 2, 0, 9, 8, 0, 0, 0, 11, 0, 0, 0}, 60)))
	f.Add(true, slices.Concat([]byte{10, 0, 0, 0}, bytes.Repeat([]byte{7, 0, 0, 0, 11, 0, 0, 0}, 20), bytes.Repeat([]byte{0, 2, 0, 9}, 17)))
	f.Add(false, bytes.Repeat([]byte{0, 1, 0, 1, 0, 1, 0, 2, 8, 0, 0, 0, 8, 0, 0, 0, 11, 0, 0, 0}, 20))
	// Messages, and a failure of each kind.
	for kind := range byte(4) {
		f.Add(kind&1 == 0, slices.Concat(bytes.Repeat([]byte{0, 2, 0, 9}, 3), []byte{8, 0, 0, 0, 12, kind, 0, 0}))
	}
	f.Fuzz(func(t *testing.T, lazy bool, script []byte) {
		o := ConnOptions{Depth: 4, MessageSize: 1000}
		if lazy {
			o = ConnOptions{Depth: 16, MessageSize: 5000}
		}
		c := bareConn(o)
		c.maxSend -= 100                                           // the peer takes messages of this size, and must not send larger ones
		c.dev, c.qp = &device{dev: &uverbs.Device{}}, &uverbs.QP{} // which do nothing
		c.peer.mayBeSmall, c.peer.firstCredits = true, firstDepth
		c.ctl = value(c.domain.first.alloc(ctlSlots, headerSize))(t)
		p := &hostilePeer{t: t, c: c, granted: o.Depth}
		first, n := firstSlot(c), len(c.inbox)
		if lazy {
			n, p.granted = firstRecvs, firstDepth
		}
		for slot := first; slot < first+n; slot++ {
			if c.countRepost(slot) {
				p.post(slot)
			}
		}
		for ; len(script) >= 4; script = script[4:] {
			act, kind, size := script[0]%13, script[1], int(binary.BigEndian.Uint16(script[2:]))
			good, err := p.act(act, kind, size, script[2:4])
			if err != nil {
				if good || !errors.Is(err, syscall.EPROTO) && act != 12 {
					t.Fatalf("action %d of kind %d and size %d: %v", act, kind, size, err)
				}
				return
			}
			p.checkState()
		}
	})
}
