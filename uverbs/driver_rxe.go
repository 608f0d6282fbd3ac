package uverbs

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/rxe"
	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/diag"
)

// rxeDriverID is the kernel's ID of rxe.
const rxeDriverID = netlinkrdma.DriverID(rxe.DriverID)

// softDriverID is the ID of the driver that the software devices of this process play.
const softDriverID = rxeDriverID

// rxeDriver supports Soft-RoCE. Its rings are mapped from the uverbs file, at offsets in the
// responses of the create commands.
type rxeDriver struct{ noOptions }

// The rxe parts of objects. A CQ is armed by a command. An AH has a number or, with older kernels, an
// address vector.
type (
	rxeQP struct {
		sq  rxe.SendQueue
		rq  rxe.RecvQueue
		ids idIndexes
	}
	rxeCQ struct {
		ring *rxe.CompQueue
		arm  *[2]fastCommand // REQ_NOTIFY_CQ for any completion, and for solicited ones; nil without a channel
	}
	rxeSRQ struct {
		rq  *rxe.RecvQueue
		ids rxe.IDIndex // of rq, guarded by post
	}
	rxeAH struct {
		num uint32
		av  rxe.AV
	}
)

func (rxeDriver) kind() driverKind      { return kindRxe }
func (rxeDriver) name() string          { return "rxe" }
func (rxeDriver) abi() (uint64, uint64) { return rxe.MinABI, rxe.MaxABI }
func (rxeDriver) ahUdata() udata        { return udata{out: make([]byte, rxe.AHRespSize)} }

func (rxeDriver) capabilities() capabilities {
	return capabilities{briefCommands: true, hostRoutes: true}
}

func (dr rxeDriver) prepareCQ(c *CQ, o *CQOptions) (udata, error) {
	return udata{out: make([]byte, rxe.CQRespSize)}, dr.oneCQESize(c, o)
}

func (rxeDriver) prepareQP(*QP, *qpSpec) (udata, error) {
	return udata{out: make([]byte, rxe.QPRespSize)}, nil
}

func (rxeDriver) prepareSRQ(*SRQ, *SRQOptions) (udata, error) {
	return udata{out: make([]byte, rxe.SRQRespSize)}, nil
}

// freeCQ, freeQP and freeSRQ unmap the rings.
func (rxeDriver) freeCQ(c *CQ) error   { return mmio.RetireAll(c.region) }
func (rxeDriver) freeQP(q *QP) error   { return mmio.RetireAll(q.sqRegion, q.rqRegion) }
func (rxeDriver) freeSRQ(s *SRQ) error { return mmio.RetireAll(s.region) }

func (rxeDriver) operations(t ib.QPType) (opcodeSet, bool) {
	switch t {
	case ib.RC, ib.UC, ib.UD, ib.RawPacket: // older kernels create a raw packet QP without operations; others refuse
		return rxeOps[t], true
	}
	return opcodeSet{}, false
}

// rxeOps follows wr_opcode_mask of rxe_opcode.c. For UC that mask has SEND_WITH_INV, too, but no packet
// for it: posting it would break the QP.
var rxeOps = [ib.XRCRecv + 1]opcodeSet{
	ib.RC: opcodes(WRRDMAWrite, WRRDMAWriteWithImm, WRSend, WRSendWithImm, WRRDMARead, WRCompareSwap, WRFetchAdd,
		WRLocalInv, WRBindMW, WRSendWithInv, WRFlush, WRAtomicWrite),
	ib.UC: opcodes(WRRDMAWrite, WRRDMAWriteWithImm, WRSend, WRSendWithImm, WRBindMW),
	ib.UD: opcodes(WRSend, WRSendWithImm),
}

