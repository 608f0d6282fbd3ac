package netlinkrdma

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"github.com/goverbs/goverbs/netlinkrdma/internal/abi"
)

// maxSubDeviceName is the longest name of a sub-device, without the final NUL: the kernel cuts longer
// ones (IFNAMSIZ, nldev_newdev).
const maxSubDeviceName = 15

// AddSubDevice makes a device that is part of another one, as "rdma dev add NAME type SMI parent DEV"
// does. A device of [DeviceTypeSMI] gives access to the subnet management of each plane of a card with
// several planes; mlx5 has such cards. [Device.Parent] names the parent. It needs CAP_NET_ADMIN and Linux
// 6.11.
//
// The error is a [FeatureError] if the kernel or the driver has no sub-devices of this type on this card,
// and matches [fs.ErrExist] if the name is taken or the parent has such a device.
func AddSubDevice(parent Device, name string, typ DeviceType) error {
	return system.addSubDevice(parent, name, typ)
}

// DeleteSubDevice removes a device that [AddSubDevice] made, as "rdma dev delete DEV" does. It needs
// CAP_NET_ADMIN and Linux 6.11. The error is a [FeatureError] on older kernels, and matches EOPNOTSUPP if
// the device is not part of another.
func DeleteSubDevice(dev Device) error { return system.deleteSubDevice(dev) }

func subDevices(name string) feature { return feature{name: name, since: Version{6, 11}} }

func (c *client) addSubDevice(parent Device, name string, typ DeviceType) error {
	op := fmt.Sprintf("add device %s of type %s to", name, typ)
	invalid := func(err error, hint string) error {
		return &Error{Op: op, Device: parent.Name, Err: err, Hint: hint}
	}
	switch {
	case !validName(name) || strings.Contains(name, "%") || len(name) > maxSubDeviceName:
		return invalid(fmt.Errorf("name %q: %w", name, errBadName),
			fmt.Sprintf("allowed are 1 to %d bytes without spaces, / and %%", maxSubDeviceName))
	case typ != DeviceTypeSMI:
		return invalid(fmt.Errorf("type %s: %w", typ, fs.ErrInvalid), "allowed is SMI")
	}
	err := c.run(command{op: op, dev: parent, need: subDevices("sub-device of type " + typ.String())}, func(s *session, index uint32) error {
		return s.set(abi.RDMA_NLDEV_CMD_NEWDEV, u32Attr(abi.RDMA_NLDEV_ATTR_DEV_INDEX, index),
			stringAttr(abi.RDMA_NLDEV_ATTR_DEV_NAME, name), u8Attr(abi.RDMA_NLDEV_ATTR_DEV_TYPE, uint8(typ)))
	})
	if e, ok := err.(*Error); ok {
		switch {
		case errors.Is(err, syscall.EEXIST):
			e.Hint = fmt.Sprintf("%s has a device of type %s already", parent.Name, typ)
		case errors.Is(err, syscall.ENFILE):
			e.is = fs.ErrExist
			e.Hint = fmt.Sprintf("an RDMA device %s exists already, or is still being removed", name)
		}
	}
	return err
}

func (c *client) deleteSubDevice(dev Device) error {
	cmd := command{op: "delete sub-device", dev: dev, need: feature{since: subDevices("").since, name: "deletion of sub-devices"}}
	err := c.run(cmd, func(s *session, index uint32) error {
		return s.set(abi.RDMA_NLDEV_CMD_DELDEV, u32Attr(abi.RDMA_NLDEV_ATTR_DEV_INDEX, index))
	})
	// Here the driver does not matter: the device has no parent.
	if f, ok := errors.AsType[*FeatureError](err); ok && errors.Is(err, syscall.EOPNOTSUPP) {
		if e, ok := errors.AsType[*Error](f.Err); ok {
			e.Hint = "only a device that is part of another can be deleted; \"verbs link delete\" deletes a software device"
			return e
		}
	}
	return err
}
