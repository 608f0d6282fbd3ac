package soft

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// newChannel returns a completion channel and the program's end.
func newChannel(t *testing.T) (*eventFile, kernel.EventFile) {
	t.Helper()
	f := newEventFile(abi.UVERBS_OBJECT_COMP_CHANNEL)
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
func readEvent(t *testing.T, file kernel.EventFile) uint64 {
	t.Helper()
	var b [8]byte
	if _, err := io.ReadFull(file, b[:]); err != nil {
		t.Fatal(err)
	}
	return binary.NativeEndian.Uint64(b[:])
}

// empty fails the test if there is an event to read.
func empty(t *testing.T, file kernel.EventFile) {
	t.Helper()
	f := file.(*eventFile)
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := len(f.unread) - f.first; n != 0 {
		t.Errorf("%d events are in an empty channel", n)
	}
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
	if a.read != 3 || b.read != 2 {
		t.Errorf("%d and %d events were read, want 3 and 2", a.read, b.read)
	}
	if _, err := f.open("again"); err == nil {
		t.Error("the file can be opened twice")
	}
}

// TestManyEvents: any number of events is delivered, in order, while the queue stays in proportion to those
// that are unread.
func TestManyEvents(t *testing.T) {
	const n = 10_000
	f, file := newChannel(t)
	var c eventCounter
	for i := range uint64(n) {
		f.completion(i, &c)
	}
	for i := range uint64(n) {
		if got := readEvent(t, file); got != i {
			t.Fatalf("event %d, want %d", got, i)
		}
	}
	f.forget(&c)
	if c.read != n {
		t.Errorf("%d events were read, want %d", c.read, n)
	}
	const behind = 100
	f, file = newChannel(t)
	for i := range uint64(n) {
		if f.completion(i, &c); i < behind {
			continue
		}
		if got := readEvent(t, file); got != i-behind {
			t.Fatalf("event %d, want %d", got, i-behind)
		}
		if len(f.unread) > 4*behind {
			t.Fatalf("event %d: the queue has %d elements for %d events", i, len(f.unread), behind)
		}
	}
}

// TestForgetEvents: the unread events of an object that is destroyed are removed, those of others stay.
func TestForgetEvents(t *testing.T) {
	for _, opened := range []bool{true, false} {
		f := newEventFile(abi.UVERBS_OBJECT_COMP_CHANNEL)
		defer f.shut()
		var file kernel.EventFile
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
	f := newEventFile(abi.UVERBS_OBJECT_ASYNC_EVENT)
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
	f.end()
	f.async(7, 8, &c)
	if n, err := file.Read(kernel.Bytes(&ev)); n != 16 || ev.EventType != 5 {
		t.Errorf("event %+v, %d bytes, %v", ev, n, err)
	}
	if _, err := file.Read(kernel.Bytes(&ev)); err != io.EOF {
		t.Errorf("after the end: %v", err)
	}
	file.Close()
	f.shut()
	if c.read != 2 {
		t.Errorf("%d events were read, want 2", c.read)
	}

	f = newEventFile(abi.UVERBS_OBJECT_ASYNC_EVENT)
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

// TestReadsEnd: a read that waits ends at the deadline, which may be moved meanwhile, when the program
// closes the file, and when the device ends the channel.
func TestReadsEnd(t *testing.T) {
	for what, c := range map[string]struct {
		end  func(f *eventFile, file kernel.EventFile)
		want error
	}{
		"a deadline in the past":   {func(_ *eventFile, file kernel.EventFile) { file.SetReadDeadline(time.Unix(1, 0)) }, os.ErrDeadlineExceeded},
		"a deadline in the future": {func(_ *eventFile, file kernel.EventFile) { file.SetReadDeadline(time.Now().Add(time.Millisecond)) }, os.ErrDeadlineExceeded},
		"a deadline that is moved": {func(_ *eventFile, file kernel.EventFile) {
			file.SetReadDeadline(time.Now().Add(time.Hour))
			file.SetReadDeadline(time.Now().Add(time.Millisecond))
		}, os.ErrDeadlineExceeded},
		"Close":           {func(_ *eventFile, file kernel.EventFile) { file.Close() }, os.ErrClosed},
		"the end":         {func(f *eventFile, _ kernel.EventFile) { f.end() }, io.EOF},
		"the end of all":  {func(f *eventFile, _ kernel.EventFile) { f.shut() }, io.EOF},
		"nothing but one": {func(f *eventFile, _ kernel.EventFile) { f.completion(1, nil) }, nil},
	} {
		for i := range 20 {
			f, file := newChannel(t)
			done := make(chan error, 1)
			go func() {
				_, err := file.Read(make([]byte, 8))
				done <- err
			}()
			for range i { // so that mostly it waits
				runtime.Gosched()
			}
			c.end(f, file)
			if err := <-done; !errors.Is(err, c.want) {
				t.Errorf("%s: a read returns %v, want %v", what, err, c.want)
			}
		}
	}
}

// TestDeadlineTakenAway: the events that came before a deadline are still there without it.
func TestDeadlineTakenAway(t *testing.T) {
	f, file := newChannel(t)
	f.completion(7, nil)
	must(t, file.SetReadDeadline(time.Unix(1, 0)))
	if n, err := file.Read(make([]byte, 8)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the deadline %d bytes, %v", n, err)
	}
	must(t, file.SetReadDeadline(time.Time{}))
	if got := readEvent(t, file); got != 7 {
		t.Errorf("event %d, want 7", got)
	}
	empty(t, file)
	must(t, file.Close())
	if err := file.SetReadDeadline(time.Time{}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a deadline after Close: %v", err)
	}
	if err := file.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("second Close: %v", err)
	}
}

// TestChannelsTakeNoDescriptors: completion channels of one device, however many, take no descriptors.
func TestChannelsTakeNoDescriptors(t *testing.T) {
	c := newClient(t)
	before := numFiles(t)
	for range 100 {
		file, err := c.conn.Events(c.channel(), "channel")
		must(t, err)
		defer file.Close()
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
