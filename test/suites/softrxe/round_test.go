package softrxe

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// The memory of an end in the walk. No request reads memory that another one may write at the same
// time, so that the contents afterwards do not depend on which was first.
const (
	areaSize   = 63 << 10
	sourceArea = 0            // data of SENDs and WRITEs, and what READs of the peer read
	resultArea = areaSize     // what own READs and atomics bring
	targetArea = 2 * areaSize // of the peer's WRITEs and atomics
	recvArea   = 3 * areaSize // of receives
	headerArea = 4 * areaSize // of the GRHs of datagrams
	longest    = 24_000       // of a message, in bytes
	datagram   = 1024         // the longest datagram, in bytes: the MTU of the port
	roundBytes = 60_000       // of a round, which fit into a socket's receive buffer
	maxOps     = 12
	ucPackets  = 48 // of an end of UC in a round, if all are full; at most 60 in all, as rxe may stop at 65
)

// fault is the error that a request of a round provokes.
type fault int

// Faults.
const (
	noFault      fault = iota
	wrongRKey          // no MR has the rkey
	outOfRange         // the range ends behind the MR
	notBound           // the rkey belongs to a memory window that is not bound
	shortReceive       // the receive is too short
	noReceive          // there is no receive
	wrongLKey          // no MR has the lkey of a receive
)

// piece is a part of an end's memory.
type piece struct{ offset, length int }

// holds reports whether another piece lies in this one.
func (p piece) holds(other piece) bool {
	return other.offset >= p.offset && other.offset+other.length <= p.offset+p.length
}

// op is a request of a round, the same for all pairings.
type op struct {
	opcode uverbs.WROpcode
	flags  uverbs.SendFlags
	local  []piece
	inline bool // the data of the first piece, which is the only one
	remote int  // offset in the peer's memory
	window bool // the rkey belongs to the peer's memory window
	flush  int  // how many bytes a FLUSH covers; 0: the whole region
	imm    uint32
	values [2]uint64
	recv   []piece // of the receive that it takes
	takes  bool    // whether it takes one
	lost   bool    // a datagram with a wrong Q_Key, which takes no receive
	fault  fault
}

// sends reports whether a request is a SEND.
func (o *op) sends() bool {
	return o.opcode == uverbs.WRSend || o.opcode == uverbs.WRSendWithImm || o.opcode == uverbs.WRSendWithInv
}

// String returns the request in words.
func (o *op) String() string {
	s := fmt.Sprintf("%s flags %#x local %v", o.opcode, o.flags, o.local)
	if !o.sends() {
		s += fmt.Sprintf(" remote %d", o.remote)
	}
	for _, mark := range []struct {
		word string
		set  bool
	}{{" inline", o.inline}, {" window", o.window}, {" lost", o.lost}} {
		if mark.set {
			s += mark.word
		}
	}
	if o.opcode == uverbs.WRFlush {
		s += fmt.Sprintf(" flush %d", o.flush)
	}
	if o.takes {
		s += fmt.Sprintf(" receive %v", o.recv)
	}
	if o.fault != noFault {
		s += fmt.Sprintf(" fault %d", o.fault)
	}
	return s
}

// round is what the two QPs of a pair do: the first elements are about end a, the second about end b.
type round struct {
	invalidate [2]bool  // the memory window of the end
	bind       [2]piece // bind it, unless the piece is empty
	ops        [2][]op
	list       bool // post them as a list
}

// String returns the requests in words.
func (r *round) String() string {
	var b strings.Builder
	for i := range r.ops {
		if r.invalidate[i] || r.bind[i].length > 0 {
			fmt.Fprintf(&b, "%c: invalidate %t, bind %v\n", 'a'+i, r.invalidate[i], r.bind[i])
		}
		for j := range r.ops[i] {
			fmt.Fprintf(&b, "%c: %d: %s\n", 'a'+i, j, &r.ops[i][j])
		}
	}
	return b.String()
}

