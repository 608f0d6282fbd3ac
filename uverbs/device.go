package uverbs

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"weak"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/diag"
	"github.com/goverbs/goverbs/uverbs/internal/inproc"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// Reasons why a device cannot be used, for [errors.Is]. If its character device is missing or may
// not be opened, the error matches [fs.ErrNotExist] or [fs.ErrPermission].
var (
	// ErrNoDevice means that there is no usable RDMA device.
	ErrNoDevice = errors.New("no usable RDMA device")
	// errABI means that kernel and library have no ABI version in common.
	errABI = &reason{"ABI version out of range: unsupported operation", errors.ErrUnsupported}
	// errDriver means that the library has no code for the device's driver.
	errDriver = &reason{"driver not supported by this library: unsupported operation", errors.ErrUnsupported}
)

// devDir is where the uverbs character devices are.
const devDir = "/dev/infiniband"

// DeviceInfo describes a device of this machine, whether it can be used or not.
type DeviceInfo struct {
	Index    uint32  // Index is the kernel's number for the device (ibv_get_device_index).
	Name     string  // Name is the RDMA device's name, such as "rxe0" (ibv_get_device_name).
	NodeGUID ib.GUID // NodeGUID is the GUID of the device (ibv_get_device_guid).
	Protocol string  // Protocol is the name that the kernel reports, such as "roce", "ib" or "iw".
	Firmware string  // Firmware is the firmware version; empty for software devices.
	Driver   string  // Driver is the kernel driver's name, such as "rxe".
	Ports    int     // Ports is the number of ports. Port numbers start at 1.
	CharDev  string  // CharDev is the path of the uverbs device; empty if there is none.

	// InProcess says that the device is a software device of this process, and not one of the kernel.
	InProcess bool

	// Err says why the device cannot be opened, or is nil.
	Err error

	driver driver
	id     netlinkrdma.DriverID
	char   netlinkrdma.CharDev
	inproc inproc.Device // nil for a device of the kernel
}

// IWARP reports whether the device uses iWARP, which runs over TCP. Such a device has no GIDs and
// only RC queue pairs, which the connection manager connects (package cm).
func (i DeviceInfo) IWARP() bool { return i.Protocol == string(netlinkrdma.ProtocolIWARP) }

// Devices lists the RDMA devices in the calling process's network namespace (ibv_get_device_list),
// and after them the software devices of this process. If the environment variable GOVERBS_SOFT asks
// for software devices, they come first. Unlike the C function it also lists devices that cannot be
// used, with the reason in [DeviceInfo].Err. If there are software devices, it is no error that the
// kernel has no RDMA.
func Devices() ([]DeviceInfo, error) { return devices(devDir) }

func devices(dir string) ([]DeviceInfo, error) {
	infos, err := listDevices(dir)
	for i := range infos {
		if infos[i].Err == nil {
			infos[i].Err = infos[i].check()
		}
	}
	return infos, err
}

// listDevices returns the devices without trying to open them, in the order of Devices.
func listDevices(dir string) ([]DeviceInfo, error) {
	infos, err := kernelDevices(dir)
	own := inProcessDevices()
	if len(own) > 0 && err != nil && noKernelDevices(err) {
		err = nil
	}
	if inProcessFirst.Load() {
		infos, own = own, infos
	}
	return append(infos, own...), err
}

// kernelDevices returns the devices of the kernel.
func kernelDevices(dir string) ([]DeviceInfo, error) {
	devs, err := netlinkrdma.Devices()
	if err != nil {
		return nil, listError(err)
	}
	infos := make([]DeviceInfo, len(devs))
	for i, dev := range devs {
		char, err := netlinkrdma.UverbsDev(dev)
		infos[i] = inspect(dev, char, err, dir)
	}
	return infos, nil
}

// listError returns the error for devices of the kernel that cannot be listed.
func listError(err error) error {
	if noKernelDevices(err) {
		return fmt.Errorf("uverbs: list devices: %w%s", err, withSoftHint(""))
	}
	return fmt.Errorf("uverbs: list devices: %w", err)
}

