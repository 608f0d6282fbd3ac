package netlinkrdma

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// Directories that are read if netlink is not available, relative to /sys.
const (
	sysfsDeviceClass = "class/infiniband"
	sysfsUverbsClass = "class/infiniband_verbs"
	sysfsMADClass    = "class/infiniband_mad"
	sysfsCMDir       = "class/misc/rdma_cm"
	sysfsNetClass    = "class/net"
)

// sysfsDir reads the attributes in one directory and keeps the first error.
type sysfsDir struct {
	fsys fs.FS
	dir  string
	err  error
}

// text returns the content of a file without the newline.
func (d *sysfsDir) text(name string) string {
	b, err := fs.ReadFile(d.fsys, path.Join(d.dir, name))
	if err != nil {
		d.fail(err)
		return ""
	}
	return printable(strings.TrimSpace(string(b)))
}

// optional is text for files that may be missing.
func (d *sysfsDir) optional(name string) string {
	sub := sysfsDir{fsys: d.fsys, dir: d.dir}
	return sub.text(name)
}

// number parses a number of the given size in bits, decimal or with the prefix 0x.
func (d *sysfsDir) number(name string, bits int) uint64 {
	return d.parse(name, d.text(name), bits)
}

// enum parses a file of the form "4: ACTIVE" and returns the number.
func (d *sysfsDir) enum(name string) uint8 {
	num, _, _ := strings.Cut(d.text(name), ":")
	return uint8(d.parse(name, num, 8))
}

func (d *sysfsDir) parse(name, s string, bits int) uint64 {
	if d.err != nil {
		return 0
	}
	v, err := strconv.ParseUint(s, 0, bits)
	if err != nil {
		d.fail(fmt.Errorf("%s: %w", path.Join(d.dir, name), err))
	}
	return v
}

// guid parses groups of four hexadecimal digits; of a GID it takes the first half.
func (d *sysfsDir) guid(name string) ib.GUID {
	s := d.text(name)
	if d.err != nil {
		return 0
	}
	v, err := ib.ParseGUID(s[:min(len(s), len("0000:0000:0000:0000"))])
	if err != nil {
		d.fail(fmt.Errorf("%s: %w", path.Join(d.dir, name), err))
	}
	return v
}

func (d *sysfsDir) fail(err error) {
	if d.err == nil {
		d.err = err
	}
}

func sysfsDevices(fsys fs.FS) ([]Device, error) {
	entries, err := fs.ReadDir(fsys, sysfsDeviceClass)
	if err != nil {
		return nil, err
	}
	devs := make([]Device, 0, len(entries))
	for _, e := range entries {
		d, err := sysfsDevice(fsys, e.Name())
		if err != nil {
			return nil, err
		}
		devs = append(devs, d)
	}
	return devs, nil
}

func sysfsDevice(fsys fs.FS, name string) (Device, error) {
	d := sysfsDir{fsys: fsys, dir: path.Join(sysfsDeviceClass, name)}
	ports, err := portNumbers(fsys, name)
	if err != nil {
		return Device{}, err
	}
	dev := Device{
		Name:         name,
		NodeType:     ib.NodeType(d.enum("node_type")),
		NodeGUID:     d.guid("node_guid"),
		SysImageGUID: d.guid("sys_image_guid"),
		Firmware:     d.optional("fw_ver"),
		DriverID:     sysfsDriver(&d),
		Ports:        uint32(len(ports)),
		FromSysfs:    true,
	}
	if len(ports) > 0 {
		dev.Protocol = sysfsProtocol(dev, d.text(fmt.Sprintf("ports/%d/link_layer", ports[0])))
		dev.setDriver(dev.DriverID)
	}
	return dev, d.err
}

// sysfsProtocol derives the protocol, which sysfs does not have.
func sysfsProtocol(dev Device, linkLayer string) Protocol {
	switch {
	case dev.NodeType == ib.NodeRNIC:
		return ProtocolIWARP
	case dev.NodeType == ib.NodeUSNIC || dev.NodeType == ib.NodeUSNICUDP:
		return ProtocolUSNIC
	case dev.NodeType == ib.NodeUnspecified:
		return ""
	case linkLayer == ib.LinkLayerEthernet.String():
		return ProtocolRoCE
	case dev.DriverID == DriverHFI1:
		return ProtocolOPA
	}
	return ProtocolIB
}

