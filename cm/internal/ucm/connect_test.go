package ucm

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/cm/internal/ibcm"
	"github.com/goverbs/goverbs/uverbs/ib"
)

func TestConnect(t *testing.T) {
	r := newRig(t)
	f := r.file
	listener := r.listenOn(f, spaceTCP, addrB+":7", 0)
	active := r.connectTo(f, spaceTCP, addrB+":7")
	e := r.want(f, eventConnectRequest, 0)
	passive := e.ID
	p := e.Param.Conn()
	if e.Uid != r.host.ids[listener].uid || p.QPNum != lastQPN || p.ResponderResources != 2 || p.InitiatorDepth != 3 || p.RetryCount != 7 || p.RNRRetryCount != 6 {
		t.Errorf("request is %+v", e)
	}
	if p.PrivateDataLen != 56 || string(bytes.TrimRight(p.PrivateData[:56], "\x00")) != "request" || e.Ece.VendorID != 0x15b3 || e.Ece.AttrMod != 9 {
		t.Errorf("private data %q, ECE %+v", p.PrivateData[:p.PrivateDataLen], e.Ece)
	}
	r.ok(acceptOn(f, passive, 55, param(0x222, "reply")))
	r.settle()
	e = r.want(f, eventConnectResponse, active)
	p = e.Param.Conn()
	if p.QPNum != 0x222 || p.ResponderResources != 2 || p.InitiatorDepth != 3 || p.RNRRetryCount != 6 || p.RetryCount != 0 {
		t.Errorf("response is %+v", p)
	}
	if p.PrivateDataLen != 196 || string(bytes.TrimRight(p.PrivateData[:196], "\x00")) != "reply" || e.Ece.VendorID != 0x15b3 || e.Ece.AttrMod != 8 {
		t.Errorf("private data %q, ECE %+v", p.PrivateData[:p.PrivateDataLen], e.Ece)
	}
	r.ok(do(f, abi.RDMA_USER_CM_CMD_ACCEPT, abi.Accept{ID: active}))
	r.settle()
	if e = r.want(f, eventEstablished, passive); e.Uid != 55 || e.Param.Conn().PrivateDataLen != 0 {
		t.Errorf("event is %+v", e)
	}
	r.none(f)
	r.ok(do(f, abi.RDMA_USER_CM_CMD_DISCONNECT, abi.Disconnect{ID: active}))
	r.settle()
	r.want(f, eventDisconnected, passive)
	r.none(f)
	r.ok(do(f, abi.RDMA_USER_CM_CMD_DISCONNECT, abi.Disconnect{ID: passive}))
	r.settle()
	r.want(f, eventDisconnected, active)
	r.ok(do(f, abi.RDMA_USER_CM_CMD_DISCONNECT, abi.Disconnect{ID: active})) // has no effect any more
	r.clock.advance(time.Second)
	got := map[uint32]bool{r.want(f, eventTimewaitExit, 0).ID: true}
	got[r.want(f, eventTimewaitExit, 0).ID] = true
	if !got[active] || !got[passive] {
		t.Errorf("out of TIMEWAIT are %v", got)
	}
	for handle, events := range map[uint32]uint32{listener: 1, active: 5, passive: 3} {
		if n, errno := destroyOf(f, handle); errno != 0 || n != events {
			t.Errorf("destroying %d reports %d events, %v, want %d", handle, n, errno, events)
		}
	}
	if got := r.leftOver(); got != empty {
		t.Error(got)
	}
}

