package uverbs

import (
	"os"
	"runtime"
	"testing"
	"time"
)

// TestHoldLetsGo: the garbage collector stops every goroutine, so it must not have to
// wait for one that holds; that one sleeps on afterwards and gets its event.
func TestHoldLetsGo(t *testing.T) {
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	defer w.Close()
	h, err := newHolder(r, maxHold, new([eventSize]byte))
	must(t, err)
	got := make(chan int, 1)
	go func() { got <- h.hold() }()
	time.Sleep(20 * time.Millisecond) // most likely it sleeps in the kernel now
	runtime.GC()
	select {
	case <-got:
		t.Fatal("the garbage collector had to wait until the hold was over")
	default:
	}
	if _, err := w.Write(make([]byte, eventSize)); err != nil {
		t.Fatal(err)
	}
	if n := <-got; n != eventSize {
		t.Errorf("%d bytes were read, want %d", n, eventSize)
	}
}
