package conformance

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/hca/bench"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// What ConnectX adapters have and rxe has not.

// TestXRC sends from one sender to two SRQs of a domain, through one receiving end.
func TestXRC(t *testing.T) {
	testenv.Tags(t, testenv.SpecialCard)
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "XRC", "mlx5")
		dev := openDevice(t, deviceName)
		a := newSide(t, dev, uverbs.QPOptions{})
		xrcd, err := dev.OpenXRCD(uverbs.XRCDOptions{})
		must(t, err)
		closeLater(t, xrcd)
		cq, err := dev.CreateCQ(uverbs.CQOptions{MaxCQE: 64, Flags: uverbs.CQTimestamp})
		must(t, err)
		closeLater(t, cq)
		places := []*uverbs.MR{a.mr, other(t, a, uverbs.AccessLocalWrite|uverbs.AccessRelaxedOrdering)}
		if hasODP(t, dev) {
			places = append(places, other(t, a, uverbs.AccessLocalWrite|uverbs.AccessOnDemand))
		}
		var srqs []*uverbs.SRQ
		for range 2 {
			srq, err := a.pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 8, XRCD: xrcd, CQ: cq})
			must(t, err)
			closeLater(t, srq)
			srqs = append(srqs, srq)
		}
		if srqs[0].SRQN() == srqs[1].SRQN() || srqs[0].SRQN() == 0 {
			t.Fatalf("the SRQs have the numbers %d and %d", srqs[0].SRQN(), srqs[1].SRQN())
		}
		sender, err := a.pd.CreateQP(uverbs.QPOptions{Type: uverbs.XRCSend, SendCQ: a.cq, MaxInline: 64})
		must(t, err)
		closeLater(t, sender)
		path := uverbs.PathOptions{GID: uverbs.GIDAt(ipv4Index)}
		receiver, err := xrcd.CreateQP(path)
		must(t, err)
		closeLater(t, receiver)
		es, err := sender.Endpoint()
		must(t, err)
		er, err := receiver.Endpoint()
		must(t, err)
		must(t, sender.Connect(t.Context(), er), receiver.Connect(t.Context(), es))

		next := func() uverbs.WC {
			t.Helper()
			var wc [1]uverbs.WC
			for end := time.Now().Add(deadline); time.Now().Before(end); {
				if n, err := cq.Poll(wc[:]); err != nil {
					t.Fatal(err)
				} else if n == 1 {
					return wc[0]
				}
			}
			t.Fatal("no completion of an SRQ")
			return wc[0]
		}
		for i := range uint64(40) {
			srq := srqs[i%3%2]
			want := a.fill(0, 100, byte(i))
			must(t, srq.PostRecv(1000+i, places[int(i)%len(places)].SGE(4096, 100)))
			wr := send(i, a.mr.SGE(0, 100))
			wr.RemoteSRQN = srq.SRQN()
			if i%2 == 1 {
				wr.SGL, wr.Inline, want = nil, bytes.Clone(want[:50]), want[:50]
			}
			if i%4 == 2 {
				wr.Opcode, wr.Imm = uverbs.WRSendWithImm, uint32(i)
			}
			must(t, sender.PostSend(wr))
			if wc := next(); wc.ID != 1000+i || wc.Err() != nil || wc.Opcode != uverbs.WCRecv || int(wc.ByteLen) != len(want) || wc.QPN != receiver.QPN() ||
				wc.Imm != wr.Imm || (wc.Flags == uverbs.WCWithImm) != (wr.Opcode == uverbs.WRSendWithImm) || wc.Timestamp == 0 {
				t.Fatalf("%d: completion %+v", i, wc)
			}
			a.holds(t, 4096, want)
			if wc := a.next(t); wc.ID != i || wc.Err() != nil || wc.Opcode != uverbs.WCSend || wc.QPN != sender.QPN() {
				t.Fatalf("%d: completion %+v", i, wc)
			}
		}
		// A READ and a WRITE name an SRQ too: it is its PD that the peer's memory must be of.
		for _, op := range []uverbs.WROpcode{uverbs.WRRDMAWrite, uverbs.WRRDMARead} {
			want := a.fill(0, 64, 77)
			wr := send(5, a.mr.SGE(0, 64))
			wr.Opcode, wr.RemoteAddr, wr.RKey, wr.RemoteSRQN = op, a.mr.Addr()+8192, a.mr.RKey(), srqs[0].SRQN()
			if op == uverbs.WRRDMARead {
				a.fill(8192, 64, 99)
				want = slices.Clone(a.buf.Bytes()[8192:8256])
			}
			must(t, sender.PostSend(wr))
			if wc := a.next(t); wc.Err() != nil {
				t.Fatalf("%s: %v", op, sender.Err(&wc))
			}
			a.holds(t, 8192, want)
			a.holds(t, 0, want)
		}
		// So do atomics.
		atomics := []uverbs.WROpcode{uverbs.WRAtomicFAA, uverbs.WRAtomicCAS}
		if lacksAtomics(t, dev) {
			atomics = nil
		}
		for i, op := range atomics {
			clear(a.buf.Bytes()[8192:8200])
			a.buf.Bytes()[8192] = 5
			wr := send(5, a.mr.SGE(64, 8))
			wr.Opcode, wr.RemoteAddr, wr.RKey, wr.RemoteSRQN, wr.CompareAdd, wr.Swap = op, a.mr.Addr()+8192, a.mr.RKey(), srqs[i].SRQN(), 5, 9
			must(t, sender.PostSend(wr))
			if wc := a.next(t); wc.Err() != nil {
				t.Fatalf("%s: %v", op, sender.Err(&wc))
			}
			a.holds(t, 64, []byte{5, 0, 0, 0, 0, 0, 0, 0})
			a.holds(t, 8192, []byte{map[uverbs.WROpcode]byte{uverbs.WRAtomicFAA: 10, uverbs.WRAtomicCAS: 9}[op], 0, 0, 0, 0, 0, 0, 0})
		}
		// Each has a limit of its own, and an event when fewer receives are left.
		for i := range uint64(3) {
			must(t, srqs[0].PostRecv(i, a.mr.SGE(4096, 100)), srqs[1].PostRecv(i, a.mr.SGE(4096, 100)))
		}
		must(t, srqs[0].SetLimit(1), srqs[1].SetLimit(2))
		for i := range uint64(2) {
			wr := send(i, a.mr.SGE(0, 100))
			wr.RemoteSRQN = srqs[1].SRQN()
			must(t, sender.PostSend(wr))
			if wc := a.next(t); wc.Err() != nil {
				t.Fatal(sender.Err(&wc))
			}
			if wc := next(); wc.ID != i || wc.Err() != nil {
				t.Fatalf("%d: completion %+v", i, wc)
			}
		}
		if ev := event(t, dev, uverbs.EventSRQLimitReached); ev.SRQ != srqs[1] {
			t.Errorf("event %s, want one of the SRQ that was used", ev)
		}
		if attr, err := srqs[0].Query(); err != nil || attr.Limit != 1 {
			t.Errorf("the limit of the other SRQ is %d, %v; want 1", attr.Limit, err)
		}
		b := a.qp.BeginSend()
		b.Send(1, 0)
		b.ToSRQ(1)
		if err := b.Post(); err == nil {
			t.Error("an SRQ is named on an RC QP")
		}
	})
}

