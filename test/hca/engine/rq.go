package engine

// rq is a receive queue for Ethernet frames.
type rq struct {
	n      uint32
	spec   RQSpec
	w      *wq
	cq     *cq
	counts *Counts // its counter set, or nil
	state  WQState

	open *rwqe  // of a striding queue: the WQE whose strides are being used, or nil
	used uint32 // how many of them are
}

// CreateRQ makes a receive queue in the reset state.
func (d *Device) CreateRQ(s RQSpec) (n uint32, err error) {
	if err := d.lock("RQ"); err != nil {
		return 0, err
	}
	defer d.f.mu.Unlock()
	r := &rq{spec: s}
	if r.counts, err = d.counterSet("RQ", 0, s.CounterSet); err != nil {
		return 0, err
	}
	if d.cqs[s.CQN] == nil {
		return 0, refuse(BadResource, "RQ", 0, "cqn", "CQ %#x does not exist", s.CQN)
	}
	if s.RMPN != 0 {
		if r.w = d.srqs[s.RMPN]; r.w == nil {
			return 0, refuse(BadResource, "RQ", 0, "rmpn", "RMP %#x does not exist", s.RMPN)
		}
	} else {
		if s.Log > logQueueMax || s.LogStride < 4 || s.LogStride > 9 {
			return 0, refuse(BadParam, "RQ", 0, "log_wq_sz, log_wq_stride", "2^%d WQEs of 2^%d bytes", s.Log, s.LogStride)
		}
		if s.LogStrides != 0 && (s.Linked || s.LogStride < 5) {
			return 0, refuse(BadParam, "RQ", 0, "wq_type", "a striding queue with WQEs of 2^%d bytes, linked %v; 2^5 and more, not linked, are modelled", s.LogStride, s.Linked)
		}
		if err := s.Buf.check(d, "RQ", 1<<(s.Log+s.LogStride)); err != nil {
			return 0, err
		}
		if err := d.checkDBR("RQ", s.DBR); err != nil {
			return 0, err
		}
		// mlx5e makes an RQ without a PD, which never has a WQE: what comes is dropped.
		if s.PD != 0 && d.pds[s.PD] == nil {
			return 0, refuse(BadResource, "RQ", 0, "pd", "PD %#x does not exist", s.PD)
		}
	}
	if n, err = number(d, "RQ", firstRQN, d.rqs); err != nil {
		return 0, err
	}
	r.n, r.cq = n, d.cqs[s.CQN]
	if r.w == nil {
		p := &pd{}
		if s.PD != 0 {
			p, _ = d.usePD("RQ", s.PD)
		}
		r.w = &wq{d: d, n: n, kind: "RQ", linked: s.Linked, padded: true, pd: p, spec: SRQSpec{DBR: s.DBR, Buf: s.Buf, Log: s.Log, LogStride: s.LogStride}}
		if s.Linked {
			r.w.busy = make([]bool, 1<<s.Log)
		}
		if s.Linked || s.LogStrides != 0 {
			r.w.lead = nextSegBytes
		}
	} else {
		r.w.refs++
	}
	r.cq.refs++
	d.rqs[n] = r
	return n, nil
}

// RQChange is what [Device.ModifyRQ] changes beside the state. It leaves alone what is nil.
type RQChange struct {
	CounterSet *uint8 // CounterSet counts frames for which there is no WQE; 0 is none.
	StripVLAN  *bool  // StripVLAN moves the VLAN tag of a frame into its CQE.
}

// ModifyRQ changes a receive queue, or nothing of it.
func (d *Device) ModifyRQ(n uint32, from, to WQState, change RQChange) error {
	if err := d.lock("RQ"); err != nil {
		return err
	}
	defer d.f.mu.Unlock()
	r := d.rqs[n]
	if r == nil {
		return unknown("RQ", n)
	}
	if err := changeWQ("RQ", n, r.state, from, to); err != nil {
		return err
	}
	if set := change.CounterSet; set != nil {
		counts, err := d.counterSet("RQ", n, *set)
		if err != nil {
			return err
		}
		r.counts, r.spec.CounterSet = counts, *set
	}
	if change.StripVLAN != nil {
		r.spec.StripVLAN = *change.StripVLAN
	}
	r.state = to
	if to == WQReset && r.spec.RMPN == 0 {
		r.open, r.used = nil, 0
		r.w.reset()
	}
	return nil
}

