package softrxe

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// WalkEnv is the time that the random walk takes, and SeedEnv its seed, as a decimal number.
const (
	walkEnv     = "GOVERBS_WALK"
	seedEnv     = "GOVERBS_SEED"
	defaultWalk = 30 * time.Second
)

// The memory of an end in the walk. What a request reads is never what one writes that may be under way
// at the same time, so that the contents afterwards do not depend on which was first.
const (
	areaSize   = 64 << 10
	sourceArea = 0            // data of SENDs and WRITEs, and what READs of the peer read
	resultArea = areaSize     // what own READs and atomics bring
	targetArea = 2 * areaSize // of the peer's WRITEs and atomics
	recvArea   = 3 * areaSize // of receives
	longest    = 24_000       // of a message, in bytes
	roundBytes = 60_000       // of a round, which fit into a socket's receive buffer
	maxOps     = 12
)

// fault is the error that a request of a round provokes.
type fault int

// Faults.
const (
	noFault      fault = iota
	wrongRKey          // no MR has the rkey
	outOfRange         // the range ends behind the MR
	shortReceive       // the receive is too short
	noReceive          // there is no receive
	wrongLKey          // no MR has the lkey of a receive
)

// piece is a part of an area.
type piece struct{ offset, length int }

// op is a request of a round, the same for all pairings.
type op struct {
	opcode uverbs.WROpcode
	flags  uverbs.SendFlags
	local  []piece
	inline bool // the data of the first piece, which is the only one
	remote int  // offset in the peer's memory
	imm    uint32
	values [2]uint64
	recv   []piece // of the receive that it takes
	takes  bool    // whether it takes one
	fault  fault
}

// String returns the request in words.
func (o *op) String() string {
	s := fmt.Sprintf("%s flags %#x local %v remote %d", o.opcode, o.flags, o.local, o.remote)
	if o.inline {
		s += " inline"
	}
	if o.takes {
		s += fmt.Sprintf(" receive %v", o.recv)
	}
	if o.fault != noFault {
		s += fmt.Sprintf(" fault %d", o.fault)
	}
	return s
}

// round is the list of operations of both ends of each pairing: the first ops are those of end a, the second of end b.
type round struct {
	ops  [2][]op
	list bool // post them as a list
}

