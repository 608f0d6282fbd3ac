package health

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// Parts of a fake machine in which nothing is wrong.
var (
	fakeDev  = netlinkrdma.Device{Name: "rxe0", Index: 0, Ports: 1, DriverID: netlinkrdma.DriverRXE}
	fakeInfo = uverbs.DeviceInfo{Name: "rxe0", Driver: "rxe", Protocol: "roce", Ports: 1, CharDev: "/dev/infiniband/uverbs0"}
	fakeChar = netlinkrdma.CharDev{Name: "uverbs0", Major: 231, Minor: 192, ABI: 2}
	fakeCM   = netlinkrdma.CharDev{Name: "rdma_cm", Major: 10, Minor: 124, ABI: 4}
	fakePort = netlinkrdma.Port{Num: 1, State: ib.PortActive, PhysState: ib.PhysLinkUp, LinkLayer: ib.LinkLayerEthernet, Netdev: "eth0", NetdevIndex: 2}
)

// gid returns an entry of a GID table.
func gid(t *testing.T, index int, addr string, typ ib.GIDType) uverbs.GIDEntry {
	t.Helper()
	g, err := ib.ParseGID(addr)
	must(t, err)
	return uverbs.GIDEntry{Port: 1, Index: index, GID: g, Type: typ, Netdev: 2}
}

// charFile is a character device in a fake /dev.
func charFile(mode fs.FileMode, gid uint32, major, minor uint32) *fstest.MapFile {
	return &fstest.MapFile{Mode: fs.ModeDevice | fs.ModeCharDevice | mode, Sys: &syscall.Stat_t{Gid: gid, Rdev: unix.Mkdev(major, minor)}}
}

// patient is a fake machine, and what its parts are made of.
type patient struct {
	*machine
	files fstest.MapFS
	info  *uverbs.DeviceInfo
	facts *portFacts
	probe *probe
}

// healthy returns a machine with one device, in which nothing is wrong.
func healthy(t *testing.T) patient {
	files := fstest.MapFS{
		"proc/modules":              {Data: []byte("ib_core 499712 3 rdma_rxe,ib_uverbs, Live 0x0\nib_uverbs 1 0 - Live 0x0\nrdma_ucm 1 0 - Live 0x0\nrdma_rxe 1 0 - Live 0x0\n")},
		"sys/module/ib_core/x":      {},
		"proc/self/status":          {Data: []byte("Name:\tverbs\nVmLck:\t       0 kB\nVmPin:\t      12 kB\nCapEff:\t0000000000000000\n")},
		"proc/self/uid_map":         {Data: []byte("         0          0 4294967295\n")},
		"proc/self/maps":            {Data: []byte("a\nb\n")},
		"proc/sys/vm/max_map_count": {Data: []byte("65530\n")},
		"proc/meminfo":              {Data: []byte("HugePages_Total:       4\nHugePages_Free:        3\nHugepagesize:       2048 kB\n")},
		"dev/infiniband/uverbs0":    charFile(0o666, 0, 231, 192),
		"dev/infiniband/rdma_cm":    charFile(0o666, 0, 10, 124),
	}
	info := fakeInfo
	facts := portFacts{Port: fakePort, state: fakePort.State, phys: "LINK_UP", gids: []uverbs.GIDEntry{
		gid(t, 0, "fe80::1", ib.GIDTypeRoCEv2),
		gid(t, 1, "::ffff:10.1.0.1", ib.GIDTypeRoCEv2),
		gid(t, 2, "fd00::1", ib.GIDTypeRoCEv2),
	}}
	facts.attr.ActiveMTU, facts.attr.MaxMTU = ib.MTU4096, ib.MTU4096
	pr := probe{registered: []registration{{smallMR, nil}, {bigMR, nil}}}
	m := &machine{
		root:      files,
		arch:      "amd64",
		release:   func() (string, error) { return "6.1.0-test", nil },
		who:       identity{1000, 1000, nil},
		memlock:   func() (unix.Rlimit, error) { return unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}, nil },
		openNode:  func(string) error { return nil },
		nodev:     func(string) bool { return false },
		netdev:    func(int) (netdev, error) { return netdev{"eth0", "", 4200, true, true, []string{"10.1.0.1/24"}}, nil },
		devices:   func() ([]netlinkrdma.Device, error) { return []netlinkrdma.Device{fakeDev}, nil },
		infos:     func() ([]uverbs.DeviceInfo, error) { return []uverbs.DeviceInfo{info}, nil },
		uverbsDev: func(netlinkrdma.Device) (netlinkrdma.CharDev, error) { return fakeChar, nil },
		cmDev:     func() (netlinkrdma.CharDev, error) { return fakeCM, nil },
		ports:     func(netlinkrdma.Device) ([]netlinkrdma.Port, error) { return []netlinkrdma.Port{fakePort}, nil },
		netnsMode: func() (string, error) { return "shared", nil },
		otherNetns: func() []otherNetns {
			return []otherNetns{{path: "/run/netns/red", devs: []string{"rxe1", "rxe2"}}, {path: "/proc/7/ns/net", err: syscall.EPERM}}
		},
		probe: func(string) (probe, error) {
			p := pr
			p.ports = []portFacts{facts}
			return p, nil
		},
		loopback: func(context.Context, string) (string, error) { return "10.1.0.1 QP 17 to 10.1.0.1 QP 18", nil },
		own: func(portFacts, bool) []ownAddr {
			return []ownAddr{{netip.MustParseAddr("10.1.0.1"), 2}, {netip.MustParseAddr("fd00::1"), 2}}
		},
		connect: func(context.Context, string, netip.Addr, string) attempt {
			return attempt{mtu: 4096, sizes: []int{64, 4096, 65536}}
		},
		lookUp: func(context.Context, string) ([]netip.AddrPort, error) {
			return []netip.AddrPort{netip.MustParseAddrPort("10.1.0.2:7175")}, nil
		},
		progress: func(string) {},
	}
	return patient{m, files, &info, &facts, &pr}
}

