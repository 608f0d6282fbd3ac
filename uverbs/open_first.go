package uverbs

import (
	"sync"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// OpenFirst opens the first usable device in the order of [Devices], preferably one with an active
// port. On RoCE that port also needs a GID of this network namespace, see [GIDEntry], if another device
// has one. A software device of this process is thus opened only if no device of the kernel is as good,
// or if the environment variable GOVERBS_SOFT is set. The error is a [DeviceError] that says for every
// device why it cannot be used.
func OpenFirst() (*Device, error) {
	infos, err := listDevices(devDir)
	if err != nil {
		return nil, &DeviceError{Err: err}
	}
	if len(infos) == 0 {
		return nil, &DeviceError{Err: noDevice()}
	}
	return openFirst(infos)
}

// openFirst opens the first usable device of several, as OpenFirst does.
func openFirst(infos []DeviceInfo) (*Device, error) {
	var best *Device
	var most fitness
	own := sync.OnceValue(func() gidRoute { return hostRoute(ib.GID{}) })
	for i := range infos {
		if infos[i].Err != nil {
			continue
		}
		d, err := open(infos[i])
		if err != nil {
			infos[i].Err = err
			continue
		}
		fit := d.fitness(own)
		if best != nil && fit <= most {
			d.Close()
			continue
		}
		if best != nil {
			best.Close()
		}
		if best, most = d, fit; fit == allGood {
			break
		}
	}
	if best != nil {
		return best, nil
	}
	return nil, &DeviceError{Devices: infos, Err: ErrNoDevice}
}

// fitness says how far a device can be used.
type fitness int

const (
	noPort   fitness = iota // no port is active
	noOwnGID                // a port is active, but all of its GIDs are of other network namespaces
	allGood                 // a port is active
)

// fitness returns what the device is good for. A function reads the addresses of this network
// namespace.
func (d *Device) fitness(own func() gidRoute) (fit fitness) {
	for port := 1; port <= int(d.attr.PhysPortCount); port++ {
		if attr, err := d.Port(uint8(port)); err != nil || attr.State != ib.PortActive {
			continue
		}
		fit = noOwnGID
		table, _ := d.GIDTable(uint8(port)) // none on iWARP
		if len(table) == 0 || table[0].Type == ib.GIDTypeIB || len(d.ownEntries(table, own())) > 0 {
			return allGood
		}
	}
	return fit
}

// ownEntries returns the entries of a GID table that belong to this network namespace, or all if that
// cannot be known. Those of a device in the process do.
func (d *Device) ownEntries(table []GIDEntry, r gidRoute) (own []GIDEntry) {
	if r.own == nil || d.info.InProcess {
		return table
	}
	for i := range table {
		if r.isOwn(&table[i]) {
			own = append(own, table[i])
		}
	}
	return own
}
