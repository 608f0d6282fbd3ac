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
	if id.gone.Load() {
		return id.errClosed()
	}
	req := abi.WriteCmEvent{ID: id.handle, Event: uint32(User), Status: uint32(status)}
	*req.Param.Arg() = arg
	errno := command(id.channel.Load().file, abi.RDMA_USER_CM_CMD_WRITE_CM_EVENT, &req)
	if errno == syscall.EINVAL { // the event is right, so it is the command
		return lacks("WRITE_CM_EVENT", &Error{Op: opWriteEvent, Errno: errno})
	}
	return fail(opWriteEvent, "", errno)
}

// services is the Linux with events of programs and InfiniBand's services.
var services = uverbs.Version{6, 18}

// lacks returns the error about a command that the kernel does not know.
func lacks(feature string, err error) error {
	return &uverbs.FeatureError{Feature: feature, Since: services, Err: err}
}
