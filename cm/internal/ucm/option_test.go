package ucm

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/cm/internal/ibcm"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// setOptionOf sets an option.
func setOptionOf(f *File, id, level, name uint32, value []byte) syscall.Errno {
	return do(f, abi.RDMA_USER_CM_CMD_SET_OPTION, abi.SetOption{Optval: abi.PtrToSlice(value), ID: id, Level: level, Optname: name, Optlen: uint32(len(value))})
}

func TestOptions(t *testing.T) {
	r := newRig(t)
	f := r.file
	on, off := []byte{1, 0, 0, 0}, []byte{0, 0, 0, 0}
	tcp, udp := r.create(f, spaceTCP), r.create(f, spaceUDP)
	bound, listening := r.create(f, spaceTCP), r.listenOn(f, spaceTCP, addrA+":9", 0)
	r.ok(bindTo(f, bound, ip(addrA+":0")))
	routed := r.routed(f, spaceTCP, addrB+":7")
	for _, c := range []struct {
		what        string
		id          uint32
		level, name uint32
		value       []byte
		want        syscall.Errno
	}{
		{"TOS", tcp, abi.RDMA_OPTION_ID, abi.RDMA_OPTION_ID_TOS, []byte{8}, 0},
		{"TOS of 4 bytes", tcp, abi.RDMA_OPTION_ID, abi.RDMA_OPTION_ID_TOS, on, syscall.EINVAL},
		{"REUSEADDR", tcp, abi.RDMA_OPTION_ID, abi.RDMA_OPTION_ID_REUSEADDR, on, 0},
		{"REUSEADDR off", tcp, abi.RDMA_OPTION_ID, abi.RDMA_OPTION_ID_REUSEADDR, off, 0},
		{"REUSEADDR of a byte", tcp, abi.RDMA_OPTION_ID, abi.RDMA_OPTION_ID_REUSEADDR, on[:1], syscall.EINVAL},
		{"REUSEADDR when bound", bound, abi.RDMA_OPTION_ID, abi.RDMA_OPTION_ID_REUSEADDR, on, 0},
		{"REUSEADDR off when bound", bound, abi.RDMA_OPTION_ID, abi.RDMA_OPTION_ID_REUSEADDR, off, syscall.EINVAL},
		{"REUSEADDR when listening", listening, abi.RDMA_OPTION_ID, abi.RDMA_OPTION_ID_REUSEADDR, on, syscall.EINVAL},
		{"AFONLY when bound", bound, abi.RDMA_OPTION_ID, abi.RDMA_OPTION_ID_AFONLY, off, 0},
		{"AFONLY when routed", routed, abi.RDMA_OPTION_ID, abi.RDMA_OPTION_ID_AFONLY, on, syscall.EINVAL},
		{"ACK_TIMEOUT", tcp, abi.RDMA_OPTION_ID, abi.RDMA_OPTION_ID_ACK_TIMEOUT, []byte{20}, 0},
		{"ACK_TIMEOUT of datagrams", udp, abi.RDMA_OPTION_ID, abi.RDMA_OPTION_ID_ACK_TIMEOUT, []byte{20}, syscall.EINVAL},
		{"another option", tcp, abi.RDMA_OPTION_ID, 4, on, syscall.ENOSYS},
		{"another level", tcp, 2, 0, on, syscall.ENOSYS},
		{"another IB option", tcp, abi.RDMA_OPTION_IB, 0, on, syscall.ENOSYS},
		{"a path before there is an address", bound, abi.RDMA_OPTION_IB, abi.RDMA_OPTION_IB_PATH, make([]byte, 72), syscall.EINVAL},
		{"a path of another size", bound, abi.RDMA_OPTION_IB, abi.RDMA_OPTION_IB_PATH, make([]byte, 71), syscall.EINVAL},
		{"no path", bound, abi.RDMA_OPTION_IB, abi.RDMA_OPTION_IB_PATH, nil, syscall.EINVAL},
	} {
		r.is(c.what, setOptionOf(f, c.id, c.level, c.name, c.value), c.want)
	}
	r.is("no value", do(f, abi.RDMA_USER_CM_CMD_SET_OPTION, abi.SetOption{ID: tcp, Optlen: 1}), syscall.EFAULT)
	r.is("too long", do(f, abi.RDMA_USER_CM_CMD_SET_OPTION, abi.SetOption{ID: tcp, Optlen: 1 << 30}), syscall.EINVAL)
	// The type of service and the timeout become parts of the path.
	r.ok(resolveTo(f, tcp, sockaddr{}, ip(addrB+":7")), resolveRouteOf(f, tcp))
	if p := r.host.ids[tcp].path; p.TClass != 8 || p.PacketLifeTime != 19 {
		t.Errorf("path is %+v", p)
	}
}