// TestTimestamps: completions have the device's time, which goes up and is between two looks
// at the clock; the time of day of it is about now.
func TestTimestamps(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "time stamps", "mlx5")
		a, b := pair(t, uverbs.QPOptions{})
		cq, err := a.dev.CreateCQ(uverbs.CQOptions{MaxCQE: 64, Flags: uverbs.CQTimestamp})
		must(t, err)
		closeLater(t, cq)
		qp, err := a.pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, Path: uverbs.PathOptions{GID: uverbs.GIDAt(ipv4Index)}})
		must(t, err)
		closeLater(t, qp)
		e, err := qp.Endpoint()
		must(t, err, qp.Connect(t.Context(), e)) // to itself
		before, err := a.dev.ReadClock()
		must(t, err)
		last := before
		for i := range uint64(5) {
			must(t, qp.PostRecv(i, a.mr.SGE(0, 8)), qp.PostSend(send(i, a.mr.SGE(0, 8))))
			for n := 0; n < 2; {
				var wc [2]uverbs.WC
				k, err := cq.Poll(wc[:])
				must(t, err)
				for _, w := range wc[:k] {
					must(t, w.Err())
					if w.Timestamp < last {
						t.Errorf("a completion is of %d, after one of %d", w.Timestamp, last)
					}
					last = w.Timestamp
				}
				n += k
			}
		}
		after, err := a.dev.ReadClock()
		must(t, err)
		if last <= before || last > after {
			t.Errorf("the last completion is of %d, not between %d and %d", last, before, after)
		}
		must(t, b.qp.PostRecv(1, b.mr.SGE(0, 8)), a.qp.PostSend(send(1, a.mr.SGE(0, 8))))
		if wc := b.want(t, 1, uverbs.WCRecv); wc.Timestamp != 0 {
			t.Errorf("a completion of a CQ without time stamps is of %d", wc.Timestamp)
		}
		a.want(t, 1, uverbs.WCSend)
		at, err := a.dev.ClockTime(after)
		if testenv.Lacks(t, err) {
			return
		}
		must(t, err)
		if d := time.Since(at); d < -time.Hour || d > time.Hour {
			t.Errorf("the time of day of %d is %s", after, at)
		}
	})
}

