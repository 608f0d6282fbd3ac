package rdmacm

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

	"github.com/goverbs/goverbs/uverbs"
)

// waiter is a goroutine that waits for an event.
type waiter struct {
	id    *ID         // whose event, nil for any ID
	ready chan *Event // has room for one event; nil means that the ID has left the channel
}

// waiterPool holds waiters for reuse. A waiter is reused only after its ready channel was filled
// and emptied, or was never filled.
var waiterPool = sync.Pool{New: func() any { return &waiter{ready: make(chan *Event, 1)} }}

// owner returns the ID that receives the event: of a request, the listener.
func (e *Event) owner() *ID {
	if e.Listen != nil {
		return e.Listen
	}
	return e.ID
}

// isFor reports whether a waiter for id, or for any ID if it is nil, may get an event.
func isFor(e *Event, id *ID) bool {
	owner := e.owner()
	return owner == id || id == nil && !owner.exclusive.Load()
}

// Next waits for the next event of any ID of the channel (rdma_get_cm_event), except for IDs whose
// events go to [ID.Next] or to another method that waits. It returns the error of ctx if ctx ends
// first, and an error that matches [os.ErrClosed] if the channel is closed. An event that reports a
// failure is not an error of Next: see [Event.Err].
func (c *Channel) Next(ctx context.Context) (*Event, error) {
	e, err := c.Read(ctx)
	if err == nil {
		e.AdvanceQP()
	}
	return e, err
}

// Read is [Channel.Next], but leaves it to the caller to call [Event.AdvanceQP]. So a program with
// many connections can read all events in one goroutine, which does not wait for a device.
func (c *Channel) Read(ctx context.Context) (*Event, error) {
	e, err := c.wait(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("cm: wait for event: %w", err)
	}
	return e, nil
}

// Next waits for the next event of this ID, of any type. After the first call of Next, or of
// another method that waits such as [ID.ResolveWait], [Channel.Next] no longer returns events of
// this ID. So several goroutines can share a channel if each handles its own ID. A connection
// request is an event of its listener; if the listener's events go to its Next, those of the new ID do
// too. Errors are as for Channel.Next.
func (id *ID) Next(ctx context.Context) (*Event, error) {
	e, err := id.next(ctx)
	if err != nil {
		return nil, fmt.Errorf("cm: wait for event: %w", err)
	}
	return e, nil
}

// ShareEvents makes [Channel.Next] return the events of this ID again, after Wait or another method that
// waits has kept them for the ID. Next also returns those that have arrived already.
func (id *ID) ShareEvents() {
	id.exclusive.Store(false)
	c := id.channel.Load()
	if c == nil { // a zero value
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var events []*Event
	events, c.pending = splitEvents(c.pending, id)
	for _, e := range events { // the ID is on the channel: its events leave the channel with it
		c.deliverLocked(e, nil)
	}
}

// next is Wait without a prefix of its errors.
func (id *ID) next(ctx context.Context) (*Event, error) {
	id.exclusive.Store(true)
	for {
		if id.closing.Load() > 0 {
			return nil, errIDClosed
		}
		c := id.channel.Load()
		if c == nil {
			return nil, errZero("ID")
		}
		e, err := c.wait(ctx, id)
		if err != nil {
			return nil, err
		}
		if e != nil {
			e.AdvanceQP()
			return e, nil
		}
	}
}

// waitFor waits for an event of one of the given types, and returns an error if another one comes
// first. It ignores [EventAddrChange].
func (id *ID) waitFor(ctx context.Context, op string, want ...EventType) (*Event, error) {
	e, err := id.next(ctx)
	for err == nil && e.Type == EventAddrChange {
		e, err = id.next(ctx)
	}
	if err != nil {
		if to := id.remoteName(); to != "" {
			op += " " + to
		}
		return nil, fmt.Errorf("cm: %s: %w", op, err)
	}
	if e.Err() != nil || !slices.Contains(want, e.Type) {
		if e.Listen != nil { // nobody else would close the ID of a request that was not expected
			e.ID.Close()
		}
		return e, e.failure()
	}
	return e, nil
}

// answerLimit is how long a method waits for the answer of a peer if its context has no deadline. The connection
// manager itself gives up after 74 s if the peer's host is silent, but a peer can ask for much more time, and the
// peer of a listener chooses how often an answer is repeated. Tests change it.
var answerLimit = 2 * time.Minute

// waitForAnswer is waitFor with answerLimit.
func (id *ID) waitForAnswer(ctx context.Context, op string, want ...EventType) (*Event, error) {
	if _, ok := ctx.Deadline(); ok {
		return id.waitFor(ctx, op, want...)
	}
	limited, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	e, err := id.waitFor(limited, op, want...)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = fmt.Errorf("cm: %s %s: no answer for %v: %w", op, id.remoteName(), answerLimit, syscall.ETIMEDOUT)
	}
	return e, err
}

