package fault

import (
	"encoding/binary"
	"math"
	"math/bits"
	"net/netip"
	"time"

	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// packet is what the rules look at.
type packet struct {
	dir   Direction // Sent or Received
	peer  netip.AddrPort
	qpn   uint32 // destination
	srcQP uint32 // of datagrams, else 0
	class Class
	size  int
}

// look reads what the rules need. A packet that is too short for it belongs to no class and to QP 0.
func look(dir Direction, peer netip.AddrPort, b []byte) packet {
	p := packet{dir: dir, peer: peer, size: len(b)}
	if len(b) < wire.BTHSize {
		return p
	}
	op := wire.Opcode(b[0])
	p.qpn = binary.BigEndian.Uint32(b[4:]) & wire.QPNMask
	p.class = classOf(op, p.qpn)
	if p.class == Ack && len(b) > wire.BTHSize {
		if s := b[wire.BTHSize]; wire.TypeOf(s) == wire.NAK && s != wire.SyndromeSequence {
			p.class = Nak
		}
	}
	if op.HasDETH() && len(b) >= wire.BTHSize+wire.DETHSize {
		p.srcQP = binary.BigEndian.Uint32(b[wire.BTHSize+4:]) & wire.QPNMask
	}
	return p
}

// classOf returns the class of a packet, 0 if its opcode is unknown.
func classOf(op wire.Opcode, qpn uint32) Class {
	switch {
	case !op.Known():
		return 0
	case qpn == wire.GSIQP:
		return MAD
	case op.IsSend():
		return Send
	case op.IsWrite():
		return Write
	case op.IsReadRequest():
		return Read
	case op == wire.RC|wire.Acknowledge:
		return Ack
	case op.IsResponse():
		return Response
	case op == wire.RC|wire.Flush:
		return Flush
	default:
		return Atomic
	}
}

// streamKey names a stream: packets of which the order does not depend on the scheduling of
// goroutines, because one side of one queue pair makes them.
type streamKey struct {
	rule     int // index of the rule that selects the packets
	dir      Direction
	peer     netip.AddrPort
	qpn      uint32
	srcQP    uint32
	response bool // acknowledgements and responses, which are made by the responder
}

// key returns the stream of a packet.
func (p *packet) key(rule int) streamKey {
	return streamKey{
		rule: rule, dir: p.dir, peer: p.peer, qpn: p.qpn, srcQP: p.srcQP,
		response: p.class&(Ack|Nak|Response) != 0,
	}
}

// random returns the number from which the draws of the stream's packets follow. The port of the
// peer separates streams and does not count here, since the system may choose it.
func (k *streamKey) random(seed uint64) uint64 {
	a := plain(k.peer.Addr()).As16()
	h := mix(seed)
	for _, part := range [...]uint64{
		uint64(k.rule), uint64(k.dir),
		binary.BigEndian.Uint64(a[:8]), binary.BigEndian.Uint64(a[8:]),
		uint64(k.qpn), uint64(k.srcQP),
	} {
		h = mix(h ^ part)
	}
	if k.response {
		h = mix(h)
	}
	return h
}

// golden is 2^64 divided by the golden ratio, an odd number with well-mixed bits.
const golden = 0x9e3779b97f4a7c15

// mix is the output function of SplitMix64: it turns a counter into a random number.
func mix(x uint64) uint64 {
	x += golden
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// fate is what happens to one copy of a packet.
type fate struct {
	corrupt bool
	bit     uint64        // random number that chooses the bit to flip
	behind  int           // 0, or how many packets overtake this one
	delay   time.Duration // 0, or how long it is delayed
}

// decision is what happens to a packet.
type decision struct {
	lost   bool
	copies int // 1 or 2
	fates  [2]fate
}

// decide returns the decision for packet n of a stream, counted from 0. It depends on nothing but its
// arguments. random is the random number of the stream.
func (r *Rule) decide(random, n uint64) decision {
	d := drawer{mix(random ^ mix(n))}
	if r.Loss.hits(d.next()) {
		return decision{lost: true}
	}
	out := decision{copies: 1}
	if r.Duplicate.hits(d.next()) {
		out.copies = 2
	}
	for i := range out.copies {
		out.fates[i] = r.fate(&d)
	}
	return out
}

// drawer makes random numbers for one packet.
type drawer struct{ state uint64 }

func (d *drawer) next() uint64 {
	d.state += golden
	return mix(d.state)
}

// fate decides about one copy of a packet. It takes the same number of draws for every packet, so
// that a change of one chance leaves other decisions as they are.
func (r *Rule) fate(d *drawer) (f fate) {
	f.corrupt, f.bit = r.Corrupt.hits(d.next()), d.next()
	reorder, delayed, much := d.next(), d.next(), d.next()
	chance := r.Delayed
	if chance == 0 {
		chance = Always
	}
	switch {
	case r.Reorder.hits(reorder):
		f.behind = r.behind()
	case r.Delay != Delay{} && chance.hits(delayed):
		f.delay = r.Delay.draw(much)
	}
	return f
}

func (r *Rule) behind() int {
	if r.Behind == 0 {
		return DefaultBehind
	}
	return r.Behind
}

func (r *Rule) hold() time.Duration {
	if r.Hold == 0 {
		return DefaultHold
	}
	return r.Hold
}

// longestMean is the longest exponential delay, in means.
const longestMean = 16

// draw returns the delay for a random number.
func (d Delay) draw(random uint64) time.Duration {
	switch {
	case d.Max > d.Min:
		part, _ := bits.Mul64(random, uint64(d.Max-d.Min)+1)
		return d.Min + time.Duration(part)
	case d.Mean > 0:
		u := float64(random>>11+1) / (1 << 53) // 2^-53 to 1
		part := min(-math.Log(u), longestMean) * float64(d.Mean)
		// Whole microseconds: math.Log may differ in its last bit between processors.
		return d.Min + time.Duration(part).Round(time.Microsecond)
	}
	return d.Min
}

// minPacket is the size of the shortest packet with an ICRC.
const minPacket = wire.BTHSize + wire.ICRCSize

// flip returns the bit to flip in a packet of n bytes, counted from the highest bit of byte 0. It
// is one that the ICRC covers: byte 4 of the BTH is not. Preconditions: n >= minPacket.
func flip(random uint64, n int) int {
	part, _ := bits.Mul64(random, uint64(n-1)*8)
	if part >= uncovered*8 {
		part += 8
	}
	return int(part)
}

// uncovered is the byte of a packet that its ICRC does not cover.
const uncovered = 4
