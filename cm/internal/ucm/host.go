// Package ucm carries out the commands of /dev/infiniband/rdma_cm for the devices in this process.
// It does what the kernel's modules rdma_cm and rdma_ucm do for RoCE v2: addresses, ports, events
// and their errors are the same as in Linux 7.2, so that package cm works with it as with the
// kernel.
//
// The peer of a connection is the host that the packets come from: a request whose header or path has other
// addresses is refused. When the backlog of a listener is full, a request takes the place of one of the address that
// holds the most places, so that no host keeps others out.
//
// A [Host] is the connection manager of a process. Programs open a [File] of it. Its devices are
// the devices of package gsi, and the protocol on the wire is in package ibcm.
package ucm

import (
	"crypto/rand"
	"encoding/binary"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/uverbs/soft/gsi"
)

// Network answers questions about the addresses of this machine.
type Network interface {
	// IsLocal reports whether the machine has an address.
	IsLocal(netip.Addr) bool

	// Source returns the source address of packets to dst. If src is valid, it is the source
	// address, and Source checks that there is a route.
	Source(src, dst netip.Addr) (netip.Addr, syscall.Errno)
}

// Clock tells the time.
type Clock interface {
	Now() time.Time
	AfterFunc(d time.Duration, f func()) Timer
}

// Timer is a timer of a Clock.
type Timer interface {
	Reset(d time.Duration) bool
	Stop() bool
}

// Options are the options of a [Host]. A nil field has a default, which suits all but tests.
type Options struct {
	Clock   Clock
	Network Network
	Rand    func() uint32 // random numbers that nobody can guess
}

// Host is the connection manager of a process. It is safe for concurrent use.
type Host struct {
	clock   Clock
	network Network
	rand    func() uint32

	count atomic.Int32 // number of devices

	mu      sync.Mutex
	devices []*device         // in the order in which they were added
	files   map[int]*File     // by descriptor
	ids     map[uint32]*id    // by handle
	groups  map[uint32]*group // by handle
	ports   map[portKey][]*id // IDs bound to a port, the latest first
	handle  uint32            // the last handle given to an ID or a group
	port    uint16            // the last port that was chosen for a program
	timer   Timer             // nil until it is needed
	wake    time.Time         // when timer fires; zero if it is not set
	outbox  []outgoing        // MADs that wait for being sent
	sending bool              // a goroutine sends the MADs of outbox
}

// outgoing is a MAD to send. A MAD is sent without the lock, because the peer may be a device of
// this process.
type outgoing struct {
	port     gsi.Port
	src, dst netip.Addr
	mad      [madSize]byte
}

// New makes a Host without devices.
func New(o Options) *Host {
	h := &Host{
		clock: o.Clock, network: o.Network, rand: o.Rand,
		files: map[int]*File{}, ids: map[uint32]*id{}, groups: map[uint32]*group{}, ports: map[portKey][]*id{},
	}
	if h.clock == nil {
		h.clock = systemClock{}
	}
	if h.network == nil {
		h.network = systemNetwork{}
	}
	if h.rand == nil {
		h.rand = randomNumber
	}
	return h
}

// randomNumber returns a random number for IDs and PSNs, which a stranger must not guess.
func randomNumber() uint32 {
	var b [4]byte
	rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint32(b[:])
}

// systemClock is the clock of the machine.
type systemClock struct{}

func (systemClock) Now() time.Time { return time.Now() }

func (systemClock) AfterFunc(d time.Duration, f func()) Timer { return time.AfterFunc(d, f) }

// newHandle returns a handle for an ID or a group.
func (h *Host) newHandle() uint32 {
	for {
		h.handle++
		if h.ids[h.handle] == nil && h.groups[h.handle] == nil {
			return h.handle
		}
	}
}

// unlock releases the lock and sends the MADs that wait.
func (h *Host) unlock() {
	if h.release() {
		h.sendAll()
	}
}

// unlockReceived is unlock for a caller that may hold locks of a device: another goroutine sends.
func (h *Host) unlockReceived() {
	if h.release() {
		go h.sendAll()
	}
}

// release releases the lock, and reports whether the caller has to call sendAll.
func (h *Host) release() bool {
	h.setTimer()
	send := len(h.outbox) > 0 && !h.sending
	if send {
		h.sending = true
	}
	h.mu.Unlock()
	return send
}

// sendAll sends MADs until there are none.
func (h *Host) sendAll() {
	for {
		h.mu.Lock()
		all := h.outbox
		h.outbox = nil
		h.sending = len(all) > 0
		h.mu.Unlock()
		if len(all) == 0 {
			return
		}
		for i := range all {
			m := &all[i]
			m.port.SendMAD(m.src, m.dst, m.mad[:])
		}
	}
}

// setTimer sets the timer to the next deadline.
func (h *Host) setTimer() {
	var next time.Time
	for _, d := range h.devices {
		if at, ok := d.cm.Deadline(); ok && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	if next.IsZero() || !h.wake.IsZero() && !next.Before(h.wake) {
		return // a timer that fires too early finds nothing to do
	}
	h.wake = next
	after := max(next.Sub(h.clock.Now()), 0)
	if h.timer == nil {
		h.timer = h.clock.AfterFunc(after, h.expire)
	} else {
		h.timer.Reset(after)
	}
}

// expire handles the deadlines that have passed.
func (h *Host) expire() {
	h.mu.Lock()
	defer h.unlock()
	h.wake = time.Time{}
	for _, d := range h.devices {
		d.cm.Advance()
	}
}
