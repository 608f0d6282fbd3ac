package soft

import (
	"encoding/binary"
	"io"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// newChannel returns a completion channel and the program's end.
func newChannel(t *testing.T) (*eventFile, *os.File) {
	t.Helper()
	f, errno := newEventFile(abi.UVERBS_OBJECT_COMP_CHANNEL)
	if errno != 0 {
		t.Fatal(errno)
	}
	file, err := f.open("channel")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.shut()
		file.Close()
	})
	return f, file
}

// readEvent reads one completion event.
func readEvent(t *testing.T, file *os.File) uint64 {
	t.Helper()
	var b [8]byte
	if _, err := io.ReadFull(file, b[:]); err != nil {
		t.Fatal(err)
	}
	return binary.NativeEndian.Uint64(b[:])
}

// empty fails the test if there is an event to read.
func empty(t *testing.T, file *os.File) {
	t.Helper()
	raw, err := file.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		if n := unread(int(fd)); n != 0 {
			t.Errorf("%d bytes are in an empty channel", n)
		}
	})
}

// TestEvents delivers events in order, each in a read of its own.
func TestEvents(t *testing.T) {
	f, file := newChannel(t)
	var a, b eventCounter
	for i := range uint64(5) {
		f.completion(100+i, []*eventCounter{&a, &b}[i%2])
	}
	for i := range uint64(5) {
		if got := readEvent(t, file); got != 100+i {
			t.Errorf("event %d, want %d", got, 100+i)
		}
	}
	empty(t, file)
	if f.count(); a.read != 3 || b.read != 2 {
		t.Errorf("%d and %d events were read, want 3 and 2", a.read, b.read)
	}
	if _, err := f.open("again"); err == nil {
		t.Error("the file can be opened twice")
	}
}

// TestManyEvents: more events than fit into a pipe are all delivered, in order, while the number of
// counters that are remembered stays in proportion to the events that are unread.
func TestManyEvents(t *testing.T) {
	const n = 3 * pipeSize / 8
	f, file := newChannel(t)
	var c eventCounter
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range uint64(n) {
			f.completion(i, &c)
		}
	})
	wg.Wait() // nobody reads, so that most events wait
	f.mu.Lock()
	if f.count(); !f.writing || len(f.counters) != n || len(f.waiting) == 0 {
		t.Errorf("%d counters, %d bytes wait, writing: %t", len(f.counters), len(f.waiting), f.writing)
	}
	f.mu.Unlock()
	for i := range uint64(n) {
		if got := readEvent(t, file); got != i {
			t.Fatalf("event %d, want %d", got, i)
		}
	}
	f.forget(&c)
	if c.read != n {
		t.Errorf("%d events were read, want %d", c.read, n)
	}
	for i := range uint64(100 * countersMin) {
		f.completion(i, &c)
		if readEvent(t, file) != i || len(f.counters) > countersMin {
			t.Fatalf("event %d: %d counters are remembered", i, len(f.counters))
		}
	}
}

// TestForgetEvents: the unread events of an object that is destroyed are removed, those of others stay.
func TestForgetEvents(t *testing.T) {
	for _, opened := range []bool{true, false} {
		f, errno := newEventFile(abi.UVERBS_OBJECT_COMP_CHANNEL)
		if errno != 0 {
			t.Fatal(errno)
		}
		defer f.shut()
		var file *os.File
		open := func() {
			var err error
			if file, err = f.open("channel"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { file.Close() })
		}
		if opened {
			open()
		}
		var a, b eventCounter
		for i := range uint64(6) {
			f.completion(i, []*eventCounter{&a, &b}[i%2])
		}
		if opened {
			readEvent(t, file) // of a
			readEvent(t, file) // of b
		}
		f.forget(&a)
		if want := flagOf(opened); a.read != want {
			t.Errorf("%d events of the first object were read, want %d", a.read, want)
		}
		if !opened {
			open()
			readEvent(t, file)
		}
		for _, want := range []uint64{3, 5} {
			if got := readEvent(t, file); got != want {
				t.Errorf("event %d, want %d", got, want)
			}
		}
		empty(t, file)
		if f.forget(&b); b.read != 3 {
			t.Errorf("%d events of the second object were read, want 3", b.read)
		}
	}
}

