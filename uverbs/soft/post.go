package soft

import (
	"encoding/binary"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// postSend is POST_SEND. The program writes its work requests to the ring, so the command only rings
// the doorbell.
func postSend(k *call) syscall.Errno {
	var req abi.PostSend
	b := kernel.Bytes(&req)
	copy(b[8:], k.in[8:]) // behind the address of the response
	if errno := checkPost(&req, k.in[len(b):]); errno != 0 {
		return errno
	}
	q, errno := get[*qp](k, abi.UVERBS_OBJECT_QP, req.QPHandle)
	if errno != 0 {
		return errno
	}
	errno = q.queues.Doorbell()
	k.respond(kernel.Bytes(&abi.PostSendResp{}))
	return errno
}

// checkPost checks the sizes of POST_SEND. Programs do not post by the command itself; rxe ignores
// such work requests of a QP with rings.
func checkPost(req *abi.PostSend, rest []byte) syscall.Errno {
	wrs := uint64(req.WQESize) * uint64(req.WRCount)
	sges := uint64(req.SGECount) * uint64(len(kernel.Bytes(new(abi.SGE))))
	switch {
	case wrs > uint64(len(rest)) || sges > uint64(len(rest))-wrs:
		return syscall.ENOSPC
	case !isZero(rest[wrs+sges:]):
		return syscall.EOPNOTSUPP
	case req.WQESize < uint32(len(kernel.Bytes(new(abi.SendWR)))):
		return syscall.EINVAL
	}
	return 0
}

// fastDoorbell is POST_SEND without work requests in its usual form.
func (c *context) fastDoorbell(in, out []byte) (syscall.Errno, bool) {
	if len(in) != postSendSize || len(out) != 4 {
		return 0, false
	}
	handle := binary.LittleEndian.Uint32(in[8:])
	work := binary.LittleEndian.Uint64(in[12:]) // numbers of work requests and of scatter/gather entries
	size := binary.LittleEndian.Uint32(in[20:])
	if work != 0 || size < sendWRSize {
		return 0, false
	}
	o := c.handles.find(uint64(handle))
	if o == nil || o.kind != abi.UVERBS_OBJECT_QP || c.removed.Load() || !o.acquire() {
		return 0, false // the general way finds the errno
	}
	defer o.release()
	clear(out)
	return o.self.(*qp).queues.Doorbell(), true
}

// Sizes of structs that fastDoorbell and fastArm read.
var (
	postSendSize = len(kernel.Bytes(new(abi.PostSend)))
	sendWRSize   = uint32(len(kernel.Bytes(new(abi.SendWR))))
)

// fastArm is REQ_NOTIFY_CQ in its usual form.
func (c *context) fastArm(in []byte) (syscall.Errno, bool) {
	if len(in) != 8 {
		return 0, false
	}
	o := c.handles.find(uint64(binary.NativeEndian.Uint32(in)))
	if o == nil || o.kind != abi.UVERBS_OBJECT_CQ || c.removed.Load() || !o.acquire() {
		return 0, false
	}
	defer o.release()
	o.self.(*cq).queue.Arm(binary.NativeEndian.Uint32(in[4:]) != 0)
	c.dev.armed()
	return 0, true
}
