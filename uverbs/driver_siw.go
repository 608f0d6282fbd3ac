package uverbs

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/siw"
	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// siwDriverID is the kernel's ID of siw.
const siwDriverID = netlinkrdma.DriverID(siw.DriverID)

// siwDriver supports software iWARP. Its rings are mapped from the uverbs file, at offsets in the
// responses of the create commands. Only the kernel's connection manager connects its QPs.
type siwDriver struct{ noOptions }

func (siwDriver) kind() driverKind      { return kindSiw }
func (siwDriver) name() string          { return "siw" }
func (siwDriver) abi() (uint64, uint64) { return siw.MinABI, siw.MaxABI }

func (siwDriver) capabilities() capabilities {
	return capabilities{connectionManaged: true, inlineLimit: true, copiesMemory: true, memlockForAll: "siw of Linux 6.1"}
}

// mrUdata chooses random low bits of the key, so that a peer cannot guess it by counting.
func (siwDriver) mrUdata() udata {
	return udata{in: siw.MRReq(byte(rand.Uint32())), out: make([]byte, siw.MRRespSize)}
}

func (siwDriver) openAH(*AH, udata) error { return siwUnsupported("AH") }

// siwUnsupported returns the error for a feature that siw does not support.
func siwUnsupported(feature string) error { return &FeatureError{Feature: feature, Driver: "siw"} }

// contextUdata has room for the device ID, without which siw creates no context. siw does not describe one.
func (siwDriver) contextUdata(c contextCommand, _ bool) udata {
	if c == queryContext {
		return udata{}
	}
	return udata{out: make([]byte, siw.ContextRespSize)}
}

// siwOps are the operations of a QP. siw also registers memory by work request, but only for the
// kernel.
var siwOps = opcodeSet{WRRDMAWrite: true, WRSend: true, WRSendWithInv: true, WRRDMARead: true, WRRDMAReadWithInv: true, WRLocalInv: true}

func (siwDriver) operations(t ib.QPType) (opcodeSet, bool) { return siwOps, t == ib.RC }

// unsupportedMR: siw always uses the memory's own address for a region, although the kernel accepts
// others. It has no dma-bufs, which the kernel says.
func (siwDriver) unsupportedMR(_ *Device, r *region) string {
	switch {
	case r.access&AccessZeroBased != 0:
		return "access ZERO_BASED"
	case r.access&AccessMWBind != 0:
		return "access MW_BIND"
	case r.iova != r.start && !r.file:
		return "IOVA"
	}
	return ""
}

// The siw parts of objects.
type (
	siwQP struct {
		sq *siw.SendQueue
		rq *siw.RecvQueue // nil if there is none
		// flushed is the last completion of the send queue, if has is set: a flushed READ. Only the
		// goroutine that polls uses it.
		flushed struct {
			has bool
			id  uint64
		}
	}
	siwCQ struct {
		ring      *siw.CompQueue
		generated generatedWCs
	}
	siwSRQ struct{ rq *siw.RecvQueue }
)

func (dr siwDriver) prepareCQ(c *CQ, o *CQOptions) (udata, error) {
	return udata{out: make([]byte, siw.CQRespSize)}, dr.oneCQESize(c, o)
}

func (siwDriver) prepareQP(_ *QP, s *qpSpec) (udata, error) {
	if s.MaxInline > siw.MaxInline {
		return udata{}, argErr("CreateQP", "MaxInline", s.MaxInline, "0 to %d bytes", siw.MaxInline)
	}
	return udata{out: make([]byte, siw.QPRespSize)}, nil
}

func (siwDriver) prepareSRQ(*SRQ, *SRQOptions) (udata, error) {
	return udata{out: make([]byte, siw.SRQRespSize)}, nil
}

// freeCQ, freeQP and freeSRQ unmap the rings.
func (siwDriver) freeCQ(c *CQ) error { return mmio.RetireAll(c.region) }
func (siwDriver) freeQP(q *QP) error {
	if q.awaitFirstRecv.CompareAndSwap(true, false) {
		q.recvCQ.awaitFirstRecv.Add(-1)
	}
	return mmio.RetireAll(q.sqRegion, q.rqRegion)
}
func (siwDriver) freeSRQ(s *SRQ) error { return mmio.RetireAll(s.region) }

// mapSiw maps a ring.
func (d *Device) mapSiw(r siw.Ring) (*mmio.Region, error) {
	region, err := d.cmd.Map(r.Offset, int(r.Size))
	if err != nil {
		return nil, fmt.Errorf("uverbs: %s: map ring of %d bytes: %w", d.Name(), r.Size, err)
	}
	return region, nil
}

// mapCQ maps the completion ring. Arming it is a store.
func (siwDriver) mapCQ(c *CQ, u udata) error {
	r, err := siw.DecodeCQResp(u.out)
	if err != nil {
		return err
	}
	if c.region, err = c.dev.mapSiw(r); err != nil {
		return err
	}
	ring, err := siw.NewCompQueue(c.region.Bytes(), int(r.Num))
	if err != nil {
		return err
	}
	c.siw = &siwCQ{ring: ring}
	c.cqe.Store(uint32(ring.Cap()))
	return nil
}