// failure returns the error that the event reports, or an error that says that its type was not
// expected.
func (e *Event) failure() error {
	if err := e.Err(); err != nil {
		return err
	}
	return &EventError{Type: e.Type, Addr: e.ID.remoteName(), Device: e.ID.deviceName(), PrivateData: e.Param.PrivateData}
}

// resolveLimit is how long the kernel may take to resolve an address and a route. resolveGrace is how much longer
// ResolveWait waits for its answer. Tests change them.
var resolveLimit, resolveGrace = time.Minute, time.Second

// ResolveWait resolves the address and the route, and waits for both (rdma_resolve_addr and
// rdma_resolve_route of an ID without a channel). It gives up at the deadline of ctx, and after a
// minute in any case. The addresses are as for [ID.ResolveAddr].
func (id *ID) ResolveWait(ctx context.Context, local, remote Addr) error {
	end := time.Now().Add(resolveLimit)
	d, sooner := ctx.Deadline()
	if sooner = sooner && d.Before(end); sooner {
		end = d
	}
	// The kernel's own answer, which has the cause, should come first.
	limited, cancel := context.WithDeadline(ctx, end.Add(resolveGrace))
	defer cancel()
	err := id.resolve(limited, end, local, remote)
	if errors.Is(err, context.DeadlineExceeded) && !sooner { // the kernel may give up just before ctx has ended
		err = fmt.Errorf("cm: %s %s: no answer for %v: %w", opResolve, id.remoteName(), resolveLimit, syscall.ETIMEDOUT)
	}
	return err
}

// resolve is ResolveWait with the end of the time that the kernel is given.
func (id *ID) resolve(ctx context.Context, end time.Time, local, remote Addr) error {
	id.exclusive.Store(true)
	if err := id.resolveAddrRetrying(ctx, end, local, remote); err != nil {
		return err
	}
	if err := id.ResolveRoute(timeLeft(end)); err != nil {
		return err
	}
	_, err := id.waitFor(ctx, opRoute, EventRouteResolved)
	return err
}

