package soft

import (
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/inproc"
	"github.com/goverbs/goverbs/uverbs/soft/gsi"
	"github.com/goverbs/goverbs/uverbs/soft/internal/engine"
	"github.com/goverbs/goverbs/uverbs/soft/internal/fault"
	"github.com/goverbs/goverbs/uverbs/soft/internal/memory"
)

// Device is a device in software. It is safe for concurrent use.
type Device struct {
	name   string
	index  uint32
	addr   netip.Addr
	link   netdev
	state  atomic.Pointer[linkState] // of the link; nil: it does not change
	mtu    int                       // active MTU at first, in bytes
	most   int                       // the largest active MTU, in bytes
	guid   uint64
	table  []gidEntry // see gids
	limits Limits

	vectors int // completion vectors
	engine  *engine.Device
	network *network      // nil: only devices of this process are reached
	empty   atomic.Uint32 // polls since one found something
	faults  *faults
	memory  *memory.Table
	offsets offsets
	pds     atomic.Uint32 // the number of PDs created so far
	pools   pools

	mu       sync.Mutex
	contexts map[*context]bool // guarded by mu
	closed   bool              // guarded by mu
}

// pools count the objects of a device.
type pools struct{ qps, cqs, srqs, mrs, mws, pds, ahs pool }

// pool counts objects of a kind.
type pool struct {
	n   atomic.Int64
	max int64
}

// take counts one more object. It fails with EINVAL, as rxe does, if there are too many.
func (p *pool) take() syscall.Errno {
	if p.n.Add(1) > p.max {
		p.n.Add(-1)
		return syscall.EINVAL
	}
	return 0
}

// give counts one object less.
func (p *pool) give() { p.n.Add(-1) }

// host are the devices of this process, which reach each other directly.
var host = new(engine.Host)

// New makes a device and makes it known to package uverbs. The error is an [OptionError] if an
// option is not allowed here.
func New(o Options) (*Device, error) { return newWith(nil, o) }

// newWith makes a device with a clock. nil is the system's.
func newWith(clock fault.Clock, o Options) (*Device, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	makeTables.Do(fillTables)
	d := &Device{index: inproc.NewIndex(), limits: o.Limits, vectors: runtime.NumCPU(), contexts: map[*context]bool{}}
	if err := d.takePlace(&o); err != nil {
		return nil, err
	}
	made := make(chan struct{}) // closed when d is complete, or will not be
	defer close(made)
	remove := func() {
		go func() {
			<-made
			d.Close()
		}()
	}
	var err error
	if d.faults, err = newFaults(&o, d.addr, clock, remove); err != nil {
		d.network.close()
		d.giveAddr()
		return nil, err
	}
	l := o.Limits
	for p, max := range map[*pool]int{
		&d.pools.qps: l.QPs, &d.pools.cqs: l.CQs, &d.pools.srqs: l.SRQs, &d.pools.mrs: l.MRs,
		&d.pools.mws: l.MWs, &d.pools.pds: l.PDs, &d.pools.ahs: l.AHs,
	} {
		p.max = int64(max)
	}
	random := newRandom(o.Seed)
	d.guid = newGUID(random)
	d.table = d.newGIDs()
	d.memory = memory.NewTable(random)
	config := engine.Config{MTU: d.mtu, Memory: d.memory, Host: host, GIDs: d.engineGIDs, MAD: port{d}.receiveMAD, Rand: random, Clock: clock}
	if d.network != nil {
		config.Network, config.Drain = d.network, d.network.drain
		if d.network.onlyWay {
			config.ViaNetwork = d.network.addr()
		}
		d.network.path = d.faults.injector.Path(d.network.pathOptions())
	}
	d.engine = engine.New(config)
	d.faults.start(d)
	if d.network != nil {
		d.network.start(d.engine)
	}
	if err := d.register(o.Name); err != nil {
		d.closed = true // nobody has it yet
		d.stop()
		return nil, err
	}
	gsi.Add(port{d})
	if d.network != nil {
		d.network.link.start(d.setLink, func() { go d.Close() }) // Close waits for the goroutine that calls it
	}
	return d, nil
}

// stop ends what New has started.
func (d *Device) stop() error {
	d.engine.Close()
	err := d.faults.close() // before the network, to which it sends
	d.network.close()
	d.giveAddr()
	return err
}

// register makes the device known to package uverbs.
func (d *Device) register(name string) error {
	if name != "" {
		d.name = name
		if err := inproc.Add(listed{d}); err != nil {
			return &OptionError{Field: "Name", Value: name, Allowed: "a name that no other device of the process has", Err: err}
		}
		return nil
	}
	for i := 0; ; i++ {
		d.name = fmt.Sprintf("soft%d", i)
		err := inproc.Add(listed{d})
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
}

// newRandom returns a source of random numbers that nobody can guess, or with a seed one that repeats itself.
func newRandom(seed uint64) func() uint32 {
	if seed == 0 {
		return func() uint32 {
			var b [4]byte
			crand.Read(b[:]) // never fails
			return binary.NativeEndian.Uint32(b[:])
		}
	}
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(seed, 0))
	return func() uint32 {
		mu.Lock()
		defer mu.Unlock()
		return r.Uint32()
	}
}

// newGUID returns the GUID that belongs to a random, locally administered MAC address, which is what
// rxe makes for a network interface without one (addrconf_addr_eui48).
func newGUID(random func() uint32) uint64 {
	var mac [8]byte
	binary.BigEndian.PutUint32(mac[:], random())
	binary.BigEndian.PutUint32(mac[4:], random())
	b := [8]byte{0, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]}
	return binary.BigEndian.Uint64(b[:])
}

// Name returns the name of the device.
func (d *Device) Name() string { return d.name }

// Addr returns the IP address of the device.
func (d *Device) Addr() netip.Addr { return d.addr }

// Close removes the device, as the kernel removes a device: contexts that are open get the event
// DEVICE_FATAL, their objects are destroyed, and all their later commands fail with EIO, except those
// that destroy objects. It returns the errors of writing the trace and the capture. Other calls of Close
// do nothing.
func (d *Device) Close() error {
	gsi.Remove(port{d})
	inproc.Remove(listed{d})
	d.mu.Lock()
	was := d.closed
	d.closed = true
	d.mu.Unlock()
	if was {
		return nil
	}
	for _, c := range d.opened() {
		c.remove()
	}
	return d.stop()
}

// opened returns the contexts of the device.
func (d *Device) opened() []*context {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Keys(d.contexts))
}

// forget ends the device's knowledge of a context. It reports false if there was none.
func (d *Device) forget(c *context) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	known := d.contexts[c]
	delete(d.contexts, c)
	return known
}