// failing reports whether a request of the round has a fault.
func (r *round) failing() bool {
	for _, ops := range r.ops {
		if slices.ContainsFunc(ops, func(o op) bool { return o.fault != noFault }) {
			return true
		}
	}
	return false
}

// walker draws sessions.
type walker struct {
	*rand.Rand
	newer bool          // ATOMIC WRITE, FLUSH and memory windows, with which rxe of this kernel does as the newest one
	lossy ib.AckTimeout // packets are lost: only RC, without faults, and with this timeout; 0: they are not
	empty bool          // requests of no bytes
}

// qpPair is a pair of QPs, one at each end. All pairings have it.
type qpPair struct {
	*walker
	uverbs.QPOptions
	maxInline int
	srq       bool     // each QP has an SRQ of its own
	bound     [2]piece // what the memory window of each end is bound to; empty if it is not bound
}

// pair draws a pair. Timeouts are long enough for a busy guest.
func (w *walker) pair() *qpPair {
	p := &qpPair{walker: w, maxInline: w.IntN(2) * 128, srq: w.IntN(3) == 0}
	p.QPOptions = uverbs.QPOptions{
		Type: ib.RC, MaxSendSGE: 3, MaxRecvSGE: 4, MaxInline: max(p.maxInline, 8), MaxSendWR: 2 * maxOps, MaxRecvWR: 2 * maxOps,
		Path: uverbs.PathOptions{
			MTU: []ib.MTU{ib.MTU256, ib.MTU512, ib.MTU1024}[w.IntN(3)], MaxRdAtomic: uint8(1 + w.IntN(16)),
			RNRRetry: uint8(1 + w.IntN(2)), MinRNRTimer: 1, Timeout: 18, RetryCount: 7,
		},
	}
	if w.newer {
		p.Path.Access = peerAccess
	}
	if w.lossy > 0 {
		p.Path.Timeout = w.lossy
		return p
	}
	switch w.IntN(10) {
	case 0:
		p.Type, p.QPOptions.Path = ib.UD, uverbs.PathOptions{}
	case 1, 2:
		p.Type = ib.UC
	}
	return p
}

// peerAccess is what the peer of a QP may do, with FLUSH.
const peerAccess = rights&^uverbs.AccessMWBind | uverbs.AccessFlushGlobal

// hasWindows reports whether each end has a memory window.
func (p *qpPair) hasWindows() bool { return p.newer && p.Type == ib.RC }

// String describes the pair.
func (p *qpPair) String() string {
	s := fmt.Sprintf("%s, path %+v", p.Type, p.Path)
	if p.srq {
		s += ", SRQ"
	}
	return s
}

// piece draws a part of an area.
func (w *walker) piece(area, n int) piece { return piece{area + w.IntN(areaSize-n+1), n} }

// length draws the length of a message, which is often one around a multiple of an MTU.
func (w *walker) length(most int) int {
	var n int
	switch w.IntN(6) {
	case 0:
		n = 0
	case 1:
		n = 1 + w.IntN(16)
	case 2, 3:
		n = 256<<w.IntN(3)*(1+w.IntN(5)) + w.IntN(3) - 1
	case 4:
		n = w.IntN(2000)
	default:
		n = w.IntN(longest)
	}
	return min(n, most)
}

// pieces cuts a length into up to three parts of an area.
func (w *walker) pieces(area, n int) (all []piece) {
	for k := w.IntN(3); k > 0 && n > 1; k-- {
		part := w.IntN(n)
		all = append(all, w.piece(area, part))
		n -= part
	}
	if n > 0 || len(all) > 0 {
		all = append(all, w.piece(area, n))
	}
	return all
}

// length returns the number of bytes of pieces.
func length(all []piece) (n int) {
	for _, p := range all {
		n += p.length
	}
	return n
}

