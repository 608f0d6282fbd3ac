// Package inprocess has the connection manager of the software devices of this process (package soft),
// and says which connections it serves.
package inprocess

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/cm/internal/ucm"
	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs/soft/gsi"
)

// Host is the connection manager of the software devices of this process (package soft).
var Host = newHost()

// newHost makes a connection manager that learns of every software device.
func newHost() *ucm.Host {
	h := ucm.New(ucm.Options{})
	gsi.SetManager(h)
	return h
}

// Serves reports whether a channel for connections between two addresses, either of which may be
// unknown, is for the software devices of this process instead of the devices of the kernel.
func Serves(local, remote netip.Addr) bool {
	gsi.Demand()
	if !Host.HasDevices() {
		return false
	}
	if Host.Serves(local, remote) {
		return true
	}
	has, _ := KernelHasDevices() // package uverbs does not find devices that cannot be listed either
	return !has
}

// KernelHasDevices reports whether the kernel has RDMA devices that this process sees and that its connection manager
// uses.
func KernelHasDevices() (bool, error) {
	devices, err := netlinkrdma.Devices()
	return slices.ContainsFunc(devices, func(d netlinkrdma.Device) bool { return d.Protocol != netlinkrdma.ProtocolEFA }), err
}

// DeviceName returns the name of a device, empty if the device is gone. Without netlink no index is known, and only a
// device that is the only one can be found.
func DeviceName(index uint32) (string, error) {
	if index >= gsi.FirstIndex {
		return Host.Name(index), nil
	}
	devices, err := netlinkrdma.Devices()
	if err != nil {
		return "", err
	}
	var unknown []string
	for _, d := range devices {
		switch {
		case d.FromSysfs:
			unknown = append(unknown, d.Name)
		case d.Index == index:
			return d.Name, nil
		}
	}
	switch len(unknown) {
	case 0:
		return "", nil
	case 1:
		return unknown[0], nil
	}
	return "", fmt.Errorf("which of %s has the address is not known without netlink; let the process have NETLINK_RDMA sockets: %w", strings.Join(unknown, ", "), errors.ErrUnsupported)
}
