package engine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"
)

const dcKey = 0x0123456789abcdef

// testDCT is a target of DC with an SRQ and a CQ of its own.
type testDCT struct {
	h   *host
	n   uint32
	srq *testSRQ
	cq  *testCQ
}

// dctSpec is a target that allows everything.
func (h *host) dctSpec(srq *testSRQ, cq *testCQ, index uint32) DCTSpec {
	s := DCTSpec{PD: h.pd, CQN: cq.n, SRQN: srq.n, UserIndex: index, Key: dcKey, RRE: true, RWE: true, RAE: true, MinRNRNAK: 1, MTU: 2, Port: 1, HopLimit: 64}
	if h.d.cfg.LinkLayer == Ethernet {
		s.GIDIndex = 2
	}
	return s
}

func (h *host) newDCT(index uint32) *testDCT {
	h.t.Helper()
	t := &testDCT{h: h, srq: h.newSRQ(5, 0, 0, 0), cq: h.newCQ(7, 64)}
	var err error
	if t.n, err = h.d.CreateDCT(h.dctSpec(t.srq, t.cq, index)); err != nil {
		h.t.Fatal(err)
	}
	return t
}

// newDCI makes an initiator that is ready to send.
func (h *host) newDCI(logStreams, logFailed uint) *testQP {
	h.t.Helper()
	q := h.newQP(qpOptions{typ: DCI, rq: RQNone})
	if logStreams > 0 {
		if err := h.d.DestroyQP(q.n); err != nil {
			h.t.Fatal(err)
		}
		q.spec.LogStreams, q.spec.LogFailed = logStreams, logFailed
		var err error
		if q.n, err = h.d.CreateQP(q.spec); err != nil {
			h.t.Fatal(err)
		}
	}
	q.ready()
	return q
}

// ready takes an initiator from RESET to RTS.
func (q *testQP) ready() {
	q.h.t.Helper()
	q.connect(QPAttr{Primary: Path{Port: 1, AckTimeout: 10}, MTU: 2, LogMsgMax: 30, SendPSN: 0xfffff0, LogSRAMax: 2, RetryCount: 2, RNRRetry: 7})
}

// dcSeg is the address of a target in a WQE.
func (q *testQP) dcSeg(to *testDCT, key uint64) []byte {
	b := q.avSeg(&testQP{h: to.h, n: to.n}, 0)
	binary.BigEndian.PutUint64(b, key)
	return b
}

// postStream posts a WQE on a stream.
func (q *testQP) postStream(stream uint16, op uint8, flags uint8, segs ...[]byte) {
	at := q.pc
	w := q.write(op, flags, 0, segs...)
	binary.BigEndian.PutUint16(q.block(at)[9:], stream)
	q.record()
	q.ring(w)
}

// dcPair is a device with an initiator and one with a target.
func dcPair(t *testing.T, link LinkLayer, one bool, cfg FabricConfig) (a, b *host) {
	t.Helper()
	f := newFabric(t, cfg)
	a = newHost(t, f, link)
	if b = a; !one {
		b = newHost(t, f, link)
	}
	for _, h := range []*host{a, b} {
		h.newEQOf(8, 1<<EventDCTDrained|1<<EventDCTKeyViolation)
	}
	return a, b
}

