package cm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs"
)

// leftover is what an earlier connection has left in all memory of bareConn.
const leftover = "what another client has sent"

// bareConn is a Conn as after makeWindow, with memory but without a device. Its queue pair is nil, so
// that nothing can be posted.
func bareConn(o ConnOptions) *Conn {
	o, err := o.defaults("bareConn")
	if err != nil {
		panic(err)
	}
	c := &Conn{o: o, heldSlot: -1, credits: 16, peerDepth: 16, domain: &domain{}, parkTurn: make(chan struct{}, 1)}
	c.inbox = make([]arrival, o.Depth+spareRecv)
	c.sendRing, c.opRing = make([]sendKind, o.SendDepth+ctlSlots), make([]*op, o.Transfers)
	filled := func(size int) pool {
		r := &region{mr: &uverbs.MR{}, bytes: make([]byte, size), free: []span{{0, size}}}
		for at := 0; at+headerSize+len(leftover) <= size; at += slotAlign {
			header{kind: msgData, credits: 1, length: len(leftover)}.put(r.bytes[at:])
			copy(r.bytes[at+headerSize:], leftover)
		}
		return pool{regions: []*region{r}}
	}
	c.domain.first = filled(firstRecvs*firstSize + ctlSlots*slotAlign)
	c.domain.pool = filled(len(c.inbox) * (headerSize + o.MessageSize + slotAlign))
	if err := c.makeWindow(len(c.inbox)); err != nil {
		panic(err)
	}
	return c
}

// firstSlot is the slot of the first receive that a Conn posts.
func firstSlot(c *Conn) int {
	if c.win.startsSmall {
		return len(c.inbox)
	}
	return 0
}

// TestReceiveOtherOperations: only a plain SEND that fits its slot is a message. Everything else that completes
// a receive ends the connection with EPROTO, and nothing of the slot's old content is used.
func TestReceiveOtherOperations(t *testing.T) {
	const fits = uint32(headerSize + len(leftover))
	for _, o := range []ConnOptions{{}, {Depth: 4, MessageSize: 1000}} {
		for _, a := range []struct {
			name string
			wc   uverbs.WC
			says string
		}{
			{"a long WRITE with immediate data", uverbs.WC{Opcode: uverbs.WCRecvRDMAWrite, Flags: uverbs.WCWithImm, ByteLen: 1 << 20}, "RECV_RDMA_WITH_IMM"},
			{"a WRITE with immediate data that fits", uverbs.WC{Opcode: uverbs.WCRecvRDMAWrite, Flags: uverbs.WCWithImm, ByteLen: fits}, "RECV_RDMA_WITH_IMM"},
			{"a WRITE without", uverbs.WC{Opcode: uverbs.WCRecvRDMAWrite, ByteLen: fits}, "RECV_RDMA_WITH_IMM"},
			{"a SEND with immediate data", uverbs.WC{Opcode: uverbs.WCRecv, Flags: uverbs.WCWithImm, ByteLen: fits}, "immediate data"},
			{"a SEND that invalidates", uverbs.WC{Opcode: uverbs.WCRecv, Flags: uverbs.WCWithInv, ByteLen: fits}, "invalidates"},
			{"a tag", uverbs.WC{Opcode: uverbs.WCOpcode(130), ByteLen: fits}, "a message is a SEND"},
			{"a SEND that is longer than its slot", uverbs.WC{Opcode: uverbs.WCRecv, ByteLen: 1 << 20}, "1048576 bytes"},
			{"a SEND of 4 GiB", uverbs.WC{Opcode: uverbs.WCRecv, ByteLen: math.MaxUint32}, "4294967295 bytes"},
			{"an empty SEND", uverbs.WC{Opcode: uverbs.WCRecv}, "shorter than a header"},
		} {
			c := bareConn(o)
			a.wc.ID = recvBit | uint64(firstSlot(c))
			c.handleCompletion(&a.wc)
			if !errors.Is(c.err, syscall.EPROTO) || !strings.Contains(c.err.Error(), a.says) {
				t.Errorf("%s: %v, want EPROTO and %q", a.name, c.err, a.says)
			}
			if c.inTail != c.inHead || c.credits != 16 || c.eof {
				t.Errorf("%s: %d messages, %d credits, end %v", a.name, c.inTail-c.inHead, c.credits, c.eof)
			}
		}
	}
}

