package uverbs

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// mlx5CQ is the mlx5 part of a CQ.
type mlx5CQ struct {
	mu   mmio.Lock // held while the ring is read; a closing QP removes its completions
	ring *mlx5.CompQueue
	rec  mlx5.Record
	cqe  int       // size of a CQE, in bytes
	time bool      // completions have time stamps
	last lastOwner // guarded by mu
	seen uint32    // guarded by mu: user index of the last completion

	// resizing is held from before the resize command until the new ring is in use, because the
	// completions of a closing QP may be in either ring. It is locked before mu.
	resizing sync.Mutex
	next     mlx5.Successor // while the CQ is being resized; guarded by resizing
	room     *mmio.Region   // memory of next; guarded by resizing
}

// lastOwner is what Poll needs of the QP that had the last completion, which is often the QP of the next one.
type lastOwner struct {
	index uint32 // user index, or NoUserIndex
	sq    *mlx5.SendQueue
	rq    *mlx5.RecvQueue
}

// noOwner is before the first completion, and after a QP of the CQ was closed or reset.
var noOwner = lastOwner{index: mlx5.NoUserIndex}

// Sizes of a CQE in bytes. The smaller one is the default.
const (
	cqe64  = 64
	cqe128 = 128
)

func (mlx5Driver) prepareCQ(c *CQ, o *CQOptions) (u udata, err error) {
	if size := o.CQESize; size != 0 && size != cqe64 && size != cqe128 {
		return udata{}, argErr("CreateCQ", "CQESize", size, "%d, which is the default, or %d", cqe64, cqe128)
	}
	m := c.dev.mlx5
	compressed := o.Flags&CQCompressed != 0
	if compressed {
		if err := c.dev.checkCompressed(o); err != nil {
			return udata{}, err
		}
		o.Flags &^= CQCompressed // which the kernel takes from the driver's part
	}
	n, err := mlx5.SizeCQ(o.Size)
	if err != nil {
		return udata{}, mlx5Size("CreateCQ", err)
	}
	x := &mlx5CQ{cqe: orDefault(o.CQESize, cqe64), time: o.Flags&CQTimestamp != 0, last: noOwner, seen: noOwner.index}
	if x.rec, err = m.records.Take(); err != nil {
		return udata{}, err
	}
	defer func() {
		if err != nil {
			m.records.Give(x.rec)
			err = errors.Join(err, mmio.RetireAll(c.region))
		}
	}()
	if c.region, err = mapRingMemory(n * x.cqe); err != nil {
		return udata{}, err
	}
	mem := c.region.Bytes()
	if x.ring, err = mlx5.NewCompQueue(mem, n, x.cqe, x.rec); err != nil {
		return udata{}, err
	}
	if compressed {
		x.ring.Compress(mlx5.CompressedEntries)
	}
	req := mlx5.CQRequest{Buf: addrOf(mem), Record: x.rec, CQESize: x.cqe, Compressed: compressed, UAR: m.uars.doorbell.id, HasUAR: m.uars.doorbell.object}
	in, long := req.Encode()
	u = udata{in: in, out: make([]byte, mlx5.CQRespSize)}
	if long {
		u.addAttrs = func(cmd *ioctlCommand) { cmd.u32(mlx5.AttrCQUARIndex, req.UAR) }
		u.unsupported = &FeatureError{Feature: "CQs with registers on a page above 65535", Since: Version{6, 10}, Driver: "mlx5"}
	}
	c.mlx5 = x
	o.Size = n - 1
	return u, nil
}

// checkCompressed returns an error if a CQ cannot have the flag CQCompressed.
func (d *Device) checkCompressed(o *CQOptions) error {
	switch {
	case o.CQESize == cqe128:
		return argErr("CreateCQ", "CQESize", cqe128, "%d with CQCompressed", cqe64)
	case o.Flags&CQTimestamp != 0: // a time stamp would be that of another completion
		return argErr("CreateCQ", "Flags", o.Flags, "CQCompressed or CQTimestamp, not both")
	}
	b, err := d.queryMlx5()
	if err == nil && !mlx5.DecodeCompression(b) {
		err = noFeature(d, "CREATE_CQ with "+o.Flags.String())
	}
	return err
}

