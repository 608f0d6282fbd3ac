package uverbs

import (
	"sync/atomic"
	"time"
)

// portCache holds the last results of Port and GIDTable, which every connection needs. A
// result may be used again, depending on what is needed:
//
//   - facts: attributes that do not change while the device is open, from a result of any age;
//   - recentPort: all attributes, from a result that is younger than maxAge;
//   - currentPort, currentGIDs and the choices of a GID and a P_Key: all but the MTU, also from an older
//     result if no event about a port has come since. Linux raises an event when the state, the LID, the
//     GID table or the P_Key table of a port changes, but not when the MTU does, nor when one of several
//     network interfaces goes down, such as a VLAN's: a choice of a GID serves for maxChoiceAge.
type portCache struct {
	events atomic.Uint64                           // the number of events about ports that NextEvent has read
	ports  [256]atomic.Pointer[cached[PortAttr]]   // by port number
	gids   atomic.Pointer[cached[[]GIDEntry]]      // of all ports
	own    [256]atomic.Pointer[cached[GIDEntry]]   // the last choice for an unknown peer by port number
	pkeys  [256]atomic.Pointer[cached[chosenPKey]] // the last choice by port number
}

// cached is a result of a query.
type cached[T any] struct {
	value  T
	events uint64        // portCache.events before the query
	made   time.Duration // time of the query since started
	asked  atomic.Int64  // the same, or that of the last check for events; in nanoseconds
}

var started = time.Now() // what the times of cached count from

// Up to maxAge a result needs no check: a query could miss a change of the next millisecond, too.
const maxAge, maxChoiceAge = time.Millisecond, time.Second

// recent reports whether the result is younger than maxAge.
func (c *cached[T]) recent() bool {
	return c != nil && time.Since(started)-time.Duration(c.asked.Load()) < maxAge
}

// current reports whether the result is recent, or no event about a port has come since the query:
// neither one that NextEvent has read, nor one that still waits to be read.
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

// newCached returns a cached without its value, for a query that begins now.
func newCached[T any](d *Device) *cached[T] {
	c := &cached[T]{events: d.ports.events.Load(), made: time.Since(started)}
	c.asked.Store(int64(c.made))
	return c
}

// facts returns the attributes of a port. The caller may use only those that do not change.
func (d *Device) facts(port uint8) (*PortAttr, error) {
	if a := d.ports.ports[port].Load(); a != nil {
		return &a.value, d.usable()
	}
	attr, err := d.Port(port)
	return &attr, err
}

// recentPort is Port with a result that is younger than maxAge.
func (d *Device) recentPort(port uint8) (PortAttr, error) {
	if a := d.ports.ports[port].Load(); a.recent() {
		return a.value, d.usable()
	}
	return d.Port(port)
}

// currentPort is Port, except that the MTU may be out of date.
func (d *Device) currentPort(port uint8) (PortAttr, error) {
	if a := d.ports.ports[port].Load(); a.current(d) {
		return a.value, d.usable()
	}
	return d.Port(port)
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
