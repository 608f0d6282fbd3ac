package engine

import (
	"fmt"
	"hash/crc32"
	"slices"
)

// Packets between two cards stay what they are. One to a port that has no address of RoCE v2, because nobody
// uses RDMA there, goes as a frame to the Ethernet driver; and a frame with a packet of RoCE v2 goes to the
// queue pairs of a port that has the address. So programs that speak RoCE v2 over UDP sockets reach cards.

const (
	rocePort = 4791

	etherIPv4  = 0x0800
	etherIPv6  = 0x86dd
	ipv6Bytes  = 40
	bthBytes   = 12
	icrcBytes  = 4
	firstSport = 0xc000 // where a route has no source port

	bthSolicited = 0x80
	bthMigReq    = 0x40 // no alternate path is modelled: the state of migration is always MIGRATED
	bthAckReq    = 0x80
)

// The services in the high bits of an opcode.
const (
	wireRC = 0x00
	wireUC = 0x20
	wireUD = 0x60
)

// wireOp is what an opcode says, without its service.
type wireOp struct {
	kind        pktKind
	first, last bool
	imm, inv    bool
	reth, aeth  bool
}

// wireOps are the opcodes (IBTA volume 1, table 38) of RC; the others have some of them.
var wireOps = map[uint8]wireOp{
	0x00: {kind: pktSend, first: true}, 0x01: {kind: pktSend}, 0x02: {kind: pktSend, last: true}, 0x03: {kind: pktSend, last: true, imm: true},
	0x04: {kind: pktSend, first: true, last: true}, 0x05: {kind: pktSend, first: true, last: true, imm: true},
	0x06: {kind: pktWrite, first: true, reth: true}, 0x07: {kind: pktWrite}, 0x08: {kind: pktWrite, last: true}, 0x09: {kind: pktWrite, last: true, imm: true},
	0x0a: {kind: pktWrite, first: true, last: true, reth: true}, 0x0b: {kind: pktWrite, first: true, last: true, reth: true, imm: true},
	0x0c: {kind: pktReadReq, first: true, last: true, reth: true},
	0x0d: {kind: pktReadResp, first: true, aeth: true}, 0x0e: {kind: pktReadResp}, 0x0f: {kind: pktReadResp, last: true, aeth: true},
	0x10: {kind: pktReadResp, first: true, last: true, aeth: true},
	0x11: {kind: pktAck, first: true, last: true, aeth: true}, 0x12: {kind: pktAtomicResp, first: true, last: true, aeth: true},
	wireCAS: {kind: pktAtomicReq, first: true, last: true}, wireFAA: {kind: pktAtomicReq, first: true, last: true},
	0x16: {kind: pktSend, last: true, inv: true}, 0x17: {kind: pktSend, first: true, last: true, inv: true},
}

// The opcodes of atomics.
const (
	wireCAS = 0x13
	wireFAA = 0x14
)

// wireServices are the services that have opcodes here. Datagrams of QP1 are of UD.
var wireServices = map[QPType]uint8{RC: wireRC, UC: wireUC, UD: wireUD}

// opcode returns the opcode of a packet. It reports false if there is none: XRC and masked atomics are for cards.
func (p *packet) opcode() (uint8, bool) {
	service, ok := wireServices[p.service]
	switch {
	case !ok || p.op == opMaskedCAS || p.op == opMaskedFAA:
		return 0, false
	case p.kind == pktAtomicReq && p.op == opCAS:
		return service | wireCAS, true
	case p.kind == pktAtomicReq:
		return service | wireFAA, true
	}
	for op, w := range wireOps {
		if w.kind == p.kind && w.first == p.first && w.last == p.last && w.imm == p.hasImm && w.inv == p.invalidate {
			return service | op, true
		}
	}
	return 0, false
}

// frame returns a packet as an Ethernet frame, or nil if it has no form of RoCE v2.
func (p *packet) frame() []byte {
	op, ok := p.opcode()
	if !ok || !p.v2 || p.tagged {
		return nil
	}
	ib := p.transport(op)
	n := udpBytes + len(ib) + icrcBytes
	b := slices.Concat(p.dmac[:], p.smac[:])
	if mapped(p.dgid) {
		b = be.AppendUint16(b, etherIPv4)
		at := len(b)
		b = append(b, 0x45, p.tclass)
		b = be.AppendUint16(b, uint16(ipv4Bytes+n))
		b = append(b, 0, 0, 0x40, 0, p.ttl(), protoUDP, 0, 0) // ID 0, don't fragment
		b = append(append(b, p.sgid[12:]...), p.dgid[12:]...)
		be.PutUint16(b[at+10:], ^onesSum(b[at:]))
	} else {
		b = be.AppendUint16(b, etherIPv6)
		b = be.AppendUint32(b, 6<<28|uint32(p.tclass)<<20|p.flow&0xfffff)
		b = be.AppendUint16(b, uint16(n))
		b = append(b, protoUDP, p.ttl())
		b = append(append(b, p.sgid[:]...), p.dgid[:]...)
	}
	sport := p.sport
	if sport == 0 {
		sport = firstSport
	}
	b = be.AppendUint16(b, sport)
	b = be.AppendUint16(b, rocePort)
	b = be.AppendUint16(b, uint16(n))
	b = append(be.AppendUint16(b, 0), ib...) // without a checksum, as annex A17 has it
	sum := icrc(b[ethHeader:])
	return append(b, byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24))
}

