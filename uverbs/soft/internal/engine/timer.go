package engine

import (
	"container/heap"
	"sync"
	"time"

	"github.com/goverbs/goverbs/uverbs/soft/internal/fault"
)

// timers wakes the QPs of a device at their deadlines. A QP has one entry at most. A deadline that moves
// to a later time leaves the entry alone, so that a stream of messages does not change the heap; when
// the entry expires, the QP looks at its deadlines and makes another entry.
type timers struct {
	device *Device

	mu       sync.Mutex
	heap     timerHeap     // guarded by mu
	timer    fault.Timer   // guarded by mu
	next     time.Duration // when timer fires; 0: it is stopped. guarded by mu
	expiring bool          // expire runs, and sets the timer at its end. guarded by mu
	closed   bool          // guarded by mu
}

// A timerEntry is a QP's place in the heap.
type timerEntry struct {
	at    time.Duration // since the device was made
	place int           // 1 + the index in the heap; 0: it is not there
}

func (t *timers) init(d *Device) { t.device = d }

// set makes an entry for a QP, or moves the one that it has.
func (t *timers) set(at time.Duration, q *QP) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	q.timer.at = at
	if q.timer.place == 0 {
		heap.Push(&t.heap, q)
	} else {
		heap.Fix(&t.heap, q.timer.place-1)
	}
	t.schedule()
}

// remove removes the entry of a QP, if there is one.
func (t *timers) remove(q *QP) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if q.timer.place != 0 {
		heap.Remove(&t.heap, q.timer.place-1)
	}
}

// schedule sets the timer to the first entry. The caller holds mu.
func (t *timers) schedule() {
	if t.expiring || len(t.heap) == 0 || t.next != 0 && t.next <= t.heap[0].timer.at {
		return
	}
	t.next = t.heap[0].timer.at
	wait := max(t.next-t.device.now(), 0)
	if t.timer == nil {
		t.timer = t.device.config.Clock.AfterFunc(wait, t.expire)
		return
	}
	t.timer.Reset(wait)
}

// dueEntry is an entry whose time has come.
type dueEntry struct {
	at time.Duration
	qp *QP
}

// expire wakes the QPs whose time has come. The clock calls it. The timer is not set before it is done:
// where it has to wait for a processor, further deadlines would each bring a goroutine that waits too.
func (t *timers) expire() {
	now := t.device.now()
	var due []dueEntry
	t.mu.Lock()
	t.next, t.expiring = 0, true
	for len(t.heap) > 0 && t.heap[0].timer.at <= now {
		q := heap.Pop(&t.heap).(*QP)
		due = append(due, dueEntry{q.timer.at, q})
	}
	t.mu.Unlock()
	// The acknowledgements may have come while the process was held up. They move deadlines.
	if len(due) > 0 && t.device.config.Drain != nil {
		t.device.config.Drain()
	}
	for _, e := range due {
		e.qp.expire(e.at, now)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expiring = false
	if !t.closed {
		t.schedule()
	}
}

// close stops the timer for good.
func (t *timers) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, q := range t.heap {
		q.timer.place = 0
	}
	t.closed, t.heap = true, nil
	if t.timer != nil {
		t.timer.Stop()
	}
}

// A timerHeap is a heap of QPs by the time of their entries. Entries of the same time come in any order.
type timerHeap []*QP

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].timer.at < h[j].timer.at }

func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].timer.place, h[j].timer.place = i+1, j+1
}

func (h *timerHeap) Push(x any) {
	q := x.(*QP)
	*h = append(*h, q)
	q.timer.place = len(*h)
}

func (h *timerHeap) Pop() any {
	old := *h
	n := len(old) - 1
	q := old[n]
	old[n] = nil
	*h = old[:n]
	q.timer.place = 0
	return q
}
