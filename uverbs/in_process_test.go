package uverbs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/inproc"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// localDevice is a device in the process. Each of its contexts is a fakeKernel.
type localDevice struct {
	t        testing.TB
	info     inproc.Info
	addrs    []netip.Addr
	gids     []inproc.GIDEntry
	counters []inproc.Counter
	pkeys    []uint16 // by default 0xffff and 0x8001
	down     bool     // its ports are not active
	refuse   error    // of Open

	contexts []*localContext
}

func (l *localDevice) Info() inproc.Info               { return l.info }
func (l *localDevice) Addrs() []netip.Addr             { return l.addrs }
func (l *localDevice) GIDs(uint8) []inproc.GIDEntry    { return l.gids }
func (l *localDevice) PKeys(uint8) []uint16            { return l.pkeys }
func (l *localDevice) Counters(uint8) []inproc.Counter { return l.counters }

// Open implements [inproc.Device].
func (l *localDevice) Open() (kernel.Device, error) {
	if l.refuse != nil {
		return nil, l.refuse
	}
	c := &localContext{k: newFakeKernel(l.t), files: map[uint32][2]*os.File{}}
	c.k.goMem = map[uint64][]byte{}
	c.k.port.PKeyTblLen = uint16(len(l.pkeys))
	if l.down {
		c.k.port.State, c.k.port.PhysState = uint8(ib.PortDown), 3
	}
	l.contexts = append(l.contexts, c)
	return c, nil
}

// localContext passes commands to a fakeKernel. It has no file, its rings are Go memory, and it
// numbers event channels itself.
type localContext struct {
	k *fakeKernel

	mu     sync.Mutex
	last   uint32                 // number of the last event channel
	files  map[uint32][2]*os.File // read and write ends of the event channels
	closed bool
}

// Do implements [kernel.Device].
func (c *localContext) Do(cmd *kernel.Command, byWrite bool) syscall.Errno {
	errno := c.k.Do(cmd, byWrite)
	if errno != 0 {
		return errno
	}
	l, legacy := cmd.Legacy()
	switch {
	case !legacy && cmd.Object == abi.UVERBS_OBJECT_ASYNC_EVENT:
		fd := cmd.Attr(abi.UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE)
		fd.Data = uint64(c.channel(uint32(fd.Data), &c.k.async))
	case legacy && l.Number == abi.IB_USER_VERBS_CMD_GET_CONTEXT:
		copy(l.Out, u32(c.channel(uint32(le32(l.Out)), &c.k.async)))
	case legacy && l.Number == abi.IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL:
		copy(l.Out, u32(c.channel(uint32(le32(l.Out)), &c.k.events)))
	}
	return 0
}

// channel numbers an event channel and takes over its descriptor and its write end.
func (c *localContext) channel(fd uint32, w **os.File) uint32 {
	r := value(kernel.OpenEvents(int(fd), "events"))(c.k.t)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	c.files[c.last] = [2]*os.File{r, *w}
	return c.last
}

// Map implements [kernel.Device].
func (c *localContext) Map(offset uint64, size int, _ bool) (*mmio.Region, error) {
	mem := c.k.goMem[offset]
	if len(mem) != size {
		return nil, fmt.Errorf("%d bytes at %#x: %w", size, offset, syscall.EINVAL)
	}
	return mmio.GoMemory(mem), nil
}

// Events implements [kernel.Device].
func (c *localContext) Events(number uint32, _ string) (kernel.EventFile, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.files[number][0]
	if f == nil {
		return nil, fmt.Errorf("channel %d: %w", number, syscall.EBADF)
	}
	return f, nil
}

// EventsClosed implements [kernel.EventsCloser].
func (c *localContext) EventsClosed(number uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.files[number][1].Close()
	delete(c.files, number)
}

// remove closes the write ends of all event channels, as a device does that goes away.
func (c *localContext) remove() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.files {
		f[1].Close()
	}
}

// Close implements [kernel.Device].
func (c *localContext) Close() error {
	c.remove()
	c.closed = true
	c.k.release()
	return nil
}

