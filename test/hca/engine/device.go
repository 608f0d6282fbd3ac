package engine

import (
	"fmt"
	"math/rand/v2"
)

// Device is one HCA with one port. Its methods may be called from any goroutine.
type Device struct {
	f    *Fabric
	cfg  Config
	id   int // position on the fabric
	port PortState

	counts PortCounts

	pds      map[uint32]*pd
	xrcds    map[uint32]*xrcd
	eqs      map[uint32]*eq
	cqs      map[uint32]*cq
	mkeys    map[uint32]*mkey // by index, the key's upper 24 bits
	qps      map[uint32]*qp   // QPs and SQs
	srqs     map[uint32]*wq   // RMPs and XRC SRQs
	rqs      map[uint32]*rq
	dcts     map[uint32]*dct
	counters map[uint8]*Counts // counter sets
	next     map[string]uint32 // the number to try next, for each kind
	mcast    map[[16]byte][]*qp
	// special are the QPs that are QP0 and QP1 of the port.
	special map[QPType][]*qp
	regs    map[uint64]*bfReg
	own     []byte // the device's own memory
	fatal   bool
	// lastConn is the number of the last connection of DC.
	lastConn uint32
	// pageFaults are those that the driver has not resolved, and nextToken is the last one's of a WQE.
	pageFaults map[faultKey]*pageFault
	nextToken  uint32
	rng        *rand.Rand // of what Traits leave to chance
	rep        report
}

// pd is a protection domain.
type pd struct {
	n    uint32
	refs int
}

// xrcd is an XRC domain.
type xrcd struct {
	n    uint32
	refs int
}

// New makes a device and joins it to its fabric.
func New(cfg Config) (*Device, error) {
	if cfg.Memory == nil || cfg.Fabric == nil {
		return nil, fmt.Errorf("engine: a device needs Memory and Fabric")
	}
	if cfg.CQEVersion != 0 && cfg.CQEVersion != 1 {
		return nil, fmt.Errorf("engine: CQE version %d is not modelled", cfg.CQEVersion)
	}
	if cfg.Interrupt == nil {
		cfg.Interrupt = func(int) {}
	}
	if cfg.MaxQPs == 0 {
		cfg.MaxQPs = 1 << 14
	}
	cfg.Traits.fill(cfg.MaxQPs)
	d := &Device{
		f: cfg.Fabric, cfg: cfg, own: make([]byte, cfg.DeviceMemory),
		pds: map[uint32]*pd{}, xrcds: map[uint32]*xrcd{}, eqs: map[uint32]*eq{}, cqs: map[uint32]*cq{},
		mkeys: map[uint32]*mkey{}, qps: map[uint32]*qp{}, srqs: map[uint32]*wq{}, rqs: map[uint32]*rq{}, dcts: map[uint32]*dct{}, counters: map[uint8]*Counts{},
		next: map[string]uint32{}, mcast: map[[16]byte][]*qp{}, special: map[QPType][]*qp{}, regs: map[uint64]*bfReg{},
		pageFaults: map[faultKey]*pageFault{}, rng: newRand(&cfg.Traits),
	}
	d.rep.init()
	d.port.PKeys = []uint16{0xffff}
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	d.id = d.f.join(d)
	return d, nil
}

// Close takes the device off its fabric. Nothing of it is executed any more.
func (d *Device) Close() {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	d.wipe()
	d.f.leave(d)
}

// Reset is a function level reset: every object is gone, and a fatal error with them.
// The port's state and tables stay.
func (d *Device) Reset() {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	d.wipe()
	d.fatal = false
}

// wipe forgets every object.
func (d *Device) wipe() {
	for _, q := range d.qps {
		q.gone = true
	}
	for _, t := range d.dcts {
		for _, c := range t.conns {
			if c.qp != nil {
				c.qp.gone = true
			}
		}
	}
	for _, c := range d.cqs {
		c.gone = true
	}
	clear(d.pds)
	clear(d.xrcds)
	clear(d.eqs)
	clear(d.cqs)
	clear(d.mkeys)
	clear(d.qps)
	clear(d.srqs)
	clear(d.rqs)
	clear(d.dcts)
	clear(d.counters)
	clear(d.mcast)
	clear(d.special)
	clear(d.regs)
	clear(d.pageFaults)
}

// lock takes the fabric's lock for a command, which a stopped device refuses.
func (d *Device) lock(object string) error {
	d.f.mu.Lock()
	if d.fatal {
		d.f.mu.Unlock()
		return refuse(BadSysState, object, 0, "", "the device has had a fatal error")
	}
	return nil
}

// most is how many objects of a kind there may be.
func (d *Device) most(kind string) int {
	switch kind {
	case "QP":
		return d.cfg.MaxQPs
	case "CQ":
		return d.cfg.Traits.MaxCQs
	case "SRQ":
		return d.cfg.Traits.MaxSRQs
	case "MKEY":
		return d.cfg.Traits.MaxMKeys
	}
	return 16 * d.cfg.MaxQPs
}

// number finds a free number for an object.
func number[T any](d *Device, kind string, first uint32, used map[uint32]T) (uint32, error) {
	if len(used) >= d.most(kind) {
		return 0, refuse(Limit, kind, 0, "", "%d of them exist", len(used))
	}
	n := max(d.next[kind], first)
	for {
		if n > maxNumber-16 {
			n = first
		}
		if _, ok := used[n]; !ok {
			d.next[kind] = n + 1
			return n, nil
		}
		n++
	}
}

// AllocPD makes a protection domain.
func (d *Device) AllocPD() (uint32, error) {
	if err := d.lock("PD"); err != nil {
		return 0, err
	}
	defer d.f.mu.Unlock()
	n, err := number(d, "PD", firstPD, d.pds)
	if err != nil {
		return 0, err
	}
	d.pds[n] = &pd{n: n}
	return n, nil
}

// DeallocPD removes a protection domain that nothing uses.
func (d *Device) DeallocPD(n uint32) error {
	if err := d.lock("PD"); err != nil {
		return err
	}
	defer d.f.mu.Unlock()
	p := d.pds[n]
	if p == nil {
		return unknown("PD", n)
	}
	if p.refs > 0 {
		return refuse(Busy, "PD", n, "", "%d objects use it", p.refs)
	}
	delete(d.pds, n)
	return nil
}

// AllocXRCD makes an XRC domain.
func (d *Device) AllocXRCD() (uint32, error) {
	if err := d.lock("XRCD"); err != nil {
		return 0, err
	}
	defer d.f.mu.Unlock()
	n, err := number(d, "XRCD", firstXRCD, d.xrcds)
	if err != nil {
		return 0, err
	}
	d.xrcds[n] = &xrcd{n: n}
	return n, nil
}

// DeallocXRCD removes an XRC domain that nothing uses.
func (d *Device) DeallocXRCD(n uint32) error {
	if err := d.lock("XRCD"); err != nil {
		return err
	}
	defer d.f.mu.Unlock()
	x := d.xrcds[n]
	if x == nil {
		return unknown("XRCD", n)
	}
	if x.refs > 0 {
		return refuse(Busy, "XRCD", n, "", "%d objects use it", x.refs)
	}
	delete(d.xrcds, n)
	return nil
}

// usePD counts one more user of a PD.
func (d *Device) usePD(object string, n uint32) (*pd, error) {
	p := d.pds[n]
	if p == nil {
		return nil, refuse(BadResource, object, 0, "pd", "PD %#x does not exist", n)
	}
	p.refs++
	return p, nil
}
