package uverbs

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// The tests of this file are about QPs, SRQs and MRs of kinds that rxe does not have.

func init() {
	fakeVerbs[abi.IB_USER_VERBS_CMD_OPEN_QP] = struct {
		name string
		resp int
	}{"OPEN_QP", 32}
	fakeVerbs[abi.IB_USER_VERBS_CMD_CREATE_XSRQ] = struct {
		name string
		resp int
	}{"CREATE_XSRQ", 16}
	fakeVerbs[exCommand|abi.IB_USER_VERBS_EX_CMD_CREATE_QP] = struct {
		name string
		resp int
	}{"EX_CREATE_QP", 40}
	fakeVerbs[exCommand|abi.IB_USER_VERBS_EX_CMD_MODIFY_QP] = struct {
		name string
		resp int
	}{"EX_MODIFY_QP", 8}
	fakeMethods[[2]uint16{abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_REG_MR}] = "REG_MR_EX"
}

// fullDriver is a driver with every kind of QP and SRQ, and without a data path.
type fullDriver struct{ rxeDriver }

func (fullDriver) kind() driverKind { return 0 }
func (fullDriver) operations(t ib.QPType) (opcodeSet, bool) {
	ops, _ := rxeDriver{}.operations(t)
	return ops, true
}
func (fullDriver) unsupportedQP(*QPOptions) string   { return "" }
func (fullDriver) unsupportedSRQ(*SRQOptions) string { return "" }
func (fullDriver) prepareQP(*QP, *qpSpec) (udata, error) {
	return udata{out: make([]byte, 32)}, nil
}
func (fullDriver) mapQP(*QP, udata) error { return nil }

// eachFullPath runs a test on each way to a kernel whose driver has everything.
func eachFullPath(t *testing.T, f func(t *testing.T, d *Device, k *fakeKernel, method, legacy string)) {
	eachFakePath(t, func(t *testing.T, d *Device, k *fakeKernel, method, legacy string) {
		d.driver = fullDriver{}
		k.withObjects(d)
		k.after(func(c *fakeCall, errno syscall.Errno) {
			if errno == 0 {
				k.answerSpecial(c)
			}
		})
		k.took()
		f(t, d, k, method, legacy)
	})
}

// answerSpecial answers the verbs of this file.
func (k *fakeKernel) answerSpecial(c *fakeCall) {
	switch c.verb {
	case "OPEN_QP":
		k.put(c.core, bytesOf(&abi.CreateQPResp{QPHandle: k.handle(), QPN: 0x1234}))
	case "EX_CREATE_QP":
		k.put(c.core, bytesOf(&abi.ExCreateQPResp{Base: abi.CreateQPResp{QPHandle: k.handle(), QPN: 0x2345, MaxSendWR: 9}, ResponseLength: 40}))
	case "CREATE_XSRQ":
		handle := k.createSRQ(c, 7, 1)
		k.put(c.core, bytesOf(&abi.CreateSRQResp{SRQHandle: handle, MaxWR: 7, MaxSGE: 1, SRQN: 0x200 + handle}))
	case "CREATE_SRQ":
		if a := c.attr(abi.UVERBS_ATTR_CREATE_SRQ_RESP_SRQ_NUM); a.Data != 0 {
			k.put(a.Out, u32(0x200+uint32(c.attr(abi.UVERBS_ATTR_CREATE_SRQ_HANDLE).Data)))
		}
	case "REG_MR_EX":
		c.attr(abi.UVERBS_ATTR_REG_MR_HANDLE).Data = fakeHandle
		k.put(c.attr(abi.UVERBS_ATTR_REG_MR_RESP_LKEY).Out, u32(0x1212))
		k.put(c.attr(abi.UVERBS_ATTR_REG_MR_RESP_RKEY).Out, u32(0x2323))
	}
}

