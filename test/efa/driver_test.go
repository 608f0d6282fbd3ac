package efa

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// guest is the memory of a guest, and gives it out in order.
type guest struct {
	mem  []byte
	next uint64
}

// guestBase is the bus address of its first byte.
const guestBase = 0x1_0000_0000

// Bytes implements Memory.
func (g *guest) Bytes(addr uint64, n int) ([]byte, error) {
	off := addr - guestBase
	if n < 1 || off >= uint64(len(g.mem)) {
		return nil, errors.New("no memory there")
	}
	return g.mem[off:min(off+uint64(n), uint64(len(g.mem)))], nil
}

// alloc gives out zeroed memory that begins with a page.
func (g *guest) alloc(n int) (addr uint64, mem []byte) {
	addr = guestBase + g.next
	g.next += uint64((n + pageSize - 1) &^ (pageSize - 1))
	return addr, g.mem[addr-guestBase:][:n]
}

// driver plays a driver for one card.
type driver struct {
	*testing.T
	dev *Device
	*guest
	interrupts map[int]int

	answer             []byte
	reads              uint16
	aq, acq, aenq      []byte
	commands, answered uint32
}

// newDriver makes a card and a driver that has reset it.
func newDriver(t *testing.T, f *Fabric, index uint8, personality string) *driver {
	t.Helper()
	p, err := ParsePersonality(personality)
	if err != nil {
		t.Fatal(err)
	}
	x := &driver{T: t, guest: &guest{mem: make([]byte, 8<<20)}, interrupts: map[int]int{}}
	x.dev = New(Config{
		Name: fmt.Sprintf("card %d", index), Personality: p, Index: index, Memory: x.guest, Fabric: f,
		Interrupt: func(v int) { x.interrupts[v]++ }, Trace: func(line string) { t.Log(line) },
	})
	at, answer := x.alloc(8)
	x.answer = answer
	x.setAnswer(at)
	x.store(regControl, controlReset)
	x.setAnswer(at)
	x.store(regControl, 0)
	return x
}

// start brings the card up.
func start(t *testing.T, f *Fabric, index uint8, personality string) *driver {
	t.Helper()
	x := newDriver(t, f, index, personality)
	x.ring(regAQBaseLo, regAQCaps, commandSize<<16|32, &x.aq)
	x.ring(regACQBaseLo, regACQCaps, commandSize<<16|32, &x.acq)
	x.ring(regAENQBaseLo, regAENQCaps, aenqEntrySize<<16|16, &x.aenq)
	x.store(regAENQCons, 0)
	return x
}

// ring sets up one of the rings for commands.
func (x *driver) ring(lo, caps uint64, v uint32, mem *[]byte) {
	at, b := x.alloc(int(v&0xffff) * 64)
	*mem = b
	x.store(lo, uint32(at))
	x.store(lo+4, uint32(at>>32))
	x.store(caps, v)
}

func (x *driver) store(off uint64, v uint32) {
	x.dev.WriteBAR(barRegisters, off, le.AppendUint32(nil, v))
}

func (x *driver) setAnswer(at uint64) {
	x.store(regAnswerHi, uint32(at>>32))
	x.store(regAnswerLo, uint32(at))
}

// load has a register written to memory.
func (x *driver) load(reg uint32) uint32 {
	x.Helper()
	x.reads++
	le.PutUint16(x.answer, x.reads+0x9a)
	x.store(regRead, reg<<16|uint32(x.reads))
	if got := le.Uint32(x.answer); got != reg<<16|uint32(x.reads) {
		x.Fatalf("register %#x: answer %#x to request %d", reg, got, x.reads)
	}
	return le.Uint32(x.answer[4:])
}

// words builds a command: pairs of an offset and a value, which is as long as its type.
func words(n int, pairs ...any) []byte {
	b := make([]byte, n)
	for i := 0; i < len(pairs); i += 2 {
		off := pairs[i].(int)
		switch v := pairs[i+1].(type) {
		case uint8:
			b[off] = v
		case uint16:
			le.PutUint16(b[off:], v)
		case uint32:
			le.PutUint32(b[off:], v)
		case uint64:
			le.PutUint64(b[off:], v)
		case []byte:
			copy(b[off:], v)
		default:
			panic(fmt.Sprintf("%T", v))
		}
	}
	return b
}

