package ucm

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/cm/internal/ibcm"
	"github.com/goverbs/goverbs/uverbs/ib"
)

func TestPortSpaces(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		space     uint16
		given     ib.QPType
		want      ib.QPType
		errno     syscall.Errno
		bindErrno syscall.Errno
	}{
		{spaceTCP, 0, ib.RC, 0, 0}, {spaceUDP, ib.RC, ib.UD, 0, 0}, {spaceIB, 3, 3, 0, 0}, {spaceIPoIB, 0, ib.UD, 0, syscall.EINVAL}, {1, ib.RC, 0, syscall.EINVAL, 0},
	} {
		resp, errno := ask[abi.CreateIDResp](r.file, abi.RDMA_USER_CM_CMD_CREATE_ID, abi.CreateID{Uid: 1, Ps: c.space, QPType: uint8(c.given)})
		r.is("create", errno, c.errno)
		if errno != 0 {
			continue
		}
		if got := r.host.ids[resp.ID].qpType; got != c.want {
			t.Errorf("port space %#x: QP type %d, want %d", c.space, got, c.want)
		}
		r.is("bind", bindTo(r.file, resp.ID, ip(addrA+":0")), c.bindErrno)
	}
}

// TestHandles: which errors commands return for an ID that is none, of another file, or not bound.
func TestHandles(t *testing.T) {
	r := newRig(t)
	other := r.open()
	foreign, unbound := r.create(other, spaceTCP), r.create(r.file, spaceTCP)
	const none = 12345
	for cmd, req := range map[uint32]func(handle uint32) []byte{
		abi.RDMA_USER_CM_CMD_DESTROY_ID:    func(h uint32) []byte { return bytesOf(&abi.DestroyID{ID: h}) },
		abi.RDMA_USER_CM_CMD_RESOLVE_ROUTE: func(h uint32) []byte { return bytesOf(&abi.ResolveRoute{ID: h}) },
		abi.RDMA_USER_CM_CMD_QUERY:         func(h uint32) []byte { return bytesOf(&abi.Query{ID: h}) },
		abi.RDMA_USER_CM_CMD_QUERY_ROUTE:   func(h uint32) []byte { return bytesOf(&abi.Query{ID: h}) },
		abi.RDMA_USER_CM_CMD_CONNECT:       func(h uint32) []byte { return bytesOf(&abi.Connect{ID: h, ConnParam: param(1, "")}) },
		abi.RDMA_USER_CM_CMD_LISTEN:        func(h uint32) []byte { return bytesOf(&abi.Listen{ID: h}) },
		abi.RDMA_USER_CM_CMD_ACCEPT:        func(h uint32) []byte { return bytesOf(&abi.Accept{ID: h}) },
		abi.RDMA_USER_CM_CMD_REJECT:        func(h uint32) []byte { return bytesOf(&abi.Reject{ID: h}) },
		abi.RDMA_USER_CM_CMD_DISCONNECT:    func(h uint32) []byte { return bytesOf(&abi.Disconnect{ID: h}) },
		abi.RDMA_USER_CM_CMD_INIT_QP_ATTR:  func(h uint32) []byte { return bytesOf(&abi.InitQPAttr{ID: h}) },
		abi.RDMA_USER_CM_CMD_SET_OPTION:    func(h uint32) []byte { return bytesOf(&abi.SetOption{ID: h}) },
		abi.RDMA_USER_CM_CMD_NOTIFY:        func(h uint32) []byte { return bytesOf(&abi.Notify{ID: h}) },
		abi.RDMA_USER_CM_CMD_WRITE_CM_EVENT: func(h uint32) []byte {
			return bytesOf(&abi.WriteCmEvent{ID: h, Event: eventUser})
		},
		abi.RDMA_USER_CM_CMD_RESOLVE_IB_SERVICE: func(h uint32) []byte { return bytesOf(&abi.ResolveIbService{ID: h}) },
		abi.RDMA_USER_CM_CMD_LEAVE_MCAST:        func(h uint32) []byte { return bytesOf(&abi.DestroyID{ID: h}) },
	} {
		out := bytesOf(new([400]uint64))
		r.is("no ID", r.file.Do(cmd, req(none), out), syscall.ENOENT)
		if cmd != abi.RDMA_USER_CM_CMD_LEAVE_MCAST {
			r.is("of another file", r.file.Do(cmd, req(foreign), out), syscall.EINVAL)
		}
		r.is("empty request", r.file.Do(cmd, nil, out), syscall.EINVAL)
		if slices.Contains([]uint32{abi.RDMA_USER_CM_CMD_RESOLVE_ROUTE, abi.RDMA_USER_CM_CMD_CONNECT, abi.RDMA_USER_CM_CMD_ACCEPT, abi.RDMA_USER_CM_CMD_REJECT,
			abi.RDMA_USER_CM_CMD_DISCONNECT, abi.RDMA_USER_CM_CMD_INIT_QP_ATTR, abi.RDMA_USER_CM_CMD_RESOLVE_IB_SERVICE}, cmd) {
			r.is("not bound", r.file.Do(cmd, req(unbound), out), syscall.EINVAL)
		}
	}
	for cmd, want := range map[uint32]syscall.Errno{
		abi.RDMA_USER_CM_CMD_GET_OPTION: syscall.ENOSYS, 25: syscall.EINVAL, 1 << 31: syscall.EINVAL,
	} {
		r.is("command", r.file.Do(cmd, nil, nil), want)
	}
	// An answer that does not fit.
	for _, cmd := range []uint32{abi.RDMA_USER_CM_CMD_CREATE_ID, abi.RDMA_USER_CM_CMD_DESTROY_ID, abi.RDMA_USER_CM_CMD_INIT_QP_ATTR,
		abi.RDMA_USER_CM_CMD_GET_EVENT, abi.RDMA_USER_CM_CMD_QUERY_ROUTE, abi.RDMA_USER_CM_CMD_LEAVE_MCAST} {
		r.is("no room", r.file.Do(cmd, bytesOf(&abi.CreateID{}), nil), syscall.ENOSPC)
	}
	r.file.Close()
	r.is("closed file", r.file.Do(abi.RDMA_USER_CM_CMD_QUERY, bytesOf(&abi.Query{}), nil), syscall.EBADF)
	r.is("event of a closed file", r.file.Do(abi.RDMA_USER_CM_CMD_GET_EVENT, nil, bytesOf(new([50]uint64))), syscall.EAGAIN)
}

