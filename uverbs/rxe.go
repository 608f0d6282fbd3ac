package uverbs

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/rxe"
	"github.com/goverbs/goverbs/netlinkrdma"
)

// rxeDriverID is rxe's number among the kernel's drivers.
const rxeDriverID = netlinkrdma.DriverID(rxe.DriverID)

// rxeDriver is the glue to Soft-RoCE: its rings are mapped from the uverbs file, at the
// places that the create responses tell.
type rxeDriver struct{}

func (rxeDriver) kind() driverKind      { return kindRxe }
func (rxeDriver) name() string          { return "rxe" }
func (rxeDriver) abi() (uint64, uint64) { return rxe.MinABI, rxe.MaxABI }
func (rxeDriver) cqUdata() udata        { return udata{out: make([]byte, rxe.CQRespSize)} }
func (rxeDriver) qpUdata() udata        { return udata{out: make([]byte, rxe.QPRespSize)} }

// mapCQ maps the completion ring.
func (rxeDriver) mapCQ(c *CQ, u udata) error {
	mi, err := rxe.DecodeCQResp(u.out)
	if err != nil {
		return err
	}
	if c.region, err = c.dev.mapRing(mi); err != nil {
		return err
	}
	if c.ring, err = rxe.NewCompQueue(c.region.Bytes(), c.cqe); err != nil {
		return errors.Join(err, c.region.Close())
	}
	return nil
}

// mapQP maps the send ring and the receive ring.
func (rxeDriver) mapQP(q *QP, u udata) (err error) {
	rqInfo, sqInfo, err := rxe.DecodeQPResp(u.out)
	if err != nil {
		return err
	}
	if q.sqRegion, err = q.dev.mapRing(sqInfo); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, q.sqRegion.Close())
		}
	}()
	if q.sq, err = rxe.NewSendQueue(q.sqRegion.Bytes(), q.caps.MaxSendWR, q.caps.MaxSendSGE, q.caps.MaxInline); err != nil {
		return err
	}
	if q.rqRegion, err = q.dev.mapRing(rqInfo); err != nil {
		return err
	}
	if q.rq, err = rxe.NewRecvQueue(q.rqRegion.Bytes(), q.caps.MaxRecvWR, q.caps.MaxRecvSGE); err != nil {
		return errors.Join(err, q.rqRegion.Close())
	}
	// The rings are rounded up, and all of it can be used.
	q.caps.MaxSendWR, q.caps.MaxRecvWR = q.sq.Cap(), q.rq.Cap()
	return nil
}

// mapRing maps a ring of rxe.
func (d *Device) mapRing(mi rxe.MapInfo) (*mmio.Region, error) {
	r, err := mmio.Map(d.cmd.f, mi.Offset, int(mi.Size))
	if err != nil {
		return nil, fmt.Errorf("uverbs: %s: map ring of %d bytes: %w", d.Name(), mi.Size, err)
	}
	return r, nil
}

// shortDoorbell is the amount of data, in bytes, whose transmission may hold up the
// garbage collector.
const shortDoorbell = 64 << 10

// postSendRxe fills the slots, publishes them at once and rings the doorbell.
func (q *QP) postSendRxe(wrs []SendWR) error {
	if ok, err := q.sq.Room(len(wrs)); !ok {
		return roomErr(len(wrs), q.sq.Cap(), err)
	}
	bytes := uint64(0)
	for i := range wrs {
		if err := q.fillSendRxe(i, &wrs[i]); err != nil {
			return &PostError{Index: i, Err: err}
		}
		for j := range wrs[i].SGL {
			bytes += uint64(wrs[i].SGL[j].Length)
		}
	}
	if len(wrs) == 0 {
		return nil
	}
	q.sq.Publish(len(wrs))
	// Up to Linux 6.4 or so the doorbell transmits; later it only wakes a worker.
	var errno syscall.Errno
	if bytes > shortDoorbell {
		errno = q.doorbell.issueLong()
	} else {
		errno = q.doorbell.issue()
	}
	if errno != 0 {
		return q.dev.cmd.fail("POST_SEND", errno, "the work requests are in the queue, but the device was not told")
	}
	return nil
}