// TestInlineRecv: short messages that the device puts into completions are where they belong,
// on a queue of the QP's own and on an SRQ, with completions of both sizes, in several pieces.
func TestInlineRecv(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink, testenv.SpecialCard)
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "data in completions", "mlx5")
		for _, size := range []int{64, 128} {
			for _, shared := range []bool{false, true} {
				dev := openDevice(t, deviceName)
				s := newSide(t, dev, uverbs.QPOptions{})
				cq, err := dev.CreateCQ(uverbs.CQOptions{MaxCQE: 16, CQESize: size})
				must(t, err)
				closeLater(t, cq)
				o := uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, MaxRecvSGE: 3, InlineRecv: true, SignalAll: true, Path: uverbs.PathOptions{GID: uverbs.GIDAt(ipv4Index)}}
				if shared {
					o.SRQ, err = s.pd.CreateSRQ(uverbs.SRQOptions{MaxSGE: 3})
					must(t, err)
					closeLater(t, o.SRQ)
					o.MaxRecvSGE = 0
				}
				qp, err := s.pd.CreateQP(o)
				must(t, err)
				closeLater(t, qp)
				s.cq, s.qp = cq, qp
				e, err := qp.Endpoint()
				must(t, err, qp.Connect(t.Context(), e))
				for n := range 80 {
					want := slices.Clone(s.fill(0, n, byte(n)))
					clear(s.buf.Bytes()[4096:8192])
					sgl := []uverbs.SGE{s.mr.SGE(4096, 10), s.mr.SGE(5000, 3), s.mr.SGE(6000, 100)}
					if shared {
						must(t, o.SRQ.PostRecv(7, sgl...))
					} else {
						must(t, qp.PostRecv(7, sgl...))
					}
					must(t, qp.PostSend(send(1, s.mr.SGE(0, n))))
					for range 2 {
						if wc := s.next(t); wc.Err() != nil || wc.Opcode == uverbs.WCRecv && (wc.ID != 7 || int(wc.ByteLen) != n) {
							t.Fatalf("%d bytes: %v, %+v", n, qp.Err(&wc), wc)
						}
					}
					got := slices.Concat(s.buf.Bytes()[4096:4106], s.buf.Bytes()[5000:5003], s.buf.Bytes()[6000:6100])[:n]
					if !bytes.Equal(got, want) {
						t.Fatalf("size %d, shared %v: %d bytes are %x, want %x", size, shared, n, got, want)
					}
					wr := send(2, s.mr.SGE(4096, n))
					wr.Opcode, wr.RemoteAddr, wr.RKey = uverbs.WRRDMARead, s.mr.Addr(), s.mr.RKey()
					must(t, qp.PostSend(wr))
					if wc := s.next(t); wc.Err() != nil {
						t.Fatalf("READ of %d bytes: %v", n, qp.Err(&wc))
					}
					s.holds(t, 4096, want)
				}
			}
		}
	})
}