func TestBind(t *testing.T) {
	r := newRig(t)
	r.fabric.local = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	f := r.file
	for _, c := range []struct {
		addr  string
		errno syscall.Errno
		dev   uint32 // 0 is none
	}{
		{addrA + ":0", 0, 7}, {addrB + ":5", 0, 8}, {"[" + addrB6 + "]:5", 0, 8}, {"0.0.0.0:6", 0, 0}, {"[::]:0", 0, 0}, {"127.0.0.1:0", 0, 0},
		{"192.0.2.1:0", syscall.ENODEV, 0}, {"192.0.2.2:0", syscall.EADDRNOTAVAIL, 0}, {"[fe80::1]:0", syscall.EINVAL, 0},
	} {
		id := r.create(f, spaceTCP)
		r.is(c.addr, bindTo(f, id, ip(c.addr)), c.errno)
		resp, errno := ask[abi.QueryAddrResp](f, abi.RDMA_USER_CM_CMD_QUERY, abi.Query{ID: id})
		r.ok(errno)
		if resp.IbdevIndex != c.dev || (resp.PortNum == 1) != (c.dev != 0) {
			t.Errorf("%s: device %d, port %d", c.addr, resp.IbdevIndex, resp.PortNum)
		}
		if c.errno == 0 {
			r.is("bind again", bindTo(f, id, ip(c.addr)), syscall.EINVAL)
		} else {
			r.ok(bindTo(f, id, ip(addrA+":0"))) // a failure changes nothing
		}
	}
	id := r.create(f, spaceTCP)
	k, size := storage(ip(addrA + ":1"))
	r.is("size", do(f, abi.RDMA_USER_CM_CMD_BIND, abi.Bind{ID: id, AddrSize: size + 1, Addr: k}), syscall.EINVAL)
	r.is("no address", do(f, abi.RDMA_USER_CM_CMD_BIND, abi.Bind{ID: id}), syscall.EINVAL)
	gid := sockaddr{family: afIB, ip: netip.MustParseAddr(addrA6), service: spaceTCP << 16, mask: 1<<64 - 1}
	r.is("AF_IB", bindTo(f, id, gid), syscall.ENODEV)
	gid.ip = netip.IPv6Unspecified()
	gid.service = spaceUDP<<16 | 77
	r.is("AF_IB of another port space", bindTo(f, id, gid), syscall.EPROTONOSUPPORT)
	gid.service = spaceTCP<<16 | 77
	r.is("AF_IB without a GID", bindTo(f, id, gid), 0)
	resp, errno := ask[abi.QueryAddrResp](f, abi.RDMA_USER_CM_CMD_QUERY, abi.Query{ID: id})
	if got, ok := parseSockaddr(bytesOf(&resp.SrcAddr)); errno != 0 || !ok || got.service != spaceTCP<<16|77 || got.port != 77 || resp.SrcSize != sizeIB {
		t.Errorf("address is %+v, %v", got, errno)
	}
}

