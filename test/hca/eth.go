package hca

import (
	"fmt"

	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/prm"
)

// tir says where received frames go on from a flow table: to one RQ, or by a table of them.
type tir struct {
	domain   uint32
	indirect bool
	target   uint32 // an RQ or an RQT
}

// tis is what an SQ belongs to.
type tis struct {
	domain  uint32
	lagPort uint8
}

const (
	firstTIS, lastTIS = 0x2000, 0x2fff
	firstTIR, lastTIR = 0x3000, 0x3fff
	firstRQT, lastRQT = 0x4000, 0x4fff
)

func (d *Device) createTIS(c *call) error {
	x := c.in[prm.WQCtx:]
	t := tis{domain: prm.TISCDomain.U32(x), lagPort: uint8(prm.TISCLAGPort.Get(x))}
	if !d.domains[t.domain] {
		return refuse(prm.BadResource, "TIS transport_domain", "%#x does not exist", t.domain)
	}
	if err := d.lagPort("TIS", t.lagPort); err != nil {
		return err
	}
	n, err := take(d.eth.tis, t, firstTIS, lastTIS, "TIS")
	c.answer(n)
	return err
}

func (d *Device) modifyTIS(c *call) error {
	t, ok := d.eth.tis[c.number()]
	if !ok {
		return refuse(prm.BadResource, "TIS", "%#x does not exist", c.number())
	}
	if prm.TISModifyLAG.Bool(c.in) {
		t.lagPort = uint8(prm.TISCLAGPort.Get(c.in[prm.WQCtx:]))
		if err := d.lagPort("TIS", t.lagPort); err != nil {
			return err
		}
		d.eth.tis[c.number()] = t
	}
	return nil
}

func (d *Device) queryTIS(c *call) error {
	t, ok := d.eth.tis[c.number()]
	if !ok {
		return refuse(prm.BadResource, "TIS", "%#x does not exist", c.number())
	}
	x := prm.Record(c.out, prm.TISCtx, prm.TISCSize)
	prm.TISCDomain.Put(x, uint64(t.domain))
	prm.TISCLAGPort.Put(x, uint64(t.lagPort))
	return nil
}

func (d *Device) destroyTIS(c *call) error {
	n := c.number()
	for sqn, t := range d.eth.sqTIS {
		if t == n {
			return refuse(prm.ResBusy, "TIS", "%#x is in use by SQ %#x", n, sqn)
		}
	}
	return drop(d.eth.tis, n, "TIS")
}

const (
	tirDirect   = 0
	tirIndirect = 1
)

func (d *Device) createTIR(c *call) error {
	x := prm.Record(c.in, prm.WQCtx, prm.WQCtxSize)
	t := tir{domain: prm.TIRCDomain.U32(x)}
	if !d.domains[t.domain] {
		return refuse(prm.BadResource, "TIR transport_domain", "%#x does not exist", t.domain)
	}
	switch disp := prm.TIRCDispType.Get(x); disp {
	case tirDirect:
		t.target = prm.TIRCInlineRQN.U32(x)
		if _, err := d.eng.QueryRQ(t.target); err != nil {
			return err
		}
	case tirIndirect:
		t.indirect, t.target = true, prm.TIRCIndirect.U32(x)
		if _, ok := d.eth.rqts[t.target]; !ok {
			return refuse(prm.BadResource, "TIR indirect_table", "RQT %#x does not exist", t.target)
		}
	default:
		return refuse(prm.BadParam, "TIR disp_type", "%d", disp)
	}
	n, err := take(d.eth.tirs, t, firstTIR, lastTIR, "TIR")
	c.answer(n)
	d.eth.publish()
	return err
}

func (d *Device) modifyTIR(c *call) error {
	if _, ok := d.eth.tirs[c.number()]; !ok {
		return refuse(prm.BadResource, "TIR", "%#x does not exist", c.number())
	}
	return nil
}

func (d *Device) destroyTIR(c *call) error {
	n := c.number()
	if user := d.eth.userOf(destTIR, n); user != "" {
		return refuse(prm.ResBusy, "TIR", "%#x is in use by %s", n, user)
	}
	err := drop(d.eth.tirs, n, "TIR")
	d.eth.publish()
	return err
}

