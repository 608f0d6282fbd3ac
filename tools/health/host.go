package health

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs"
)

// oldestKernel is the oldest that the library is tested on.
var oldestKernel = uverbs.Version{5, 10}

// checkKernel looks at the kernel's version and the architecture.
func (m *machine) checkKernel() Finding {
	f := Finding{Code: CodeKernel}
	release, err := m.release()
	if err != nil {
		f.see("uname: %s", err)
	}
	f.see("release %s, architecture %s", release, m.arch)
	f.see("the library supports Linux %s and later on amd64 and arm64", oldestKernel)
	if m.arch != "amd64" && m.arch != "arm64" {
		f.fix("use an amd64 or arm64 machine")
		return f.conclude(LevelError, "architecture %s is not supported", m.arch)
	}
	if m.sandbox != "" {
		return f.conclude(LevelOK, "the sandbox %s on %s, whose release says nothing about what it supports", m.sandbox, m.arch)
	}
	v, ok := versionOf(release)
	if !ok {
		return f.conclude(LevelWarning, "the kernel's release %q says no version", release)
	}
	if slices.Compare(v[:], oldestKernel[:]) < 0 {
		f.fix("use Linux %s or later", oldestKernel)
		return f.conclude(LevelWarning, "Linux %s is older than %s", release, oldestKernel)
	}
	return f.conclude(LevelOK, "Linux %s on %s", release, m.arch)
}

// versionOf returns the version that a kernel's release begins with.
func versionOf(release string) (v uverbs.Version, ok bool) {
	major, rest, _ := strings.Cut(release, ".")
	minor := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
	var majorErr, minorErr error
	v[0], majorErr = strconv.Atoi(major)
	v[1], minorErr = strconv.Atoi(minor)
	return v, majorErr == nil && minorErr == nil
}

// checkContainer describes what a container needs, if this seems to be one.
func (m *machine) checkContainer() Finding {
	why := m.container()
	if why == "" {
		return Finding{}
	}
	f := Finding{Code: CodeContainer}
	f.see("%s", why)
	f.fix("docker run --device /dev/infiniband --cap-add IPC_LOCK --ulimit memlock=-1 --network host ...")
	return f.conclude(LevelInfo, "this seems to be a container: modules come from the host, devices must be handed in")
}

// modules are the kernel modules of RDMA, and what does not work without them.
var modules = []struct {
	name string
	miss Level
	what string
}{
	{"ib_core", LevelError, "the RDMA core"},
	{"ib_uverbs", LevelError, "verbs for programs"},
	{"rdma_ucm", LevelWarning, "the connection manager for programs"},
	{"rdma_rxe", LevelInfo, "RDMA over any Ethernet interface (Soft-RoCE)"},
}

// checkModules looks for the modules. proof has the modules whose presence the kernel's answers
// prove, so that a machine without /proc and /sys has no false errors.
func (m *machine) checkModules(proof map[string]bool) []Finding {
	release, _ := m.release() // checkKernel reports the error
	_, listErr := m.text("/proc/modules")
	sys := m.exists("/sys/module")
	var all []Finding
	for _, mod := range modules {
		f := Finding{Code: CodeModule + Code(mod.name)}
		loaded, _ := m.loaded(mod.name)
		inSys := m.exists("/sys/module/" + mod.name)
		onDisk, builtin, diskKnown := m.onDisk(mod.name, release)
		f.see("/proc/modules: %s", seen(loaded, listErr == nil))
		f.see("/sys/module/%s: %s", mod.name, seen(inSys, sys))
		f.see("/lib/modules/%s: %s", release, seen(onDisk, diskKnown))
		if proof[mod.name] {
			f.see("the kernel answers as it does with this module")
		}
		switch {
		case loaded:
			f.conclude(LevelOK, "loaded")
		case builtin || inSys:
			f.conclude(LevelOK, "built into the kernel")
		case proof[mod.name]:
			f.conclude(LevelOK, "there")
		case listErr != nil && !sys:
			f.conclude(LevelInfo, "%s: not known whether it is loaded", mod.name)
		case mod.name == "rdma_ucm" && m.allEFA:
			f.conclude(LevelInfo, "%s is not loaded, and EFA devices do not use it", mod.name)
		default:
			f.conclude(mod.miss, "%s is not loaded: %s", mod.name, mod.what)
			switch {
			case errors.Is(listErr, fs.ErrNotExist) && m.exists("/proc/self"):
				f.fix("use a kernel with CONFIG_INFINIBAND: this one has no modules (there is no /proc/modules)")
				all = append(all, f)
				continue
			case onDisk:
				f.fix("modprobe %s", mod.name)
			case diskKnown:
				f.fix("install the package that has this kernel's %s.ko (Ubuntu: linux-modules-extra-%s), then modprobe %s", mod.name, release, mod.name)
			default:
				f.fix("modprobe %s (in a container: on the host)", mod.name)
			}
			if mod.miss != LevelInfo {
				f.fix("at every boot: echo %s >/etc/modules-load.d/%s.conf", mod.name, mod.name)
			}
		}
		all = append(all, f)
	}
	return all
}

