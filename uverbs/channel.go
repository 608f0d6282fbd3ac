package uverbs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// CompChannel delivers completion events: which armed CQ got a completion
// (struct ibv_comp_channel). Waiting parks the goroutine in Go's netpoller and
// takes no thread. One goroutine at a time may call Wait; a context ends it.
type CompChannel struct {
	object
	f  *os.File
	fd int // of f, which outlives every CQ that names it

	watch    watch
	shutdown atomic.Bool     // Shutdown was called
	wait     *busyWaiter     // nil without SetBusyWait
	event    [eventSize]byte // read buffer, here so that it is not allocated per read

	// An event need not be read to know whose it is while the channel has one CQ. Wait tells of it
	// then and reads it in the next call, when the program has answered what it waited for.
	only   atomic.Pointer[CQ] // the CQ that alone uses the channel, nil if several did
	unread *CQ                // whose event has been told of and is still to be read, or nil
}

// eventSize is the size of a completion event (struct ib_uverbs_comp_event_desc).
const eventSize = 8

// CreateCompChannel creates a completion channel (ibv_create_comp_channel).
func (d *Device) CreateCompChannel() (*CompChannel, error) {
	c := &CompChannel{}
	if err := c.addParents(d, "CompChannel", "DESTROY_COMP_CHANNEL", &d.object); err != nil {
		return nil, err
	}
	req := &abi.CreateCompChannel{}
	resp := &abi.CreateCompChannelResp{}
	if errno := d.cmd.legacy(abi.IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, bytesOf(req), bytesOf(resp), udata{}); errno != 0 {
		c.removeParents()
		return nil, d.cmd.fail("CREATE_COMP_CHANNEL", errno, "")
	}
	f, err := d.cmd.Events(resp.FD, "completion channel of "+d.Name())
	if err != nil {
		c.removeParents()
		return nil, err
	}
	c.f, c.fd = f, int(resp.FD)
	return c, c.markCreated(c)
}

// Wait waits for the next event and returns the CQ it is for (ibv_get_cq_event;
// nothing has to be acknowledged). To lose no completion: [CQ.Notify], then
// [CQ.Poll] until it is empty, then Wait. It returns ctx.Err() wrapped if the
// context ends first, and [os.ErrClosed] if the channel is closed. Repeated calls
// with one context do not allocate.
func (c *CompChannel) Wait(ctx context.Context) (*CQ, error) {
	if err := c.usable(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("uverbs: wait for completion: %w", err)
	}
	c.watch.follow(ctx, c.f)
	for {
		cq, err := c.read()
		if err != nil {
			return nil, waitErr(ctx, &c.object, "completion", err)
		}
		if cq != nil {
			return cq, nil
		}
	}
}

// waitErr turns the error of a read into the one that the waiter gets.
func waitErr(ctx context.Context, o *object, what string, err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil:
		err = ctx.Err()
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, os.ErrClosed): // the deadline is that of Shutdown
		return o.errClosed()
	case errors.Is(err, syscall.EIO), notPollable(err): // which is how the kernel says so
		err = fmt.Errorf("%w: %w", ErrDeviceRemoved, err)
	}
	return fmt.Errorf("uverbs: wait for %s: %w", what, err)
}

// notPollable reports whether that is what Go says of a read: epoll has reported an error, which is
// how a file of uverbs shows that its device was removed. The os package has no name for it.
func notPollable(err error) bool {
	var p *os.PathError
	return errors.As(err, &p) && p.Err.Error() == "not pollable"
}

// SetBusyWait has Wait keep its thread and its processor (one of GOMAXPROCS) for up to d
// while it sleeps, before it parks in the netpoller; 0, the default, has it park at
// once. An event that comes within d is then seen as soon as in a C program, since no
// other thread is involved. Meanwhile other goroutines have one processor less, and with
// GOMAXPROCS at 1 none, and a context or a Close ends the Wait up to d later; so d
// should be little more than the time in which a peer answers, and a millisecond or more: the clock
// that ends the sleep wakes the thread three times in d. SetBusyWait must not be called during a Wait or
// another SetBusyWait.
func (c *CompChannel) SetBusyWait(d time.Duration) error {
	if d < 0 || d > maxBusyWait {
		return argErr("SetBusyWait", "d", d, "0 to %s", maxBusyWait)
	}
	if err := c.acquire(); err != nil {
		return err
	}
	defer c.release()
	var h *busyWaiter
	if d > 0 {
		var err error
		if h, err = newBusyWaiter(c.f, d, &c.event); err != nil {
			return fmt.Errorf("uverbs: SetBusyWait: %w", err)
		}
	}
	old := c.wait
	if c.wait = h; old != nil {
		return old.close()
	}
	return nil
}

