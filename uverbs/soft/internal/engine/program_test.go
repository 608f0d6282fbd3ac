package engine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/uverbs/soft/internal/memory"
	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
)

var native = binary.NativeEndian

// testGIDs are the addresses of a device.
func testGIDs(addrs ...string) func() []GIDEntry {
	return func() (all []GIDEntry) {
		for _, a := range addrs {
			all = append(all, GIDEntry{GID: gidOfAddr(netip.MustParseAddr(a)), Valid: true})
		}
		return all
	}
}

// newDevice makes a device with its own memory table.
func newDevice(t testing.TB, c Config, addrs ...string) *Device {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	if c.MTU == 0 {
		c.MTU = 1024
	}
	if c.Rand == nil {
		c.Rand = r.Uint32
	}
	if len(addrs) == 0 {
		addrs = []string{"10.0.0.1", "fd00::1"}
	}
	c.Memory, c.GIDs = memory.NewTable(c.Rand), testGIDs(addrs...)
	d := New(c)
	t.Cleanup(d.Close)
	return d
}

// check fails the test if a call failed.
func check(t testing.TB, errnos ...syscall.Errno) {
	t.Helper()
	for _, e := range errnos {
		if e != 0 {
			t.Fatalf("errno %d: %v", int(e), e)
		}
	}
}

// sge is a scatter/gather entry.
type sge struct {
	addr   uint64
	length uint32
	lkey   uint32
}

// sendWR is a work request for the send queue.
type sendWR struct {
	id        uint64
	opcode    uint32
	flags     uint32
	imm       uint32 // as a value, or an rkey
	addr      uint64
	rkey      uint32
	compare   uint64 // or add
	swap      uint64
	qpn, qkey uint32
	ah        uint32
	flushType uint8
	level     uint8
	bindLKey  uint32
	bindKey   uint32
	bindLen   uint64
	bindAcc   uint32
	inline    []byte
	sges      []sge
	length    uint32 // of a FLUSH
}

// side is a QP with the program that uses it.
type side struct {
	t      testing.TB
	d      *Device
	pd     memory.PD
	cq     *CQ
	qp     *QP
	srq    *SRQ
	buf    []byte
	mr     *memory.MR
	events []uint32
	cqErrs int
	raised int // completion events
}

// allAccess are all rights of a usual MR and QP.
const allAccess = 0x1f | 1<<8

// sideOptions change what newSide makes.
type sideOptions struct {
	typ     QPType
	sigAll  bool
	cqSize  int
	srq     int // receives of an SRQ; 0: none
	sendWR  int
	recvWR  int
	sge     int
	inline  int
	pd      memory.PD
	bufSize int
}

// newSide makes a QP with a CQ for both queues and a registered buffer.
func newSide(t testing.TB, d *Device, o sideOptions) *side {
	t.Helper()
	if o.typ == 0 {
		o.typ = RC
	}
	set := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	set(&o.cqSize, 1023)
	set(&o.sendWR, 127)
	set(&o.recvWR, 127)
	set(&o.sge, 4)
	set(&o.bufSize, 1<<16)
	if o.pd == 0 {
		o.pd = 7
	}
	s := &side{t: t, d: d, pd: o.pd, buf: make([]byte, o.bufSize)}
	var errno syscall.Errno
	s.cq, errno = d.CreateCQ(o.cqSize, func() { s.raised++ }, func(uint32) { s.cqErrs++ })
	check(t, errno)
	event := func(typ uint32) { s.events = append(s.events, typ) }
	if o.srq > 0 {
		s.srq, errno = d.CreateSRQ(SRQInit{PD: o.pd, MaxWR: o.srq, MaxSGE: o.sge, Event: event})
		check(t, errno)
	}
	s.qp, errno = d.CreateQP(QPInit{
		Type: o.typ, PD: o.pd, SendCQ: s.cq, RecvCQ: s.cq, SRQ: s.srq, SigAll: o.sigAll, Event: event,
		Caps: Caps{MaxSendWR: o.sendWR, MaxRecvWR: o.recvWR, MaxSendSGE: o.sge, MaxRecvSGE: o.sge, MaxInline: o.inline},
	})
	check(t, errno)
	s.mr, errno = d.config.Memory.RegMR(o.pd, s.addr(0), uint64(len(s.buf)), s.addr(0), allAccess)
	check(t, errno)
	return s
}

// sge returns an entry for a part of the buffer.
func (s *side) sge(off, n int) sge { return sge{s.addr(off), uint32(n), s.mr.LKey()} }

// fill fills a part of the buffer with bytes that differ.
func (s *side) fill(off, n int, seed byte) []byte {
	b := s.buf[off : off+n]
	for i := range b {
		b[i] = byte(i)*7 + byte(i>>8)*13 + seed
	}
	return bytes.Clone(b)
}

