package soft

import (
	"os"
	"slices"
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
// The kernel counts the events of an object that the program has read, for the answer of DESTROY, and
// removes those that it has not read. A pipe does not show which events were read, so the file remembers the
// counters of the events in the pipe, in order, and compares their number with the number of bytes
// that are unread.
type eventFile struct {
	number uint32 // in commands
	kind   uint16 // UVERBS_OBJECT_COMP_CHANNEL or UVERBS_OBJECT_ASYNC_EVENT
	size   int    // bytes of an event

	mu      sync.Mutex
	r       int                // guarded by mu: the read end; -1 once file is
	file    *os.File           // guarded by mu: the read end that the program has; nil until then
	w       *pipeEnd           // guarded by mu: the write end; nil once it is closed
	event   abi.AsyncEventDesc // guarded by mu: the event that is being written
	waiting []byte             // guarded by mu: events that are not in the pipe yet
	writing bool               // guarded by mu: a goroutine writes them

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
	f := &eventFile{kind: kind, size: len(kernel.Bytes(new(abi.CompEventDesc))), checkAt: countersMin}
	if kind == abi.UVERBS_OBJECT_ASYNC_EVENT {
		f.size = len(kernel.Bytes(new(abi.AsyncEventDesc)))
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
	file, err := kernel.OpenEvents(f.r, name)
	f.r, f.file = -1, file
	return file, err
}

// async delivers an asynchronous event. The element is the program's number of an object, or that
// of a port. The counter may be nil.
func (f *eventFile) async(typ uint32, element uint64, c *eventCounter) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.event = abi.AsyncEventDesc{Element: element, EventType: typ}
	f.send(kernel.Bytes(&f.event), c)
}

// completion delivers a completion event of a CQ.
func (f *eventFile) completion(cq uint64, c *eventCounter) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.event.Element = cq // a completion event is nothing but the element
	f.send(kernel.Bytes(&f.event.Element), c)
}

// send delivers an event. The caller holds mu.
func (f *eventFile) send(event []byte, c *eventCounter) {
	if len(f.counters) >= f.checkAt {
		f.count()
	}
	f.put(event, c)
}

// put writes an event to the pipe, or lets it wait. The caller holds mu.
func (f *eventFile) put(event []byte, c *eventCounter) {
	if f.w == nil {
		return
	}
	if len(f.waiting) == 0 {
		switch f.w.write(event) {
		case 0:
			f.counters = append(f.counters, c)
			return
		case syscall.EAGAIN: // full
		default: // the program has closed the file
			return
		}
	}
	f.counters = append(f.counters, c)
	f.waiting = append(f.waiting, event...)
	if !f.writing {
		f.writing = true
		go f.drain(f.w)
	}
}

// drain writes the events that wait until none is left or the file is closed.
func (f *eventFile) drain(w *pipeEnd) {
	w.whenReady(func() (done bool) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for len(f.waiting) > 0 && f.w == w {
			if errno := w.write(f.waiting[:f.size]); errno == syscall.EAGAIN {
				return false
			}
			f.waiting = f.waiting[f.size:]
		}
		f.waiting, f.writing = nil, false
		return true
	})
}

// count counts the events that were read and forgets their counters. The caller holds mu.
func (f *eventFile) count() {
	if f.w != nil {
		f.countBut((f.unread() + len(f.waiting)) / f.size)
	}
}

// countBut is count if a number of events is unread.
func (f *eventFile) countBut(unread int) {
	n := max(0, len(f.counters)-unread)
	for _, c := range f.counters[:n] {
		if c != nil {
			c.read++
		}
	}
	f.counters = append(f.counters[:0], f.counters[n:]...)
	f.checkAt = max(countersMin, 2*len(f.counters))
}

// forget removes the unread events of a counter, which then has the number of those that were read.
func (f *eventFile) forget(c *eventCounter) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count()
	if f.w == nil || !slices.Contains(f.counters, c) {
		return
	}
	unread := f.takeBack()
	if unread == nil {
		return
	}
	unread = append(unread, f.waiting...)
	f.waiting = nil
	f.countBut(len(unread) / f.size) // the program may have read some meanwhile
	counters := f.counters
	f.counters = nil
	for i, other := range counters {
		if other != c {
			f.put(unread[i*f.size:][:f.size], other)
		}
	}
}

// takeBack takes all events out of the pipe. It returns nil if it cannot, because the program has
// closed the file. The caller holds mu.
func (f *eventFile) takeBack() (all []byte) {
	f.withReader(func(fd int) { all = readAll(fd) })
	return all
}

// unread returns the number of bytes in the pipe, 0 if the program has closed the file. The caller
// holds mu.
func (f *eventFile) unread() (n int) {
	f.withReader(func(fd int) { n = unread(fd) })
	return n
}

// withReader calls do with the read end unless it is closed. The caller holds mu.
func (f *eventFile) withReader(do func(fd int)) {
	if f.file == nil {
		do(f.r)
		return
	}
	if raw, err := f.file.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { do(int(fd)) })
	}
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
		closeEnd(r)
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
