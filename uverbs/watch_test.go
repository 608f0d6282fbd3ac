package uverbs

import (
	"context"
	"errors"
	"io"
	"os"
	"testing"
	"time"
)

// registered reports whether the watch is registered with a context.
func (w *watch) registered() bool {
	return w.watched[0].unregister != nil || w.watched[1].unregister != nil
}

// watchedPipe returns a watch of an end of a pipe, and the end that is written to.
func watchedPipe(t *testing.T) (w *watch, r, wr *os.File) {
	t.Helper()
	r, wr, err := os.Pipe()
	must(t, err)
	w = &watch{}
	t.Cleanup(func() {
		w.stop()
		r.Close()
		wr.Close()
		if w.registered() {
			t.Error("a watch that was stopped is registered with a context")
		}
	})
	return w, r, wr
}

// expectRead reads a byte, which must be there.
func expectRead(t *testing.T, r, wr *os.File) {
	t.Helper()
	value(wr.Write([]byte{1}))(t)
	value(io.ReadFull(r, make([]byte, 1)))(t)
}

// TestWatchTwoContexts: waits that alternate between two contexts do not allocate; with a third they do.
func TestWatchTwoContexts(t *testing.T) {
	w, r, _ := watchedPipe(t)
	var contexts [3]context.Context
	for i := range contexts {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		contexts[i] = ctx
	}
	alternate := func(n int) float64 {
		return testing.AllocsPerRun(100, func() {
			for _, ctx := range contexts[:n] {
				w.follow(ctx, r)
			}
		})
	}
	if n := alternate(2); n != 0 {
		t.Errorf("waits with two contexts make %v allocations, want 0", n)
	}
	if alternate(3) == 0 {
		t.Error("the test does not see allocations")
	}
}

// TestWatchOtherContext: the end of a context that no read waits for does not end the reads of another, and ends its own
// later ones.
func TestWatchOtherContext(t *testing.T) {
	for range 50 {
		w, r, wr := watchedPipe(t)
		one, cancel := context.WithCancel(t.Context())
		other, cancelOther := context.WithCancel(t.Context())
		w.follow(one, r)
		w.follow(other, r)
		cancel()
		for end := time.Now().Add(10 * time.Second); !w.hasEnded(one); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the end of a context is not noticed")
			}
		}
		expectRead(t, r, wr)
		w.follow(one, r)
		if _, err := r.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("a read whose context has ended: %v", err)
		}
		w.follow(other, r)
		expectRead(t, r, wr)
		w.follow(context.Background(), r)
		cancelOther()
		expectRead(t, r, wr)
	}
}

// hasEnded reports whether the watch knows that ctx has ended.
func (w *watch) hasEnded(ctx context.Context) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.watched {
		if s.done == ctx.Done() && s.ended {
			return true
		}
	}
	return false
}

// TestWatchEndOfReplaced: the end of a context that two later ones have replaced has no effect.
func TestWatchEndOfReplaced(t *testing.T) {
	w, r, wr := watchedPipe(t)
	first, cancel := context.WithCancel(t.Context())
	w.follow(first, r)
	for range 2 {
		ctx, end := context.WithCancel(t.Context())
		defer end()
		w.follow(ctx, r)
	}
	cancel()
	w.ended(first.Done(), r) // a callback that had begun
	expectRead(t, r, wr)
	if w.late {
		t.Error("the file has a deadline")
	}
}

// TestWatchRace: reads with two contexts, each of which may end before, while and after it is followed, end with their
// own context only.
func TestWatchRace(t *testing.T) {
	w, r, wr := watchedPipe(t)
	lasting, stop := context.WithCancel(t.Context())
	defer stop()
	for range 500 {
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		w.follow(ctx, r)
		if _, err := r.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || ctx.Err() == nil {
			t.Fatalf("a read whose context ends: %v, the context: %v", err, ctx.Err())
		}
		w.follow(lasting, r)
		expectRead(t, r, wr)
	}
}