// inspect collects what is known about a device without opening it. The error says why there is no
// character device.
func inspect(dev netlinkrdma.Device, char netlinkrdma.CharDev, err error, dir string) DeviceInfo {
	info := DeviceInfo{
		Index:    dev.Index,
		Name:     dev.Name,
		NodeGUID: dev.NodeGUID,
		Protocol: string(dev.Protocol),
		Firmware: dev.Firmware,
		Ports:    int(dev.Ports),
		char:     char,
		Err:      err,
	}
	if err != nil {
		return info
	}
	info.CharDev = filepath.Join(dir, info.char.Name)
	info.id = info.char.DriverID
	if info.id == netlinkrdma.DriverUnknown {
		info.id = dev.DriverID
	}
	info.Driver = info.id.String()
	info.driver = driverOf(info.id)
	info.Err = info.checkDriver()
	return info
}

// checkDriver returns an error if the library does not support the driver or its ABI version.
func (i *DeviceInfo) checkDriver() error {
	if i.driver == nil {
		return fmt.Errorf("driver %s (the library supports %s): %w", i.Driver, driverNames(), errDriver)
	}
	return checkABI(i.driver, i.char.ABI)
}

// check opens the character device and closes it again.
func (i *DeviceInfo) check() error {
	if i.InProcess {
		return nil
	}
	f, err := i.openFile()
	if err != nil {
		return err
	}
	return f.Close()
}

// links returns the indices and the names of the network interfaces of the device's ports.
func (i *DeviceInfo) links() (links map[int]bool, names []string) {
	links = map[int]bool{}
	if i.InProcess {
		if own := i.inproc.Info(); own.Netdev != "" {
			links[own.NetdevIndex], names = true, []string{own.Netdev + " (" + i.Name + ")"}
		}
		return links, names
	}
	dev, err := netlinkrdma.DeviceByName(i.Name)
	if err != nil { // the device was just removed
		return links, nil
	}
	ports, _ := netlinkrdma.Ports(dev)
	for _, p := range ports {
		if p.Netdev != "" {
			links[p.NetdevIndex] = true
			names = append(names, p.Netdev+" ("+i.Name+")")
		}
	}
	return links, names
}

// connect opens the kernel's side of the device.
func (i *DeviceInfo) connect() (kernel.Device, error) {
	if i.InProcess {
		return i.inproc.Open()
	}
	f, err := i.openFile()
	if err != nil {
		return nil, err
	}
	dev, err := kernel.NewCharDevice(f, i.charOptions())
	if err != nil {
		f.Close()
		return nil, err
	}
	return dev, nil
}

// charOptions returns the options of the device's file.
func (i *DeviceInfo) charOptions() kernel.CharOptions {
	return kernel.CharOptions{DriverID: uint32(i.id), Software: i.driver.capabilities().briefCommands}
}

// Device is an open RDMA device (struct ibv_context). It is safe for concurrent use, except that
// only one goroutine at a time may call [Device.NextEvent].
type Device struct {
	object
	info    DeviceInfo
	cmd     *commands
	driver  driver
	attr    DeviceAttr
	vectors int

	deviceDrivers
	poller kernel.Poller // nil for a device of the kernel

	tree     sync.Mutex // guards the parents and users of the device's objects
	newest   *object    // guarded by tree: the open object that was created last
	creating int        // guarded by tree: the number of objects being created

	shared  atomic.Bool // other processes may have the device's file
	leaving atomic.Bool // what another process uses is left to the kernel

	ports         portCache
	mrs           mrIndex  // MRs by their keys
	firstCounters sync.Map // []netlinkrdma.Counter by port, see recordCounters

	targets    targets
	async      kernel.EventFile // asynchronous events; nil if the kernel has none
	asyncFD    int              // of async, if it is an object of the ioctl interface, else -1
	fatal      bool             // NextEvent has returned EventDeviceFatal
	asyncWatch watch
	asyncDesc  abi.AsyncEventDesc // read buffer, here so that it is not allocated per read
}

// DeviceError reports that a device could not be opened.
type DeviceError struct {
	Name    string       // Name is the requested device; empty for any.
	Devices []DeviceInfo // Devices are the devices of this machine.
	Err     error        // Err is the reason.
}

// Error implements error.
func (e *DeviceError) Error() string {
	var b strings.Builder
	b.WriteString("uverbs: open ")
	if e.Name == "" {
		b.WriteString("first device")
	} else {
		b.WriteString(e.Name)
	}
	fmt.Fprintf(&b, ": %s", e.Err)
	if len(e.Devices) == 0 {
		return b.String()
	}
	b.WriteString("; devices here:")
	for i, d := range e.Devices {
		if i > 0 {
			b.WriteByte(',')
		}
		if d.Err == nil {
			fmt.Fprintf(&b, " %s", d.Name)
		} else { // the name may be any text of the environment, such as "1"
			fmt.Fprintf(&b, " %q (cannot be used: %s)", d.Name, d.Err)
		}
	}
	return b.String()
}

