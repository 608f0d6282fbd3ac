package hca

import (
	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/prm"
)

// quantum is how many parts a page has in the units of page_offset, whatever its size.
const quantum = 64

// buffer reads the list of pages of a queue of so many bytes. The list must be all there.
func (c *call) buffer(what string, logPage, pageOff, size uint64) (engine.Buffer, error) {
	b := engine.Buffer{PageSize: 4096 << logPage}
	if logPage > 31-12 {
		return b, refuse(prm.BadParam, what+" page size", "2 to the power of %d", logPage+12)
	}
	b.Offset = pageOff * (b.PageSize / quantum)
	if size == 0 {
		return b, nil
	}
	n := (b.Offset + size + b.PageSize - 1) / b.PageSize
	list := c.in[prm.PageList:]
	if uint64(len(list)) < 8*n {
		return b, refuse(prm.BadInLen, what+" page list", "%d pages are needed for %d bytes, the list has %d", n, size, len(list)/8)
	}
	for i := range n {
		pa := be.Uint64(list[8*i:])
		if pa%4096 != 0 {
			return b, refuse(prm.BadParam, what+" page list", "page %d at %#x is not aligned", i, pa)
		}
		b.Pages = append(b.Pages, pa)
	}
	return b, nil
}

// uar checks that a UAR page was given out.
func (d *Device) uar(what string, page uint32) error {
	if !d.uars[page] {
		return refuse(prm.BadResource, what+" uar_page", "UAR %#x was not allocated", page)
	}
	return nil
}

// createEQ makes an event queue. The one that takes command completions is known by its mask.
func (d *Device) createEQ(c *call) error {
	x := c.in[prm.EQCtx:]
	s := engine.EQSpec{Log: uint(prm.EQCLogSize.Get(x)), Vector: prm.EQCIntr.Int(x), UAR: prm.EQCUAR.U32(x), Events: be.Uint64(c.in[prm.EQBitmask:])}
	if s.Vector >= Vectors {
		return refuse(prm.BadIndex, "EQ intr", "vector %d of %d", s.Vector, Vectors)
	}
	if err := d.uar("EQ", s.UAR); err != nil {
		return err
	}
	var err error
	if s.Buf, err = c.buffer("EQ", prm.EQCLogPage.Get(x), prm.EQCPageOff.Get(x), 64<<s.Log); err != nil {
		return err
	}
	n, err := d.eng.CreateEQ(s)
	if err != nil {
		return err
	}
	if prm.InUID.U32(c.in) == sharedUID {
		d.users.eqs[n] = true
	}
	if s.Events>>prm.EventCmd&1 == 1 {
		d.cmdEQ = n
	}
	prm.EQNumber.Put(c.out, uint64(n))
	return nil
}

func (d *Device) destroyEQ(c *call) error {
	n := prm.EQNumber.U32(c.in)
	if err := d.eng.DestroyEQ(n); err != nil {
		return err
	}
	if n == d.cmdEQ {
		d.cmdEQ = 0
	}
	delete(d.users.eqs, n)
	return nil
}

func (d *Device) queryEQ(c *call) error {
	s, producer, consumer, armed, err := d.eng.QueryEQ(prm.EQNumber.U32(c.in))
	if err != nil {
		return err
	}
	x := c.out[prm.EQCtx:]
	state := uint64(prm.EQStateFired)
	if armed {
		state = prm.EQStateArmed
	}
	prm.EQCState.Put(x, state)
	prm.EQCLogSize.Put(x, uint64(s.Log))
	prm.EQCUAR.Put(x, uint64(s.UAR))
	prm.EQCIntr.Put(x, uint64(s.Vector))
	prm.EQCConsumer.Put(x, uint64(consumer))
	prm.EQCProducer.Put(x, uint64(producer))
	be.PutUint64(c.out[prm.EQBitmask:], s.Events)
	return nil
}

// entrySizes are the sizes of CQEs by cqe_sz. With padding (2) there is none.
var entrySizes = []int{64, 128}