// qpRequest is a request for a QP to the kernel, by any command.
func (k *fakeKernel) qpRequest(t *testing.T) abi.ExCreateQP {
	t.Helper()
	c := k.calls[len(k.calls)-1]
	var got abi.ExCreateQP
	switch {
	case c.verb == "EX_CREATE_QP":
		copy(bytesOf(&got), c.in)
	case c.path == "ioctl" && c.verb == "CREATE_QP":
		var caps abi.QPCap
		copy(bytesOf(&caps), c.attr(abi.UVERBS_ATTR_CREATE_QP_CAP).In)
		got = abi.ExCreateQP{
			PDHandle:        uint32(c.attr(abi.UVERBS_ATTR_CREATE_QP_PD_HANDLE).Data + c.attr(abi.UVERBS_ATTR_CREATE_QP_XRCD_HANDLE).Data),
			SendCQHandle:    uint32(c.attr(abi.UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE).Data),
			RecvCQHandle:    uint32(c.attr(abi.UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE).Data),
			RWQIndTblHandle: uint32(c.attr(abi.UVERBS_ATTR_CREATE_QP_IND_TABLE_HANDLE).Data),
			MaxSendWR:       caps.MaxSendWR, MaxRecvWR: caps.MaxRecvWR, MaxSendSGE: caps.MaxSendSGE, MaxRecvSGE: caps.MaxRecvSGE,
			QPType:      uint8(c.attr(abi.UVERBS_ATTR_CREATE_QP_TYPE).Data),
			CreateFlags: uint32(c.attr(abi.UVERBS_ATTR_CREATE_QP_FLAGS).Data),
		}
		// What the legacy command says besides.
		if got.RWQIndTblHandle != 0 {
			got.CompMask = abi.IB_UVERBS_CREATE_QP_MASK_IND_TABLE
		}
		return got
	case c.verb == "CREATE_QP":
		var req abi.CreateQP
		copy(bytesOf(&req), c.in)
		got = abi.ExCreateQP{
			PDHandle: req.PDHandle, SendCQHandle: req.SendCQHandle, RecvCQHandle: req.RecvCQHandle, QPType: req.QPType,
			MaxSendWR: req.MaxSendWR, MaxRecvWR: req.MaxRecvWR, MaxSendSGE: req.MaxSendSGE, MaxRecvSGE: req.MaxRecvSGE,
		}
	default:
		t.Fatalf("the last command is %s %s", c.path, c.verb)
	}
	got.UserHandle = 0
	return got
}

// TestSpecialQPs: the requests for QPs without one of the queues, or with flags.
func TestSpecialQPs(t *testing.T) {
	eachFullPath(t, func(t *testing.T, d *Device, k *fakeKernel, method, legacy string) {
		pd, cq := value(d.AllocPD())(t), value(d.CreateCQ(CQOptions{Size: 7}))(t)
		wq := value(pd.CreateWQ(WQOptions{CQ: cq}))(t)
		table := value(d.CreateRWQIndTable([]*WQ{wq}))(t)
		base := abi.ExCreateQP{PDHandle: pd.handle, SendCQHandle: cq.handle, MaxSendWR: 64, MaxSendSGE: 1}
		for name, c := range map[string]struct {
			o    QPOptions
			want func(*abi.ExCreateQP)
			uses *object
		}{
			"XRC send": {QPOptions{Type: ib.XRCSend, SendCQ: cq}, func(r *abi.ExCreateQP) { r.QPType = 9 }, &cq.object},
			"flags": {
				QPOptions{Type: ib.RawPacket, SendCQ: cq, RecvCQ: cq, Flags: QPScatterFCS | QPStripVLAN},
				func(r *abi.ExCreateQP) {
					r.QPType, r.RecvCQHandle, r.MaxRecvWR, r.MaxRecvSGE, r.CreateFlags = 8, cq.handle, 64, 1, 0x300
				},
				&pd.object,
			},
			"table and send queue": {
				QPOptions{Type: ib.RawPacket, SendCQ: cq, IndTable: table},
				func(r *abi.ExCreateQP) { r.QPType, r.CompMask, r.RWQIndTblHandle = 8, 1, table.handle },
				&table.object,
			},
			"table alone": {
				QPOptions{Type: ib.RawPacket, IndTable: table},
				func(r *abi.ExCreateQP) {
					*r = abi.ExCreateQP{PDHandle: pd.handle, QPType: 8, CompMask: 1, RWQIndTblHandle: table.handle}
				},
				&table.object,
			},
		} {
			qp := value(pd.CreateQP(c.o))(t)
			want := base
			c.want(&want)
			if got := k.qpRequest(t); got != want {
				t.Errorf("%s: request\n%+v, want\n%+v", name, got, want)
			}
			busy(t, c.uses.close(nil, nil), "1 QP")
			if c.o.RecvCQ == nil {
				qp.state.Store(uint32(ib.QPRTR))
				if err := qp.PostRecv(1); !errors.Is(err, ErrNoRecvQueue) {
					t.Errorf("%s: PostRecv: %v", name, err)
				}
				if err := qp.PostRecvs(RecvWR{}); !errors.Is(err, ErrNoRecvQueue) {
					t.Errorf("%s: PostRecvs: %v", name, err)
				}
			}
			must(t, qp.Close())
			if _, ok := cq.qps.Load(qp.qpn); ok {
				t.Errorf("%s: the CQ still knows the QP", name)
			}
		}
		must(t, table.Close(), wq.Close(), cq.Close(), pd.Close(), d.Close())
	})
}

