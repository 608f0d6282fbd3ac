package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// The tests play driver: they build queues in plain memory, post WQEs, ring doorbells and
// read completions. They define the formats a second time, independently.

// arena is the guest's memory. It comes in regions, as it does from a hypervisor: a piece
// never crosses a region's end.
type arena struct {
	b    []byte
	next uint64
}

const (
	arenaBase   = 0x10000
	arenaRegion = 0x8000
)

func newArena(n int) *arena { return &arena{b: make([]byte, n), next: arenaBase} }

func (a *arena) Bytes(addr uint64, n int) ([]byte, error) {
	if addr < arenaBase || addr-arenaBase >= uint64(len(a.b)) {
		return nil, errors.New("no memory there")
	}
	off := addr - arenaBase
	end := min(off+uint64(n), uint64(len(a.b)), (off/arenaRegion+1)*arenaRegion)
	return a.b[off:end], nil
}

// alloc takes whole pages.
func (a *arena) alloc(n int) uint64 {
	addr := a.next
	a.next += uint64(n+page-1) / page * page
	if a.next-arenaBase > uint64(len(a.b)) {
		panic("the test's memory is too small")
	}
	return addr
}

// at is memory for the test, which sees it in one piece.
func (a *arena) at(addr uint64, n int) []byte { return a.b[addr-arenaBase:][:n] }

// pages lists the pages of a buffer.
func pages(addr uint64, n int) []uint64 {
	var out []uint64
	for o := 0; o < n; o += page {
		out = append(out, addr+uint64(o))
	}
	return out
}

// host is a device and what a driver has made on it.
type host struct {
	t       *testing.T
	f       *Fabric
	d       *Device
	mem     *arena
	eq      *testEQ
	pd      uint32
	irqs    int
	traced  []TraceEvent
	uarNext uint32
}

// testEQ is an event queue.
type testEQ struct {
	h    *host
	n    uint32
	addr uint64
	log  uint
	ci   uint32
	uar  uint32
}

const allEvents = 1<<EventPathMig | 1<<EventCommEst | 1<<EventSQDrained | 1<<EventCQError | 1<<EventWQCatas | 1<<EventPathMigFailed |
	1<<EventPortChange | 1<<EventInvalReq | 1<<EventAccessError | 1<<EventSRQCatas | 1<<EventLastWQE | 1<<EventSRQLimit

// newFabric is a fabric that runs by hand.
func newFabric(t *testing.T, cfg FabricConfig) *Fabric {
	cfg.Manual = true
	f := NewFabric(cfg)
	t.Cleanup(f.Close)
	return f
}

// newHost makes a device with a port that is up, an EQ and a PD.
func newHost(t *testing.T, f *Fabric, link LinkLayer) *host {
	t.Helper()
	return newHostWith(t, f, link, Traits{})
}

// newHostWith is newHost of a device with traits.
func newHostWith(t *testing.T, f *Fabric, link LinkLayer, traits Traits) *host {
	t.Helper()
	h := &host{t: t, f: f, mem: newArena(1 << 20), uarNext: 0x100}
	n := len(f.devices) + 1
	d, err := New(Config{
		Name: fmt.Sprintf("mlx5_%d", n-1), Memory: h.mem, Interrupt: func(int) { h.irqs++ }, Fabric: f, LinkLayer: link, CQEVersion: 1, Strict: true, Traits: traits,
		Trace: func(e TraceEvent) {
			_ = e.String() // none may panic
			h.traced = append(h.traced, e)
		},
	})
	must(t, err)
	h.d = d
	p := PortState{State: LinkActive, PKeys: []uint16{0xffff, 0x8001}, MTU: 3}
	if link == InfiniBand {
		p.LID = uint16(n)
		p.GIDs = []GID{{Addr: [16]byte{0: 0xfe, 1: 0x80, 15: byte(n)}}}
	} else {
		p.MAC = [6]byte{2, 0, 0, 0, 0, byte(n)}
		p.GIDs = []GID{
			{Addr: [16]byte{0: 0xfe, 1: 0x80, 15: byte(n)}},
			{Addr: [16]byte{0: 0xfe, 1: 0x80, 15: byte(n)}, RoCEv2: true},
			{Addr: [16]byte{10: 0xff, 11: 0xff, 12: 10, 13: 1, 15: byte(n)}, RoCEv2: true},
		}
	}
	d.SetPort(p)
	h.eq = h.newEQ(8)
	if h.pd, err = d.AllocPD(); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *host) newEQ(log uint) *testEQ { return h.newEQOf(log, allEvents) }