func (mlx5Driver) mapCQ(c *CQ, u udata) error {
	number, err := mlx5.DecodeCQ(u.out)
	if err != nil {
		return err
	}
	c.cqe.Store(uint32(c.mlx5.ring.Cap()))
	return c.mlx5.ring.SetNumber(number, c.dev.mlx5.uars.doorbell.region.Bytes())
}

func (mlx5Driver) freeCQ(c *CQ) error {
	c.mlx5.mu.Lock() // waits for a Poll that has begun
	c.mlx5.ring = nil
	c.mlx5.mu.Unlock()
	c.dev.mlx5.records.Give(c.mlx5.rec)
	return mmio.RetireAll(c.region)
}

// prepareResize leaves resizing locked if there is something to do; abandonResizeMlx5 and remapCQ unlock it.
func (mlx5Driver) prepareResize(c *CQ, cqe *int) (u udata, ready bool, err error) {
	n, err := mlx5.SizeCQ(*cqe)
	if err != nil {
		return udata{}, false, mlx5Size("Resize", err)
	}
	x := c.mlx5
	x.resizing.Lock()
	defer func() {
		if !ready {
			x.resizing.Unlock()
		}
	}()
	x.mu.Lock()
	ring, there := x.ring, 0
	if ring != nil {
		there = ring.Avail(ring.Cap())
	}
	x.mu.Unlock()
	switch {
	case ring == nil:
		return udata{}, false, ErrCQOverrun
	case n-1 == ring.Cap():
		return udata{}, false, nil
	case there > *cqe: // the kernel does not check this
		return udata{}, false, &Error{Op: "RESIZE_CQ", Device: c.dev.Name(), Errno: syscall.EINVAL, Hint: fmt.Sprintf("there are %d completions in it; poll them first", there)}
	}
	if x.room, err = mapRingMemory(n * x.cqe); err != nil {
		return udata{}, false, err
	}
	if x.next, err = ring.Succeed(x.room.Bytes(), n); err != nil {
		return udata{}, false, errors.Join(err, x.room.Close())
	}
	*cqe = n - 1
	return udata{in: mlx5.EncodeResize(addrOf(x.room.Bytes()), x.cqe), out: make([]byte, 0)}, true, nil
}

func (c *CQ) abandonResizeMlx5() error {
	defer c.mlx5.resizing.Unlock()
	return c.mlx5.room.Close()
}

func (mlx5Driver) remapCQ(c *CQ, _ int, _ udata) (old *mmio.Region, err error) {
	x := c.mlx5
	defer x.resizing.Unlock()
	old = c.region
	x.mu.Lock()
	x.ring, err = x.ring.Switch(x.next) // nil if it fails: the device already uses the new ring
	ring := x.ring
	x.mu.Unlock()
	c.region = x.room
	if err != nil {
		return nil, fmt.Errorf("uverbs: %s: RESIZE_CQ: %w: %w", c.dev.Name(), ErrCQOverrun, errors.Join(err, old.Close()))
	}
	c.cqe.Store(uint32(ring.Cap()))
	return old, nil
}

// armMlx5 arms the CQ.
func (c *CQ) armMlx5(solicited bool) error {
	c.mlx5.mu.Lock()
	defer c.mlx5.mu.Unlock()
	if c.mlx5.ring == nil { // it is being closed
		return c.errClosed()
	}
	c.mlx5.ring.Arm(solicited)
	return nil
}

// eventMlx5 records a completion event.
func (c *CQ) eventMlx5() {
	c.mlx5.mu.Lock()
	if c.mlx5.ring != nil {
		c.mlx5.ring.Event()
	}
	c.mlx5.mu.Unlock()
}

