package protocol

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/soft"
)

func TestMain(m *testing.M) {
	if rig := testenv.TheRig(); rig.Soft {
		for i, name := range rig.Devices {
			if _, err := soft.New(soft.Options{Name: name, Addr: netip.MustParseAddr(rig.Addrs[i])}); err != nil {
				fmt.Fprintln(os.Stderr, "software devices:", err)
				os.Exit(2)
			}
		}
	}
	os.Exit(testenv.MainFor(m, map[string]string{"soft": ""}))
}

// must fails the test on an error.
func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// TestHungDevice: while one device does not open, another one does, and those that wait for the first get its
// error.
func TestHungDevice(t *testing.T) {
	testenv.Guest(t)
	const index = 1 << 20
	entered, answer := make(chan struct{}), make(chan error)
	hung := findDevice(index)
	hung.open = func() error {
		entered <- struct{}{}
		return <-answer
	}
	opened := make(chan error)
	for range 2 {
		go func() {
			_, err := UseDevice(index)
			opened <- err
		}()
		<-entered
	}
	other, err := UseDevice(firstIndex(t))
	must(t, err, other.Release())

	want := errors.New("it is broken")
	for range 2 {
		answer <- want
		if err := <-opened; !errors.Is(err, want) {
			t.Errorf("the device that did not open: %v, want %v", err, want)
		}
	}
	must(t, hung.Release())
	if n := OpenDevices(); n != 0 || hung.users != 0 {
		t.Errorf("a device that could not be opened is still there: %d devices, %d users", n, hung.users)
	}
}

// firstIndex returns the index of the first device.
func firstIndex(t *testing.T) uint32 {
	t.Helper()
	dev, err := uverbs.Open(testenv.TheRig().Devices[0], uverbs.OpenOptions{})
	must(t, err)
	defer dev.Close()
	return dev.Info().Index
}

// TestDeviceNameAgain: a new device with the name of one that was removed, and that a connection still uses, is another.
func TestDeviceNameAgain(t *testing.T) {
	open := func() (*soft.Device, *Device) {
		s, err := soft.New(soft.Options{Name: "again"})
		must(t, err)
		dev, err := uverbs.Open("again", uverbs.OpenOptions{})
		must(t, err)
		d, err := UseDevice(dev.Info().Index)
		must(t, err, dev.Close())
		return s, d
	}
	old, a := open()
	must(t, old.Close())
	s, b := open()
	if a == b {
		t.Error("the device that was removed is used again")
	}
	must(t, a.Release(), b.Release(), s.Close())
}

// TestDeviceAgain: a device that could not be opened is tried again, and an open one is shared until its last
// user has gone.
func TestDeviceAgain(t *testing.T) {
	testenv.Guest(t)
	for range 2 {
		if d, err := UseDevice(1 << 20); err == nil {
			t.Errorf("a device that does not exist: %+v", d)
		}
	}
	index := firstIndex(t)
	a, err := UseDevice(index)
	must(t, err)
	b, err := UseDevice(index)
	must(t, err)
	if a != b || a.users != 2 {
		t.Errorf("two users have %p and %p", a, b)
	}
	must(t, a.Release())
	pd, err := b.Dev.AllocPD() // it is still open
	must(t, err, pd.Close(), b.Release())
	if b.Use() {
		t.Error("a device that is closed has a user")
	}
}
