package netlinkrdma

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/netlinkrdma/internal/abi"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// twoDevices is a kernel with mlx5_0 (index 0, two ports) and rxe0 (index 5).
// Only rxe0 has a uverbs device.
func twoDevices(r request) []datagram {
	index := r.attrs.u32(abi.RDMA_NLDEV_ATTR_DEV_INDEX)
	switch {
	case r.cmd == abi.RDMA_NLDEV_CMD_GET && r.flags&unix.NLM_F_DUMP == unix.NLM_F_DUMP:
		return r.all(deviceReply(0, "mlx5_0", 2), deviceReply(5, "rxe0", 1,
			nla(abi.RDMA_NLDEV_ATTR_DEV_PROTOCOL, cstr("roce"))))
	case r.cmd == abi.RDMA_NLDEV_CMD_GET_CHARDEV && cString(r.attrs.attrs[abi.RDMA_NLDEV_ATTR_CHARDEV_TYPE]) == "uverbs" && index == 5:
		return r.one(charDevReply("uverbs1", nla(abi.RDMA_NLDEV_ATTR_UVERBS_DRIVER_ID, u32(14))))
	case r.cmd == abi.RDMA_NLDEV_CMD_GET_CHARDEV:
		return r.refuse(unix.EOPNOTSUPP)
	}
	return r.refuse(unix.EINVAL)
}

func TestDevices(t *testing.T) {
	got, err := fakeClient(t, twoDevices).devices()
	want := []Device{
		{Name: "mlx5_0", Index: 0, NodeType: ib.NodeCA, NodeGUID: 0x020000fffe000000, Ports: 2},
		{Name: "rxe0", Index: 5, NodeType: ib.NodeCA, NodeGUID: 0x020000fffe000005, Ports: 1,
			Protocol: ProtocolRoCE, DriverID: DriverRXE},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
}

// TestEFA: the kernel reports neither a protocol nor a LID nor a network interface of an EFA device.
func TestEFA(t *testing.T) {
	c := fakeClient(t, func(r request) []datagram {
		switch r.cmd {
		case abi.RDMA_NLDEV_CMD_GET:
			return r.all(deviceReply(0, "efa_0", 1, nla(abi.RDMA_NLDEV_ATTR_DEV_NODE_TYPE, []byte{byte(ib.NodeUnspecified)})),
				deviceReply(1, "other0", 1, nla(abi.RDMA_NLDEV_ATTR_DEV_NODE_TYPE, []byte{byte(ib.NodeUnspecified)})))
		case abi.RDMA_NLDEV_CMD_PORT_GET:
			return r.all(portReply("efa_0", 1))
		}
		driver := DriverEFA
		if r.attrs.u32(abi.RDMA_NLDEV_ATTR_DEV_INDEX) == 1 {
			driver = DriverUnknown
		}
		return r.one(charDevReply("uverbs0", nla(abi.RDMA_NLDEV_ATTR_UVERBS_DRIVER_ID, u32(uint32(driver)))))
	})
	devs, err := c.devices()
	if err != nil || len(devs) != 2 || devs[0].Protocol != ProtocolEFA || devs[1].Protocol != "" {
		t.Fatalf("%+v, %v: want protocol efa, and none", devs, err)
	}
	if d, _, err := c.uverbsByName("efa_0"); err != nil || d.Protocol != ProtocolEFA {
		t.Errorf("by name: %+v, %v", d, err)
	}
	want := []Port{{Num: 1, State: ib.PortActive, PhysState: ib.PhysLinkUp, LinkLayer: ib.LinkLayerUnspecified}}
	ports, err := c.ports(devs[0])
	if diff := cmp.Diff(want, ports); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
}

// TestUverbsByName: one is found at once, and otherwise the error is the same as for a search step
// by step.
func TestUverbsByName(t *testing.T) {
	asked := 0
	c := fakeClient(t, func(r request) []datagram { asked++; return twoDevices(r) })
	d, cd, err := c.uverbsByName("rxe0")
	if err != nil || d.Name != "rxe0" || d.Index != 5 || d.DriverID != DriverRXE || cd.Name != "uverbs1" || asked != 2 {
		t.Errorf("%+v, %+v, %v after %d questions, want rxe0 with uverbs1 after 2", d, cd, err, asked)
	}
	byName, _ := c.deviceByName("rxe0")
	char, _ := c.uverbsDev(byName)
	if diff := cmp.Diff([]any{byName, char}, []any{d, cd}); diff != "" {
		t.Errorf("step by step and at once differ:\n%s", diff)
	}
	_, want := c.deviceByName("rxe1")
	if _, _, err := c.uverbsByName("rxe1"); fmtError(err) != fmtError(want) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no such device: %v, want %v", err, want)
	}
	_, want = c.uverbsDev(Device{Name: "mlx5_0"})
	if d, _, err := c.uverbsByName("mlx5_0"); fmtError(err) != fmtError(want) || d.Name != "mlx5_0" {
		t.Errorf("no character device: %+v, %v, want mlx5_0 and %v", d, err, want)
	}
}