// rqtList reads the RQ numbers of a table, all of which must exist.
func (d *Device) rqtList(x []byte) ([]uint32, error) {
	n, most := prm.RQTActual.Int(x), 1<<10
	if n > most {
		return nil, refuse(prm.BadParam, "RQT rqt_actual_size", "%d of at most %d", n, most)
	}
	if len(x) < prm.RQTList+4*n {
		return nil, refuse(prm.BadInLen, "RQT list", "%d entries in %d bytes", n, len(x)-prm.RQTList)
	}
	var rqs []uint32
	for i := range n {
		rqn := prm.RQTEntry.U32(x[prm.RQTList+4*i:])
		if _, err := d.eng.QueryRQ(rqn); err != nil {
			return nil, err
		}
		rqs = append(rqs, rqn)
	}
	return rqs, nil
}

func (d *Device) createRQT(c *call) error {
	rqs, err := d.rqtList(c.in[prm.WQCtx:])
	if err != nil {
		return err
	}
	n, err := take(d.eth.rqts, rqs, firstRQT, lastRQT, "RQT")
	c.answer(n)
	return err
}

func (d *Device) modifyRQT(c *call) error {
	n := c.number()
	if _, ok := d.eth.rqts[n]; !ok {
		return refuse(prm.BadResource, "RQT", "%#x does not exist", n)
	}
	rqs, err := d.rqtList(c.in[prm.WQCtx:])
	if err != nil {
		return err
	}
	d.eth.rqts[n] = rqs
	d.eth.publish()
	return nil
}

func (d *Device) destroyRQT(c *call) error {
	n := c.number()
	for tirn, t := range d.eth.tirs {
		if t.indirect && t.target == n {
			return refuse(prm.ResBusy, "RQT", "%#x is in use by TIR %#x", n, tirn)
		}
	}
	return drop(d.eth.rqts, n, "RQT")
}

func (d *Device) createSQ(c *call) error {
	x := prm.Record(c.in, prm.WQCtx, prm.WQCtxSize)
	wq := prm.Record(x, prm.WQInCtx, prm.WQSize)
	if kind := prm.WQType.Get(wq); kind != prm.WQCyclic {
		return refuse(prm.BadParam, "SQ wq_type", "%d", kind)
	}
	if !d.users.sendsRaw(c) {
		return refuse(prm.BadParam, "SQ uid", "the user context may not send raw frames")
	}
	if state := prm.SQCState.Get(x); state != prm.WQStateRST {
		return refuse(prm.BadParam, "SQ state", "%d", state)
	}
	if stride := prm.WQLogStride.Get(wq); stride != 6 {
		return refuse(prm.BadParam, "SQ log_wq_stride", "%d: blocks have 64 bytes", stride)
	}
	tisn := uint32(0)
	if prm.SQCTISCount.Get(x) > 0 {
		tisn = prm.SQCTIS.U32(x)
		if _, ok := d.eth.tis[tisn]; !ok {
			return refuse(prm.BadResource, "SQ tis_num", "TIS %#x does not exist", tisn)
		}
	}
	buf, err := c.wqBuffer("SQ", wq)
	if err != nil {
		return err
	}
	s := engine.SQSpec{
		CQN: prm.SQCCQN.U32(x), PD: prm.WQPD.U32(wq), UserIndex: prm.SQCUserIndex.U32(x), UAR: prm.WQUAR.U32(wq), DBR: prm.WQDBR.Get(wq),
		Buf: buf, Log: uint(prm.WQLogSize.Get(wq)),
	}
	if mode := max(prm.SQCInlineMode.Get(x), prm.NVPInlineMode.Get(d.nic.ctx)); mode == prm.InlineL2 {
		s.MinInline = ethHeaderSize
	} else if mode != prm.InlineNone {
		return refuse(prm.BadParam, "SQ min_wqe_inline_mode", "%d is not modelled", mode)
	}
	if err := d.uar("SQ", s.UAR); err != nil {
		return err
	}
	n, err := d.eng.CreateSQ(s)
	if err != nil {
		return err
	}
	d.eth.sqTIS[n] = tisn
	c.answer(n)
	return nil
}

// ethHeaderSize is how many bytes of a frame the mode InlineL2 is about: addresses and type.
const ethHeaderSize = 14

// SetInlineHeaders has the virtual port want headers in the WQEs of SQs that are made from now on,
// or not, as firmware can be configured to.
func (d *Device) SetInlineHeaders(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	mode := uint64(prm.InlineNone)
	if on {
		mode = prm.InlineL2
	}
	prm.NVPInlineMode.Put(d.nic.ctx, mode)
}

// sqModifyRate is a bit of MODIFY_SQ's mask.
const sqModifyRate = 1 << 0

