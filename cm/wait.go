package cm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// waiter is a goroutine that waits for an event.
type waiter struct {
	id    *ID         // whose event, nil for any
	ready chan *Event // has room for one; nil says to look again, as the ID is gone from the channel
}

// waiterPool are waiters that nobody has any more: who takes one out of a channel's list fills
// it, and who waits has taken that.
var waiterPool = sync.Pool{New: func() any { return &waiter{ready: make(chan *Event, 1)} }}

// owner returns the ID whose events an event is one of.
func (e *Event) owner() *ID {
	if e.Listen != nil {
		return e.Listen
	}
	return e.ID
}

// isFor reports whether an event is for who waits for those of id, or of any if it is nil.
func isFor(e *Event, id *ID) bool {
	owner := e.owner()
	return owner == id || id == nil && !owner.exclusive.Load()
}

// Next waits for the next event of an ID of the channel (rdma_get_cm_event; nothing has to be
// acknowledged), except for IDs with an [ID.Wait] or a step that waits. It returns ctx.Err()
// wrapped if the context ends first, and an error that matches [os.ErrClosed] if the channel
// is closed. An event with a Status is no error of Next: see [Event.Err].
func (c *Channel) Next(ctx context.Context) (*Event, error) {
	e, err := c.wait(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("cm: wait for event: %w", err)
	}
	e.advanceQP()
	return e, nil
}

// Wait waits for the next event of this ID, whatever its type. From the first Wait on, or the
// first step that waits such as [ID.Resolve], the ID's events are for those alone, and
// [Channel.Next] does not return them; so any number of goroutines can each deal with an ID of
// one channel. The requests to a listener are its events, and a new ID is as the listener in
// this. Errors are as for Next.
func (id *ID) Wait(ctx context.Context) (*Event, error) {
	e, err := id.next(ctx)
	if err != nil {
		return nil, fmt.Errorf("cm: wait for event: %w", err)
	}
	return e, nil
}

// next is Wait with the bare error.
func (id *ID) next(ctx context.Context) (*Event, error) {
	id.exclusive.Store(true)
	for {
		e, err := id.channel.Load().wait(ctx, id)
		if err != nil {
			return nil, err
		}
		if e != nil {
			e.advanceQP()
			return e, nil
		}
	}
}

// waitFor waits for an event of one of some types, with which a step ends. Any other is a failure,
// but for one that an interface has another hardware address.
func (id *ID) waitFor(ctx context.Context, op string, want ...EventType) (*Event, error) {
	e, err := id.next(ctx)
	for err == nil && e.Type == AddrChange {
		e, err = id.next(ctx)
	}
	if err != nil {
		if to := id.remoteName(); to != "" {
			op += " " + to
		}
		return nil, fmt.Errorf("cm: %s: %w", op, err)
	}
	if e.Err() != nil || !slices.Contains(want, e.Type) {
		return e, e.failure()
	}
	return e, nil
}

// failure is the error that an event is, or what its type is where none of that type is expected.
func (e *Event) failure() error {
	if err := e.Err(); err != nil {
		return err
	}
	return &EventError{Type: e.Type, Addr: e.ID.remoteName(), Device: e.ID.deviceName(), PrivateData: e.Param.PrivateData}
}

// Resolve resolves address and route, and waits for both (rdma_resolve_addr and
// rdma_resolve_route of an ID without a channel). It has as much time as ctx leaves, and no
// more than a minute. See [ID.ResolveAddr] for the addresses.
func (id *ID) Resolve(ctx context.Context, local, remote netip.AddrPort) error {
	const longest = time.Minute
	end := time.Now().Add(longest) // of what the kernel is given
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(end) {
		end = deadline
	}
	id.exclusive.Store(true)
	if err := id.resolveAddrRetrying(ctx, end, local, remote); err != nil {
		return err
	}
	if err := id.ResolveRoute(timeLeft(end)); err != nil {
		return err
	}
	_, err := id.waitFor(ctx, opRoute, RouteResolved)
	return err
}

// resolveAddrRetrying resolves an address, with attempts that take longer and longer. The kernel does not
// notice a neighbour that answers before it begins to wait for it, as one on the same host
// does, and looks again only when its time is over.
func (id *ID) resolveAddrRetrying(ctx context.Context, end time.Time, local, remote netip.AddrPort) error {
	const first, growth = 100 * time.Millisecond, 2
	var last error
	for timeout := first; ; timeout *= growth {
		if err := id.ResolveAddr(local, remote, min(timeout, timeLeft(end))); err != nil {
			if errors.Is(err, syscall.EINVAL) && remote.Addr().IsLoopback() { // as kernels with iWARP alone say it
				return &Error{Op: opResolve, Addr: id.remoteName(), Errno: syscall.ENODEV, Hint: noDevice}
			}
			return err
		}
		_, err := id.waitFor(ctx, opResolve, AddrResolved)
		switch {
		case err != nil && ctx.Err() != nil && last != nil:
			return fmt.Errorf("%w; %w", last, err)
		case !errors.Is(err, syscall.ETIMEDOUT):
			return err
		case time.Until(end) <= 0:
			return fmt.Errorf("%w; %w", err, context.DeadlineExceeded)
		}
		last = err
	}
}

