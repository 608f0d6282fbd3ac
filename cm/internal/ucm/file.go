package ucm

import (
	"maps"
	"slices"
	"syscall"

	"github.com/goverbs/goverbs/cm/internal/abi"
)

// File is the counterpart of an open /dev/infiniband/rdma_cm. It is safe for concurrent
// use.
type File struct {
	host *Host
	fd   descriptor

	ids    map[*id]bool // guarded by host.mu
	events []*event     // guarded by host.mu: not read yet, oldest first
	closed bool         // guarded by host.mu
}

// event is an event that waits for being read.
type event struct {
	id      *id    // the ID that the event belongs to; of a request, the listener
	group   *group // the group that it belongs to, or nil
	request *id    // of a request, the new ID
	resp    abi.EventResp
}

// Open opens a file.
func (h *Host) Open() (*File, error) {
	fd, err := newDescriptor()
	if err != nil {
		return nil, err
	}
	f := &File{host: h, fd: fd, ids: map[*id]bool{}}
	h.mu.Lock()
	defer h.unlock()
	h.files[fd.number()] = f
	return f, nil
}

// FD returns a descriptor that is readable while there are events. The caller must not read it, and
// must not close it before [File.Close] has returned.
func (f *File) FD() int { return f.fd.number() }

// Close destroys the IDs of the file. It does not close the descriptor of [File.FD], because that
// may be in use by Go's netpoller.
func (f *File) Close() {
	h := f.host
	h.mu.Lock()
	defer h.unlock()
	if f.closed {
		return
	}
	f.closed = true
	for _, x := range byHandle(maps.Keys(f.ids)) { // a listener comes before its requests
		if f.ids[x] {
			x.destroy()
		}
	}
	f.events = nil
	delete(h.files, f.fd.number())
	f.fd.release()
}

// commands are the commands by number.
var commands = [...]func(f *File, in, out []byte) syscall.Errno{
	abi.RDMA_USER_CM_CMD_CREATE_ID:          (*File).createID,
	abi.RDMA_USER_CM_CMD_DESTROY_ID:         (*File).destroyID,
	abi.RDMA_USER_CM_CMD_BIND_IP:            (*File).bindIP,
	abi.RDMA_USER_CM_CMD_RESOLVE_IP:         (*File).resolveIP,
	abi.RDMA_USER_CM_CMD_RESOLVE_ROUTE:      (*File).resolveRoute,
	abi.RDMA_USER_CM_CMD_QUERY_ROUTE:        (*File).queryRoute,
	abi.RDMA_USER_CM_CMD_CONNECT:            (*File).connect,
	abi.RDMA_USER_CM_CMD_LISTEN:             (*File).listen,
	abi.RDMA_USER_CM_CMD_ACCEPT:             (*File).accept,
	abi.RDMA_USER_CM_CMD_REJECT:             (*File).reject,
	abi.RDMA_USER_CM_CMD_DISCONNECT:         (*File).disconnect,
	abi.RDMA_USER_CM_CMD_INIT_QP_ATTR:       (*File).initQPAttr,
	abi.RDMA_USER_CM_CMD_GET_EVENT:          (*File).getEvent,
	abi.RDMA_USER_CM_CMD_GET_OPTION:         nil,
	abi.RDMA_USER_CM_CMD_SET_OPTION:         (*File).setOption,
	abi.RDMA_USER_CM_CMD_NOTIFY:             (*File).notify,
	abi.RDMA_USER_CM_CMD_JOIN_IP_MCAST:      (*File).joinIPMulticast,
	abi.RDMA_USER_CM_CMD_LEAVE_MCAST:        (*File).leaveMulticast,
	abi.RDMA_USER_CM_CMD_MIGRATE_ID:         (*File).migrateID,
	abi.RDMA_USER_CM_CMD_QUERY:              (*File).query,
	abi.RDMA_USER_CM_CMD_BIND:               (*File).bind,
	abi.RDMA_USER_CM_CMD_RESOLVE_ADDR:       (*File).resolveAddr,
	abi.RDMA_USER_CM_CMD_JOIN_MCAST:         (*File).joinMulticast,
	abi.RDMA_USER_CM_CMD_RESOLVE_IB_SERVICE: (*File).resolveIBService,
	abi.RDMA_USER_CM_CMD_WRITE_CM_EVENT:     (*File).writeEvent,
}

