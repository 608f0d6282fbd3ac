package netlinkrdma

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/netlinkrdma/internal/abi"
)

// rxeKernel is a kernel with rxe0 at index 5, which leaves commands other than that
// for the device to f.
func rxeKernel(f fakeKernel) fakeKernel {
	return func(r request) []datagram {
		index := r.attrs.u32(abi.RDMA_NLDEV_ATTR_DEV_INDEX)
		switch {
		case r.cmd == abi.RDMA_NLDEV_CMD_SYS_GET || r.cmd == abi.RDMA_NLDEV_CMD_SYS_SET:
			return f(r)
		case index != 5:
			return r.refuse(unix.EINVAL)
		case r.cmd == abi.RDMA_NLDEV_CMD_GET:
			return r.one(deviceReply(5, "rxe0", 2))
		}
		return f(r)
	}
}

var fakeRXE = Device{Name: "rxe0", Index: 5, Ports: 2, DriverID: DriverRXE}

// refusing answers everything with an errno.
func refusing(errno unix.Errno) fakeKernel {
	return func(r request) []datagram { return r.refuse(errno) }
}

// deviceCalls has every function that concerns a device.
var deviceCalls = map[string]func(*client, Device) error{
	"resources": func(c *client, d Device) error {
		return second(c.resources(d, ListOptions{}, abi.RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_CURR))
	},
	"QPs":        func(c *client, d Device) error { return second(list(c, d, qps)) },
	"QP":         func(c *client, d Device) error { return second(one(c, d, qps, 1, 17)) },
	"contexts":   func(c *client, d Device) error { return second(list(c, d, contexts)) },
	"counters":   func(c *client, d Device) error { return second(c.netlinkCounters(d, 1)) },
	"status":     func(c *client, d Device) error { return second(c.portCounterStatus(d, 1)) },
	"mode":       func(c *client, d Device) error { return second(c.qpCounterSetting(d, 1)) },
	"auto":       func(c *client, d Device) error { return c.setAutoQPCounters(d, 1, GroupByPID, false) },
	"bind":       func(c *client, d Device) error { return second(c.bindQPCounter(d, 1, 17, nil)) },
	"unbind":     func(c *client, d Device) error { return c.unbindQPCounter(d, 1, 17, 4) },
	"rename":     func(c *client, d Device) error { return c.renameDevice(d, "rxe7") },
	"move":       func(c *client, d Device) error { return c.moveDevice(d, "", os.Stdin) },
	"move as":    func(c *client, d Device) error { return c.moveDevice(d, "rxe7", os.Stdin) },
	"moderation": func(c *client, d Device) error { return c.setAdaptiveModeration(d, true) },
	"raw":        func(c *client, d Device) error { return second(c.raw(d, RawOptions{Kind: RawQP, ID: 17, Port: 1})) },
	"raw list":   func(c *client, d Device) error { return second(c.rawList(d, RawSRQ)) },
	"pools":      func(c *client, d Device) error { return second(list(c, d, frmrPools)) },
	"pin":        func(c *client, d Device) error { return c.pinFRMRs(d, FRMRKey{DMABlocks: 16}, 8) },
	"aging":      func(c *client, d Device) error { return c.setFRMRAging(d, time.Minute) },
	"add dev":    func(c *client, d Device) error { return c.addSubDevice(d, "smi0", DeviceTypeSMI) },
	"delete dev": func(c *client, d Device) error { return c.deleteSubDevice(d) },
}

