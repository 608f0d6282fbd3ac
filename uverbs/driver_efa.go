package uverbs

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/efa"
	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// efaDriverID is the kernel's ID of efa.
const efaDriverID = netlinkrdma.DriverID(efa.DriverID)

// efaDriver supports the Elastic Fabric Adapter of AWS. Its requests complete in any order, and one that
// fails leaves its QP as it is.
type efaDriver struct{ noOptions }

func (efaDriver) kind() driverKind      { return kindEfa }
func (efaDriver) name() string          { return "efa" }
func (efaDriver) abi() (uint64, uint64) { return efa.MinABI, efa.MaxABI }

// capabilities: queries are the attributes that efa_query_qp does not refuse.
func (efaDriver) capabilities() capabilities {
	return capabilities{inlineLimit: true, failsAlone: true, queries: AttrState | AttrPKeyIndex | AttrPort | AttrQKey | AttrSQPSN | AttrCap | AttrRNRRetry}
}

// operations returns those of the newest devices; see lackingOps.
func (efaDriver) operations(t ib.QPType) (opcodeSet, bool) {
	switch t {
	case ib.UD:
		return opcodes(WRSend, WRSendWithImm), true
	case ib.SRD:
		return opcodes(WRSend, WRSendWithImm, WRRDMARead, WRRDMAWrite, WRRDMAWriteWithImm), true
	}
	return opcodeSet{}, false
}

// The efa parts of objects.
type (
	efaContext struct {
		efa.Context
		efa.Device
		made atomic.Uint32 // counts queues: the generation of each differs from those before
	}
	efaCQ struct {
		depth  int
		bell   *mmio.Region
		events atomic.Uint32 // events that were delivered

		mu      mmio.Lock      // held while completions are taken, and while the queue of a QP is emptied
		ring    *efa.CompQueue // guarded by mu
		several bool           // ring has more than one ring
		last    lastEfa        // guarded by mu
		told    uint32         // guarded by mu: events that ring was told of
		bad     error          // guarded by mu: what the next Poll returns
	}
	// lastEfa is the QP of the last completion.
	lastEfa struct {
		qpn, seen uint32 // seen is qpTable.changes when it was looked up
		sq        *efa.SendQueue
		rq        *efa.RecvQueue // those of both that use the CQ
		// unsolicited is QPOptions.UnsolicitedWrite of a QP that receives into the CQ.
		unsolicited bool
	}
)

// noQPN is not the number of a QP: those have 16 bits.
const noQPN = 1 << 16

// EFAAttr are the attributes that only EFA devices have (struct efadv_device_attr). The longest message of SEND is
// [PortAttr].MaxMsgSize.
type EFAAttr struct {
	RDMARead         bool // RDMARead says that SRD queue pairs can read.
	RDMAWrite        bool // RDMAWrite says that SRD queue pairs can write.
	RNRRetry         bool // RNRRetry says that a request whose receiver is not ready is sent again.
	UnsolicitedWrite bool // UnsolicitedWrite says that a WRITE with immediate data can come without a receive.
	Notify           bool // Notify says that CQs can have events.

	MaxRDMASize uint32 // MaxRDMASize is how many bytes a READ or WRITE may have.
	MaxInline   int    // MaxInline is how many bytes of inline data a request may have.
	MaxSends    uint32 // MaxSends is the largest number of requests in a send queue.
	MaxRecvs    uint32 // MaxRecvs is the largest number of scatter/gather entries in a receive queue.
}

// EFA returns the attributes of an EFA device (efadv_query_device). For other devices it returns false.
func (d *Device) EFA() (EFAAttr, bool) {
	if d.efa == nil {
		return EFAAttr{}, false
	}
	x := d.efa
	return EFAAttr{
		RDMARead: x.has(efa.CapRead), RDMAWrite: x.has(efa.CapWrite), RNRRetry: x.has(efa.CapRNRRetry),
		UnsolicitedWrite: x.has(efa.CapUnsolicitedWrite), Notify: x.has(efa.CapNotify),
		MaxRDMASize: x.MaxRDMASize, MaxInline: x.MaxInline(), MaxSends: x.MaxSends, MaxRecvs: x.MaxRecvs,
	}, true
}

