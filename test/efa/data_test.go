package efa

import (
	"bytes"
	"slices"
	"testing"
	"time"
)

// A message of each kind arrives, with all that its completions say.
func TestMessages(t *testing.T) {
	const immediate = 0xcafe0001
	for _, tt := range []struct {
		name        string
		kind, op    uint8
		personality string
		flags       uint8 // of the receiver
		ctrl        uint8
		sizes       []int // of the SGEs
		inline      int
		wide        bool
		recv        []int // pieces of the receive
		unknown     bool  // the receiver has no AH for the sender
	}{
		{name: "send", kind: typeSRD, sizes: []int{100}, recv: []int{0, 200}},
		{name: "two pieces to three", kind: typeSRD, sizes: []int{5000, 3000}, recv: []int{0, 1, 8192, 4096, 16384, 5000}},
		{name: "nothing", kind: typeSRD, sizes: []int{0}, recv: []int{0, 0}},
		{name: "immediate", kind: typeSRD, ctrl: wqeImmediate, sizes: []int{8}, recv: []int{0, 8}},
		{name: "inline", kind: typeSRD, ctrl: wqeInline, inline: 32, recv: []int{0, 99}},
		{name: "wide inline", kind: typeSRD, ctrl: wqeInline, inline: 80, wide: true, recv: []int{0, 99}},
		{name: "unknown sender", kind: typeSRD, sizes: []int{8}, recv: []int{0, 8}, unknown: true},
		{name: "datagram", kind: typeUD, ctrl: wqeImmediate, sizes: []int{100}, recv: []int{0, 200}},
		{name: "first generation", kind: typeSRD, personality: "first", sizes: []int{mtu}, recv: []int{0, mtu}},
		{name: "read", kind: typeSRD, op: ioRead, sizes: []int{20000}},
		{name: "read of an older card", kind: typeSRD, op: ioRead, personality: "read", sizes: []int{20000}},
		{name: "write", kind: typeSRD, op: ioWrite, sizes: []int{9000}},
		{name: "write inline", kind: typeSRD, op: ioWrite, ctrl: wqeInline, inline: 80, wide: true},
		{name: "write with immediate", kind: typeSRD, op: ioWrite, ctrl: wqeImmediate, sizes: []int{65536}, recv: []int{60000, 1}},
		{name: "unsolicited write", kind: typeSRD, op: ioWrite, flags: 4, ctrl: wqeImmediate, sizes: []int{5}, recv: nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.personality == "" {
				tt.personality = "plain"
			}
			p := newPair(t, tt.personality, tt.kind, tt.flags)
			if tt.wide {
				p.a.wide = true
				p.qa = p.a.qp(tt.kind, 0, p.a.cq(64, 0, 0), p.a.cq(64, 0, 0)).ready()
			}
			if tt.unknown {
				p.b.must(opDestroyAH, 0, 4, p.ba, 6, p.b.pd)
				p.ba = noAH
			}
			if tt.op == ioRead {
				copy(p.b.mem, p.a.mem)
				clear(p.a.mem)
			}
			if tt.recv != nil {
				p.qb.postRecv(77, tt.recv...)
			}
			w := p.qa.wqe(0x1234, tt.op|tt.ctrl, p.ab, p.qb, 8, uint32(immediate))
			at, length := 32, tt.inline
			for i, n := range tt.sizes {
				copy(w[32+16*i:], p.a.local(length, n))
				length += n
			}
			if tt.op != ioSend {
				copy(w[48:], w[32:48])
				copy(w[32:], p.b.far(0, length))
				at = 48
			}
			le.PutUint16(w[6:], uint16(len(tt.sizes)))
			if tt.inline > 0 {
				le.PutUint16(w[6:], uint16(tt.inline))
				copy(w[at:], p.a.mem[:tt.inline])
			}
			p.qa.post(w)
			p.qa.ring()
			e := p.qa.send.wait(1)[0]
			opBits := tt.op << 4
			if tt.personality != "plain" {
				opBits = 0
			}
			if want := words(32, 0, uint16(0x1234), 3, 1|1<<1|opBits, 4, p.qa.number); !bytes.Equal(e, want) {
				t.Errorf("sent:     % x\nwant      % x", e, want)
			}
			p.checkReceive(t, tt.kind, tt.op, tt.ctrl, opBits, tt.recv, length, immediate)
			p.a.broken()
			p.b.broken()
		})
	}
}

