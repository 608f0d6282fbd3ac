package uverbs

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/inproc"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
	"github.com/goverbs/goverbs/uverbs/soft"
	"github.com/goverbs/goverbs/uverbs/soft/gsi"
)

// inProcessFirst means that devices in the process come before those of the kernel, as the environment
// asks for some.
var inProcessFirst atomic.Bool

// inProcessDevices returns the devices in the process, and after them those that the environment
// asks for and that could not be made.
func inProcessDevices() []DeviceInfo {
	failed := softFailures()
	var infos []DeviceInfo
	for _, dev := range inproc.All() {
		infos = append(infos, inspectInProcess(dev))
	}
	return append(infos, failed...)
}

// inProcessDevice returns the device in the process with a name, and whether there is one.
func inProcessDevice(name string) (info DeviceInfo, ok bool) {
	failed := softFailures()
	if dev := inproc.ByName(name); dev != nil {
		return inspectInProcess(dev), true
	}
	if i := slices.IndexFunc(failed, func(f DeviceInfo) bool { return f.Name == name }); i >= 0 {
		return failed[i], true
	}
	return DeviceInfo{}, false
}

// inspectInProcess is inspect for a device in the process.
func inspectInProcess(dev inproc.Device) DeviceInfo {
	i := dev.Info()
	id := netlinkrdma.DriverID(i.DriverID)
	info := DeviceInfo{
		Index:     i.Index,
		Name:      i.Name,
		NodeGUID:  i.NodeGUID,
		Protocol:  i.Protocol,
		Firmware:  i.Firmware,
		Driver:    id.String(),
		Ports:     i.Ports,
		InProcess: true,
		driver:    driverOf(id),
		id:        id,
		char:      netlinkrdma.CharDev{ABI: i.ABI, DriverID: id},
		inproc:    dev,
	}
	info.Err = info.checkDriver()
	return info
}

// noKernelDevices reports whether an error of netlinkrdma says that the kernel has no RDMA, or shows
// none to this process. Devices in the process are then all that there are. After any other error
// there may be devices of the kernel.
func noKernelDevices(err error) bool {
	return runtime.GOOS != "linux" ||
		errors.Is(err, syscall.EPROTONOSUPPORT) || // the RDMA core is not loaded
		errors.Is(err, syscall.EAFNOSUPPORT) || errors.Is(err, syscall.ENOSYS) || // no netlink
		errors.Is(err, fs.ErrPermission) // a sandbox
}

// inProcessGIDs returns the GID table of a port of a device in the process.
func (d *Device) inProcessGIDs(port uint8) []GIDEntry {
	var table []GIDEntry
	for _, g := range d.info.inproc.GIDs(port) {
		table = append(table, GIDEntry{Port: port, Index: g.Index, GID: g.GID, Type: ib.GIDType(g.Type), Netdev: g.Netdev})
	}
	return table
}

// inProcessGID returns one entry and reports whether it is used.
func (d *Device) inProcessGID(port uint8, index int) (e GIDEntry, used bool) {
	table := d.inProcessGIDs(port)
	i := slices.IndexFunc(table, func(e GIDEntry) bool { return e.Index == index })
	if i < 0 {
		return GIDEntry{}, false
	}
	return table[i], true
}

// inProcessCounters returns the hardware counters of a port of a device in the process.
func (d *Device) inProcessCounters(port uint8) ([]netlinkrdma.Counter, error) {
	counters := d.info.inproc.Counters(port)
	if counters == nil {
		return nil, fmt.Errorf("uverbs: %s has no counters: %w", d.Name(), errors.ErrUnsupported)
	}
	var all []netlinkrdma.Counter
	for _, c := range counters {
		all = append(all, netlinkrdma.Counter{Name: c.Name, Value: c.Value})
	}
	return all, nil
}

// softEnv is the environment variable that gives a program software devices: their options in the
// text form of package soft, separated by blanks or semicolons.
const softEnv = "GOVERBS_SOFT"

// withSoftHint adds to a message how to get a device without RDMA, unless the environment asks for one.
func withSoftHint(text string) string {
	softFailures()
	if inProcessFirst.Load() {
		return text
	}
	return text + "; or use a software device: set " + softEnv + "=auto in the environment"
}

// fromEnv are the devices of softEnv that could not be made.
var fromEnv struct {
	once   sync.Once
	failed []DeviceInfo // set by once
}

func init() { gsi.OnDemand(func() { softFailures() }) }

// softFailures makes the devices of softEnv when it is called first, and returns those that could not
// be made.
func softFailures() []DeviceInfo {
	fromEnv.once.Do(func() {
		list := soft.SplitList(os.Getenv(softEnv))
		inProcessFirst.Store(len(list) > 0)
		fromEnv.failed = makeSoft(list)
	})
	return fromEnv.failed
}

// makeSoft makes software devices, and returns those that could not be made.
func makeSoft(list []string) []DeviceInfo {
	var failed []DeviceInfo
	for _, text := range list {
		o, err := soft.ParseOptions(text)
		if err == nil {
			_, err = soft.New(o)
		}
		if err == nil {
			continue
		}
		f := failedSoft{name: cmp.Or(o.Name, text), addr: o.Addr, err: fmt.Errorf("environment variable %s: device %q: %w", softEnv, text, err)}
		info := inspectInProcess(f)
		info.Err = f.err
		failed = append(failed, info)
	}
	return failed
}

// failedSoft stands for a device of softEnv that could not be made. Its name is the text in softEnv if
// it has no other.
type failedSoft struct {
	name string
	addr netip.Addr // the zero value if it is not known
	err  error
}

// Info implements [inproc.Device].
func (f failedSoft) Info() inproc.Info {
	return inproc.Info{Name: f.name, DriverID: uint32(softDriverID), Protocol: string(netlinkrdma.ProtocolRoCE)}
}

// Open implements [inproc.Device].
func (f failedSoft) Open() (kernel.Device, error) { return nil, f.err }

// Addrs implements [inproc.Device]. By its address, a program finds the reason why there is no device.
func (f failedSoft) Addrs() []netip.Addr {
	if !f.addr.IsValid() {
		return nil
	}
	return []netip.Addr{f.addr}
}

// GIDs implements [inproc.Device].
func (failedSoft) GIDs(uint8) []inproc.GIDEntry { return nil }

// PKeys implements [inproc.Device].
func (failedSoft) PKeys(uint8) []uint16 { return nil }

// Counters implements [inproc.Device].
func (failedSoft) Counters(uint8) []inproc.Counter { return nil }
