package engine

import (
	"time"

	"github.com/goverbs/goverbs/uverbs/soft/internal/fault"
	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
)

// This file has what a plan of faults changes. Without a plan, each question costs the comparison of a
// pointer with nil.

// planNow returns the plan of faults, nil for none. The counts of a new plan begin with it.
func (q *QP) planNow() *fault.Plan {
	p := q.dev.plan.Load()
	if p != q.plan {
		q.plan = p
		q.req.before, q.resp.since, q.resp.needed = q.req.number, q.resp.completed, 0
	}
	return p
}

// succeed completes the request at head with success, or with an error if the plan of faults says so. It
// reports false in this case, or if the completion is lost: the QP is in state ERR or SQE.
func (q *QP) succeed() bool {
	if p := q.planNow(); p != nil {
		n := q.req.number - q.req.before
		if status, ok := p.Completion(q.num, fault.SendQueue, n); ok {
			q.failHead(Status(status), ring.Injected(false, n))
			return false
		}
	}
	return q.completeHead(StatusSuccess, 0)
}

// recvFails reports whether the plan of faults has the receive under way complete with an error, which
// is then in resp.failure.
func (q *QP) recvFails() bool {
	q.resp.failure = StatusSuccess
	p := q.planNow()
	if p == nil {
		return false
	}
	status, ok := p.Completion(q.num, fault.RecvQueue, q.resp.completed-q.resp.since)
	q.resp.failure = Status(status)
	return ok
}

// slowness returns how long a request to the QP waits before it is carried out and answered.
func (q *QP) slowness() time.Duration {
	if p := q.planNow(); p != nil && q.typ == RC {
		return p.ResponseDelay(q.num)
	}
	return 0
}
