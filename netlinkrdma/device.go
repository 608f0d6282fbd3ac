package netlinkrdma

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goverbs/goverbs/netlinkrdma/internal/abi"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// nameOf returns names[v], or a text with typ and v if it has no name.
func nameOf(typ string, names []string, v int) string {
	if v < len(names) && names[v] != "" {
		return names[v]
	}
	return fmt.Sprintf("%s(%d)", typ, v)
}

// Protocol is the protocol of a device, with the kernel's name if it has one. If the ports of a device
// differ, it is the protocol of the first port.
type Protocol string

// The protocols. A device with another protocol of its own has the empty string.
const (
	ProtocolIB    Protocol = "ib"    // InfiniBand
	ProtocolOPA   Protocol = "opa"   // Omni-Path
	ProtocolRoCE  Protocol = "roce"  // RDMA over Converged Ethernet
	ProtocolIWARP Protocol = "iw"    // iWARP
	ProtocolUSNIC Protocol = "usnic" // Cisco usNIC
	ProtocolEFA   Protocol = "efa"   // AWS's Elastic Fabric Adapter, for which the kernel has no name
)

// setDriver sets the driver, which is all that tells the protocol of EFA.
func (d *Device) setDriver(id DriverID) {
	d.DriverID = id
	if d.Protocol == "" && d.NodeType == ib.NodeUnspecified && id == DriverEFA {
		d.Protocol = ProtocolEFA
	}
}

// DeviceType is the purpose of a device that is part of another (enum
// rdma_nl_dev_type).
type DeviceType uint8

// Types of devices. Most devices have DeviceTypeNone.
const (
	DeviceTypeNone DeviceType = 0                        // ordinary device
	DeviceTypeSMI  DeviceType = abi.RDMA_DEVICE_TYPE_SMI // subnet management only
)

// String returns the name that iproute2 uses.
func (t DeviceType) String() string {
	names := [...]string{DeviceTypeNone: "none", DeviceTypeSMI: "SMI"}
	return nameOf("DeviceType", names[:], int(t))
}

// Device is a snapshot of an RDMA device. It is a plain value.
type Device struct {
	Name         string      // Name is the name that "rdma dev" shows, for example "mlx5_0".
	Index        uint32      // Index identifies the device in the kernel. It is never reused, and 0 is valid.
	NodeType     ib.NodeType // NodeType distinguishes adapters from switches.
	NodeGUID     ib.GUID     // NodeGUID identifies the device.
	SysImageGUID ib.GUID     // SysImageGUID is shared by the devices of one card or system.
	Protocol     Protocol    // Protocol is the protocol of the first port.
	Firmware     string      // Firmware is the firmware version, empty for software devices.
	DriverID     DriverID    // DriverID is DriverUnknown if ib_uverbs is not loaded or does not report it.
	Ports        uint32      // Ports is the number of ports, which are numbered from 1.
	CapFlags     uint64      // CapFlags has the bits of enum ib_device_cap_flags; 0 if read from sysfs.
	FromSysfs    bool        // FromSysfs means that netlink was not available and Index is not known.

	// AdaptiveModeration means that the kernel adapts the interrupt moderation of new
	// completion queues to the load; see [SetAdaptiveModeration].
	AdaptiveModeration bool
	// Type is set if the device is part of another, which Parent names (Linux 6.11).
	Type   DeviceType
	Parent string // Parent is the device that this one is part of, usually empty.
}

// Devices returns the RDMA devices that this network namespace can see, in the kernel's order. An
// empty list is not an error.
func Devices() ([]Device, error) { return system.devices() }

// DeviceByName returns the device with that name. If there is none, the error matches
// [fs.ErrNotExist] and lists the names that exist.
func DeviceByName(name string) (Device, error) { return system.deviceByName(name) }

