package cm

import (
	"errors"
	"math"
	"strings"
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
	c := &Conn{o: o, maxSend: o.MessageSize, heldSlot: -1, credits: 16, peerDepth: 16, domain: &domain{}, parkTurn: make(chan struct{}, 1)}
	c.inbox = make([]arrival, o.Depth+spareRecv)
	c.sendRing, c.opRing = make([]sendKind, o.SendDepth+ctlSlots), make([]op, o.Transfers)
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

// TestFailedCompletion: whatever the status of a failed request, it ends the connection, and the first one is
// its cause.
func TestFailedCompletion(t *testing.T) {
	l := newListener(t, ListenOptions{})
	for _, status := range []uverbs.WCStatus{uverbs.WCLocProtErr, uverbs.WCGeneralErr, uverbs.WCRemOpErr, uverbs.WCRetryExcErr, uverbs.WCStatus(99)} {
		client, _ := connect(t, l, DialOptions{})
		client.mu.Lock()
		client.handleCompletion(&uverbs.WC{ID: client.completed, Status: status})
		first := client.err
		client.handleCompletion(&uverbs.WC{ID: client.completed, Status: uverbs.WCWRFlushErr})
		if first == nil || client.err != first {
			t.Errorf("%s: %v, and then %v", status, first, client.err)
		}
		client.mu.Unlock()
		if _, err := client.Recv(within(t)); !errors.Is(err, first) {
			t.Errorf("%s: %v, want %v", status, err, first)
		}
	}
}

// TestProbeLimit: however long the peer's device takes to answer, no more probes are posted than the send queue
// has room for. linger asks canProbe before each of its probes.
func TestProbeLimit(t *testing.T) {
	for _, transfers := range []int{1, 2, 16} {
		c := bareConn(ConnOptions{Tuning: Tuning{SendDepth: 1, Transfers: transfers}})
		c.recordSignaled(ctlSend)
		probes := 0
		for range 100 {
			if canProbe(c, 0) {
				c.recordOp(0)
				probes++
			}
		}
		if probes != transfers {
			t.Errorf("%d probes with %d transfers", probes, transfers)
		}
		if err := c.complete(opBit | c.opsPosted - 1); err != nil || c.opsDone != uint64(probes) || c.ctlDone != 1 {
			t.Errorf("%v, %d operations and %d control messages are done", err, c.opsDone, c.ctlDone)
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
	c.win.attendAt = time.Now().Add(-time.Second)
	c.destroying, c.memoryGone = true, true
	c.checkLiveness()
	if c.err != nil || c.win.grown || len(c.mem.slots) > 0 {
		t.Errorf("error %v, grown %t, %d slots", c.err, c.win.grown, len(c.mem.slots))
	}
	c.liveness.stop()
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
	server.win.attendAt = time.Now().Add(time.Hour)
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
