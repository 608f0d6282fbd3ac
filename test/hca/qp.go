package hca

import (
	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/prm"
)

// Values of cs_req and cs_res, which say how much of a message goes into the CQE:
// MLX5_{REQ,RES}_SCAT_DATA{32,64}_CQE (mlx5/device.h).
var (
	scatterReq = map[uint64]int{0: 0, 0x11: 32, 0x22: 64}
	scatterRes = map[uint64]int{0: 0, 0x1: 32, 0x2: 64}
)

// qpSpec reads a QP context as CREATE_QP has it.
func (c *call) qpSpec(x []byte) (engine.QPSpec, error) {
	s := engine.QPSpec{
		Type: engine.QPType(prm.QPCType.Get(x)), PD: prm.QPCPD.U32(x), SendCQ: prm.QPCCQNSnd.U32(x), RecvCQ: prm.QPCCQNRcv.U32(x),
		UAR: prm.QPCUAR.U32(x), UserIndex: prm.QPCUserIndex.U32(x), DBR: prm.QPCDBR.Get(x), NoSQ: prm.QPCNoSQ.Bool(x),
		LogSQ: uint(prm.QPCLogSQSize.Get(x)), RQ: engine.RQType(prm.QPCRQType.Get(x)), LogRQ: uint(prm.QPCLogRQSize.Get(x)),
		LogRQStride: uint(prm.QPCLogRQStride.Get(x)) + 4, SRQN: prm.QPCSRQN.U32(x), XRCD: prm.QPCXRCD.U32(x),
		DethSQPN: prm.QPCDETHSQPN.U32(x), BlockLoopback: prm.QPCBlockLBMC.Bool(x),
		LogStreams: uint(prm.QPCLogDCIStreams.Get(x)), LogFailed: uint(prm.QPCLogDCIFailed.Get(x)),
	}
	if prm.QPCWQSignature.Bool(x) {
		return s, refuse(prm.BadParam, "QP wq_signature", "is not modelled")
	}
	var ok bool
	if s.ScatterReq, ok = scatterReq[prm.QPCScatterReq.Get(x)]; !ok {
		return s, refuse(prm.BadParam, "QP cs_req", "%#x", prm.QPCScatterReq.Get(x))
	}
	if s.ScatterRes, ok = scatterRes[prm.QPCScatterRes.Get(x)]; !ok {
		return s, refuse(prm.BadParam, "QP cs_res", "%#x", prm.QPCScatterRes.Get(x))
	}
	size := uint64(0)
	if s.RQ == engine.RQOwn {
		size += 1 << (s.LogRQ + s.LogRQStride)
	}
	if !s.NoSQ {
		size += 64 << s.LogSQ
	}
	var err error
	s.Buf, err = c.buffer("QP", prm.QPCLogPage.Get(x), prm.QPCPageOff.Get(x), size)
	return s, err
}

func (d *Device) createQP(c *call) error {
	s, err := c.qpSpec(prm.Record(c.in, prm.QPCtx, prm.QPCSize))
	if err != nil {
		return err
	}
	// A queue that sends nothing has no doorbell.
	if !s.NoSQ {
		if err := d.uar("QP", s.UAR); err != nil {
			return err
		}
	}
	if s.Type == engine.DCI && d.cfg.Personality.NoDC {
		return refuse(prm.BadParam, "QP st", "the card has no DC")
	}
	ece, err := d.enhancements(c)
	if err != nil {
		return err
	}
	n, err := d.eng.CreateQP(s)
	if err != nil {
		return err
	}
	c.answer(n)
	prm.QPECEOut.Put(c.out, ece)
	return nil
}

// Options of ECE, enhanced connection establishment. eceAsk alone asks a new QP for all that there
// are.
const (
	eceAsk     = 0x10000000
	eceOptions = eceAsk | 0xf
)

// enhancements gives the answer to the ECE options that a command about a QP has: those of them
// that the card has too.
func (d *Device) enhancements(c *call) (uint64, error) {
	return d.options(prm.QPECEIn.Get(c.in), c.op == prm.CreateQP)
}

