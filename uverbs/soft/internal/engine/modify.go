package engine

import (
	"syscall"
	"time"

	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// A QPAttr has the attributes of a QP that [QP.Modify] changes and [QP.Query] returns.
type QPAttr struct {
	State, CurState State
	PathMTU         uint8 // enum ib_mtu: 1 is 256 bytes, 5 is 4096
	PathMigState    uint8
	QKey            uint32
	RQPSN, SQPSN    uint32 // 24 bits; Query returns the next ones
	DestQPN         uint32
	AccessFlags     uint32
	Caps            Caps
	AV, AltAV       AV
	PKeyIndex       uint16
	AltPKeyIndex    uint16
	SQDNotify       bool // EventSQDrained comes when the QP has drained in state SQD
	SQDraining      bool // Query only: state SQD, and not all requests are acknowledged
	MaxRdAtomic     uint8
	MaxDestRdAtomic uint8
	MinRNRTimer     uint8
	Port, AltPort   uint8
	Timeout         uint8 // 4.096 µs << Timeout; 0: never
	AltTimeout      uint8
	RetryCount      uint8
	RNRRetry        uint8 // 7: without end
}

// maxMTU is the enum ib_mtu of 4096 bytes.
const maxMTU = 5

// Modify changes attributes of the QP, and its state. It does what the kernel's core and rxe do for
// MODIFY_QP, with their errnos, behind the checks of the command itself.
func (q *QP) Modify(a *QPAttr, mask AttrMask) syscall.Errno {
	way, errno := q.resolve(a, mask)
	if errno != 0 {
		return errno
	}
	q.mu.Lock()
	if errno := q.checkAttr(a, mask); errno != 0 {
		q.mu.Unlock()
		return errno
	}
	start := false
	if mask&AttrState != 0 {
		if !q.mayMove(a, mask) {
			q.mu.Unlock()
			return syscall.EINVAL
		}
		start = q.move(a.State)
	}
	q.setConnection(a, mask, way)
	q.setSimple(a, mask)
	if q.state == RTS && mask&AttrState != 0 {
		start = q.claim()
	}
	if mask&AttrState != 0 && (q.state == Err || q.state == Reset) { // a program that disconnects tells its peer after this
		q.unlockSent()
	} else {
		q.mu.Unlock()
	}
	if start {
		q.dev.run(q)
	}
	return 0
}

// resolve resolves the address vectors (_ib_modify_qp).
func (q *QP) resolve(a *QPAttr, mask AttrMask) (*path, syscall.Errno) {
	if mask&^attrStandard != 0 {
		return nil, syscall.EOPNOTSUPP
	}
	var way *path
	if mask&AttrAV != 0 {
		var errno syscall.Errno
		if way, errno = q.dev.newPath(&a.AV); errno != 0 {
			return nil, errno
		}
	}
	if mask&AttrAltPath != 0 { // there are alternate paths on InfiniBand alone
		return nil, syscall.EINVAL
	}
	return way, 0
}

// checkAttr checks values (rxe_qp_chk_attr). The caller holds mu.
func (q *QP) checkAttr(a *QPAttr, mask AttrMask) syscall.Errno {
	switch {
	case q.closed:
	case mask&AttrPort != 0 && a.Port != 1:
	case mask&AttrCaps != 0 && !a.Caps.valid(q.srq != nil):
	case mask&AttrAccess != 0 && (q.typ == UD || a.AccessFlags&^accessQP != 0):
	case mask&AttrPathMTU != 0 && (a.PathMTU < 1 || a.PathMTU > maxMTU):
	case mask&AttrMaxRdAtomic != 0 && a.MaxRdAtomic > MaxRdAtomic:
	case mask&AttrMaxDestRdAtomic != 0 && a.MaxDestRdAtomic > MaxRdAtomic:
	case mask&AttrTimeout != 0 && a.Timeout > 31:
	case mask&AttrState != 0 && a.State > Err:
	case mask&AttrCurState != 0 && a.CurState > Err:
	default:
		return 0
	}
	return syscall.EINVAL
}

// mayMove checks a change of state (__qp_chk_state). The caller holds mu.
func (q *QP) mayMove(a *QPAttr, mask AttrMask) bool {
	from := q.state
	if mask&AttrCurState != 0 {
		from = a.CurState
	}
	return permitted(q.typ, from, a.State, mask) && !(from == SQD && q.draining && a.State != Err)
}

// move changes the state. It reports whether the caller must run the requester. The caller holds mu.
func (q *QP) move(to State) (start bool) {
	if to == Err {
		q.toError()
		return false
	}
	was := q.state
	q.state = to
	if was == SQE { // the program must not take a later failure for this one
		q.sq.SetSendStatus(q.failedSend, 0)
	}
	switch to {
	case Reset:
		q.reset()
	case SQD:
		if was != SQD {
			q.draining, q.attr.SQDNotify = true, false
		}
		return q.claim() // it finds out when the queue has drained
	}
	return false
}

// reset forgets all requests and the state of the connection (rxe_qp_reset). The caller holds mu.
func (q *QP) reset() {
	q.deadlines.stopSends()
	q.draining, q.fatal = false, false
	q.req.reset(&q.sq)
	q.sq.Reset()
	q.resp.drop()
	q.resp.reset()
	if q.srq == nil {
		q.resp.head = q.rq.Producer()
		q.rq.SetConsumer(q.resp.head)
		q.rq.WantDoorbell(false)
		q.rq.Reset()
	}
}

// setConnection sets the attributes of the connection. The caller holds mu.
func (q *QP) setConnection(a *QPAttr, mask AttrMask, way *path) {
	if mask&AttrMaxRdAtomic != 0 {
		q.attr.MaxRdAtomic = a.MaxRdAtomic
	}
	if mask&AttrMaxDestRdAtomic != 0 {
		q.attr.MaxDestRdAtomic = a.MaxDestRdAtomic
		q.resp.remember(int(q.attr.MaxDestRdAtomic))
	}
	if mask&AttrAV != 0 {
		q.attr.AV, q.path = a.AV, way
		q.resp.lastAck = ackPlace{} // it goes another way, or to another QP
	}
	if mask&AttrPathMTU != 0 {
		q.attr.PathMTU, q.mtu = a.PathMTU, 128<<a.PathMTU
	}
	if mask&AttrTimeout != 0 {
		q.attr.Timeout, q.req.timeout = a.Timeout, 0
		if a.Timeout != 0 {
			q.req.timeout = max(4096*time.Nanosecond<<a.Timeout, leastTimeout)
		}
		q.awaitAcknowledgement()
	}
	if mask&AttrRetryCount != 0 {
		q.attr.RetryCount, q.req.retriesLeft = a.RetryCount, a.RetryCount
	}
	if mask&AttrRNRRetry != 0 {
		q.attr.RNRRetry, q.req.rnrLeft = a.RNRRetry, a.RNRRetry
	}
	if mask&AttrRQPSN != 0 {
		q.resp.psn = a.RQPSN & wire.PSNMask
		q.resp.ackPSN = q.resp.psn
	}
	if mask&AttrSQPSN != 0 {
		q.req.setPSN(a.SQPSN & wire.PSNMask)
	}
}

// setSimple sets the attributes that are only stored. The caller holds mu.
func (q *QP) setSimple(a *QPAttr, mask AttrMask) {
	if mask&AttrSQDNotify != 0 {
		q.attr.SQDNotify = a.SQDNotify
	}
	if mask&AttrAccess != 0 {
		q.attr.AccessFlags = a.AccessFlags
	}
	if mask&AttrPKeyIndex != 0 {
		q.attr.PKeyIndex = a.PKeyIndex
	}
	if mask&AttrPort != 0 {
		q.attr.Port = a.Port
	}
	if mask&AttrQKey != 0 {
		q.attr.QKey = a.QKey
	}
	if mask&AttrMinRNRTimer != 0 {
		q.attr.MinRNRTimer = a.MinRNRTimer
	}
	if mask&AttrPathMigState != 0 {
		q.attr.PathMigState = a.PathMigState
	}
	if mask&AttrDestQPN != 0 {
		q.attr.DestQPN = a.DestQPN & qpnMask
	}
}

// Query returns the attributes of the QP (rxe_qp_to_attr).
func (q *QP) Query() QPAttr {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.attr
	a.State, a.CurState, a.SQDraining = q.state, q.state, q.draining
	a.RQPSN, a.SQPSN = q.resp.psn, q.req.psn
	a.Caps = q.caps
	return a
}
