package uverbs

import "github.com/goverbs/goverbs/uverbs/internal/diag"

// failureDriver is what a driver knows of a failure; it is part of [driver].
type failureDriver interface {
	// findRequest returns the newest send request of a QP with the given ID, if the ring still has it.
	findRequest(q *QP, id uint64) (sentWR, bool)

	// failedRequest returns the send request that the device gave up on and the completion that it
	// would have had, if the device notes that in the ring.
	failedRequest(q *QP) (WC, sentWR, bool)

	// queueOf returns the queue of a completion that failed. The QP has one CQ for both queues, and
	// the opcode does not say that it is a receive.
	queueOf(q *QP, wc WC) diag.Queue

	// postedRecvs returns how many receives wait for messages to a QP, in its SRQ if it has one.
	postedRecvs(*QP) int

	// vendorText explains the device's own error code, or returns "".
	vendorText(code uint32) string

	// memlockForAll names the kernel that counts RLIMIT_MEMLOCK for a process with CAP_IPC_LOCK as
	// well, or returns "".
	memlockForAll() string
}