// ttl is how many routers a packet may cross.
func (r *route) ttl() uint8 {
	if r.hops == 0 {
		return 64
	}
	return r.hops
}

// transport returns the headers from the BTH on, the data and its padding.
func (p *packet) transport(op uint8) []byte {
	w := wireOps[op&0x1f]
	flags := uint8(bthMigReq) | uint8(-len(p.data)&3)<<4
	if p.solicited {
		flags |= bthSolicited
	}
	b := []byte{op, flags}
	b = be.AppendUint16(b, p.pkey)
	b = be.AppendUint32(b, p.dest)
	psn := p.psn
	if p.ackReq {
		psn |= bthAckReq << 24
	}
	b = be.AppendUint32(b, psn)
	if op&^0x1f == wireUD {
		b = be.AppendUint32(b, p.qkey)
		b = be.AppendUint32(b, p.src)
	}
	if w.reth {
		b = be.AppendUint32(be.AppendUint32(be.AppendUint64(b, p.va), p.rkey), p.length)
	}
	if w.kind == pktAtomicReq {
		b = be.AppendUint32(be.AppendUint64(b, p.va), p.rkey)
		b = be.AppendUint64(be.AppendUint64(b, p.args[0]), p.args[1])
	}
	if w.aeth {
		syndrome := p.syndrome
		if w.kind != pktAck {
			syndrome = ackOK
		}
		b = be.AppendUint32(b, uint32(syndrome)<<24|p.msn)
	}
	if w.imm || w.inv {
		b = be.AppendUint32(b, p.imm)
	}
	b = append(b, p.data...)
	return append(b, make([]byte, -len(p.data)&3)...)
}

// icrc computes the ICRC of an IP packet that ends before it (annex A17).
func icrc(ip []byte) uint32 {
	m := append(slices.Repeat([]byte{0xff}, 8), ip...) // in place of the LRH
	h := m[8:]
	udp := ipv4Bytes
	if h[0]>>4 == 4 {
		h[1], h[8], h[10], h[11] = 0xff, 0xff, 0xff, 0xff // TOS, TTL, checksum
	} else {
		udp = ipv6Bytes
		h[0], h[1], h[2], h[3], h[7] = 0x6f, 0xff, 0xff, 0xff, 0xff // traffic class, flow label, hop limit
	}
	h[udp+6], h[udp+7], h[udp+udpBytes+4] = 0xff, 0xff, 0xff // checksum; FECN, BECN and reserved bits
	return crc32.ChecksumIEEE(m)
}

// A roceFrame is a frame that is being read.
type roceFrame struct {
	p    *packet
	rest []byte
}

// parseFrame reads a frame with a packet of RoCE v2. It returns nil and no error if it is another
// frame. It does not look for the queue pair, which receive does; src is 0 if it is not in the
// frame.
func parseFrame(frame []byte) (*packet, error) {
	f := roceFrame{p: &packet{route: route{grh: true, v2: true}}}
	ip := f.network(frame)
	if ip == nil || len(f.rest) < udpBytes || be.Uint16(f.rest[2:]) != rocePort {
		return nil, nil
	}
	f.p.sport = be.Uint16(f.rest)
	if f.rest = f.rest[udpBytes:]; len(f.rest) < bthBytes+icrcBytes {
		return nil, fmt.Errorf("a packet of %d bytes", len(f.rest))
	}
	end := len(f.rest) - icrcBytes
	sum := f.rest[end:]
	if got, want := uint32(sum[0])|uint32(sum[1])<<8|uint32(sum[2])<<16|uint32(sum[3])<<24, icrc(ip[:len(ip)-icrcBytes]); got != want {
		return nil, fmt.Errorf("ICRC %08x, and %08x is right", got, want)
	}
	f.rest = f.rest[:end]
	return f.p, f.transport()
}

// network reads the headers before UDP, and returns the IP packet, or nil if it has no UDP.
func (f *roceFrame) network(b []byte) (ip []byte) {
	if len(b) < ethHeader+ipv4Bytes+udpBytes {
		return nil
	}
	p := f.p
	copy(p.dmac[:], b)
	copy(p.smac[:], b[6:])
	ip = b[ethHeader:]
	n := 0
	switch be.Uint16(b[12:]) {
	case etherIPv4:
		if n = int(be.Uint16(ip[2:])); ip[0] != 0x45 || ip[9] != protoUDP || n > len(ip) || n < ipv4Bytes+udpBytes {
			return nil
		}
		p.tclass, p.hops = ip[1], ip[8]
		p.sgid, p.dgid = mappedGID(ip[12:16]), mappedGID(ip[16:20])
		f.rest = ip[ipv4Bytes:n]
	case etherIPv6:
		if len(ip) < ipv6Bytes+udpBytes || ip[6] != protoUDP {
			return nil
		}
		if n = ipv6Bytes + int(be.Uint16(ip[4:])); n > len(ip) || n < ipv6Bytes+udpBytes {
			return nil
		}
		head := be.Uint32(ip)
		p.tclass, p.flow, p.hops = uint8(head>>20), head&0xfffff, ip[7]
		copy(p.sgid[:], ip[8:])
		copy(p.dgid[:], ip[24:])
		f.rest = ip[ipv6Bytes:n]
	default:
		return nil
	}
	return ip[:n]
}

