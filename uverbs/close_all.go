package uverbs

import (
	"cmp"
	"errors"
	"io"
	"slices"
	"time"
)

// markCreated notes that an object is complete, so that [Device.CloseAll] closes it. It returns nil.
func (o *object) markCreated(self io.Closer) error {
	d := o.dev
	d.tree.Lock()
	defer d.tree.Unlock()
	if d.all == nil {
		d.all = map[*object]io.Closer{}
	}
	d.creating--
	d.count++
	o.seq, d.all[o] = d.count, self
	return nil
}

// CloseAll closes every object of the device, users before what they use, and then the device itself.
// It waits for objects that are being created. Nobody can create an object meanwhile: that fails with [os.ErrClosed].
// Other goroutines may go on using the objects, as they may beside the Close of each: their calls fail
// with os.ErrClosed from then on, and those that wait are woken. Objects that were closed before and
// closing them again afterwards are no errors.
//
// If an object cannot be closed, CloseAll closes those that it can and returns all errors joined. The
// device stays open then, and CloseAll may be called again. Buffers of [AllocBuffer] are the
// program's, not the device's, and stay.
func (d *Device) CloseAll() error {
	switch {
	case d.dev == nil:
		return errZero("CloseAll")
	case d.closed.Load():
		return nil
	}
	d.refuseNew(true)
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
		case closed > 0: // what refused may have been used by what is closed now
		case creating > 0:
			time.Sleep(100 * time.Microsecond)
		case len(errs) > 0:
			d.refuseNew(false)
			return errors.Join(errs...)
		default:
			if err := d.Close(); err != nil {
				d.refuseNew(false)
				return err
			}
			return nil
		}
	}
}

// refuseNew refuses to create objects, or allows it again.
func (d *Device) refuseNew(refuse bool) {
	d.tree.Lock()
	defer d.tree.Unlock()
	d.noNewUsers = refuse
}

// openObjects returns the objects in the order in which they are to be closed, and how many are being
// made. What is newer uses what is older, but for memory windows, which are bound to older and to newer
// objects alike, and come first.
func (d *Device) openObjects() (all []io.Closer, creating int) {
	d.tree.Lock()
	defer d.tree.Unlock()
	var order []*object
	for o := range d.all {
		order = append(order, o)
	}
	slices.SortFunc(order, func(a, b *object) int {
		if a.kind == b.kind || a.kind != "MW" && b.kind != "MW" {
			return cmp.Compare(b.seq, a.seq)
		}
		if a.kind == "MW" {
			return -1
		}
		return 1
	})
	for _, o := range order {
		all = append(all, d.all[o])
	}
	return all, d.creating
}