// command executes a command and returns the status and the answer.
func (x *driver) command(op opcode, flags uint8, pairs ...any) (status, []byte) {
	x.Helper()
	c := words(commandSize, pairs...)
	id := uint16(x.commands*37) & 0xfff
	le.PutUint16(c, id)
	c[2], c[3] = byte(op), flags|byte(x.commands/32+1)&1
	copy(x.aq[x.commands%32*commandSize:], c)
	x.commands++
	before := x.interrupts[0]
	x.store(regAQDoorbell, x.commands&0xffff)
	a := x.acq[x.answered%32*commandSize:][:commandSize]
	if le.Uint16(a) != id || a[3] != byte(x.answered/32+1)&1 || x.interrupts[0] == before {
		x.Fatalf("command %d: answer % x, %d interrupts", op, a[:8], x.interrupts[0]-before)
	}
	x.answered++
	return status(a[2]), bytes.Clone(a)
}

// must executes a command that succeeds.
func (x *driver) must(op opcode, flags uint8, pairs ...any) []byte {
	x.Helper()
	s, a := x.command(op, flags, pairs...)
	if s != statusOK {
		x.Fatalf("command %d: %v: %+v", op, s, x.dev.Report().Refused)
	}
	return a
}

// refused executes a command that fails.
func (x *driver) refused(want status, why string, op opcode, flags uint8, pairs ...any) {
	x.Helper()
	s, _ := x.command(op, flags, pairs...)
	r := x.dev.Report()
	if s != want || !strings.Contains(r.Refused[len(r.Refused)-1].Why, why) {
		x.Errorf("command %d: %v (%v), want %v (%s)", op, s, r.Refused, want, why)
	}
}

// broken expects violations of some rules, and no others, since the card was made.
func (x *driver) broken(rules ...string) {
	x.Helper()
	got := x.dev.Report()
	for _, r := range rules {
		if got.Broken[r] == 0 {
			x.Errorf("no violation of %s", r)
		}
		delete(got.Broken, r)
	}
	if len(got.Broken) > 0 {
		x.Errorf("violations: %+v", got.Violations)
	}
}

// context is what a program has of a card: its PD, UAR, CQ and memory.
type context struct {
	*driver
	pd, uar, eqn uint16
	lkey, rkey   uint32
	addr         uint64
	mem          []byte
	eqMem        []byte
	wide         bool // QPs have requests of 128 bytes
}

// open makes a context, with memory of 64 KiB.
func (x *driver) open() *context {
	x.Helper()
	c := &context{driver: x, pd: le.Uint16(x.must(opAllocPD, 0)[8:]), uar: le.Uint16(x.must(opAllocUAR, 0)[8:])}
	if !x.dev.cfg.Personality.NoEQs {
		at, mem := x.alloc(64 * eqEntrySize)
		c.eqMem = mem
		c.eqn = le.Uint16(x.must(opCreateEQ, 0, 4, uint16(64), 6, uint8(1), 7, uint8(4), 8, at, 16, uint32(1))[8:])
	}
	c.addr, c.mem = x.alloc(16 * pageSize)
	list, pages := x.alloc(8 * 16)
	for i := range 16 {
		le.PutUint64(pages[8*i:], c.addr+uint64(i)*pageSize)
	}
	perms := uint8(permLocalWrite)
	if x.dev.cfg.Personality.has(capRead) {
		perms |= permRemoteRead
	}
	if x.dev.cfg.Personality.has(capWrite) {
		perms |= permRemoteWrite
	}
	a := x.must(opRegMR, 2, 4, c.pd, 8, uint32(8*16), 12, list, 40, uint64(16*pageSize), 48, uint8(12), 49, perms, 56, c.addr)
	c.lkey, c.rkey = le.Uint32(a[8:]), le.Uint32(a[12:])
	return c
}

