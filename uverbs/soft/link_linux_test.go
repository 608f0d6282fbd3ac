package soft_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// linkRig is a network interface whose state a test changes, and its peer.
type linkRig struct {
	t          *testing.T
	link, peer netlink.Link
}

// newLinkRig moves the calling goroutine into a network namespace of its own, with a network interface that
// is up. The goroutine must not start others that open sockets.
func newLinkRig(t *testing.T) *linkRig {
	t.Helper()
	runtime.LockOSThread() // and never unlock: the thread ends with the test
	testenv.NeedsRights(t, "a network namespace", unix.Unshare(unix.CLONE_NEWNET))
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "link"
	r := &linkRig{t: t}
	r.ok(netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}))
	for name, link := range map[string]*netlink.Link{"link": &r.link, "peer": &r.peer} {
		var err error
		*link, err = netlink.LinkByName(name)
		r.ok(err)
		r.ok(netlink.LinkSetUp(*link))
	}
	lo, err := netlink.LinkByName("lo")
	r.ok(err)
	r.ok(netlink.LinkSetUp(lo))
	return r
}

func (r *linkRig) ok(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// addr returns an address with a prefix for the network interface, which can be used at once.
func (r *linkRig) addr(s string) *netlink.Addr {
	r.t.Helper()
	addr, err := netlink.ParseAddr(s)
	r.ok(err)
	addr.Flags = unix.IFA_F_NODAD
	return addr
}

// open makes a device with an address of the network interface and opens it.
func (r *linkRig) open(addr string) (*soft.Device, *uverbs.Device) {
	r.t.Helper()
	r.ok(netlink.AddrAdd(r.link, r.addr(addr)))
	dev, err := soft.NewViaSocket(soft.Options{Addr: netip.MustParsePrefix(addr).Addr()})
	r.ok(err)
	r.t.Cleanup(func() { dev.Close() })
	ctx, err := uverbs.Open(dev.Name(), uverbs.OpenOptions{})
	r.ok(err)
	r.t.Cleanup(func() { ctx.CloseAll() })
	return dev, ctx
}

// want waits for the next event, which must be the one wanted of the port.
func (r *linkRig) want(ctx *uverbs.Device, want uverbs.EventType) {
	r.t.Helper()
	deadline, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	if ev, err := ctx.NextEvent(deadline); err != nil || ev != (uverbs.Event{Type: want, Port: 1}) {
		r.t.Fatalf("event %+v, %v; want %s of port 1", ev, err, want)
	}
}

// wantPort compares the state of the port.
func (r *linkRig) wantPort(ctx *uverbs.Device, state ib.PortState, phys string) {
	r.t.Helper()
	attr, err := ctx.Port(1)
	if err != nil || attr.State != state || attr.PhysState.Words() != phys {
		r.t.Errorf("the port is %s, %s, %v; want %s, %s", attr.State, attr.PhysState.Words(), err, state, phys)
	}
}

// wantGIDs checks whether the GID table has an entry for the address of the device.
func (r *linkRig) wantGIDs(ctx *uverbs.Device, own bool) {
	r.t.Helper()
	const index = 1 // of the address of the device
	table, err := ctx.GIDTable(1)
	r.ok(err)
	found := false
	for _, e := range table {
		found = found || e.Index == index
	}
	if _, err := ctx.GID(1, index); found != own || (err == nil) != own {
		r.t.Errorf("the table %v has entry %d: %t, want %t; GID: %v", table, index, found, own, err)
	}
}

// TestLinkEvents: a device follows its network interface, as rxe does, and tells its contexts.
func TestLinkEvents(t *testing.T) {
	r := newLinkRig(t)
	_, ctx := r.open("10.9.0.1/24")
	r.wantPort(ctx, ib.PortActive, "LINK_UP")
	r.wantGIDs(ctx, true)

	r.ok(netlink.LinkSetDown(r.link))
	r.want(ctx, uverbs.EventPortErr)
	r.wantPort(ctx, ib.PortDown, "DISABLED")
	r.wantGIDs(ctx, true) // the kernel keeps IPv4 addresses
	r.ok(netlink.LinkSetUp(r.link))
	r.want(ctx, uverbs.EventPortActive)
	r.wantPort(ctx, ib.PortActive, "LINK_UP")

	r.ok(netlink.LinkSetDown(r.peer)) // the link has no carrier then
	r.want(ctx, uverbs.EventPortErr)
	r.wantPort(ctx, ib.PortDown, "POLLING")
	r.ok(netlink.LinkSetUp(r.peer))
	r.want(ctx, uverbs.EventPortActive)

	r.ok(netlink.AddrAdd(r.link, r.addr("10.9.1.1/24"))) // not the address of the device
	r.ok(netlink.AddrDel(r.link, r.addr("10.9.0.1/24")))
	r.want(ctx, uverbs.EventGIDChange)
	r.wantGIDs(ctx, false)
	r.ok(netlink.AddrAdd(r.link, r.addr("10.9.0.1/24")))
	r.want(ctx, uverbs.EventGIDChange)
	r.wantGIDs(ctx, true)

	if n := counter(t, ctx, "link_downed"); n != 2 {
		t.Errorf("link_downed is %d, want 2", n)
	}
}

// counter returns a counter of a device.
func counter(t *testing.T, ctx *uverbs.Device, name string) uint64 {
	t.Helper()
	counters, err := ctx.PortCounters(1)
	testenv.Must(t, err)
	for _, c := range counters {
		if c.Name == name {
			return c.Value
		}
	}
	t.Fatalf("there is no counter %s", name)
	return 0
}

// TestSendErr: packets that the system refuses to send are counted, as rxe does.
func TestSendErr(t *testing.T) {
	r := newLinkRig(t)
	dev, _ := r.open("10.9.0.1/24")
	s := newSide(t, dev, uverbs.QPOptions{Type: ib.UD})
	ah, err := s.pd.CreateAH(uverbs.AHAttr{Port: 1, Global: true, GRH: uverbs.GRH{SGIDIndex: 1, DGID: ib.GID(netip.MustParseAddr("::ffff:10.9.0.2").As16())}})
	r.ok(err)
	send := func() {
		r.ok(s.qp.PostSend(uverbs.SendWR{Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, AH: ah, RemoteQPN: 5}))
		var wcs [1]uverbs.WC
		_, err := s.cq.Wait(t.Context(), wcs[:])
		r.ok(errors.Join(err, s.qp.Err(&wcs[0])))
	}
	send()
	if n := counter(t, s.ctx, "send_err"); n != 0 {
		t.Errorf("send_err is %d before the interface is down", n)
	}
	r.ok(netlink.LinkSetDown(r.link))
	send()
	if n, reason := counter(t, s.ctx, "send_err"), counter(t, s.ctx, "udp_tx_no_route"); n != 1 || reason != 1 {
		t.Errorf("send_err is %d and udp_tx_no_route %d, want 1", n, reason)
	}
}

// TestLinkEventsIPv6: the kernel takes IPv6 addresses away from an interface that goes down.
func TestLinkEventsIPv6(t *testing.T) {
	testenv.IPv6(t)
	r := newLinkRig(t)
	_, ctx := r.open("fd00:9::1/64")
	r.ok(netlink.LinkSetDown(r.link))
	seen := map[uverbs.EventType]bool{}
	for len(seen) < 2 {
		ev, err := ctx.NextEvent(t.Context())
		r.ok(err)
		seen[ev.Type] = true
	}
	if !seen[uverbs.EventPortErr] || !seen[uverbs.EventGIDChange] {
		t.Errorf("events %v, want %s and %s", seen, uverbs.EventPortErr, uverbs.EventGIDChange)
	}
	r.wantGIDs(ctx, false)
}

// TestLinkRemoved: a device ends with its network interface.
func TestLinkRemoved(t *testing.T) {
	r := newLinkRig(t)
	dev, ctx := r.open("10.9.0.1/24")
	r.ok(netlink.LinkDel(r.link))
	for ev := (uverbs.Event{}); ev.Type != uverbs.EventDeviceFatal; {
		var err error
		ev, err = ctx.NextEvent(t.Context())
		r.ok(err)
	}
	errorIs(t, second(ctx.AllocPD()), uverbs.ErrDeviceRemoved, "AllocPD")
	r.ok(dev.Close())
	if _, err := uverbs.Open(dev.Name(), uverbs.OpenOptions{}); err == nil {
		t.Error("the device can still be opened")
	}
}

// TestAddressGone: a connection ends with an error when the device loses its address, as with rxe, and a
// new one works when the address is back.
func TestAddressGone(t *testing.T) {
	r := newLinkRig(t)
	var devs [2]*soft.Device
	var ends [2]*side
	for i, addr := range []string{"10.9.0.1/24", "10.9.1.1/24"} {
		devs[i], _ = r.open(addr)
	}
	// Waiting for the events needs a context that the device has told of them.
	ctx, err := uverbs.Open(devs[0].Name(), uverbs.OpenOptions{})
	r.ok(err)
	t.Cleanup(func() { ctx.Close() })
	pair := func() {
		for i := range ends {
			ends[i] = newSide(t, devs[i], uverbs.QPOptions{Path: uverbs.PathOptions{Timeout: ib.AckTimeoutFor(50 * time.Millisecond), RetryCount: 2}})
		}
		connect(t, ends[0], ends[1])
	}
	send := func() error {
		var wcs [1]uverbs.WC
		r.ok(ends[0].qp.PostSend(uverbs.SendWR{Opcode: uverbs.WRRDMAWrite, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{ends[0].mr.SGE(0, 8)},
			RemoteAddr: ends[1].mr.Addr(), RKey: ends[1].mr.RKey()}))
		_, err := ends[0].cq.Wait(t.Context(), wcs[:])
		r.ok(err)
		return ends[0].qp.Err(&wcs[0])
	}
	pair()
	r.ok(send())
	r.ok(netlink.AddrDel(r.link, r.addr("10.9.0.1/24")))
	r.want(ctx, uverbs.EventGIDChange)
	errorIs(t, send(), uverbs.WCRetryExcErr, "a write without the address")
	r.ok(netlink.AddrAdd(r.link, r.addr("10.9.0.1/24")))
	r.want(ctx, uverbs.EventGIDChange)
	pair()
	r.ok(send())
}

// TestLinkMTU: the active MTU follows the interface, up to that of the options, as with rxe.
func TestLinkMTU(t *testing.T) {
	for _, most := range []int{4096, 512} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			r := newLinkRig(t)
			r.ok(netlink.AddrAdd(r.link, r.addr("10.9.0.1/24")))
			r.ok(netlink.LinkSetMTU(r.link, 9000))
			dev, err := soft.New(soft.Options{Addr: netip.MustParseAddr("10.9.0.1"), MTU: most})
			r.ok(err)
			t.Cleanup(func() { dev.Close() })
			s := newSide(t, dev, uverbs.QPOptions{Type: ib.UD})
			for _, c := range []struct{ link, want int }{{1500, 1024}, {700, 512}, {100, 256}, {9000, 4096}} {
				r.ok(netlink.LinkSetMTU(r.link, c.link))
				r.ok(netlink.LinkSetDown(r.link)) // has an event, which comes afterwards
				r.want(s.ctx, uverbs.EventPortErr)
				r.ok(netlink.LinkSetUp(r.link))
				r.want(s.ctx, uverbs.EventPortActive)
				want := min(c.want, most)
				if attr, err := s.ctx.Port(1); err != nil || attr.ActiveMTU.Bytes() != want {
					t.Errorf("an interface with %d: the active MTU is %v, %v; want %d", c.link, attr.ActiveMTU, err, want)
				}
			}
		})
	}
}

// TestNoIPv6: the error says that the host has no IPv6 at all.
func TestNoIPv6(t *testing.T) {
	r := newLinkRig(t)
	err := os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0)
	if !errors.Is(err, fs.ErrNotExist) { // without IPv6 in the kernel
		r.ok(err)
	}
	_, err = soft.New(soft.Options{Addr: netip.MustParseAddr("fd00::1")})
	if !errors.Is(err, syscall.EAFNOSUPPORT) || !strings.Contains(err.Error(), "no interface of this host has any IPv6 address") {
		t.Errorf("the error is %v", err)
	}
}
