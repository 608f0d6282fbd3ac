package uverbs

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// object is the part that all objects of a device share: which other objects it uses, and a Close
// that takes effect once and only if no other object uses it.
type object struct {
	kind    string // "PD", "QP", …
	destroy string // the verb that destroys it, such as "DEALLOC_PD"
	dev     *Device
	parents []*object  // what this object uses; each counts it among its users
	few     [4]*object // memory for parents, enough for most objects

	// closed is set once the object is closed. The data path reads it without a lock.
	closed atomic.Bool

	closeMu  sync.RWMutex // held for writing by Close alone, and for reading by commands for the object
	users    users        // guarded by dev.tree: the objects that use this one
	closers  int          // guarded by dev.tree: the calls of Close that run or have succeeded; there are no new users meanwhile
	imported bool         // another process, or another Device, has created the object and destroys it

	// Guarded by dev.tree: the object itself, nil until it is created, and its neighbours in the
	// device's list of objects.
	self         io.Closer
	newer, older *object
}

// users counts the objects of each kind that use another object. There are few kinds, so a list is
// faster than a map.
type users []struct {
	kind string
	n    int
}

// index returns the index of a kind, or -1.
func (u users) index(kind string) int {
	for i := range u {
		if u[i].kind == kind {
			return i
		}
	}
	return -1
}

// of returns the number of users of a kind.
func (u users) of(kind string) int {
	if i := u.index(kind); i >= 0 {
		return u[i].n
	}
	return 0
}

// errClosed returns the error for a closed object.
func (o *object) errClosed() error {
	return fmt.Errorf("uverbs: %s: %w", o.kind, os.ErrClosed)
}

// errZero returns the error for an object that this package did not create.
func errZero(op string) error {
	return argErr(op, "object", "a zero value", "an object that this package created")
}

// usable returns an error if the object cannot be used.
func (o *object) usable() error {
	switch {
	case o.dev == nil:
		return errZero("use")
	case o.closed.Load():
		return o.errClosed()
	}
	return nil
}

// acquire keeps the object open until release, or returns why it cannot be used. The kernel refuses
// to destroy an object while another command uses it, and may reuse the handle of a destroyed
// object. Once Close has begun, acquire fails at once and does not wait for what Close waits for. A
// goroutine must not acquire an object twice.
func (o *object) acquire() error {
	if !o.closeMu.TryRLock() {
		return o.errClosed()
	}
	if err := o.usable(); err != nil {
		o.closeMu.RUnlock()
		return err
	}
	return nil
}

// release ends acquire.
func (o *object) release() { o.closeMu.RUnlock() }

// addParents makes o a user of its parents. It fails if one of them is closed or belongs to another
// device.
func (o *object) addParents(dev *Device, kind, destroy string, parents ...*object) error {
	dev.tree.Lock()
	defer dev.tree.Unlock()
	for _, p := range parents {
		if p.dev == nil {
			return argErr("create "+kind, "object to use", "a zero value", "objects of %s", dev.Name())
		}
		if p.dev != dev {
			of := p.dev.Name()
			if of == dev.Name() {
				of = "another Open of " + of
			}
			return argErr("create "+kind, p.kind, "an object of "+of, "objects of %s", dev.Name())
		}
		if p.closers > 0 {
			return p.errClosed()
		}
	}
	if dev.closers > 0 {
		return dev.errClosed()
	}
	o.dev, o.kind, o.destroy, o.parents = dev, kind, destroy, append(o.few[:0:len(o.few)], parents...)
	dev.creating++
	for _, p := range parents {
		p.ref(kind)
	}
	return nil
}

// any reports whether there is a user.
func (u users) any() bool {
	for i := range u {
		if u[i].n > 0 {
			return true
		}
	}
	return false
}

// ref adds a user of a kind. The caller holds dev.tree.
func (o *object) ref(kind string) {
	i := o.users.index(kind)
	if i < 0 {
		i = len(o.users)
		o.users = append(o.users, struct {
			kind string
			n    int
		}{kind, 0})
	}
	o.users[i].n++
}

// unref removes a user of a kind. The caller holds dev.tree.
func (o *object) unref(kind string) { o.users[o.users.index(kind)].n-- }

// addParent makes an open object a user of one more parent of the same device.
func (o *object) addParent(p *object) error {
	o.dev.tree.Lock()
	defer o.dev.tree.Unlock()
	if p.closers > 0 {
		return p.errClosed()
	}
	p.ref(o.kind)
	o.parents = append(slices.Clip(o.parents), p)
	return nil
}

// removeParent undoes addParent, or addParents for one parent.
func (o *object) removeParent(p *object) {
	o.dev.tree.Lock()
	defer o.dev.tree.Unlock()
	if i := slices.Index(o.parents, p); i >= 0 {
		p.unref(o.kind)
		o.parents = slices.Delete(slices.Clone(o.parents), i, i+1)
	}
}

// removeParents undoes addParents and markCreated.
func (o *object) removeParents() {
	o.dev.tree.Lock()
	defer o.dev.tree.Unlock()
	if o.self == nil {
		o.dev.creating--
	} else {
		o.remove()
	}
	for _, p := range o.parents {
		p.unref(o.kind)
	}
	o.parents = nil
}

// markCreated adds a new object to those that [Device.CloseAll] closes. It returns nil.
func (o *object) markCreated(self io.Closer) error {
	d := o.dev
	d.tree.Lock()
	defer d.tree.Unlock()
	d.creating--
	o.self, o.older = self, d.newest
	if d.newest != nil {
		d.newest.newer = o
	}
	d.newest = o
	return nil
}

// remove undoes markCreated. The caller holds dev.tree.
func (o *object) remove() {
	if o.older != nil {
		o.older.newer = o.newer
	}
	if o.newer != nil {
		o.newer.older = o.older
	} else if o.dev.newest == o {
		o.dev.newest = o.older
	}
	o.older, o.newer = nil, nil
}

// close closes the object, unless it is closed already or still used. It waits for the commands that
// run, and those that begin meanwhile fail. Then it calls end to destroy the object; if end fails, the
// object stays open. At last it calls free, which may be nil, to free memory. The object is already
// marked as closed, and stays so if free fails.
func (o *object) close(end, free func() error) error {
	if o.dev == nil {
		return errZero("Close")
	}
	if err := o.shutDown(); err != nil {
		return err
	}
	o.closeMu.Lock()
	defer o.closeMu.Unlock()
	if o.closed.Load() {
		return nil
	}
	if err := end(); err != nil {
		o.dev.tree.Lock()
		o.closers--
		o.dev.tree.Unlock()
		return err
	}
	o.closed.Store(true)
	defer o.removeParents()
	if free == nil {
		return nil
	}
	if err := free(); err != nil {
		return fmt.Errorf("uverbs: %s: unmap rings: %w", o.kind, err)
	}
	return nil
}

// shutDown prevents new users, or returns EBUSY with the users of the object.
func (o *object) shutDown() error {
	o.dev.tree.Lock()
	defer o.dev.tree.Unlock()
	if !o.users.any() {
		o.closers++
		return nil
	}
	var who []string
	for _, u := range o.users {
		if u.n == 0 {
			continue
		}
		who = append(who, fmt.Sprintf("%d %s", u.n, u.kind))
	}
	slices.Sort(who)
	return &Error{
		Op:     o.destroy,
		Device: o.dev.Name(),
		Errno:  syscall.EBUSY,
		Hint:   "still used by " + strings.Join(who, ", ") + "; close them first, or everything with Device.CloseAll",
	}
}
