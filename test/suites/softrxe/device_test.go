package softrxe

import (
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// The addresses of rxe0 and of the software device.
var (
	rxeAddr   = netip.MustParseAddr("10.1.0.1")
	rxeAddr6  = netip.MustParseAddr("fd00:1::1")
	softAddr  = netip.MustParseAddr("10.1.0.2")
	softAddr6 = netip.MustParseAddr("fd00:1::2")
)

// kernelName is the kernel's device: rxe0, or a modelled ConnectX card.
var kernelName = testenv.TheRig().Devices[0]

// lab is the namespace of the software device; nil outside of a VM.
var lab *namespace

func TestMain(m *testing.M) {
	if len(os.Args) > 3 && os.Args[1] == peerWord {
		os.Exit(peerMain(os.Args[2:]))
	}
	os.Exit(run(m))
}

// run runs the tests. In a VM they find the namespace there.
func run(m *testing.M) int {
	if os.Getenv(testenv.GuestEnv) == "1" {
		const files = 1 << 17 // of programs with many connections
		err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: files, Max: files})
		if err == nil {
			lab, err = newNamespace()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 2
		}
	}
	return testenv.Main(m, "")
}

// host is a device that packets come from and go to.
type host struct {
	soft bool
	name string
	addr netip.Addr
}

// String returns the name of the kind of device.
func (h host) String() string {
	if h.soft {
		return "soft"
	}
	return testenv.TheRig().Driver
}

// card reports whether the device is a modelled ConnectX card.
func (h host) card() bool { return !h.soft && testenv.Modelled() }

// newHosts returns the kernel's device and a software device, by their IPv6 addresses or else by the IPv4
// ones. The software device ends with the test.
func newHosts(t *testing.T, ipv6 bool) (rxe, software host) {
	t.Helper()
	return newHostsWith(t, ipv6, soft.Options{})
}

// newHostsWith is newHosts with more options of the software device.
func newHostsWith(t *testing.T, ipv6 bool, o soft.Options) (rxe, software host) {
	t.Helper()
	testenv.Guest(t)
	rxe, software = host{name: kernelName, addr: rxeAddr}, host{soft: true, addr: softAddr}
	if ipv6 {
		rxe.addr, software.addr = rxeAddr6, softAddr6
	}
	var dev *soft.Device
	err := lab.nobody.do(func() (err error) {
		o.Addr = software.addr
		dev, err = soft.New(o)
		return err
	})
	must(t, err)
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Errorf("close the software device: %v", err)
		}
	})
	software.name = dev.Name()
	return rxe, software
}

// do calls a function on a thread in whose network namespace the device is.
func (h host) do(f func() error) error {
	if h.soft && lab != nil {
		return lab.nobody.do(f)
	}
	return f()
}

// open opens a device. That Close succeeds proves that the test left no object of it.
func (h host) open(t *testing.T) *uverbs.Device {
	t.Helper()
	dev, err := uverbs.Open(h.name, uverbs.OpenOptions{})
	must(t, err)
	closeLater(t, dev)
	return dev
}

// gidIndex returns the index of the GID that is the host's address.
func (h host) gidIndex(t *testing.T, dev *uverbs.Device) int {
	t.Helper()
	table, err := dev.GIDTable(1)
	must(t, err)
	for _, e := range table {
		if e.GID.Addr() == h.addr && e.Type == ib.GIDTypeRoCEv2 {
			return e.Index
		}
	}
	t.Fatalf("%s has no GID of %s: %v", h.name, h.addr, table)
	return 0
}

// closeLater closes an object at the end of the test.
func closeLater(t *testing.T, c interface{ Close() error }) {
	t.Helper()
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close %T: %v", c, err)
		}
	})
}

// must fails a test on an error.
var must = testenv.Must
