package efa

// grhSize is the size of the header in front of the data of a UD receive.
const grhSize = 40

// deliver executes a send request, unless it has to wait.
func (d *Device) deliver(m *message) {
	peer, q, s := d.target(m)
	if s == ioOK && q == nil { // a datagram that is lost
		d.sent(m, ioOK)
		return
	}
	if s == ioRNR { // SRD: a datagram is lost
		if m.tries++; m.from.rnrRetry == forever {
			d.f.parked = append(d.f.parked, m)
			return
		} else if m.tries <= int(m.from.rnrRetry) {
			d.f.late = append(d.f.late, m)
			return
		}
	}
	if s == ioOK {
		s = d.transfer(m, peer, q)
	}
	d.sent(m, s)
}

// target finds out where a message goes. Without an error and without a QP it goes nowhere, which the sender of a
// datagram does not learn.
func (d *Device) target(m *message) (*Device, *qp, uint8) {
	limit := uint64(mtu)
	if m.op != ioSend {
		limit = maxRDMA
	}
	a := d.ahs[m.ah]
	switch {
	case m.bad != ioOK:
		return nil, nil, m.bad
	case a == nil || a.pd != m.from.pd:
		return nil, nil, ioBadAH
	case m.length > limit:
		return nil, nil, ioTooLong
	}
	for _, g := range m.local {
		perms := uint8(0)
		if m.op == ioRead {
			perms = permLocalWrite
		}
		if !d.mrs[g.key].holds(m.from.pd, g.addr, uint64(g.length), perms) {
			return nil, nil, ioBadLKey
		}
	}
	peer := d.f.ports[a.gid]
	if peer == nil {
		return nil, nil, m.lost(ioUnreachable)
	}
	q := peer.qps[m.to%maxQPs]
	switch {
	case q == nil || q.number != m.to || q.kind != m.from.kind || q.state < stateRTR || q.state == stateError:
		peer.stats.rxDrops++
		return nil, nil, m.lost(ioNoQP)
	case q.qkey != m.qkey:
		peer.stats.qkeyErrors++
		return nil, nil, m.lost(ioNoQP)
	case m.op != ioSend && peer.ahOf(q.pd, d.gid) == nil:
		return nil, nil, ioUnknownPeer
	case m.op == ioWrite && m.hasImm && m.from.unsolicited != q.unsolicited:
		return nil, nil, ioMismatch
	case q.needs(m) && len(q.rq.requests) == 0:
		if m.from.kind == typeUD {
			peer.stats.rxDrops++
		}
		return nil, nil, m.lost(ioRNR)
	}
	return peer, q, ioOK
}

// lost is a status that the sender of a datagram does not learn.
func (m *message) lost(status uint8) uint8 {
	if m.from.kind == typeUD {
		return ioOK
	}
	return status
}

// needs reports whether a message uses a receive of the QP.
func (q *qp) needs(m *message) bool {
	return m.op == ioSend || m.op == ioWrite && m.hasImm && !q.unsolicited
}

// transfer moves the data of a message and completes the receive that it uses.
func (d *Device) transfer(m *message, peer *Device, q *qp) uint8 {
	here, ok := m.data(d)
	if !ok {
		return ioBadLKey
	}
	if m.op != ioSend {
		return d.transferRDMA(m, here, peer, q)
	}
	length := m.length
	if q.kind == typeUD {
		here, length = append([][]byte{header(d, peer, m.length)}, here...), length+grhSize
	}
	r := q.rq.requests[0]
	room := uint64(0)
	var there [][]byte
	for _, g := range r.local {
		region := peer.mrs[g.key]
		if !region.holds(q.pd, g.addr, uint64(g.length), permLocalWrite) {
			peer.received(q, m, q.take(), ioBadLKey, 0)
			return m.lost(ioBadStatus)
		}
		room += uint64(g.length)
		if there, ok = peer.memory(region, g.addr, uint64(g.length), there); !ok {
			peer.received(q, m, q.take(), ioBadLKey, 0)
			return m.lost(ioBadStatus)
		}
	}
	if room < length {
		peer.stats.rxDrops++
		return m.lost(ioTooShort)
	}
	move(there, here)
	peer.stats.rxPackets++
	peer.stats.rxBytes += m.length
	peer.received(q, m, q.take(), ioOK, length)
	return ioOK
}

// transferRDMA moves the data of an RDMA request.
func (d *Device) transferRDMA(m *message, here [][]byte, peer *Device, q *qp) uint8 {
	perms := uint8(permRemoteWrite)
	if m.op == ioRead {
		perms = permRemoteRead
	}
	if m.length > 0 {
		region := peer.rkeys[m.remote.key]
		if !region.holds(q.pd, m.remote.addr, m.length, perms) {
			return ioRemoteAddr
		}
		there, ok := peer.memory(region, m.remote.addr, m.length, nil)
		if !ok {
			return ioRemoteAddr
		}
		if m.op == ioRead {
			move(here, there)
		} else {
			move(there, here)
		}
	}
	if m.op == ioRead {
		peer.stats.readAnswered += m.length
		peer.countEvent(q, eventRemoteRead, ioOK)
		return ioOK
	}
	peer.stats.writeReceived += m.length
	peer.countEvent(q, eventRemoteWrite, ioOK)
	if m.hasImm {
		var r *receive
		if q.needs(m) {
			r = q.take()
		}
		peer.received(q, m, r, ioOK, m.length)
	}
	return ioOK
}

// data gives the memory of a message at the sender.
func (m *message) data(d *Device) ([][]byte, bool) {
	if m.inline != nil {
		return [][]byte{m.inline}, true
	}
	var all [][]byte
	for _, g := range m.local {
		var ok bool
		if all, ok = d.memory(d.mrs[g.key], g.addr, uint64(g.length), all); !ok {
			return nil, false
		}
	}
	return all, true
}

// move copies pieces of memory to others, which have room for them.
func move(to, from [][]byte) {
	for _, b := range from {
		for len(b) > 0 {
			n := copy(to[0], b)
			b = b[n:]
			if to[0] = to[0][n:]; len(to[0]) == 0 {
				to = to[1:]
			}
		}
	}
}

// header is the GRH of a datagram.
func header(from, to *Device, length uint64) []byte {
	b := make([]byte, grhSize)
	b[0], b[4], b[5], b[6], b[7] = 6<<4, byte(length>>8), byte(length), 0x1b, 64
	copy(b[8:], from.gid[:])
	copy(b[24:], to.gid[:])
	return b
}