// has reports whether the device has capabilities.
func (x *efaContext) has(c efa.Cap) bool { return x.Caps&c == c }

// queueLimits returns the largest sizes of queues. QUERY_DEVICE has the smaller one of both directions.
func (x *efaContext) queueLimits() QPCaps {
	return QPCaps{MaxSendWR: int(x.MaxSends), MaxRecvWR: int(x.MaxRecvs), MaxSendSGE: int(x.MaxSendSGE), MaxRecvSGE: int(x.MaxRecvSGE)}
}

// lackingOps adds the operations that the device does not have.
func (x *efaContext) lackingOps(ops *opcodeSet) {
	if !x.has(efa.CapRead) {
		ops[WRRDMARead] = true
	}
	if !x.has(efa.CapWrite) {
		ops[WRRDMAWrite], ops[WRRDMAWriteWithImm] = true, true
	}
}

func (efaDriver) contextUdata(c contextCommand, _ bool) udata {
	if c == queryContext {
		return udata{}
	}
	return udata{in: efa.ContextRequest(), out: make([]byte, efa.ContextRespSize)}
}

func (efaDriver) openContext(d *Device, u udata) error {
	if !mmio.Supported {
		return &FeatureError{Feature: "efa on this architecture", Driver: "efa", Err: errors.New("the library has no barriers for it")}
	}
	if len(u.out) == 0 { // of a context that was imported
		return &FeatureError{Feature: "ImportDevice", Driver: "efa", Err: errors.New("the kernel tells the queues of a context only to the program that opens it")}
	}
	x := &efaContext{}
	var err error
	if x.Context, err = efa.DecodeContext(u.out); err != nil {
		return &FeatureError{Feature: "this adapter", Driver: "efa", Err: err}
	}
	b, err := d.queryDriver(efa.DeviceRespSize)
	if err != nil {
		return err
	}
	if x.Device, err = efa.DecodeDevice(b); err != nil {
		return err
	}
	d.efa = x
	return nil
}

func (efaDriver) pdUdata() udata { return udata{out: make([]byte, efa.PDRespSize)} }
func (efaDriver) ahUdata() udata { return udata{out: make([]byte, efa.AHRespSize)} }

func (efaDriver) openAH(a *AH, u udata) (err error) {
	a.efa, err = efa.DecodeAH(u.out)
	return err
}

// gidOfAH returns the GID of an open AH with a number in the PD of the QP.
func (q *QP) gidOfAH(number uint16) (ib.GID, bool) {
	d := q.dev
	d.tree.Lock()
	defer d.tree.Unlock()
	for o := d.newest; o != nil; o = o.older {
		if a, ok := o.self.(*AH); ok && a.efa == number && len(o.parents) > 0 {
			if p, ok := o.parents[0].self.(*PD); ok && p.handle == q.pd {
				return a.attr.GRH.DGID, true
			}
		}
	}
	return ib.GID{}, false
}

// unsupportedMR: the kernel would not say which of the rights it refuses.
func (efaDriver) unsupportedMR(d *Device, r *region) string {
	allowed := AccessLocalWrite | accessWishes
	if d.efa.has(efa.CapRead) {
		allowed |= AccessRemoteRead
	}
	if d.efa.has(efa.CapWrite) {
		allowed |= AccessRemoteWrite
	}
	if lacking := r.access &^ allowed; lacking != 0 {
		return "access " + lacking.String()
	}
	return ""
}

func (dr efaDriver) unsupportedModify(d *Device, _ ib.QPState, mask QPAttrMask) error {
	if mask&AttrRNRRetry != 0 && !d.efa.has(efa.CapRNRRetry) {
		return &FeatureError{Feature: "MODIFY_QP with RNRRetry", Driver: "efa", Err: errors.New("the adapter does not have the capability rnr_retry; it decides itself")}
	}
	return nil
}

