package uverbs

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"sync"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs/internal/inproc"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
	"github.com/goverbs/goverbs/uverbs/soft"
	"github.com/goverbs/goverbs/uverbs/soft/gsi"
)

// softEnv is the environment variable that gives a program software devices: their options in the
// text form of package soft, separated by blanks or semicolons.
const softEnv = "GOVERBS_SOFT"

// withSoftHint adds to a message how to get a device without RDMA, unless the environment asks for one.
func withSoftHint(text string) string {
	softFailures()
	if inProcessFirst.Load() {
		return text
	}
	return text + "; or use a software device: set " + softEnv + "=auto in the environment"
}

// fromEnv are the devices of softEnv that could not be made.
var fromEnv struct {
	once   sync.Once
	failed []DeviceInfo // set by once
}

func init() { gsi.OnDemand(func() { softFailures() }) }

// softFailures makes the devices of softEnv when it is called first, and returns those that could not
// be made.
func softFailures() []DeviceInfo {
	fromEnv.once.Do(func() {
		list := soft.SplitList(os.Getenv(softEnv))
		inProcessFirst.Store(len(list) > 0)
		fromEnv.failed = makeSoft(list)
	})
	return fromEnv.failed
}

// makeSoft makes software devices, and returns those that could not be made.
func makeSoft(list []string) []DeviceInfo {
	var failed []DeviceInfo
	for _, text := range list {
		o, err := soft.ParseOptions(text)
		if err == nil {
			_, err = soft.New(o)
		}
		if err == nil {
			continue
		}
		f := failedSoft{name: cmp.Or(o.Name, text), addr: o.Addr, err: fmt.Errorf("environment variable %s: device %q: %w", softEnv, text, err)}
		info := inspectInProcess(f)
		info.Err = f.err
		failed = append(failed, info)
	}
	return failed
}

// failedSoft stands for a device of softEnv that could not be made. Its name is the text in softEnv if
// it has no other.
type failedSoft struct {
	name string
	addr netip.Addr // the zero value if it is not known
	err  error
}

// Info implements [inproc.Device].
func (f failedSoft) Info() inproc.Info {
	return inproc.Info{Name: f.name, DriverID: uint32(softDriverID), Protocol: string(netlinkrdma.ProtocolRoCE)}
}

// Open implements [inproc.Device].
func (f failedSoft) Open() (kernel.Device, error) { return nil, f.err }

// Addrs implements [inproc.Device]. By its address, a program finds the reason why there is no device.
func (f failedSoft) Addrs() []netip.Addr {
	if !f.addr.IsValid() {
		return nil
	}
	return []netip.Addr{f.addr}
}

// GIDs implements [inproc.Device].
func (failedSoft) GIDs(uint8) []inproc.GIDEntry { return nil }

// PKeys implements [inproc.Device].
func (failedSoft) PKeys(uint8) []uint16 { return nil }

// Counters implements [inproc.Device].
func (failedSoft) Counters(uint8) []inproc.Counter { return nil }
