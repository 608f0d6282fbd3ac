package engine

import "time"

// quiet stops the QP's timers and forgets what is under way.
func (q *qp) quiet() {
	f := q.d.f
	f.cancel(&q.req.timer)
	f.cancel(&q.req.wait)
	q.req.paging, q.resp.paging = nil, nil
	q.resp.place.drop(f)
	if q.resp.stalled != nil {
		q.resp.stalled = nil
		f.soon(q.sendAnswers)
	}
	if h := q.send.held; h != nil {
		f.cancel(&h.wait)
		h.held, h.gone = false, true
		q.send.held = nil
		q.send.posted = h.end
	}
}

// toError puts the QP into the error state: what is under way and what is posted is
// flushed, one completion for each WQE.
func (q *qp) toError(why string) {
	if q.state == Err || q.state == Reset || q.gone {
		return
	}
	q.setState(Err, why)
	if r := q.resp.recv; r != nil {
		q.recvFailed(r, Flushed, vendorFlushRQ)
	}
	q.quiet()
	if q.dct == nil {
		q.hangUp()
	}
	q.resp.active = false
	if !q.resp.refused {
		q.resp.out = nil
	}
	q.flushSends()
	q.flushRecvs()
	if q.spec.RQ == RQSRQ && q.sq == nil {
		q.eventOf(EventLastWQE)
	}
}

// flushSends completes all send WQEs that are posted with a flush error.
func (q *qp) flushSends() {
	if q.sendCQ == nil || q.gone {
		return
	}
	r := &q.req
	flight := r.flight
	r.flight, r.at, r.pkt, r.stopped = nil, 0, 0, false
	for _, e := range flight {
		e.w.fail(Flushed, vendorFlushSQ)
	}
	for {
		w := q.fetch()
		if w == nil {
			return
		}
		w.fail(Flushed, vendorFlushSQ)
	}
}

// The receive queue of a QP in the error state is looked at from time to time, more and
// more rarely: no doorbell says that a WQE was posted to it.
const (
	flushPoll    = time.Millisecond
	flushPollMax = 64 * time.Millisecond
)

// flushRecvs completes all receive WQEs that are posted with a flush error, now and as
// long as the QP is in the error state.
func (q *qp) flushRecvs() {
	if q.spec.RQ != RQOwn || q.gone || q.state != Err || q.recvCQ.failed || q.d.fatal {
		return
	}
	if q.flushing {
		return
	}
	q.flushWait = min(max(2*q.flushWait, flushPoll), flushPollMax)
	for {
		r, ok := q.rq.take()
		if !ok {
			break
		}
		q.flushWait = flushPoll
		q.recvFailed(r, Flushed, vendorFlushRQ)
	}
	q.flushing = true
	again := func() {
		q.flushing = false
		q.flushRecvs()
	}
	if q.d.f.cfg.Manual {
		q.d.f.idle = append(q.d.f.idle, again)
	} else {
		q.d.f.after(q.flushWait, again)
	}
}
