package cm

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/cm/internal/inprocess"
	"github.com/goverbs/goverbs/cm/rdmacm"
)

// eventLoop is a goroutine that reads a channel and passes the events of each ID to the handler
// that is registered for the ID. It ends when it has no more users.
type eventLoop struct {
	channel *rdmacm.Channel

	mu       sync.Mutex
	users    int                     // guarded by mu
	draining bool                    // guarded by mu: no new user is accepted
	err      error                   // guarded by mu: why the channel is no longer read
	ids      map[*rdmacm.ID]*inbound // guarded by mu: the IDs that are registered
}

// eventHandler has the functions that an eventLoop calls for one ID. They may issue commands to the
// device, so each ID has a goroutine while it has events: a device that hangs stops only its own
// connections. Requests are handled in the goroutine of the loop. While it handles one, the next wait in
// the kernel, which limits them, unless another goroutine reads the channel, as [PacketConn.Join] does.
// Then they wait in the channel, which has the same limit.
type eventHandler struct {
	event func(*rdmacm.Event) // is called for each event of the ID, in order
	lost  func(error)         // is called when there will be no more events; may be nil
}

// inbound are the events of an ID that wait for its handler. The fields are guarded by the loop's mu.
type inbound struct {
	handler eventHandler
	events  []*rdmacm.Event
	lost    error // what handler.lost gets after the events
	busy    bool  // a goroutine calls the handler
}

// dialLoop is the event loop of the connections that this process has dialed, nil if there is none.
var dialLoop struct {
	mu   sync.Mutex
	loop *eventLoop
	soft *eventLoop // of the connections through software devices
}

// startEventLoop opens a channel for a local and a remote address, and reads it. The caller is the first
// user.
func startEventLoop(local, remote netip.Addr) (*eventLoop, error) {
	c, err := rdmacm.OpenChannel(rdmacm.ChannelOptions{Local: local, Remote: remote})
	if err != nil {
		return nil, err
	}
	return runEventLoop(c), nil
}

// runEventLoop reads a new channel.
func runEventLoop(c *rdmacm.Channel) *eventLoop {
	l := &eventLoop{channel: c, users: 1, ids: map[*rdmacm.ID]*inbound{}}
	go l.run()
	return l
}

// run passes events to their handlers until the channel is closed.
func (l *eventLoop) run() {
	for {
		e, err := l.channel.Read(context.Background())
		if err != nil { // the channel is closed, or the credentials of the process have changed
			l.fail(errors.Unwrap(err)) // the handlers say what has ended
			return
		}
		l.pass(e)
		l.closeIfUnused() // if the last user left while the event had an ID
	}
}

// pass passes an event to the handler of its ID. A request without a handler is dropped.
func (l *eventLoop) pass(e *rdmacm.Event) {
	l.mu.Lock()
	id := owner(e)
	in := l.ids[id]
	switch {
	case in == nil:
		l.mu.Unlock()
		if e.Listen != nil {
			e.ID.Close()
		}
	case e.Listen != nil:
		handle := in.handler.event
		l.mu.Unlock()
		handle(e)
	default:
		in.events = append(in.events, e)
		l.work(id, in)
		l.mu.Unlock()
	}
}

// owner returns the ID whose handler gets the event: of a request, the listener.
func owner(e *rdmacm.Event) *rdmacm.ID {
	if e.Listen != nil {
		return e.Listen
	}
	return e.ID
}

// work starts the goroutine of an ID if it is needed. The caller holds mu.
func (l *eventLoop) work(id *rdmacm.ID, in *inbound) {
	if !in.busy {
		in.busy = true
		go l.handle(id, in)
	}
}

// handle calls the handler of an ID until it has no more events, or is no longer registered.
func (l *eventLoop) handle(id *rdmacm.ID, in *inbound) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.ids[id] == in {
		h, lost := in.handler, in.lost
		var e *rdmacm.Event
		switch {
		case len(in.events) > 0:
			e, in.events = in.events[0], in.events[1:]
		case lost != nil:
			in.lost = nil
		default:
			in.busy = false
			return
		}
		l.mu.Unlock()
		if e != nil {
			e.AdvanceQP() // not in the goroutine that reads the channel: the device may hang
			h.event(e)
		} else if h.lost != nil {
			h.lost(lost)
		}
		l.mu.Lock()
	}
}