// pollMlx5 is Poll for mlx5; the caller has locked mu. It moves successful sends and receives of QPs, the most frequent
// completions, into wcs, and on amd64 calls no function, so that the compiler keeps its variables in registers. If it returns
// true, the next completion, if there is one, is another, and pollOtherMlx5 must go on. Otherwise mu is unlocked.
func (c *CQ) pollMlx5(wcs []WC) (int, bool) {
	x, m := c.mlx5, c.dev.mlx5
	ring := x.ring
	if ring == nil || !m.UserIndex {
		return 0, true
	}
	// A QP that is closed waits for mu before it is removed from the table.
	if x.seen != x.last.index {
		c.keepOwnerMlx5()
	}
	var sq *mlx5.SendQueue
	var rq *mlx5.RecvQueue
	index, i := uint32(mlx5.NoUserIndex), 0
	for ; i < len(wcs); i++ {
		e, word := ring.Look()
		if !word.Plain() {
			if !word.There() {
				break
			}
			return i, true
		}
		if u := e.UserIndex(); u != index {
			sq, rq, index = x.last.sq, x.last.rq, u
			if u != x.last.index {
				sq, rq, x.seen = nil, nil, u
				if o := m.owners.get(u); o != nil {
					sq, rq = o.sq, o.rq
				}
			}
		}
		wc := &wcs[i]
		if !word.Recv() {
			if sq == nil {
				return i, true
			}
			d := sq.At(word.Counter())
			if !d.Waits(word.Counter()) {
				return i, true // decodeMlx5 returns the error
			}
			id, op := sq.Take(d)
			of := mlx5.SendOp(op)
			*wc = WC{}
			wc.ID, wc.Opcode = id, WCOpcode(of)
			if of.Returns() {
				wc.ByteLen = e.Returned(of)
			}
		} else {
			if rq == nil {
				return i, true
			}
			id, ok := rq.CompleteNext(word.Counter())
			if !ok {
				return i, true // decodeMlx5 handles any other receive
			}
			*wc = WC{}
			wc.ID, wc.Opcode, wc.ByteLen = id, WCRecv, e.ByteCount()
		}
		wc.QPN = e.QPN()
		if x.time {
			wc.Timestamp = e.Timestamp()
		}
		ring.Skip()
	}
	if i > 0 {
		ring.Release(0)
	}
	x.mu.Unlock()
	return i, false
}

// keepOwnerMlx5 keeps the last owner, if it is a QP of c, which cleans c when it ends. The caller has locked mu.
func (c *CQ) keepOwnerMlx5() {
	x := c.mlx5
	if o := c.dev.mlx5.owners.get(x.seen); o != nil && o.qp != nil && (o.qp.sendCQ == c || o.qp.recvCQ == c) {
		x.last = lastOwner{x.seen, o.sq, o.rq}
	} else {
		x.last, x.seen = noOwner, noOwner.index
	}
}

// pollOtherMlx5 goes on after pollMlx5, which has polled n completions. The caller has locked mu.
func (c *CQ) pollOtherMlx5(wcs []WC, n int) (int, error) {
	x := c.mlx5
	for x.ring != nil {
		var e mlx5.CQE
		var err error
		more := n < len(wcs)
		if more {
			if e, more = x.ring.Next(); more {
				err = c.decodeMlx5(e, &wcs[n])
			}
		}
		x.ring.Release(0)
		if more && err == nil {
			n++
		} else if err != errNotShown {
			x.mu.Unlock()
			return n, err
		}
		k, other := c.pollMlx5(wcs[n:])
		if n += k; !other {
			return n, nil
		}
	}
	x.mu.Unlock()
	return 0, c.errClosed()
}

// errNotShown means that a completion was handled and must not be returned to the program.
var errNotShown = errors.New("uverbs: a completion that is not shown")

