package rsocket

import (
	"errors"
	"sync"

	"github.com/goverbs/goverbs/uverbs"
)

// device is an open device that connections share.
type device struct {
	name  string // when it was opened
	dev   *uverbs.Device
	pd    *uverbs.PD
	users int // guarded by devices.mu
}

// devices are the open devices by name.
var devices = struct {
	mu   sync.Mutex
	open map[string]*device
}{open: map[string]*device{}}

// useDevice opens a device, or returns it if it is open.
func useDevice(name string) (*device, error) {
	devices.mu.Lock()
	defer devices.mu.Unlock()
	d := devices.open[name]
	if d == nil {
		dev, err := uverbs.Open(name)
		if err != nil {
			return nil, err
		}
		pd, err := dev.AllocPD()
		if err != nil {
			return nil, errors.Join(err, dev.Close())
		}
		d = &device{name: name, dev: dev, pd: pd}
		devices.open[name] = d
	}
	d.users++
	return d, nil
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
	devices.mu.Lock()
	defer devices.mu.Unlock()
	if d.users--; d.users > 0 {
		return nil
	}
	if devices.open[d.name] == d {
		delete(devices.open, d.name)
	}
	return errors.Join(d.pd.Close(), d.dev.Close())
}

// forgetIfRemoved makes the next connection open the device again if err says that it was removed.
func (d *device) forgetIfRemoved(err error) {
	if !errors.Is(err, uverbs.ErrDeviceRemoved) {
		return
	}
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

// register makes registered memory.
func (d *device) register(size int, access uverbs.Access) (*region, error) {
	buf, err := uverbs.AllocBuffer(size)
	if err != nil {
		return nil, err
	}
	mr, err := d.pd.RegMR(buf, uverbs.AccessLocalWrite|access)
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