// options gives the answer to ECE options, of a new QP or DCT or of one that exists.
func (d *Device) options(want uint64, created bool) (uint64, error) {
	switch {
	case !d.cfg.Personality.ECE && want != 0:
		return 0, refuse(prm.BadParam, "QP ece", "%#x, and the card has no ECE", want)
	case want == eceAsk && created:
		return eceOptions, nil
	}
	return want & eceOptions, nil
}

func (d *Device) destroyQP(c *call) error { return d.eng.DestroyQP(c.number()) }

// transitions are the commands that change a QP's state.
var transitions = map[prm.Op]engine.Transition{
	prm.RST2INITQP: engine.Rst2Init, prm.INIT2INITQP: engine.Init2Init, prm.INIT2RTRQP: engine.Init2RTR, prm.RTR2RTSQP: engine.RTR2RTS,
	prm.RTS2RTSQP: engine.RTS2RTS, prm.SQERR2RTSQP: engine.SQErr2RTS, prm.SQDRTSQP: engine.SQD2RTS, prm.ToERRQP: engine.To2Err, prm.ToRSTQP: engine.To2Rst,
}

func (d *Device) modifyQP(c *call) error {
	t := transitions[c.op]
	var opt engine.OptParam // the second mask begins at bit 32
	var a engine.QPAttr
	if t != engine.To2Err && t != engine.To2Rst {
		if len(c.in) < prm.QPCtx+prm.QPCSize {
			return refuse(prm.BadInLen, "input length", "%s has at least %d bytes, not %d", c.op, prm.QPCtx+prm.QPCSize, len(c.in))
		}
		var err error
		if opt, err = optParams(c.in); err != nil {
			return err
		}
		if t == engine.RTS2RTS && opt&engine.OptCounterSet != 0 && d.cfg.Personality.NoQPCounters {
			return refuse(prm.BadParam, "opt_param_mask", "the card can't change the counter set of a QP in RTS")
		}
		x := prm.Record(c.in, prm.QPCtx, prm.QPCSize)
		if prm.QPCOrdering1.Bool(x) != prm.QPCForceOrdering.Bool(x) {
			return refuse(prm.BadParam, "dp_ordering_1", "%t, and dp_ordering_force is not", prm.QPCOrdering1.Bool(x))
		}
		a = qpAttr(x)
		if opt&engine.OptStream != 0 {
			a.Stream = uint16(prm.QPExtStream.Get(c.in[prm.QPOptParam2End:]))
		}
		if err := d.entropy(t, opt, &a); err != nil {
			return err
		}
		ece, err := d.enhancements(c)
		if err != nil {
			return err
		}
		prm.QPECEOut.Put(c.out, ece)
	}
	return d.eng.ModifyQP(c.number(), t, opt, a)
}

// optParams reads the masks of the optional parameters of a transition. The second, behind the context, may
// name what is in the extended context.
func optParams(in []byte) (engine.OptParam, error) {
	opt := engine.OptParam(prm.QPOptParam.U32(in))
	ext := prm.QPHasExt.Bool(in)
	if least := prm.QPOptParam2End + prm.QPExtSize; ext && len(in) < least {
		return 0, refuse(prm.BadInLen, "input length", "with qpc_ext at least %d bytes, not %d", least, len(in))
	}
	if len(in) < prm.QPOptParam2End {
		return opt, nil
	}
	second := prm.QPOptParam2.Get(in)
	if second>>32 != 0 {
		return 0, refuse(prm.BadParam, "opt_param_mask_95_32", "%#x", second)
	}
	opt |= engine.OptParam(second) << 32
	if opt&engine.OptStream != 0 && !ext {
		return 0, refuse(prm.BadParam, "qpc_ext", "0, and opt_param_mask_95_32 names dci_stream_channel_id")
	}
	return opt, nil
}

