package engine

import (
	"sync/atomic"

	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// counters are the counters of a device. The first ones are rxe's.
type counters struct {
	sentPackets, sentBytes         atomic.Uint64
	receivedPackets, receivedBytes atomic.Uint64
	duplicates                     atomic.Uint64
	outOfSequence                  atomic.Uint64
	receivedNotReady               atomic.Uint64
	responses                      atomic.Uint64 // acknowledgements and responses, as rxe_comp_queue_pkt counts them
	receivedSequence               atomic.Uint64
	notReady                       atomic.Uint64
	retries                        atomic.Uint64
	retryExceeded                  atomic.Uint64
	rnrExceeded                    atomic.Uint64
	sends, receives                atomic.Uint64
	badPKey, badQKey               atomic.Uint64
	linkDowned                     atomic.Uint64

	// Packets that were dropped.
	unknownQP, wrongAddress, wrongPort, wrongGroup, notJoined, refusedState, badMAD atomic.Uint64
	outOfOrder, noReceive, refused, staleResponse, oddResponse, overflow            atomic.Uint64
	malformed                                                                       [wire.NumParseErrors]atomic.Uint64
}

// sent counts a packet.
func (s *counters) sent(bytes int) {
	s.sentPackets.Add(1)
	s.sentBytes.Add(uint64(bytes))
}

// CountLinkDown counts that the network interface of the device was set down.
func (d *Device) CountLinkDown() { d.stats.linkDowned.Add(1) }

// CountWrongPort counts a packet that was dropped because it came from another port than that of a device.
func (d *Device) CountWrongPort() { d.stats.wrongPort.Add(1) }

// A Counter is a counter of a device with its name.
type Counter struct {
	Name  string
	Value uint64
}

// Counters returns the counters of the device: those of rxe with rxe's names (rxe_hw_counters.c), and
// then the numbers of packets that were dropped, by reason. Package soft documents these. The
// owner of the Network knows send_err.
func (d *Device) Counters() []Counter {
	s := &d.stats
	all := []Counter{
		{"sent_pkts", s.sentPackets.Load()},
		{"rcvd_pkts", s.receivedPackets.Load()},
		{"duplicate_request", s.duplicates.Load()},
		{"out_of_seq_request", s.outOfSequence.Load()},
		{"rcvd_rnr_err", s.receivedNotReady.Load()},
		{"send_rnr_err", s.notReady.Load()},
		{"rcvd_seq_err", s.receivedSequence.Load()},
		{"ack_deferred", s.responses.Load()},
		{"retry_exceeded_err", s.retryExceeded.Load()},
		{"retry_rnr_exceeded_err", s.rnrExceeded.Load()},
		{"completer_retry_err", s.retries.Load()},
		{"send_err", 0},
		{"link_downed", s.linkDowned.Load()},
		{"rdma_sends", s.sends.Load()},
		{"rdma_recvs", s.receives.Load()},
		{"sent_bytes", s.sentBytes.Load()},
		{"rcvd_bytes", s.receivedBytes.Load()},

		{"rx_unknown_qp", s.unknownQP.Load()},
		{"rx_wrong_address", s.wrongAddress.Load()},
		{"rx_wrong_port", s.wrongPort.Load()},
		{"rx_wrong_group", s.wrongGroup.Load()},
		{"rx_not_joined", s.notJoined.Load()},
		{"rx_wrong_state", s.refusedState.Load()},
		{"rx_bad_pkey", s.badPKey.Load()},
		{"rx_bad_qkey", s.badQKey.Load()},
		{"rx_bad_mad", s.badMAD.Load()},
		{"rx_out_of_order", s.outOfOrder.Load()},
		{"rx_no_receive", s.noReceive.Load()},
		{"rx_refused", s.refused.Load()},
		{"rx_stale_response", s.staleResponse.Load()},
		{"rx_odd_response", s.oddResponse.Load()},
		{"rx_waiting_overflow", s.overflow.Load()},
	}
	for i := range s.malformed {
		all = append(all, Counter{wire.ParseError(i).Counter(), s.malformed[i].Load()})
	}
	return all
}