// TestPorts tests which IDs may share a port.
func TestPorts(t *testing.T) {
	type binding struct {
		addr         string
		reuse, fonly bool
	}
	for name, c := range map[string]struct {
		first, second binding
		want          syscall.Errno
	}{
		"same address":             {binding{addr: addrA + ":5"}, binding{addr: addrA + ":5"}, syscall.EADDRINUSE},
		"other address":            {binding{addr: addrA + ":5"}, binding{addr: addrB + ":5"}, 0},
		"any after one":            {binding{addr: addrA + ":5"}, binding{addr: "0.0.0.0:5"}, syscall.EADDRNOTAVAIL},
		"one after any":            {binding{addr: "[::]:5"}, binding{addr: addrA + ":5"}, syscall.EADDRNOTAVAIL},
		"both reuse":               {binding{addr: addrA + ":5", reuse: true}, binding{addr: addrA + ":5", reuse: true}, 0},
		"one reuses":               {binding{addr: addrA + ":5", reuse: true}, binding{addr: addrA + ":5"}, syscall.EADDRINUSE},
		"families":                 {binding{addr: "0.0.0.0:5"}, binding{addr: "[::]:5", fonly: true}, 0},
		"IPv6 stands for IPv4 too": {binding{addr: "0.0.0.0:5"}, binding{addr: "[::]:5"}, syscall.EADDRNOTAVAIL},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			bind := func(b binding) syscall.Errno {
				id := r.create(r.file, spaceTCP)
				for option, on := range map[uint32]bool{abi.RDMA_OPTION_ID_REUSEADDR: b.reuse, abi.RDMA_OPTION_ID_AFONLY: b.fonly} {
					if v := int32(1); on {
						r.ok(do(r.file, abi.RDMA_USER_CM_CMD_SET_OPTION, abi.SetOption{Optval: abi.PtrTo(&v), ID: id, Optname: option, Optlen: 4}))
					}
				}
				return bindTo(r.file, id, ip(b.addr))
			}
			r.ok(bind(c.first))
			r.is("second", bind(c.second), c.want)
		})
	}
	r := newRig(t)
	// Each port space has its own ports. Ports that are chosen differ.
	udp, tcp := r.create(r.file, spaceUDP), r.create(r.file, spaceTCP)
	r.ok(bindTo(r.file, udp, ip(addrA+":5")), bindTo(r.file, tcp, ip(addrA+":5")))
	seen := map[uint16]bool{}
	for range 200 {
		id := r.create(r.file, spaceTCP)
		r.ok(bindTo(r.file, id, ip(addrA+":0")))
		port := r.host.ids[id].src.port
		if port < 32768 || port > 60999 || seen[port] {
			t.Fatalf("port %d was chosen", port)
		}
		seen[port] = true
	}
	// A listener that shares its address fails until it is alone.
	one := int32(1)
	var ids [2]uint32
	for i := range ids {
		ids[i] = r.create(r.file, spaceTCP)
		r.ok(do(r.file, abi.RDMA_USER_CM_CMD_SET_OPTION, abi.SetOption{Optval: abi.PtrTo(&one), ID: ids[i], Optname: abi.RDMA_OPTION_ID_REUSEADDR, Optlen: 4}))
		r.ok(bindTo(r.file, ids[i], ip(addrA+":6")))
	}
	r.is("shared", do(r.file, abi.RDMA_USER_CM_CMD_LISTEN, abi.Listen{ID: ids[0]}), syscall.EADDRINUSE)
	_, errno := destroyOf(r.file, ids[1])
	r.ok(errno, do(r.file, abi.RDMA_USER_CM_CMD_LISTEN, abi.Listen{ID: ids[0]}))
	r.is("listen again", do(r.file, abi.RDMA_USER_CM_CMD_LISTEN, abi.Listen{ID: ids[0]}), syscall.EINVAL)
	// Without Bind, a listener is on any address and port.
	id := r.create(r.file, spaceTCP)
	r.ok(do(r.file, abi.RDMA_USER_CM_CMD_LISTEN, abi.Listen{ID: id, Backlog: 5000}))
	if x := r.host.ids[id]; x.src.family != afINET || !x.src.ip.IsUnspecified() || x.src.port == 0 || x.backlog != 1024 {
		t.Errorf("the listener is on %+v, backlog %d", x.src, x.backlog)
	}
}

// TestPortExhaustion: when all ports are taken by IDs that are not unique, there is none.
func TestPortExhaustion(t *testing.T) {
	r := newRig(t)
	for port := firstPort; port <= lastPort; port++ {
		r.ok(bindTo(r.file, r.create(r.file, spaceTCP), sockaddrOf(netip.IPv4Unspecified(), uint16(port))))
	}
	r.is("any", bindTo(r.file, r.create(r.file, spaceTCP), ip(addrA+":0")), syscall.EADDRNOTAVAIL)
	r.ok(bindTo(r.file, r.create(r.file, spaceUDP), ip(addrA+":0")))
}

