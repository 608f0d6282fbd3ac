package engine

import (
	"encoding/binary"
)

// testSRQ is a shared receive queue.
type testSRQ struct {
	h      *host
	n      uint32
	addr   uint64
	log    uint
	stride uint
	dbr    uint64
	tail   uint16 // the last of the free list
	head   uint16
	count  uint16
	spec   SRQSpec
}

func (h *host) newSRQ(log uint, xrcd, cqn, index uint32) *testSRQ {
	h.t.Helper()
	s := &testSRQ{h: h, log: log, stride: 6, dbr: h.mem.alloc(8)}
	n := 1 << (log + s.stride)
	s.addr = h.mem.alloc(n)
	for i := range uint16(1 << log) {
		binary.BigEndian.PutUint16(s.wqe(i)[2:], (i+1)&(1<<log-1))
	}
	s.tail = 1<<log - 1
	s.spec = SRQSpec{PD: h.pd, DBR: s.dbr, Buf: Buffer{Pages: pages(s.addr, n), PageSize: page}, Log: log, LogStride: s.stride, XRC: xrcd != 0, XRCD: xrcd, CQN: cqn, UserIndex: index}
	var err error
	if s.n, err = h.d.CreateSRQ(s.spec); err != nil {
		h.t.Fatal(err)
	}
	return s
}

func (s *testSRQ) wqe(i uint16) []byte { return s.h.mem.at(s.addr+uint64(i)<<s.stride, 1<<s.stride) }

// post posts a WQE and gives its index.
func (s *testSRQ) post(sges ...sge) uint16 {
	i := s.head
	w := s.wqe(i)
	s.head = binary.BigEndian.Uint16(w[2:])
	putSGEs(w[16:], sges)
	s.count++
	storeBE32(s.h.mem.at(s.dbr, 4), uint32(s.count))
	return i
}

// free gives a completed WQE back.
func (s *testSRQ) free(i uint16) {
	binary.BigEndian.PutUint16(s.wqe(s.tail)[2:], i)
	s.tail = i
}

// sge is an entry of a scatter or gather list.
type sge struct {
	m   *testMR
	off int
	n   int
}

func (m *testMR) sge(off, n int) sge { return sge{m, off, n} }

func putSGEs(b []byte, sges []sge) {
	for i, s := range sges {
		copy(b[i*16:], dataSeg(s))
	}
	if rest := b[len(sges)*16:]; len(rest) >= 16 {
		copy(rest, []byte{0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	}
}

func dataSeg(s sge) []byte {
	var b [16]byte
	binary.BigEndian.PutUint32(b[:], uint32(s.n))
	binary.BigEndian.PutUint32(b[4:], s.m.key)
	binary.BigEndian.PutUint64(b[8:], s.m.va+uint64(s.off))
	return b[:]
}

func inlineSeg(data []byte) []byte {
	b := make([]byte, (4+len(data)+15)&^15)
	binary.BigEndian.PutUint32(b, 0x80000000|uint32(len(data)))
	copy(b[4:], data)
	return b
}

func raddrSeg(va uint64, rkey uint32) []byte {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], va)
	binary.BigEndian.PutUint32(b[8:], rkey)
	return b[:]
}

func words64(v ...uint64) []byte {
	var b []byte
	for _, x := range v {
		b = binary.BigEndian.AppendUint64(b, x)
	}
	return b
}

// testQP is a QP.
type testQP struct {
	unordered bool
	h         *host
	n         uint32
	spec      QPSpec
	scq       *testCQ
	rcq       *testCQ
	addr      uint64
	dbr       uint64
	sqOff     int
	pc        uint16 // blocks posted
	rc        uint16 // receive WQEs posted
	half      uint32 // the register's half to use next
	reg       uint32
}

// qpOptions are what tests choose.
type qpOptions struct {
	typ        QPType
	noSQ       bool
	srq        *testSRQ
	rq         RQType
	logSQ      uint
	logRQ      uint
	scq, rcq   *testCQ
	scatterRes int
	scatterReq int
	xrcd       uint32
	deth       uint32
	index      uint32
	block      bool
	unordered  bool
}

func (h *host) newQP(o qpOptions) *testQP {
	h.t.Helper()
	if o.logSQ == 0 {
		o.logSQ = 6
	}
	if o.logRQ == 0 {
		o.logRQ = 4
	}
	if o.scq == nil {
		o.scq = h.newCQ(7, 64)
	}
	if o.rcq == nil {
		o.rcq = h.newCQ(7, 64)
	}
	if o.index == 0 {
		o.index = 0x77
	}
	q := &testQP{h: h, scq: o.scq, rcq: o.rcq, dbr: h.mem.alloc(8), unordered: o.unordered}
	q.spec = QPSpec{
		Type: o.typ, PD: h.pd, SendCQ: o.scq.n, RecvCQ: o.rcq.n, UAR: h.uar(), UserIndex: o.index, DBR: q.dbr, NoSQ: o.noSQ, LogSQ: o.logSQ,
		RQ: o.rq, LogRQ: o.logRQ, LogRQStride: 6, ScatterReq: o.scatterReq, ScatterRes: o.scatterRes, XRCD: o.xrcd, DethSQPN: o.deth, BlockLoopback: o.block,
	}
	if o.srq != nil {
		q.spec.RQ, q.spec.SRQN = RQSRQ, o.srq.n
	}
	if o.typ == XRC || o.typ == RegUMR {
		q.spec.RQ = RQNone
	}
	if q.spec.RQ == RQOwn {
		q.sqOff = 64 << o.logRQ
	}
	n := q.sqOff + 64<<o.logSQ
	q.addr = h.mem.alloc(n)
	q.spec.Buf = Buffer{Pages: pages(q.addr, n), PageSize: page}
	var err error
	if q.n, err = h.d.CreateQP(q.spec); err != nil {
		h.t.Fatal(err)
	}
	return q
}

