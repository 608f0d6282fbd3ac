package engine

import (
	"net/netip"
	"sync"
)

// A GIDEntry is an entry of a device's GID table. GIDs are IPv6 addresses; an IPv4 address is mapped
// into one.
type GIDEntry struct {
	GID   [16]byte
	Valid bool // false: the entry is not in use
}

// addrOfGID returns the IP address of a GID.
func addrOfGID(gid [16]byte) netip.Addr { return netip.AddrFrom16(gid).Unmap() }

// gidOfAddr returns the GID of an IP address.
func gidOfAddr(a netip.Addr) [16]byte { return a.As16() }

// A Host is a set of devices that deliver packets to each other directly, without a network. The zero
// value is ready for use.
type Host struct {
	mu      sync.RWMutex
	devices map[netip.Addr]*Device // guarded by mu
	all     []*Device              // guarded by mu
}

// find returns the device with an address, or nil.
func (h *Host) find(a netip.Addr) *Device {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.devices[a]
}

// update makes the addresses of a table those of a device, unless that is closed.
func (h *Host) update(d *Device, table []GIDEntry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.devices == nil {
		h.devices = map[netip.Addr]*Device{}
	}
	h.forget(d)
	if d.closed.Load() { // its Close calls remove behind that
		return
	}
	for _, e := range table {
		if a := addrOfGID(e.GID); e.Valid && a != d.config.ViaNetwork && h.devices[a] == nil {
			h.devices[a] = d
		}
	}
	h.all = append(h.all, d)
}

// remove removes a device.
func (h *Host) remove(d *Device) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forget(d)
}

// forget removes the addresses of a device. The caller holds mu.
func (h *Host) forget(d *Device) {
	for a, other := range h.devices {
		if other == d {
			delete(h.devices, a)
		}
	}
	all := h.all[:0:0]
	for _, other := range h.all {
		if other != d {
			all = append(all, other)
		}
	}
	h.all = all
}

// devicesNow returns the devices of the host. The slice must not be changed.
func (h *Host) devicesNow() []*Device {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.all
}

// RefreshGIDs reads the GID table again. Paths that exist keep their addresses.
func (d *Device) RefreshGIDs() {
	var table []GIDEntry
	if d.config.GIDs != nil {
		table = d.config.GIDs()
	}
	d.gids.Store(&table)
	d.config.Host.update(d, table)
}