// TestListeners: which listener gets a request.
func TestListeners(t *testing.T) {
	r := newRig(t)
	servers := map[string]*File{}
	for _, addr := range []string{addrB + ":7", addrA + ":7", "0.0.0.0:8", "[::]:9"} {
		servers[addr] = r.open()
		r.listenOn(servers[addr], spaceTCP, addr, 0)
	}
	only := r.open()
	id, one := r.create(only, spaceTCP), int32(1)
	r.ok(do(only, abi.RDMA_USER_CM_CMD_SET_OPTION, abi.SetOption{Optval: abi.PtrTo(&one), ID: id, Optname: abi.RDMA_OPTION_ID_AFONLY, Optlen: 4}))
	r.ok(bindTo(only, id, ip("[::]:10")), do(only, abi.RDMA_USER_CM_CMD_LISTEN, abi.Listen{ID: id}))
	servers["[::]:10"] = only
	for _, c := range []struct {
		to, listener string
		reason       uint32
	}{
		{addrB + ":7", addrB + ":7", 0}, {addrA + ":7", addrA + ":7", 0}, {"[" + addrB6 + "]:7", "", 28}, {addrB + ":8", "0.0.0.0:8", 0},
		{"[" + addrB6 + "]:8", "", 28}, {addrB + ":9", "[::]:9", 0}, {"[" + addrB6 + "]:9", "[::]:9", 0}, {"[" + addrB6 + "]:10", "[::]:10", 0}, {addrB + ":10", "", 28}, {addrB + ":11", "", 8},
	} {
		f := r.open()
		r.fabric.sources[netip.MustParseAddr(addrA)] = netip.MustParseAddr(addrA)
		active := r.connectTo(f, spaceTCP, c.to)
		if c.listener == "" {
			if e := r.want(f, eventRejected, active); e.Status != c.reason {
				t.Errorf("%s: reason %d, want %d", c.to, e.Status, c.reason)
			}
			continue
		}
		request := r.want(servers[c.listener], eventConnectRequest, 0).ID
		x := r.host.ids[request]
		if want := ip(c.to); x.src != want || x.dst.port != r.host.ids[active].src.port || x.dst.ip != r.host.ids[active].src.ip {
			t.Errorf("%s: the request is from %+v to %+v", c.to, x.dst, x.src)
		}
	}
	// A device that comes later belongs to the listeners on all addresses.
	r.fabric.add(r.host, 9, "10.0.0.3")
	r.fabric.sources[netip.MustParseAddr("10.0.0.3")] = netip.MustParseAddr(addrA)
	r.connectTo(r.file, spaceTCP, "10.0.0.3:8")
	r.want(servers["0.0.0.0:8"], eventConnectRequest, 0)
}

