package engine

import (
	"slices"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs/soft/internal/fault"
	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
)

// plan parses the text of a plan.
func plan(t *testing.T, text string) fault.Plan {
	t.Helper()
	c, err := fault.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return c.Plan
}

// statuses returns the statuses of the completions that there are.
func (s *side) statuses() (all []Status) {
	for c, ok := s.poll(); ok; c, ok = s.poll() {
		all = append(all, c.status)
	}
	return all
}

// planPair makes two connected QPs on one device with a plan.
func planPair(t *testing.T, typ QPType, text string) (a, b *side, clock *fakeClock) {
	clock = newFakeClock()
	d := newDevice(t, Config{Clock: clock})
	a, b = newSide(t, d, sideOptions{typ: typ}), newSide(t, d, sideOptions{typ: typ})
	connect(a, b, connOptions{timeout: 20})
	d.SetPlan(plan(t, text))
	return a, b, clock
}

// TestPlanNotReady: the responder treats a receive as missing, and takes it when the message comes again.
func TestPlanNotReady(t *testing.T) {
	a, b, clock := planPair(t, RC, "rnr=2/3")
	b.recv(1, b.sge(0, 64))
	a.post(signaled(2, ring.OpSend, a.sge(0, 8)))
	for n := 1; n <= 2; n++ {
		if got := a.d.stats.notReady.Load(); got != uint64(n) {
			t.Fatalf("%d RNR NAKs, want %d", got, n)
		}
		clock.advance(time.Second)
	}
	if x, y := a.statuses(), b.statuses(); !slices.Equal(x, []Status{0}) || !slices.Equal(y, []Status{0}) {
		t.Errorf("statuses %v and %v", x, y)
	}
}

// TestPlanSlow: a request is carried out and answered after a time, and requests stay in order.
func TestPlanSlow(t *testing.T) {
	a, b, clock := planPair(t, RC, "slow=1ms")
	a.fill(0, 8, 1)
	b.recv(1, b.sge(0, 64))
	a.post(signaled(2, ring.OpSend, a.sge(0, 8)))
	a.post(signaled(3, ring.OpRead, a.sge(64, 4096)).to(b, 4096))
	a.post(signaled(4, ring.OpWrite, a.sge(0, 8)).to(b, 8192))
	clock.advance(time.Millisecond - 1)
	if x, y := a.statuses(), b.statuses(); len(x)+len(y) != 0 {
		t.Fatalf("too early: statuses %v and %v", x, y)
	}
	clock.advance(time.Second)
	if x, y := a.statuses(), b.statuses(); !slices.Equal(x, []Status{0, 0, 0}) || !slices.Equal(y, []Status{0}) {
		t.Errorf("statuses %v and %v", x, y)
	}
	if n := a.d.stats.retries.Load(); n != 0 {
		t.Errorf("%d retries", n)
	}
}

// TestPlanSlowSendsNothing: a QP that answers late does not send its own requests before their doorbell.
func TestPlanSlowSendsNothing(t *testing.T) {
	a, b, clock := planPair(t, RC, "slow=1ms")
	b.put(signaled(1, ring.OpWrite, b.sge(0, 8)).to(a, 0))
	a.post(signaled(2, ring.OpWrite, a.sge(0, 8)).to(b, 0))
	clock.advance(time.Second)
	a.want(2, ring.WCWrite)
	b.none()
	check(t, b.qp.Doorbell())
	clock.advance(time.Second)
	b.want(1, ring.WCWrite)
}

// TestPlanSlowEnds: requests that wait do so to the end when there is no plan any more, and later ones wait for
// them.
func TestPlanSlowEnds(t *testing.T) {
	a, b, clock := planPair(t, RC, "slow=1ms")
	a.post(signaled(1, ring.OpWrite, a.sge(0, 8)).to(b, 0))
	a.d.SetPlan(nil)
	a.post(signaled(2, ring.OpWrite, a.sge(0, 8)).to(b, 0))
	if x := a.statuses(); len(x) != 0 {
		t.Fatalf("too early: statuses %v", x)
	}
	clock.advance(time.Millisecond)
	if x := a.statuses(); !slices.Equal(x, []Status{0, 0}) {
		t.Errorf("statuses %v", x)
	}
}

// TestPlanFailSend: a request completes with the error of the plan, and the rest is flushed.
func TestPlanFailSend(t *testing.T) {
	for _, c := range []struct {
		name string
		typ  QPType
		post func(s *side, peer *side, id uint64) sendWR
	}{
		{"write", RC, func(s, peer *side, id uint64) sendWR { return signaled(id, ring.OpWrite, s.sge(0, 8)).to(peer, 0) }},
		{"read", RC, func(s, peer *side, id uint64) sendWR { return signaled(id, ring.OpRead, s.sge(0, 8)).to(peer, 0) }},
		{"UC", UC, func(s, peer *side, id uint64) sendWR { return signaled(id, ring.OpWrite, s.sge(0, 8)).to(peer, 0) }},
	} {
		a, b, _ := planPair(t, c.typ, "fail=send:1:loc_prot_err")
		for id := range uint64(4) {
			a.put(c.post(a, b, id))
		}
		check(t, a.qp.Doorbell())
		want, state := []Status{0, StatusLocProtErr, StatusFlushErr, StatusFlushErr}, Err
		if c.typ == UC {
			state = SQE
		}
		if got := a.statuses(); !slices.Equal(got, want) || a.qp.Query().State != state {
			t.Errorf("%s: statuses %v, want %v; state %d, want %d", c.name, got, want, a.qp.Query().State, state)
		}
	}
}

// TestPlanFailRecv: a receive completes with the error of the plan. On RC the peer's request fails, too.
func TestPlanFailRecv(t *testing.T) {
	for _, typ := range []QPType{RC, UC} {
		a, b, _ := planPair(t, typ, "fail=recv:1:loc_prot_err")
		for id := range uint64(3) {
			b.recv(id, b.sge(0, 64))
		}
		for id := range uint64(2) {
			a.post(signaled(id, ring.OpSend, a.sge(0, 8)))
		}
		if got, want := b.statuses(), []Status{0, StatusLocProtErr, StatusFlushErr}; !slices.Equal(got, want) {
			t.Errorf("type %d: receives %v, want %v", typ, got, want)
		}
		want := []Status{0, 0}
		if typ == RC {
			want[1] = StatusRemOpErr
		}
		if got := a.statuses(); !slices.Equal(got, want) {
			t.Errorf("type %d: sends %v, want %v", typ, got, want)
		}
	}
}

// TestPlanOfOne: the faults of one QP are not those of another.
func TestPlanOfOne(t *testing.T) {
	a, b, _ := planPair(t, RC, "")
	a.d.SetPlan(fault.Plan{{QPN: b.qp.Num(), Fail: fault.Fail{WR: 0, Status: 4}}})
	a.post(signaled(1, ring.OpWrite, a.sge(0, 8)).to(b, 0))
	if got := a.statuses(); !slices.Equal(got, []Status{0}) {
		t.Errorf("statuses %v", got)
	}
	b.post(signaled(1, ring.OpWrite, b.sge(0, 8)).to(a, 0))
	if got := b.statuses(); !slices.Equal(got, []Status{StatusLocProtErr}) {
		t.Errorf("statuses %v", got)
	}
}