// cqSpec reads what CREATE_CQ and a resize have in common.
func (c *call) cqSpec(x []byte) (engine.CQSpec, error) {
	s := engine.CQSpec{Log: uint(prm.CQCLogSize.Get(x))}
	size := prm.CQCCQESize.Int(x)
	if size >= len(entrySizes) {
		return s, refuse(prm.BadParam, "CQ cqe_sz", "%d is not modelled", size)
	}
	s.EntrySize = entrySizes[size]
	var err error
	s.Buf, err = c.buffer("CQ", prm.CQCLogPage.Get(x), prm.CQCPageOff.Get(x), uint64(s.EntrySize)<<s.Log)
	return s, err
}

func (d *Device) createCQ(c *call) error {
	x := prm.Record(c.in, prm.CQCtx, prm.CQCSize)
	s, err := c.cqSpec(x)
	if err != nil {
		return err
	}
	if prm.CQCComp.Bool(x) {
		s.Mini = engine.MiniFormat(prm.CQCMini.Get(x) + 1)
	}
	s.EQN, s.UAR, s.DBR = prm.CQCEQN.U32(x), prm.CQCUAR.U32(x), prm.CQCDBR.Get(x)
	s.IgnoreOverrun = prm.CQCOI.Bool(x)
	s.ModCount, s.ModPeriod = uint16(prm.CQCMaxCount.Get(x)), uint16(prm.CQCPeriod.Get(x))
	if err := d.uar("CQ", s.UAR); err != nil {
		return err
	}
	if err := d.users.checkEQ(c, s.EQN); err != nil {
		return err
	}
	n, err := d.eng.CreateCQ(s)
	if err != nil {
		return err
	}
	c.answer(n)
	return nil
}

func (d *Device) destroyCQ(c *call) error { return d.eng.DestroyCQ(c.number()) }

// CQ states and statuses: cqc_bits (mlx5_ifc.h).
const (
	cqOverflow = 0x9
	cqArmed    = 0x9
	cqFired    = 0xa
)

func (d *Device) queryCQ(c *call) error {
	s, err := d.eng.QueryCQ(c.number())
	if err != nil {
		return err
	}
	x := prm.Record(c.out, prm.CQCtx, prm.CQCSize)
	if s.Failed {
		prm.CQCStatus.Put(x, cqOverflow)
	}
	state := uint64(cqFired)
	if s.Armed {
		state = cqArmed
	}
	prm.CQCState.Put(x, state)
	prm.CQCCQESize.Put(x, uint64(s.EntrySize/128))
	prm.CQCOI.PutBool(x, s.IgnoreOverrun)
	if s.Mini != 0 {
		prm.CQCComp.Put(x, 1)
		prm.CQCMini.Put(x, uint64(s.Mini-1))
	}
	prm.CQCLogSize.Put(x, uint64(s.Log))
	prm.CQCUAR.Put(x, uint64(s.UAR))
	prm.CQCPeriod.Put(x, uint64(s.ModPeriod))
	prm.CQCMaxCount.Put(x, uint64(s.ModCount))
	prm.CQCEQN.Put(x, uint64(s.EQN))
	prm.CQCProducer.Put(x, uint64(s.Producer))
	prm.CQCDBR.Put(x, s.DBR)
	return nil
}

func (d *Device) modifyCQ(c *call) error {
	n := c.number()
	x := prm.Record(c.in, prm.CQCtx, prm.CQCSize)
	switch c.opmod {
	case prm.ModifyCQOpResize:
		s, err := c.cqSpec(x)
		if err != nil {
			return err
		}
		return d.eng.ResizeCQ(n, s)
	case prm.ModifyCQOpModify:
		sel := prm.ModifyCQSelect.Get(c.in)
		if other := sel &^ (prm.ModifyCQPeriod | prm.ModifyCQCount); other != 0 {
			return refuse(prm.BadParam, "CQ modify_field_select", "%#x is not modelled", other)
		}
		s, err := d.eng.QueryCQ(n)
		if err != nil {
			return err
		}
		if sel&prm.ModifyCQPeriod != 0 {
			s.ModPeriod = uint16(prm.CQCPeriod.Get(x))
		}
		if sel&prm.ModifyCQCount != 0 {
			s.ModCount = uint16(prm.CQCMaxCount.Get(x))
		}
		return d.eng.ModerateCQ(n, s.ModCount, s.ModPeriod)
	}
	return refuse(prm.BadOp, "modifier", "%d of MODIFY_CQ", c.opmod)
}
