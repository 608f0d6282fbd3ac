package softrxe

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// ud are the options of a QP for datagrams.
var ud = uverbs.QPOptions{Type: ib.UD}

// multicastQPN is the QP number of datagrams to a group.
const multicastQPN = 0xffffff

// datagram is a SEND to a peer, with imm if it is not 0.
func (x *exchange) datagram(id uint64, offset, n int, imm uint32) uverbs.SendWR {
	wr := x.a.send(id, offset, n)
	if imm != 0 {
		wr.Opcode, wr.Imm = uverbs.WRSendWithImm, imm
	}
	wr.AH, wr.RemoteQPN, wr.RemoteQKey = x.a.address(x.b.host.gid()), x.b.qp.QPN(), qkey
	return wr
}

// gid returns the GID that is the host's address.
func (h host) gid() ib.GID { return ib.GID(h.addr.As16()) }

// address makes an address handle.
func (e *end) address(to ib.GID) (ah *uverbs.AH) {
	e.t.Helper()
	index := e.host.gidIndex(e.t, e.dev)
	must(e.t, e.host.do(func() (err error) {
		ah, err = e.pd.CreateAH(uverbs.AHAttr{Port: 1, Global: true, GRH: uverbs.GRH{
			DGID: to, SGIDIndex: uint8(index), HopLimit: 33, TrafficClass: 0x20}})
		return err
	}))
	closeLater(e.t, ah)
	return ah
}

// header records the GRH at an offset of the end's memory, and clears it: not all of it is the same for
// all pairings.
func (e *end) header(offset int, from host, dst netip.Addr) {
	e.t.Helper()
	b := e.buf.Bytes()[offset:][:uverbs.GRHSize]
	grh, err := uverbs.ParseGRH(b)
	must(e.t, err)
	if src, dst := grh.SGID.Addr() == from.addr, grh.DGID.Addr() == dst; !src || !dst || grh.TrafficClass != 0x20 {
		e.record.fail("%s: GRH: right source %t, right destination %t, traffic class %#x", e.name, src, dst, grh.TrafficClass)
	}
	clear(b)
}

// udCases are about datagrams.
var udCases = []verbsCase{
	{name: "SEND", a: ud, b: ud, run: func(x *exchange) {
		for i, n := range []int{0, 1, 2, 3, 4, 5, 500, 1023, 1024} {
			x.b.recv(uint64(100+i), x.b.sge(slot+2000*i, 2000))
			x.a.post(x.datagram(uint64(i), i, n, uint32(i%3)))
			x.a.sent(1)
			x.b.got(1)
			x.b.header(slot+2000*i, x.a.host, x.b.host.addr)
		}
	}},
	{name: "longer than the MTU", noCard: true, a: ud, b: ud, sinceA: v6_2, run: func(x *exchange) {
		if !x.a.host.soft {
			lost(x, 5000, func(*uverbs.SendWR) {})
			return
		}
		x.a.post(x.datagram(1, 0, 5000, 0))
		x.a.sent(1)
		x.a.reaches(ib.QPSQE)
		x.quiet()
		x.b.empty()
	}, want: "a: 1: SEND; a: 2: SEND; b: receive 9: RECV 139 imm 0x5", ownError: true, wantSpec: "a: 1: local length error; a: SQE"},
	{name: "other Q_Key", a: ud, b: ud, run: func(x *exchange) { lost(x, 500, func(wr *uverbs.SendWR) { wr.RemoteQKey++ }) }},
	{name: "no such QP", a: ud, b: ud, run: func(x *exchange) { lost(x, 500, func(wr *uverbs.SendWR) { wr.RemoteQPN = 0xadbeef }) }},
	{name: "receive too short", noCard: true, a: ud, b: ud, sinceB: v6_12, run: func(x *exchange) {
		x.b.recv(9, x.b.sge(slot, uverbs.GRHSize+99))
		x.a.post(x.datagram(1, 0, 100, 0))
		x.a.sent(1)
		if x.b.host.soft {
			x.b.got(1)
			x.b.fails()
			return
		}
		x.quiet()
		x.b.empty()
		x.a.post(x.datagram(2, 0, 99, 0))
		x.a.sent(1)
		x.b.got(1)
		x.b.header(slot, x.a.host, x.b.host.addr)
	}, want: "a: 1: SEND; a: 2: SEND; b: receive 9: RECV 139", wantSpec: "a: 1: SEND; b: receive 9: local length error; b: ERR"},
	{name: "no receive", a: ud, b: ud, run: func(x *exchange) {
		x.a.post(x.datagram(1, 0, 100, 0))
		x.a.sent(1)
		x.quiet()
		x.b.recv(9, x.b.sge(slot, 1000))
		x.a.post(x.datagram(2, 0, 99, 0))
		x.a.sent(1)
		x.b.got(1)
		x.b.header(slot, x.a.host, x.b.host.addr)
	}},
	{name: "group", noCard: true, a: ud, b: ud, run: multicast},
}

// lost sends a datagram that b does not get, and one that it gets.
func lost(x *exchange, n int, change func(wr *uverbs.SendWR)) {
	x.b.recv(9, x.b.sge(slot, 10000))
	wr := x.datagram(1, 0, n, 0)
	change(&wr)
	x.a.post(wr)
	x.a.sent(1)
	x.quiet()
	x.b.empty()
	x.a.post(x.datagram(2, 0, 99, 5))
	x.a.sent(1)
	x.b.got(1)
	x.b.header(slot, x.a.host, x.b.host.addr)
}

// multicast sends a datagram to a group that b is in, and one when it is no more.
func multicast(x *exchange) {
	group := netip.MustParseAddr("239.1.2.3")
	if x.b.host.addr.Is6() {
		group = netip.MustParseAddr("ff05::1:2")
	}
	if x.b.host.soft {
		must(x.t, x.b.host.do(func() error { return soft.ByName(x.b.host.name).JoinGroup(group) })) // until it is closed
	} else { // the kernel takes the packets of a group from a network where a socket has joined it
		joinOnLink(x.t, group)
	}
	gid := ib.GID(group.As16())
	attach := func(f func(ib.GID, uint16) error) error {
		return x.b.host.do(func() error { return f(gid, 0) })
	}
	must(x.t, attach(x.b.qp.AttachMulticast))
	wr := x.datagram(1, 0, 700, 7)
	wr.AH, wr.RemoteQPN = x.a.address(gid), multicastQPN
	x.b.recv(9, x.b.sge(slot, 2000))
	x.a.post(wr)
	x.a.sent(1)
	x.b.got(1)
	x.b.header(slot, x.a.host, group)
	must(x.t, attach(x.b.qp.DetachMulticast))
	x.b.recv(10, x.b.sge(slot, 2000))
	wr.ID = 2
	x.a.post(wr)
	x.a.sent(1)
	x.quiet()
	x.b.empty()
}

// joinOnLink joins a group on the interface of rxe0.
func joinOnLink(t *testing.T, group netip.Addr) {
	t.Helper()
	link, err := netlink.LinkByName(kernelLink)
	must(t, err)
	c, err := net.ListenMulticastUDP("udp", &net.Interface{Index: link.Attrs().Index, Name: kernelLink}, &net.UDPAddr{IP: group.AsSlice(), Port: 40000})
	must(t, err)
	closeLater(t, c)
}

// TestUD sends datagrams between all pairings.
func TestUD(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		t.Run(family(ipv6), func(t *testing.T) {
			rxe, software := newHosts(t, ipv6)
			runCases(t, rxe, software, udCases)
		})
	}
}