func TestDeviceCallsRefused(t *testing.T) {
	answered := func(errno unix.Errno) *client { return fakeClient(t, rxeKernel(refusing(errno))) }
	for name, call := range deviceCalls {
		if err := call(answered(unix.EPERM), fakeRXE); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
			t.Errorf("%s: EPERM became %v", name, err)
		}
		stale := fakeRXE
		stale.Name = "rxe1"
		gone := fakeRXE
		gone.Index = 6
		for _, d := range []Device{stale, gone} {
			if err := call(answered(0), d); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), d.Name) {
				t.Errorf("%s of %s with index %d: %v", name, d.Name, d.Index, err)
			}
		}
		sysfs := fakeRXE
		sysfs.FromSysfs = true
		errorIs(t, call(answered(0), sysfs), errNoIndex, "%s of a device from sysfs", name)
		if err := call(deafClient(unix.EPROTONOSUPPORT, nil), fakeRXE); !errors.Is(err, unix.EPROTONOSUPPORT) || !strings.Contains(err.Error(), "modprobe ib_uverbs") {
			t.Errorf("%s without netlink: %v", name, err)
		}
	}
}

// A device that goes away between two messages is gone, and its EINVAL no missing
// feature.
func TestGoneMeanwhile(t *testing.T) {
	for name, call := range deviceCalls {
		asked := 0
		c := fakeClient(t, func(r request) []datagram {
			asked++
			if r.cmd == abi.RDMA_NLDEV_CMD_GET && asked == 1 {
				return r.one(deviceReply(5, "rxe0", 2))
			}
			return r.refuse(unix.EINVAL)
		})
		if err := call(c, fakeRXE); !errors.Is(err, fs.ErrNotExist) || errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: %v, want fs.ErrNotExist", name, err)
		}
	}
}

func TestMissingFeatures(t *testing.T) {
	for _, tt := range []struct {
		call  string
		errno unix.Errno
		want  string
		since Version
	}{
		{"contexts", unix.EINVAL, "list of contexts not supported by this kernel (needs Linux 5.13): list contexts of rxe0: invalid argument", Version{5, 13}},
		{"counters", unix.EINVAL, "hardware counters not supported by driver rxe: read counters of rxe0: invalid argument", Version{}},
		{"status", unix.EINVAL, "hardware counters not supported by driver rxe: read counters of rxe0: invalid argument", Version{}},
		{"bind", unix.ENOMEM, "counters of QPs not supported by driver rxe: give a counter to QP 17 of rxe0", Version{}},
		{"auto", unix.EOPNOTSUPP, "counters of QPs not supported by driver rxe", Version{}},
		{"move", unix.EOPNOTSUPP, "netns mode is shared) not supported by driver rxe", Version{}},
		{"raw", unix.EINVAL, "raw dump of QPs, at least of this one, not supported by driver rxe: dump QP 17 of rxe0: invalid argument", Version{}},
		{"raw", unix.EOPNOTSUPP, "raw dump of QPs, at least of this one, not supported by driver rxe", Version{}},
		{"raw list", unix.EINVAL, "raw dump of SRQs (Linux 6.7 or later) not supported by driver rxe: list raw SRQs of rxe0", Version{}},
		{"pools", unix.EINVAL, "FRMR pools not supported by this kernel (needs Linux 7.1): list FRMR pools of rxe0", Version{7, 1}},
		{"pin", unix.EINVAL, "FRMR pool with this key not supported by this kernel (needs Linux 7.1)", Version{7, 1}},
		{"pin", unix.EOPNOTSUPP, "FRMR pool with this key not supported by driver rxe: pin 8 memory regions with key 0:10:0:0 of rxe0", Version{}},
		{"aging", unix.EINVAL, "FRMR pools not supported by this kernel (needs Linux 7.1)", Version{7, 1}},
		{"add dev", unix.EINVAL, "sub-device of type SMI not supported by this kernel (needs Linux 6.11)", Version{6, 11}},
		{"add dev", unix.EOPNOTSUPP, "sub-device of type SMI not supported by driver rxe: add device smi0 of type SMI to rxe0", Version{}},
		{"delete dev", unix.EINVAL, "deletion of sub-devices not supported by this kernel (needs Linux 6.11)", Version{6, 11}},
	} {
		err := deviceCalls[tt.call](fakeClient(t, rxeKernel(refusing(tt.errno))), fakeRXE)
		var f *FeatureError
		if !errors.As(err, &f) || !errors.Is(err, errors.ErrUnsupported) || !errors.Is(err, tt.errno) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", tt.call, err, tt.want)
			continue
		}
		if f.Since != tt.since || (f.Driver == "") != (tt.since != Version{}) {
			t.Errorf("%s: since %v, driver %q, want since %v", tt.call, f.Since, f.Driver, tt.since)
		}
	}
	// An error of a command that every kernel has is no missing feature.
	for _, call := range []string{"QPs", "resources", "bind", "rename"} {
		err := deviceCalls[call](fakeClient(t, rxeKernel(refusing(unix.EINVAL))), fakeRXE)
		if errors.Is(err, errors.ErrUnsupported) || !errors.Is(err, unix.EINVAL) {
			t.Errorf("%s: %v", call, err)
		}
	}
	err := fakeClient(t, refusing(unix.EINVAL)).setPrivilegedQKey(true)
	if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "needs Linux 6.7") {
		t.Errorf("privileged Q_Key mode: %v", err)
	}
}

