package uverbs

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

func TestCreateQP(t *testing.T) {
	eachFakePath(t, func(t *testing.T, d *Device, k *fakeKernel, method, _ string) {
		pd := value(d.AllocPD())(t)
		send, recv := value(d.CreateCQ(CQOptions{Size: 1}))(t), value(d.CreateCQ(CQOptions{Size: 1}))(t)
		k.took()
		qp := value(pd.CreateQP(QPOptions{SendCQ: send, RecvCQ: recv, MaxSendWR: 5, MaxRecvWR: 9, MaxSendSGE: 3, MaxRecvSGE: 2, MaxInline: 64, SignalAll: true}))(t)
		c := k.last("CREATE_QP")
		k.sent(method + " CREATE_QP")
		var req abi.CreateQP
		if method == "ioctl" {
			handle := func(id uint16) uint32 { return uint32(c.attr(id).Data) }
			req.PDHandle, req.SendCQHandle = handle(abi.UVERBS_ATTR_CREATE_QP_PD_HANDLE), handle(abi.UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE)
			req.RecvCQHandle, req.QPType = handle(abi.UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE), uint8(handle(abi.UVERBS_ATTR_CREATE_QP_TYPE))
			req.SQSigAll = uint8(handle(abi.UVERBS_ATTR_CREATE_QP_FLAGS) >> 12) // IB_UVERBS_QP_CREATE_SQ_SIG_ALL
			var cap abi.QPCap
			copy(bytesOf(&cap), c.attr(abi.UVERBS_ATTR_CREATE_QP_CAP).In)
			req.MaxSendWR, req.MaxRecvWR, req.MaxSendSGE, req.MaxRecvSGE = cap.MaxSendWR, cap.MaxRecvWR, cap.MaxSendSGE, cap.MaxRecvSGE
			req.MaxInlineData = cap.MaxInlineData
			req.UserHandle = c.attr(abi.UVERBS_ATTR_CREATE_QP_USER_HANDLE).Data
		} else {
			copy(bytesOf(&req), c.in)
		}
		want := abi.CreateQP{UserHandle: qp.cookie, PDHandle: pd.handle, SendCQHandle: send.handle, RecvCQHandle: recv.handle, QPType: 2, SQSigAll: 1,
			MaxSendWR: 5, MaxRecvWR: 9, MaxSendSGE: 3, MaxRecvSGE: 2, MaxInlineData: 64}
		if req != want || qp.cookie == 0 {
			t.Errorf("request is %+v, want %+v", req, want)
		}
		if diff := cmp.Diff(QPCaps{MaxSendWR: 7, MaxRecvWR: 15, MaxSendSGE: 3, MaxRecvSGE: 2, MaxInline: 64}, qp.Caps()); diff != "" {
			t.Errorf("capabilities (-want +got):\n%s", diff)
		}
		if qp.QPN() != 0x100+qp.handle || qp.State() != ib.QPReset || qp.firstPSN() > maxPSN {
			t.Errorf("QP %#x, state %s, PSN %#x", qp.QPN(), qp.State(), qp.firstPSN())
		}
		must(t, qp.Close(), qp.Close())
		k.sent(method + " DESTROY_QP")
		for name, err := range map[string]error{
			"PostSend": qp.PostSend(SendWR{}), "PostRecv": qp.PostRecv(1), "PostRecvs": qp.PostRecvs(RecvWR{}),
			"Modify": qp.Modify(QPAttr{State: ib.QPErr}, AttrState), "Connect": qp.Connect(t.Context(), Endpoint{}), "Init": qp.Init(),
		} {
			errorIs(t, err, os.ErrClosed, "%s after Close", name)
		}
		errorIs(t, second(qp.Query()), os.ErrClosed, "Query after Close")
		errorIs(t, second(qp.Endpoint()), os.ErrClosed, "Endpoint after Close")
		must(t, send.Close(), recv.Close(), pd.Close(), d.Close())
	})
}