// addLocal makes the process have a device that plays rxe of Linux 7.2, which change may change. It
// must have no open context at the end of the test.
func addLocal(t *testing.T, name string, change func(l *localDevice)) *localDevice {
	t.Helper()
	l := &localDevice{t: t, pkeys: []uint16{0xffff, 0x8001}, info: inproc.Info{Name: name, Index: inproc.NewIndex(), NodeGUID: 0x0102030405060708, DriverID: uint32(rxeDriverID),
		ABI: 2, Linux: [2]int{7, 2}, Protocol: "roce", Firmware: "1.0", Ports: 2}}
	change(l)
	must(t, inproc.Add(l))
	t.Cleanup(func() {
		if !inproc.Remove(l) {
			t.Errorf("%s was removed before", name)
		}
		for i, c := range l.contexts {
			if !c.closed {
				t.Errorf("context %d of %s is open", i, name)
			}
		}
	})
	return l
}

// unchanged is for addLocal.
func unchanged(*localDevice) {}

// openLocal opens a device in the process and returns the fakeKernel behind it.
func (l *localDevice) open(t *testing.T) (*Device, *localContext) {
	t.Helper()
	d := value(Open(l.info.Name, OpenOptions{}))(t)
	t.Cleanup(func() { must(t, d.Close()) })
	return d, l.contexts[len(l.contexts)-1]
}

// TestInProcessListed: Devices has the devices in the process behind those of the kernel, even if the
// kernel has no RDMA. One with an unknown driver or ABI is listed with the reason.
func TestInProcessListed(t *testing.T) {
	if infos := inProcessDevices(); len(infos) != 0 {
		t.Fatalf("the process has %v before there is one", infos)
	}
	soft := addLocal(t, "local0", unchanged)
	addLocal(t, "local1", func(l *localDevice) { l.info.ABI = 3 })
	addLocal(t, "local2", func(l *localDevice) { l.info.DriverID = 1 << 20 })
	infos := value(Devices())(t)
	if len(infos) < 3 {
		t.Fatalf("devices are %+v, want three more", infos)
	}
	for _, i := range infos[:len(infos)-3] {
		if i.InProcess {
			t.Errorf("%s is before a device of the kernel", i.Name)
		}
	}
	infos = infos[len(infos)-3:]
	got := infos[0]
	if !got.InProcess || got.Name != "local0" || got.Index != soft.info.Index || got.NodeGUID != 0x0102030405060708 || got.Protocol != "roce" ||
		got.Driver != "rxe" || got.Firmware != "1.0" || got.Ports != 2 || got.CharDev != "" || got.Err != nil || got.IWARP() {
		t.Errorf("local0 is %+v", got)
	}
	for i, want := range []error{nil, errABI, errDriver} {
		if err := infos[i].Err; !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", infos[i].Name, err, want)
		}
		d, err := Open(infos[i].Name, OpenOptions{})
		if !errors.Is(err, want) {
			t.Errorf("Open(%s): %v, want %v", infos[i].Name, err, want)
		}
		if err == nil {
			must(t, d.Close())
		}
	}
}