func TestQPAttributes(t *testing.T) {
	r := newRig(t)
	f := r.file
	_, active, passive := r.connected()
	attr := func(handle, state uint32) *abi.IbUverbsQPAttr {
		t.Helper()
		resp, errno := ask[abi.IbUverbsQPAttr](f, abi.RDMA_USER_CM_CMD_INIT_QP_ATTR, abi.InitQPAttr{ID: handle, QPState: state})
		r.ok(errno)
		return &resp
	}
	const access = 1<<1 | 1<<2 | 1<<3 | 1<<8 | 1<<9
	for _, id := range []uint32{active, passive} {
		want := abi.IbUverbsQPAttr{QPAttrMask: 1 | 1<<3 | 1<<4 | 1<<5, QPState: 1, QPAccessFlags: access, PortNum: 1}
		if got := attr(id, 1); *got != want {
			t.Errorf("INIT: %+v", got)
		}
	}
	// The peer begins with the PSN that this side expects.
	rtr, rts := attr(active, 2), attr(active, 3)
	peerRTR, peerRTS := attr(passive, 2), attr(passive, 3)
	if rtr.RQPSN != peerRTS.SQPSN || peerRTR.RQPSN != rts.SQPSN || rtr.RQPSN != r.host.ids[active].psn || peerRTR.RQPSN != r.host.ids[passive].psn {
		t.Errorf("PSNs: %d %d, %d %d", rtr.RQPSN, rts.SQPSN, peerRTR.RQPSN, peerRTS.SQPSN)
	}
	flow := (uint32(r.host.ids[active].src.port)*31 + 7) & 0xfffff
	ah := abi.IbUverbsAHAttr{IsGlobal: 1, PortNum: 1, GRH: abi.IbUverbsGlobalRoute{
		DGID: netip.MustParseAddr(addrB).As16(), SGIDIndex: 1, HopLimit: 64, FlowLabel: flow,
	}}
	want := abi.IbUverbsQPAttr{
		QPAttrMask: 1 | 1<<7 | 1<<8 | 1<<20 | 1<<12 | 1<<17 | 1<<15, QPState: 2, PathMTU: 3, RQPSN: rtr.RQPSN, DestQPNum: 0x222, AHAttr: ah, MaxDestRDAtomic: 2, // the reply decides
	}
	if *rtr != want {
		t.Errorf("active RTR: %+v\nwant %+v", *rtr, want)
	}
	ah.GRH.DGID, ah.GRH.HopLimit = netip.MustParseAddr(addrA).As16(), 255
	want.RQPSN, want.DestQPNum, want.AHAttr, want.MaxDestRDAtomic = peerRTR.RQPSN, lastQPN, ah, 3
	if *peerRTR != want {
		t.Errorf("passive RTR: %+v\nwant %+v", *peerRTR, want)
	}
	want = abi.IbUverbsQPAttr{QPAttrMask: 1 | 1<<16 | 1<<10 | 1<<11 | 1<<13 | 1<<9, QPState: 3, SQPSN: rts.SQPSN, MaxRDAtomic: 3, Timeout: 17, RetryCnt: 7, RNRRetry: 6}
	if *rts != want {
		t.Errorf("active RTS: %+v\nwant %+v", *rts, want)
	}
	// A timeout of the program replaces that of the protocol.
	timeout := uint8(20)
	r.ok(do(f, abi.RDMA_USER_CM_CMD_SET_OPTION, abi.SetOption{Optval: abi.PtrTo(&timeout), ID: active, Optname: abi.RDMA_OPTION_ID_ACK_TIMEOUT, Optlen: 1}))
	if got := attr(active, 3).Timeout; got != 20 {
		t.Errorf("timeout %d", got)
	}
	// Before there is a connection, a QP gets no rights.
	id := r.routed(f, spaceTCP, addrB+":7")
	if got := attr(id, 2); got.QPAttrMask != 1|1<<3|1<<4|1<<5 || got.QPAccessFlags != 0 || got.RQPSN != r.host.ids[id].psn {
		t.Errorf("unconnected: %+v", got)
	}
	for state, errno := range map[uint32]syscall.Errno{4: syscall.EINVAL, 6: syscall.EINVAL, 7: syscall.EINVAL} {
		_, got := ask[abi.IbUverbsQPAttr](f, abi.RDMA_USER_CM_CMD_INIT_QP_ATTR, abi.InitQPAttr{ID: active, QPState: state})
		r.is("state", got, errno)
	}
}

