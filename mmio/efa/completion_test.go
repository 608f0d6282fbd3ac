//go:build amd64 || arm64

package efa

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestCompAround reads two rings past the end of the doorbell's 16 bits: each in order, in turn, and each
// entry once.
func TestCompAround(t *testing.T) {
	r := newRig(t, SendSize{Depth: 1, Width: 64}, RecvSize{MaxWR: 1, MaxSGE: 1, Descriptors: 1}, 2, 4)
	var made, read [2]uint16
	total := uint32(0)
	for round := range 12000 {
		if _, ok := next(r.cq); ok {
			t.Fatalf("round %d: a completion that nobody wrote", round)
		}
		for ring := range made {
			for range (round+ring)%4 + 1 {
				r.complete(ring, entry(made[ring], 0, entrySend, uint16(ring)))
				made[ring]++
			}
		}
		last := -1
		for made != read {
			c, ok := next(r.cq)
			if !ok {
				t.Fatalf("round %d: %v were written, %v read", round, made, read)
			}
			ring := int(c.QPN())
			if c.ReqID() != read[ring] {
				t.Fatalf("ring %d: %d, want %d", ring, c.ReqID(), read[ring])
			}
			if other := 1 - ring; ring == last && made[other] != read[other] {
				t.Fatalf("ring %d is read twice, and ring %d has a completion", ring, other)
			}
			last = ring
			read[ring]++
			total++
		}
		r.cq.Release()
		if got := le.Uint32(r.compBell); got != total&0xffff {
			t.Fatalf("doorbell %#x after %d completions", got, total)
		}
	}
}

// TestArm: the word of the doorbell has the counter, the number of events and the request.
func TestArm(t *testing.T) {
	r := plain(t, 4)
	word := func(what string, want uint32) {
		t.Helper()
		if got := le.Uint32(r.compBell); got != want {
			t.Errorf("%s: doorbell %#x, want %#x", what, got, want)
		}
	}
	r.cq.Release()
	word("nothing was taken", 0xeeeeeeee)
	r.cq.Arm()
	word("armed", 1<<31)
	r.complete(0, entry(0, 0, entrySend, 1))
	next(r.cq)
	r.cq.Release()
	word("released", 1)
	r.cq.Event()
	r.cq.Arm()
	word("armed after an event", 1<<31|1<<29|1)
	r.complete(0, entry(0, 0, entrySend, 1))
	next(r.cq)
	for range 3 {
		r.cq.Event()
	}
	r.cq.Release()
	word("released after 4 events", 2)
	r.cq.Event()
	r.cq.Event()
	r.cq.Arm()
	word("armed after 6 events", 1<<31|2<<29|2)

	q := must[*CompQueue](t)(NewCompQueue(r.peer.cq, nil, 1, 8))
	if _, ok := next(q); !ok {
		t.Error("no completion in a queue without a doorbell")
	}
	q.Release()
	q.Arm()
	word("another queue", 1<<31|2<<29|2)
}

// TestCQE decodes entries.
func TestCQE(t *testing.T) {
	type want struct {
		kind                    Kind
		reqID, qpn              uint16
		status                  uint8
		unsolicited, write, imm bool
		source                  Source
		success                 Outcome // 0 for another outcome than Sent and Received
	}
	recv := func(flags uint8) [32]byte {
		e := entry(0x1234, 0, entryRecv|flags, 0x5678)
		le.PutUint16(e[6:], 0x9abc)
		le.PutUint16(e[8:], 0x1111)
		le.PutUint16(e[10:], 0x2222)
		le.PutUint32(e[12:], 0x33445566)
		for i := range 16 {
			e[16+i] = byte(i + 1)
		}
		return e
	}
	base := want{kind: KindRecv, reqID: 0x1234, qpn: 0x5678, source: Source{0x9abc, 0x33445566, 0x2222, 0x1111}, success: Received}
	with := func(change func(w *want)) want { w := base; change(&w); return w }
	for name, tc := range map[string]struct {
		entry [32]byte
		want  want
	}{
		"send":           {entry(0xffff, 14, entrySend|entryWrite, 0xfffe), want{kind: KindSend, reqID: 0xffff, qpn: 0xfffe, status: StatusUnknownPeer, write: true}},
		"sent":           {entry(1, 0, entrySend, 2), want{kind: KindSend, reqID: 1, qpn: 2, success: Sent}},
		"receive":        {recv(0), base},
		"with immediate": {recv(entryImm), with(func(w *want) { w.imm = true })},
		"written":        {recv(entryImm | entryWrite), with(func(w *want) { w.imm, w.write, w.source.Length = true, true, 0x02019abc })},
		"unsolicited": {recv(entryImm | entryWrite | entryUnsolicited), with(func(w *want) {
			w.imm, w.write, w.unsolicited, w.source.Length, w.success = true, true, true, 0x02019abc, 0
		})},
		"of no queue":      {entry(1, 0, 0, 2), want{reqID: 1, qpn: 2}},
		"of another queue": {entry(1, 0, 3<<1, 2), want{reqID: 1, qpn: 2}},
	} {
		r := plain(t, 4)
		r.complete(0, tc.entry)
		c, ok := next(r.cq)
		if !ok {
			t.Fatalf("%s: no completion", name)
		}
		got := want{c.Kind(), c.ReqID(), c.QPN(), c.Status(), c.Unsolicited(), c.IsWrite(), c.HasImm(), c.Source(), c.Outcome()}
		if got.success != Sent && got.success != Received {
			got.success = 0
		}
		if tc.want.kind != KindRecv {
			got.source = Source{}
		}
		if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(want{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