func flagOf(b bool) uint32 { return uint32(flag(b)) }

// TestForgetWaitingEvents removes events of which most do not fit into the pipe.
func TestForgetWaitingEvents(t *testing.T) {
	const n = 3 * pipeSize / 8
	f, file := newChannel(t)
	var a, b eventCounter
	for i := range uint64(n) {
		c := &a
		if i >= n-2 {
			c = &b
		}
		f.completion(i, c)
	}
	f.forget(&a)
	if got := []uint64{readEvent(t, file), readEvent(t, file)}; !slices.Equal(got, []uint64{n - 2, n - 1}) || a.read != 0 {
		t.Errorf("events %d, %d of the others were read", got, a.read)
	}
	empty(t, file)
}

// TestForgetWhileReading: a reader gets every event of an object that is not removed, once and in
// order, while those of another one are.
func TestForgetWhileReading(t *testing.T) {
	f, file := newChannel(t)
	const n = 2000
	var kept eventCounter
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range uint64(n) {
			gone := new(eventCounter)
			f.completion(1<<32, gone)
			f.completion(i, &kept)
			f.forget(gone)
		}
	})
	for next := uint64(0); next < n; {
		switch got := readEvent(t, file); got {
		case 1 << 32:
		case next:
			next++
		default:
			t.Fatalf("event %d, want %d", got, next)
		}
	}
	wg.Wait()
	if f.forget(&kept); kept.read != n {
		t.Errorf("%d events were read, want %d", kept.read, n)
	}
}

// TestEventsAfterClose: a channel that the program or the device has closed takes events without
// effect.
func TestEventsAfterClose(t *testing.T) {
	before := numFiles(t)
	f, errno := newEventFile(abi.UVERBS_OBJECT_ASYNC_EVENT)
	if errno != 0 {
		t.Fatal(errno)
	}
	file, err := f.open("channel")
	if err != nil {
		t.Fatal(err)
	}
	var c eventCounter
	f.async(3, 4, &c)
	var ev abi.AsyncEventDesc
	if n, err := file.Read(kernel.Bytes(&ev)); n != 16 || ev.EventType != 3 || ev.Element != 4 {
		t.Errorf("event %+v, %d bytes, %v", ev, n, err)
	}
	f.async(5, 6, &c)
	f.endOfFile()
	f.async(7, 8, &c)
	if n, err := file.Read(kernel.Bytes(&ev)); n != 16 || ev.EventType != 5 {
		t.Errorf("event %+v, %d bytes, %v", ev, n, err)
	}
	if _, err := file.Read(kernel.Bytes(&ev)); err != io.EOF {
		t.Errorf("after the end: %v", err)
	}
	file.Close()
	f.shut()
	if c.read != 1 {
		t.Errorf("%d events were read before the end, want 1", c.read)
	}

	f, _ = newEventFile(abi.UVERBS_OBJECT_ASYNC_EVENT)
	file, err = f.open("channel")
	if err != nil {
		t.Fatal(err)
	}
	file.Close()
	f.async(1, 2, &c)
	f.forget(&c)
	f.shut()
	if got := numFiles(t); got != before {
		t.Errorf("%d files are open, %d were", got, before)
	}
}

// TestCloseWhileWriting closes channels with events that do not fit into the pipe.
func TestCloseWhileWriting(t *testing.T) {
	before := numFiles(t)
	for range 20 {
		f, errno := newEventFile(abi.UVERBS_OBJECT_COMP_CHANNEL)
		if errno != 0 {
			t.Fatal(errno)
		}
		for i := range uint64(2 * pipeSize / 8) {
			f.completion(i, nil)
		}
		f.shut()
		f.shut()
	}
	if got := numFiles(t); got != before {
		t.Errorf("%d files are open, %d were", got, before)
	}
}

// TestEventAllocs: events do not allocate.
func TestEventAllocs(t *testing.T) {
	f, file := newChannel(t)
	var c eventCounter
	b := make([]byte, 8)
	if n := testing.AllocsPerRun(1000, func() {
		f.completion(1, &c)
		file.Read(b)
	}); n != 0 {
		t.Errorf("an event makes %v allocations, want 0", n)
	}
}