// checkReceive checks the data, and the receive if there is one.
func (p *pair) checkReceive(t *testing.T, kind, op, ctrl, opBits uint8, recv []int, length int, immediate uint32) {
	t.Helper()
	prefix := 0
	if kind == typeUD {
		prefix = grhSize
	}
	if op == ioSend || ctrl&wqeImmediate != 0 {
		e := p.qb.recv.wait(1)[0]
		want := words(32, 0, uint16(77), 3, 1|2<<1|opBits, 4, p.qb.number, 6, uint16(length+prefix), 8, p.ba, 10, p.qa.number)
		if ctrl&wqeImmediate != 0 {
			want[3] |= 8
			le.PutUint32(want[12:], immediate)
		}
		if p.ba == noAH {
			copy(want[16:], p.a.dev.gid[:])
		}
		if op == ioWrite {
			le.PutUint16(want[16:], uint16(length>>16))
		}
		if recv == nil {
			want[0], want[3] = 0, want[3]|1<<7
		}
		if !bytes.Equal(e, want) {
			t.Errorf("received: % x\nwant      % x", e, want)
		}
	}
	here, there := p.a.mem[:length], p.b.mem[:length]
	if op == ioSend {
		there = nil
		for i := 0; i < len(recv); i += 2 {
			there = append(there, p.b.mem[recv[i]:recv[i]+recv[i+1]]...)
		}
		if prefix > 0 && (there[0] != 0x60 || !bytes.Equal(there[8:24], p.a.dev.gid[:]) || !bytes.Equal(there[24:40], p.b.dev.gid[:])) {
			t.Errorf("GRH % x", there[:40])
		}
		there = there[prefix : prefix+length]
	}
	if !bytes.Equal(here, there) || length > 4 && zero(here) {
		t.Errorf("%d bytes differ", length)
	}
}

