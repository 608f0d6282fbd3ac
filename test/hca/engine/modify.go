package engine

import "slices"

// from says in which states a transition starts, and to where it ends.
var transitions = map[Transition]struct {
	name string
	from []QPState
	to   QPState
	opt  OptParam // the optional parameters that it may have
}{
	Rst2Init:  {"RST2INIT", []QPState{Reset}, Init, optAccess | OptPKeyIndex | OptQKey | OptPriPort | OptLagAffinity | OptCounterSet | OptRecvCQ | OptSRQN},
	Init2Init: {"INIT2INIT", []QPState{Init}, Init, optAccess | OptPKeyIndex | OptQKey | OptPriPort | OptLagAffinity | OptCounterSet},
	Init2RTR: {"INIT2RTR", []QPState{Init}, RTR, optAccess | OptAltPath | OptPKeyIndex | OptQKey | OptRNRTimeout |
		OptRRAMax | OptPrimary | OptPriPort | OptPMState | OptLagAffinity | OptSRQN | OptCounterSet},
	RTR2RTS: {"RTR2RTS", []QPState{RTR}, RTS, optAccess | OptAltPath | OptPMState | OptRNRTimeout | OptQKey |
		OptSRAMax | OptRetryCount | OptRNRRetry | OptAckTimeout | OptCounterSet | OptPKeyIndex},
	RTS2RTS: {"RTS2RTS", []QPState{RTS}, RTS, optAccess | OptAltPath | OptPMState | OptRNRTimeout | OptQKey | OptSRQN | OptRecvCQ | OptCounterSet |
		OptLagAffinity | OptUDPSport | OptStream},
	SQErr2RTS: {"SQERR2RTS", []QPState{SQErr}, RTS, optAccess | OptQKey | OptRNRTimeout},
	RTS2SQD:   {"RTS2SQD", []QPState{RTS}, SQD, 0},
	SQD2SQD: {"SQD2SQD", []QPState{SQD}, SQD, optAccess | OptAltPath | OptPKeyIndex | OptQKey | OptRNRTimeout | OptPrimary | OptPriPort |
		OptSRAMax | OptRRAMax | OptPMState | OptRetryCount | OptRNRRetry | OptAckTimeout},
	SQD2RTS: {"SQD2RTS", []QPState{SQD}, RTS, optAccess | OptAltPath | OptPMState | OptRNRTimeout | OptQKey},
	To2Err:  {"2ERR", []QPState{Reset, Init, RTR, RTS, SQErr, SQD, Err}, Err, 0},
	To2Rst:  {"2RST", []QPState{Reset, Init, RTR, RTS, SQErr, SQD, Err}, Reset, 0},
}

// optAccess are the remote rights.
const optAccess = OptRRE | OptRAE | OptRWE

// String is the command's name.
func (t Transition) String() string {
	if s, ok := transitions[t]; ok {
		return s.name
	}
	return hex("transition ", uint32(t))
}

// ModifyQP takes a QP from one state to another. Required attributes of a transition are taken in
// any case, and optional ones if the mask names them.
func (d *Device) ModifyQP(n uint32, t Transition, opt OptParam, a QPAttr) error {
	if err := d.lock("QP"); err != nil {
		return err
	}
	defer d.f.mu.Unlock()
	q := d.qps[n]
	if q == nil || q.sq != nil {
		return unknown("QP", n)
	}
	tr, ok := transitions[t]
	if !ok {
		return refuse(BadParam, "QP", n, "opcode", "%s", t)
	}
	if !slices.Contains(tr.from, q.state) {
		return refuse(BadQPState, "QP", n, "", "%s in state %s", tr.name, q.state)
	}
	if extra := opt &^ tr.opt; extra != 0 {
		return refuse(BadParam, "QP", n, "opt_param_mask", "%s takes no %#x", tr.name, uint64(extra))
	}
	next, err := q.merge(t, opt, a)
	if err != nil {
		return err
	}
	if opt&OptSRQN != 0 && q.spec.RQ == RQSRQ && d.srqs[a.SRQN] == nil {
		return refuse(BadResource, "QP", n, "srqn_rmpn_xrqn", "SRQ %#x does not exist", a.SRQN)
	}
	if opt&OptRecvCQ != 0 && d.cqs[a.RecvCQ] == nil {
		return refuse(BadResource, "QP", n, "cqn_rcv", "CQ %#x does not exist", a.RecvCQ)
	}
	counts := q.counts
	if t == Rst2Init || opt&OptCounterSet != 0 {
		if counts, err = d.counterSet("QP", n, a.CounterSet); err != nil {
			return err
		}
	}
	q.attr, q.counts = next, counts
	if q.rq != nil && !q.rq.linked {
		q.rq.unordered = next.OutOfOrder
	}
	if opt&OptSRQN != 0 && q.spec.RQ == RQSRQ {
		q.rq.refs--
		q.rq = d.srqs[a.SRQN]
		q.rq.refs++
		q.spec.SRQN = a.SRQN
	}
	if opt&OptRecvCQ != 0 && q.recvCQ != nil {
		q.recvCQ.refs--
		q.recvCQ = d.cqs[a.RecvCQ]
		q.recvCQ.refs++
		q.spec.RecvCQ = a.RecvCQ
	}
	q.enter(t, tr.to, opt, a)
	return nil
}

