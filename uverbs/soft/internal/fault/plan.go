package fault

import "time"

// A Plan lists faults that do not concern packets: the engine asks for them where they happen. It is
// plain data, and its methods have no state: the engine counts, for each queue pair, the events that
// it asks about. So the answers depend on nothing but the plan and these numbers. All methods may be
// called on a nil Plan, and concurrently.
//
// The engine calls
//   - NotReady before the responder takes a receive,
//   - ResponseDelay before the responder carries out a request,
//   - Completion before a work request completes with success.
type Plan []QPFault

// A QPFault is a set of faults of one queue pair, or of all.
type QPFault struct {
	QPN  uint32        // the queue pair of this device; 0 stands for all
	RNR  RNR           // receives that are treated as missing
	Slow time.Duration // the responder waits so long before it carries out and answers a request; at most MaxDelay
	Fail Fail          // a completion with an error
}

// RNR makes a responder treat the first Missing of every Of receives that it needs as missing.
// Missing equal to Of never lets a message through. The zero value does nothing.
type RNR struct {
	Missing, Of int // 1 <= Missing <= Of <= MaxRNR
}

// MaxRNR is the largest value of RNR.Of.
const MaxRNR = 1_000_000

// Queue names a queue of a queue pair.
type Queue uint8

// Queues.
const (
	SendQueue Queue = iota
	RecvQueue
)

// String returns the name that the text form uses.
func (q Queue) String() string { return nameOf(queues, q, "queue") }

var queues = []named[Queue]{{SendQueue, "send"}, {RecvQueue, "recv"}}

// Fail makes a work request complete with an error. The zero value does nothing.
type Fail struct {
	Queue Queue // the queue of the work request
	// WR is the number of the work request on its queue: the first one that completes after the plan was set has
	// number 0, or after the queue pair was created or reset if that was later. Of an SRQ, the receives that the
	// queue pair takes count.
	WR     uint64
	Status Status // an error status
}

// Status is a completion status (enum ib_wc_status).
type Status uint32

// MaxStatus is the largest completion status (IB_WC_GENERAL_ERR).
const MaxStatus Status = 21

// String returns the kernel's name without IB_WC_, in small letters.
func (s Status) String() string { return nameOf(statuses, s, "status") }

var statuses = []named[Status]{
	{1, "loc_len_err"}, {2, "loc_qp_op_err"}, {3, "loc_eec_op_err"}, {4, "loc_prot_err"},
	{5, "wr_flush_err"}, {6, "mw_bind_err"}, {7, "bad_resp_err"}, {8, "loc_access_err"},
	{9, "rem_inv_req_err"}, {10, "rem_access_err"}, {11, "rem_op_err"}, {12, "retry_exc_err"},
	{13, "rnr_retry_exc_err"}, {14, "loc_rdd_viol_err"}, {15, "rem_inv_rd_req_err"},
	{16, "rem_abort_err"}, {17, "inv_eecn_err"}, {18, "inv_eec_state_err"}, {19, "fatal_err"},
	{20, "resp_timeout_err"}, {21, "general_err"},
}

// NotReady reports whether the responder of a queue pair must treat a receive as missing. The engine
// calls it whenever a packet needs a receive of the queue pair or of its SRQ. n is the number of
// earlier calls for the queue pair, so that a repeated packet is counted again. If NotReady returns
// true, the responder acts as it does with an empty receive queue: an RC responder answers with an
// RNR NAK, the others drop the message.
func (p Plan) NotReady(qpn uint32, n uint64) bool {
	for i := range p {
		if f := &p[i]; f.RNR.Of > 0 && f.concerns(qpn) {
			return n%uint64(f.RNR.Of) < uint64(f.RNR.Missing)
		}
	}
	return false
}

// ResponseDelay returns how long the responder of an RC queue pair must wait before it carries out a
// request and answers it. A rule can delay the answer alone.
func (p Plan) ResponseDelay(qpn uint32) time.Duration {
	for i := range p {
		if f := &p[i]; f.Slow > 0 && f.concerns(qpn) {
			return f.Slow
		}
	}
	return 0
}

// Completion returns the error status with which a work request must complete. The second result is
// false if it completes as it would without the plan. The engine calls it for a work request that is
// about to complete with success, with the number of the work request as in Fail.WR. With an error,
// the engine does as for a real one: it moves the queue pair to ERR, or to SQE for a send of UC and UD, and
// flushes the rest.
func (p Plan) Completion(qpn uint32, q Queue, wr uint64) (Status, bool) {
	for i := range p {
		if f := &p[i]; f.Fail.Status != 0 && f.Fail.Queue == q && f.Fail.WR == wr && f.concerns(qpn) {
			return f.Fail.Status, true
		}
	}
	return 0, false
}

// concerns reports whether the faults apply to a queue pair.
func (f *QPFault) concerns(qpn uint32) bool { return f.QPN == 0 || f.QPN == qpn }