// Unwrap returns the reason.
func (e *DeviceError) Unwrap() error { return e.Err }

// noDevice returns the error for a machine without RDMA devices, with the steps to add one.
func noDevice() error {
	hint := noDeviceHint
	if exclusive() {
		hint = exclusiveHint
	}
	return &reason{"there is no RDMA device here; verbs doctor names the cause and the fix; " + withSoftHint(hint), ErrNoDevice}
}

// exclusive reports whether a device is seen in one network namespace only.
func exclusive() bool {
	s, err := netlinkrdma.SystemSettings()
	return err == nil && s.NetNSMode == netlinkrdma.NetNSExclusive
}

// exclusiveHint is the hint for systems on which only one network namespace sees a device.
const exclusiveHint = "the netns mode is exclusive, so only its own network namespace sees a device: verbs dev set DEV netns NS, in a container --network host or ns:PATH; " + addHint

const noDeviceHint = "in a network namespace of its own: verbs dev set DEV netns NS; " + addHint

const addHint = "to add one: modprobe rdma_rxe, then verbs link add rxe0 type rxe netdev eth0"

// Name returns the device's name.
func (d *Device) Name() string { return d.info.Name }

// Info returns what was known about the device before it was opened.
func (d *Device) Info() DeviceInfo { return d.info }

// Close closes the device (ibv_close_device). It fails with EBUSY while there are objects of the
// device; [Device.CloseAll] closes them, too. After [Device.File] the kernel's context stays until
// every process has closed it. Close ends a NextEvent in progress.
func (d *Device) Close() error {
	var closeErr error // the files are closed in spite of it
	err := d.close(func() error {
		d.removeOpened()
		if d.async != nil {
			d.asyncWatch.stop()
			closeErr = d.async.Close()
		}
		closeErr = errors.Join(closeErr, d.closeDriver(), d.cmd.Close())
		return nil
	}, nil)
	return errors.Join(err, closeErr)
}

// opened are the devices that this program has open. If the peer of a QP belongs to one of them,
// the error of a failed request can include what is wrong at the peer. The pointers are weak, so no
// device is kept alive.
var opened struct {
	mu   sync.Mutex
	devs map[weak.Pointer[Device]]struct{}
}

// addOpened adds a device; removeOpened removes it.
func (d *Device) addOpened() {
	opened.mu.Lock()
	defer opened.mu.Unlock()
	if opened.devs == nil {
		opened.devs = map[weak.Pointer[Device]]struct{}{}
	}
	for w := range opened.devs {
		if w.Value() == nil { // it was never closed
			delete(opened.devs, w)
		}
	}
	opened.devs[weak.Make(d)] = struct{}{}
}

func (d *Device) removeOpened() {
	opened.mu.Lock()
	delete(opened.devs, weak.Make(d))
	opened.mu.Unlock()
}

// fullHint explains ENOMEM of a command that creates an object of a kind: how many of them are in use, if the kernel
// counts them, and how many the device has.
func (d *Device) fullHint(errno syscall.Errno, kind string, limit uint32) string {
	if errno != syscall.ENOMEM || d.info.InProcess {
		return ""
	}
	dev, err := netlinkrdma.DeviceByName(d.Name())
	if err == nil {
		var res netlinkrdma.ResourceCounts
		if res, err = netlinkrdma.Resources(dev, netlinkrdma.ListOptions{}); err == nil {
			if used, counted := map[string]uint64{"QPs": res.QPs, "CQs": res.CQs, "PDs": res.PDs}[kind]; counted {
				return inUse(d.Name(), kind, used, limit)
			}
		}
	}
	return usedUp(d.Name(), kind, limit)
}

// ringHint explains ENOMEM of a command that pins rings of the device's driver, or returns other.
func (d *Device) ringHint(errno syscall.Errno, other string, rings ...*mmio.Region) string {
	if errno != syscall.ENOMEM || !d.driver.capabilities().pinsRings || d.info.InProcess {
		return other
	}
	r := diag.Registration{Errno: errno, Device: d.Name()}
	for _, ring := range rings {
		if ring != nil {
			r.Length += uint64(len(ring.Bytes()))
		}
	}
	return r.Hint()
}