func TestResolve(t *testing.T) {
	r := newRig(t)
	f := r.file
	src := func(s string) sockaddr {
		if s == "" {
			return sockaddr{}
		}
		return ip(s)
	}
	r.fabric.sources[netip.MustParseAddr("192.0.2.9")] = netip.MustParseAddr("192.0.2.1") // another interface
	r.fabric.sources[netip.MustParseAddr("10.0.0.9")] = netip.MustParseAddr(addrB)        // a host on B's network
	r.fabric.sources[netip.MustParseAddr("127.0.0.9")] = netip.MustParseAddr("127.0.0.1") // another process
	r.fabric.sources[netip.MustParseAddr("10.0.0.77")] = netip.MustParseAddr("10.0.0.1")  // another process that has the route
	for _, c := range []struct {
		src, dst string
		errno    syscall.Errno
		event    uint32
		status   syscall.Errno
		from     string
	}{
		{"", addrB + ":7", 0, eventAddrResolved, 0, addrA},
		{addrB + ":0", addrA + ":7", 0, eventAddrResolved, 0, addrB},
		{"0.0.0.0:0", addrB + ":7", 0, eventAddrResolved, 0, addrA},
		{"", "10.0.0.9:7", 0, eventAddrResolved, 0, addrB},
		{"", "192.0.2.9:7", 0, eventAddrError, syscall.ENODEV, ""},
		{"", "192.0.2.10:7", syscall.ENETUNREACH, 0, 0, ""},
		{"", "127.0.0.9:7", 0, eventAddrResolved, 0, "127.0.0.1"}, // as the kernel: no route follows
		{addrA + ":0", "[" + addrB6 + "]:7", syscall.EINVAL, 0, 0, ""},
		{"192.0.2.1:0", addrB + ":7", syscall.EADDRNOTAVAIL, 0, 0, ""},
		{"", addrA + ":7", 0, eventAddrResolved, 0, addrA}, // the device reaches itself without a route
	} {
		id := r.create(f, spaceTCP)
		r.is(c.dst, resolveTo(f, id, src(c.src), ip(c.dst)), c.errno)
		if c.errno != 0 {
			r.none(f)
			continue
		}
		e := r.want(f, c.event, id)
		if int32(e.Status) != -int32(c.status) {
			t.Errorf("%s: status %d, want %v", c.dst, int32(e.Status), c.status)
		}
		if c.status != 0 { // the ID can try again
			r.ok(resolveTo(f, id, sockaddr{}, ip(addrB+":7")))
			r.want(f, eventAddrResolved, id)
			continue
		}
		if x := r.host.ids[id]; x.src.ip != netip.MustParseAddr(c.from) || x.dst != ip(c.dst) {
			t.Errorf("%s: from %+v to %+v", c.dst, x.src, x.dst)
		}
		r.is("resolve again", resolveTo(f, id, sockaddr{}, ip(c.dst)), syscall.EINVAL)
	}
	// A bound ID keeps its address, and its port.
	id := r.create(f, spaceTCP)
	r.ok(bindTo(f, id, ip(addrB+":55")), resolveTo(f, id, ip(addrA+":1"), ip(addrA+":7")))
	r.want(f, eventAddrResolved, id)
	if x := r.host.ids[id]; x.src != ip(addrB+":55") {
		t.Errorf("the address is %+v", x.src)
	}
	// A device on a loopback address is one like others.
	r.fabric.add(r.host, 9, "127.0.0.2")
	r.fabric.sources[netip.MustParseAddr("127.0.0.2")] = netip.MustParseAddr("127.0.0.1")
	for _, dst := range []string{"127.0.0.2:7", "127.0.0.2:7"} {
		id = r.routed(f, spaceTCP, dst)
		if x := r.host.ids[id]; x.dev.info.Index != 9 || x.src.ip != netip.MustParseAddr("127.0.0.2") {
			t.Errorf("%s: from %+v by device %d", dst, x.src, x.dev.info.Index)
		}
	}
	// Then other loopback addresses belong to other processes.
	id = r.routed(f, spaceTCP, "127.0.0.9:7")
	if x := r.host.ids[id]; x.dev.info.Index != 9 || x.src.ip != netip.MustParseAddr("127.0.0.2") {
		t.Errorf("from %+v by device %d", x.src, x.dev.info.Index)
	}
	r.is("another loopback address", bindTo(f, r.create(f, spaceTCP), ip("127.0.0.9:0")), syscall.EADDRNOTAVAIL)
	bad := abi.ResolveAddr{ID: id}
	r.is("no address", do(f, abi.RDMA_USER_CM_CMD_RESOLVE_ADDR, bad), syscall.EINVAL)
	bad.DstAddr, bad.DstSize = storage(ip(addrB + ":7"))
	bad.SrcSize = 16
	r.is("no source", do(f, abi.RDMA_USER_CM_CMD_RESOLVE_ADDR, bad), syscall.EINVAL)
	gid := sockaddr{family: afIB, ip: netip.MustParseAddr(addrB6), pkey: 0xffff, service: spaceTCP<<16 | 7, mask: 1<<64 - 1}
	r.is("AF_IB", resolveTo(f, r.create(f, spaceTCP), sockaddr{}, gid), syscall.ENODEV)
}

func TestResolveRoute(t *testing.T) {
	r := newRig(t)
	f := r.file
	id := r.create(f, spaceTCP)
	r.ok(bindTo(f, id, ip(addrA+":0")))
	r.is("bound", resolveRouteOf(f, id), syscall.EINVAL)
	r.ok(resolveTo(f, id, sockaddr{}, ip(addrB+":7")))
	r.want(f, eventAddrResolved, id)
	r.is("no timeout", do(f, abi.RDMA_USER_CM_CMD_RESOLVE_ROUTE, abi.ResolveRoute{ID: id}), syscall.EINVAL)
	r.a.mtu = 0
	r.is("no MTU", resolveRouteOf(f, id), syscall.EINVAL)
	r.a.mtu = 5
	r.is("connect", do(f, abi.RDMA_USER_CM_CMD_CONNECT, abi.Connect{ID: id, ConnParam: param(1, "")}), syscall.EINVAL)
	r.ok(resolveRouteOf(f, id))
	r.want(f, eventRouteResolved, id)
	r.is("again", resolveRouteOf(f, id), syscall.EINVAL)
	r.is("parameters that are not valid", do(f, abi.RDMA_USER_CM_CMD_CONNECT, abi.Connect{ID: id}), syscall.EINVAL)
	// Loopback addresses have no route, as in the kernel.
	id = r.create(f, spaceTCP)
	r.ok(resolveTo(f, id, sockaddr{}, ip("127.0.0.1:7")))
	r.want(f, eventAddrResolved, id)
	r.is("loopback", resolveRouteOf(f, id), syscall.ENODEV)
	empty := New(Options{Network: r.fabric, Clock: r.clock})
	file, err := empty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer os.NewFile(uintptr(file.FD()), "rdma_cm").Close()
	defer file.Close()
	resp, errno := ask[abi.CreateIDResp](file, abi.RDMA_USER_CM_CMD_CREATE_ID, abi.CreateID{Uid: 1, Ps: spaceTCP})
	r.ok(errno)
	r.is("loopback without devices", resolveTo(file, resp.ID, sockaddr{}, ip("127.0.0.1:7")), syscall.ENODEV)
}

