package efa

import "testing"

// Counters count the events that they are attached to, in memory, and a command sets them or adds to them.
func TestCounters(t *testing.T) {
	p := newPair(t, "plain", typeSRD, 0)
	at, mem := p.b.alloc(64)
	counter := func(off int) uint32 {
		t.Helper()
		return le.Uint32(p.b.must(opCreateCounter, 0, 4, p.b.uar, 8, at+uint64(off))[8:])
	}
	recv, errs, far := counter(0), counter(8), counter(16)
	attach := func(c, events uint32) []any { return []any{4, c, 12, p.qb.handle, 16, events} }
	p.b.must(opAttachCounter, 0, attach(recv, eventRecv)...)
	p.b.must(opAttachCounter, 0, attach(errs, eventRecv<<1)...)
	p.b.must(opAttachCounter, 0, attach(far, eventRemoteWrite|eventRemoteRead)...)
	p.b.must(opAttachCounter, 0, attach(errs, 0)...)
	expect := func(what string, want ...uint64) {
		t.Helper()
		for i, v := range want {
			if got := le.Uint64(mem[8*i:]); got != v {
				t.Errorf("%s: counter %d is %d, want %d", what, i, got, v)
			}
		}
	}
	send := func(op uint8, more ...[]byte) {
		w := p.qa.wqe(1, op, p.ab, p.qb, 6, uint16(1))
		for i, b := range more {
			copy(w[32+16*i:], b)
		}
		p.qa.post(w)
		p.qa.ring()
		p.qa.send.wait(1)
	}
	for range 2 {
		p.qb.postRecv(1, 0, 100)
		send(ioSend, p.a.local(0, 100))
	}
	send(ioWrite, p.b.far(0, 8), p.a.local(0, 8))
	send(ioRead, p.b.far(0, 8), p.a.local(0, 8))
	send(ioWrite, p.b.far(0, 8), p.a.local(0, 8))
	expect("two receives, two WRITEs and a READ", 2, 0, 3)
	p.qb.recv.wait(2)
	p.qb.postRecv(1, 0, 1)
	if s := p.qb.modify(stateRTS, stateError, 0); s != statusOK {
		t.Fatal(s)
	}
	expect("a receive that is flushed", 2, 1, 3)
	p.b.must(opModifyCounter, 0, 4, recv, 8, uint8(1), 16, uint64(5))
	p.b.must(opModifyCounter, 0, 4, far, 8, uint8(0), 16, uint64(maxCounterValue))
	expect("changed", 7, 1, maxCounterValue)
	p.b.must(opModifyCounter, 0, 4, far, 8, uint8(1), 16, uint64(2))
	expect("behind the largest value", 7, 1, 1)

	p.b.refused(statusIllegal, "event 2 of QP", opAttachCounter, 0, attach(errs, eventRecv)...)
	p.b.refused(statusIllegal, "event 0 of QP", opDetachCounter, 0, attach(errs, eventSend)...)
	p.b.refused(statusIllegal, "events 0x400", opAttachCounter, 0, attach(errs, allEvents+1)...)
	p.b.refused(statusIllegal, "no QP", opAttachCounter, 0, 4, errs, 16, uint32(1))
	p.b.refused(statusIllegal, "operation 2", opModifyCounter, 0, 4, errs, 8, uint8(2))
	p.b.refused(statusIllegal, "counter at", opCreateCounter, 0, 4, p.b.uar, 8, at+4)
	p.b.refused(statusIllegal, "UAR 60", opCreateCounter, 0, 4, uint16(60), 8, at)
	p.b.refused(statusBusy, "counts 1 events", opDestroyCounter, 0, 4, recv)
	p.b.must(opDetachCounter, 0, attach(recv, eventRecv)...)
	p.b.must(opDestroyCounter, 0, 4, recv)
	p.b.refused(statusIllegal, "does not exist", opDestroyCounter, 0, 4, recv)
	p.b.must(opDestroyQP, 0, 4, p.qb.handle)
	p.b.must(opDestroyCounter, 0, 4, errs)
	p.b.must(opDestroyCounter, 0, 4, far)
	for range maxCounters {
		counter(24)
	}
	p.b.refused(statusNoResources, "64 event counters", opCreateCounter, 0, 4, p.b.uar, 8, at)
	p.b.broken()
	other := newPair(t, "batch", typeSRD, 0)
	other.a.refused(statusUnsupported, "no event counters", opCreateCounter, 0, 4, other.a.uar, 8, other.a.addr)
}
