package cm

import (
	"syscall"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/uverbs"
)

// WriteEvent has the channel get an event of this ID, of type [User] and with this status and
// argument, which mean what the program wants (rdma_write_cm_event). It wakes who waits for an
// event; a step that waits, such as [ID.ConnectWait], ends with an error. Linux 6.18.
func (id *ID) WriteEvent(status int32, arg uint64) error {
	if id.closed.Load() {
		return id.errClosed()
	}
	req := abi.WriteCmEvent{ID: id.handle, Event: uint32(User), Status: uint32(status)}
	*req.Param.Arg() = arg
	errno := command(id.channel.Load().file, abi.RDMA_USER_CM_CMD_WRITE_CM_EVENT, &req)
	if errno == syscall.EINVAL { // the event is right, so it is the command
		return unsupported("WRITE_CM_EVENT", &Error{Op: opWriteEvent, Errno: errno})
	}
	return opError(opWriteEvent, "", errno)
}

// servicesSince is the Linux with events of programs and InfiniBand's services.
var servicesSince = uverbs.Version{6, 18}

// unsupported returns the error about a command that the kernel does not know.
func unsupported(feature string, err error) error {
	return &uverbs.FeatureError{Feature: feature, Since: servicesSince, Err: err}
}