// TestNoKernelDevices: which errors of a list say that the kernel has no devices.
func TestNoKernelDevices(t *testing.T) {
	for err, want := range map[error]bool{
		syscall.EPROTONOSUPPORT: true, syscall.EAFNOSUPPORT: true, syscall.ENOSYS: true, syscall.EPERM: true, syscall.EACCES: true,
		syscall.EMFILE: false, syscall.ENOMEM: false, syscall.EINVAL: false, fs.ErrNotExist: false,
	} {
		if got := noKernelDevices(fmt.Errorf("list devices: %w", err)); got != want {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
	}
}

// openFiles returns the number of descriptors of this process.
func openFiles(t *testing.T) int {
	t.Helper()
	return len(value(os.ReadDir("/proc/self/fd"))(t))
}

// TestInProcessOpen uses a device in the process over every path and closes what it has made: no
// descriptor is left.
func TestInProcessOpen(t *testing.T) {
	soft := addLocal(t, "local0", unchanged)
	for _, path := range []string{"auto", "ioctl", "write"} {
		t.Run(path, func(t *testing.T) {
			t.Setenv(abiPathEnv, path)
			must(t, poller())
			before := openFiles(t)
			d := value(Open("local0", OpenOptions{}))(t)
			c := soft.contexts[len(soft.contexts)-1]
			if i := d.Info(); d.Name() != "local0" || !i.InProcess || d.Attr().MaxQPWR != 1000 {
				t.Errorf("opened %+v", i)
			}
			for range 3 { // a channel that is closed leaves nothing
				must(t, value(d.CreateCompChannel())(t).Close())
			}
			if n := len(c.files); n != 1 {
				t.Errorf("%d event channels are left, want that of asynchronous events", n)
			}
			useInProcess(t, d, c)
			must(t, d.Close())
			if after := openFiles(t); after != before || !c.closed {
				t.Errorf("%d files are open, %d before; the device is closed: %v", after, before, c.closed)
			}
		})
	}
}

// poller makes the runtime create the descriptors of its poller.
func poller() error {
	r, w, err := os.Pipe()
	return errors.Join(err, r.Close(), w.Close())
}

// useInProcess sends a message and gets its event and its completion, which the test writes.
func useInProcess(t *testing.T, d *Device, c *localContext) {
	t.Helper()
	pd, ch := value(d.AllocPD())(t), value(d.CreateCompChannel())(t)
	cq := value(d.CreateCQ(CQOptions{Size: 3, Channel: ch}))(t)
	qp := value(pd.CreateQP(QPOptions{SendCQ: cq, RecvCQ: cq, MaxSendWR: 3, MaxRecvWR: 3, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 16}))(t)
	qp.state.Store(uint32(ib.QPRTS))
	must(t, cq.Notify(), qp.PostSend(SendWR{ID: 42, Opcode: WRSend, Flags: SendSignaled, Inline: []byte("hello")}))
	if got := c.k.took(); !slices.Contains(got[len(got)-2:], "invoke REQ_NOTIFY_CQ") || !slices.Contains(got[len(got)-1:], "invoke POST_SEND") {
		t.Errorf("the last commands are %v, want REQ_NOTIFY_CQ and the doorbell", got)
	}
	sq, comp := c.k.rings[qp.handle][0], c.k.rings[cq.handle][0]
	if n := sq.producer.Acquire(); n != 1 {
		t.Errorf("the send ring has %d requests, want 1", n)
	}
	copy(comp.mem[384:], u64(42)) // wr_id of struct ib_uverbs_wc
	comp.producer.Release(1)
	if _, err := c.k.events.Write(u64(cq.cookie)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if got, err := ch.Next(ctx); err != nil || got != cq {
		t.Errorf("event of %v: %v", got, err)
	}
	wcs := make([]WC, 2)
	if n, err := cq.Poll(wcs); n != 1 || err != nil || wcs[0].ID != 42 {
		t.Errorf("completions are %d, %+v: %v", n, wcs[0], err)
	}
	must(t, qp.Close(), cq.Close(), ch.Close(), pd.Close())
}

// TestInProcessOpenRefused: the error of a device that cannot be opened names it, and nothing is left.
func TestInProcessOpenRefused(t *testing.T) {
	refused := errors.New("too many contexts")
	soft := addLocal(t, "local0", func(l *localDevice) { l.refuse, l.addrs = refused, []netip.Addr{netip.MustParseAddr("127.0.0.2")} })
	_, byName := Open("local0", OpenOptions{})
	_, byAddr := OpenAddr(netip.MustParseAddr("127.0.0.2"))
	_, first := openFirst(inProcessDevices())
	for _, err := range []error{byName, byAddr} {
		if d, ok := errors.AsType[*DeviceError](err); !ok || !errors.Is(err, refused) || !strings.HasPrefix(d.Error(), "uverbs: open ") {
			t.Errorf("error is %v", err)
		}
	}
	if d, ok := errors.AsType[*DeviceError](first); !ok || !errors.Is(d, ErrNoDevice) || len(d.Devices) != 1 || d.Devices[0].Err != refused {
		t.Errorf("first device: %v", first)
	}
	if len(soft.contexts) != 0 {
		t.Errorf("%d contexts", len(soft.contexts))
	}
	if _, err := Open("local9", OpenOptions{}); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "devices here:") || !strings.Contains(err.Error(), " local0") {
		t.Errorf("an unknown name: %v", err)
	}
}

// TestInProcessContextRefused: a context whose commands fail is closed.
func TestInProcessContextRefused(t *testing.T) {
	soft := addLocal(t, "local0", unchanged)
	info := inspectInProcess(soft)
	info.inproc = &refusingDevice{soft}
	before := openFiles(t)
	errorIs(t, second(open(info)), syscall.EIO, "open")
	if after := openFiles(t); after != before {
		t.Errorf("%d files are open, %d before", after, before)
	}
}

// refusingDevice opens contexts that refuse QUERY_DEVICE.
type refusingDevice struct{ *localDevice }

// Open implements [inproc.Device].
func (r *refusingDevice) Open() (kernel.Device, error) {
	dev, err := r.localDevice.Open()
	dev.(*localContext).k.refuse["EX_QUERY_DEVICE"] = syscall.EIO
	return dev, err
}

// TestInProcessFirst: an active device comes before one that is not, whatever their order.
func TestInProcessFirst(t *testing.T) {
	idle := addLocal(t, "local0", func(l *localDevice) { l.down = true })
	addLocal(t, "local1", unchanged)
	d := value(openFirst(inProcessDevices()))(t)
	if d.Name() != "local1" || !idle.contexts[0].closed {
		t.Errorf("opened %s; the idle device is closed: %v", d.Name(), idle.contexts[0].closed)
	}
	must(t, d.Close())
	d = value(openFirst(inProcessDevices()[:1]))(t)
	if d.Name() != "local0" {
		t.Errorf("opened %s, want the only one", d.Name())
	}
	must(t, d.Close())
	d = value(OpenFirst())(t) // the kernel may have an active one
	must(t, d.Close())
}

// TestInProcessAddr opens devices by addresses, which need not be those of a network interface.
func TestInProcessAddr(t *testing.T) {
	addr := netip.MustParseAddr
	addLocal(t, "local0", func(l *localDevice) {
		l.info.Netdev, l.info.NetdevIndex = "eth9", 1234
		l.addrs = []netip.Addr{addr("127.0.0.2"), addr("fe80::9%eth9")}
	})
	addLocal(t, "local1", func(l *localDevice) { l.addrs = []netip.Addr{addr("127.0.0.3"), addr("127.0.0.2"), addr("fe80::8")} })
	for _, c := range []struct{ addr, want string }{
		{"127.0.0.2", "local0"},
		{"::ffff:127.0.0.2", "local0"},
		{"127.0.0.3", "local1"},
		{"fe80::9", "local0"},
		{"fe80::9%eth9", "local0"},
		{"fe80::9%1234", "local0"},
		{"fe80::8", "local1"},
	} {
		d, err := OpenAddr(addr(c.addr))
		if err != nil {
			t.Errorf("%s: %v", c.addr, err)
			continue
		}
		if d.Name() != c.want {
			t.Errorf("%s opened %s, want %s", c.addr, d.Name(), c.want)
		}
		must(t, d.Close())
	}
	for _, other := range []string{"127.0.0.4", "fe80::9%eth8", "fe80::8%eth9", "192.0.2.1"} {
		if d, err := OpenAddr(addr(other)); err == nil {
			t.Errorf("%s opened %s", other, d.Name())
		} else if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "local0 has 127.0.0.2, fe80::9%eth9; local1 has 127.0.0.3, 127.0.0.2, fe80::8") {
			t.Errorf("%s: %v, want the addresses that there are", other, err)
		}
	}
}

