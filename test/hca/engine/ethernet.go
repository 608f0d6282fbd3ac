package engine

import "time"

// ethSeg is what an Ethernet segment says (struct mlx5_wqe_eth_seg).
type ethSeg struct {
	flags  uint8
	header []byte // inline header
	vlan   uint16
	tagged bool // insert vlan
	mss    int  // of an LSO: payload bytes in each frame
}

const (
	ethL3Checksum = 1 << 6
	ethL4Checksum = 1 << 7
	ethInsertVLAN = 1 << 15
	ethHeader     = 14
	etherVLAN     = 0x8100
	vlanTag       = 4 // bytes
)

// decodeEth reads the WQE of an Ethernet send queue.
func (w *sendWQE) decodeEth(r *reader) {
	b := r.take(16, "the Ethernet segment")
	if b == nil {
		return
	}
	e := &ethSeg{flags: b[4]}
	w.eth = e
	if !zero(b[:4]) || b[5] != 0 {
		w.malformed("wqe-not-modelled", "software parser offsets are not modelled: %x", b[:6])
		return
	}
	e.mss = int(be.Uint16(b[6:]))
	if e.mss != 0 && w.op != opLSO {
		w.malformed("wqe-not-modelled", "segmentation (mss %d) of a plain SEND is not modelled", e.mss)
		return
	}
	n := be.Uint16(b[12:])
	if w.op == opLSO && (e.mss == 0 || n&ethInsertVLAN != 0 || n <= ethHeader) {
		w.malformed("wqe-lso", "an LSO in pieces of %d bytes with %#x for the size of its headers", e.mss, n)
		return
	}
	if want := w.q.sq.MinInline; want > 0 && (n&ethInsertVLAN != 0 || int(n) < want) {
		w.malformed("wqe-header", "%#x for the size of the inline header, and the SQ wants %d bytes of each frame there", n, want)
		return
	}
	if n&ethInsertVLAN != 0 {
		e.tagged, e.vlan = true, be.Uint16(b[14:])
		w.decodeData(r)
		return
	}
	if n > 0 {
		// Two bytes of the header are in the segment, the rest follows, padded to 16 bytes.
		e.header = append(e.header, b[14:min(16, 14+int(n))]...)
		if rest := int(n) - 2; rest > 0 {
			more := r.take((rest+15)&^15, "the inline header")
			if more == nil {
				return
			}
			e.header = append(e.header, more[:rest]...)
		}
	}
	w.decodeData(r)
}

// runEthernet executes the WQEs of an SQ.
func (q *qp) runEthernet() {
	if q.state == Err {
		q.flushSends()
		return
	}
	if q.state != RTS {
		return
	}
	for n := 0; ; n++ {
		if n == burst {
			q.kick()
			return
		}
		if q.paced() {
			return
		}
		w := q.fetch()
		if w == nil {
			return
		}
		if f := q.fault(false); f != nil {
			w.bad = Syndrome(f.syndrome)
			q.ethFailed(w, f.vendor)
			return
		}
		if w.bad == 0 && w.op == opSend {
			q.sendFrame(w)
		}
		if w.bad == 0 && w.op == opLSO {
			q.sendSegments(w)
		}
		if w.bad != 0 {
			q.ethFailed(w, vendorOf(w.bad))
			return
		}
		w.complete(0)
	}
}

// paced reports whether an SQ has to wait before it sends its next frame, and has it go on then.
func (q *qp) paced() bool {
	wait := q.send.idleAt - q.d.f.clock()
	if wait <= 0 {
		return false
	}
	q.d.f.after(wait, q.kick)
	return true
}

// ethFailed completes a WQE with an error. The queue stops.
func (q *qp) ethFailed(w *sendWQE, vendor uint8) {
	w.fail(w.bad, vendor)
	q.sq.State = WQError
	q.setState(Err, "a send failed: "+w.reason)
	q.flushSends()
}

// sendFrame sends an Ethernet frame.
func (q *qp) sendFrame(w *sendWQE) {
	if q.pd == nil && len(w.segs) > 0 {
		w.refuse(LocalProt, "an SQ without a PD has no memory")
		return
	}
	data, why := w.gather(0, w.size)
	if why != "" {
		w.refuse(LocalProt, "%s", why)
		return
	}
	frame := append(append([]byte(nil), w.eth.header...), data...)
	q.sendRaw(w, frame)
}