func (h *host) newEQOf(log uint, events uint64) *testEQ {
	h.t.Helper()
	e := &testEQ{h: h, log: log, uar: h.uar()}
	size := 64 << log
	e.addr = h.mem.alloc(size)
	for i := 63; i < size; i += 64 {
		h.mem.at(e.addr, size)[i] = 1
	}
	var err error
	if e.n, err = h.d.CreateEQ(EQSpec{Buf: Buffer{Pages: pages(e.addr, size), PageSize: page}, Log: log, Vector: 1, UAR: e.uar, Events: events}); err != nil {
		h.t.Fatal(err)
	}
	return e
}

// uar gives a page of its own.
func (h *host) uar() uint32 { h.uarNext++; return h.uarNext }

// event is an entry of an event queue.
type event struct {
	typ     EventType
	subtype uint8
	data    [28]byte
}

func (e event) object() uint32 { return binary.BigEndian.Uint32(e.data[24:]) }

// poll takes the entries that are there.
func (e *testEQ) poll() (out []event) {
	for {
		b := e.h.mem.at(e.addr+uint64(e.ci&(1<<e.log-1))*64, 64)
		if byte(loadBE32(b[60:]))&1 != byte(e.ci>>e.log&1) {
			break
		}
		v := event{typ: EventType(b[1]), subtype: b[3]}
		copy(v.data[:], b[32:60])
		out = append(out, v)
		e.ci = (e.ci + 1) & 0xffffff
	}
	var w [4]byte
	binary.BigEndian.PutUint32(w[:], e.n<<24|e.ci)
	e.h.d.UARWrite(e.uar, 0x48, w[:])
	return out
}

func (e *testEQ) arm() {
	var w [4]byte
	binary.BigEndian.PutUint32(w[:], e.n<<24|e.ci)
	e.h.d.UARWrite(e.uar, 0x40, w[:])
}

// asyncEvents are the entries that are no completions, as "TYPE object".
func (e *testEQ) asyncEvents() (out []string) {
	for _, v := range e.poll() {
		if v.typ != EventComp {
			out = append(out, v.typ.String())
		}
	}
	return out
}

// testCQ is a completion queue.
type testCQ struct {
	h     *host
	n     uint32
	addr  uint64
	log   uint
	size  int // of an entry
	dbr   uint64
	ci    uint32
	sn    uint32
	uar   uint32
	quiet bool // the doorbell record isn't written
}

func (h *host) newCQ(log uint, size int) *testCQ {
	h.t.Helper()
	c := &testCQ{h: h, log: log, size: size, dbr: h.mem.alloc(8), uar: h.uar()}
	c.addr = h.cqBuffer(log, size)
	var err error
	if c.n, err = h.d.CreateCQ(c.spec()); err != nil {
		h.t.Fatal(err)
	}
	return c
}

func (h *host) cqBuffer(log uint, size int) uint64 {
	n := size << log
	addr := h.mem.alloc(n)
	b := h.mem.at(addr, n)
	for i := size - 1; i < n; i += size {
		b[i] = 0xf0
	}
	return addr
}

func (c *testCQ) spec() CQSpec {
	n := c.size << c.log
	return CQSpec{Buf: Buffer{Pages: pages(c.addr, n), PageSize: page}, Log: c.log, EntrySize: c.size, EQN: c.h.eq.n, UAR: c.uar, DBR: c.dbr}
}

// wc is a completion.
type wc struct {
	op       uint8
	qpn      uint32
	srqn     uint32 // user index
	index    uint16
	bytes    uint32
	imm      uint32
	syndrome Syndrome
	vendor   uint8
	sendOp   uint8
	flags    uint32
	slid     uint16
	inline   []byte
	raw      []byte
}

func (w wc) String() string {
	if w.op == cqeReqErr || w.op == cqeRespErr {
		return fmt.Sprintf("%s %s", cqeName(w.op), w.syndrome)
	}
	return cqeName(w.op)
}

