package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

// testSQ makes an Ethernet send queue, which the QP's helpers drive.
func (h *host) newSQ(cq *testCQ, log uint) *testQP {
	h.t.Helper()
	return h.newSQWanting(cq, log, 0)
}

// newSQWanting makes one that wants headers of frames in its WQEs.
func (h *host) newSQWanting(cq *testCQ, log uint, inline int) *testQP {
	h.t.Helper()
	q := &testQP{h: h, scq: cq, dbr: h.mem.alloc(8)}
	q.addr = h.mem.alloc(64 << log)
	s := SQSpec{CQN: cq.n, PD: h.pd, UserIndex: 0x55, UAR: h.uar(), DBR: q.dbr, Buf: Buffer{Pages: pages(q.addr, 64<<log), PageSize: page}, Log: log, MinInline: inline}
	var err error
	if q.n, err = h.d.CreateSQ(s); err != nil {
		h.t.Fatal(err)
	}
	q.spec.LogSQ, q.spec.UAR = log, s.UAR
	if err := h.d.ModifySQ(q.n, WQReset, WQReady, nil); err != nil {
		h.t.Fatal(err)
	}
	return q
}

// newRQ makes an Ethernet receive queue, whose WQEs the QP's helpers post.
func (h *host) newRQ(cq *testCQ, log uint) *testQP {
	h.t.Helper()
	q := &testQP{h: h, rcq: cq, dbr: h.mem.alloc(8), addr: h.mem.alloc(64 << log)}
	q.spec.LogRQ = log
	var err error
	s := RQSpec{CQN: cq.n, PD: h.pd, UserIndex: 0x66, DBR: q.dbr, Buf: Buffer{Pages: pages(q.addr, 64<<log), PageSize: page}, Log: log, LogStride: 6}
	if q.n, err = h.d.CreateRQ(s); err != nil {
		h.t.Fatal(err)
	}
	if err := h.d.ModifyRQ(q.n, WQReset, WQReady, RQChange{}); err != nil {
		h.t.Fatal(err)
	}
	return q
}

// ethSegs is an Ethernet segment with an inline header.
func ethSegs(flags byte, header []byte) []byte {
	b := make([]byte, 14, 64)
	b[4] = flags
	binary.BigEndian.PutUint16(b[12:], uint16(len(header)))
	b = append(b, header...)
	for len(b) < 16 || len(b)%16 != 0 {
		b = append(b, 0)
	}
	return b
}

// frame makes an Ethernet frame with an IPv4 or IPv6 packet of UDP or TCP, without sums.
func frame(dst, src [6]byte, v6 bool, proto byte, payload []byte) []byte {
	b := append(append([]byte(nil), dst[:]...), src[:]...)
	l4 := make([]byte, map[byte]int{6: 20, 17: 8}[proto])
	l4[1], l4[3] = 7, 9
	if proto == 17 {
		binary.BigEndian.PutUint16(l4[4:], uint16(8+len(payload)))
	}
	l4 = append(l4, payload...)
	if v6 {
		b = append(b, 0x86, 0xdd, 0x60, 0, 0, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(len(l4)))
		b = append(b, proto, 64)
		b = append(b, bytes.Repeat([]byte{0xfe, 0x81, 3}, 11)[:32]...)
	} else {
		b = append(b, 8, 0, 0x45, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(20+len(l4)))
		b = append(b, 0, 1, 0x40, 0, 64, proto, 0, 0, 10, 1, 0, 1, 10, 1, 0, 2)
	}
	return append(b, l4...)
}

// sumOK checks the sums of a frame as a receiver does.
func sumOK(b []byte) bool {
	ip, proto, hdr := b[14:], b[23], 20
	pseudo := uint32(onesSum(ip[12:min(20, len(ip))]))
	if b[12] == 0x86 {
		proto, hdr = b[20], 40
		pseudo = uint32(onesSum(ip[8:40]))
	} else if onesSum(ip[:20]) != 0xffff {
		return false
	}
	l4 := ip[hdr:]
	sum := pseudo + uint32(proto) + uint32(len(l4)) + uint32(onesSum(l4))
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return sum == 0xffff
}