func TestNoDevices(t *testing.T) {
	c := fakeClient(t, func(r request) []datagram { return r.all() })
	devs, err := c.devices()
	if err != nil || len(devs) != 0 {
		t.Errorf("%v, %v", devs, err)
	}
	_, err = c.deviceByName("rxe0")
	const want = `netlinkrdma: find device "rxe0": no such RDMA device; there is no RDMA device in this network namespace`
	if fmtError(err) != want || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestDeviceByName(t *testing.T) {
	c := fakeClient(t, twoDevices)
	d, err := c.deviceByName("rxe0")
	if err != nil || d.Index != 5 {
		t.Errorf("%+v, %v", d, err)
	}
	_, err = c.deviceByName("rxe")
	const want = `netlinkrdma: find device "rxe": no such RDMA device; known devices: mlx5_0, rxe0`
	if fmtError(err) != want || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, want %s", err, want)
	}
}

// Other messages on the socket do not disturb an answer: one that belongs to an earlier request, a
// NOOP, a dump in many datagrams.
func TestDisturbedDump(t *testing.T) {
	c := fakeClient(t, func(r request) []datagram {
		if r.cmd != abi.RDMA_NLDEV_CMD_GET {
			return r.refuse(unix.EOPNOTSUPP)
		}
		late := r
		late.seq--
		noop := r.end(0)
		noop.Header.Type = unix.NLMSG_NOOP
		done := r.end(0)
		done.Data = nil // ends of dumps had no errno once
		return []datagram{
			{late.data(0, deviceReply(9, "old", 1)), late.end(unix.ENODEV)},
			{r.data(unix.NLM_F_MULTI, deviceReply(0, "a", 1)), noop},
			{r.data(unix.NLM_F_MULTI, deviceReply(1, "b", 1))},
			{},
			{done},
		}
	})
	devs, err := c.devices()
	if err != nil || len(devs) != 2 || devs[0].Name != "a" || devs[1].Name != "b" {
		t.Errorf("%+v, %v", devs, err)
	}
}

// Only the kernel can answer.
func TestForgedAnswer(t *testing.T) {
	c := fakeClient(t, twoDevices)
	dial := c.dial
	c.dial = func() (socket, error) {
		s, err := dial()
		s.(*fakeSocket).from = 4711
		return s, err
	}
	if devs, err := c.devices(); err == nil || !strings.Contains(err.Error(), "no answer within 60 s") {
		t.Errorf("%+v, %v", devs, err)
	}
}

// An answer of the kernel is final: sysfs has a device here, and is not asked.
func TestFinalAnswer(t *testing.T) {
	answers := map[string]struct {
		kernel fakeKernel
		want   string
	}{
		"refused": {func(r request) []datagram { return r.refuse(unix.EPERM) }, "operation not permitted"},
		"fails half way": {func(r request) []datagram {
			return []datagram{{r.data(unix.NLM_F_MULTI, deviceReply(0, "a", 1))}, {r.end(unix.EMSGSIZE)}}
		}, "message too long"},
		"malformed": {func(r request) []datagram { return r.all([]byte{1}) }, "netlink attribute: 1 bytes left, a header needs 4"},
		"overrun": {func(r request) []datagram {
			m := r.end(0)
			m.Header.Type = unix.NLMSG_OVERRUN
			return []datagram{{m}}
		}, "netlink lost a message"},
	}
	for name, tt := range answers {
		c := fakeClient(t, tt.kernel)
		c.sysfs = sysfsTree()
		if devs, err := c.devices(); fmtError(err) != "netlinkrdma: list devices: "+tt.want {
			t.Errorf("%s: %+v, %v, want %q", name, devs, err, tt.want)
		}
	}
}