// qpAttr reads what the transitions take from a QP context.
func qpAttr(x []byte) engine.QPAttr {
	return engine.QPAttr{
		Primary: path(prm.Record(x, prm.QPCPrimary, prm.ADSSize)), Alternate: path(prm.Record(x, prm.QPCSecondary, prm.ADSSize)),
		PMState: engine.PMState(prm.QPCPMState.Get(x)), MTU: uint8(prm.QPCMTU.Get(x)), LogMsgMax: uint8(prm.QPCLogMsgMax.Get(x)),
		RemoteQPN: prm.QPCRemoteQPN.U32(x), SendPSN: prm.QPCNextSendPSN.U32(x), RecvPSN: prm.QPCNextRcvPSN.U32(x),
		LogSRAMax: uint8(prm.QPCLogSRAMax.Get(x)), LogRRAMax: uint8(prm.QPCLogRRAMax.Get(x)),
		RetryCount: uint8(prm.QPCRetryCount.Get(x)), RNRRetry: uint8(prm.QPCRNRRetry.Get(x)), MinRNRNAK: uint8(prm.QPCMinRNRNAK.Get(x)),
		RRE: prm.QPCRRE.Bool(x), RWE: prm.QPCRWE.Bool(x), RAE: prm.QPCRAE.Bool(x), QKey: prm.QPCQKey.U32(x),
		SRQN: prm.QPCSRQN.U32(x), RecvCQ: prm.QPCCQNRcv.U32(x), CounterSet: uint8(prm.QPCCounterSet.Get(x)), AtomicMode: uint8(prm.QPCAtomicMode.Get(x)),
		LAGPort:    uint8(prm.QPCLAGPort.Get(x)),
		OutOfOrder: prm.QPCOrdering1.Bool(x),
	}
}

// path reads an address path.
func path(x []byte) engine.Path {
	p := engine.Path{
		Port: uint8(prm.ADSPort.Get(x)), PKeyIndex: uint16(prm.ADSPKeyIndex.Get(x)), GRH: prm.ADSGRH.Bool(x), PathBits: uint8(prm.ADSMLID.Get(x)),
		RLID: uint16(prm.ADSRLID.Get(x)), AckTimeout: uint8(prm.ADSAckTimeout.Get(x)), SGIDIndex: uint8(prm.ADSSrcAddr.Get(x)),
		StatRate: uint8(prm.ADSStatRate.Get(x)), HopLimit: uint8(prm.ADSHopLimit.Get(x)), TClass: uint8(prm.ADSTClass.Get(x)),
		FlowLabel: prm.ADSFlowLabel.U32(x), UDPSport: uint16(prm.ADSUDPSport.Get(x)), SL: uint8(prm.ADSSL.Get(x)),
	}
	copy(p.RGID[:], prm.Record(x, prm.ADSRGID, 16))
	be.PutUint16(p.RMAC[:], uint16(prm.ADSRMACHigh.Get(x)))
	be.PutUint32(p.RMAC[2:], prm.ADSRMACLow.U32(x))
	if prio := prm.ADSEthPrio.Get(x); prio != 0 {
		p.SL = uint8(prio)
	}
	return p
}

func putPath(x []byte, p engine.Path) {
	prm.ADSPort.Put(x, uint64(p.Port))
	prm.ADSPKeyIndex.Put(x, uint64(p.PKeyIndex))
	prm.ADSGRH.PutBool(x, p.GRH)
	prm.ADSMLID.Put(x, uint64(p.PathBits))
	prm.ADSRLID.Put(x, uint64(p.RLID))
	prm.ADSAckTimeout.Put(x, uint64(p.AckTimeout))
	prm.ADSSrcAddr.Put(x, uint64(p.SGIDIndex))
	prm.ADSStatRate.Put(x, uint64(p.StatRate))
	prm.ADSHopLimit.Put(x, uint64(p.HopLimit))
	prm.ADSTClass.Put(x, uint64(p.TClass))
	prm.ADSFlowLabel.Put(x, uint64(p.FlowLabel))
	prm.ADSUDPSport.Put(x, uint64(p.UDPSport))
	prm.ADSSL.Put(x, uint64(p.SL))
	copy(prm.Record(x, prm.ADSRGID, 16), p.RGID[:])
	prm.ADSRMACHigh.Put(x, uint64(be.Uint16(p.RMAC[:])))
	prm.ADSRMACLow.Put(x, uint64(be.Uint32(p.RMAC[2:])))
}

