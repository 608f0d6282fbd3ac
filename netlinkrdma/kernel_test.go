package netlinkrdma

import (
	"errors"
	"io/fs"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/netlinkrdma/internal/abi"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// must fails a test on an error.
var must = testenv.Must

// The tests in this file need a kernel of their own to change: root, rxe0 on
// ve0, rxe1 on ve1, and the modules ib_uverbs, rdma_ucm and veth. The VM runner
// provides that and says so in the environment.
func needKernel(t *testing.T) {
	t.Helper()
	testenv.Guest(t)
}

// onThread runs f on a thread of its own, which ends with it, so that f can
// change the thread's namespaces and capabilities. The main thread never ends, so
// it is kept busy meanwhile if it comes first.
func onThread(f func()) {
	done := make(chan struct{})
	var run func()
	run = func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			go run()
			<-done
			runtime.UnlockOSThread()
			return
		}
		defer close(done)
		f() // never unlocked: the runtime ends the thread
	}
	go run()
	<-done
}

func kernelVersion(t *testing.T) (major, minor int) {
	t.Helper()
	var u unix.Utsname
	must(t, unix.Uname(&u))
	m := regexp.MustCompile(`^(\d+)\.(\d+)`).FindStringSubmatch(unix.ByteSliceToString(u.Release[:]))
	if m == nil {
		t.Fatalf("release %q", unix.ByteSliceToString(u.Release[:]))
	}
	major, _ = strconv.Atoi(m[1])
	minor, _ = strconv.Atoi(m[2])
	return major, minor
}

func TestKernelDevices(t *testing.T) {
	needKernel(t)
	devs, err := Devices()
	must(t, err)
	byName := map[string]Device{}
	for _, d := range devs {
		t.Logf("%+v", d)
		byName[d.Name] = d
	}
	for _, name := range []string{"rxe0", "rxe1"} {
		got, ok := byName[name]
		if !ok {
			t.Fatalf("%s is not among %+v", name, devs)
		}
		want := Device{Name: name, NodeType: ib.NodeCA, Protocol: ProtocolRoCE, DriverID: DriverRXE, Ports: 1}
		if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Device{}, "Index", "NodeGUID", "SysImageGUID", "CapFlags")); diff != "" {
			t.Error(diff)
		}
		if d, err := DeviceByName(name); err != nil || d != got {
			t.Errorf("by name: %+v, %v", d, err)
		}
	}
	if a, b := byName["rxe0"], byName["rxe1"]; a.NodeGUID == b.NodeGUID || a.NodeGUID == 0 || a.Index == b.Index {
		t.Errorf("%+v and %+v are the same", a, b)
	}
	_, err = DeviceByName("rxe9")
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "rxe0, rxe1") {
		t.Errorf("unknown name: %v", err)
	}
}

func TestKernelPorts(t *testing.T) {
	needKernel(t)
	for dev, netdev := range map[string]string{"rxe0": "ve0", "rxe1": "ve1"} {
		d, err := DeviceByName(dev)
		must(t, err)
		l, err := netlink.LinkByName(netdev)
		must(t, err)
		ports, err := Ports(d)
		want := []Port{{Num: 1, State: ib.PortActive, PhysState: ib.PhysLinkUp, LinkLayer: ib.LinkLayerEthernet,
			Netdev: netdev, NetdevIndex: l.Attrs().Index}}
		if diff := cmp.Diff(want, ports); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", dev, err, diff)
		}
	}
}

