package uverbs

import (
	"context"
	"sync"
	"time"

	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// watch ends reads of a file when the context of the read ends. It keeps its registrations with the last two contexts,
// so that waiting again with one of them costs nothing: a connection alternates between the deadlines of its reads and
// of its writes.
type watch struct {
	mu      sync.Mutex
	done    <-chan struct{} // the Done channel of the read's context, which identifies it
	last    int             // the index in watched of the context that was used last
	watched [2]watched
	late    bool // the file has a deadline in the past
	over    bool // the file is being closed
}

// watched is a context that a watch is registered with.
type watched struct {
	done       <-chan struct{}
	unregister func() bool // of context.AfterFunc; nil if there is no context
	ended      bool
}

// longAgo is a deadline in the past.
var longAgo = time.Unix(1, 0)

// follow makes reads of f end when ctx ends, and no longer when an earlier context does.
func (w *watch) follow(ctx context.Context, f kernel.EventFile) {
	w.mu.Lock()
	defer w.mu.Unlock()
	done := ctx.Done()
	if done == w.done || w.over {
		return
	}
	w.done = done
	if w.late {
		f.SetReadDeadline(time.Time{})
		w.late = false
	}
	if done == nil {
		return
	}
	for i := range w.watched {
		if w.watched[i].done == done {
			w.last = i
			if w.watched[i].ended {
				w.expire(f)
			}
			return
		}
	}
	w.last = 1 - w.last
	slot := &w.watched[w.last]
	slot.drop()
	slot.done = done
	slot.unregister = context.AfterFunc(ctx, func() { w.ended(done, f) })
}

// ended is called when a context ends.
func (w *watch) ended(done <-chan struct{}, f kernel.EventFile) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.watched {
		if w.watched[i].done == done {
			w.watched[i].ended = true
		}
	}
	if w.done == done {
		w.expire(f)
	}
}

// expire ends the reads of f. The caller holds mu.
func (w *watch) expire(f kernel.EventFile) {
	f.SetReadDeadline(longAgo)
	w.late = true
}

// stop ends the watch for good.
func (w *watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over, w.done = true, nil
	for i := range w.watched {
		w.watched[i].drop()
	}
}

// drop ends the registration. A call of ended that has begun then finds another context, or none.
func (s *watched) drop() {
	if s.unregister != nil {
		s.unregister()
	}
	*s = watched{}
}
