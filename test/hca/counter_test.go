package hca

import (
	"bytes"
	"testing"

	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/prm"
)

// counters makes a counter set.
func (v *driver) counters() uint64 {
	v.t.Helper()
	in := v.in(small)
	prm.InUID.Put(in, sharedUID)
	return prm.CounterSetID.Get(v.must(prm.AllocQCounter, 0, in, small))
}

// counterIn makes QUERY_Q_COUNTER's input.
func (v *driver) counterIn(set uint64, clear bool) []byte {
	in := v.in(0x100 / 8)
	prm.QueryCounterID.Put(in, set)
	prm.QueryClear.PutBool(in, clear)
	return in
}

// counted is the answer to QUERY_Q_COUNTER.
func (v *driver) counted(set uint64, clear bool) []byte {
	v.t.Helper()
	return v.must(prm.QueryQCounter, 0, v.counterIn(set, clear), 0x800/8)
}

// write posts an RDMA WRITE without data as WQE n of a queue pair that qpIn describes, and runs the card.
func (v *verbs) write(qpn uint32, buf, dbr uint64, n int) {
	v.t.Helper()
	w := v.mem[buf-ramBase+128+256+uint64(64*n):]
	be.PutUint32(w, uint32(n)<<8|0x08)
	be.PutUint32(w[4:], qpn<<8|2)
	be.PutUint64(w[16:], ramBase)
	be.PutUint32(w[24:], v.key)
	be.PutUint32(v.mem[dbr-ramBase+4:], uint32(n)+1)
	v.d.WriteBAR(0, uint64(v.u)*uarPage+0x800, bytes.Clone(w[:8]))
	if !v.fabric.Run(10000) {
		v.t.Fatal("the fabric does not come to rest")
	}
}

// TestCounters: a QP is counted by the set that commands put it into, and QUERY_Q_COUNTER has the counts
// where the driver looks for them.
func TestCounters(t *testing.T) {
	v := newVerbs(t, IB)
	cqn, _, _ := v.newCQ(v.u, v.eqn)
	var qpn [2]uint32
	var buf, dbr [2]uint64
	for i := range qpn {
		buf[i], dbr[i] = v.page(), v.page()
		qpn[i] = v.create(prm.CreateQP, v.qpIn(prm.STRC, cqn, buf[i], dbr[i]))
	}
	v.rts(qpn[0], qpn[1])
	v.rts(qpn[1], qpn[0])
	writes := func(set uint64, clear bool) uint32 {
		t.Helper()
		return be.Uint32(v.counted(set, clear)[0x10:])
	}

	set := v.counters()
	v.write(qpn[0], buf[0], dbr[0], 0)
	if n := writes(set, false); n != 0 {
		t.Errorf("%d requests of a QP that is not in the set", n)
	}
	in := v.modifyIn(qpn[1])
	prm.QPOptParam.Put(in, prm.OptCounterSet)
	prm.QPCCounterSet.Put(in[prm.QPCtx:], set)
	v.must(prm.RTS2RTSQP, 0, in, small)
	for i := range 3 {
		v.write(qpn[0], buf[0], dbr[0], 1+i)
	}
	for _, tt := range []struct {
		clear bool
		want  uint32
	}{{false, 3}, {true, 3}, {false, 0}} {
		if n := writes(set, tt.clear); n != tt.want {
			t.Errorf("%d requests, want %d", n, tt.want)
		}
	}
	out := v.must(prm.QueryQP, 0, v.object(qpn[1]), 272)
	if got := prm.QPCCounterSet.Get(out[prm.QPCtx:]); got != set {
		t.Errorf("the QP is in set %d, want %d", got, set)
	}

	prm.QPCCounterSet.Put(in[prm.QPCtx:], 77)
	v.refused(prm.BadResource, prm.RTS2RTSQP, 0, in, small)
	v.refused(prm.BadResource, prm.QueryQCounter, 0, v.counterIn(77, false), 0x800/8)
	for _, f := range []prm.Field{prm.QueryCounterOther, prm.QueryCounterAggregate} {
		in := v.counterIn(set, false)
		f.Put(in, 1)
		v.refused(prm.BadParam, prm.QueryQCounter, 0, in, 0x800/8)
	}
	in = v.in(small)
	prm.CounterSetID.Put(in, set)
	prm.InUID.Put(in, sharedUID)
	v.refused(prm.BadParam, prm.DeallocQCounter, 0, in, small) // of no user context
	prm.InUID.Put(in, 0)
	v.must(prm.DeallocQCounter, 0, in, small)
	v.refused(prm.BadResource, prm.DeallocQCounter, 0, in, small)
	if set = v.counters(); writes(set, false) != 0 {
		t.Error("a new counter set has the counts of the one before")
	}
	v.must(prm.TeardownHCA, 0, v.in(small), small)
	if _, err := v.d.eng.QueryCounters(uint8(set), false); err == nil {
		t.Error("a counter set after TEARDOWN_HCA")
	}
}

// TestCounterLayout: each counter has a place of its own in the answer, behind the head.
func TestCounterLayout(t *testing.T) {
	seen := map[int]engine.Counter{}
	for c, f := range counterFields {
		if other, ok := seen[f.Off]; ok || f.Width != 32 || f.Off < 0x80 || f.Off%32 != 0 || f.Off+32 > 0x620 {
			t.Errorf("counter %d is at %+v, counter %d before it", c, f, other)
		}
		seen[f.Off] = engine.Counter(c)
	}
}

// TestNoQPCounters: a card without the capability refuses to change the counter set of a QP in RTS, and
// takes the one of a new QP.
func TestNoQPCounters(t *testing.T) {
	v := newVerbsOf(t, IB, Personality{NoQPCounters: true})
	cqn, _, _ := v.newCQ(v.u, v.eqn)
	qpn := v.create(prm.CreateQP, v.qpIn(prm.STRC, cqn, v.page(), v.page()))
	v.rts(qpn, qpn)
	in := v.modifyIn(qpn)
	prm.QPOptParam.Put(in, prm.OptCounterSet)
	prm.QPCCounterSet.Put(in[prm.QPCtx:], v.counters())
	v.refused(prm.BadParam, prm.RTS2RTSQP, 0, in, small)
	prm.QPOptParam.Put(in, 0)
	v.must(prm.RTS2RTSQP, 0, in, small)
	v.must(prm.ToRSTQP, 0, v.object(qpn), small)
	first := v.modifyIn(qpn)
	prm.ADSPort.Put(first[prm.QPCtx+prm.QPCPrimary:], 1)
	prm.QPCCounterSet.Put(first[prm.QPCtx:], v.counters())
	v.must(prm.RST2INITQP, 0, first, small)
}