func TestServes(t *testing.T) {
	r := newRig(t)
	if a, b, c := r.host.Name(7), r.host.Name(8), r.host.Name(9); a != "soft7" || b != "soft8" || c != "" {
		t.Errorf("the devices are called %q, %q and %q", a, b, c)
	}
	if !r.host.HasDevices() || New(Options{}).HasDevices() {
		t.Error("HasDevices is wrong")
	}
	r.fabric.sources[netip.MustParseAddr("10.0.0.9")] = netip.MustParseAddr(addrB)
	r.fabric.sources[netip.MustParseAddr("192.0.2.9")] = netip.MustParseAddr("192.0.2.1")
	lo, err := net.InterfaceByIndex(1)
	if err != nil {
		t.Fatal(err)
	}
	r.fabric.add(r.host, 1, "fe80::a")
	r.fabric.sources[netip.MustParseAddr("fe80::b%1")] = netip.MustParseAddr("fe80::a%" + lo.Name)
	r.fabric.sources[netip.MustParseAddr("fe80::b%7")] = netip.MustParseAddr("fe80::a%other")
	for _, c := range []struct {
		local, remote string
		want          bool
	}{
		{"", "fe80::b%1", true}, {"", "fe80::b%" + lo.Name, true}, {"", "fe80::b%7", false}, {"", "fe80::b%nothing", false}, {"", "fe80::b", false},
		{"", "fe80::a%1", true}, {"", "fe80::a%" + lo.Name, true}, {"", "fe80::a%7", false}, {"", "fe80::a", true},
		{"fe80::a", "", true}, {"fe80::a%" + lo.Name, "", true}, {"fe80::a%7", "", false}, {"fe80::a%nothing", "", false},
		{addrA, "", true}, {"::ffff:" + addrA, "", true}, {"192.0.2.1", "", false}, {"192.0.2.1", addrB, false}, {"", addrB, true}, {"0.0.0.0", addrB6, true},
		{"", "10.0.0.9", true}, {"", "192.0.2.9", false}, {"", "192.0.2.10", false}, {"", "", false}, {"::", "", false}, {"", "0.0.0.0", false},
	} {
		addr := func(s string) (a netip.Addr) {
			if s != "" {
				a = netip.MustParseAddr(s)
			}
			return a
		}
		if got := r.host.Serves(addr(c.local), addr(c.remote)); got != c.want {
			t.Errorf("from %q to %q: %t", c.local, c.remote, got)
		}
	}
}

func TestWriteEvent(t *testing.T) {
	r := newRig(t)
	id := r.create(r.file, spaceTCP)
	req := abi.WriteCmEvent{ID: id, Event: eventUser, Status: 7}
	*req.Param.Arg() = 0x1122334455667788
	r.ok(do(r.file, abi.RDMA_USER_CM_CMD_WRITE_CM_EVENT, req))
	e := r.want(r.file, eventUser, id)
	if arg := *view[uint64](bytesOf(&[1]uint64{uint64(e.Param.Arg32()[0]) | uint64(e.Param.Arg32()[1])<<32})); e.Status != 7 || arg != 0x1122334455667788 {
		t.Errorf("status %d, argument %#x", e.Status, arg)
	}
	for _, event := range []uint32{eventEstablished, eventInternal + 1} {
		r.is("event", do(r.file, abi.RDMA_USER_CM_CMD_WRITE_CM_EVENT, abi.WriteCmEvent{ID: id, Event: event}), syscall.EINVAL)
	}
	r.ok(do(r.file, abi.RDMA_USER_CM_CMD_WRITE_CM_EVENT, abi.WriteCmEvent{ID: id, Event: eventInternal}))
	r.want(r.file, eventInternal, id)
	resp, errno := ask[abi.CreateIDResp](r.file, abi.RDMA_USER_CM_CMD_CREATE_ID, abi.CreateID{Ps: spaceTCP})
	r.ok(errno)
	r.is("an ID without a number", do(r.file, abi.RDMA_USER_CM_CMD_WRITE_CM_EVENT, abi.WriteCmEvent{ID: resp.ID, Event: eventUser}), syscall.EINVAL)
}

