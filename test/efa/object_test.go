package efa

import (
	"slices"
	"testing"
)

// Objects go only when nothing uses them, and only once.
func TestInUse(t *testing.T) {
	f := NewFabric(1)
	c := start(t, f, 0, "plain").open()
	recv, send := c.cq(16, 0x20, 0), c.cq(16, 0, 0)
	q := c.qp(typeSRD, 0, send, recv)
	ah := c.ah(c.dev)
	if again := c.ah(c.dev); again != ah {
		t.Errorf("AHs %d and %d of one address", ah, again)
	}
	c.refused(statusBusy, "3 objects", opDeallocPD, 0, 4, c.pd)
	c.refused(statusBusy, "3 queues", opDeallocUAR, 0, 4, c.uar)
	c.refused(statusBusy, "1 CQs", opDestroyEQ, 0, 4, c.eqn)
	c.refused(statusBusy, "1 queues", opDestroyCQ, 0, 4, send.number)
	c.refused(statusIllegal, "PD 77 has no AH", opDestroyAH, 0, 4, ah, 6, uint16(77))
	var gone [][2]any
	for _, x := range []struct {
		op  opcode
		arg any
	}{
		{opDestroyQP, q.handle}, {opDestroyCQ, send.number}, {opDestroyCQ, recv.number}, {opDestroyEQ, c.eqn}, {opDeallocUAR, c.uar}, {opDeregMR, c.lkey},
	} {
		c.must(x.op, 0, 4, x.arg)
		gone = append(gone, [2]any{x.op, x.arg})
	}
	for range 2 {
		c.must(opDestroyAH, 0, 4, ah, 6, c.pd)
	}
	c.must(opDeallocPD, 0, 4, c.pd)
	for _, g := range gone {
		c.refused(statusIllegal, "", g[0].(opcode), 0, 4, g[1])
	}
	c.refused(statusIllegal, "PD", opDeallocPD, 0, 4, c.pd)
	c.broken()
}

// Every table has an end.
func TestLimits(t *testing.T) {
	c := start(t, NewFabric(1), 0, "batch").open()
	for _, x := range []struct {
		n    int
		op   opcode
		args []any
	}{
		{maxPDs - 1, opAllocPD, nil},
		{maxUARs - 1, opAllocUAR, nil},
		{maxEQs - 1, opCreateEQ, []any{4, uint16(64), 6, uint8(2), 7, uint8(4), 8, c.addr, 16, uint32(1)}},
		{maxAHs, opCreateAH, []any{4, c.dev.gid[:], 20, c.pd}},
		{maxCQs, opCreateCQ, []any{5, uint8(8), 6, uint16(16), 12, c.addr, 24, uint16(1), 26, c.uar}},
	} {
		for range x.n {
			c.must(x.op, 0, x.args...)
		}
		c.refused(statusNoResources, "", x.op, 0, x.args...)
	}
	for range maxQPs {
		c.must(opCreateQP, 0, 4, c.pd, 6, uint8(2), 56, c.uar, 40, uint32(1024), 44, uint32(16))
	}
	c.refused(statusNoResources, "256 QPs", opCreateQP, 0, 4, c.pd, 6, uint8(2), 56, c.uar, 40, uint32(1024), 44, uint32(16))
	for range maxMRs - 1 {
		c.must(opRegMR, 0, 4, c.pd, 8, c.addr, 40, uint64(1), 48, uint8(12))
	}
	c.refused(statusNoResources, "4096 MRs", opRegMR, 0, 4, c.pd, 8, c.addr, 40, uint64(1), 48, uint8(12))
	c.broken()
}