// TestSpecialQPsRefused: options that exclude each other never get to the kernel.
func TestSpecialQPsRefused(t *testing.T) {
	d, k := objectDevice(t)
	d.driver = fullDriver{}
	pd, cq := value(d.AllocPD())(t), value(d.CreateCQ(CQOptions{Size: 7}))(t)
	wq := value(pd.CreateWQ(WQOptions{CQ: cq}))(t)
	table := value(d.CreateRWQIndTable([]*WQ{wq}))(t)
	srq := value(pd.CreateSRQ(SRQOptions{}))(t)
	k.took()
	for _, c := range []struct {
		field string
		o     QPOptions
	}{
		{"Type", QPOptions{Type: ib.XRCRecv, SendCQ: cq, RecvCQ: cq}},
		{"Type", QPOptions{Type: 99, SendCQ: cq, RecvCQ: cq}},
		{"SendCQ", QPOptions{Type: ib.XRCSend}},
		{"RecvCQ", QPOptions{Type: ib.XRCSend, SendCQ: cq, RecvCQ: cq}},
		{"SRQ", QPOptions{Type: ib.XRCSend, SendCQ: cq, SRQ: srq}},
		{"MaxRecvWR", QPOptions{Type: ib.XRCSend, SendCQ: cq, MaxRecvWR: 1}},
		{"RecvCQ", QPOptions{Type: ib.RawPacket, IndTable: table, RecvCQ: cq}},
		{"SRQ", QPOptions{Type: ib.RawPacket, IndTable: table, SRQ: srq}},
		{"MaxRecvSGE", QPOptions{Type: ib.RawPacket, IndTable: table, MaxRecvSGE: 1}},
		{"MaxSendWR", QPOptions{Type: ib.RawPacket, IndTable: table, MaxSendWR: 1}},
		{"Flags", QPOptions{Type: ib.UD, SendCQ: cq, RecvCQ: cq, Flags: 1 << 20}},
	} {
		_, err := pd.CreateQP(c.o)
		wantArg(t, err, c.field)
	}
	for _, c := range []struct {
		field string
		o     SRQOptions
	}{
		{"CQ", SRQOptions{XRCD: &XRCD{}}},
		{"CQ", SRQOptions{CQ: cq}},
	} {
		_, err := pd.CreateSRQ(c.o)
		wantArg(t, err, c.field)
	}
	k.sent()
	for field, o := range map[string]QPOptions{
		"Flags": {Flags: QPPadWriteEnd}, "IndTable": {IndTable: table}, "QP type XRC_INI": {Type: ib.XRCSend},
	} {
		d.driver = rxeDriver{}
		o.SendCQ = cq
		_, err := pd.CreateQP(o)
		var f *FeatureError
		if !errors.As(err, &f) || f.Driver != "rxe" || !strings.HasSuffix(f.Feature, field) {
			t.Errorf("rxe and %s: %v", field, err)
		}
	}
	k.sent()
	d.driver = fullDriver{}
	k.refuse["CREATE_QP"] = syscall.EPERM
	_, err := pd.CreateQP(QPOptions{Type: ib.RawPacket, SendCQ: cq, RecvCQ: cq})
	if !errors.Is(err, syscall.EPERM) || !strings.Contains(err.Error(), "CAP_NET_RAW") {
		t.Errorf("raw packets without the right: %v", err)
	}
}

