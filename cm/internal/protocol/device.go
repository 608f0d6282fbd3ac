// Package protocol holds what the packages for the protocols of other programs have in common: a stream of bytes
// over RDMA, which a protocol of its own carries, its listener, and the devices and event channels that they share.
package protocol

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/cm/internal/inprocess"
	"github.com/goverbs/goverbs/uverbs"
)

// Device is a device that is open, or is being opened, and that connections share.
type Device struct {
	index uint32       // which no other device gets
	open  func() error // opens it at the first call; later ones wait for that and return its error

	Dev *uverbs.Device // Dev is the device.
	PD  *uverbs.PD     // PD is for the connections that share one.

	users int // guarded by devices.mu
}

// devices are the open devices by index: a new device may have the name of one that was removed.
var devices = struct {
	mu   sync.Mutex // held for short times, never during a command
	open map[uint32]*Device
}{open: map[uint32]*Device{}}

// UseDevice opens a device, or returns it if it is open. A device that hangs blocks no connection on
// another one.
func UseDevice(index uint32) (*Device, error) {
	d := findDevice(index)
	if err := d.open(); err != nil {
		d.forget()
		return nil, errors.Join(err, d.Release())
	}
	return d, nil
}

// findDevice returns the entry of a device, which it makes if there is none, and adds a user.
func findDevice(index uint32) *Device {
	devices.mu.Lock()
	defer devices.mu.Unlock()
	d := devices.open[index]
	if d == nil {
		d = &Device{index: index}
		d.open = sync.OnceValue(d.openNow)
		devices.open[index] = d
	}
	d.users++
	return d
}

// openNow opens the device.
func (d *Device) openNow() error {
	name, err := inprocess.DeviceName(d.index)
	if err != nil {
		return err
	}
	dev, err := uverbs.Open(name, uverbs.OpenOptions{})
	if err != nil {
		return err
	}
	pd, err := dev.AllocPD()
	if err != nil {
		return errors.Join(err, dev.Close())
	}
	d.Dev, d.PD = dev, pd
	return nil
}

// Use adds a user to a device that has one, unless the device was removed.
func (d *Device) Use() bool {
	devices.mu.Lock()
	defer devices.mu.Unlock()
	if devices.open[d.index] != d {
		return false
	}
	d.users++
	return true
}

// Release closes the device after its last user.
func (d *Device) Release() error {
	if !d.leave() || d.Dev == nil {
		return nil
	}
	return errors.Join(d.PD.Close(), d.Dev.Close())
}

// leave removes a user, and reports whether it was the last one. Nobody finds the device after that.
func (d *Device) leave() bool {
	devices.mu.Lock()
	defer devices.mu.Unlock()
	if d.users--; d.users > 0 {
		return false
	}
	if devices.open[d.index] == d {
		delete(devices.open, d.index)
	}
	return true
}

// Removed returns err, which matches ENODEV if it says that the device was removed. The next connection then opens the
// device again.
func (d *Device) Removed(err error) error {
	if errors.Is(err, uverbs.ErrDeviceRemoved) {
		err = fmt.Errorf("the device was removed: %w: %w", syscall.ENODEV, err)
	}
	if errors.Is(err, syscall.ENODEV) {
		d.forget()
	}
	return err
}

// forget makes the next connection open the device again.
func (d *Device) forget() {
	devices.mu.Lock()
	defer devices.mu.Unlock()
	if devices.open[d.index] == d {
		delete(devices.open, d.index)
	}
}

// Region is registered memory.
type Region struct {
	Buf *uverbs.Buffer // Buf is the memory.
	MR  *uverbs.MR     // MR is its registration.
}

// Register makes memory that is registered with a PD.
func Register(pd *uverbs.PD, size int, access uverbs.Access) (*Region, error) {
	buf, err := uverbs.AllocBuffer(size, uverbs.BufferOptions{})
	if err != nil {
		return nil, err
	}
	mr, err := pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite | access})
	if err != nil {
		return nil, errors.Join(err, buf.Close())
	}
	return &Region{buf, mr}, nil
}

// Close frees the memory. A nil Region is allowed.
func (r *Region) Close() error {
	if r == nil {
		return nil
	}
	if err := r.MR.Close(); err != nil {
		return err
	}
	return r.Buf.Close()
}

// OpenDevices returns how many devices are open.
func OpenDevices() int {
	devices.mu.Lock()
	defer devices.mu.Unlock()
	return len(devices.open)
}