// opcodes are the operations of the walk, by the type of QP.
var opcodes = map[ib.QPType][]uverbs.WROpcode{
	ib.RC: {uverbs.WRSend, uverbs.WRSendWithImm, uverbs.WRRDMAWrite, uverbs.WRRDMAWriteWithImm, uverbs.WRRDMARead, uverbs.WRRDMARead,
		uverbs.WRCompareSwap, uverbs.WRFetchAdd, uverbs.WRAtomicWrite, uverbs.WRFlush},
	ib.UC: {uverbs.WRSend, uverbs.WRSendWithImm, uverbs.WRRDMAWrite, uverbs.WRRDMAWriteWithImm},
	ib.UD: {uverbs.WRSend, uverbs.WRSendWithImm},
}

// op draws a request of up to so many bytes.
func (p *qpPair) op(most int) op {
	all := opcodes[p.Type]
	o := op{opcode: all[p.IntN(len(all))], flags: uverbs.SendSignaled, imm: p.Uint32()}
	if (o.opcode == uverbs.WRAtomicWrite || o.opcode == uverbs.WRFlush) && !p.newer {
		o.opcode = uverbs.WRFetchAdd
	}
	if p.IntN(8) == 0 {
		o.flags |= uverbs.SendFence
	}
	if p.IntN(8) == 0 {
		o.flags |= uverbs.SendSolicited
	}
	if p.Type == ib.UD {
		most = min(most, datagram)
	}
	n := p.length(most)
	if !p.empty { // rxe of Linux 7.2 does not answer some repeated READs near requests of no bytes, and logs a warning
		n = max(n, 1)
	}
	switch o.opcode {
	case uverbs.WRRDMARead:
		o.local, o.remote = p.pieces(resultArea, n), p.piece(sourceArea, n).offset
		return o
	case uverbs.WRCompareSwap, uverbs.WRFetchAdd:
		o.local, o.remote = []piece{p.piece(resultArea, 8)}, targetArea+8*p.IntN(areaSize/8)
		o.values = [2]uint64{p.Uint64(), p.Uint64()}
		return o
	case uverbs.WRAtomicWrite:
		o.local, o.inline, o.remote = []piece{p.piece(sourceArea, 8)}, true, targetArea+8*p.IntN(areaSize/8)
		return o
	case uverbs.WRFlush:
		o.flush = max(n, 0)
		o.remote = p.piece(targetArea, o.flush).offset
		return o
	case uverbs.WRSend, uverbs.WRSendWithImm:
		o.lost = p.Type == ib.UD && p.IntN(6) == 0
		if o.takes = !o.lost; o.takes {
			o.recv = p.pieces(recvArea, n+p.IntN(2)*p.IntN(3000))
		}
	case uverbs.WRRDMAWriteWithImm:
		o.takes = true
	}
	o.remote = p.piece(targetArea, n).offset
	if o.local = p.pieces(sourceArea, n); n <= p.maxInline && len(o.local) == 1 && p.IntN(2) == 0 {
		o.inline = true
	}
	return o
}

// useWindow has a request of an end use the memory window of its peer, or invalidate it. The invalidation
// is not in a round with a READ before it that uses the window: rxe may have to repeat that.
func (p *qpPair) useWindow(o *op, before []op, window *piece) {
	if window.length == 0 || o.opcode == uverbs.WRFlush { // the region has the right to FLUSH
		return
	}
	if !o.sends() {
		o.window = window.holds(piece{o.remote, length(o.local)}) && p.IntN(2) == 0
		return
	}
	reads := func(o op) bool { return o.window && o.opcode == uverbs.WRRDMARead }
	if o.opcode == uverbs.WRSend && p.IntN(3) == 0 && !slices.ContainsFunc(before, reads) {
		o.opcode, *window = uverbs.WRSendWithInv, piece{}
	}
}

