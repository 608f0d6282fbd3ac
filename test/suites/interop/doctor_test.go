package interop

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// BareEnv is set to 1 in a VM that has no RDMA modules (vmrun -load none).
const BareEnv = "GOVERBS_BARE"

// undone fails the test if what was changed cannot be changed back.
func undone(t *testing.T, f func() error) {
	t.Cleanup(func() {
		if err := f(); err != nil {
			t.Errorf("cannot be undone: %v", err)
		}
	})
}

// change fails the test if err is not nil.
func change(t *testing.T, err error) {
	t.Helper()
	must(t, err)
}

// nobody has no rights at all.
var nobody = syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}

func TestDoctorHealthy(t *testing.T) {
	testenv.Guest(t)
	for _, env := range []string{"RDMAABI=", "RDMAABI=ioctl", "RDMAABI=write"} {
		r := doctor(t, patient{env: []string{env}})
		if _, err := os.Stat("/sys/class"); err != nil && env == "RDMAABI=write" {
			// Without ioctl the GIDs are in /sys (vmrun -no-sysfs).
			r.works(t, false, dev0+" port 1: the GID table cannot be read")
			r.want(t, "gid", dev0, "error", "mount -t sysfs", "RDMAABI")
			continue
		}
		r.works(t, true, dev0, dev1)
		for _, id := range []string{"kernel", "module.ib_core", "module.ib_uverbs", "module.rdma_ucm", "devices", "rdma_cm", "memlock"} {
			r.want(t, id, "", "ok")
		}
		rxe := "info"
		if rig.Driver == "rxe" {
			rxe = "ok"
		}
		r.want(t, "module.rdma_rxe", "", rxe)
		r.want(t, "namespace", "", "ok", "shared")
		for _, dev := range []string{dev0, dev1} {
			for _, id := range []string{"device", "chardev", "register", "port", "loopback"} {
				r.want(t, id, dev, "ok")
			}
			if !rig.IWARP() {
				r.want(t, "gid", dev, "ok")
			}
			if !rig.IWARP() && !rig.InfiniBand() {
				r.want(t, "mtu", dev, "info", "1024", "mtu 4200")
			}
		}
		if rig.IWARP() {
			r.want(t, "address", dev0, "ok", "10.1.0.1/24", "fd00:1::1/64")
			r.want(t, "loopback", dev0, "ok", "10.1.0.1")
			r.want(t, "firewall", "", "info", "TCP ports")
			continue
		}
		if rig.InfiniBand() {
			r.want(t, "gid", dev0, "ok", "by LID")
			r.want(t, "firewall", "", "ok", "no firewall")
			continue
		}
		r.want(t, "firewall", "", "info", "4791")
		r.want(t, "gid", dev0, "ok", fmt.Sprintf("IPv4 peer: index %d, 10.1.0.1", rig.GID), fmt.Sprintf("IPv6 peer: index %d, fd00:1::1", rig.GID6))
	}
}

// TestDoctorText looks at what people read.
func TestDoctorText(t *testing.T) {
	testenv.Tags(t, testenv.AnyTransport)
	testenv.Guest(t)
	out, err := exec.CommandContext(timed(t), os.Getenv(VerbsEnv), "doctor", dev1).CombinedOutput()
	text := string(out)
	if err != nil || !strings.Contains(text, "\nRDMA works: a ping-pong went through on "+dev1+"\n") || strings.Contains(text, dev0+":") || strings.Contains(text, "\x1b") {
		t.Errorf("%v:\n%s", err, text)
	}
	out, err = exec.CommandContext(timed(t), os.Getenv(VerbsEnv), "doctor", dev1, "rxe9").CombinedOutput()
	text = string(out)
	if err == nil || !strings.Contains(text, "\nRDMA does not work on rxe9: there is no RDMA device rxe9") || !strings.Contains(text, "verbs: doctor: 1 error") {
		t.Errorf("%v:\n%s", err, text)
	}
}

// memlock sets RLIMIT_MEMLOCK; its default depends on the kernel.
func memlock(t *testing.T, n uint64) {
	t.Helper()
	var old unix.Rlimit
	change(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &old))
	change(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: n, Max: max(n, old.Max)}))
	undone(t, func() error { return unix.Setrlimit(unix.RLIMIT_MEMLOCK, &old) })
}

func TestDoctorUnprivileged(t *testing.T) {
	testenv.Guest(t)
	memlock(t, 8<<20)
	r := doctor(t, patient{attr: nobody})
	r.works(t, true)
	r.want(t, "memlock", "", "warning", "8 MiB", "not in effect", "LimitMEMLOCK")
	r.want(t, "register", dev0, "warning", "64 MiB cannot", "an MR of 1 MiB: registered", "RLIMIT_MEMLOCK")
}