// withoutDevices puts a device node on a mount that permits none.
func withoutDevices(mode fs.FileMode, uid int) func(p patient) {
	return func(p patient) {
		p.files["dev/infiniband/uverbs0"] = charFile(mode, 77, 231, 192)
		p.who.uid = uid
		p.openNode = openFails(syscall.EACCES)
		p.nodev = func(path string) bool { return path == "/dev/infiniband/uverbs0" }
	}
}

// openFails has the character devices refuse to be opened.
func openFails(errno syscall.Errno) func(string) error {
	return func(path string) error { return &fs.PathError{Op: "open", Path: path, Err: errno} }
}

func TestDoctorHealthy(t *testing.T) {
	d := examine(t.Context(), healthy(t).machine, nil)
	if !d.Works || d.Verdict != "RDMA works: a ping-pong went through on rxe0" {
		t.Errorf("verdict is %t, %q", d.Works, d.Verdict)
	}
	for _, f := range d.Findings {
		if f.Level != LevelOK && f.Code != "vm" && f.Code != "firewall" {
			t.Errorf("%s is %s: %s", f.Code, f.Level, f.Title)
		}
		if f.Evidence == nil || f.Fix == nil || len(f.Evidence) == 0 {
			t.Errorf("%s has no evidence, or no list in JSON: %+v", f.Code, f)
		}
	}
}

// noRDMA takes RDMA out of the kernel.
func noRDMA(p patient) {
	err := &netlinkrdma.Error{Op: "list devices", Err: fmt.Errorf("socket: %w", syscall.EPROTONOSUPPORT)}
	p.devices = func() ([]netlinkrdma.Device, error) { return nil, err }
	p.infos = func() ([]uverbs.DeviceInfo, error) { return nil, err }
	p.cmDev = func() (netlinkrdma.CharDev, error) { return netlinkrdma.CharDev{}, err }
	p.netnsMode = func() (string, error) { return "", err }
	p.files["proc/modules"].Data = nil
	delete(p.files, "sys/module/ib_core/x")
	p.files["sys/module/ext4/x"] = &fstest.MapFile{}
}

// sandboxed has the machine be gVisor, which has no connection manager, and reports no MTU.
func sandboxed(p patient) {
	p.sandbox = "gVisor"
	p.release = func() (string, error) { return "4.19.0-gvisor", nil }
	p.cmDev = func() (netlinkrdma.CharDev, error) { return netlinkrdma.CharDev{}, fs.ErrNotExist }
	p.netdev = func(int) (netdev, error) { return netdev{"eth0", "", 0, true, true, []string{"10.1.0.1/24"}}, nil }
	delete(p.files, "proc/modules")
}

// TestDoctorSandbox: in a sandbox no advice is about modules or the version of the kernel.
func TestDoctorSandbox(t *testing.T) {
	for name, ill := range map[string]func(patient){"with a device": sandboxed, "without": func(p patient) { noRDMA(p); sandboxed(p) }} {
		p := healthy(t)
		ill(p)
		d := examine(t.Context(), p.machine, nil)
		for _, f := range d.Findings {
			if text := strings.Join(append(f.Fix, f.Title), "; "); strings.Contains(text, "modprobe") || strings.Contains(text, "older") || f.Code == CodeMTU {
				t.Errorf("%s: %s: %s", name, f.Code, text)
			}
		}
	}
}

// onIWARP makes the device one of iWARP, whose interface has one address.
func onIWARP(addr string) func(patient) {
	return func(p patient) {
		p.info.Protocol = string(netlinkrdma.ProtocolIWARP)
		p.netdev = func(int) (netdev, error) { return netdev{"eth0", "", 1500, true, true, []string{addr}}, nil }
	}
}

