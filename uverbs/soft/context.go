package soft

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// context is the device opened once. It implements [kernel.Device].
type context struct {
	dev     *Device
	removed atomic.Bool // the device was removed
	created atomic.Bool // GET_CONTEXT has succeeded

	// mu is held for reading by every command. The removal of the device and Close hold it for
	// writing.
	mu      sync.RWMutex
	handles handles
	files   files
	maps    mappings
}

// usable returns an errno if the context cannot have objects.
func (c *context) usable() syscall.Errno {
	switch {
	case c.removed.Load():
		return syscall.EIO
	case !c.created.Load():
		return syscall.EINVAL
	}
	return 0
}

// Poll implements [kernel.Poller].
func (c *context) Poll() { c.dev.poll() }

// Do implements [kernel.Device].
func (c *context) Do(cmd *kernel.Command, byWrite bool) syscall.Errno {
	c.mu.RLock()
	defer c.mu.RUnlock()
	k := &call{ctx: c, cmd: cmd}
	errno := k.run(byWrite)
	k.end(errno)
	return errno
}

// run carries out the command.
func (k *call) run(byWrite bool) syscall.Errno {
	if byWrite {
		l, ok := k.cmd.Legacy()
		if !ok {
			return syscall.EINVAL
		}
		return k.write(&l)
	}
	m := methods[methodKey{k.cmd.Object, k.cmd.Method}]
	if m == nil {
		return syscall.EPROTONOSUPPORT
	}
	if errno := k.takeAttrs(m); errno != 0 {
		return errno
	}
	if m.udata {
		k.drvIn = k.bytes(abi.UVERBS_ATTR_UHW_IN)
		if a := k.attr(abi.UVERBS_ATTR_UHW_OUT); a != nil {
			k.drvOut = a.Out[:a.Len]
		}
	}
	if k.victim != nil {
		if errno := k.destroy(k.victim); errno != 0 {
			return errno
		}
	}
	if m.run == nil {
		return 0
	}
	return m.run(k)
}

// Map implements [kernel.Device].
func (c *context) Map(offset uint64, size int, _ bool) (*mmio.Region, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if errno := c.usable(); errno != 0 {
		return nil, fmt.Errorf("soft: map %d bytes at offset %#x: %w", size, offset, errno)
	}
	return c.maps.open(offset, size)
}

// Close implements [kernel.Device].
func (c *context) Close() error {
	if !c.dev.forget(c) {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removed.Store(true)
	left := c.destroyAll(byClose)
	for _, o := range left {
		o.lock.Store(exclusive)
	}
	c.files.closeAll()
	c.maps.dropAll()
	if len(left) > 0 {
		return errors.New("soft: objects are left after the context was closed")
	}
	return nil
}

// remove makes the context one of a removed device: objects are destroyed, but their handles stay
// until the program destroys them. The file of asynchronous events ends with DEVICE_FATAL.
func (c *context) remove() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.removed.Swap(true) {
		return
	}
	c.destroyAll(byClose)
	c.files.fatal()
	c.maps.dropAll()
}

// destroyAll destroys all objects, the newest first. An object that others refer to is tried again
// until nothing more can be destroyed. It returns the objects that are left, of which there should
// be none. The caller holds mu for writing, so no object is locked.
func (c *context) destroyAll(why removal) []*object {
	all := c.handles.list()
	slices.SortFunc(all, newestFirst)
	for n := -1; n != len(all); {
		n = len(all)
		all = slices.DeleteFunc(all, func(o *object) bool {
			if o.free(why) != 0 {
				return false
			}
			o.dead = true
			return true
		})
	}
	return all
}

// Repeat implements [kernel.Repeater] for the two commands of the data path, which are the doorbell of a send queue
// and the arming of a CQ. They allocate nothing. It reports false for any other command, and for unusual forms of these.
func (c *context) Repeat(number uint32, in, out []byte) (syscall.Errno, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	switch number {
	case abi.IB_USER_VERBS_CMD_POST_SEND:
		return c.fastDoorbell(in, out)
	case abi.IB_USER_VERBS_CMD_REQ_NOTIFY_CQ:
		return c.fastArm(in)
	}
	return 0, false
}