// TestHeader compares the private data of a request with struct cma_hdr.
func TestHeader(t *testing.T) {
	for _, c := range []struct{ src, dst, want string }{
		{"10.1.2.3:258", "10.4.5.6:7", "0040" + "0102" + "000000000000000000000000" + "0a010203" + "000000000000000000000000" + "0a040506"},
		{"[fd00::1]:258", "[fd00::2]:7", "0060" + "0102" + "fd000000000000000000000000000001" + "fd000000000000000000000000000002"},
	} {
		x := &id{src: ip(c.src), dst: ip(c.dst)}
		var b [headerSize]byte
		x.putHeader(b[:])
		if got := hex.EncodeToString(b[:]); got != c.want {
			t.Errorf("%s: %s, want %s", c.src, got, c.want)
		}
		local, peer, ok := parseHeader(b[:], 7)
		if !ok || local != x.dst || peer != x.src {
			t.Errorf("%s: decoded %+v, %+v, %t", c.src, local, peer, ok)
		}
	}
	for _, head := range []string{"01400000", "00500000"} { // another version; neither IPv4 nor IPv6
		b := make([]byte, headerSize)
		if _, err := hex.Decode(b, []byte(head)); err != nil {
			t.Fatal(err)
		}
		if _, _, ok := parseHeader(b, 7); ok {
			t.Errorf("header %s is accepted", head)
		}
	}
}

// TestDatagrams: requests for the QP of a peer.
func TestDatagrams(t *testing.T) {
	r := newRig(t)
	f := r.file
	r.listenOn(f, spaceUDP, "[::]:9", 0)
	active := r.connectTo(f, spaceUDP, "["+addrB6+"]:9")
	e := r.want(f, eventConnectRequest, 0)
	if u := e.Param.UD(); u.PrivateDataLen != 180 || string(bytes.TrimRight(u.PrivateData[:180], "\x00")) != "request" || u.QPNum != 0 {
		t.Errorf("request is %+v", u)
	}
	passive := e.ID
	init, errno := ask[abi.IbUverbsQPAttr](f, abi.RDMA_USER_CM_CMD_INIT_QP_ATTR, abi.InitQPAttr{ID: passive, QPState: 1})
	if want := (abi.IbUverbsQPAttr{QPAttrMask: 1 | 1<<4 | 1<<5 | 1<<6, QPState: 1, QKey: 0x01234567, PortNum: 1}); errno != 0 || init != want {
		t.Errorf("INIT: %+v, %v", init, errno)
	}
	r.ok(acceptOn(f, passive, 55, param(0x333, "reply")))
	r.settle()
	e = r.want(f, eventEstablished, active)
	u := e.Param.UD()
	wantAH := abi.IbUverbsAHAttr{IsGlobal: 1, PortNum: 1, GRH: abi.IbUverbsGlobalRoute{
		DGID: netip.MustParseAddr(addrB6).As16(), SGIDIndex: 2, HopLimit: 64, FlowLabel: (uint32(r.host.ids[active].src.port)*31 + 9) & 0xfffff,
	}}
	if u.QPNum != 0x333 || u.QKey != 0x01234567 || u.PrivateDataLen != 136 || !bytes.HasPrefix(u.PrivateData[:], []byte("reply\x00")) || u.AHAttr != wantAH {
		t.Errorf("event is %+v", u)
	}
	r.none(f)

	// Rejected by the program, by destroying the ID, and because nobody listens.
	id := r.connectTo(f, spaceUDP, "["+addrB6+"]:9")
	request := r.want(f, eventConnectRequest, 0).ID
	reject := abi.Reject{ID: request, PrivateDataLen: 3}
	copy(reject.PrivateData[:], "why")
	r.ok(do(f, abi.RDMA_USER_CM_CMD_REJECT, reject))
	r.settle()
	if e := r.want(f, eventUnreachable, id); e.Status != 2 || !bytes.HasPrefix(e.Param.UD().PrivateData[:], []byte("why\x00")) {
		t.Errorf("event is %+v", e)
	}
	id = r.connectTo(f, spaceUDP, "["+addrB6+"]:9")
	_, errno = destroyOf(f, r.want(f, eventConnectRequest, 0).ID)
	r.ok(errno)
	r.settle()
	if e := r.want(f, eventUnreachable, id); e.Status != 2 {
		t.Errorf("event is %+v", e)
	}
	id = r.connectTo(f, spaceUDP, "["+addrB6+"]:10")
	if e := r.want(f, eventUnreachable, id); e.Status != 1 {
		t.Errorf("event is %+v", e)
	}
	// No answer: 16 requests, 4.096 s each.
	r.fabric.lost = true
	id = r.connectTo(f, spaceUDP, "["+addrB6+"]:9")
	r.clock.advance(16*4096*time.Millisecond - 1)
	r.none(f)
	r.clock.advance(1)
	if e := r.want(f, eventUnreachable, id); int32(e.Status) != -int32(syscall.ETIMEDOUT) {
		t.Errorf("event is %+v", e)
	}
	r.ok(do(f, abi.RDMA_USER_CM_CMD_DISCONNECT, abi.Disconnect{ID: id}))
}