// Requests that fail have a status each, and the QP goes on.
func TestFailures(t *testing.T) {
	type cut struct {
		name   string
		op     uint8
		want   uint8
		before func(p *pair)
		wqe    []any
	}
	local := func(p *pair, off, n int) []byte { return p.a.local(off, n) }
	for _, tt := range []cut{
		{name: "operation", op: 5, want: ioUnsupported},
		{name: "AH", want: ioBadAH, wqe: []any{12, uint16(1)}},
		{name: "lkey", want: ioBadLKey, wqe: []any{36, uint32(0x999)}},
		{name: "beyond the MR", want: ioBadLKey, wqe: []any{32, uint32(65537)}, op: ioWrite},
		{name: "lkey of another PD", want: ioBadLKey, before: func(p *pair) { p.a.foreign(&p.a.lkey, nil, 7) }},
		{name: "read to memory that may not be written", op: ioRead, want: ioBadLKey, before: func(p *pair) { p.a.foreign(&p.a.lkey, &p.a.pd, 0) }},
		{name: "rkey of another PD", op: ioRead, want: ioRemoteAddr, before: func(p *pair) { p.b.foreign(&p.b.rkey, nil, 7) }},
		{name: "read of memory for writing", op: ioRead, want: ioRemoteAddr, before: func(p *pair) { p.b.foreign(&p.b.rkey, &p.b.pd, permLocalWrite|permRemoteWrite) }},
		{name: "write to memory for reading", op: ioWrite, want: ioRemoteAddr, before: func(p *pair) { p.b.foreign(&p.b.rkey, &p.b.pd, permLocalWrite|permRemoteRead) }},
		{name: "receive in memory that may not be written", want: ioBadStatus, before: func(p *pair) { p.b.foreign(&p.b.lkey, &p.b.pd, permRemoteRead); p.qb.postRecv(1, 0, 8) }},
		{name: "too long", want: ioTooLong, wqe: []any{32, uint32(mtu + 1)}},
		{name: "QP number", want: ioNoQP, wqe: []any{4, uint16(0x7700)}},
		{name: "QP of another type", want: ioNoQP, before: func(p *pair) { p.qb = p.b.qp(typeUD, 0, p.qb.send, p.qb.recv).ready() }},
		{name: "Q_Key", want: ioNoQP, wqe: []any{16, uint32(1)}},
		{name: "QP in error", want: ioNoQP, before: func(p *pair) { p.qb.modify(stateRTS, stateError, 0) }},
		{name: "no receive", want: ioRNR},
		{name: "receive too short", want: ioTooShort, before: func(p *pair) { p.qb.postRecv(1, 0, 7) }},
		{name: "no card", want: ioUnreachable, before: func(p *pair) { p.b.dev.Close() }},
		{name: "rkey", op: ioRead, want: ioRemoteAddr, wqe: []any{36, uint32(3)}},
		{name: "rkey out of range", op: ioWrite, want: ioRemoteAddr, wqe: []any{40, uint64(guestBase)}},
		{name: "unknown peer", op: ioWrite, want: ioUnknownPeer, before: func(p *pair) { p.b.must(opDestroyAH, 0, 4, p.ba, 6, p.b.pd) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPair(t, "plain", typeSRD, 0, 29, uint8(0))
			if tt.before != nil {
				tt.before(p)
			}
			w := p.qa.wqe(1, tt.op, p.ab, p.qb, 6, uint16(1), 32, local(p, 0, 8))
			if tt.op == ioRead || tt.op == ioWrite {
				copy(w[48:], w[32:48])
				copy(w[32:], p.b.far(0, 8))
			}
			w = append(w, 0)[:64]
			over := words(64, tt.wqe...)
			for i := 0; i < len(tt.wqe); i += 2 {
				off := tt.wqe[i].(int)
				n := map[bool]int{true: 2, false: 4}[off < 16]
				if off == 40 {
					n = 8
				}
				copy(w[off:off+n], over[off:])
				if tt.name == "beyond the MR" {
					copy(w[48:52], over[off:])
				}
			}
			p.qa.post(w)
			p.qa.ring()
			if e := p.qa.send.wait(1)[0]; e[2] != tt.want {
				t.Errorf("status %s, want %s", ioStatuses[e[2]], ioStatuses[tt.want])
			}
			if a := p.a.must(opQueryQP, 0, 4, p.qa.handle); le.Uint32(a[8:]) != uint32(stateRTS) {
				t.Errorf("state %d after a failure", a[8])
			}
			p.a.broken()
		})
	}
}

// A datagram that nobody receives is sent all the same, and counted where it was dropped.
func TestLostDatagrams(t *testing.T) {
	p := newPair(t, "plain", typeUD, 0)
	for i, w := range [][]any{{4, uint16(0x7700)}, {16, uint32(1)}, {}, {2, uint8(ioWrite)}} {
		p.qa.post(p.qa.wqe(uint16(i), ioSend, p.ab, p.qb, append([]any{6, uint16(1), 32, p.a.local(0, 8)}, w...)...))
	}
	p.qa.ring()
	want := map[uint16]uint8{0: ioOK, 1: ioOK, 2: ioOK, 3: ioUnsupported}
	for _, e := range p.qa.send.wait(4) {
		if e[2] != want[le.Uint16(e)] {
			t.Errorf("request %d: %s", e[0], ioStatuses[e[2]])
		}
	}
	p.qb.recv.wait(0)
	a := p.b.must(opGetStats, 0, 16, uint8(0))[8:]
	if le.Uint64(a[32:]) != 2 || le.Uint64(a[40:]) != 1 {
		t.Errorf("dropped %d, wrong Q_Keys %d", le.Uint64(a[32:]), le.Uint64(a[40:]))
	}
}