func (c *client) devices() ([]Device, error) {
	devs, err := c.netlinkDevices()
	if err == nil {
		return devs, nil
	}
	var u *unreachable
	if errors.As(err, &u) {
		devs, serr := sysfsDevices(c.sysfs)
		if serr == nil {
			return devs, nil
		}
		err = bothFailed(err, serr)
	}
	return nil, explain(&Error{Op: "list devices", Err: err})
}

func (c *client) netlinkDevices() ([]Device, error) {
	s, err := c.open()
	if err != nil {
		return nil, err
	}
	defer s.close()
	replies, err := s.dump(abi.RDMA_NLDEV_CMD_GET)
	if err != nil {
		return nil, err
	}
	devs := make([]Device, len(replies))
	for i, b := range replies {
		if devs[i], err = decodeDevice(b); err != nil {
			return nil, err
		}
		// Only the character device has the driver ID. If there is none, or if the device was
		// just removed, the driver stays unknown.
		cd, err := s.charDev(clientUverbs, u32Attr(abi.RDMA_NLDEV_ATTR_DEV_INDEX, devs[i].Index))
		var u *unreachable
		if errors.As(err, &u) {
			return nil, err
		}
		devs[i].setDriver(cd.DriverID)
	}
	return devs, nil
}

// decodeDevice decodes a reply to RDMA_NLDEV_CMD_GET (fill_dev_info in the
// kernel's nldev.c).
func decodeDevice(b []byte) (Device, error) {
	m := parse(b)
	m.need(abi.RDMA_NLDEV_ATTR_DEV_INDEX, abi.RDMA_NLDEV_ATTR_DEV_NAME, abi.RDMA_NLDEV_ATTR_PORT_INDEX,
		abi.RDMA_NLDEV_ATTR_NODE_GUID, abi.RDMA_NLDEV_ATTR_DEV_NODE_TYPE)
	d := Device{
		Name:         m.name(abi.RDMA_NLDEV_ATTR_DEV_NAME),
		Index:        m.u32(abi.RDMA_NLDEV_ATTR_DEV_INDEX),
		NodeType:     ib.NodeType(m.u8(abi.RDMA_NLDEV_ATTR_DEV_NODE_TYPE)),
		NodeGUID:     ib.GUID(m.u64(abi.RDMA_NLDEV_ATTR_NODE_GUID)),
		SysImageGUID: ib.GUID(m.u64(abi.RDMA_NLDEV_ATTR_SYS_IMAGE_GUID)),
		Protocol:     Protocol(m.text(abi.RDMA_NLDEV_ATTR_DEV_PROTOCOL)),
		Firmware:     m.text(abi.RDMA_NLDEV_ATTR_FW_VERSION),
		// In a reply about a device, this attribute has the number of ports.
		Ports:              m.u32(abi.RDMA_NLDEV_ATTR_PORT_INDEX),
		CapFlags:           m.u64(abi.RDMA_NLDEV_ATTR_CAP_FLAGS),
		AdaptiveModeration: m.flag(abi.RDMA_NLDEV_ATTR_DEV_DIM),
		Type:               DeviceType(m.u8(abi.RDMA_NLDEV_ATTR_DEV_TYPE)),
		Parent:             m.name(abi.RDMA_NLDEV_ATTR_PARENT_NAME),
	}
	if m.err != nil {
		return Device{}, m.err
	}
	return d, nil
}

func (c *client) deviceByName(name string) (Device, error) {
	devs, err := c.devices()
	if err != nil {
		return Device{}, err
	}
	return pick(devs, name, "find device")
}

// pick returns the device with the given name, or an error that lists the others.
func pick(devs []Device, name, op string) (Device, error) {
	known := make([]string, len(devs))
	for i, d := range devs {
		if d.Name == name {
			return d, nil
		}
		known[i] = d.Name
	}
	hint := "there is no RDMA device in this network namespace"
	if len(known) > 0 {
		hint = "known devices: " + strings.Join(known, ", ")
	}
	return Device{}, &Error{Op: op, Device: fmt.Sprintf("%q", name), Err: noDevice{}, Hint: hint}
}
