package soft

import (
	"os"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// Asynchronous events (enum ib_event_type).
const (
	eventDeviceFatal = 8
)

// eventCounter counts the events of an object that the program has read.
type eventCounter struct{ read uint32 }

// eventFile is an event channel: a completion channel or a file of asynchronous events. It is a
// pipe of which the program has the read end. Events that do not fit into the pipe wait in memory,
// and a goroutine writes them.
//
// The kernel counts the events that the program has read, for the answer of DESTROY. A pipe does
// not say who reads what, so the file remembers the counters of the events in the pipe, in order,
// and compares their number with the number of bytes that are unread.
type eventFile struct {
	number uint32 // in commands
	kind   uint16 // UVERBS_OBJECT_COMP_CHANNEL or UVERBS_OBJECT_ASYNC_EVENT
	size   int    // bytes of an event

	mu      sync.Mutex
	r       int      // guarded by mu: the read end; -1 once the program has it
	w       *pipeEnd // guarded by mu: the write end; nil once it is closed
	waiting []byte   // guarded by mu: events that are not in the pipe yet
	writing bool     // guarded by mu: a goroutine writes them

	// guarded by mu: the counters of the events that are in the pipe or waiting, and of some that
	// were read. A nil counter belongs to an event that is not counted.
	counters []*eventCounter
	checkAt  int // guarded by mu: the number of counters at which to look for events that were read
}

// countersMin is the number of remembered counters below which it is not checked how many events
// were read.
const countersMin = 64

// newEventFile creates an event channel.
func newEventFile(kind uint16) (*eventFile, syscall.Errno) {
	f := &eventFile{kind: kind, size: sizeOf[abi.CompEventDesc](), checkAt: countersMin}
	if kind == abi.UVERBS_OBJECT_ASYNC_EVENT {
		f.size = sizeOf[abi.AsyncEventDesc]()
	}
	var errno syscall.Errno
	f.r, f.w, errno = newPipe()
	return f, errno
}

// open returns the read end, once.
func (f *eventFile) open(name string) (*os.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.r < 0 {
		return nil, &os.PathError{Op: "open", Path: name, Err: syscall.EBADF}
	}
	r := f.r
	f.r = -1
	return kernel.OpenEvents(r, name)
}

// send delivers an event. The counter may be nil.
func (f *eventFile) send(event []byte, c *eventCounter) {
	var gone *pipeEnd
	defer func() { gone.close() }()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.w == nil {
		return
	}
	f.counters = append(f.counters, c)
	if len(f.counters) >= f.checkAt {
		f.count()
		f.checkAt = max(countersMin, 2*len(f.counters))
	}
	if !f.writing {
		switch errno := f.w.write(event); errno {
		case 0:
			return
		case syscall.EAGAIN: // full
		default: // the program has closed the file
			gone = f.detach()
			return
		}
		f.writing = true
		go f.drain(f.w)
	}
	f.waiting = append(f.waiting, event...)
}

// async delivers an asynchronous event. The element is the program's number of an object, or that
// of a port.
func (f *eventFile) async(typ uint32, element uint64, c *eventCounter) {
	if f != nil {
		f.send(kernel.Bytes(&abi.AsyncEventDesc{Element: element, EventType: typ}), c)
	}
}

// completion delivers a completion event of a CQ.
func (f *eventFile) completion(cq uint64, c *eventCounter) {
	if f != nil {
		f.send(kernel.Bytes(&abi.CompEventDesc{CQHandle: cq}), c)
	}
}

// drain writes the events that wait until none is left or the file is closed.
func (f *eventFile) drain(w *pipeEnd) {
	var gone *pipeEnd
	w.whenReady(func() (done bool) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for len(f.waiting) > 0 && f.w == w {
			switch errno := w.write(f.waiting[:f.size]); errno {
			case 0:
				f.waiting = f.waiting[f.size:]
			case syscall.EAGAIN:
				return false
			default:
				gone = f.detach()
			}
		}
		f.waiting, f.writing = nil, false
		return true
	})
	gone.close()
}

// count counts the events that were read and forgets their counters. The caller holds mu.
func (f *eventFile) count() {
	unread := len(f.waiting) / f.size
	if f.w != nil {
		unread += f.w.unread() / f.size
	}
	n := max(0, len(f.counters)-unread)
	for _, c := range f.counters[:n] {
		if c != nil {
			c.read++
		}
	}
	f.counters = append(f.counters[:0], f.counters[n:]...)
}

// reported returns how many events of a counter were read, and ends its use.
func (f *eventFile) reported(c *eventCounter) uint32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count()
	for i := range f.counters {
		if f.counters[i] == c {
			f.counters[i] = nil
		}
	}
	return c.read
}

// shut closes the device's end, after which reads return the end of the file. The read end is
// closed if the program does not have it.
func (f *eventFile) shut() {
	f.mu.Lock()
	f.count()
	w, r := f.detach(), f.r
	f.r = -1
	f.mu.Unlock()
	w.close()
	if r >= 0 {
		syscall.Close(r)
	}
}

// endOfFile closes the write end. The program still gets the events that are in the pipe, and the
// read end if it does not have it yet.
func (f *eventFile) endOfFile() {
	f.mu.Lock()
	f.count()
	w := f.detach()
	f.mu.Unlock()
	w.close()
}

// detach ends the use of the write end and returns it, to be closed without the lock. The caller
// holds mu.
func (f *eventFile) detach() *pipeEnd {
	w := f.w
	f.w = nil
	return w
}
