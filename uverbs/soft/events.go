package soft

import (
	"io"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// Asynchronous events (enum ib_event_type).
const (
	eventDeviceFatal = 8
)

// eventCounter counts the events of an object that the program has read.
type eventCounter struct{ read uint32 }

// event is an event that the program has not read.
type event struct {
	element uint64
	typ     uint32        // of an asynchronous event
	counter *eventCounter // of its object; nil: the event is not counted
}

// eventFile is an event channel: a completion channel or a file of asynchronous events. It is a queue in
// memory, so that an event takes no system call, and many channels no descriptors. Where events come often from the
// network, the channel has a waker.
type eventFile struct {
	number uint32 // in commands
	kind   uint16 // UVERBS_OBJECT_COMP_CHANNEL or UVERBS_OBJECT_ASYNC_EVENT
	net    bool   // events come from the network, too

	mu       sync.Mutex
	changed  sync.Cond          // of mu: for reads that wait
	waker    *waker             // guarded by mu: for reads that wait in the netpoller; nil: there is none
	parked   bool               // guarded by mu: a read waits there
	short    int                // guarded by mu: waits in a row that were short
	began    time.Time          // guarded by mu: when the last wait began
	unread   []event            // guarded by mu: from index first on
	first    int                // guarded by mu
	buf      abi.AsyncEventDesc // guarded by mu: the event that is being read
	opened   bool               // guarded by mu: the program has the file
	ended    bool               // guarded by mu: no further event follows
	closed   bool               // guarded by mu: the program has closed the file
	name     string             // guarded by mu: of the file, for errors
	deadline time.Time          // guarded by mu: of reads; zero: none
	timer    *time.Timer        // guarded by mu: ends reads at the deadline; nil until there is one in the future
}

// newEventFile creates an event channel.
func newEventFile(kind uint16) *eventFile {
	f := &eventFile{kind: kind}
	f.changed.L = &f.mu
	return f
}

// open gives the program the file, once.
func (f *eventFile) open(name string) (kernel.EventFile, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.opened {
		return nil, &os.PathError{Op: "open", Path: name, Err: syscall.EBADF}
	}
	f.opened, f.name = true, name
	return f, nil
}

// async delivers an asynchronous event. The element is the program's number of an object, or that
// of a port. The counter may be nil.
func (f *eventFile) async(typ uint32, element uint64, c *eventCounter) {
	f.deliver(event{element, typ, c})
}

// completion delivers a completion event of a CQ.
func (f *eventFile) completion(cq uint64, c *eventCounter) { f.deliver(event{cq, 0, c}) }

// deliver delivers an event. There may be no channel.
func (f *eventFile) deliver(e event) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended || f.closed {
		return
	}
	if len(f.unread) == cap(f.unread) && f.first > len(f.unread)/2 {
		f.dropRead()
	}
	f.unread = append(f.unread, e)
	if f.parked {
		f.wakeParked()
	} else {
		f.changed.Signal()
	}
}

// Read implements [kernel.EventFile].
func (f *eventFile) Read(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		switch {
		case f.closed:
			return 0, f.readErr(os.ErrClosed)
		case f.late():
			return 0, f.readErr(os.ErrDeadlineExceeded)
		case f.first < len(f.unread):
			return copy(b, f.take()), nil
		case f.ended:
			return 0, io.EOF
		}
		// Not a call deeper than necessary: a goroutine that waits here keeps its stack.
		if w := f.netWaker(); w != nil {
			f.waitNet(w)
		} else {
			f.changed.Wait()
		}
		f.waited()
	}
}

// late reports whether the deadline is over. The caller holds mu.
func (f *eventFile) late() bool { return !f.deadline.IsZero() && !time.Now().Before(f.deadline) }

// readErr returns the error of Read, whose frame has no room for it: that stays on the small stacks of goroutines that
// wait.
//
//go:noinline
func (f *eventFile) readErr(err error) error {
	return &os.PathError{Op: "read", Path: f.name, Err: err}
}