func TestDoctorMemlock(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard)
	testenv.Guest(t)
	for _, c := range []struct {
		limit uint64
		works bool
	}{{64 << 10, true}, {4 << 10, false}} {
		memlock(t, c.limit)
		r := doctor(t, patient{names: []string{dev0}, attr: nobody})
		r.works(t, c.works)
		if c.works {
			r.want(t, "cm", dev0, "warning", "no connection", "RLIMIT_MEMLOCK", "LimitMEMLOCK")
		}
		r.want(t, "memlock", "", "warning", "--ulimit memlock=-1", "ulimit -l")
		r.want(t, "register", dev0, "warning", "1 MiB cannot")
		if !c.works {
			r.want(t, "loopback", dev0, "error", "REG_MR", "RLIMIT_MEMLOCK", "LimitMEMLOCK")
		}
	}
}

func TestDoctorDeviceFileMode(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard, testenv.AnyTransport)
	testenv.Guest(t)
	const file = "/dev/infiniband/uverbs0"
	st, err := os.Stat(file)
	change(t, err)
	change(t, os.Chmod(file, 0))
	undone(t, func() error { return os.Chmod(file, st.Mode().Perm()) })
	r := doctor(t, patient{names: []string{dev0}, attr: nobody})
	r.works(t, false, "uverbs0 is closed to this user")
	r.want(t, "chardev", dev0, "error", "c---------", "user 65534", "chmod 666")
	r = doctor(t, patient{attr: nobody})
	r.works(t, true, dev1)
	r.want(t, "chardev", dev0, "warning")

	change(t, os.Chown(file, 0, 4711))
	undone(t, func() error { return os.Chown(file, 0, 0) })
	change(t, os.Chmod(file, 0o660))
	r = doctor(t, patient{names: []string{dev0}, attr: nobody})
	r.works(t, false)
	r.want(t, "chardev", dev0, "error", "usermod -aG 4711")
	member := syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534, Groups: []uint32{4711}}}
	doctor(t, patient{names: []string{dev0}, attr: member}).works(t, true)
}

func TestDoctorMissingDeviceFile(t *testing.T) {
	testenv.Tags(t, testenv.AnyTransport)
	testenv.Guest(t)
	const file = "/dev/infiniband/uverbs0"
	change(t, os.Rename(file, file+".away"))
	undone(t, func() error { return os.Rename(file+".away", file) })
	r := doctor(t, patient{names: []string{dev0}})
	r.works(t, false, "uverbs0 is missing")
	r.want(t, "chardev", dev0, "error", "mknod -m 666 /dev/infiniband/uverbs0 c 231 192")
	r.want(t, "port", dev0, "ok", "ACTIVE")
	change(t, os.WriteFile(file, nil, 0o666))
	undone(t, func() error { return os.Remove(file) })
	r = doctor(t, patient{names: []string{dev0}})
	r.works(t, false, "old or wrong node")
}

// link returns a network interface.
func link(t *testing.T, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	change(t, err)
	return l
}

// addresses returns the addresses of an interface. The kernel says if they changed while it
// listed them, and then they are listed again.
func addresses(t *testing.T, of netlink.Link, family int) (all []netlink.Addr) {
	t.Helper()
	await(t, "the addresses of "+of.Attrs().Name+" change all the time", func() bool {
		var err error
		if all, err = netlink.AddrList(of, family); errors.Is(err, netlink.ErrDumpInterrupted) {
			return false
		}
		change(t, err)
		return true
	})
	return all
}

// settle waits until the kernel has brought a port's state and its GIDs after the
// network interface's.
func settle(t *testing.T, device string, ready func(uverbs.PortAttr, []uverbs.GIDEntry) bool) {
	t.Helper()
	await(t, device+" does not get into the state that the test needs", func() bool {
		dev, err := uverbs.Open(device, uverbs.OpenOptions{})
		change(t, err)
		defer dev.Close()
		attr, err := dev.Port(1)
		table, gidErr := dev.GIDTable(1)
		return err == nil && gidErr == nil && ready(attr, table)
	})
}

// table returns a device's GIDs.
func table(t *testing.T, device string) []uverbs.GIDEntry {
	t.Helper()
	dev, err := uverbs.Open(device, uverbs.OpenOptions{})
	change(t, err)
	defer dev.Close()
	table, err := dev.GIDTable(1)
	change(t, err)
	return table
}

