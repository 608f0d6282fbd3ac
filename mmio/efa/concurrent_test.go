//go:build amd64 || arm64

package efa

import (
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/goverbs/goverbs/mmio"
)

// device completes requests that the doorbell announces, the later ones of those that it sees first, and one in 64 much
// later. It stops when all have completed.
func (r *rig) device(total int) {
	bell := (*uint32)(r.sq.bell)
	var late []uint16
	for done := 0; done < total; {
		shown := uint16(atomic.LoadUint32(bell))
		mmio.FromDevice()
		if shown == uint16(r.sent) {
			for _, id := range late {
				r.complete(0, entry(id, 0, entrySend, 1))
			}
			late = late[:0]
			runtime.Gosched()
			continue
		}
		var ids []uint16 // read in order, before a completion makes room for others
		for _, w := range r.announced(shown) {
			ids = append(ids, idOf(w))
		}
		for _, id := range slices.Backward(ids) {
			if done++; done%64 == 0 {
				late = append(late, id)
				continue
			}
			r.complete(0, entry(id, 0, entrySend, 1))
		}
	}
	for _, id := range late {
		r.complete(0, entry(id, 0, entrySend, 1))
	}
}

// TestConcurrently posts in one goroutine and polls in another, with the device in a third: every request
// completes once, and the race detector sees that the goroutines share nothing else.
func TestConcurrently(t *testing.T) {
	const total, depth = 10000, 16
	size := SendSize{Depth: depth, Width: 64, MaxSGE: 1, Batch: 7}
	r := newRig(t, size, RecvSize{MaxWR: 1, MaxSGE: 1, Descriptors: 1}, 1, 2*depth)
	// The race detector does not know that a doorbell orders accesses: memory that the device shares is not its.
	outside := func(n int) []byte {
		region := must[*mmio.Region](t)(mmio.MapAnonymous(n, false))
		t.Cleanup(func() { region.Retire() })
		return region.Bytes()
	}
	r.llq, r.peer.cq, r.sendBell = outside(size.Bytes()), outside(2*depth*EntrySize), outside(4)
	r.sq = must[*SendQueue](t)(NewSendQueue(r.llq, r.sendBell, size, 1))
	r.cq = must[*CompQueue](t)(NewCompQueue(r.peer.cq, nil, 1, 2*depth))
	go r.device(total)
	go func() {
		for id, batch := 0, 1; id < total; batch = batch%depth + 1 {
			n := min(batch, total-id)
			if !r.sq.Room(n) {
				runtime.Gosched()
				continue
			}
			for i := range n {
				if err := r.sq.put(i, uint64(id+i), Send, 0, Peer{}, 0, 0, 1, uint32(id+i), 1); err != nil {
					t.Error(err)
				}
			}
			r.sq.Publish(n)
			id += n
		}
	}()
	seen := make([]bool, total)
	for done := 0; done < total; {
		c, ok := next(r.cq)
		if !ok {
			runtime.Gosched()
			continue
		}
		id, op, length, ok := r.sq.Complete(c.ReqID())
		if !ok || id >= total || seen[id] || op != Send || length != uint32(id) {
			t.Fatalf("completion %d: request %d, operation %d, %d bytes, %v", done, id, op, length, ok)
		}
		seen[id] = true
		done++
	}
	if n := r.sq.Posted(); n != 0 {
		t.Errorf("%d are posted", n)
	}
}