// foreign replaces a key of the context by that of an MR with other permissions, of a PD of its own if none is given.
func (c *context) foreign(key *uint32, domain *uint16, perms uint8) {
	c.Helper()
	if domain == nil {
		n := le.Uint16(c.must(opAllocPD, 0)[8:])
		domain = &n
	}
	a := c.must(opRegMR, 0, 4, *domain, 8, c.addr, 40, uint64(pageSize), 48, uint8(12), 49, perms, 56, c.addr)
	at := 8
	if key == &c.rkey {
		at = 12
	}
	*key = le.Uint32(a[at:])
}

// testCQ is a CQ as a driver sees it.
type testCQ struct {
	c      *context
	number uint16
	mem    []byte
	depth  int
	read   []uint32 // of each ring
	total  uint32
	seen   uint32 // events
	door   uint64
}

// cq makes a CQ with entries of 32 bytes.
func (c *context) cq(depth int, caps1, caps2 uint8) *testCQ {
	c.Helper()
	subs := int(c.dev.cfg.Personality.SubCQs)
	at, mem := c.alloc(depth * 32 * subs)
	a := c.must(opCreateCQ, 0, 4, caps1, 5, caps2|8, 6, uint16(depth), 8, c.eqn, 12, at, 24, uint16(subs), 26, c.uar)
	return &testCQ{c: c, number: le.Uint16(a[8:]), mem: mem, depth: depth, read: make([]uint32, subs), door: uint64(le.Uint32(a[12:]))}
}

// poll returns the next entry of any ring, or nil.
func (q *testCQ) poll() []byte {
	for i := range q.read {
		e := q.mem[(i*q.depth+int(q.read[i])%q.depth)*32:][:32]
		if uint32(e[3]&1) == (q.read[i]/uint32(q.depth)+1)&1 {
			q.read[i]++
			q.total++
			return bytes.Clone(e)
		}
	}
	return nil
}

// ring tells the card what was read, and may arm the CQ.
func (q *testCQ) ring(arm bool) {
	v := q.total & 0xffff
	if arm {
		v |= 1<<31 | q.seen&3<<29
	}
	q.c.dev.WriteBAR(barDoorbells, q.door, le.AppendUint32(nil, v))
}

// wait drains the fabric and returns the statuses of n entries, in order of their request IDs' arrival.
func (q *testCQ) wait(n int) (all [][]byte) {
	q.c.Helper()
	q.c.dev.f.Drain()
	for range n {
		e := q.poll()
		if e == nil {
			q.c.Fatalf("%d completions, want %d", len(all), n)
		}
		all = append(all, e)
	}
	if e := q.poll(); e != nil {
		q.c.Fatalf("more than %d completions: % x", n, e)
	}
	q.ring(false)
	return all
}

// testQP is a QP as a driver sees it.
type testQP struct {
	c              *context
	handle         uint32
	number         uint16
	send, recv     *testCQ
	sqDoor, rqDoor uint64
	llq            uint64
	stride, depth  int
	rq             []byte
	sent, posted   uint32
}

// qp makes a QP with 16 send requests and 16 receive descriptors.
func (c *context) qp(kind, flags uint8, send, recv *testCQ) *testQP {
	c.Helper()
	q := &testQP{c: c, send: send, recv: recv, stride: 64, depth: 16}
	if c.wide {
		q.stride = 128
	}
	at, mem := c.alloc(16 * descriptorSize)
	q.rq = mem
	a := c.must(opCreateQP, 0, 4, c.pd, 6, kind, 7, flags, 16, at, 24, uint32(send.number), 28, uint32(recv.number),
		40, uint32(16*q.stride), 44, uint32(16), 48, uint32(16*descriptorSize), 52, uint32(16), 56, c.uar)
	q.handle, q.number = le.Uint32(a[8:]), le.Uint16(a[12:])
	q.sqDoor, q.rqDoor, q.llq = uint64(le.Uint32(a[20:])), uint64(le.Uint32(a[24:])), uint64(le.Uint32(a[28:]))
	return q
}

// modify changes the state, with more of the command.
func (q *testQP) modify(from, to state, mask uint32, more ...any) status {
	q.c.Helper()
	s, _ := q.c.command(opModifyQP, 0, append([]any{4, mask | maskState | maskCurrent, 8, q.handle, 12, uint32(to), 16, uint32(from)}, more...)...)
	return s
}

