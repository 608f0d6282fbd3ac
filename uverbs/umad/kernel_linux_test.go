package umad

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// openKernel opens port 1 of a device, which is closed at the end of the test.
func openKernel(t *testing.T, device string) *Port {
	t.Helper()
	p, err := Open(device, 1)
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	return p
}

// openInfiniBand opens port 1 of both devices of the rig, which must be on InfiniBand, and returns their
// LIDs.
func openInfiniBand(t *testing.T) (ports [2]*Port, lids [2]uint16) {
	t.Helper()
	testenv.Guest(t)
	testenv.NeedsInfiniBand(t, "subnet management")
	for i, name := range testenv.TheRig().Devices {
		ports[i] = openKernel(t, name)
		dev, err := netlinkrdma.DeviceByName(name)
		must(t, err)
		all, err := netlinkrdma.Ports(dev)
		must(t, err)
		lids[i] = uint16(all[0].LID)
	}
	return ports, lids
}

// query sends a request and decodes the answer.
func query[T any, A interface {
	*T
	mad.Attribute
}](t *testing.T, a *Agent, to Addr, req *mad.Packet) (answer T) {
	t.Helper()
	must(t, a.Query(t.Context(), to, req, A(&answer)))
	return answer
}

// TestKernelSubnet asks both nodes about themselves, by route and by LID.
func TestKernelSubnet(t *testing.T) {
	ports, lids := openInfiniBand(t)
	a := register(t, ports[0], AgentOptions{Class: mad.ClassSubnLID})
	for i, route := range [][]uint8{{}, {1}} {
		req, err := mad.NewDirectedSMP(mad.MethodGet, mad.AttrNodeInfo, 0, route...)
		must(t, err)
		info := query[mad.NodeInfo](t, a, Addr{}, req)
		dev, err := netlinkrdma.DeviceByName(testenv.TheRig().Devices[i])
		must(t, err)
		if info.NodeGUID != dev.NodeGUID || info.SystemImageGUID != dev.SysImageGUID || info.NodeType != ib.NodeCA || info.LocalPortNum != 1 {
			t.Errorf("node at the end of route %d: %+v, want %+v", route, info, dev)
		}
		want, err := netlinkrdma.Ports(dev)
		must(t, err)
		port := query[mad.PortInfo](t, a, Addr{LID: lids[i]}, portInfo(1))
		if port.LID != lids[i] || port.PortState != want[0].State || port.GIDPrefix != want[0].SubnetPrefix && want[0].SubnetPrefix != 0 ||
			uint32(port.MasterSMLID) != want[0].SMLID || port.CapabilityMask != uint32(want[0].CapFlags) {
			t.Errorf("port at LID %d: %+v, want %+v", lids[i], port, want[0])
		}
		if text := query[mad.NodeDescription](t, a, Addr{LID: lids[i]}, mad.NewSMP(mad.MethodGet, mad.AttrNodeDescription, 0)); text.NodeString == "" {
			t.Error("a node without a description")
		}
		if keys := query[mad.PKeyTable](t, a, Addr{LID: lids[i]}, mad.NewSMP(mad.MethodGet, mad.AttrPKeyTable, 0)); keys.PKey[0]&0x7fff != 0x7fff {
			t.Errorf("P_Keys %#x", keys.PKey)
		}
	}
	var status *mad.StatusError
	if _, err := a.Do(t.Context(), Addr{LID: lids[1]}, mad.NewSMP(mad.MethodGet, mad.AttrSwitchInfo, 0)); !errors.As(err, &status) {
		t.Errorf("SwitchInfo of an adapter: %v", err)
	}
}

// TestKernelConcurrent has more requests than the window, of many goroutines, on one agent.
func TestKernelConcurrent(t *testing.T) {
	ports, lids := openInfiniBand(t)
	a := register(t, ports[0], AgentOptions{Class: mad.ClassSubnLID, Timeout: 5 * time.Second})
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			var info mad.PortInfo
			if err := a.Query(t.Context(), Addr{LID: lids[i%2]}, portInfo(1), &info); err != nil || info.LID != lids[i%2] {
				t.Errorf("LID %d, %v, want LID %d", info.LID, err, lids[i%2])
			}
		})
	}
	wg.Wait()
}