// goldenPath is a path record and its bytes, written by hand from IBTA 15.2.5.16.
var goldenPath = mad.PathRecord{
	ServiceID: 0x0102030405060708, DGID: [16]byte{0: 0xd0, 15: 0xd1}, SGID: [16]byte{0: 0xe0, 15: 0xe1}, RawTraffic: true, FlowLabel: 0xabcde, HopLimit: 0x40,
	TClass: 0x68, Reversible: true, NumbPath: 0x7f, PKey: 0xffff, QosClass: 0xabc, SL: 0xd,
	MTUSelector: 2, MTU: 5, RateSelector: 1, Rate: 0x2a, PacketLifeTimeSelector: 3, PacketLifeTime: 16, Preference: 9,
}

const goldenPathBytes = "0102030405060708" + "d00000000000000000000000000000d1" + "e00000000000000000000000000000e1" +
	"00000000" + "8abcde40" + "68" + "ff" + "ffff" + "abcd" + "85" + "6a" + "d0" + "09" + "000000000000"

func TestPathBytes(t *testing.T) {
	var b [pathRecordSize]byte
	putPath(b[:], goldenPath)
	if got := hex.EncodeToString(b[:]); got != goldenPathBytes {
		t.Errorf("%s\nwant %s", got, goldenPathBytes)
	}
	if got := parsePath(b[:]); *got != goldenPath {
		t.Errorf("decoded %+v", got)
	}
	long := goldenPath
	long.PacketLifeTime |= 1<<7 | 1<<6 // of the longest ACK timeout that a program may set
	if putPath(b[:], long); hex.EncodeToString(b[:]) != goldenPathBytes {
		t.Errorf("with a longer lifetime: %x", b)
	}
}

func TestSetPath(t *testing.T) {
	r := newRig(t)
	f := r.file
	id := r.create(f, spaceTCP)
	r.ok(resolveTo(f, id, sockaddr{}, ip(addrB+":7")))
	r.want(f, eventAddrResolved, id)
	value := make([]byte, 2*72)
	binary.NativeEndian.PutUint32(value[72:], 1|2|40)
	p := *r.host.ids[id].makePath()
	p.FlowLabel, p.HopLimit, p.QosClass, p.PacketLifeTime = 0x777, 9, 3, 12
	putPath(value[80:], p)
	r.ok(setOptionOf(f, id, abi.RDMA_OPTION_IB, abi.RDMA_OPTION_IB_PATH, value))
	r.want(f, eventRouteResolved, id)
	if got := r.host.ids[id].path; *got != p {
		t.Errorf("path is %+v, want %+v", got, p)
	}
	r.listenOn(f, spaceTCP, addrB+":7", 0)
	r.ok(do(f, abi.RDMA_USER_CM_CMD_CONNECT, abi.Connect{ConnParam: param(77, ""), ID: id}))
	r.settle()
	request := r.host.ids[r.want(f, eventConnectRequest, 0).ID].path
	if request.FlowLabel != 0x777 || request.PacketLifeTime != 14 { // 15, the ACK delay, less 1
		t.Errorf("the peer has %+v", request)
	}
	r.is("in another state", setOptionOf(f, id, abi.RDMA_OPTION_IB, abi.RDMA_OPTION_IB_PATH, value), syscall.EINVAL)
	loopback := r.create(f, spaceTCP)
	r.ok(resolveTo(f, loopback, sockaddr{}, ip("127.0.0.1:7")))
	r.is("loopback", setOptionOf(f, loopback, abi.RDMA_OPTION_IB, abi.RDMA_OPTION_IB_PATH, value), syscall.ENODEV)
}