// timeLeft returns how much time there is to an end, as the kernel takes it.
func timeLeft(end time.Time) time.Duration { return max(time.Until(end), time.Millisecond) }

// ConnectWait connects and waits for the answer, which it returns with the peer's private data
// (rdma_connect of an ID without a channel). With a QP of [ID.CreateQP] the connection is
// ready for use then; without, the event is ConnectResponse, or on iWARP Established.
func (id *ID) ConnectWait(ctx context.Context, p ConnParam, ece ECE) (*Event, error) {
	id.exclusive.Store(true)
	if err := id.Connect(p, ece); err != nil {
		return nil, err
	}
	want := []EventType{Established}
	if !id.datagrams() && id.queues.queuePair() == nil {
		want = append(want, ConnectResponse)
	}
	return id.waitFor(ctx, opConnect, want...)
}

// AcceptWait accepts and waits until the peer is ready too (rdma_accept of an ID without a
// channel). For datagrams there is nothing to wait for.
func (id *ID) AcceptWait(ctx context.Context, p ConnParam, ece ECE) error {
	id.exclusive.Store(true)
	if err := id.Accept(p, ece); err != nil || id.datagrams() {
		return err
	}
	_, err := id.waitFor(ctx, opAccept, Established)
	return err
}

// Request waits for the next request to a listener (rdma_get_request). Accept or reject the
// event's ID, and close it.
func (id *ID) Request(ctx context.Context) (*Event, error) {
	return id.waitFor(ctx, "wait for request", ConnectRequest)
}

// DisconnectWait disconnects and waits for the peer to do so too (rdma_disconnect of an ID
// without a channel).
func (id *ID) DisconnectWait(ctx context.Context) error {
	id.exclusive.Store(true)
	if err := id.Disconnect(); err != nil {
		return err
	}
	_, err := id.waitFor(ctx, opDisconnect, Disconnected)
	return err
}

// wait waits for an event of id, or of any if it is nil. It returns nil for id if that is on
// another channel by now.
func (c *Channel) wait(ctx context.Context, id *ID) (*Event, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	w, e, err := c.addWaiter(id)
	if w == nil {
		return e, err
	}
	defer waiterPool.Put(w)
	select {
	case c.readTurn <- struct{}{}:
	default:
		select {
		case e := <-w.ready:
			return e, w.closedErr(e)
		case <-ctx.Done():
			return c.cancelWait(w, ctx.Err())
		case c.readTurn <- struct{}{}:
		}
	}
	defer func() { <-c.readTurn }()
	return c.readUntil(ctx, w)
}

// nextAsReader is Next with the bare error, for a goroutine that holds c.reading for good.
func (c *Channel) nextAsReader() (*Event, error) {
	w, e, err := c.addWaiter(nil)
	if w != nil {
		e, err = c.readUntil(context.Background(), w)
		waiterPool.Put(w)
	}
	if err != nil {
		return nil, err
	}
	e.advanceQP()
	return e, nil
}

// readUntil reads until there is an event for a waiter. The caller holds c.reading.
func (c *Channel) readUntil(ctx context.Context, w *waiter) (*Event, error) {
	c.setReader(w)
	defer c.setReader(nil)
	follow := c.readCanceler(ctx)
	defer follow.stop()
	for {
		select {
		case e := <-w.ready:
			return e, w.closedErr(e)
		default:
		}
		err := c.readEvent(w, follow.start)
		switch {
		case err == nil:
			if ctx.Err() != nil { // though there may be more events, of others
				return c.cancelWait(w, ctx.Err())
			}
		case errors.Is(err, os.ErrDeadlineExceeded):
			// Somebody wants this goroutine to look. The deadline goes first: what comes later
			// sets it again.
			c.file.f.SetReadDeadline(time.Time{})
			if ctx.Err() != nil {
				return c.cancelWait(w, ctx.Err())
			}
		case c.isClosed():
			return c.cancelWait(w, os.ErrClosed)
		default:
			return c.cancelWait(w, err)
		}
	}
}

// setReader says which waiter's goroutine reads.
func (c *Channel) setReader(w *waiter) {
	c.mu.Lock()
	c.reader = w
	c.mu.Unlock()
}

// closedErr returns the error of a waiter that has got e.
func (w *waiter) closedErr(e *Event) error {
	if e == nil && w.id.closed.Load() {
		return w.id.errClosed()
	}
	return nil
}

