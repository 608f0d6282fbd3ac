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
