package engine

import (
	"net/netip"
	"sync"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/uverbs/soft/internal/memory"
	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
	"github.com/goverbs/goverbs/uverbs/soft/internal/udp"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// A sender is the peer of a QP of side b. It sends the packets that a test makes.
type sender struct {
	*side
	r   *Receiver
	psn uint32 // that the QP expects next
}

// newSender connects a QP with a sender. Nothing that the QP sends arrives.
func newSender(t *testing.T, o sideOptions, c connOptions) *sender {
	net := &fakeNetwork{clock: newFakeClock()}
	net.tap = func(netip.Addr, netip.Addr, []byte) bool { return false }
	_, b := networkPair(t, net, o, c)
	return &sender{b, b.d.NewReceiver(), b.qp.Query().RQPSN}
}

// send sends a packet with a payload of n bytes. Its PSN is the next one and a number of lost packets.
func (s *sender) send(h wire.Header, n, lost int) {
	h.PKey, h.DestQP, h.PSN, h.Pad = wire.DefaultPKey, s.qp.num, wire.Add(s.psn, lost), uint8(wire.Padding(n))
	s.psn = wire.Add(h.PSN, 1)
	s.packet(h, n)
}

// packet sends a packet as it is.
func (s *sender) packet(h wire.Header, n int) {
	p := make([]byte, wire.PacketSize(h.Opcode, n))
	at := h.Put(p)
	for i := range n {
		p[at+i] = 0xab
	}
	s.r.Packet(&Meta{From: netip.MustParseAddr("10.0.0.1"), To: netip.MustParseAddr("10.0.0.2")}, p)
	s.r.Flush()
}

// spoil makes the oldest receive one that no driver posts, with more SGEs than the queue has.
func (s *side) spoil() {
	r := &s.qp.rq
	if s.srq != nil {
		r = s.srq.Ring()
	}
	native.PutUint32(r.Elem(r.Consumer())[28:], 5)
}

// uc returns an opcode of an unreliable connection.
func uc(op wire.Opcode) wire.Opcode { return wire.UC | op.Operation() }

// TestUCBroken: an unreliable connection goes on with the next message after one that is broken, or that
// the receiver refuses. The receive of the broken message takes the next one, but a receive from an SRQ
// completes with an error.
func TestUCBroken(t *testing.T) {
	const mtu = 256
	first, middle, last := wire.Header{Opcode: uc(wire.SendFirst)}, wire.Header{Opcode: uc(wire.SendMiddle)}, wire.Header{Opcode: uc(wire.SendLast)}
	for name, c := range map[string]struct {
		access uint32 // of the QP
		send   func(s *sender)
		took   bool   // the message had taken a receive
		later  bool   // only the next message shows that the message is broken
		status Status // of that receive, StatusRemInvReqErr if it is 0
	}{
		"middle without first": {send: func(s *sender) { s.send(middle, mtu, 0) }},
		"last without first":   {send: func(s *sender) { s.send(last, 8, 0) }},
		"lost first":           {send: func(s *sender) { s.send(last, 8, 1) }},
		"lost middle":          {send: func(s *sender) { s.send(first, mtu, 0); s.send(last, 8, 1) }, took: true, later: true},
		"first after first":    {send: func(s *sender) { s.send(first, mtu, 0); s.send(first, mtu, 0) }, took: true},
		"WRITE after first":    {send: func(s *sender) { s.send(first, mtu, 0); s.send(wire.Header{Opcode: uc(wire.WriteLast)}, 8, 0) }, took: true},
		"short first":          {send: func(s *sender) { s.send(first, mtu-4, 0); s.send(last, 8, 0) }, took: true},
		"empty last":           {send: func(s *sender) { s.send(first, mtu, 0); s.send(last, 0, 0) }, took: true},
		"WRITE with immediate to no MR": {send: func(s *sender) {
			h := s.write(8, s.mr.RKey()^0x5500)
			h.Opcode = uc(wire.WriteOnlyImm)
			s.send(h, 8, 0)
		}, took: true, status: StatusRemAccessErr},
		"WRITE to no MR":                    {send: func(s *sender) { s.send(s.write(8, s.mr.RKey()^0x5500), 8, 0) }},
		"WRITE of other length":             {send: func(s *sender) { s.send(s.write(12, s.mr.RKey()), 8, 0) }},
		"WRITE that the QP does not permit": {access: uint32(memory.LocalWrite), send: func(s *sender) { s.send(s.write(8, s.mr.RKey()), 8, 0) }},
	} {
		for _, srq := range []int{0, 8} {
			s := newSender(t, sideOptions{typ: UC, srq: srq}, connOptions{mtu: 1, access: c.access})
			before := s.fill(0, 64, 1)
			s.recv(1, s.sge(1000, 1000))
			s.recv(2, s.sge(2000, 1000))
			c.send(s)
			lost := c.took && srq > 0
			if lost && !c.later {
				s.fails(1, max(c.status, StatusRemInvReqErr))
			}
			s.none()
			s.send(wire.Header{Opcode: uc(wire.SendOnly)}, 8, 1)
			good := uint64(1)
			if lost {
				good = 2
			}
			if lost && c.later {
				s.fails(1, StatusRemInvReqErr)
			}
			if got := s.want(good, ring.WCRecv); got.length != 8 {
				t.Errorf("%s, SRQ of %d: %+v, want 8 bytes", name, srq, got)
			}
			s.none()
			s.inState(RTS)
			s.holds(0, before)
		}
	}
}

// write returns a WRITE to the start of the buffer.
func (s *sender) write(length, key uint32) wire.Header {
	return wire.Header{Opcode: uc(wire.WriteOnly), Addr: s.addr(0), RKey: key, Length: length}
}

// TestMalformedReceive: a receive that no driver posts breaks the QP when a message needs it, on every
// kind of QP.
func TestMalformedReceive(t *testing.T) {
	for name, c := range map[string]struct {
		typ    QPType
		srq    int
		opcode wire.Opcode
	}{
		"RC":           {RC, 0, wire.SendOnly},
		"RC and SRQ":   {RC, 8, wire.SendOnly},
		"UC":           {UC, 0, uc(wire.SendOnly)},
		"UC and SRQ":   {UC, 8, uc(wire.SendOnly)},
		"UC and WRITE": {UC, 0, uc(wire.WriteOnlyImm)},
	} {
		s := newSender(t, sideOptions{typ: c.typ, srq: c.srq}, connOptions{})
		s.recv(1, s.sge(0, 100))
		s.recv(2, s.sge(0, 100))
		s.spoil()
		before := s.fill(0, 64, 1)
		s.send(wire.Header{Opcode: c.opcode, Addr: s.addr(0), RKey: s.mr.RKey(), Length: 8}, 8, 0)
		if c.srq == 0 {
			s.fails(1, StatusFlushErr)
			s.fails(2, StatusFlushErr)
		}
		s.none()
		s.holds(0, before)
		if got := s.qp.Query().State; got != Err {
			t.Errorf("%s: state %d, want %d", name, got, Err)
		}
	}
	a, b := udPair(t, sideOptions{})
	b.recv(1, b.sge(0, 100))
	b.spoil()
	a.post(datagram(2, a.handle("10.0.0.1", nil), b, a.sge(0, 8)))
	a.want(2, ring.WCSend)
	b.fails(1, StatusFlushErr)
	b.inState(Err)
}

// TestUCReceiveTooShort: a message that is longer than its receive breaks the QP, and stores nothing behind
// the receive.
func TestUCReceiveTooShort(t *testing.T) {
	for _, srq := range []int{0, 8} {
		s := newSender(t, sideOptions{typ: UC, srq: srq}, connOptions{})
		before := s.fill(0, 64, 1)
		s.recv(1, s.sge(0, 4))
		s.send(wire.Header{Opcode: uc(wire.SendOnly)}, 8, 0)
		s.fails(1, StatusLocLenErr)
		s.inState(Err)
		s.holds(0, before)
	}
}

// TestUCBrokenOverflow: a receive from an SRQ that completes with an error, for which there is no room,
// breaks the QP. The message that shows the loss is not received.
func TestUCBrokenOverflow(t *testing.T) {
	s := newSender(t, sideOptions{typ: UC, srq: 8, cqSize: 1}, connOptions{mtu: 1})
	for id := range uint64(3) {
		s.recv(id, s.sge(0, 1000))
	}
	only := wire.Header{Opcode: uc(wire.SendOnly)}
	s.send(only, 8, 0)
	s.send(wire.Header{Opcode: uc(wire.SendFirst)}, 256, 0)
	before := s.fill(0, 64, 1)
	s.send(only, 8, 1)
	s.want(0, ring.WCRecv)
	s.none()
	s.inState(Err)
	s.holds(0, before)
}

// TestUnreliableOverflow: a receive for whose completion there is no room breaks an unreliable QP as it
// breaks a reliable one.
func TestUnreliableOverflow(t *testing.T) {
	for _, typ := range []QPType{UC, UD} {
		d := newDevice(t, Config{})
		a, b := newSide(t, d, sideOptions{typ: typ}), newSide(t, d, sideOptions{typ: typ, cqSize: 1})
		wr := func(id uint64) sendWR { return signaled(id, ring.OpSend, a.sge(0, 8)) }
		if typ == UC {
			connect(a, b, connOptions{})
		} else {
			a.activate()
			b.activate()
			ah := a.handle("10.0.0.1", nil)
			wr = func(id uint64) sendWR { return datagram(id, ah, b, a.sge(0, 8)) }
		}
		for id := range uint64(3) {
			b.recv(id, b.sge(0, 100))
		}
		a.post(wr(1), wr(2))
		a.want(1, ring.WCSend)
		a.want(2, ring.WCSend)
		b.want(0, ring.WCRecv)
		b.none()
		b.inState(Err)
	}
}

// TestMADRefused: a management datagram of another form, partition or key is dropped and counted.
func TestMADRefused(t *testing.T) {
	var got int
	d := newDevice(t, Config{MAD: func(MADAddr, []byte) { got++ }}, "10.0.0.2")
	s := &sender{side: newSide(t, d, sideOptions{typ: UD}), r: d.NewReceiver()}
	good := wire.Header{Opcode: wire.UD | wire.SendOnly, PKey: wire.DefaultPKey, DestQP: wire.GSIQP, QKey: wire.GSIQKey, SrcQP: wire.GSIQP}
	with := func(change func(h *wire.Header)) wire.Header {
		h := good
		change(&h)
		return h
	}
	counters := func() [2]uint64 { return [2]uint64{d.stats.badPKey.Load(), d.stats.badQKey.Load()} }
	for name, c := range map[string]struct {
		h     wire.Header
		size  int
		taken int
		count [2]uint64 // of wrong P_Keys and Q_Keys
	}{
		"good":              {good, MADSize, 1, [2]uint64{}},
		"limited member":    {with(func(h *wire.Header) { h.PKey = 0x7fff }), MADSize, 1, [2]uint64{}},
		"another partition": {with(func(h *wire.Header) { h.PKey = 0xfffe }), MADSize, 0, [2]uint64{1, 0}},
		"another Q_Key":     {with(func(h *wire.Header) { h.QKey++ }), MADSize, 0, [2]uint64{0, 1}},
		"short":             {good, MADSize - 4, 0, [2]uint64{}},
		"long":              {good, MADSize + 4, 0, [2]uint64{}},
		"immediate data":    {with(func(h *wire.Header) { h.Opcode = wire.UD | wire.SendOnlyImm }), MADSize, 0, [2]uint64{}},
	} {
		before := counters()
		got = 0
		s.packet(c.h, c.size)
		after := counters()
		if count := [2]uint64{after[0] - before[0], after[1] - before[1]}; got != c.taken || count != c.count {
			t.Errorf("%s: %d datagrams and counts of %v, want %d and %v", name, got, count, c.taken, c.count)
		}
	}
	if errno := d.SendMAD(MADAddr{Local: netip.MustParseAddr("10.0.0.2"), Remote: netip.MustParseAddr("10.0.0.2")}, make([]byte, MADSize-1)); errno != syscall.EINVAL {
		t.Errorf("SendMAD with %d bytes: %v, want EINVAL", MADSize-1, errno)
	}
}

// TestGroupRefused: a device does not join a group that the network refuses, and a QP of another kind or
// that is closed is attached to none. Then it can be closed.
func TestGroupRefused(t *testing.T) {
	group := gidOfAddr(netip.MustParseAddr("239.1.2.3"))
	p := &refusingPort{fakePort: (&fakeNetwork{clock: newFakeClock()}).port()}
	d := newDevice(t, Config{Network: p})
	s := newSide(t, d, sideOptions{typ: UD})
	p.errno = syscall.ENOBUFS
	if errno := d.Join(addrOfGID(group)); errno != syscall.ENOBUFS {
		t.Errorf("the network refuses: %v, want ENOBUFS", errno)
	}
	if errno := d.Leave(addrOfGID(group)); errno != syscall.EADDRNOTAVAIL {
		t.Errorf("Leave after a refusal: %v, want EADDRNOTAVAIL", errno)
	}
	if errno := d.Join(netip.MustParseAddr("10.0.0.1")); errno != syscall.EINVAL {
		t.Errorf("Join of no group: %v, want EINVAL", errno)
	}
	p.errno = 0
	check(t, d.Join(addrOfGID(group)), d.Leave(addrOfGID(group)))
	check(t, s.qp.Attach(group, 0), s.qp.Detach(group, 0), s.qp.Close())
	if errno := s.qp.Attach(group, 0); errno != syscall.EINVAL {
		t.Errorf("a QP that is closed: %v, want EINVAL", errno)
	}
	rc, ud := newSide(t, d, sideOptions{}), newSide(t, d, sideOptions{typ: UD})
	for name, errno := range map[string]syscall.Errno{
		"Attach of an RC QP":   rc.qp.Attach(group, 0),
		"Detach of an RC QP":   rc.qp.Detach(group, 0),
		"Detach from no group": ud.qp.Detach(gidOfAddr(netip.MustParseAddr("10.0.0.1")), 0),
	} {
		if errno != syscall.EINVAL {
			t.Errorf("%s: %v, want EINVAL", name, errno)
		}
	}
	if len(p.groups) != 0 {
		t.Errorf("the network has groups %v", p.groups)
	}
}

// TestGroups: QPs come to and go from several groups, at the same time as well. A group without members is
// gone, and there is a limit to the number of groups.
func TestGroups(t *testing.T) {
	group := func(n int) [16]byte { return gidOfAddr(netip.AddrFrom4([4]byte{239, 1, byte(n >> 8), byte(n)})) }
	d := newDevice(t, Config{})
	a, b := newSide(t, d, sideOptions{typ: UD}), newSide(t, d, sideOptions{typ: UD})
	if n := d.groups.len(); n != 0 {
		t.Errorf("%d groups before there is one", n)
	}
	check(t, a.qp.Attach(group(1), 0), a.qp.Attach(group(2), 0), b.qp.Attach(group(2), 0))
	if one, two := d.groups.find(addrOfGID(group(1))), d.groups.find(addrOfGID(group(2))); len(one) != 1 || len(two) != 2 || d.groups.len() != 2 {
		t.Errorf("%d groups with %d and %d members, want 2 with 1 and 2", d.groups.len(), len(one), len(two))
	}
	check(t, a.qp.Detach(group(1), 0), a.qp.Detach(group(2), 0))
	if n := d.groups.len(); n != 1 {
		t.Errorf("%d groups, want that of the other QP", n)
	}
	full := map[netip.Addr][]*QP{addrOfGID(group(2)): {b.qp}}
	for n := range MaxGroups - 2 {
		full[addrOfGID(group(100+n))] = []*QP{b.qp}
	}
	members := d.groups.members.Swap(&full)
	check(t, a.qp.Attach(group(1), 0))
	if errno := a.qp.Attach(group(3), 0); errno != syscall.ENOMEM {
		t.Errorf("a group beyond the limit: %v, want ENOMEM", errno)
	}
	check(t, a.qp.Attach(group(2), 0), a.qp.Detach(group(2), 0), a.qp.Detach(group(1), 0))
	d.groups.members.Store(members)
	check(t, b.qp.Detach(group(2), 0))

	var wg sync.WaitGroup
	for _, s := range []*side{a, b} {
		for n := range 2 {
			wg.Go(func() {
				for range 200 {
					if errno := s.qp.Attach(group(n), 0); errno != 0 {
						t.Errorf("Attach: %v", errno)
					}
					if errno := s.qp.Detach(group(n), 0); errno != 0 {
						t.Errorf("Detach: %v", errno)
					}
				}
			})
		}
	}
	wg.Wait()
	if n := d.groups.len(); n != 0 {
		t.Errorf("%d groups are left", n)
	}
	check(t, a.qp.Close(), b.qp.Close())
}

// refusingPort refuses to join groups.
type refusingPort struct {
	*fakePort
	errno syscall.Errno
}

func (p *refusingPort) Join(g netip.Addr) syscall.Errno {
	if p.errno != 0 {
		return p.errno
	}
	return p.fakePort.Join(g)
}

// TestAtomicWriteRefused: an ATOMIC WRITE to no memory of the peer, or of another length, breaks the
// connection and stores nothing.
func TestAtomicWriteRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(s *sender, h *wire.Header)
		size   int
		event  bool
	}{
		"another key":     {func(_ *sender, h *wire.Header) { h.RKey ^= 0x5500 }, 8, true},
		"past the MR":     {func(s *sender, h *wire.Header) { h.Addr += uint64(len(s.buf)) }, 8, true},
		"length 4":        {func(_ *sender, h *wire.Header) { h.Length = 4 }, 8, false},
		"payload of 4":    {func(*sender, *wire.Header) {}, 4, false},
		"payload of 12":   {func(*sender, *wire.Header) {}, 12, false},
		"length of 0":     {func(_ *sender, h *wire.Header) { h.Length = 0 }, 8, false},
		"misaligned by 4": {func(_ *sender, h *wire.Header) { h.Addr += 4 }, 8, false},
	} {
		s := newSender(t, sideOptions{}, connOptions{})
		before := s.fill(0, 64, 1)
		h := wire.Header{Opcode: wire.AtomicWrite, Addr: s.addr(align(s.side)), RKey: s.mr.RKey(), Length: 8}
		c.change(s, &h)
		s.send(h, c.size, 0)
		s.holds(0, before)
		if got := s.qp.Query().State; got != Err {
			t.Errorf("%s: state %d, want %d", name, got, Err)
		}
		if event := len(s.events) > 0 && s.events[0] == EventAccessErr; event != c.event {
			t.Errorf("%s: events %v, access error %v", name, s.events, c.event)
		}
	}
}