func TestUnreachable(t *testing.T) {
	policy := "a security policy or sandbox forbids NETLINK_RDMA sockets; in a container: --security-opt seccomp=FILE that allows socket(), or let it have /sys"
	for _, tt := range []struct {
		errno syscall.Errno
		hint  string
	}{
		{unix.EPROTONOSUPPORT, "RDMA core not loaded: modprobe ib_uverbs, and for software RoCE rdma_rxe"},
		{unix.EACCES, policy},
		{unix.EPERM, policy},
		{unix.EMFILE, ""},
	} {
		c := deafClient(tt.errno, fstest.MapFS{})
		_, devErr := c.devices()
		_, nameErr := c.deviceByName("rxe0")
		_, portErr := c.ports(Device{Name: "rxe0"})
		_, uverbsErr := c.uverbsDev(Device{Name: "rxe0"})
		_, cmErr := c.cmDev()
		_, forkErr := c.copyOnFork()
		for _, err := range []error{devErr, nameErr, portErr, uverbsErr, cmErr, forkErr,
			c.addLink("rxe0", RXE, "eth0"), c.deleteLink("rxe0")} {
			var e *Error
			if !errors.As(err, &e) || !errors.Is(err, tt.errno) || e.Hint != tt.hint {
				t.Errorf("%v: %v, want hint %q", tt.errno, err, tt.hint)
			}
		}
		want := fmt.Sprintf("netlinkrdma: list devices: over netlink: %v; from sysfs: open class/infiniband: file does not exist", tt.errno)
		if !strings.HasPrefix(fmtError(devErr), want) {
			t.Errorf("%v\nwant %s", devErr, want)
		}
	}
}

// A kernel that falls silent after the list leaves the drivers unknown; that is
// not the same as a kernel that says so.
func TestSilentKernel(t *testing.T) {
	c := fakeClient(t, func(r request) []datagram {
		if r.cmd == abi.RDMA_NLDEV_CMD_GET {
			return r.all(deviceReply(0, "mlx5_0", 2))
		}
		return nil
	})
	if devs, err := c.devices(); err == nil || !strings.Contains(err.Error(), "no answer within 60 s") {
		t.Errorf("%+v, %v", devs, err)
	}
}

func TestPorts(t *testing.T) {
	c := fakeClient(t, func(r request) []datagram {
		if r.cmd != abi.RDMA_NLDEV_CMD_PORT_GET || r.flags&unix.NLM_F_DUMP != unix.NLM_F_DUMP ||
			r.attrs.u32(abi.RDMA_NLDEV_ATTR_DEV_INDEX) != 7 {
			t.Errorf("unexpected request %+v", r)
		}
		// A device with a RoCE and an InfiniBand port.
		return r.all(portReply("mlx5_7", 1, nla(abi.RDMA_NLDEV_ATTR_NDEV_INDEX, u32(3)),
			nla(abi.RDMA_NLDEV_ATTR_NDEV_NAME, cstr("eth1"))), goldenIBPort)
	})
	got, err := c.ports(Device{Name: "mlx5_7", Index: 7, Ports: 2})
	if err != nil || len(got) != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	want := Port{Num: 1, State: ib.PortActive, PhysState: ib.PhysLinkUp, LinkLayer: ib.LinkLayerEthernet, Netdev: "eth1", NetdevIndex: 3}
	if diff := cmp.Diff(want, got[0]); diff != "" {
		t.Error(diff)
	}
	if got[1].LinkLayer != ib.LinkLayerInfiniBand || got[1].LID != 42 {
		t.Errorf("second port: %+v", got[1])
	}
}