func TestBadPort(t *testing.T) {
	c := fakeClient(t, refusing(unix.EIO))
	for _, port := range []uint32{0, 3} {
		_, err := c.portCounters(fakeRXE, port)
		if !errors.Is(err, noPort{}) || !strings.Contains(err.Error(), "allowed are 1 to 2") {
			t.Errorf("port %d: %v", port, err)
		}
	}
}

// optionalCounter is the answer about a port with two counters, of which the second is optional.
var optionalCounter = nest(abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTERS,
	nest(abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY,
		nla(abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_NAME, cstr("always")), nla(abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_INDEX, u32(0))),
	nest(abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY,
		nla(abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_NAME, cstr("cc_rx_ce_pkts")), nla(abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_INDEX, u32(9)),
		nla(abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_DYNAMIC, []byte{0})))

// What the requests say.
func TestRequests(t *testing.T) {
	type attrs map[int][]byte
	dev, port1 := u32(5), u32(1)
	for _, tt := range []struct {
		name string
		call func(c *client) error
		cmd  int
		want attrs
	}{
		{"QP", deviceCall("QP"), abi.RDMA_NLDEV_CMD_RES_QP_GET,
			attrs{abi.RDMA_NLDEV_ATTR_DEV_INDEX: dev, abi.RDMA_NLDEV_ATTR_PORT_INDEX: port1, abi.RDMA_NLDEV_ATTR_RES_LQPN: u32(17)}},
		{"PD", func(c *client) error { return second(one(c, fakeRXE, pds, 0, 3)) }, abi.RDMA_NLDEV_CMD_RES_PD_GET,
			attrs{abi.RDMA_NLDEV_ATTR_DEV_INDEX: dev, abi.RDMA_NLDEV_ATTR_RES_PDN: u32(3)}},
		{"rename", deviceCall("rename"), abi.RDMA_NLDEV_CMD_SET,
			attrs{abi.RDMA_NLDEV_ATTR_DEV_INDEX: dev, abi.RDMA_NLDEV_ATTR_DEV_NAME: cstr("rxe7")}},
		{"move", deviceCall("move"), abi.RDMA_NLDEV_CMD_SET,
			attrs{abi.RDMA_NLDEV_ATTR_DEV_INDEX: dev, abi.RDMA_NLDEV_NET_NS_FD: u32(uint32(os.Stdin.Fd()))}},
		{"move as", deviceCall("move as"), abi.RDMA_NLDEV_CMD_SET,
			attrs{abi.RDMA_NLDEV_ATTR_DEV_INDEX: dev, abi.RDMA_NLDEV_ATTR_DEV_NAME: cstr("rxe7"), abi.RDMA_NLDEV_NET_NS_FD: u32(uint32(os.Stdin.Fd()))}},
		{"moderation", deviceCall("moderation"), abi.RDMA_NLDEV_CMD_SET,
			attrs{abi.RDMA_NLDEV_ATTR_DEV_INDEX: dev, abi.RDMA_NLDEV_ATTR_DEV_DIM: {1}}},
		{"netns mode", func(c *client) error { return c.setNetNSMode(NetNSExclusive) }, abi.RDMA_NLDEV_CMD_SYS_SET,
			attrs{abi.RDMA_NLDEV_SYS_ATTR_NETNS_MODE: {0}}},
		{"Q_Key", func(c *client) error { return c.setPrivilegedQKey(true) }, abi.RDMA_NLDEV_CMD_SYS_SET,
			attrs{abi.RDMA_NLDEV_SYS_ATTR_PRIVILEGED_QKEY_MODE: {1}}},
		{"auto", func(c *client) error { return c.setAutoQPCounters(fakeRXE, 1, GroupByQPType|GroupByPID, true) }, abi.RDMA_NLDEV_CMD_STAT_SET,
			attrs{abi.RDMA_NLDEV_ATTR_DEV_INDEX: dev, abi.RDMA_NLDEV_ATTR_PORT_INDEX: port1, abi.RDMA_NLDEV_ATTR_STAT_RES: u32(19),
				abi.RDMA_NLDEV_ATTR_STAT_MODE: u32(1), abi.RDMA_NLDEV_ATTR_STAT_AUTO_MODE_MASK: u32(3), abi.RDMA_NLDEV_ATTR_STAT_OPCOUNTER_ENABLED: {1}}},
		{"bind", func(c *client) error { id := uint32(0); return second(c.bindQPCounter(fakeRXE, 1, 17, &id)) }, abi.RDMA_NLDEV_CMD_STAT_SET,
			attrs{abi.RDMA_NLDEV_ATTR_DEV_INDEX: dev, abi.RDMA_NLDEV_ATTR_PORT_INDEX: port1, abi.RDMA_NLDEV_ATTR_STAT_RES: u32(19),
				abi.RDMA_NLDEV_ATTR_STAT_MODE: u32(2), abi.RDMA_NLDEV_ATTR_RES_LQPN: u32(17), abi.RDMA_NLDEV_ATTR_STAT_COUNTER_ID: u32(0)}},
		{"unbind", deviceCall("unbind"), abi.RDMA_NLDEV_CMD_STAT_DEL,
			attrs{abi.RDMA_NLDEV_ATTR_DEV_INDEX: dev, abi.RDMA_NLDEV_ATTR_PORT_INDEX: port1, abi.RDMA_NLDEV_ATTR_STAT_RES: u32(19),
				abi.RDMA_NLDEV_ATTR_RES_LQPN: u32(17), abi.RDMA_NLDEV_ATTR_STAT_COUNTER_ID: u32(4)}},
		{"optional counters", func(c *client) error { return c.setOptionalCounters(fakeRXE, 1, []string{"cc_rx_ce_pkts"}) }, abi.RDMA_NLDEV_CMD_STAT_SET,
			attrs{abi.RDMA_NLDEV_ATTR_DEV_INDEX: dev, abi.RDMA_NLDEV_ATTR_PORT_INDEX: port1,
				abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTERS: nla(abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_INDEX, u32(9))}},
	} {
		var got *message
		c := fakeClient(t, rxeKernel(func(r request) []datagram {
			switch r.cmd {
			case tt.cmd:
				got = r.attrs
				return r.one(nla(abi.RDMA_NLDEV_ATTR_STAT_COUNTER_ID, u32(0)))
			case abi.RDMA_NLDEV_CMD_STAT_GET, abi.RDMA_NLDEV_CMD_STAT_GET_STATUS:
				if r.cmd == abi.RDMA_NLDEV_CMD_STAT_GET {
					return r.one(nest(abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTERS, goldenCounter))
				}
				return r.one(optionalCounter)
			}
			return r.refuse(unix.EIO)
		}))
		err := tt.call(c)
		if got == nil {
			t.Errorf("%s: the request did not come: %v", tt.name, err)
			continue
		}
		for typ, want := range tt.want {
			if !slices.Equal(got.attrs[typ], want) {
				t.Errorf("%s: attribute %d is %x, want %x", tt.name, typ, got.attrs[typ], want)
			}
		}
		if len(got.attrs) != len(tt.want) {
			t.Errorf("%s: %d attributes, want %d", tt.name, len(got.attrs), len(tt.want))
		}
	}
}

