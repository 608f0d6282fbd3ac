package ibcm

import (
	"syscall"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// QP states (enum ib_qp_state).
const (
	QPInit = 1
	QPRTR  = 2
	QPRTS  = 3
)

// Bits of the attribute mask of a QP (enum ib_qp_attr_mask).
const (
	MaskState           = 1 << 0
	MaskAccess          = 1 << 3
	MaskPKeyIndex       = 1 << 4
	MaskPort            = 1 << 5
	MaskQKey            = 1 << 6
	MaskAV              = 1 << 7
	MaskPathMTU         = 1 << 8
	MaskTimeout         = 1 << 9
	MaskRetryCount      = 1 << 10
	MaskRNRRetry        = 1 << 11
	MaskRQPSN           = 1 << 12
	MaskMaxRdAtomic     = 1 << 13
	MaskMinRNRTimer     = 1 << 15
	MaskSQPSN           = 1 << 16
	MaskMaxDestRdAtomic = 1 << 17
	MaskDestQPN         = 1 << 20
)

// Access rights of a QP (enum ib_access_flags).
const (
	accessRemoteWrite     = 1 << 1
	accessRemoteRead      = 1 << 2
	accessRemoteAtomic    = 1 << 3
	accessFlushGlobal     = 1 << 8
	accessFlushPersistent = 1 << 9
)

// QPAttr are the attributes with which a QP is moved to a state.
type QPAttr struct {
	Mask            uint32
	Access          uint32
	Path            Path // if Mask has MaskAV
	DestQPN         uint32
	RQPSN           uint32
	SQPSN           uint32
	MaxRdAtomic     uint8
	MaxDestRdAtomic uint8
	Timeout         uint8
	RetryCount      uint8
	RNRRetryCount   uint8
}

// QPAttr returns the attributes with which the QP of a connection is moved to a state. The port and
// the P_Key index are left to the caller.
func (id *ID) QPAttr(state uint32) (QPAttr, syscall.Errno) {
	if state == QPInit && (id.state == REQSent || id.state == MRAREQRcvd) {
		return id.initAttr(), 0
	}
	switch id.state {
	case REQRcvd, MRAREQSent, REPRcvd, MRAREPSent, REPSent, MRAREPRcvd, Established:
	default:
		return QPAttr{}, syscall.EINVAL
	}
	switch state {
	case QPInit:
		return id.initAttr(), 0
	case QPRTR:
		return id.rtrAttr(), 0
	case QPRTS:
		return id.rtsAttr(), 0
	}
	return QPAttr{}, syscall.EINVAL
}

func (id *ID) initAttr() QPAttr {
	a := QPAttr{Mask: MaskState | MaskAccess | MaskPKeyIndex | MaskPort, Access: accessRemoteWrite}
	if id.responderRes > 0 {
		a.Access |= accessRemoteRead | accessRemoteAtomic
		if id.m.c.Flush {
			a.Access |= accessFlushGlobal | accessFlushPersistent
		}
	}
	return a
}

func (id *ID) rtrAttr() QPAttr {
	a := QPAttr{
		Mask:    MaskState | MaskAV | MaskPathMTU | MaskDestQPN | MaskRQPSN,
		Path:    id.path,
		DestQPN: id.remoteQPN,
		RQPSN:   id.rqPSN,
	}
	if id.qpType == ib.RC {
		a.Mask |= MaskMaxDestRdAtomic | MaskMinRNRTimer
		a.MaxDestRdAtomic = id.responderRes
	}
	return a
}

func (id *ID) rtsAttr() QPAttr {
	a := QPAttr{Mask: MaskState | MaskSQPSN, SQPSN: id.sqPSN}
	if id.qpType == ib.RC {
		a.Mask |= MaskRetryCount | MaskRNRRetry | MaskMaxRdAtomic | MaskTimeout
		a.RetryCount, a.RNRRetryCount = id.retryCount, id.rnrRetryCount
		a.MaxRdAtomic, a.Timeout = id.initiatorDepth, id.ackTimeout
	}
	return a
}