// TestXRC: both ends of an extended reliable connection, and the SRQ between them.
func TestXRC(t *testing.T) {
	eachFullPath(t, func(t *testing.T, d *Device, k *fakeKernel, method, legacy string) {
		x, pd := value(d.OpenXRCD(XRCDOptions{}))(t), value(d.AllocPD())(t)
		cq := value(d.CreateCQ(CQOptions{Size: 7}))(t)
		k.took()
		recv := value(x.CreateQP(XRCRecvOptions{}))(t)
		want := abi.ExCreateQP{PDHandle: x.handle, QPType: 10}
		if got := k.qpRequest(t); got != want {
			t.Errorf("request\n%+v, want\n%+v", got, want)
		}
		k.sent(method + " CREATE_QP")
		busy(t, x.Close(), "1 QP")
		recv.state.Store(uint32(ib.QPRTS))
		if err := recv.PostSend(SendWR{}); !errors.Is(err, ErrOpcode) {
			t.Errorf("PostSend: %v", err)
		}
		if err := recv.PostRecv(1); !errors.Is(err, ErrNoRecvQueue) {
			t.Errorf("PostRecv: %v", err)
		}

		k.query = abi.QueryQPResp{QPState: uint8(ib.QPRTR)}
		opened := value(x.OpenQP(0x1234))(t)
		if _, unmade := d.openObjects(); unmade != 0 {
			t.Errorf("%d objects are being made, want 0", unmade)
		}
		var req abi.OpenQP
		copy(bytesOf(&req), k.calls[len(k.calls)-2].in)
		req.UserHandle = 0
		if want := (abi.OpenQP{PDHandle: x.handle, QPN: 0x1234, QPType: 10}); req != want || opened.QPN() != 0x1234 || opened.State() != ib.QPRTR {
			t.Errorf("open: request %+v, want %+v; QP %d in %s", req, want, opened.QPN(), opened.State())
		}
		k.sent(legacy+" OPEN_QP", legacy+" QUERY_QP")
		for _, n := range []uint32{0, 1 << 24} {
			_, err := x.OpenQP(n)
			wantArg(t, err, "QPN")
		}
		k.refuse["OPEN_QP"] = syscall.EINVAL
		if _, err := x.OpenQP(5); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "no QP of this number") {
			t.Errorf("refused: %v", err)
		}
		k.took()

		srq := value(pd.CreateSRQ(SRQOptions{XRCD: x, CQ: cq, MaxWR: 7}))(t)
		wantSRQ := abi.CreateXSRQ{SRQType: 1, PDHandle: pd.handle, MaxWR: 7, MaxSGE: 1, XRCDHandle: x.handle, CQHandle: cq.handle}
		c := k.calls[len(k.calls)-1]
		var got abi.CreateXSRQ
		if method == "ioctl" {
			for id, to := range map[uint16]*uint32{
				abi.UVERBS_ATTR_CREATE_SRQ_TYPE: &got.SRQType, abi.UVERBS_ATTR_CREATE_SRQ_PD_HANDLE: &got.PDHandle,
				abi.UVERBS_ATTR_CREATE_SRQ_MAX_WR: &got.MaxWR, abi.UVERBS_ATTR_CREATE_SRQ_MAX_SGE: &got.MaxSGE,
				abi.UVERBS_ATTR_CREATE_SRQ_XRCD_HANDLE: &got.XRCDHandle, abi.UVERBS_ATTR_CREATE_SRQ_CQ_HANDLE: &got.CQHandle,
			} {
				*to = uint32(c.attr(id).Data)
			}
		} else {
			copy(bytesOf(&got), c.in)
			got.UserHandle = 0
		}
		if got != wantSRQ {
			t.Errorf("SRQ: request\n%+v, want\n%+v", got, wantSRQ)
		}
		if srq.SRQN() != 0x200+srq.handle {
			t.Errorf("the SRQ's number is %#x", srq.SRQN())
		}
		busy(t, cq.Close(), "1 SRQ")
		must(t, srq.Close(), opened.Close(), recv.Close(), x.Close(), cq.Close(), pd.Close(), d.Close())
	})
}

