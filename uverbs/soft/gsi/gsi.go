// Package gsi connects the devices of package soft with the connection manager of package cm, so
// that a program links only what it uses of both. Programs need not use it.
//
// GSI is the General Service Interface of InfiniBand: QP 1, by which hosts exchange management
// datagrams (MADs).
package gsi

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
)

// FirstIndex is the lowest index of a device in this process. The indices of the kernel's devices
// are lower.
const FirstIndex = 1 << 30

// Port is the only port of a device in this process, with the only P_Key 0xffff. Its methods are safe
// for concurrent use. Its dynamic type is comparable, normally a pointer.
//
// A manager may call all methods but SendMAD with locks held that [Manager.Receive] takes, so they
// must not wait for that. After [Remove] they need not do anything.
type Port interface {
	// Info describes the device. It does not change.
	Info() Info

	// GIDs returns the used entries of the GID table, sorted by index.
	GIDs() []GIDEntry

	// MTU returns the active MTU (enum ib_mtu). 0 means that there is none.
	MTU() uint8

	// SendMAD sends a MAD of 256 bytes to QP 1 of a peer. The source is an address of the GID table.
	// SendMAD does not keep the memory. Nothing tells whether the MAD arrives.
	SendMAD(src, dst netip.Addr, mad []byte)

	// Join makes the port receive packets to a multicast group, for the QPs that are attached to it.
	Join(group netip.Addr) error

	// Leave undoes one Join.
	Leave(group netip.Addr)
}

// Info describes a device.
type Info struct {
	Name     string // Name is the name of the device.
	Index    uint32 // Index is the number of the device.
	NodeGUID uint64 // NodeGUID is the GUID in host order.
	AckDelay uint8  // AckDelay is how long the device may delay an ACK, as a power of two times 4.096 µs.
	Flush    bool   // Flush says whether the device supports FLUSH.
	NoSocket bool   // NoSocket says that the device reaches only devices of this process.
}

// GIDEntry is an entry of a GID table.
type GIDEntry struct {
	Index     uint8      // Index is the position in the table.
	Addr      netip.Addr // Addr is the address that the GID stands for, without a zone.
	Interface uint32     // Interface is the index of the network interface, 0 for none.
}

// Manager uses the QP 1 of ports. Its methods are called by [Add], [Remove] and [Receive], one at a
// time except for Receive.
type Manager interface {
	// Add tells the manager about a port.
	Add(Port)

	// Remove tells the manager that the device is about to be removed.
	Remove(Port)

	// Receive gives the manager a MAD that a peer with address src has sent to the address dst of
	// a port. It must not keep the memory, and sends nothing before it returns.
	Receive(p Port, src, dst netip.Addr, mad []byte)
}

// registry are the ports of the process, and their manager.
var registry struct {
	manager atomic.Pointer[Manager] // nil before the program has one

	// mu is held while the manager is told about a port, which may make ports receive. So Receive
	// does not take it.
	mu    sync.Mutex
	ports []Port // guarded by mu
}

// demand makes the devices that the environment of the process asks for.
var demand atomic.Pointer[func()]

// OnDemand has f called by [Demand]. Package uverbs calls it.
func OnDemand(f func()) { demand.Store(&f) }

// Demand makes the devices that the environment of the process asks for, unless there was a call
// already.
func Demand() {
	if f := demand.Load(); f != nil {
		(*f)()
	}
}

// SetManager makes m the manager of all ports, those that exist and those that are added later.
func SetManager(m Manager) {
	registry.mu.Lock()
	defer registry.mu.Unlock()
	registry.manager.Store(&m)
	for _, p := range registry.ports {
		m.Add(p)
	}
}

// Add adds a port.
func Add(p Port) {
	registry.mu.Lock()
	defer registry.mu.Unlock()
	registry.ports = append(registry.ports, p)
	if m := registry.manager.Load(); m != nil {
		(*m).Add(p)
	}
}

// Remove removes a port, before its device is removed. It does nothing if the port was not added.
func Remove(p Port) {
	registry.mu.Lock()
	defer registry.mu.Unlock()
	i := slices.Index(registry.ports, p)
	if i < 0 {
		return
	}
	registry.ports = slices.Delete(registry.ports, i, i+1)
	if m := registry.manager.Load(); m != nil {
		(*m).Remove(p)
	}
}

// Receive gives a MAD that a port has received to the manager. Without one the MAD is dropped.
func Receive(p Port, src, dst netip.Addr, mad []byte) {
	if m := registry.manager.Load(); m != nil {
		(*m).Receive(p, src, dst, mad)
	}
}
