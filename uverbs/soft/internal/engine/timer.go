package engine

import (
	"container/heap"
	"sync"
	"time"
)

// timers wakes the QPs of a device at their deadlines. A QP has at most one entry that counts: the
// one of QP.timerAt. A deadline that moves to a later time leaves its entry alone, so that a stream
// of messages does not change the heap; when the entry expires, the QP looks at its deadlines and
// makes another entry.
type timers struct {
	device *Device

	mu     sync.Mutex
	heap   timerHeap     // guarded by mu
	timer  Timer         // guarded by mu
	next   time.Duration // when timer fires; 0: it is stopped. guarded by mu
	closed bool          // guarded by mu
}

// A timerEntry wakes a QP.
type timerEntry struct {
	at time.Duration // since the device was made
	qp *QP
}

func (t *timers) init(d *Device) { t.device = d }

// add makes an entry.
func (t *timers) add(at time.Duration, q *QP) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	heap.Push(&t.heap, timerEntry{at: at, qp: q})
	t.schedule()
}

// schedule sets the timer to the first entry. The caller holds mu.
func (t *timers) schedule() {
	if len(t.heap) == 0 || t.next != 0 && t.next <= t.heap[0].at {
		return
	}
	t.next = t.heap[0].at
	wait := max(t.next-t.device.now(), 0)
	if t.timer == nil {
		t.timer = t.device.config.Clock.AfterFunc(wait, t.expire)
		return
	}
	t.timer.Reset(wait)
}

// expire wakes the QPs whose time has come. The clock calls it.
func (t *timers) expire() {
	now := t.device.now()
	var due []timerEntry
	t.mu.Lock()
	t.next = 0
	for len(t.heap) > 0 && t.heap[0].at <= now {
		due = append(due, heap.Pop(&t.heap).(timerEntry))
	}
	if !t.closed {
		t.schedule()
	}
	t.mu.Unlock()
	for _, e := range due {
		e.qp.expire(e.at, now)
	}
}

// close stops the timer for good.
func (t *timers) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed, t.heap = true, nil
	if t.timer != nil {
		t.timer.Stop()
	}
}

// A timerHeap is a heap of entries by time. Entries of the same time come in any order.
type timerHeap []timerEntry

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h timerHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *timerHeap) Push(x any)        { *h = append(*h, x.(timerEntry)) }

func (h *timerHeap) Pop() any {
	old := *h
	n := len(old) - 1
	e := old[n]
	old[n] = timerEntry{}
	*h = old[:n]
	return e
}
