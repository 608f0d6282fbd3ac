package cm

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"
)

// eventLoop reads a channel for connections: a goroutine that gives each ID's events to its
// connection, once that is set up. It ends when nothing uses the channel any more.
type eventLoop struct {
	channel *Channel

	mu       sync.Mutex
	users    int                  // guarded by mu
	draining bool                 // guarded by mu: nobody reads the channel any more
	err      error                // guarded by mu: why it is over
	handlers map[*ID]eventHandler // guarded by mu
}

// eventHandler is who has an ID of a hub.
type eventHandler struct {
	event func(*Event) // is called with the ID's events
	lost  func(error)  // is called when there will be no more events; nil if the end goes on without
}

// dialLoop is the hub of connections that were dialled, nil if there are none.
var dialLoop struct {
	mu  sync.Mutex
	hub *eventLoop
}

// startEventLoop opens a channel and reads it. The caller is its first user.
func startEventLoop() (*eventLoop, error) {
	c, err := OpenChannel()
	if err != nil {
		return nil, err
	}
	h := &eventLoop{channel: c, users: 1, handlers: map[*ID]eventHandler{}}
	go h.run()
	return h, nil
}

// run gives events to those whom they concern, until the channel is closed. It reads for all
// that wait for an event of the channel, so that they need not take turns.
func (h *eventLoop) run() {
	h.channel.readTurn <- struct{}{}
	defer func() { <-h.channel.readTurn }()
	for {
		e, err := h.channel.nextAsReader()
		if err != nil { // it is closed, or the process has other credentials by now
			h.fail(err)
			return
		}
		h.mu.Lock()
		do := h.handlers[e.owner()].event
		h.mu.Unlock()
		if do != nil {
			do(e)
		} else if e.Listen != nil {
			e.ID.Close()
		}
	}
}

// fail tells all that are to know that there are no more events.
func (h *eventLoop) fail(err error) {
	h.mu.Lock()
	h.draining, h.err = true, err
	ends := slices.Collect(maps.Values(h.handlers))
	h.mu.Unlock()
	for _, e := range ends {
		if e.lost != nil {
			e.lost(err)
		}
	}
}

// register has an end called with the events of an ID, also with those that are there.
func (h *eventLoop) register(id *ID, e eventHandler) {
	h.mu.Lock()
	h.handlers[id] = e
	why := h.err
	h.mu.Unlock()
	if why != nil && e.lost != nil {
		e.lost(why)
	}
	h.channel.shareEvents(id)
}

// drain has no more users come to the hub.
func (h *eventLoop) drain() {
	h.mu.Lock()
	h.draining = true
	h.mu.Unlock()
}

// closeID closes an ID. One that the process may not destroy any more, as it has other credentials,
// the kernel destroys with the hub's channel.
func (h *eventLoop) closeID(id *ID) error {
	err := id.Close()
	if err != nil && id.closed.Load() {
		h.drain()
		return nil
	}
	return err
}

// unregister ends that.
func (h *eventLoop) unregister(id *ID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.handlers, id)
}

// shareEvents gives an ID's events to Next again.
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

// acquire makes one more user of the hub. It reports whether that still reads its channel.
func (h *eventLoop) acquire() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.users == 0 || h.draining {
		return false
	}
	h.users++
	return true
}

// release makes one user less; with the last one the hub goes.
func (h *eventLoop) release() {
	h.mu.Lock()
	h.users--
	last := h.users == 0
	h.mu.Unlock()
	if last {
		h.channel.Close()
	}
}

// acquireDialLoop returns the hub for connections that are dialled.
func acquireDialLoop() (*eventLoop, error) {
	dialLoop.mu.Lock()
	defer dialLoop.mu.Unlock()
	if h := dialLoop.hub; h != nil && h.acquire() {
		return h, nil
	}
	h, err := startEventLoop()
	if err != nil {
		return nil, err
	}
	dialLoop.hub = h
	return h, nil
}

// newLoopID makes an ID on a hub: on that for dialling, or on one of its own. If the process has
// changed user or group since the hub was opened, it takes another one.
func newLoopID(space PortSpace, use func() (*eventLoop, error)) (*eventLoop, *ID, error) {
	for first := true; ; first = false {
		h, err := use()
		if err != nil {
			return nil, nil, err
		}
		id, err := h.channel.NewID(space)
		if err == nil {
			return h, id, nil
		}
		denied := errors.Is(err, syscall.EACCES)
		if denied {
			h.drain()
		}
		h.releaseLater()
		if !denied || !first {
			return nil, nil, err
		}
	}
}

// releaseLater is release in a moment, if it would be the last.
func (h *eventLoop) releaseLater() {
	h.mu.Lock()
	last := h.users == 1
	h.mu.Unlock()
	if last {
		time.AfterFunc(idleGrace, h.release)
		return
	}
	h.release()
}