// TestConnectXRC: each end gives the attributes that its transitions take.
func TestConnectXRC(t *testing.T) {
	d, k := objectDevice(t)
	d.driver = fullDriver{}
	x, pd := value(d.OpenXRCD(XRCDOptions{}))(t), value(d.AllocPD())(t)
	cq := value(d.CreateCQ(CQOptions{Size: 7}))(t)
	send, recv := value(pd.CreateQP(QPOptions{Type: ib.XRCSend, SendCQ: cq}))(t), value(x.CreateQP(XRCRecvOptions{}))(t)
	raw := value(pd.CreateQP(QPOptions{Type: ib.RawPacket, SendCQ: cq, RecvCQ: cq}))(t)
	local := gid(t, "10.1.0.1")
	k.gids = []abi.GIDEntry{{GIDIndex: 1, PortNum: 1, GIDType: 2, NetdevIfindex: 3}}
	copy(bytesOf(&k.gids[0].GID), local[:])
	masks := func(do func() error) []QPAttrMask {
		t.Helper()
		k.calls = nil
		must(t, do())
		var all []QPAttrMask
		for _, m := range k.modifies() {
			all = append(all, QPAttrMask(m.AttrMask))
		}
		return all
	}
	peer := Endpoint{QPN: 5, GID: gid(t, "10.1.0.2")}
	init, rtr := AttrState|AttrPKeyIndex|AttrPort|AttrAccess, AttrState|AttrAH|AttrPathMTU|AttrDestQPN|AttrRQPSN
	want := []QPAttrMask{init, rtr, AttrState | AttrTimeout | AttrRetryCount | AttrRNRRetry | AttrMaxRdAtomic | AttrSQPSN}
	if got := masks(func() error { return send.Connect(t.Context(), peer) }); !slices.Equal(got, want) {
		t.Errorf("sending end: %v, want %v", got, want)
	}
	want = []QPAttrMask{init, rtr | AttrMaxDestRdAtomic | AttrMinRNRTimer, AttrState | AttrTimeout | AttrSQPSN}
	if got := masks(func() error { return recv.Connect(t.Context(), peer) }); !slices.Equal(got, want) {
		t.Errorf("receiving end: %v, want %v", got, want)
	}
	want = []QPAttrMask{AttrState | AttrPort, AttrState, AttrState}
	if got := masks(func() error { return raw.ReadyUD(0) }); !slices.Equal(got, want) {
		t.Errorf("raw packets: %v, want %v", got, want)
	}
	wantArg(t, raw.ReadyUD(1), "qkey")
	wantArg(t, raw.Connect(t.Context(), peer), "QP type")
	wantArg(t, send.ReadyUD(0), "QP type")

	k.calls = nil
	must(t, raw.Modify(QPAttr{State: ib.QPRTS, RateLimit: 12345}, AttrState|AttrRateLimit))
	var req abi.ExModifyQP
	copy(bytesOf(&req), k.last("EX_MODIFY_QP").in)
	if req.RateLimit != 12345 || req.Base.AttrMask != 1|1<<25 || req.Base.QPHandle != raw.handle {
		t.Errorf("rate limit: %+v", req)
	}
	if s := (AttrRateLimit | AttrState | 1<<22).String(); s != "State, bit 22, RateLimit" {
		t.Errorf("the mask is called %s", s)
	}
	wantArg(t, send.Modify(QPAttr{RateLimit: 1}, AttrRateLimit), "mask")
}

