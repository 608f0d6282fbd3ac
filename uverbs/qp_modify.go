package uverbs

import (
	"errors"
	"strconv"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// Modify sets the attributes in mask (ibv_modify_qp). If mask does not fit the change of state, the
// error lists the attributes that are missing or superfluous. [QP.Connect] makes the usual sequence
// of changes.
//
// While a Modify to [ib.QPReset] runs, State returns that and nothing can be posted. If it fails, the QP is in
// its former state again. A batch of [QP.BeginSend] that was begun before cannot be posted any more.
func (q *QP) Modify(attr QPAttr, mask QPAttrMask) error {
	if err := q.acquireState(); err != nil {
		return err
	}
	defer q.releaseState()
	var note *errCause
	if mask&AttrState != 0 {
		note = q.movedTo(attr.State)
	}
	err := q.modify(attr, mask)
	if err != nil && note != nil {
		q.cause.CompareAndSwap(note, note.before)
	}
	return err
}

// acquireState is acquire for commands that change the state or read it: one at a time.
func (q *QP) acquireState() error {
	if err := q.acquire(); err != nil {
		return err
	}
	q.changing.Lock()
	return nil
}

// releaseState ends acquireState.
func (q *QP) releaseState() {
	q.changing.Unlock()
	q.release()
}

// setState stores a state after the posts in progress, so that all later ones see it.
func (q *QP) setState(s ib.QPState) {
	q.sending.Lock()
	q.receiving.Lock()
	q.state.Store(uint32(s))
	if s == ib.QPReset {
		q.resets.Add(1)
	}
	q.receiving.Unlock()
	q.sending.Unlock()
}

// modify is Modify without a record of who moved the QP. The caller holds acquireState.
func (q *QP) modify(attr QPAttr, mask QPAttrMask) error {
	now := q.State()
	from := now
	if mask&AttrCurState != 0 {
		from = attr.CurState
	}
	to := from
	if mask&AttrState != 0 {
		to = attr.State
	}
	if err := q.checkChange(&attr, mask, from, to); err != nil {
		return err
	}
	if mask&AttrPort != 0 {
		q.dev.recordCounters(attr.Port)
	}
	q.movingToErr.Store(to == ib.QPErr)
	u := q.modifyUdata()
	if to == ib.QPReset { // what is posted from now on would not belong to any connection
		q.setState(ib.QPReset)
	}
	if errno := q.issueModify(&attr, mask, u); errno != 0 {
		if to == ib.QPReset {
			q.setState(now)
		}
		q.movingToErr.Store(false)
		if mask&AttrRateLimit != 0 && errno == syscall.EINVAL {
			limits, err := q.dev.rateLimits()
			if err == nil { // otherwise the rate may not be the reason
				if err := limits.check(q.dev, attr.RateLimit); err != nil {
					return err
				}
			}
		}
		return q.modifyError(&attr, mask, from, to, errno, q.modifyHint(errno, attr, mask), u)
	}
	q.modified(&attr, mask, from, to)
	return q.modifyAnswer(u)
}

// modifyError returns the error of a MODIFY_QP that the kernel has refused.
func (q *QP) modifyError(attr *QPAttr, mask QPAttrMask, from, to ib.QPState, errno syscall.Errno, hint string, u udata) error {
	err := q.dev.cmd.fail("MODIFY_QP "+from.String()+" to "+to.String(), errno, hint)
	err = about(err, q.label(), attr.given(mask))
	// The kernel answers EOPNOTSUPP also for the right to atomics on a device without atomics.
	noAtomics := mask&AttrAccess != 0 && attr.Access&AccessRemoteAtomic != 0 && q.dev.attr.AtomicCap == ib.AtomicNone
	if e, ok := errors.AsType[*Error](err); ok && u.unsupported != nil && errno == syscall.EOPNOTSUPP && !noAtomics {
		e.Hint = u.unsupported.Err.Error()
		u.unsupported.Err = e
		return u.unsupported
	}
	return err
}

// checkChange checks a change without asking the kernel, and completes the addresses.
func (q *QP) checkChange(attr *QPAttr, mask QPAttrMask, from, to ib.QPState) error {
	check := mask
	if q.dev.driver.capabilities().connectionManaged && to == ib.QPInit { // siw needs no attributes
		check |= AttrPKeyIndex | AttrPort | AttrAccess
	}
	if err := checkModify(q.typ, from, to, check); err != nil {
		return err
	}
	if err := q.dev.driver.unsupportedModify(q.dev, to, mask); err != nil {
		return err
	}
	if err := attr.check(q.dev, mask); err != nil {
		return err
	}
	if mask&AttrPKeyIndex != 0 {
		if err := q.checkPKey(attr, mask); err != nil {
			return err
		}
	}
	if mask&AttrAH != 0 {
		if err := attr.AH.complete("Modify", "AH.", q.dev); err != nil {
			return err
		}
	}
	if mask&AttrAltPath != 0 {
		return attr.AltAH.complete("Modify", "AltAH.", q.dev)
	}
	return nil
}

// checkPKey checks an index of the port's P_Key table, which rxe and software devices do not look at.
func (q *QP) checkPKey(attr *QPAttr, mask QPAttrMask) error {
	port := uint8(q.port.Load())
	if mask&AttrPort != 0 {
		port = attr.Port
	}
	if attr.PKeyIndex == 0 || port == 0 {
		return nil
	}
	facts, err := q.dev.currentPort(port)
	if err == nil && int(attr.PKeyIndex) >= facts.PKeyTableLen {
		return argErr("Modify", "PKeyIndex", attr.PKeyIndex, "0 to %d, the P_Key table of port %d", facts.PKeyTableLen-1, port)
	}
	return nil
}

// issueModify sends MODIFY_QP, or the extended command if there is a rate limit or the driver wants
// a response.
func (q *QP) issueModify(attr *QPAttr, mask QPAttrMask, u udata) syscall.Errno {
	req := spareModifies.Get().(*abi.ModifyQP)
	defer spareModifies.Put(req)
	*req = abi.ModifyQP{
		Dest:            attr.AH.dest(),
		AltDest:         attr.AltAH.dest(),
		QPHandle:        q.handle,
		AttrMask:        uint32(mask),
		QKey:            attr.QKey,
		RQPSN:           attr.RQPSN,
		SQPSN:           attr.SQPSN,
		DestQPNum:       attr.DestQPN,
		QPAccessFlags:   uint32(attr.Access),
		PKeyIndex:       attr.PKeyIndex,
		AltPKeyIndex:    attr.AltPKeyIndex,
		QPState:         uint8(attr.State),
		CurQPState:      uint8(attr.CurState),
		PathMTU:         uint8(attr.PathMTU),
		PathMigState:    uint8(attr.PathMigState),
		MaxRDAtomic:     attr.MaxRdAtomic,
		MaxDestRDAtomic: attr.MaxDestRdAtomic,
		MinRNRTimer:     uint8(attr.MinRNRTimer),
		PortNum:         attr.Port,
		Timeout:         uint8(attr.Timeout),
		RetryCnt:        attr.RetryCount,
		RNRRetry:        attr.RNRRetry,
		AltPortNum:      attr.AltPort,
		AltTimeout:      uint8(attr.AltTimeout),
	}
	if attr.EnSQDAsyncNotify {
		req.EnSQDAsyncNotify = 1
	}
	if mask&AttrRateLimit != 0 || u.out != nil {
		ex := bytesOf(&abi.ExModifyQP{Base: *req, RateLimit: attr.RateLimit})
		resp := bytesOf(&abi.ExModifyQPResp{})
		return q.dev.cmd.legacy(exCommand|abi.IB_USER_VERBS_EX_CMD_MODIFY_QP, ex, resp, u)
	}
	return q.dev.cmd.legacy(abi.IB_USER_VERBS_CMD_MODIFY_QP, bytesOf(req), nil, udata{})
}

// modified updates the library's state after a successful change.
func (q *QP) modified(attr *QPAttr, mask QPAttrMask, from, to ib.QPState) {
	q.state.Store(uint32(to))
	if mask&AttrPort != 0 {
		q.port.Store(uint32(attr.Port))
	}
	if mask&AttrPKeyIndex != 0 {
		q.pkey.Store(uint32(attr.PKeyIndex))
	}
	if mask&AttrState != 0 {
		q.dev.driver.qpModified(q, from, to)
	}
	if to == ib.QPRTS && mask&AttrState != 0 && from >= ib.QPRTS { // from SQE, which the library may not know of
		q.first.Store(nil)
	}
	if to == ib.QPReset && from != ib.QPReset {
		q.psn.Store(0)
		q.told.Store(nil)
		q.clearFailure()
	}
	// rxe leaves the completions of a reset QP in the CQ. Polling them after Reset records a failure
	// again. Those polled after Init are still taken for failures of the new connection.
	if from == ib.QPReset && to == ib.QPInit {
		q.clearFailure()
		q.cause.Store(nil)
		q.flushSeen.Store(false)
	}
	q.recordPeer(attr, mask)
}

// clearFailure removes the recorded failure.
func (q *QP) clearFailure() {
	q.first.Store(nil)
	q.ringChecked.Store(false)
}

// spareModifies are requests for reuse.
var spareModifies = sync.Pool{New: func() any { return new(abi.ModifyQP) }}

// SetKernelState tells the library that the connection manager of the kernel has moved an iWARP
// queue pair to a state. The library cannot find this out: no command moves the QP there and none
// reads its state. Package cm calls SetKernelState for its own QPs. Other programs must call it
// once the connection is established:
//
//   - on the connecting side with [ib.QPRTS];
//   - on the accepting side with [ib.QPRTR]. This side may not send before the peer does. The QP moves
//     to QPRTS when the first message is received. If the peer begins with another operation, such
//     as an RDMA WRITE, call SetKernelState with QPRTS.
//
// SetKernelState fails on other transports, where [QP.Modify] moves the QP.
func (q *QP) SetKernelState(state ib.QPState) error {
	if err := q.acquireState(); err != nil {
		return err
	}
	defer q.releaseState()
	if !q.dev.driver.capabilities().connectionManaged {
		return argErr("SetKernelState", "QP", "of "+q.dev.Name(), "a QP of an iWARP device; use Modify for others")
	}
	if state != ib.QPRTR && state != ib.QPRTS {
		return argErr("SetKernelState", "state", state, "%s or %s; use Modify for others", ib.QPRTR, ib.QPRTS)
	}
	for {
		now := q.State()
		if now > state {
			return argErr("SetKernelState", "state", state, "%s or later, the current state", now)
		}
		if q.state.CompareAndSwap(uint32(now), uint32(state)) {
			break
		}
	}
	if state == ib.QPRTS {
		q.firstRecvDone()
	} else if !q.awaitFirstRecv.Load() { // before this call
		q.state.CompareAndSwap(uint32(ib.QPRTR), uint32(ib.QPRTS))
	}
	return nil
}

// firstRecvDone records that the peer has begun to send, so that this side may send.
func (q *QP) firstRecvDone() {
	if q.awaitFirstRecv.CompareAndSwap(true, false) {
		q.recvCQ.awaitFirstRecv.Add(-1)
	}
	q.state.CompareAndSwap(uint32(ib.QPRTR), uint32(ib.QPRTS))
}

// RateLimits are the values that a device takes for [QPAttr.RateLimit]. All are 0 if it has no rate limits.
type RateLimits struct {
	Min     uint32  // Min is the lowest rate, in kbit/s.
	Max     uint32  // Max is the highest rate, in kbit/s.
	QPTypes QPTypes // QPTypes are the types of QPs that can have a limit.
}

// RateLimits returns the rates to which the device can limit a QP (packet_pacing_caps of ibv_query_device_ex).
// mlx5 alone has any. The device holds a limited number of different rates at a time.
func (d *Device) RateLimits() (RateLimits, error) {
	if err := d.acquire(); err != nil {
		return RateLimits{}, err
	}
	defer d.release()
	return d.rateLimits()
}

// check returns why a device has refused a rate, or nil if the rate is not the reason.
func (l RateLimits) check(d *Device, rate uint32) error {
	switch {
	case rate == 0:
		return nil
	case l.Max == 0:
		return &FeatureError{Feature: "QPAttr.RateLimit", Driver: d.driver.name(), Err: errors.New("the adapter does not have the capability packet_pacing")}
	case rate < l.Min || rate > l.Max:
		return argErr("Modify", "RateLimit", rate, "%d to %d kbit/s, or 0 for no limit", l.Min, l.Max)
	}
	return nil
}

// modifyHint explains a refused change.
func (q *QP) modifyHint(errno syscall.Errno, attr QPAttr, mask QPAttrMask) string {
	if mask&AttrAltPath != 0 && errno == syscall.EINVAL {
		if port, err := q.dev.Port(attr.AltPort); err == nil && port.LinkLayer == ib.LinkLayerEthernet {
			return "the kernel supports alternate paths on InfiniBand only, and port " + strconv.Itoa(int(attr.AltPort)) + " is Ethernet"
		}
	}
	if mask&AttrAH == 0 {
		if errno == syscall.EINVAL {
			return "the QP may have left state " + q.State().String() + " by itself; Query returns the current state"
		}
		return ""
	}
	return routeHint(q.dev, errno, attr.AH)
}

// check returns an ArgError if a selected value is out of range.
func (a *QPAttr) check(d *Device, mask QPAttrMask) error {
	above := func(bit QPAttrMask, given, limit uint32) bool { return mask&bit != 0 && given > limit }
	var name string
	var given, limit uint32
	switch most, mostDest := d.attr.MaxQPInitRdAtom, d.attr.MaxQPRdAtom; {
	case above(AttrRQPSN, a.RQPSN, maxPSN):
		name, given, limit = "RQPSN", a.RQPSN, maxPSN
	case above(AttrSQPSN, a.SQPSN, maxPSN):
		name, given, limit = "SQPSN", a.SQPSN, maxPSN
	case above(AttrDestQPN, a.DestQPN, maxQPN):
		name, given, limit = "DestQPN", a.DestQPN, maxQPN
	case above(AttrRetryCount, uint32(a.RetryCount), 7):
		name, given, limit = "RetryCount", uint32(a.RetryCount), 7
	case above(AttrRNRRetry, uint32(a.RNRRetry), 7):
		name, given, limit = "RNRRetry", uint32(a.RNRRetry), 7
	case above(AttrTimeout, uint32(a.Timeout), 31):
		name, given, limit = "Timeout", uint32(a.Timeout), 31
	case above(AttrMinRNRTimer, uint32(a.MinRNRTimer), 31):
		name, given, limit = "MinRNRTimer", uint32(a.MinRNRTimer), 31
	case above(AttrMaxRdAtomic, uint32(a.MaxRdAtomic), most):
		name, given, limit = "MaxRdAtomic", uint32(a.MaxRdAtomic), most
	case above(AttrMaxDestRdAtomic, uint32(a.MaxDestRdAtomic), mostDest):
		name, given, limit = "MaxDestRdAtomic", uint32(a.MaxDestRdAtomic), mostDest
	case above(AttrPathMigState, uint32(a.PathMigState), uint32(ib.PathArmed)):
		name, given, limit = "PathMigState", uint32(a.PathMigState), uint32(ib.PathArmed)
	case above(AttrAltPath, uint32(a.AltTimeout), 31):
		name, given, limit = "AltTimeout", uint32(a.AltTimeout), 31
	}
	if name != "" {
		return argErr("Modify", name, given, "0 to %d", limit)
	}
	if mask&AttrAccess != 0 && a.Access&^accessQP != 0 {
		return argErr("Modify", "Access", a.Access, "the rights of a QP; these are %s", accessQP)
	}
	if mask&AttrPathMTU != 0 && a.PathMTU.Bytes() == 0 {
		return argErr("Modify", "PathMTU", a.PathMTU, "MTU256 to MTU4096")
	}
	if mask&AttrPort != 0 && (a.Port < 1 || a.Port > d.attr.PhysPortCount) {
		return argErr("Modify", "Port", a.Port, "1 to %d", d.attr.PhysPortCount)
	}
	if mask&AttrAH != 0 {
		if err := a.AH.check("Modify", "AH.", d); err != nil {
			return err
		}
	}
	if mask&AttrAltPath != 0 {
		if a.AltPort < 1 || a.AltPort > d.attr.PhysPortCount {
			return argErr("Modify", "AltPort", a.AltPort, "1 to %d", d.attr.PhysPortCount)
		}
		return a.AltAH.check("Modify", "AltAH.", d)
	}
	return nil
}

// queryAll selects all attributes.
const queryAll = 1<<21 - 1

// Query reads the current attributes from the device (ibv_query_qp).
func (q *QP) Query() (QPAttr, error) {
	if err := q.acquireState(); err != nil {
		return QPAttr{}, err
	}
	defer q.releaseState()
	req := &abi.QueryQP{QPHandle: q.handle, AttrMask: q.queryMask()}
	if q.typ == ib.DCT && q.State() != ib.QPRTR { // the device does not know it yet
		return QPAttr{State: q.State()}, nil
	}
	r := &abi.QueryQPResp{}
	if errno := q.dev.cmd.legacy(abi.IB_USER_VERBS_CMD_QUERY_QP, bytesOf(req), bytesOf(r), udata{}); errno != 0 {
		return QPAttr{}, about(q.dev.cmd.fail("QUERY_QP", errno, ""), q.label(), "")
	}
	attr := QPAttr{
		State:        ib.QPState(r.QPState),
		CurState:     ib.QPState(r.CurQPState),
		PathMTU:      ib.MTU(r.PathMTU),
		PathMigState: ib.PathMigState(r.PathMigState),
		QKey:         r.QKey,
		RQPSN:        r.RQPSN,
		SQPSN:        r.SQPSN,
		DestQPN:      r.DestQPNum,
		Access:       Access(r.QPAccessFlags),
		Caps: QPCaps{
			MaxSendWR:  int(r.MaxSendWR),
			MaxRecvWR:  int(r.MaxRecvWR),
			MaxSendSGE: int(r.MaxSendSGE),
			MaxRecvSGE: int(r.MaxRecvSGE),
			MaxInline:  int(r.MaxInlineData),
		},
		AH:              ahAttr(&r.Dest),
		AltAH:           ahAttr(&r.AltDest),
		PKeyIndex:       r.PKeyIndex,
		AltPKeyIndex:    r.AltPKeyIndex,
		SQDraining:      r.SQDraining != 0,
		MaxRdAtomic:     r.MaxRDAtomic,
		MaxDestRdAtomic: r.MaxDestRDAtomic,
		MinRNRTimer:     ib.RNRTimer(r.MinRNRTimer),
		Port:            r.PortNum,
		Timeout:         ib.AckTimeout(r.Timeout),
		RetryCount:      r.RetryCnt,
		RNRRetry:        r.RNRRetry,
		AltPort:         r.AltPortNum,
		AltTimeout:      ib.AckTimeout(r.AltTimeout),
	}
	q.dev.driver.queriedQP(q, &attr)
	if !q.dev.driver.capabilities().connectionManaged { // otherwise the kernel does not report the state
		q.state.Store(uint32(attr.State))
	}
	return attr, nil
}

// queryMask selects the attributes that QUERY_QP returns.
func (q *QP) queryMask() uint32 {
	if q.typ == ib.DCT {
		return uint32(AttrState | AttrAccess | AttrPort | AttrMinRNRTimer | AttrAH | AttrPathMTU | AttrPKeyIndex)
	}
	if some := q.dev.driver.capabilities().queries; some != 0 {
		return uint32(some)
	}
	return queryAll
}

// DataInOrder returns which data of incoming operations a program may read before their completion
// (ibv_query_qp_data_in_order). It always returns 0, because no supported driver reports an order
// through the kernel. Wait for completions.
func (q *QP) DataInOrder(op WROpcode) (InOrder, error) {
	if err := q.usable(); err != nil {
		return 0, err
	}
	if !op.known() {
		return 0, argErr("DataInOrder", "op", uint8(op), "the WROpcode constants")
	}
	return 0, nil
}

// ofPeer are the attributes that recordPeer records.
const ofPeer = AttrAH | AttrDestQPN | AttrTimeout | AttrRetryCount | AttrRNRRetry | AttrMinRNRTimer | AttrPathMTU | AttrMaxRdAtomic

// recordPeer records the attributes of a Modify that concern the peer.
func (q *QP) recordPeer(attr *QPAttr, mask QPAttrMask) {
	if mask&ofPeer == 0 {
		return
	}
	p := peerInfo{}
	if old := q.peer.Load(); old != nil {
		p = *old
	}
	if mask&AttrAH != 0 {
		p.LID, p.GID = attr.AH.DLID, attr.AH.GRH.DGID
	}
	if mask&AttrDestQPN != 0 {
		p.QPN = attr.DestQPN
	}
	if mask&AttrTimeout != 0 {
		p.timeout = attr.Timeout
	}
	if mask&AttrRetryCount != 0 {
		p.retries = attr.RetryCount
	}
	if mask&AttrRNRRetry != 0 {
		p.rnrRetries = attr.RNRRetry
	}
	if mask&AttrMinRNRTimer != 0 {
		p.minRNRTimer = attr.MinRNRTimer
	}
	if mask&AttrPathMTU != 0 {
		p.mtu = attr.PathMTU
	}
	if mask&AttrMaxRdAtomic != 0 {
		p.noReads = attr.MaxRdAtomic == 0
	}
	q.peer.Store(&p)
}
