package uverbs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// CompChannel delivers completion events, which say that an armed CQ has a completion (struct
// ibv_comp_channel). One goroutine at a time may call [CompChannel.Next].
type CompChannel struct {
	object
	f       kernel.EventFile // the events, or of a device of the kernel a watcher of them
	fd      int              // the device's number of the events, the kernel's descriptor; every CQ that uses it is closed before
	watcher *os.File         // f, if it is an epoll instance, see openWatcher

	watch    watch
	waiting  atomic.Bool  // a Wait is in progress
	shutdown atomic.Bool  // Shutdown was called
	busyTime atomic.Int64 // of SetBusyWait, in nanoseconds

	// The rest belongs to the Wait in progress.

	event [eventSize]byte       // read buffer, here so that it is not allocated per read
	n     int                   // number of bytes that tryRead has read
	errno syscall.Errno         // of tryRead
	raw   syscall.RawConn       // of the watcher
	try   func(fd uintptr) bool // tryRead, stored so that Wait does not allocate
	now   func(fd uintptr)      // readNow, stored for the same reason; nil until it is needed
	told  bool                  // an event makes the watcher readable

	// For busy waits, see busy_wait.go.
	number int64         // of the channel in this process, from 1
	known  time.Duration // the busyTime of the last Wait
	often  bool          // the last wait was shorter than busyTime
	over   bool          // a series of busy waits is over, so it is time to park
	slot   *busySlot     // of the last busy wait, or nil

	// While the channel has one CQ, every event is for that CQ. A busy wait then returns the CQ
	// without reading the event, and the next call of Wait reads it. This moves a system call
	// out of the time between a message and its answer.
	only   atomic.Pointer[CQ] // the only CQ of the channel; nil if it has had several
	unread *CQ                // the CQ whose event Wait has returned but not read, or nil
}

// eventSize is the size of a completion event (struct ib_uverbs_comp_event_desc).
const eventSize = 8

// CreateCompChannel creates a completion channel (ibv_create_comp_channel). For a device of the kernel it
// takes two file descriptors. In gVisor it fails with a [FeatureError]: poll the CQ instead.
func (d *Device) CreateCompChannel() (*CompChannel, error) {
	c := &CompChannel{}
	if err := c.addParents(d, "CompChannel", "DESTROY_COMP_CHANNEL", &d.object); err != nil {
		return nil, err
	}
	if err := d.cmd.untranslated("CREATE_COMP_CHANNEL"); err != nil { // the number of its file
		c.removeParents()
		return nil, err
	}
	req := abi.CreateCompChannel{}
	resp := &abi.CreateCompChannelResp{}
	if errno := d.cmd.LegacyBrief(abi.IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, bytesOf(&req), bytesOf(resp), true); errno != 0 {
		c.removeParents()
		return nil, d.cmd.fail("CREATE_COMP_CHANNEL", errno, "")
	}
	if err := c.open(resp.FD, "completion channel of "+d.Name()); err != nil {
		d.cmd.EventsClosed(resp.FD)
		c.removeParents()
		return nil, err
	}
	return c, c.markCreated(c)
}

// open prepares the channel to read the events of a number of the device, and closes them if it fails. A
// device of this process needs the processor for its own goroutines, so there are no busy waits for it.
func (c *CompChannel) open(number uint32, name string) (err error) {
	c.fd = int(number)
	if c.dev.info.InProcess {
		c.f, err = c.dev.cmd.Events(number, name)
	} else {
		err = c.openWatched(name)
	}
	if err != nil {
		return err
	}
	openChannels.Add(1)
	c.number = lastChannel.Add(1)
	return nil
}

// openWatched is open for a device of the kernel.
func (c *CompChannel) openWatched(name string) (err error) {
	if c.watcher, err = openWatcher(c.fd, name); err != nil {
		return err
	}
	c.f = c.watcher
	if c.raw, err = c.watcher.SyscallConn(); err != nil {
		return errors.Join(err, c.closeFiles())
	}
	c.try = c.tryRead
	c.known = defaultBusyWait
	if runtime.GOMAXPROCS(0) == 1 {
		c.known = soleBusyWait
	}
	c.busyTime.Store(int64(c.known))
	return nil
}

