package engine

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// newUD makes two datagram QPs that can reach each other.
func newUD(t *testing.T, link LinkLayer, one bool, oa, ob qpOptions) *pair {
	t.Helper()
	f := newFabric(t, FabricConfig{})
	ha := newHost(t, f, link)
	hb := ha
	if !one {
		hb = newHost(t, f, link)
	}
	oa.typ = UD
	if ob.typ == RC {
		ob.typ = UD
	}
	p := &pair{a: ha.newQP(oa), b: hb.newQP(ob), ma: ha.newMR(8192, allAccess), mb: hb.newMR(8192, allAccess)}
	p.ma.fill(9)
	connect(p.a, p.b)
	return p
}

func TestDatagram(t *testing.T) {
	everywhere(t, func(t *testing.T, link LinkLayer, one bool) {
		p := newUD(t, link, one, qpOptions{}, qpOptions{})
		for i, n := range []int{0, 1, 100, 1024} {
			p.b.recv(p.mb.sge(0, 40+n))
			var data [][]byte
			if n > 0 {
				data = [][]byte{dataSeg(p.ma.sge(i, n))}
			}
			p.a.post(opSendImm, sig, 77, append([][]byte{p.a.avSeg(p.b, 0x11111111)}, data...)...)
			p.a.h.run()
			p.a.scq.good(1)
			r := p.b.rcq.good(1)[0]
			if r.op != cqeRespSendImm || r.imm != 77 || r.bytes != uint32(40+n) || r.flags&0xffffff != p.a.n || !bytes.Equal(p.mb.data[40:40+n], p.ma.data[i:i+n]) {
				t.Errorf("%d bytes: %+v", n, r)
			}
			if link == Ethernet {
				ip := p.mb.data[20:40]
				la, lb := p.a.h.d.Port().GIDs[2].Addr, p.b.h.d.Port().GIDs[2].Addr
				if r.flags>>28&3 != 1 || r.flags>>24&3 != 2 || ip[0] != 0x45 || ip[9] != 17 || onesSum(ip) != 0xffff || !bytes.Equal(ip[12:16], la[12:]) || !bytes.Equal(ip[16:], lb[12:]) {
					t.Errorf("flags %#x, IPv4 header %x", r.flags, ip)
				}
			} else if r.flags>>28&3 != 0 || r.slid != p.a.h.d.Port().LID {
				t.Errorf("flags %#x, slid %d", r.flags, r.slid)
			}
		}
		p.clean()
	})
}

// TestGRH: with a GRH on InfiniBand, and with RoCE v1 and v2 over IPv6, 40 bytes of header.
func TestGRH(t *testing.T) {
	for _, c := range []struct {
		name string
		link LinkLayer
		gid  int
		next byte
		kind uint32
	}{{"IB", InfiniBand, 0, 0x1b, 0}, {"v1", Ethernet, 0, 0x1b, 0}, {"v2", Ethernet, 1, 17, 1}} {
		t.Run(c.name, func(t *testing.T) {
			p := newUD(t, c.link, false, qpOptions{}, qpOptions{})
			p.b.recv(p.mb.sge(0, 100))
			av := p.a.avSeg(p.b, 0x11111111)
			to, from := p.b.h.d.Port().GIDs[c.gid].Addr, p.a.h.d.Port().GIDs[c.gid].Addr
			av[26], av[27] = 0x21, 63
			binary.BigEndian.PutUint32(av[28:], 1<<30|uint32(c.gid)<<20|0x12345)
			copy(av[32:], to[:])
			p.a.post(opSend, sig, 0, av, inlineSeg([]byte("hello")))
			p.a.h.run()
			r := p.b.rcq.good(1)[0]
			h := p.mb.data
			if binary.BigEndian.Uint32(h) != 6<<28|0x21<<20|0x12345 || h[6] != c.next || h[7] != 63 || !bytes.Equal(h[8:24], from[:]) || !bytes.Equal(h[24:40], to[:]) || string(h[40:45]) != "hello" {
				t.Errorf("header %x", h[:48])
			}
			if r.flags>>28&3 != 1 || r.flags>>24&3 != c.kind {
				t.Errorf("flags %#x", r.flags)
			}
			p.clean()
		})
	}
}

// TestDatagramsLost: a datagram that nobody takes is lost, and the sender does not learn it.
func TestDatagramsLost(t *testing.T) {
	for _, c := range []struct {
		why   string
		qkey  uint32
		recv  bool
		wreck func(p *pair, av []byte)
	}{
		{"Q_Key", 0x22222222, true, func(*pair, []byte) {}},
		{"no receive WQE", 0x11111111, false, func(*pair, []byte) {}},
		{"no such QP", 0x11111111, true, func(p *pair, av []byte) { binary.BigEndian.PutUint32(av[8:], 0x80000000|0x123456) }},
		{"nobody has the address", 0x11111111, true, func(p *pair, av []byte) { binary.BigEndian.PutUint16(av[14:], 0x99) }},
		{"the port is down", 0x11111111, true, func(p *pair, av []byte) {
			s := p.b.h.d.Port()
			s.State = LinkDown
			p.b.h.d.SetPort(s)
		}},
		{"P_Key", 0x11111111, true, func(p *pair, av []byte) {
			s := p.b.h.d.Port()
			s.PKeys = []uint16{0x8005}
			p.b.h.d.SetPort(s)
		}},
		{"no such GID", 0x11111111, true, func(p *pair, av []byte) {
			av[28] = 0x40
			av[47] = 0x99
		}},
		{"the QP can't receive in its state", 0x11111111, true, func(p *pair, av []byte) {
			p.b.modify(To2Rst, 0, QPAttr{})
		}},
	} {
		t.Run(c.why, func(t *testing.T) {
			p := newUD(t, InfiniBand, false, qpOptions{}, qpOptions{})
			if c.recv {
				p.b.recv(p.mb.sge(0, 100))
			}
			av := p.a.avSeg(p.b, c.qkey)
			c.wreck(p, av)
			p.a.post(opSend, sig, 0, av, inlineSeg([]byte("x")))
			p.a.h.run()
			p.a.scq.good(1)
			p.b.rcq.good(0)
			sum := p.a.h.d.Report().Packets["dropped: "+c.why] + p.b.h.d.Report().Packets["dropped: "+c.why]
			if sum != 1 {
				t.Errorf("dropped: %v and %v", p.a.h.d.Report().Packets, p.b.h.d.Report().Packets)
			}
			p.clean()
		})
	}
}

