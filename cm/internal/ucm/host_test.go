package ucm

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/soft/gsi"
)

// fabric joins fake devices. A MAD arrives at once.
type fabric struct {
	mu      sync.Mutex
	ports   map[netip.Addr]*fakeDevice // guarded by mu
	lost    bool                       // guarded by mu: nothing arrives
	sources map[netip.Addr]netip.Addr  // routes: source addresses by destination
	local   []netip.Addr               // addresses of the machine that no device has
}

// IsLocal implements Network.
func (f *fabric) IsLocal(a netip.Addr) bool { return slices.Contains(f.local, a) }

// Source implements Network.
func (f *fabric) Source(src, dst netip.Addr) (netip.Addr, syscall.Errno) {
	if src.IsValid() {
		return src, 0
	}
	if from, ok := f.sources[dst]; ok {
		return from, 0
	}
	return netip.Addr{}, syscall.ENETUNREACH
}

// fakeDevice is a device of a test.
type fakeDevice struct {
	info   gsi.Info
	fabric *fabric
	host   *Host

	mu     sync.Mutex
	gids   []gsi.GIDEntry // guarded by mu
	mtu    uint8          // guarded by mu
	groups map[string]int // guarded by mu: memberships by address
	refuse error          // guarded by mu: what Join returns
}

func (d *fakeDevice) Info() gsi.Info { return d.info }

func (d *fakeDevice) GIDs() []gsi.GIDEntry {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.gids)
}

func (d *fakeDevice) MTU() uint8 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mtu
}

func (d *fakeDevice) SendMAD(src, dst netip.Addr, mad []byte) {
	d.fabric.mu.Lock()
	to := d.fabric.ports[dst]
	if d.fabric.lost {
		to = nil
	}
	d.fabric.mu.Unlock()
	if to != nil {
		to.host.Receive(to, src, dst, mad)
	}
}

func (d *fakeDevice) Join(group netip.Addr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refuse == nil {
		d.groups[group.String()]++
	}
	return d.refuse
}

func (d *fakeDevice) Leave(group netip.Addr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.groups[group.String()]--
}

// add makes a device with addresses known to a host. The GID table begins with its second entry.
func (f *fabric) add(h *Host, index uint32, addrs ...string) *fakeDevice {
	d := &fakeDevice{
		info:   gsi.Info{Name: fmt.Sprintf("soft%d", index), Index: index, NodeGUID: 0x1100 + uint64(index), AckDelay: 15, Flush: true},
		fabric: f, host: h, mtu: 3, groups: map[string]int{},
	}
	f.mu.Lock()
	for i, a := range addrs {
		addr := netip.MustParseAddr(a)
		d.gids = append(d.gids, gsi.GIDEntry{Index: uint8(i + 1), Addr: addr, Interface: index})
		f.ports[addr] = d
	}
	f.mu.Unlock()
	h.Add(d)
	return d
}

// fakeClock is a clock that a test moves.
type fakeClock struct {
	mu     sync.Mutex
	now    time.Time    // guarded by mu
	timers []*fakeTimer // guarded by mu
}

// fakeTimer is a timer of a fakeClock.
type fakeTimer struct {
	clock *fakeClock
	at    time.Time
	f     func()
}

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) AfterFunc(d time.Duration, f func()) Timer {
	t := &fakeTimer{clock: c, f: f}
	t.Reset(d)
	return t
}

func (t *fakeTimer) Reset(d time.Duration) bool {
	was := t.Stop()
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	t.at = t.clock.now.Add(d)
	t.clock.timers = append(t.clock.timers, t)
	return was
}

func (t *fakeTimer) Stop() bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	n := len(t.clock.timers)
	t.clock.timers = slices.DeleteFunc(t.clock.timers, func(o *fakeTimer) bool { return o == t })
	return len(t.clock.timers) < n
}

// advance lets time pass.
func (c *fakeClock) advance(d time.Duration) {
	c.mu.Lock()
	end := c.now.Add(d)
	c.mu.Unlock()
	for {
		c.mu.Lock()
		slices.SortStableFunc(c.timers, func(a, b *fakeTimer) int { return a.at.Compare(b.at) })
		if len(c.timers) == 0 || c.timers[0].at.After(end) {
			c.now = end
			c.mu.Unlock()
			return
		}
		t := c.timers[0]
		c.timers = c.timers[1:]
		c.now = t.at
		c.mu.Unlock()
		t.f()
	}
}

// rig is a host with two devices and a program.
type rig struct {
	t      *testing.T
	fabric *fabric
	clock  *fakeClock
	host   *Host
	a, b   *fakeDevice
	file   *File
}

