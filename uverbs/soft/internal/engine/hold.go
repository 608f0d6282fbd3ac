package engine

import (
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/uverbs/soft/internal/fault"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// A program that polls and answers a message sends a packet soon after the acknowledgement of the message, and to the
// same place. If the acknowledgement waits for it, both are segments of one buffer: one system call less at each end.
// It waits until the program sends, polls again, arms a CQ or closes the QP, and no longer than holdTime. If it has
// waited in vain, the next ones go at once.
//
// That is for packets that the program receives by polling. If it waits for an event, the timer costs more than the
// system call.

const (
	holdTime    = 200 * time.Microsecond
	holdPackets = 4  // no more acknowledgements wait
	holdPause   = 32 // batches that do not wait after one that has waited in vain
)

// held are the acknowledgements of a device that wait.
type held struct {
	worker atomic.Pointer[worker] // which has them; nil: there are none
	pause  atomic.Int32           // batches that do not wait
	armed  atomic.Bool            // the timer runs
	timer  fault.Timer            // only the goroutine that has set armed changes it
}

// FlushBehind is Flush, but acknowledgements may wait for packets of the program. It reports whether some do.
func (r *Receiver) FlushBehind() bool {
	w, h := r.worker, &r.device.held
	if w == nil || !w.mayWait() || h.pausing() || !h.worker.CompareAndSwap(nil, w) {
		r.Flush()
		return false
	}
	r.worker = nil
	if !h.armed.Swap(true) {
		if h.timer == nil {
			h.timer = r.device.config.Clock.AfterFunc(holdTime, r.device.holdOver)
		} else {
			h.timer.Reset(holdTime)
		}
	}
	return true
}

// pausing reports whether acknowledgements do not wait now: for a while after others have waited in vain.
func (h *held) pausing() bool {
	if h.pause.Load() <= 0 {
		return false
	}
	h.pause.Add(-1)
	return true
}

// holdOver sends the acknowledgements that have waited until the timer fires.
func (d *Device) holdOver() {
	d.held.armed.Store(false) // first: who lets some wait from now on sets the timer
	d.FlushHeld()
}

// FlushHeld sends the acknowledgements that wait.
func (d *Device) FlushHeld() {
	if d.held.worker.Load() == nil {
		return
	}
	if w := d.held.worker.Swap(nil); w != nil {
		d.held.pause.Store(holdPause)
		w.flush()
		w.release()
	}
}

// mayWait reports whether a worker has nothing but acknowledgements to the network, and the program something to
// answer.
func (w *worker) mayWait() bool {
	n := w.net.Len()
	if !w.received || n == 0 || n > holdPackets || len(w.runnable) > 0 || len(w.responses.packets) > 0 {
		return false
	}
	for i := range n {
		if _, b := w.net.Packet(i); wire.Opcode(b[0]) != wire.Acknowledge || b[wire.BTHSize] != wire.SyndromeACK {
			return false
		}
	}
	return true
}

// takeHeld puts the acknowledgements that wait behind the packets of the worker, if they have the same source. It
// returns their worker, which the caller flushes and releases when it has sent its packets, or nil.
func (w *worker) takeHeld() *worker {
	d := w.netSource.device
	if d.held.worker.Load() == nil {
		return nil
	}
	h := d.held.worker.Swap(nil)
	if h != nil && h.netSource.src == w.netSource.src && w.net.Append(&h.net) {
		h.net.Reset()
		h.netSource = nil
	}
	return h
}