func TestEthernet(t *testing.T) {
	f := newFabric(t, FabricConfig{})
	ha, hb := newHost(t, f, Ethernet), newHost(t, f, Ethernet)
	sq := ha.newSQ(ha.newCQ(5, 64), 5)
	rq := hb.newRQ(hb.newCQ(5, 64), 4)
	const tag = 0x345678
	hb.d.cfg.Receive = func(frame []byte) []Delivery {
		if frame[0] == 1 {
			return nil
		}
		return []Delivery{{rq.n, tag}}
	}
	ma, mb := ha.newMR(4096, LocalRead), hb.newMR(4096, LocalWrite)
	a, b := ha.d.Port().MAC, hb.d.Port().MAC
	for i, c := range []struct {
		v6    bool
		proto byte
		n     int
	}{{false, 17, 100}, {false, 6, 101}, {true, 17, 3}, {true, 6, 1000}} {
		want := frame(b, a, c.v6, c.proto, bytes.Repeat([]byte{byte(i), 0x5a}, c.n)[:c.n])
		for _, header := range []int{0, 2, 14, 18, 40} {
			rq.recv(mb.sge(0, 100), mb.sge(1000, 2000))
			copy(ma.data, want[header:])
			sq.post(opSend, sig, 0, ethSegs(0xc0, want[:header]), dataSeg(ma.sge(0, len(want)-header)))
			ha.run()
			if w := sq.scq.good(1)[0]; w.qpn != sq.n || w.srqn != 0x55 || w.sendOp != opSend {
				t.Errorf("send completion %+v", w)
			}
			r := rq.rcq.good(1)[0]
			got := append(bytes.Clone(mb.data[:100]), mb.data[1000:]...)[:len(want)]
			if r.op != cqeRespSend || int(r.bytes) != len(want) || r.srqn != 0x66 || r.qpn != tag || !sumOK(got) || !bytes.Equal(got[:14], want[:14]) || !bytes.Equal(got[len(got)-c.n:], want[len(want)-c.n:]) {
				t.Errorf("header %d: %+v, sums %v", header, r, sumOK(got))
			}
			if sum := binary.BigEndian.Uint16(r.raw[20:]); sum != onesSum(got[14:]) {
				t.Errorf("sum %#x over the frame, want %#x", sum, onesSum(got[14:]))
			}
		}
	}
	// Insert a tag, and a broadcast.
	want := frame([6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, a, false, 17, []byte("all"))
	rq.recv(mb.sge(0, 200))
	copy(ma.data, want)
	e := ethSegs(0, nil)
	copy(e[12:], []byte{0x80, 0, 0x20, 5})
	sq.post(opSend, sig, 0, e, dataSeg(ma.sge(0, len(want))))
	ha.run()
	sq.scq.good(1)
	rq.rcq.good(1)
	if !bytes.Equal(mb.data[:18], append(want[:12:12], 0x81, 0, 0x20, 5, 8, 0)) || !bytes.Equal(mb.data[18:len(want)+4], want[14:]) {
		t.Errorf("%x", mb.data[:len(want)+4])
	}
	// Frames that nobody takes.
	for _, dst := range [][6]byte{{2, 9, 9, 9, 9, 9}, {1, 0, 0x5e, 0, 0, 1}, b} {
		sq.post(opSend, sig, 0, ethSegs(0, nil), inlineSeg(frame(dst, a, false, 17, nil)))
	}
	ha.run()
	sq.scq.good(3)
	rq.rcq.good(0)
	drops := [3]uint64{ha.d.Report().Packets["dropped: nobody has the address"], hb.d.Report().Packets["dropped: no flow takes the frame"], hb.d.Report().Packets["dropped: no receive WQE"]}
	if drops != [3]uint64{1, 1, 1} {
		t.Errorf("dropped: %v", drops)
	}
	ha.clean()
	hb.clean()
}

// TestEthernetErrors: an error stops the queue, and it begins anew after a reset.
func TestEthernetErrors(t *testing.T) {
	f := newFabric(t, FabricConfig{})
	h := newHost(t, f, Ethernet)
	sq := h.newSQ(h.newCQ(5, 64), 4)
	m := h.newMR(4096, LocalRead)
	sq.post(opSend, sig, 0, ethSegs(0, nil), dataSeg(sge{&testMR{key: 0x99999900}, 0, 60}))
	sq.post(opNOP, nothing, 0)
	h.run()
	all := sq.scq.poll()
	if len(all) != 2 || all[0].syndrome != LocalProt || all[1].syndrome != Flushed {
		t.Errorf("%v", all)
	}
	if s, err := h.d.QuerySQ(sq.n); err != nil || s.State != WQError {
		t.Errorf("%+v, %v", s, err)
	}
	var e *Error
	if err := h.d.ModifySQ(sq.n, WQError, WQReady, new(uint32(9))); !errors.As(err, &e) || e.Kind != BadState {
		t.Errorf("%v", err)
	}
	if s, err := h.d.QuerySQ(sq.n); err != nil || s.Rate != 0 {
		t.Errorf("a change that was refused: %+v, %v", s, err)
	}
	if err := h.d.ModifySQ(sq.n, WQReady, WQReset, nil); !errors.As(err, &e) || e.Kind != BadState {
		t.Errorf("%v", err)
	}
	for _, s := range [][2]WQState{{WQError, WQReset}, {WQReset, WQReady}} {
		must(t, h.d.ModifySQ(sq.n, s[0], s[1], nil))
	}
	sq.pc = 0
	clear(h.mem.at(sq.dbr, 8))
	sq.post(opSend, sig, 0, ethSegs(0, nil), dataSeg(m.sge(0, 60)))
	h.run()
	sq.scq.good(1)
	must(t, h.d.FailWQE(sq.n, false, 0, LocalQPOp, 0x68))
	sq.post(opNOP, sig, 0)
	h.run()
	if w := sq.scq.one(); w.syndrome != LocalQPOp || w.vendor != 0x68 {
		t.Errorf("%v", w)
	}
	if err := h.d.DestroyQP(sq.n); err == nil {
		t.Error("an SQ goes away as a QP")
	}
	if err := h.d.DestroySQ(sq.n); err != nil {
		t.Error(err)
	}
	h.clean()
}

// TestFailRQ: the event names the RQ, which takes no more frames until it was reset.
func TestFailRQ(t *testing.T) {
	f := newFabric(t, FabricConfig{})
	ha, hb := newHost(t, f, Ethernet), newHost(t, f, Ethernet)
	sq, rq := ha.newSQ(ha.newCQ(5, 64), 5), hb.newRQ(hb.newCQ(5, 64), 4)
	hb.d.cfg.Receive = func([]byte) []Delivery { return []Delivery{{RQ: rq.n}} }
	ma, mb := ha.newMR(4096, LocalRead), hb.newMR(4096, LocalWrite)
	want := frame(hb.d.Port().MAC, ha.d.Port().MAC, false, 17, make([]byte, 100))
	send := func() {
		copy(ma.data, want)
		rq.recv(mb.sge(0, 2000))
		sq.post(opSend, sig, 0, ethSegs(0, want[:14]), dataSeg(ma.sge(14, len(want)-14)))
		ha.run()
		sq.scq.good(1)
	}
	send()
	rq.rcq.good(1)
	must(t, hb.d.FailRQ(rq.n))
	if all := hb.eq.poll(); len(all) != 1 || all[0].typ != EventWQCatas || all[0].object() != rq.n || all[0].data[20] != 1 { // MLX5_EVENT_QUEUE_TYPE_RQ
		t.Errorf("events %+v, want one of RQ %#x", all, rq.n)
	}
	send()
	if all := rq.rcq.poll(); len(all) != 0 {
		t.Errorf("a failed RQ takes a frame: %v", all)
	}
	if err := hb.d.ModifyRQ(rq.n, WQReady, WQReset, RQChange{}); err == nil {
		t.Error("a failed RQ is reset as if it were ready")
	}
	if err := hb.d.ModifyRQ(rq.n, WQError, WQReset, RQChange{}); err != nil {
		t.Error(err)
	}
}

// TestEthernetRefused: what of Ethernet's offloads is not modelled says so.
func TestEthernetRefused(t *testing.T) {
	for _, at := range []int{0, 5, 7} {
		f := newFabric(t, FabricConfig{})
		h := newHost(t, f, Ethernet)
		sq := h.newSQ(h.newCQ(5, 64), 4)
		e := ethSegs(0, nil)
		e[at] = 1
		sq.post(opSend, sig, 0, e, inlineSeg(make([]byte, 60)))
		h.run()
		h.broke("wqe-not-modelled")
		if w := sq.scq.one(); w.syndrome != LocalQPOp {
			t.Errorf("%v", w)
		}
	}
}

// TestEthernetHeaders: an SQ that wants headers inline takes no WQE without.
func TestEthernetHeaders(t *testing.T) {
	for _, header := range []int{0, 2, 13, 14, 18} {
		h := newHost(t, newFabric(t, FabricConfig{}), Ethernet)
		sq := h.newSQWanting(h.newCQ(5, 64), 4, 14)
		sq.post(opSend, sig, 0, ethSegs(0, make([]byte, header)), inlineSeg(make([]byte, 60)))
		h.run()
		if header >= 14 {
			sq.scq.good(1)
			h.clean()
			continue
		}
		h.broke("wqe-header")
		if w := sq.scq.one(); w.syndrome != LocalQPOp {
			t.Errorf("%d bytes: %v", header, w)
		}
	}
}