// doctorCases are machines, what is wrong with them, and the finding that says so.
var doctorCases = []struct {
	name  string
	ill   func(patient)
	names []string
	works bool
	id    Code
	level Level
	words []string // in title, evidence or fix
}{
	{name: "architecture", ill: func(p patient) { p.arch = "riscv64" }, works: true, id: "kernel", level: LevelWarning, words: []string{"riscv64"}},
	{name: "old kernel", ill: func(p patient) { p.release = func() (string, error) { return "5.9.16", nil } }, works: true, id: "kernel", level: LevelWarning, words: []string{"older than 5.10"}},
	{name: "odd kernel", ill: func(p patient) { p.release = func() (string, error) { return "custom", nil } }, works: true, id: "kernel", level: LevelWarning, words: []string{`"custom"`}},

	{name: "no modules", ill: noRDMA, id: "module.ib_core", level: LevelError, words: []string{"modprobe ib_core", "modules-load.d"}},
	{name: "no modules, uverbs", ill: noRDMA, id: "module.ib_uverbs", level: LevelError, words: []string{"modprobe ib_uverbs"}},
	{name: "no modules, cm", ill: noRDMA, id: "module.rdma_ucm", level: LevelWarning},
	{name: "no modules, rxe", ill: noRDMA, id: "module.rdma_rxe", level: LevelInfo},
	{name: "a sandbox", ill: sandboxed, works: true, id: "kernel", level: LevelOK, words: []string{"the sandbox gVisor"}},
	{name: "a sandbox, rdma_cm", ill: sandboxed, works: true, id: "rdma_cm", level: LevelInfo, words: []string{"the sandbox gVisor does not offer it", "cm.Dialer"}},
	{name: "a sandbox without devices", ill: func(p patient) { noRDMA(p); p.sandbox = "gVisor" }, id: "devices", level: LevelError, words: []string{"the sandbox gVisor passes on no RDMA device", "runsc --rdmaproxy", "GOVERBS_SOFT"}},
	{name: "no modules, devices", ill: noRDMA, id: "devices", level: LevelError, words: []string{"ib_core is not loaded"}},
	{name: "no modules, rdma_cm", ill: noRDMA, id: "rdma_cm", level: LevelWarning, words: []string{"modprobe rdma_ucm"}},
	{name: "no modules, namespace", ill: noRDMA, id: "namespace", level: LevelInfo, words: []string{"not known"}},
	{name: "modules not on disk", ill: func(p patient) {
		noRDMA(p)
		p.files["lib/modules/6.1.0-test/modules.dep"] = &fstest.MapFile{Data: []byte("kernel/fs/ext4/ext4.ko.xz: kernel/x.ko\n")}
	}, id: "module.ib_core", level: LevelError, words: []string{"linux-modules-extra-6.1.0-test"}},
	{name: "modules on disk", ill: func(p patient) {
		noRDMA(p)
		p.files["lib/modules/6.1.0-test/modules.dep"] = &fstest.MapFile{Data: []byte("kernel/drivers/infiniband/core/ib_core.ko.xz: kernel/x.ko\n")}
	}, id: "module.ib_core", level: LevelError, words: []string{"modules/6.1.0-test: listed"}},
	{name: "built in", ill: func(p patient) {
		p.files["proc/modules"].Data = nil
		p.files["lib/modules/6.1.0-test/modules.builtin"] = &fstest.MapFile{Data: []byte("kernel/drivers/infiniband/core/ib-uverbs.ko\n")}
	}, works: true, id: "module.ib_uverbs", level: LevelOK, words: []string{"built into"}},
	{name: "no loadable modules", ill: func(p patient) { noRDMA(p); delete(p.files, "proc/modules") }, id: "module.ib_core", level: LevelError, words: []string{"CONFIG_INFINIBAND"}},
	{name: "nothing mounted", ill: func(p patient) {
		noRDMA(p)
		clear(p.files)
	}, id: "module.ib_core", level: LevelInfo, words: []string{"not known"}},
	{name: "nothing mounted but well", ill: func(p patient) {
		for name := range p.files {
			if !strings.HasPrefix(name, "dev/") {
				delete(p.files, name)
			}
		}
	}, works: true, id: "module.ib_core", level: LevelOK, words: []string{"the kernel answers"}},

	{name: "exclusive", ill: func(p patient) { p.netnsMode = func() (string, error) { return "exclusive", nil } }, works: true, id: "namespace", level: LevelInfo, words: []string{"verbs dev set DEV netns NS"}},
	{name: "all devices elsewhere", ill: func(p patient) {
		p.netnsMode = func() (string, error) { return "exclusive", nil }
		p.devices = func() ([]netlinkrdma.Device, error) { return nil, nil }
		p.infos = func() ([]uverbs.DeviceInfo, error) { return nil, nil }
	}, id: "devices", level: LevelError, words: []string{"network namespace /run/netns/red has rxe1, rxe2", "/proc/7/ns/net: its devices are not known",
		"nsenter --net=/run/netns/red verbs dev set rxe2 netns"}},
	{name: "a device elsewhere", ill: func(p patient) { p.netnsMode = func() (string, error) { return "exclusive", nil } }, names: []string{"rxe1"},
		id: "devices", level: LevelError, words: []string{"/run/netns/red has rxe1", "run there what needs rxe1: nsenter --net=/run/netns/red", "name one of these devices"}},
	{name: "others elsewhere", ill: func(p patient) { p.netnsMode = func() (string, error) { return "exclusive", nil } }, works: true,
		id: "devices", level: LevelOK, words: []string{"/run/netns/red has rxe1, rxe2"}},
	{name: "no device", ill: func(p patient) {
		p.devices = func() ([]netlinkrdma.Device, error) { return nil, nil }
		p.infos = func() ([]uverbs.DeviceInfo, error) { return nil, nil }
	}, id: "devices", level: LevelError, words: []string{"no RDMA device", "verbs link add"}},
	{name: "other device named", ill: func(patient) {}, names: []string{"mlx5_0"}, id: "devices", level: LevelError, words: []string{"no RDMA device mlx5_0", "rxe0: driver rxe"}},
	{name: "list refused", ill: func(p patient) {
		p.infos = func() ([]uverbs.DeviceInfo, error) { return nil, syscall.EACCES }
	}, id: "devices", level: LevelError, words: []string{"cannot be listed", "permission denied"}},
	{name: "from sysfs", ill: func(p patient) {
		dev := fakeDev
		dev.FromSysfs = true
		p.devices = func() ([]netlinkrdma.Device, error) { return []netlinkrdma.Device{dev}, nil }
	}, works: true, id: "devices", level: LevelOK, words: []string{"/sys/class/infiniband"}},
	{name: "foreign driver", ill: func(p patient) {
		p.info.Driver, p.info.Err = "mlx5", fmt.Errorf("driver mlx5 (the library has: rxe): %w", errors.ErrUnsupported)
	}, id: "device", level: LevelError, words: []string{"mlx5", "the library has: rxe", "interface eth0"}},
	{name: "no uverbs", ill: func(p patient) {
		p.info.CharDev, p.info.Driver, p.info.Err = "", "", errors.ErrUnsupported
		p.uverbsDev = func(netlinkrdma.Device) (netlinkrdma.CharDev, error) {
			return netlinkrdma.CharDev{}, errors.ErrUnsupported
		}
	}, id: "chardev", level: LevelError, words: []string{"modprobe ib_uverbs"}},

	{name: "node missing", ill: func(p patient) { delete(p.files, "dev/infiniband/uverbs0") }, id: "chardev", level: LevelError, words: []string{"missing", "mknod -m 666 /dev/infiniband/uverbs0 c 231 192"}},
	{name: "node stale", ill: func(p patient) { p.files["dev/infiniband/uverbs0"] = charFile(0o666, 0, 231, 193) }, id: "chardev", level: LevelError, words: []string{"old or wrong", "device 231:193", "c 231 192"}},
	{name: "node a file", ill: func(p patient) { p.files["dev/infiniband/uverbs0"].Mode = 0o666 }, id: "chardev", level: LevelError, words: []string{"old or wrong"}},
	{name: "node closed", ill: func(p patient) {
		p.files["dev/infiniband/uverbs0"] = charFile(0, 0, 231, 192)
		p.openNode = openFails(syscall.EACCES)
	}, id: "chardev", level: LevelError, words: []string{"closed to this user", "c---------", "user 1000", "chmod 666", "udev"}},
	{name: "node of a group", ill: func(p patient) {
		p.files["dev/infiniband/uverbs0"] = charFile(0o660, 77, 231, 192)
		p.openNode = openFails(syscall.EACCES)
	}, id: "chardev", level: LevelError, words: []string{"usermod -aG 77"}},
	{name: "node closed to root", ill: func(p patient) {
		p.files["dev/infiniband/uverbs0"] = charFile(0o600, 77, 231, 192)
		p.who.uid = 0
		p.openNode = openFails(syscall.EACCES)
	}, id: "chardev", level: LevelError, words: []string{"CAP_DAC_OVERRIDE"}},
	{name: "node of a security module", ill: func(p patient) { p.openNode = openFails(syscall.EACCES) }, id: "chardev", level: LevelError,
		words: []string{"although its mode permits it", "likely a security module forbids it", "SELinux"}},
	{name: "node of a mount without devices", ill: withoutDevices(0o666, 1000), id: "chardev", level: LevelError, words: []string{"uverbs0 is on a mount with the option nodev", "without the option"}},
	{name: "node of root on a mount without devices", ill: withoutDevices(0o600, 0), id: "chardev", level: LevelError, words: []string{"uverbs0 is on a mount with the option nodev"}},
	{name: "node of a group on a mount without devices", ill: withoutDevices(0o660, 1000), id: "chardev", level: LevelError, words: []string{"uverbs0 is on a mount with the option nodev"}},
	{name: "control group", ill: func(p patient) { p.openNode = openFails(syscall.EPERM) }, id: "chardev", level: LevelError, words: []string{"control group", "DeviceAllow"}},
	{name: "control group in a container", ill: func(p patient) {
		p.files[".dockerenv"] = &fstest.MapFile{}
		p.openNode = openFails(syscall.EPERM)
	}, id: "chardev", level: LevelError, words: []string{"docker run --device /dev/infiniband/uverbs0"}},
	{name: "container", ill: func(p patient) { p.files[".dockerenv"] = &fstest.MapFile{} }, works: true, id: "container", level: LevelInfo, words: []string{".dockerenv", "--cap-add IPC_LOCK"}},
	{name: "user namespace", ill: func(p patient) { p.files["proc/self/uid_map"].Data = []byte("0 100000 65536\n") }, works: true, id: "container", level: LevelInfo, words: []string{"uid_map"}},
	{name: "gone", ill: func(p patient) { p.openNode = openFails(syscall.ENXIO) }, id: "chardev", level: LevelError, words: []string{"no such device or address"}},
	{name: "cm closed", ill: func(p patient) {
		p.files["dev/infiniband/rdma_cm"] = charFile(0o600, 0, 10, 124)
		p.openNode = func(path string) error {
			if strings.HasSuffix(path, "rdma_cm") {
				return syscall.EACCES
			}
			return nil
		}
	}, works: true, id: "rdma_cm", level: LevelWarning, words: []string{"closed to this user"}},

	{name: "memlock", ill: limit(64<<10, 0), works: true, id: "memlock", level: LevelWarning, words: []string{"only 64 KiB", "VmPin 12 kB", "not in effect", "ulimit -l unlimited", "LimitMEMLOCK=infinity", "--ulimit memlock=-1"}},
	{name: "memlock of 1 GiB", ill: limit(1<<30, 0), works: true, id: "memlock", level: LevelInfo, words: []string{"1024 MiB"}},
	{name: "memlock lifted", ill: limit(64<<10, 1<<unix.CAP_IPC_LOCK), works: true, id: "memlock", level: LevelOK, words: []string{"CAP_IPC_LOCK lifts"}},
	{name: "memlock in a user namespace", ill: func(p patient) {
		limit(64<<10, 1<<unix.CAP_IPC_LOCK)(p)
		p.files["proc/self/uid_map"].Data = []byte("0 100000 65536\n")
	}, works: true, id: "memlock", level: LevelWarning, words: []string{"in a user namespace"}},
	{name: "memlock, no proc", ill: func(p patient) {
		limit(100, 0)(p)
		delete(p.files, "proc/self/status")
	}, works: true, id: "memlock", level: LevelWarning, words: []string{"100 bytes", "not known"}},
	{name: "registration", ill: func(p patient) {
		p.probe.registered = []registration{{smallMR, nil}, {bigMR, &uverbs.Error{Op: "REG_MR", Errno: syscall.ENOMEM, Hint: "RLIMIT_MEMLOCK is small"}}}
	}, works: true, id: "register", level: LevelWarning, words: []string{"64 MiB cannot", "an MR of 1 MiB: registered", "RLIMIT_MEMLOCK is small", "ulimit"}},
	{name: "vm", ill: func(patient) {}, works: true, id: "vm", level: LevelInfo, words: []string{"65530", "maps of this process: 2", "huge pages: 4, free 3"}},
	{name: "cannot be asked", ill: func(p patient) {
		p.machine.probe = func(string) (probe, error) { return probe{}, syscall.EIO }
	}, id: "open", level: LevelError, words: []string{"input/output error"}},

	{name: "port down", ill: func(p patient) {
		p.facts.state = ib.PortDown
		p.netdev = func(int) (netdev, error) { return netdev{Name: "eth0", MTU: 4200}, nil }
		p.loopback = func(context.Context, string) (string, error) { return "", syscall.ENETDOWN }
	}, id: "port", level: LevelError, words: []string{"eth0 has to be up", "ip link set eth0 up", "eth0: down, no carrier"}},
	{name: "no subnet manager", ill: func(p patient) {
		p.facts.LinkLayer, p.facts.state = ib.LinkLayerInfiniBand, ib.PortInit
		p.loopback = func(context.Context, string) (string, error) { return "", syscall.ENETDOWN }
	}, id: "port", level: LevelError, words: []string{"subnet manager", "opensm"}},
	{name: "no cable", ill: func(p patient) {
		p.facts.LinkLayer, p.facts.state = ib.LinkLayerInfiniBand, ib.PortDown
		p.loopback = func(context.Context, string) (string, error) { return "", syscall.ENETDOWN }
	}, id: "port", level: LevelError, words: []string{"no link"}},
	{name: "interface elsewhere", ill: func(p patient) {
		interfaceElsewhere(p)
		p.own = func(portFacts, bool) []ownAddr { return nil }
	}, works: true, id: "port", level: LevelWarning, words: []string{"no network interface of it is in this network namespace", "such as a macvlan"}},
	{name: "interface of rxe elsewhere", ill: interfaceElsewhere, works: true, id: "port", level: LevelWarning, words: []string{"rxe sends from that of its interface only"}},
	{name: "macvlan on an interface elsewhere", ill: macvlan, works: true, id: "port", level: LevelOK, words: []string{"ACTIVE on maca (macvlan)"}},
	{name: "MTU of a macvlan", ill: macvlan, works: true, id: "mtu", level: LevelWarning, words: []string{"4096 does not fit into maca, whose MTU is 1500"}},
	{name: "addresses of a macvlan", ill: macvlan, works: true, id: "gid", level: LevelOK, words: []string{"IP addresses of maca: 10.1.0.1/24"}},
	{name: "MTU too large", ill: mtu(ib.MTU4096, 1500), works: true, id: "mtu", level: LevelWarning, words: []string{"4096 does not fit into eth0", "mtu 4192"}},
	{name: "MTU just too large", ill: mtu(ib.MTU1024, 1103), works: true, id: "mtu", level: LevelWarning, words: []string{"mtu 1500"}},
	{name: "MTU fits", ill: mtu(ib.MTU1024, 1104), works: true, id: "mtu", level: LevelInfo},
	{name: "MTU of Ethernet", ill: mtu(ib.MTU1024, 1500), works: true, id: "mtu", level: LevelInfo, words: []string{"ip link set dev eth0 mtu 4200"}},

	{name: "iWARP", ill: onIWARP("10.1.0.1/24"), works: true, id: "address", level: LevelOK, words: []string{"10.1.0.1/24", "no GIDs"}},
	{name: "iWARP without an address", ill: onIWARP("fe80::1/64"), works: true, id: "address", level: LevelWarning, words: []string{"eth0 has no address", "ip address add"}},
	{name: "InfiniBand's firewall", ill: func(p patient) {
		port := fakePort
		port.LinkLayer = ib.LinkLayerInfiniBand
		p.ports = func(netlinkrdma.Device) ([]netlinkrdma.Port, error) { return []netlinkrdma.Port{port}, nil }
	}, works: true, id: "firewall", level: LevelOK, words: []string{"no firewall"}},
	{name: "iWARP's firewall", ill: onIWARP("10.1.0.1/24"), works: true, id: "firewall", level: LevelInfo, words: []string{"TCP ports"}},
	{name: "GIDs", ill: func(patient) {}, works: true, id: "gid", level: LevelOK, words: []string{"by default index 1: 10.1.0.1, RoCE v2", "IPv4 peer: index 1, 10.1.0.1 (routable, IPv4, RoCE v2)", "IPv6 peer: index 2, fd00::1"}},
	{name: "no GID", ill: func(p patient) { p.facts.gids = nil }, works: true, id: "gid", level: LevelWarning, words: []string{"no GID: eth0", "ip address add ADDRESS/24 dev eth0", "IPv4 peer: none"}},
	{name: "link-local GID, no address", ill: func(p patient) {
		p.facts.gids = p.facts.gids[:1]
		p.netdev = func(int) (netdev, error) { return netdev{Name: "eth0", MTU: 4200}, nil }
	}, works: true, id: "gid", level: LevelWarning, words: []string{"only link-local GIDs: eth0 has no IP address\n"}},
	{name: "link-local only", ill: func(p patient) { p.facts.gids = p.facts.gids[:1] }, works: true, id: "gid", level: LevelWarning, words: []string{"only link-local", "no other than link-local", "IPv4 peer: none"}},
	{name: "RoCE v1 only", ill: func(p patient) {
		for i := range p.facts.gids {
			p.facts.gids[i].Type = ib.GIDTypeRoCEv1
		}
	}, works: true, id: "gid", level: LevelWarning, words: []string{"only RoCE v1"}},
	{name: "no GID table", ill: func(p patient) { p.facts.gidErr = fs.ErrNotExist }, works: true, id: "gid", level: LevelWarning, words: []string{"cannot be read", "mount -t sysfs"}},
	{name: "no GID on InfiniBand", ill: func(p patient) {
		p.facts.LinkLayer, p.facts.gids = ib.LinkLayerInfiniBand, nil
	}, works: true, id: "gid", level: LevelWarning, words: []string{"no GID"}},
	{name: "InfiniBand", ill: func(p patient) {
		p.facts.LinkLayer = ib.LinkLayerInfiniBand
	}, works: true, id: "gid", level: LevelOK, words: []string{"LID"}},

	{name: "loopback", ill: func(p patient) {
		p.loopback = func(context.Context, string) (string, error) {
			return "a to b", errors.New("it took longer than 5s")
		}
	}, id: "loopback", level: LevelError, words: []string{"longer than 5s", "a to b"}},
	{name: "connections", ill: func(patient) {}, works: true, id: "cm", level: LevelOK, words: []string{"to itself from 10.1.0.1, fd00::1, and messages of 64 bytes to 64 KiB"}},
	{name: "dead connection manager of rxe", ill: connects(attempt{err: errLate}, ""), id: "cm", level: LevelError,
		words: []string{"no answer from 10.1.0.1, fd00::1", "as the ping-pong shows", "verbs link delete rxe0; verbs link add rxe0 type rxe netdev eth0 (ends its connections)"}},
	{name: "dead connection manager of a card", ill: func(p patient) {
		p.info.Driver = "mlx5"
		connects(attempt{err: errLate}, "")(p)
	}, id: "cm", level: LevelError, words: []string{"no answer from 10.1.0.1, fd00::1", "down and up (ends all traffic of the interface)", "again (ends the connections"}},
	{name: "late once", ill: func(p patient) {
		well, first := p.connect, true
		p.connect = func(ctx context.Context, device string, at netip.Addr, to string) attempt {
			if first {
				first = false
				return attempt{err: errLate}
			}
			return well(ctx, device, at, to)
		}
	}, works: true, id: "cm", level: LevelOK, words: []string{"10.1.0.1 to itself: no answer within 4s", "from 10.1.0.1, fd00::1, and messages"}},
	{name: "another device", ill: connects(elsewhere, ""), works: true, id: "cm", level: LevelInfo, words: []string{"connections from 10.1.0.1, fd00::1 use device rxe9"}},
	{name: "another device for one address", ill: connects(elsewhere, "fd00::1"), works: true, id: "cm", level: LevelOK,
		words: []string{"connects to itself from 10.1.0.1, and messages", "fd00::1 to itself: connected by device rxe9"}},
	{name: "one address", ill: connects(attempt{err: errLate}, "fd00::1"), works: true, id: "cm", level: LevelWarning,
		words: []string{"no connection by the connection manager from fd00::1 to itself", "10.1.0.1 to itself: connected with a path MTU of 4096"}},
	{name: "connection without memory", ill: connects(attempt{err: syscall.ENOMEM}, ""), works: true, id: "cm", level: LevelWarning, words: []string{"LimitMEMLOCK"}},
	{name: "connection without memory, then without answer", ill: func(p patient) {
		connects(attempt{err: errLate}, "fd00::1")(p)
		connects(attempt{err: syscall.ENOMEM}, "10.1.0.1")(p)
	}, id: "cm", level: LevelError, words: []string{"no connection by the connection manager from 10.1.0.1, fd00::1"}},
	{name: "long messages", ill: connects(attempt{mtu: 4096, sizes: []int{64}, failed: 4096, err: errLate}, ""), id: "cm", level: LevelError,
		words: []string{"a message of 4096 bytes does not get through"}},
	{name: "many addresses", ill: func(p patient) {
		p.own = func(portFacts, bool) (own []ownAddr) {
			for range mostAddresses + 1 {
				own = append(own, ownAddr{netip.MustParseAddr("10.1.0.1"), 2})
			}
			return own
		}
	}, works: true, id: "cm", level: LevelOK, words: []string{"more than 8 addresses are not tried"}},
	{name: "loopback without memory", ill: func(p patient) {
		p.loopback = func(context.Context, string) (string, error) { return "", syscall.ENOMEM }
	}, id: "loopback", level: LevelError, words: []string{"LimitMEMLOCK"}},
}