// resolveAddrRetrying resolves an address in several attempts with growing timeouts. If a neighbor
// answers before the kernel begins to wait for it, as one on the same host does, the kernel notices
// that only when its timeout is over.
func (id *ID) resolveAddrRetrying(ctx context.Context, end time.Time, local, remote Addr) error {
	const first, growth = 100 * time.Millisecond, 2
	var last error
	for timeout := first; ; timeout *= growth {
		if err := id.ResolveAddr(local, remote, min(timeout, timeLeft(end))); err != nil {
			if remote.IP.IsLoopback() && isNoLoopback(err) {
				return &Error{Op: opResolve, Addr: id.remoteName(), Errno: syscall.ENODEV, Hint: noDevice(id.remoteName())}
			}
			return err
		}
		_, err := id.waitFor(ctx, opResolve, EventAddrResolved)
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

// isNoLoopback reports whether an error of ResolveAddr says that there is no device for a loopback
// address. Kernels whose only devices are iWARP return EINVAL then.
func isNoLoopback(err error) bool {
	if e, ok := err.(*Error); !ok || e.Errno != syscall.EINVAL {
		return false
	}
	infos, err := uverbs.Devices()
	return err == nil && len(infos) > 0 && !slices.ContainsFunc(infos, func(i uverbs.DeviceInfo) bool { return !i.IWARP() })
}

// timeLeft returns the time until end, at least a millisecond, which is the kernel's minimum.
func timeLeft(end time.Time) time.Duration { return max(time.Until(end), time.Millisecond) }

// ConnectWait connects, waits for the answer, and returns it with the private data of the peer
// (rdma_connect of an ID without a channel). With a QP of [ID.CreateQP] the connection is then
// ready for use. Otherwise the event is [EventConnectResponse], or on iWARP [EventEstablished]; see
// [ID.Connect]. If ctx has no deadline, ConnectWait gives up after two minutes.
func (id *ID) ConnectWait(ctx context.Context, p ConnParam) (*Event, error) {
	id.exclusive.Store(true)
	if err := id.Connect(p); err != nil {
		return nil, err
	}
	want := []EventType{EventEstablished}
	if !id.datagrams() && id.queues.qp.Load() == nil {
		want = append(want, EventConnectResponse)
	}
	e, err := id.waitForAnswer(ctx, opConnect, want...)
	if e != nil && e.Type == EventConnectError && errors.Is(e.cause, syscall.EINVAL) {
		// The ID may have left its state because the peer has rejected or ended the connection meanwhile: an
		// event says so.
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if later, laterErr := id.waitFor(short, opConnect); later != nil {
			return later, laterErr
		}
	}
	return e, err
}

// AcceptWait accepts a request and waits until the peer is ready (rdma_accept of an ID without a
// channel). For datagrams it does not wait. If ctx has no deadline, AcceptWait gives up after two minutes.
func (id *ID) AcceptWait(ctx context.Context, p ConnParam) error {
	id.exclusive.Store(true)
	if err := id.Accept(p); err != nil || id.datagrams() {
		return err
	}
	_, err := id.waitForAnswer(ctx, opAccept, EventEstablished)
	return err
}

// JoinWait joins a multicast group and waits until the ID is a member (rdma_join_multicast of an ID without a
// channel). The event has the Group. If ctx has no deadline, JoinWait gives up after two minutes.
func (id *ID) JoinWait(ctx context.Context, group netip.Addr, flags JoinFlags) (*Event, error) {
	id.exclusive.Store(true)
	if _, err := id.Join(group, flags); err != nil {
		return nil, err
	}
	return id.waitForAnswer(ctx, "join", EventMulticastJoin)
}

// Request waits for the next request to a listener (rdma_get_request). The program accepts or
// rejects the event's ID, and must close it.
func (id *ID) NextRequest(ctx context.Context) (*Event, error) {
	return id.waitFor(ctx, "wait for request", EventConnectRequest)
}

// DisconnectWait disconnects and waits until the peer has disconnected too (rdma_disconnect of an
// ID without a channel). If ctx has no deadline, DisconnectWait gives up after two minutes.
func (id *ID) DisconnectWait(ctx context.Context) error {
	id.exclusive.Store(true)
	if err := id.Disconnect(); err != nil {
		return err
	}
	_, err := id.waitForAnswer(ctx, opDisconnect, EventDisconnected)
	return err
}

// wait waits for an event of id, or of any ID if it is nil. It returns nil if id has moved to
// another channel.
func (c *Channel) wait(ctx context.Context, id *ID) (*Event, error) {
	if c.file == nil {
		return nil, errZero("channel")
	}
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

// readUntil reads events until there is one for the waiter. The caller holds c.readTurn.
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
		err := c.readEvent(w, follow)
		switch {
		case err == nil:
			if ctx.Err() != nil { // even if there are more events, for other waiters
				return c.cancelWait(w, ctx.Err())
			}
		case errors.Is(err, os.ErrDeadlineExceeded):
			// Another goroutine wants this one to check its state. Reset the deadline
			// before the check, because a later change sets it again.
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

// setReader records the waiter whose goroutine reads.
func (c *Channel) setReader(w *waiter) {
	c.mu.Lock()
	c.reader = w
	c.mu.Unlock()
}

// closedErr returns an error if e is nil, which means that the ID was closed.
func (w *waiter) closedErr(e *Event) error {
	if e == nil && w.id.closed.Load() {
		return errIDClosed
	}
	return nil
}

// addWaiter returns a pending event, or adds a waiter. It returns neither if the ID is not on the
// channel.
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
			return nil, nil, errIDClosed
		}
		return nil, nil, nil
	}
	w := waiterPool.Get().(*waiter)
	w.id = id
	c.waiters = append(c.waiters, w)
	return w, nil, nil
}

// cancelWait removes the waiter and returns err, or returns the event that the waiter has got
// meanwhile.
func (c *Channel) cancelWait(w *waiter, err error) (*Event, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.Index(c.waiters, w); i >= 0 {
		c.waiters = slices.Delete(c.waiters, i, i+1)
		return nil, err
	}
	e := <-w.ready // a waiter that was removed from the list has got something
	return e, w.closedErr(e)
}

// pastDeadline is a deadline in the past.
var pastDeadline = time.Unix(1, 0)

// readCanceler ends a read of the channel's file when a context ends. A nil readCanceler is for a
// context that cannot end.
type readCanceler struct {
	c          *Channel
	ctx        context.Context
	unregister func() bool   // nil before start
	fired      chan struct{} // closed after the reader was woken
}

// readCanceler returns a readCanceler that is not started.
func (c *Channel) readCanceler(ctx context.Context) *readCanceler {
	if ctx.Done() == nil {
		return nil
	}
	return &readCanceler{c: c, ctx: ctx}
}

// start starts it, unless it has started.
func (f *readCanceler) start() {
	if f == nil || f.unregister != nil {
		return
	}
	f.fired = make(chan struct{})
	f.unregister = context.AfterFunc(f.ctx, func() {
		f.c.wake()
		close(f.fired)
	})
}

// stop stops it.
func (f *readCanceler) stop() {
	if f != nil && f.unregister != nil && !f.unregister() {
		<-f.fired
		f.c.file.f.SetReadDeadline(time.Time{})
	}
}

// wake makes the goroutine that reads check its state.
func (c *Channel) wake() { c.file.f.SetReadDeadline(pastDeadline) }

// readEvent reads an event and delivers it. If it has to wait for one, it starts follow. The caller
// holds c.readTurn and passes its waiter as by.
func (c *Channel) readEvent(by *waiter, follow *readCanceler) error {
	resp, err := c.file.event(c.events, follow)
	if err != nil {
		return err
	}
	defer c.events.mu.Unlock()
	e := c.newEvent(resp)
	if e != nil && (c.backlogFull(e) || !c.deliver(e, by)) && e.Listen != nil { // else the ID is closed
		return e.ID.Close()
	}
	return nil
}

// defaultBacklog is the number of requests that may wait if the program gives none, as in the
// kernel.
const defaultBacklog = 1024

// backlogFull reports whether an event is a request to a listener whose backlog is full. The kernel
// does not count a request that was read from the channel, and every goroutine that waits on the
// channel reads requests.
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

// deliver gives an event to a waiter, or keeps it until there is one. It returns false if the ID is
// not on the channel. If the waiter is not by, and its goroutine is the one that reads, deliver
// wakes that goroutine.
func (c *Channel) deliver(e *Event, by *waiter) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.deliverLocked(e, by)
}

// deliverLocked is deliver for a caller that holds c.mu.
func (c *Channel) deliverLocked(e *Event, by *waiter) bool {
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

// removeEvents removes the events of an ID from the channel and wakes its waiters. The caller holds
// c.mu.
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

// splitEvents splits a list into the events of an ID and the others.
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
