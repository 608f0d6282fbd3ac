package engine

import "fmt"

// recvSegment is an entry of a receive WQE's scatter list.
type recvSegment struct {
	addr uint64
	lkey uint32
	n    int
}

// segments reads the scatter list, and checks it.
func (r *rwqe) segments(d *Device) []recvSegment {
	var out []recvSegment
	for b := r.raw; len(b) >= 16; b = b[16:] {
		n, lkey := be.Uint32(b), be.Uint32(b[4:])
		if lkey == TerminateLKey {
			break
		}
		if r.w.padded {
			n &^= inlineSegment
		}
		if n&inlineSegment != 0 {
			d.violate("rq-inline", r.w.qpn(), "%s %#x WQE %#x: a scatter entry with the inline bit: %x", r.w.kind, r.w.n, r.index, b[:16])
			break
		}
		if n == 0 {
			d.violate("rq-data-zero", r.w.qpn(), "%s %#x WQE %#x: a scatter entry of length 0 stands for 2 GiB: %x", r.w.kind, r.w.n, r.index, b[:16])
			n = 1 << 31
		}
		out = append(out, recvSegment{addr: be.Uint64(b[8:]), lkey: lkey, n: int(n)})
	}
	return out
}

// room is how many bytes a receive WQE takes.
func (r *rwqe) room(d *Device) (n int) {
	for _, s := range r.segments(d) {
		n += s.n
	}
	return n
}

// scatterRecv writes a part of a message to where a receive WQE says.
func (d *Device) scatterRecv(q *qp, r *rwqe, p *pd, off int, data []byte) (Syndrome, string) {
	pos := 0
	var all []extent
	for _, s := range r.segments(d) {
		from, to := max(off, pos), min(off+len(data), pos+s.n)
		if from < to {
			var why string
			if all, why = d.walk(all, s.lkey, q, p.n, s.addr+uint64(from-pos), uint64(to-from), LocalWrite, 0); why != "" {
				return LocalProt, why
			}
		}
		pos += s.n
	}
	if err := d.store(all, data[:length(all)]); err != nil {
		return LocalProt, err.Error()
	}
	if off+len(data) > pos {
		return LocalLength, fmt.Sprintf("a message of at least %d bytes for a receive WQE of %d", off+len(data), pos)
	}
	return 0, ""
}

// cqOf is the CQ to which a receive WQE completes: of an XRC SRQ its own.
func (q *qp) cqOf(r *rwqe) *cq {
	if r.w.cq != nil && r.w.spec.XRC {
		return r.w.cq
	}
	return q.recvCQ
}

// indexOf is what the completion of a receive WQE says about whose it is.
func (q *qp) indexOf(r *rwqe) uint32 {
	if !r.w.spec.XRC {
		return q.userIndex(true)
	}
	if q.d.cfg.CQEVersion == 0 || r.w.spec.UserIndex == NoUserIndex {
		return r.w.n
	}
	return r.w.spec.UserIndex
}

// recvDone completes the receive WQE of the message.
func (q *qp) recvDone(p *packet, op uint8, n int, inline []byte) {
	r := q.resp.recv
	q.resp.recv = nil
	r.complete()
	e := &cqe{
		opcode: op, qpn: q.n, srqn: q.indexOf(r), index: r.index, imm: p.imm, count: uint32(n), solicited: p.solicited,
		slid: p.slid, flagsRQPN: q.remoteFlags(p), inline: inline, mlPath: q.attr.Primary.PathBits,
	}
	if p.tagged {
		e.l4l3, e.vlan = cqeHasVLAN, uint16(p.sl)<<13|p.vlan&0xfff
	}
	q.cqOf(r).post(e)
}

// cqeHasVLAN in l4_l3_hdr_type says that vlan_info counts.
const cqeHasVLAN = 1

// Kinds of RoCE packets in flags_rqpn (MLX5_CQE_ROCE_L3_HEADER_TYPE_*).
const (
	roceGRH  = 0
	roceIPv6 = 1
	roceIPv4 = 2
)

// remoteFlags are the service level, the kind of header and the source QP.
func (q *qp) remoteFlags(p *packet) uint32 {
	f := p.src & maxNumber
	if p.grh {
		f |= 1 << 28
	}
	if q.d.cfg.LinkLayer == InfiniBand {
		return f | uint32(p.sl&0xf)<<24
	}
	switch {
	case !p.v2:
		f |= roceGRH << 24
	case mapped(p.dgid):
		f |= roceIPv4 << 24
	default:
		f |= roceIPv6 << 24
	}
	return f
}

// mapped reports whether a GID is an IPv4 address.
func mapped(gid [16]byte) bool {
	return zero(gid[:10]) && gid[10] == 0xff && gid[11] == 0xff
}

// recvFailed completes a receive WQE with an error.
func (q *qp) recvFailed(r *rwqe, s Syndrome, vendor uint8) {
	if q.resp.recv == r {
		q.resp.recv = nil
	}
	r.complete()
	q.counts.countRespError(s)
	q.cqOf(r).post(&cqe{opcode: cqeRespErr, qpn: q.n, srqn: q.indexOf(r), index: r.index, syndrome: s, vendor: vendor, solicited: true})
}
