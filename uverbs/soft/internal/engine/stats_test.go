package engine

import (
	"testing"

	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
)

// TestCounters: the counters of rxe count packets and messages, and what went wrong.
func TestCounters(t *testing.T) {
	clock := newFakeClock()
	d := newDevice(t, Config{Clock: clock})
	a, b := newSide(t, d, sideOptions{}), newSide(t, d, sideOptions{})
	connect(a, b, connOptions{rnrRetry: 1})
	b.recv(1, b.sge(0, 3000))
	a.post(signaled(2, ring.OpSend, a.sge(0, 3000)), signaled(3, ring.OpRead, a.sge(0, 3000)).to(b, 0)) // 3 packets and an ACK; 1 and 3
	a.post(signaled(4, ring.OpSend))                                                                    // 1 and an RNR NAK, twice
	clock.advance(1e9)
	want := map[string]uint64{
		"sent_pkts": 12, "rcvd_pkts": 12, "rdma_sends": 2, "rdma_recvs": 1, "send_rnr_err": 2, "rcvd_rnr_err": 2,
		"retry_rnr_exceeded_err": 1, "duplicate_request": 0, "out_of_seq_request": 0, "rx_unknown_qp": 0,
	}
	var sent, received uint64
	for _, c := range d.Counters() {
		if w, ok := want[c.Name]; ok && c.Value != w {
			t.Errorf("%s is %d, want %d", c.Name, c.Value, w)
		}
		switch delete(want, c.Name); c.Name {
		case "sent_bytes":
			sent = c.Value
		case "rcvd_bytes":
			received = c.Value
		}
	}
	if len(want) > 0 || sent == 0 || sent != received {
		t.Errorf("%v are missing; %d bytes sent, %d received", want, sent, received)
	}
}
