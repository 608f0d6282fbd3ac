// Package inproc is the registry of the RDMA devices that this process carries out itself. Package
// uverbs lists and opens them beside those of the kernel. A device in the process has no character
// device, no entry in sysfs and no answer to netlink, so [Device] has what uverbs otherwise reads
// from there.
package inproc

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// FirstIndex is the lowest index of a device in the process. The kernel numbers its devices from 0
// and does not reach it.
const FirstIndex = 1 << 30

// Device is a device in this process. Its methods are safe for concurrent use. Its dynamic type is
// comparable, normally a pointer.
type Device interface {
	// Info describes the device. Name and Index do not change.
	Info() Info

	// Open returns a new context of the device, in which the program creates its objects.
	Open() (kernel.Device, error)

	// Addrs returns the IP addresses of the device, by which a program may open it.
	Addrs() []netip.Addr

	// GIDs returns the used entries of a port's GID table, sorted by index. They are those that the
	// ioctl returns, for programs that do without it.
	GIDs(port uint8) []GIDEntry

	// PKeys returns a port's partition key table.
	PKeys(port uint8) []uint16

	// Counters returns the hardware counters of a port.
	Counters(port uint8) []Counter
}

// Info describes a device.
type Info struct {
	Name     string  // Name is the name of the device. No other device in the process has it.
	Index    uint32  // Index is a number from NewIndex.
	NodeGUID ib.GUID // NodeGUID is the GUID of the device.
	DriverID uint32  // DriverID is the number of the kernel's driver (enum rdma_driver_id) that the device plays.
	ABI      uint64  // ABI is the version of the driver's private data.
	Linux    [2]int  // Linux is the version of the kernel that the device plays, such as {6, 12}.
	Protocol string  // Protocol is the name as the kernel reports it, such as "roce".
	Firmware string  // Firmware is the firmware version, empty for none.
	Ports    int     // Ports is the number of ports, which are numbered from 1.

	Netdev      string // Netdev is the name of the network interface of the device; empty for none.
	NetdevIndex int    // NetdevIndex is its index, 0 for none.
	NoSocket    bool   // NoSocket says that the device reaches only devices of this process.
}

// GIDEntry is a used entry of a GID table.
type GIDEntry struct {
	Index  int    // Index is the position in the table.
	GID    ib.GID // GID is the identifier.
	Type   uint32 // Type is a value of enum ib_uverbs_gid_type.
	Netdev int    // Netdev is the index of the network interface, 0 for none.
}

// Counter is a hardware counter and its value.
type Counter struct {
	Name  string // Name is the driver's name of the counter.
	Value uint64 // Value only grows.
}

// lastIndex is the number of indices that NewIndex has returned.
var lastIndex atomic.Uint32

// NewIndex returns an index for a device. It returns every index once.
func NewIndex() uint32 { return FirstIndex + lastIndex.Add(1) - 1 }

// devices is the registry.
var devices struct {
	mu  sync.RWMutex
	all []entry // in the order in which they were added
}

// entry is a device and its name.
type entry struct {
	name string
	dev  Device
}

// find returns the place of a name in the registry, or -1. The caller holds the lock.
func find(name string) int {
	return slices.IndexFunc(devices.all, func(e entry) bool { return e.name == name })
}

// Add makes a device known to package uverbs. The error matches [fs.ErrExist] if another device in
// the process has the name.
func Add(d Device) error {
	name := d.Info().Name
	if name == "" {
		return errors.New("the device has no name")
	}
	devices.mu.Lock()
	defer devices.mu.Unlock()
	if find(name) >= 0 {
		return fmt.Errorf("this process has a device with the name %s: %w", name, fs.ErrExist)
	}
	devices.all = append(devices.all, entry{name, d})
	return nil
}

// Remove undoes Add. Contexts that are open stay open. It reports whether the device was known.
func Remove(d Device) bool {
	devices.mu.Lock()
	defer devices.mu.Unlock()
	before := len(devices.all)
	devices.all = slices.DeleteFunc(devices.all, func(e entry) bool { return e.dev == d })
	return len(devices.all) < before
}

// All returns the devices in the order in which they were added.
func All() []Device {
	devices.mu.RLock()
	defer devices.mu.RUnlock()
	var all []Device
	for _, e := range devices.all {
		all = append(all, e.dev)
	}
	return all
}

// ByName returns the device with a name, or nil if the process has none.
func ByName(name string) Device {
	devices.mu.RLock()
	defer devices.mu.RUnlock()
	if i := find(name); i >= 0 {
		return devices.all[i].dev
	}
	return nil
}