// TestDC: every operation, in messages of many sizes.
func TestDC(t *testing.T) {
	everywhere(t, func(t *testing.T, link LinkLayer, one bool) {
		a, b := dcPair(t, link, one, FabricConfig{})
		ma, mb := a.newMR(64<<10, allAccess), b.newMR(64<<10, allAccess)
		ma.fill(1)
		dci, dct := a.newDCI(0, 0), b.newDCT(0x99)
		to := dci.dcSeg(dct, dcKey)
		for i, n := range sizes {
			index := dct.srq.post(mb.sge(7, 30000))
			dci.post(opSendImm, sig, 0xabcd0000+uint32(i), to, dataSeg(ma.sge(i, n)))
			a.run()
			s, r := dci.scq.good(1)[0], dct.cq.good(1)[0]
			if s.op != cqeReq || s.sendOp != opSendImm || s.srqn != 0x77 || s.qpn != dci.n {
				t.Errorf("send completion %+v", s)
			}
			if r.op != cqeRespSendImm || r.bytes != uint32(n) || r.imm != 0xabcd0000+uint32(i) || r.index != index || r.srqn != 0x99 || r.flags&0xffffff != dci.n {
				t.Errorf("receive completion %+v", r)
			}
			if !bytes.Equal(mb.data[7:7+n], ma.data[i:i+n]) {
				t.Errorf("%d bytes did not arrive", n)
			}
			dct.srq.free(index)
			dci.post(opWrite, sig, 0, to, raddrSeg(mb.va+100, mb.key), dataSeg(ma.sge(i+1, n)))
			dci.post(opRead, sig, 0, to, raddrSeg(mb.va+100, mb.key), dataSeg(ma.sge(32<<10, n)))
			a.run()
			dci.scq.good(2)
			if !bytes.Equal(ma.data[32<<10:][:n], ma.data[i+1:][:n]) {
				t.Errorf("%d bytes were not written and read", n)
			}
		}
		binary.LittleEndian.PutUint64(mb.data[800:], 41)
		dci.post(opFAA, sig, 0, to, raddrSeg(mb.va+800, mb.key), words64(1, 0), dataSeg(ma.sge(0, 8)))
		dci.post(opWriteImm, sig, 9, to, raddrSeg(mb.va, mb.key), dataSeg(ma.sge(0, 8)))
		dct.srq.post()
		a.run()
		dci.scq.good(2)
		if r := dct.cq.good(1)[0]; r.op != cqeRespWriteImm || r.imm != 9 {
			t.Errorf("receive completion %+v", r)
		}
		if v := binary.LittleEndian.Uint64(mb.data[800:]); v != 42 {
			t.Errorf("the sum is %d", v)
		}
		a.clean()
		b.clean()
	})
}

// TestDCTargets: one initiator sends to many targets in turn without waiting, also where packets are lost,
// come twice and overtake each other. Every message arrives once and in order.
func TestDCTargets(t *testing.T) {
	for name, cfg := range map[string]FabricConfig{
		"good": {}, "bad": {Seed: 3, Loss: 0.05, Duplicate: 0.1, Delay: 100 * time.Microsecond},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFabric(t, cfg)
			a := newHost(t, f, Ethernet)
			ma := a.newMR(8192, allAccess)
			ma.fill(5)
			dci := a.newDCI(0, 0)
			var targets []*testDCT
			var memory []*testMR
			for range 3 {
				h := newHost(t, f, Ethernet)
				for range 2 {
					targets = append(targets, h.newDCT(0x50))
					memory = append(memory, h.newMR(16<<10, allAccess))
				}
			}
			const messages = 8
			for i, to := range targets {
				for k := range messages {
					to.srq.post(memory[i].sge(k*2000, 2000))
				}
			}
			for k := range messages {
				for i, to := range targets {
					dci.post(opSend, sig, 0, dci.dcSeg(to, dcKey), dataSeg(ma.sge(k*100+i, 1500)))
				}
				a.run()
				dci.scq.good(len(targets))
			}
			for i, to := range targets {
				for k, r := range to.cq.good(messages) {
					if r.bytes != 1500 || !bytes.Equal(memory[i].data[k*2000:][:1500], ma.data[k*100+i:][:1500]) {
						t.Errorf("target %d, message %d: %+v", i, k, r)
					}
				}
				if n := to.h.d.Report().Events["DC connect"]; n != 2*messages {
					t.Errorf("%d connections with the two targets of a device, want %d", n, 2*messages)
				}
				to.h.clean()
			}
			a.clean()
		})
	}
}