// TestThreadDomain: QPs of a thread domain work, and the domain outlives them.
func TestThreadDomain(t *testing.T) {
	testenv.Tags(t, testenv.SpecialCard)
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "thread domains", "mlx5")
		s := newSide(t, openDevice(t, deviceName), uverbs.QPOptions{})
		td, err := s.dev.AllocTD()
		testenv.Skip(t, err)
		must(t, err)
		closeLater(t, td)
		pd, err := s.pd.AllocParentDomain(td)
		must(t, err)
		closeLater(t, pd)
		for range 3 {
			qp, err := pd.CreateQP(uverbs.QPOptions{SendCQ: s.cq, RecvCQ: s.cq, MaxInline: 32})
			must(t, err)
			closeLater(t, qp)
			e, err := qp.Endpoint()
			must(t, err, qp.Connect(t.Context(), e))
			for i := range uint64(20) {
				wr := send(i)
				wr.Inline = []byte{1, 2, 3}
				must(t, qp.PostRecv(100+i, s.mr.SGE(0, 8)), qp.PostSend(wr))
				for range 2 {
					if wc := s.next(t); wc.Err() != nil || wc.QPN != qp.QPN() {
						t.Fatalf("%d: %v", i, qp.Err(&wc))
					}
				}
			}
		}
		if err := td.Close(); err == nil {
			t.Error("the domain was closed with a parent domain in it")
		}
	})
}

// TestManyRegisters gives QPs registers of their own, then registers that they share, and has all
// of them work.
func TestManyRegisters(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "registers", "mlx5")
		s := newSide(t, openDevice(t, deviceName), uverbs.QPOptions{})
		var qps []*uverbs.QP
		for range 100 {
			qp, err := s.pd.CreateQP(uverbs.QPOptions{SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: 4, MaxRecvWR: 4, Path: uverbs.PathOptions{GID: uverbs.GIDAt(ipv4Index)}})
			must(t, err)
			closeLater(t, qp)
			e, err := qp.Endpoint()
			must(t, err, qp.Connect(t.Context(), e))
			qps = append(qps, qp)
		}
		for i, qp := range qps {
			must(t, qp.PostRecv(uint64(i), s.mr.SGE(8*i, 8)), qp.PostSend(send(uint64(i), s.mr.SGE(0, 8))))
		}
		seen := map[uint64]int{}
		for range 2 * len(qps) {
			wc := s.next(t)
			must(t, wc.Err())
			if wc.QPN != qps[wc.ID].QPN() {
				t.Fatalf("%+v is of another QP", wc)
			}
			seen[wc.ID]++
		}
		for i := range qps {
			if seen[uint64(i)] != 2 {
				t.Errorf("QP %d has %d completions, want 2", i, seen[uint64(i)])
			}
		}
	})
}

// TestHighRegisters has CQs and QPs on pages of registers whose number has more than 16 bits,
// which is all that the kernel's older way to name a CQ's page has room for.
func TestHighRegisters(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		const high = 1 << 16
		do := inject(t, deviceName)
		card, err := bench.Open(deviceName)
		must(t, err)
		closeLater(t, card)
		_, err = card.Do("uars %d", high) // an error if there are not so many
		testenv.NeedsCard(t, "UAR pages above 65535", err == nil)
		t.Cleanup(func() { do("uars 0x100") })
		dev := openDevice(t, deviceName)
		if n := do("uars %d", high); n == "0" {
			t.Fatal("no page is above 65535")
		}
		cq, err := dev.CreateCQ(uverbs.CQOptions{MaxCQE: 1})
		testenv.Skip(t, err)
		must(t, err, cq.Close())
		a, b := newSide(t, dev, uverbs.QPOptions{MaxInline: 64}), newSide(t, dev, uverbs.QPOptions{})
		connect(t, a, b)
		for i := range uint64(10) {
			must(t, b.qp.PostRecv(i, b.mr.SGE(0, 100)), b.cq.Notify())
			wr := send(i, a.mr.SGE(0, 100))
			if i%2 == 1 {
				wr.SGL, wr.Inline = nil, []byte{1, 2, 3}
			}
			must(t, a.qp.PostSend(wr))
			a.want(t, i, uverbs.WCSend)
			_, err := b.ch.Wait(withDeadline(t))
			must(t, err)
			b.want(t, i, uverbs.WCRecv)
		}
	})
}

