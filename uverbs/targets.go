package uverbs

import "sync"

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

// reserve returns the user_handle of an object that will be created, which is never 0. created or drop
// follows.
func (t *targets) reserve() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all, t.changed.L = map[uint64]any{}, &t.mu
	}
	t.last++
	t.all[t.last] = creating{}
	return t.last
}

// created adds an object, which is complete.
func (t *targets) created(handle uint64, o any) {
	t.mu.Lock()
	t.all[handle] = o
	t.changed.Broadcast()
	t.mu.Unlock()
}

// add adds an object that is complete and returns its user_handle.
func (t *targets) add(o any) uint64 {
	handle := t.reserve()
	t.created(handle, o)
	return handle
}

// drop removes a destroyed object, or one that could not be created.
func (t *targets) drop(handle uint64) {
	t.mu.Lock()
	delete(t.all, handle)
	t.changed.Broadcast()
	t.mu.Unlock()
}

// get returns the object of a user_handle, or nil. An event may come before the command that creates
// its object has returned; get waits for that.
func (t *targets) get(handle uint64) any {
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