// attr is what a connection has here.
func (q *testQP) attr(remote *testQP) QPAttr {
	p := remote.h.d.Port()
	a := QPAttr{
		MTU: 2, LogMsgMax: 30, RemoteQPN: remote.n, SendPSN: q.n * 1000, RecvPSN: remote.n * 1000, LogSRAMax: 2, LogRRAMax: 2,
		RetryCount: 7, RNRRetry: 7, MinRNRNAK: 1, RRE: true, RWE: true, RAE: true, QKey: 0x11111111, OutOfOrder: q.unordered,
	}
	a.Primary = Path{Port: 1, AckTimeout: 10, HopLimit: 64}
	if q.h.d.cfg.LinkLayer == InfiniBand {
		a.Primary.RLID = p.LID
	} else {
		a.Primary.SGIDIndex, a.Primary.RGID, a.Primary.RMAC, a.Primary.UDPSport = 2, p.GIDs[2].Addr, p.MAC, 0xc000
	}
	return a
}

// connect takes a QP from RESET to RTS.
func (q *testQP) connect(a QPAttr) {
	q.h.t.Helper()
	q.modify(Rst2Init, 0, a)
	q.modify(Init2RTR, 0, a)
	q.modify(RTR2RTS, 0, a)
}

func (q *testQP) modify(t Transition, opt OptParam, a QPAttr) {
	q.h.t.Helper()
	if err := q.h.d.ModifyQP(q.n, t, opt, a); err != nil {
		q.h.t.Fatal(err)
	}
}

func connect(a, b *testQP) {
	a.h.t.Helper()
	a.connect(a.attr(b))
	b.connect(b.attr(a))
}

func (q *testQP) state() QPState {
	q.h.t.Helper()
	i, err := q.h.d.QueryQP(q.n)
	if err != nil {
		q.h.t.Fatal(err)
	}
	return i.State
}

// Flags of a WQE.
const (
	sig     = 2 << 2
	sol     = 1 << 1
	fenced  = 4 << 5
	nothing = 0
)

// write puts a WQE into the ring.
func (q *testQP) write(op uint8, flags uint8, imm uint32, segs ...[]byte) []byte {
	w := make([]byte, 16)
	for _, s := range segs {
		w = append(w, s...)
	}
	ds := len(w) / 16
	w[1], w[2], w[3] = byte(q.pc>>8), byte(q.pc), op
	binary.BigEndian.PutUint32(w[4:], q.n<<8|uint32(ds))
	w[11] = flags
	binary.BigEndian.PutUint32(w[12:], imm)
	q.put(w)
	return w
}

// put puts the bytes of a WQE into the ring.
func (q *testQP) put(w []byte) {
	for o := 0; o < len(w); o += 64 {
		copy(q.block(q.pc), w[o:min(o+64, len(w))])
		q.pc++
	}
}

func (q *testQP) block(i uint16) []byte {
	return q.h.mem.at(q.addr+uint64(q.sqOff)+uint64(i)&(1<<q.spec.LogSQ-1)*64, 64)
}

func (q *testQP) record() { storeBE32(q.h.mem.at(q.dbr+4, 4), uint32(q.pc)) }

// bf is where the half of the register to use next is.
func (q *testQP) bf() uint32 {
	half := uint32(256)
	if log := q.h.d.cfg.Traits.LogBF; log != 9 {
		half = 1 << log / 2
	}
	return 0x800 + (2*q.reg+q.half)*half
}

// ring rings the doorbell for a WQE.
func (q *testQP) ring(w []byte) {
	q.h.d.UARWrite(q.spec.UAR, q.bf(), w[:8])
	q.half ^= 1
}

// post posts a WQE.
func (q *testQP) post(op uint8, flags uint8, imm uint32, segs ...[]byte) {
	w := q.write(op, flags, imm, segs...)
	q.record()
	q.ring(w)
}

// blue posts a WQE by BlueFlame.
func (q *testQP) blue(op uint8, flags uint8, imm uint32, segs ...[]byte) {
	w := q.write(op, flags, imm, segs...)
	q.record()
	w = append(w, make([]byte, (64-len(w)%64)%64)...)
	for o := 0; o < len(w); o += 8 {
		q.h.d.UARWrite(q.spec.UAR, q.bf()+uint32(o), w[o:o+8])
	}
	q.half ^= 1
}

// recv posts a receive WQE.
func (q *testQP) recv(sges ...sge) {
	w := q.h.mem.at(q.addr+uint64(q.rc&(1<<q.spec.LogRQ-1))<<6, 64)
	putSGEs(w, sges)
	q.rc++
	storeBE32(q.h.mem.at(q.dbr, 4), uint32(q.rc))
}

// avSeg is an address vector to a QP.
func (q *testQP) avSeg(to *testQP, qkey uint32) []byte {
	b := make([]byte, 48)
	binary.BigEndian.PutUint32(b, qkey)
	binary.BigEndian.PutUint32(b[8:], 0x80000000|to.n)
	p := to.h.d.Port()
	if q.h.d.cfg.LinkLayer == InfiniBand {
		binary.BigEndian.PutUint16(b[14:], p.LID)
		return b
	}
	binary.BigEndian.PutUint16(b[14:], 0xc123)
	copy(b[20:], p.MAC[:])
	b[27] = 64
	binary.BigEndian.PutUint32(b[28:], 2<<20)
	copy(b[32:], p.GIDs[2].Addr[:])
	return b
}