// TestKernelTimeout asks a LID that nobody has.
func TestKernelTimeout(t *testing.T) {
	ports, _ := openInfiniBand(t)
	a := register(t, ports[0], AgentOptions{Class: mad.ClassSubnLID, Timeout: 50 * time.Millisecond, Tries: 2})
	var e *TimeoutError
	if _, err := a.Do(t.Context(), Addr{LID: 99}, portInfo(1)); !errors.As(err, &e) || e.Tries != 2 || e.To.LID != 99 || e.Waited < 100*time.Millisecond {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := a.Do(ctx, Addr{LID: 99}, portInfo(1)); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// TestKernelCounters asks for the counters of both ports.
func TestKernelCounters(t *testing.T) {
	ports, lids := openInfiniBand(t)
	a := register(t, ports[0], AgentOptions{Class: mad.ClassPerf})
	for _, lid := range lids {
		class := query[mad.ClassPortInfo](t, a, Addr{LID: lid}, mad.NewPerf(mad.MethodGet, mad.AttrClassPortInfo))
		if class.BaseVersion != 1 || class.ClassVersion != 1 {
			t.Errorf("LID %d: %+v", lid, class)
		}
		req := mad.NewPerf(mad.MethodGet, mad.AttrPortCounters)
		must(t, req.Put(&mad.PortCounters{PortSelect: 1}))
		if c := query[mad.PortCounters](t, a, Addr{LID: lid}, req); c.PortSelect != 1 {
			t.Errorf("LID %d: %+v", lid, c)
		}
		if class.CapabilityMask&mad.PerfExtended == 0 {
			t.Errorf("LID %d has no extended counters: %+v", lid, class)
		}
		must(t, req.Put(&mad.PortCountersExtended{PortSelect: 1}))
		if c := query[mad.PortCountersExtended](t, a, Addr{LID: lid}, req); c.PortSelect != 1 {
			t.Errorf("LID %d: %+v", lid, c)
		}
	}
}

// pingOptions are the options of an agent that answers pings.
var pingOptions = AgentOptions{Class: mad.ClassPing, OUI: mad.OUIOpenIB, Methods: []mad.Method{mad.MethodGet}}

// servePings answers pings until the test ends.
func servePings(t *testing.T, a *Agent) {
	t.Helper()
	done := make(chan error)
	go func() { done <- a.Serve(context.Background(), ping) }()
	t.Cleanup(func() {
		must(t, a.Close())
		if err := <-done; !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	})
}

// pingReply pings a port and returns what it answered.
func pingReply(ctx context.Context, a *Agent, to Addr) (string, error) {
	p, err := a.Do(ctx, to, mad.NewVendor(mad.ClassPing, mad.OUIOpenIB, mad.MethodGet, 0))
	if err != nil {
		return "", err
	}
	return strings.TrimRight(string(p.Data), "\x00"), nil
}

// TestKernelPing: both roles of a ping, between two ports of InfiniBand, or on one of RoCE. Nobody else can serve
// it meanwhile.
func TestKernelPing(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsIB(t, "management datagrams")
	rig := testenv.TheRig()
	// A MAD of RoCE that goes to this host stays in its device. The kernel finds the request to an answer
	// only if the GIDs are addresses of IPv6.
	peer, to := rig.Devices[0], Addr{GRH: true, GID: netip.MustParseAddr("fd00:1::1").As16(), GIDIndex: uint8(rig.GID6), HopLimit: 1}
	if rig.InfiniBand() {
		_, lids := openInfiniBand(t)
		peer, to = rig.Devices[1], Addr{LID: lids[1]}
	}
	server := openKernel(t, peer)
	servePings(t, register(t, server, pingOptions))
	if _, err := server.Register(pingOptions); !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "another agent") {
		t.Errorf("a second server: %v", err)
	}
	client := register(t, openKernel(t, rig.Devices[0]), AgentOptions{Class: mad.ClassPing})
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			if text, err := pingReply(t.Context(), client, to); err != nil || text != "here" {
				t.Errorf("%q, %v", text, err)
			}
		})
	}
	wg.Wait()
}