func TestRejections(t *testing.T) {
	r := newRig(t)
	f := r.file
	// Nobody listens.
	id := r.connectTo(f, spaceTCP, addrB+":7")
	if e := r.want(f, eventRejected, id); e.Status != 8 || e.Param.Conn().PrivateDataLen != 148 {
		t.Errorf("event is %+v", e)
	}
	// The program rejects, with each reason.
	r.listenOn(f, spaceTCP, addrB+":7", 0)
	for given, want := range map[uint8]uint32{0: 28, 28: 28, 35: 35} {
		id := r.connectTo(f, spaceTCP, addrB+":7")
		reject := abi.Reject{ID: r.want(f, eventConnectRequest, 0).ID, Reason: given, PrivateDataLen: 3}
		copy(reject.PrivateData[:], "why")
		r.ok(do(f, abi.RDMA_USER_CM_CMD_REJECT, reject))
		r.settle()
		if e := r.want(f, eventRejected, id); e.Status != want || !bytes.HasPrefix(e.Param.Conn().PrivateData[:], []byte("why\x00")) {
			t.Errorf("reason %d: event is %+v", given, e)
		}
		r.is("reject again", do(f, abi.RDMA_USER_CM_CMD_REJECT, reject), syscall.EINVAL)
	}
	r.is("reason 10", do(f, abi.RDMA_USER_CM_CMD_REJECT, abi.Reject{ID: id, Reason: 10}), syscall.EINVAL)
	// The listener has another address than the one that the peer asks for; B has both.
	f2 := r.open()
	other := r.listenOn(f2, spaceTCP, "["+addrB6+"]:8", 0)
	id = r.connectTo(f, spaceTCP, addrB+":8")
	if e := r.want(f, eventRejected, id); e.Status != 28 {
		t.Errorf("event is %+v", e)
	}
	r.none(f2)
	// Another transport than the listener's.
	x := r.host.ids[other]
	x.qpType = ib.UC
	id = r.connectTo(f, spaceTCP, "["+addrB6+"]:8")
	if e := r.want(f, eventRejected, id); e.Status != 28 {
		t.Errorf("event is %+v", e)
	}
	x.qpType = 0 // any
	id = r.connectTo(f, spaceTCP, "["+addrB6+"]:8")
	r.want(f2, eventConnectRequest, 0)
	_, errno := destroyOf(f, id)
	r.ok(errno)
}

// TestRejectedReply: this side rejects the reply of the peer.
func TestRejectedReply(t *testing.T) {
	r := newRig(t)
	f := r.file
	r.listenOn(f, spaceTCP, addrB+":7", 0)
	active := r.connectTo(f, spaceTCP, addrB+":7")
	passive := r.want(f, eventConnectRequest, 0).ID
	r.ok(acceptOn(f, passive, 55, param(0x222, "")))
	r.settle()
	r.want(f, eventConnectResponse, active)
	r.ok(do(f, abi.RDMA_USER_CM_CMD_REJECT, abi.Reject{ID: active}))
	r.settle()
	if e := r.want(f, eventRejected, passive); e.Status != 28 || e.Uid != 55 {
		t.Errorf("event is %+v", e)
	}
}

