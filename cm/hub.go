package cm

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/goverbs/goverbs/uverbs"
)

// device is an open device with a PD that its connections share.
type device struct {
	dev  *uverbs.Device
	pd   *uverbs.PD
	refs int // guarded by devices.mu
}

// devices are the devices that connections are on.
var devices = struct {
	mu   sync.Mutex
	open map[string]*device
}{open: map[string]*device{}}

// useDevice opens a device, or shares the open one.
func useDevice(name string) (*device, error) {
	devices.mu.Lock()
	defer devices.mu.Unlock()
	if d := devices.open[name]; d != nil {
		d.refs++
		return d, nil
	}
	dev, err := uverbs.Open(name)
	if err != nil {
		return nil, err
	}
	pd, err := dev.AllocPD()
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	d := &device{dev: dev, pd: pd, refs: 1}
	devices.open[name] = d
	return d, nil
}

// release closes the device after its last connection. If the program still has memory
// registered with the PD, both stay open for the next connection.
func (d *device) release() error {
	devices.mu.Lock()
	defer devices.mu.Unlock()
	d.refs--
	if d.refs > 0 {
		return nil
	}
	if err := d.pd.Close(); err != nil {
		return fmt.Errorf("cm: close the device of the last connection: %w", err)
	}
	if devices.open[d.dev.Name()] == d {
		delete(devices.open, d.dev.Name())
	}
	return d.dev.Close()
}

// forget has later connections open the device anew: another one may have its name.
func (d *device) forget() {
	devices.mu.Lock()
	defer devices.mu.Unlock()
	if devices.open[d.dev.Name()] == d {
		delete(devices.open, d.dev.Name())
	}
}

// hub reads a channel for connections: a goroutine that gives each ID's events to its
// connection, once that is set up. It ends when nothing uses the channel any more.
type hub struct {
	channel *Channel

	mu    sync.Mutex
	users int                  // guarded by mu
	ends  map[*ID]func(*Event) // guarded by mu
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
	h := &hub{channel: c, users: 1, ends: map[*ID]func(*Event){}}
	go h.run()
	return h, nil
}

// run gives events to those whom they concern, until the channel is closed.
func (h *hub) run() {
	for {
		e, err := h.channel.Next(context.Background())
		if err != nil {
			return
		}
		h.mu.Lock()
		do := h.ends[e.owner()]
		h.mu.Unlock()
		if do != nil {
			do(e)
		} else if e.Listen != nil {
			e.ID.Close()
		}
	}
}

// watch has do called with the events of an ID, also with those that are there.
func (h *hub) watch(id *ID, do func(*Event)) {
	h.mu.Lock()
	h.ends[id] = do
	h.mu.Unlock()
	h.channel.share(id)
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
		c.deliver(e)
	}
	c.wake()
}

// use makes one more user of the hub. It reports whether it is still there.
func (h *hub) use() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.users == 0 {
		return false
	}
	h.users++
	return true
}

// release makes one user less; with the last one the hub goes.
func (h *hub) release() error {
	h.mu.Lock()
	h.users--
	last := h.users == 0
	h.mu.Unlock()
	if last {
		return h.channel.Close()
	}
	return nil
}

// useDialHub returns the hub for connections that are dialled.
func useDialHub() (*hub, error) {
	dialHub.mu.Lock()
	defer dialHub.mu.Unlock()
	if dialHub.hub != nil && dialHub.hub.use() {
		return dialHub.hub, nil
	}
	h, err := newHub()
	if err != nil {
		return nil, err
	}
	dialHub.hub = h
	return h, nil
}