// restored makes sure, when what was changed is undone, that the GIDs are at their old
// places again: the next tests rely on these. Call it before the changes.
func restored(t *testing.T) {
	t.Helper()
	old := map[string][]uverbs.GIDEntry{dev0: table(t, dev0), dev1: table(t, dev1)}
	t.Cleanup(func() {
		for name, want := range old {
			settle(t, name, func(a uverbs.PortAttr, got []uverbs.GIDEntry) bool {
				return a.State == ib.PortActive && slices.Equal(got, want)
			})
		}
		for _, name := range rig.Netdevs {
			await(t, name+" has an address that it may not use yet", func() bool { return !tentative(t, name) })
		}
	})
}

// tentative reports whether nobody knows yet if an IPv6 address of an interface is free. Adapters
// have its GID all the same, and the kernel no route to it.
func tentative(t *testing.T, netdev string) bool {
	t.Helper()
	addrs := addresses(t, link(t, netdev), unix.AF_INET6)
	return slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return a.Flags&unix.IFA_F_TENTATIVE != 0 }) ||
		!slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return a.IP.IsLinkLocalUnicast() })
}

// await waits until what a test needs is so, and fails it with what is in the way.
func await(t *testing.T, problem string, ready func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if ready() {
			return
		}
	}
	t.Fatal(problem)
}

func TestDoctorPortDown(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsRoCE(t, "ports that follow a network interface")
	restored(t)
	iface := link(t, netdev0)
	addrs := addresses(t, iface, unix.AF_INET6)
	change(t, netlink.LinkSetDown(iface))
	undone(t, func() error {
		err := netlink.LinkSetUp(iface)
		for _, a := range addrs { // gone with the link
			if !a.IP.IsLinkLocalUnicast() {
				err = errors.Join(err, netlink.AddrReplace(iface, &netlink.Addr{IPNet: a.IPNet, Flags: unix.IFA_F_NODAD}))
			}
		}
		return err
	})
	settle(t, dev0, func(a uverbs.PortAttr, _ []uverbs.GIDEntry) bool { return a.State != ib.PortActive })
	r := doctor(t, patient{names: []string{dev0}})
	r.works(t, false, dev0+" port 1", netdev0+" has to be up")
	r.want(t, "port", dev0, "error", "DOWN", "ip link set "+netdev0+" up", "network interface "+netdev0+": down")
	r.want(t, "loopback", dev0, "error", "network is down")
}

// linkLocal reports whether a device has no other GIDs than that of the link-local address: one
// for each version of RoCE.
func linkLocal(table []uverbs.GIDEntry) bool {
	other := func(e uverbs.GIDEntry) bool { return !e.GID.Addr().IsLinkLocalUnicast() }
	return len(table) > 0 && !slices.ContainsFunc(table, other)
}

func TestDoctorNoAddress(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard)
	testenv.Guest(t)
	testenv.NeedsRoCE(t, "GIDs of IP addresses")
	restored(t)
	iface := link(t, netdev0)
	addrs := addresses(t, iface, unix.AF_UNSPEC)
	for _, a := range slices.Backward(addrs) { // so that the first is back first
		if a.IP.IsLinkLocalUnicast() {
			continue
		}
		change(t, netlink.AddrDel(iface, &netlink.Addr{IPNet: a.IPNet}))
		undone(t, func() error {
			return netlink.AddrReplace(iface, &netlink.Addr{IPNet: a.IPNet, Flags: a.Flags & unix.IFA_F_NODAD})
		})
	}
	if rig.IWARP() {
		r := doctor(t, patient{names: []string{dev0}})
		r.works(t, false, dev0+" port 1: network interface "+netdev0+" has no address")
		r.want(t, "address", dev0, "error", "ip address add ADDRESS/24 dev "+netdev0)
		r.want(t, "loopback", dev0, "error", "has no address")
		return
	}
	settle(t, dev0, func(_ uverbs.PortAttr, table []uverbs.GIDEntry) bool { return linkLocal(table) })
	r := doctor(t, patient{names: []string{dev0}})
	r.want(t, "gid", dev0, "warning", "only link-local", "ip address add ADDRESS/24 dev "+netdev0, "IPv4 peer: none", "no other than link-local")
	r.want(t, "loopback", dev0, "ok")
}

func TestDoctorMTU(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard)
	testenv.Guest(t)
	testenv.NeedsIB(t, "path MTUs")
	testenv.NeedsRoCE(t, "path MTUs of network interfaces")
	for _, name := range rig.Netdevs {
		l := link(t, name)
		change(t, netlink.LinkSetMTU(l, 4200))
		undone(t, func() error { return netlink.LinkSetMTU(l, l.Attrs().MTU) })
	}
	settle(t, dev0, func(a uverbs.PortAttr, _ []uverbs.GIDEntry) bool { return a.ActiveMTU == ib.MTU4096 })
	r := doctor(t, patient{names: []string{dev0}})
	r.works(t, true)
	r.want(t, "mtu", dev0, "ok", "path MTU 4096, MTU of "+netdev0+" is 4200")
}

