package soft

import (
	"fmt"
	"math"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// files are the event channels of a context by number.
type files struct {
	net  bool // the device has a network
	mu   sync.Mutex
	last uint32                // guarded by mu: the last number
	all  map[uint32]*eventFile // guarded by mu
	main *eventFile            // guarded by mu: the first file of asynchronous events; nil for none
}

// add creates an event channel.
func (s *files) add(kind uint16) *eventFile {
	f := newEventFile(kind)
	f.net = s.net
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[uint32]*eventFile{}
	}
	s.last++
	f.number = s.last
	s.all[f.number] = f
	if s.main == nil && kind == abi.UVERBS_OBJECT_ASYNC_EVENT {
		s.main = f
	}
	return f
}

// find returns the event channel of a kind with a number, or nil.
func (s *files) find(kind uint16, number uint32) *eventFile {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.all[number]; f != nil && f.kind == kind {
		return f
	}
	return nil
}

// first returns the file that gets the asynchronous events of objects without one of their own, or
// nil.
func (s *files) first() *eventFile {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.main
}

// take removes the event channels that a function selects.
func (s *files) take(selected func(*eventFile) bool) []*eventFile {
	s.mu.Lock()
	defer s.mu.Unlock()
	var taken []*eventFile
	for number, f := range s.all {
		if selected(f) {
			taken = append(taken, f)
			delete(s.all, number)
		}
	}
	return taken
}

// list returns the event channels of a kind.
func (s *files) list(kind uint16) []*eventFile {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*eventFile
	for _, f := range s.all {
		if f.kind == kind {
			all = append(all, f)
		}
	}
	return all
}

// closeAll ends all event channels.
func (s *files) closeAll() {
	for _, f := range s.take(func(*eventFile) bool { return true }) {
		f.shut()
	}
}

// fatal ends all completion channels, and tells the files of asynchronous events that the device
// was removed.
func (s *files) fatal() {
	for _, f := range s.list(abi.UVERBS_OBJECT_COMP_CHANNEL) {
		f.end()
	}
	s.async(eventDeviceFatal, 0)
}

// async sends an event that is about no object to all files of asynchronous events.
func (s *files) async(typ uint32, element uint64) {
	for _, f := range s.list(abi.UVERBS_OBJECT_ASYNC_EVENT) {
		f.async(typ, element, nil)
	}
}

// EventsClosed implements [kernel.EventsCloser].
func (c *context) EventsClosed(number uint32) {
	for _, f := range c.files.take(func(f *eventFile) bool { return f.number == number }) {
		f.shut()
	}
}

// Events implements [kernel.Device].
func (c *context) Events(number uint32, name string) (kernel.EventFile, error) {
	f := c.files.find(abi.UVERBS_OBJECT_COMP_CHANNEL, number)
	if f == nil {
		f = c.files.find(abi.UVERBS_OBJECT_ASYNC_EVENT, number)
	}
	if f == nil {
		return nil, fmt.Errorf("soft: %s: number %d is no event channel: %w", name, number, syscall.EBADF)
	}
	return f.open(name)
}

// channel returns the event channel with a number as a command has it.
func (k *call) channel(kind uint16, number int64) (*eventFile, syscall.Errno) {
	if number < math.MinInt32 || number > math.MaxInt32 {
		return nil, syscall.EINVAL
	}
	f := k.ctx.files.find(kind, uint32(number))
	switch {
	case f == nil:
		return nil, syscall.EBADF
	case k.ctx.removed.Load():
		return nil, syscall.EIO
	}
	return f, 0
}

// asyncFile returns the file of asynchronous events that an attribute names, or else the first one
// of the context.
func (k *call) asyncFile(id uint16) *eventFile {
	if a := k.attr(id); a != nil {
		f, _ := k.channel(abi.UVERBS_OBJECT_ASYNC_EVENT, int64(a.Data))
		return f
	}
	return k.ctx.files.first()
}

// asyncEventAlloc is ASYNC_EVENT_ALLOC.
func asyncEventAlloc(k *call) syscall.Errno {
	k.attr(abi.UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE).Data = uint64(k.ctx.files.add(abi.UVERBS_OBJECT_ASYNC_EVENT).number)
	return 0
}

// createCompChannel is CREATE_COMP_CHANNEL.
func createCompChannel(k *call, _ *abi.CreateCompChannel, resp *abi.CreateCompChannelResp) syscall.Errno {
	if errno := k.ctx.usable(); errno != 0 {
		return errno
	}
	resp.FD = k.ctx.files.add(abi.UVERBS_OBJECT_COMP_CHANNEL).number
	return 0
}
