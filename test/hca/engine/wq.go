package engine

import (
	"bytes"
	"fmt"
)

// wq is a queue of receive WQEs: a QP's own, an RMP, an XRC SRQ or an Ethernet RQ.
type wq struct {
	d      *Device
	n      uint32 // the SRQ's number; of a QP's own queue the QP's
	kind   string // "RQ", "SRQ"
	linked bool   // WQEs lead to each other
	lead   int    // bytes of a WQE before its scatter list: those of a next segment
	padded bool   // an entry's top bit asks for padding at the start, which there is none of (MLX5_HW_START_PADDING)
	spec   SRQSpec
	base   uint64 // where in the buffer the WQEs begin
	pd     *pd
	cq     *cq
	xrcd   *xrcd
	refs   int

	head   uint16 // counts taken WQEs
	next   uint16 // of a linked queue: the index of the WQE to take
	busy   []bool // of a linked queue: WQEs that are taken and not completed
	limit  uint16
	failed bool
	// faulted are WQEs of an SRQ that ended with a page fault which is not resolved.
	faulted map[uint16]bool
	skipped *uint16 // of a QP's own queue: a WQE that was passed over, with ReorderRecvs or unordered

	// unordered says that the driver has asked for receives in any order (dp_ordering_1). It must then leave
	// half of the ring free.
	unordered bool
	kept      *rwqe // of a linked queue: a WQE that was taken and passed over, for the next message of any QP
}

// size is the number of WQEs.
func (w *wq) size() uint32 { return 1 << w.spec.Log }

// rwqe is a receive WQE that is taken.
type rwqe struct {
	w     *wq
	index uint16
	raw   []byte // without the next segment
}

// CreateSRQ makes a shared receive queue.
func (d *Device) CreateSRQ(s SRQSpec) (n uint32, err error) {
	if err := d.lock("SRQ"); err != nil {
		return 0, err
	}
	defer d.f.mu.Unlock()
	if s.Log > d.cfg.Traits.LogMaxSRQSize {
		return 0, refuse(BadParam, "SRQ", 0, "log_wq_sz", "2^%d WQEs", s.Log)
	}
	if s.LogStride < 5 || s.LogStride > 9 {
		return 0, refuse(BadParam, "SRQ", 0, "log_wq_stride", "2^%d bytes", s.LogStride)
	}
	if err := s.Buf.check(d, "SRQ", 1<<(s.Log+s.LogStride)); err != nil {
		return 0, err
	}
	if err := d.checkDBR("SRQ", s.DBR); err != nil {
		return 0, err
	}
	if uint32(s.Limit) >= 1<<s.Log {
		return 0, refuse(BadParam, "SRQ", 0, "lwm", "%d of %d WQEs", s.Limit, 1<<s.Log)
	}
	w := &wq{d: d, kind: "SRQ", linked: true, lead: nextSegBytes, spec: s, limit: s.Limit, busy: make([]bool, 1<<s.Log), faulted: map[uint16]bool{}}
	if s.XRC {
		if d.xrcds[s.XRCD] == nil {
			return 0, refuse(BadResource, "SRQ", 0, "xrcd", "XRCD %#x does not exist", s.XRCD)
		}
		if d.cqs[s.CQN] == nil {
			return 0, refuse(BadResource, "SRQ", 0, "cqn", "CQ %#x does not exist", s.CQN)
		}
	}
	if w.n, err = number(d, "SRQ", firstSRQN, d.srqs); err != nil {
		return 0, err
	}
	if w.pd, err = d.usePD("SRQ", s.PD); err != nil {
		return 0, err
	}
	if s.XRC {
		w.cq, w.xrcd = d.cqs[s.CQN], d.xrcds[s.XRCD]
		w.cq.refs++
		w.xrcd.refs++
	}
	d.srqs[w.n] = w
	return w.n, nil
}