// seen describes whether a list has a module.
func seen(there, readable bool) string {
	switch {
	case !readable:
		return "cannot be read"
	case there:
		return "listed"
	}
	return "not listed"
}

// checkNamespace reports whether each device belongs to one network namespace.
func (m *machine) checkNamespace() Finding {
	f := Finding{Code: CodeNamespace}
	mode, err := m.netnsMode()
	if err != nil {
		f.see("netns mode over NETLINK_RDMA: %s", err)
		return f.conclude(LevelInfo, "the mode of network namespaces is not known")
	}
	f.see("netns mode over NETLINK_RDMA: %s (verbs system)", mode)
	if mode == "exclusive" {
		f.fix("to bring a device into another namespace: verbs dev set DEV netns NS")
		return f.conclude(LevelInfo, "exclusive: a device is seen in one network namespace only")
	}
	return f.conclude(LevelOK, "%s: devices are seen in every network namespace", mode)
}

// allowNetlink fixes a sandbox in which devices cannot be found.
const allowNetlink = "docker run --security-opt seccomp=FILE that allows netlink sockets, or let the sandbox have /sys"

// checkDevices lists the devices.
func (m *machine) checkDevices(devs []netlinkrdma.Device, infos []uverbs.DeviceInfo, err error, names []string) Finding {
	f := Finding{Code: CodeDevices}
	if m.sandbox != "" && len(infos) == 0 {
		if err != nil {
			f.see("%s", err)
		}
		f.fix("run the container with --device /dev/infiniband/uverbs0, and the sandbox with what passes the device on (gVisor: runsc --rdmaproxy)")
		f.fix("%s", softHint)
		return f.conclude(LevelError, "the sandbox %s passes on no RDMA device", m.sandbox)
	}
	if err != nil {
		f.see("%s", err)
		if errors.Is(err, fs.ErrPermission) {
			f.fix(allowNetlink)
			return f.conclude(LevelError, "the devices cannot be listed: a security policy or sandbox forbids netlink, and /sys does not show them")
		}
		f.fix("modprobe ib_uverbs; without RDMA hardware also modprobe rdma_rxe")
		f.fix("%s", softHint)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EPROTONOSUPPORT) {
			return f.conclude(LevelError, "this kernel has no RDMA (ib_core is not loaded)")
		}
		return f.conclude(LevelError, "the devices cannot be listed")
	}
	var usable []string
	for _, i := range infos {
		if i.Err == nil {
			f.see("%s: driver %s, %s, can be used", i.Name, i.Driver, plural(i.Ports, "port"))
			usable = append(usable, i.Name)
		} else {
			f.see("%s: %s", i.Name, i.Err)
		}
	}
	if slices.ContainsFunc(devs, func(d netlinkrdma.Device) bool { return d.FromSysfs }) {
		f.see("a NETLINK_RDMA socket cannot be had; this is from /sys/class/infiniband")
	}
	if len(infos) == 0 {
		f.see("NETLINK_RDMA lists no device in this network namespace")
		m.lookElsewhere(&f, "")
		m.lookForEFA(&f)
		if len(f.Fix) == 0 {
			f.fix("load the driver of the hardware (mlx5_ib, irdma, ...), or: modprobe rdma_rxe && verbs link add rxe0 type rxe netdev eth0")
			f.fix("%s", softHint)
			f.fix("if the device is in another network namespace, from there: verbs dev set DEV netns NS")
		}
		return f.conclude(LevelError, "there is no RDMA device in this network namespace")
	}
	for _, n := range names {
		if !slices.ContainsFunc(infos, func(i uverbs.DeviceInfo) bool { return i.Name == n }) {
			m.lookElsewhere(&f, n)
			f.fix("name one of these devices")
			return f.conclude(LevelError, "there is no RDMA device %s in this network namespace", n)
		}
	}
	m.lookElsewhere(&f, "no device is named")
	if len(usable) == 0 {
		return f.conclude(LevelWarning, "%s, none of which can be used", plural(len(infos), "device"))
	}
	return f.conclude(LevelOK, "%d of %s can be used: %s", len(usable), plural(len(infos), "device"), strings.Join(usable, ", "))
}