// prepareCQ rounds the size up: the device has rings of a power of two.
func (dr efaDriver) prepareCQ(c *CQ, o *CQOptions) (udata, error) {
	if err := dr.oneCQESize(c, o); err != nil {
		return udata{}, err
	}
	x := c.dev.efa
	if o.Channel != nil && !x.has(efa.CapNotify) {
		return udata{}, &FeatureError{Feature: "CREATE_CQ with a completion channel", Driver: "efa", Err: errors.New("the adapter does not have the capability cq_notifications; use Poll")}
	}
	depth, err := efa.CompSize(o.Size)
	if err != nil {
		return udata{}, fmt.Errorf("uverbs: %s: CreateCQ: %w", c.dev.Name(), err)
	}
	o.Size, c.efa = depth, &efaCQ{depth: depth, last: lastEfa{qpn: noQPN}}
	req := efa.CQRequest{SubCQs: x.SubCQs, Notify: o.Channel != nil}
	return udata{in: req.Encode(), out: make([]byte, efa.CQRespSize)}, nil
}

func (efaDriver) mapCQ(c *CQ, u udata) error {
	d, x := c.dev, c.efa
	rings := int(d.efa.SubCQs)
	r, err := efa.DecodeCQ(u.out, rings, x.depth, os.Getpagesize())
	if err != nil {
		return err
	}
	if c.region, err = d.mappedEfa(d.cmd.MapReadOnly, r.Ring); err != nil { // the device alone writes it
		return err
	}
	var bell []byte
	if r.Doorbell.Size > 0 {
		if x.bell, bell, err = d.bellEfa(r.Doorbell, r.Offset); err != nil {
			return err
		}
	}
	if x.ring, err = efa.NewCompQueue(c.region.Bytes(), bell, rings, x.depth); err != nil {
		return err
	}
	x.several = rings > 1
	if c.ch != nil && bell == nil {
		return fmt.Errorf("uverbs: %s: the kernel gave a CQ with a completion channel no doorbell", d.Name())
	}
	c.cqe.Store(uint32(x.depth))
	return nil
}

func (efaDriver) freeCQ(c *CQ) error { return mmio.RetireAll(c.region, c.efa.bell) }

// prepareQP rounds the sizes up. The queue for sends has room for inline data in any case.
func (efaDriver) prepareQP(q *QP, s *qpSpec) (udata, error) {
	d, x := q.dev, q.dev.efa
	inline, most := min(int(x.Inline), x.MaxInline()), x.MaxInline()
	if s.MaxInline > most {
		return udata{}, argErr("CreateQP", "MaxInline", s.MaxInline, "0 to %d bytes", most)
	}
	wide := s.MaxInline > inline
	if wide {
		inline = most
	}
	port, err := d.facts(1)
	if err != nil {
		return udata{}, err
	}
	p := &efaQP{}
	if p.send, err = x.SendSize(&x.Device, s.MaxSendWR, s.MaxSendSGE, inline, wide && s.Type == ib.SRD); err == nil {
		p.recv, err = x.RecvSize(s.MaxRecvWR, s.MaxRecvSGE)
	}
	if err != nil {
		return udata{}, fmt.Errorf("uverbs: %s: CreateQP: %w", d.Name(), err)
	}
	if s.Path.RNRRetry != 0 {
		if err := (efaDriver{}).unsupportedModify(d, ib.QPRTS, AttrRNRRetry); err != nil {
			return udata{}, err
		}
	}
	if s.UnsolicitedWrite && !x.has(efa.CapUnsolicitedWrite) {
		return udata{}, &FeatureError{Feature: "CREATE_QP with UnsolicitedWrite", Driver: "efa", Err: errors.New("the adapter or the kernel does not have the capability unsolicited_write_recv")}
	}
	q.efa, p.unsolicited = p, s.UnsolicitedWrite
	q.setLimitsEfa(port.MaxMsgSize)
	s.MaxSendWR, s.MaxRecvWR, s.MaxInline = p.send.Depth, p.recv.MaxWR, inline
	req := efa.QPRequest{Send: p.send, Recv: p.recv, SL: s.Path.SL, Unsolicited: s.UnsolicitedWrite}
	return udata{in: req.Encode(), out: make([]byte, efa.QPRespSize)}, nil
}

