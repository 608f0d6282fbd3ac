package cm

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/cm/internal/abi"
)

// Channel is an event channel: IDs belong to it, and what happens to them is read from it
// (struct rdma_event_channel). It is safe for concurrent use, also by several goroutines that
// wait for events: each event goes to one of them.
type Channel struct {
	file *file

	// reading is held, by putting something in, by the one of the waiters that reads the file
	// for all of them.
	readTurn chan struct{}
	events   *eventReader // guarded by reading

	mu      sync.Mutex
	closed  bool              // guarded by mu
	ids     map[uint64]*ID    // guarded by mu: by uid
	groups  map[uint64]*Group // guarded by mu: by uid
	waiters []*waiter         // guarded by mu: oldest first
	reader  *waiter           // guarded by mu: whose goroutine reads, nil if none does
	pending []*Event          // guarded by mu: that nobody has waited for, oldest first
}

// lastUID is the last number that an ID or a group has got. Events carry them, and IDs take
// them along to another channel.
var lastUID atomic.Uint64

// OpenChannel opens a channel (rdma_create_event_channel). It fails with an error that
// matches [errors.ErrUnsupported] if the kernel's rdma_ucm is not loaded and could not be,
// [io/fs.ErrNotExist] if /dev/infiniband/rdma_cm is not there, and [io/fs.ErrPermission] if the
// process may not open it; the error says what to do.
func OpenChannel() (*Channel, error) {
	dev, err := findDevice()
	if err != nil {
		return nil, fmt.Errorf("cm: open channel: %w", err)
	}
	f, err := open(dev, dev.Path())
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
	return &Channel{file: f, readTurn: make(chan struct{}, 1), events: newEventReader(f), ids: map[uint64]*ID{}, groups: map[uint64]*Group{}}
}

// newEvent makes an event of what the kernel has answered, nil if the ID is closed.
func (c *Channel) newEvent(r *abi.EventResp) *Event {
	id, group := uidTable.find(r.Uid)
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
		e.ID.exclusive.Store(id.exclusive.Load())
		if err := c.addID(e.ID); err != nil { // it is being closed
			destroy(c.file, r.ID)
			return nil
		}
	}
	return e
}

// addID gives an ID a place in the channel.
func (c *Channel) addID(id *ID) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return fmt.Errorf("cm: channel: %w", os.ErrClosed)
	}
	id.channel.Store(c)
	c.ids[id.uid] = id
	uidTable.add(id.uid, eventTarget{id: id})
	return nil
}

// uidTable has the IDs and groups of the process by the numbers that events carry, as the
// kernel may still give an ID's event to the channel that the ID is leaving.
var uidTable = uidMap{all: map[uint64]eventTarget{}}

// uidMap are IDs and groups by their numbers.
type uidMap struct {
	mu  sync.RWMutex
	all map[uint64]eventTarget // guarded by mu
}

// eventTarget is whose an event is: an ID, or a group of one.
type eventTarget struct {
	id    *ID
	group *Group
}

// add puts an ID or a group into the registry, remove takes it out.
func (r *uidMap) add(uid uint64, o eventTarget) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[uid] = o
}

func (r *uidMap) remove(uid uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, uid)
}

// find returns the ID that an event is for, and the group if it is for one.
func (r *uidMap) find(uid uint64) (*ID, *Group) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	o := r.all[uid]
	return o.id, o.group
}

// removeID forgets an ID that is closed, with what it has on the channel: its events, its waiters,
// and the requests to it that nobody has taken.
func (c *Channel) removeID(id *ID) {
	uidTable.remove(id.uid)
	c.mu.Lock()
	delete(c.ids, id.uid)
	for uid, g := range c.groups { // the kernel leaves them with the ID
		if g.id == id {
			delete(c.groups, uid)
			uidTable.remove(uid)
		}
	}
	events := c.removeEvents(id)
	c.mu.Unlock()
	for _, e := range events {
		if e.Listen == id {
			e.ID.Close()
		}
	}
}

// Close closes the channel (rdma_destroy_event_channel). It fails with EBUSY while there are
// IDs on it. A Next that is under way ends.
func (c *Channel) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	if n := len(c.ids); n > 0 {
		return &Error{Op: "close channel", Errno: syscall.EBUSY, Hint: fmt.Sprintf("%d IDs are on it; close them first", n)}
	}
	c.closed = true
	if err := c.file.close(); err != nil {
		return fmt.Errorf("cm: close channel: %w", err)
	}
	return nil
}