// The files in /dev have the same numbers.
func TestKernelCharDevs(t *testing.T) {
	needKernel(t)
	check := func(cd CharDev) {
		t.Helper()
		t.Logf("%+v", cd)
		var st unix.Stat_t
		if err := unix.Stat(cd.Path(), &st); err != nil {
			t.Fatalf("%s: %v", cd.Path(), err)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFCHR || unix.Major(st.Rdev) != cd.Major || unix.Minor(st.Rdev) != cd.Minor {
			t.Errorf("%s is %d:%d, mode %o, not %+v", cd.Path(), unix.Major(st.Rdev), unix.Minor(st.Rdev), st.Mode, cd)
		}
	}
	names := map[string]bool{}
	for _, name := range []string{"rxe0", "rxe1"} {
		d, err := DeviceByName(name)
		must(t, err)
		cd, err := UverbsDev(d)
		must(t, err)
		check(cd)
		if cd.ABI != 2 || cd.DriverID != DriverRXE {
			t.Errorf("%+v, want ABI 2 (RXE_UVERBS_ABI_VERSION) and driver rxe", cd)
		}
		names[cd.Name] = true
	}
	if len(names) != 2 {
		t.Errorf("two devices, character devices %v", names)
	}
	cm, err := CMDev()
	must(t, err)
	check(cm)
	if cm.Name != "rdma_cm" || cm.ABI != 4 {
		t.Errorf("%+v, want rdma_cm with ABI 4 (RDMA_USER_CM_ABI_VERSION)", cm)
	}
}

// A module that is not there is the error that the hints are about.
func TestKernelNoSuchCharDev(t *testing.T) {
	needKernel(t)
	for _, of := range [][]*rtAttr{nil, {u32Attr(abi.RDMA_NLDEV_ATTR_DEV_INDEX, 0)}} {
		cd, err := system.netlinkCharDev("goverbs_none", of...)
		errorIs(t, err, unix.EOPNOTSUPP, "%+v,", cd)
	}
}

// sysfs tells the same as netlink, as far as it goes.
func TestKernelSysfsAgrees(t *testing.T) {
	needKernel(t)
	blind := deafClient(unix.EACCES, os.DirFS("/sys"))
	devs, err := Devices()
	must(t, err)
	fromSysfs, err := blind.devices()
	byName := cmpopts.SortSlices(func(a, b Device) bool { return a.Name < b.Name })
	if diff := cmp.Diff(devs, fromSysfs, byName, cmpopts.IgnoreFields(Device{}, "Index", "CapFlags", "FromSysfs")); err != nil || diff != "" {
		t.Errorf("devices: %v\n%s", err, diff)
	}
	for _, d := range devs {
		ports, err := Ports(d)
		sysPorts, sysErr := blind.ports(d)
		if diff := cmp.Diff(ports, sysPorts); err != nil || sysErr != nil || diff != "" {
			t.Errorf("ports of %s: %v, %v\n%s", d.Name, err, sysErr, diff)
		}
		uverbs, err := UverbsDev(d)
		sysUverbs, sysErr := blind.uverbsDev(d)
		if uverbs != sysUverbs || err != nil || sysErr != nil {
			t.Errorf("uverbs of %s: %+v, %v; %+v, %v", d.Name, uverbs, err, sysUverbs, sysErr)
		}
		umad, err := UMADDev(d, 1)
		sysUMAD, sysErr := blind.madDev(d, 1, clientUMAD)
		if umad != sysUMAD || umad.ABI != 5 || err != nil || sysErr != nil {
			t.Errorf("umad of %s: %+v, %v; %+v, %v", d.Name, umad, err, sysUMAD, sysErr)
		}
	}
	cm, err := CMDev()
	sysCM, sysErr := blind.cmDev()
	if cm != sysCM || err != nil || sysErr != nil {
		t.Errorf("rdma_cm: %+v, %v; %+v, %v", cm, err, sysCM, sysErr)
	}
}

func TestKernelWithoutSysfs(t *testing.T) {
	needKernel(t)
	want, err := Devices()
	must(t, err)
	onThread(func() {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			t.Errorf("unshare: %v", err)
			return
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			t.Errorf("make / private: %v", err)
			return
		}
		if err := unix.Unmount("/sys", unix.MNT_DETACH); err != nil {
			t.Errorf("umount /sys: %v", err)
			return
		}
		if _, err := os.Stat("/sys/class"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("/sys is still there: %v", err)
			return
		}
		got, err := Devices()
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%v\n%s", err, diff)
		}
		for _, d := range got {
			if ports, err := Ports(d); err != nil || len(ports) != 1 {
				t.Errorf("%s: ports %+v, %v", d.Name, ports, err)
			}
			if _, err := UverbsDev(d); err != nil {
				t.Error(err)
			}
			if _, err := UMADDev(d, 1); err != nil {
				t.Error(err)
			}
		}
		if _, err := CMDev(); err != nil {
			t.Error(err)
		}
	})
}

// makeVeth makes a pair of interfaces that goes away with the test.
func makeVeth(t *testing.T, a, b string) {
	t.Helper()
	l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: a}, PeerName: b}
	if err := netlink.LinkAdd(l); err != nil {
		t.Fatalf("add %s: %v", a, err)
	}
	t.Cleanup(func() {
		if err := netlink.LinkDel(l); err != nil {
			t.Errorf("delete %s: %v", a, err)
		}
	})
}

