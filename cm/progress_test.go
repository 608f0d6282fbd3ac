package cm

import (
	"context"
	"errors"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// TestWaitsEndWithoutFlush: what waits in a method ends when the connection is given up, although no completion comes.
func TestWaitsEndWithoutFlush(t *testing.T) {
	for name, met := range map[string]condition{
		"a message": canRecv, "room": canSend, "a control message": canSendControl, "an operation": isDone, "all sent": allSent, "memory": hasGrown,
	} {
		c := bareConn(ConnOptions{})
		c.memoryGone = true // no CQ to poll
		c.credits, c.ctlPosted, c.posted = 0, ctlSlots, 1
		c.parkTurn <- struct{}{} // another goroutine is parked on the channel
		ended := make(chan error)
		go func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.users++
			defer c.end()
			ended <- c.await(context.Background(), met, 0)
		}()
		for waits := false; !waits; time.Sleep(time.Millisecond) {
			c.mu.Lock()
			waits = len(c.waiting) > 0
			c.mu.Unlock()
		}
		c.mu.Lock()
		c.destroying = true
		c.notify()
		c.mu.Unlock()
		if err := <-ended; !errors.Is(err, errClosed) {
			t.Errorf("the wait for %s ends with %v", name, err)
		}
	}
}

// TestConditions: what ends each wait, and what does not.
func TestConditions(t *testing.T) {
	failed := errors.New("failed")
	for _, a := range []struct {
		name  string
		wants condition
		set   func(*Conn)
		met   bool
	}{
		{"a message", canRecv, func(*Conn) {}, false},
		{"a message", canRecv, func(c *Conn) { c.inTail++ }, true},
		{"a message, at the end", canRecv, func(c *Conn) { c.eof = true }, true},
		{"a message, failed", canRecv, func(c *Conn) { c.err = failed }, true},
		{"a message, closing", canRecv, func(c *Conn) { c.closing = true }, true},
		{"room", canSend, func(c *Conn) { c.credits = 1 }, true},
		{"room, without credit", canSend, func(c *Conn) { c.credits = 0 }, false},
		{"room, of sends", canSend, func(c *Conn) { c.msgPosted = uint64(c.o.SendDepth) }, false},
		{"room, almost", canSend, func(c *Conn) { c.msgPosted = uint64(c.o.SendDepth) - 1 }, true},
		{"room, mute", canSend, func(c *Conn) { c.mustRecvFirst = true }, false},
		{"room, ended", canSend, func(c *Conn) { c.credits, c.endSent = 0, true }, true},
		{"room, deaf", canSend, func(c *Conn) { c.credits, c.peerClosedRead = 0, true }, true},
		{"room, failed", canSend, func(c *Conn) { c.credits, c.err = 0, failed }, true},
		{"room, closing", canSend, func(c *Conn) { c.credits, c.closing = 0, true }, true},
		{"control", canSendControl, func(*Conn) {}, true},
		{"control, all used", canSendControl, func(c *Conn) { c.ctlPosted = ctlSlots }, false},
		{"control, all but one", canSendControl, func(c *Conn) { c.ctlPosted = ctlSlots - 1 }, true},
		{"control, mute", canSendControl, func(c *Conn) { c.mustRecvFirst = true }, false},
		{"control, mute and failed", canSendControl, func(c *Conn) { c.mustRecvFirst, c.err = true, failed }, true},
		{"transfer", canTransfer, func(*Conn) {}, true},
		{"transfer, all used", canTransfer, func(c *Conn) { c.opsPosted = uint64(c.o.Transfers) }, false},
		{"transfer, all but one", canTransfer, func(c *Conn) { c.opsPosted = uint64(c.o.Transfers) - 1 }, true},
		{"transfer, mute", canTransfer, func(c *Conn) { c.mustRecvFirst = true }, false},
		{"transfer, failed", canTransfer, func(c *Conn) { c.mustRecvFirst, c.err = true, failed }, true},
		{"transfer, closing", canTransfer, func(c *Conn) { c.mustRecvFirst, c.closing = true, true }, true},
		{"probe, all used", canProbe, func(c *Conn) { c.opsPosted = uint64(c.o.Transfers) }, false},
		{"probe, closing", canProbe, func(c *Conn) { c.opsPosted, c.closing = uint64(c.o.Transfers), true }, false},
		{"probe, failed", canProbe, func(c *Conn) { c.opsPosted, c.err = uint64(c.o.Transfers), failed }, true},
		{"all sent", allSent, func(*Conn) {}, true},
		{"all sent, not yet", allSent, func(c *Conn) { c.posted = 1 }, false},
		{"all sent, but for an operation", allSent, func(c *Conn) { c.opsPosted = 1 }, false},
		{"all sent, failed", allSent, func(c *Conn) { c.posted, c.err = 1, failed }, true},
		{"growth", hasGrown, func(*Conn) {}, false},
		{"growth", hasGrown, func(c *Conn) { c.peer.grown = true }, true},
		{"growth, ended", hasGrown, func(c *Conn) { c.endSent = true }, true},
		{"growth, deaf", hasGrown, func(c *Conn) { c.peerClosedRead = true }, true},
		{"growth, failed", hasGrown, func(c *Conn) { c.err = failed }, true},
		{"growth, closing", hasGrown, func(c *Conn) { c.closing = true }, true},
	} {
		c := bareConn(ConnOptions{})
		a.set(c)
		if got := a.wants(c, 1); got != a.met {
			t.Errorf("%s: %v, want %v", a.name, got, a.met)
		}
	}
}

