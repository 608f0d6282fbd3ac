package rsocket

import (
	"errors"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
)

// TestHungDevice: while one device does not open, connections on another one work, and those that wait for
// the first get its error.
func TestHungDevice(t *testing.T) {
	l := newListener(t, Options{})
	const name = "hung0"
	entered, answer := make(chan struct{}), make(chan error)
	hung := findDevice(name)
	hung.open = func() error {
		entered <- struct{}{}
		return <-answer
	}
	opened := make(chan error)
	for range 2 {
		go func() {
			_, err := useDevice(name)
			opened <- err
		}()
		<-entered
	}
	checkNext(t, l)

	want := errors.New("it is broken")
	for range 2 {
		answer <- want
		if err := <-opened; !errors.Is(err, want) {
			t.Errorf("the device that did not open: %v, want %v", err, want)
		}
	}
	must(t, hung.release())
	devices.mu.Lock()
	defer devices.mu.Unlock()
	if d := devices.open[name]; d != nil || hung.users != 0 {
		t.Errorf("a device that could not be opened is still there: %v, %d users", d, hung.users)
	}
}

// TestDeviceAgain: a device that could not be opened is tried again, and an open one is shared until its last
// user has gone.
func TestDeviceAgain(t *testing.T) {
	testenv.Guest(t)
	for range 2 {
		if d, err := useDevice("no-such-device"); err == nil {
			t.Errorf("a device that does not exist: %+v", d)
		}
	}
	name := testenv.TheRig().Devices[0]
	a, err := useDevice(name)
	must(t, err)
	b, err := useDevice(name)
	must(t, err)
	if a != b || a.users != 2 {
		t.Errorf("two users have %p and %p", a, b)
	}
	must(t, a.release())
	pd, err := b.dev.AllocPD() // it is still open
	must(t, err, pd.Close(), b.release())
	if b.use() {
		t.Error("a device that is closed has a user")
	}
}