// changeWQ refuses a change of an RQ's or SQ's state that can't be.
func changeWQ(object string, n uint32, is, from, to WQState) error {
	if is != from {
		return refuse(BadState, object, n, "state", "it is %d, not %d", is, from)
	}
	ok := to == WQReset || to == WQError || to == WQReady && from != WQError
	if !ok {
		return refuse(BadState, object, n, "state", "from %d to %d", from, to)
	}
	return nil
}

// QueryRQ says what a receive queue is like now.
func (d *Device) QueryRQ(n uint32) (RQSpec, error) {
	if err := d.lock("RQ"); err != nil {
		return RQSpec{}, err
	}
	defer d.f.mu.Unlock()
	r := d.rqs[n]
	if r == nil {
		return RQSpec{}, unknown("RQ", n)
	}
	s := r.spec
	s.State = r.state
	return s, nil
}

// DestroyRQ removes a receive queue. That no TIR or RQT names it is for the caller to see.
func (d *Device) DestroyRQ(n uint32) error {
	if err := d.lock("RQ"); err != nil {
		return err
	}
	defer d.f.mu.Unlock()
	r := d.rqs[n]
	if r == nil {
		return unknown("RQ", n)
	}
	r.cq.refs--
	if r.spec.RMPN != 0 {
		r.w.refs--
	} else {
		r.w.pd.refs--
	}
	delete(d.rqs, n)
	return nil
}

// CreateSQ makes a send queue for Ethernet frames in the reset state. Its number is one of
// the QPs' numbers.
func (d *Device) CreateSQ(s SQSpec) (n uint32, err error) {
	if err := d.lock("SQ"); err != nil {
		return 0, err
	}
	defer d.f.mu.Unlock()
	if s.Log > logQueueMax {
		return 0, refuse(BadParam, "SQ", 0, "log_wq_sz", "2^%d blocks", s.Log)
	}
	if err := s.Buf.check(d, "SQ", 64<<s.Log); err != nil {
		return 0, err
	}
	if err := d.checkDBR("SQ", s.DBR); err != nil {
		return 0, err
	}
	if d.cqs[s.CQN] == nil {
		return 0, refuse(BadResource, "SQ", 0, "cqn", "CQ %#x does not exist", s.CQN)
	}
	q := &qp{d: d, sq: &s}
	if n, err = number(d, "QP", firstQPN, d.qps); err != nil {
		return 0, err
	}
	// mlx5_core's test of write combining makes an SQ without a PD.
	if s.PD != 0 {
		if q.pd, err = d.usePD("SQ", s.PD); err != nil {
			return 0, err
		}
	}
	q.n, q.sendCQ = n, d.cqs[s.CQN]
	q.sendCQ.refs++
	q.send.log = s.Log
	q.spec.RQ = RQNone
	d.qps[n] = q
	return n, nil
}

// sqState is where an SQ stands in terms of a QP's states.
var sqState = map[WQState]QPState{WQReset: Reset, WQReady: RTS, WQError: Err}

// ModifySQ changes the state of a send queue and, if that is not nil, its rate in kbit/s.
func (d *Device) ModifySQ(n uint32, from, to WQState, rate *uint32) error {
	if err := d.lock("SQ"); err != nil {
		return err
	}
	defer d.f.mu.Unlock()
	q := d.qps[n]
	if q == nil || q.sq == nil {
		return unknown("SQ", n)
	}
	if err := changeWQ("SQ", n, q.sq.State, from, to); err != nil {
		return err
	}
	if rate != nil {
		q.sq.Rate, q.send.idleAt = *rate, 0
	}
	q.sq.State = to
	if to == WQReset {
		q.send = sendQueue{log: q.send.log}
		q.hasReg = false
	}
	q.setState(sqState[to], "by command")
	q.kick()
	return nil
}

// QuerySQ says what a send queue is like now.
func (d *Device) QuerySQ(n uint32) (SQSpec, error) {
	if err := d.lock("SQ"); err != nil {
		return SQSpec{}, err
	}
	defer d.f.mu.Unlock()
	q := d.qps[n]
	if q == nil || q.sq == nil {
		return SQSpec{}, unknown("SQ", n)
	}
	return *q.sq, nil
}

// DestroySQ removes a send queue.
func (d *Device) DestroySQ(n uint32) error {
	if err := d.lock("SQ"); err != nil {
		return err
	}
	defer d.f.mu.Unlock()
	q := d.qps[n]
	if q == nil || q.sq == nil {
		return unknown("SQ", n)
	}
	q.gone = true
	q.sendCQ.refs--
	if q.pd != nil {
		q.pd.refs--
	}
	delete(d.qps, n)
	return nil
}
