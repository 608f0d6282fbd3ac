package engine

import (
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs/soft/internal/memory"
	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// window makes a window of type 2 and a request that binds it to a part of a side's buffer.
func window(s *side, off, n int, access memory.Access) (key uint32, bind sendWR) {
	s.t.Helper()
	mw, errno := s.d.config.Memory.AllocMW(s.pd, memory.MWType2)
	check(s.t, errno)
	key = mw.RKey()&^0xff | (mw.RKey()+1)&0xff
	return key, sendWR{
		id: 100, opcode: ring.OpBindMW, flags: ring.SendSignaled, bindKey: mw.RKey(), rkey: key, bindLKey: s.mr.LKey(),
		addr: s.addr(off), bindLen: uint64(n), bindAcc: uint32(access),
	}
}

// TestWindow binds a window, uses it, and takes it away by each kind of request.
func TestWindow(t *testing.T) {
	for _, how := range []uint32{ring.OpLocalInv, ring.OpSendInv} {
		a, b := pair(t, sideOptions{}, connOptions{})
		key, bind := window(b, 1000, 500, memory.RemoteRead|memory.RemoteWrite)
		b.post(bind)
		b.want(100, ring.WCBindMW)
		data := a.fill(0, 500, 1)
		write := signaled(1, ring.OpWrite, a.sge(0, 500)).to(b, 1000)
		write.rkey = key
		read := signaled(2, ring.OpRead, a.sge(600, 500)).to(b, 1000)
		read.rkey = key
		a.post(write, read)
		a.want(1, ring.WCWrite)
		a.want(2, ring.WCRead)
		b.holds(1000, data)
		a.holds(600, data)
		if how == ring.OpLocalInv {
			b.post(sendWR{id: 3, opcode: ring.OpLocalInv, flags: ring.SendSignaled, imm: key})
			b.want(3, ring.WCLocalInv)
		} else {
			b.recv(4, b.sge(0, 100))
			inv := signaled(3, ring.OpSendInv, a.sge(0, 10))
			inv.imm = key
			a.post(inv)
			a.want(3, ring.WCSend)
			if c := b.want(4, ring.WCRecv); c.key != key || c.flags != ring.WCGRH|ring.WCWithInvalidate {
				t.Errorf("completion %+v", c)
			}
		}
		a.post(read)
		a.fails(2, StatusRemAccessErr)
		if !slices.Contains(b.events, EventAccessErr) {
			t.Errorf("events %v", b.events)
		}
	}
}

// TestWrongInvalidate: a message whose key cannot be invalidated breaks the receiver, and its data is
// there.
func TestWrongInvalidate(t *testing.T) {
	a, b := pair(t, sideOptions{}, connOptions{})
	b.recv(4, b.sge(0, 100))
	data := a.fill(0, 10, 3)
	inv := signaled(3, ring.OpSendInv, a.sge(0, 10))
	inv.imm = b.mr.RKey()
	a.post(inv)
	b.fails(4, StatusRemInvReqErr)
	b.holds(0, data)
	b.inState(Err)
	a.want(3, ring.WCSend) // as in rxe
}

// TestForeignInvalidate: no peer takes away a window that another client's QP has bound.
func TestForeignInvalidate(t *testing.T) {
	d := newDevice(t, Config{})
	a, b := newSide(t, d, sideOptions{}), newSide(t, d, sideOptions{})
	connect(a, b, connOptions{})
	key, bind := window(b, 1000, 500, memory.RemoteWrite)
	b.post(bind)
	b.want(100, ring.WCBindMW)
	for _, pd := range []memory.PD{b.pd, b.pd + 1} {
		stranger, victim := newSide(t, d, sideOptions{pd: pd}), newSide(t, d, sideOptions{pd: pd})
		connect(stranger, victim, connOptions{})
		victim.recv(4)
		inv := signaled(3, ring.OpSendInv)
		inv.imm = key
		stranger.post(inv)
		victim.fails(4, StatusRemInvReqErr)
		victim.inState(Err)
	}
	write := signaled(1, ring.OpWrite, a.sge(0, 500)).to(b, 1000)
	write.rkey = key
	a.post(write)
	a.want(1, ring.WCWrite)
}

// TestBindErrors: a bind that is refused breaks the QP.
func TestBindErrors(t *testing.T) {
	for name, change := range map[string]func(*sendWR){
		"no such window":  func(w *sendWR) { w.bindKey ^= 0x5500 },
		"no such MR":      func(w *sendWR) { w.bindLKey++ },
		"outside":         func(w *sendWR) { w.bindLen = 1 << 20 },
		"wrong LOCAL_INV": func(w *sendWR) { *w = sendWR{id: 100, opcode: ring.OpLocalInv, imm: 5} },
	} {
		t.Run(name, func(t *testing.T) {
			a, _ := pair(t, sideOptions{}, connOptions{})
			_, bind := window(a, 0, 100, memory.RemoteRead)
			change(&bind)
			a.post(bind)
			a.fails(100, StatusMWBindErr)
			a.inState(Err)
		})
	}
}

// opcodes records the packets of a network that go from one address.
func opcodes(net *fakeNetwork, from string, all *[]wire.Opcode) {
	net.tap = func(f, _ netip.Addr, b []byte) bool {
		if f == netip.MustParseAddr(from) {
			*all = append(*all, wire.Opcode(b[0]))
		}
		return true
	}
}

// TestFence: a request with a fence, and LOCAL_INV, wait for those before it.
func TestFence(t *testing.T) {
	net := &fakeNetwork{clock: newFakeClock()}
	a, b := networkPair(t, net, sideOptions{}, connOptions{})
	var sent []wire.Opcode
	opcodes(net, "10.0.0.1", &sent)
	fenced := signaled(3, ring.OpWrite, a.sge(0, 8)).to(b, 0)
	fenced.flags |= ring.SendFence
	key, bind := window(a, 0, 100, memory.RemoteRead)
	a.post(signaled(1, ring.OpRead, a.sge(0, 8)).to(b, 0), signaled(2, ring.OpWrite, a.sge(0, 8)).to(b, 0), fenced, bind,
		sendWR{id: 5, opcode: ring.OpLocalInv, flags: ring.SendSignaled, imm: key})
	if want := []wire.Opcode{wire.ReadRequest, wire.WriteOnly}; !slices.Equal(sent, want) {
		t.Errorf("sent %x before the fence, want %x", sent, want)
	}
	a.none()
	net.deliver()
	for i, op := range []uint32{ring.WCRead, ring.WCWrite, ring.WCWrite, ring.WCBindMW, ring.WCLocalInv} {
		a.want([]uint64{1, 2, 3, 100, 5}[i], op)
	}
}

// TestReadLimit: no more READs and atomics are under way than was agreed on.
func TestReadLimit(t *testing.T) {
	net := &fakeNetwork{clock: newFakeClock()}
	a, b := networkPair(t, net, sideOptions{}, connOptions{rdAtomic: 2})
	var sent []wire.Opcode
	opcodes(net, "10.0.0.1", &sent)
	for i := range uint64(4) {
		a.put(signaled(i, ring.OpRead, a.sge(0, 8)).to(b, 0))
	}
	a.post(signaled(4, ring.OpWrite, a.sge(0, 8)).to(b, 0))
	if len(sent) != 2 {
		t.Errorf("%d requests, want 2", len(sent))
	}
	net.deliver()
	for i := range uint64(4) {
		a.want(i, ring.WCRead)
	}
	a.want(4, ring.WCWrite)
}

// TestWindowOfPackets: no more packets are sent than the peer is to remember.
func TestWindowOfPackets(t *testing.T) {
	net := &fakeNetwork{clock: newFakeClock()}
	a, b := networkPair(t, net, sideOptions{bufSize: 1 << 18}, connOptions{mtu: 1})
	var sent, answers []wire.Opcode
	opcodes(net, "10.0.0.1", &sent)
	a.post(signaled(1, ring.OpWrite, a.sge(0, 200000)).to(b, 0))
	if len(sent) != maxUnacked+1 {
		t.Errorf("%d packets, want %d", len(sent), maxUnacked+1)
	}
	opcodes(net, "10.0.0.2", &answers)
	net.deliver()
	a.want(1, ring.WCWrite)
	if n := len(answers); n < 782/(maxUnacked/2+2) || n > 782/(maxUnacked/2)+1 {
		t.Errorf("%d acknowledgements of 782 packets", n)
	}
}

// TestAckCoalescing: one acknowledgement stands for all messages of a batch.
func TestAckCoalescing(t *testing.T) {
	net := &fakeNetwork{clock: newFakeClock()}
	a, b := networkPair(t, net, sideOptions{}, connOptions{})
	for i := range uint64(10) {
		b.recv(i, b.sge(0, 8))
		a.put(signaled(i, ring.OpSend, a.sge(0, 8)))
	}
	check(t, a.qp.Doorbell())
	packets := net.packets
	net.packets = nil
	r := b.d.NewReceiver()
	for _, k := range packets {
		r.Packet(&Meta{From: k.from, To: k.to}, k.data)
	}
	r.Flush()
	if len(packets) != 10 || len(net.packets) != 1 {
		t.Errorf("%d packets with %d acknowledgements, want 10 with one", len(packets), len(net.packets))
	}
	net.deliver()
	for i := range uint64(10) {
		a.want(i, ring.WCSend)
		b.want(i, ring.WCRecv)
	}
}

// TestUnsignaled: without a flag only failures have completions, and with SigAll all have.
func TestUnsignaled(t *testing.T) {
	a, b := pair(t, sideOptions{}, connOptions{})
	a.post(sendWR{id: 1, opcode: ring.OpWrite, sges: []sge{a.sge(0, 8)}}.to(b, 0), signaled(2, ring.OpWrite))
	a.want(2, ring.WCWrite)
	a.none()
	a, b = pair(t, sideOptions{sigAll: true}, connOptions{})
	a.post(sendWR{id: 1, opcode: ring.OpWrite, sges: []sge{a.sge(0, 8)}}.to(b, 0))
	a.want(1, ring.WCWrite)
}

// TestFlushRequest: FLUSH needs the QP's right and the MR's.
func TestFlushRequest(t *testing.T) {
	for access, want := range map[memory.Access]Status{memory.FlushGlobal: StatusSuccess, memory.RemoteWrite | memory.LocalWrite: StatusRemAccessErr} {
		a, b := pair(t, sideOptions{}, connOptions{})
		wr := sendWR{id: 1, opcode: ring.OpFlush, flags: ring.SendSignaled, flushType: wire.FlushGlobal, length: 100}.to(b, 0)
		wr.rkey = other(t, b, access).RKey()
		a.post(wr)
		if c := a.next(); c.status != want {
			t.Errorf("access %#x: completion %+v, want status %d", access, c, want)
		}
	}
	a, b := pair(t, sideOptions{}, connOptions{})
	check(t, b.qp.Modify(&QPAttr{AccessFlags: allAccess &^ uint32(memory.FlushGlobal)}, AttrAccess))
	a.post(sendWR{id: 1, opcode: ring.OpFlush, flags: ring.SendSignaled, flushType: wire.FlushGlobal}.to(b, 0))
	a.fails(1, StatusRemInvReqErr)
}

// TestInvalidFlush: a FLUSH of nothing, or of an unknown type or level, is refused, whatever the MR permits.
func TestInvalidFlush(t *testing.T) {
	for _, c := range []struct{ typ, level uint8 }{{0, wire.FlushRange}, {0, wire.FlushMR}, {4, 0}, {wire.FlushGlobal | 8, 0}, {wire.FlushGlobal, 2}} {
		for _, access := range []memory.Access{memory.FlushGlobal, 0} {
			a, b := pair(t, sideOptions{}, connOptions{})
			wr := sendWR{id: 1, opcode: ring.OpFlush, flushType: c.typ, level: c.level, length: 8}.to(b, 0)
			wr.rkey = other(t, b, access).RKey()
			a.post(wr)
			a.fails(1, StatusRemInvReqErr)
		}
	}
}

// TestMisalignedAtomic: the address of an atomic is a multiple of 8.
func TestMisalignedAtomic(t *testing.T) {
	for _, opcode := range []uint32{ring.OpAtomicFAA, ring.OpAtomicCAS, ring.OpAtomicWrite} {
		a, b := pair(t, sideOptions{}, connOptions{})
		wr := signaled(1, opcode, a.sge(0, 8)).to(b, align(b)+4)
		if opcode == ring.OpAtomicWrite {
			wr.sges, wr.inline = nil, make([]byte, 8)
		}
		a.post(wr)
		a.fails(1, StatusRemInvReqErr)
		b.inState(Err)
	}
}

// TestNoReadsPermitted: a QP that remembers no READs refuses them.
func TestNoReadsPermitted(t *testing.T) {
	a, b := pair(t, sideOptions{}, connOptions{})
	check(t, b.qp.Modify(&QPAttr{}, AttrMaxDestRdAtomic))
	a.post(signaled(1, ring.OpRead, a.sge(0, 8)).to(b, 0))
	a.fails(1, StatusRemInvReqErr)
}

// TestOtherMTU: peers with different path MTUs do not understand each other.
func TestOtherMTU(t *testing.T) {
	a, b := pair(t, sideOptions{}, connOptions{mtu: 3})
	check(t, b.qp.Modify(&QPAttr{PathMTU: 2}, AttrPathMTU))
	b.recv(1, b.sge(0, 5000))
	a.post(signaled(2, ring.OpSend, a.sge(0, 3000)))
	a.fails(2, StatusRemInvReqErr)
	b.fails(1, StatusRemInvReqErr)
}

// TestLongOperations: what takes longer than a call may goes on in another goroutine, and keeps its
// order with what comes meanwhile.
func TestLongOperations(t *testing.T) {
	const size = 24 << 20
	a, b := pair(t, sideOptions{bufSize: size}, connOptions{mtu: 3})
	data := a.fill(0, size, 9)
	done := make(chan struct{})
	a.cq.mu.Lock()
	a.cq.notify = func() { close(done) }
	a.cq.armed = armNext
	a.cq.mu.Unlock()
	b.recv(9)
	a.post(sendWR{id: 1, opcode: ring.OpWrite, sges: []sge{a.sge(0, size)}}.to(b, 0),
		sendWR{id: 2, opcode: ring.OpRead, sges: []sge{a.sge(0, size)}}.to(b, 0), signaled(3, ring.OpSend))
	<-done
	a.want(3, ring.WCSend)
	b.want(9, ring.WCRecv)
	b.holds(0, data)
	a.holds(0, data)
}

// rawPeer is a QP on a network whose peer is the test, and not cut into small READs.
type rawPeer struct {
	*side
	net   *fakeNetwork
	later []func() // goroutines to start
}

// newRawPeer makes one that answers.
func newRawPeer(t *testing.T, size int) *rawPeer {
	net := &fakeNetwork{clock: newFakeClock()}
	p := net.port()
	d := newDevice(t, Config{Network: p, Clock: net.clock}, "10.0.0.1")
	p.device = d
	r := &rawPeer{side: newSide(t, d, sideOptions{bufSize: size}), net: net}
	d.config.Go = func(f func()) { r.later = append(r.later, f) }
	r.connectTo(&QP{num: 0x77}, "10.0.0.2", connOptions{mtu: 1})
	return r
}

// request sends the QP a request without data.
func (r *rawPeer) request(h wire.Header) {
	h.PKey, h.DestQP, h.AckReq = wire.DefaultPKey, r.qp.num, true
	b := make([]byte, wire.PacketSize(h.Opcode, 0))
	h.Put(b)
	rec := r.d.NewReceiver()
	rec.Packet(&Meta{From: netip.MustParseAddr("10.0.0.2"), To: netip.MustParseAddr("10.0.0.1")}, b)
	rec.Flush()
}

// answers takes the packets that the QP has sent.
func (r *rawPeer) answers() (headers []wire.Header, data []byte) {
	for _, k := range r.net.packets {
		var h wire.Header
		payload, err := wire.Parse(k.data, &h)
		if err != nil {
			r.t.Fatal(err)
		}
		headers, data = append(headers, h), append(data, payload...)
	}
	r.net.packets = nil
	return headers, data
}

// TestLongReadOverNetwork: requests that come during a long response wait for it.
func TestLongReadOverNetwork(t *testing.T) {
	const size = 4 << 20
	p := newRawPeer(t, size)
	want := p.fill(0, size, 9)
	p.recv(9)
	p.recv(10)
	psn := p.qp.resp.psn
	p.request(wire.Header{Opcode: wire.ReadRequest, PSN: psn, Addr: p.addr(0), RKey: p.mr.RKey(), Length: size})
	p.request(wire.Header{Opcode: wire.SendOnly, PSN: psn + size/256})
	p.request(wire.Header{Opcode: wire.SendOnly, PSN: psn + size/256 + 1})
	if len(p.later) != 1 || len(p.qp.resp.waiting) == 0 {
		t.Fatalf("%d goroutines, %d bytes wait", len(p.later), len(p.qp.resp.waiting))
	}
	p.none()
	p.later[0]()
	headers, data := p.answers()
	p.want(9, ring.WCRecv)
	p.want(10, ring.WCRecv)
	if !slices.Equal(data, want) {
		t.Error("the data differs")
	}
	for i, h := range headers[:size/256] {
		op := wire.ReadResponseMiddle
		switch i {
		case 0:
			op = wire.ReadResponseFirst
		case size/256 - 1:
			op = wire.ReadResponseLast
		}
		if h.PSN != wire.Add(psn, i) || h.Opcode != op {
			t.Fatalf("packet %d is %+v", i, h)
		}
	}
	if rest := headers[size/256:]; len(rest) != 1 || rest[0].Opcode != wire.Acknowledge || rest[0].PSN != psn+size/256+1 || rest[0].MSN != 3 {
		t.Errorf("afterwards %+v, want one acknowledgement of both", rest)
	}
}

// TestTimerDuringRead: a timer of the QP leaves a long response to the goroutine that sends it.
func TestTimerDuringRead(t *testing.T) {
	const size = 4 << 20
	p := newRawPeer(t, size)
	psn := p.qp.resp.psn
	p.post(signaled(1, ring.OpSend))
	p.request(wire.Header{Opcode: wire.ReadRequest, PSN: psn, Addr: p.addr(0), RKey: p.mr.RKey(), Length: size})
	if len(p.later) != 1 {
		t.Fatalf("%d goroutines, want one", len(p.later))
	}
	p.answers()
	at, ok := p.net.clock.next()
	if !ok {
		t.Fatal("there is no timer")
	}
	p.net.clock.advance(at.Sub(p.net.clock.Now()))
	if headers, _ := p.answers(); len(headers) != 1 || headers[0].Opcode != wire.SendOnly || len(p.later) != 1 {
		t.Errorf("the timer sends %d packets, and %d goroutines; want the request alone", len(headers), len(p.later))
	}
}

// TestReadRevoked: an MR that goes away while it is read ends the READ.
func TestReadRevoked(t *testing.T) {
	const size = 4 << 20
	p := newRawPeer(t, size)
	psn := p.qp.resp.psn
	p.request(wire.Header{Opcode: wire.ReadRequest, PSN: psn, Addr: p.addr(0), RKey: p.mr.RKey(), Length: size})
	check(t, p.mr.Dereg())
	p.later[0]()
	headers, _ := p.answers()
	last := headers[len(headers)-1]
	if last.Opcode != wire.Acknowledge || last.Syndrome != wire.SyndromeRemoteAccess || last.PSN != wire.Add(psn, len(headers)-1) {
		t.Errorf("the last answer is %+v", last)
	}
	p.inState(Err)
}

// TestReadAgain: a READ is answered again from any of its packets, within its range and with its key.
func TestReadAgain(t *testing.T) {
	p := newRawPeer(t, 1<<16)
	want := p.fill(0, 3000, 5)
	psn := p.qp.resp.psn
	read := func(skip, length int) wire.Header {
		return wire.Header{Opcode: wire.ReadRequest, PSN: wire.Add(psn, skip/256), Addr: p.addr(skip), RKey: p.mr.RKey(), Length: uint32(length)}
	}
	p.request(read(0, 3000))
	if _, data := p.answers(); !slices.Equal(data, want) {
		t.Error("the data differs")
	}
	for _, skip := range []int{0, 256, 2560, 2816} {
		p.request(read(skip, 3000-skip))
		headers, data := p.answers()
		if !slices.Equal(data, want[skip:]) || headers[0].PSN != wire.Add(psn, skip/256) || !headers[0].Opcode.Starts() {
			t.Errorf("from byte %d: %+v", skip, headers)
		}
	}
	for name, h := range map[string]wire.Header{
		"longer":    read(0, 3001),
		"other key": func() wire.Header { h := read(0, 3000); h.RKey++; return h }(),
		"before":    func() wire.Header { h := read(256, 100); h.Addr -= 512; return h }(),
		"beyond":    func() wire.Header { h := read(2560, 3000-2560); h.Addr += 8; return h }(),
		"too old":   func() wire.Header { h := read(0, 100); h.PSN = wire.Add(psn, -5); return h }(),
	} {
		if p.request(h); len(p.net.packets) != 0 {
			t.Errorf("%s: it is answered", name)
			p.net.packets = nil
		}
	}
	p.inState(RTS)
}

// TestReadInParts: a long READ over a network is sent as several requests.
func TestReadInParts(t *testing.T) {
	const size = 3*readChunk + 1000
	net := &fakeNetwork{clock: newFakeClock()}
	a, b := networkPair(t, net, sideOptions{bufSize: size}, connOptions{rdAtomic: 1})
	want := b.fill(0, size, 9)
	var sent []wire.Opcode
	opcodes(net, "10.0.0.1", &sent)
	a.post(signaled(1, ring.OpRead, a.sge(0, size)).to(b, 0), signaled(2, ring.OpRead, a.sge(0, 0)).to(b, 0))
	if len(sent) != 1 {
		t.Errorf("%d requests at once, want 1", len(sent))
	}
	net.deliver()
	a.want(1, ring.WCRead)
	a.want(2, ring.WCRead)
	a.holds(0, want)
	if len(sent) != 5 {
		t.Errorf("%d requests, want 5", len(sent))
	}
}

// TestConcurrentUse has many goroutines post on connections of one device, in both directions.
func TestConcurrentUse(t *testing.T) {
	d := newDevice(t, Config{})
	var group sync.WaitGroup
	for range 8 {
		a, b := newSide(t, d, sideOptions{}), newSide(t, d, sideOptions{})
		connect(a, b, connOptions{})
		for _, x := range [][2]*side{{a, b}, {b, a}} {
			s, peer := x[0], x[1]
			group.Go(func() {
				for i := range uint64(200) {
					s.post(signaled(2*i, ring.OpWrite, s.sge(0, 3000)).to(peer, 0), signaled(2*i+1, ring.OpRead, s.sge(4000, 3000)).to(peer, 0))
					for _, id := range []uint64{2 * i, 2*i + 1} {
						c, ok := s.poll()
						for !ok {
							time.Sleep(time.Microsecond)
							c, ok = s.poll()
						}
						if c.id != id || c.status != StatusSuccess {
							t.Errorf("completion %+v, want %d", c, id)
							return
						}
					}
				}
			})
		}
	}
	group.Wait()
}

// TestCloseWhileInUse closes QPs and devices under traffic.
func TestCloseWhileInUse(t *testing.T) {
	d := newDevice(t, Config{})
	for range 20 {
		a, b := newSide(t, d, sideOptions{}), newSide(t, d, sideOptions{})
		connect(a, b, connOptions{})
		var group sync.WaitGroup
		stop := make(chan struct{})
		group.Go(func() {
			for i := uint64(0); ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if p := a.qp.sq.Producer(); !a.qp.sq.Full(p, a.qp.sq.Consumer()) {
					a.put(signaled(i, ring.OpWrite, a.sge(0, 3000)).to(b, 0))
				}
				a.qp.Doorbell()
				for _, ok := a.poll(); ok; _, ok = a.poll() {
				}
			}
		})
		check(t, b.qp.Modify(&QPAttr{State: Err}, AttrState), b.qp.Modify(&QPAttr{State: Reset}, AttrState), b.qp.Close(), a.qp.Close())
		close(stop)
		group.Wait()
	}
}
