package conformance

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/flow"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// TestRawPacket sends Ethernet frames from one device to the other, where a flow takes them,
// from memory and from the work request itself. Receives that are posted before the QP is ready to
// receive are used when it is.
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
		testenv.NeedsRoCE(t, "Ethernet")
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
			if err := a.qp.PostSend(wr); !wrongField(err, "SGL", "first 18 bytes of a frame") {
				t.Errorf("%s: %v, want an error about the first 18 bytes", name, err)
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
	testenv.NeedsRoCE(t, "Ethernet")
	o := uverbs.QPOptions{MaxSendSGE: 2, MaxInline: 128}
	a, b = rawSide(t, rig.Devices[0], o), rawSide(t, rig.Devices[1], o)
	for i := range uint64(4) {
		must(t, b.qp.PostRecv(i, b.mr.SGE(int(i)*2048, 2048)))
	}
	rawReady(t, a)
	rawReady(t, b)
	frame := steerAll(t, a, b.qp.QP, 1000)
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
		testenv.NeedsRoCE(t, "Ethernet")
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
			var recvs []uverbs.RecvWR
			for n := range wq.MaxWR() {
				recvs = append(recvs, uverbs.RecvWR{ID: uint64(1000*i + n), SGL: []uverbs.SGE{b.mr.SGE(512*i, 256)}})
			}
			must(t, wq.PostRecv(recvs[0].ID, recvs[0].SGL...))
			errorIs(t, wq.PostRecvs(recvs...), uverbs.ErrQueueFull, "a WQ takes one more than it holds")
			must(t, wq.PostRecvs(recvs[1:]...))
			errorIs(t, wq.PostRecv(1), uverbs.ErrQueueFull, "a full WQ takes a receive")
			wqs = append(wqs, wq)
		}
		table, err := b.dev.CreateRWQIndTable(wqs)
		must(t, err)
		closeLater(t, table)
		hash := uverbs.RXHash{Fields: uverbs.RXHashSrcIPv4 | uverbs.RXHashDstIPv4}
		for i := range hash.Key {
			hash.Key[i] = byte(i*37 + 1)
		}
		qp, err := b.pd.CreateQP(uverbs.QPOptions{Type: ib.RawPacket, IndTable: table, RXHash: hash})
		must(t, err)
		closeLater(t, qp)
		frame := steerIPv4(t, a, qp)
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

// TestStripVLAN sends frames with and without a VLAN tag to a QP that has tags removed, and to one that has not.
func TestStripVLAN(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "raw packets", "mlx5")
		testenv.NeedsRoCE(t, "Ethernet")
		const tag = 3<<13 | 5 // priority 3, VLAN 5
		for name, flags := range map[string]uverbs.QPFlags{"stripped": uverbs.QPStripVLAN, "kept": 0} {
			t.Run(name, func(t *testing.T) {
				a, b := rawSide(t, rig.Devices[0], uverbs.QPOptions{}), rawSide(t, rig.Devices[1], uverbs.QPOptions{Flags: flags})
				rawReady(t, a)
				rawReady(t, b)
				frame := steerAll(t, a, b.qp.QP, 100)
				for id, tagged := range []bool{true, false, true} {
					copy(frame[12:], []byte{0x88, 0xb5, 0, 1, 2, 3})
					b.fill(0, 100, 5)
					want := slices.Clone(frame)
					var vlan uint16
					var with uverbs.WCFlags
					if tagged {
						copy(frame[12:], []byte{0x81, 0, tag >> 8, tag & 0xff, 0x88, 0xb5})
						want = slices.Clone(frame)
						if flags != 0 {
							want = slices.Delete(want, 12, 16)
							vlan, with = tag, uverbs.WCWithVLAN
						}
					}
					must(t, b.qp.PostRecv(uint64(id), b.mr.SGE(0, 2048)), a.qp.PostSend(send(uint64(id), a.mr.SGE(0, 100))))
					a.want(t, uint64(id), uverbs.WCSend)
					wc := b.want(t, uint64(id), uverbs.WCRecv)
					if int(wc.ByteLen) != len(want) || wc.VLAN != vlan || wc.Flags != with {
						t.Errorf("frame %d: completion %+v, want %d bytes, VLAN tag %#x, flags %d", id, wc, len(want), vlan, with)
					}
					b.holds(t, 0, want)
				}
			})
		}
	})
}

