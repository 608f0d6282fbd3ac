package ucm

import (
	"syscall"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/cm/internal/ibcm"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// qpErr is the last QP state (enum ib_qp_state).
const qpErr = 6

func (f *File) initQPAttr(in, out []byte) syscall.Errno {
	resp := view[abi.IbUverbsQPAttr](out)
	if resp == nil {
		return syscall.ENOSPC
	}
	req := view[abi.InitQPAttr](in)
	if req == nil || req.QPState > qpErr {
		return syscall.EINVAL
	}
	x, errno := f.findBound(req.ID)
	if errno != 0 {
		return errno
	}
	a := ibcm.QPAttr{Mask: ibcm.MaskState | ibcm.MaskPKeyIndex | ibcm.MaskPort}
	qkey := uint32(0)
	switch {
	case x.qpType == ib.UD:
		if errno := x.setDefaultQKey(); errno != 0 {
			return errno
		}
		a.Mask |= ibcm.MaskQKey
		qkey = x.qkey
	case x.cm == nil:
		a.Mask |= ibcm.MaskAccess
	default:
		if a, errno = x.cm.QPAttr(req.QPState); errno != 0 {
			return errno
		}
	}
	if a.Mask&ibcm.MaskTimeout != 0 && x.timeoutSet {
		a.Timeout = x.timeout
	}
	*resp = x.qpAttr(&a)
	resp.QPState, resp.QKey = req.QPState, qkey
	if req.QPState == ibcm.QPRTR {
		resp.RQPSN = x.psn
	}
	return 0
}

// qpAttr returns attributes in the layout of the command.
func (x *id) qpAttr(a *ibcm.QPAttr) abi.IbUverbsQPAttr {
	r := abi.IbUverbsQPAttr{
		QPAttrMask:      a.Mask,
		SQPSN:           a.SQPSN,
		DestQPNum:       a.DestQPN,
		QPAccessFlags:   a.Access,
		MaxRDAtomic:     a.MaxRdAtomic,
		MaxDestRDAtomic: a.MaxDestRdAtomic,
		Timeout:         a.Timeout,
		RetryCnt:        a.RetryCount,
		RNRRetry:        a.RNRRetryCount,
	}
	if a.Mask&ibcm.MaskAV != 0 {
		r.AHAttr = x.ahAttr(a.Path)
		r.PathMTU = uint32(a.Path.MTU)
	}
	if a.Mask&ibcm.MaskPort != 0 {
		r.PortNum = portNum
	}
	return r
}