// TestQKeyFromContext: the high bit of a datagram's Q_Key stands for the QP's own.
func TestQKeyFromContext(t *testing.T) {
	p := newUD(t, InfiniBand, false, qpOptions{}, qpOptions{})
	p.b.recv(p.mb.sge(0, 100))
	p.a.post(opSend, sig, 0, p.a.avSeg(p.b, 0x80000000), inlineSeg([]byte("x")))
	p.a.h.run()
	p.b.rcq.good(1)
}

// TestGSI: datagrams to QP 1 go to the QP of that kind, and a QP may send in its name.
func TestGSI(t *testing.T) {
	p := newUD(t, Ethernet, false, qpOptions{deth: 1}, qpOptions{typ: QP1})
	p.b.recv(p.mb.sge(0, 300))
	av := p.a.avSeg(p.b, 0x80010000)
	binary.BigEndian.PutUint32(av[8:], 0x80000001)
	a := p.a.attr(p.b)
	a.QKey = 0x80010000
	p.a.modify(RTS2RTS, OptQKey, a)
	p.a.post(opSend, sig, 0, av, inlineSeg(make([]byte, 200)))
	p.a.h.run()
	r := p.b.rcq.good(1)[0]
	if r.flags&0xffffff != 1 || r.imm != 0xffff || r.bytes != 240 {
		t.Errorf("%+v", r)
	}
	p.clean()
}

// TestMulticast: every QP in the group gets a copy, on either device. On Ethernet the group may
// be one of IPv4.
func TestMulticast(t *testing.T) {
	group6, group4 := [16]byte{0: 0xff, 1: 0x0e, 15: 7}, [16]byte{10: 0xff, 11: 0xff, 12: 239, 15: 7}
	for _, k := range []struct {
		link  LinkLayer
		group [16]byte
	}{{InfiniBand, group6}, {Ethernet, group6}, {Ethernet, group4}} {
		for _, block := range []bool{false, true} {
			group := k.group
			p := newUD(t, k.link, false, qpOptions{block: block}, qpOptions{})
			c := p.b.h.newQP(qpOptions{typ: UD})
			c.connect(c.attr(p.a))
			for _, q := range []*testQP{p.a, p.b, c} {
				must(t, q.h.d.AttachMcast(group, q.n))
				m := p.mb
				if q == p.a {
					m = p.ma
				}
				q.recv(m.sge(0, 100))
			}
			av := p.a.avSeg(p.b, 0x11111111)
			binary.BigEndian.PutUint32(av[8:], 0x80ffffff)
			binary.BigEndian.PutUint16(av[14:], 0xc001)
			copy(av[20:], []byte{0x33, 0x33, 0, 0, 0, 7})
			binary.BigEndian.PutUint32(av[28:], 1<<30)
			copy(av[32:], group[:])
			p.a.post(opSend, sig, 0, av, inlineSeg([]byte("all")))
			p.a.h.run()
			p.b.rcq.good(1)
			c.rcq.good(1)
			if block {
				p.a.rcq.good(0)
			} else {
				p.a.rcq.good(1)
			}
			if err := c.h.d.DestroyQP(c.n); err == nil {
				t.Error("a QP in a group can be destroyed")
			}
			must(t, c.h.d.DetachMcast(group, c.n))
			if err := c.h.d.DetachMcast(group, c.n); err == nil {
				t.Error("a QP leaves a group twice")
			}
			p.clean()
		}
	}
}

// TestDatagramErrors: what is wrong with a send stops the send queue alone, and a receive
// WQE that is too small the QP.
func TestDatagramErrors(t *testing.T) {
	p := newUD(t, InfiniBand, false, qpOptions{}, qpOptions{})
	av := p.a.avSeg(p.b, 0x11111111)
	p.a.post(opSend, sig, 0, av, dataSeg(p.ma.sge(0, 1025)))
	p.a.post(opSend, nothing, 0, av, inlineSeg([]byte("x")))
	p.a.h.run()
	all := p.a.scq.poll()
	if len(all) != 2 || all[0].syndrome != LocalLength || all[1].syndrome != Flushed || p.a.state() != SQErr {
		t.Errorf("%v, state %s", all, p.a.state())
	}
	p.a.modify(SQErr2RTS, 0, p.a.attr(p.b))
	p.b.recv(p.mb.sge(0, 43))
	p.b.recv(p.mb.sge(0, 100))
	p.a.post(opSend, sig, 0, av, inlineSeg([]byte("long")))
	p.a.h.run()
	p.a.scq.good(1)
	all = p.b.rcq.poll()
	if len(all) != 2 || all[0].syndrome != LocalLength || all[1].syndrome != Flushed || p.b.state() != Err {
		t.Errorf("%v, state %s", all, p.b.state())
	}
	p.clean()
}