// TestReadsInOneBatch: the responses to short READs that arrive together leave together.
func TestReadsInOneBatch(t *testing.T) {
	net := &fakeNetwork{clock: newFakeClock()}
	p := &countingPort{fakePort: net.port()}
	d := newDevice(t, Config{Network: p, Clock: net.clock}, "10.0.0.2")
	b := newSide(t, d, sideOptions{})
	b.connectTo(b.qp, "10.0.0.1", connOptions{})
	r, psn := d.NewReceiver(), b.qp.Query().RQPSN
	for i := range 4 {
		h := wire.Header{Opcode: wire.ReadRequest, PKey: wire.DefaultPKey, DestQP: b.qp.num, PSN: wire.Add(psn, i), Addr: b.addr(0), RKey: b.mr.RKey(), Length: 8}
		packet := make([]byte, wire.PacketSize(h.Opcode, 0))
		h.Put(packet)
		r.Packet(&Meta{From: netip.MustParseAddr("10.0.0.1"), To: netip.MustParseAddr("10.0.0.2")}, packet)
	}
	r.Flush()
	if p.batches != 1 || net.sent != 4 {
		t.Errorf("%d responses in %d batches, want 4 in one", net.sent, p.batches)
	}
}

// countingPort counts the batches that it sends.
type countingPort struct {
	*fakePort
	batches int
}

func (p *countingPort) Send(from netip.Addr, b *udp.Batch) {
	p.batches++
	p.fakePort.Send(from, b)
}
