// Package objects opens objects of RDMA devices one after another and closes them in reverse order.
package objects

import (
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/goverbs/goverbs/uverbs"
)

// Stack has the objects that were opened by its methods. After an error the methods do nothing and
// return nil, so that a function can open several objects and look at Err once. It is for one goroutine.
type Stack struct {
	opened []io.Closer
	err    error // the first error
}

// Open opens an object by a function, which is not called after an error.
func Open[T io.Closer](s *Stack, open func() (T, error)) (object T) {
	if s.err != nil {
		return object
	}
	opened, err := open()
	if err != nil {
		s.err = err
		return object
	}
	s.Keep(opened)
	return opened
}

// Do calls a function that goes on with an opened object, but not after an error.
func (s *Stack) Do(step func() error) {
	if s.err == nil {
		s.err = step()
	}
}

// Keep adds an object, which Close closes before those that were opened earlier.
func (s *Stack) Keep(object io.Closer) { s.opened = append(s.opened, object) }

// Err returns the first error of opening an object.
func (s *Stack) Err() error { return s.err }

// Close closes all objects, last first, and returns the errors joined.
func (s *Stack) Close() error {
	var errs []error
	for i := len(s.opened) - 1; i >= 0; i-- {
		errs = append(errs, s.opened[i].Close())
	}
	s.opened = nil
	return errors.Join(errs...)
}

// Device opens a device by its name; without a name it is the first usable one.
func (s *Stack) Device(name string) *uverbs.Device {
	return Open(s, func() (*uverbs.Device, error) { return OpenDevice(name) })
}

// OpenDevice opens a device by its name; without a name it is the first usable one.
func OpenDevice(name string) (*uverbs.Device, error) {
	if name == "" {
		return uverbs.OpenFirst()
	}
	return uverbs.Open(name, uverbs.OpenOptions{})
}

// OpenDeviceAt opens a device by its name. Without a name it is the one that has an address of this host, by
// which peers have met, or else the first usable one. A software device of the environment variable
// GOVERBS_SOFT comes before a device of the kernel that has the address.
func OpenDeviceAt(name string, addr netip.Addr) (*uverbs.Device, error) {
	if name != "" || !addr.IsValid() {
		return OpenDevice(name)
	}
	dev, err := uverbs.OpenAddr(addr)
	if err != nil {
		return uverbs.OpenFirst()
	}
	// The list begins with software devices if the environment asks for some.
	if infos, _ := uverbs.Devices(); dev.Info().InProcess || len(infos) == 0 || !infos[0].InProcess || infos[0].Err != nil {
		return dev, nil
	}
	if err := dev.Close(); err != nil {
		return nil, err
	}
	return uverbs.OpenFirst()
}

// OfKernel returns the error of a question that the kernel alone answers, about a device or about all without a name.
// If the device is in software inside this process, or all are, it says so, and why that one has no answer.
func OfKernel(name, why string, err error) error {
	if err == nil {
		return nil
	}
	infos, _ := uverbs.Devices() // err says enough without them
	for _, i := range infos {
		switch {
		case name != "" && i.Name != name:
		case !i.InProcess:
			return err
		case i.Err != nil:
			return i.Err
		default:
			return fmt.Errorf("%s is a software device inside this process, which has just made it: %s", i.Name, why)
		}
	}
	return err
}

// PD allocates a protection domain.
func (s *Stack) PD(dev *uverbs.Device) *uverbs.PD { return Open(s, dev.AllocPD) }

// MR allocates a buffer of size bytes and registers it.
func (s *Stack) MR(pd *uverbs.PD, size int, access uverbs.Access) *uverbs.MR {
	buf := Open(s, func() (*uverbs.Buffer, error) { return uverbs.AllocBuffer(size, uverbs.BufferOptions{}) })
	return Open(s, func() (*uverbs.MR, error) { return pd.RegMR(buf, uverbs.MROptions{Access: access}) })
}

// Channel creates a completion channel.
func (s *Stack) Channel(dev *uverbs.Device) *uverbs.CompChannel {
	return Open(s, dev.CreateCompChannel)
}

// CQ creates a completion queue.
func (s *Stack) CQ(dev *uverbs.Device, o uverbs.CQOptions) *uverbs.CQ {
	return Open(s, func() (*uverbs.CQ, error) { return dev.CreateCQ(o) })
}

// SRQ creates a shared receive queue.
func (s *Stack) SRQ(pd *uverbs.PD, o uverbs.SRQOptions) *uverbs.SRQ {
	return Open(s, func() (*uverbs.SRQ, error) { return pd.CreateSRQ(o) })
}

// QP creates a queue pair.
func (s *Stack) QP(pd *uverbs.PD, o uverbs.QPOptions) *uverbs.QP {
	return Open(s, func() (*uverbs.QP, error) { return pd.CreateQP(o) })
}