// elsewhere is a connection of another device.
var elsewhere = attempt{device: "rxe9", mtu: 4096, sizes: []int{64, 4096, 65536}}

// interfaceElsewhere moves the interface of the port to another network namespace.
func interfaceElsewhere(p patient) {
	port := fakePort
	port.Netdev, port.NetdevIndex = "", 0
	p.ports = func(netlinkrdma.Device) ([]netlinkrdma.Port, error) { return []netlinkrdma.Port{port}, nil }
}

// macvlan leaves a macvlan on it, on a card.
func macvlan(p patient) {
	interfaceElsewhere(p)
	p.info.Driver = "mlx5"
	p.netdev = func(index int) (netdev, error) {
		if index != 2 {
			return netdev{}, syscall.ENODEV
		}
		return netdev{"maca", "macvlan", 1500, true, true, []string{"10.1.0.1/24"}}, nil
	}
}

// connects has connections from an address, or from all if it is empty, end in one way.
func connects(a attempt, from string) func(patient) {
	return func(p patient) {
		well := p.connect
		p.connect = func(ctx context.Context, device string, at netip.Addr, to string) attempt {
			if from == "" || from == at.String() {
				return a
			}
			return well(ctx, device, at, to)
		}
	}
}

// TestDoctorFindings: each machine of [doctorCases] has its finding.
func TestDoctorFindings(t *testing.T) {
	for _, c := range doctorCases {
		t.Run(c.name, func(t *testing.T) {
			p := healthy(t)
			c.ill(p)
			d := examine(t.Context(), p.machine, c.names)
			if d.Works != c.works || d.Works != (d.Count(LevelError) == 0) {
				t.Errorf("works is %t with %d errors: %s", d.Works, d.Count(LevelError), d.Verdict)
			}
			for _, f := range d.Findings {
				if f.Code != c.id {
					continue
				}
				if f.Level != c.level {
					t.Errorf("level is %s, want %s: %+v", f.Level, c.level, f)
				}
				text := strings.Join(append(append([]string{f.Title}, f.Evidence...), f.Fix...), "\n")
				for _, w := range c.words {
					if !strings.Contains(text, w) {
						t.Errorf("the finding does not say %q:\n%s", w, text)
					}
				}
				return
			}
			t.Errorf("there is no finding %s: %+v", c.id, d)
		})
	}
}

