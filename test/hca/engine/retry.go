package engine

import "time"

// shortestTimeout is the shortest time that a requester waits for an answer in real time, because the
// model and the guests share the processors.
const shortestTimeout = 20 * time.Millisecond

// shortestRNR is the shortest wait after an RNR NAK, so that a driver that posts late gets a processor.
const shortestRNR = 200 * time.Microsecond

// armTimer starts the timer for an answer, if it is not running. again restarts it.
func (q *qp) armTimer(again bool) {
	r := &q.req
	if again {
		q.d.f.cancel(&r.timer)
	}
	code := q.attr.Primary.AckTimeout & 0x1f
	if !q.reliable() || r.timer != nil || r.wait != nil || r.paging != nil || code == 0 || r.ackPSN == r.sentPSN {
		return
	}
	wait := 4096 * time.Nanosecond << code
	if !q.d.f.cfg.Manual {
		wait = max(wait, shortestTimeout)
	}
	r.timer = q.d.f.after(wait, func() {
		r.timer = nil
		if !q.gone && !q.d.fatal && (q.state == RTS || q.state == SQD) {
			q.timeout()
		}
	})
}

// timeout resends all packets that are not acknowledged.
func (q *qp) timeout() {
	if q.retry() {
		q.counts.count(CountTimeouts)
		q.goBack(q.req.ackPSN)
	}
	q.kick()
}

// retry counts one more attempt. If none is left, it migrates to the alternate path. Without one it
// fails the oldest request and returns false.
func (q *qp) retry() bool {
	r := &q.req
	if r.retries > 0 {
		r.retries--
		return true
	}
	if q.attr.PMState == PMArmed && q.attr.Alternate != (Path{}) {
		q.migrate()
		r.retries = q.attr.RetryCount
		return true
	}
	q.failOldest(RetryExceeded)
	return false
}

// failOldest fails the oldest request that is not done.
func (q *qp) failOldest(s Syndrome) {
	for _, e := range q.req.flight {
		if !e.done {
			e.fail(s)
			q.req.stopped = true
			break
		}
	}
	q.kick()
}

// migrate makes the alternate path the primary one.
func (q *qp) migrate() {
	q.attr.Primary, q.attr.PMState = q.attr.Alternate, PMMigrated
	q.attr.Alternate = Path{}
	q.eventOf(EventPathMig)
}

// goBack resends all packets from a PSN on.
func (q *qp) goBack(psn uint32) {
	r := &q.req
	for i, e := range r.flight {
		if e.packets == 0 || psnDiff(psn, e.psn+e.packets) >= 0 {
			continue
		}
		if i > r.at || i == r.at && psnDiff(psn, e.psn+r.pkt) >= 0 {
			return // not sent yet
		}
		r.at, r.pkt = i, uint32(max(psnDiff(psn, e.psn), 0))
		if e.w.fetches() {
			r.pkt = 0
		}
		return
	}
}

// rnrNAK retries after the time in the responder's RNR NAK.
func (q *qp) rnrNAK(p *packet) {
	r := &q.req
	if !q.acknowledge(p.psn-1) || r.wait != nil {
		return
	}
	if q.attr.RNRRetry != 7 {
		if r.rnr == 0 {
			if e := q.requestAt(p.psn); e != nil {
				e.fail(RNRExceeded)
				r.stopped = true
			}
			return
		}
		r.rnr--
	}
	q.counts.count(CountRNRNAKs)
	q.goBack(p.psn)
	q.d.f.cancel(&r.timer)
	wait := rnrTime(p.syndrome & 0x1f)
	if !q.d.f.cfg.Manual {
		wait = max(wait, shortestRNR)
	}
	r.wait = q.d.f.after(wait, func() {
		r.wait = nil
		q.kick()
	})
}

// rnrTime returns the time that the code in an RNR NAK stands for (InfiniBand specification, table of
// the RNR NAK timer field).
func rnrTime(code uint8) time.Duration {
	times := [32]int{65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
		6144, 8192, 12288, 16384, 24576, 32768, 49152}
	return time.Duration(times[code&31]) * 10 * time.Microsecond
}
