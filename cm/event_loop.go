package cm

import (
	"errors"
	"sync"
	"syscall"
	"time"
)

// eventLoop is a goroutine that reads a channel and passes the events of each ID to the handler
// that is registered for the ID. It ends when it has no more users.
type eventLoop struct {
	channel *Channel

	mu       sync.Mutex
	users    int              // guarded by mu
	draining bool             // guarded by mu: no new user is accepted
	err      error            // guarded by mu: why the channel is no longer read
	ids      map[*ID]*inbound // guarded by mu: the IDs that are registered
}

// eventHandler has the functions that an eventLoop calls for one ID. They may issue commands to the
// device, so each ID has a goroutine while it has events: a device that hangs stops only its own
// connections. Requests are handled in the goroutine that reads the channel, so that no more of them
// wait than the kernel allows.
type eventHandler struct {
	event func(*Event) // is called for each event of the ID, in order
	lost  func(error)  // is called when there will be no more events; may be nil
}

// inbound are the events of an ID that wait for its handler. The fields are guarded by the loop's mu.
type inbound struct {
	handler eventHandler
	events  []*Event
	lost    error // what handler.lost gets after the events
	busy    bool  // a goroutine calls the handler
}

// dialLoop is the event loop of the connections that this process has dialed, nil if there is none.
var dialLoop struct {
	mu   sync.Mutex
	loop *eventLoop
	soft *eventLoop // of the connections through software devices
}

// startEventLoop opens a channel, for software devices or for the kernel's, and reads it. The caller
// is the first user.
func startEventLoop(soft bool) (*eventLoop, error) {
	c, err := openChannel(soft)
	if err != nil {
		return nil, err
	}
	return runEventLoop(c), nil
}

// runEventLoop reads a new channel. It holds the channel's readTurn from now on, so that a goroutine
// that waits on the channel cannot become the reader, which would keep events from their handlers.
func runEventLoop(c *Channel) *eventLoop {
	l := &eventLoop{channel: c, users: 1, ids: map[*ID]*inbound{}}
	c.readTurn <- struct{}{}
	go l.run()
	return l
}

// run passes events to their handlers until the channel is closed.
func (l *eventLoop) run() {
	defer func() { <-l.channel.readTurn }()
	for {
		e, err := l.channel.nextAsReader()
		if err != nil { // the channel is closed, or the credentials of the process have changed
			l.fail(err)
			return
		}
		l.pass(e)
		l.closeIfUnused() // if the last user left while the event had an ID
	}
}

// pass passes an event to the handler of its ID. A request without a handler is dropped.
func (l *eventLoop) pass(e *Event) {
	l.mu.Lock()
	in := l.ids[e.owner()]
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
		l.work(e.owner(), in)
		l.mu.Unlock()
	}
}

// work starts the goroutine of an ID if it is needed. The caller holds mu.
func (l *eventLoop) work(id *ID, in *inbound) {
	if !in.busy {
		in.busy = true
		go l.handle(id, in)
	}
}

// handle calls the handler of an ID until it has no more events, or is no longer registered.
func (l *eventLoop) handle(id *ID, in *inbound) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.ids[id] == in {
		h, lost := in.handler, in.lost
		var e *Event
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
			e.advanceQP() // not in the goroutine that reads the channel: the device may hang
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
func (l *eventLoop) register(id *ID, h eventHandler) {
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
	l.channel.shareEvents(id)
}

// unregister removes the handler of an ID.
func (l *eventLoop) unregister(id *ID) {
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
func (l *eventLoop) closeID(id *ID) error {
	err := id.Close()
	if err != nil && id.closed.Load() {
		l.drain()
		return nil
	}
	return err
}

// shareEvents lets Next return the events of an ID again.
func (c *Channel) shareEvents(id *ID) {
	id.exclusive.Store(false)
	c.mu.Lock()
	var events []*Event
	events, c.pending = splitEvents(c.pending, id)
	c.mu.Unlock()
	for _, e := range events {
		c.deliver(e, nil)
	}
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

// acquireDialLoop returns the event loop for dialing through software devices or the kernel's, with
// one more user.
func acquireDialLoop(soft bool) (*eventLoop, error) {
	dialLoop.mu.Lock()
	defer dialLoop.mu.Unlock()
	loop := &dialLoop.loop
	if soft {
		loop = &dialLoop.soft
	}
	if l := *loop; l != nil && l.acquire() {
		return l, nil
	}
	l, err := startEventLoop(soft)
	if err != nil {
		return nil, err
	}
	*loop = l
	return l, nil
}

// newLoopID makes an ID on the event loop that get returns, for software devices or the kernel's. If the kernel refuses because the
// process has changed its user or group since the loop's channel was opened, newLoopID tries once
// more with another loop.
func newLoopID(space PortSpace, soft bool, get func(soft bool) (*eventLoop, error)) (*eventLoop, *ID, error) {
	for first := true; ; first = false {
		l, err := get(soft)
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