// brokenPort is a kernel whose driver cannot query port 2 of 3: dumps end there.
func brokenPort(r request) []datagram {
	switch num := r.attrs.u32(abi.RDMA_NLDEV_ATTR_PORT_INDEX); {
	case r.flags&unix.NLM_F_DUMP != 0:
		return r.all(portReply("x", 1))
	case num == 2:
		return r.refuse(unix.EINVAL)
	default:
		return r.one(portReply("x", num))
	}
}

func TestPortsWithOneBroken(t *testing.T) {
	ports, err := fakeClient(t, brokenPort).ports(Device{Name: "x", Ports: 3})
	const want = "netlinkrdma: list ports of x: port 2: invalid argument"
	if fmtError(err) != want || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, want %s", err, want)
	}
	if len(ports) != 2 || ports[0].Num != 1 || ports[1].Num != 3 {
		t.Errorf("other ports: %+v", ports)
	}
}

// The result has the order of the ports, whatever the order of the answers.
func TestPortsOrder(t *testing.T) {
	ports, err := fakeClient(t, func(r request) []datagram {
		if r.flags&unix.NLM_F_DUMP != 0 {
			return r.all(portReply("x", 3), portReply("x", 2))
		}
		return r.one(portReply("x", 1))
	}).ports(Device{Name: "x", Ports: 3})
	if err != nil || len(ports) != 3 || ports[0].Num != 1 || ports[1].Num != 2 || ports[2].Num != 3 {
		t.Errorf("%+v, %v", ports, err)
	}
}

func TestPortsOfGoneDevice(t *testing.T) {
	for name, kernel := range map[string]fakeKernel{
		"unplugged": func(r request) []datagram { return r.refuse(unix.EINVAL) },
		"renamed":   func(r request) []datagram { return r.all(portReply("rxe1", 1)) },
	} {
		ports, err := fakeClient(t, kernel).ports(Device{Name: "rxe0", Index: 5, Ports: 1})
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "index 5") {
			t.Errorf("%s: %+v, %v", name, ports, err)
		}
	}
}

func TestUverbsDev(t *testing.T) {
	c := fakeClient(t, twoDevices)
	cd, err := c.uverbsDev(Device{Name: "rxe0", Index: 5})
	want := CharDev{Name: "uverbs1", Major: 231, Minor: 193, ABI: 2, DriverID: DriverRXE}
	if diff := cmp.Diff(want, cd); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	_, err = c.uverbsDev(Device{Name: "mlx5_0"})
	if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "modprobe ib_uverbs") {
		t.Errorf("without ib_uverbs: %v", err)
	}
	c = fakeClient(t, func(r request) []datagram { return r.refuse(unix.EINVAL) })
	if _, err = c.uverbsDev(Device{Name: "rxe0", Index: 5}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("device gone: %v", err)
	}
}

func TestUMADDev(t *testing.T) {
	dev := Device{Name: "mlx5_0", Index: 3, Ports: 2}
	onSystem(t, func(r request) []datagram {
		client := cString(r.attrs.attrs[abi.RDMA_NLDEV_ATTR_CHARDEV_TYPE])
		if r.cmd != abi.RDMA_NLDEV_CMD_GET_CHARDEV || r.attrs.u32(abi.RDMA_NLDEV_ATTR_DEV_INDEX) != 3 ||
			r.attrs.u32(abi.RDMA_NLDEV_ATTR_PORT_INDEX) != 2 {
			t.Errorf("unexpected request %+v", r)
		}
		return r.one(charDevReply(client + "1"))
	})
	umad, err1 := UMADDev(dev, 2)
	issm, err2 := ISSMDev(dev, 2)
	if err := errors.Join(err1, err2); err != nil || umad.Name != "umad1" || issm.Name != "issm1" {
		t.Errorf("%+v, %+v, %v", umad, issm, err)
	}
	for _, port := range []uint32{0, 3} {
		if _, err := UMADDev(dev, port); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "ports 1 to 2") {
			t.Errorf("port %d: %v", port, err)
		}
	}
	for errno, want := range map[unix.Errno]error{unix.EOPNOTSUPP: errors.ErrUnsupported, unix.EINVAL: fs.ErrNotExist} {
		c := fakeClient(t, func(r request) []datagram { return r.refuse(errno) })
		c.sysfs = sysfsTree()
		errorIs(t, second(c.madDev(dev, 2, clientUMAD)), want, "%v", errno)
		if cd, err := c.madDev(dev, 2, clientISSM); (err == nil) != (errno == unix.EOPNOTSUPP) || err == nil && cd.Name != "issm0" {
			t.Errorf("issm, which kernels do not find: %+v, %v", cd, err)
		}
	}
}