// TestForgedRequests: requests whose addresses cannot be right are rejected without an event.
func TestForgedRequests(t *testing.T) {
	r := newRig(t)
	r.listenOn(r.file, spaceTCP, "0.0.0.0:7", 0)
	good := func() *ibcm.REQ {
		return requestFrom(addrA)
	}
	send := func(m *ibcm.REQ) {
		var mad [madSize]byte
		ibcm.Encode(&mad, 1, m)
		r.a.SendMAD(netip.MustParseAddr(addrA), netip.MustParseAddr(addrB), mad[:])
		r.settle()
	}
	send(good())
	if e := r.want(r.file, eventConnectRequest, 0); e.Param.Conn().PrivateDataLen != 56 {
		t.Errorf("event is %+v", e)
	}
	for name, change := range map[string]func(m *ibcm.REQ){
		"unspecified peer": func(m *ibcm.REQ) { clear(m.Private[16:20]) },
		"multicast peer":   func(m *ibcm.REQ) { m.Private[16] = 224 },
		"broadcast peer":   func(m *ibcm.REQ) { copy(m.Private[16:20], []byte{255, 255, 255, 255}) },
		"loopback peer":    func(m *ibcm.REQ) { m.Private[16] = 127 },
		"another peer":     func(m *ibcm.REQ) { m.Private[19] = 99 },
		"another GID":      func(m *ibcm.REQ) { m.Primary.LocalGID[15] = 99 },
		"another address":  func(m *ibcm.REQ) { m.Private[35] = 99 },
		"another's GID":    func(m *ibcm.REQ) { m.Primary.RemoteGID[15] = 99 },
		"another version":  func(m *ibcm.REQ) { m.Private[0] = 1 },
		"no IP version":    func(m *ibcm.REQ) { m.Private[1] = 0 },
		"wide service ID":  func(m *ibcm.REQ) { m.Service |= 1 << 40 },
		"IPv6":             func(m *ibcm.REQ) { m.Private[1] = 6 << 4 },
	} {
		m := good()
		change(m)
		send(m)
		if e, errno := next(r.file); errno != syscall.EAGAIN {
			t.Errorf("%s: event %+v", name, e)
		}
	}
	// From this machine a loopback address is possible.
	r.receive("127.0.0.1", requestFrom("127.0.0.1"))
	r.want(r.file, eventConnectRequest, 0)
}

// requestFrom returns a request of a host to addrB.
func requestFrom(addr string) *ibcm.REQ {
	lastQPN++
	m := &ibcm.REQ{CommID: lastQPN, Service: spaceTCP<<16 | 7, QPN: lastQPN, GUID: 5, PKey: 0xffff, MaxRetries: 1, Primary: ibcm.PathInfo{
		LocalGID: netip.MustParseAddr(addr).As16(), RemoteGID: netip.MustParseAddr(addrB).As16(),
	}}
	x := &id{src: ip(addr + ":1234"), dst: ip(addrB + ":7")}
	x.putHeader(m.Private[:])
	return m
}

// receive gives addrB a message of a host.
func (r *rig) receive(from string, m ibcm.Message) {
	var mad [madSize]byte
	ibcm.Encode(&mad, 1, m)
	r.host.Receive(r.b, netip.MustParseAddr(from), netip.MustParseAddr(addrB), mad[:])
}

// TestRequestsByTheirSender: the header of a request for a datagram QP must have the addresses of its datagram, too.
func TestRequestsByTheirSender(t *testing.T) {
	r := newRig(t)
	r.listenOn(r.file, spaceUDP, "0.0.0.0:7", 0)
	for claim, accepted := range map[string]bool{addrA: true, "10.0.0.200": false, addrB: false, "127.0.0.1": false} {
		m := &ibcm.SIDRREQ{RequestID: 9, PKey: 0xffff, Service: spaceUDP<<16 | 7}
		x := &id{src: ip(claim + ":1234"), dst: ip(addrB + ":7")}
		x.putHeader(m.Private[:])
		r.receive(addrA, m)
		e, errno := next(r.file)
		if (errno == 0) != accepted {
			t.Errorf("a request of %s that claims %s: event %+v", addrA, claim, e)
		}
		if errno == 0 {
			_, errno := destroyOf(r.file, e.ID)
			r.ok(errno)
		}
		r.settle()
	}
}

