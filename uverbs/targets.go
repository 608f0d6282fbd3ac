package uverbs

import (
	"sync"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// targets are the objects of events by number. An object's number is the user_handle that the
// kernel returns in completion events and asynchronous events. Numbers are never reused, so a late
// event cannot be taken for that of another object.
type targets struct {
	mu      sync.RWMutex
	last    uint64
	all     map[uint64]any // complete objects, and creating{} for those that are being created
	changed sync.Cond      // an object of all is complete, or was dropped
}

// creating stands in targets for an object that is not complete yet, so that no goroutine finds it.
type creating struct{}

// reserveTarget returns the user_handle of an object that will be created, which is never 0. targetCreated
// or dropTarget follows.
func (d *Device) reserveTarget() uint64 {
	t := &d.targets
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all, t.changed.L = map[uint64]any{}, &t.mu
	}
	t.last++
	t.all[t.last] = creating{}
	return t.last
}

// targetCreated adds an object, which is complete.
func (d *Device) targetCreated(handle uint64, o any) {
	t := &d.targets
	t.mu.Lock()
	t.all[handle] = o
	t.changed.Broadcast()
	t.mu.Unlock()
}

// addTarget adds an object that is complete and returns its user_handle.
func (d *Device) addTarget(o any) uint64 {
	handle := d.reserveTarget()
	d.targetCreated(handle, o)
	return handle
}

// dropTarget removes a destroyed object, or one that could not be created.
func (d *Device) dropTarget(handle uint64) {
	t := &d.targets
	t.mu.Lock()
	delete(t.all, handle)
	t.changed.Broadcast()
	t.mu.Unlock()
}

// target returns the object of a user_handle, or nil. An event may come before the command that creates
// its object has returned; target waits for that.
func (d *Device) target(handle uint64) any {
	t := &d.targets
	t.mu.RLock()
	o := t.all[handle]
	t.mu.RUnlock()
	if o != (creating{}) {
		return o
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.all[handle] == (creating{}) {
		t.changed.Wait()
	}
	return t.all[handle]
}

// openEvents opens the file of asynchronous events for a context that was created by ioctl. It does
// nothing if the kernel does not support the method.
func (d *Device) openEvents() error {
	cmd := newIoctl(abi.UVERBS_OBJECT_ASYNC_EVENT, abi.UVERBS_METHOD_ASYNC_EVENT_ALLOC)
	defer cmd.done()
	fd := cmd.newObj(abi.UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE)
	errno := d.cmd.ioctl(cmd)
	if absent(errno) {
		return nil
	}
	if errno != 0 {
		return d.cmd.fail("ASYNC_EVENT_ALLOC", errno, "")
	}
	var err error
	d.asyncFD = int(fd.Data)
	d.async, err = d.cmd.Events(uint32(fd.Data), "asynchronous events of "+d.Name())
	return err
}

// eventFDAttr adds the attribute EVENT_FD of a command that creates an object, as an optional one, unless
// the file was not opened by ioctl. Without the attribute the kernel uses the first event file of the
// context, which is the same one.
func (d *Device) eventFDAttr(cmd *ioctlCommand, id uint16) {
	if d.async != nil && d.asyncFD >= 0 {
		cmd.fd(id, d.asyncFD).Flags = 0
	}
}