// TestRegWithDMAH registers memory and a dma-buf with a DMA handle.
func TestRegWithDMAH(t *testing.T) {
	d, k := objectDevice(t)
	k.after(func(c *fakeCall, errno syscall.Errno) {
		if errno == 0 {
			k.answerSpecial(c)
		}
	})
	pd, buf, page := memory(t, d)
	h := value(d.AllocDMAH(DMAHOptions{}))(t)
	f := os.NewFile(uintptr(value(unix.MemfdCreate("dmabuf", unix.MFD_CLOEXEC))(t)), "dmabuf")
	defer f.Close()
	must(t, f.Truncate(int64(page)))
	for _, c := range []struct {
		name string
		reg  func() (*MR, error)
		want map[uint16]uint64
	}{
		{"memory", func() (*MR, error) {
			return pd.RegMR(buf, MROptions{DMAH: h, Offset: 64, Length: 8, Access: AccessLocalWrite})
		}, map[uint16]uint64{
			abi.UVERBS_ATTR_REG_MR_ADDR: addrOf(buf.Bytes()) + 64, abi.UVERBS_ATTR_REG_MR_IOVA: addrOf(buf.Bytes()) + 64,
			abi.UVERBS_ATTR_REG_MR_FD: 0, abi.UVERBS_ATTR_REG_MR_FD_OFFSET: 0,
		}},
		{"dma-buf", func() (*MR, error) {
			return pd.RegDMABuf(f, MROptions{DMAH: h, Offset: 64, Length: 8, Access: AccessLocalWrite})
		}, map[uint16]uint64{
			abi.UVERBS_ATTR_REG_MR_ADDR: 0, abi.UVERBS_ATTR_REG_MR_IOVA: 64,
			abi.UVERBS_ATTR_REG_MR_FD: uint64(f.Fd()), abi.UVERBS_ATTR_REG_MR_FD_OFFSET: 64,
		}},
	} {
		mr := value(c.reg())(t)
		call := k.last("REG_MR_EX")
		c.want[abi.UVERBS_ATTR_REG_MR_PD_HANDLE] = uint64(pd.handle)
		c.want[abi.UVERBS_ATTR_REG_MR_DMA_HANDLE] = uint64(h.handle)
		c.want[abi.UVERBS_ATTR_REG_MR_LENGTH] = 8
		c.want[abi.UVERBS_ATTR_REG_MR_ACCESS_FLAGS] = 1
		for id, want := range c.want {
			if got := call.attr(id).Data; got != want {
				t.Errorf("%s: attribute %d is %#x, want %#x", c.name, id, got, want)
			}
		}
		if mr.LKey() != 0x1212 || mr.RKey() != 0x2323 || mr.Len() != 8 {
			t.Errorf("%s: region %+v", c.name, mr)
		}
		busy(t, h.Close(), "1 MR")
		must(t, mr.Close())
	}
	k.refuse["REG_MR_EX"] = syscall.EPROTONOSUPPORT
	var feature *FeatureError
	if _, err := pd.RegMR(buf, MROptions{DMAH: h}); !errors.As(err, &feature) || feature.Since != (Version{6, 17}) {
		t.Errorf("an older kernel: %v", err)
	}
	other, _ := fakeDevice(t, pathAuto)
	otherPD, otherBuf, _ := memory(t, other)
	if _, err := otherPD.RegMR(otherBuf, MROptions{DMAH: h}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a handle of another device: %v", err)
	}
	if !bytes.Equal(buf.Bytes(), make([]byte, len(buf.Bytes()))) {
		t.Error("the memory was written to")
	}
	must(t, h.Close())
}