// String returns the requests in words.
func (r *round) String() string {
	var b strings.Builder
	for i := range r.ops {
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

// walker draws rounds.
type walker struct {
	*rand.Rand
	typ         uverbs.QPType
	maxInline   int
	atomicWrite bool // rxe of this kernel has it
	lossy       bool // the link loses packets: only RC, without faults, and with a short timeout
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

// opcodes are the operations of the walk, by the type of QP.
var opcodes = map[uverbs.QPType][]uverbs.WROpcode{
	uverbs.RC: {uverbs.WRSend, uverbs.WRSendWithImm, uverbs.WRRDMAWrite, uverbs.WRRDMAWriteWithImm, uverbs.WRRDMARead, uverbs.WRRDMARead,
		uverbs.WRAtomicCAS, uverbs.WRAtomicFAA, uverbs.WRAtomicWrite},
	uverbs.UC: {uverbs.WRSend, uverbs.WRSendWithImm, uverbs.WRRDMAWrite, uverbs.WRRDMAWriteWithImm},
}

// op draws a request of up to so many bytes.
func (w *walker) op(most int) op {
	all := opcodes[w.typ]
	o := op{opcode: all[w.IntN(len(all))], flags: uverbs.SendSignaled, imm: w.Uint32()}
	if o.opcode == uverbs.WRAtomicWrite && !w.atomicWrite {
		o.opcode = uverbs.WRAtomicFAA
	}
	if w.IntN(8) == 0 {
		o.flags |= uverbs.SendFence
	}
	if w.IntN(8) == 0 {
		o.flags |= uverbs.SendSolicited
	}
	n := w.length(most)
	if w.lossy { // rxe of Linux 7.2 does not answer some repeated READs near requests of no bytes, and logs a warning
		n = max(n, 1)
	}
	switch o.opcode {
	case uverbs.WRRDMARead:
		o.local, o.remote = w.pieces(resultArea, n), w.piece(sourceArea, n).offset
		return o
	case uverbs.WRAtomicCAS, uverbs.WRAtomicFAA:
		o.local, o.remote = []piece{w.piece(resultArea, 8)}, targetArea+8*w.IntN(areaSize/8)
		o.values = [2]uint64{w.Uint64(), w.Uint64()}
		return o
	case uverbs.WRAtomicWrite:
		o.local, o.inline, o.remote = []piece{w.piece(sourceArea, 8)}, true, targetArea+8*w.IntN(areaSize/8)
		return o
	case uverbs.WRSend, uverbs.WRSendWithImm:
		o.takes, o.recv = true, w.pieces(recvArea, n+w.IntN(2)*w.IntN(3000))
	case uverbs.WRRDMAWriteWithImm:
		o.takes = true
	}
	o.remote = w.piece(targetArea, n).offset
	if o.local = w.pieces(sourceArea, n); n <= w.maxInline && len(o.local) == 1 && w.IntN(2) == 0 {
		o.inline = true
	}
	return o
}

// length returns the number of bytes of pieces.
func length(all []piece) (n int) {
	for _, p := range all {
		n += p.length
	}
	return n
}

// round draws a round: requests of one end or of both, or requests of one end one of which has a fault.
func (w *walker) round() *round {
	r := &round{list: w.IntN(2) == 0}
	left := roundBytes
	ends := [][]int{{0}, {1}, {0, 1}}[w.IntN(3)]
	for _, i := range ends {
		for range 1 + w.IntN(maxOps) {
			o := w.op(left / len(ends))
			left -= length(o.local)
			r.ops[i] = append(r.ops[i], o)
		}
		last := &r.ops[i][len(r.ops[i])-1]
		if w.typ == uverbs.UC && last.opcode == uverbs.WRRDMAWrite { // a completion says that it has arrived
			last.opcode, last.takes = uverbs.WRRDMAWriteWithImm, true
		}
	}
	if w.typ == uverbs.RC && !w.lossy && len(ends) == 1 && w.IntN(3) == 0 {
		ops := r.ops[ends[0]]
		i := w.IntN(len(ops))
		w.spoil(&ops[i])
		if ops[i].fault == noReceive { // rxe of Linux 7.2 may hang when READs or atomics follow
			r.ops[ends[0]] = ops[:i+1]
		}
	}
	for i := range r.ops { // completions of some requests, and always of the last
		if r.failing() {
			break
		}
		for j := range r.ops[i][:max(len(r.ops[i])-1, 0)] {
			if w.IntN(4) == 0 {
				r.ops[i][j].flags &^= uverbs.SendSignaled
			}
		}
	}
	return r
}

// spoil gives a request a fault if there is one that suits it.
func (w *walker) spoil(o *op) {
	n := length(o.local)
	switch {
	case o.takes && w.IntN(3) == 0:
		o.fault = noReceive
	case (o.opcode == uverbs.WRSend || o.opcode == uverbs.WRSendWithImm) && n > 0:
		o.fault = shortReceive
		if o.recv = w.pieces(recvArea, w.IntN(n)); w.IntN(3) == 0 {
			o.fault, o.recv = wrongLKey, []piece{w.piece(recvArea, n)}
		}
	case o.opcode != uverbs.WRSend && o.opcode != uverbs.WRSendWithImm && n > 0:
		o.fault = wrongRKey
		if w.IntN(2) == 0 {
			o.fault, o.remote = outOfRange, bufferSize-n+8
		}
	}
}

// sgl returns the SGEs of pieces.
func (e *end) sgl(all []piece) (sgl []uverbs.SGE) {
	for _, p := range all {
		sgl = append(sgl, e.sge(p.offset, p.length))
	}
	return sgl
}

// badKey changes a key to one that no MR has.
const badKey = 0x5500

// request returns the work request of an op.
func (o *op) request(id int, e, peer *end) uverbs.SendWR {
	wr := uverbs.SendWR{ID: uint64(id), Opcode: o.opcode, Flags: o.flags, SGL: e.sgl(o.local), Imm: o.imm, CompareAdd: o.values[0], Swap: o.values[1]}
	if o.inline {
		wr.SGL, wr.Inline = nil, e.buf.Bytes()[o.local[0].offset:][:o.local[0].length]
	}
	if o.opcode != uverbs.WRSend && o.opcode != uverbs.WRSendWithImm {
		wr.RemoteAddr, wr.RKey = peer.at(o.remote), peer.mr.RKey()
	}
	if o.fault == wrongRKey {
		wr.RKey ^= badKey
	}
	if !e.host.soft { // a fence changes no result, but rxe may wait for ever: see the package documentation
		wr.Flags &^= uverbs.SendFence
	}
	return wr
}

// play plays a round between the ends of an exchange, and waits for all of it.
func (x *exchange) play(r *round) {
	ends := [2]*end{x.a, x.b}
	var receives [2]int
	for i, ops := range r.ops {
		receives[1-i] = postReceives(ends[1-i], ops)
	}
	for i, ops := range r.ops {
		var wrs []uverbs.SendWR
		for j := range ops {
			wrs = append(wrs, ops[j].request(j, ends[i], ends[1-i]))
		}
		if r.list {
			must(x.t, ends[i].qp.PostSend(wrs...))
			continue
		}
		for j := range wrs {
			must(x.t, ends[i].qp.PostSend(wrs[j]))
		}
	}
	for i, ops := range r.ops {
		signaled := 0
		for j := range ops {
			if ops[j].flags&uverbs.SendSignaled != 0 {
				signaled++
			}
		}
		ends[i].sent(signaled)
	}
	for i := range ends {
		ends[i].got(receives[i])
	}
	for i, ops := range r.ops {
		for j := range ops {
			if ops[j].fault == noFault {
				continue
			}
			ends[i].fails()
			if ops[j].fault != noReceive {
				ends[1-i].fails()
			}
		}
	}
}

// postReceives posts the receives that the peer's requests take, and returns how many there are.
func postReceives(e *end, ops []op) (n int) {
	for j := range ops {
		if ops[j].fault == noReceive {
			return n
		}
		if !ops[j].takes {
			continue
		}
		sgl := e.sgl(ops[j].recv)
		if ops[j].fault == wrongLKey {
			sgl[0].LKey ^= badKey
		}
		e.recv(uint64(1000+j), sgl...)
		n++
	}
	return n
}

// session is the life of the QPs of all pairings.
type session struct {
	x []*exchange
	o uverbs.QPOptions
}

// newSession makes the ends and connects them, in all pairings.
func newSession(t *testing.T, rxe, software host, o uverbs.QPOptions) *session {
	s := &session{o: o}
	for _, hosts := range pairings(rxe, software) {
		x := &exchange{t: t}
		x.a, x.b = newEnd(t, "a", hosts[0], o, &x.record), newEnd(t, "b", hosts[1], o, &x.record)
		connect(t, x.a, x.b)
		s.x = append(s.x, x)
	}
	return s
}

// reconnect resets the QPs of all pairings and connects them again.
func (s *session) reconnect(t *testing.T) {
	for _, x := range s.x {
		for _, e := range []*end{x.a, x.b} {
			must(t, e.qp.Modify(uverbs.QPAttr{State: uverbs.QPReset}, uverbs.AttrState), e.qp.Init())
		}
		connect(t, x.a, x.b)
	}
}

// walkTime returns how long the walk is.
func walkTime(t *testing.T) time.Duration {
	text := os.Getenv(walkEnv)
	if text == "" {
		return defaultWalk
	}
	d, err := time.ParseDuration(text)
	must(t, err)
	return d
}

// walkSeed returns the seed of the walk.
func walkSeed(t *testing.T) uint64 {
	text := os.Getenv(seedEnv)
	if text == "" {
		return rand.Uint64()
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	must(t, err)
	return seed
}

// options draws the options of QPs. Timeouts are long enough for a busy guest.
func (w *walker) options() uverbs.QPOptions {
	w.typ = uverbs.RC
	if w.IntN(5) == 0 && !w.lossy {
		w.typ = uverbs.UC
	}
	timeout := uverbs.AckTimeout(18)
	if w.lossy {
		timeout = 13
	}
	w.maxInline = w.IntN(2) * 128
	return uverbs.QPOptions{
		Type: w.typ, MaxSendSGE: 3, MaxRecvSGE: 3, MaxInline: max(w.maxInline, 8), MaxSendWR: 2 * maxOps, MaxRecvWR: 2 * maxOps,
		Path: uverbs.PathOptions{
			MTU: []uverbs.MTU{uverbs.MTU256, uverbs.MTU512, uverbs.MTU1024}[w.IntN(3)], MaxRdAtomic: uint8(1 + w.IntN(16)),
			RNRRetry: uint8(1 + w.IntN(2)), MinRNRTimer: 1, Timeout: timeout, RetryCount: 7,
		},
	}
}

// TestWalk plays random rounds between all pairings, and compares every completion and the memory
// afterwards with those of the kernel's device alone.
func TestWalk(t *testing.T) { walk(t, false) }

// TestWalkLoss is TestWalk with a link that loses 1 % of the packets.
func TestWalkLoss(t *testing.T) {
	testenv.Guest(t)
	lose(t, "1%")
	walk(t, true)
}

// lose makes the link lose packets, in both directions, until the end of the test.
func lose(t *testing.T, percent string) {
	t.Helper()
	must(t, lab.impair("loss", percent))
	t.Cleanup(func() {
		if err := lab.impair("off"); err != nil {
			t.Error(err)
		}
	})
}

// walk walks.
func walk(t *testing.T, lossy bool) {
	testenv.Guest(t)
	kernel := testenv.Kernel(t)
	seed := walkSeed(t)
	t.Logf("%s=%d", seedEnv, seed)
	w := &walker{Rand: rand.New(rand.NewPCG(seed, 0)), lossy: lossy,
		atomicWrite: !lossy && slices.Compare(kernel[:], v6_2[:]) >= 0} // rxe of Linux 7.2 repeats it with address 0
	rounds, failing := 0, 0
	const life = 40 // rounds of a session
	stop := time.Now().Add(walkTime(t))
	for i := 0; time.Now().Before(stop); i++ {
		ok := t.Run(fmt.Sprintf("session %d", i), func(t *testing.T) {
			rxe, software := newHosts(t, w.IntN(2) == 0)
			o := w.options()
			s := newSession(t, rxe, software, o)
			for n := 0; n < life && time.Now().Before(stop); n++ {
				r := w.round()
				s.compare(t, r, fmt.Sprintf("%s=%d, session %d, round %d, %s, path %+v", seedEnv, seed, i, n, w.typ, o.Path))
				rounds++
				if r.failing() {
					failing++
					s.reconnect(t)
				}
			}
		})
		if !ok {
			break
		}
	}
	t.Logf("%d rounds, %d of them with a fault", rounds, failing)
}

// compare plays a round between all pairings. A difference ends the test.
func (s *session) compare(t *testing.T, r *round, name string) {
	t.Helper()
	var want string
	var sums [2]uint32
	for i, x := range s.x {
		x.record = record{title: fmt.Sprintf("%s, %s to %s:\n%s\n", name, x.a.host, x.b.host, r)}
		x.play(r)
		got, sum := x.record.String(), [2]uint32{x.a.sum(), x.b.sum()}
		if i == 0 {
			want, sums = got, sum
			continue
		}
		if got != want || sum != sums {
			t.Fatalf("%sthe completions differ from those of %s to %s: %s\nthe memory of a and b has sums %#x, expected %#x; it differs at %v and %v", x.title, s.x[0].a.host, s.x[0].b.host, cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")), sum, sums,
				differences(s.x[0].a, x.a), differences(s.x[0].b, x.b))
		}
	}
}

// differences returns the parts of the memory of two ends that differ.
func differences(e, other *end) (all []piece) {
	b, o := e.buf.Bytes(), other.buf.Bytes()
	for i := 0; i < len(b); i++ {
		if b[i] == o[i] {
			continue
		}
		if n := len(all) - 1; n >= 0 && i-all[n].offset-all[n].length < 8 {
			all[n].length = i + 1 - all[n].offset
		} else {
			all = append(all, piece{i, 1})
		}
	}
	return all
}
