package uverbs

import (
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// TestHoldLetsGo: the garbage collector looks at every goroutine's stack, so it must not
// have to wait for one that holds; that one sleeps on afterwards and gets its event. A
// slow machine has five chances: a hold that does not let go uses none of them.
func TestHoldLetsGo(t *testing.T) {
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	defer w.Close()
	h, err := newBusyWaiter(r, maxBusyWait, new([eventSize]byte))
	must(t, err)
	defer h.close()
	for range 5 {
		got := make(chan int, 1)
		go func() {
			n, _ := h.wait(new(atomic.Pointer[CQ]), false)
			got <- n
		}()
		time.Sleep(20 * time.Millisecond) // most likely it sleeps in the kernel now
		runtime.GC()
		select {
		case <-got: // the time was over before the collector was done
			continue
		default:
		}
		if _, err := w.Write(make([]byte, eventSize)); err != nil {
			t.Fatal(err)
		}
		if n := <-got; n != eventSize {
			t.Errorf("%d bytes were read, want %d", n, eventSize)
		}
		return
	}
	t.Error("the garbage collector has to wait until a hold is over")
}
