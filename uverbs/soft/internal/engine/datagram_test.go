package engine

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/uverbs/internal/kernel"
	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

const testQKey = 0x11111111

// activate moves a UD QP to RTS.
func (s *side) activate() {
	s.t.Helper()
	check(s.t,
		s.qp.Modify(&QPAttr{State: Init, Port: 1, QKey: testQKey}, initMask|AttrQKey),
		s.qp.Modify(&QPAttr{State: RTR}, AttrState),
		s.qp.Modify(&QPAttr{State: RTS, SQPSN: 5}, AttrState|AttrSQPSN))
}

// handle makes an address handle.
func (s *side) handle(addr string, change func(*AV)) uint32 {
	s.t.Helper()
	av := AV{GRH: true, Port: 1, DGID: gidOfAddr(netip.MustParseAddr(addr)), HopLimit: 9, TrafficClass: 0x28, FlowLabel: 0x12345}
	if netip.MustParseAddr(addr).Is6() {
		av.SGIDIndex = 1
	}
	if change != nil {
		change(&av)
	}
	num, errno := s.d.CreateAH(s.pd, av)
	check(s.t, errno)
	return num
}

// datagram is a SEND to a UD QP.
func datagram(id uint64, ah uint32, to *side, sges ...sge) sendWR {
	wr := signaled(id, ring.OpSend, sges...)
	wr.ah, wr.qpn, wr.qkey = ah, to.qp.num, testQKey
	return wr
}

// udPair makes two UD QPs on one device.
func udPair(t *testing.T, o sideOptions) (a, b *side) {
	d := newDevice(t, Config{})
	o.typ = UD
	a, b = newSide(t, d, o), newSide(t, d, o)
	a.activate()
	b.activate()
	return a, b
}

func TestDatagram(t *testing.T) {
	a, b := udPair(t, sideOptions{})
	for _, c := range []struct {
		addr string
		grh  string
	}{
		{"10.0.0.1", "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" +
			"\x45\x28\x00\x9c\x00\x00\x40\x00\x09\x11\x5d\x28\x0a\x00\x00\x01\x0a\x00\x00\x01"},
		{"fd00::1", "\x62\x81\x23\x45\x00\x88\x11\x09\xfd\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01" +
			"\xfd\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01"},
	} {
		ah := a.handle(c.addr, nil)
		want := a.fill(0, 97, 5)
		b.recv(1, b.sge(0, 20), b.sge(20, 1000))
		wr := datagram(2, ah, b, a.sge(0, 97))
		wr.opcode, wr.imm = ring.OpSendImm, 99
		a.post(wr)
		if got := a.want(2, ring.WCSend); got.length != 97 {
			t.Errorf("completion %+v", got)
		}
		got := b.want(1, ring.WCRecv)
		if got.length != 137 || got.src != a.qp.num || got.imm != 99 || got.flags != ring.WCGRH|ring.WCWithImm {
			t.Errorf("completion %+v", got)
		}
		b.holds(0, []byte(c.grh))
		b.holds(40, want)
		d := a.d
		d.DestroyAH(ah)
		if d.findAH(ah) != nil {
			t.Error("the AH is still there")
		}
	}
}

// TestDatagramLost: a datagram that cannot be delivered is lost, and takes no receive with it.
func TestDatagramLost(t *testing.T) {
	for name, c := range map[string]struct {
		recv, length int
		change       func(*sendWR)
	}{
		"no receive":  {0, 1000, nil},
		"no such QP":  {2000, 1000, func(w *sendWR) { w.qpn = 0xadbeef }},
		"other Q_Key": {2000, 1000, func(w *sendWR) { w.qkey++ }},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := udPair(t, sideOptions{})
			if c.recv > 0 {
				b.recv(1, b.sge(0, c.recv))
			}
			wr := datagram(2, a.handle("10.0.0.1", nil), b, a.sge(0, c.length))
			if c.change != nil {
				c.change(&wr)
			}
			before := b.fill(0, 3000, 9)
			a.post(wr)
			a.want(2, ring.WCSend)
			b.none()
			b.holds(0, before)
			if c.recv == 0 {
				b.recv(1, b.sge(0, 1000))
			}
			a.post(datagram(3, wr.ah, b, a.sge(0, 10)))
			a.want(3, ring.WCSend)
			b.want(1, ring.WCRecv)
			a.inState(RTS)
			b.inState(RTS)
		})
	}
}

