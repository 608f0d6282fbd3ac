package rsocket

import (
	"errors"
	"sync"

	"github.com/goverbs/goverbs/uverbs"
)

// device is a device that is open, or is being opened, and that connections share.
type device struct {
	name string       // when it was opened
	open func() error // opens it at the first call; later ones wait for that and return its error

	dev *uverbs.Device // set by open
	pd  *uverbs.PD     // set by open: the PD of the connections that share one

	users int // guarded by devices.mu
}

// devices are the open devices by name.
var devices = struct {
	mu   sync.Mutex // held for short times, never during a command
	open map[string]*device
}{open: map[string]*device{}}

// useDevice opens a device, or returns it if it is open. A device that hangs blocks no connection on
// another one.
func useDevice(name string) (*device, error) {
	d := findDevice(name)
	if err := d.open(); err != nil {
		d.forget()
		return nil, errors.Join(err, d.release())
	}
	return d, nil
}

// findDevice returns the entry of a device, which it makes if there is none, and adds a user.
func findDevice(name string) *device {
	devices.mu.Lock()
	defer devices.mu.Unlock()
	d := devices.open[name]
	if d == nil {
		d = &device{name: name}
		d.open = sync.OnceValue(d.openNow)
		devices.open[name] = d
	}
	d.users++
	return d
}

// openNow opens the device.
func (d *device) openNow() error {
	dev, err := uverbs.Open(d.name)
	if err != nil {
		return err
	}
	pd, err := dev.AllocPD()
	if err != nil {
		return errors.Join(err, dev.Close())
	}
	d.dev, d.pd = dev, pd
	return nil
}

// use adds a user to a device that has one, unless the device was removed.
func (d *device) use() bool {
	devices.mu.Lock()
	defer devices.mu.Unlock()
	if devices.open[d.name] != d {
		return false
	}
	d.users++
	return true
}

// release closes the device after its last user.
func (d *device) release() error {
	if !d.leave() || d.dev == nil {
		return nil
	}
	return errors.Join(d.pd.Close(), d.dev.Close())
}

// leave removes a user, and reports whether it was the last one. Nobody finds the device after that.
func (d *device) leave() bool {
	devices.mu.Lock()
	defer devices.mu.Unlock()
	if d.users--; d.users > 0 {
		return false
	}
	if devices.open[d.name] == d {
		delete(devices.open, d.name)
	}
	return true
}

// forgetIfRemoved makes the next connection open the device again if err says that it was removed.
func (d *device) forgetIfRemoved(err error) {
	if errors.Is(err, uverbs.ErrDeviceRemoved) {
		d.forget()
	}
}

// forget makes the next connection open the device again.
func (d *device) forget() {
	devices.mu.Lock()
	defer devices.mu.Unlock()
	if devices.open[d.name] == d {
		delete(devices.open, d.name)
	}
}

// region is registered memory.
type region struct {
	buf *uverbs.Buffer
	mr  *uverbs.MR
}

// register makes memory that is registered with a PD.
func register(pd *uverbs.PD, size int, access uverbs.Access) (*region, error) {
	buf, err := uverbs.AllocBuffer(size)
	if err != nil {
		return nil, err
	}
	mr, err := pd.RegMR(buf, uverbs.AccessLocalWrite|access)
	if err != nil {
		return nil, errors.Join(err, buf.Close())
	}
	return &region{buf, mr}, nil
}

// close frees the memory.
func (r *region) close() error {
	if r == nil {
		return nil
	}
	if err := r.mr.Close(); err != nil {
		return err
	}
	return r.buf.Close()
}
