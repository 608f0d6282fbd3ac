package fault

import (
	"testing"
	"time"
)

func TestNotReady(t *testing.T) {
	p := Plan{
		{QPN: 5, RNR: RNR{1, 3}},
		{QPN: 6, Slow: time.Second},
		{RNR: RNR{2, 2}},
		{QPN: 7, RNR: RNR{1, 9}}, // never reached: the entry before is for all
	}
	for n, want := range []bool{true, false, false, true, false, false, true} {
		if got := p.NotReady(5, uint64(n)); got != want {
			t.Errorf("NotReady(5, %d) = %v, want %v", n, got, want)
		}
		for _, qpn := range []uint32{6, 7} {
			if !p.NotReady(qpn, uint64(n)) {
				t.Errorf("NotReady(%d, %d) = false, want true", qpn, n)
			}
		}
	}
	if (Plan{}).NotReady(5, 0) || Plan(nil).NotReady(5, 0) {
		t.Error("an empty plan has a receive missing")
	}
}

func TestResponseDelay(t *testing.T) {
	p := Plan{{QPN: 5, Slow: time.Second}, {RNR: RNR{1, 1}}, {QPN: 6, Slow: time.Minute}, {Slow: time.Hour}}
	for qpn, want := range map[uint32]time.Duration{5: time.Second, 6: time.Minute, 7: time.Hour} {
		if got := p.ResponseDelay(qpn); got != want {
			t.Errorf("ResponseDelay(%d) = %v, want %v", qpn, got, want)
		}
	}
	if d := Plan(nil).ResponseDelay(5); d != 0 {
		t.Errorf("a nil plan delays by %v", d)
	}
}

func TestCompletion(t *testing.T) {
	p := Plan{
		{QPN: 5, Fail: Fail{SendQueue, 3, 12}},
		{QPN: 5, Fail: Fail{RecvQueue, 3, 9}},
		{QPN: 5, Fail: Fail{SendQueue, 4, 10}},
		{Fail: Fail{SendQueue, 3, 1}},
	}
	for _, c := range []struct {
		qpn  uint32
		q    Queue
		wr   uint64
		want Status
	}{
		{5, SendQueue, 3, 12}, {5, RecvQueue, 3, 9}, {5, SendQueue, 4, 10}, {6, SendQueue, 3, 1},
		{5, SendQueue, 2, 0}, {5, SendQueue, 5, 0}, {6, RecvQueue, 3, 0}, {6, SendQueue, 4, 0},
	} {
		got, ok := p.Completion(c.qpn, c.q, c.wr)
		if got != c.want || ok != (c.want != 0) {
			t.Errorf("Completion(%d, %v, %d) = %v, %v; want %v", c.qpn, c.q, c.wr, got, ok, c.want)
		}
	}
	if s, ok := Plan(nil).Completion(5, SendQueue, 3); ok {
		t.Errorf("a nil plan fails a work request with %v", s)
	}
}

// TestStatusNames compares the names with numbers of enum ib_wc_status.
func TestStatusNames(t *testing.T) {
	for s, want := range map[Status]string{
		1: "loc_len_err", 4: "loc_prot_err", 5: "wr_flush_err", 8: "loc_access_err", 9: "rem_inv_req_err", 10: "rem_access_err",
		11: "rem_op_err", 12: "retry_exc_err", 13: "rnr_retry_exc_err", 19: "fatal_err", 21: "general_err", 22: "status(22)",
	} {
		if got := s.String(); got != want {
			t.Errorf("Status %d is %q, want %q", s, got, want)
		}
	}
	for s := Status(1); s <= MaxStatus; s++ {
		if got, ok := valueOf(statuses, s.String()); !ok || got != s {
			t.Errorf("status %d has no name of its own", s)
		}
	}
}

// TestPlanAllocates: the engine asks for every message.
func TestPlanAllocates(t *testing.T) {
	p := Plan{{QPN: 5, RNR: RNR{1, 3}}, {QPN: 5, Slow: 1}, {QPN: 5, Fail: Fail{SendQueue, 3, 12}}}
	n := uint64(0)
	if a := testing.AllocsPerRun(100, func() {
		n++
		p.NotReady(5, n)
		p.ResponseDelay(5)
		p.Completion(5, SendQueue, n)
	}); a != 0 {
		t.Errorf("%v allocations", a)
	}
}
