package engine

import "time"

// placeDelay is how long the first packets of a WRITE are missing in memory after its last one is
// there.
const placeDelay = 200 * time.Microsecond

// placing is what of a WRITE has come and is not in memory yet, with [Traits.ReorderWrites] or
// [QPAttr].OutOfOrder.
type placing struct {
	parts []part
	wait  *timer    // until the rest is placed
	queue []*packet // requests that came meanwhile
}

// part is a packet of a WRITE, as it was addressed.
type part struct {
	va   uint64
	data []byte
}

// drop forgets what was not placed: the connection has ended.
func (p *placing) drop(f *Fabric) {
	f.cancel(&p.wait)
	*p = placing{}
}

// placeLater keeps a packet of a WRITE that is not the last one, and reports whether it did. The
// packet is accepted.
func (q *qp) placeLater(p *packet) bool {
	if !q.d.cfg.Traits.ReorderWrites && !q.attr.OutOfOrder || !q.reliable() || p.last || len(p.data) == 0 {
		return false
	}
	r := &q.resp
	r.place.parts = append(r.place.parts, part{r.va + uint64(r.off), p.data})
	q.written(p)
	return true
}

// placeRest places the packets before the last one, later and backwards, and then completes the
// WRITE. It reports whether there are any.
func (q *qp) placeRest(p *packet, pd *pd) bool {
	r := &q.resp
	if len(r.place.parts) == 0 {
		return false
	}
	r.place.wait = q.d.f.after(placeDelay, func() {
		done := r.place
		r.place = placing{}
		if q.d.fatal {
			return
		}
		for i := len(done.parts) - 1; i >= 0; i-- {
			part := done.parts[i]
			all, why := q.d.translate(r.rkey, q, pd.n, part.va, uint64(len(part.data)), RemoteWrite)
			if why == "" {
				if err := q.d.store(all, part.data); err != nil {
					why = err.Error()
				}
			}
			if why != "" { // the key went away meanwhile
				q.refuseRequest(p, nakAccess, EventAccessError, why)
				return
			}
		}
		q.written(p)
		for _, next := range done.queue {
			q.request(next)
		}
	})
	return true
}