// TestDCKey: a target does not answer a request with a wrong access key. It counts it, and one event is
// written when it is armed.
func TestDCKey(t *testing.T) {
	a, b := dcPair(t, InfiniBand, false, FabricConfig{})
	dct := b.newDCT(1)
	must(t, b.d.ArmDCT(dct.n))
	dct.srq.post()
	dci := a.newDCI(0, 0)
	dci.post(opSend, sig, 0, dci.dcSeg(dct, dcKey+1))
	dci.post(opSend, sig, 0, dci.dcSeg(dct, dcKey))
	a.run()
	all := dci.scq.poll()
	if len(all) != 2 || all[0].syndrome != RetryExceeded || all[1].syndrome != Flushed || dci.state() != Err {
		t.Errorf("completions %v, state %s", all, dci.state())
	}
	if got := dct.cq.poll(); len(got) != 0 {
		t.Errorf("the target has completions %v", got)
	}
	info, err := b.d.QueryDCT(dct.n)
	if err != nil || info.Violations != 3 || info.Spec.Key != dcKey || info.State != DCTActive {
		t.Errorf("%+v, %v", info, err)
	}
	if n := b.d.Report().Events["DCT_KEY_VIOLATION"]; n != 1 {
		t.Errorf("%d events, want 1", n)
	}
	dci.modify(To2Rst, 0, QPAttr{})
	dci.pc = 0
	dci.record()
	dci.ready()
	dci.post(opSend, sig, 0, dci.dcSeg(dct, dcKey))
	a.run()
	dci.scq.good(1)
	dct.cq.good(1)
	a.clean()
	b.clean()
}

// TestDCTDrain: a target that is drained or gone does not answer, and the initiator fails.
func TestDCTDrain(t *testing.T) {
	a, b := dcPair(t, InfiniBand, false, FabricConfig{})
	dct := b.newDCT(1)
	dct.srq.post()
	dci := a.newDCI(0, 0)
	dci.post(opSend, sig, 0, dci.dcSeg(dct, dcKey))
	a.run()
	dci.scq.good(1)
	dct.cq.good(1)
	if err := b.d.DestroyCQ(dct.cq.n); err == nil {
		t.Error("a CQ that a DCT uses was destroyed")
	}
	if err := b.d.DestroySRQ(dct.srq.n); err == nil {
		t.Error("an SRQ that a DCT uses was destroyed")
	}
	must(t, b.d.DrainDCT(dct.n))
	a.run()
	if n := b.d.Report().Events["DCT_DRAINED"]; n != 1 {
		t.Errorf("%d events, want 1", n)
	}
	if info, err := b.d.QueryDCT(dct.n); err != nil || info.State != DCTDrained {
		t.Errorf("%+v, %v", info, err)
	}
	if err := b.d.DrainDCT(dct.n); err == nil {
		t.Error("it was drained twice")
	}
	dci.post(opSend, sig, 0, dci.dcSeg(dct, dcKey))
	a.run()
	if w := dci.scq.one(); w.syndrome != RetryExceeded {
		t.Errorf("completion %v", w)
	}
	must(t, b.d.DestroyDCT(dct.n))
	other := a.newDCI(0, 0)
	other.post(opSend, sig, 0, other.dcSeg(dct, dcKey))
	a.run()
	if w := other.scq.one(); w.syndrome != RetryExceeded {
		t.Errorf("completion %v", w)
	}
	for _, err := range []error{b.d.DestroyCQ(dct.cq.n), b.d.DestroySRQ(dct.srq.n)} {
		if err != nil {
			t.Error(err)
		}
	}
	a.clean()
	b.clean()
}