func (efaDriver) mapQP(q *QP, u udata) error {
	d, p := q.dev, q.efa
	r, err := efa.DecodeQP(u.out, p.send, p.recv, os.Getpagesize())
	if err != nil {
		return err
	}
	if q.sqRegion, err = d.mapEfa(r.Send); err != nil {
		return err
	}
	var bell []byte
	if p.bells[0], bell, err = d.bellEfa(r.SendDoorbell, r.SendBell); err != nil {
		return err
	}
	gen := uint16(d.efa.made.Add(1))
	if p.sq, err = efa.NewSendQueue(q.sqRegion.Bytes()[r.SendOffset:], bell, p.send, gen); err != nil {
		return err
	}
	q.caps = QPCaps{MaxSendWR: p.sq.Cap(), MaxSendSGE: p.sq.MaxSGE(), MaxInline: p.sq.MaxInline(), MaxRecvWR: p.recv.MaxWR, MaxRecvSGE: p.recv.MaxSGE}
	if q.rqRegion, err = d.mapEfa(r.Recv); err != nil {
		return err
	}
	if p.bells[1], bell, err = d.bellEfa(r.RecvDoorbell, r.RecvBell); err != nil {
		return err
	}
	p.rq, err = efa.NewRecvQueue(q.rqRegion.Bytes(), bell, p.recv, gen)
	return err
}

func (efaDriver) freeQP(q *QP) error {
	return mmio.RetireAll(q.sqRegion, q.rqRegion, q.efa.bells[0], q.efa.bells[1])
}

// mapEfa maps memory at the length that the kernel has given, which accepts no other.
func (d *Device) mapEfa(m efa.Mapping) (*mmio.Region, error) {
	return d.mappedEfa(d.cmd.Map, m)
}

// mappedEfa maps memory in one way.
func (d *Device) mappedEfa(how func(offset uint64, size int) (*mmio.Region, error), m efa.Mapping) (*mmio.Region, error) {
	region, err := how(m.Offset, m.Size)
	if err != nil {
		return nil, fmt.Errorf("uverbs: %s: map %d bytes of a queue: %w", d.Name(), m.Size, err)
	}
	return region, nil
}

// bellEfa maps a page with a doorbell.
func (d *Device) bellEfa(m efa.Mapping, offset uint32) (*mmio.Region, []byte, error) {
	page, err := d.mapEfa(m)
	if err != nil {
		return nil, nil, err
	}
	bell, err := efa.Doorbell(page.Bytes(), offset)
	return page, bell, err
}

func (efaDriver) prepareSRQ(s *SRQ, _ *SRQOptions) (udata, error) {
	return udata{}, noFeature(s.dev, "SRQ")
}
func (efaDriver) mapSRQ(*SRQ, udata) error { return errKind }
func (efaDriver) freeSRQ(*SRQ) error       { return nil }

func (efaDriver) modifySRQ(s *SRQ, _ bool, _ func(udata) error) error { return noFeature(s.dev, "SRQ") }

// queriedQP: the kernel does not know all sizes.
func (efaDriver) queriedQP(q *QP, a *QPAttr) { a.Caps = q.caps }

// qpModified empties the queues after a reset. Requests that have not completed never do, as on libefa.
func (efaDriver) qpModified(q *QP, _, to ib.QPState) {
	if to != ib.QPReset {
		return
	}
	gen, p := uint16(q.dev.efa.made.Add(1)), q.efa
	q.sending.Lock()
	q.sendCQ.efa.mu.Lock()
	p.sq, q.sendCQ.efa.last = p.sq.Renewed(gen), lastEfa{qpn: noQPN}
	q.sendCQ.efa.mu.Unlock()
	q.sending.Unlock()
	q.receiving.Lock()
	q.recvCQ.efa.mu.Lock()
	p.rq.Reset(gen)
	q.recvCQ.efa.mu.Unlock()
	q.receiving.Unlock()
}