// limit sets RLIMIT_MEMLOCK and the capabilities.
func limit(n uint64, caps uint64) func(patient) {
	return func(p patient) {
		p.memlock = func() (unix.Rlimit, error) { return unix.Rlimit{Cur: n, Max: n}, nil }
		p.files["proc/self/status"].Data = fmt.Appendf(nil, "VmLck:\t0 kB\nVmPin:\t12 kB\nCapEff:\t%016x\n", caps)
	}
}

// mtu sets the MTUs of port and interface.
func mtu(path ib.MTU, iface int) func(patient) {
	return func(p patient) {
		p.facts.attr.ActiveMTU = path
		p.netdev = func(int) (netdev, error) { return netdev{Name: "eth0", MTU: iface, Up: true, Running: true}, nil }
	}
}

// TestDoctorTwo has one device that works and one that does not.
func TestDoctorTwo(t *testing.T) {
	two := func() *machine {
		p := healthy(t)
		other := fakeDev
		other.Name, other.Index = "siw0", 1
		p.devices = func() ([]netlinkrdma.Device, error) { return []netlinkrdma.Device{fakeDev, other}, nil }
		p.infos = func() ([]uverbs.DeviceInfo, error) {
			bad := fakeInfo
			bad.Name, bad.Driver, bad.Err = "siw0", "siw", errors.ErrUnsupported
			return []uverbs.DeviceInfo{fakeInfo, bad}, nil
		}
		return p.machine
	}
	for _, c := range []struct {
		names   []string
		works   bool
		verdict string
	}{
		{nil, true, "RDMA works: a ping-pong went through on rxe0; 1 warning"},
		{[]string{"rxe0"}, true, "RDMA works: a ping-pong went through on rxe0"},
		{[]string{"rxe0", "rxe0"}, true, "RDMA works: a ping-pong went through on rxe0"},
		{[]string{"siw0"}, false, "RDMA does not work: siw0: driver siw cannot be used by this library"},
		{[]string{"siw0", "rxe0"}, false, "RDMA does not work: siw0: driver siw cannot be used by this library"},
	} {
		d := examine(t.Context(), two(), c.names)
		if d.Works != c.works || d.Verdict != c.verdict {
			t.Errorf("%v: %t, %q, want %t, %q", c.names, d.Works, d.Verdict, c.works, c.verdict)
		}
	}
}