// decodeMlx5 decodes a completion. An error other than errNotShown means that it matches no posted work request.
func (c *CQ) decodeMlx5(e mlx5.CQE, wc *WC) error {
	*wc = WC{QPN: e.QPN()}
	kind := e.Kind()
	o := c.dev.mlx5.owner(e, kind)
	sends := kind == mlx5.KindSend || kind == mlx5.KindSendError
	if o == nil || kind == mlx5.KindUnknown || sends && o.sq == nil {
		return c.unexpectedMlx5(e)
	}
	if c.mlx5.time && (kind == mlx5.KindSend || kind == mlx5.KindRecv) { // a failed one has its syndromes in this place
		wc.Timestamp = e.Timestamp()
	}
	if sends {
		which, ok := o.sq.Done(e.Counter())
		if !ok {
			return c.unexpectedMlx5(e)
		}
		done := mlx5.SendOp(which.Op())
		if kind == mlx5.KindSend && e.HasInline() {
			d := c.inlineMlx5(e, e.Returned(done))
			o.sq.Scatter(e.Counter(), d.put)
			wc.Status = d.end()
		}
		wc.ID, _ = o.sq.Take(which)
		if kind == mlx5.KindSend {
			wc.Opcode = WCOpcode(done)
			if done.Returns() {
				wc.ByteLen = e.Returned(done)
			}
		}
	} else {
		if kind == mlx5.KindRecvError && o.srq != nil && e.PageFault() {
			if o.srq.repostMlx5(e.Counter()) != nil {
				return c.unexpectedMlx5(e)
			}
			return errNotShown
		}
		if err := c.completeRecvMlx5(e, o, wc); err != nil {
			return err
		}
		if wc.Opcode = WCRecv; kind == mlx5.KindRecv {
			c.decodeRecvMlx5(e, o, wc)
		}
	}
	if kind == mlx5.KindSendError || kind == mlx5.KindRecvError {
		vendor, _ := e.Vendor()
		wc.Status, wc.VendorErr = WCStatus(e.Status()), uint32(vendor)
	}
	if wc.Status != WCSuccess {
		c.failed(wc)
	}
	return nil
}

// owner returns the owner of a completion.
func (m *mlx5Context) owner(e mlx5.CQE, kind mlx5.Kind) *mlx5Owner {
	if m.UserIndex {
		return m.owners.get(e.UserIndex())
	}
	if srq := e.UserIndex(); srq != 0 && (kind == mlx5.KindRecv || kind == mlx5.KindRecvError) {
		return m.srqs.get(srq)
	}
	return m.owners.get(e.QPN())
}

// completeRecvMlx5 sets the ID of a receive and frees its place in the queue.
func (c *CQ) completeRecvMlx5(e mlx5.CQE, o *mlx5Owner, wc *WC) (err error) {
	if s := o.srq; s != nil {
		if e.HasInline() && e.Kind() == mlx5.KindRecv {
			d := c.inlineMlx5(e, e.ByteCount())
			s.scatterMlx5(e.Counter(), d.put)
			wc.Status = d.end()
		}
		if wc.ID, err = s.completeMlx5(e.Counter()); err != nil {
			return c.unexpectedMlx5(e)
		}
		return nil
	}
	rq := o.recvQueue()
	if rq == nil || !rq.Waits(e.Counter()) {
		return c.unexpectedMlx5(e)
	}
	if o.qp != nil && e.HasInline() && e.Kind() == mlx5.KindRecv {
		d := c.inlineMlx5(e, e.ByteCount())
		rq.Scatter(e.Counter(), d.put)
		wc.Status = d.end()
	}
	wc.ID, _ = rq.Complete(e.Counter())
	return nil
}