// TestRateLimit sends frames at a limited rate, which takes as long as the rate says at least, and then without a limit.
func TestRateLimit(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "raw packets", "mlx5")
		testenv.NeedsRoCE(t, "Ethernet")
		a := rawSide(t, rig.Devices[0], uverbs.QPOptions{})
		limits, err := a.dev.RateLimits()
		must(t, err)
		if limits.Min == 0 || limits.Max <= limits.Min || limits.QPTypes != uverbs.QPTypes(1<<ib.RawPacket) {
			t.Errorf("rates %+v", limits)
		}
		const frames, size = 10, 1000
		const rate = 400 // kbit/s: 20 ms for a frame
		const least = (frames - 1) * size * 8 * time.Second / rate / 1000
		must(t, a.qp.Modify(uverbs.QPAttr{State: ib.QPRTR}, uverbs.AttrState))
		limit := func(attr uverbs.QPAttr, mask uverbs.QPAttrMask) error {
			return a.qp.Modify(attr, mask|uverbs.AttrRateLimit)
		}
		for _, bad := range []uint32{limits.Min - 1, limits.Max + 1} {
			err := limit(uverbs.QPAttr{State: ib.QPRTS, RateLimit: bad}, uverbs.AttrState)
			if e, ok := errors.AsType[*uverbs.ArgError](err); !ok || e.Field != "RateLimit" {
				t.Errorf("rate %d: %v, want an ArgError of RateLimit", bad, err)
			}
		}
		must(t, limit(uverbs.QPAttr{State: ib.QPRTS, RateLimit: rate}, uverbs.AttrState))
		a.fill(0, size, 3)
		pass := func() time.Duration {
			begin := time.Now()
			for i := range uint64(frames) {
				must(t, a.qp.PostSend(send(i, a.mr.SGE(0, size))))
			}
			for i := range uint64(frames) {
				a.want(t, i, uverbs.WCSend)
			}
			return time.Since(begin)
		}
		if took := pass(); took < least {
			t.Errorf("%d frames of %d bytes at %d kbit/s took %s, want %s at least", frames, size, rate, took, least)
		}
		must(t, limit(uverbs.QPAttr{RateLimit: 0}, 0))
		first := pass() // which may still wait for the frames before
		t.Logf("without a limit %s, and %s", first, pass())
	})
}

// TestInjectedWQ has a WQ fail: the event names it, no more frames arrive there, and it works again after
// it was reset. Since Linux 6.1 mlx5_ib keeps a reference to a WQ that has failed, and Close waits forever.
func TestInjectedWQ(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		do := inject(t, rig.Devices[1])
		testenv.NeedsCard(t, "WQs that fail and can be closed", kernelBefore(t, 6, 0) && !rig.InfiniBand())
		a, b := rawSide(t, rig.Devices[0], uverbs.QPOptions{}), newSide(t, openDevice(t, rig.Devices[1]), uverbs.QPOptions{})
		rawReady(t, a)
		wq, err := b.pd.CreateWQ(uverbs.WQOptions{CQ: b.cq})
		must(t, err)
		closeLater(t, wq)
		must(t, wq.Modify(uverbs.WQReady))
		table, err := b.dev.CreateRWQIndTable([]*uverbs.WQ{wq})
		must(t, err)
		closeLater(t, table)
		qp, err := b.pd.CreateQP(uverbs.QPOptions{Type: ib.RawPacket, IndTable: table, RXHash: uverbs.RXHash{Fields: uverbs.RXHashSrcIPv4 | uverbs.RXHashDstIPv4}})
		must(t, err)
		closeLater(t, qp)
		steerIPv4(t, a, qp)
		pass := func(id uint64) {
			t.Helper()
			must(t, wq.PostRecv(id, b.mr.SGE(0, 256)), a.qp.PostSend(send(id, a.mr.SGE(0, 64))))
			a.want(t, id, uverbs.WCSend)
		}
		arrives := func(id uint64) {
			t.Helper()
			if wc := b.next(t); wc.ID != id || wc.Err() != nil || wc.ByteLen != 64 {
				t.Errorf("completion %+v, want 64 bytes of %d", wc, id)
			}
		}
		pass(1)
		arrives(1)
		do("fail-rq %d", wq.WQN())
		if ev := event(t, b.dev, uverbs.EventWQFatal); ev != (uverbs.Event{Type: uverbs.EventWQFatal, WQ: wq}) {
			t.Errorf("event is %s, want %s of WQ %#x", ev, uverbs.EventWQFatal, wq.WQN())
		}
		if wq.State() != uverbs.WQErr {
			t.Errorf("the WQ is in state %s", wq.State())
		}
		pass(2)
		b.none(t)
		must(t, wq.Modify(uverbs.WQReset), wq.Modify(uverbs.WQReady))
		pass(3)
		arrives(3)
		noViolation(t, do)
	})
}