// TestBacklogShares: hosts that fill the backlog of a listener do not keep the request of another one out. It takes
// the place of the oldest request of the host with the most.
func TestBacklogShares(t *testing.T) {
	r := newRig(t)
	server := r.open()
	r.listenOn(server, spaceTCP, addrB+":7", 8)
	for range 3 {
		r.receive("10.0.0.8", requestFrom("10.0.0.8"))
	}
	for range 1000 {
		r.receive("10.0.0.9", requestFrom("10.0.0.9"))
	}
	for range 3 { // of which two find room, for 10.0.0.9 has 5 places, and then 3 as they do
		r.connectTo(r.file, spaceTCP, addrB+":7")
	}
	r.settle()
	if got := r.host.devices[1].cm.Len(); got != 8 {
		t.Errorf("%d requests are kept, want 8", got)
	}
	from := map[string]int{}
	for {
		e, errno := next(server)
		if errno != 0 {
			break
		}
		from[r.host.ids[e.ID].dst.ip.String()]++
	}
	if from["10.0.0.8"] != 3 || from["10.0.0.9"] != 3 || from[addrA] != 2 {
		t.Errorf("the requests are of %v", from)
	}
	r.clock.advance(5 * time.Second) // the third asks again
	r.settle()
	if e := r.want(server, eventConnectRequest, 0); r.host.ids[e.ID].dst.ip.String() != addrA {
		t.Errorf("event %+v", e)
	}
}

// TestRandomNumbers: the default source has no numbers in common with an earlier one. Two of 1000 numbers are equal in
// one of 8000 runs.
func TestRandomNumbers(t *testing.T) {
	seen := map[uint32]int{}
	for range 1000 {
		seen[randomNumber()]++
	}
	if len(seen) < 998 {
		t.Errorf("%d different numbers of 1000", len(seen))
	}
}

// TestBacklog: requests beyond the backlog are not answered, and come again.
func TestBacklog(t *testing.T) {
	r := newRig(t)
	server := r.open()
	r.listenOn(server, spaceTCP, addrB+":7", 2)
	for range 3 {
		r.connectTo(r.file, spaceTCP, addrB+":7")
	}
	first := r.want(server, eventConnectRequest, 0)
	r.want(server, eventConnectRequest, 0)
	r.none(server)
	r.none(r.file)
	r.clock.advance(5 * time.Second)
	r.settle()
	if third := r.want(server, eventConnectRequest, 0); third.ID == first.ID {
		t.Error("a request came twice")
	}
}

// TestUnseenRequests: when a listener is destroyed, the requests that the program has not read are
// rejected, and those that it has read go on.
func TestUnseenRequests(t *testing.T) {
	r := newRig(t)
	server := r.open()
	listener := r.listenOn(server, spaceTCP, addrB+":7", 0)
	seen := r.connectTo(r.file, spaceTCP, addrB+":7")
	unseen := r.connectTo(r.file, spaceTCP, addrB+":7")
	request := r.want(server, eventConnectRequest, 0).ID
	_, errno := destroyOf(server, listener)
	r.ok(errno)
	r.settle()
	if e := r.want(r.file, eventRejected, unseen); e.Status != 28 {
		t.Errorf("event is %+v", e)
	}
	r.none(server)
	r.ok(acceptOn(server, request, 5, param(0x222, "")))
	r.settle()
	r.want(r.file, eventConnectResponse, seen)
	server.Close()
	r.settle()
	r.want(r.file, eventRejected, seen)
}