func TestMigrate(t *testing.T) {
	r := newRig(t)
	to := r.open()
	a, b := r.create(r.file, spaceTCP), r.create(r.file, spaceTCP)
	for _, id := range []uint32{a, b, a} {
		r.ok(do(r.file, abi.RDMA_USER_CM_CMD_WRITE_CM_EVENT, abi.WriteCmEvent{ID: id, Event: eventUser}))
	}
	r.want(r.file, eventUser, a)
	migrate := func(fd int, id uint32) (uint32, syscall.Errno) {
		resp, errno := ask[abi.MigrateResp](to, abi.RDMA_USER_CM_CMD_MIGRATE_ID, abi.MigrateID{ID: id, FD: uint32(fd)})
		return resp.EventsReported, errno
	}
	_, errno := migrate(0, a)
	r.is("from another kind of file", errno, syscall.EINVAL)
	_, errno = migrate(r.file.FD(), 12345)
	r.is("no ID", errno, syscall.ENOENT)
	_, errno = migrate(to.FD(), a)
	r.is("of another file", errno, syscall.EINVAL)
	if n, errno := migrate(r.file.FD(), a); errno != 0 || n != 1 {
		t.Errorf("%d events, %v", n, errno)
	}
	r.want(to, eventUser, a)
	r.none(to)
	r.want(r.file, eventUser, b)
	r.none(r.file)
	_, errno = destroyOf(r.file, a)
	r.is("from the old file", errno, syscall.EINVAL)
	if n, errno := destroyOf(to, a); errno != 0 || n != 2 {
		t.Errorf("%d events, %v", n, errno)
	}
}

// TestClose: closing a file destroys its IDs, and with them connections, memberships and ports.
func TestClose(t *testing.T) {
	r := newRig(t)
	_, active, _ := r.connected()
	udp := r.create(r.file, spaceUDP)
	r.ok(bindTo(r.file, udp, ip(addrA+":0")))
	_, errno := joinTo(r.file, udp, 1, "239.1.2.3", 0)
	r.ok(errno)
	other := r.open()
	r.connectTo(other, spaceTCP, addrB+":7")
	if r.host.ids[active] == nil {
		t.Fatal("there is no connection")
	}
	r.file.Close()
	r.settle()
	r.file.Close()
	if e := r.want(other, eventRejected, 0); e.Status != 28 {
		t.Errorf("event is %+v", e)
	}
	other.Close()
	if got := r.leftOver(); got != empty || r.a.groups["239.1.2.3"] != 0 {
		t.Errorf("%s, groups %v", got, r.a.groups)
	}
}

func TestDeviceRemoval(t *testing.T) {
	r := newRig(t)
	f := r.file
	listener, active, passive := r.connected()
	any := r.listenOn(f, spaceTCP, "0.0.0.0:8", 0)
	unseen := r.open()
	bound := r.create(f, spaceUDP)
	r.ok(bindTo(f, bound, ip(addrB+":0")))
	r.connectTo(unseen, spaceTCP, addrB+":7") // whose request is not accepted
	request := r.want(f, eventConnectRequest, 0).ID
	r.host.Remove(r.b)
	r.host.Remove(r.b)
	r.settle()
	got := map[uint32]bool{}
	for range 3 {
		got[r.want(f, eventDeviceRemoval, 0).ID] = true
	}
	if !got[listener] || !got[passive] || !got[bound] {
		t.Errorf("events of %v", got)
	}
	// The peer learns that the connection has ended.
	r.want(f, eventDisconnected, active)
	r.none(f)
	for _, id := range []uint32{listener, passive, bound, request} {
		_, errno := ask[abi.QueryAddrResp](f, abi.RDMA_USER_CM_CMD_QUERY, abi.Query{ID: id})
		r.is("query", errno, syscall.ENXIO)
		_, errno = destroyOf(f, id)
		r.ok(errno)
	}
	r.is("bind", bindTo(f, r.create(f, spaceTCP), ip(addrB+":0")), syscall.EADDRNOTAVAIL)
	r.fabric.sources[netip.MustParseAddr(addrA)] = netip.MustParseAddr(addrA)
	r.connectTo(f, spaceTCP, addrA+":8")
	if e := r.want(f, eventConnectRequest, 0); e.Uid != r.host.ids[any].uid {
		t.Errorf("event is %+v", e)
	}
	r.host.Receive(r.b, netip.MustParseAddr(addrA), netip.MustParseAddr(addrB), make([]byte, madSize)) // has no effect
}

