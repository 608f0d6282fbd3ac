package uverbs

import (
	"encoding/binary"
	"math"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/mmio/siw"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// TestSiwFlushed: what a QP in error is given completes as flushed, behind what the kernel has
// flushed, and so does what the kernel did not see any more.
func TestSiwFlushed(t *testing.T) {
	r := newSiwRig(t)
	must(t, r.qp.PostSend(SendWR{ID: 1, Opcode: WRSend}, SendWR{ID: 2, Opcode: WRSend}), r.qp.PostRecv(11), r.qp.PostRecv(12))
	r.take()
	r.put(1, siw.Send, siw.StatusWRFlushErr, 0) // the kernel flushes one, and the rest comes too late
	r.qp.state.Store(uint32(ib.QPErr))
	siwDriver{}.qpModified(r.qp, ib.QPRTS, ib.QPErr)
	must(t, r.qp.PostSend(SendWR{ID: 3, Opcode: WRRDMAWrite}), r.qp.PostRecv(13), r.qp.PostRecvs(RecvWR{ID: 14}, RecvWR{ID: 15}))
	b := r.qp.BeginSend()
	b.Send(4, 0)
	must(t, b.Post())
	var ids []uint64
	for _, wc := range r.poll(t) {
		if wc.Status != WCWRFlushErr || wc.QPN != 9 {
			t.Errorf("completion is %+v", wc)
		}
		ids = append(ids, wc.ID)
	}
	if diff := cmp.Diff([]uint64{1, 2, 11, 12, 3, 13, 14, 15, 4}, ids); diff != "" {
		t.Errorf("flushed (-want +got):\n%s", diff)
	}
	if again := r.poll(t); len(again) != 0 {
		t.Errorf("then there is %+v", again)
	}
}

// TestSiwFlushedInOrder: what is posted once the QP is in error follows what the kernel has left in
// the rings, also before anybody has looked at these.
func TestSiwFlushedInOrder(t *testing.T) {
	r := newSiwRig(t)
	must(t, r.qp.PostSend(SendWR{ID: 1, Opcode: WRSend}, SendWR{ID: 2, Opcode: WRSend}), r.qp.PostRecv(11), r.qp.PostRecv(12))
	r.qp.state.Store(uint32(ib.QPErr))
	must(t, r.qp.PostSend(SendWR{ID: 3, Opcode: WRSend}), r.qp.PostRecv(13), r.qp.PostRecvs(RecvWR{ID: 14}, RecvWR{ID: 15}))
	siwDriver{}.qpModified(r.qp, ib.QPRTS, ib.QPErr)
	var ids []uint64
	for _, wc := range r.poll(t) {
		ids = append(ids, wc.ID)
	}
	if diff := cmp.Diff([]uint64{1, 2, 3, 11, 12, 13, 14, 15}, ids); diff != "" {
		t.Errorf("flushed (-want +got):\n%s", diff)
	}
	if word := binary.LittleEndian.Uint32(r.rq[2*siwRQESize+siwFlags:]); word != 0 {
		t.Errorf("a receive is published to a QP in error: %#x", word)
	}
}

// TestSiwFlushedTwice: a READ of which the kernel tells twice completes once, and READs that have one
// ID complete as often as they were posted.
func TestSiwFlushedTwice(t *testing.T) {
	for name, c := range map[string]struct{ posted, told, want []uint64 }{
		"of three":         {[]uint64{1, 2, 3}, []uint64{1, 1, 2, 3}, []uint64{1, 2, 3}},
		"the second":       {[]uint64{1, 2, 3}, []uint64{1, 2, 2, 3}, []uint64{1, 2, 3}},
		"no one":           {[]uint64{1, 2, 3}, []uint64{1, 2, 3}, []uint64{1, 2, 3}},
		"of IDs in turn":   {[]uint64{1, 2, 1, 2}, []uint64{1, 2, 1, 1, 2}, []uint64{1, 2, 1, 2}},
		"of all the same":  {[]uint64{7, 7, 7}, []uint64{7, 7, 7}, []uint64{7, 7, 7}},
		"a pair of others": {[]uint64{7, 7, 8}, []uint64{7, 7, 8, 8}, []uint64{7, 7, 8}},
	} {
		r := newSiwRig(t)
		for _, id := range c.posted {
			must(t, r.qp.PostSend(SendWR{ID: id, Opcode: WRRDMARead}, SendWR{ID: id, Opcode: WRSend}))
		}
		r.put(9, siw.Recv, siw.StatusWRFlushErr, 0)
		for i, id := range c.told {
			if i == 2 {
				r.put(9, siw.Recv, siw.StatusWRFlushErr, 0) // of which nothing follows
			}
			r.put(id, siw.Read, siw.StatusWRFlushErr, 0)
		}
		r.qp.state.Store(uint32(ib.QPErr))
		var ids []uint64
		for _, wc := range r.poll(t) {
			if wc.Opcode == WCRDMARead {
				ids = append(ids, wc.ID)
			}
		}
		if diff := cmp.Diff(c.want, ids); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	r := newSiwRig(t)
	must(t, r.qp.PostSend(SendWR{ID: 5, Opcode: WRSend}, SendWR{ID: 5, Opcode: WRSend}))
	r.put(5, siw.Send, siw.StatusWRFlushErr, 0)
	r.put(5, siw.Send, siw.StatusWRFlushErr, 0)
	r.qp.state.Store(uint32(ib.QPErr))
	if n := len(r.poll(t)); n != 2 {
		t.Errorf("%d completions of two SENDs", n)
	}
}

// TestSiwFlushedBesidePoll: what the library completes is not polled before what the kernel has
// completed earlier, even if both come while the CQ is polled. It tries for a while, since that
// takes luck.
func TestSiwFlushedBesidePoll(t *testing.T) {
	r := newSiwRig(t)
	r.qp.state.Store(uint32(ib.QPErr))
	polled, end := new(atomic.Uint64), time.Now().Add(300*time.Millisecond)
	all := make(chan uint64, 1)
	go func() {
		id := uint64(0)
		for ; time.Now().Before(end); id += 2 {
			for polled.Load() < id { // with nothing left, so that polling looks at an empty ring
				runtime.Gosched()
			}
			r.put(id, siw.Send, siw.StatusWRFlushErr, 0)
			r.cq.makeFlushed(r.qp.qpn, WCSend, []uint64{id + 1})
		}
		all <- id
	}()
	wcs := make([]WC, 4)
	for next, last := uint64(0), uint64(math.MaxUint64); next < last; polled.Store(next) {
		for _, wc := range wcs[:value(r.cq.Poll(wcs))(t)] {
			if wc.ID != next {
				t.Fatalf("completion of %d, want %d", wc.ID, next)
			}
			next++
		}
		select {
		case last = <-all:
		default:
		}
	}
}
