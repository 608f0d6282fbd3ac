package engine

import (
	"slices"
	"testing"
)

// setState sets the state of a port's link.
func (h *host) setState(s LinkState) { h.d.ChangePort(func(p *PortState) { p.State = s }) }

// TestLinkStates: which packets pass a port in each state, and what the driver is told.
func TestLinkStates(t *testing.T) {
	for _, c := range []struct {
		from, to LinkState
		arrives  bool
		after    LinkState // of the receiver
	}{
		{LinkActive, LinkActive, true, LinkActive},
		{LinkActive, LinkArmed, true, LinkActive},
		{LinkArmed, LinkActive, false, LinkActive},
		{LinkInit, LinkActive, false, LinkActive},
		{LinkActive, LinkInit, false, LinkInit},
		{LinkActive, LinkDown, false, LinkDown},
		{LinkDown, LinkActive, false, LinkActive},
	} {
		p := newUD(t, InfiniBand, false, qpOptions{}, qpOptions{})
		p.a.h.setState(c.from)
		p.b.h.setState(c.to)
		p.b.recv(p.mb.sge(0, 100))
		p.a.post(opSend, sig, 0, p.a.avSeg(p.b, 0x11111111))
		p.a.h.run()
		p.a.scq.good(1)
		want := 0
		if c.arrives {
			want = 1
		}
		p.b.rcq.good(want)
		port := p.b.h.d.Port()
		if port.State != c.after {
			t.Errorf("from state %d to state %d: the receiver is in state %d, want %d", c.from, c.to, port.State, c.after)
		}
		a, b := p.a.h.d.PortCounts(), p.b.h.d.PortCounts()
		sent := c.from == LinkActive
		if (a.XmitDiscards == 1) == sent || (a.Xmit.Unicast.Packets == 1) != sent || b.Recv.Unicast.Packets != uint64(want) {
			t.Errorf("from state %d to state %d: counters %+v and %+v", c.from, c.to, a, b)
		}
	}
}

// TestLinkEvents: a change of the state is told, but not that a link is armed.
func TestLinkEvents(t *testing.T) {
	h := newHost(t, newFabric(t, FabricConfig{}), InfiniBand)
	h.eq.poll()
	for _, s := range []LinkState{LinkDown, LinkInit, LinkArmed, LinkActive, LinkActive, LinkDown} {
		h.setState(s)
	}
	var subs []uint8
	for _, e := range h.eq.poll() {
		subs = append(subs, e.subtype)
	}
	if !slices.Equal(subs, []uint8{PortDown, PortInit, PortActive, PortDown}) {
		t.Errorf("events %d", subs)
	}
	if n := h.d.PortCounts().LinkDowned; n != 2 {
		t.Errorf("the link went down %d times", n)
	}
}

// TestPacketOctets: the length of packets, from the local route header up to the invariant CRC.
func TestPacketOctets(t *testing.T) {
	grh := route{grh: true}
	for _, c := range []struct {
		what string
		p    packet
		want int
	}{
		{"datagram of 256 bytes", packet{service: UD, first: true, last: true, data: make([]byte, 256)}, 8 + 12 + 8 + 256 + 4},
		{"datagram with a GRH and immediate data", packet{service: UD, first: true, last: true, hasImm: true, route: grh, data: make([]byte, 5)}, 8 + 40 + 12 + 8 + 4 + 8 + 4},
		{"acknowledgement", packet{service: RC, kind: pktAck}, 8 + 12 + 4 + 4},
		{"first packet of a WRITE", packet{service: RC, kind: pktWrite, first: true, data: make([]byte, 1024)}, 8 + 12 + 16 + 1024 + 4},
		{"next packet of a WRITE", packet{service: RC, kind: pktWrite, data: make([]byte, 1024)}, 8 + 12 + 1024 + 4},
		{"READ request", packet{service: RC, kind: pktReadReq, first: true, last: true}, 8 + 12 + 16 + 4},
		{"first packet of a READ response", packet{service: RC, kind: pktReadResp, first: true, data: make([]byte, 1024)}, 8 + 12 + 4 + 1024 + 4},
		{"next packet of a READ response", packet{service: RC, kind: pktReadResp, data: make([]byte, 1024)}, 8 + 12 + 1024 + 4},
		{"atomic request", packet{service: RC, kind: pktAtomicReq}, 8 + 12 + 28 + 4},
		{"atomic response", packet{service: RC, kind: pktAtomicResp, data: make([]byte, 8)}, 8 + 12 + 4 + 8 + 4},
		{"SEND of XRC", packet{service: XRC, first: true, last: true, data: make([]byte, 4)}, 8 + 12 + 4 + 4 + 4},
		{"SEND that invalidates a key", packet{service: RC, last: true, invalidate: true}, 8 + 12 + 4 + 4},
	} {
		if got := c.p.octets(); got != c.want {
			t.Errorf("%s: %d bytes, want %d", c.what, got, c.want)
		}
	}
}