// Requests for objects that cannot be.
func TestRefused(t *testing.T) {
	f := NewFabric(1)
	c, read := start(t, f, 0, "plain").open(), start(t, f, 1, "read").open()
	cq := c.cq(16, 0, 0)
	qp := []any{4, c.pd, 6, uint8(2), 16, c.addr, 24, uint32(cq.number), 28, uint32(cq.number), 40, uint32(1024), 44, uint32(16), 48, uint32(256), 52, uint32(16), 56, c.uar}
	other := le.Uint16(c.must(opAllocUAR, 0)[8:])
	cqArgs := []any{5, uint8(8), 6, uint16(16), 12, c.addr, 24, uint16(1), 26, c.uar}
	eq := []any{4, uint16(64), 6, uint8(1), 7, uint8(4), 8, c.addr, 16, uint32(1)}
	mr := []any{4, c.pd, 8, c.addr, 40, uint64(4096), 48, uint8(12), 56, uint64(0)}
	c.must(opCreateQP, 0, qp...)
	c.must(opCreateCQ, 0, cqArgs...)
	c.must(opCreateEQ, 0, eq...)
	c.must(opRegMR, 0, mr...)
	for _, tt := range []struct {
		op   opcode
		args []any
		more []any
		why  string
	}{
		{opCreateQP, qp, []any{6, uint8(3)}, "type 3"},
		{opCreateQP, qp, []any{7, uint8(1)}, "flags 0x1"},
		{opCreateQP, qp, []any{6, uint8(1), 7, uint8(4)}, "flags 0x4 of a QP of type 1"},
		{opCreateQP, qp, []any{4, uint16(99)}, "PD 99"},
		{opCreateQP, qp, []any{56, uint16(60)}, "UAR 60"},
		{opCreateQP, qp, []any{56, other}, "and the CQs have"},
		{opCreateQP, qp, []any{24, uint32(99)}, "CQs 99"},
		{opCreateQP, qp, []any{28, uint32(0x10000)}, "65536"},
		{opCreateQP, qp, []any{58, uint8(16)}, "service level 16"},
		{opCreateQP, qp, []any{44, uint32(15)}, "15 entries"},
		{opCreateQP, qp, []any{40, uint32(512)}, "512 bytes for 16 entries"},
		{opCreateQP, qp, []any{44, uint32(2048), 40, uint32(2048 * 64)}, "2048 entries"},
		{opCreateQP, qp, []any{48, uint32(250)}, "250 bytes"},
		{opCreateQP, qp, []any{52, uint32(17)}, "17 requests"},
		{opCreateQP, qp, []any{16, uint64(0)}, "256 bytes at 0x0"},
		{opCreateQP, qp, []any{16, uint64(64)}, "no memory"},
		{opCreateCQ, cqArgs, []any{5, uint8(5)}, "5 words"},
		{opCreateCQ, cqArgs, []any{5, uint8(0x24)}, "source address: true"},
		{opCreateCQ, cqArgs, []any{6, uint16(15)}, "15 entries"},
		{opCreateCQ, cqArgs, []any{24, uint16(2)}, "2 rings"},
		{opCreateCQ, cqArgs, []any{26, uint16(60)}, "UAR 60"},
		{opCreateCQ, cqArgs, []any{4, uint8(0x20), 8, uint16(60)}, "EQ 60"},
		{opCreateCQ, cqArgs, []any{12, uint64(8)}, "ring at 0x8"},
		{opCreateEQ, eq, []any{4, uint16(63)}, "63 entries"},
		{opCreateEQ, eq, []any{7, uint8(8)}, "8 words"},
		{opCreateEQ, eq, []any{6, uint8(0)}, "vector 0"},
		{opCreateEQ, eq, []any{16, uint32(3)}, "events 0x3"},
		{opRegMR, mr, []any{48, uint8(0x8c)}, "flags 0x8c"},
		{opRegMR, mr, []any{52, uint32(1)}, "counts the pages itself"},
		{opRegMR, mr, []any{48, uint8(11)}, "1<<11"},
		{opRegMR, mr, []any{49, uint8(8)}, "permissions 0x8"},
		{opRegMR, mr, []any{40, uint64(0)}, "0x0 bytes"},
		{opRegMR, mr, []any{40, ^uint64(0), 56, uint64(2)}, "bytes at 0x2"},
		{opRegMR, mr, []any{40, uint64(1) << 33}, "2097152 pages"},
		{opRegMR, mr, []any{40, uint64(5 * 4096)}, "5 pages stand in the command"},
		{opRegMR, mr, []any{8, c.addr + 8}, "page 0"},
		{opRegMR, mr, []any{8, uint64(4096)}, "no memory"},
		{opCreateAH, []any{20, c.pd}, nil, "no card has the address ::"},
		{opCreateAH, []any{4, c.dev.gid[:], 20, uint16(99)}, nil, "PD 99"},
		{opGetStats, []any{17, uint8(1)}, nil, "scope 1"},
		{opGetStats, []any{16, uint8(5)}, nil, "type 5"},
	} {
		c.refused(statusIllegal, tt.why, tt.op, 0, append(slices.Clone(tt.args), tt.more...)...)
	}
	c.broken()
	read.refused(statusUnsupported, "no event queues", opCreateEQ, 0, eq...)
	read.refused(statusIllegal, "permissions 0x2", opRegMR, 0, 4, read.pd, 8, read.addr, 40, uint64(8), 48, uint8(12), 49, uint8(2))
	read.refused(statusIllegal, "type 3", opGetStats, 0, 16, uint8(3))
	read.broken()
	c.refused(statusMalformed, "flags", opCreateCQ, 0, append(cqArgs, 4, uint8(0x40))...)
	c.broken("admin-reserved")
}

