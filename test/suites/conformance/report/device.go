package report

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"unicode"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// isSoft reports whether a name belongs to a software device.
func isSoft(name string) bool {
	digits, ok := strings.CutPrefix(name, "soft")
	return ok && digits != "" && strings.Trim(digits, "0123456789") == ""
}

// choose returns the devices to test: those that are named, or those of the machine if there is no doubt.
func choose(names []string, all []uverbs.DeviceInfo, err error) ([]string, error) {
	if len(names) > 0 {
		if i := slices.IndexFunc(names, isSoft); i >= 0 && !slices.ContainsFunc(names, func(n string) bool { return !isSoft(n) }) {
			return names, nil
		} else if i >= 0 {
			return nil, fmt.Errorf("%s is a software device in this process, and the other device is one of the kernel", names[i])
		}
	}
	const hint = "\"conformance soft0\" needs none"
	if err != nil {
		return nil, fmt.Errorf("%w (%s)", err, hint)
	}
	all = slices.DeleteFunc(slices.Clone(all), func(d uverbs.DeviceInfo) bool { return d.InProcess })
	if len(all) == 0 {
		return nil, errors.New("there is no RDMA device; load a driver, for example: modprobe rdma_rxe && verbs link add rxe0 type rxe netdev eth0 (" + hint + ")")
	}
	var list []string
	drivers := map[string]bool{}
	for _, d := range all {
		list = append(list, d.Name)
		drivers[d.Driver] = true
	}
	if len(names) == 0 {
		switch {
		case len(all) == 1, len(all) == 2 && len(drivers) == 1 && (drivers["rxe"] || drivers["siw"]):
			names = list
		default:
			return nil, fmt.Errorf("name the DEVICE to test, or two that reach each other: %s", strings.Join(list, ", "))
		}
	}
	first := ""
	for _, name := range names {
		i := slices.IndexFunc(all, func(d uverbs.DeviceInfo) bool { return d.Name == name })
		switch {
		case i < 0:
			return nil, fmt.Errorf("there is no device %s; devices here: %s", name, strings.Join(list, ", "))
		case all[i].Err != nil:
			return nil, fmt.Errorf("%s cannot be tested: %w", name, all[i].Err)
		case first != "" && all[i].Driver != first:
			return nil, fmt.Errorf("the drivers of %s differ: %s and %s", strings.Join(names, " and "), first, all[i].Driver)
		}
		first = all[i].Driver
	}
	return names, nil
}

// openSoft makes a software device, to describe it, and returns what closes it.
func openSoft(name string, addr string) (func() error, error) {
	d, err := soft.New(soft.Options{Name: name, Addr: netip.MustParseAddr(addr)})
	if err != nil {
		return nil, err
	}
	return d.Close, nil
}

// prepare describes the devices and returns what the tests have to know of them. The addresses of
// software devices belong to this process, so the test process has to find its own.
func prepare(names []string) (rig testenv.Rig, all []Device, err error) {
	rig.Devices = [2]string{names[0], names[len(names)-1]}
	rig.Soft = isSoft(names[0])
	for i, name := range names {
		if rig.Soft {
			closeSoft, err := openSoft(name, testenv.SoftAddr(i))
			if err != nil {
				return rig, nil, err
			}
			defer closeSoft()
		}
		d, p, err := describe(name)
		if err != nil {
			return rig, nil, err
		}
		all = append(all, d)
		for j := i; j < 2; j++ { // one device is both
			rig.Netdevs[j], rig.Addrs[j] = d.Netdev, p.addr
		}
		if i == 0 {
			rig.Driver, rig.GID, rig.GID6, rig.OnInfiniBand = d.Driver, p.gid, p.gid6, d.LinkLayer == "InfiniBand"
		} else if p.gid != rig.GID || p.gid6 != rig.GID6 || (d.LinkLayer == "InfiniBand") != rig.OnInfiniBand {
			return rig, nil, fmt.Errorf("the GIDs of %s and %s are not at the same places of their tables: name one device", names[0], names[1])
		}
	}
	return rig, all, nil
}

// place is where a device has its addresses.
type place struct {
	addr      string
	gid, gid6 int
}