func TestCreateQPRefused(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	pd := value(d.AllocPD())(t)
	cq := value(d.CreateCQ(CQOptions{Size: 1}))(t)
	k.took()
	for _, c := range []struct {
		change func(o *QPOptions)
		want   string
	}{
		{func(o *QPOptions) { o.Type = 99 }, "Type is QPType(99), allowed: the QPType constants"},
		{func(o *QPOptions) { o.SendCQ = nil }, "SendCQ is nil"},
		{func(o *QPOptions) { o.RecvCQ = nil }, "RecvCQ is nil"},
		{func(o *QPOptions) { o.MaxSendWR = 1001 }, "MaxSendWR is 1001, allowed: 1 to 1000 (max_qp_wr of rxe0)"},
		{func(o *QPOptions) { o.MaxRecvWR = -1 }, "MaxRecvWR is -1"},
		{func(o *QPOptions) { o.MaxSendSGE = 5 }, "MaxSendSGE is 5, allowed: 1 to 4 (max_sge of rxe0)"},
		{func(o *QPOptions) { o.MaxRecvSGE = 5 }, "MaxRecvSGE is 5"},
		{func(o *QPOptions) { o.MaxInline = -1 }, "MaxInline is -1"},
		{func(o *QPOptions) { o.Path.Port = 3 }, "Path.Port is 3, allowed: 1 to 2, or 0"},
		{func(o *QPOptions) { o.Path.SL = 16 }, "Path.SL is 16"},
		{func(o *QPOptions) { o.Path.FlowLabel = 1 << 20 }, "Path.FlowLabel is 1048576"},
		{func(o *QPOptions) { o.Path.StaticRate = 25 }, "Path.StaticRate is 25, allowed: 1 to 24"},
		{func(o *QPOptions) { o.Path.Timeout = 32 }, "Path.Timeout is 32"},
		{func(o *QPOptions) { o.Path.RetryCount = 8 }, "Path.RetryCount is 8"},
		{func(o *QPOptions) { o.Path.RNRRetry = 8 }, "Path.RNRRetry is 8"},
		{func(o *QPOptions) { o.Path.MinRNRTimer = 32 }, "Path.MinRNRTimer is 32"},
		{func(o *QPOptions) { o.Path.MaxRdAtomic = 9 }, "Path.MaxRdAtomic is 9, allowed: 1 to 8"},
		{func(o *QPOptions) { o.Path.MTU = 6 }, "Path.MTU is 6"},
		{func(o *QPOptions) { o.Path.Access = AccessOnDemand }, "Path.Access is"},
	} {
		o := QPOptions{SendCQ: cq, RecvCQ: cq}
		c.change(&o)
		var arg *ArgError
		if _, err := pd.CreateQP(o); !errors.As(err, &arg) || !strings.Contains(err.Error(), "CreateQP: "+c.want) {
			t.Errorf("error is %v, want %s", err, c.want)
		}
	}
	k.sent()
	k.refuse["CREATE_QP"] = syscall.ENOMEM
	errorIs(t, second(pd.CreateQP(QPOptions{SendCQ: cq, RecvCQ: cq})), syscall.ENOMEM, "refused")
	must(t, cq.Close(), pd.Close(), d.Close()) // nobody uses them
}

// TestInlineLimit: how much inline data the driver takes is found by trying, and nothing
// is left behind.
func TestInlineLimit(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	pd := value(d.AllocPD())(t)
	cq := value(d.CreateCQ(CQOptions{Size: 1}))(t)
	k.invalid = func(qp *abi.CreateQP) syscall.Errno {
		if qp.MaxInlineData > 480 {
			return syscall.EINVAL
		}
		return 0
	}
	k.took()
	var arg *ArgError
	for _, n := range []int{481, 1000, maxInline, maxInline + 1, math.MaxUint32 + 100, math.MaxInt} {
		_, err := pd.CreateQP(QPOptions{SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1, MaxInline: n})
		if !errors.As(err, &arg) || arg.Field != "MaxInline" || arg.Given != fmt.Sprint(n) || !strings.HasPrefix(arg.Allowed, "0 to 480 bytes") {
			t.Errorf("%d bytes inline: %v", n, err)
		}
	}
	balance := len(k.rings) - 1 // the CQ's
	for _, c := range k.took() {
		if strings.HasSuffix(c, "DESTROY_QP") {
			balance--
		}
	}
	if balance != 0 {
		t.Errorf("%d QPs are left", balance)
	}
	k.invalid = func(*abi.CreateQP) syscall.Errno { return syscall.EINVAL }
	if _, err := pd.CreateQP(QPOptions{SendCQ: cq, RecvCQ: cq, MaxInline: 8}); errors.As(err, &arg) && arg.Field == "MaxInline" || !errors.Is(err, syscall.EINVAL) {
		t.Errorf("EINVAL for another reason: %v", err)
	}
}