// TestLongDatagram: a datagram that is longer than its receive, with the GRH, breaks the QP that receives it. Its
// sender never learns.
func TestLongDatagram(t *testing.T) {
	for _, srq := range []int{0, 8} {
		for _, c := range []struct{ recv, length int }{{GRHSize + 7, 8}, {GRHSize, 1}, {GRHSize - 1, 0}, {0, 0}} {
			a, b := udPair(t, sideOptions{srq: srq})
			b.recv(1, b.sge(0, c.recv))
			b.recv(2, b.sge(0, 100))
			a.post(datagram(3, a.handle("10.0.0.1", nil), b, a.sge(0, c.length)))
			a.want(3, ring.WCSend)
			a.inState(RTS)
			b.fails(1, StatusLocLenErr)
			if srq == 0 {
				b.fails(2, StatusFlushErr)
			}
			b.none()
			b.inState(Err)
			if got := slices.Contains(b.events, EventLastWQE); got != (srq > 0) {
				t.Errorf("events %v", b.events)
			}
		}
	}
}

// TestDatagramErrors posts what no datagram can be.
func TestDatagramErrors(t *testing.T) {
	for name, c := range map[string]struct {
		change func(a *side, wr *sendWR)
		want   Status
	}{
		"no AH":               {func(a *side, wr *sendWR) { wr.ah = 5000 }, StatusLocQPOpErr},
		"AH 0":                {func(a *side, wr *sendWR) { wr.ah = 0 }, StatusLocQPOpErr},
		"WRITE":               {func(a *side, wr *sendWR) { wr.opcode = ring.OpWrite }, StatusLocQPOpErr},
		"bind":                {func(a *side, wr *sendWR) { wr.opcode = ring.OpBindMW }, StatusLocQPOpErr},
		"AH of another PD":    {func(a *side, wr *sendWR) { a.pd++; wr.ah = a.handle("10.0.0.1", nil) }, StatusLocQPOpErr},
		"longer than the MTU": {func(a *side, wr *sendWR) { wr.sges[0].length = 1025 }, StatusLocLenErr},
		"wrong lkey":          {func(a *side, wr *sendWR) { wr.sges[0].lkey ^= 0x5500 }, StatusLocProtErr},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := udPair(t, sideOptions{})
			wr := datagram(1, a.handle("10.0.0.1", nil), b, a.sge(0, 1))
			c.change(a, &wr)
			a.post(wr)
			a.fails(1, c.want)
			a.inState(SQE)
		})
	}
}

// TestSendQueueError: a failed send stops the send queue of a UC or UD QP, which flushes what is posted there, and
// the QP still receives. It sends again once it is moved to RTS.
func TestSendQueueError(t *testing.T) {
	for _, typ := range []QPType{UC, UD} {
		var a, b *side
		send := func(id uint64, s, to *side) sendWR { return signaled(id, ring.OpSend, s.sge(0, 8)) }
		if typ == UC {
			a, b = pair(t, sideOptions{typ: UC}, connOptions{})
		} else {
			a, b = udPair(t, sideOptions{})
			send = func(id uint64, s, to *side) sendWR { return datagram(id, s.handle("10.0.0.1", nil), to, s.sge(0, 8)) }
		}
		bad := send(1, a, b)
		bad.sges[0].lkey++
		a.post(bad, send(2, a, b))
		a.fails(1, StatusLocProtErr)
		a.fails(2, StatusFlushErr)
		a.inState(SQE)

		a.recv(3, a.sge(100, 200))
		b.post(send(4, b, a))
		b.want(4, ring.WCSend)
		a.want(3, ring.WCRecv)
		a.post(send(5, a, b))
		a.fails(5, StatusFlushErr)
		a.recv(6, a.sge(100, 200))

		check(t, a.qp.Modify(&QPAttr{State: RTS}, AttrState))
		b.recv(7, b.sge(100, 200))
		a.none()
		a.post(send(8, a, b))
		a.want(8, ring.WCSend)
		b.want(7, ring.WCRecv)
		check(t, a.qp.Modify(&QPAttr{State: Err}, AttrState))
		a.fails(6, StatusFlushErr)
	}
}