// pciDriver returns the RDMA driver that belongs to the driver of a PCI function, if there is only
// one. The driver of a subfunction, which is an auxiliary device, is MODULE.NAME: "mlx5_core.sf".
func pciDriver(name string) DriverID {
	module, _, _ := strings.Cut(name, ".")
	switch module {
	case "mlx5_core":
		return DriverMLX5
	case "mlx4_core":
		return DriverMLX4
	case "bnxt_en":
		return DriverBNXTRE
	case "ice", "i40e":
		return DriverIRDMA
	case "vmw_pvrdma":
		return DriverVMWPVRDMA
	case "hfi1":
		return DriverHFI1
	case "efa":
		return DriverEFA
	case "erdma":
		return DriverERDMA
	}
	return DriverUnknown
}

// sysfsDriver guesses the driver, which only netlink reports: only rxe devices have a file
// "parent"; for others it is derived from the driver of the PCI function.
func sysfsDriver(d *sysfsDir) DriverID {
	if d.optional("parent") != "" {
		return DriverRXE
	}
	b, err := fs.ReadFile(d.fsys, path.Join(d.dir, "device/uevent"))
	if err != nil {
		return DriverUnknown
	}
	for line := range strings.Lines(string(b)) {
		if drv, ok := strings.CutPrefix(strings.TrimSpace(line), "DRIVER="); ok {
			return pciDriver(drv)
		}
	}
	return DriverUnknown
}

// portNumbers returns the port numbers of a device in order.
func portNumbers(fsys fs.FS, dev string) ([]int, error) {
	entries, err := fs.ReadDir(fsys, path.Join(sysfsDeviceClass, dev, "ports"))
	if err != nil {
		return nil, err
	}
	var nums []int
	for _, e := range entries {
		n, err := strconv.ParseUint(e.Name(), 10, 31)
		if err != nil {
			return nil, fmt.Errorf("%s/%s/ports: %w", sysfsDeviceClass, dev, err)
		}
		nums = append(nums, int(n))
	}
	slices.Sort(nums)
	return nums, nil
}

func sysfsPorts(fsys fs.FS, dev string) ([]Port, error) {
	nums, err := portNumbers(fsys, dev)
	if err != nil {
		return nil, err
	}
	ports := make([]Port, 0, len(nums))
	for _, n := range nums {
		p, err := sysfsPort(fsys, dev, uint32(n))
		if err != nil {
			return nil, err
		}
		ports = append(ports, p)
	}
	return ports, nil
}

func sysfsPort(fsys fs.FS, dev string, num uint32) (Port, error) {
	d := sysfsDir{fsys: fsys, dir: path.Join(sysfsDeviceClass, dev, "ports", strconv.Itoa(int(num)))}
	p := Port{
		Num:       num,
		State:     ib.PortState(d.enum("state")),
		PhysState: ib.PhysState(d.enum("phys_state")),
	}
	switch d.text("link_layer") {
	case ib.LinkLayerInfiniBand.String():
		p.LinkLayer = ib.LinkLayerInfiniBand
		p.LID = uint32(d.number("lid", 32))
		p.SMLID = uint32(d.number("sm_lid", 32))
		p.LMC = uint8(d.number("lid_mask_count", 8))
		p.CapFlags = d.number("cap_mask", 32)
		p.SubnetPrefix = uint64(d.guid("gids/0"))
	case ib.LinkLayerEthernet.String():
		p.LinkLayer = ib.LinkLayerEthernet
	}
	// The interface of the port is the interface of the first GID, which every RoCE port has
	// while the interface exists. An interface in another namespace has no index here.
	if name := d.optional("gid_attrs/ndevs/0"); validName(name) {
		net := sysfsDir{fsys: fsys, dir: path.Join(sysfsNetClass, name)}
		index := int(net.number("ifindex", 31))
		switch {
		case net.err == nil:
			p.Netdev, p.NetdevIndex = name, index
		case !errors.Is(net.err, fs.ErrNotExist):
			d.fail(net.err)
		}
	}
	return p, d.err
}