// fillSendRxe writes a work request into the i-th free slot.
//
// Preconditions: the queue has room for i+1 work requests.
func (q *QP) fillSendRxe(i int, wr *SendWR) error {
	if wr.Opcode > WRRDMARead {
		return ErrOpcode
	}
	if wr.Flags&^sendFlagsAll != 0 {
		return ErrSendFlags
	}
	flags := wr.Flags
	if q.sigAll {
		flags |= Signaled
	}
	s := q.sq.Slot(i)
	s.Start(wr.ID, uint32(wr.Opcode), uint32(flags))
	switch wr.Opcode {
	case WRSendWithImm:
		s.SetImm(wr.Imm)
	case WRRDMAWriteWithImm:
		s.SetImm(wr.Imm)
		s.SetRDMA(wr.RemoteAddr, wr.RKey)
	case WRRDMAWrite, WRRDMARead:
		s.SetRDMA(wr.RemoteAddr, wr.RKey)
	}
	if len(wr.Inline) > 0 {
		if len(wr.SGL) > 0 || wr.Opcode == WRRDMARead {
			return ErrInlineUse
		}
		return rxeSlotErr(s.AddInline(wr.Inline))
	}
	for _, sge := range wr.SGL {
		if sge.outside {
			return ErrSGERange
		}
		if err := s.AddSGE(sge.Addr, sge.Length, sge.LKey); err != nil {
			return rxeSlotErr(err)
		}
	}
	return nil
}

// postRecvRxe posts one receive. rxe has no doorbell for receives.
func (q *QP) postRecvRxe(id uint64, sgl []SGE) error {
	if ok, err := q.rq.Room(1); !ok {
		return roomErr(1, q.rq.Cap(), err)
	}
	if err := q.fillRecvRxe(0, id, sgl); err != nil {
		return &PostError{Err: err}
	}
	q.rq.Publish(1)
	return nil
}

// postRecvsRxe posts several.
func (q *QP) postRecvsRxe(wrs []RecvWR) error {
	if ok, err := q.rq.Room(len(wrs)); !ok {
		return roomErr(len(wrs), q.rq.Cap(), err)
	}
	for i := range wrs {
		if err := q.fillRecvRxe(i, wrs[i].ID, wrs[i].SGL); err != nil {
			return &PostError{Index: i, Err: err}
		}
	}
	if len(wrs) > 0 {
		q.rq.Publish(len(wrs))
	}
	return nil
}

// fillRecvRxe writes a receive into the i-th free slot.
//
// Preconditions: the queue has room for i+1 work requests.
func (q *QP) fillRecvRxe(i int, id uint64, sgl []SGE) error {
	s := q.rq.Slot(i)
	s.Start(id)
	for _, sge := range sgl {
		if sge.outside {
			return ErrSGERange
		}
		if err := s.AddSGE(sge.Addr, sge.Length, sge.LKey); err != nil {
			return rxeSlotErr(err)
		}
	}
	return nil
}

// roomErr says why n work requests found no room.
func roomErr(n, capacity int, err error) error {
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrQueueCorrupt, err)
	case n > capacity:
		return argErr("post", "number of work requests", n, "up to %d, the size of the queue", capacity)
	}
	return ErrQueueFull
}

// rxeSlotErr turns a slot's error into the one that callers compare with.
func rxeSlotErr(err error) error {
	switch err {
	case rxe.ErrTooManySGEs:
		return ErrTooManySGE
	case rxe.ErrTooLong:
		return ErrTooLong
	case rxe.ErrInlineTooLong:
		return ErrInlineTooLong
	case rxe.ErrMixedData:
		return ErrInlineUse
	}
	return err
}

// pollRxe decodes what is in the ring.
func pollRxe(ring *rxe.CompQueue, wcs []WC) (int, error) {
	n, err := ring.Avail()
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrCQOverrun, err)
	}
	n = min(n, len(wcs))
	if n == 0 {
		return 0, nil
	}
	for i := range wcs[:n] {
		c := ring.Entry(i)
		wcs[i] = WC{
			ID:        c.WRID(),
			Status:    WCStatus(c.Status()),
			Opcode:    WCOpcode(c.Opcode()),
			VendorErr: c.VendorErr(),
			ByteLen:   c.ByteLen(),
			Imm:       c.Imm(),
			QPN:       c.QPN(),
			SrcQP:     c.SrcQP(),
			Flags:     rxeFlags(c.Flags()),
			PKeyIndex: c.PKeyIndex(),
			SLID:      c.SLID(),
			SL:        c.SL(),
			PathBits:  c.DLIDPathBits(),
		}
	}
	ring.Release(n)
	return n, nil
}

// rxeFlags keeps the flags that WC has; their bits are the kernel's.
func rxeFlags(f uint32) WCFlags {
	return WCFlags(f) & (WCWithGRH | WCWithImm)
}