// changeWindow draws what an end does with its memory window before the requests of a round. The window
// begins where the peer's READs read, and ends where its WRITEs write.
func (p *qpPair) changeWindow(r *round, i int) {
	if !p.hasWindows() || p.IntN(3) != 0 {
		return
	}
	if r.invalidate[i] = p.bound[i].length > 0; r.invalidate[i] {
		p.bound[i] = piece{}
		return
	}
	start := p.IntN(areaSize)
	p.bound[i] = piece{start, targetArea + p.IntN(areaSize) - start}
	r.bind[i] = p.bound[i]
}

// round draws a round of up to so many bytes: requests of one end or of both, or requests of one end one of
// which has a fault.
func (p *qpPair) round(left int) *round {
	r := &round{list: p.IntN(2) == 0}
	for i := range p.bound {
		p.changeWindow(r, i)
	}
	bound := p.bound
	ends := [][]int{{0}, {1}, {0, 1}}[p.IntN(3)]
	for _, i := range ends {
		most := left / len(ends)
		if p.Type == ib.UC {
			most = min(most, ucPackets*p.Path.MTU.Bytes())
		}
		for range 1 + p.IntN(maxOps) {
			o := p.op(most)
			most -= length(o.local)
			p.useWindow(&o, r.ops[i], &p.bound[1-i])
			r.ops[i] = append(r.ops[i], o)
		}
		last := &r.ops[i][len(r.ops[i])-1]
		if p.Type == ib.UC && last.opcode == uverbs.WRRDMAWrite { // a completion says that it has arrived
			last.opcode, last.takes = uverbs.WRRDMAWriteWithImm, true
		}
	}
	if p.Type == ib.RC && p.lossy == 0 && len(ends) == 1 && p.IntN(3) == 0 {
		p.fail(r, ends[0], bound)
	}
	if !r.failing() {
		p.unsignal(r)
	}
	return r
}

// fail gives a request of an end a fault, if there is one that suits it. bound is what the windows are bound to
// before the requests of the round.
func (p *qpPair) fail(r *round, end int, bound [2]piece) {
	ops := r.ops[end]
	i := p.IntN(len(ops))
	o := &ops[i]
	p.spoil(o, bound[1-end])
	if o.fault == noFault {
		return
	}
	if slices.ContainsFunc(ops[i:], func(o op) bool { return o.opcode == uverbs.WRSendWithInv }) {
		p.bound = bound // nothing from the fault on is carried out
	}
	// rxe of Linux 7.2 may hang when READs or atomics follow one without a receive. An SRQ keeps the receives
	// that the requests behind a fault do not take.
	if o.fault == noReceive || p.srq {
		r.ops[end] = ops[:i+1]
	}
}

// spoil gives a request a fault. A WRITE with immediate data and another fault may have taken a receive or not,
// which only matters with an SRQ.
func (p *qpPair) spoil(o *op, window piece) {
	n := length(o.local)
	switch {
	case o.takes && (p.IntN(3) == 0 || p.srq && !o.sends()):
		o.fault = noReceive
	case o.sends() && n > 0:
		o.fault = shortReceive
		if o.recv = p.pieces(recvArea, p.IntN(n)); p.IntN(3) == 0 {
			o.fault, o.recv = wrongLKey, []piece{p.piece(recvArea, n)}
		}
	case !o.sends() && n > 0 && p.hasWindows() && window.length == 0 && p.IntN(2) == 0:
		o.fault, o.window = notBound, true
	case !o.sends() && n > 0:
		o.fault, o.window = wrongRKey, false
		if p.IntN(2) == 0 {
			o.fault, o.remote = outOfRange, bufferSize-n+8
		}
	}
}

// unsignal draws requests without a completion. The last of each end has one.
func (p *qpPair) unsignal(r *round) {
	for i := range r.ops {
		for j := range r.ops[i][:max(len(r.ops[i])-1, 0)] {
			if p.IntN(4) == 0 {
				r.ops[i][j].flags &^= uverbs.SendSignaled
			}
		}
	}
}