// mapCQ maps the completion ring.
func (rxeDriver) mapCQ(c *CQ, u udata) error {
	mi, err := rxe.DecodeCQResp(u.out)
	if err != nil {
		return err
	}
	if c.region, err = c.dev.mapRing(mi); err != nil {
		return err
	}
	if c.rxe.ring, err = rxe.NewCompQueue(c.region.Bytes(), c.Size()); err != nil {
		return err
	}
	if c.ch != nil {
		c.rxe.arm = c.notifyCommands()
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
	if err := q.rxe.sq.Init(q.sqRegion.Bytes(), q.caps.MaxSendWR, q.caps.MaxSendSGE, q.caps.MaxInline); err != nil {
		return err
	}
	q.newDoorbell()
	q.caps.MaxSendWR = q.rxe.sq.Cap() // the size of the ring is rounded up
	if q.srq != nil {
		q.caps.MaxRecvWR, q.caps.MaxRecvSGE = 0, 0
		return nil
	}
	if q.rqRegion, err = q.dev.mapRing(rqInfo); err != nil {
		return err
	}
	if err := q.rxe.rq.Init(q.rqRegion.Bytes(), q.caps.MaxRecvWR, q.caps.MaxRecvSGE); err != nil {
		return err
	}
	q.caps.MaxRecvWR = q.rxe.rq.Cap()
	return nil
}

// mapSRQ maps the ring.
func (rxeDriver) mapSRQ(s *SRQ, u udata) error {
	mi, num, err := rxe.DecodeSRQResp(u.out)
	if err != nil {
		return err
	}
	s.num = num
	return s.mapRing(mi, s.maxWR)
}

// mapRing maps a ring and replaces the current one.
func (s *SRQ) mapRing(mi rxe.MapInfo, maxWR int) error {
	region, err := s.dev.mapRing(mi)
	if err != nil {
		return err
	}
	rq, err := rxe.NewRecvQueue(region.Bytes(), maxWR, s.maxSGE)
	if err != nil {
		return errors.Join(err, region.Close())
	}
	old := s.region
	s.region, s.rxe.rq, s.maxWR = region, rq, rq.Cap()
	if old != nil {
		return old.Close()
	}
	return nil
}

// modifySRQ passes rxe the address of a buffer for the location of the new ring.
func (rxeDriver) modifySRQ(s *SRQ, resize bool, issue func(udata) error) error {
	if !resize {
		return issue(udata{in: rxe.EncodeModifySRQ(0)})
	}
	info := make([]byte, rxe.MapInfoSize)
	var pin runtime.Pinner
	pin.Pin(&info[0])
	defer pin.Unpin()
	if err := issue(udata{in: rxe.EncodeModifySRQ(addrOf(info))}); err != nil {
		return err
	}
	mi, err := rxe.DecodeMapInfo(info)
	if err != nil {
		return err
	}
	return s.mapRing(mi, 0)
}

// openAH stores the number that the kernel has assigned to the AH. Kernels without these numbers
// need the address in each work request.
func (rxeDriver) openAH(a *AH, u udata) error {
	num, err := rxe.DecodeAHResp(u.out)
	if err != nil || num != 0 {
		a.rxe.num = num
		return err
	}
	table, err := a.dev.GIDTable(a.attr.Port)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(table, func(e GIDEntry) bool { return e.Index == int(a.attr.GRH.SGIDIndex) })
	if i < 0 {
		return argErr("CreateAH", "GRH.SGIDIndex", a.attr.GRH.SGIDIndex, "the index of a used entry: %s", gidList(table))
	}
	mac, err := ethernetAddr(a.attr.GRH.DGID, table[i].Netdev)
	if err != nil {
		return err
	}
	g := &a.attr.GRH
	a.rxe.av = rxe.NewAV(rxe.AVAttr{
		SGID: table[i].GID, DGID: g.DGID, DMAC: mac, FlowLabel: g.FlowLabel, Port: a.attr.Port,
		SGIDIndex: g.SGIDIndex, HopLimit: g.HopLimit, TrafficClass: g.TrafficClass,
	})
	return nil
}

// mapRing maps a ring.
func (d *Device) mapRing(mi rxe.MapInfo) (*mmio.Region, error) {
	r, err := d.cmd.Map(mi.Offset, int(mi.Size))
	if err != nil {
		return nil, fmt.Errorf("uverbs: %s: map ring of %d bytes: %w", d.Name(), mi.Size, err)
	}
	return r, nil
}

// encodeRxe writes work requests into the free slots of the send ring, beginning with slot first,
// and returns their bytes of data. It returns errNeedsBuilder for an operation that is not in ops.
// It is one function because each call is noticeable with small messages.
//
// Preconditions: the queue has room for them.
func (q *QP) encodeRxe(first int, wrs []SendWR, ops uint32) (bytes uint64, err error) {
	sq, always := &q.rxe.sq, q.always
	for i := range wrs {
		wr := &wrs[i]
		if !wr.opIn(ops) {
			return 0, errNeedsBuilder
		}
		flags := uint32(wr.Flags | always)
		w := sq.WQE(first + i)
		w.Start(wr.ID, wr.Opcode.abi(), flags)
		switch wr.Opcode {
		case WRSendWithImm:
			w.SetImm(wr.Imm)
		case WRRDMAWrite, WRRDMARead:
			w.SetRDMA(wr.RemoteAddr, wr.RKey)
		case WRRDMAWriteWithImm:
			w.SetRDMA(wr.RemoteAddr, wr.RKey)
			w.SetImm(wr.Imm)
		case WRCompareSwap, WRFetchAdd:
			if ops != allOps && (len(wr.Inline) > 0 || checkAtomic(wr.SGL, wr.RemoteAddr) != nil) {
				return 0, errNeedsBuilder
			}
			w.SetAtomic(wr.RemoteAddr, wr.CompareAdd, wr.Swap, wr.RKey)
		case WRSendWithInv, WRLocalInv:
			w.SetInvalidate(wr.InvalidateRKey)
		case WRAtomicWrite, WRFlush:
			slot := sq.Started(first+i, flags)
			if wr.Opcode == WRFlush {
				slot.SetFlush(wr.RemoteAddr, wr.Length, wr.RKey, uint8(wr.Placement), uint8(wr.Level))
			} else {
				slot.SetAtomicWrite(wr.RemoteAddr, wr.RKey, [8]byte(wr.Inline))
			}
			continue
		case WRBindMW:
			b, keys := &wr.Bind, q.builder.keys
			w.SetMW(b.Addr, b.Length, b.MR.lkey, keys.from, keys.to, uint32(b.Access))
		}
		if wr.AH != nil {
			if q.typ != ib.UD {
				return 0, errNeedsBuilder
			}
			w.SetUD(wr.RemoteQPN&maxQPN, wr.RemoteQKey, wr.AH.rxe.num, &wr.AH.rxe.av)
		}
		if len(wr.SGL) == 1 && len(wr.Inline) == 0 && sq.MaxSGE() > 0 { // the usual case
			e := &wr.SGL[0]
			if e.outside {
				return 0, ErrSGERange
			}
			w.SetSGE(e.Addr, e.Length, e.LKey)
			bytes += uint64(e.Length)
			continue
		}
		n, err := encodeDataRxe(sq.Started(first+i, flags), wr)
		if err != nil {
			return 0, err
		}
		bytes += n
	}
	return bytes, nil
}

// encodeDataRxe adds the data of a work request and returns its size in bytes.
func encodeDataRxe(s rxe.SendSlot, wr *SendWR) (bytes uint64, err error) {
	if len(wr.Inline) > 0 {
		if wr.Opcode == WRRDMARead {
			return 0, errInlineUse
		}
		if err := s.AddInline(wr.Inline); err != nil {
			return 0, rxeSlotErr(err)
		}
		bytes = uint64(len(wr.Inline))
	}
	for i := range wr.SGL {
		e := &wr.SGL[i]
		if e.outside {
			return 0, ErrSGERange
		}
		if err := s.AddSGE(e.Addr, e.Length, e.LKey); err != nil {
			return 0, rxeSlotErr(err)
		}
		bytes += uint64(e.Length)
	}
	return bytes, nil
}

// ringRxe publishes n slots and rings the doorbell. The caller holds sending.
func (q *QP) ringRxe(n int, bytes uint64) error {
	q.rxe.sq.Publish(n)
	// Up to about Linux 6.4 the doorbell transmits; later it only wakes a worker.
	if errno := q.doorbell.Issue(bytes > shortDoorbell); errno != 0 {
		return q.doorbellErr(errno)
	}
	return nil
}

// postRecvsRxe posts receives to a QP or an SRQ. rxe has no doorbell for receives, and does not flush those that
// are posted in state ERR; a software device does, see flushRecvsRxe.
func postRecvsRxe(rq *rxe.RecvQueue, wrs []RecvWR) error {
	if ok, err := rq.Room(len(wrs)); !ok {
		return roomErr(len(wrs), rq.Cap(), err)
	}
	for i := range wrs {
		s := rq.Slot(i)
		s.Start(wrs[i].ID)
		if err := addSGEsRxe(&s, wrs[i].SGL); err != nil {
			return postErr(i, err)
		}
	}
	if len(wrs) > 0 {
		rq.Publish(len(wrs))
	}
	return nil
}

// flushRecvsRxe has a software device flush the receives of a QP in state ERR. Another goroutine may move the QP
// to another state meanwhile.
func (q *QP) flushRecvsRxe() error {
	if err := q.lockSide(&q.sending); err != nil {
		return err
	}
	errno := q.doorbell.Issue(false)
	q.sending.Unlock()
	if errno != 0 && errno != syscall.EINVAL {
		return q.doorbellErr(errno)
	}
	return nil
}

// addSGEsRxe adds the memory of a receive to its slot.
func addSGEsRxe(s *rxe.RecvSlot, sgl []SGE) error {
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

// rxeSlotErr converts an error of a slot to the exported one.
func rxeSlotErr(err error) error {
	switch err {
	case rxe.ErrTooManySGE:
		return ErrTooManySGE
	case rxe.ErrTooLong:
		return errTooLong
	case rxe.ErrInlineTooLong:
		return ErrInlineTooLong
	case rxe.ErrMixedData:
		return errInlineUse
	}
	return err
}

func (rxeDriver) findRequest(q *QP, id uint64) (sentWR, bool) {
	if q.kind != kindRxe { // it has no send queue
		return sentWR{}, false
	}
	q.rxe.ids.mu.Lock()
	defer q.rxe.ids.mu.Unlock()
	i, ok := q.rxe.sq.Find(&q.rxe.ids.send, id, q.typ == ib.UD)
	return sentRxe(&i), ok
}

func (rxeDriver) findReceive(q *QP, id uint64) (sges []SGE, found bool) {
	q.rxe.ids.mu.Lock()
	defer q.rxe.ids.mu.Unlock()
	var all []rxe.SGEInfo
	switch s := q.srq; {
	case s == nil && q.noRecv == nil:
		all, found = q.rxe.rq.Find(&q.rxe.ids.recv, id)
	case s != nil && s.post.TryLock(): // see holdsRecv
		if !s.closed.Load() {
			all, found = s.rxe.rq.Find(&s.rxe.ids, id)
		}
		s.post.Unlock()
	}
	return sgesRxe(all), found
}

func (rxeDriver) failedRequest(q *QP) (WC, sentWR, bool) {
	if q.kind != kindRxe {
		return WC{}, sentWR{}, false
	}
	id, status, i, ok := q.rxe.sq.FindFailed(uint32(WCWRFlushErr), q.typ == ib.UD)
	return WC{ID: id, Status: WCStatus(status), QPN: q.qpn}, sentRxe(&i), ok
}

// vendorText explains the code of a software device. The kernel's rxe does not set codes.
func (rxeDriver) vendorText(code uint32) (text string, injected bool) { return rxe.Injected(code) }

// sentRxe converts the contents of a ring element.
func sentRxe(i *rxe.SendInfo) sentWR {
	s := sentWR{op: WROpcode(min(i.Opcode, 254) + 1), length: i.Length, qpn: i.RemoteQPN, raddr: i.RemoteAddr, rkey: i.RKey, mwRKey: i.MWRKey}
	switch s.op {
	case WRBindMW:
		s.bind = &binding{addr: i.Bind.Addr, length: i.Bind.Length, lkey: i.Bind.LKey, access: Access(i.Bind.Access)}
	case WRLocalInv:
		s.invalid, s.windowOnly = &i.Invalid, true
	}
	s.sges = sgesRxe(i.SGEs)
	return s
}

// sgesRxe converts scatter/gather entries of a ring.
func sgesRxe(infos []rxe.SGEInfo) (all []SGE) {
	for _, e := range infos {
		all = append(all, SGE{Addr: e.Addr, Length: e.Length, LKey: e.LKey})
	}
	return all
}

// idIndexes find work requests of a failed QP by ID.
type idIndexes struct {
	mu         sync.Mutex
	send, recv rxe.IDIndex // guarded by mu
}

// queueOf searches both rings for the ID, because rxe's completions do not name the queue. The
// queue is known if only one ring holds the ID, or if the send element has the status of the
// completion.
func (rxeDriver) queueOf(q *QP, wc WC) diag.Queue {
	if q.kind != kindRxe {
		return diag.SendQueue
	}
	flushed := wc.Status == WCWRFlushErr // Linux 6.12 and later do not store this status in the element
	q.rxe.ids.mu.Lock()
	defer q.rxe.ids.mu.Unlock()
	send := flushed && q.rxe.sq.Has(&q.rxe.ids.send, wc.ID) || !flushed && q.rxe.sq.HasFailed(wc.ID, uint32(wc.Status))
	recv, known := q.holdsRecv(wc.ID)
	switch {
	case q.closed.Load(): // the rings may have been unmapped before they were read
	case send && !flushed:
		return diag.SendQueue
	case !known:
	case recv && !send:
		return diag.RecvQueue
	case send && !recv:
		return diag.SendQueue
	}
	return diag.UnknownQueue
}

// holdsRecv reports whether rxe's receive ring holds an ID. It is not known while the ring of an
// SRQ is locked: Resize, SetLimit and Close hold that lock during system calls, and Poll does not
// wait for them. The caller holds q.rxe.ids.mu.
func (q *QP) holdsRecv(id uint64) (holds, known bool) {
	if s := q.srq; s != nil {
		if !s.post.TryLock() {
			return false, false
		}
		defer s.post.Unlock()
		return !s.closed.Load() && s.rxe.rq.Has(&s.rxe.ids, id), true
	}
	return q.noRecv == nil && q.rxe.rq.Has(&q.rxe.ids.recv, id), true
}

func (rxeDriver) postedRecvs(q *QP) int {
	switch s := q.srq; {
	case s != nil:
		s.post.Lock()
		defer s.post.Unlock()
		if !s.closed.Load() {
			return s.rxe.rq.Posted()
		}
	case q.noRecv == nil:
		return q.rxe.rq.Posted()
	}
	return 0
}

func (rxeDriver) prepareResize(*CQ, *int) (udata, bool, error) {
	return udata{out: make([]byte, rxe.ResizeCQRespSize)}, true, nil
}

// remapCQ maps the new ring, to which the kernel has moved the completions. The memory of the old
// ring exists until it is unmapped.
func (rxeDriver) remapCQ(c *CQ, cqe int, u udata) (old *mmio.Region, err error) {
	mi, err := rxe.DecodeResizeCQResp(u.out)
	if err != nil {
		return nil, err
	}
	region, err := c.dev.mapRing(mi)
	if err != nil {
		return nil, err
	}
	ring, err := rxe.NewCompQueue(region.Bytes(), cqe)
	if err != nil {
		return nil, errors.Join(err, region.Close())
	}
	old = c.region
	c.region, c.rxe.ring = region, ring
	c.cqe.Store(uint32(cqe))
	return old, nil
}

// pollRxe is Poll for rxe. It decodes completions in place, because each call counts and a WC made
// elsewhere would be copied.
func (c *CQ) pollRxe(wcs []WC) (int, error) {
	ring := c.rxe.ring
	n, err := ring.Avail()
	if n == 0 && err == nil && c.dev.poller != nil {
		c.dev.poller.Poll()
		n, err = ring.Avail()
	}
	if n = min(n, len(wcs)); n == 0 {
		return 0, c.idle(err)
	}
	done, failed := wcs[:n], WCSuccess
	for i := range done {
		wc := &done[i]
		r := wc.record()
		ring.Entry(i).CopyTo(r)
		wc.Flags &= WCWithGRH | WCWithImm | WCWithInv // the bits are the kernel's
		if wc.Flags&WCWithInv == 0 {
			wc.Imm, wc.InvalidatedRKey = r.Ex.ImmData().Get(), 0
		} else { // both are in the same field
			wc.Imm, wc.InvalidatedRKey = 0, *r.Ex.InvalidateRKey()
		}
		wc.VLAN, wc.FlowTag, wc.Timestamp = 0, 0, 0
		failed |= wc.Status
	}
	if failed != WCSuccess {
		c.failures(done)
	}
	ring.Release(n)
	if c.closed.Load() { // the ring may have been unmapped before it was read
		return 0, c.errClosed()
	}
	return n, nil
}

// idle returns why there was no completion, or nil if there is none yet.
func (c *CQ) idle(err error) error {
	switch {
	case c.closed.Load():
		return c.errClosed()
	case err != nil:
		return fmt.Errorf("%w: %w", ErrCQOverrun, err)
	}
	return nil
}

// armRxe arms the CQ.
func (c *CQ) armRxe(solicited bool) error {
	cmd := &c.rxe.arm[0]
	if solicited {
		cmd = &c.rxe.arm[1]
	}
	if errno := cmd.Issue(false); errno != 0 {
		return c.dev.cmd.fail("REQ_NOTIFY_CQ", errno, "")
	}
	return nil
}
