package soft

import (
	"cmp"
	"math/bits"
	"sync"
	"sync/atomic"
	"syscall"
)

// removal says why an object is destroyed.
type removal uint8

const (
	byCommand removal = iota // a DESTROY command
	byAbort                  // the command that creates the object fails after all
	byClose                  // the context is closed, or the device is removed
)

// resource is an object of a context: a PD, a CQ, and so on.
type resource interface {
	base() *object

	// destroy destroys the object. It is called with the object locked exclusively, and at most
	// once with success. A user of the object makes it fail with EBUSY.
	destroy(why removal) syscall.Errno
}

// object is the part that all resources have. A handle of the context stands for it.
type object struct {
	ctx    *context
	kind   uint16 // UVERBS_OBJECT_*
	handle uint32
	order  uint64   // the number of objects that were created before this one
	self   resource // the object with this part

	lock  atomic.Int32 // the number of commands that use the object, or exclusive
	users atomic.Int32 // the number of objects that refer to this one
	dead  bool         // destroyed because the device was removed; the handle is still valid
}

func (o *object) base() *object { return o }

// exclusive is the state of a lock that one command holds alone.
const exclusive = -1

// acquire locks the object for a command that uses it. It reports false if the object is being
// destroyed.
func (o *object) acquire() bool {
	for {
		n := o.lock.Load()
		if n == exclusive {
			return false
		}
		if o.lock.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// release undoes acquire.
func (o *object) release() { o.lock.Add(-1) }

// acquireExclusive locks the object for its destruction. It reports false if a command uses it.
func (o *object) acquireExclusive() bool { return o.lock.CompareAndSwap(0, exclusive) }

// releaseExclusive undoes acquireExclusive.
func (o *object) releaseExclusive() { o.lock.Store(0) }

// free destroys the object, which is locked exclusively, unless the removal of the device has done
// so already.
func (o *object) free(why removal) syscall.Errno {
	if o.dead {
		return 0
	}
	if o.users.Load() != 0 {
		return syscall.EBUSY
	}
	return o.self.destroy(why)
}

// handles are the objects of a context by handle. As in Linux, a new object gets the smallest
// handle that is free. Lookups take no lock.
type handles struct {
	slots atomic.Pointer[[]atomic.Pointer[object]] // nil: free, or the object is being created

	mu      sync.Mutex
	used    []uint64 // guarded by mu: a bit for each handle
	created uint64   // guarded by mu: the number of objects created so far
}

// reserve returns a free handle.
func (h *handles) reserve() uint32 {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, w := range h.used {
		if w != ^uint64(0) {
			n := bits.TrailingZeros64(^w)
			h.used[i] |= 1 << n
			return uint32(i*64 + n)
		}
	}
	h.used = append(h.used, 1)
	h.grow(len(h.used) * 64)
	return uint32(len(h.used)-1) * 64
}

// grow makes room for n handles. The caller holds mu.
func (h *handles) grow(n int) {
	if n <= len(h.all()) {
		return
	}
	slots := make([]atomic.Pointer[object], max(n, 2*len(h.all())))
	for i := range h.all() {
		slots[i].Store(h.all()[i].Load())
	}
	h.slots.Store(&slots)
}

// all returns the slots.
func (h *handles) all() []atomic.Pointer[object] {
	if s := h.slots.Load(); s != nil {
		return *s
	}
	return nil
}

// add makes an object known by its handle, which was reserved.
func (h *handles) add(o *object) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.created++
	o.order = h.created
	h.all()[o.handle].Store(o)
}

// remove frees a handle.
func (h *handles) remove(handle uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all()[handle].Store(nil)
	h.used[handle/64] &^= 1 << (handle % 64)
}

// find returns the object with a handle, or nil.
func (h *handles) find(handle uint64) *object {
	if s := h.all(); handle < uint64(len(s)) {
		return s[handle].Load()
	}
	return nil
}

// list returns the objects in no particular order.
func (h *handles) list() []*object {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []*object
	for i := range h.all() {
		if o := h.all()[i].Load(); o != nil {
			all = append(all, o)
		}
	}
	return all
}

// newestFirst orders objects for [slices.SortFunc].
func newestFirst(a, b *object) int { return cmp.Compare(b.order, a.order) }
