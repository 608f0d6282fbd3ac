package cm

import (
	"fmt"
	"os"
	"syscall"

	"github.com/goverbs/goverbs/cm/internal/abi"
)

// Migrate moves the ID, with its groups and the events that nobody has read, to another
// channel (rdma_migrate_id). Let nobody be in [Channel.Next] of the channel that it leaves:
// an event that is read there meanwhile is lost.
func (id *ID) Migrate(to *Channel) error {
	if to == nil {
		return argErr("Migrate", "channel", "nil", "a channel")
	}
	id.closing.Lock()
	defer id.closing.Unlock()
	if id.gone.Load() {
		return id.errClosed()
	}
	from := id.channel.Load()
	if from == to {
		return nil
	}
	groups := from.groupsOf(id)
	to.mu.Lock()
	if to.shut {
		to.mu.Unlock()
		return fmt.Errorf("cm: channel: %w", os.ErrClosed)
	}
	to.ids[id.uid] = id // before its events
	for _, g := range groups {
		to.groups[g.uid] = g
	}
	to.mu.Unlock()
	resp := &abi.MigrateResp{}
	errno := from.file.control(func(old uintptr) syscall.Errno {
		return query(to.file, abi.RDMA_USER_CM_CMD_MIGRATE_ID, abi.MigrateID{Response: abi.PtrTo(resp), ID: id.handle, FD: uint32(old)}, resp)
	})
	if errno != 0 {
		to.drop(id)
		return fail("migrate", "", errno)
	}
	id.channel.Store(to)
	from.drop(id)
	return nil
}

// groupsOf returns the groups that an ID is in.
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