// TestCompletionOrder: on soft iWARP a SEND completes before a READ that was posted earlier, which it does not
// end. A READ ends the SENDs before it, and none after it.
func TestCompletionOrder(t *testing.T) {
	c := bareConn(ConnOptions{Tuning: Tuning{SendDepth: 2, Transfers: 2}})
	state := func() [3]uint64 { return [3]uint64{c.msgDone, c.ctlDone, c.opsDone} }
	expect := func(what string, id uint64, want [3]uint64) {
		t.Helper()
		if err := c.complete(id); err != nil || state() != want {
			t.Errorf("%s: %v, messages, control messages and operations are %d, want %d", what, err, state(), want)
		}
	}
	c.record(msgSend)
	first := c.recordOp(8)
	var last uint64
	for range 3 * len(c.sendRing) { // more SENDs than the ring has room for, while the READ is on its way
		last = c.recordSignaled(msgSend)
		if err := c.complete(last); err != nil || c.isComplete(first) {
			t.Fatalf("%v, and the READ is done: %v", err, c.isComplete(first))
		}
	}
	n := c.msgDone
	control := c.recordSignaled(ctlSend)
	second := c.recordOp(8)
	c.record(msgSend)
	if !c.outstanding() || !c.owed() {
		t.Error("nothing is outstanding")
	}
	expect("a SEND", control, [3]uint64{n, 1, 0})
	expect("a READ", first, [3]uint64{n, 1, 1})
	if !c.isComplete(first) || c.isComplete(second) {
		t.Errorf("the READs are done: %v, %v", c.isComplete(first), c.isComplete(second))
	}
	expect("the other READ", second, [3]uint64{n, 1, 2})
	if !c.isComplete(second) || c.owed() || !c.outstanding() {
		t.Errorf("the READ is done: %v, something is owed: %v, outstanding: %v", c.isComplete(second), c.owed(), c.outstanding())
	}
	third := c.recordOp(8)
	expect("a third READ, and the SEND before it", third, [3]uint64{n + 1, 1, 3})
	if !c.isComplete(third) || c.outstanding() {
		t.Errorf("the READ is done: %v, something is outstanding: %v", c.isComplete(third), c.outstanding())
	}
}

// TestFailWakes: a failure wakes those who wait, and the first one stays.
func TestFailWakes(t *testing.T) {
	c := bareConn(ConnOptions{})
	c.memoryGone = true
	c.parkTurn <- struct{}{}
	ended := make(chan error)
	go func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		ended <- c.await(context.Background(), canRecv, 0)
	}()
	for waits := false; !waits; time.Sleep(time.Millisecond) {
		c.mu.Lock()
		waits = len(c.waiting) > 0
		c.mu.Unlock()
	}
	c.mu.Lock()
	c.fail(syscall.EPROTO)
	c.fail(syscall.EIO)
	c.mu.Unlock()
	if err := <-ended; err != nil || !errors.Is(c.err, syscall.EPROTO) || errors.Is(c.err, syscall.EIO) {
		t.Errorf("the wait ends with %v, the connection with %v", err, c.err)
	}
}

