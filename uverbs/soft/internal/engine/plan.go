package engine

import (
	"time"

	"github.com/goverbs/goverbs/uverbs/soft/internal/fault"
)

// This file has what a plan of faults changes. Without a plan, each question costs the comparison of a
// pointer with nil.

// succeed completes the request at head with success, or with an error if the plan of faults says so. It
// reports false in this case: the QP is in the error state.
func (q *QP) succeed() bool {
	if p := q.dev.plan.Load(); p != nil {
		if status, ok := p.Completion(q.num, fault.SendQueue, q.req.number); ok {
			q.failHead(Status(status))
			return false
		}
	}
	q.completeHead(StatusSuccess)
	return true
}

// recvFails reports whether the plan of faults has the receive under way complete with an error, which
// is then in resp.failure.
func (q *QP) recvFails() bool {
	p := q.dev.plan.Load()
	if p == nil {
		return false
	}
	status, ok := p.Completion(q.num, fault.RecvQueue, q.resp.completed)
	q.resp.failure = Status(status)
	return ok
}

// slowness returns how long a request to the QP waits before it is carried out and answered.
func (q *QP) slowness() time.Duration {
	if p := q.dev.plan.Load(); p != nil && q.typ == RC {
		return p.ResponseDelay(q.num)
	}
	return 0
}
