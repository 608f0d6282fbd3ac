package uverbs

import (
	"cmp"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// OpenNetdev opens the device of a network interface, such as "eth0". That is the first usable
// device with a port on the interface, or else with a GID of it, as for a VLAN or a bond. The error
// is a [DeviceError], which lists the interfaces that have devices, or an [ArgError] if the name is
// empty.
func OpenNetdev(name string) (*Device, error) {
	if name == "" {
		return nil, argErr("OpenNetdev", "name", `""`, "the name of a network interface")
	}
	link, err := net.InterfaceByName(name)
	if err != nil {
		return nil, &DeviceError{Name: "device of network interface " + name, Err: fmt.Errorf("%w: %w", err, fs.ErrNotExist)}
	}
	return openLink("device of network interface "+name, link.Index, listDevices)
}

// OpenAddr opens the device of the network interface that has an IP address of this host, like
// [OpenNetdev]. If several interfaces have the address, such as a link-local one without a zone,
// OpenAddr opens the first usable device of any of them. If none of the kernel's devices has the
// address, OpenAddr opens a software device of this process that has it. If the environment variable
// GOVERBS_SOFT is set, a software device comes first. The error lists the devices with their addresses.
func OpenAddr(addr netip.Addr) (*Device, error) {
	addr = addr.Unmap()
	if !addr.IsValid() || addr.IsUnspecified() {
		return nil, argErr("OpenAddr", "addr", addr, "an IP address of this host")
	}
	name := "device of address " + addr.String()
	infos, listErr := listDevices(devDir)
	if inProcessFirst.Load() {
		if d, _ := openInProcess(addr); d != nil {
			return d, nil
		}
	}
	d, own, failed := openAddrOfKernel(name, addr)
	if d != nil {
		return d, nil
	}
	d, err := openInProcess(addr)
	switch {
	case d != nil:
		return d, nil
	case err != nil:
		return nil, &DeviceError{Name: name, Err: err}
	case failed != nil && (listErr != nil || len(infos) == 0):
		return nil, failed
	}
	why := "no usable RDMA device has it"
	if failed == nil {
		why = "this host has no such address; it has " + cmp.Or(strings.Join(own, ", "), "none")
	}
	if has := addrsOf(infos); has != "" {
		why += "; " + has
	}
	infos = slices.DeleteFunc(infos, func(i DeviceInfo) bool { return i.Err == nil })
	return nil, &DeviceError{Name: name, Devices: infos, Err: fmt.Errorf("%s: %w", why, fs.ErrNotExist)}
}

// openAddrOfKernel opens a device of the kernel by an address. If no network interface has the
// address, it returns neither a device nor an error, but the addresses that they have.
func openAddrOfKernel(name string, addr netip.Addr) (d *Device, own []string, failed error) {
	links, err := net.Interfaces()
	if err != nil {
		return nil, nil, &DeviceError{Name: name, Err: err}
	}
	for _, link := range links {
		addrs, _ := link.Addrs() // none if the interface was just removed
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			switch {
			case err != nil:
			case p.Addr().Unmap() == addr.WithZone("") && isZone(addr.Zone(), &link):
				if d, failed = openLink(name, link.Index, kernelDevices); d != nil {
					return d, nil, nil
				}
			case !p.Addr().IsLoopback():
				own = append(own, p.Addr().String()+" on "+link.Name)
			}
		}
	}
	return nil, own, failed
}

// isZone reports whether a zone, which may be empty, names an interface.
func isZone(zone string, link *net.Interface) bool {
	return zone == "" || zone == link.Name || zone == strconv.Itoa(link.Index)
}

// openLink opens the first usable device of a network interface, of those that a function lists.
func openLink(name string, link int, list func(dir string) ([]DeviceInfo, error)) (*Device, error) {
	infos, err := list(devDir)
	if err != nil {
		return nil, &DeviceError{Name: name, Err: err}
	}
	if len(infos) == 0 {
		return nil, &DeviceError{Name: name, Err: noDevice()}
	}
	var used []string
	for _, onPort := range []bool{true, false} {
		for i := range infos {
			links, names := infos[i].links()
			if onPort {
				used = append(used, names...)
			}
			if infos[i].Err != nil || onPort != links[link] {
				continue
			}
			d, err := open(infos[i])
			if err != nil {
				infos[i].Err = err
				continue
			}
			if onPort || d.hasLink(link) {
				return d, nil
			}
			d.Close()
		}
	}
	return nil, &DeviceError{Name: name, Devices: infos, Err: fmt.Errorf("no usable RDMA device is on this interface (devices are on %s): %w",
		cmp.Or(strings.Join(used, ", "), "none that is seen here"), fs.ErrNotExist)}
}

// hasLink reports whether the device has a GID of a network interface.
func (d *Device) hasLink(link int) bool {
	r := hostRoute(ib.GID{})
	for port := 1; port <= int(d.attr.PhysPortCount); port++ {
		table, _ := d.GIDTable(uint8(port)) // iWARP does not have GIDs
		if slices.ContainsFunc(d.ownEntries(table, r), func(e GIDEntry) bool { return e.Netdev == link }) {
			return true
		}
	}
	return false
}

// openInProcess opens the first usable device in the process that has an address. The error is nil
// if no device has it.
func openInProcess(addr netip.Addr) (*Device, error) {
	var failed error
	for _, info := range inProcessDevices() {
		if !slices.ContainsFunc(info.inproc.Addrs(), func(a netip.Addr) bool { return sameAddr(a, addr, &info) }) {
			continue
		}
		if info.Err != nil {
			failed = info.Err
			continue
		}
		d, err := open(info)
		if err == nil {
			return d, nil
		}
		failed = err
	}
	return nil, failed
}

// sameAddr reports whether a device's address is the one that is looked for, whose zone may be
// empty, a name or an index.
func sameAddr(a, want netip.Addr, info *DeviceInfo) bool {
	if a.Unmap().WithZone("") != want.WithZone("") {
		return false
	}
	i := info.inproc.Info()
	return want.Zone() == a.Zone() || isZone(want.Zone(), &net.Interface{Name: i.Netdev, Index: i.NetdevIndex})
}
