package uverbs

import (
	"sync/atomic"
	"time"
)

// portCache holds the kernel's last answers about ports, which every connection needs: what
// QueryPort returned for each port, and the GID table. The attributes that do not change while a
// device is open, such as the link layer, come from an answer of any age.
type portCache struct {
	events atomic.Uint64                         // the number of events about ports that WaitEvent has read
	ports  [256]atomic.Pointer[cached[PortAttr]] // by port number
	gids   atomic.Pointer[cached[[]GIDEntry]]    // of all ports
}

// cached is an answer of the kernel.
type cached[T any] struct {
	value  T
	events uint64       // portCache.events before the question
	asked  atomic.Int64 // when the answer was true, in nanoseconds since started
}

// started is the time that cached.asked counts from.
var started = time.Now()

// questionTime is how old an answer may be that counts as one of now. A change that is as recent
// could have come after the question as well.
const questionTime = time.Millisecond

// recent reports whether the answer counts as one of now.
func (c *cached[T]) recent() bool {
	return c != nil && time.Since(started)-time.Duration(c.asked.Load()) < questionTime
}

// current reports whether the answer is still true, except for the MTU of a port. Linux reports a
// change of a GID table, of a LID and of the state of a port by an event, and a new MTU by none.
func (c *cached[T]) current(d *Device) bool {
	if c == nil || c.recent() {
		return c != nil
	}
	now := time.Since(started)
	if c.events != d.ports.events.Load() || d.async == nil || d.info.InProcess || hasInput(d.async) {
		return false
	}
	c.asked.Store(int64(now))
	return true
}

// note returns a cached answer without the value.
func note[T any](d *Device) *cached[T] {
	c := &cached[T]{events: d.ports.events.Load()}
	c.asked.Store(int64(time.Since(started)))
	return c
}

// facts returns attributes of a port of which only those are used that do not change.
func (d *Device) facts(port uint8) (*PortAttr, error) {
	if a := d.ports.ports[port].Load(); a != nil {
		return &a.value, d.usable()
	}
	attr, err := d.QueryPort(port)
	return &attr, err
}

// recentPort is QueryPort with an answer of now.
func (d *Device) recentPort(port uint8) (PortAttr, error) {
	if a := d.ports.ports[port].Load(); a.recent() {
		return a.value, d.usable()
	}
	return d.QueryPort(port)
}

// currentPort is QueryPort, but the MTU may be that of an earlier time.
func (d *Device) currentPort(port uint8) (PortAttr, error) {
	if a := d.ports.ports[port].Load(); a.current(d) {
		return a.value, d.usable()
	}
	return d.QueryPort(port)
}

// currentGIDs is GIDTable without a command if the table has not changed. The entries must not be
// changed.
func (d *Device) currentGIDs(port uint8) ([]GIDEntry, error) {
	if t := d.ports.gids.Load(); t.current(d) {
		if d.attr.PhysPortCount == 1 {
			return t.value, d.usable()
		}
		return ofPort(t.value, port), d.usable()
	}
	return d.GIDTable(port)
}

// ofPort returns the entries of a port in a slice of its own.
func ofPort(all []GIDEntry, port uint8) []GIDEntry {
	table := make([]GIDEntry, 0, len(all))
	for _, e := range all {
		if e.Port == port {
			table = append(table, e)
		}
	}
	return table
}