func TestQueries(t *testing.T) {
	r := newRig(t)
	f := r.file
	id := r.routed(f, spaceTCP, addrB+":7")
	x := r.host.ids[id]
	addr, errno := ask[abi.QueryAddrResp](f, abi.RDMA_USER_CM_CMD_QUERY, abi.Query{ID: id, Option: abi.RDMA_USER_CM_QUERY_ADDR})
	r.ok(errno)
	src, ok1 := parseSockaddr(bytesOf(&addr.SrcAddr))
	dst, ok2 := parseSockaddr(bytesOf(&addr.DstAddr))
	if !ok1 || !ok2 || src != x.src || dst != x.dst || addr.SrcSize != 16 || addr.DstSize != 16 || addr.IbdevIndex != 7 || addr.PortNum != 1 {
		t.Errorf("addresses %+v, %+v, %+v", src, dst, addr)
	}
	if guid, pkey := hex.EncodeToString(bytesOf(&addr.NodeGUID)), hex.EncodeToString(bytesOf(&addr.PKey)); guid != "0000000000001107" || pkey != "ffff" {
		t.Errorf("GUID %s, P_Key %s", guid, pkey)
	}
	gid, errno := ask[abi.QueryAddrResp](f, abi.RDMA_USER_CM_CMD_QUERY, abi.Query{ID: id, Option: abi.RDMA_USER_CM_QUERY_GID})
	r.ok(errno)
	src, _ = parseSockaddr(bytesOf(&gid.SrcAddr))
	dst, _ = parseSockaddr(bytesOf(&gid.DstAddr))
	wantSrc := sockaddr{family: afIB, ip: netip.MustParseAddr("::ffff:" + addrA), pkey: 0xffff, service: spaceTCP<<16 + uint64(x.src.port)}
	wantDst := sockaddr{family: afIB, ip: netip.MustParseAddr("::ffff:" + addrB), pkey: 0xffff, service: spaceTCP<<16 + 7}
	if src != wantSrc || dst != wantDst || gid.SrcSize != 48 || gid.DstSize != 48 {
		t.Errorf("GIDs %+v, %+v", src, dst)
	}
	type paths struct {
		head    abi.QueryPathResp
		records [2]abi.IbPathRecData
	}
	path, errno := ask[paths](f, abi.RDMA_USER_CM_CMD_QUERY, abi.Query{ID: id, Option: abi.RDMA_USER_CM_QUERY_PATH})
	r.ok(errno)
	got := parsePath(bytesOf(&path.records[0].PathRec))
	want := &mad.PathRecord{
		SGID: x.src.gid(), DGID: x.dst.gid(), HopLimit: 64, Reversible: true, PKey: 0xffff, MTUSelector: 2, MTU: 3, RateSelector: 2, PacketLifeTimeSelector: 2, PacketLifeTime: 16,
		FlowLabel: (uint32(x.src.port)*31 + 7) & 0xfffff,
	}
	if path.head.NumPaths != 1 || path.records[0].Flags != 1|2|40 || *got != *want {
		t.Errorf("paths %+v\n%+v\nwant %+v", path.head, got, want)
	}
	route := make([]byte, 208)
	r.ok(f.Do(abi.RDMA_USER_CM_CMD_QUERY_ROUTE, bytesOf(&abi.Query{ID: id}), route))
	user := view[abi.IbUserPathRec](route[8:])
	src, _ = parseSockaddr(route[136:164])
	dst, _ = parseSockaddr(route[164:192])
	if src != x.src || dst != x.dst || user.DGID != want.DGID || user.SGID != want.SGID || user.MTU != 3 || user.PKey.Get() != 0xffff || user.FlowLabel.Get() != want.FlowLabel || user.PacketLifeTime != 16 {
		t.Errorf("route from %+v to %+v: %+v", src, dst, user)
	}
	if n, port, index := binary.NativeEndian.Uint32(route[192:]), route[196], binary.NativeEndian.Uint32(route[200:]); n != 1 || port != 1 || index != 7 {
		t.Errorf("%d paths, port %d, device %d", n, port, index)
	}
	// Before there is a device or a route.
	idle := r.create(f, spaceTCP)
	for option, size := range map[uint32]int{abi.RDMA_USER_CM_QUERY_ADDR: 272, abi.RDMA_USER_CM_QUERY_GID: 272, abi.RDMA_USER_CM_QUERY_PATH: 8} {
		out := make([]byte, size)
		r.is("room", f.Do(abi.RDMA_USER_CM_CMD_QUERY, bytesOf(&abi.Query{ID: idle, Option: option}), out[:size-1]), syscall.ENOSPC)
		r.ok(f.Do(abi.RDMA_USER_CM_CMD_QUERY, bytesOf(&abi.Query{ID: idle, Option: option}), out))
	}
	r.is("services", f.Do(abi.RDMA_USER_CM_CMD_QUERY, bytesOf(&abi.Query{ID: idle, Option: abi.RDMA_USER_CM_QUERY_IB_SERVICE}), make([]byte, 8)), errNoData)
	r.is("services without room", f.Do(abi.RDMA_USER_CM_CMD_QUERY, bytesOf(&abi.Query{ID: idle, Option: abi.RDMA_USER_CM_QUERY_IB_SERVICE}), nil), syscall.ENOSPC)
	r.is("another query", f.Do(abi.RDMA_USER_CM_CMD_QUERY, bytesOf(&abi.Query{ID: idle, Option: 4}), nil), syscall.ENOSYS)
	r.ok(f.Do(abi.RDMA_USER_CM_CMD_QUERY_ROUTE, bytesOf(&abi.Query{ID: idle}), route))
	if diff := cmp.Diff(make([]byte, 208), route); diff != "" {
		t.Errorf("route (-want +got):\n%s", diff)
	}
	bound := r.create(f, spaceTCP)
	r.ok(bindTo(f, bound, ip(addrA+":5")), f.Do(abi.RDMA_USER_CM_CMD_QUERY_ROUTE, bytesOf(&abi.Query{ID: bound}), route))
	if user := view[abi.IbUserPathRec](route[8:]); binary.NativeEndian.Uint32(route[192:]) != 0 || user.PKey.Get() != 0xffff || user.SGID != netip.MustParseAddr(addrA).As16() {
		t.Errorf("route %+v", user)
	}
	r.is("service", do(f, abi.RDMA_USER_CM_CMD_RESOLVE_IB_SERVICE, abi.ResolveIbService{ID: bound}), syscall.EOPNOTSUPP)
}