// mappedGID is the GID of an IPv4 address.
func mappedGID(addr []byte) (gid [16]byte) {
	gid[10], gid[11] = 0xff, 0xff
	copy(gid[12:], addr)
	return gid
}

// take takes a header of n bytes. If it is not there, it returns zeros, and rest is nil from then on.
func (f *roceFrame) take(n int) []byte {
	if len(f.rest) < n || f.rest == nil {
		f.rest = nil
		return make([]byte, n)
	}
	b := f.rest[:n]
	f.rest = f.rest[n:]
	return b
}

// transport reads the headers from the BTH on, and the data.
func (f *roceFrame) transport() error {
	p, bth := f.p, f.take(bthBytes)
	w, known := wireOps[bth[0]&0x1f]
	service := bth[0] &^ 0x1f
	for typ, s := range wireServices {
		if s == service {
			p.service = typ
		}
	}
	datagram := service == wireUD
	if !known || wireServices[p.service] != service || datagram && (w.kind != pktSend || !w.first || !w.last || w.inv) || bth[1]&0xf != 0 {
		return fmt.Errorf("opcode %#x of version %d", bth[0], bth[1]&0xf)
	}
	p.kind, p.first, p.last, p.hasImm, p.invalidate = w.kind, w.first, w.last, w.imm, w.inv
	p.solicited, p.pkey = bth[1]&bthSolicited != 0, be.Uint16(bth[2:])
	p.dest, p.psn, p.ackReq = be.Uint32(bth[4:])&maxNumber, be.Uint32(bth[8:])&psnMask, bth[8]&bthAckReq != 0
	if datagram {
		b := f.take(8)
		p.qkey, p.src = be.Uint32(b), be.Uint32(b[4:])&maxNumber
	}
	if w.reth {
		b := f.take(16)
		p.va, p.rkey, p.length = be.Uint64(b), be.Uint32(b[8:]), be.Uint32(b[12:])
	}
	if w.kind == pktAtomicReq {
		b := f.take(28)
		p.va, p.rkey, p.length = be.Uint64(b), be.Uint32(b[8:]), 8
		p.op, p.args = opFAA, [4]uint64{be.Uint64(b[12:])}
		if bth[0]&0x1f == wireCAS {
			p.op, p.args = opCAS, [4]uint64{be.Uint64(b[12:]), be.Uint64(b[20:]), ^uint64(0), ^uint64(0)}
		}
	}
	if w.aeth {
		b := f.take(4)
		p.syndrome, p.msn = b[0], be.Uint32(b)&psnMask
	}
	if w.imm || w.inv {
		p.imm = be.Uint32(f.take(4))
	}
	pad := int(bth[1] >> 4 & 3)
	if f.rest == nil || len(f.rest) < pad || len(f.rest)%4 != 0 {
		return fmt.Errorf("opcode %#x with %d bytes of data and %d of padding", bth[0], len(f.rest), pad)
	}
	p.data = f.rest[:len(f.rest)-pad]
	return nil
}

// usesRoCE reports whether the port has an address of RoCE v2.
func (d *Device) usesRoCE() bool {
	return slices.ContainsFunc(d.port.GIDs, func(g GID) bool { return !g.Invalid && g.RoCEv2 })
}

// receiveFrame takes a frame: for queue pairs if it has a packet of RoCE v2 and the port has its address, and else
// for the Ethernet driver.
func (d *Device) receiveFrame(p *packet) {
	ib, err := parseFrame(p.data)
	switch {
	case ib == nil && err == nil, !d.usesRoCE():
		d.receiveEthernet(p)
		return
	case err != nil:
		d.drop(p, "RoCE v2: "+err.Error())
		return
	}
	ib.from = p.from
	if q := d.qps[ib.dest]; q != nil && !q.datagram() {
		ib.src = q.attr.RemoteQPN
	}
	d.receive(ib)
}

// Way says whether a port sends or receives a packet.
type Way uint8

// The ways of a packet.
const (
	Received Way = iota
	Sent
)

// count shows a packet to whom counts those of RoCE v2.
func (d *Device) count(way Way, p *packet) {
	if d.cfg.Count != nil && p.kind != pktEth && p.v2 {
		d.cfg.Count(way, p.frame)
	}
}

// receiveAsFrame gives a packet to the Ethernet driver of a port without RoCE.
func (d *Device) receiveAsFrame(p *packet) {
	frame := p.frame()
	if frame == nil {
		d.drop(p, "no packet of RoCE v2")
		return
	}
	d.receiveEthernet(&packet{kind: pktEth, from: p.from, src: p.src, data: frame, route: route{smac: p.smac, dmac: p.dmac}})
}