// mapQP maps the send ring and the receive ring.
func (siwDriver) mapQP(q *QP, u udata) error {
	rq, sq, err := siw.DecodeQPResp(u.out, q.srq != nil)
	if err != nil {
		return err
	}
	if q.sqRegion, err = q.dev.mapSiw(sq); err != nil {
		return err
	}
	if q.siw.sq, err = siw.NewSendQueue(q.sqRegion.Bytes(), int(sq.Num), q.caps.MaxSendSGE); err != nil {
		return err
	}
	// The size of the ring is rounded up, and every element has room for inline data.
	q.caps.MaxSendWR, q.caps.MaxInline = q.siw.sq.Cap(), siw.MaxInline
	q.newDoorbell()
	q.awaitFirstRecv.Store(true)
	q.recvCQ.awaitFirstRecv.Add(1)
	if q.srq != nil {
		q.caps.MaxRecvWR, q.caps.MaxRecvSGE = 0, 0
		return nil
	}
	if q.rqRegion, err = q.dev.mapSiw(rq); err != nil {
		return err
	}
	if q.siw.rq, err = siw.NewRecvQueue(q.rqRegion.Bytes(), int(rq.Num), q.caps.MaxRecvSGE); err != nil {
		return err
	}
	q.caps.MaxRecvWR = q.siw.rq.Cap()
	return nil
}

// mapSRQ maps the ring.
func (siwDriver) mapSRQ(s *SRQ, u udata) error {
	r, err := siw.DecodeSRQResp(u.out)
	if err != nil {
		return err
	}
	if s.region, err = s.dev.mapSiw(r); err != nil {
		return err
	}
	if s.siw.rq, err = siw.NewRecvQueue(s.region.Bytes(), int(r.Num), s.maxSGE); err != nil {
		return err
	}
	s.maxWR = s.siw.rq.Cap()
	return nil
}

func (siwDriver) modifySRQ(_ *SRQ, resize bool, issue func(udata) error) error {
	if resize {
		return siwUnsupported("MODIFY_SRQ with a size")
	}
	return issue(udata{})
}

// queriedQP: siw fills in few attributes and leaves the others uninitialized. It does not report
// the state, and swaps the numbers of READs of this side and of the peer (siw_query_qp).
func (siwDriver) queriedQP(q *QP, a *QPAttr) {
	state := q.State()
	*a = QPAttr{
		State: state, CurState: state, PathMTU: a.PathMTU, Access: a.Access, Caps: a.Caps,
		MaxRdAtomic: a.MaxDestRdAtomic, MaxDestRdAtomic: a.MaxRdAtomic,
	}
}

// unsupportedModify refuses the states in which only the kernel's connection manager moves the QP.
func (siwDriver) unsupportedModify(_ *Device, to ib.QPState, mask QPAttrMask) error {
	switch {
	case mask&AttrState != 0 && to >= ib.QPRTR && to <= ib.QPSQE:
		return &FeatureError{Feature: "MODIFY_QP to " + to.String(), Driver: "siw", Err: errIWARP}
	}
	return nil
}

// errIWARP says how QPs of iWARP are connected.
var errIWARP = errors.New("on iWARP the kernel's connection manager moves a QP, see package cm and QP.SetKernelState")

// qpModified flushes what the kernel does not: when a QP enters the error state, the kernel flushes
// its rings and does not read them again.
func (siwDriver) qpModified(q *QP, _, to ib.QPState) {
	if to != ib.QPErr {
		return
	}
	q.sending.Lock()
	q.sendCQ.makeFlushed(q.qpn, WCSend, q.siw.sq.Recall())
	q.sending.Unlock()
	if q.siw.rq != nil {
		q.receiving.Lock()
		q.recvCQ.makeFlushed(q.qpn, WCRecv, q.siw.rq.Recall())
		q.receiving.Unlock()
	}
}

// siwSlotErr converts an error of a slot to the exported one.
func siwSlotErr(err error) error {
	switch err {
	case siw.ErrTooManySGE:
		return ErrTooManySGE
	case siw.ErrTooLong:
		return errTooLong
	case siw.ErrInlineTooLong:
		return ErrInlineTooLong
	case siw.ErrMixedData, siw.ErrInlineOp:
		return errInlineUse
	}
	return err
}

func (siwDriver) findRequest(q *QP, id uint64) (sentWR, bool) {
	if q.siw.sq == nil {
		return sentWR{}, false
	}
	i, ok := q.siw.sq.Find(id)
	return sentSiw(&i), ok
}

// sentSiw converts the contents of a ring element.
func sentSiw(i *siw.SendInfo) sentWR {
	s := sentWR{op: siwSent(i.Opcode), length: i.Length, raddr: i.RemoteAddr, rkey: i.RKey}
	if s.op == WRSendWithInv || s.op == WRLocalInv {
		s.invalid = &i.RKey
	}
	for _, e := range i.SGEs {
		s.sges = append(s.sges, SGE{Addr: e.Addr, Length: e.Length, LKey: e.LKey})
	}
	return s
}