// modifySQ changes an SQ's state and its rate.
func (d *Device) modifySQ(c *call) error {
	n := c.number()
	from, to := engine.WQState(prm.ModifyState.Get(c.in)), engine.WQState(prm.SQCState.Get(c.in[prm.WQCtx:]))
	switch mask := prm.ModifyMask.Get(c.in); mask {
	case 0:
		return d.eng.ModifySQ(n, from, to, nil)
	case sqModifyRate:
		i := prm.SQCRate.Get(c.in[prm.WQCtx:])
		if i >= rates || i != 0 && d.eth.rates[i] == 0 {
			return refuse(prm.BadParam, "SQ packet_pacing_rate_limit_index", "%d has no rate", i)
		}
		if err := d.eng.ModifySQ(n, from, to, &d.eth.rates[i]); err != nil {
			return err
		}
		d.eth.sqRate[n] = uint16(i)
		return nil
	default:
		return refuse(prm.BadParam, "SQ modify_bitmask", "%#x is not modelled", mask)
	}
}

// setRate is SET_PP_RATE_LIMIT. A rate of 0 ends the use of an index.
func (d *Device) setRate(c *call) error {
	i, rate := prm.RateIndex.Get(c.in), prm.Rate.U32(c.in)
	switch {
	case i == 0 || i >= rates:
		return refuse(prm.BadParam, "rate_limit_index", "%d, where 1 to %d are possible", i, rates-1)
	case rate != 0 && (rate < leastRate || rate > mostRate):
		return refuse(prm.BadParam, "rate_limit", "%d kbit/s, where %d to %d are possible", rate, leastRate, mostRate)
	}
	d.eth.rates[i] = rate
	return nil
}

func (d *Device) destroySQ(c *call) error {
	if err := d.eng.DestroySQ(c.number()); err != nil {
		return err
	}
	delete(d.eth.sqTIS, c.number())
	delete(d.eth.sqRate, c.number())
	return nil
}

func (d *Device) querySQ(c *call) error {
	s, err := d.eng.QuerySQ(c.number())
	if err != nil {
		return err
	}
	x := prm.Record(c.out, prm.WQCtx, prm.WQCtxSize)
	wq := prm.Record(x, prm.WQInCtx, prm.WQSize)
	prm.SQCState.Put(x, uint64(s.State))
	prm.SQCCQN.Put(x, uint64(s.CQN))
	prm.SQCUserIndex.Put(x, uint64(s.UserIndex))
	prm.WQType.Put(wq, prm.WQCyclic)
	prm.WQPD.Put(wq, uint64(s.PD))
	prm.WQUAR.Put(wq, uint64(s.UAR))
	prm.WQDBR.Put(wq, s.DBR)
	prm.SQCRate.Put(x, uint64(d.eth.sqRate[c.number()]))
	prm.WQLogStride.Put(wq, 6)
	prm.WQLogSize.Put(wq, uint64(s.Log))
	return nil
}

const (
	rqInline = 0
	rqRMP    = 1

	maxLogStrides = 16 // MLX5_MAX_SINGLE_WQE_LOG_NUM_STRIDES (mlx5_ib.h)
)

func (d *Device) createRQ(c *call) error {
	x := prm.Record(c.in, prm.WQCtx, prm.WQCtxSize)
	wq := prm.Record(x, prm.WQInCtx, prm.WQSize)
	if state := prm.RQCState.Get(x); state != prm.WQStateRST {
		return refuse(prm.BadParam, "RQ state", "%d", state)
	}
	s := engine.RQSpec{CQN: prm.RQCCQN.U32(x), UserIndex: prm.RQCUserIndex.U32(x), CounterSet: uint8(prm.RQCCounterSet.Get(x)), StripVLAN: !prm.RQCKeepVLAN.Bool(x)}
	switch kind := prm.RQCMemType.Get(x); kind {
	case rqInline:
		t := prm.WQType.Get(wq)
		if t != prm.WQLinkedList && t != prm.WQCyclic && t != prm.WQStriding || prm.WQTwoBytes.Bool(wq) {
			return refuse(prm.BadParam, "RQ wq_type", "%d: linked striding queues and two_byte_shift_en are not modelled", t)
		}
		if t == prm.WQStriding {
			s.LogStrideBytes = uint(prm.WQLogBytes.Get(wq)) + prm.StrideMinLogBytes
			if s.LogStrides = uint(prm.WQLogNum.Get(wq)) + prm.StrideMinLogNum; s.LogStrides >= prm.StrideMinLogNum+10 {
				s.LogStrides -= prm.StrideMinLogNum + prm.StrideFewLogNum
			}
			if s.LogStrides > maxLogStrides {
				return refuse(prm.BadParam, "RQ log_wqe_num_of_strides", "2^%d", s.LogStrides)
			}
		}
		buf, err := c.wqBuffer("RQ", wq)
		if err != nil {
			return err
		}
		s.PD, s.DBR, s.Buf, s.Linked = prm.WQPD.U32(wq), prm.WQDBR.Get(wq), buf, t == prm.WQLinkedList
		s.Log, s.LogStride = uint(prm.WQLogSize.Get(wq)), uint(prm.WQLogStride.Get(wq))
	case rqRMP:
		s.RMPN = prm.RQCRMPN.U32(x)
	default:
		return refuse(prm.BadParam, "RQ mem_rq_type", "%d", kind)
	}
	n, err := d.eng.CreateRQ(s)
	if err != nil {
		return err
	}
	c.answer(n)
	return nil
}

