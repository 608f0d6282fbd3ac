package counter

import "testing"

// TestKinds: counters of several drivers are of the kind that their documentation describes.
func TestKinds(t *testing.T) {
	for name, want := range map[string][2]bool{
		"out_of_sequence": {true, false}, "symbol_error": {true, false}, "VL15_dropped": {true, false}, "rx_bad_icrc": {true, false}, "rx_icrc_encapsulated": {true, false},
		"rnr_nak_retry_err": {true, false}, "req_remote_invalid_request": {true, false}, "roce_adp_retrans": {true, false},
		"rx_drops": {true, false}, "rdma_write_wr_err": {true, false}, "retrans_pkts": {true, false}, "retrans_bytes": {}, "rdma_write_recv_bytes": {},
		"retrans_timeout_events": {true, false}, "unresponsive_remote_events": {true, false}, "impaired_remote_conn_events": {true, false},
		"np_ecn_marked_roce_packets": {false, true}, "rp_cnp_handled": {false, true}, "port_xmit_wait": {false, true},
		"roce_slow_restart_trans": {false, true}, "cc_rx_ce_pkts": {false, true},
		"sent_pkts": {}, "port_rcv_data": {}, "rx_write_requests": {}, "ack_deferred": {}, "udp_tx_calls": {}, "lifespan": {},
	} {
		if got := [2]bool{IsError(name), IsCongestion(name)}; got != want {
			t.Errorf("%s: error and congestion are %v, want %v", name, got, want)
		}
	}
}

// TestTraffic: data of the specification is in words, that of drivers in bytes; what is not counted is not 0.
func TestTraffic(t *testing.T) {
	standard := map[string]uint64{"port_rcv_data": 25, "port_xmit_data": 50, "port_rcv_packets": 3, "port_xmit_packets": 4, "rdma_rx_bytes": 7}
	soft := map[string]uint64{"rcvd_bytes": 25, "sent_bytes": 50, "rcvd_pkts": 3, "sent_pkts": 4}
	for kind, want := range [Kinds][2]uint64{{100, 25}, {200, 50}, {3, 3}, {4, 4}} {
		for i, counters := range []map[string]uint64{standard, soft} {
			if got, ok := Traffic(kind).Of(counters); !ok || got != want[i] {
				t.Errorf("traffic %d of %v is %d, %v, want %d", kind, counters, got, ok, want[i])
			}
		}
		if got, ok := Traffic(kind).Of(map[string]uint64{"rcvd_packets": 1}); ok {
			t.Errorf("traffic %d of a port without counters is %d", kind, got)
		}
	}
}