// TestInProcessAddrRefused: a device with the address that cannot be used does not hide another one.
func TestInProcessAddrRefused(t *testing.T) {
	own := []netip.Addr{netip.MustParseAddr("127.0.0.2")}
	addLocal(t, "local0", func(l *localDevice) { l.addrs, l.info.ABI = own, 99 })
	errorIs(t, second(OpenAddr(own[0])), errABI, "an ABI version out of range")
	addLocal(t, "local1", func(l *localDevice) { l.addrs = own })
	d := value(OpenAddr(own[0]))(t)
	if d.Name() != "local1" {
		t.Errorf("opened %s", d.Name())
	}
	must(t, d.Close())
}

// TestInProcessNetdev opens a device by its network interface, the loopback interface, or by that of
// a GID.
func TestInProcessNetdev(t *testing.T) {
	lo := value(net.InterfaceByName("lo"))(t)
	byGID := addLocal(t, "local0", unchanged)
	byPort := addLocal(t, "local1", func(l *localDevice) { l.info.Netdev, l.info.NetdevIndex = "lo", lo.Index })
	d := value(OpenNetdev("lo"))(t)
	if d.Name() != "local1" {
		t.Errorf("opened %s, want the one on lo", d.Name())
	}
	must(t, d.Close())
	byPort.info.Netdev, byPort.info.NetdevIndex = "eth9", 1234
	_, err := OpenNetdev("lo")
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "eth9 (local1)") {
		t.Errorf("no device on lo: %v", err)
	}
	byGID.gids = []inproc.GIDEntry{{Index: 1, GID: gid(t, "127.0.0.2"), Netdev: lo.Index}}
	t.Setenv(abiPathEnv, "write")
	d = value(OpenNetdev("lo"))(t)
	if d.Name() != "local0" {
		t.Errorf("opened %s, want the one with a GID of lo", d.Name())
	}
	must(t, d.Close())
}