// TestRefusedByDevice: the status of a failed receive tells a violation by the peer from a connection that is gone.
func TestRefusedByDevice(t *testing.T) {
	for _, c := range []struct {
		id     uint64
		status uverbs.WCStatus
		iwarp  bool
		want   bool
	}{
		{recvBit | 3, uverbs.WCLocLenErr, false, true}, {recvBit, uverbs.WCLocLenErr, true, true},
		{recvBit, uverbs.WCRemInvReqErr, false, true}, {recvBit, uverbs.WCLocAccessErr, false, true}, {recvBit, uverbs.WCLocQPOpErr, false, true},
		{recvBit, uverbs.WCLocQPOpErr, true, false}, {recvBit, uverbs.WCWRFlushErr, false, false}, {recvBit, uverbs.WCGeneralErr, true, false},
		{3, uverbs.WCLocLenErr, false, false}, {3, uverbs.WCRemInvReqErr, false, false}, {opBit | 3, uverbs.WCLocQPOpErr, false, false},
	} {
		if got := refusedByDevice(&uverbs.WC{ID: c.id, Status: c.status}, c.iwarp); got != c.want {
			t.Errorf("%#x with %v, iWARP %v: %v, want %v", c.id, c.status, c.iwarp, got, c.want)
		}
	}
}

// TestUnexpectedCompletions: a device that completes what was not posted ends the connection.
func TestUnexpectedCompletions(t *testing.T) {
	for name, id := range map[string]uint64{
		"a send": 3, "a send far away": 1 << 62, "a receive": recvBit | 40, "a receive far away": recvBit | 1<<40, "the last": math.MaxUint64,
	} {
		c := bareConn(ConnOptions{})
		for range 3 {
			c.record(msgSend)
		}
		c.handleCompletion(&uverbs.WC{ID: id, Opcode: uverbs.WCRecv, ByteLen: headerSize})
		if !errors.Is(c.err, syscall.EIO) {
			t.Errorf("%s: %v, want EIO", name, c.err)
		}
	}
}

// TestProbeLimit: however long the peer's device takes to answer, no more probes are posted than the send queue
// has room for. linger asks canProbe before each of its probes.
func TestProbeLimit(t *testing.T) {
	for _, transfers := range []int{1, 2, 16} {
		c := bareConn(ConnOptions{SendDepth: 1, Transfers: transfers})
		c.recordSignaled(ctlSend)
		probes := 0
		for range 100 {
			if canProbe(c, nil) {
				o := c.newOp()
				o.abandoned = true
				c.recordOp(o)
				probes++
			}
		}
		if probes != transfers {
			t.Errorf("%d probes with %d transfers", probes, transfers)
		}
		if err := c.complete(opBit | c.opsPosted - 1); err != nil || c.opsDone != uint64(probes) || c.ctlDone != 1 {
			t.Errorf("%v, %d operations and %d control messages are done", err, c.opsDone, c.ctlDone)
		}
		again := map[*op]bool{}
		for range probes { // each is used once more
			if c.free == nil {
				t.Fatal("a probe was lost")
			}
			o := c.newOp()
			if again[o] || o.done || o.abandoned {
				t.Errorf("%+v is given out twice, or as it was", o)
			}
			again[o] = true
		}
		if c.free != nil {
			t.Error("a probe is in the list twice")
		}
	}
}