// ArmSRQ asks for an event when fewer than limit WQEs are left; 0 takes it back.
func (d *Device) ArmSRQ(n uint32, limit uint16) error {
	if err := d.lock("SRQ"); err != nil {
		return err
	}
	defer d.f.mu.Unlock()
	w := d.srqs[n]
	if w == nil {
		return unknown("SRQ", n)
	}
	if uint32(limit) >= w.size() {
		return refuse(BadParam, "SRQ", n, "lwm", "%d of %d WQEs", limit, w.size())
	}
	w.limit = limit
	w.checkLimit()
	return nil
}

// QuerySRQ says what a shared receive queue is like now. Its Limit is 0 once the event
// was written.
func (d *Device) QuerySRQ(n uint32) (SRQSpec, error) {
	if err := d.lock("SRQ"); err != nil {
		return SRQSpec{}, err
	}
	defer d.f.mu.Unlock()
	w := d.srqs[n]
	if w == nil {
		return SRQSpec{}, unknown("SRQ", n)
	}
	s := w.spec
	s.Limit, s.Failed = w.limit, w.failed
	return s, nil
}

// DestroySRQ removes a shared receive queue that no QP uses.
func (d *Device) DestroySRQ(n uint32) error {
	if err := d.lock("SRQ"); err != nil {
		return err
	}
	defer d.f.mu.Unlock()
	w := d.srqs[n]
	if w == nil {
		return unknown("SRQ", n)
	}
	if w.refs > 0 {
		return refuse(Busy, "SRQ", n, "", "%d QPs use it", w.refs)
	}
	w.pd.refs--
	if w.cq != nil {
		w.cq.refs--
		w.xrcd.refs--
	}
	delete(d.srqs, n)
	return nil
}

// posted says how many WQEs the driver has posted that are not taken.
func (w *wq) posted() (uint16, bool) {
	v, err := w.d.load32(w.spec.DBR)
	if err != nil {
		w.fail(fmt.Sprintf("the doorbell record can't be read: %v", err))
		return 0, false
	}
	if v>>16 != 0 {
		w.d.violate("rq-record-reserved", w.qpn(), "%s %#x: the doorbell record is %#x, and has 16 bits", w.kind, w.n, v)
	}
	left := uint16(v) - w.head
	if uint32(left) > w.size() {
		w.d.violate("rq-record", w.qpn(), "%s %#x of %d WQEs: the doorbell record says %#x while %#x are taken: %d posted", w.kind, w.n, w.size(), uint16(v), w.head, left)
		w.fail("its doorbell record is not of this ring")
		return 0, false
	}
	if w.kept != nil {
		return left + 1, true
	}
	free := uint32(left)
	if w.skipped != nil { // the one behind it is taken
		free--
	}
	if w.unordered && free > w.size()/2 {
		w.d.violate("rq-unordered-depth", w.qpn(), "%s %#x of %d WQEs is used in any order, and has %d posted, more than half", w.kind, w.n, w.size(), free)
	}
	return left, true
}

// qpn is the QP whose own queue it is.
func (w *wq) qpn() uint32 {
	if w.linked {
		return 0
	}
	return w.n
}

// fail stops a shared queue.
func (w *wq) fail(why string) {
	if w.failed {
		return
	}
	w.failed = true
	w.d.trace(TraceEvent{Kind: TraceDrop, Number: w.n, Text: fmt.Sprintf("%s %#x failed: %s", w.kind, w.n, why)})
	if w.kind == "SRQ" {
		w.d.objectEvent(EventSRQCatas, 0, w.n)
	}
}

// takeFor takes a WQE for a message of a QP, if there is one. Of a linked queue a QP with QPAttr.OutOfOrder
// takes the next one or the one behind it: messages come in another order than they are completed in.
func (w *wq) takeFor(q *qp) (*rwqe, bool) {
	r, ok := w.take()
	if !ok || !w.linked || w.kept != nil || !q.attr.OutOfOrder || !w.d.coin() {
		return r, ok
	}
	second, ok := w.take()
	if !ok {
		return r, true
	}
	w.kept = r
	return second, true
}