// TestSpinAfterShortWait: a wait begins with polling only if the wait before it was short.
func TestSpinAfterShortWait(t *testing.T) {
	for _, spin := range []time.Duration{time.Nanosecond, time.Hour} {
		ctx := within(t)
		o := ConnOptions{Tuning: Tuning{Spin: spin}}
		client, server := connect(t, newListener(t, ListenOptions{ConnOptions: o}), DialOptions{ConnOptions: o})
		server.mu.Lock()
		server.spinHint = false // on iWARP it has waited for the first message
		server.mu.Unlock()
		arrived := make(chan error, 1)
		go func() { arrived <- second1(server.Recv(ctx)) }()
		until(t, "somebody waits", func() bool {
			server.mu.Lock()
			defer server.mu.Unlock()
			return server.users > 0 && len(server.parkTurn) > 0
		})
		must(t, client.Send(ctx, []byte("x")), <-arrived)
		if want := spin == time.Hour; server.spinHint != want {
			t.Errorf("Spin %s: after a wait who waits begins by looking: %t, want %t", spin, server.spinHint, want)
		}
	}
}

// TestNoSpinAfterLargeMessage: on a software device, neither side polls behind a message that takes longer than waking
// up, although its last wait was short.
func TestNoSpinAfterLargeMessage(t *testing.T) {
	ctx := within(t)
	o := ConnOptions{Tuning: Tuning{Spin: time.Hour}}
	client, server := connect(t, newListener(t, ListenOptions{ConnOptions: o}), DialOptions{ConnOptions: o})
	soft := client.dev.dev.Info().InProcess
	for _, size := range []int{maxMTU, maxMTU + 1, 1} {
		must(t, client.Send(ctx, make([]byte, size)), second1(server.Recv(ctx)))
		for _, c := range []*Conn{client, server} {
			c.mu.Lock()
			if got, want := c.slowData(), soft && size > maxMTU; got != want {
				t.Errorf("%d bytes: a wait begins without polling: %t, want %t", size, got, want)
			}
			c.mu.Unlock()
		}
	}
	if !soft {
		return
	}
	must(t, client.Send(ctx, make([]byte, maxMTU+1)), second1(server.Recv(ctx)))
	server.mu.Lock()
	server.spinHint = true
	server.mu.Unlock()
	arrived := make(chan error, 1)
	go func() { arrived <- second1(server.Recv(ctx)) }()
	until(t, "somebody waits without polling", func() bool {
		server.mu.Lock()
		defer server.mu.Unlock()
		return len(server.parkTurn) > 0
	})
	must(t, client.Send(ctx, nil), <-arrived)
}

// TestWaitAllocs: a goroutine that waits while another one has the turn, for a change or in vain, does not allocate, and
// nothing of it is left.
func TestWaitAllocs(t *testing.T) {
	c := bareConn(ConnOptions{})
	c.parkTurn <- struct{}{}
	over, cancel := context.WithCancel(context.Background())
	cancel()
	changes := make(chan struct{})
	go func() {
		for range changes {
			for waits := false; !waits; {
				c.mu.Lock()
				waits = len(c.waiting) > 0
				c.notify()
				c.mu.Unlock()
				runtime.Gosched()
			}
		}
	}()
	defer close(changes)
	for name, wait := range map[string]func() bool{
		"a change": func() bool {
			changes <- struct{}{}
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.takeTurn(context.Background())
		},
		"its end": func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.takeTurn(over) },
	} {
		if n := testing.AllocsPerRun(200, func() {
			if wait() {
				t.Error("two have the turn")
			}
		}); n != 0 {
			t.Errorf("a wait for %s makes %v allocations, want 0", name, n)
		}
		c.mu.Lock()
		if len(c.waiting) > 0 {
			t.Errorf("%d goroutines still wait for %s", len(c.waiting), name)
		}
		c.mu.Unlock()
	}
	<-c.parkTurn
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.takeTurn(over) {
		t.Error("nobody has the turn, and it is not given")
	}
}