func TestAHErrors(t *testing.T) {
	d := newDevice(t, Config{})
	gid := (*d.gids.Load())[0].GID
	for av, want := range map[AV]syscall.Errno{
		{Port: 1, DGID: gid}:                          syscall.EINVAL,
		{GRH: true, DGID: gid}:                        syscall.EINVAL,
		{GRH: true, Port: 1, DGID: gid, SGIDIndex: 9}: kernel.ENODATA,
		{GRH: true, Port: 1, DGID: gid}:               0,
	} {
		if _, errno := d.CreateAH(1, av); errno != want {
			t.Errorf("%+v: %v, want %v", av, errno, want)
		}
	}
	n := 1
	for ; ; n++ {
		if _, errno := d.CreateAH(1, AV{GRH: true, Port: 1, DGID: gid}); errno != 0 {
			break
		}
	}
	if n != MaxAH {
		t.Errorf("%d AHs, want %d", n, MaxAH)
	}
}

func TestMulticast(t *testing.T) {
	host := new(Host)
	d1 := newDevice(t, Config{Host: host}, "10.0.0.1", "fd00::1")
	d2 := newDevice(t, Config{Host: host}, "10.0.0.2", "fd00::2")
	o := sideOptions{typ: UD}
	a, b, c := newSide(t, d1, o), newSide(t, d1, o), newSide(t, d2, o)
	for _, s := range []*side{a, b, c} {
		s.activate()
	}
	for _, addr := range []string{"239.1.2.3", "ff0e::17"} {
		group := gidOfAddr(netip.MustParseAddr(addr))
		for range 2 { // again is no error
			check(t, a.qp.Attach(group, 0), b.qp.Attach(group, 0), c.qp.Attach(group, 0))
		}
		if got := b.qp.Close(); got != syscall.EBUSY {
			t.Errorf("Close of a member: %v, want EBUSY", got)
		}
		data := a.fill(0, 100, 3)
		for _, s := range []*side{a, b, c} {
			s.recv(1, s.sge(1000, 200))
		}
		wr := datagram(2, a.handle(addr, nil), a, a.sge(0, 100))
		wr.qpn = wire.MulticastQP
		a.post(wr)
		a.want(2, ring.WCSend)
		for _, s := range []*side{a, b, c} { // attached, but not joined
			s.none()
			check(t, s.d.Join(netip.MustParseAddr(addr)))
		}
		a.post(wr)
		a.want(2, ring.WCSend)
		for _, s := range []*side{a, b, c} {
			if got := s.want(1, ring.WCRecv); got.src != a.qp.num || got.length != 140 {
				t.Errorf("completion %+v", got)
			}
			s.holds(1000+GRHSize, data)
		}
		check(t, b.qp.Detach(group, 0))
		if got := b.qp.Detach(group, 0); got != syscall.EINVAL {
			t.Errorf("Detach of none: %v", got)
		}
		b.recv(3, b.sge(0, 200))
		c.recv(3, c.sge(0, 200))
		a.post(wr)
		a.next()
		b.none()
		c.want(3, ring.WCRecv)
		check(t, a.d.Leave(netip.MustParseAddr(addr))) // b has joined, too
		a.recv(4, a.sge(0, 200))
		a.post(wr)
		a.want(2, ring.WCSend)
		a.want(4, ring.WCRecv)
		check(t, b.d.Leave(netip.MustParseAddr(addr)))
		before := a.d.stats.notJoined.Load()
		c.recv(4, c.sge(0, 200))
		a.post(wr)
		a.want(2, ring.WCSend)
		c.want(4, ring.WCRecv)
		if n := a.d.stats.notJoined.Load() - before; n != 1 {
			t.Errorf("%d packets are counted as not joined, want 1", n)
		}
		if got := b.d.Leave(netip.MustParseAddr(addr)); got != syscall.EADDRNOTAVAIL {
			t.Errorf("Leave of no member: %v", got)
		}
		check(t, c.d.Leave(netip.MustParseAddr(addr)), a.qp.Detach(group, 0), c.qp.Detach(group, 0), b.qp.Close())
		b = newSide(t, d1, o)
		b.activate()
	}
	if got := a.qp.Attach(gidOfAddr(netip.MustParseAddr("10.0.0.1")), 0); got != syscall.EINVAL {
		t.Errorf("Attach to no group: %v", got)
	}
}