// checkCM looks at the connection manager's character device.
func (m *machine) checkCM(cd netlinkrdma.CharDev, err error) Finding {
	f := Finding{Code: CodeRDMACM}
	if err != nil {
		if m.allEFA { // err has the command that loads it
			return f.conclude(LevelInfo, "no connection manager, and EFA devices do not use it")
		}
		f.see("%s", err)
		if m.sandbox != "" {
			f.fix("use verbs without it, or cm.Dialer and cm.ListenConfig, which use TCP then")
			return f.conclude(LevelInfo, "no connection manager: the sandbox %s does not offer it", m.sandbox)
		}
		if errors.Is(err, fs.ErrPermission) {
			f.fix(allowNetlink)
			return f.conclude(LevelWarning, "the connection manager cannot be found: a security policy or sandbox forbids netlink, and /sys does not show it")
		}
		f.fix("modprobe rdma_ucm")
		return f.conclude(LevelWarning, "no connection manager: rdma_ucm is not loaded")
	}
	return m.checkNode(f, cd, LevelWarning, "the connection manager")
}

// checkMemlock looks at how much memory may be pinned.
func (m *machine) checkMemlock() Finding {
	f := Finding{Code: CodeMemlock}
	lim, err := m.memlock()
	if err != nil {
		f.see("getrlimit: %s", err)
		return f.conclude(LevelInfo, "the limit of pinned memory is not known")
	}
	f.see("RLIMIT_MEMLOCK: soft %s, hard %s", limitText(lim.Cur), limitText(lim.Max))
	if status, err := m.fields("/proc/self/status"); err == nil {
		f.see("VmLck %s, VmPin %s", status["VmLck"], status["VmPin"])
	}
	locks, known := m.hasCap(unix.CAP_IPC_LOCK)
	userns := m.userNS()
	switch {
	case !known:
		f.see("CAP_IPC_LOCK: not known, /proc/self/status cannot be read")
	case locks && userns:
		f.see("CAP_IPC_LOCK: in effect, but in a user namespace, where it does not lift the limit")
	case locks:
		f.see("CAP_IPC_LOCK: in effect")
	default:
		f.see("CAP_IPC_LOCK: not in effect")
	}
	switch {
	case lim.Cur == unix.RLIM_INFINITY:
		return f.conclude(LevelOK, "no limit of pinned memory")
	case locks && !userns:
		return f.conclude(LevelOK, "CAP_IPC_LOCK lifts the limit of pinned memory (%s)", limitText(lim.Cur))
	case lim.Cur >= bigMR:
		f.Fix = memlockFixes()
		return f.conclude(LevelInfo, "%s of memory can be pinned", limitText(lim.Cur))
	}
	f.Fix = memlockFixes()
	return f.conclude(LevelWarning, "only %s of memory can be pinned", limitText(lim.Cur))
}

// memlockFixes are commands and settings that raise the limit.
func memlockFixes() []string {
	return []string{
		"ulimit -l unlimited (permanently: \"* - memlock unlimited\" in /etc/security/limits.conf)",
		"LimitMEMLOCK=infinity in the [Service] section of a systemd unit",
		"docker run --ulimit memlock=-1 ...",
		"setcap cap_ipc_lock+ep PROGRAM",
	}
}

// limitText is a number of bytes that may be unlimited.
func limitText(n uint64) string {
	switch {
	case n == unix.RLIM_INFINITY:
		return "unlimited"
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n%1024 == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d bytes", n)
}

// checkVM reports the limit of memory maps and the huge pages.
func (m *machine) checkVM() Finding {
	f := Finding{Code: CodeVM}
	most, err := m.text("/proc/sys/vm/max_map_count")
	maps, merr := m.text("/proc/self/maps")
	if err != nil {
		f.see("vm.max_map_count: %s", err)
	} else {
		f.see("vm.max_map_count: %s", most)
	}
	if merr == nil {
		f.see("maps of this process: %d", strings.Count(maps, "\n")+1)
	}
	mem, err := m.fields("/proc/meminfo")
	if err != nil {
		f.see("huge pages: %s", err)
		return f.conclude(LevelInfo, "memory maps and huge pages are not known")
	}
	total, size := mem["HugePages_Total"], mem["Hugepagesize"]
	f.see("huge pages: %s, free %s, of %s each", total, mem["HugePages_Free"], size)
	f.fix("for many MRs: sysctl vm.max_map_count=262144; for huge pages: sysctl vm.nr_hugepages=N")
	if most == "" {
		most = "an unknown number of"
	}
	return f.conclude(LevelInfo, "%s maps for a process, %s huge pages", most, strings.TrimSpace(total))
}