// take takes the next WQE, if there is one.
func (w *wq) take() (*rwqe, bool) {
	left, ok := w.posted()
	if !ok || left == 0 || w.failed {
		return nil, false
	}
	if r := w.kept; r != nil {
		w.kept = nil
		return r, true
	}
	index, step := w.head, uint16(1)
	switch {
	case w.linked:
		index = w.next
	case w.skipped != nil: // and the one behind it is taken
		index, step, w.skipped = *w.skipped, 2, nil
	case w.reorder(left):
		w.skipped = new(w.head)
		index, step = w.head+1, 0
	}
	stride := uint64(1) << w.spec.LogStride
	raw := make([]byte, stride)
	if err := w.d.readBuf(&w.spec.Buf, w.base+uint64(uint32(index)&(w.size()-1))*stride, raw); err != nil {
		w.fail(fmt.Sprintf("WQE %d can't be read: %v", index, err))
		return nil, false
	}
	if w.linked && !w.follow(index, raw) {
		return nil, false
	}
	w.head += step
	w.d.trace(TraceEvent{Kind: TraceRecv, Number: w.n, Index: uint32(index), Raw: raw})
	raw = raw[w.lead:]
	if w.limit != 0 {
		w.checkLimit()
	}
	return &rwqe{w: w, index: index, raw: raw}, true
}

// reorder reports whether the next WQE is passed over for the one behind it, and taken after that.
func (w *wq) reorder(left uint16) bool {
	// Not in a ring that is nearly full: a driver that counts completions would post over the WQE that was passed over.
	return (w.d.cfg.Traits.ReorderRecvs || w.unordered) && w.kind == "RQ" && !w.padded && left >= 2 && uint32(left) <= w.size()/2 && w.d.coin()
}

// nextSegBytes is the size of struct mlx5_wqe_srq_next_seg.
const nextSegBytes = 16

// follow goes on to the WQE that a linked one leads to.
func (w *wq) follow(index uint16, raw []byte) bool {
	if w.busy[index] {
		w.d.violate("srq-ownership", 0, "SRQ %#x leads to WQE %d, which hardware has taken and not completed", w.n, index)
		w.fail("its list is broken")
		return false
	}
	if w.faulted[index] {
		w.d.violate("srq-fault-reuse", 0, "SRQ %#x leads to WQE %d, whose page fault is not resolved", w.n, index)
	}
	if raw[0]|raw[1] != 0 || !zero(raw[5:nextSegBytes]) {
		w.d.violate("srq-reserved", 0, "SRQ %#x WQE %d: reserved bytes of the next segment are set: %x", w.n, index, raw[:nextSegBytes])
	}
	next := be.Uint16(raw[2:])
	if uint32(next) >= w.size() {
		w.d.violate("srq-next", 0, "SRQ %#x WQE %d leads to WQE %d of %d", w.n, index, next, w.size())
		w.fail("its list leads out of the ring")
		return false
	}
	w.busy[index] = true
	w.next = next
	return true
}

// zero reports whether all bytes are zero.
func zero(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}

// complete says that a taken WQE is about to be completed. It is hardware's until then.
func (r *rwqe) complete() {
	w := r.w
	now := make([]byte, len(r.raw))
	at := w.base + uint64(uint32(r.index)&(w.size()-1))<<w.spec.LogStride + uint64(w.lead)
	if err := w.d.readBuf(&w.spec.Buf, at, now); err == nil && !bytes.Equal(now, r.raw) {
		w.d.violate("rq-changed", w.qpn(), "%s %#x WQE %d was changed while hardware had it, from %x to %x", w.kind, w.n, r.index, r.raw, now)
	}
	r.done()
}

// done says that hardware has a taken WQE no more.
func (r *rwqe) done() {
	if r.w.linked {
		r.w.busy[r.index] = false
	}
}

// checkLimit writes the limit event if it is due.
func (w *wq) checkLimit() {
	left, ok := w.posted()
	if w.limit != 0 && ok && left < w.limit {
		w.limit = 0
		w.d.objectEvent(EventSRQLimit, 0, w.n)
	}
}

// reset makes a QP's own queue as new.
func (w *wq) reset() { w.head, w.next, w.failed, w.skipped, w.kept = 0, 0, false, nil, nil }