func TestKernelLink(t *testing.T) {
	needKernel(t)
	makeVeth(t, "nlt0", "nlt1")
	must(t, AddLink("nltrxe", RXE, "nlt0"))
	t.Cleanup(func() { _ = DeleteLink("nltrxe") }) // deleted already unless the test fails
	dev, err := DeviceByName("nltrxe")
	must(t, err)

	// The state of the port follows that of the interface.
	waitState(t, dev, ib.PortDown)
	for _, name := range []string{"nlt0", "nlt1"} {
		l, err := netlink.LinkByName(name)
		must(t, err)
		must(t, netlink.LinkSetUp(l))
	}
	waitState(t, dev, ib.PortActive)

	for _, tt := range []struct {
		name   string
		kind   LinkKind
		netdev string
		is     error
		want   string
	}{
		{"nltrxe2", RXE, "nlt0", fs.ErrExist, "nlt0 has a device of kind rxe already"},
		{"nltrxe", RXE, "nlt1", fs.ErrExist, "an RDMA device nltrxe exists already"},
		{"nltrxe2", RXE, "nlt9", fs.ErrNotExist, "there is no interface nlt9"},
		{"nltrxe2", "none", "nlt1", unix.EINVAL, "the kernel has no links of kind none"},
	} {
		err := AddLink(tt.name, tt.kind, tt.netdev)
		if !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("add %s: %v, want %v and %q", tt.name, err, tt.is, tt.want)
		}
	}

	must(t, DeleteLink("nltrxe"))
	_, portsErr := Ports(dev)
	_, uverbsErr := UverbsDev(dev)
	_, nameErr := DeviceByName("nltrxe")
	for _, err := range []error{portsErr, uverbsErr, nameErr, DeleteLink("nltrxe")} {
		errorIs(t, err, fs.ErrNotExist, "after deletion")
	}
}

// waitState waits until the port of a device is in that state; the kernel takes
// note of the interface's state with some delay.
func waitState(t *testing.T, dev Device, want ib.PortState) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		ports, err := Ports(dev)
		if err != nil || len(ports) != 1 {
			t.Fatalf("ports of %s: %+v, %v", dev.Name, ports, err)
		}
		if ports[0].State == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("port of %s: %+v, want state %v", dev.Name, ports[0], want)
		}
	}
}

func TestKernelNoPermission(t *testing.T) {
	needKernel(t)
	onThread(func() {
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData // it has two parts of 32 bits
		if err := unix.Capset(&hdr, &none[0]); err != nil {
			t.Errorf("capset: %v", err)
			return
		}
		for _, err := range []error{AddLink("nltrxe", RXE, "ve0"), DeleteLink("rxe0")} {
			if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
				t.Errorf("%v, want fs.ErrPermission and what is missing", err)
			}
		}
		if devs, err := Devices(); err != nil || len(devs) < 2 {
			t.Errorf("listing needs no rights: %+v, %v", devs, err)
		}
	})
}

// In the shared mode another network namespace sees the devices, not their
// interfaces.
func TestKernelOtherNetns(t *testing.T) {
	needKernel(t)
	mode, err := netlink.RdmaSystemGetNetnsMode()
	if err != nil || mode != "shared" {
		t.Fatalf("mode %q, %v; the kernel's default is shared", mode, err)
	}
	onThread(func() {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Errorf("unshare: %v", err)
			return
		}
		dev, err := DeviceByName("rxe0")
		if err != nil {
			t.Error(err)
			return
		}
		ports, err := Ports(dev)
		if err != nil || len(ports) != 1 || ports[0].Netdev != "" || ports[0].NetdevIndex != 0 || ports[0].State != ib.PortActive {
			t.Errorf("ports: %+v, %v", ports, err)
		}
	})
}

func TestKernelCopyOnFork(t *testing.T) {
	needKernel(t)
	cof, err := CopyOnFork()
	must(t, err)
	major, minor := kernelVersion(t)
	t.Logf("Linux %d.%d: %t", major, minor, cof)
	if !cof && (major > 5 || major == 5 && minor >= 12) {
		t.Errorf("no copy-on-fork on Linux %d.%d", major, minor)
	}
}