// TestOldCommands: commands with addresses of the size of struct sockaddr_in6. The bytes follow the
// header rdma_user_cm.h.
func TestOldCommands(t *testing.T) {
	r := newRig(t)
	f := r.file
	in6 := func(s sockaddr) []byte {
		b := make([]byte, sizeINET6)
		s.put(b)
		return b
	}
	u32 := func(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }
	request := func(size int, parts map[int][]byte) []byte {
		b := make([]byte, size)
		for at, p := range parts {
			copy(b[at:], p)
		}
		return b
	}
	bound := r.create(f, spaceUDP)
	bind := request(40, map[int][]byte{8: in6(ip(addrA + ":77")), 36: u32(bound)})
	r.is("short", f.Do(abi.RDMA_USER_CM_CMD_BIND_IP, bind[:39], nil), syscall.EINVAL)
	r.ok(f.Do(abi.RDMA_USER_CM_CMD_BIND_IP, bind, nil))
	if got := r.host.ids[bound].src; got != ip(addrA+":77") {
		t.Errorf("bound to %+v", got)
	}
	id := r.create(f, spaceTCP)
	resolve := request(64, map[int][]byte{0: in6(ip("[" + addrA6 + "]:78")), 28: in6(ip("[" + addrB6 + "]:7")), 56: u32(id), 60: u32(1000)})
	r.is("short", f.Do(abi.RDMA_USER_CM_CMD_RESOLVE_IP, resolve[:63], nil), syscall.EINVAL)
	wrong := append([]byte(nil), resolve...)
	wrong[0] = 99
	r.is("another family", f.Do(abi.RDMA_USER_CM_CMD_RESOLVE_IP, wrong, nil), syscall.EINVAL)
	r.ok(f.Do(abi.RDMA_USER_CM_CMD_RESOLVE_IP, resolve, nil))
	r.want(f, eventAddrResolved, id)
	if x := r.host.ids[id]; x.src != ip("["+addrA6+"]:78") || x.dst != ip("["+addrB6+"]:7") {
		t.Errorf("from %+v to %+v", x.src, x.dst)
	}
	id = r.create(f, spaceTCP)
	r.ok(f.Do(abi.RDMA_USER_CM_CMD_RESOLVE_IP, request(64, map[int][]byte{28: in6(ip(addrB + ":7")), 56: u32(id)}), nil))
	r.want(f, eventAddrResolved, id)
	join := request(48, map[int][]byte{8: binary.NativeEndian.AppendUint64(nil, 99), 16: in6(ip("239.1.2.3:0")), 44: u32(bound)})
	var resp abi.CreateIDResp
	r.is("short", f.Do(abi.RDMA_USER_CM_CMD_JOIN_IP_MCAST, join[:47], bytesOf(&resp)), syscall.EINVAL)
	r.is("no room", f.Do(abi.RDMA_USER_CM_CMD_JOIN_IP_MCAST, join, nil), syscall.ENOSPC)
	r.ok(f.Do(abi.RDMA_USER_CM_CMD_JOIN_IP_MCAST, join, bytesOf(&resp)))
	if e := r.want(f, eventMulticastJoin, resp.ID); e.Uid != 99 {
		t.Errorf("event is %+v", e)
	}
}