// Bits of MODIFY_RQ's mask: MLX5_MODIFY_RQ_IN_MODIFY_BITMASK_* (mlx5_ifc.h).
const (
	rqModifyVSD     = 1 << 1
	rqModifyFCS     = 1 << 2
	rqModifyCounter = 1 << 3
)

func (d *Device) modifyRQ(c *call) error {
	n := c.number()
	from, to := engine.WQState(prm.ModifyState.Get(c.in)), engine.WQState(prm.RQCState.Get(c.in[prm.WQCtx:]))
	mask := prm.ModifyMask.Get(c.in)
	if mask&^(rqModifyVSD|rqModifyFCS|rqModifyCounter) != 0 {
		return refuse(prm.BadParam, "RQ modify_bitmask", "%#x is not modelled", mask)
	}
	var change engine.RQChange
	x := c.in[prm.WQCtx:]
	if mask&rqModifyCounter != 0 {
		change.CounterSet = new(uint8(prm.RQCCounterSet.Get(x)))
	}
	if mask&rqModifyVSD != 0 {
		change.StripVLAN = new(!prm.RQCKeepVLAN.Bool(x))
	}
	return d.eng.ModifyRQ(n, from, to, change)
}

func (d *Device) destroyRQ(c *call) error {
	n := c.number()
	if user := d.eth.userOfRQ(n); user != "" {
		return refuse(prm.ResBusy, "RQ", "%#x is in use by %s", n, user)
	}
	return d.eng.DestroyRQ(n)
}

func (d *Device) queryRQ(c *call) error {
	s, err := d.eng.QueryRQ(c.number())
	if err != nil {
		return err
	}
	x := prm.Record(c.out, prm.WQCtx, prm.WQCtxSize)
	wq := prm.Record(x, prm.WQInCtx, prm.WQSize)
	prm.RQCState.Put(x, uint64(s.State))
	prm.RQCCQN.Put(x, uint64(s.CQN))
	prm.RQCUserIndex.Put(x, uint64(s.UserIndex))
	prm.RQCCounterSet.Put(x, uint64(s.CounterSet))
	prm.RQCKeepVLAN.PutBool(x, !s.StripVLAN)
	if !s.Linked {
		prm.WQType.Put(wq, prm.WQCyclic)
	}
	if s.LogStrides != 0 {
		prm.WQType.Put(wq, prm.WQStriding)
		prm.WQLogBytes.Put(wq, uint64(s.LogStrideBytes-prm.StrideMinLogBytes))
		prm.WQLogNum.Put(wq, uint64(s.LogStrides-prm.StrideMinLogNum)&0xf)
		if s.LogStrides < prm.StrideMinLogNum {
			prm.WQLogNum.Put(wq, uint64(s.LogStrides+prm.StrideFewLogNum))
		}
	}
	prm.WQPD.Put(wq, uint64(s.PD))
	prm.WQDBR.Put(wq, s.DBR)
	prm.WQLogStride.Put(wq, uint64(s.LogStride))
	prm.WQLogSize.Put(wq, uint64(s.Log))
	return nil
}

// domainUser says what uses a transport domain, or nothing.
func (s *steering) domainUser(n uint32) string {
	for tisn, t := range s.tis {
		if t.domain == n {
			return fmt.Sprintf("TIS %#x", tisn)
		}
	}
	for tirn, t := range s.tirs {
		if t.domain == n {
			return fmt.Sprintf("TIR %#x", tirn)
		}
	}
	return ""
}

// userOfRQ says what leads to an RQ, or nothing.
func (s *steering) userOfRQ(n uint32) string {
	for tirn, t := range s.tirs {
		if !t.indirect && t.target == n {
			return fmt.Sprintf("TIR %#x", tirn)
		}
	}
	for rqtn, rqs := range s.rqts {
		for _, rqn := range rqs {
			if rqn == n {
				return fmt.Sprintf("RQT %#x", rqtn)
			}
		}
	}
	return ""
}
