package netlinkrdma

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/goverbs/goverbs/netlinkrdma/internal/abi"
)

// Names of the netlink clients of kernel modules, for RDMA_NLDEV_CMD_GET_CHARDEV.
const (
	clientUverbs = "uverbs"  // ib_uverbs
	clientCM     = "rdma_cm" // rdma_ucm
	clientUMAD   = "umad"    // ib_umad
	clientISSM   = "issm"    // ib_umad
)

// CharDev is a character device of the RDMA subsystem. It is a plain value.
type CharDev struct {
	Name     string   // Name is the file name in /dev/infiniband, for example "uverbs0".
	Major    uint32   // Major is the major device number; compare both with those of the opened file.
	Minor    uint32   // Minor is the minor device number.
	ABI      uint64   // ABI is the version of the driver's private data (uverbs) or of all commands (rdma_cm, umad, issm).
	DriverID DriverID // DriverID is set for uverbs, if the driver reports it.
}

// Path returns the path of the character device that devtmpfs and udev create.
func (d CharDev) Path() string { return "/dev/infiniband/" + d.Name }

// UverbsDev returns the character device that accepts commands for a device. dev must come from
// [Devices] or [DeviceByName]. The error matches [errors.ErrUnsupported] if ib_uverbs is not loaded
// and the kernel could not load it, or if the driver has no verbs for user space. It matches
// [io/fs.ErrNotExist] if the device no longer exists.
func UverbsDev(dev Device) (CharDev, error) { return system.uverbsDev(dev) }

// UverbsByName returns a device and its character device, as [DeviceByName] and [UverbsDev] do and
// with the same errors, but with two requests to the kernel. If only the character device is
// missing, it returns the Device together with the error.
func UverbsByName(name string) (Device, CharDev, error) { return system.uverbsByName(name) }

// CMDev returns the character device of the connection manager, which serves all devices. The error
// matches [errors.ErrUnsupported] if rdma_ucm is not loaded and the kernel could not load it.
func CMDev() (CharDev, error) { return system.cmDev() }

// UMADDev returns the character device for the management datagrams of a port; see package
// uverbs/umad. dev must come from [Devices] or [DeviceByName]. The error matches
// [errors.ErrUnsupported] if ib_umad is not loaded and the kernel could not load it, or if the port
// has no management datagrams. It matches [io/fs.ErrNotExist] if the device no longer exists, or
// has no such port.
func UMADDev(dev Device, port uint32) (CharDev, error) { return system.madDev(dev, port, clientUMAD) }

// ISSMDev returns the character device of a port that a program opens to say that it is a subnet
// manager. The kernel then sets IsSM in the port's capabilities until the file is closed. It
// returns the errors of [UMADDev]. Newer kernels have the device only for ports with an SMI; older
// ones have it for all.
func ISSMDev(dev Device, port uint32) (CharDev, error) { return system.madDev(dev, port, clientISSM) }

func (c *client) madDev(dev Device, port uint32, client string) (CharDev, error) {
	e := &Error{Op: fmt.Sprintf("find %s device of port %d of", client, port), Device: dev.Name}
	if port < 1 || port > dev.Ports {
		e.Err, e.Hint = noPort{}, fmt.Sprintf("allowed are ports 1 to %d", dev.Ports)
		return CharDev{}, e
	}
	var cd CharDev
	err := error(&unreachable{errNoIndex})
	if !dev.FromSysfs {
		cd, err = c.netlinkCharDev(client, u32Attr(abi.RDMA_NLDEV_ATTR_DEV_INDEX, dev.Index), u32Attr(abi.RDMA_NLDEV_ATTR_PORT_INDEX, port))
	}
	var u *unreachable
	// Linux 6.1 fails with EOPNOTSUPP for every issm: it looks for the port where only the client of
	// umad has it.
	if errors.As(err, &u) || client == clientISSM && errors.Is(err, syscall.EOPNOTSUPP) {
		var serr error
		if cd, serr = sysfsMAD(c.sysfs, client, dev.Name, port); serr == nil {
			return cd, nil
		}
		err = bothFailed(err, serr)
	}
	if err != nil {
		e.Err = gone(err, dev.Index)
		if errors.Is(err, errors.ErrUnsupported) {
			e.Hint = unlessSandboxed("ib_umad not loaded (modprobe ib_umad), or the port has no " + client + " device")
		}
		return CharDev{}, explain(e)
	}
	return cd, nil
}