// joinTo joins a group.
func joinTo(f *File, id uint32, uid uint64, group string, flags uint16) (uint32, syscall.Errno) {
	req := abi.JoinMcast{Uid: uid, ID: id, JoinFlags: flags}
	req.Addr, req.AddrSize = storage(sockaddrOf(netip.MustParseAddr(group), 0))
	resp, errno := ask[abi.CreateIDResp](f, abi.RDMA_USER_CM_CMD_JOIN_MCAST, req)
	return resp.ID, errno
}

func TestMulticast(t *testing.T) {
	r := newRig(t)
	f := r.file
	const group = "239.1.2.3"
	id := r.create(f, spaceUDP)
	_, errno := joinTo(f, id, 99, group, 0)
	r.is("not bound", errno, syscall.EINVAL)
	r.ok(bindTo(f, id, ip(addrA+":0")))
	handle, errno := joinTo(f, id, 99, group, 0)
	r.ok(errno)
	e := r.want(f, eventMulticastJoin, handle)
	ah := abi.IbUverbsAHAttr{IsGlobal: 1, PortNum: 1, GRH: abi.IbUverbsGlobalRoute{DGID: netip.MustParseAddr(group).As16(), SGIDIndex: 1, HopLimit: 64}}
	if u := e.Param.UD(); e.Uid != 99 || u.QPNum != 0xffffff || u.QKey != 0x01234567 || u.AHAttr != ah {
		t.Errorf("event is %+v, %+v", e, u)
	}
	connection, routed := r.routed(f, spaceTCP, addrB+":7"), r.routed(f, spaceUDP, addrB+":7")
	sendOnly, errno := joinTo(f, id, 98, group, 1)
	r.ok(errno)
	if r.a.groups[group] != 1 {
		t.Errorf("%d memberships", r.a.groups[group])
	}
	for what, c := range map[string]struct {
		id    uint32
		group string
		flags uint16
		want  syscall.Errno
	}{
		"flags": {id, group, 2, syscall.EINVAL}, "IPv6": {id, "ff0e::1", 0, 524}, "unspecified": {id, "0.0.0.0", 0, syscall.EINVAL},
		"connections": {connection, group, 0, syscall.EINVAL}, "routed": {routed, group, 0, syscall.EINVAL},
	} {
		_, errno := joinTo(f, c.id, 97, c.group, c.flags)
		r.is(what, errno, c.want)
	}
	r.a.refuse = syscall.ENOBUFS
	_, errno = joinTo(f, id, 97, group, 0)
	r.is("refused", errno, syscall.ENOBUFS)
	r.a.refuse = errors.New("no errno")
	_, errno = joinTo(f, id, 97, group, 0)
	r.is("refused", errno, syscall.EIO)
	r.a.refuse = nil
	other := r.open()
	_, errno = ask[abi.DestroyIDResp](other, abi.RDMA_USER_CM_CMD_LEAVE_MCAST, abi.DestroyID{ID: handle})
	r.is("of another file", errno, syscall.EINVAL)
	// Leaving takes the events along.
	for h, want := range map[uint32]uint32{handle: 1, sendOnly: 0} {
		resp, errno := ask[abi.DestroyIDResp](f, abi.RDMA_USER_CM_CMD_LEAVE_MCAST, abi.DestroyID{ID: h})
		if errno != 0 || resp.EventsReported != want {
			t.Errorf("%d events, %v, want %d", resp.EventsReported, errno, want)
		}
	}
	r.none(f)
	if r.a.groups[group] != 0 {
		t.Errorf("%d memberships", r.a.groups[group])
	}
	// The GID is gone.
	r.a.mu.Lock()
	r.a.gids = nil
	r.a.mu.Unlock()
	handle, errno = joinTo(f, id, 99, group, 0)
	r.ok(errno)
	if e := r.want(f, eventMulticastError, handle); e.Status != 0 || e.Param.UD().QPNum != 0 {
		t.Errorf("event is %+v", e)
	}
	_, errno = destroyOf(f, id)
	r.ok(errno)
	if r.a.groups[group] != 0 {
		t.Errorf("%d memberships", r.a.groups[group])
	}
}

// TestPathFromREQ: the path of a request is the one that the sender named, seen from the receiver, without
// choices left.
func TestPathFromREQ(t *testing.T) {
	p := ibcm.Path{
		Src: netip.MustParseAddr("fd00::1"), Dst: netip.MustParseAddr("fd00::2"), FlowLabel: 0x12345, TrafficClass: 0x68, HopLimit: 9, SL: 3,
		Rate: 7, MTU: 4, Lifetime: 17, PKey: 0x8001,
	}
	want := mad.PathRecord{
		ServiceID: 0x106_0007, DGID: p.Dst.As16(), SGID: p.Src.As16(), FlowLabel: 0x12345, HopLimit: 9, TClass: 0x68, Reversible: true,
		PKey: 0x8001, SL: 3, MTUSelector: 2, MTU: 4, RateSelector: 2, Rate: 7, PacketLifeTimeSelector: 2, PacketLifeTime: 17,
	}
	if got := pathFromREQ(p, 0x106_0007); *got != want {
		t.Errorf("the path is\n%+v\nwant\n%+v", *got, want)
	}
}