// Messages and their completions have an order that the seed decides, and it is not the order of the requests.
func TestOrder(t *testing.T) {
	order := func(seed uint64) (ids []uint16) {
		p := newPair(t, "plain", typeSRD, 0)
		*p.a.dev.f.rand = *NewFabric(seed).rand
		for i := range uint16(16) {
			p.qb.postRecv(i, int(i)*64, 64)
		}
		for i := range uint16(16) {
			p.qa.post(p.qa.wqe(i, ioSend, p.ab, p.qb, 6, uint16(1), 32, p.a.local(int(i), 8)))
		}
		p.qa.ring()
		for _, e := range p.qa.send.wait(16) {
			ids = append(ids, le.Uint16(e))
		}
		for i, e := range p.qb.recv.wait(16) {
			// Receives are used in order, by messages that come in the same order as their completions.
			if id := int(le.Uint16(e)); id != i || p.b.mem[id*64] != p.a.mem[ids[i]] {
				t.Errorf("receive %d has message %d", id, ids[i])
			}
		}
		p.a.broken()
		p.b.broken()
		return ids
	}
	one, again, two := order(1), order(1), order(2)
	if !slices.Equal(one, again) || slices.Equal(one, two) || slices.IsSorted(one) || slices.IsSorted(two) {
		t.Errorf("order %v, again %v, with another seed %v", one, again, two)
	}
	falls := 0
	for i := range one[1:] {
		if one[i+1] < one[i] {
			falls++
		}
	}
	if falls < 3 { // late messages alone make one
		t.Errorf("order %v", one)
	}
	slices.Sort(one)
	if len(slices.Compact(one)) != 16 {
		t.Errorf("completions of %v", one)
	}
}

// Run delivers what Drain does, late messages and retries as well, until the fabric is closed.
func TestRun(t *testing.T) {
	p := newPair(t, "plain", typeSRD, 0, 29, uint8(3))
	f, done := p.a.dev.f, make(chan struct{})
	go func() { f.Run(); close(done) }()
	for i := range uint16(16) {
		if i > 0 { // for one of the messages there is no receive
			p.qb.postRecv(i, 0, 8)
		}
		p.qa.post(p.qa.wqe(i, ioSend, p.ab, p.qb, 6, uint16(1), 32, p.a.local(0, 8)))
	}
	p.qa.ring()
	for {
		if q := p.a.dev.Report().Queues; q["completions: ok"] == 15 && q["completions: receiver not ready"] == 1 {
			break
		}
		time.Sleep(pause)
	}
	f.Close()
	<-done
	p.qa.send.wait(16)
	p.a.broken()
}

// A sender waits for a receive as long as its QP says.
func TestReceiverNotReady(t *testing.T) {
	for retries, late := range map[uint8]bool{0: false, 3: false, forever: true} {
		p := newPair(t, "plain", typeSRD, 0, 29, retries)
		p.qa.post(p.qa.wqe(9, ioSend, p.ab, p.qb, 6, uint16(1), 32, p.a.local(0, 8)))
		p.qa.ring()
		if late {
			p.qa.send.wait(0)
			p.qb.postRecv(1, 0, 8)
		}
		want := map[bool]uint8{true: ioOK, false: ioRNR}[late]
		if e := p.qa.send.wait(1)[0]; e[2] != want {
			t.Errorf("%d retries: %s", retries, ioStatuses[e[2]])
		}
		p.a.broken()
	}
	for _, personality := range []string{"plain", "first"} {
		p := newPair(t, personality, typeSRD, 0) // which says nothing of retries
		p.qa.post(p.qa.wqe(9, ioSend, p.ab, p.qb, 6, uint16(1), 32, p.a.local(0, 8)))
		p.qa.ring()
		p.qa.send.wait(0)
		p.qb.postRecv(1, 0, 8)
		if e := p.qa.send.wait(1)[0]; e[2] != ioOK {
			t.Errorf("%s: %s", personality, ioStatuses[e[2]])
		}
	}
	// The receiver goes away, in each way.
	for name, leave := range map[string]func(*pair){
		"destroyed": func(p *pair) { p.b.must(opDestroyQP, 0, 4, p.qb.handle) },
		"reset":     func(p *pair) { p.qb.modify(stateRTS, stateReset, 0) },
		"error":     func(p *pair) { p.qb.modify(stateRTS, stateError, 0) },
		"function":  func(p *pair) { p.b.dev.Reset() },
	} {
		p := newPair(t, "plain", typeSRD, 0, 29, uint8(forever))
		p.qa.post(p.qa.wqe(9, ioSend, p.ab, p.qb, 6, uint16(1), 32, p.a.local(0, 8)))
		p.qa.ring()
		p.qa.send.wait(0)
		leave(p)
		if e := p.qa.send.wait(1)[0]; e[2] != ioNoQP {
			t.Errorf("receiver %s: %s", name, ioStatuses[e[2]])
		}
	}
}