// holds checks a part of the buffer.
func (s *side) holds(off int, want []byte) {
	s.t.Helper()
	if got := s.buf[off : off+len(want)]; !bytes.Equal(got, want) {
		i := 0
		for got[i] == want[i] {
			i++
		}
		s.t.Fatalf("buffer at %d+%d of %d bytes is %x, want %x", off, i, len(want), got[i:min(i+16, len(got))], want[i:min(i+16, len(want))])
	}
}

// put writes a work request into the send ring, without a doorbell.
func (s *side) put(wrs ...sendWR) {
	s.t.Helper()
	r := &s.qp.sq
	for i := range wrs {
		p := r.Producer()
		if r.Full(p, r.Consumer()) {
			s.t.Fatal("the send queue is full")
		}
		wrs[i].encode(r.Elem(p), s.qp.typ)
		r.SetProducer(r.Next(p))
	}
}

// post posts work requests and rings the doorbell.
func (s *side) post(wrs ...sendWR) {
	s.t.Helper()
	s.put(wrs...)
	check(s.t, s.qp.Doorbell())
}

// encode writes struct rxe_send_wqe.
func (w *sendWR) encode(b []byte, typ QPType) {
	clear(b)
	native.PutUint64(b, w.id)
	native.PutUint32(b[12:], w.opcode)
	native.PutUint32(b[16:], w.flags)
	if w.opcode == ring.OpSendInv || w.opcode == ring.OpLocalInv {
		native.PutUint32(b[20:], w.imm)
	} else {
		binary.BigEndian.PutUint32(b[20:], w.imm)
	}
	u := b[24:]
	native.PutUint64(u, w.addr)
	switch w.opcode {
	case ring.OpWrite, ring.OpWriteImm, ring.OpRead, ring.OpAtomicWrite:
		native.PutUint32(u[8:], w.rkey)
	case ring.OpAtomicCAS, ring.OpAtomicFAA:
		native.PutUint64(u[8:], w.compare)
		native.PutUint64(u[16:], w.swap)
		native.PutUint32(u[24:], w.rkey)
	case ring.OpFlush:
		native.PutUint32(u[8:], w.length)
		native.PutUint32(u[12:], w.rkey)
		u[16], u[17] = w.flushType, w.level
	case ring.OpBindMW:
		native.PutUint64(u[8:], w.bindLen)
		native.PutUint32(u[16:], w.bindLKey)
		native.PutUint32(u[20:], w.bindKey)
		native.PutUint32(u[24:], w.rkey)
		native.PutUint32(u[28:], w.bindAcc)
	case ring.OpSend, ring.OpSendImm:
		if typ == UD {
			native.PutUint32(u, w.qpn)
			native.PutUint32(u[4:], w.qkey)
			native.PutUint32(u[12:], w.ah)
		}
	}
	native.PutUint64(b[152:], w.addr) // iova
	n := w.length
	if w.inline != nil {
		n = uint32(len(w.inline))
		copy(b[208:], w.inline)
	}
	for i, e := range w.sges {
		n += e.length
		at := b[208+16*i:]
		native.PutUint64(at, e.addr)
		native.PutUint32(at[8:], e.length)
		native.PutUint32(at[12:], e.lkey)
	}
	native.PutUint32(b[184:], n)
	native.PutUint32(b[188:], n)
	native.PutUint32(b[196:], uint32(len(w.sges)))
}

// recv posts a receive.
func (s *side) recv(id uint64, sges ...sge) {
	s.t.Helper()
	r := &s.qp.rq
	if s.srq != nil {
		r = s.srq.Ring()
	}
	p := r.Producer()
	if r.Full(p, r.Consumer()) {
		s.t.Fatal("the receive queue is full")
	}
	b := r.Elem(p)
	clear(b)
	native.PutUint64(b, id)
	n := uint32(0)
	for i, e := range sges {
		n += e.length
		at := b[40+16*i:]
		native.PutUint64(at, e.addr)
		native.PutUint32(at[8:], e.length)
		native.PutUint32(at[12:], e.lkey)
	}
	native.PutUint32(b[16:], n)
	native.PutUint32(b[28:], uint32(len(sges)))
	r.SetProducer(r.Next(p))
}

// wc is a completion.
type wc struct {
	id     uint64
	status Status
	opcode uint32
	length uint32
	imm    uint32
	key    uint32
	qpn    uint32
	src    uint32
	flags  uint32
	port   uint8
}

// poll takes the next completion.
func (s *side) poll() (c wc, ok bool) {
	r := s.cq.Ring()
	i := r.Consumer()
	if i == r.Producer() {
		return c, false
	}
	b := r.Elem(i)
	c = wc{
		id: native.Uint64(b), status: Status(native.Uint32(b[8:])), opcode: native.Uint32(b[12:]), length: native.Uint32(b[20:]),
		qpn: native.Uint32(b[28:]), src: native.Uint32(b[32:]), flags: native.Uint32(b[36:]), port: b[46],
	}
	if c.flags&ring.WCWithImm != 0 && c.opcode >= ring.WCRecv {
		c.imm = binary.BigEndian.Uint32(b[24:])
	}
	if c.flags&ring.WCWithInvalidate != 0 {
		c.key = native.Uint32(b[24:])
	}
	r.SetConsumer(r.Next(i))
	return c, true
}