// TestGrownCount: the number of small receives that a peer claims to have posted is bounded by what it can have.
func TestGrownCount(t *testing.T) {
	grown := func(sent, recvs uint32) (*Conn, error) {
		c := bareConn(ConnOptions{})
		c.peer.mayBeSmall, c.peer.firstCredits, c.peer.sent = true, firstDepth, sent
		_, err := c.handleMessage(header{kind: msgGrown, recvs: recvs}, 0)
		return c, err
	}
	for _, sent := range []uint32{0, 3, 1 << 31, math.MaxUint32 - 2} {
		for left := range uint32(firstRecvs + 1) {
			c, err := grown(sent, sent+left)
			if err != nil {
				t.Fatalf("%d sent, %d left: %v", sent, left, err)
			}
			pads := uint32(0)
			for ; !c.peerTakes(firstData + 1); c.peer.sent++ {
				if pads++; pads > left {
					break
				}
			}
			if pads != left {
				t.Errorf("%d sent, %d left: %d pads", sent, left, pads)
			}
		}
		for _, more := range []uint32{firstRecvs + 1, 1000, 1<<31 - 1} {
			if _, err := grown(sent, sent+more); !errors.Is(err, syscall.EPROTO) {
				t.Errorf("%d sent, %d left: %v, want EPROTO", sent, more, err)
			}
		}
		for _, less := range []uint32{1, 1000, 1 << 31} { // the peer claims to have had fewer than were sent: none are left
			if c, err := grown(sent, sent-less); err != nil || !c.peerTakes(firstData+1) {
				t.Errorf("%d sent, %d fewer posted: %v", sent, less, err)
			}
		}
	}
}

// TestLivenessTimerAfterDestroy: the timer of a connection whose Dial has failed does nothing, though it has fired.
func TestLivenessTimerAfterDestroy(t *testing.T) {
	c := bareConn(ConnOptions{})
	c.mu.Lock()
	c.liveness.start(c)
	c.mu.Unlock()
	c.win.growAt = time.Now().Add(-time.Second)
	c.destroying, c.memoryGone = true, true
	c.checkLiveness()
	if c.err != nil || c.win.grown || len(c.mem.slots) > 0 {
		t.Errorf("error %v, grown %t, %d slots", c.err, c.win.grown, len(c.mem.slots))
	}
	c.liveness.stop()
}

// TestEventLoopUsers: a hub that is over has no more users, whoever asks at the same time.
func TestEventLoopUsers(t *testing.T) {
	for range 100 {
		h := &eventLoop{users: 1, ids: map[*ID]*inbound{}}
		var all sync.WaitGroup
		all.Go(func() { h.acquire() })
		all.Go(h.drain)
		all.Wait()
		if h.acquire() {
			t.Fatal("an event loop that is draining has one more user")
		}
		if h.users != 1 && h.users != 2 {
			t.Fatalf("%d users", h.users)
		}
	}
}

// TestEventLoopHungHandler: a handler that waits for a device stops the events of its own ID, which it gets in
// order, and no others.
func TestEventLoopHungHandler(t *testing.T) {
	l := &eventLoop{ids: map[*ID]*inbound{}}
	hung, other, gone := &ID{}, &ID{}, &ID{}
	wait, started := make(chan struct{}), make(chan struct{}, 3)
	var got []EventType // by hung's handler
	ended := make(chan error)
	l.ids[hung] = &inbound{handler: eventHandler{func(e *Event) {
		started <- struct{}{}
		<-wait
		got = append(got, e.Type)
	}, func(err error) { ended <- err }}}
	seen := make(chan EventType, 1)
	l.ids[other] = &inbound{handler: eventHandler{event: func(e *Event) { seen <- e.Type }}}
	l.ids[gone] = &inbound{handler: eventHandler{event: func(e *Event) {
		started <- struct{}{}
		<-wait
		if e.Type != EventEstablished {
			t.Errorf("a handler that is no longer registered gets %s", e.Type)
		}
	}}}

	for _, e := range []EventType{EventEstablished, EventAddrChange, EventDisconnected} {
		l.pass(&Event{ID: hung, Type: e})
		l.pass(&Event{ID: gone, Type: e})
	}
	<-started
	<-started
	l.unregister(gone)
	l.pass(&Event{ID: other, Type: EventDisconnected})
	if e := <-seen; e != EventDisconnected {
		t.Errorf("the other ID gets %s", e)
	}
	l.fail(errClosed)
	close(wait)
	if err := <-ended; err != errClosed {
		t.Errorf("there are no more events because of %v", err)
	}
	if want := []EventType{EventEstablished, EventAddrChange, EventDisconnected}; !slices.Equal(got, want) {
		t.Errorf("events are %v, want %v", got, want)
	}
}

