package hca

import (
	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/prm"
)

// wqBuffer reads the buffer of a queue that has a wq context.
func (c *call) wqBuffer(what string, wq []byte) (engine.Buffer, error) {
	if prm.WQSignature.Bool(wq) {
		return engine.Buffer{}, refuse(prm.BadParam, what+" wq_signature", "is not modelled")
	}
	return c.buffer(what, prm.WQLogPage.Get(wq), prm.WQPageOff.Get(wq), 1<<(prm.WQLogSize.Get(wq)+prm.WQLogStride.Get(wq)))
}

// createRMP makes what mlx5_ib uses as a basic SRQ.
func (d *Device) createRMP(c *call) error {
	x := prm.Record(c.in, prm.WQCtx, prm.WQCtxSize)
	wq := prm.Record(x, prm.WQInCtx, prm.WQSize)
	if state := prm.RMPCState.Get(x); state != prm.WQStateRDY {
		return refuse(prm.BadParam, "RMP state", "%d", state)
	}
	if kind := prm.WQType.Get(wq); kind != prm.WQLinkedList {
		return refuse(prm.BadParam, "RMP wq_type", "%d: an RMP is a linked list", kind)
	}
	buf, err := c.wqBuffer("RMP", wq)
	if err != nil {
		return err
	}
	n, err := d.eng.CreateSRQ(engine.SRQSpec{
		PD: prm.WQPD.U32(wq), DBR: prm.WQDBR.Get(wq), Buf: buf, Log: uint(prm.WQLogSize.Get(wq)), LogStride: uint(prm.WQLogStride.Get(wq)),
		Limit: uint16(prm.WQLWM.Get(wq)),
	})
	if err != nil {
		return err
	}
	c.answer(n)
	return nil
}

func (d *Device) createXRCSRQ(c *call) error {
	x := prm.Record(c.in, prm.SRQCtx, prm.SRQCSize)
	s := engine.SRQSpec{
		XRC: true, PD: prm.SRQCPD.U32(x), XRCD: prm.SRQCXRCD.U32(x), CQN: prm.SRQCCQN.U32(x), UserIndex: prm.SRQCUserIndex.U32(x),
		DBR: prm.SRQCDBR.Get(x) &^ 3, Log: uint(prm.SRQCLogSize.Get(x)), LogStride: uint(prm.SRQCLogStride.Get(x)) + 4, Limit: uint16(prm.SRQCLWM.Get(x)),
	}
	if prm.SRQCSignature.Bool(x) {
		return refuse(prm.BadParam, "XRC SRQ wq_signature", "is not modelled")
	}
	var err error
	if s.Buf, err = c.buffer("XRC SRQ", prm.SRQCLogPage.Get(x), prm.SRQCPageOff.Get(x), 1<<(s.Log+s.LogStride)); err != nil {
		return err
	}
	n, err := d.eng.CreateSRQ(s)
	if err != nil {
		return err
	}
	c.answer(n)
	return nil
}

// srq checks that a number is of the right kind: an RMP or an XRC SRQ.
func (d *Device) srq(c *call, xrc bool) (engine.SRQSpec, error) {
	s, err := d.eng.QuerySRQ(c.number())
	if err == nil && s.XRC != xrc {
		err = refuse(prm.BadResource, "SRQ number", "%#x is of the other kind", c.number())
	}
	return s, err
}

func (d *Device) destroySRQ(c *call) error {
	if _, err := d.srq(c, c.op == prm.DestroyXRCSRQ); err != nil {
		return err
	}
	return d.eng.DestroySRQ(c.number())
}

func (d *Device) queryRMP(c *call) error {
	s, err := d.srq(c, false)
	if err != nil {
		return err
	}
	x := prm.Record(c.out, prm.WQCtx, prm.WQCtxSize)
	wq := prm.Record(x, prm.WQInCtx, prm.WQSize)
	state := uint64(prm.WQStateRDY)
	if s.Failed {
		state = prm.WQStateERR
	}
	prm.RMPCState.Put(x, state)
	prm.WQLWM.Put(wq, uint64(s.Limit))
	prm.WQPD.Put(wq, uint64(s.PD))
	prm.WQDBR.Put(wq, s.DBR)
	prm.WQLogStride.Put(wq, uint64(s.LogStride))
	prm.WQLogSize.Put(wq, uint64(s.Log))
	return nil
}

func (d *Device) queryXRCSRQ(c *call) error {
	s, err := d.srq(c, true)
	if err != nil {
		return err
	}
	x := prm.Record(c.out, prm.SRQCtx, prm.SRQCSize)
	if s.Failed {
		prm.SRQCState.Put(x, 1)
	}
	prm.SRQCLogSize.Put(x, uint64(s.Log))
	prm.SRQCLogStride.Put(x, uint64(s.LogStride-4))
	prm.SRQCXRCD.Put(x, uint64(s.XRCD))
	prm.SRQCCQN.Put(x, uint64(s.CQN))
	prm.SRQCUserIndex.Put(x, uint64(s.UserIndex))
	prm.SRQCPD.Put(x, uint64(s.PD))
	prm.SRQCLWM.Put(x, uint64(s.Limit))
	prm.SRQCDBR.Put(x, s.DBR)
	return nil
}

func (d *Device) armXRCSRQ(c *call) error {
	if c.opmod != 1 {
		return refuse(prm.BadOp, "modifier", "%d of ARM_XRC_SRQ", c.opmod)
	}
	if _, err := d.srq(c, true); err != nil {
		return err
	}
	return d.eng.ArmSRQ(c.number(), uint16(prm.ArmLWM.Get(c.in)))
}

func (d *Device) modifyRMP(c *call) error {
	if _, err := d.srq(c, false); err != nil {
		return err
	}
	x := prm.Record(c.in, prm.WQCtx, prm.WQCtxSize)
	if from, to := prm.ModifyState.Get(c.in), prm.RMPCState.Get(x); from != prm.WQStateRDY || to != prm.WQStateRDY {
		return refuse(prm.BadResState, "RMP state", "from %d to %d is not modelled", from, to)
	}
	if !prm.ModifyMaskLWM.Bool(c.in) {
		return refuse(prm.BadParam, "RMP bitmask", "the limit is all that can be changed")
	}
	return d.eng.ArmSRQ(c.number(), uint16(prm.WQLWM.Get(prm.Record(x, prm.WQInCtx, prm.WQSize))))
}