func TestModifyBytes(t *testing.T) {
	f := newFakeQP(t, QPOptions{})
	f.state(ib.QPSQD)
	dgid := gid(t, "10.1.0.2")
	attr := QPAttr{
		State: ib.QPSQD, Port: 2, Timeout: 3, RetryCount: 4, RNRRetry: 5, MaxRdAtomic: 6, MaxDestRdAtomic: 7, Access: AccessRemoteRead, PKeyIndex: 9,
		MinRNRTimer: 10, PathMigState: 1, AltPKeyIndex: 11, AltPort: 12, AltTimeout: 13, RQPSN: 14, SQPSN: 15, DestQPN: 16, QKey: 17, PathMTU: ib.MTU2048,
		EnSQDAsyncNotify: true,
		AH: AHAttr{DLID: 20, SL: 11, SrcPathBits: 22, StaticRate: 23, Port: 1, Global: true,
			GRH: GRH{DGID: dgid, FlowLabel: 24, SGIDIndex: 25, HopLimit: 26, TrafficClass: 27}},
		AltAH: AHAttr{DLID: 30},
	}
	mask := AttrState | AttrAH | AttrPort | AttrTimeout | AttrRetryCount
	must(t, f.qp.Modify(attr, mask))
	want := abi.ModifyQP{
		Dest: abi.QPDest{DGID: dgid, FlowLabel: 24, DLID: 20, SGIDIndex: 25, HopLimit: 26, TrafficClass: 27, SL: 11, SrcPathBits: 22, StaticRate: 23,
			IsGlobal: 1, PortNum: 1},
		AltDest: abi.QPDest{DLID: 30}, QPHandle: f.qp.handle, AttrMask: uint32(mask), QKey: 17, RQPSN: 14, SQPSN: 15, DestQPNum: 16, QPAccessFlags: 4,
		PKeyIndex: 9, AltPKeyIndex: 11, QPState: 4, PathMTU: 4, PathMigState: 1, EnSQDAsyncNotify: 1, MaxRDAtomic: 6, MaxDestRDAtomic: 7,
		MinRNRTimer: 10, PortNum: 2, Timeout: 3, RetryCnt: 4, RNRRetry: 5, AltPortNum: 12, AltTimeout: 13,
	}
	var got abi.ModifyQP
	copy(bytesOf(&got), f.last("MODIFY_QP").in)
	if got != want {
		t.Errorf("request is %+v, want %+v", got, want)
	}
	if port := f.qp.port.Load(); port != 2 { // whose counters explain failures
		t.Errorf("the QP is on port %d, want 2", port)
	}
	// A program that knows the state better than the library may say so.
	f.state(ib.QPInit)
	must(t, f.qp.Modify(QPAttr{State: ib.QPRTS, CurState: ib.QPSQD}, AttrState|AttrCurState))
	f.state(ib.QPSQD)
	f.refuse["MODIFY_QP"] = syscall.EINVAL
	err := f.qp.Modify(QPAttr{State: ib.QPErr}, AttrState)
	if !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "MODIFY_QP SQD to ERR") || !strings.Contains(err.Error(), "may have left state SQD") {
		t.Errorf("refused: %v", err)
	}
	if f.qp.State() != ib.QPSQD || f.qp.movingToErr.Load() {
		t.Errorf("after a refusal the state is %s, on the way to ERR: %t", f.qp.State(), f.qp.movingToErr.Load())
	}
}

// TestModifyHints: an address that the kernel refuses is named with the GID that was used.
func TestModifyHints(t *testing.T) {
	f := newFakeQP(t, QPOptions{})
	f.gids = []abi.GIDEntry{{GIDIndex: 1, PortNum: 1, GIDType: 2}}
	local, peer := gid(t, "10.1.0.1"), gid(t, "10.1.0.2")
	copy(bytesOf(&f.gids[0].GID), local[:])
	for _, c := range []struct {
		errno syscall.Errno
		index uint8
		want  []string
	}{
		{syscall.ENETUNREACH, 1, []string{"peer 10.1.0.2", local.String(), "RoCE v2", "it cannot be reached"}},
		{syscall.ETIMEDOUT, 1, []string{"it cannot be reached"}},
		{syscall.ENODEV, 1, []string{"network namespace"}},
		{syscall.EINVAL, 3, []string{"3 (unused)", "GID index may be unused"}},
	} {
		f.state(ib.QPSQD)
		f.refuse["MODIFY_QP"] = c.errno
		err := f.qp.Modify(QPAttr{AH: AHAttr{Port: 1, GRH: GRH{DGID: peer, SGIDIndex: c.index}}}, AttrAH)
		for _, want := range c.want {
			if !errors.Is(err, c.errno) || !strings.Contains(err.Error(), want) {
				t.Errorf("%v: %v, want %s", c.errno, err, want)
			}
		}
	}
}