func TestNotify(t *testing.T) {
	r := newRig(t)
	f := r.file
	r.listenOn(f, spaceTCP, addrB+":7", 0)
	r.connectTo(f, spaceTCP, addrB+":7")
	passive := r.want(f, eventConnectRequest, 0).ID
	r.is("before the reply", do(f, abi.RDMA_USER_CM_CMD_NOTIFY, abi.Notify{ID: passive, Event: 4}), syscall.EINVAL)
	r.ok(acceptOn(f, passive, 55, param(0x222, "")))
	r.settle()
	r.want(f, eventConnectResponse, 0)
	r.is("another event", do(f, abi.RDMA_USER_CM_CMD_NOTIFY, abi.Notify{ID: passive, Event: 7}), syscall.EINVAL)
	r.ok(do(f, abi.RDMA_USER_CM_CMD_NOTIFY, abi.Notify{ID: passive, Event: 4}))
	r.want(f, eventEstablished, passive)
	r.is("when established", do(f, abi.RDMA_USER_CM_CMD_NOTIFY, abi.Notify{ID: passive, Event: 4}), syscall.EISCONN)
	idle := r.create(f, spaceTCP)
	r.is("without a device", do(f, abi.RDMA_USER_CM_CMD_NOTIFY, abi.Notify{ID: idle, Event: 4}), syscall.EINVAL)
}