// TestDCErrors: what a target refuses ends the connection, and neither the target nor other initiators.
func TestDCErrors(t *testing.T) {
	for _, tt := range []struct {
		name string
		post func(q *testQP, to *testDCT, m *testMR)
		want Syndrome
		recv []Syndrome // of the target's completions
	}{
		{"key", func(q *testQP, to *testDCT, m *testMR) {
			q.post(opWrite, sig, 0, q.dcSeg(to, dcKey), raddrSeg(m.va, m.key+256), inlineSeg([]byte{1}))
		}, RemoteAccess, nil},
		{"too long", func(q *testQP, to *testDCT, m *testMR) {
			to.srq.post(m.sge(0, 4))
			q.post(opSend, sig, 0, q.dcSeg(to, dcKey), inlineSeg(make([]byte, 8)))
		}, RemoteInvalidReq, []Syndrome{LocalLength}},
		{"GID index", func(q *testQP, to *testDCT, m *testMR) {
			seg := q.dcSeg(to, dcKey)
			binary.BigEndian.PutUint32(seg[28:], 9<<20)
			q.post(opSend, sig, 0, seg)
		}, LocalQPOp, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := dcPair(t, Ethernet, false, FabricConfig{})
			m := b.newMR(4096, allAccess)
			dct, dci, good := b.newDCT(1), a.newDCI(0, 0), a.newDCI(0, 0)
			tt.post(dci, dct, m)
			a.run()
			if w := dci.scq.one(); w.syndrome != tt.want || dci.state() != Err {
				t.Errorf("completion %v, state %s", w, dci.state())
			}
			var recv []Syndrome
			for _, w := range dct.cq.poll() {
				recv = append(recv, w.syndrome)
			}
			if !slices.Equal(recv, tt.recv) {
				t.Errorf("the target's completions: %v, want %v", recv, tt.recv)
			}
			dct.srq.post()
			good.post(opSend, sig, 0, good.dcSeg(dct, dcKey))
			a.run()
			good.scq.good(1)
			dct.cq.good(1)
			if events := b.eq.asyncEvents(); len(events) != 0 {
				t.Errorf("events %v", events)
			}
			a.clean()
			b.clean()
		})
	}
}

// TestDCRNR: a request to a target without a receive WQE is repeated.
func TestDCRNR(t *testing.T) {
	a, b := dcPair(t, InfiniBand, false, FabricConfig{})
	dct, dci := b.newDCT(1), a.newDCI(0, 0)
	dci.post(opSend, sig, 0, dci.dcSeg(dct, dcKey))
	a.f.RunFor(time.Millisecond)
	if got := dci.scq.poll(); len(got) != 0 {
		t.Errorf("completions %v without a receive WQE", got)
	}
	dct.srq.post()
	a.run()
	dci.scq.good(1)
	dct.cq.good(1)
	a.clean()
	b.clean()
}