// A number of a QP has low bits that are unique, and high ones that change.
func TestQPNumbers(t *testing.T) {
	c := start(t, NewFabric(1), 0, "plain").open()
	cq := c.cq(16, 0, 0)
	q, r := c.qp(typeUD, 0, cq, cq), c.qp(typeUD, 0, cq, cq)
	c.must(opDestroyQP, 0, 4, q.handle)
	s := c.qp(typeUD, 0, cq, cq)
	if q.number == s.number || q.number%maxQPs != s.number%maxQPs || q.number%maxQPs == r.number%maxQPs || q.handle == s.handle {
		t.Errorf("numbers %#x, %#x, %#x; handles %#x, %#x", q.number, r.number, s.number, q.handle, s.handle)
	}
	c.refused(statusIllegal, "handle", opQueryQP, 0, 4, q.handle)
}

// Lists of pages come in the command, in a buffer, and by chains of chunks. Page k of the list is the same page of
// memory each time, so that a wrong list does not go unnoticed: the MR is read at both ends.
func TestPageLists(t *testing.T) {
	p := newPair(t, "plain", typeSRD, 0)
	a := p.a
	_, marks := a.alloc(2 * pageSize)
	first := guestBase + a.next - 2*pageSize
	marks[0], marks[pageSize] = 11, 22
	for _, pages := range []int{1, 4, 5, 512, 513, 510 * 512, 510*512 + 1, 1020 * 512} {
		list := make([]uint64, pages)
		for i := range list {
			list[i] = first
		}
		list[pages-1] = first + pageSize
		if pages == 1 {
			list[0] = first
		}
		args := []any{4, a.pd, 40, uint64(pages) * pageSize, 48, uint8(12), 56, uint64(1 << 40)}
		flags := uint8(0)
		next := a.next
		at, mem := a.alloc(8 * pages)
		for i, x := range list {
			le.PutUint64(mem[8*i:], x)
		}
		switch {
		case pages <= 4:
			args = append(args, 8, slices.Clone(mem))
		case pages <= 512:
			flags, args = 2, append(args, 8, uint32(8*pages), 12, at)
		default:
			length, chunk := chain(a.driver, at, (8*pages+pageSize-1)/pageSize)
			flags, args = 6, append(args, 8, length, 12, chunk)
		}
		r := a.must(opRegMR, flags, args...)
		lkey := le.Uint32(r[8:])
		a.next = next // the card has copied the list
		clear(mem)
		for i, want := range map[int]byte{0: marks[0], pages - 1: marks[(list[pages-1] - first)]} {
			p.qb.postRecv(1, 0, 1)
			p.qa.post(p.qa.wqe(1, ioSend, p.ab, p.qb, 6, uint16(1), 32, words(16, 0, uint32(1), 4, lkey, 8, uint64(1<<40)+uint64(i)*pageSize)))
			p.qa.ring()
			if e := p.qa.send.wait(1); e[0][2] != ioOK || p.b.mem[0] != want {
				t.Errorf("page %d of %d: status %d, byte %d, want %d", i, pages, e[0][2], p.b.mem[0], want)
			}
			p.qb.recv.wait(1)
		}
		a.must(opDeregMR, 0, 4, lkey)
	}
	length, chunk := chain(a.driver, p.a.addr, 2)
	for _, tt := range []struct {
		why   string
		flags uint8
		args  []any
	}{
		{"indirect list that is no list", 4, nil},
		{"8 bytes for 1024 pages", 2, []any{8, uint32(8), 12, a.addr}},
		{"no memory", 2, []any{8, uint32(8 * 1024), 12, uint64(8)}},
		{"a chunk of 27 bytes", 6, []any{8, length - 1, 12, chunk}},
		{"chunk of the page list: no memory", 6, []any{8, length, 12, uint64(8)}},
	} {
		a.refused(statusIllegal, tt.why, opRegMR, tt.flags, append([]any{4, a.pd, 40, uint64(1024) * pageSize, 48, uint8(12)}, tt.args...)...)
	}
	a.broken()
}