// Next waits for the next event and returns its CQ (ibv_get_cq_event). Events need no
// acknowledgement. To lose no completion, call [CQ.Notify], then [CQ.Poll] until the CQ is empty,
// then Next.
//
// Next returns ctx.Err() wrapped if the context ends first, [os.ErrClosed] if the channel is closed
// or shut down, and [ErrDeviceRemoved] if the device was removed. It fails with EBUSY if another
// goroutine waits on the channel. It parks the goroutine in Go's netpoller and takes no thread,
// except for short times when events come often; see [CompChannel.SetBusyWait]. Repeated calls with
// one or two contexts, such as those of two deadlines, do not allocate.
func (c *CompChannel) Next(ctx context.Context) (*CQ, error) {
	if err := c.usable(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("uverbs: wait for completion: %w", err)
	}
	if !c.waiting.CompareAndSwap(false, true) {
		return nil, c.errBusy()
	}
	defer c.waiting.Store(false)
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

// errBusy returns the error of a second Wait.
func (c *CompChannel) errBusy() error {
	return fmt.Errorf("uverbs: wait for completion: another goroutine waits on the channel: %w", syscall.EBUSY)
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

// SetBusyWait sets for how long Next may keep its processor when events come often: from 0, which
// means never, to one second. The default is 10 ms, or 1 ms if GOMAXPROCS is 1 when the channel is
// created.
//
// If the last wait took less than d, Next begins with a busy wait: it sleeps in the kernel and keeps
// its thread and its processor (one of GOMAXPROCS). An event is then seen as soon as in a C program,
// because no other thread must be woken. A busy wait takes no processor time, but other goroutines
// have one processor less meanwhile. Therefore
//
//   - after d without a parked wait, Next parks in the netpoller;
//   - at most GOMAXPROCS-1 goroutines of the process are in a busy wait at a time, or one if
//     GOMAXPROCS is 1, which lets others that are ready run before it;
//   - no busy wait begins while another goroutine is parked in a Next, if a parked wait on another
//     channel has ended within the last d;
//   - if the other processors of GOMAXPROCS turn out to be busy, which takes 1 ms, Next parks; after
//     the second time in a row there are no busy waits for 100 ms.
//
// A context that ends, Shutdown and Close end a busy wait up to d later. If no other processor of
// GOMAXPROCS is free, other goroutines run up to d later. So does the garbage collector if the program
// ignores SIGURG or runs with GODEBUG=asyncpreemptoff=1. A larger d saves parked waits where that does
// not matter.
//
// It has no effect on a device of this process ([DeviceInfo].InProcess), whose own goroutines need the
// processor.
//
// SetBusyWait may be called at any time, and applies to the next call of Next.
func (c *CompChannel) SetBusyWait(d time.Duration) error {
	if d < 0 || d > maxBusyWait {
		return argErr("SetBusyWait", "d", d, "0 to %s", maxBusyWait)
	}
	if err := c.usable(); err != nil {
		return err
	}
	if !c.dev.info.InProcess {
		c.busyTime.Store(int64(d))
	}
	return nil
}

// read waits for one event. The CQ is nil if it has been closed since.
func (c *CompChannel) read() (*CQ, error) {
	cq, err := c.next()
	if cq != nil {
		cq.raised()
	}
	return cq, err
}

// next is read without telling the CQ.
func (c *CompChannel) next() (*CQ, error) {
	d := time.Duration(c.busyTime.Load())
	if d != c.known {
		c.known, c.often = d, d > 0
	}
	if returned := c.unread; returned != nil {
		c.unread, c.n = nil, 0
		if c.now == nil {
			c.now = c.readNow
		}
		if c.raw.Control(c.now); c.n > 0 {
			if cq, err := c.eventCQ(c.n); cq != returned {
				return cq, err
			}
		}
	}
	n, vain := 0, false
	if c.often && !c.shutdown.Load() { // a busy wait ignores the deadline that Shutdown sets
		if n, c.unread, vain = c.busyWait(d); c.unread != nil {
			return c.unread, nil
		}
	}
	if n == 0 {
		var err error
		if n, err = c.park(d, vain); err != nil {
			return nil, err
		}
	}
	return c.eventCQ(n)
}

// eventCQ returns the CQ of an event of n bytes.
func (c *CompChannel) eventCQ(n int) (*CQ, error) {
	if n != eventSize {
		return nil, fmt.Errorf("event of %d bytes instead of %d: %w", n, eventSize, io.ErrUnexpectedEOF)
	}
	cq, _ := c.dev.targets.get(binary.NativeEndian.Uint64(c.event[:])).(*CQ)
	return cq, nil
}

// park reads an event, and waits for it in the netpoller. It decides whether the next wait begins
// with a busy wait; vain says that one has just lasted for all of d.
func (c *CompChannel) park(d time.Duration, vain bool) (int, error) {
	if d == 0 {
		return c.readParked()
	}
	if c.over {
		c.over = false
		if runtime.GOMAXPROCS(0) == 1 { // nobody else has run for d, and Read does not park if there is an event
			runtime.Gosched()
		}
	}
	begin := time.Since(started)
	parkedWaits.Add(1)
	n, err := c.readParked()
	parkedWaits.Add(-1)
	end := time.Since(started)
	c.parkedWaitEnded(end)
	c.often = !vain && end-begin < d
	return n, err
}

// addCQ records that a new CQ, which is complete, uses the channel. Before its creation begins, only must
// be nil.
func (c *CompChannel) addCQ(cq *CQ) {
	c.dev.tree.Lock()
	defer c.dev.tree.Unlock()
	if c.users.of("CQ") == 1 {
		c.only.Store(cq)
	}
}

// shared reports whether more than one CQ uses the channel.
func (c *CompChannel) shared() bool {
	c.dev.tree.Lock()
	defer c.dev.tree.Unlock()
	return c.users.of("CQ") > 1
}

// Close closes the channel (ibv_destroy_comp_channel). It fails with EBUSY while a CQ uses it.
func (c *CompChannel) Close() error {
	var closeErr error // the file is closed in spite of it
	err := c.close(func() error {
		c.watch.stop()
		closeErr = c.closeFiles()
		channelClosed()
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
	c.watch.stop()
	if c.f.SetReadDeadline(longAgo) != nil { // Close was faster
		return c.errClosed()
	}
	return nil
}