// TestDCStreams: a failed request ends its stream, until the stream is reset. The DCI goes on until too many
// streams have failed.
func TestDCStreams(t *testing.T) {
	a, b := dcPair(t, InfiniBand, false, FabricConfig{})
	m := b.newMR(4096, allAccess)
	dct, dci := b.newDCT(1), a.newDCI(3, 1)
	to := dci.dcSeg(dct, dcKey)
	write := func(stream uint16, key uint32) {
		dci.postStream(stream, opWrite, sig, to, raddrSeg(m.va, key), inlineSeg([]byte{byte(stream)}))
	}
	expect := func(want ...Syndrome) {
		t.Helper()
		a.run()
		var got []Syndrome
		for _, w := range dci.scq.poll() {
			got = append(got, w.syndrome)
		}
		if !slices.Equal(got, want) {
			t.Errorf("completions %v, want %v", got, want)
		}
	}
	write(1, m.key)
	write(2, m.key+256)
	write(2, m.key)
	write(3, m.key)
	expect(0, RemoteAccess, Flushed, 0)
	write(2, m.key)
	write(4, m.key)
	expect(Flushed, 0)
	if s := dci.state(); s != RTS || m.data[0] != 4 {
		t.Errorf("state %s, memory %d", s, m.data[0])
	}
	dci.modify(RTS2RTS, OptStream, QPAttr{Stream: 2})
	write(2, m.key)
	expect(0)
	write(5, m.key+256)
	write(5, m.key)
	write(2, m.key)
	expect(RemoteAccess, Flushed, 0)
	if s := dci.state(); s != RTS || m.data[0] != 2 {
		t.Errorf("state %s, memory %d after the reset of stream 2", s, m.data[0])
	}
	dci.modify(RTS2RTS, OptStream, QPAttr{Stream: 6})
	write(7, m.key+256)
	write(6, m.key)
	expect(RemoteAccess, Flushed)
	if s := dci.state(); s != Err {
		t.Errorf("state %s", s)
	}
	if err := a.d.ModifyQP(dci.n, RTS2RTS, OptStream, QPAttr{Stream: 5}); err == nil {
		t.Error("a DCI in ERR has a stream reset")
	}
	if err := a.d.ModifyQP(a.newDCI(0, 0).n, RTS2RTS, OptStream, QPAttr{}); fieldOf(err) != "dci_stream_channel_id" {
		t.Errorf("a DCI without streams: %v", err)
	}
	dci.modify(To2Rst, 0, QPAttr{})
	dci.pc = 0
	dci.record()
	dci.ready()
	write(2, m.key)
	expect(0)
	a.clean()
	b.clean()
}