// closeIfUnused closes the channel if the loop has no user. The channel cannot be closed while it has IDs.
func (l *eventLoop) closeIfUnused() {
	l.mu.Lock()
	unused := l.users == 0
	l.mu.Unlock()
	if unused {
		l.channel.Close()
	}
}

// fail tells every handler that there are no more events.
func (l *eventLoop) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.draining, l.err = true, err
	for id, in := range l.ids {
		in.lost = err
		l.work(id, in)
	}
}

// register sets the handler of an ID, which is also called for the events that are pending.
func (l *eventLoop) register(id *rdmacm.ID, h eventHandler) {
	l.mu.Lock()
	in := l.ids[id]
	if in == nil {
		in = &inbound{}
		l.ids[id] = in
	}
	in.handler = h
	err := l.err
	l.mu.Unlock()
	if err != nil && h.lost != nil {
		h.lost(err)
	}
	id.ShareEvents()
}

// unregister removes the handler of an ID.
func (l *eventLoop) unregister(id *rdmacm.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.ids, id)
}

// drain makes acquire fail from now on.
func (l *eventLoop) drain() {
	l.mu.Lock()
	l.draining = true
	l.mu.Unlock()
}

// closeID closes an ID. If the kernel refuses that, because the credentials of the process have
// changed, closing the channel will destroy the kernel's ID.
func (l *eventLoop) closeID(id *rdmacm.ID) error {
	err := id.Close()
	if e, ok := errors.AsType[*rdmacm.Error](err); ok && e.Errno == syscall.EACCES { // nevertheless the ID is closed
		l.drain()
		return nil
	}
	return err
}

// acquire adds a user. It returns false if the loop accepts no new user.
func (l *eventLoop) acquire() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users == 0 || l.draining {
		return false
	}
	l.users++
	return true
}

// release removes a user, and closes the channel after the last one.
func (l *eventLoop) release() {
	l.mu.Lock()
	l.users--
	l.mu.Unlock()
	l.closeIfUnused()
}

// releaseLater is release, after idleGrace if the caller is the last user.
func (l *eventLoop) releaseLater() {
	l.mu.Lock()
	last := l.users == 1
	l.mu.Unlock()
	if last {
		time.AfterFunc(idleGrace, l.release)
		return
	}
	l.release()
}

// acquireDialLoop returns the event loop for dialing from a local to a remote address, through software
// devices or the kernel's, with one more user.
func acquireDialLoop(local, remote netip.Addr) (*eventLoop, error) {
	dialLoop.mu.Lock()
	defer dialLoop.mu.Unlock()
	l := dialLoop.loop
	if inprocess.Serves(local, remote) {
		l = dialLoop.soft
	}
	if l != nil && l.acquire() {
		return l, nil
	}
	l, err := startEventLoop(local, remote)
	switch {
	case err != nil:
		return nil, err
	case l.channel.InProcess():
		dialLoop.soft = l
	default:
		dialLoop.loop = l
	}
	return l, nil
}

// newLoopID makes an ID on the event loop that get returns for a local and a remote address. If the kernel
// refuses because the process has changed its user or group since the loop's channel was opened, newLoopID
// tries once more with another loop.
func newLoopID(space rdmacm.PortSpace, local, remote netip.Addr, get func(local, remote netip.Addr) (*eventLoop, error)) (*eventLoop, *rdmacm.ID, error) {
	for first := true; ; first = false {
		l, err := get(local, remote)
		if err != nil {
			return nil, nil, err
		}
		id, err := l.channel.NewID(space)
		if err == nil {
			return l, id, nil
		}
		refused := errors.Is(err, syscall.EACCES)
		if refused {
			l.drain()
		}
		l.releaseLater()
		if !refused || !first {
			return nil, nil, err
		}
	}
}
