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

// checksums fills in the checksum of an IPv4 header, and that of TCP or UDP.
func checksums(frame []byte, l3, l4 bool) {
	at, proto := behindTags(frame)
	ip := frame[at:]
	var l4At int
	var next uint8
	var pseudo uint32
	switch {
	case proto == 0x0800 && len(ip) >= ipv4Bytes && int(ip[0]&0xf)*4 >= ipv4Bytes && len(ip) >= int(ip[0]&0xf)*4:
		l4At, next = int(ip[0]&0xf)*4, ip[9]
		if l3 {
			be.PutUint16(ip[10:], 0)
			be.PutUint16(ip[10:], ^onesSum(ip[:l4At]))
		}
		if n := int(be.Uint16(ip[2:])); n >= l4At && n <= len(ip) {
			ip = ip[:n] // what pads a short frame isn't summed
		}
		pseudo = uint32(onesSum(ip[12:20]))
	case proto == 0x86dd && len(ip) >= 40:
		l4At, next = 40, ip[6]
		if n := 40 + int(be.Uint16(ip[4:])); n <= len(ip) {
			ip = ip[:n]
		}
		pseudo = uint32(onesSum(ip[8:40]))
	default:
		return
	}
	field := map[uint8]int{6: 16, protoUDP: 6}[next]
	if body := ip[l4At:]; l4 && field > 0 && len(body) >= field+2 {
		be.PutUint16(body[field:], 0)
		sum := pseudo + uint32(next) + uint32(len(body)) + uint32(onesSum(body))
		for sum>>16 != 0 {
			sum = sum&0xffff + sum>>16
		}
		c := ^uint16(sum)
		if c == 0 && next == protoUDP {
			c = 0xffff
		}
		be.PutUint16(body[field:], c)
	}
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
	w, ok := r.w.take()
	if !ok {
		d.drop(p, "no receive WQE")
		r.counts.count(CountOutOfBuffer)
		return
	}
	frame := p.data
	e := &cqe{ethernet: true, opcode: cqeRespSend, qpn: r.n, index: w.index}
	if r.spec.StripVLAN && len(frame) >= ethHeader+vlanTag && be.Uint16(frame[12:]) == etherVLAN {
		e.l4l3, e.vlan = cqeHasVLAN, be.Uint16(frame[14:])
		frame = append(frame[:12:12], frame[12+vlanTag:]...)
	}
	if e.count = uint32(len(frame)); d.cfg.CQEVersion != 0 {
		e.qpn = tag
	}
	if e.srqn = r.spec.UserIndex; d.cfg.CQEVersion == 0 || e.srqn == NoUserIndex {
		e.srqn = r.spec.RMPN
	}
	// The sum over all behind the Ethernet header and its tags, as CHECKSUM_COMPLETE takes it.
	at, _ := behindTags(frame)
	e.checksum = onesSum(frame[at:])
	s, _ := d.scatterRecv(nil, w, r.w.pd, 0, frame)
	w.complete()
	if s != 0 {
		e.opcode, e.syndrome, e.vendor, e.qpn = cqeRespErr, s, vendorOf(s), r.n
		r.state = WQError
	}
	r.cq.post(e)
}
