package rdmacm

import (
	"syscall"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/uverbs"
)

// WriteEvent writes an event of this ID to its channel (rdma_write_cm_event). Its type is
// [EventUser]; the program chooses the meaning of status and arg. A goroutine that waits for the ID
// receives the event, and a call that waits for another event, such as [ID.ConnectWait], fails.
// Linux 6.18.
func (id *ID) WriteEvent(status int32, arg uint64) error {
	req := abi.WriteCmEvent{ID: id.handle, Event: uint32(EventUser), Status: uint32(status)}
	*req.Param.Arg() = arg
	errno := id.issue(newMessage(abi.RDMA_USER_CM_CMD_WRITE_CM_EVENT, &req, 0).raw(nil))
	if errno == syscall.EINVAL { // the arguments are valid, so the kernel does not know the command
		return unsupported("WRITE_CM_EVENT", &Error{Op: opWriteEvent, Errno: errno})
	}
	return opError(opWriteEvent, "", errno)
}

// servicesSince is the first Linux with WriteEvent and ResolveService.
var servicesSince = uverbs.Version{6, 18}

// unsupported returns the error for a command that the kernel does not know.
func unsupported(feature string, err error) error {
	return &uverbs.FeatureError{Feature: feature, Since: servicesSince, Err: err}
}