// TestNotOptional checks the error for a counter that is not optional.
func TestNotOptional(t *testing.T) {
	c := fakeClient(t, rxeKernel(func(r request) []datagram {
		if r.cmd == abi.RDMA_NLDEV_CMD_STAT_GET {
			return r.one(nest(abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTERS, goldenCounter))
		}
		return r.one(optionalCounter)
	}))
	err := c.setOptionalCounters(fakeRXE, 1, []string{"cc_rx_ce_pkts", "always"})
	if !errors.Is(err, errNoCounter) || !strings.Contains(err.Error(), `"always"`) || !strings.Contains(err.Error(), `["cc_rx_ce_pkts"]`) {
		t.Errorf("a counter that is not optional: %v", err)
	}
}

func deviceCall(name string) func(*client) error {
	return func(c *client) error { return deviceCalls[name](c, fakeRXE) }
}

// A list that comes in several messages is one.
func TestListInPieces(t *testing.T) {
	entry := func(id uint32) []byte {
		return nla(abi.RDMA_NLDEV_ATTR_RES_CTX_ENTRY, nla(abi.RDMA_NLDEV_ATTR_RES_CTXN, u32(id)))
	}
	c := fakeClient(t, rxeKernel(func(r request) []datagram {
		if r.flags&unix.NLM_F_DUMP != unix.NLM_F_DUMP {
			t.Errorf("flags %#x", r.flags)
		}
		return r.all(nla(abi.RDMA_NLDEV_ATTR_RES_CTX, slices.Concat(entry(1), entry(2))),
			nla(abi.RDMA_NLDEV_ATTR_RES_CTX, nil), nla(abi.RDMA_NLDEV_ATTR_RES_CTX, entry(7)))
	}))
	got, err := list(c, fakeRXE, contexts)
	if err != nil || !slices.Equal(got, []Context{{ID: 1}, {ID: 2}, {ID: 7}}) {
		t.Errorf("%+v, %v", got, err)
	}
	c = fakeClient(t, rxeKernel(func(r request) []datagram {
		return r.all(nla(abi.RDMA_NLDEV_ATTR_RES_CTX, entry(1)), nla(abi.RDMA_NLDEV_ATTR_RES_CTX, []byte{1}))
	}))
	if got, err := list(c, fakeRXE, contexts); err == nil || got != nil {
		t.Errorf("malformed: %+v, %v", got, err)
	}
}

