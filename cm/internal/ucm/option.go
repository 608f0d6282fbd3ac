package ucm

import (
	"encoding/binary"
	"syscall"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// maxOption is the greatest size of the value of an option in bytes (KMALLOC_MAX_SIZE).
const maxOption = 4 << 20

func (f *File) setOption(in, _ []byte) syscall.Errno {
	req := view[abi.SetOption](in)
	if req == nil || req.Optlen > maxOption {
		return syscall.EINVAL
	}
	x, errno := f.find(req.ID)
	if errno != 0 {
		return errno
	}
	value := pointed(&req.Optval, req.Optlen)
	if value == nil && req.Optlen > 0 {
		return syscall.EFAULT
	}
	switch req.Level {
	case abi.RDMA_OPTION_ID:
		return x.setIDOption(req.Optname, value)
	case abi.RDMA_OPTION_IB:
		if req.Optname == abi.RDMA_OPTION_IB_PATH {
			return x.setPath(value)
		}
	}
	return syscall.ENOSYS
}

// setIDOption sets an option of level RDMA_OPTION_ID.
func (x *id) setIDOption(name uint32, value []byte) syscall.Errno {
	size := 1
	switch name {
	case abi.RDMA_OPTION_ID_TOS, abi.RDMA_OPTION_ID_ACK_TIMEOUT:
	case abi.RDMA_OPTION_ID_REUSEADDR, abi.RDMA_OPTION_ID_AFONLY:
		size = 4
	default:
		return syscall.ENOSYS
	}
	if len(value) != size {
		return syscall.EINVAL
	}
	switch name {
	case abi.RDMA_OPTION_ID_TOS:
		x.tos = value[0]
	case abi.RDMA_OPTION_ID_ACK_TIMEOUT:
		if x.qpType != ib.RC {
			return syscall.EINVAL
		}
		x.timeout, x.timeoutSet = value[0], true
	case abi.RDMA_OPTION_ID_REUSEADDR:
		on := binary.NativeEndian.Uint32(value) != 0
		if x.state == stateListen || !on && x.state != stateIdle {
			return syscall.EINVAL
		}
		x.reuse = on
	case abi.RDMA_OPTION_ID_AFONLY:
		if x.state != stateIdle && x.state != stateBound {
			return syscall.EINVAL
		}
		x.familyOnly, x.familyOnlySet = binary.NativeEndian.Uint32(value) != 0, true
	}
	return 0
}

// setPath sets the path to the resolved address. The value has one or more path records with flags.
func (x *id) setPath(value []byte) syscall.Errno {
	const primary = abi.IB_PATH_GMP | abi.IB_PATH_PRIMARY | abi.IB_PATH_BIDIRECTIONAL
	const data, size = 8, 8 + pathRecordSize
	if len(value)%size != 0 {
		return syscall.EINVAL
	}
	for len(value) > 0 && binary.NativeEndian.Uint32(value) != primary {
		value = value[size:]
	}
	switch {
	case len(value) == 0 || x.dev == nil || x.state != stateAddrResolved:
		return syscall.EINVAL
	case !x.hasGID:
		return syscall.ENODEV
	}
	x.path = parsePath(value[data:])
	x.state = stateRouteResolved
	x.pushEvent(eventRouteResolved, 0, nil)
	return 0
}