// TestDoctorNamespace runs the doctor in another network namespace, in both modes.
func TestDoctorNamespace(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard)
	testenv.Guest(t)
	testenv.NeedsRoCE(t, "ports that follow a network interface")
	elsewhere := syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	// Whether rxe then finds the way depends on the kernel.
	r := doctor(t, patient{attr: elsewhere})
	r.want(t, "namespace", "", "ok", "shared")
	r.want(t, "port", dev0, "warning", "no network interface of it is in this network namespace")

	// The mode can be changed while there is one namespace. The kernel takes its time to
	// do away with the others.
	mode := func(m string) error {
		var err error
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if err = netlink.RdmaSystemSetNetnsMode(m); !errors.Is(err, unix.EBUSY) {
				return err
			}
		}
		return err
	}
	change(t, mode("exclusive"))
	undone(t, func() error { return mode("shared") })
	// The namespace of the devices gets a name.
	const home = "/run/netns/home"
	change(t, os.MkdirAll("/run/netns", 0o755))
	change(t, os.WriteFile(home, nil, 0o600))
	change(t, unix.Mount("/proc/self/ns/net", home, "", unix.MS_BIND, ""))
	undone(t, func() error { return errors.Join(unix.Unmount(home, 0), os.Remove(home)) })
	r = doctor(t, patient{attr: elsewhere})
	r.works(t, false, "no RDMA device in this network namespace")
	r.want(t, "namespace", "", "info", "exclusive")
	r.want(t, "devices", "", "error", "network namespace "+home+" has "+dev0, "nsenter --net="+home+" verbs dev set "+dev0+" netns")
	r = doctor(t, patient{attr: elsewhere, names: []string{dev0}})
	r.want(t, "devices", "", "error", "run there what needs "+dev0+": nsenter --net="+home)
	doctor(t, patient{}).works(t, true)
}

// TestDoctorContainer runs the doctor as root of a user namespace, where CAP_IPC_LOCK
// does not count.
func TestDoctorContainer(t *testing.T) {
	testenv.Guest(t)
	memlock(t, 8<<20)
	root := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 65534, Size: 1}}
	r := doctor(t, patient{names: []string{dev0}, attr: syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		Credential:  &syscall.Credential{NoSetGroups: true},
		UidMappings: root,
		GidMappings: root,
	}})
	r.want(t, "container", "", "info", "uid_map", "--device /dev/infiniband")
	r.want(t, "memlock", "", "warning", "in a user namespace")
	r.want(t, "register", dev0, "warning", "64 MiB cannot")
}

// TestDoctorNoDevices runs the doctor without devices, or without modules as BareEnv says.
func TestDoctorNoDevices(t *testing.T) {
	testenv.Guest(t)
	bare := os.Getenv(BareEnv) == "1"
	var devs []netlinkrdma.Device
	if !bare {
		var err error
		devs, err = netlinkrdma.Devices()
		change(t, err)
	}
	if len(devs) > 0 { // there is none with vmrun -net none
		testenv.NeedsLinks(t)
		restored(t)
	}
	for _, d := range slices.Backward(devs) { // so that the first is back first
		netdev := strings.Replace(d.Name, "rxe", "ve", 1)
		change(t, netlinkrdma.DeleteLink(d.Name))
		undone(t, func() error { return netlinkrdma.AddLink(d.Name, netlinkrdma.RXE, netdev) })
	}
	for _, attr := range []syscall.SysProcAttr{{}, nobody} {
		for _, names := range [][]string{nil, {dev0}} {
			r := doctor(t, patient{names: names, attr: attr})
			if bare {
				r.works(t, false, "ib_core is not loaded")
				r.want(t, "module.ib_core", "", "error", "modprobe ib_core")
				r.want(t, "module.ib_uverbs", "", "error", "modprobe ib_uverbs")
				r.want(t, "rdma_cm", "", "warning", "modprobe rdma_ucm")
				r.want(t, "devices", "", "error", "no RDMA")
				continue
			}
			r.works(t, false, "there is no RDMA device in this network namespace")
			r.want(t, "module.ib_core", "", "ok")
			r.want(t, "devices", "", "error", "verbs link add rxe0 type rxe netdev eth0")
		}
	}
}
