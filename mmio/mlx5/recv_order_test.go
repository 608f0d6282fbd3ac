//go:build amd64 || arm64

package mlx5

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestRecvHalfConcurrent posts to a queue that is used in any order in one goroutine and completes the receives
// in another, by both functions. Never are more receives posted than RecvSize.InUse, there is room for as many
// whatever completes meanwhile, and no entry is filled anew before its receive and all earlier ones have completed.
func TestRecvHalfConcurrent(t *testing.T) {
	const count = 50000
	k := newCard(t, Connected, 8, 1, 0)
	size, err := testContext.SizeRecvOutOfOrder(8, 1)
	ok(t, err)
	h := &halfQueue{count: count, most: uint32(size.InUse), entries: uint32(size.Entries)}
	h.q, err = NewRecvQueue(region(t, size.Bytes()), size, k.qpRec)
	ok(t, err)
	done := make(chan string, 1) // what is wrong with the completions
	var completing sync.WaitGroup
	defer completing.Wait() // the queue's memory is freed next
	defer h.stop.Store(true)

	rnd := rand.New(rand.NewPCG(5, 6))
	started, end := false, time.Now().Add(time.Minute)
	for next := uint32(0); next < count; {
		n := min(1+rnd.Uint32N(3), count-next)
		hasRoom := h.room(t, next, n)
		if !hasRoom && !started { // the completions begin
			started = true
			completing.Go(func() { done <- h.complete() })
		}
		if !hasRoom {
			if len(done) > 0 || time.Now().After(end) {
				break // it reports the reason
			}
			runtime.Gosched()
			continue
		}
		for i := range n {
			s := h.q.Slot(int(i), uint64(next+i))
			must(t, s.AddSGE(uint64(next+i), 8, 1))
			s.Finish()
		}
		h.q.Publish(int(n))
		next += n
		h.posted.Store(next)
		if p := h.q.Posted(); p < 0 || p > int(h.most) {
			t.Fatalf("%d receives are posted, at most %d may be", p, h.most)
		}
	}
	if wrong := <-done; wrong != "" {
		t.Fatal(wrong)
	}
	if h.q.Posted() != 0 {
		t.Errorf("%d receives are left", h.q.Posted())
	}
}

// halfQueue is a queue that is used in any order. It counts receives.
type halfQueue struct {
	q                    *RecvQueue
	count, most, entries uint32

	posted         atomic.Uint32 // receives that were published
	before, oldest atomic.Uint32 // those that completed, and the first that did not; stored before the queue is told
	after, first   atomic.Uint32 // the same, stored after it
	stop           atomic.Bool
}

// room returns whether there is room for n receives from the next one on. It checks the answer.
func (h *halfQueue) room(t *testing.T, next, n uint32) bool {
	t.Helper()
	after, first := h.after.Load(), h.first.Load()
	has := h.q.Room(int(n))
	switch out := int32(next + n - h.before.Load()); {
	case !has && next+n-after <= h.most && next+n-first <= h.entries:
		t.Fatalf("no room for %d more receives with %d posted", n, next-after)
	case has && out > int32(h.most):
		t.Fatalf("there is room for %d more receives with %d posted", n, out-int32(n))
	case has && int32(next+n-h.oldest.Load()) > int32(h.entries):
		t.Fatalf("entry %d has room, and receive %d has not completed", next+n-1, h.oldest.Load())
	}
	return has
}

// complete completes receives in random order until all have, and returns what is wrong.
func (h *halfQueue) complete() string {
	rnd := rand.New(rand.NewPCG(7, 8))
	var out []uint32 // posted and not completed, in order
	early := 0
	end := time.Now().Add(time.Minute)
	for seen, n := uint32(0), uint32(0); n < h.count && !h.stop.Load(); {
		for ; seen < h.posted.Load(); seen++ {
			out = append(out, seen)
		}
		if len(out) <= rnd.IntN(8) && seen < h.count { // some receives mostly stay, so that room is calculated with them
			if time.Now().After(end) {
				return "no more receives are posted"
			}
			runtime.Gosched()
			continue
		}
		i := 0
		if rnd.IntN(3) > 0 {
			i = rnd.IntN(len(out))
		}
		at := out[i]
		if i > 0 {
			early++
		}
		out = append(out[:i], out[i+1:]...)
		oldest := seen
		if len(out) > 0 {
			oldest = out[0]
		}
		n++
		h.before.Store(n)
		h.oldest.Store(oldest)
		var addr uint64
		h.q.Scatter(uint16(at), func(a uint64, _, _ uint32) bool { addr = a; return true })
		if _, taken := h.q.CompleteNext(uint16(at)); taken {
			return "CompleteNext has taken a receive, which it does not count"
		}
		id, taken := h.q.Complete(uint16(at))
		if !taken || id != uint64(at) || addr != uint64(at) {
			return "a receive was overwritten before it completed"
		}
		h.after.Store(n)
		h.first.Store(oldest)
	}
	if early < 1000 {
		return "too few receives completed out of order"
	}
	return ""
}
