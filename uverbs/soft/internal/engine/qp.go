package engine

import (
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/soft/internal/fault"
	"github.com/goverbs/goverbs/uverbs/soft/internal/memory"
	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
)

// Caps are the sizes of a QP's queues.
type Caps struct {
	MaxSendWR, MaxRecvWR   int // work requests
	MaxSendSGE, MaxRecvSGE int // scatter/gather entries of a work request
	MaxInline              int // bytes of a work request
}

// A QPInit has the attributes of a new QP.
type QPInit struct {
	Type           QPType
	PD             memory.PD
	SendCQ, RecvCQ *CQ
	SRQ            *SRQ // nil: the QP has a receive queue of its own
	Caps           Caps // at least; those of receives do not count with an SRQ
	SigAll         bool // each send has a completion
	Event          func(typ uint32)
}

// A QP is a queue pair.
type QP struct {
	dev            *Device
	num            uint32
	typ            QPType
	pd             memory.PD
	sendCQ, recvCQ *CQ
	srq            *SRQ
	sigAll         bool
	event          func(typ uint32)
	failedSend     uint32 // index of the send that has moved the QP to SQE
	caps           Caps
	sq             ring.Ring
	rq             ring.Ring // not in use with an SRQ

	mu       sync.Mutex
	closed   bool        // guarded by mu
	state    State       // guarded by mu
	fatal    bool        // a completion was lost, and the event has told. guarded by mu
	draining bool        // in SQD: requests are not acknowledged yet. guarded by mu
	running  bool        // a worker runs the requester. guarded by mu
	wanted   bool        // and must look again. guarded by mu
	groups   int         // multicast groups that the QP is in. guarded by mu
	attr     QPAttr      // what Query returns. guarded by mu
	mtu      int         // of the path, in bytes. guarded by mu
	path     *path       // of RC and UC; nil before RTR. guarded by mu
	plan     *fault.Plan // the faults that were last looked at. guarded by mu
	req      requester   // guarded by mu
	resp     responder   // guarded by mu

	deadlines deadlines  // guarded by mu
	timer     timerEntry // guarded by timers.mu
}

// CreateQP makes a queue pair (rxe_qp_chk_init, rxe_qp_from_init).
func (d *Device) CreateQP(i QPInit) (*QP, syscall.Errno) {
	if i.Type != RC && i.Type != UC && i.Type != UD {
		return nil, syscall.EOPNOTSUPP
	}
	if i.SendCQ == nil || i.RecvCQ == nil || !i.Caps.valid(i.SRQ != nil) {
		return nil, syscall.EINVAL
	}
	q := &QP{
		dev: d, typ: i.Type, pd: i.PD, sendCQ: i.SendCQ, recvCQ: i.RecvCQ, srq: i.SRQ,
		sigAll: i.SigAll, event: i.Event, caps: i.Caps,
	}
	q.caps.MaxSendSGE, q.caps.MaxInline = ring.SendCaps(i.Caps.MaxSendSGE, i.Caps.MaxInline)
	size := ring.SendElemSize(i.Caps.MaxSendSGE, i.Caps.MaxInline)
	errno := syscall.Errno(0)
	if i.SRQ == nil {
		errno = ring.InitPair(&q.sq, &q.rq, i.Caps.MaxSendWR, size, i.Caps.MaxRecvWR, ring.RecvElemSize(i.Caps.MaxRecvSGE))
		q.caps.MaxRecvWR = q.rq.Cap()
	} else {
		errno = q.sq.Init(i.Caps.MaxSendWR, size)
		q.caps.MaxRecvWR, q.caps.MaxRecvSGE = 0, 0
	}
	if errno != 0 {
		return nil, errno
	}
	q.caps.MaxSendWR = q.sq.Cap()
	q.req.slots = newSendStates(q.sq.Slots())
	q.resp.reset()
	q.attr.PathMTU, q.mtu = 1, 256
	if !d.addQP(q) {
		return nil, syscall.ENOMEM
	}
	return q, 0
}

// valid checks sizes (rxe_qp_chk_cap).
func (c *Caps) valid(srq bool) bool {
	within := func(n, most int) bool { return n >= 0 && n <= most }
	return within(c.MaxSendWR, MaxQPWR) && within(c.MaxSendSGE, MaxSGE) && within(c.MaxInline, MaxInline) &&
		(srq || within(c.MaxRecvWR, MaxQPWR) && within(c.MaxRecvSGE, MaxSGE))
}

// Num returns the QPN.
func (q *QP) Num() uint32 { return q.num }

// Caps returns the sizes of the queues, which are at least the requested ones.
func (q *QP) Caps() Caps { return q.caps }

// SendRing returns the ring of the send queue.
func (q *QP) SendRing() *ring.Ring { return &q.sq }

// RecvRing returns the ring of the receive queue, or nil if the QP has an SRQ.
func (q *QP) RecvRing() *ring.Ring {
	if q.srq != nil {
		return nil
	}
	return &q.rq
}

// ref names the QP to the table of registered memory.
func (q *QP) ref() memory.QPRef { return memory.QPRef{PD: q.pd, QPN: q.num} }

// Doorbell sends what has been posted. It returns EINVAL below state RTS.
func (q *QP) Doorbell() syscall.Errno {
	q.mu.Lock()
	if q.closed || q.state < RTS {
		q.mu.Unlock()
		return syscall.EINVAL
	}
	start := q.claim()
	q.mu.Unlock()
	if start {
		q.dev.run(q)
	}
	return 0
}

// claim asks for a run of the requester. It reports whether the caller must run it; otherwise
// another goroutine will look again. The caller holds mu.
func (q *QP) claim() bool {
	if q.running {
		q.wanted = true
		return false
	}
	q.running = true
	return true
}

// Close destroys the QP. Work requests that are left have no completions. It returns EBUSY while the
// QP is in a multicast group.
//
// The program may end after Close, so Close waits until packets are sent.
func (q *QP) Close() syscall.Errno {
	q.mu.Lock()
	if q.groups > 0 {
		q.mu.Unlock()
		return syscall.EBUSY
	}
	if !q.closed {
		q.closed = true
		q.dev.config.Memory.ReleaseQP(q.num)
		q.deadlines.stopSends()
		q.dev.timers.remove(q)
		q.resp.drop()
		q.dev.removeQP(q)
	}
	q.unlockSent()
	return 0
}

// unlockSent unlocks mu and waits until the packets of the QP are sent, closeWait at most. A completion may be visible
// before the worker has sent the acknowledgement, or the datagram.
func (q *QP) unlockSent() {
	request, response := q.req.unsent, q.resp.unsent
	q.mu.Unlock()
	q.dev.FlushHeld()
	request.await(q.dev.config.Clock)
	response.await(q.dev.config.Clock)
}

// raise reports an event. The caller holds mu.
func (q *QP) raise(typ uint32) {
	if q.event != nil {
		q.event(typ)
	}
}
