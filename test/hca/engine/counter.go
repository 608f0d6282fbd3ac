package engine

// Counter is something that a counter set counts of its QPs, as QUERY_Q_COUNTER reports it
// (query_q_counter_out_bits in mlx5_ifc.h). A retransmission is not counted as a new request.
type Counter int

// The counters of the responder, then those of the requester.
const (
	CountWrites             Counter = iota // rx_write_requests: RDMA WRITEs that were executed
	CountReads                             // rx_read_requests: RDMA READs that were executed
	CountAtomics                           // rx_atomic_requests: atomic operations that were executed
	CountDCTConnects                       // rx_dct_connect: connections to a DCT
	CountOutOfBuffer                       // out_of_buffer: packets dropped because there was no receive WQE
	CountOutOfSequence                     // out_of_sequence: packets ahead of the expected PSN
	CountDuplicates                        // duplicate_request: packets of requests that were executed before
	CountRespCQEErrors                     // resp_cqe_error: receive completions with an error, also a flush error
	CountRespFlushErrors                   // resp_cqe_flush_error: receive completions with a flush error
	CountRespLengthErrors                  // resp_local_length_error: messages longer than their receive WQE
	CountRespProtErrors                    // resp_local_protection: receive WQEs with memory that can't be written
	CountRespInvalidErrors                 // resp_remote_invalid_request: requests refused as invalid
	CountRespAccessErrors                  // resp_remote_access_errors: requests refused for their rights
	CountRNRNAKs                           // rnr_nak_retry_err: RNR NAKs after which the request is sent again
	CountSequenceNAKs                      // packet_seq_err: sequence NAKs after which packets are sent again
	CountImpliedNAKs                       // implied_nak_seq_err: answers that show that a READ's or atomic's answer was lost
	CountTimeouts                          // local_ack_timeout_err: timeouts after which packets are sent again
	CountReqCQEErrors                      // req_cqe_error: send completions with an error, also a flush error
	CountReqFlushErrors                    // req_cqe_flush_error: send completions with a flush error
	CountReqLengthErrors                   // req_local_length_error
	CountReqProtErrors                     // req_local_protection
	CountReqBindErrors                     // req_mw_binding
	CountReqResponseErrors                 // req_bad_response
	CountReqInvalidErrors                  // req_remote_invalid_request: NAKs that the request is invalid
	CountReqAccessErrors                   // req_remote_access_errors: NAKs for the request's rights
	CountReqOperationErrors                // req_remote_operation_errors
	CountRetriesExceeded                   // req_transport_retries_exceeded
	CountRNRRetriesExceeded                // req_rnr_retries_exceeded
	NumCounters                            // the number of counters
)

// Counts are the values of a counter set.
type Counts [NumCounters]uint32

// Numbers of counter sets: 8 bits, and 0 is no set.
const (
	firstCounterSet = 1
	lastCounterSet  = MaxCounterSets
	// MaxCounterSets is how many counter sets there may be at once.
	MaxCounterSets = 127
)

// AllocCounters makes a counter set, whose counters are 0.
func (d *Device) AllocCounters() (uint8, error) {
	if err := d.lock("counter set"); err != nil {
		return 0, err
	}
	defer d.f.mu.Unlock()
	for n := uint8(firstCounterSet); n <= lastCounterSet; n++ {
		if d.counters[n] == nil {
			d.counters[n] = &Counts{}
			return n, nil
		}
	}
	return 0, refuse(Limit, "counter set", 0, "", "%d of them exist", MaxCounterSets)
}

// DeallocCounters removes a counter set. QPs may still be in it, since mlx5_ib removes the set of a QP
// that has failed before the QP: these QPs are counted no more.
func (d *Device) DeallocCounters(n uint8) error {
	if err := d.lock("counter set"); err != nil {
		return err
	}
	defer d.f.mu.Unlock()
	if d.counters[n] == nil {
		return unknown("counter set", uint32(n))
	}
	delete(d.counters, n)
	return nil
}

// QueryCounters returns the values of a counter set, and sets them to 0 after that if clear is set. Set 0
// is no set: nothing is counted in it.
func (d *Device) QueryCounters(n uint8, clear bool) (Counts, error) {
	if err := d.lock("counter set"); err != nil {
		return Counts{}, err
	}
	defer d.f.mu.Unlock()
	set, err := d.counterSet("counter set", uint32(n), n)
	if err != nil || set == nil {
		return Counts{}, err
	}
	now := *set
	if clear {
		*set = Counts{}
	}
	return now, nil
}

// counterSet finds the counter set that an object names. It is nil for set 0.
func (d *Device) counterSet(object string, number uint32, n uint8) (*Counts, error) {
	set := d.counters[n]
	if set == nil && n != 0 {
		return nil, refuse(BadResource, object, number, "counter_set_id", "counter set %#x does not exist", n)
	}
	return set, nil
}

// count counts one more of something. A QP without a counter set counts nothing.
func (set *Counts) count(c Counter) {
	if set != nil {
		set[c]++
	}
}

// respErrors are the counters of errors of the responder by the syndrome of the receive completion.
var respErrors = map[Syndrome]Counter{
	Flushed: CountRespFlushErrors, LocalLength: CountRespLengthErrors, LocalProt: CountRespProtErrors, LocalAccess: CountRespAccessErrors,
}

// reqErrors are the same of the requester, by the syndrome of the send completion.
var reqErrors = map[Syndrome]Counter{
	Flushed: CountReqFlushErrors, LocalLength: CountReqLengthErrors, LocalProt: CountReqProtErrors, MWBind: CountReqBindErrors,
	BadResponse: CountReqResponseErrors, RemoteInvalidReq: CountReqInvalidErrors, RemoteAccess: CountReqAccessErrors,
	RemoteOp: CountReqOperationErrors, RetryExceeded: CountRetriesExceeded, RNRExceeded: CountRNRRetriesExceeded,
}

// countRespError counts a receive completion with an error.
func (set *Counts) countRespError(s Syndrome) {
	set.count(CountRespCQEErrors)
	if c, ok := respErrors[s]; ok {
		set.count(c)
	}
}

// countReqError counts a send completion with an error.
func (set *Counts) countReqError(s Syndrome) {
	set.count(CountReqCQEErrors)
	if c, ok := reqErrors[s]; ok {
		set.count(c)
	}
}

// countRefused counts a request that is refused with a NAK, of which the driver learns by an event or not
// at all. Otherwise the receive completion is counted.
func (set *Counts) countRefused(nak uint8) {
	switch nak {
	case nakInvalid:
		set.count(CountRespInvalidErrors)
	case nakAccess:
		set.count(CountRespAccessErrors)
	}
}

// countRequest counts a request when its first packet is executed.
func (set *Counts) countRequest(p *packet) {
	if set == nil || !p.first {
		return
	}
	switch p.kind {
	case pktWrite:
		set.count(CountWrites)
	case pktReadReq:
		set.count(CountReads)
	case pktAtomicReq:
		set.count(CountAtomics)
	}
}