func TestCMDev(t *testing.T) {
	c := fakeClient(t, func(r request) []datagram {
		if r.cmd != abi.RDMA_NLDEV_CMD_GET_CHARDEV || r.attrs.has(abi.RDMA_NLDEV_ATTR_DEV_INDEX) ||
			string(r.attrs.attrs[abi.RDMA_NLDEV_ATTR_CHARDEV_TYPE]) != "rdma_cm\x00" {
			t.Errorf("unexpected request %+v", r)
		}
		return r.one(charDevReply("rdma_cm"))
	})
	cd, err := c.cmDev()
	if diff := cmp.Diff(CharDev{Name: "rdma_cm", Major: 231, Minor: 193, ABI: 2}, cd); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	c = fakeClient(t, func(r request) []datagram { return r.refuse(unix.EOPNOTSUPP) })
	if _, err = c.cmDev(); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "modprobe rdma_ucm") {
		t.Errorf("without rdma_ucm: %v", err)
	}
}

// A kernel must not send nothing, or two, where one reply is due.
func TestReplyCount(t *testing.T) {
	for n := range 3 {
		c := fakeClient(t, func(r request) []datagram {
			return []datagram{slices.Repeat(datagram{r.data(0, charDevReply("rdma_cm"))}, n), {r.end(0)}}
		})
		if _, err := c.cmDev(); (err == nil) != (n == 1) {
			t.Errorf("%d replies: %v", n, err)
		}
	}
}

func TestCopyOnFork(t *testing.T) {
	for _, tt := range []struct {
		reply []byte
		want  bool
	}{
		{nil, false}, // before Linux 5.12
		{nla(abi.RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK, []byte{0}), false},
		{nla(abi.RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK, []byte{1}), true},
	} {
		c := fakeClient(t, func(r request) []datagram {
			if r.cmd != abi.RDMA_NLDEV_CMD_SYS_GET {
				t.Errorf("unexpected request %+v", r)
			}
			return r.one(nla(abi.RDMA_NLDEV_SYS_ATTR_NETNS_MODE, []byte{1}), tt.reply)
		})
		if got, err := c.copyOnFork(); got != tt.want || err != nil {
			t.Errorf("%x: %t, %v", tt.reply, got, err)
		}
	}
	c := fakeClient(t, func(r request) []datagram { return r.one([]byte{1}) })
	if got, err := c.copyOnFork(); err == nil {
		t.Errorf("malformed reply: %t", got)
	}
}

// TestSandbox: a sandbox is known by the release of its kernel. No hint there tells to load a module, and what is missing is
// missing in the sandbox.
func TestSandbox(t *testing.T) {
	for release, want := range map[string]string{"4.19.0-gvisor": "gVisor", "5.15.0-gvisor": "gVisor", "6.12.0-amd64": "", "": ""} {
		if got := sandboxOf(release); got != want {
			t.Errorf("%q is %q, want %q", release, got, want)
		}
	}
	before := sandbox
	t.Cleanup(func() { sandbox = before })
	sandbox = func() string { return "gVisor" }
	c := deafClient(unix.EPROTONOSUPPORT, fstest.MapFS{})
	_, devErr := c.devices()
	_, cmErr := fakeClient(t, refusing(unix.EOPNOTSUPP)).cmDev()
	for _, err := range []error{devErr, cmErr} {
		if !strings.HasSuffix(err.Error(), "; the sandbox gVisor does not offer it") || strings.Contains(err.Error(), "modprobe") {
			t.Errorf("the hint is of another kernel: %v", err)
		}
	}
	_, err := fakeClient(t, refusing(unix.EOPNOTSUPP)).portCounters(fakeRXE, 1)
	var f *FeatureError
	if !errors.As(err, &f) || f.Sandbox != "gVisor" || !strings.Contains(err.Error(), " not supported by the sandbox gVisor: ") {
		t.Errorf("port counters: %v", err)
	}
}
