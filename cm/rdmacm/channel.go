package rdmacm

import (
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/cm/internal/inprocess"
	"github.com/goverbs/goverbs/cm/internal/interpose"
)

// Channel is an event channel (struct rdma_event_channel). Each ID belongs to one, and its events
// are read from it. It is safe for concurrent use. Several goroutines can wait for events, and each
// event goes to one of them.
type Channel struct {
	file      *file
	inProcess bool

	// readTurn is held, by a value in the channel, by the waiter that reads the file for all of
	// them.
	readTurn chan struct{}
	events   *eventReader // guarded by readTurn

	mu      sync.Mutex
	closed  bool              // guarded by mu
	ids     map[uint64]*ID    // guarded by mu: by uid
	groups  map[uint64]*Group // guarded by mu: by uid
	waiters []*waiter         // guarded by mu: oldest first
	reader  *waiter           // guarded by mu: the waiter whose goroutine reads, nil if none does
	pending []*Event          // guarded by mu: events without a waiter, oldest first
}

// lastUID is the last number given to an ID or a group. Events carry these numbers. An ID keeps its
// number when it moves to another channel, and the kernel moves its events with it.
var lastUID atomic.Uint64

// ChannelOptions says which devices a channel is for. The zero value means those of the kernel, or
// without any, the software devices of this process.
type ChannelOptions struct {
	Local  netip.Addr // Local is the local address of the IDs, if it is known.
	Remote netip.Addr // Remote is the address of the peer, if it is known.
}

// OpenChannel opens a channel (rdma_create_event_channel). It is for the software devices of this
// process (package soft) if
//
//   - one of them has the local address, or
//   - there is no local address, and a software device has the remote address or the address from
//     which packets to it are sent, or
//   - the kernel has no RDMA device.
//
// Otherwise it is for the devices of the kernel. All IDs of a channel are for devices of the same
// kind, and an ID cannot migrate to a channel of the other kind.
//
// The error says what to do, and matches
//
//   - [errors.ErrUnsupported] if the module rdma_ucm is not loaded and cannot be loaded,
//   - ENODEV if the software device that GOVERBS_SOFT asks for could not be made, and the kernel has no device,
//   - [io/fs.ErrNotExist] if /dev/infiniband/rdma_cm does not exist, and
//   - [io/fs.ErrPermission] if the process may not open it.
func OpenChannel(o ChannelOptions) (*Channel, error) {
	return openChannel(inprocess.Serves(o.Local, o.Remote))
}

// openChannel opens a channel for the software devices of this process, or for the kernel's devices.
func openChannel(soft bool) (*Channel, error) {
	open := openDevice
	if soft {
		open = openSoft
	}
	f, err := open()
	if err == nil && !soft {
		if err = onlySoftFailure(); err != nil {
			f.close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cm: open channel: %w", err)
	}
	if wrap := interpose.Wrap.Load(); wrap != nil {
		f.local = (*wrap)(f.fd, f.local)
	}
	c := newChannel(f)
	c.inProcess = soft
	return c, nil
}

// InProcess reports whether the channel is for the software devices of this process.
func (c *Channel) InProcess() bool { return c.inProcess }

// Versions of the kernel's interface that this package supports.
const (
	minABI = 4
	maxABI = abi.RDMA_USER_CM_ABI_VERSION
)

func newChannel(f *file) *Channel {
	return &Channel{file: f, readTurn: make(chan struct{}, 1), events: newEventReader(f), ids: map[uint64]*ID{}, groups: map[uint64]*Group{}}
}

// newEvent decodes an event of the kernel. It returns nil if the ID is closed.
func (c *Channel) newEvent(r *abi.EventResp) *Event {
	c.mu.Lock()
	id, group := c.ids[r.Uid], c.groups[r.Uid]
	c.mu.Unlock()
	if group != nil {
		id = group.id
	}
	request := EventType(r.Event) == EventConnectRequest
	if id == nil {
		if request { // nothing else would close it
			destroy(c.file, r.ID)
		}
		return nil
	}
	e := decode(r, id.datagrams())
	e.Group = group
	if e.ID = id; request {
		e.Listen, e.ID = id, &ID{space: id.space, handle: r.ID, uid: lastUID.Add(1)}
		e.ID.exclusive.Store(id.exclusive.Load())
		e.ID.queues.ece.asked = e.Param.ECE
		if err := c.addID(e.ID); err != nil { // the channel is being closed
			destroy(c.file, r.ID)
			return nil
		}
	}
	return e
}

// addID adds an ID to the channel.
func (c *Channel) addID(id *ID) error {
	if c.file == nil {
		return errZero("channel")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return fmt.Errorf("cm: channel: %w", os.ErrClosed)
	}
	id.channel.Store(c)
	c.ids[id.uid] = id
	return nil
}

// removeID removes an ID that is closed, with its events and waiters and the requests to it that
// were not taken.
func (c *Channel) removeID(id *ID) {
	for _, e := range c.detach(id) { // the kernel leaves the groups when it destroys the ID
		if e.Listen == id {
			e.ID.Close()
		}
	}
}

// Close closes the channel (rdma_destroy_event_channel). Waiting calls of Next end. Close fails
// with EBUSY while the channel has IDs.
func (c *Channel) Close() error {
	if c.file == nil {
		return errZero("channel")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	if n := len(c.ids); n > 0 {
		return &Error{Op: "close channel", Errno: syscall.EBUSY, Hint: fmt.Sprintf("the channel has %d IDs; close them first", n)}
	}
	c.closed = true
	if err := c.file.close(); err != nil {
		return fmt.Errorf("cm: close channel: %w", err)
	}
	return nil
}
