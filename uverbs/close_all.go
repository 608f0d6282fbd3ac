package uverbs

import (
	"errors"
	"io"
	"time"
)

// CloseAll closes every object of the device, each before the objects that it uses, and then the
// device. It waits for objects that are being created. Until it returns, creating an object fails
// with [os.ErrClosed].
//
// Other goroutines may use the objects meanwhile, to the extent that they may during the Close of
// each. Their calls then fail with os.ErrClosed, and waiting goroutines are woken. Objects may be
// closed before CloseAll and again after it.
//
// A PD or DM that another process uses through [Device.File] is left to the kernel, which destroys it
// when that process has closed the device, too. CloseAll is therefore the way to close a device after
// another process that shared it has crashed.
//
// If an object cannot be closed, CloseAll closes all that it can and returns the errors joined. The
// device then stays open, and CloseAll may be called again. Buffers of [AllocBuffer] do not belong
// to the device and stay.
func (d *Device) CloseAll() error {
	switch {
	case d.dev == nil:
		return errZero("CloseAll")
	case d.closed.Load():
		return nil
	}
	d.refuseNew(1)
	for {
		all, creating := d.openObjects()
		closed := 0
		var errs []error
		for _, o := range all {
			if err := o.Close(); err != nil {
				errs = append(errs, err)
				continue
			}
			closed++
		}
		switch {
		case closed > 0: // an object that refused may be free now
		case creating > 0:
			time.Sleep(100 * time.Microsecond)
		case len(errs) > 0 && d.shared.Load() && d.leaving.CompareAndSwap(false, true):
		case len(errs) > 0:
			d.leaving.Store(false)
			d.refuseNew(-1)
			return errors.Join(errs...)
		default:
			if err := d.Close(); err != nil {
				d.refuseNew(-1)
				return err
			}
			return nil
		}
	}
}

// refuseNew makes the creation of objects fail as a call of Close does, or with -1 no longer.
func (d *Device) refuseNew(closers int) {
	d.tree.Lock()
	defer d.tree.Unlock()
	d.closers += closers
}

// openObjects returns the objects in the order in which they must be closed, and how many are being
// created. A newer object may use an older one, so the newest comes first. Memory windows come
// before all others, because they may be bound to older and to newer objects.
func (d *Device) openObjects() (all []io.Closer, creating int) {
	d.tree.Lock()
	defer d.tree.Unlock()
	for _, windows := range []bool{true, false} {
		for o := d.newest; o != nil; o = o.older {
			if (o.kind == "MW") == windows {
				all = append(all, o.self)
			}
		}
	}
	return all, d.creating
}