// chain makes the chunks that name the pages of a list, and returns the length and place of the first. The memory is
// not given out.
func chain(x *driver, at uint64, pages int) (uint32, uint64) {
	last := 8*(pages%chunkSlots) + 12 // as Linux computes it
	first := guestBase + x.next
	place := x.next
	for i := 0; i < pages; i += chunkSlots {
		b := x.mem[place:][:pageSize]
		clear(b)
		for k := range min(chunkSlots, pages-i) {
			le.PutUint64(b[8*k:], at+uint64(i+k)*pageSize)
		}
		place += pageSize
		if i+chunkSlots < pages {
			length := chunkUsed
			if i+2*chunkSlots >= pages {
				length = last
			}
			copy(b[chunkNext:], words(12, 0, uint32(length), 4, guestBase+place))
		}
	}
	if pages > chunkSlots {
		last = chunkUsed
	}
	return uint32(last), first
}

func TestStates(t *testing.T) {
	c := start(t, NewFabric(1), 0, "plain").open()
	cq := c.cq(16, 0, 0)
	q := c.qp(typeSRD, 0, cq, cq)
	for _, tt := range []struct {
		from, to state
		mask     uint32
		want     status
	}{
		{stateReset, stateRTS, maskPSN, statusIllegal},
		{stateReset, stateError, 0, statusIllegal},
		{stateReset, stateInit, 0, statusIllegal}, // without Q_Key
		{stateInit, stateInit, maskQKey, statusIllegal},
		{stateReset, stateInit, maskQKey, statusOK},
		{stateInit, stateInit, 0, statusOK},
		{stateInit, stateRTR, maskPSN, statusIllegal},
		{stateInit, stateRTR, 0, statusOK},
		{stateRTR, stateRTS, 0, statusIllegal}, // without PSN
		{stateRTR, stateRTS, maskPSN | maskRNR, statusOK},
		{stateRTS, stateRTR, 0, statusIllegal},
		{stateRTS, 7, 0, statusIllegal},
		{stateRTS, stateRTS, 64, statusIllegal},
		{stateRTS, stateSQD, maskNotify, statusOK},
		{stateSQD, stateSQD, maskQKey, statusOK},
		{stateSQD, stateRTS, 0, statusOK},
		{stateRTS, stateError, 0, statusOK},
		{stateError, stateRTS, 0, statusIllegal},
		{stateError, stateReset, 0, statusOK},
	} {
		if got := q.modify(tt.from, tt.to, tt.mask, 20, uint32(7), 24, uint32(9), 29, uint8(3)); got != tt.want {
			t.Errorf("%d to %d with mask %#x: %v, want %v", tt.from, tt.to, tt.mask, got, tt.want)
		}
		a := c.must(opQueryQP, 0, 4, q.handle)[8:]
		is := tt.to
		if tt.want != statusOK {
			is = state(le.Uint32(a))
		}
		if state(le.Uint32(a)) != is || is == stateRTS && (le.Uint32(a[4:]) != 7 || le.Uint32(a[8:]) != 9 || a[13] != 3) {
			t.Errorf("after %d to %d: % x", tt.from, tt.to, a[:16])
		}
	}
	ud, old := c.qp(typeUD, 0, cq, cq), start(t, NewFabric(1), 0, "first").open()
	for _, q := range []*testQP{ud, old.qp(typeSRD, 0, old.cq(16, 0, 0), old.cq(16, 0, 0))} {
		if q.modify(stateReset, stateInit, maskQKey)+q.modify(stateInit, stateRTR, 0) != 0 || q.modify(stateRTR, stateRTS, maskPSN|maskRNR, 29, uint8(1)) != statusIllegal {
			t.Error("RNR retries of a QP that cannot have them")
		}
	}
	c.broken()
}