// decodeRecvMlx5 decodes the completion of a successful receive.
func (c *CQ) decodeRecvMlx5(e mlx5.CQE, o *mlx5Owner, wc *WC) {
	wc.ByteLen = e.ByteCount()
	x := e.Extra()
	if x&(mlx5.HasImm|mlx5.HasInv) != 0 {
		if x&mlx5.HasImm != 0 {
			wc.Imm, wc.Flags = e.Imm(), WCWithImm
		} else {
			wc.InvalidatedRKey, wc.Flags = e.Imm(), WCWithInv
		}
		if x&mlx5.HasWrite != 0 {
			wc.Opcode = WCRecvRDMAWrite
		}
	}
	if o.qp == nil || o.qp.typ != ib.UD {
		raw := o.wq != nil || o.qp != nil && o.qp.typ == ib.RawPacket
		if raw && c.dev.mlx5.UserIndex { // without it the number, which says whose completion it is, is in this place
			wc.QPN, wc.FlowTag = 0, e.QPN()
		}
		if o.qp != nil && (raw || o.qp.typ == ib.DCT) {
			wc.QPN = o.qp.QPN() // the device reports another number
		}
		if tag, ok := e.VLAN(); ok && raw {
			wc.VLAN, wc.Flags = tag, wc.Flags|WCWithVLAN
		}
		if raw {
			wc.Flags |= WCIPChecksumOK * WCFlags(e.Checks())
		}
		return
	}
	if x&mlx5.HasGRH != 0 {
		wc.Flags |= WCWithGRH
	}
	wc.SrcQP, wc.PathBits = e.SrcQP(), e.PathBits()
	if !c.dev.mlx5Ethernet() {
		wc.SL, wc.SLID = e.SL(), e.SLID()
	} else if tag, ok := e.VLAN(); ok { // the bits of the service level have the kind of IP header
		wc.SL = uint8(tag >> 13)
	}
}

// mlx5Ethernet reports whether the ports of the device are Ethernet ports, which all are if the first
// one is. It makes no system call: a UD QP was created, which has asked for the first port.
func (d *Device) mlx5Ethernet() bool {
	p := d.ports.ports[1].Load()
	return p != nil && p.value.LinkLayer == ib.LinkLayerEthernet
}

// mlx5Inline copies data that the device has put into a completion to the memory of the work
// request. Memory outside the MR is not written; the work request then fails, as if the device had
// refused it.
type mlx5Inline struct {
	mrs    *mrIndex
	data   []byte
	status WCStatus
}

// inlineMlx5 returns the data of a completion, which has so many bytes.
func (c *CQ) inlineMlx5(e mlx5.CQE, count uint32) mlx5Inline {
	return mlx5Inline{mrs: &c.dev.mrs, data: c.mlx5.ring.Inline(e, count)}
}

// put copies data to a scatter entry and reports whether some is left.
func (d *mlx5Inline) put(addr uint64, length, lkey uint32) bool {
	mr, to, ok := d.mrs.find(addr, uint32(min(uint64(length), uint64(len(d.data)))), lkey)
	if !ok || mr.access&AccessLocalWrite == 0 {
		d.status = WCLocProtErr
		return false
	}
	d.data = d.data[copy(to, d.data):]
	return len(d.data) > 0
}

// end returns the status of the work request.
func (d *mlx5Inline) end() WCStatus {
	if d.status == WCSuccess && len(d.data) > 0 {
		return WCLocLenErr
	}
	return d.status
}

// unexpectedMlx5 returns the error for a completion that matches no posted work request.
func (c *CQ) unexpectedMlx5(e mlx5.CQE) error {
	return fmt.Errorf("%w: no posted work request matches a completion with opcode %#x of QP %#x, index %#x and entry %d", ErrCQOverrun,
		e.RawOpcode(), e.QPN(), e.UserIndex(), e.Counter())
}

// cleanMlx5 removes the completions of a queue that is being reset or closed.
func (c *CQ) cleanMlx5(o *mlx5Owner) {
	x := c.mlx5
	x.resizing.Lock()
	defer x.resizing.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ring == nil {
		return
	}
	x.last, x.seen = noOwner, noOwner.index
	m := c.dev.mlx5
	x.ring.Sweep(func(e mlx5.CQE) bool {
		kind := e.Kind()
		of := m.owner(e, kind)
		// Without user indices the owner of a receive from an SRQ is the SRQ.
		if of != o && (m.UserIndex || o.qp == nil || e.QPN() != o.qp.QPN()) {
			return false
		}
		if o.qp != nil && o.qp.srq != nil && (kind == mlx5.KindRecv || kind == mlx5.KindRecvError) {
			// An error means that the device wrote an invalid entry; ignoring it loses nothing.
			if kind == mlx5.KindRecvError && e.PageFault() {
				_ = o.qp.srq.repostMlx5(e.Counter())
			} else {
				_ = o.qp.srq.freeMlx5(e.Counter())
			}
		}
		return true
	})
}