// TestRawPacket sends Ethernet frames from one device to the other, where a flow takes them,
// from memory and from the work request itself. What is posted before the QP is ready to
// receive is there when it is.
func TestRawPacket(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "raw packets", "mlx5")
		rawPackets(t)
	})
}

// TestRawPacketHeaders does the same with an adapter that wants headers in work requests, which
// the library takes out of the memory that the frame lies in.
func TestRawPacketHeaders(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		do := inject(t, deviceName)
		testenv.NeedsEthernet(t)
		do("headers inline")
		t.Cleanup(func() { do("headers anywhere") })
		a, b := rawPackets(t)
		frame := a.mr.SGE(0, 1000)
		for name, wr := range map[string]uverbs.SendWR{
			"short":         send(1, a.mr.SGE(0, 17)),
			"short, inline": {ID: 1, Opcode: uverbs.WRSend, Inline: a.buf.Bytes()[:17]},
			"short, in two": send(1, a.mr.SGE(0, 10), a.mr.SGE(10, 7)),
			"no data":       send(1),
			"other PD":      send(1, b.mr.SGE(0, 100)),
			"no such key":   send(1, uverbs.SGE{Addr: frame.Addr, Length: 100, LKey: frame.LKey ^ 0x5500}),
			"before the MR": send(1, uverbs.SGE{Addr: frame.Addr - 8, Length: 100, LKey: frame.LKey}),
			"past the MR":   send(1, uverbs.SGE{Addr: frame.Addr + bufferSize - 8, Length: 100, LKey: frame.LKey}),
		} {
			if err := a.qp.PostSend(wr); !errors.Is(err, uverbs.ErrHeader) {
				t.Errorf("%s: %v, want ErrHeader", name, err)
			}
		}
		must(t, a.qp.PostSend(send(2, a.mr.SGE(0, 18)))) // nothing behind the header
		a.want(t, 2, uverbs.WCSend)
		b.want(t, 3, uverbs.WCRecv)
		must(t, b.qp.PostRecv(8, b.mr.SGE(0, 2048)), a.qp.PostSend(send(4, a.mr.SGE(0, 10), a.mr.SGE(10, 500))))
		a.want(t, 4, uverbs.WCSend)
		b.want(t, 8, uverbs.WCRecv)
		b.holds(t, 0, a.buf.Bytes()[:510])
		noViolation(t, do)
	})
}

// rawPackets is TestRawPacket. One receive is left of the side that it sent to.
func rawPackets(t *testing.T) (a, b *side) {
	t.Helper()
	testenv.NeedsEthernet(t)
	const etherType = 0x88b5 // for experiments
	o := uverbs.QPOptions{MaxSendSGE: 2, MaxInline: 128}
	a, b = rawSide(t, rig.Devices[0], o), rawSide(t, rig.Devices[1], o)
	for i := range uint64(4) {
		must(t, b.qp.PostRecv(i, b.mr.SGE(int(i)*2048, 2048)))
	}
	rawReady(t, a)
	rawReady(t, b)
	to := macOf(t, rig.Netdevs[1])
	flow, err := b.qp.CreateFlow(uverbs.FlowOptions{Specs: []uverbs.FlowSpec{uverbs.FlowEth{
		Val:  uverbs.FlowEthFilter{DstMAC: to},
		Mask: uverbs.FlowEthFilter{DstMAC: anyMAC},
	}}})
	testenv.Skip(t, err)
	must(t, err)
	closeLater(t, flow)
	frame := a.fill(0, 1000, 3)
	copy(frame, to[:])
	copy(frame[6:], []byte{2, 0x60, 0x0d, 9, 9, 9, etherType >> 8, etherType & 0xff})
	for i, wr := range []uverbs.SendWR{
		send(10, a.mr.SGE(0, 1000)),
		send(11, a.mr.SGE(0, 14), a.mr.SGE(14, 100)),
		{ID: 12, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, Inline: frame[:100]},
	} {
		must(t, a.qp.PostSend(wr))
		a.want(t, wr.ID, uverbs.WCSend)
		n := len(wr.Inline)
		for _, e := range wr.SGL {
			n += int(e.Length)
		}
		if wc := b.want(t, uint64(i), uverbs.WCRecv); int(wc.ByteLen) != n {
			t.Fatalf("frame %d has %d bytes, want %d", i, wc.ByteLen, n)
		}
		b.holds(t, i*2048, frame[:n])
	}
	frame[5]++ // for somebody else
	must(t, a.qp.PostSend(send(13, a.mr.SGE(0, 100))))
	a.want(t, 13, uverbs.WCSend)
	b.none(t)
	frame[5]--
	return a, b
}

