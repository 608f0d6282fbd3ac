package soft

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/goverbs/goverbs/uverbs/internal/inproc"
	"github.com/goverbs/goverbs/uverbs/soft/internal/engine"
	"github.com/goverbs/goverbs/uverbs/soft/internal/fault"
	"github.com/goverbs/goverbs/uverbs/soft/internal/udp"
)

// faults injects faults into a device and records its packets. As an [engine.Filter], it stands between
// the device and the other devices of this process.
type faults struct {
	injector *fault.Injector
	engine   *engine.Device
	port     uint16
	addr     netip.Addr           // of the device, without a zone
	local    map[netip.Addr]*side // by address of the GID table; never changes
	files    []*os.File           // of the trace and the capture
	recorded bool                 // there is a trace or a capture

	setting sync.Mutex // held by SetFaults

	mu     sync.Mutex
	parted map[netip.Addr][]netip.Addr // what Partition has stopped, by its argument. guarded by mu
}

// side is an address of the device.
type side struct {
	path   *fault.Path
	handle udp.Handler // of packets from devices of this process
}

// newFaults makes the injector and opens the files of the options, which were checked.
func newFaults(o *Options, addr netip.Addr, clock fault.Clock, remove func()) (f *faults, err error) {
	f = &faults{port: o.Port, local: map[netip.Addr]*side{}, parted: map[netip.Addr][]netip.Addr{}}
	opts := fault.Options{Config: o.Faults.config(), Clock: clock, Trace: o.Trace, Capture: o.Capture, Device: cmp.Or(o.Name, "at "+addr.String()), Remove: remove}
	for _, file := range []struct {
		field, name string
		to          *io.Writer
	}{{"TraceFile", o.TraceFile, &opts.Trace}, {"CaptureFile", o.CaptureFile, &opts.Capture}} {
		if file.name == "" {
			continue
		}
		w, err := createRecord(file.name)
		if err != nil {
			f.closeFiles()
			return nil, &OptionError{Field: file.field, Value: file.name, Allowed: "a file that can be written", Err: err}
		}
		f.files = append(f.files, w)
		*file.to = w
	}
	f.recorded = opts.Trace != nil || opts.Capture != nil
	if f.injector, err = fault.New(opts); err != nil {
		f.closeFiles()
		return nil, fmt.Errorf("soft: %w", err)
	}
	return f, nil
}

// start begins to inject.
func (f *faults) start(d *Device) {
	f.engine, f.addr = d.engine, d.addr.WithZone("")
	for _, g := range d.table {
		from := g.addr
		s := &side{path: f.injector.Path(fault.PathOptions{
			Local: netip.AddrPortFrom(from, f.port),
			Send: func(b *udp.Batch) error {
				d.engine.Forward(from, b)
				return nil
			},
		})}
		s.handle = s.path.Handler(func(from netip.AddrPort, packet []byte, m udp.Meta) {
			d.engine.Deliver(&engine.Meta{From: from.Addr(), To: m.To.Addr(), IP: m.IP}, packet)
		})
		f.local[from] = s
	}
	f.engine.SetPlan(f.injector.Config().Plan)
	f.change()
}

// change tells the engine whether packets must pass the faults.
func (f *faults) change() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.injector.Config(); f.recorded || len(c.Rules) > 0 || len(f.parted) > 0 {
		f.engine.SetFilter(f)
	} else {
		f.engine.SetFilter(nil)
	}
}

// Send implements [engine.Filter].
func (f *faults) Send(from netip.Addr, b *udp.Batch) {
	if s := f.local[from]; s != nil {
		b.SetPort(f.port)
		s.path.Send(b)
	}
}

// Receive implements [engine.Filter]. A packet to a group comes in at the address of the device.
func (f *faults) Receive(m *engine.Meta, b []byte) {
	s := f.local[m.To]
	if s == nil {
		s = f.local[f.addr]
	}
	s.handle(netip.AddrPortFrom(m.From, f.port), b, udp.Meta{IP: m.IP, ID: m.ID, To: netip.AddrPortFrom(m.To, f.port)})
}