// A QP that is brought to ERR completes its requests; one that is reset forgets them.
func TestFlush(t *testing.T) {
	post := func(p *pair) {
		for i := range uint16(3) {
			p.qa.post(p.qa.wqe(i, ioSend, p.ab, p.qb, 6, uint16(1), 32, p.a.local(0, 8)))
			p.qa.postRecv(i, 0, 8)
		}
		p.qa.ring()
	}
	p := newPair(t, "plain", typeSRD, 0, 29, uint8(forever))
	post(p)
	p.qa.send.wait(0)
	p.qa.modify(stateRTS, stateError, 0)
	for _, e := range append(p.qa.send.wait(3), p.qa.recv.wait(3)...) {
		if e[2] != ioFlushed {
			t.Errorf("% x", e)
		}
	}
	post(p)
	p.qa.send.wait(3)
	p.qa.recv.wait(3)
	p.a.broken()

	p = newPair(t, "plain", typeSRD, 0, 29, uint8(forever))
	post(p)
	p.qa.modify(stateRTS, stateReset, 0)
	p.qa.sent, p.qa.posted = 0, 0
	p.qa.ready()
	p.qb.postRecv(5, 0, 8)
	p.qa.post(p.qa.wqe(9, ioSend, p.ab, p.qb, 6, uint16(1), 32, p.a.local(0, 8)))
	p.qa.ring()
	if e := p.qa.send.wait(1)[0]; le.Uint16(e) != 9 || e[2] != ioOK {
		t.Errorf("after a reset: % x", e)
	}
	p.qa.recv.wait(0)
	p.a.broken()
}

// In the state SQD requests wait.
func TestDrained(t *testing.T) {
	p := newPair(t, "plain", typeSRD, 0)
	p.qb.postRecv(1, 0, 8)
	p.qa.modify(stateRTS, stateSQD, 0)
	p.qa.post(p.qa.wqe(9, ioSend, p.ab, p.qb, 6, uint16(1), 32, p.a.local(0, 8)))
	p.qa.ring()
	p.qa.send.wait(0)
	p.qa.modify(stateSQD, stateRTS, 0)
	if e := p.qa.send.wait(1)[0]; e[2] != ioOK {
		t.Errorf("% x", e)
	}
	p.a.broken()
}

// A card sends to itself.
func TestLoopback(t *testing.T) {
	c := start(t, NewFabric(1), 0, "plain").open()
	cq := c.cq(64, 0, 0)
	q, r := c.qp(typeSRD, 0, cq, cq).ready(), c.qp(typeSRD, 0, cq, cq).ready()
	r.postRecv(4, 1000, 8)
	copy(c.mem, "loopback")
	q.post(q.wqe(3, ioSend, c.ah(c.dev), r, 6, uint16(1), 32, c.local(0, 8)))
	q.ring()
	cq.wait(2)
	if got := string(c.mem[1000:1008]); got != "loopback" {
		t.Errorf("%q", got)
	}
	a := c.must(opGetStats, 0, 16, uint8(1))[8:]
	if le.Uint64(a) != 8 || le.Uint64(a[8:]) != 1 || le.Uint64(a[16:]) != 8 || le.Uint64(a[24:]) != 1 {
		t.Errorf("statistics % x", a[:32])
	}
	c.broken()
}