func (c *client) uverbsDev(dev Device) (CharDev, error) {
	if dev.FromSysfs {
		cd, err := sysfsUverbs(c.sysfs, dev.Name)
		if err != nil {
			return CharDev{}, &Error{Op: "find uverbs device of", Device: dev.Name, Err: err}
		}
		return cd, nil
	}
	cd, err := c.netlinkCharDev(clientUverbs, u32Attr(abi.RDMA_NLDEV_ATTR_DEV_INDEX, dev.Index))
	var u *unreachable
	if errors.As(err, &u) {
		var serr error
		if cd, serr = sysfsUverbs(c.sysfs, dev.Name); serr == nil {
			return cd, nil
		}
		err = bothFailed(err, serr)
	}
	if err != nil {
		e := &Error{Op: "find uverbs device of", Device: dev.Name, Err: gone(err, dev.Index)}
		if errors.Is(err, syscall.EOPNOTSUPP) {
			e.Hint = unlessSandboxed("ib_uverbs not loaded (modprobe ib_uverbs), or the driver has no verbs for user space")
		}
		return CharDev{}, explain(e)
	}
	return cd, nil
}

func (c *client) uverbsByName(name string) (Device, CharDev, error) {
	if d, cd, ok := c.netlinkUverbs(name); ok {
		return d, cd, nil
	}
	d, err := c.deviceByName(name)
	if err != nil {
		return Device{}, CharDev{}, err
	}
	cd, err := c.uverbsDev(d)
	return d, cd, err
}

// netlinkUverbs asks the kernel over netlink for a device and its character device. It returns
// false if that fails; the caller then finds out why.
func (c *client) netlinkUverbs(name string) (d Device, cd CharDev, ok bool) {
	s, err := c.open()
	if err != nil {
		return d, cd, false
	}
	defer s.close()
	replies, err := s.dump(abi.RDMA_NLDEV_CMD_GET)
	if err != nil {
		return d, cd, false
	}
	for _, b := range replies {
		if d, err = decodeDevice(b); err == nil && d.Name == name {
			cd, err = s.charDev(clientUverbs, u32Attr(abi.RDMA_NLDEV_ATTR_DEV_INDEX, d.Index))
			d.setDriver(cd.DriverID)
			return d, cd, err == nil
		}
	}
	return d, cd, false
}

func (c *client) cmDev() (CharDev, error) {
	cd, err := c.netlinkCharDev(clientCM)
	var u *unreachable
	if errors.As(err, &u) {
		var serr error
		if cd, serr = sysfsCM(c.sysfs); serr == nil {
			return cd, nil
		}
		err = bothFailed(err, serr)
	}
	if err != nil {
		e := &Error{Op: "find rdma_cm device", Err: err}
		if errors.Is(err, syscall.EOPNOTSUPP) {
			e.Hint = unlessSandboxed("rdma_ucm not loaded: modprobe rdma_ucm")
		}
		return CharDev{}, explain(e)
	}
	return cd, nil
}

func (c *client) netlinkCharDev(client string, of ...*rtAttr) (CharDev, error) {
	s, err := c.open()
	if err != nil {
		return CharDev{}, err
	}
	defer s.close()
	return s.charDev(client, of...)
}

// charDev asks for the character device of a kernel module: for all devices, or for the device, and
// port of it, that attributes name. The kernel loads the module if it can, and otherwise fails with
// EOPNOTSUPP.
func (s *session) charDev(client string, of ...*rtAttr) (CharDev, error) {
	attrs := append([]*rtAttr{stringAttr(abi.RDMA_NLDEV_ATTR_CHARDEV_TYPE, client)}, of...)
	b, err := s.get(abi.RDMA_NLDEV_CMD_GET_CHARDEV, attrs...)
	if err != nil {
		return CharDev{}, err
	}
	return decodeCharDev(b)
}

// decodeCharDev decodes a reply to RDMA_NLDEV_CMD_GET_CHARDEV (nldev_get_chardev
// in the kernel's nldev.c, ib_uverbs_get_nl_info in uverbs_main.c).
func decodeCharDev(b []byte) (CharDev, error) {
	m := parse(b)
	m.need(abi.RDMA_NLDEV_ATTR_CHARDEV, abi.RDMA_NLDEV_ATTR_CHARDEV_ABI, abi.RDMA_NLDEV_ATTR_CHARDEV_NAME)
	cd := CharDev{
		Name: m.name(abi.RDMA_NLDEV_ATTR_CHARDEV_NAME),
		ABI:  m.u64(abi.RDMA_NLDEV_ATTR_CHARDEV_ABI),
		// The header says u64, the kernel sends u32.
		DriverID: DriverID(m.u32(abi.RDMA_NLDEV_ATTR_UVERBS_DRIVER_ID)),
	}
	cd.Major, cd.Minor = splitDev(m.u64(abi.RDMA_NLDEV_ATTR_CHARDEV))
	if m.err != nil {
		return CharDev{}, m.err
	}
	return cd, nil
}

// splitDev splits a device number in the encoding of huge_encode_dev (kdev_t.h): the 12 bits of the
// major number are between the 8 low and the 12 high bits of the minor number.
func splitDev(dev uint64) (major, minor uint32) {
	return uint32(dev&0xfff00) >> 8, uint32(dev&0xff) | uint32(dev>>12)&0xfff00
}
