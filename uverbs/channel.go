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

// CompChannel delivers completion events, which say that an armed CQ has a completion (struct
// ibv_comp_channel). One goroutine at a time may call [CompChannel.Wait].
type CompChannel struct {
	object
	f  *os.File
	fd int // the device's number of f, the kernel's descriptor; every CQ that uses it is closed before f

	watch    watch
	shutdown atomic.Bool     // Shutdown was called
	wait     *busyWaiter     // nil without SetBusyWait
	event    [eventSize]byte // read buffer, here so that it is not allocated per read

	// While the channel has one CQ, every event is for that CQ. A busy wait then returns the CQ
	// without reading the event, and the next call of Wait reads it. This moves a system call
	// out of the time between a message and its answer.
	only   atomic.Pointer[CQ] // the only CQ of the channel; nil if it has had several
	unread *CQ                // the CQ whose event Wait has returned but not read, or nil
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
		d.cmd.EventsClosed(resp.FD)
		c.removeParents()
		return nil, err
	}
	c.f, c.fd = f, int(resp.FD)
	return c, c.markCreated(c)
}

// Wait waits for the next event and returns its CQ (ibv_get_cq_event). Events need no
// acknowledgement. To lose no completion, call [CQ.Notify], then [CQ.Poll] until the CQ is empty,
// then Wait.
//
// Wait returns ctx.Err() wrapped if the context ends first, [os.ErrClosed] if the channel is closed
// or shut down, and [ErrDeviceRemoved] if the device was removed. It parks the goroutine in Go's
// netpoller and takes no thread. Repeated calls with one context do not allocate.
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

// waitErr converts the error of a read of an event.
func waitErr(ctx context.Context, o *object, what string, err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil:
		err = ctx.Err()
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, os.ErrClosed): // Shutdown sets a deadline, too
		return o.errClosed()
	case errors.Is(err, syscall.EIO), notPollable(err), errors.Is(err, io.EOF): // the device was removed
		err = fmt.Errorf("%w: %w", ErrDeviceRemoved, err)
	}
	return fmt.Errorf("uverbs: wait for %s: %w", what, err)
}

// notPollable reports whether a read failed because epoll reported an error for the file. The files
// of uverbs do so after their device was removed. Package os has no value for this error.
func notPollable(err error) bool {
	var p *os.PathError
	return errors.As(err, &p) && p.Err.Error() == "not pollable"
}

// SetBusyWait makes Wait sleep in the kernel for up to d, at most one second, before it parks in
// the netpoller. The goroutine keeps its thread and its processor (one of GOMAXPROCS) during that
// time. An event that arrives within d is then seen as soon as in a C program, because no other
// thread must be woken. The default, 0, parks at once.
//
// Meanwhile other goroutines have one processor less, or none if GOMAXPROCS is 1. A context or a
// Close ends the Wait up to d later. A timer wakes the thread three times in d. So d should be
// little more than the time in which a peer answers, but at least a millisecond.
//
// It has no effect on a device of this process ([DeviceInfo].InProcess), whose own goroutines need the
// processor.
//
// SetBusyWait must not be called during a Wait or another SetBusyWait.
func (c *CompChannel) SetBusyWait(d time.Duration) error {
	if d < 0 || d > maxBusyWait {
		return argErr("SetBusyWait", "d", d, "0 to %s", maxBusyWait)
	}
	if err := c.acquire(); err != nil {
		return err
	}
	defer c.release()
	if c.dev.info.InProcess {
		d = 0
	}
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

// maxBusyWait is the longest busy wait.
const maxBusyWait = time.Second

// read waits for one event. The CQ is nil if it has been closed since, or if Wait has already
// returned it for this event.
func (c *CompChannel) read() (*CQ, error) {
	returned := c.unread
	c.unread = nil
	n := 0
	if c.wait != nil && !c.shutdown.Load() { // a busy wait ignores the deadline that Shutdown sets
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

// addCQ records that a CQ is about to use the channel.
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
	var closeErr error // the file is closed in spite of it
	err := c.close(func() error {
		c.watch.stop(c.f)
		if c.wait != nil {
			c.wait.close()
		}
		closeErr = c.f.Close()
		c.dev.cmd.EventsClosed(uint32(c.fd))
		return nil
	}, nil)
	return errors.Join(err, closeErr)
}

// Shutdown ends a Wait in progress and makes every later one fail with [os.ErrClosed], although CQs
// still use the channel. It is for a program that shuts its queues down, after which the device
// sends no more events. It may be called at any time. The channel must still be closed.
func (c *CompChannel) Shutdown() error {
	if err := c.usable(); err != nil {
		return err
	}
	c.shutdown.Store(true)
	c.watch.stop(c.f)
	if c.f.SetReadDeadline(longAgo) != nil { // Close was faster
		return c.errClosed()
	}
	return nil
}

// watch ends reads of a file when a context ends. It keeps its registration with the context from
// one call to the next, so that waiting again with the same context costs nothing.
type watch struct {
	mu    sync.Mutex
	done  <-chan struct{} // the context's Done channel, which identifies it
	unreg func() bool     // of context.AfterFunc
	fired chan struct{}   // closed when the callback has run
	over  bool            // the file is being closed
}

// longAgo is a deadline in the past.
var longAgo = time.Unix(1, 0)

// follow makes reads of f end when ctx ends. It replaces an earlier context.
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

// drop ends the watch of a context. If its callback has started, drop waits for it and undoes its
// effect. The caller holds mu.
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
