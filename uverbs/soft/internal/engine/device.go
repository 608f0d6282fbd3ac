package engine

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/uverbs/soft/internal/fault"
	"github.com/goverbs/goverbs/uverbs/soft/internal/memory"
	"github.com/goverbs/goverbs/uverbs/soft/internal/number"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// A Config says what a [Device] is made of.
type Config struct {
	MTU     int           // active MTU of the port in bytes: 256, 512, 1024, 2048 or 4096
	Memory  *memory.Table // registered memory
	Host    *Host         // devices that are reached without a network; nil: this one alone
	Network Network       // nil: there is none

	// ViaNetwork is an address of the GID table that is reached through the network also from devices
	// of the host and from this one, as are they from it. The zero Addr: there is none.
	ViaNetwork netip.Addr

	// Drain handles the packets that have come from the network and wait to be received. nil: none do.
	Drain func()

	// GIDs returns the GID table, for New and [Device.RefreshGIDs].
	GIDs func() []GIDEntry

	// MAD is called for each management datagram to QP 1. It must not keep mad.
	MAD func(from MADAddr, mad []byte)

	Rand  func() uint32 // random numbers for QPNs, which are as hard to guess as these
	Clock fault.Clock   // nil: the system's
	Go    func(func())  // starts a goroutine; nil: the go statement
}

// A MADAddr says where a management datagram came from, or goes to.
type MADAddr struct {
	Local, Remote netip.Addr
}

// A Device has the queues of one RDMA device and runs them. It is safe for concurrent use.
type Device struct {
	config Config
	gids   atomic.Pointer[[]GIDEntry]
	closed atomic.Bool
	start  time.Time
	timers timers
	qps    number.Map[QP]
	ahs    number.Map[addressHandle]
	groups groups
	stats  counters
	held   held
	madPSN atomic.Uint32
	mtu    atomic.Int64               // active MTU of the port in bytes
	filter atomic.Pointer[Filter]     // nil: none
	plan   atomic.Pointer[fault.Plan] // faults of queue pairs; nil: none

	mu      sync.Mutex
	nextSRQ uint32 // guarded by mu
	nextAH  uint32 // guarded by mu
}

// New makes a device.
func New(c Config) *Device {
	if c.Host == nil {
		c.Host = new(Host)
	}
	if c.Clock == nil {
		c.Clock = fault.SystemClock{}
	}
	if c.Go == nil {
		c.Go = func(f func()) { go f() }
	}
	d := &Device{config: c, start: c.Clock.Now(), nextSRQ: minSRQ, nextAH: 1}
	d.mtu.Store(int64(c.MTU))
	d.timers.init(d)
	d.RefreshGIDs()
	return d
}

// Close stops the device. Packets to it are dropped from now on. Its objects are closed by their
// owner, before or after.
func (d *Device) Close() {
	if d.closed.Swap(true) {
		return
	}
	d.config.Host.remove(d)
	d.timers.close()
	d.FlushHeld()
}

// MTU returns the active MTU of the port in bytes.
func (d *Device) MTU() int { return int(d.mtu.Load()) }

// SetMTU changes the active MTU. Datagrams have no more bytes from now on; queue pairs that are connected keep
// the MTU of their path.
func (d *Device) SetMTU(mtu int) { d.mtu.Store(int64(mtu)) }

// now returns the time since the device was made, which is never 0.
func (d *Device) now() time.Duration { return d.config.Clock.Now().Sub(d.start) + 1 }

// addQP gives a QP a number. It reports false if there are too many.
func (d *Device) addQP(q *QP) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.qps.Len() >= MaxQP-1 {
		return false
	}
	q.num = d.qps.Choose(d.config.Rand, minQPN, wire.MulticastQP)
	d.qps.Add(q.num, q)
	return true
}

// removeQP takes the number of a QP back.
func (d *Device) removeQP(q *QP) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.qps.Remove(q.num)
}

// nextNumber returns the number after n of those from first to limit-1.
func nextNumber(n, first, limit uint32) uint32 {
	if n+1 < limit {
		return n + 1
	}
	return first
}