// sysfsCounters reads the counters in a directory of a port.
func (c *client) sysfsCounters(dev Device, port uint32, need feature, name string) (all []Counter, err error) {
	fail := func(err error) error {
		return &Error{Op: fmt.Sprintf("read %s of port %d of", need.name, port), Device: dev.Name, Err: err}
	}
	device := path.Join(sysfsDeviceClass, dev.Name)
	d := sysfsDir{fsys: c.sysfs, dir: path.Join(device, "ports", strconv.FormatUint(uint64(port), 10), name)}
	entries, err := fs.ReadDir(c.sysfs, d.dir)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := fs.Stat(c.sysfs, device); err != nil {
			return nil, fail(err) // the device is gone, or there is no sysfs
		}
	} else if err != nil {
		return nil, fail(err)
	}
	for _, e := range entries {
		one := sysfsDir{fsys: d.fsys, dir: d.dir}
		text := one.text(e.Name())
		v := one.parse(e.Name(), text, 64)
		switch {
		case e.Name() == "lifespan": // how long the kernel keeps values, in ms
		case one.err == nil:
			all = append(all, Counter{Name: e.Name(), Value: v})
		case !strings.HasPrefix(text, "N/A") && !counterMissing(one.err):
			d.fail(one.err)
		}
	}
	switch {
	case d.err != nil:
		return all, fail(d.err)
	case len(all) == 0:
		return nil, need.missing(dev, nil)
	}
	return all, nil
}

// counterMissing reports whether the driver does not have a counter, although there is a file for it
// (get_perf_mad in the kernel's sysfs.c).
func counterMissing(err error) bool {
	return errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EOPNOTSUPP)
}

func sysfsUverbs(fsys fs.FS, dev string) (CharDev, error) {
	entries, err := fs.ReadDir(fsys, sysfsUverbsClass)
	if err != nil {
		return CharDev{}, err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "uverbs") {
			continue // abi_version, of all devices
		}
		d := sysfsDir{fsys: fsys, dir: path.Join(sysfsUverbsClass, e.Name())}
		if d.optional("ibdev") != dev {
			continue
		}
		cd, err := sysfsCharDev(&d)
		cd.DriverID = sysfsDriver(&sysfsDir{fsys: fsys, dir: path.Join(sysfsDeviceClass, dev)})
		return cd, err
	}
	return CharDev{}, fmt.Errorf("no entry in %s belongs to %s: %w", sysfsUverbsClass, dev, errors.ErrUnsupported)
}

// sysfsMAD finds the device of a client, umad or issm, for a port of an RDMA device.
func sysfsMAD(fsys fs.FS, client, dev string, port uint32) (CharDev, error) {
	entries, err := fs.ReadDir(fsys, sysfsMADClass)
	if errors.Is(err, fs.ErrNotExist) {
		return CharDev{}, fmt.Errorf("%w: %w", err, errors.ErrUnsupported)
	}
	if err != nil {
		return CharDev{}, err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), client) {
			continue // of the other client, or abi_version
		}
		d := sysfsDir{fsys: fsys, dir: path.Join(sysfsMADClass, e.Name())}
		if d.optional("ibdev") != dev || d.number("port", 32) != uint64(port) && d.err == nil {
			continue
		}
		class := sysfsDir{fsys: fsys, dir: sysfsMADClass}
		cd := CharDev{Name: e.Name(), ABI: class.number("abi_version", 64)}
		cd.Major, cd.Minor = d.devNumber()
		return cd, errors.Join(d.err, class.err)
	}
	return CharDev{}, fmt.Errorf("no %s in %s belongs to port %d of %s: %w", client, sysfsMADClass, port, dev, errors.ErrUnsupported)
}

func sysfsCM(fsys fs.FS) (CharDev, error) {
	return sysfsCharDev(&sysfsDir{fsys: fsys, dir: sysfsCMDir})
}

// sysfsCharDev reads the device number and the ABI version.
func sysfsCharDev(d *sysfsDir) (CharDev, error) {
	cd := CharDev{Name: path.Base(d.dir), ABI: d.number("abi_version", 64)}
	cd.Major, cd.Minor = d.devNumber()
	return cd, d.err
}

// devNumber reads a device number, "231:192".
func (d *sysfsDir) devNumber() (major, minor uint32) {
	first, second, _ := strings.Cut(d.text("dev"), ":")
	return uint32(d.parse("dev", first, 32)), uint32(d.parse("dev", second, 32))
}
