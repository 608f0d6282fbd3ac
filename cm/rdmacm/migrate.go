package rdmacm

import (
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/cm/internal/abi"
)

// Migrate moves the ID to another channel, with its groups and its events that were not read, in their order
// (rdma_migrate_id). Goroutines that wait for an event of the ID continue to wait there. A listener
// cannot move, because the kernel leaves the IDs of requests that were not read on the old channel.
//
// Migrate waits for the commands about the ID that run, which may take minutes if the kernel connects by
// TCP for an iWARP device. Commands that are called meanwhile wait for Migrate.
func (id *ID) Migrate(to *Channel) error {
	if to == nil {
		return argErr("Migrate", "channel", "nil", "a channel")
	}
	if to.file == nil || id.channel.Load() == nil {
		return errZero("ID or channel")
	}
	if id.closing.Load() > 0 {
		return errIDClosed
	}
	id.open.Lock()
	defer id.open.Unlock()
	if id.closed.Load() {
		return errIDClosed
	}
	if id.listens.Load() > 0 {
		return &Error{Op: "migrate", Errno: syscall.EINVAL, Hint: "a listener stays on its channel; migrate the IDs of its requests"}
	}
	from := id.channel.Load()
	if from == to {
		return nil
	}
	if err := to.attach(id, from.groupsOf(id)); err != nil {
		return err
	}
	// So that nobody gets an event of the ID before older ones. Neither channel is being closed, as Close waits for the
	// goroutine that reads.
	defer lockEvents(from, to)()
	resp := &abi.MigrateResp{}
	errno := queryAbout(to.file, from.file, abi.RDMA_USER_CM_CMD_MIGRATE_ID, func(old uint32) abi.MigrateID {
		return abi.MigrateID{Response: abi.PtrTo(resp), ID: id.handle, FD: old}
	}, resp)
	if errno != 0 {
		to.detach(id)
		return opError("migrate", "", errno)
	}
	id.channel.Store(to)
	for _, e := range from.detach(id) {
		to.deliver(e, nil)
	}
	return nil
}

// lockingEvents is held by Migrate until it has locked both channels.
var lockingEvents sync.Mutex

// lockEvents waits until the events that were read are delivered, and lets no others be read until the function that
// it returns is called.
func lockEvents(a, b *Channel) (unlock func()) {
	lockingEvents.Lock()
	defer lockingEvents.Unlock()
	a.events.mu.Lock()
	b.events.mu.Lock()
	return func() {
		a.events.mu.Unlock()
		b.events.mu.Unlock()
	}
}

// attach adds an ID and its groups to a channel.
func (c *Channel) attach(id *ID, groups []*Group) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return fmt.Errorf("cm: channel: %w", os.ErrClosed)
	}
	c.ids[id.uid] = id
	for _, g := range groups {
		c.groups[g.uid] = g
	}
	return nil
}

// detach removes an ID from a channel, and returns its events that were not read.
func (c *Channel) detach(id *ID) []*Event {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.ids, id.uid)
	for uid, g := range c.groups {
		if g.id == id {
			delete(c.groups, uid)
		}
	}
	return c.removeEvents(id)
}

// groupsOf returns the groups of an ID.
func (c *Channel) groupsOf(id *ID) []*Group {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []*Group
	for _, g := range c.groups {
		if g.id == id {
			all = append(all, g)
		}
	}
	return all
}
