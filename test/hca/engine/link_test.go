package engine

import "testing"

// testLink is a link that leads to a device, and remembers what it carried.
type testLink struct {
	to      *Device
	carried []LinkPacket
	change  func(p *LinkPacket)
}

func (l *testLink) Transmit(p LinkPacket) {
	l.carried = append(l.carried, p)
	if l.change != nil {
		l.change(&p)
	}
	l.to.Deliver(p)
}

// linked gives the devices of a pair links to each other.
func linked(p *pair) (a, b *testLink) {
	a, b = &testLink{to: p.b.h.d}, &testLink{to: p.a.h.d}
	p.a.h.d.cfg.Link, p.b.h.d.cfg.Link = a, b
	return a, b
}

// TestLink: packets of a device with a link take it, in both directions, and no other way.
func TestLink(t *testing.T) {
	p := newPair(t, InfiniBand, RC, false, qpOptions{})
	a, b := linked(p)
	p.b.recv(p.mb.sge(0, 3000))
	p.a.post(opSend, sig, 0, dataSeg(p.ma.sge(0, 3000)))
	p.a.h.run()
	p.a.scq.good(1)
	p.b.rcq.good(1)
	if len(a.carried) != 6 || len(b.carried) == 0 {
		t.Fatalf("%d packets went there, want 6, and %d came back", len(a.carried), len(b.carried))
	}
	first := a.carried[0]
	if first.SLID != 1 || first.DLID != 2 || first.Dest != p.b.n || first.MAD != nil || first.Octets != 8+12+512+4 {
		t.Errorf("the first packet is %+v", first)
	}
	p.clean()
}

// TestLinkLIDs: a device drops packets that tables lead to it by mistake, for another port's LID.
func TestLinkLIDs(t *testing.T) {
	p := newUD(t, InfiniBand, false, qpOptions{}, qpOptions{})
	linked(p)
	for _, c := range []struct {
		lid     uint16 // of the receiver
		lmc     uint8
		dlid    uint16
		arrives bool
	}{
		{2, 0, 2, true}, {2, 0, 3, false}, {4, 2, 7, true}, {4, 2, 8, false}, {0, 0, 0, false}, {0, 0, 2, false},
		{2, 0, 0, false}, {2, 0, 0xbfff, false}, {0, 0, permissiveLID, true},
	} {
		p.b.h.d.ChangePort(func(s *PortState) { s.LID, s.LMC = c.lid, c.lmc })
		p.b.recv(p.mb.sge(0, 100))
		d := p.b.h.d
		d.f.Do(func() {
			d.Deliver(LinkPacket{packet: &packet{kind: pktSend, service: UD, first: true, last: true, dest: p.b.n, qkey: 0x11111111, pkey: 0xffff, route: route{dlid: c.dlid}}})
		})
		p.a.h.run()
		want := 0
		if c.arrives {
			want = 1
		}
		if got := len(p.b.rcq.poll()); got != want {
			t.Errorf("%+v: %d packets arrive, want %d", c, got, want)
		}
	}
}

// TestLinkToSelf: what a device sends to itself stays inside, and to a group it does both.
func TestLinkToSelf(t *testing.T) {
	p := newUD(t, InfiniBand, true, qpOptions{}, qpOptions{})
	l := &testLink{to: p.a.h.d}
	p.a.h.d.cfg.Link = l
	p.b.recv(p.mb.sge(0, 100))
	p.a.post(opSend, sig, 0, p.a.avSeg(p.b, 0x11111111), inlineSeg([]byte("hello")))
	p.a.h.run()
	p.a.scq.good(1)
	p.b.rcq.good(1)
	if len(l.carried) != 0 {
		t.Errorf("%d packets took the link", len(l.carried))
	}
	d := p.a.h.d
	d.f.Do(func() {
		d.transmit(&packet{service: UD, first: true, last: true, dest: 0xffffff, route: route{dlid: 0xc001}})
	})
	p.a.h.run()
	if len(l.carried) != 1 || d.PortCounts().Recv.Multicast.Packets != 2 { // this link leads back
		t.Errorf("to a group: %d packets took the link, and %+v arrived", len(l.carried), d.PortCounts().Recv)
	}
	p.clean()
}

// TestLinkMAD: a link may change the datagrams of management, and make some.
func TestLinkMAD(t *testing.T) {
	p := newUD(t, InfiniBand, false, qpOptions{}, qpOptions{typ: QP1})
	a, _ := linked(p)
	a.change = func(l *LinkPacket) { l.MAD, l.QKey = []byte("changed"), gsiQKey }
	av := p.a.avSeg(p.b, gsiQKey)
	av[9], av[10], av[11] = 0, 0, 1 // QP1
	p.b.recv(p.mb.sge(0, 100))
	p.a.post(opSend, sig, 0, av, inlineSeg([]byte("hello")))
	p.a.h.run()
	p.a.scq.good(1)
	if p.b.rcq.good(1); string(p.mb.data[40:47]) != "changed" {
		t.Errorf("%q arrived", p.mb.data[40:47])
	}
	p.b.recv(p.mb.sge(0, 100))
	d := p.b.h.d
	d.f.Do(func() {
		d.Deliver(LinkPacket{SLID: 9, DLID: 2, Dest: 1, Src: 1, QKey: gsiQKey, PKey: 0xffff, MAD: []byte("made")})
	})
	p.a.h.run()
	if r := p.b.rcq.good(1)[0]; r.slid != 9 || string(p.mb.data[40:44]) != "made" {
		t.Errorf("%q arrived from LID %d", p.mb.data[40:44], r.slid)
	}
	p.clean()
}