// testQKey is the Q_Key of all QPs.
const testQKey = 0x11111111

// ready brings the QP to RTS.
func (q *testQP) ready(more ...any) *testQP {
	q.c.Helper()
	mask := uint32(maskPSN)
	if len(more) > 0 {
		mask |= maskRNR
	}
	if q.modify(stateReset, stateInit, maskQKey, 20, uint32(testQKey))+q.modify(stateInit, stateRTR, 0)+
		q.modify(stateRTR, stateRTS, mask, append([]any{24, uint32(5)}, more...)...) != 0 {
		q.c.Fatal("the QP does not get ready")
	}
	return q
}

// post writes a send request without a doorbell: the phase and the bits that are always set are added.
func (q *testQP) post(w []byte) {
	w[2] |= wqeMeta
	w[3] |= wqeFirst | wqeLast | wqeSignal | byte(q.sent/uint32(q.depth)&1)
	at := q.llq + uint64(int(q.sent)%q.depth*q.stride)
	for i := 0; i < q.stride; i += 8 {
		q.c.dev.WriteBAR(barLLQ, at+uint64(i), w[i:i+8])
	}
	q.sent++
}

// ring rings the doorbell of the send queue.
func (q *testQP) ring() {
	q.c.dev.WriteBAR(barDoorbells, q.sqDoor, le.AppendUint32(nil, q.sent&0xffff))
}

// postRecv posts a receive with the given pieces of the context's memory: offsets and lengths.
func (q *testQP) postRecv(id uint16, pieces ...int) {
	for i := 0; i < len(pieces); i += 2 {
		ctrl := q.c.lkey
		if i == 0 {
			ctrl |= 1 << 30
		}
		if i == len(pieces)-2 {
			ctrl |= 1 << 31
		}
		copy(q.rq[q.posted%16*descriptorSize:], words(descriptorSize, 0, q.c.addr+uint64(pieces[i]), 8, id, 10, uint16(pieces[i+1]), 12, ctrl))
		q.posted++
	}
	q.c.dev.WriteBAR(barDoorbells, q.rqDoor, le.AppendUint32(nil, q.posted&0xffff))
}

// ah makes the address of a card.
func (c *context) ah(to *Device) uint16 {
	c.Helper()
	return le.Uint16(c.must(opCreateAH, 0, 4, to.gid[:], 20, c.pd)[8:])
}

// wqe makes a send request to a QP, of memory of the context.
func (q *testQP) wqe(id uint16, op uint8, ah uint16, to *testQP, more ...any) []byte {
	return words(q.stride, append([]any{0, id, 2, op, 4, to.number, 12, ah, 16, uint32(testQKey)}, more...)...)
}

// local is a piece of the context's memory, as a part of a request.
func (c *context) local(off, length int) []byte {
	return words(16, 0, uint32(length), 4, c.lkey, 8, c.addr+uint64(off))
}

// far is the same for a request of the other side.
func (c *context) far(off, length int) []byte {
	return words(16, 0, uint32(length), 4, c.rkey, 8, c.addr+uint64(off))
}

// pair makes two cards with a QP each, ready to send to each other.
type pair struct {
	a, b   *context
	qa, qb *testQP
	ab, ba uint16 // AHs
}

func newPair(t *testing.T, personality string, kind, flags uint8, more ...any) *pair {
	t.Helper()
	f := NewFabric(1)
	p := &pair{a: start(t, f, 0, personality).open(), b: start(t, f, 1, personality).open()}
	p.qa, p.qb = p.a.qp(kind, flags, p.a.cq(64, 0, 0), p.a.cq(64, 0, 0)).ready(more...), p.b.qp(kind, flags, p.b.cq(64, 0, 0), p.b.cq(64, 0, 0x20)).ready()
	p.ab, p.ba = p.a.ah(p.b.dev), p.b.ah(p.a.dev)
	for i := range p.a.mem {
		p.a.mem[i] = byte(i*7 + i/251)
	}
	return p
}