// maxBusyWait is the longest time for which a waiter may keep its processor.
const maxBusyWait = time.Second

// read waits for one event; the CQ is nil if it has been closed since, or told of before.
func (c *CompChannel) read() (*CQ, error) {
	returned := c.unread
	c.unread = nil
	n := 0
	if c.wait != nil && !c.shutdown.Load() { // a hold does not know the deadline that Shutdown sets
		var cq *CQ
		if n, cq = c.wait.wait(&c.only, returned != nil); cq != nil {
			c.unread = cq
			cq.raised()
			return cq, nil
		}
	}
	if n == 0 {
		var err error
		if n, err = c.f.Read(c.event[:]); err != nil {
			return nil, err
		}
	}
	if n != eventSize {
		return nil, fmt.Errorf("event of %d bytes instead of %d: %w", n, eventSize, io.ErrUnexpectedEOF)
	}
	cq, _ := c.dev.target(binary.NativeEndian.Uint64(c.event[:])).(*CQ)
	if cq == nil || cq == returned {
		return nil, nil
	}
	cq.raised()
	return cq, nil
}

// addCQ notes that a CQ is about to use the channel.
func (c *CompChannel) addCQ(cq *CQ) {
	c.dev.tree.Lock()
	defer c.dev.tree.Unlock()
	if c.users.of("CQ") > 1 {
		cq = nil
	}
	c.only.Store(cq)
}

// shared reports whether more than one CQ uses the channel.
func (c *CompChannel) shared() bool {
	c.dev.tree.Lock()
	defer c.dev.tree.Unlock()
	return c.users.of("CQ") > 1
}

// Close closes the channel. It fails with EBUSY while a CQ uses it.
func (c *CompChannel) Close() error {
	var closeErr error // of a file, which is closed all the same
	err := c.close(func() error {
		c.watch.stop(c.f)
		if c.wait != nil {
			c.wait.close()
		}
		closeErr = c.f.Close()
		return nil
	}, nil)
	return errors.Join(err, closeErr)
}

// Shutdown ends a Wait that is under way and has every later one fail, with [os.ErrClosed], although CQs
// use the channel still. It is for the end of a program's own queues, when a device sends no more events.
// Unlike the other methods it may be called at any time. The channel is still to be closed.
func (c *CompChannel) Shutdown() error {
	if err := c.usable(); err != nil {
		return err
	}
	c.shutdown.Store(true)
	c.watch.stop(c.f)
	if c.f.SetReadDeadline(longAgo) != nil { // Close has overtaken it
		return c.errClosed()
	}
	return nil
}

// watch ends reads of a file when a context ends. The registration with the context
// is kept from one call to the next, which makes waiting again free of charge.
type watch struct {
	mu    sync.Mutex
	done  <-chan struct{} // the context's Done channel, which identifies it
	unreg func() bool     // of context.AfterFunc
	fired chan struct{}   // closed when the callback has run
	over  bool            // the file is being closed
}

// longAgo is a deadline in the past.
var longAgo = time.Unix(1, 0)

// follow makes the end of ctx end reads of f, and that of an earlier context no more.
func (w *watch) follow(ctx context.Context, f *os.File) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ctx.Done() == w.done || w.over {
		return
	}
	w.drop(f)
	if ctx.Done() == nil {
		return
	}
	fired := make(chan struct{})
	w.done, w.fired = ctx.Done(), fired
	w.unreg = context.AfterFunc(ctx, func() {
		f.SetReadDeadline(longAgo)
		close(fired)
	})
}

// drop ends the watch of a context; if its callback has started, drop outlasts it
// and undoes what it did. The caller holds mu.
func (w *watch) drop(f *os.File) {
	if w.unreg == nil {
		return
	}
	if !w.unreg() {
		<-w.fired
		f.SetReadDeadline(time.Time{})
	}
	w.done, w.unreg, w.fired = nil, nil, nil
}

// stop ends the watch for good.
func (w *watch) stop(f *os.File) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	w.drop(f)
}