// merge makes the attributes after a transition, and checks them.
func (q *qp) merge(t Transition, opt OptParam, a QPAttr) (QPAttr, error) {
	next := q.attr
	bad := func(field, format string, args ...any) (QPAttr, error) {
		return QPAttr{}, refuse(BadParam, "QP", q.n, field, format, args...)
	}
	connected := q.spec.Type == RC || q.spec.Type == UC || q.spec.Type == XRC // a DCI has an address in each WQE
	switch t {
	case Rst2Init, Init2Init:
		if t == Rst2Init {
			opt |= optAccess | OptPKeyIndex | OptQKey | OptPriPort
			next.PMState, next.CounterSet, next.AtomicMode = a.PMState, a.CounterSet, a.AtomicMode
			next.LAGPort = a.LAGPort
		}
		if opt&OptPriPort != 0 {
			if a.Primary.Port != 1 {
				return bad("vhca_port_num", "port %d of 1", a.Primary.Port)
			}
			next.Primary.Port = a.Primary.Port
		}
	case Init2RTR:
		port, pkey := next.Primary.Port, next.Primary.PKeyIndex
		next.MTU, next.LogMsgMax = a.MTU, a.LogMsgMax
		if q.spec.Type == RegUMR {
			break
		}
		if next.OutOfOrder = a.OutOfOrder; a.OutOfOrder && !q.d.cfg.Traits.hasOutOfOrder(q.spec.Type) {
			return bad("dp_ordering_1", "set for type %d", q.spec.Type)
		}
		if a.MTU < 1 || a.MTU > 5 {
			return bad("mtu", "%d", a.MTU)
		}
		if a.LogMsgMax > 31 {
			return bad("log_msg_max", "%d", a.LogMsgMax)
		}
		if connected {
			next.Primary = a.Primary
			if a.Primary.Port == 0 {
				next.Primary.Port = port
			}
			if opt&OptPKeyIndex == 0 {
				next.Primary.PKeyIndex = pkey
			}
			next.RemoteQPN, next.RecvPSN = a.RemoteQPN, a.RecvPSN&psnMask
			next.LogRRAMax, next.MinRNRNAK = a.LogRRAMax, a.MinRNRNAK
			if err := q.checkPath(&next.Primary, a.Primary.SGIDIndex); err != nil {
				return QPAttr{}, err
			}
		}
	case RTR2RTS:
		next.SendPSN = a.SendPSN & psnMask
		next.RetryCount, next.RNRRetry, next.LogSRAMax = a.RetryCount, a.RNRRetry, a.LogSRAMax
		next.Primary.AckTimeout = a.Primary.AckTimeout
		if a.RetryCount > 7 || a.RNRRetry > 7 {
			return bad("retry_count, rnr_retry", "%d and %d", a.RetryCount, a.RNRRetry)
		}
	case RTS2SQD:
		next.SQDrained = a.SQDrained
	case To2Rst:
		return QPAttr{}, nil
	case To2Err:
		return next, nil
	}
	if err := q.mergeOptions(&next, opt, a); err != nil {
		return next, err
	}
	most := uint8(q.d.cfg.Traits.LogMaxReads)
	if next.LogRRAMax > most {
		return bad("log_rra_max", "%d, above %d", next.LogRRAMax, most)
	}
	if q.spec.Type == DCI {
		most = uint8(q.d.cfg.Traits.LogMaxDCReads)
	}
	if next.LogSRAMax > most {
		return bad("log_sra_max", "%d, above %d", next.LogSRAMax, most)
	}
	return next, nil
}