func (d *Device) queryQP(c *call) error {
	info, err := d.eng.QueryQP(c.number())
	if err != nil {
		return err
	}
	x := prm.Record(c.out, prm.QPCtx, prm.QPCSize)
	s, a := info.Spec, info.Attr
	state := uint64(info.State)
	if info.Draining {
		state = prm.QPStateSQDR
	}
	prm.QPCState.Put(x, state)
	prm.QPCLAGPort.Put(x, uint64(a.LAGPort))
	prm.QPCType.Put(x, uint64(s.Type))
	prm.QPCPMState.Put(x, uint64(a.PMState))
	prm.QPCBlockLBMC.PutBool(x, s.BlockLoopback)
	prm.QPCPD.Put(x, uint64(s.PD))
	prm.QPCMTU.Put(x, uint64(a.MTU))
	prm.QPCLogMsgMax.Put(x, uint64(a.LogMsgMax))
	prm.QPCLogRQSize.Put(x, uint64(s.LogRQ))
	prm.QPCLogRQStride.Put(x, uint64(s.LogRQStride-4))
	prm.QPCNoSQ.PutBool(x, s.NoSQ)
	prm.QPCLogSQSize.Put(x, uint64(s.LogSQ))
	prm.QPCCounterSet.Put(x, uint64(a.CounterSet))
	prm.QPCUAR.Put(x, uint64(s.UAR))
	prm.QPCUserIndex.Put(x, uint64(s.UserIndex))
	prm.QPCRemoteQPN.Put(x, uint64(a.RemoteQPN))
	putPath(prm.Record(x, prm.QPCPrimary, prm.ADSSize), a.Primary)
	putPath(prm.Record(x, prm.QPCSecondary, prm.ADSSize), a.Alternate)
	prm.QPCLogSRAMax.Put(x, uint64(a.LogSRAMax))
	prm.QPCRetryCount.Put(x, uint64(a.RetryCount))
	prm.QPCRNRRetry.Put(x, uint64(a.RNRRetry))
	prm.QPCNextSendPSN.Put(x, uint64(a.SendPSN))
	prm.QPCCQNSnd.Put(x, uint64(s.SendCQ))
	prm.QPCDETHSQPN.Put(x, uint64(s.DethSQPN))
	prm.QPCLogDCIStreams.Put(x, uint64(s.LogStreams))
	prm.QPCLogDCIFailed.Put(x, uint64(s.LogFailed))
	prm.QPCLastAckedPSN.Put(x, uint64(a.LastAckPSN))
	prm.QPCLogRRAMax.Put(x, uint64(a.LogRRAMax))
	prm.QPCAtomicMode.Put(x, uint64(a.AtomicMode))
	prm.QPCRRE.PutBool(x, a.RRE)
	prm.QPCRWE.PutBool(x, a.RWE)
	prm.QPCRAE.PutBool(x, a.RAE)
	prm.QPCMinRNRNAK.Put(x, uint64(a.MinRNRNAK))
	prm.QPCNextRcvPSN.Put(x, uint64(a.RecvPSN))
	prm.QPCXRCD.Put(x, uint64(s.XRCD))
	prm.QPCCQNRcv.Put(x, uint64(s.RecvCQ))
	prm.QPCDBR.Put(x, s.DBR)
	prm.QPCQKey.Put(x, uint64(a.QKey))
	prm.QPCRQType.Put(x, uint64(s.RQ))
	prm.QPCSRQN.Put(x, uint64(s.SRQN))
	prm.QPCHWSQCounter.Put(x, uint64(a.HWSQCounter))
	prm.QPCHWRQCounter.Put(x, uint64(a.HWRQCounter))
	return nil
}

func (c *call) group() [16]byte { return [16]byte(c.in[prm.MCGGID:]) }

func (d *Device) attachMCG(c *call) error { return d.eng.AttachMcast(c.group(), c.number()) }
func (d *Device) detachMCG(c *call) error { return d.eng.DetachMcast(c.group(), c.number()) }