const (
	addrA  = "10.0.0.1"
	addrB  = "10.0.0.2"
	addrA6 = "fd00::1"
	addrB6 = "fd00::2"
)

func newRig(t *testing.T) *rig {
	r := &rig{t: t, fabric: &fabric{ports: map[netip.Addr]*fakeDevice{}, sources: map[netip.Addr]netip.Addr{}}, clock: &fakeClock{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}}
	r.host = New(Options{Clock: r.clock, Network: r.fabric})
	r.a = r.fabric.add(r.host, 7, addrA, addrA6)
	r.b = r.fabric.add(r.host, 8, addrB, addrB6)
	for _, p := range [][2]string{{addrB, addrA}, {addrB6, addrA6}} {
		r.fabric.sources[netip.MustParseAddr(p[0])] = netip.MustParseAddr(p[1])
	}
	r.file = r.open()
	return r
}

// open opens a file that is closed with the test.
func (r *rig) open() *File {
	f, err := r.host.Open()
	if err != nil {
		r.t.Fatal(err)
	}
	file := os.NewFile(uintptr(f.FD()), "rdma_cm")
	r.t.Cleanup(func() { f.Close(); file.Close() })
	return f
}

// do issues a command without an answer.
func do[Q any](f *File, cmd uint32, req Q) syscall.Errno { return f.Do(cmd, bytesOf(&req), nil) }

// ask issues a command with an answer.
func ask[R, Q any](f *File, cmd uint32, req Q) (R, syscall.Errno) {
	var resp R
	errno := f.Do(cmd, bytesOf(&req), bytesOf(&resp))
	return resp, errno
}

// ok fails the test if a command has failed.
func (r *rig) ok(results ...syscall.Errno) {
	r.t.Helper()
	for i, errno := range results {
		if errno != 0 {
			r.t.Fatalf("command %d: %v", i, errno)
		}
	}
}

// is fails the test if a command did not return an errno.
func (r *rig) is(what string, got, want syscall.Errno) {
	r.t.Helper()
	if got != want {
		r.t.Errorf("%s: errno %d (%v), want %d (%v)", what, uint32(got), got, uint32(want), want)
	}
}

// lastUID is the last number of an ID.
var lastUID = uint64(100)

// create makes an ID in a port space.
func (r *rig) create(f *File, space uint16) (handle uint32) {
	r.t.Helper()
	lastUID++
	resp, errno := ask[abi.CreateIDResp](f, abi.RDMA_USER_CM_CMD_CREATE_ID, abi.CreateID{Uid: lastUID, Ps: space, QPType: uint8(ib.RC)})
	r.ok(errno)
	return resp.ID
}

// storage returns an address in the kernel's layout.
func storage(s sockaddr) (k abi.KernelSockaddrStorage, size uint16) {
	s.put(bytesOf(&k))
	return k, uint16(s.size())
}

// ip returns the address for "host:port".
func ip(s string) sockaddr {
	ap := netip.MustParseAddrPort(s)
	return sockaddrOf(ap.Addr(), ap.Port())
}

// bindTo binds an ID.
func bindTo(f *File, handle uint32, addr sockaddr) syscall.Errno {
	k, size := storage(addr)
	return do(f, abi.RDMA_USER_CM_CMD_BIND, abi.Bind{ID: handle, AddrSize: size, Addr: k})
}

// resolveTo resolves an address.
func resolveTo(f *File, handle uint32, src, dst sockaddr) syscall.Errno {
	req := abi.ResolveAddr{ID: handle, TimeoutMs: 1000}
	req.SrcAddr, req.SrcSize = storage(src)
	req.DstAddr, req.DstSize = storage(dst)
	return do(f, abi.RDMA_USER_CM_CMD_RESOLVE_ADDR, req)
}

// resolveRouteOf resolves the route.
func resolveRouteOf(f *File, handle uint32) syscall.Errno {
	return do(f, abi.RDMA_USER_CM_CMD_RESOLVE_ROUTE, abi.ResolveRoute{ID: handle, TimeoutMs: 1000})
}

// listenOn makes an ID a listener.
func (r *rig) listenOn(f *File, space uint16, addr string, backlog uint32) (handle uint32) {
	r.t.Helper()
	handle = r.create(f, space)
	r.ok(bindTo(f, handle, ip(addr)), do(f, abi.RDMA_USER_CM_CMD_LISTEN, abi.Listen{ID: handle, Backlog: backlog}))
	return handle
}