// describe opens a device and describes it and its port 1, which must be active.
func describe(name string) (d Device, p place, err error) {
	dev, err := uverbs.Open(name, uverbs.OpenOptions{})
	if err != nil {
		return d, p, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	info, attr := dev.Info(), dev.Attr()
	port, err := dev.Port(1)
	if err != nil {
		return d, p, err
	}
	d = Device{
		Device: name, Driver: info.Driver, InProcess: info.InProcess, Protocol: info.Protocol, FwVer: attr.FirmwareVersion,
		NodeGUID: info.NodeGUID.String(), LinkLayer: port.LinkLayer.String(), State: port.State.String(),
		MTU: port.ActiveMTU.Bytes(), Attributes: attributes(attr), Sysfs: sysfs(name),
	}
	if port.ActiveSpeed.Gbps() > 0 {
		d.Rate = fmt.Sprintf("%d x %g Gbit/s", port.ActiveWidth.Lanes(), port.ActiveSpeed.Gbps())
	}
	table, err := dev.GIDTable(1)
	if err != nil && !info.IWARP() {
		return d, p, err
	}
	for _, e := range table {
		d.GIDs = append(d.GIDs, e.String())
	}
	d.Netdev = netdevOf(name, table)
	if port.State != ib.PortActive {
		fix := "see: verbs status " + name + "/1"
		if d.Netdev != "" {
			fix = "ip link set " + d.Netdev + " up"
		}
		return d, p, fmt.Errorf("%s: port 1 is %s, and the tests need an active port (%s)", name, port.State, fix)
	}
	p, err = placeOf(d, table)
	return d, p, err
}

// placeOf finds the addresses of a device. On Ethernet, which EFA is not, the tests need an IPv4 address.
func placeOf(d Device, table []uverbs.GIDEntry) (p place, err error) {
	if d.Protocol == "iw" || d.LinkLayer == "InfiniBand" || d.Driver == "efa" {
		p.addr = ipv4Of(d.Netdev)
		if p.addr == "" && d.Protocol == "iw" {
			return p, noAddress(d)
		}
		if e, ok := uverbs.ChooseGID(table, ib.GID{}); ok {
			p.gid, p.gid6 = e.Index, e.Index
		}
		return p, nil
	}
	e, ok := uverbs.ChooseGID(table, ib.GID{})
	if !ok || !e.GID.Addr().Is4() {
		return p, noAddress(d)
	}
	p.addr, p.gid, p.gid6 = e.GID.Addr().String(), e.Index, -1
	for _, e := range table {
		a := e.GID.Addr()
		if a.Is6() && e.Type == ib.GIDTypeRoCEv2 && (p.gid6 < 0 || !a.IsLinkLocalUnicast()) {
			p.gid6 = e.Index
			if !a.IsLinkLocalUnicast() {
				break
			}
		}
	}
	return p, nil
}

// noAddress is the error for a device without an IPv4 address.
func noAddress(d Device) error {
	return fmt.Errorf("%s has no IPv4 address, which the tests need (ip address add ADDRESS dev %s)", d.Device, d.Netdev)
}

// netdevOf returns the network interface of a device, or "".
func netdevOf(name string, table []uverbs.GIDEntry) string {
	if dev, err := netlinkrdma.DeviceByName(name); err == nil {
		if ports, err := netlinkrdma.Ports(dev); err == nil && len(ports) > 0 && ports[0].Netdev != "" {
			return ports[0].Netdev
		}
	}
	for _, e := range table {
		if ifi, err := net.InterfaceByIndex(e.Netdev); e.Netdev > 0 && err == nil {
			return ifi.Name
		}
	}
	return ""
}

// ipv4Of returns the first IPv4 address of a network interface, or "".
func ipv4Of(netdev string) string {
	ifi, err := net.InterfaceByName(netdev)
	if err != nil {
		return ""
	}
	addrs, _ := ifi.Addrs()
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() {
			return p.Addr().String()
		}
	}
	return ""
}

// attributes returns the fields of a struct with their names in snake_case. Masks are in hexadecimal.
func attributes(v any) map[string]string {
	all := map[string]string{}
	s := reflect.ValueOf(v)
	for i := range s.NumField() {
		name, field := s.Type().Field(i).Name, s.Field(i)
		key := snake(name)
		_, named := field.Interface().(fmt.Stringer)
		switch {
		case field.Kind() == reflect.Struct && !named:
			for k, text := range attributes(field.Interface()) {
				all[key+"_"+k] = text
			}
		case !named && field.CanUint() && (strings.Contains(name, "Cap") || strings.HasSuffix(name, "Mask")):
			all[key] = fmt.Sprintf("%#x", field.Uint())
		default:
			all[key] = fmt.Sprint(field.Interface())
		}
	}
	return all
}

// snake writes a Go name in snake_case: MaxQPWR is max_qp_wr.
func snake(name string) string {
	for _, acronym := range []string{"RWQ", "SRQ", "XRC", "CQE", "ODP", "IPv6", "PKey", "KHz", "CQ", "DM", "EE", "QP", "RC", "WQ", "WR"} {
		name = strings.ReplaceAll(name, acronym, acronym[:1]+strings.ToLower(acronym[1:]))
	}
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		if unicode.IsUpper(r) && i > 0 && (unicode.IsLower(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1]) && runes[i+1] != 's') {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// sysfs reads what sysfs says of the model and the version of a device and of its driver's module.
func sysfs(name string) map[string]string {
	all := map[string]string{}
	dir := "/sys/class/infiniband/" + name
	add := func(key, path string) {
		if b, err := os.ReadFile(path); err == nil {
			all[key] = strings.TrimSpace(string(b))
		}
	}
	for _, f := range []string{"board_id", "hca_type", "hw_rev", "fw_ver", "device/vendor", "device/device", "device/subsystem_vendor", "device/subsystem_device", "device/revision"} {
		add(strings.ReplaceAll(f, "/", "_"), filepath.Join(dir, f))
	}
	if module, err := filepath.EvalSymlinks(dir + "/device/driver/module"); err == nil {
		all["module"] = filepath.Base(module)
		add("module_version", module+"/version")
		add("module_srcversion", module+"/srcversion")
	}
	return all
}

// machine describes the kernel.
func machine() Machine {
	m := Machine{Arch: runtime.GOARCH, CPUs: runtime.NumCPU()}
	text := func(path string) string {
		b, _ := os.ReadFile(path)
		return strings.TrimSpace(string(b))
	}
	m.Release, m.Kernel = text("/proc/sys/kernel/osrelease"), text("/proc/version")
	if t := taint(); t != 0 {
		m.Taint = fmt.Sprintf("%#x", t)
	}
	return m
}

// rights checks that the process may do what the tests do on devices of the kernel.
func rights(names []string) error {
	if !isSoft(names[0]) && os.Geteuid() != 0 {
		return fmt.Errorf("%w: testing devices of the kernel needs root", fs.ErrPermission)
	}
	return nil
}