// TestUnreachable: the peer does not answer the request, the reply or the wish to disconnect.
func TestUnreachable(t *testing.T) {
	r := newRig(t)
	f := r.file
	_, active, passive := r.connected()
	half := r.connectTo(f, spaceTCP, addrB+":7")
	request := r.want(f, eventConnectRequest, 0).ID
	r.fabric.lost = true
	r.ok(acceptOn(f, request, 56, param(0x223, "")))
	id := r.connectTo(f, spaceTCP, addrB+":7")
	r.ok(do(f, abi.RDMA_USER_CM_CMD_DISCONNECT, abi.Disconnect{ID: active}))
	r.clock.advance(time.Hour)
	got := map[uint32][]int32{}
	for {
		e, errno := next(f)
		if errno != 0 {
			break
		}
		got[e.ID] = append(got[e.ID], int32(e.Event), int32(e.Status))
	}
	timedOut := -int32(syscall.ETIMEDOUT)
	want := map[uint32][]int32{
		half: {eventUnreachable, timedOut}, request: {eventUnreachable, timedOut}, id: {eventUnreachable, timedOut},
		active: {eventDisconnected, timedOut, eventTimewaitExit, 0},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if s := r.host.ids[passive].cm.State(); s != ibcm.Established {
		t.Errorf("the peer is in state %s", s)
	}
}

// TestPrivateData: more than a message carries is refused, and changes nothing.
func TestPrivateData(t *testing.T) {
	r := newRig(t)
	f := r.file
	for _, c := range []struct {
		space  uint16
		limits [3]int // of requests, replies and rejections
	}{{spaceTCP, [3]int{56, 196, 148}}, {spaceUDP, [3]int{180, 136, 136}}} {
		r.listenOn(f, c.space, addrB+":7", 0)
		connect := func(n int) (uint32, syscall.Errno) {
			lastQPN++
			id := r.routed(f, c.space, addrB+":7")
			errno := do(f, abi.RDMA_USER_CM_CMD_CONNECT, abi.Connect{ID: id, ConnParam: param(lastQPN, strings.Repeat("x", n))})
			r.settle()
			return id, errno
		}
		for _, n := range []int{c.limits[0] + 1, 219, 220, 255} {
			id, errno := connect(n)
			r.is("connect", errno, syscall.EINVAL)
			if r.host.ids[id].state != stateRouteResolved || r.host.ids[id].cm != nil {
				t.Errorf("a refused request changes the state to %d", r.host.ids[id].state)
			}
		}
		_, errno := connect(c.limits[0])
		r.ok(errno)
		request := r.want(f, eventConnectRequest, 0).ID
		r.is("reject", do(f, abi.RDMA_USER_CM_CMD_REJECT, abi.Reject{ID: request, PrivateDataLen: uint8(c.limits[2] + 1)}), syscall.EINVAL)
		// A refused reply rejects the request.
		r.is("accept", acceptOn(f, request, 5, param(1, strings.Repeat("x", c.limits[1]+1))), syscall.EINVAL)
		r.settle()
		if e, errno := next(f); errno != 0 || e.Event != eventRejected && e.Event != eventUnreachable {
			t.Errorf("event %d, %v", e.Event, errno)
		}
		_, errno = connect(0)
		r.ok(errno)
		r.ok(acceptOn(f, r.want(f, eventConnectRequest, 0).ID, 5, param(1, strings.Repeat("x", c.limits[1]))))
		r.settle()
		if _, errno := next(f); errno != 0 {
			t.Error(errno)
		}
	}
}

// TestShortRequests: older programs send no options for enhanced connections; less is an error.
func TestShortRequests(t *testing.T) {
	r := newRig(t)
	f := r.file
	r.listenOn(f, spaceTCP, addrB+":7", 0)
	id := r.routed(f, spaceTCP, addrB+":7")
	req := abi.Connect{ConnParam: param(1, ""), ID: id, Ece: abi.Ece{VendorID: 1, AttrMod: 2}}
	r.is("279 bytes", f.Do(abi.RDMA_USER_CM_CMD_CONNECT, bytesOf(&req)[:279], nil), syscall.EINVAL)
	r.ok(f.Do(abi.RDMA_USER_CM_CMD_CONNECT, bytesOf(&req)[:280], nil))
	r.settle()
	e := r.want(f, eventConnectRequest, 0)
	if e.Ece != (abi.Ece{}) {
		t.Errorf("ECE is %+v", e.Ece)
	}
	accept := abi.Accept{Uid: 5, ConnParam: param(2, ""), ID: e.ID}
	r.is("287 bytes", f.Do(abi.RDMA_USER_CM_CMD_ACCEPT, bytesOf(&accept)[:287], nil), syscall.EINVAL)
	r.ok(f.Do(abi.RDMA_USER_CM_CMD_ACCEPT, bytesOf(&accept)[:288], nil))
	r.settle()
	var resp [324]byte
	r.is("323 bytes of an event", f.Do(abi.RDMA_USER_CM_CMD_GET_EVENT, nil, resp[:323]), syscall.ENOSPC)
	r.ok(f.Do(abi.RDMA_USER_CM_CMD_GET_EVENT, nil, resp[:]))
	if got := binary.NativeEndian.Uint32(resp[12:]); got != eventConnectResponse {
		t.Errorf("event %d", got)
	}
}

// TestFlood: peers that send faster than this host answers do not fill its memory.
func TestFlood(t *testing.T) {
	r := newRig(t)
	waiting := func() int {
		r.host.mu.Lock()
		defer r.host.mu.Unlock()
		return len(r.host.outbox)
	}
	flood := func(n int) {
		for i := range n {
			var mad [madSize]byte
			ibcm.Encode(&mad, 1, &ibcm.REQ{CommID: uint32(i), Service: spaceTCP<<16 | 9, QPN: uint32(i), GUID: 5, PKey: 0xffff, Primary: ibcm.PathInfo{
				LocalGID: netip.MustParseAddr(addrA).As16(), RemoteGID: netip.MustParseAddr(addrB).As16(),
			}})
			r.host.Receive(r.b, netip.MustParseAddr(addrA), netip.MustParseAddr(addrB), mad[:])
		}
	}
	r.fabric.mu.Lock() // nothing can be sent
	flood(1)
	for waiting() > 0 { // until the goroutine that sends has it
		runtime.Gosched()
	}
	flood(maxOutbox + 1000)
	if n := waiting(); n != maxOutbox {
		t.Errorf("%d answers wait, want %d", n, maxOutbox)
	}
	r.fabric.mu.Unlock()
	r.settle()
	if n := waiting(); n != 0 {
		t.Errorf("%d answers are left", n)
	}
}
