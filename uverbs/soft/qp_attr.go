package soft

import (
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/soft/internal/engine"
)

// States of a QP (enum ib_qp_state) that the commands know.
const (
	stateRTR = 2
	stateErr = 6
)

// Attributes of MODIFY_QP (enum ib_qp_attr_mask) that the commands know.
const (
	attrState     = uint32(engine.AttrState)
	attrCurState  = uint32(engine.AttrCurState)
	attrPort      = uint32(engine.AttrPort)
	attrAV        = uint32(engine.AttrAV)
	attrAltPath   = uint32(engine.AttrAltPath)
	attrRateLimit = uint32(engine.AttrRateLimit)

	// attrStandard are the attributes of the first version (IB_QP_ATTR_STANDARD_BITS).
	attrStandard = 1<<21 - 1
)

// modifyQP is MODIFY_QP.
func modifyQP(k *call, req *abi.ModifyQP) syscall.Errno {
	if req.AttrMask&^uint32(attrStandard) != 0 {
		return syscall.EOPNOTSUPP
	}
	return modify(k, req)
}

// exModifyQP is the extended MODIFY_QP. rxe has no rate limit.
func exModifyQP(k *call, req *abi.ExModifyQP, resp *abi.ExModifyQPResp) syscall.Errno {
	if req.Base.AttrMask&^(attrStandard|attrRateLimit) != 0 {
		return syscall.EOPNOTSUPP
	}
	resp.ResponseLength = responseLength(k, resp)
	return modify(k, &req.Base)
}

// modify carries out MODIFY_QP in both forms.
func modify(k *call, req *abi.ModifyQP) syscall.Errno {
	q, errno := get[*qp](k, abi.UVERBS_OBJECT_QP, req.QPHandle)
	if errno != 0 {
		return errno
	}
	if errno := q.checkModify(req); errno != 0 {
		return errno
	}
	attr := engine.QPAttr{
		State: engine.State(req.QPState), CurState: engine.State(req.CurQPState), PathMTU: req.PathMTU, PathMigState: req.PathMigState,
		QKey: req.QKey, RQPSN: req.RQPSN, SQPSN: req.SQPSN, DestQPN: req.DestQPNum, AccessFlags: req.QPAccessFlags,
		AV: avOf(&req.Dest), AltAV: avOf(&req.AltDest), PKeyIndex: req.PKeyIndex, AltPKeyIndex: req.AltPKeyIndex,
		SQDNotify: req.EnSQDAsyncNotify != 0, MaxRdAtomic: req.MaxRDAtomic, MaxDestRdAtomic: req.MaxDestRDAtomic,
		MinRNRTimer: req.MinRNRTimer, Port: req.PortNum, AltPort: req.AltPortNum, Timeout: req.Timeout, AltTimeout: req.AltTimeout,
		RetryCount: req.RetryCnt, RNRRetry: req.RNRRetry,
	}
	return q.queues.Modify(&attr, engine.AttrMask(req.AttrMask))
}

// checkModify makes the checks of the command itself (modify_qp in uverbs_cmd.c). An AV outside of a
// change to RTR sets the port, too.
func (q *qp) checkModify(req *abi.ModifyQP) syscall.Errno {
	mask := req.AttrMask
	if mask&attrPort != 0 && req.PortNum != 1 {
		return syscall.EINVAL
	}
	if mask&attrAV != 0 {
		if req.Dest.PortNum != 1 {
			return syscall.EINVAL
		}
		if mask&attrState != 0 && req.QPState == stateRTR {
			if q.queues.Query().Port != req.Dest.PortNum {
				return syscall.EINVAL
			}
		} else if mask&attrPort == 0 {
			req.AttrMask |= attrPort
			req.PortNum = req.Dest.PortNum
		}
	}
	if mask&attrAltPath != 0 && (req.AltPortNum != 1 || req.AltDest.PortNum != 1) {
		return syscall.EINVAL
	}
	if mask&attrCurState != 0 && req.CurQPState > stateErr || mask&attrState != 0 && req.QPState > stateErr {
		return syscall.EINVAL
	}
	return 0
}

// avOf returns an address vector.
func avOf(d *abi.QPDest) engine.AV {
	return engine.AV{
		GRH: d.IsGlobal != 0, DGID: d.DGID, SGIDIndex: d.SGIDIndex, FlowLabel: d.FlowLabel,
		HopLimit: d.HopLimit, TrafficClass: d.TrafficClass, Port: d.PortNum,
	}
}

// destOf is the inverse of avOf. Like rxe it reports all address vectors as global.
func destOf(av *engine.AV) abi.QPDest {
	return abi.QPDest{
		DGID: av.DGID, FlowLabel: av.FlowLabel, SGIDIndex: av.SGIDIndex, HopLimit: av.HopLimit,
		TrafficClass: av.TrafficClass, IsGlobal: 1, PortNum: av.Port,
	}
}

// queryQP is QUERY_QP.
func queryQP(k *call, req *abi.QueryQP, resp *abi.QueryQPResp) syscall.Errno {
	q, errno := get[*qp](k, abi.UVERBS_OBJECT_QP, req.QPHandle)
	if errno != 0 {
		return errno
	}
	a := q.queues.Query()
	*resp = abi.QueryQPResp{
		QPState: uint8(a.State), CurQPState: uint8(a.CurState), PathMTU: a.PathMTU, PathMigState: a.PathMigState,
		QKey: a.QKey, RQPSN: a.RQPSN, SQPSN: a.SQPSN, DestQPNum: a.DestQPN, QPAccessFlags: a.AccessFlags,
		PKeyIndex: a.PKeyIndex, AltPKeyIndex: a.AltPKeyIndex, SQDraining: flag(a.SQDraining), MaxRDAtomic: a.MaxRdAtomic,
		MaxDestRDAtomic: a.MaxDestRdAtomic, MinRNRTimer: a.MinRNRTimer, PortNum: a.Port, Timeout: a.Timeout,
		RetryCnt: a.RetryCount, RNRRetry: a.RNRRetry, AltPortNum: a.AltPort, AltTimeout: a.AltTimeout,
		Dest: destOf(&a.AV), AltDest: destOf(&a.AltAV), SQSigAll: flag(q.sigAll),
		MaxSendWR: uint32(a.Caps.MaxSendWR), MaxSendSGE: uint32(a.Caps.MaxSendSGE), MaxInlineData: uint32(a.Caps.MaxInline),
		MaxRecvWR: uint32(a.Caps.MaxRecvWR), MaxRecvSGE: uint32(a.Caps.MaxRecvSGE),
	}
	return 0
}

// flag returns 1 for true.
func flag(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}