// TestInProcessTables: without the ioctl, the device itself tells its GIDs; partition keys it always
// tells.
func TestInProcessTables(t *testing.T) {
	soft := addLocal(t, "local0", func(l *localDevice) {
		l.gids = []inproc.GIDEntry{{Index: 0, GID: gid(t, "fe80::1"), Type: uint32(ib.GIDTypeRoCEv2), Netdev: 1}, {Index: 2, GID: gid(t, "127.0.0.2"), Type: uint32(ib.GIDTypeRoCEv2)}}
	})
	t.Setenv(abiPathEnv, "write")
	d, _ := soft.open(t)
	want := []GIDEntry{
		{Port: 1, Index: 0, GID: gid(t, "fe80::1"), Type: ib.GIDTypeRoCEv2, Netdev: 1},
		{Port: 1, Index: 2, GID: gid(t, "127.0.0.2"), Type: ib.GIDTypeRoCEv2},
	}
	if diff := cmp.Diff(want, value(d.GIDTable(1))(t)); diff != "" {
		t.Errorf("GIDs (-want +got):\n%s", diff)
	}
	if e, err := d.GID(1, 2); err != nil || e != want[1] {
		t.Errorf("GID 2 is %v: %v", e, err)
	}
	errorIs(t, second(d.GID(1, 1)), syscall.ENODATA, "an unused GID")
	for index, want := range []uint16{0xffff, 0x8001} {
		if got, err := d.PKey(1, index); err != nil || got != want {
			t.Errorf("partition key %d is %#x: %v", index, got, err)
		}
		if got, err := d.PKeyIndex(1, want); err != nil || got != index {
			t.Errorf("partition key %#x is at %d: %v", want, got, err)
		}
	}
	errorIs(t, second(d.PKeyIndex(1, 0x8002)), fs.ErrNotExist, "a key that is not there")
	soft.contexts[0].k.port.PKeyTblLen = 3
	if got, err := d.PKey(1, 2); err != nil || got != 0 {
		t.Errorf("an unused partition key is %#x: %v", got, err)
	}
}

// TestInProcessCounters: the growth of the device's counters explains failures.
func TestInProcessCounters(t *testing.T) {
	soft := addLocal(t, "local0", func(l *localDevice) { l.counters = []inproc.Counter{{Name: "sent_pkts", Value: 5}} })
	d, _ := soft.open(t)
	d.recordCounters(1)
	soft.counters = []inproc.Counter{{Name: "sent_pkts", Value: 8}}
	if got := d.counterGrowth(1); !strings.Contains(got, "sent_pkts") || !strings.Contains(got, "3") {
		t.Errorf("growth is %q, want 3 of sent_pkts", got)
	}
	soft.counters = nil
	errorIs(t, second(d.portCounters(1)), errors.ErrUnsupported, "no counters")
}

