package netlinkrdma

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma/internal/abi"
)

// EventType is the kind of an event (enum rdma_nl_notify_event_type).
type EventType uint8

// The types of events.
const (
	EventRegister     EventType = abi.RDMA_REGISTER_EVENT      // a device appeared
	EventUnregister   EventType = abi.RDMA_UNREGISTER_EVENT    // a device disappeared
	EventNetdevAttach EventType = abi.RDMA_NETDEV_ATTACH_EVENT // a port got a network interface
	EventNetdevDetach EventType = abi.RDMA_NETDEV_DETACH_EVENT // a port lost its network interface
	EventRename       EventType = abi.RDMA_RENAME_EVENT        // a device was renamed; Linux 6.13
	EventNetdevRename EventType = abi.RDMA_NETDEV_RENAME_EVENT // the network interface of a port was renamed; Linux 6.13
)

// String returns the name that iproute2 uses.
func (t EventType) String() string {
	names := [...]string{"REGISTER", "UNREGISTER", "NETDEV_ATTACH", "NETDEV_DETACH", "RENAME", "NETDEV_RENAME"}
	return nameOf("EventType", names[:], int(t))
}

// Event is a change of a device or a port. Fields that the kernel does not report are zero: for a
// renamed network interface, for example, Device. It is a plain value.
type Event struct {
	Type        EventType // Type is the kind of change.
	Device      string    // Device is the name of the device, after the change.
	Index       uint32    // Index is the index of Device; 0 is valid if Device is set.
	Port        uint32    // Port is set if a network interface was attached or detached.
	Netdev      string    // Netdev is the network interface.
	NetdevIndex int       // NetdevIndex is the index of Netdev.
}

// decodeEvent decodes a message of the multicast group (rdma_nl_notify_event in
// the kernel's nldev.c).
func decodeEvent(b []byte) (Event, error) {
	m := parse(b)
	m.need(abi.RDMA_NLDEV_ATTR_EVENT_TYPE)
	e := Event{
		Type:        EventType(m.u8(abi.RDMA_NLDEV_ATTR_EVENT_TYPE)),
		Device:      m.name(abi.RDMA_NLDEV_ATTR_DEV_NAME),
		Index:       m.u32(abi.RDMA_NLDEV_ATTR_DEV_INDEX),
		Port:        m.u32(abi.RDMA_NLDEV_ATTR_PORT_INDEX),
		Netdev:      m.name(abi.RDMA_NLDEV_ATTR_NDEV_NAME),
		NetdevIndex: int(m.u32(abi.RDMA_NLDEV_ATTR_NDEV_INDEX)),
	}
	if m.err != nil {
		return Event{}, m.err
	}
	return e, nil
}

// ErrEventsLost means that events arrived faster than they were read. The monitor continues to
// work; list the devices again to learn their state.
var ErrEventsLost = errors.New("events were lost")

// eventBuffer is more than the kernel puts into one datagram (NLMSG_DEFAULT_SIZE).
const eventBuffer = 32 << 10

// Monitor reports changes of the devices of the network namespace in which it was opened, as "rdma
// monitor" does. Waiting parks the goroutine in Go's netpoller and occupies no thread. One
// goroutine at a time may call Next; Close may be called at any time.
type Monitor struct {
	f       *os.File
	receive func(fd int, b []byte) (n int, kernel bool, err error)
	buf     []byte
	queue   []Event
	closed  atomic.Bool
}

// OpenMonitor opens a monitor, which reports every event from then on: open it first and list the
// devices afterwards. In netns mode shared, events go only to the namespace that the device belongs
// to, usually the initial one, and not to all namespaces that see it. Linux 6.12; on older kernels
// the error is a [FeatureError].
func OpenMonitor() (*Monitor, error) { return system.openMonitor() }

// newMonitor makes a monitor of a non-blocking socket, which it then owns.
func newMonitor(fd int, receive func(int, []byte) (int, bool, error)) *Monitor {
	return &Monitor{f: os.NewFile(uintptr(fd), "RDMA monitor"), receive: receive, buf: make([]byte, eventBuffer)}
}

// Next waits for the next event. The error wraps ctx.Err() if the context ends first, matches
// [os.ErrClosed] after Close, and is [ErrEventsLost] if events were lost. After lost events, and
// after an event that cannot be decoded, Next can be called again.
func (m *Monitor) Next(ctx context.Context) (Event, error) {
	e, err := m.next(ctx)
	switch {
	case err == nil:
		return e, nil
	case m.closed.Load():
		err = os.ErrClosed
	case errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil:
		err = ctx.Err()
	case errors.Is(err, syscall.ENOBUFS):
		err = ErrEventsLost
	}
	return Event{}, &Error{Op: "wait for event", Err: err}
}

func (m *Monitor) next(ctx context.Context) (Event, error) {
	if err := ctx.Err(); err != nil {
		return Event{}, err
	}
	defer m.endReadsWith(ctx)()
	for len(m.queue) == 0 {
		if err := m.fill(); err != nil {
			return Event{}, err
		}
	}
	e := m.queue[0]
	m.queue = m.queue[1:]
	return e, nil
}

// endReadsWith makes reads fail when ctx ends, until the returned function is called.
func (m *Monitor) endReadsWith(ctx context.Context) (stop func()) {
	if ctx.Done() == nil {
		return func() {}
	}
	ended := make(chan struct{})
	// An error means that the file is closed, which ends reads as well.
	stopFunc := context.AfterFunc(ctx, func() { _ = m.f.SetReadDeadline(time.Unix(1, 0)); close(ended) })
	return func() {
		if !stopFunc() { // the function has started: wait for it, then undo it
			<-ended
			_ = m.f.SetReadDeadline(time.Time{})
		}
	}
}

// fill waits for a datagram and queues its events.
func (m *Monitor) fill() error {
	raw, err := m.f.SyscallConn()
	if err != nil {
		return err
	}
	var n int
	var kernel bool
	var failed error
	if err := raw.Read(func(fd uintptr) bool {
		n, kernel, failed = m.receive(int(fd), m.buf)
		return failed != syscall.EAGAIN && failed != syscall.EINTR
	}); err != nil {
		return err
	}
	switch {
	case failed != nil:
		return os.NewSyscallError("recvfrom", failed)
	case n > len(m.buf):
		return ErrEventsLost
	case !kernel:
		return nil // another process wrote to this socket
	}
	events, err := decodeEvents(m.buf[:n])
	m.queue = events
	return err
}

// Close closes the monitor and ends a waiting call of Next. Closing it twice is not an error.
func (m *Monitor) Close() error {
	if m.closed.Swap(true) {
		return nil
	}
	return m.f.Close()
}