// addWaiter returns an event that is there, or a place among the waiters. It returns neither if
// the ID is not on the channel.
func (c *Channel) addWaiter(id *ID) (*waiter, *Event, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, e := range c.pending {
		if isFor(e, id) {
			c.pending = slices.Delete(c.pending, i, i+1)
			return nil, e, nil
		}
	}
	if id != nil && c.ids[id.uid] != id {
		if id.closed.Load() {
			return nil, nil, id.errClosed()
		}
		return nil, nil, nil
	}
	w := waiterPool.Get().(*waiter)
	w.id = id
	c.waiters = append(c.waiters, w)
	return w, nil, nil
}

// cancelWait ends a wait with an error, or with the event that has come meanwhile.
func (c *Channel) cancelWait(w *waiter, err error) (*Event, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.Index(c.waiters, w); i >= 0 {
		c.waiters = slices.Delete(c.waiters, i, i+1)
		return nil, err
	}
	e := <-w.ready // who takes a waiter out of the list fills it
	return e, w.closedErr(e)
}

// pastDeadline is a deadline in the past.
var pastDeadline = time.Unix(1, 0)

// readCanceler has the end of a context end reads, from start to stop.
type readCanceler struct {
	c          *Channel
	ctx        context.Context
	unregister func() bool   // nil before start
	fired      chan struct{} // closed when the context has ended and the reader was woken
}

// readCanceler returns one that is not started.
func (c *Channel) readCanceler(ctx context.Context) *readCanceler {
	return &readCanceler{c: c, ctx: ctx}
}

// start begins it, if it has not begun, and the context can end.
func (f *readCanceler) start() {
	if f.unregister != nil || f.ctx.Done() == nil {
		return
	}
	f.fired = make(chan struct{})
	f.unregister = context.AfterFunc(f.ctx, func() {
		f.c.wake()
		close(f.fired)
	})
}

// stop ends it.
func (f *readCanceler) stop() {
	if f.unregister != nil && !f.unregister() {
		<-f.fired
		f.c.file.f.SetReadDeadline(time.Time{})
	}
}

// wake has the goroutine that reads look at what has changed.
func (c *Channel) wake() { c.file.f.SetReadDeadline(pastDeadline) }

// readEvent reads an event and gives it to who waits for it, on behalf of by. It calls empty when
// there is none yet. The caller holds c.reading.
func (c *Channel) readEvent(by *waiter, empty func()) error {
	resp, err := c.file.event(c.events, empty)
	if err != nil {
		return err
	}
	e := c.newEvent(resp)
	if e == nil {
		return nil
	}
	if c.backlogFull(e) {
		return e.ID.Close()
	}
	for to := c; !to.deliver(e, by); to = e.owner().channel.Load() { // not there: it has moved, or is closed
		if e.owner().closed.Load() {
			if e.Listen != nil {
				return e.ID.Close()
			}
			return nil
		}
	}
	return nil
}

// defaultBacklog is how many requests wait for a program that gives no number, as in the kernel.
const defaultBacklog = 1024

// backlogFull reports whether an event is a request to a listener that has as many waiting for the program as its
// backlog says. The kernel counts a request no more once it is read, which every goroutine does that
// waits on the channel, for whatever ID.
func (c *Channel) backlogFull(e *Event) bool {
	if e.Listen == nil {
		return false
	}
	most := int(e.Listen.backlog.Load())
	if most == 0 {
		most = defaultBacklog
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, p := range c.pending {
		if p.Listen == e.Listen {
			n++
		}
	}
	return n >= most
}

// deliver gives an event to a waiter, or keeps it until there is one. It does neither if the
// ID is not on the channel. By is the waiter of the goroutine that has read the event, if it
// has just done so.
func (c *Channel) deliver(e *Event, by *waiter) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if owner := e.owner(); c.ids[owner.uid] != owner {
		return false
	}
	i := slices.IndexFunc(c.waiters, func(w *waiter) bool { return isFor(e, w.id) })
	if i < 0 {
		c.pending = append(c.pending, e)
		return true
	}
	w := c.waiters[i]
	c.waiters = slices.Delete(c.waiters, i, i+1)
	w.ready <- e
	if w == c.reader && w != by {
		c.wake()
	}
	return true
}

// removeEvents takes an ID's events out of the channel and sends its waiters away. The caller
// holds c.mu.
func (c *Channel) removeEvents(id *ID) (events []*Event) {
	events, c.pending = splitEvents(c.pending, id)
	c.waiters = slices.DeleteFunc(c.waiters, func(w *waiter) bool {
		if w.id != id {
			return false
		}
		w.ready <- nil
		if w == c.reader {
			c.wake()
		}
		return true
	})
	return events
}

// splitEvents takes an ID's events out of a list.
func splitEvents(list []*Event, id *ID) (its, others []*Event) {
	for _, e := range list {
		if e.owner() == id {
			its = append(its, e)
		} else {
			others = append(others, e)
		}
	}
	return its, others
}

// isClosed reports whether the channel is closed.
func (c *Channel) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}
