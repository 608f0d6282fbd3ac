package cm

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"
)

// hub reads a channel for connections: a goroutine that gives each ID's events to its
// connection, once that is set up. It ends when nothing uses the channel any more.
type hub struct {
	channel *Channel

	mu    sync.Mutex
	users int            // guarded by mu
	over  bool           // guarded by mu: nobody reads the channel any more
	why   error          // guarded by mu: why it is over
	ends  map[*ID]hubEnd // guarded by mu
}

// hubEnd is who has an ID of a hub.
type hubEnd struct {
	event  func(*Event) // is called with the ID's events
	broken func(error)  // is called when there will be no more events; nil if the end goes on without
}

// dialHub is the hub of connections that were dialled, nil if there are none.
var dialHub struct {
	mu  sync.Mutex
	hub *hub
}

// newHub opens a channel and reads it. The caller is its first user.
func newHub() (*hub, error) {
	c, err := OpenChannel()
	if err != nil {
		return nil, err
	}
	h := &hub{channel: c, users: 1, ends: map[*ID]hubEnd{}}
	go h.run()
	return h, nil
}

// run gives events to those whom they concern, until the channel is closed. It reads for all
// that wait for an event of the channel, so that they need not take turns.
func (h *hub) run() {
	h.channel.reading <- struct{}{}
	defer func() { <-h.channel.reading }()
	for {
		e, err := h.channel.nextReading()
		if err != nil { // it is closed, or the process has other credentials by now
			h.end(err)
			return
		}
		h.mu.Lock()
		do := h.ends[e.owner()].event
		h.mu.Unlock()
		if do != nil {
			do(e)
		} else if e.Listen != nil {
			e.ID.Close()
		}
	}
}

// end tells all that are to know that there are no more events.
func (h *hub) end(err error) {
	h.mu.Lock()
	h.over, h.why = true, err
	ends := slices.Collect(maps.Values(h.ends))
	h.mu.Unlock()
	for _, e := range ends {
		if e.broken != nil {
			e.broken(err)
		}
	}
}

// watch has an end called with the events of an ID, also with those that are there.
func (h *hub) watch(id *ID, e hubEnd) {
	h.mu.Lock()
	h.ends[id] = e
	why := h.why
	h.mu.Unlock()
	if why != nil && e.broken != nil {
		e.broken(why)
	}
	h.channel.share(id)
}

// retire has no more users come to the hub.
func (h *hub) retire() {
	h.mu.Lock()
	h.over = true
	h.mu.Unlock()
}

// close closes an ID. One that the process may not destroy any more, as it has other credentials,
// the kernel destroys with the hub's channel.
func (h *hub) close(id *ID) error {
	err := id.Close()
	if err != nil && id.gone.Load() {
		h.retire()
		return nil
	}
	return err
}

// unwatch ends that.
func (h *hub) unwatch(id *ID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.ends, id)
}

// share gives an ID's events to Next again.
func (c *Channel) share(id *ID) {
	id.own.Store(false)
	c.mu.Lock()
	var events []*Event
	events, c.pending = split(c.pending, id)
	c.mu.Unlock()
	for _, e := range events {
		c.deliver(e, nil)
	}
}

// use makes one more user of the hub. It reports whether that still reads its channel.
func (h *hub) use() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.users == 0 || h.over {
		return false
	}
	h.users++
	return true
}

// release makes one user less; with the last one the hub goes.
func (h *hub) release() {
	h.mu.Lock()
	h.users--
	last := h.users == 0
	h.mu.Unlock()
	if last {
		h.channel.Close()
	}
}

// useDialHub returns the hub for connections that are dialled.
func useDialHub() (*hub, error) {
	dialHub.mu.Lock()
	defer dialHub.mu.Unlock()
	if h := dialHub.hub; h != nil && h.use() {
		return h, nil
	}
	h, err := newHub()
	if err != nil {
		return nil, err
	}
	dialHub.hub = h
	return h, nil
}

// newHubID makes an ID on a hub: on that for dialling, or on one of its own. If the process has
// changed user or group since the hub was opened, it takes another one.
func newHubID(space PortSpace, use func() (*hub, error)) (*hub, *ID, error) {
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
			h.retire()
		}
		h.releaseSoon()
		if !denied || !first {
			return nil, nil, err
		}
	}
}

// releaseSoon is release in a moment, if it would be the last.
func (h *hub) releaseSoon() {
	h.mu.Lock()
	last := h.users == 1
	h.mu.Unlock()
	if last {
		time.AfterFunc(moment, h.release)
		return
	}
	h.release()
}
