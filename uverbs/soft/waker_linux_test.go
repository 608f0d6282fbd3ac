package soft

import (
	"errors"
	"io"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// busyChannel returns a channel to which events come often from the network, in a program with two processors.
func busyChannel(t *testing.T) (*eventFile, kernel.EventFile) {
	old := runtime.GOMAXPROCS(2)
	t.Cleanup(func() { runtime.GOMAXPROCS(old) })
	f, file := newChannel(t)
	f.net, f.short = true, manyShort
	return f, file
}

// park starts a read, and waits until it is in the netpoller.
func park(t *testing.T, f *eventFile, file kernel.EventFile) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		var b [8]byte
		_, err := file.Read(b[:])
		done <- err
	}()
	for parked := false; !parked; time.Sleep(time.Millisecond) {
		f.mu.Lock()
		parked = f.parked
		f.mu.Unlock()
	}
	return done
}

// TestWaker: what ends a read that waits in the netpoller, and that the channel then works as before.
func TestWaker(t *testing.T) {
	for what, c := range map[string]struct {
		end  func(*eventFile, kernel.EventFile)
		want error
	}{
		"an event":           {func(f *eventFile, _ kernel.EventFile) { f.completion(7, &eventCounter{}) }, nil},
		"a deadline":         {func(_ *eventFile, file kernel.EventFile) { file.SetReadDeadline(time.Unix(1, 0)) }, os.ErrDeadlineExceeded},
		"a deadline to come": {func(_ *eventFile, file kernel.EventFile) { file.SetReadDeadline(time.Now().Add(time.Millisecond)) }, os.ErrDeadlineExceeded},
		"Close":              {func(_ *eventFile, file kernel.EventFile) { file.Close() }, os.ErrClosed},
		"the device":         {func(f *eventFile, _ kernel.EventFile) { f.end() }, io.EOF},
	} {
		t.Run(what, func(t *testing.T) {
			before := openWakers.Load()
			f, file := busyChannel(t)
			done := park(t, f, file)
			c.end(f, file)
			if err := <-done; !errors.Is(err, c.want) {
				t.Errorf("Read: %v, want %v", err, c.want)
			}
			if c.want == nil { // once more, and by a second reader that finds the netpoller taken
				f.short = manyShort
				first := park(t, f, file)
				second := make(chan error, 1)
				go func() {
					var b [8]byte
					_, err := file.Read(b[:])
					second <- err
				}()
				for range 2 {
					f.completion(8, &eventCounter{})
				}
				if err := errors.Join(<-first, <-second); err != nil {
					t.Error(err)
				}
			}
			file.Close()
			if n := openWakers.Load(); n != before {
				t.Errorf("%d wakers are open, want %d", n, before)
			}
		})
	}
}

// TestWakerBusy: only a channel to which events come often from the network takes a descriptor, and no more than
// mostWakers do, nor any if there is one processor.
func TestWakerBusy(t *testing.T) {
	f, file := newChannel(t)
	for range 2 * manyShort {
		go f.completion(1, &eventCounter{})
		readEvent(t, file)
	}
	if f.waker != nil {
		t.Error("a channel without a network has a waker")
	}
	f, file = busyChannel(t)
	runtime.GOMAXPROCS(1)
	go f.completion(1, &eventCounter{})
	readEvent(t, file)
	if f.waker != nil {
		t.Error("a channel has a waker, although there is one processor")
	}
	before := openWakers.Load()
	defer openWakers.Store(before)
	openWakers.Store(mostWakers)
	f, file = busyChannel(t)
	go f.completion(1, &eventCounter{})
	readEvent(t, file)
	if f.waker != nil || openWakers.Load() != mostWakers {
		t.Errorf("%d wakers, want no more than %d", openWakers.Load(), mostWakers)
	}
}