// netWaker begins a wait. It returns the waker to wait with in the netpoller, or nil to wait for changed. The caller
// holds mu.
func (f *eventFile) netWaker() *waker {
	f.began = time.Now()
	if f.short < manyShort || runtime.GOMAXPROCS(0) == 1 {
		return nil
	}
	if f.waker == nil {
		f.waker = newWaker()
	}
	if f.parked {
		return nil
	}
	return f.waker
}

// waitNet waits in the netpoller until something has changed. The caller holds mu.
func (f *eventFile) waitNet(w *waker) {
	f.parked = true
	f.mu.Unlock()
	ok := w.wait()
	f.mu.Lock()
	if !ok { // the next reads wait without it
		f.parked, f.net = false, false
	}
}

// waited counts a wait that is over. The caller holds mu.
func (f *eventFile) waited() {
	if f.short++; !f.net || f.kind != abi.UVERBS_OBJECT_COMP_CHANNEL || time.Since(f.began) >= shortWait {
		f.short = 0
	}
}

// wakeParked wakes the read that waits in the netpoller. The caller holds mu.
func (f *eventFile) wakeParked() {
	if f.parked {
		f.parked = false
		f.waker.wake()
	}
}

// wakeAll wakes all reads. The caller holds mu.
func (f *eventFile) wakeAll() {
	f.wakeParked()
	f.changed.Broadcast()
}

// take takes the first event that is unread, and returns its bytes. The caller holds mu.
func (f *eventFile) take() []byte {
	e := f.unread[f.first]
	if f.first++; f.first == len(f.unread) {
		f.unread, f.first = f.unread[:0], 0
	}
	if e.counter != nil {
		e.counter.read++
	}
	f.buf = abi.AsyncEventDesc{Element: e.element, EventType: e.typ}
	if f.kind == abi.UVERBS_OBJECT_COMP_CHANNEL { // its event is nothing but the element
		return kernel.Bytes(&f.buf.Element)
	}
	return kernel.Bytes(&f.buf)
}

// SetReadDeadline implements [kernel.EventFile].
func (f *eventFile) SetReadDeadline(t time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return &os.PathError{Op: "set deadline", Path: f.name, Err: os.ErrClosed}
	}
	f.deadline = t
	f.wakeAll()
	switch wait := time.Until(t); {
	case t.IsZero() || wait <= 0:
	case f.timer == nil:
		f.timer = time.AfterFunc(wait, f.wake)
	default:
		f.timer.Reset(wait)
	}
	return nil
}

// wake has the reads that wait look at the deadline.
func (f *eventFile) wake() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wakeAll()
}

// Close implements [kernel.EventFile].
func (f *eventFile) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return &os.PathError{Op: "close", Path: f.name, Err: os.ErrClosed}
	}
	f.closed, f.unread, f.first = true, nil, 0
	if f.waker != nil {
		f.waker.close()
		f.waker, f.parked, f.net, f.short = nil, false, false, 0
	}
	if f.timer != nil {
		f.timer.Stop()
	}
	f.wakeAll()
	return nil
}

// forget removes the unread events of a counter, which then has the number of those that were read.
func (f *eventFile) forget(c *eventCounter) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dropRead()
	f.unread = slices.DeleteFunc(f.unread, func(e event) bool { return e.counter == c })
}

// dropRead removes the events that were read from the front of the queue. The caller holds mu.
func (f *eventFile) dropRead() {
	f.unread, f.first = slices.Delete(f.unread, 0, f.first), 0
}

// end lets no further event follow. The program still gets those that are unread, and the file if it
// does not have it yet. Then reads return the end of the file.
func (f *eventFile) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	f.wakeAll()
}

// shut is end for a channel that the program can no longer open.
func (f *eventFile) shut() {
	f.mu.Lock()
	f.opened = true
	f.mu.Unlock()
	f.end()
}