func TestMonitorMissing(t *testing.T) {
	c := fakeClient(t, func(r request) []datagram { return r.one(nla(abi.RDMA_NLDEV_SYS_ATTR_NETNS_MODE, []byte{1})) })
	_, err := c.openMonitor()
	const want = "netlinkrdma: monitor not supported by this kernel (needs Linux 6.12)"
	if !errors.Is(err, errors.ErrUnsupported) || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// fakeMonitor is a monitor whose kernel is the other end of a socket pair.
func fakeMonitor(t *testing.T) (m *Monitor, kernel int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	must(t, err)
	m = newMonitor(fds[0], func(fd int, b []byte) (int, bool, error) {
		n, err := unix.Read(fd, b)
		switch {
		case err == nil && string(b[:n]) == "ENOBUFS":
			return 0, false, unix.ENOBUFS
		case err == nil && string(b[:n]) == "forged":
			return copy(b, b[n:]), false, nil
		case err == nil && string(b[:n]) == "long":
			return len(b) + 1, true, nil
		}
		return n, true, err
	})
	t.Cleanup(func() { m.Close(); unix.Close(fds[1]) })
	return m, fds[1]
}

func TestMonitorNext(t *testing.T) {
	m, kernel := fakeMonitor(t)
	send := func(b []byte) {
		t.Helper()
		if _, err := unix.Write(kernel, b); err != nil {
			t.Fatal(err)
		}
	}
	events := recorded(t, "events_7.2")
	other := slices.Clone(events[0])
	other[4] = abi.RDMA_NLDEV_CMD_GET
	bad := slices.Clone(events[0])
	bad[len(bad)-8] = 3 // the length of the last attribute
	send([]byte("forged"))
	send(slices.Concat(other, events[0], events[2]))
	send([]byte("ENOBUFS"))
	send([]byte("long"))
	send(slices.Concat(bad, events[4]))
	for _, want := range []struct {
		typ EventType
		err error
		say string
	}{
		{EventRegister, nil, ""}, {EventRename, nil, ""}, {0, ErrEventsLost, ""}, {0, ErrEventsLost, ""},
		{0, nil, "attribute 102"}, {EventUnregister, nil, ""},
	} {
		e, err := m.Next(t.Context())
		switch {
		case want.err != nil && !errors.Is(err, want.err), want.say != "" && !strings.Contains(fmtError(err), want.say),
			want.err == nil && want.say == "" && (err != nil || e.Type != want.typ):
			t.Errorf("%+v, %v, want %+v", e, err, want)
		}
	}
}

// The end of the context ends a wait and spoils no later one.
func TestMonitorCancel(t *testing.T) {
	m, kernel := fakeMonitor(t)
	event := recorded(t, "events_7.2")[0]
	for range 100 {
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		if _, err := m.Next(ctx); !errors.Is(err, context.Canceled) {
			t.Fatalf("cancelled: %v", err)
		}
		if _, err := m.Next(ctx); !errors.Is(err, context.Canceled) {
			t.Fatalf("with a context that has ended: %v", err)
		}
		if _, err := unix.Write(kernel, event); err != nil {
			t.Fatal(err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		if e, err := m.Next(ctx); err != nil || e.Device != "nlmrxe" {
			t.Fatalf("%+v, %v", e, err)
		}
		cancel()
	}
}

func TestMonitorClose(t *testing.T) {
	m, _ := fakeMonitor(t)
	ended := make(chan error)
	go func() {
		_, err := m.Next(context.Background())
		ended <- err
	}()
	time.Sleep(time.Millisecond)
	if err := errors.Join(m.Close(), m.Close()); err != nil {
		t.Error(err)
	}
	errorIs(t, <-ended, os.ErrClosed, "while waiting")
	errorIs(t, second(m.Next(t.Context())), os.ErrClosed, "afterwards")
}

func TestResourceNames(t *testing.T) {
	for _, tt := range []struct {
		v    interface{ String() string }
		want string
	}{
		{PollUnboundWorkqueue, "UNBOUND_WORKQUEUE"}, {CMDestroying, "DESTROYING"}, {CMListen, "LISTEN"},
		{PortSpaceTCP, "TCP"}, {PortSpaceUDP, "UDP"}, {PortSpaceIB, "IB"}, {PortSpaceIPoIB, "IPoIB"}, {PortSpace(1), "PortSpace(1)"},
		{SRQTM, "TM"}, {CounterModeManual, "manual"}, {NetNSShared, "shared"}, {NetNSExclusive, "exclusive"}, {NetNSMode(9), "NetNSMode(9)"},
		{EventNetdevRename, "NETDEV_RENAME"}, {EventType(6), "EventType(6)"}, {DeviceTypeSMI, "SMI"}, {Version{6, 12}, "6.12"},
	} {
		if got := tt.v.String(); got != tt.want {
			t.Errorf("%T: %q, want %q", tt.v, got, tt.want)
		}
	}
}