// TestHungConnection: while the connection with one device cannot go on, others are made, used and closed.
func TestHungConnection(t *testing.T) {
	l := newListener(t, ListenOptions{})
	client, server := connect(t, l, DialOptions{})
	client.mu.Lock() // as while the device carries out a command
	server.mu.Lock()
	done := make(chan error, 2)
	for _, c := range []*Conn{client, server} {
		id := c.id
		go func() { done <- id.Disconnect() }() // its event waits for the lock
	}
	must(t, <-done, <-done)
	for range 3 {
		a, b := connect(t, l, DialOptions{})
		must(t, a.Send(within(t), []byte("hello")))
		if msg, err := b.Recv(within(t)); string(msg) != "hello" {
			t.Errorf("%q, %v", msg, err)
		}
		must(t, a.Close(), b.Close())
	}
	client.mu.Unlock()
	server.mu.Unlock()
	if _, err := client.Recv(within(t)); err == nil {
		t.Error("the connection that hung goes on")
	}
}

// TestNoGrowthAtEnd: a peer that asks for large receives and disconnects gets none.
func TestNoGrowthAtEnd(t *testing.T) {
	l := newListener(t, ListenOptions{})
	client, server := connect(t, l, DialOptions{})
	server.mu.Lock()
	if !server.win.startsSmall || server.win.grown {
		t.Fatalf("the window starts as %+v", server.win)
	}
	server.win.growAt = time.Now().Add(time.Hour)
	client.mu.Lock()
	client.sendWant()
	posted := client.ctlPosted
	client.mu.Unlock()
	until(t, "the server has the request", func() bool {
		client.mu.Lock()
		defer client.mu.Unlock()
		client.poll()
		return client.err != nil || client.ctlDone == posted
	})
	must(t, client.id.Disconnect())
	server.mu.Unlock()
	until(t, "the server knows of the end", func() bool {
		server.mu.Lock()
		defer server.mu.Unlock()
		return server.err != nil
	})
	server.mu.Lock()
	defer server.mu.Unlock()
	if server.win.grown {
		t.Errorf("the window is %+v", server.win)
	}
}

// TestHungDevice: while one device hangs in open or close, connections on other devices are made.
func TestHungDevice(t *testing.T) {
	hung := findDeviceEntry(math.MaxUint32)
	hung.mu.Lock() // as open and closeIdle hold it
	defer func() {
		hung.forget()
		hung.mu.Unlock()
	}()
	stuck := findDeviceEntry(math.MaxUint32) // another user of the same one has to wait
	if stuck != hung {
		t.Error("there are two entries for one device")
	}
	ended := make(chan error)
	go func() {
		_, err := useDevice(math.MaxUint32 - 1) // there is none of that number
		ended <- err
	}()
	if err := <-ended; err == nil {
		t.Error("a device was opened that is not there")
	}
	other := findDeviceEntry(math.MaxUint32 - 1)
	if other.closed || other.refs != 1 {
		t.Errorf("the entry of a device that could not be opened stays: %+v", other)
	}
	other.forget()
}