// TestDoctorNoConnect: without connections, the ping-pong decides.
func TestDoctorNoConnect(t *testing.T) {
	p := healthy(t)
	p.noConnect = true
	p.connect = func(context.Context, string, netip.Addr, string) attempt {
		t.Error("a connection was made")
		return attempt{err: errLate}
	}
	d := examine(t.Context(), p.machine, nil)
	if !d.Works || slices.ContainsFunc(d.Findings, func(f Finding) bool { return f.Code == CodeCM }) {
		t.Errorf("%s: %+v", d.Verdict, d.Findings)
	}
	p.loopback = func(context.Context, string) (string, error) { return "", syscall.EIO }
	if d := examine(t.Context(), p.machine, nil); d.Works {
		t.Errorf("without a ping-pong: %s", d.Verdict)
	}
}

// TestDoctorInterrupted: when the context ends in a step, no further one is made, and none of the device has a finding.
func TestDoctorInterrupted(t *testing.T) {
	for _, at := range []string{"look up", "ping-pong", "connection 1", "connection 2", "connection 3"} {
		ctx, cancel := context.WithCancelCause(t.Context())
		var made []string
		step := func(name string) error {
			made = append(made, name)
			if name == at {
				cancel(errors.New("by hand"))
			}
			return ctx.Err()
		}
		p := healthy(t)
		p.peer = "host9"
		found := p.lookUp
		p.lookUp = func(ctx context.Context, peer string) ([]netip.AddrPort, error) {
			all, _ := found(ctx, peer)
			return all, step("look up")
		}
		p.loopback = func(context.Context, string) (string, error) { return "", step("ping-pong") }
		p.connect = func(context.Context, string, netip.Addr, string) attempt {
			return attempt{err: step(fmt.Sprintf("connection %d", len(made)-1))}
		}
		d := examine(ctx, p.machine, nil)
		if d.Works || d.Verdict != "not known: the examination was interrupted: by hand" || made[len(made)-1] != at {
			t.Errorf("interrupted in %s, the last of %q: %t, %q", at, made, d.Works, d.Verdict)
		}
		for _, f := range d.Findings {
			if f.Level == LevelError || f.Device != "" || f.Code == CodePeer {
				t.Errorf("interrupted in %s, there is a finding %+v", at, f)
			}
		}
	}
}

// TestDoctorTime has a ping-pong that sees the end of its time, and one that is stuck.
func TestDoctorTime(t *testing.T) {
	const limit = 10 * time.Millisecond
	_, err := within(t.Context(), limit, time.Minute, func(ctx context.Context) (string, error) {
		for {
			if err := yield(ctx); err != nil {
				return "", err
			}
		}
	})
	if err == nil || err.Error() != "it took longer than 10ms" {
		t.Errorf("error is %v", err)
	}
	forever := make(chan struct{})
	defer close(forever)
	_, err = within(t.Context(), limit, time.Millisecond, func(context.Context) (string, error) { <-forever; return "", nil })
	if err == nil || !strings.Contains(err.Error(), "does not return: it took longer than 10ms") {
		t.Errorf("error is %v", err)
	}
}