// TestWQ spreads frames over two work queues by a hash of their addresses: frames of one flow
// go to one, those of many flows to both.
func TestWQ(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "work queues", "mlx5")
		testenv.NeedsEthernet(t)
		a, b := rawSide(t, rig.Devices[0], uverbs.QPOptions{}), newSide(t, openDevice(t, rig.Devices[1]), uverbs.QPOptions{})
		rawReady(t, a)

		var wqs []*uverbs.WQ
		for i := range 2 {
			wq, err := b.pd.CreateWQ(uverbs.WQOptions{CQ: b.cq, MaxWR: 64})
			must(t, err)
			closeLater(t, wq)
			if err := wq.PostRecv(1); err == nil {
				t.Error("a WQ in state RESET takes receives")
			}
			must(t, wq.Modify(uverbs.WQReady))
			for n := range wq.MaxWR() {
				must(t, wq.PostRecv(uint64(1000*i+n), b.mr.SGE(512*i, 256)))
			}
			if err := wq.PostRecv(1); err == nil {
				t.Error("a WQ takes more than it holds")
			}
			wqs = append(wqs, wq)
		}
		table, err := b.dev.CreateRWQIndTable(wqs)
		must(t, err)
		closeLater(t, table)
		hash := uverbs.RXHash{Fields: uverbs.RXHashSrcIPv4 | uverbs.RXHashDstIPv4}
		for i := range hash.Key {
			hash.Key[i] = byte(i*37 + 1)
		}
		qp, err := b.pd.CreateQP(uverbs.QPOptions{Type: uverbs.RawPacket, IndTable: table, RXHash: hash})
		must(t, err)
		closeLater(t, qp)
		to := macOf(t, rig.Netdevs[1])
		flow, err := qp.CreateFlow(uverbs.FlowOptions{Specs: []uverbs.FlowSpec{uverbs.FlowEth{
			Val:  uverbs.FlowEthFilter{DstMAC: to, EtherType: 0x0800},
			Mask: uverbs.FlowEthFilter{DstMAC: anyMAC, EtherType: 0xffff},
		}}})
		testenv.Skip(t, err)
		must(t, err)
		closeLater(t, flow)

		frame := a.fill(0, 64, 3)
		copy(frame, to[:])
		copy(frame[6:], []byte{2, 0x60, 0x0d, 9, 9, 9, 8, 0, 0x45, 0, 0, 50, 0, 0, 0, 0, 64, 253, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2})
		got := map[uint64]int{}
		one := func() uint64 {
			must(t, a.qp.PostSend(send(7, a.mr.SGE(0, 64))))
			a.want(t, 7, uverbs.WCSend)
			wc := b.next(t)
			if wc.Err() != nil || wc.ByteLen != 64 || wc.Opcode != uverbs.WCRecv {
				t.Fatalf("completion %+v", wc)
			}
			got[wc.ID/1000]++
			return wc.ID / 1000
		}
		first := one()
		for range 5 {
			if other := one(); other != first {
				t.Error("frames of one flow go to both WQs")
			}
		}
		for i := range byte(30) {
			frame[29] = i // source address
			one()
		}
		if got[0] == 0 || got[1] == 0 || got[0]+got[1] != 36 {
			t.Errorf("the WQs got %v of 36 frames", got)
		}
	})
}