// TestDCCreate: what a DCI and a DCT can't be created with.
func TestDCCreate(t *testing.T) {
	f := newFabric(t, FabricConfig{})
	h := newHost(t, f, InfiniBand)
	srq, cq := h.newSRQ(3, 0, 0, 0), h.newCQ(4, 64)
	xrcd, err := h.d.AllocXRCD()
	must(t, err)
	xrc := h.newSRQ(3, xrcd, cq.n, 0)
	for field, change := range map[string]func(s *DCTSpec){
		"pd": func(s *DCTSpec) { s.PD = 99 }, "cqn": func(s *DCTSpec) { s.CQN = 99 }, "srqn_xrqn": func(s *DCTSpec) { s.SRQN = 99 },
		"mtu": func(s *DCTSpec) { s.MTU = 6 }, "port": func(s *DCTSpec) { s.Port = 2 }, "pkey_index": func(s *DCTSpec) { s.PKeyIndex = 9 },
		"my_addr_index": func(s *DCTSpec) { s.GIDIndex = 9 }, "cs_res": func(s *DCTSpec) { s.ScatterRes = 5 },
	} {
		s := h.dctSpec(srq, cq, 0)
		change(&s)
		if _, err := h.d.CreateDCT(s); fieldOf(err) != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	s := h.dctSpec(xrc, cq, 0)
	if _, err := h.d.CreateDCT(s); fieldOf(err) != "srqn_xrqn" {
		t.Errorf("an SRQ of XRC: %v", err)
	}
	good := h.newQP(qpOptions{typ: DCI, rq: RQNone}).spec
	for field, change := range map[string]func(s *QPSpec){
		"rq_type": func(s *QPSpec) { s.RQ = RQOwn }, "no_sq": func(s *QPSpec) { s.NoSQ = true },
		"log_num_dci_stream_channels, log_num_dci_errored_streams": func(s *QPSpec) { s.LogStreams = 4 },
	} {
		s := good
		change(&s)
		if _, err := h.d.CreateQP(s); fieldOf(err) != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	for name, err := range map[string]error{"drain": h.d.DrainDCT(7), "destroy": h.d.DestroyDCT(7), "arm": h.d.ArmDCT(7)} {
		if err == nil {
			t.Errorf("%s: a DCT that is not there", name)
		}
	}
	h.clean()
}

// fieldOf is the field that a refusal names.
func fieldOf(err error) string {
	if e, ok := err.(*Error); ok {
		return e.Field
	}
	return fmt.Sprint(err)
}

// TestDCOrder: the connections of a target are ended in the order in which they began, also when their
// numbers have begun again at 0.
func TestDCOrder(t *testing.T) {
	target := &dct{conns: map[initiator]*dcResponder{}}
	want := []uint32{0xfffffffd, 0xfffffffe, 0xffffffff, 0, 1, 2}
	for i, at := range []int{3, 0, 5, 2, 4, 1} {
		target.conns[initiator{qpn: uint32(i)}] = &dcResponder{conn: want[at]}
	}
	var got []uint32
	for _, c := range target.sorted() {
		got = append(got, c.conn)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%#x, want %#x", got, want)
	}
}

// TestDCOutOfOrder: messages for a target take WQEs of its SRQ in another order than the list has, each once.
// A WRITE of several packets arrives whole.
func TestDCOutOfOrder(t *testing.T) {
	a, b := dcPair(t, InfiniBand, false, FabricConfig{})
	ma, mb := a.newMR(8192, allAccess), b.newMR(8192, allAccess)
	ma.fill(1)
	dct := &testDCT{h: b, srq: b.newSRQ(5, 0, 0, 0), cq: b.newCQ(7, 64)}
	s := b.dctSpec(dct.srq, dct.cq, 0x99)
	s.OutOfOrder = true
	var err error
	if dct.n, err = b.d.CreateDCT(s); err != nil {
		t.Fatal(err)
	}
	dci := a.newDCI(0, 0)
	to := dci.dcSeg(dct, dcKey)
	const size = 64
	var list []uint16 // what is posted, in order
	post := func() {
		at := int(dct.srq.head) * size
		list = append(list, dct.srq.post(mb.sge(at, size)))
	}
	for range 4 {
		post()
	}
	turned := 0
	for i := range 100 {
		dci.post(opSend, sig, 0, to, dataSeg(ma.sge(i, size)))
		a.run()
		dci.scq.good(1)
		r := dct.cq.good(1)[0]
		at := slices.Index(list, r.index)
		if at < 0 || at > 1 {
			t.Fatalf("message %d completes WQE %d, want one of the first two of %d", i, r.index, list)
		}
		turned += at
		list = slices.Delete(list, at, at+1)
		if !bytes.Equal(mb.data[int(r.index)*size:][:size], ma.data[i:i+size]) {
			t.Fatalf("message %d is not in WQE %d", i, r.index)
		}
		dct.srq.free(r.index)
		post()
	}
	if turned < 10 {
		t.Errorf("%d of 100 messages out of order", turned)
	}
	dci.post(opWrite, sig, 0, to, raddrSeg(mb.va+4096, mb.key), dataSeg(ma.sge(0, 2000)))
	a.run()
	dci.scq.good(1)
	if !bytes.Equal(mb.data[4096:][:2000], ma.data[:2000]) {
		t.Error("the data of a WRITE is not there")
	}
	a.clean()
	b.clean()
}

// TestReadLimits: a QP that is to have more READs and atomics under way than its type may is refused.
func TestReadLimits(t *testing.T) {
	h := newHostWith(t, newFabric(t, FabricConfig{Seed: 1}), InfiniBand, Traits{LogMaxDCReads: 2})
	for typ, most := range map[QPType]uint8{RC: 4, DCI: 2} {
		q := h.newQP(qpOptions{typ: typ, rq: RQNone})
		attr := q.attr(q)
		q.modify(Rst2Init, 0, attr)
		if typ == RC {
			attr.LogRRAMax = most + 1
			refused(t, h.d.ModifyQP(q.n, Init2RTR, 0, attr), BadParam, "log_rra_max")
			attr.LogRRAMax = most
		}
		q.modify(Init2RTR, 0, attr)
		attr.LogSRAMax = most + 1
		refused(t, h.d.ModifyQP(q.n, RTR2RTS, 0, attr), BadParam, "log_sra_max")
		attr.LogSRAMax = most
		q.modify(RTR2RTS, 0, attr)
	}
}