// TestSystem: the answers of this machine, and a timer that fires.
func TestSystem(t *testing.T) {
	n := systemNetwork{}
	lo, none := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.77")
	if !n.IsLocal(lo) || n.IsLocal(none) {
		t.Errorf("%s is local: %t, %s is local: %t", lo, n.IsLocal(lo), none, n.IsLocal(none))
	}
	if from, errno := n.Source(netip.Addr{}, lo); errno != 0 || from != lo {
		t.Errorf("source for %s is %s, %v", lo, from, errno)
	}
	if from, errno := n.Source(lo, lo); errno != 0 || from != lo {
		t.Errorf("source for %s is %s, %v", lo, from, errno)
	}
	if _, errno := n.Source(none, lo); errno == 0 {
		t.Errorf("%s can be a source", none)
	}
	lo6 := netip.IPv6Loopback()
	if from, errno := n.Source(netip.Addr{}, lo6.WithZone("1")); errno == 0 && from.WithZone("") != lo6 { // there may be no IPv6
		t.Errorf("source for %s is %s", lo6, from)
	}
	if from, errno := n.Source(lo6, lo); errno == 0 {
		t.Errorf("source for %s from %s is %s", lo, lo6, from)
	}
	fired := make(chan bool)
	systemClock{}.AfterFunc(0, func() { close(fired) })
	<-fired
	h := New(Options{})
	if d := time.Since(h.clock.Now()); d < 0 {
		t.Errorf("the clock is %s ahead", d)
	}
}

// TestConcurrent: many goroutines connect and disconnect, which the race detector watches.
func TestConcurrent(t *testing.T) {
	r := newRig(t)
	server := r.open()
	r.listenOn(server, spaceTCP, "0.0.0.0:7", 0)
	const clients, rounds = 4, 50
	var wg sync.WaitGroup
	done := make(chan bool)
	served := 0
	serving := make(chan bool)
	go func() {
		defer close(serving)
		for {
			e, errno := next(server)
			switch {
			case errno == syscall.EAGAIN:
				select {
				case <-done:
					return
				default:
				}
			case e.Event == eventConnectRequest:
				served++
				acceptOn(server, e.ID, 9, param(uint32(served), ""))
			case e.Event == eventDisconnected:
				destroyOf(server, e.ID)
			}
		}
	}()
	for c := range clients {
		wg.Add(1)
		go func() {
			defer wg.Done()
			f := r.open()
			for i := range rounds {
				resp, _ := ask[abi.CreateIDResp](f, abi.RDMA_USER_CM_CMD_CREATE_ID, abi.CreateID{Uid: 1, Ps: spaceTCP})
				resolveTo(f, resp.ID, sockaddr{}, ip(addrB+":7"))
				resolveRouteOf(f, resp.ID)
				do(f, abi.RDMA_USER_CM_CMD_CONNECT, abi.Connect{ID: resp.ID, ConnParam: param(uint32(0x10000*(c+1)+i), "")})
				for {
					if e, errno := next(f); errno == 0 && e.Event == eventConnectResponse {
						break
					} else if errno == 0 && e.Event == eventRejected {
						t.Errorf("rejected: %d", e.Status)
						break
					}
				}
				do(f, abi.RDMA_USER_CM_CMD_ACCEPT, abi.Accept{ID: resp.ID})
				destroyOf(f, resp.ID)
			}
		}()
	}
	wg.Wait()
	close(done)
	<-serving
	if served != clients*rounds {
		t.Errorf("%d requests, want %d", served, clients*rounds)
	}
}

// FuzzReceive: no MAD makes a host panic.
func FuzzReceive(f *testing.F) {
	for _, m := range []ibcm.Message{
		&ibcm.REQ{Service: spaceTCP<<16 | 7, PKey: 0xffff}, requestFrom(addrA), &ibcm.SIDRREQ{Service: spaceUDP<<16 | 7}, &ibcm.REP{}, &ibcm.DREQ{}, &ibcm.REJ{}, &ibcm.MRA{}, &ibcm.RTU{},
	} {
		var mad [madSize]byte
		ibcm.Encode(&mad, 1, m)
		f.Add(mad[:])
	}
	f.Fuzz(func(t *testing.T, mad []byte) {
		r := newRig(t)
		r.listenOn(r.file, spaceTCP, "[::]:7", 1)
		r.listenOn(r.file, spaceUDP, "0.0.0.0:7", 1)
		for range 3 {
			r.host.Receive(r.b, netip.MustParseAddr(addrA), netip.MustParseAddr(addrB), mad)
		}
		r.settle()
		r.file.Close()
		r.settle()
		if got := r.leftOver(); got != empty {
			t.Error(got)
		}
	})
}

// FuzzCommand: no sequence of commands makes a host panic. Options are left out, because their
// requests have pointers.
func FuzzCommand(f *testing.F) {
	f.Add([]byte{0, 20, 7, 12, 1})
	f.Fuzz(func(t *testing.T, script []byte) {
		r := newRig(t)
		out := bytesOf(new([64]uint64))
		for len(script) > 0 {
			cmd := uint32(script[0])
			if script = script[1:]; cmd == abi.RDMA_USER_CM_CMD_SET_OPTION {
				continue
			}
			in := bytesOf(new([64]uint64))
			n := copy(in, script)
			r.file.Do(cmd, in, out)
			script = script[min(n, 40):]
		}
		r.settle()
		r.file.Close()
		r.settle()
		if got := r.leftOver(); got != empty {
			t.Error(got)
		}
	})
}