// TestIbping pings rdma-core's ibping, and is pinged by it.
func TestIbping(t *testing.T) {
	ports, lids := openInfiniBand(t)
	rig := testenv.TheRig()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	other := exec.CommandContext(ctx, "ibping", "-S", "-C", rig.Devices[1])
	must(t, other.Start())
	defer func() { cancel(); other.Wait() }()
	client := register(t, ports[0], AgentOptions{Class: mad.ClassPing})
	name, err := os.Hostname()
	must(t, err)
	for {
		text, err := pingReply(ctx, client, Addr{LID: lids[1]})
		if err == nil && strings.HasPrefix(text, name) {
			break
		}
		var status *mad.StatusError // the kernel refuses pings until the program serves them
		if err != nil && !errors.As(err, &status) {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	servePings(t, register(t, ports[0], pingOptions))
	out, err := exec.CommandContext(ctx, "ibping", "-c", "3", "-C", rig.Devices[1], strconv.Itoa(int(lids[0]))).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "Pong from here") || !strings.Contains(string(out), "3 received, 0% packet loss") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestKernelNoQP0: a port of RoCE has no subnet management, and the error says so.
func TestKernelNoQP0(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsRoCE(t, "ports without QP0")
	port := openKernel(t, testenv.TheRig().Devices[0])
	_, err := port.Register(AgentOptions{Class: mad.ClassSubnDirected})
	var e *Error
	if !errors.Is(err, ErrNoQP0) || !errors.Is(err, errors.ErrUnsupported) || !errors.As(err, &e) || e.Device != testenv.TheRig().Devices[0] || !strings.Contains(err.Error(), "RoCE") {
		t.Error(err)
	}
}

// TestKernelNoSMI: a port of a virtual function has no subnet management, which shows when an agent sends, and
// the error says so. Other agents work.
func TestKernelNoSMI(t *testing.T) {
	testenv.Boot(t, "GOVERBS_NO_SMI", "fabric/no-smi")
	testenv.Guest(t)
	testenv.NeedsInfiniBand(t, "ports without a subnet management interface")
	rig := testenv.TheRig()
	port := openKernel(t, rig.Devices[0])
	a := register(t, port, AgentOptions{Class: mad.ClassSubnLID})
	for _, route := range [][]uint8{nil, {1}} {
		req, err := mad.NewDirectedSMP(mad.MethodGet, mad.AttrNodeInfo, 0, route...)
		must(t, err)
		_, err = a.Do(t.Context(), Addr{}, req)
		noSMI(t, err)
	}
	_, err := a.Do(t.Context(), Addr{LID: 2}, portInfo(1))
	noSMI(t, err)
	noSMI(t, a.Send(Addr{LID: 2}, portInfo(1)))
	if _, err := OpenIsSM(rig.Devices[0], 1); !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "set IsSM") {
		t.Errorf("IsSM of a port without subnet management: %v", err)
	}
	req := mad.NewPerf(mad.MethodGet, mad.AttrPortCounters)
	must(t, req.Put(&mad.PortCounters{PortSelect: 1}))
	if c := query[mad.PortCounters](t, register(t, port, AgentOptions{Class: mad.ClassPerf}), Addr{LID: 2}, req); c.PortSelect != 1 {
		t.Errorf("counters of the other port: %+v", c)
	}
}

// noSMI checks the error of a port without a subnet management interface.
func noSMI(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, ErrNoQP0) || !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "subnet management interface") {
		t.Errorf("%v, want %v", err, ErrNoQP0)
	}
}

// TestKernelOpen: what the errors of opening say.
func TestKernelOpen(t *testing.T) {
	testenv.Guest(t)
	name := testenv.TheRig().Devices[0]
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocks it, so that the thread ends
		err := unix.Setfsuid(65534)
		if err == nil {
			_, err = Open(name, 1)
		}
		done <- err
	}()
	if err := <-done; !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "/dev/infiniband/umad0") || !strings.Contains(err.Error(), "mode -rw-------") {
		t.Error(err)
	}
	if _, err := Open(name, 2); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "allowed are ports 1 to 1") {
		t.Error(err)
	}
}

// TestKernelIsSM sets IsSM, which only one program can do at a time. Where opensm runs, it has done so on the
// first port.
func TestKernelIsSM(t *testing.T) {
	ports, lids := openInfiniBand(t)
	a := register(t, ports[0], AgentOptions{Class: mad.ClassSubnLID})
	for i, name := range testenv.TheRig().Devices {
		isSM := func() bool {
			return query[mad.PortInfo](t, a, Addr{LID: lids[i]}, portInfo(1)).CapabilityMask&mad.CapIsSM != 0
		}
		taken := i == 0 && os.Getenv("GOVERBS_SM") != ""
		if isSM() != taken {
			t.Errorf("%s: IsSM is %t, want %t", name, !taken, taken)
		}
		var sm *IsSM
		if !taken {
			var err error
			sm, err = OpenIsSM(name, 1)
			must(t, err)
		}
		if _, err := OpenIsSM(name, 1); !errors.Is(err, unix.EAGAIN) || !strings.Contains(err.Error(), "another program") {
			t.Errorf("%s: %v", name, err)
		}
		if !isSM() {
			t.Errorf("%s does not have IsSM", name)
		}
		if !taken {
			must(t, sm.Close(), sm.Close())
			if isSM() {
				t.Errorf("%s still has IsSM", name)
			}
		}
	}
}

// TestKernelRemoval: a call that waits ends when the device is removed.
func TestKernelRemoval(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsLinks(t)
	const name = "rxe_umad"
	must(t, netlinkrdma.AddLink(name, netlinkrdma.RXE, "lo"))
	port := openKernel(t, name)
	a := register(t, port, pingOptions)
	done := make(chan error)
	go func() {
		_, _, err := a.Receive(t.Context())
		done <- err
	}()
	must(t, netlinkrdma.DeleteLink(name))
	if err := <-done; !errors.Is(err, ErrDeviceRemoved) {
		t.Error(err)
	}
	_, err := port.Register(pingOptions)
	if sendErr := a.Send(Addr{LID: 1}, mad.NewVendor(mad.ClassPing, mad.OUIOpenIB, mad.MethodGet, 0)); !errors.Is(err, ErrDeviceRemoved) || !errors.Is(sendErr, ErrDeviceRemoved) {
		t.Errorf("register: %v; send: %v", err, sendErr)
	}
	must(t, a.Close())
}
