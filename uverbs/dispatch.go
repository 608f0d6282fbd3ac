package uverbs

import (
	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/efa"
	"github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// The code for each driver is in the files driver_*.go. This file selects it on the data path, with
// switches: an interface would make every caller's work request escape to the heap.

// Kinds of drivers.
const (
	kindInvalid driverKind = iota // a zero value, or a CQ that Resize has lost
	kindRxe
	kindMlx5
	kindSiw
	kindEfa
)

// drivers are the supported drivers by the kernel's driver ID. Tests add their own.
var drivers = []struct {
	id netlinkrdma.DriverID
	driver
}{
	{rxeDriverID, rxeDriver{}},
	{mlx5DriverID, mlx5Driver{}},
	{siwDriverID, siwDriver{}},
	{efaDriverID, efaDriver{}},
}

// The driver's part of an object is one struct per driver. In a QP the one comes first that is used without a
// system call for each doorbell, so that its queues are in the cache line of the locks.
type (
	deviceDrivers struct {
		mlx5 *mlx5Context
		efa  *efaContext
	}
	qpDrivers struct {
		mlx5 mlx5QP
		siw  siwQP
		rxe  rxeQP
		efa  *efaQP
	}
	cqDrivers struct {
		rxe  rxeCQ
		mlx5 *mlx5CQ
		siw  *siwCQ
		efa  *efaCQ
	}
	srqDrivers struct {
		rxe  rxeSRQ
		mlx5 *mlx5SRQ
		siw  siwSRQ
	}
	ahDrivers struct {
		rxe  rxeAH
		mlx5 mlx5AH
		efa  uint16 // the device's number
	}
	efaQP struct {
		send   efa.SendSize
		recv   efa.RecvSize
		sq     *efa.SendQueue // guarded by QP.sending, or by mu of the CQ; a Reset takes both to replace it
		rq     *efa.RecvQueue
		bells  [2]*mmio.Region
		limits efaLimits

		unsolicited bool // QPOptions.UnsolicitedWrite
	}
	// efaLimits are by WROpcode one more than the bytes that a message may have, and 0 for an operation that the QP
	// does not have.
	efaLimits [8]uint64

	pdDrivers struct{ mlx5 *mlx5Register } // of the thread domain of a parent domain, or nil
)

// PostSend posts send work requests in order, with one doorbell (ibv_post_send). It posts all or
// none. It fails with [ErrQueueFull] if they do not all fit, with [ErrState] while the QP is not
// connected, and with a [PostError] if one of them is invalid. [QP.BeginSend] does the same without
// structs.
func (q *QP) PostSend(wrs ...SendWR) error {
	if !q.sending.TryLock() { // as lockSide
		if err := q.lockSideSlow(&q.sending); err != nil {
			return err
		}
	}
	if len(wrs) == 0 || !q.ready() {
		return q.postSlow(wrs)
	}
	n := len(wrs)
	switch q.kind {
	case kindRxe:
		if sq := &q.rxe.sq; !sq.Fits(n) {
			if ok, _ := sq.Room(n); !ok {
				break
			}
		}
		bytes, err := q.encodeRxe(0, wrs, uint32(q.plain))
		if err != nil {
			break
		}
		q.rxe.sq.Publish(n) // inlined ringRxe, which saves a call
		errno := q.doorbell.Issue(bytes > shortDoorbell)
		q.sending.Unlock()
		if errno != 0 {
			return q.doorbellErr(errno)
		}
		return nil
	case kindMlx5:
		q.mlx5.sq.Begin()
		if !q.mlx5.sq.Fits(n) && !q.mlx5.sq.Room(n) || (n != 1 || !q.putMlx5(&wrs[0])) && q.encodeMlx5(wrs, uint32(q.plain)) != nil {
			break
		}
		q.mlx5.sq.Publish()
		q.sending.Unlock()
		return nil
	case kindSiw:
		if !q.siw.sq.Room(n) {
			break
		}
		bytes, err := q.encodeSiw(0, wrs, uint32(q.plain))
		if err != nil {
			break
		}
		err = q.ringSiw(n, bytes)
		q.sending.Unlock()
		return err
	case kindEfa:
		if n > q.efa.sq.Left() && !q.efa.sq.Refresh(n) {
			break
		}
		if n != 1 || !q.putEfa(0, &wrs[0]) {
			if q.encodeEfa(0, wrs, uint32(q.addressed)) != nil {
				break
			}
		}
		q.efa.sq.Publish(n)
		q.sending.Unlock()
		return nil
	}
	return q.postSlow(wrs)
}

// directQueue is the send queue to which SendBuilder writes at once.
type directQueue struct {
	queue  *mlx5.SendQueue // or nil
	always SendFlags       // QP.always

	efa    *efa.SendQueue // if queue is nil
	limits *efaLimits     // of efa
	left   int            // how many more requests fit into efa
	peer   efa.Peer       // where they go
}

// directMeta returns what the queue of mlx5 takes of the operation and the flags of a work request.
func directMeta(op WROpcode, flags SendFlags) mlx5.Meta {
	return mlx5.NewMeta(mlx5.Op(op), uint8(flags), 0)
}

// quietEfa returns the flag of an operation whose request has no SendSignaled.
func quietEfa(flags SendFlags) efa.Op {
	if flags&SendSignaled != 0 {
		return 0
	}
	return efa.Quiet
}

// reserve starts a batch of work requests that are written to the queue at once, without the lock of the send
// side, if the driver and the type of QP permit it, on efa behind To. Such a request stores only to its place in the
// ring, and to what no other goroutine uses: a Reset leaves what it finds to the builder. So a Reset or Close meanwhile
// changes nothing but the answer of Post.
func (q *QP) reserve() {
	b := &q.builder
	if q.kind != kindEfa && (q.kind != kindMlx5 || q.plain == 0) || !q.sending.TryLock() { // PostSend, which holds it, stages
		return
	}
	if q.kind == kindMlx5 {
		q.mlx5.sq.Begin()
		b.queue, b.room = q.mlx5.sq, q.mlx5.sq.Left()
	} else {
		sq := q.efa.sq
		if b.efa != sq {
			b.efa, b.limits = sq, &q.efa.limits
		}
		if sq.Left() < sq.Cap()/2 {
			sq.Refresh(0)
		}
		b.left = sq.Left()
	}
	b.always = q.always
	q.sending.Unlock()
}

// toEfa sets where whole work requests go, on efa.
func (b *SendBuilder) toEfa(ah *AH, qpn, qkey uint32) {
	switch {
	case b.q.kind != kindEfa:
	case ah == nil || ah.dev != b.q.dev || ah.closed.Load() || qpn > 0xffff:
		b.room = 0 // a request fails when it is staged
	default:
		b.room, b.peer = b.left, efa.NewPeer(qkey, uint16(qpn), ah.efa)
	}
}

// putEfa and putInlineEfa add a whole work request, and report whether they did.
func (b *SendBuilder) putEfa(id uint64, op WROpcode, flags SendFlags, raddr uint64, rkey uint32, addr uint64, length, lkey uint32) bool {
	if flags&SendFence != 0 || uint64(length) >= b.limits[op&7] ||
		!b.efa.Put(b.n, id, efa.NewMeta(efa.Op(op)|quietEfa(flags|b.always), rkey), b.peer, raddr, addr, efa.NewLocal(length, lkey)) {
		return false
	}
	b.n++
	return true
}

func (b *SendBuilder) putInlineEfa(id uint64, op WROpcode, flags SendFlags, raddr uint64, rkey uint32, data []byte) bool {
	if n := len(data); n == 0 || flags&SendFence != 0 || uint64(n) >= b.limits[op&7] ||
		!b.efa.PutInline(b.n, id, efa.NewMeta(efa.Op(op)|quietEfa(flags|b.always), rkey), b.peer, raddr, &data[0], n) {
		return false
	}
	b.n++
	return true
}

// encode writes wrs[0], the work request that was begun last, into the queue.
//
// Preconditions: the caller holds sending.
func (b *SendBuilder) encode(wrs []SendWR) {
	q, wr := b.q, &wrs[0]
	if b.err != nil || q.kind == kindEfa && q.efa.sq.Room(b.n) && q.putEfa(b.n-1, wr) {
		return
	}
	if b.err = q.sendRoom(b.n); b.err != nil {
		return
	}
	var err error
	if wr.Opcode >= WRRDMARead || q.plain == 0 || wr.AH != nil { // a SEND or WRITE to a peer needs no check
		err = q.check(wr)
	}
	if err == nil {
		bytes := uint64(0)
		switch q.kind {
		case kindRxe:
			bytes, err = q.encodeRxe(b.n-1, wrs, allOps)
		case kindMlx5:
			if b.n == 1 {
				q.mlx5.sq.Begin()
			}
			err = q.encodeMlx5(wrs, allOps) // its doorbell does not need the number of bytes
		case kindSiw:
			bytes, err = q.encodeSiw(b.n-1, wrs, allOps)
		case kindEfa:
			err = q.encodeEfa(b.n-1, wrs, allOps)
		default:
			err = errKind
		}
		b.bytes += bytes
	}
	if err == nil && (wr.Opcode == WRCompareSwap || wr.Opcode == WRFetchAdd) {
		err = checkAtomic(wr.SGL, wr.RemoteAddr)
	}
	if err != nil {
		b.failLast(given(err, wr, q.Caps(), q.dev))
	}
}

// ring publishes n work requests and rings the doorbell. The caller holds sending.
func (q *QP) ring(n int, bytes uint64) error {
	switch q.kind {
	case kindRxe:
		return q.ringRxe(n, bytes)
	case kindMlx5:
		q.mlx5.sq.Publish()
		return nil
	case kindSiw:
		return q.ringSiw(n, bytes)
	case kindEfa:
		q.efa.sq.Publish(n)
		return nil
	}
	return errKind
}

// sendRoom returns the error for n work requests that do not fit into the send queue, or nil. The caller
// holds sending.
func (q *QP) sendRoom(n int) error {
	switch q.kind {
	case kindRxe:
		if q.rxe.sq.Fits(n) {
			return nil
		}
		if ok, err := q.rxe.sq.Room(n); !ok {
			return roomErr(n, q.rxe.sq.Cap(), err)
		}
	case kindMlx5:
		if !q.mlx5.sq.Room(n) {
			return roomErr(n, q.mlx5.sq.Cap(), nil)
		}
	case kindSiw:
		if !q.siw.sq.Room(n) {
			return roomErr(n, q.siw.sq.Cap(), nil)
		}
	case kindEfa:
		if !q.efa.sq.Room(n) {
			return roomErr(n, q.efa.sq.Cap(), nil)
		}
	}
	return nil
}

// PostRecv posts one receive work request (ibv_post_recv). It fails with
// [ErrQueueFull], [ErrState], [ErrNoRecvQueue] or a [PostError].
func (q *QP) PostRecv(id uint64, sgl ...SGE) error {
	wr := [1]RecvWR{{id, sgl}}
	return q.PostRecvs(wr[:]...)
}

// PostRecvs posts receive work requests in order, all or none. It fails with the errors of
// [QP.PostRecv].
func (q *QP) PostRecvs(wrs ...RecvWR) error {
	if err := q.lockSide(&q.receiving); err != nil {
		return err
	}
	var err error = errKind
	flush := false
	switch {
	case q.noRecv != nil:
		err = q.noRecv
	case ib.QPState(q.state.Load()) < ib.QPInit:
		err = q.stateErr(true)
	case q.kind == kindRxe:
		err = postRecvsRxe(&q.rxe.rq, wrs)
		flush = err == nil && q.rxe.rq.WantsDoorbell()
	case q.kind == kindMlx5:
		err = postRecvsMlx5(q.mlx5.rq, wrs)
	case q.kind == kindSiw:
		err = q.postRecvsSiw(wrs)
	case q.kind == kindEfa:
		err = postRecvsEfa(q.efa.rq, wrs)
	}
	q.receiving.Unlock()
	if flush {
		return q.flushRecvsRxe()
	}
	if err != nil {
		return givenRecv(err, wrs, q.Caps().MaxRecvSGE, q.dev)
	}
	return nil
}

// Poll moves completions into wcs and returns their number, which is 0 if there are none yet
// (ibv_poll_cq). It does not report failed work requests as an error; see [WC.Err] and [QP.Err].
//
// Poll fails with [ErrCQOverrun] if the queue is corrupt, and with [os.ErrClosed] after Close. It
// cannot detect that the device dropped a completion because the CQ was full; that is an
// [EventCQErr].
func (c *CQ) Poll(wcs []WC) (int, error) {
	if c.closed.Load() {
		return 0, c.errClosed()
	}
	switch c.kind {
	case kindRxe:
		return c.pollRxe(wcs)
	case kindMlx5:
		c.mlx5.mu.Lock()
		n, other := c.pollMlx5(wcs)
		if other {
			return c.pollOtherMlx5(wcs, n)
		}
		return n, nil
	case kindSiw:
		return c.pollSiw(wcs)
	case kindEfa:
		return c.pollEfa(wcs)
	}
	return 0, c.unusable()
}

// arm arms the CQ for the next completion, or for the next solicited one.
func (c *CQ) arm(solicited bool) error {
	switch c.kind {
	case kindRxe:
		return c.armRxe(solicited)
	case kindMlx5:
		return c.armMlx5(solicited)
	case kindSiw:
		return c.armSiw()
	case kindEfa:
		return c.armEfa()
	}
	return ErrCQOverrun
}

// invalidate marks a CQ that has lost its ring.
func (c *CQ) invalidate() { c.kind = kindInvalid }

// postRecvs posts receives to the SRQ; the caller holds post.
func (s *SRQ) postRecvs(wrs []RecvWR) error {
	switch s.kind {
	case kindRxe:
		return postRecvsRxe(s.rxe.rq, wrs)
	case kindMlx5:
		return s.postRecvsMlx5(wrs)
	case kindSiw:
		err := fillRecvsSiw(s.siw.rq, wrs)
		if err == nil {
			s.siw.rq.Publish(len(wrs))
		}
		return err
	}
	return errKind
}

// raised records that the CQ has raised an event. It must not read kind, which a Resize in another
// goroutine may change.
func (c *CQ) raised() {
	c.armed.Store(false)
	if c.mlx5 != nil {
		c.eventMlx5()
	}
	if c.efa != nil {
		c.efa.events.Add(1)
	}
}

// queueLimits returns the largest sizes of the queues of a QP: its own, or those of DeviceAttr.
func (d *Device) queueLimits() QPCaps {
	if d.efa != nil {
		return d.efa.queueLimits()
	}
	wr, sge := int(d.attr.MaxQPWR), int(d.attr.MaxSGE)
	return QPCaps{MaxSendWR: wr, MaxRecvWR: wr, MaxSendSGE: sge, MaxRecvSGE: sge}
}

// lackingOps adds the operations that the device does not have, although the driver has them.
func (d *Device) lackingOps(ops *opcodeSet) {
	if d.efa != nil {
		d.efa.lackingOps(ops)
	}
}

// The functions that follow are for commands of all drivers in which mlx5 alone has a part.

// closeDriver frees what openContext of the driver has allocated.
func (d *Device) closeDriver() error { return d.mlx5.close() }

// modifyUdata returns the driver's part of MODIFY_QP, and modifyAnswer reads the kernel's response to it.
func (q *QP) modifyUdata() udata {
	if q.dev.mlx5 == nil {
		return udata{}
	}
	return q.modifyUdataMlx5()
}

func (q *QP) modifyAnswer(u udata) error {
	if q.dev.mlx5 == nil {
		return nil
	}
	return q.modifyAnswerMlx5(u)
}

// rateLimits returns the limits of a device, which are zero if it does not limit rates.
func (d *Device) rateLimits() (RateLimits, error) {
	if d.mlx5 == nil {
		return RateLimits{}, nil
	}
	return d.mlx5.rateLimits()
}

// countUdata returns the driver's part of CREATE_FLOW for the first flow that uses counters.
func (d *Device) countUdata() (udata, error) {
	if d.mlx5 == nil {
		return udata{}, nil
	}
	return d.mlx5.countUdata()
}

// abandonResize frees what prepareResize allocated, after the kernel has refused.
func (c *CQ) abandonResize() error {
	if c.mlx5 == nil {
		return nil
	}
	return c.abandonResizeMlx5()
}

// queried corrects the kernel's response to QUERY_SRQ.
func (s *SRQ) queried(a *SRQAttr) {
	if s.mlx5 != nil {
		s.queriedMlx5(a)
	}
}