// poll takes the completions that are there.
func (c *testCQ) poll() (out []wc) {
	for {
		entry := c.h.mem.at(c.addr+uint64(int(c.ci&(1<<c.log-1))*c.size), c.size)
		b := entry[c.size-64:]
		if own := byte(loadBE32(b[60:])); own>>4 == 15 || own&1 != byte(c.ci>>c.log&1) {
			break
		}
		w := wc{
			op: b[63] >> 4, qpn: binary.BigEndian.Uint32(b[56:]) & 0xffffff, srqn: binary.BigEndian.Uint32(b[32:]) & 0xffffff,
			index: binary.BigEndian.Uint16(b[60:]), bytes: binary.BigEndian.Uint32(b[44:]), imm: binary.BigEndian.Uint32(b[36:]),
			sendOp: b[56], flags: binary.BigEndian.Uint32(b[24:]), slid: binary.BigEndian.Uint16(b[22:]), raw: slices.Clone(entry),
		}
		if w.op == cqeReqErr || w.op == cqeRespErr {
			w.syndrome, w.vendor = Syndrome(b[55]), b[54]
		}
		switch b[63] & 0xc {
		case 4:
			w.inline = slices.Clone(b[:32])
		case 8:
			w.inline = slices.Clone(entry[:64])
		}
		c.ci = (c.ci + 1) & 0xffffff
		if w.op == cqeResize {
			break
		}
		out = append(out, w)
	}
	c.record()
	return out
}

func (c *testCQ) record() {
	if !c.quiet {
		storeBE32(c.h.mem.at(c.dbr, 4), c.ci)
	}
}

// arm asks for an event.
func (c *testCQ) arm(solicited bool) {
	word := c.sn<<28 | c.ci
	if solicited {
		word |= 1 << 24
	}
	c.armWord(word)
}

func (c *testCQ) armWord(word uint32) {
	storeBE32(c.h.mem.at(c.dbr+4, 4), word)
	var b [8]byte
	binary.BigEndian.PutUint32(b[:], word)
	binary.BigEndian.PutUint32(b[4:], c.n)
	c.h.d.UARWrite(c.uar, 0x20, b[:])
}

// one takes exactly one completion.
func (c *testCQ) one() wc {
	c.h.t.Helper()
	all := c.poll()
	if len(all) != 1 {
		c.h.t.Fatalf("%d completions %v, want 1", len(all), all)
	}
	return all[0]
}

// good takes exactly n completions without an error.
func (c *testCQ) good(n int) []wc {
	c.h.t.Helper()
	all := c.poll()
	if len(all) != n {
		c.h.t.Fatalf("%d completions %v, want %d", len(all), all, n)
	}
	for _, w := range all {
		if w.op == cqeReqErr || w.op == cqeRespErr {
			c.h.t.Fatalf("completion %v", w)
		}
	}
	return all
}

// testMR is memory with a key.
type testMR struct {
	h    *host
	va   uint64
	key  uint32
	data []byte
}

const allAccess = LocalRead | LocalWrite | RemoteRead | RemoteWrite | RemoteAtomic

// vaBase lies between bus and virtual addresses, so that one taken for the other is found.
const vaBase = 0x7f0000000000

// newMR registers memory by a page list whose pages are in reverse order: the memory seen
// by the test is in one piece only within a page, unless n is at most a page.
func (h *host) newMR(n int, access Access) *testMR {
	h.t.Helper()
	addr := h.mem.alloc(n)
	m := &testMR{h: h, va: vaBase + addr, data: h.mem.at(addr, n)}
	i, err := h.d.CreateMKey(MKeySpec{
		Variant: 0x5a, PD: h.pd, QPN: NoUserIndex, Mode: ModeMTT, Access: access, Start: m.va, Length: uint64(n), LogPageSize: 12, Pages: pages(addr, n), UMREnable: true,
	})
	if err != nil {
		h.t.Fatal(err)
	}
	m.key = i<<8 | 0x5a
	return m
}

// fill writes a pattern.
func (m *testMR) fill(seed byte) {
	for i := range m.data {
		m.data[i] = seed + byte(i)*7 + byte(i>>8)
	}
}

// run lets everything happen.
func (h *host) run() {
	h.t.Helper()
	if !h.f.Run(1000000) {
		h.t.Fatal("the fabric does not come to rest")
	}
}

// clean fails the test if there was a violation.
func (h *host) clean() {
	h.t.Helper()
	for _, v := range h.d.Report().Violations {
		h.t.Errorf("violation %s: %s", v.Rule, v.Text)
	}
}

// broke fails the test unless the rule, and no other, was broken.
func (h *host) broke(rule string) {
	h.t.Helper()
	r := h.d.Report()
	provoked[rule] = true
	if len(r.Broken) != 1 || r.Broken[rule] == 0 {
		var all []string
		for _, v := range r.Violations {
			all = append(all, v.Rule+": "+v.Text)
		}
		h.t.Errorf("broken: %v, want %s alone\n%s", r.Broken, rule, strings.Join(all, "\n"))
	}
}