// TestInProcessRemoved: the end of the event files means that the device was removed.
func TestInProcessRemoved(t *testing.T) {
	soft := addLocal(t, "local0", unchanged)
	d, c := soft.open(t)
	ch := value(d.CreateCompChannel())(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c.remove()
	errorIs(t, second(ch.Next(ctx)), ErrDeviceRemoved, "Next")
	errorIs(t, second(d.NextEvent(ctx)), ErrDeviceRemoved, "NextEvent")
	must(t, ch.Close())
}

// TestInProcessBusyWait: a wait for a device of this process leaves the processor to it.
func TestInProcessBusyWait(t *testing.T) {
	d, _ := addLocal(t, "local0", unchanged).open(t)
	ch := value(d.CreateCompChannel())(t)
	busyTime := func() time.Duration { return time.Duration(ch.busyTime.Load()) }
	if busyTime() != 0 {
		t.Errorf("a new channel has busy waits of %s", busyTime())
	}
	if err := ch.SetBusyWait(time.Second); err != nil || busyTime() != 0 {
		t.Errorf("SetBusyWait: %v, and the time is %s, want 0", err, busyTime())
	}
	if err := ch.SetBusyWait(-1); err == nil {
		t.Error("a negative time is accepted")
	}
	must(t, ch.Close())
}

// TestInProcessChannelFails: a channel whose file cannot be opened is given back.
func TestInProcessChannelFails(t *testing.T) {
	soft := addLocal(t, "local0", unchanged)
	d, c := soft.open(t)
	d.cmd.Conn = kernel.NewConn(&noEvents{localContext: c}, pathAuto, "local0")
	errorIs(t, second(d.CreateCompChannel()), syscall.EMFILE, "error")
	if n := len(c.files); n != 1 {
		t.Errorf("%d event channels are left, want that of asynchronous events", n)
	}
}

// noEvents opens no event files.
type noEvents struct{ *localContext }

// Events implements [kernel.Device].
func (n *noEvents) Events(number uint32, _ string) (kernel.EventFile, error) {
	n.files[number][0].Close()
	return nil, syscall.EMFILE
}

// TestInProcessKernelVersion: whether the kernel or the driver is missing a verb depends on the
// version that the device plays, not on the running kernel.
func TestInProcessKernelVersion(t *testing.T) {
	for linux, driver := range map[[2]int]string{{6, 16}: "", {6, 17}: "rxe", {7, 2}: "rxe"} {
		t.Run(Version(linux).String(), func(t *testing.T) {
			soft := addLocal(t, "local0", func(l *localDevice) { l.info.Linux = linux })
			d, _ := soft.open(t)
			f, ok := errors.AsType[*FeatureError](d.cmd.fail("ALLOC_DMAH", syscall.EPROTONOSUPPORT, ""))
			if !ok || f.Driver != driver || (f.Since == Version{6, 17}) != (driver == "") {
				t.Errorf("ALLOC_DMAH is missing as %+v, want driver %q", f, driver)
			}
			if e, ok := errors.AsType[*Error](f); !ok || e.Netns != "" || e.Device != "local0" {
				t.Errorf("the cause is %+v", e)
			}
		})
	}
}

// TestInProcessHints: the kernel's limits do not explain what a device in the process refuses; its
// network interface explains a port that is down.
func TestInProcessHints(t *testing.T) {
	soft := addLocal(t, "local0", func(l *localDevice) { l.down, l.info.Netdev = true, "eth9" })
	d, _ := soft.open(t)
	e, ok := errors.AsType[*Error](d.regError("REG_MR", syscall.ENOMEM, &region{length: 12345}))
	if !ok || strings.Contains(e.Hint, "MEMLOCK") || e.Errno != syscall.ENOMEM {
		t.Errorf("ENOMEM: %v", e)
	}
	e, ok = errors.AsType[*Error](d.regError("REG_MR", syscall.EFAULT, &region{start: 16, length: 1}))
	if !ok || !strings.Contains(e.Hint, "the memory at 0x10 is not mapped") {
		t.Errorf("EFAULT: %v", e)
	}
	pd := value(d.AllocPD())(t)
	cq := value(d.CreateCQ(CQOptions{Size: 1}))(t)
	qp := value(pd.CreateQP(QPOptions{SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}))(t)
	if _, err := qp.Endpoint(); !errors.Is(err, syscall.ENETDOWN) || !strings.Contains(err.Error(), "ip link set eth9 up") {
		t.Errorf("a port that is down: %v", err)
	}
	must(t, qp.Close(), cq.Close(), pd.Close())
}