// TestHungRegistration: while the registration of a region hangs, connections whose messages have room in
// other regions get slots and return them.
func TestHungRegistration(t *testing.T) {
	const size = 128
	r := &region{mr: &uverbs.MR{}, bytes: make([]byte, 4*size), free: []span{{0, 4 * size}}}
	p := &pool{regions: []*region{r}, trim: true}
	other := value(p.alloc(1, size))(t)
	p.registering.Lock() // as while the device carries out the command
	waits := make(chan error)
	go func() {
		_, err := p.alloc(5, size) // for which there is too little
		waits <- err
	}()
	until(t, "the rest is taken", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.used == 4*size
	})
	other.release()
	m := value(p.alloc(1, size))(t)
	if m.slots[0].at != 0 || p.used != 4*size {
		t.Errorf("slot %+v, %d bytes are in use", m.slots[0], p.used)
	}
	m.release()
	p.mu.Lock()
	p.regions = append(p.regions, &region{mr: &uverbs.MR{}, bytes: make([]byte, size), free: []span{{0, size}}})
	p.mu.Unlock()
	p.registering.Unlock()
	if err := <-waits; err != nil || p.used != 5*size { // there is room now, so nothing is registered
		t.Errorf("%v, %d bytes are in use", err, p.used)
	}
}

// TestAfterEnd: what may follow an end, and what may not.
func TestAfterEnd(t *testing.T) {
	end, over := header{kind: msgEnd}, header{kind: msgEnd, closesRead: true}
	credits, data := header{kind: msgCredits}, header{kind: msgData}
	for _, c := range []struct {
		name string
		all  []header
		ok   bool
	}{
		{"credits after an end", []header{end, credits}, true},
		{"the end of both directions after an end", []header{end, over}, true},
		{"a second end", []header{end, end}, false},
		{"data after an end", []header{end, data}, false},
		{"credits after the end of both directions", []header{over, credits}, false},
		{"an end after the end of both directions", []header{over, end}, false},
		{"the end of both directions, twice", []header{end, over, over}, false},
	} {
		conn := bareConn(ConnOptions{})
		var err error
		for i, h := range c.all {
			if _, err = conn.handleMessage(h, i); err != nil && i < len(c.all)-1 {
				t.Errorf("%s: message %d: %v", c.name, i, err)
			}
		}
		if c.ok != (err == nil) || err != nil && !errors.Is(err, syscall.EPROTO) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestWantCostsCredit: each want costs a credit, so that there are no more than the peer has had.
func TestWantCostsCredit(t *testing.T) {
	c := bareConn(ConnOptions{})
	for i := range c.o.Depth + 1 {
		if _, err := c.handleMessage(header{kind: msgWant}, 0); (err != nil) != (i == c.o.Depth) || err != nil && !errors.Is(err, syscall.EPROTO) {
			t.Errorf("want %d: %v", i, err)
		}
	}
}

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
	if slot := c.dropHeld(); slot >= 0 {
		p.post(slot)
	}
	if slot := c.dropHeld(); slot >= 0 {
		p.t.Fatalf("slot %d is held twice", slot)
	}
	if c.inHead == c.inTail {
		return
	}
	if got := c.takeMessage(); !bytes.Equal(got, p.sent[p.taken]) {
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
		good = !c.eof && !c.peerClosedRead && c.inTail-c.inHead < c.o.Depth && size <= c.o.MessageSize
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
		if c.win.growAt = time.Now(); c.win.wantedEarly {
			p.grow()
		}
	case 11: // the peer's device acknowledges a control message
		if c.completed < c.posted {
			c.handleCompletion(&uverbs.WC{ID: c.completed, Opcode: uverbs.WCSend})
			err = c.err
		}
	}
	if err == nil {
		p.respond()
	}
	return good, err
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
		p.t.Fatalf("%d credits were granted and %d used, %d are to be returned, %d messages wait: of %d credits", p.granted, p.used, c.consumed, n, depth)
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
	f.Fuzz(func(t *testing.T, lazy bool, script []byte) {
		o := ConnOptions{Depth: 4, MessageSize: 1000}
		if lazy {
			o = ConnOptions{Depth: 16, MessageSize: 5000}
		}
		c := bareConn(o)
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
			act, kind, size := script[0]%12, script[1], int(binary.BigEndian.Uint16(script[2:]))
			good, err := p.act(act, kind, size, script[2:4])
			if err != nil {
				if good || !errors.Is(err, syscall.EPROTO) {
					t.Fatalf("action %d of kind %d and size %d: %v", act, kind, size, err)
				}
				return
			}
			p.checkState()
		}
	})
}