// steerAll has all of the second interface's frames go to qp. It puts a frame of n bytes for it at the start of
// the memory of a and returns it.
func steerAll(t *testing.T, a *side, qp *uverbs.QP, n int) (frame []byte) {
	t.Helper()
	const etherType = 0x88b5 // for experiments
	frame = steer(t, a, qp, n, 0)
	copy(frame[12:], []byte{etherType >> 8, etherType & 0xff})
	return frame
}

// steerIPv4 does so with the interface's IPv4 frames. It returns such a frame of 64 bytes.
func steerIPv4(t *testing.T, a *side, qp *uverbs.QP) (frame []byte) {
	t.Helper()
	frame = steer(t, a, qp, 64, 0x0800)
	copy(frame[12:], []byte{8, 0, 0x45, 0, 0, 50, 0, 0, 0, 0, 64, 253, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2})
	return frame
}

// steer has the second interface's frames go to qp, those of one type or, if that is 0, of all. It puts a frame of n
// bytes with the interface's address at the start of the memory of a and returns it.
func steer(t *testing.T, a *side, qp *uverbs.QP, n int, etherType uint16) (frame []byte) {
	t.Helper()
	to := macOf(t, rig.Netdevs[1])
	eth := flow.Eth{Val: flow.EthFilter{DstMAC: to}, Mask: flow.EthFilter{DstMAC: anyMAC}}
	if etherType != 0 {
		eth.Val.EtherType, eth.Mask.EtherType = etherType, 0xffff
	}
	f, err := qp.CreateFlow(uverbs.FlowOptions{Specs: []flow.Spec{eth}})
	testenv.Skip(t, err)
	must(t, err)
	closeLater(t, f)
	frame = a.fill(0, n, 3)
	copy(frame, to[:])
	copy(frame[6:], []byte{2, 0x60, 0x0d, 9, 9, 9})
	return frame
}

// rawSide makes a QP of raw packets.
func rawSide(t *testing.T, name string, o uverbs.QPOptions) *side {
	t.Helper()
	s := newSide(t, openDevice(t, name), uverbs.QPOptions{})
	rawQP(t, s, o)
	return s
}

// rawQP gives a side a QP of raw packets with its CQ.
func rawQP(t *testing.T, s *side, o uverbs.QPOptions) {
	t.Helper()
	o.Type, o.SendCQ, o.RecvCQ = ib.RawPacket, s.cq, s.cq
	qp, err := s.pd.CreateQP(o)
	testenv.Skip(t, err)
	must(t, err)
	closeLater(t, qp)
	s.qp = &queuePair{QP: qp}
	must(t, qp.Modify(uverbs.QPAttr{State: ib.QPInit, Port: 1}, uverbs.AttrState|uverbs.AttrPort))
}

// rawPair returns sides on the two devices, ready for raw packets.
func rawPair(t *testing.T) (a, b *side) {
	t.Helper()
	a, b = rawSide(t, rig.Devices[0], uverbs.QPOptions{}), rawSide(t, rig.Devices[1], uverbs.QPOptions{})
	rawReady(t, a)
	rawReady(t, b)
	return a, b
}

// rawReady takes a QP of raw packets on to where it receives and sends.
func rawReady(t *testing.T, s *side) {
	t.Helper()
	must(t, s.qp.Modify(uverbs.QPAttr{State: ib.QPRTR}, uverbs.AttrState), s.qp.Modify(uverbs.QPAttr{State: ib.QPRTS}, uverbs.AttrState))
}

// macOf is an interface's address.
func macOf(t *testing.T, netdev string) [6]byte {
	t.Helper()
	link, err := netlink.LinkByName(netdev)
	must(t, err)
	return [6]byte(link.Attrs().HardwareAddr)
}

// anyMAC is a mask for all of an address.
var anyMAC = [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