// TestMulticastOverNetwork: a packet to a group goes to the members on the host and to the network, and
// replies of the network are ignored.
func TestMulticastOverNetwork(t *testing.T) {
	net := &fakeNetwork{clock: newFakeClock()}
	host := new(Host)
	var sides []*side
	for i, addr := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"} {
		c := Config{Host: host}
		if i == 2 {
			c.Host = nil
		}
		p := net.port()
		c.Network = p
		p.device = newDevice(t, c, addr)
		s := newSide(t, p.device, sideOptions{typ: UD})
		s.activate()
		sides = append(sides, s)
	}
	group := netip.MustParseAddr("239.1.2.3")
	for _, s := range sides {
		check(t, s.d.Join(group), s.d.Join(group), s.d.Leave(group), s.qp.Attach(gidOfAddr(group), 0))
		s.recv(1, s.sge(0, 200))
		s.recv(2, s.sge(0, 200))
	}
	a := sides[0]
	wr := datagram(3, a.handle("239.1.2.3", nil), a, a.sge(1000, 100))
	wr.qpn = wire.MulticastQP
	a.post(wr)
	a.want(3, ring.WCSend)
	net.deliver()
	for _, s := range sides {
		s.want(1, ring.WCRecv)
		s.none()
		check(t, s.d.Leave(group), s.qp.Detach(gidOfAddr(group), 0))
	}
	for _, p := range net.ports {
		if len(p.groups) != 0 {
			t.Errorf("still a member of %v", p.groups)
		}
	}
}

func TestGroupLimit(t *testing.T) {
	d := newDevice(t, Config{})
	group := gidOfAddr(netip.MustParseAddr("239.1.2.3"))
	for i := range MaxGroupQPs + 1 {
		s := newSide(t, d, sideOptions{typ: UD, sendWR: 1, recvWR: 1, bufSize: 16})
		want := syscall.Errno(0)
		if i == MaxGroupQPs {
			want = syscall.ENOMEM
		}
		if got := s.qp.Attach(group, 0); got != want {
			t.Fatalf("member %d: %v, want %v", i, got, want)
		}
	}
}

func TestUC(t *testing.T) {
	a, b := pair(t, sideOptions{typ: UC, bufSize: 1 << 17}, connOptions{psn: 0xfffffe})
	for i, n := range sizes {
		want := a.fill(0, n, byte(i))
		b.recv(1, b.sge(0, n))
		wr := signaled(2, ring.OpSendImm, a.sge(0, n))
		wr.imm = 3
		a.post(wr, signaled(4, ring.OpWrite, a.sge(0, n)).to(b, 1<<16))
		a.want(2, ring.WCSend)
		a.want(4, ring.WCWrite)
		if got := b.want(1, ring.WCRecv); got.length != uint32(n) || got.imm != 3 {
			t.Errorf("completion %+v", got)
		}
		b.holds(0, want)
		b.holds(1<<16, want)
	}
	a.post(signaled(5, ring.OpRead, a.sge(0, 8)).to(b, 0))
	a.fails(5, StatusLocQPOpErr)
}

// TestUCLoss: a message of which a packet is lost has no effect, and the next one arrives.
func TestUCLoss(t *testing.T) {
	for _, srq := range []int{0, 8} {
		for lost := range 6 {
			net := &fakeNetwork{clock: newFakeClock()}
			a, b := networkPair(t, net, sideOptions{typ: UC, srq: srq}, connOptions{mtu: 1})
			for i := range uint64(3) {
				b.recv(i, b.sge(int(i)*2000, 2000))
			}
			n := 0
			net.tap = func(_, _ netip.Addr, _ []byte) bool { n++; return n-1 != lost }
			data := a.fill(0, 700, 3)
			for i := range uint64(2) { // each of three packets
				a.post(signaled(i, ring.OpSend, a.sge(0, 700)))
				a.want(i, ring.WCSend)
			}
			net.deliver()
			for {
				c, ok := b.poll()
				if !ok {
					t.Fatalf("packet %d lost: nothing arrives", lost)
				}
				if c.status != StatusSuccess && srq > 0 { // its receive is gone
					continue
				}
				if c.status != StatusSuccess || c.length != 700 {
					t.Fatalf("packet %d lost: completion %+v", lost, c)
				}
				b.holds(int(c.id)*2000, data)
				break
			}
			b.none()
			b.inState(RTS)
		}
	}
}