// mergeOptions takes over what the mask names.
func (q *qp) mergeOptions(next *QPAttr, opt OptParam, a QPAttr) error {
	if opt&OptRRE != 0 {
		next.RRE = a.RRE
	}
	if opt&OptRWE != 0 {
		next.RWE = a.RWE
	}
	if opt&OptRAE != 0 {
		next.RAE, next.AtomicMode = a.RAE, a.AtomicMode
	}
	if opt&OptQKey != 0 {
		next.QKey = a.QKey
	}
	if opt&OptRNRTimeout != 0 {
		next.MinRNRNAK = a.MinRNRNAK
	}
	if opt&OptSRAMax != 0 {
		next.LogSRAMax = a.LogSRAMax
	}
	if opt&OptRRAMax != 0 {
		next.LogRRAMax = a.LogRRAMax
	}
	if opt&OptRetryCount != 0 {
		next.RetryCount = a.RetryCount
	}
	if opt&OptRNRRetry != 0 {
		next.RNRRetry = a.RNRRetry
	}
	if opt&OptPKeyIndex != 0 {
		if int(a.Primary.PKeyIndex) >= len(q.d.port.PKeys) {
			return refuse(BadIndex, "QP", q.n, "pkey_index", "%d of %d", a.Primary.PKeyIndex, len(q.d.port.PKeys))
		}
		next.Primary.PKeyIndex = a.Primary.PKeyIndex
	}
	if opt&OptAckTimeout != 0 {
		next.Primary.AckTimeout = a.Primary.AckTimeout
	}
	if opt&OptPrimary != 0 && q.state == SQD {
		if err := q.checkPath(&a.Primary, a.Primary.SGIDIndex); err != nil {
			return err
		}
		port, timeout := next.Primary.Port, next.Primary.AckTimeout
		next.Primary = a.Primary
		if a.Primary.Port == 0 {
			next.Primary.Port = port
		}
		if opt&OptAckTimeout == 0 {
			next.Primary.AckTimeout = timeout
		}
	}
	if opt&OptCounterSet != 0 {
		next.CounterSet = a.CounterSet
	}
	if opt&OptLagAffinity != 0 {
		next.LAGPort = a.LAGPort
	}
	if opt&OptUDPSport != 0 {
		if q.spec.Type != RC && q.spec.Type != UC {
			return refuse(BadParam, "QP", q.n, "udp_sport", "each request has its own")
		}
		next.Primary.UDPSport = a.Primary.UDPSport
	}
	if opt&OptStream != 0 && !q.streams() {
		return refuse(BadParam, "QP", q.n, "dci_stream_channel_id", "not a DCI with streams")
	}
	if opt&OptAltPath != 0 {
		if err := q.checkPath(&a.Alternate, a.Alternate.SGIDIndex); err != nil {
			return err
		}
		next.Alternate = a.Alternate
	}
	if opt&OptPMState != 0 {
		next.PMState = a.PMState
		if a.PMState == PMRearm {
			next.PMState = PMArmed
		}
	}
	return nil
}

// checkPath refuses a path that packets can't take.
func (q *qp) checkPath(p *Path, sgid uint8) error {
	if p.Port > 1 {
		return refuse(BadParam, "QP", q.n, "vhca_port_num", "port %d of 1", p.Port)
	}
	if q.d.cfg.LinkLayer == InfiniBand {
		if p.RLID == 0 {
			return refuse(BadParam, "QP", q.n, "rlid", "a path needs a LID")
		}
		if p.GRH && int(sgid) >= len(q.d.port.GIDs) {
			return refuse(BadIndex, "QP", q.n, "src_addr_index", "%d of %d", sgid, len(q.d.port.GIDs))
		}
		return nil
	}
	if int(sgid) >= len(q.d.port.GIDs) || q.d.port.GIDs[sgid].Invalid {
		return refuse(BadIndex, "QP", q.n, "src_addr_index", "entry %d of the GID table is empty", sgid)
	}
	if p.RMAC == ([6]byte{}) {
		return refuse(BadParam, "QP", q.n, "rmac", "a path needs a MAC")
	}
	return nil
}

// enter does what a new state asks for.
func (q *qp) enter(t Transition, to QPState, opt OptParam, a QPAttr) {
	if t == To2Err {
		if q.state == Reset {
			q.state = Init
		}
		q.toError("by command")
		return
	}
	q.setState(to, "by command "+t.String())
	switch t {
	case Init2RTR:
		q.resp.start(q)
	case RTR2RTS:
		q.req.start(q)
	case SQD2RTS, SQErr2RTS:
		q.draining = false
		q.kick()
	case RTS2SQD:
		q.draining, q.asked = true, a.SQDrained
		q.kick()
	case RTS2RTS:
		if opt&OptPMState != 0 && a.PMState == PMMigrated && q.attr.Alternate != (Path{}) {
			q.migrate()
		}
		if opt&OptStream != 0 {
			delete(q.failed, a.Stream)
		}
		q.kick()
	case To2Rst:
		q.reset()
	}
}

// reset makes a QP as it was when it was created. The doorbell record is the driver's:
// it must be zero before the queue is used again.
func (q *qp) reset() {
	q.quiet()
	q.hangUp()
	q.failed = nil
	q.dropRecv()
	q.attr, q.counts = QPAttr{}, nil
	q.draining, q.asked, q.commEst, q.hasReg = false, false, false, false
	q.send = sendQueue{base: q.send.base, log: q.send.log}
	q.req, q.resp = requester{}, responder{}
	if q.spec.RQ == RQOwn {
		q.rq.reset()
	}
}

// dropRecv forgets the receive WQE that a message has begun to fill.
func (q *qp) dropRecv() {
	if r := q.resp.recv; r != nil {
		q.resp.recv = nil
		r.done()
	}
}
