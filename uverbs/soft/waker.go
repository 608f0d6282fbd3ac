package soft

import (
	"os"
	"sync/atomic"
	"time"
)

// A goroutine that a mutex or a condition wakes is run by another thread, which the scheduler wakes for that. The
// goroutine that receives packets is about to wait for the next ones: its own thread could go on with the one that it
// has woken. That is what happens to goroutines that the netpoller wakes. So a reader for which events come often from
// the network waits in the netpoller. On two processors that halves the time of a message between two processes. If
// GOMAXPROCS is 1, there is no other thread, and a condition takes less time.

// Waits that last less than shortWait count as short, and behind manyShort of them the next one is in the netpoller.
const (
	shortWait = time.Millisecond
	manyShort = 8
)

// mostWakers is the number of channels of the process that have a waker: each takes a descriptor.
const mostWakers = 64

// openWakers is the number of wakers of the process.
var openWakers atomic.Int32

// A waker lets a goroutine wait in the netpoller.
type waker struct {
	file *os.File
	buf  [8]byte // of wait
}

// one is what wake writes: an eventfd adds it to its number.
var one = [8]byte{1}

// newWaker opens a waker, or returns nil if there are too many or none can be opened.
func newWaker() *waker {
	if openWakers.Add(1) <= mostWakers {
		if file, err := openWaker(); err == nil {
			return &waker{file: file}
		}
	}
	openWakers.Add(-1)
	return nil
}

// wait waits for wake. It reports false if it cannot, or if close has ended it.
func (w *waker) wait() bool {
	_, err := w.file.Read(w.buf[:])
	return err == nil
}

// wake ends wait, or the next one.
func (w *waker) wake() { w.file.Write(one[:]) }

// close ends wait, and releases the descriptor.
func (w *waker) close() {
	w.file.Close()
	openWakers.Add(-1)
}