// Do carries out a command. The request is in, and the answer is stored in out; the addresses of
// memory in a request are only used where it is not the answer. Both are aligned to 8 bytes.
func (f *File) Do(cmd uint32, in, out []byte) syscall.Errno {
	if cmd >= uint32(len(commands)) {
		return syscall.EINVAL
	}
	do := commands[cmd]
	if do == nil {
		return syscall.ENOSYS
	}
	f.host.mu.Lock()
	defer f.host.unlock()
	switch {
	case f.closed && cmd == abi.RDMA_USER_CM_CMD_GET_EVENT: // closing the descriptor ends the wait
		return syscall.EAGAIN
	case f.closed:
		return syscall.EBADF
	}
	return do(f, in, out)
}

// find returns the ID with a handle.
func (f *File) find(handle uint32) (*id, syscall.Errno) {
	x := f.host.ids[handle]
	switch {
	case x == nil:
		return nil, syscall.ENOENT
	case x.file != f:
		return nil, syscall.EINVAL
	case x.state == stateRemoved:
		return nil, syscall.ENXIO
	}
	return x, 0
}

// findBound returns the ID with a handle, which must have a device.
func (f *File) findBound(handle uint32) (*id, syscall.Errno) {
	x, errno := f.find(handle)
	if errno == 0 && x.dev == nil {
		errno = syscall.EINVAL
	}
	return x, errno
}

// push adds an event and makes the descriptor readable.
func (f *File) push(e *event) {
	f.events = append(f.events, e)
	if len(f.events) == 1 {
		f.fd.set()
	}
}

// removeEvents removes the events that match, and returns them.
func (f *File) removeEvents(match func(*event) bool) []*event {
	if len(f.events) == 0 {
		return nil
	}
	var removed []*event
	f.events = slices.DeleteFunc(f.events, func(e *event) bool {
		if match(e) {
			removed = append(removed, e)
			return true
		}
		return false
	})
	if len(f.events) == 0 {
		f.fd.clear()
	}
	return removed
}

// eventMin is the size of an event without the fields that were added later.
const eventMin = 336 - 8 - 4

func (f *File) getEvent(_, out []byte) syscall.Errno {
	if len(out) < eventMin {
		return syscall.ENOSPC
	}
	if len(f.events) == 0 {
		return syscall.EAGAIN
	}
	e := f.events[0]
	copy(out, bytesOf(&e.resp))
	f.events[0] = nil
	if f.events = f.events[1:]; len(f.events) == 0 {
		f.events = nil
		f.fd.clear()
	}
	e.id.reported++
	if e.group != nil {
		e.group.reported++
	}
	if e.request != nil {
		e.id.requestRead(e.request)
	}
	return 0
}

func (f *File) migrateID(in, out []byte) syscall.Errno {
	req, resp := view[abi.MigrateID](in), view[abi.MigrateResp](out)
	if req == nil || resp == nil {
		return syscall.EINVAL
	}
	from := f.host.files[int(req.FD)]
	if from == nil {
		return syscall.EINVAL
	}
	x, errno := from.find(req.ID)
	if errno != 0 {
		return errno
	}
	x.file = f
	delete(from.ids, x)
	f.ids[x] = true
	for _, e := range from.removeEvents(func(e *event) bool { return e.id == x }) {
		f.push(e)
	}
	resp.EventsReported = x.reported
	return 0
}

func (f *File) writeEvent(in, _ []byte) syscall.Errno {
	req := view[abi.WriteCmEvent](in)
	if req == nil || req.Event != eventUser && req.Event != eventInternal {
		return syscall.EINVAL
	}
	x, errno := f.find(req.ID)
	switch {
	case errno != 0:
		return errno
	case x.uid == 0:
		return syscall.EINVAL
	}
	e := &event{id: x, resp: abi.EventResp{Uid: x.uid, ID: x.handle, Event: req.Event, Status: req.Status}}
	copy(bytesOf(e.resp.Param.Arg32()), bytesOf(req.Param.Arg()))
	f.push(e)
	return 0
}