// next takes the next completion, which must be there.
func (s *side) next() wc {
	s.t.Helper()
	c, ok := s.poll()
	if !ok {
		s.t.Fatal("there is no completion")
	}
	return c
}

// want checks the next completion of a send.
func (s *side) want(id uint64, opcode uint32) wc {
	s.t.Helper()
	c := s.next()
	if c.id != id || c.status != StatusSuccess || c.opcode != opcode {
		s.t.Fatalf("completion %+v, want %d with opcode %d", c, id, opcode)
	}
	return c
}

// fails checks that the next completion is an error.
func (s *side) fails(id uint64, status Status) {
	s.t.Helper()
	if c := s.next(); c != (wc{id: id, status: status, qpn: s.qp.num}) {
		s.t.Fatalf("completion %+v, want %d with status %d", c, id, status)
	}
}

// none checks that there is no completion.
func (s *side) none() {
	s.t.Helper()
	if c, ok := s.poll(); ok {
		s.t.Fatalf("unexpected completion %+v", c)
	}
}

// inState checks the state.
func (s *side) inState(want State) {
	s.t.Helper()
	if got := s.qp.Query().State; got != want {
		s.t.Fatalf("state %d, want %d", got, want)
	}
}

// connOptions are what a connection is made with.
type connOptions struct {
	mtu            uint8
	timeout, retry uint8
	rnrRetry, rnr  uint8
	rdAtomic       uint8
	psn            uint32
	index          uint8 // of the GID
	access         uint32
	noRTS          bool
}

// defaults fills the fields that are not set.
func (o connOptions) defaults() connOptions {
	set := func(n *uint8, v uint8) {
		if *n == 0 {
			*n = v
		}
	}
	set(&o.mtu, 3)
	set(&o.timeout, 14)
	set(&o.retry, 7)
	set(&o.rnrRetry, 7)
	set(&o.rnr, 1)
	set(&o.rdAtomic, 16)
	if o.access == 0 {
		o.access = allAccess
	}
	return o
}

// initMask and others are the usual masks.
const (
	initMask = AttrState | AttrPKeyIndex | AttrPort
	rtrMask  = AttrState | AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN
	rtsMask  = AttrState | AttrSQPSN
)

// connectTo moves a QP to RTS with a peer at an address.
func (s *side) connectTo(peer *QP, addr string, o connOptions) {
	s.t.Helper()
	o = o.defaults()
	rc := s.qp.typ == RC
	check(s.t, s.qp.Modify(&QPAttr{State: Init, Port: 1, AccessFlags: o.access}, initMask|AttrAccess))
	a := QPAttr{
		State: RTR, PathMTU: o.mtu, DestQPN: peer.num, RQPSN: o.psn + peer.num, MaxDestRdAtomic: o.rdAtomic, MinRNRTimer: o.rnr,
		AV: AV{GRH: true, Port: 1, SGIDIndex: o.index, DGID: gidOfAddr(netip.MustParseAddr(addr))},
	}
	m := rtrMask
	if rc {
		m |= AttrMaxDestRdAtomic | AttrMinRNRTimer
	}
	check(s.t, s.qp.Modify(&a, m))
	if o.noRTS {
		return
	}
	a = QPAttr{State: RTS, Timeout: o.timeout, RetryCount: o.retry, RNRRetry: o.rnrRetry, SQPSN: o.psn + s.qp.num, MaxRdAtomic: o.rdAtomic}
	m = rtsMask
	if rc {
		m |= AttrTimeout | AttrRetryCount | AttrRNRRetry | AttrMaxRdAtomic
	}
	check(s.t, s.qp.Modify(&a, m))
}

// connect connects two QPs.
func connect(a, b *side, o connOptions) {
	a.t.Helper()
	addr := func(s *side) string { return addrOfGID((*s.d.gids.Load())[o.index].GID).String() }
	a.connectTo(b.qp, addr(b), o)
	b.connectTo(a.qp, addr(a), o)
}

// pair makes two connected QPs on one device.
func pair(t testing.TB, o sideOptions, c connOptions) (a, b *side) {
	t.Helper()
	d := newDevice(t, Config{})
	a, b = newSide(t, d, o), newSide(t, d, o)
	connect(a, b, c)
	return a, b
}

// signaled is a work request with a completion.
func signaled(id uint64, opcode uint32, sges ...sge) sendWR {
	return sendWR{id: id, opcode: opcode, flags: ring.SendSignaled, sges: sges}
}

// to names the peer's memory in a work request.
func (w sendWR) to(s *side, off int) sendWR {
	w.addr, w.rkey = s.addr(off), s.mr.RKey()
	return w
}

func (c wc) String() string { return fmt.Sprintf("%d: status %d", c.id, c.status) }
