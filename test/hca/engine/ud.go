package engine

import "fmt"

// grhBytes is the size of the header in front of a datagram in memory.
const grhBytes = 40

// qkeyFromContext in a datagram's Q_Key: its high bit says to take the QP's own.
const qkeyFromContext = 1 << 31

// sendDatagram sends a datagram.
func (q *qp) sendDatagram(r *request) bool {
	w, d := r.w, q.d
	if w.size > q.mtu() {
		w.refuse(LocalLength, "a datagram of %d bytes, and the MTU is %d", w.size, q.mtu())
		r.fail(LocalLength)
		return false
	}
	if w.av.grh || d.cfg.LinkLayer == Ethernet {
		if i := int(w.av.sgid); i >= len(d.port.GIDs) || d.port.GIDs[i].Invalid {
			w.refuse(LocalQPOp, "entry %d of the GID table is empty", i)
			r.fail(LocalQPOp)
			return false
		}
	}
	data, why := w.gather(0, w.size)
	if why == notPresent && q.sendFault(r, faultSend, 0) {
		return false
	}
	if why != "" {
		w.refuse(LocalProt, "%s", why)
		r.fail(LocalProt)
		return false
	}
	p := &packet{
		kind: pktSend, service: UD, first: true, last: true, dest: w.av.qpn, src: q.n, psn: r.psn, data: data,
		solicited: w.solicited, hasImm: w.op == opSendImm, imm: w.imm, qkey: w.av.qkey, pkey: q.pkey(), route: w.routeOfAV(),
	}
	if p.qkey&qkeyFromContext != 0 {
		p.qkey = q.attr.QKey
	}
	switch {
	case q.spec.DethSQPN != 0:
		p.src = q.spec.DethSQPN
	case q.spec.Type == QP1:
		p.src = 1
	case q.spec.Type == QP0:
		p.src = 0
	}
	d.transmit(p)
	return true
}

// portQP finds the QP that is QP0 or QP1 of the port.
func (d *Device) portQP(t QPType) *qp {
	if all := d.special[t]; len(all) > 0 {
		return all[0]
	}
	return nil
}

// receiveDatagram takes a datagram, for one QP or a group.
func (d *Device) receiveDatagram(p *packet) {
	if p.multicast(d.cfg.LinkLayer == Ethernet) {
		all := d.mcast[p.dgid]
		if len(all) == 0 {
			d.drop(p, "no QP is in the group")
		}
		for _, q := range append([]*qp(nil), all...) {
			if q.spec.BlockLoopback && p.from == d {
				continue
			}
			q.receiveUD(p)
		}
		return
	}
	q := d.qps[p.dest]
	switch p.dest {
	case 0:
		q = d.portQP(QP0)
	case 1:
		q = d.portQP(QP1)
	}
	if q == nil || !q.datagram() {
		d.drop(p, "no such QP")
		return
	}
	q.receiveUD(p)
}

// gsiQKey is the Q_Key of QP1.
const gsiQKey = 0x80010000

// receiveUD takes a datagram for the QP.
func (q *qp) receiveUD(p *packet) {
	d := q.d
	qkey := q.attr.QKey
	if q.spec.Type == QP1 {
		qkey = gsiQKey
	}
	switch {
	case q.state < RTR || q.state == Err:
		d.drop(p, "the QP can't receive in its state")
		return
	case q.spec.Type != QP0 && p.qkey != qkey:
		d.counts.QKeyViolations++
		d.drop(p, "Q_Key")
		return
	case q.spec.Type == UD && !d.pkeyMatches(q.pkey(), p.pkey), q.spec.Type == QP1 && !d.anyPKey(p.pkey):
		d.counts.PKeyViolations++
		d.drop(p, "P_Key")
		return
	}
	if !q.commEst && q.state == RTR {
		q.commEst = true
		q.eventOf(EventCommEst)
	}
	if q.rq == nil {
		d.drop(p, "no receive queue")
		return
	}
	r, ok := q.rq.takeFor(q)
	if !ok {
		d.drop(p, "no receive WQE")
		q.counts.count(CountOutOfBuffer)
		if p.toQP0() {
			d.counts.VL15Dropped++
		}
		return
	}
	if f := q.fault(true); f != nil {
		q.recvFailed(r, Syndrome(f.syndrome), f.vendor)
		q.toError("fault injected")
		return
	}
	if s, why := d.scatterRecv(q, r, q.pd, 0, append(p.grhInMemory(), p.data...)); s != 0 {
		q.recvFailed(r, s, vendorOf(s))
		q.toError("a datagram can't be stored: " + why)
		return
	}
	op := uint8(cqeRespSend)
	imm := p.imm
	if p.hasImm {
		op = cqeRespSendImm
	} else {
		imm = uint32(p.pkey)
	}
	q.resp.recv = r
	p2 := *p
	p2.imm = imm
	q.recvDone(&p2, op, grhBytes+len(p.data), nil)
}

// anyPKey reports whether a P_Key matches one of the port's.
func (d *Device) anyPKey(k uint16) bool {
	for _, e := range d.port.PKeys {
		if d.pkeyMatches(e, k) {
			return true
		}
	}
	return false
}

const (
	protoUDP   = 17
	protoIBA   = 0x1b // the next header of a GRH
	udpBytes   = 8
	ibHeaders  = 12 + 8 + 4 // BTH, DETH and the invariant checksum
	ipv4Bytes  = 20
	ipv4Offset = grhBytes - ipv4Bytes
)

// grhInMemory is what stands in front of a datagram in memory: the GRH or IPv6 header, or
// of RoCE v2 over IPv4 that header in the last 20 bytes.
func (p *packet) grhInMemory() []byte {
	b := make([]byte, grhBytes)
	if !p.grh {
		return b
	}
	n := ibHeaders + len(p.data)
	if p.hasImm {
		n += 4
	}
	if p.v2 && mapped(p.dgid) {
		h := b[ipv4Offset:]
		h[0], h[1] = 0x45, p.tclass
		be.PutUint16(h[2:], uint16(ipv4Bytes+udpBytes+n))
		be.PutUint16(h[6:], 0x4000) // don't fragment
		h[8], h[9] = p.hops, protoUDP
		copy(h[12:16], p.sgid[12:])
		copy(h[16:20], p.dgid[12:])
		be.PutUint16(h[10:], ^onesSum(h))
		return b
	}
	be.PutUint32(b, 6<<28|uint32(p.tclass)<<20|p.flow&0xfffff)
	b[6] = protoIBA
	if p.v2 {
		b[6], n = protoUDP, n+udpBytes
	}
	be.PutUint16(b[4:], uint16(n))
	b[7] = p.hops
	copy(b[8:], p.sgid[:])
	copy(b[24:], p.dgid[:])
	return b
}

// onesSum is the ones' complement sum of the Internet checksum.
func onesSum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(be.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// String puts an address vector into words.
func (a *av) String() string {
	s := fmt.Sprintf("to QP %#x lid/sport %#x qkey %#x dckey %#x", a.qpn, a.rlid, a.qkey, a.dcKey)
	if a.extended {
		s += fmt.Sprintf(" mac %x grh %v sgid %d gid %x", a.rmac, a.grh, a.sgid, a.rgid)
	}
	return s
}
