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
		id: 100, opcode: wrBindMW, flags: ring.SendSignaled, bindKey: mw.RKey(), rkey: key, bindLKey: s.mr.LKey(),
		addr: s.addr(off), bindLen: uint64(n), bindAcc: uint32(access),
	}
}

// TestWindow binds a window, uses it, and takes it away by each kind of request.
func TestWindow(t *testing.T) {
	for _, how := range []uint32{wrLocalInv, wrSendInv} {
		a, b := pair(t, sideOptions{}, connOptions{})
		key, bind := window(b, 1000, 500, memory.RemoteRead|memory.RemoteWrite)
		b.post(bind)
		b.want(100, ring.WCBindMW)
		data := a.fill(0, 500, 1)
		write := signaled(1, wrWrite, a.sge(0, 500)).to(b, 1000)
		write.rkey = key
		read := signaled(2, wrRead, a.sge(600, 500)).to(b, 1000)
		read.rkey = key
		a.post(write, read)
		a.want(1, ring.WCWrite)
		a.want(2, ring.WCRead)
		b.holds(1000, data)
		a.holds(600, data)
		if how == wrLocalInv {
			b.post(sendWR{id: 3, opcode: wrLocalInv, flags: ring.SendSignaled, imm: key})
			b.want(3, ring.WCLocalInv)
		} else {
			b.recv(4, b.sge(0, 100))
			inv := signaled(3, wrSendInv, a.sge(0, 10))
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
	inv := signaled(3, wrSendInv, a.sge(0, 10))
	inv.imm = b.mr.RKey()
	a.post(inv)
	b.fails(4, StatusRemInvReqErr)
	b.holds(0, data)
	b.inState(Err)
	a.want(3, ring.WCSend) // as in rxe
}

// TestBindErrors: a bind that is refused breaks the QP.
func TestBindErrors(t *testing.T) {
	for name, change := range map[string]func(*sendWR){
		"no such window":  func(w *sendWR) { w.bindKey ^= 0x5500 },
		"no such MR":      func(w *sendWR) { w.bindLKey++ },
		"outside":         func(w *sendWR) { w.bindLen = 1 << 20 },
		"wrong LOCAL_INV": func(w *sendWR) { *w = sendWR{id: 100, opcode: wrLocalInv, imm: 5} },
	} {
		t.Run(name, func(t *testing.T) {
			a, _ := pair(t, sideOptions{}, connOptions{})
			_, bind := window(a, 0, 100, memory.RemoteRead)
			change(&bind)
			a.post(bind)
			a.fails(100, StatusFlushErr)
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
	fenced := signaled(3, wrWrite, a.sge(0, 8)).to(b, 0)
	fenced.flags |= ring.SendFence
	key, bind := window(a, 0, 100, memory.RemoteRead)
	a.post(signaled(1, wrRead, a.sge(0, 8)).to(b, 0), signaled(2, wrWrite, a.sge(0, 8)).to(b, 0), fenced, bind,
		sendWR{id: 5, opcode: wrLocalInv, flags: ring.SendSignaled, imm: key})
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
		a.put(signaled(i, wrRead, a.sge(0, 8)).to(b, 0))
	}
	a.post(signaled(4, wrWrite, a.sge(0, 8)).to(b, 0))
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
	a.post(signaled(1, wrWrite, a.sge(0, 200000)).to(b, 0))
	if len(sent) != maxUnacked+1 {
		t.Errorf("%d packets, want %d", len(sent), maxUnacked+1)
	}
	opcodes(net, "10.0.0.2", &answers)
	net.deliver()
	a.want(1, ring.WCWrite)
	if n := len(answers); n < 782/(maxWithoutAck+2) || n > 782/maxWithoutAck+1 {
		t.Errorf("%d acknowledgements of 782 packets", n)
	}
}

// TestAckCoalescing: one acknowledgement stands for all messages of a batch.
func TestAckCoalescing(t *testing.T) {
	net := &fakeNetwork{clock: newFakeClock()}
	a, b := networkPair(t, net, sideOptions{}, connOptions{})
	for i := range uint64(10) {
		b.recv(i, b.sge(0, 8))
		a.put(signaled(i, wrSend, a.sge(0, 8)))
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
	a.post(sendWR{id: 1, opcode: wrWrite, sges: []sge{a.sge(0, 8)}}.to(b, 0), signaled(2, wrWrite))
	a.want(2, ring.WCWrite)
	a.none()
	a, b = pair(t, sideOptions{sigAll: true}, connOptions{})
	a.post(sendWR{id: 1, opcode: wrWrite, sges: []sge{a.sge(0, 8)}}.to(b, 0))
	a.want(1, ring.WCWrite)
}

// TestFlushRequest: FLUSH needs the QP's right and the MR's.
func TestFlushRequest(t *testing.T) {
	for access, want := range map[memory.Access]Status{memory.FlushGlobal: StatusSuccess, memory.RemoteWrite | memory.LocalWrite: StatusRemAccessErr} {
		a, b := pair(t, sideOptions{}, connOptions{})
		wr := sendWR{id: 1, opcode: wrFlush, flags: ring.SendSignaled, flushType: wire.FlushGlobal, length: 100}.to(b, 0)
		wr.rkey = other(t, b, access).RKey()
		a.post(wr)
		if c := a.next(); c.status != want {
			t.Errorf("access %#x: completion %+v, want status %d", access, c, want)
		}
	}
	a, b := pair(t, sideOptions{}, connOptions{})
	check(t, b.qp.Modify(&QPAttr{AccessFlags: allAccess &^ uint32(memory.FlushGlobal)}, AttrAccess))
	a.post(sendWR{id: 1, opcode: wrFlush, flags: ring.SendSignaled, flushType: wire.FlushGlobal}.to(b, 0))
	a.fails(1, StatusRemInvReqErr)
}

// TestMisalignedAtomic: the address of an atomic is a multiple of 8.
func TestMisalignedAtomic(t *testing.T) {
	for _, opcode := range []uint32{wrFetchAdd, wrCompareSwap, wrAtomicWrite} {
		a, b := pair(t, sideOptions{}, connOptions{})
		wr := signaled(1, opcode, a.sge(0, 8)).to(b, align(b)+4)
		if opcode == wrAtomicWrite {
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
	a.post(signaled(1, wrRead, a.sge(0, 8)).to(b, 0))
	a.fails(1, StatusRemInvReqErr)
}

// TestOtherMTU: peers with different path MTUs do not understand each other.
func TestOtherMTU(t *testing.T) {
	a, b := pair(t, sideOptions{}, connOptions{mtu: 3})
	check(t, b.qp.Modify(&QPAttr{PathMTU: 2}, AttrPathMTU))
	b.recv(1, b.sge(0, 5000))
	a.post(signaled(2, wrSend, a.sge(0, 3000)))
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
	a.post(sendWR{id: 1, opcode: wrWrite, sges: []sge{a.sge(0, size)}}.to(b, 0),
		sendWR{id: 2, opcode: wrRead, sges: []sge{a.sge(0, size)}}.to(b, 0), signaled(3, wrSend))
	<-done
	a.want(3, ring.WCSend)
	b.want(9, ring.WCRecv)
	b.holds(0, data)
	a.holds(0, data)
}

// TestLongReadOverNetwork: requests that come during a long response wait for it.
func TestLongReadOverNetwork(t *testing.T) {
	const size = 4 << 20
	net := &fakeNetwork{clock: newFakeClock()}
	a, b := networkPair(t, net, sideOptions{bufSize: size}, connOptions{mtu: 1})
	data := b.fill(0, size, 9)
	var later []func()
	b.d.config.Go = func(f func()) { later = append(later, f) }
	b.recv(9, b.sge(0, 8))
	b.recv(10, b.sge(8, 8))
	a.post(signaled(1, wrRead, a.sge(0, size)).to(b, 0), signaled(2, wrSend), signaled(3, wrSend))
	// The requester's window would hold the messages back, but not every requester has one.
	a.qp.req.una = a.qp.req.psn
	check(t, a.qp.Doorbell())
	a.qp.req.una = a.qp.req.slots[a.qp.req.head].first
	net.deliver()
	a.none()
	if len(later) != 1 || len(b.qp.resp.waiting) == 0 {
		t.Fatalf("%d goroutines, %d bytes wait", len(later), len(b.qp.resp.waiting))
	}
	later[0]()
	net.deliver()
	a.want(1, ring.WCRead)
	a.want(2, ring.WCSend)
	a.want(3, ring.WCSend)
	b.want(9, ring.WCRecv)
	b.want(10, ring.WCRecv)
	a.holds(0, data)
	if d := net.clock.Now().Sub(time.Unix(1000, 0)); d != 0 {
		t.Errorf("timers ran: %s", d)
	}
}

// TestReadRevoked: an MR that goes away while it is read ends the READ.
func TestReadRevoked(t *testing.T) {
	const size = 4 << 20
	net := &fakeNetwork{clock: newFakeClock()}
	a, b := networkPair(t, net, sideOptions{bufSize: size}, connOptions{mtu: 1})
	var later []func()
	b.d.config.Go = func(f func()) { later = append(later, f) }
	a.post(signaled(1, wrRead, a.sge(0, size)).to(b, 0))
	net.deliver()
	check(t, b.mr.Dereg())
	later[0]()
	net.deliver()
	a.fails(1, StatusRemAccessErr)
	b.inState(Err)
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
					s.post(signaled(2*i, wrWrite, s.sge(0, 3000)).to(peer, 0), signaled(2*i+1, wrRead, s.sge(4000, 3000)).to(peer, 0))
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
					a.put(signaled(i, wrWrite, a.sge(0, 3000)).to(b, 0))
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