// sendRaw sends a frame once its tag and its sums are in it.
func (q *qp) sendRaw(w *sendWQE, frame []byte) {
	if len(frame) < ethHeader {
		w.refuse(LocalLength, "a frame of %d bytes", len(frame))
		return
	}
	if w.eth.tagged {
		tag := []byte{etherVLAN >> 8, etherVLAN & 0xff, byte(w.eth.vlan >> 8), byte(w.eth.vlan)}
		frame = append(frame[:12:12], append(tag, frame[12:]...)...)
	}
	checksums(frame, w.eth.flags&ethL3Checksum != 0, w.eth.flags&ethL4Checksum != 0)
	p := &packet{kind: pktEth, src: q.n, data: frame}
	copy(p.dmac[:], frame)
	copy(p.smac[:], frame[6:])
	q.d.transmit(p)
	if rate := time.Duration(q.sq.Rate); rate > 0 {
		const kbit = 8 * time.Second / 1000 // a byte at 1 kbit/s
		q.send.idleAt = max(q.send.idleAt, q.d.f.clock()) + time.Duration(len(frame))*kbit/rate
	}
}

// behindTags says where the data of a frame begins, and of which protocol it is.
func behindTags(frame []byte) (at int, proto uint16) {
	at, proto = ethHeader, be.Uint16(frame[12:])
	for proto == etherVLAN && len(frame) >= at+vlanTag {
		proto, at = be.Uint16(frame[at+2:]), at+vlanTag
	}
	return at, proto
}

// headers are what a device reads of a frame to fill in or check its sums.
type headers struct {
	ip     []byte // from the IP header on, without what pads a short frame
	v4     bool
	l4     []byte // behind it
	field  int    // where the sum of TCP or UDP is in l4, or 0
	next   uint8  // the protocol
	pseudo uint32 // the sum of the addresses
	part   bool   // a fragment
}

// headersOf reads the headers of an IP packet.
func headersOf(frame []byte) (h headers, ok bool) {
	at, proto := behindTags(frame)
	ip := frame[min(at, len(frame)):]
	var l4At int
	switch {
	case proto == 0x0800 && len(ip) >= ipv4Bytes && int(ip[0]&0xf)*4 >= ipv4Bytes && len(ip) >= int(ip[0]&0xf)*4:
		h.v4, l4At, h.next, h.part = true, int(ip[0]&0xf)*4, ip[9], be.Uint16(ip[6:])&0x3fff != 0
		if n := int(be.Uint16(ip[2:])); n >= l4At && n <= len(ip) {
			ip = ip[:n]
		}
		h.pseudo = uint32(onesSum(ip[12:20]))
	case proto == 0x86dd && len(ip) >= 40:
		l4At, h.next = 40, ip[6]
		if n := 40 + int(be.Uint16(ip[4:])); n <= len(ip) {
			ip = ip[:n]
		}
		h.pseudo = uint32(onesSum(ip[8:40]))
	default:
		return h, false
	}
	h.ip, h.l4 = ip, ip[l4At:]
	if field := map[uint8]int{6: 16, protoUDP: 6}[h.next]; len(h.l4) >= field+2 {
		h.field = field
	}
	return h, true
}