func TestQueryQP(t *testing.T) {
	f := newFakeQP(t, QPOptions{})
	dgid := gid(t, "10.1.0.2")
	f.query = abi.QueryQPResp{
		Dest: abi.QPDest{DGID: dgid, FlowLabel: 1, DLID: 2, SGIDIndex: 3, HopLimit: 4, TrafficClass: 5, SL: 6, SrcPathBits: 7, StaticRate: 8, IsGlobal: 1,
			PortNum: 9},
		AltDest: abi.QPDest{DLID: 10}, MaxSendWR: 11, MaxRecvWR: 12, MaxSendSGE: 13, MaxRecvSGE: 14, MaxInlineData: 15, QKey: 16, RQPSN: 17, SQPSN: 18,
		DestQPNum: 19, QPAccessFlags: 4, PKeyIndex: 21, AltPKeyIndex: 22, QPState: 6, CurQPState: 3, PathMTU: 5, PathMigState: 2, SQDraining: 1,
		MaxRDAtomic: 23, MaxDestRDAtomic: 24, MinRNRTimer: 25, PortNum: 26, Timeout: 27, RetryCnt: 28, RNRRetry: 29, AltPortNum: 30, AltTimeout: 31,
	}
	want := QPAttr{
		State: ib.QPErr, CurState: ib.QPRTS, PathMTU: ib.MTU4096, PathMigState: 2, QKey: 16, RQPSN: 17, SQPSN: 18, DestQPN: 19, Access: AccessRemoteRead,
		Caps: QPCaps{MaxSendWR: 11, MaxRecvWR: 12, MaxSendSGE: 13, MaxRecvSGE: 14, MaxInline: 15},
		AH: AHAttr{DLID: 2, SL: 6, SrcPathBits: 7, StaticRate: 8, Port: 9, Global: true,
			GRH: GRH{DGID: dgid, FlowLabel: 1, SGIDIndex: 3, HopLimit: 4, TrafficClass: 5}},
		AltAH: AHAttr{DLID: 10}, PKeyIndex: 21, AltPKeyIndex: 22, SQDraining: true, MaxRdAtomic: 23, MaxDestRdAtomic: 24, MinRNRTimer: 25,
		Port: 26, Timeout: 27, RetryCount: 28, RNRRetry: 29, AltPort: 30, AltTimeout: 31,
	}
	if diff := cmp.Diff(want, value(f.qp.Query())(t)); diff != "" {
		t.Errorf("attributes (-want +got):\n%s", diff)
	}
	if f.qp.State() != ib.QPErr {
		t.Errorf("after Query the state is %s, want that of the device", f.qp.State())
	}
	// A state that there is not: it has a text, and nothing but Reset and Err follows.
	f.query.QPState = 200
	value(f.qp.Query())(t)
	if err := f.qp.Modify(QPAttr{State: ib.QPRTS}, AttrState); err == nil || !strings.Contains(err.Error(), "QP in QPState(200): State is RTS") {
		t.Errorf("from a state that there is not: %v", err)
	}
}

// TestDestroyUDHint: a UD QP that cannot be destroyed may be in a multicast group; other QPs are in none.
func TestDestroyUDHint(t *testing.T) {
	d, k := objectDevice(t)
	pd, cq := value(d.AllocPD())(t), value(d.CreateCQ(CQOptions{Size: 7}))(t)
	for _, typ := range []ib.QPType{ib.UD, ib.RC} {
		for _, errno := range []syscall.Errno{syscall.EBUSY, syscall.EIO} {
			qp := value(pd.CreateQP(QPOptions{Type: typ, SendCQ: cq, RecvCQ: cq}))(t)
			k.refuse["DESTROY_QP"] = errno
			err := qp.Close()
			if says := strings.Contains(fmt.Sprint(err), "DetachMulticast"); !errors.Is(err, errno) || says != (typ == ib.UD && errno == syscall.EBUSY) {
				t.Errorf("%s: %v", typ, err)
			}
			delete(k.refuse, "DESTROY_QP")
			must(t, qp.Close())
		}
	}
}
