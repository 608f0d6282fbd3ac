package soft

import (
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// call is a command under way.
type call struct {
	ctx *context
	cmd *kernel.Command // the ioctl; nil for write()

	// The legacy command that the ioctl carries or that was written.
	legacy *legacy
	in     []byte // core struct of the request
	out    []byte // room for the core struct of the response

	// The driver's part of both.
	drvIn, drvOut []byte

	held   []*object // locked by the command
	victim *object   // to be destroyed by the ioctl

	// The object to be created.
	kind     uint16
	handle   uint32
	reserved bool     // handle is
	result   resource // nil until it exists
}

// lookup returns the object with a handle, and locks it until the command ends.
func (k *call) lookup(kind uint16, handle uint64) (resource, syscall.Errno) {
	o, errno := k.find(kind, handle)
	if errno != 0 {
		return nil, errno
	}
	if k.ctx.removed.Load() {
		return nil, syscall.EIO
	}
	if !o.acquire() {
		return nil, syscall.EBUSY
	}
	k.held = append(k.held, o)
	return o.self, 0
}

// find returns the object with a handle without locking it.
func (k *call) find(kind uint16, handle uint64) (*object, syscall.Errno) {
	if !supported(kind) || int64(handle) < 0 {
		return nil, syscall.EINVAL
	}
	o := k.ctx.handles.find(handle)
	if o == nil {
		return nil, syscall.ENOENT
	}
	if o.kind != kind {
		return nil, syscall.EINVAL
	}
	return o, 0
}

// supported reports whether the device has a kind of object.
func supported(kind uint16) bool {
	switch kind {
	case abi.UVERBS_OBJECT_PD, abi.UVERBS_OBJECT_CQ, abi.UVERBS_OBJECT_QP, abi.UVERBS_OBJECT_SRQ, abi.UVERBS_OBJECT_AH,
		abi.UVERBS_OBJECT_MR, abi.UVERBS_OBJECT_MW, abi.UVERBS_OBJECT_COMP_CHANNEL, abi.UVERBS_OBJECT_ASYNC_EVENT:
		return true
	}
	return false
}

// get returns the object with a handle. The type must be that of the kind.
func get[T resource](k *call, kind uint16, handle uint32) (T, syscall.Errno) {
	r, errno := k.lookup(kind, uint64(handle))
	if errno != 0 {
		var none T
		return none, errno
	}
	return r.(T), 0
}

// attrObject returns the object of an attribute that takeAttrs has looked up, or ENOENT if the
// command does not have the attribute.
func attrObject[T resource](k *call, id uint16) (T, syscall.Errno) {
	if a := k.attr(id); a != nil {
		for _, o := range k.held {
			if uint64(o.handle) == a.Data {
				if t, ok := o.self.(T); ok {
					return t, 0
				}
			}
		}
	}
	var none T
	return none, syscall.ENOENT
}

// reserve takes a handle for an object to be created.
func (k *call) reserve(kind uint16) (uint32, syscall.Errno) {
	if errno := k.ctx.usable(); errno != 0 {
		return 0, errno
	}
	k.kind, k.handle, k.reserved = kind, k.ctx.handles.reserve(), true
	return k.handle, 0
}

// create sets the object that belongs to the reserved handle. It becomes visible when the command
// succeeds, and is destroyed if the command fails.
func (k *call) create(r resource) {
	o := r.base()
	o.ctx, o.kind, o.handle, o.self = k.ctx, k.kind, k.handle, r
	k.result = r
}

// destroy destroys an object and frees its handle.
func (k *call) destroy(o *object) syscall.Errno {
	if !o.acquireExclusive() {
		return syscall.EBUSY
	}
	if errno := o.free(byCommand); errno != 0 {
		o.releaseExclusive()
		return errno
	}
	k.ctx.handles.remove(o.handle) // the object stays locked, as another command may have found it
	return 0
}

// destroyHandle is the destruction of an object by a legacy command.
func (k *call) destroyHandle(kind uint16, handle uint32) (*object, syscall.Errno) {
	o, errno := k.find(kind, uint64(handle))
	if errno != 0 {
		return nil, errno
	}
	return o, k.destroy(o)
}

// end unlocks the objects, and adds or destroys the new one.
func (k *call) end(errno syscall.Errno) {
	for _, o := range k.held {
		o.release()
	}
	if !k.reserved {
		return
	}
	if errno == 0 && k.result != nil {
		k.ctx.handles.add(k.result.base())
		return
	}
	if k.result != nil {
		k.result.destroy(byAbort)
	}
	k.ctx.handles.remove(k.handle)
}
