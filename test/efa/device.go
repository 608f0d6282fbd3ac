package efa

import (
	"github.com/goverbs/goverbs/test/hca/vfiouser"
)

// Config is a card to make.
type Config struct {
	Name        string            // Name stands in reports.
	Personality Personality       // Personality is what makes it differ from other cards.
	Index       uint8             // Index tells the cards of a fabric apart: addresses are made from it.
	Memory      Memory            // Memory is the guest's.
	Interrupt   func(vector int)  // Interrupt raises an MSI-X vector.
	Fabric      *Fabric           // Fabric joins the card with others.
	Trace       func(line string) // Trace takes what happens in words; nil is nobody.
}

// GID is the address of a card.
type GID [16]byte

// Device is one card. Its methods may be called from any goroutine.
type Device struct {
	cfg Config
	f   *Fabric
	gid GID

	// The fabric's lock guards what follows.
	rep   Report
	reg   registers
	admin adminQueue
	aenq  eventRing
	pds   map[uint16]*pd
	uars  map[uint16]*uar
	eqs   map[uint16]*eventQueue
	ahs   map[uint16]*ah
	mrs   map[uint32]*mr // by lkey
	rkeys map[uint32]*mr
	pages int // of all MRs
	cqs   map[uint16]*cq
	qps   map[uint16]*qp // by the part of a QPN that is unique
	born  map[uint16]uint16
	last  struct{ ah, mr, handle, counter uint32 } // given out last
	stats statistics

	counters map[uint32]*counter // by handle

	// Linux frees an interrupt after the queue, or the reset, that it belongs to: its handler may still ring a
	// doorbell of a queue that was there.
	hadAENQ bool
	hadEQ   map[uint16]bool
}

// New makes a card and puts it on its fabric.
func New(cfg Config) *Device {
	d := &Device{cfg: cfg, f: cfg.Fabric, rep: newReport(cfg), born: map[uint16]uint16{}, hadEQ: map[uint16]bool{}}
	d.gid = GID{0: 0xfe, 1: 0x80, 8: 0x02, 11: 0xff, 12: 0xfe, 14: 0xef, 15: cfg.Index + 1}
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	d.f.ports[d.gid] = d
	d.clear()
	return d
}

// ID is what the card is on its bus.
func (p *Personality) id() vfiouser.ID {
	return vfiouser.ID{Vendor: 0x1d0f, Device: p.ID, SubVendor: 0x1d0f, SubDevice: 0x0e0f, Class: 0x020000}
}

// Bus describes the card to a server of package vfiouser.
func (p *Personality) Bus() vfiouser.Config {
	return vfiouser.Config{
		ID: p.id(), BARs: [6]uint64{barRegisters: registersSize, barLLQ: llqSize, barDoorbells: doorbellsSize},
		Vectors: Vectors, Table: MSIXTable, PBA: MSIXPBA,
	}
}

// clear brings the card into the state after a reset.
func (d *Device) clear() {
	for _, q := range d.qps {
		d.f.forget(q)
	}
	d.reg, d.admin, d.aenq = registers{}, adminQueue{}, eventRing{}
	d.pds, d.uars, d.eqs, d.ahs = map[uint16]*pd{}, map[uint16]*uar{}, map[uint16]*eventQueue{}, map[uint16]*ah{}
	d.mrs, d.rkeys, d.pages, d.cqs, d.qps = map[uint32]*mr{}, map[uint32]*mr{}, 0, map[uint16]*cq{}, map[uint16]*qp{}
	d.counters = map[uint32]*counter{}
}

// Reset is the reset of the PCI function.
func (d *Device) Reset() {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	d.rep.Resets["PCI function"]++
	d.clear()
}

// Close takes the card off its fabric.
func (d *Device) Close() {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	d.clear()
	delete(d.f.ports, d.gid)
}

// interrupt raises a vector.
func (d *Device) interrupt(vector int) {
	if d.cfg.Interrupt != nil {
		d.cfg.Interrupt(vector)
	}
}
