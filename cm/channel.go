package cm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/netlinkrdma"
)

// Channel is an event channel: IDs belong to it, and what happens to them is read from it
// (struct rdma_event_channel). It is safe for concurrent use; events are read by one
// goroutine at a time, which a second one waits for.
type Channel struct {
	file *file

	reading sync.Mutex

	mu     sync.Mutex
	shut   bool              // guarded by mu
	ids    map[uint64]*ID    // guarded by mu: by uid
	groups map[uint64]*Group // guarded by mu: by uid
}

// lastUID is the last number that an ID or a group has got. Events carry them, and IDs take
// them along to another channel.
var lastUID atomic.Uint64

// OpenChannel opens a channel (rdma_create_event_channel). It fails with an error that
// matches [errors.ErrUnsupported] if the kernel's rdma_ucm is not loaded and could not be.
func OpenChannel() (*Channel, error) {
	dev, err := netlinkrdma.CMDev()
	if err != nil {
		return nil, fmt.Errorf("cm: open channel: %w", err)
	}
	if dev.ABI < minABI || dev.ABI > maxABI {
		return nil, fmt.Errorf("cm: open channel: the kernel's connection manager has ABI version %d, the library speaks %d to %d: %w",
			dev.ABI, minABI, maxABI, errors.ErrUnsupported)
	}
	f, err := open(dev.Path())
	if err != nil {
		return nil, fmt.Errorf("cm: open channel: %w", err)
	}
	return newChannel(f), nil
}

// The versions of the interface that the library speaks.
const (
	minABI = 4
	maxABI = abi.RDMA_USER_CM_ABI_VERSION
)

func newChannel(f *file) *Channel {
	return &Channel{file: f, ids: map[uint64]*ID{}, groups: map[uint64]*Group{}}
}

// longAgo is a deadline in the past.
var longAgo = time.Unix(1, 0)

// follow makes the end of ctx end reads, until it is called off.
func (c *Channel) follow(ctx context.Context) (unfollow func()) {
	if ctx.Done() == nil {
		return func() {}
	}
	fired := make(chan struct{})
	unregister := context.AfterFunc(ctx, func() {
		c.file.f.SetReadDeadline(longAgo)
		close(fired)
	})
	return func() {
		if !unregister() {
			<-fired
			c.file.f.SetReadDeadline(time.Time{})
		}
	}
}

// Next waits for the next event of an ID of the channel (rdma_get_cm_event; nothing has to be
// acknowledged). It returns ctx.Err() wrapped if the context ends first, and an error that
// matches [os.ErrClosed] if the channel is closed. An event with a Status is no error of
// Next: see [Event.Err].
func (c *Channel) Next(ctx context.Context) (*Event, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("cm: wait for event: %w", err)
	}
	defer c.follow(ctx)()
	for {
		resp := &abi.EventResp{}
		if err := c.file.event(resp); err != nil {
			switch {
			case errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil:
				err = ctx.Err()
			case c.closed():
				err = os.ErrClosed
			}
			return nil, fmt.Errorf("cm: wait for event: %w", err)
		}
		if e := c.event(resp); e != nil {
			return e, nil
		}
	}
}

// closed reports whether the channel is closed.
func (c *Channel) closed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.shut
}

// event makes an event of what the kernel has answered, nil if the ID is closed.
func (c *Channel) event(r *abi.EventResp) *Event {
	c.mu.Lock()
	id, group := c.ids[r.Uid], c.groups[r.Uid]
	c.mu.Unlock()
	if group != nil {
		id = group.id
	}
	request := EventType(r.Event) == ConnectRequest
	if id == nil {
		if request { // nobody will ever close it otherwise
			destroy(c.file, r.ID)
		}
		return nil
	}
	e := decode(r, id.datagrams())
	e.Group = group
	if e.ID = id; request {
		e.Listen, e.ID = id, &ID{space: id.space, handle: r.ID, uid: lastUID.Add(1)}
		if err := c.adopt(e.ID); err != nil { // it is being closed
			destroy(c.file, r.ID)
			return nil
		}
	}
	return e
}

// adopt gives an ID a place in the channel.
func (c *Channel) adopt(id *ID) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shut {
		return fmt.Errorf("cm: channel: %w", os.ErrClosed)
	}
	id.channel.Store(c)
	c.ids[id.uid] = id
	return nil
}

// drop forgets an ID.
func (c *Channel) drop(id *ID) {
	c.mu.Lock()
	delete(c.ids, id.uid)
	for uid, g := range c.groups { // the kernel leaves them with the ID
		if g.id == id {
			delete(c.groups, uid)
		}
	}
	c.mu.Unlock()
}

// Close closes the channel (rdma_destroy_event_channel). It fails with EBUSY while there are
// IDs on it. A Next that is under way ends.
func (c *Channel) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shut {
		return nil
	}
	if n := len(c.ids); n > 0 {
		return &Error{Op: "close channel", Errno: syscall.EBUSY, Hint: fmt.Sprintf("%d IDs are on it; close them first", n)}
	}
	c.shut = true
	if err := c.file.f.Close(); err != nil {
		return fmt.Errorf("cm: close channel: %w", err)
	}
	return nil
}
