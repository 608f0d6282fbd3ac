package netlinkrdma

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"github.com/goverbs/goverbs/netlinkrdma/internal/abi"
)

// LinkKind is a kind of software RDMA device.
type LinkKind string

// The kinds of links. The kernel loads the module rdma-link-KIND if it does not know a kind.
const (
	RXE LinkKind = "rxe" // RoCE v2 over any Ethernet interface
	SIW LinkKind = "siw" // iWARP over TCP
)

// Lengths that the kernel allows, without the final NUL.
const (
	maxDeviceName = 63 // IB_DEVICE_NAME_MAX, rdma/ib_verbs.h
	maxNetdevName = 15 // IFNAMSIZ, linux/if.h
)

// AddLink creates a software RDMA device with that name on a network interface, as "rdma link add
// NAME type KIND netdev NETDEV" does. It needs CAP_NET_ADMIN. The error matches [fs.ErrNotExist] if
// the interface does not exist, and [fs.ErrExist] if the name is taken or the interface already has
// such a device.
func AddLink(name string, kind LinkKind, netdev string) error {
	return system.addLink(name, kind, netdev)
}

// DeleteLink removes a software RDMA device, as "rdma link delete NAME" does. The device leaves all
// lists at once; DeleteLink returns when the last program that has it open has closed it. It needs
// CAP_NET_ADMIN. The error matches [fs.ErrNotExist] if there is no such device.
func DeleteLink(name string) error { return system.deleteLink(name) }

func (c *client) addLink(name string, kind LinkKind, netdev string) error {
	e := &Error{Op: "add " + string(kind) + " link", Device: name, Netdev: netdev}
	// The kernel would fail with EINVAL and no explanation, or truncate a long name.
	switch {
	case !validName(name) || strings.Contains(name, "%") || len(name) > maxDeviceName:
		e.Err = fmt.Errorf("name %q: %w", name, errBadName)
		e.Hint = fmt.Sprintf("allowed are 1 to %d bytes without spaces, / and %%", maxDeviceName)
		return e
	case !validName(netdev) || len(netdev) > maxNetdevName:
		e.Err = fmt.Errorf("network interface %q: %w", netdev, errBadName)
		e.Hint = fmt.Sprintf("allowed are 1 to %d bytes without spaces and /", maxNetdevName)
		return e
	case !validName(string(kind)) || len(kind) > maxNetdevName:
		e.Err = fmt.Errorf("link kind %q: %w", kind, errBadName)
		e.Hint = "allowed are rxe and siw"
		return e
	}
	s, err := c.open()
	if err == nil {
		defer s.close()
		err = s.set(abi.RDMA_NLDEV_CMD_NEWLINK,
			stringAttr(abi.RDMA_NLDEV_ATTR_DEV_NAME, name),
			stringAttr(abi.RDMA_NLDEV_ATTR_LINK_TYPE, string(kind)),
			stringAttr(abi.RDMA_NLDEV_ATTR_NDEV_NAME, netdev))
	}
	if err == nil {
		return nil
	}
	e.Err = err
	explainAdd(e, kind)
	return explain(e)
}

// explainAdd adds the meaning of an errno of NEWLINK (nldev_newlink, rxe_newlink and
// ib_register_device in the kernel).
func explainAdd(e *Error, kind LinkKind) {
	switch {
	case errors.Is(e.Err, syscall.EEXIST):
		e.Hint = fmt.Sprintf("%s has a device of kind %s already", e.Netdev, kind)
	case errors.Is(e.Err, syscall.ENFILE):
		e.is = fs.ErrExist
		e.Hint = fmt.Sprintf("an RDMA device %s exists already, or is still being removed", e.Device)
	case errors.Is(e.Err, syscall.ENODEV):
		e.is = fs.ErrNotExist
		e.Hint = fmt.Sprintf("there is no interface %s in this network namespace", e.Netdev)
	case errors.Is(e.Err, syscall.EPERM):
		e.Hint = "this needs CAP_NET_ADMIN, and an interface that is not a VLAN; the device of a VLAN's parent serves the addresses of the VLAN"
	case errors.Is(e.Err, syscall.EINVAL):
		e.Hint = fmt.Sprintf("the kernel has no links of kind %s (modprobe %s), or none on this kind of interface", kind, moduleOf(kind))
	case errors.Is(e.Err, syscall.ENOENT) && kind == RXE:
		e.Hint = "up to Linux 6.12 rxe needs the crc32 hash: modprobe crc32_generic"
	}
}

func moduleOf(kind LinkKind) string {
	if kind == RXE {
		return "rdma_rxe"
	}
	return string(kind)
}

func (c *client) deleteLink(name string) error {
	const op = "delete link"
	// sysfs does not have the index, so it cannot be used here.
	devs, err := c.netlinkDevices()
	if err != nil {
		return explain(&Error{Op: op, Device: name, Err: err})
	}
	dev, err := pick(devs, name, op)
	if err != nil {
		return err
	}
	s, err := c.open()
	if err == nil {
		defer s.close()
		err = s.set(abi.RDMA_NLDEV_CMD_DELLINK, u32Attr(abi.RDMA_NLDEV_ATTR_DEV_INDEX, dev.Index))
	}
	if err == nil {
		return nil
	}
	e := &Error{Op: op, Device: name, Err: err}
	switch {
	case errors.Is(err, syscall.EPERM):
		e.Hint = "this needs CAP_NET_ADMIN"
	case errors.Is(err, syscall.EINVAL):
		e.Hint = fmt.Sprintf("only software links can be deleted, and the driver of this one is %s", dev.DriverID)
	}
	return explain(e)
}