// TestSubnetPackets: packets of subnet management pass a port that is up, also without LIDs. A port without an SMI
// drops them, and counts those that it has no receive WQE for.
func TestSubnetPackets(t *testing.T) {
	for _, c := range []struct {
		what  string
		state LinkState
		noSMI [2]bool // of the sender and the receiver
		recvs int     // WQEs
		want  int     // datagrams that arrive
		drops uint64
	}{
		{"in state INIT", LinkInit, [2]bool{}, 1, 1, 0},
		{"in state ARMED", LinkArmed, [2]bool{}, 1, 1, 0},
		{"in state ACTIVE", LinkActive, [2]bool{}, 1, 1, 0},
		{"in state DOWN", LinkDown, [2]bool{}, 1, 0, 0},
		{"without a receive WQE", LinkInit, [2]bool{}, 0, 0, 1},
		{"from a port without an SMI", LinkActive, [2]bool{true, false}, 1, 0, 0},
		{"to a port without an SMI", LinkActive, [2]bool{false, true}, 1, 0, 0},
	} {
		t.Run(c.what, func(t *testing.T) {
			f := newFabric(t, FabricConfig{})
			ha, hb := newHost(t, f, InfiniBand), newHost(t, f, InfiniBand)
			a, b, m := ha.newQP(qpOptions{typ: QP0}), hb.newQP(qpOptions{typ: QP0}), hb.newMR(8192, allAccess)
			connect(a, b)
			for i, h := range []*host{ha, hb} {
				h.d.cfg.Traits.NoSMI = c.noSMI[i]
				h.d.ChangePort(func(s *PortState) { s.State, s.LID = c.state, 0 })
			}
			for range c.recvs {
				b.recv(m.sge(0, 100))
			}
			av := a.avSeg(b, 0)
			copy(av[9:12], []byte{0, 0, 0})     // QP0
			copy(av[14:16], []byte{0xff, 0xff}) // by the link
			a.post(opSend, sig, 0, av, inlineSeg([]byte("hello")))
			ha.run()
			a.scq.good(1)
			for _, r := range b.rcq.good(c.want) {
				if r.slid != permissiveLID || r.flags&0xffffff != 0 || string(m.data[40:45]) != "hello" {
					t.Errorf("%+v, %q", r, m.data[40:45])
				}
			}
			if got := hb.d.PortCounts().VL15Dropped; got != c.drops {
				t.Errorf("%d packets were dropped, want %d", got, c.drops)
			}
			if got := hb.d.Port().State; got != c.state {
				t.Errorf("the state is %d, was %d", got, c.state)
			}
		})
	}
}

// TestKeyViolations: a port counts the packets that it drops for their P_Key or Q_Key.
func TestKeyViolations(t *testing.T) {
	p := newUD(t, InfiniBand, false, qpOptions{}, qpOptions{})
	send := func(qkey uint32) {
		p.b.recv(p.mb.sge(0, 100))
		p.a.post(opSend, sig, 0, p.a.avSeg(p.b, qkey))
		p.a.h.run()
		p.a.scq.good(1)
		p.b.rcq.good(0)
	}
	send(0x22222222)
	p.b.h.d.ChangePort(func(s *PortState) { s.PKeys = []uint16{0x8005} })
	send(0x11111111)
	send(0x11111111)
	if c := p.b.h.d.PortCounts(); c.QKeyViolations != 1 || c.PKeyViolations != 2 {
		t.Errorf("%d violations of the Q_Key and %d of the P_Key, want 1 and 2", c.QKeyViolations, c.PKeyViolations)
	}

	// The request of an initiator of DC, and the answer of a target.
	a, b := dcPair(t, InfiniBand, false, FabricConfig{})
	ma, mb := a.newMR(4096, allAccess), b.newMR(4096, allAccess)
	dci, dct := a.newDCI(0, 0), b.newDCT(0x99)
	keys := func(h *host, key uint16) { h.d.ChangePort(func(s *PortState) { s.PKeys = []uint16{key} }) }
	write := func() {
		dci.post(opWrite, sig, 0, dci.dcSeg(dct, dcKey), raddrSeg(mb.va, mb.key), dataSeg(ma.sge(0, 100)))
		a.run()
	}
	write()
	dci.scq.good(1)
	keys(b, 0x8005)
	write()
	if c := b.d.PortCounts(); c.PKeyViolations == 0 || a.d.PortCounts().PKeyViolations != 0 {
		t.Errorf("the port of a target has %d violations of the P_Key, and that of its initiator %d", c.PKeyViolations, a.d.PortCounts().PKeyViolations)
	}
	before := b.d.PortCounts().PKeyViolations
	a.d.f.Do(func() { a.d.receiveAnswer(&packet{kind: pktAck, service: DCI, dest: dci.n, pkey: 0x8005}) })
	if c := a.d.PortCounts(); c.PKeyViolations != 1 || b.d.PortCounts().PKeyViolations != before {
		t.Errorf("the port of an initiator has %d violations of the P_Key, want 1", c.PKeyViolations)
	}
}

// TestDiscards: the packets of RDMA count that do not leave the port, and no frames of Ethernet.
func TestDiscards(t *testing.T) {
	h := newHost(t, newFabric(t, FabricConfig{}), Ethernet)
	h.setState(LinkDown)
	for kind, want := range map[pktKind]uint64{pktEth: 0, pktSend: 1} {
		before := h.d.PortCounts().XmitDiscards
		h.d.f.Do(func() {
			h.d.transmit(&packet{kind: kind, service: UD, first: true, last: true, data: make([]byte, 64)})
		})
		if got := h.d.PortCounts().XmitDiscards - before; got != want {
			t.Errorf("a packet of kind %v counts as %d discards, want %d", kind, got, want)
		}
	}
}
