package hca

import (
	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/prm"
)

// createDCT makes a target of DC.
func (d *Device) createDCT(c *call) error {
	x := prm.Record(c.in, prm.DCTCtx, prm.DCTCSize)
	s := engine.DCTSpec{
		PD: prm.DCTCPD.U32(x), CQN: prm.DCTCCQN.U32(x), SRQN: prm.DCTCSRQN.U32(x), UserIndex: prm.DCTCUserIndex.U32(x), Key: prm.DCTCKey.Get(x),
		RRE: prm.DCTCRRE.Bool(x), RWE: prm.DCTCRWE.Bool(x), RAE: prm.DCTCRAE.Bool(x), AtomicMode: uint8(prm.DCTCAtomicMode.Get(x)),
		CounterSet: uint8(prm.DCTCCounterSet.Get(x)), MinRNRNAK: uint8(prm.DCTCMinRNRNAK.Get(x)), MTU: uint8(prm.DCTCMTU.Get(x)),
		Port: uint8(prm.DCTCPort.Get(x)), PKeyIndex: uint16(prm.DCTCPKeyIndex.Get(x)), GIDIndex: uint8(prm.DCTCGIDIndex.Get(x)),
		HopLimit: uint8(prm.DCTCHopLimit.Get(x)), TClass: uint8(prm.DCTCTClass.Get(x)), FlowLabel: prm.DCTCFlowLabel.U32(x),
		EthPrio: uint8(prm.DCTCEthPrio.Get(x)),
	}
	var ok bool
	if s.ScatterRes, ok = scatterRes[prm.DCTCScatterRes.Get(x)]; !ok {
		return refuse(prm.BadParam, "DCT cs_res", "%#x", prm.DCTCScatterRes.Get(x))
	}
	if d.cfg.Personality.NoDC {
		return refuse(prm.BadOp, "opcode", "the card has no DC")
	}
	if s.OutOfOrder = prm.DCTCOrdering1.Bool(x); s.OutOfOrder != prm.DCTCForceOrder.Bool(x) {
		return refuse(prm.BadParam, "DCT dp_ordering_1", "%t, and dp_ordering_force is not", s.OutOfOrder)
	}
	ece, err := d.options(prm.DCTCECE.Get(x), true)
	if err != nil {
		return err
	}
	n, err := d.eng.CreateDCT(s)
	if err != nil {
		return err
	}
	c.answer(n)
	prm.CreateDCTECEOut.Put(c.out, ece)
	return nil
}

func (d *Device) drainDCT(c *call) error   { return d.eng.DrainDCT(c.number()) }
func (d *Device) destroyDCT(c *call) error { return d.eng.DestroyDCT(c.number()) }
func (d *Device) armDCT(c *call) error     { return d.eng.ArmDCT(c.number()) }

func (d *Device) queryDCT(c *call) error {
	info, err := d.eng.QueryDCT(c.number())
	if err != nil {
		return err
	}
	x, s := prm.Record(c.out, prm.DCTCtx, prm.DCTCSize), &info.Spec
	prm.DCTCState.Put(x, uint64(info.State))
	prm.DCTCUserIndex.Put(x, uint64(s.UserIndex))
	prm.DCTCCQN.Put(x, uint64(s.CQN))
	prm.DCTCCounterSet.Put(x, uint64(s.CounterSet))
	prm.DCTCAtomicMode.Put(x, uint64(s.AtomicMode))
	prm.DCTCRRE.PutBool(x, s.RRE)
	prm.DCTCRWE.PutBool(x, s.RWE)
	prm.DCTCRAE.PutBool(x, s.RAE)
	prm.DCTCMinRNRNAK.Put(x, uint64(s.MinRNRNAK))
	prm.DCTCSRQN.Put(x, uint64(s.SRQN))
	prm.DCTCPD.Put(x, uint64(s.PD))
	prm.DCTCTClass.Put(x, uint64(s.TClass))
	prm.DCTCFlowLabel.Put(x, uint64(s.FlowLabel))
	prm.DCTCKey.Put(x, s.Key)
	prm.DCTCMTU.Put(x, uint64(s.MTU))
	prm.DCTCPort.Put(x, uint64(s.Port))
	prm.DCTCPKeyIndex.Put(x, uint64(s.PKeyIndex))
	prm.DCTCGIDIndex.Put(x, uint64(s.GIDIndex))
	prm.DCTCHopLimit.Put(x, uint64(s.HopLimit))
	prm.DCTCViolations.Put(x, uint64(info.Violations))
	prm.DCTCEthPrio.Put(x, uint64(s.EthPrio))
	prm.DCTCOrdering1.PutBool(x, s.OutOfOrder)
	prm.DCTCForceOrder.PutBool(x, s.OutOfOrder)
	return nil
}