func TestMAD(t *testing.T) {
	host := new(Host)
	var got []MADAddr
	var mads [][]byte
	receive := func(from MADAddr, mad []byte) { got, mads = append(got, from), append(mads, bytes.Clone(mad)) }
	d1 := newDevice(t, Config{Host: host}, "10.0.0.1")
	newDevice(t, Config{Host: host, MAD: receive}, "10.0.0.2", "fd00::2")
	net := &fakeNetwork{clock: newFakeClock()}
	p := net.port()
	p.device = newDevice(t, Config{Network: p, MAD: receive}, "10.0.0.3")
	d1.config.Network = net.port()

	mad := make([]byte, MADSize)
	binary.BigEndian.PutUint64(mad[8:], 0x1234)
	addr := func(local, remote string) MADAddr {
		return MADAddr{Local: netip.MustParseAddr(local), Remote: netip.MustParseAddr(remote)}
	}
	var sent []wire.Header
	net.tap = func(_, _ netip.Addr, b []byte) bool {
		var h wire.Header
		if _, err := wire.Parse(b, &h); err != nil {
			t.Error(err)
		}
		sent = append(sent, h)
		return true
	}
	packets, size := d1.stats.sentPackets.Load(), d1.stats.sentBytes.Load()
	check(t, d1.SendMAD(addr("10.0.0.1", "::ffff:10.0.0.2"), mad), d1.SendMAD(addr("::ffff:10.0.0.1", "10.0.0.3"), mad), d1.SendMAD(addr("10.0.0.1", "10.0.0.3"), mad))
	net.deliver()
	if packets, size = d1.stats.sentPackets.Load()-packets, d1.stats.sentBytes.Load()-size; packets != 3 || size != 3*uint64(wire.PacketSize(wire.UD|wire.SendOnly, MADSize)) {
		t.Errorf("%d packets of %d bytes are counted, want 3 of a MAD each", packets, size)
	}
	if len(sent) != 2 || !sent[0].MigReq || sent[1].PSN != wire.Add(sent[0].PSN, 1) {
		t.Errorf("packets to the network: %+v, want two with MigReq and PSNs in a row", sent)
	}
	if want := []MADAddr{addr("10.0.0.2", "10.0.0.1"), addr("10.0.0.3", "10.0.0.1"), addr("10.0.0.3", "10.0.0.1")}; !slices.Equal(got, want) {
		t.Errorf("MADs from %v, want %v", got, want)
	}
	for _, m := range mads {
		if !bytes.Equal(m, mad) {
			t.Errorf("MAD %x", m)
		}
	}
	for to, want := range map[MADAddr]syscall.Errno{
		addr("10.0.0.7", "10.0.0.2"): syscall.EADDRNOTAVAIL,
		addr("10.0.0.1", "10.9.9.9"): syscall.EHOSTUNREACH,
		addr("10.0.0.1", "fd00::2"):  syscall.EINVAL,
	} {
		if got := d1.SendMAD(to, mad); got != want {
			t.Errorf("to %v: %v, want %v", to, got, want)
		}
	}
}

// TestControlledQKey: a Q_Key with its high bit set in a work request stands for that of the QP.
func TestControlledQKey(t *testing.T) {
	for _, qkey := range []uint32{1 << 31, 1<<31 | 5, 0xffffffff} {
		a, b := udPair(t, sideOptions{})
		b.recv(1, b.sge(0, 100))
		w := datagram(2, a.handle("10.0.0.1", nil), b, a.sge(200, 8))
		w.qkey = qkey
		a.post(w)
		a.want(2, ring.WCSend)
		b.want(1, ring.WCRecv)
	}
}

// TestDatagramTooLongForAnyMTU: a datagram that is longer than the largest MTU does not break a QP whose receives hold
// that, whatever the MTU of the device is.
func TestDatagramTooLongForAnyMTU(t *testing.T) {
	for _, n := range []int{1028, 4096, 4100, 4200} {
		d := newDevice(t, Config{MTU: 1024}, "10.0.0.1")
		s := newSide(t, d, sideOptions{typ: UD})
		s.activate()
		s.recv(1, s.sge(0, GRHSize+4096))
		h := wire.Header{Opcode: wire.UD | wire.SendOnly, PKey: wire.DefaultPKey, DestQP: s.qp.num, QKey: testQKey, SrcQP: 3}
		b := make([]byte, wire.PacketSize(h.Opcode, n))
		h.Put(b)
		r := d.NewReceiver()
		r.Packet(&Meta{From: netip.MustParseAddr("10.0.0.2"), To: netip.MustParseAddr("10.0.0.1")}, b)
		r.Flush()
		if got := s.qp.Query().State; got != RTS {
			t.Errorf("%d bytes: the state is %v, want RTS", n, got)
		}
	}
}