// sum is the sum over the data of TCP or UDP, as it stands, and what else goes into it.
func (h *headers) sum() uint16 {
	sum := h.pseudo + uint32(h.next) + uint32(len(h.l4)) + uint32(onesSum(h.l4))
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// checksums fills in the checksum of an IPv4 header, and that of TCP or UDP.
func checksums(frame []byte, l3, l4 bool) {
	h, ok := headersOf(frame)
	if !ok {
		return
	}
	if l3 && h.v4 {
		be.PutUint16(h.ip[10:], 0)
		be.PutUint16(h.ip[10:], ^onesSum(h.ip[:len(h.ip)-len(h.l4)]))
	}
	if l4 && h.field > 0 {
		be.PutUint16(h.l4[h.field:], 0)
		c := ^h.sum()
		if c == 0 && h.next == protoUDP {
			c = 0xffff
		}
		be.PutUint16(h.l4[h.field:], c)
	}
}

// Bits of hds_ip_ext and l4_l3_hdr_type (enums in mlx5/device.h).
const (
	cqeL2OK, cqeL3OK, cqeL4OK = 1 << 0, 1 << 1, 1 << 2
	cqeIPv6, cqeIPv4          = 1 << 2, 2 << 2
	cqeTCP, cqeUDP            = 1 << 4, 2 << 4
)

// checkSums tells which sums of a frame are right, and what it is. There is none to check in the header of IPv6, and
// a sum of 0 in UDP over IPv4 is none.
func checkSums(frame []byte) (checks, kind uint8) {
	h, ok := headersOf(frame)
	if !ok {
		return cqeL2OK, 0
	}
	checks, kind = cqeL2OK|cqeL3OK, cqeIPv6
	if h.v4 {
		if kind = cqeIPv4; onesSum(h.ip[:len(h.ip)-len(h.l4)]) != 0xffff {
			checks &^= cqeL3OK
		}
	}
	if h.field == 0 || h.part {
		return checks, kind
	}
	if h.next == protoUDP {
		kind |= cqeUDP
	} else {
		kind |= cqeTCP
	}
	if h.sum() == 0xffff || h.v4 && h.next == protoUDP && be.Uint16(h.l4[h.field:]) == 0 {
		checks |= cqeL4OK
	}
	return checks, kind
}

// receiveEthernet takes a frame: the flow tables, which are the command interface's, say
// to which queues it goes.
func (d *Device) receiveEthernet(p *packet) {
	var to []Delivery
	if d.cfg.Receive != nil {
		to = d.cfg.Receive(p.data)
	}
	if len(to) == 0 {
		d.drop(p, "no flow takes the frame")
	}
	for _, x := range to {
		if r := d.rqs[x.RQ]; r != nil && r.state == WQReady {
			r.deliver(d, p, x.Tag)
		} else {
			d.drop(p, "the receive queue is not ready")
		}
	}
}

// deliver stores a frame and completes its receive WQE. The completion has the frame's tag where that of a QP has the
// QP's number, or where it is without a user index the RQ's number.
func (r *rq) deliver(d *Device, p *packet, tag uint32) {
	frame := p.data
	e := &cqe{ethernet: true, opcode: cqeRespSend, qpn: r.n}
	if r.spec.StripVLAN && len(frame) >= ethHeader+vlanTag && be.Uint16(frame[12:]) == etherVLAN {
		e.l4l3, e.vlan = cqeHasVLAN, be.Uint16(frame[14:])
		frame = append(frame[:12:12], frame[12+vlanTag:]...)
	}
	var kind uint8
	e.checks, kind = checkSums(frame)
	e.l4l3 |= kind
	if d.cfg.CQEVersion != 0 {
		e.qpn = tag
	}
	if e.srqn = r.spec.UserIndex; d.cfg.CQEVersion == 0 || e.srqn == NoUserIndex {
		e.srqn = r.spec.RMPN
	}
	w, last, ok := r.place(e, len(frame))
	if !ok {
		d.drop(p, "no receive WQE")
		r.counts.count(CountOutOfBuffer)
		return
	}
	// The sum over all behind the Ethernet header and its tags, as CHECKSUM_COMPLETE takes it.
	at, _ := behindTags(frame)
	e.checksum = onesSum(frame[at:])
	s, _ := d.scatterRecv(nil, w, r.w.pd, r.offset(e), frame)
	if last {
		w.complete()
	}
	if s != 0 {
		e.opcode, e.syndrome, e.vendor, e.qpn, e.index = cqeRespErr, s, vendorOf(s), r.n, w.index
		r.state = WQError
	}
	r.cq.post(e)
}

// place takes a WQE for a frame of n bytes, or strides of one, and says so in the completion. With last the frame is
// the WQE's last one.
func (r *rq) place(e *cqe, n int) (w *rwqe, last, ok bool) {
	if r.spec.LogStrides == 0 {
		if w, ok = r.w.take(); ok {
			e.index, e.count = w.index, uint32(n)
		}
		return w, true, ok
	}
	all := uint32(1) << r.spec.LogStrides
	need := max(1, uint32(n+1<<r.spec.LogStrideBytes-1)>>r.spec.LogStrideBytes)
	if need > all || n > strideLength {
		return nil, false, false
	}
	if r.open == nil || r.used+need > all {
		if w, ok = r.w.take(); !ok {
			return nil, false, false
		}
		if old := r.open; old != nil {
			filler := &cqe{ethernet: true, opcode: cqeRespSend, qpn: e.qpn, srqn: e.srqn}
			r.strides(filler, all-r.used)
			filler.count |= strideFiller
			old.complete()
			r.cq.post(filler)
		}
		r.open, r.used = w, 0
	}
	w = r.open
	r.strides(e, need)
	e.count |= uint32(n)
	if r.used == all {
		r.open, last = nil, true
	}
	return w, last, true
}

// Fields of byte_cnt in a striding queue's completion (struct mpwrq_cqe_bc of mlx5e: en.h).
const (
	strideLength = 1<<16 - 1 // bytes of the frame
	strideShift  = 16        // consumed strides
	strideFiller = 1 << 31   // no frame: what is left of a WQE is not used
)

// strides has a completion take the next strides.
func (r *rq) strides(e *cqe, n uint32) {
	e.index, e.wqeID, e.count = uint16(r.used), r.open.index, n<<strideShift
	r.used += n
}

// offset is where in its WQE's memory a frame begins.
func (r *rq) offset(e *cqe) int {
	if r.spec.LogStrides == 0 {
		return 0
	}
	return int(e.index) << r.spec.LogStrideBytes
}