// close ends all faults and the records. It returns the errors of writing these.
func (f *faults) close() error {
	f.injector.Close()
	return errors.Join(f.injector.TraceErr(), f.closeFiles())
}

// closeFiles closes the files of the records.
func (f *faults) closeFiles() error {
	var err error
	for _, file := range f.files {
		err = errors.Join(err, file.Close())
	}
	return err
}

// SetFaults replaces the faults of the device. The zero Faults end them. Packets that are delayed at this
// moment stay so, and partitions stay as they are. All random decisions and the numbers of work requests
// begin again, even if the faults are the same.
func (d *Device) SetFaults(f Faults) error {
	if err := f.check(); err != nil {
		return err
	}
	d.faults.setting.Lock()
	defer d.faults.setting.Unlock()
	c := f.config()
	if err := d.faults.injector.SetConfig(c); err != nil {
		return fmt.Errorf("soft: %w", err)
	}
	d.faults.engine.SetPlan(c.Plan)
	d.faults.change()
	return nil
}

// Faults returns the present faults, partitions excepted.
func (d *Device) Faults() Faults { return faultsOf(d.faults.injector.Config()) }

// Partition stops all packets between the device and a peer, in both directions, until [Device.Heal]. An
// address of a device in this process stands for all its addresses. The zero Addr stands for all peers,
// and so does an address of the device itself.
func (d *Device) Partition(peer netip.Addr) {
	f := d.faults
	peer = plainAddr(peer)
	all := addrsOf(peer)
	f.mu.Lock()
	for _, a := range all {
		f.injector.Partition(netip.Addr{}, a)
	}
	f.parted[peer] = append(f.parted[peer], all...)
	f.mu.Unlock()
	f.change()
}

// Heal ends what [Device.Partition] with the same address has begun. The zero Addr ends all partitions of
// the device.
func (d *Device) Heal(peer netip.Addr) {
	f := d.faults
	peer = plainAddr(peer)
	f.mu.Lock()
	if !peer.IsValid() {
		f.injector.HealAll()
		clear(f.parted)
	}
	ended := f.parted[peer]
	delete(f.parted, peer)
	for _, a := range ended {
		if !f.isParted(a) {
			f.injector.Heal(netip.Addr{}, a)
		}
	}
	f.mu.Unlock()
	f.change()
}

// isParted reports whether a partition stops packets of an address. The caller holds mu.
func (f *faults) isParted(a netip.Addr) bool {
	for _, all := range f.parted {
		if slices.Contains(all, a) {
			return true
		}
	}
	return false
}

// plainAddr returns an address without a zone, and an IPv4 address as such.
func plainAddr(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// addrsOf returns all addresses of the device of this process that has an address, or else that address.
func addrsOf(a netip.Addr) []netip.Addr {
	for _, other := range inproc.All() {
		l, ok := other.(listed)
		if !ok {
			continue
		}
		var all []netip.Addr
		for _, g := range l.d.table {
			all = append(all, g.addr)
		}
		if slices.Contains(all, a) {
			return all
		}
	}
	return []netip.Addr{a}
}

// FaultCounters count the faults in packets of one direction. Of each packet, Lost or Partitioned is
// counted, or else the others for each copy.
type FaultCounters struct {
	Selected    uint64 // Selected counts packets to which a rule applies.
	Lost        uint64 // Lost counts packets that were dropped by chance.
	Partitioned uint64 // Partitioned counts packets that a partition has stopped.
	Duplicated  uint64 // Duplicated counts packets that were sent or received twice.
	Corrupted   uint64 // Corrupted counts packets with a damage, which their receiver drops.
	HeldBack    uint64 // HeldBack counts packets that were held back, so that later ones overtake them.
	Delayed     uint64 // Delayed counts packets that were delayed, but not those that wait for a rate limit.
	Overflowed  uint64 // Overflowed counts packets that were dropped because too many were delayed or held back.
}

// FaultCounters returns how many packets that the device sent and received have suffered which faults.
func (d *Device) FaultCounters() (sent, received FaultCounters) {
	s, r := d.faults.injector.Counters()
	return FaultCounters(s), FaultCounters(r)
}