// next reads an event.
func next(f *File) (*abi.EventResp, syscall.Errno) {
	e, errno := ask[abi.EventResp](f, abi.RDMA_USER_CM_CMD_GET_EVENT, abi.GetEvent{})
	return &e, errno
}

// want reads an event, which must have a type and belong to an ID.
func (r *rig) want(f *File, typ, handle uint32) *abi.EventResp {
	r.t.Helper()
	e, errno := next(f)
	if errno != 0 || e.Event != typ || handle != 0 && e.ID != handle {
		r.t.Fatalf("event %d of %d, status %d, %v; want event %d of %d", e.Event, e.ID, int32(e.Status), errno, typ, handle)
	}
	return e
}

// none fails the test if there is an event.
func (r *rig) none(f *File) {
	r.t.Helper()
	if e, errno := next(f); errno != syscall.EAGAIN {
		r.t.Fatalf("event %d of %d, status %d, %v", e.Event, e.ID, int32(e.Status), errno)
	}
}

// param returns parameters with private data.
func param(qpn uint32, data string) (p abi.ConnParam) {
	p = abi.ConnParam{QPNum: qpn, ResponderResources: 3, InitiatorDepth: 2, RetryCount: 7, RNRRetryCount: 6, Valid: 1, PrivateDataLen: uint8(len(data))}
	copy(p.PrivateData[:], data)
	return p
}

// routed makes an ID with a route to an address.
func (r *rig) routed(f *File, space uint16, to string) (handle uint32) {
	r.t.Helper()
	handle = r.create(f, space)
	r.ok(resolveTo(f, handle, sockaddr{}, ip(to)))
	r.want(f, eventAddrResolved, handle)
	r.ok(resolveRouteOf(f, handle))
	r.want(f, eventRouteResolved, handle)
	return handle
}

// lastQPN is the QPN of the last connection.
var lastQPN uint32

// connectTo sends a request.
func (r *rig) connectTo(f *File, space uint16, to string) (handle uint32) {
	r.t.Helper()
	handle = r.routed(f, space, to)
	lastQPN++
	r.ok(do(f, abi.RDMA_USER_CM_CMD_CONNECT, abi.Connect{ConnParam: param(lastQPN, "request"), ID: handle, Ece: abi.Ece{VendorID: 0x15b3, AttrMod: 9}}))
	r.settle()
	return handle
}

// settle waits until nothing is being sent.
func (r *rig) settle() {
	for {
		r.host.mu.Lock()
		busy := r.host.sending
		r.host.mu.Unlock()
		if !busy {
			return
		}
		runtime.Gosched()
	}
}

// acceptOn accepts a request.
func acceptOn(f *File, handle uint32, uid uint64, p abi.ConnParam) syscall.Errno {
	return do(f, abi.RDMA_USER_CM_CMD_ACCEPT, abi.Accept{Uid: uid, ConnParam: p, ID: handle, Ece: abi.Ece{VendorID: 0x15b3, AttrMod: 8}})
}

// connected connects two IDs of the rig's file.
func (r *rig) connected() (listener, active, passive uint32) {
	r.t.Helper()
	f := r.file
	listener = r.listenOn(f, spaceTCP, addrB+":7", 0)
	active = r.connectTo(f, spaceTCP, addrB+":7")
	passive = r.want(f, eventConnectRequest, 0).ID
	r.ok(acceptOn(f, passive, 55, param(0x222, "reply")))
	r.settle()
	r.want(f, eventConnectResponse, active)
	r.ok(do(f, abi.RDMA_USER_CM_CMD_ACCEPT, abi.Accept{ID: active}))
	r.settle()
	r.want(f, eventEstablished, passive)
	return listener, active, passive
}

// destroyOf destroys an ID.
func destroyOf(f *File, handle uint32) (uint32, syscall.Errno) {
	resp, errno := ask[abi.DestroyIDResp](f, abi.RDMA_USER_CM_CMD_DESTROY_ID, abi.DestroyID{ID: handle})
	return resp.EventsReported, errno
}

// leftOver describes the objects that the host still has.
func (r *rig) leftOver() string {
	h := r.host
	h.mu.Lock()
	defer h.mu.Unlock()
	cms := 0
	for _, d := range h.devices {
		cms += d.cm.Len()
	}
	return fmt.Sprintf("%d IDs, %d groups, %d ports, %d connections", len(h.ids), len(h.groups), len(h.ports), cms)
}

// empty is leftOver if there is nothing.
const empty = "0 IDs, 0 groups, 0 ports, 0 connections"
