package uverbs

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/uverbs/flow"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// The tests of this file run the verbs that rxe does not have against a kernel that
// fakeKernel plays, with a driver that has them.

func init() {
	for number, v := range map[uint32]struct {
		name string
		resp int
	}{
		abi.IB_USER_VERBS_CMD_OPEN_XRCD:                          {"OPEN_XRCD", 4},
		abi.IB_USER_VERBS_CMD_CLOSE_XRCD:                         {"CLOSE_XRCD", 0},
		exCommand | abi.IB_USER_VERBS_EX_CMD_CREATE_FLOW:         {"CREATE_FLOW", 8},
		exCommand | abi.IB_USER_VERBS_EX_CMD_DESTROY_FLOW:        {"DESTROY_FLOW", 0},
		exCommand | abi.IB_USER_VERBS_EX_CMD_CREATE_WQ:           {"CREATE_WQ", 24},
		exCommand | abi.IB_USER_VERBS_EX_CMD_MODIFY_WQ:           {"MODIFY_WQ", 0},
		exCommand | abi.IB_USER_VERBS_EX_CMD_DESTROY_WQ:          {"DESTROY_WQ", 16},
		exCommand | abi.IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL:  {"CREATE_RWQ_IND_TBL", 16},
		exCommand | abi.IB_USER_VERBS_EX_CMD_DESTROY_RWQ_IND_TBL: {"DESTROY_RWQ_IND_TBL", 0},
	} {
		fakeVerbs[number] = v
	}
	for method, name := range map[[2]uint16]string{
		{abi.UVERBS_OBJECT_XRCD, abi.UVERBS_METHOD_XRCD_DESTROY}:               "CLOSE_XRCD",
		{abi.UVERBS_OBJECT_FLOW, abi.UVERBS_METHOD_FLOW_DESTROY}:               "DESTROY_FLOW",
		{abi.UVERBS_OBJECT_WQ, abi.UVERBS_METHOD_WQ_CREATE}:                    "CREATE_WQ",
		{abi.UVERBS_OBJECT_WQ, abi.UVERBS_METHOD_WQ_DESTROY}:                   "DESTROY_WQ",
		{abi.UVERBS_OBJECT_RWQ_IND_TBL, abi.UVERBS_METHOD_RWQ_IND_TBL_DESTROY}: "DESTROY_RWQ_IND_TBL",
		{abi.UVERBS_OBJECT_DM, abi.UVERBS_METHOD_DM_ALLOC}:                     "ALLOC_DM",
		{abi.UVERBS_OBJECT_DM, abi.UVERBS_METHOD_DM_FREE}:                      "FREE_DM",
		{abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_DM_MR_REG}:                    "REG_DM_MR",
		{abi.UVERBS_OBJECT_COUNTERS, abi.UVERBS_METHOD_COUNTERS_CREATE}:        "CREATE_COUNTERS",
		{abi.UVERBS_OBJECT_COUNTERS, abi.UVERBS_METHOD_COUNTERS_READ}:          "READ_COUNTERS",
		{abi.UVERBS_OBJECT_COUNTERS, abi.UVERBS_METHOD_COUNTERS_DESTROY}:       "DESTROY_COUNTERS",
		{abi.UVERBS_OBJECT_COMP_CNTR, abi.UVERBS_METHOD_COMP_CNTR_CREATE}:      "CREATE_COMP_CNTR",
		{abi.UVERBS_OBJECT_COMP_CNTR, abi.UVERBS_METHOD_COMP_CNTR_MODIFY}:      "MODIFY_COMP_CNTR",
		{abi.UVERBS_OBJECT_COMP_CNTR, abi.UVERBS_METHOD_COMP_CNTR_DESTROY}:     "DESTROY_COMP_CNTR",
		{abi.UVERBS_OBJECT_QP, abi.UVERBS_METHOD_QP_ATTACH_COMP_CNTR}:          "ATTACH_COMP_CNTR",
		{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_COMP_CNTR_CAPS}:     "QUERY_COMP_CNTR_CAPS",
		{abi.UVERBS_OBJECT_DMAH, abi.UVERBS_METHOD_DMAH_ALLOC}:                 "ALLOC_DMAH",
		{abi.UVERBS_OBJECT_DMAH, abi.UVERBS_METHOD_DMAH_FREE}:                  "DEALLOC_DMAH",
	} {
		fakeMethods[method] = name
	}
}

// fakeHandle is the handle of every object that these tests create.
const fakeHandle = 0x77

// withObjects adds answers to the verbs of this file.
func (k *fakeKernel) withObjects(d *Device) {
	k.after(func(c *fakeCall, errno syscall.Errno) {
		if errno == 0 {
			k.answerObject(c)
		}
	})
}

// answerObject answers a verb.
func (k *fakeKernel) answerObject(c *fakeCall) {
	byIoctl := c.path == "ioctl"
	switch c.verb {
	case "OPEN_XRCD":
		k.put(c.core, u32(fakeHandle))
	case "CREATE_FLOW":
		k.put(c.core, bytesOf(&abi.CreateFlowResp{FlowHandle: fakeHandle}))
	case "CREATE_RWQ_IND_TBL":
		k.put(c.core, bytesOf(&abi.ExCreateRWQIndTableResp{IndTblHandle: fakeHandle, IndTblNum: 9}))
	case "CREATE_WQ":
		if !byIoctl {
			k.put(c.core, bytesOf(&abi.ExCreateWQResp{WQHandle: fakeHandle, MaxWR: 128, MaxSGE: 3, WQN: 0x99}))
			return
		}
		c.attr(abi.UVERBS_ATTR_CREATE_WQ_HANDLE).Data = fakeHandle
		k.put(c.attr(abi.UVERBS_ATTR_CREATE_WQ_RESP_MAX_WR).Out, u32(128))
		k.put(c.attr(abi.UVERBS_ATTR_CREATE_WQ_RESP_MAX_SGE).Out, u32(3))
		k.put(c.attr(abi.UVERBS_ATTR_CREATE_WQ_RESP_WQ_NUM).Out, u32(0x99))
	case "REG_DM_MR":
		c.attr(abi.UVERBS_ATTR_REG_DM_MR_HANDLE).Data = fakeHandle
		k.put(c.attr(abi.UVERBS_ATTR_REG_DM_MR_RESP_LKEY).Out, u32(0x1111))
		k.put(c.attr(abi.UVERBS_ATTR_REG_DM_MR_RESP_RKEY).Out, u32(0x2222))
	case "READ_COUNTERS":
		a := c.attr(abi.UVERBS_ATTR_READ_COUNTERS_BUFF)
		for i := range uint64(a.Len / 8) {
			k.put(a.Out[8*i:], u64(100+i))
		}
	case "ALLOC_DM", "CREATE_COUNTERS", "ALLOC_DMAH":
		c.attr(0).Data = fakeHandle // the handle is the first attribute of all of them
	}
}

// objectDevice opens a device that has these verbs, by ioctl.
func objectDevice(t *testing.T) (*Device, *fakeKernel) {
	d, k := fakeDevice(t, pathAuto)
	k.withObjects(d)
	k.took()
	return d, k
}

// wantArg checks that err is an ArgError about a field.
func wantArg(t *testing.T, err error, field string) {
	t.Helper()
	var arg *ArgError
	if !errors.As(err, &arg) || arg.Field != field {
		t.Errorf("error is %v, want an ArgError about %s", err, field)
	}
}

// busy checks that an object refuses to close and says who uses it.
func busy(t *testing.T, err error, who string) {
	t.Helper()
	if !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), who) {
		t.Errorf("error is %v, want EBUSY that names %s", err, who)
	}
}

func TestXRCD(t *testing.T) {
	eachFakePath(t, func(t *testing.T, d *Device, k *fakeKernel, method, legacy string) {
		k.withObjects(d)
		k.took()
		f := value(os.Create(filepath.Join(t.TempDir(), "xrcd")))(t)
		defer f.Close()
		for _, c := range []struct {
			o    XRCDOptions
			want abi.OpenXRCD
		}{
			{XRCDOptions{}, abi.OpenXRCD{FD: 0xffffffff, Oflags: syscall.O_CREAT}},
			{XRCDOptions{File: f}, abi.OpenXRCD{FD: uint32(f.Fd())}},
			{XRCDOptions{File: f, Flags: os.O_CREATE | os.O_EXCL}, abi.OpenXRCD{FD: uint32(f.Fd()), Oflags: syscall.O_CREAT | syscall.O_EXCL}},
		} {
			x := value(d.OpenXRCD(c.o))(t)
			var req abi.OpenXRCD
			copy(bytesOf(&req), k.last("OPEN_XRCD").in)
			if req != c.want {
				t.Errorf("%+v: request is %+v, want %+v", c.o, req, c.want)
			}
			busy(t, d.Close(), "1 XRCD")
			must(t, x.Close(), x.Close())
			k.sent(legacy+" OPEN_XRCD", method+" CLOSE_XRCD")
		}
		_, err := d.OpenXRCD(XRCDOptions{Flags: os.O_TRUNC})
		wantArg(t, err, "Flags")
		must(t, f.Close())
		_, err = d.OpenXRCD(XRCDOptions{File: f})
		wantArg(t, err, "File")
		k.refuse["OPEN_XRCD"] = syscall.EAGAIN
		if _, err := d.OpenXRCD(XRCDOptions{}); !errors.Is(err, syscall.EAGAIN) || !strings.Contains(err.Error(), "os.O_CREATE") {
			t.Errorf("EAGAIN: %v", err)
		}
		must(t, d.Close())
	})
}

func TestXRCDExists(t *testing.T) {
	d, k := objectDevice(t)
	k.refuse["OPEN_XRCD"] = syscall.EINVAL
	if _, err := d.OpenXRCD(XRCDOptions{File: os.Stdin, Flags: os.O_CREATE | os.O_EXCL}); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "os.O_EXCL") {
		t.Errorf("EINVAL: %v", err)
	}
}

func TestDM(t *testing.T) {
	d, k := objectDevice(t)
	d.attr.MaxDMSize = 4096
	pd := value(d.AllocPD())(t)
	k.took()
	m := value(d.AllocDM(1000, DMOptions{Align: 64}))(t)
	c := k.last("ALLOC_DM")
	if length, align := c.attr(abi.UVERBS_ATTR_ALLOC_DM_LENGTH), c.attr(abi.UVERBS_ATTR_ALLOC_DM_ALIGNMENT); length.Data != 1000 || length.Len != 8 || align.Data != 6 || align.Len != 4 {
		t.Errorf("length is %+v, alignment %+v", length, align)
	}
	mr := value(pd.RegDM(m, 100, 900, AccessLocalWrite|AccessRemoteRead))(t)
	c = k.last("REG_DM_MR")
	for id, want := range map[uint16]uint64{
		abi.UVERBS_ATTR_REG_DM_MR_OFFSET: 100, abi.UVERBS_ATTR_REG_DM_MR_LENGTH: 900, abi.UVERBS_ATTR_REG_DM_MR_PD_HANDLE: uint64(pd.handle),
		abi.UVERBS_ATTR_REG_DM_MR_DM_HANDLE: fakeHandle, abi.UVERBS_ATTR_REG_DM_MR_ACCESS_FLAGS: 1 | 4 | 32,
	} {
		if got := c.attr(id).Data; got != want {
			t.Errorf("attribute %d is %d, want %d", id, got, want)
		}
	}
	if sge := mr.SGE(10, 20); sge != (SGE{Addr: 10, Length: 20, LKey: 0x1111}) || mr.RKey() != 0x2222 || mr.Len() != 900 || mr.Bytes() != nil || m.Len() != 1000 {
		t.Errorf("MR is %+v, SGE %+v", mr, sge)
	}
	busy(t, m.Close(), "1 MR")
	must(t, mr.Close(), mr.Close(), m.Close(), m.Close())
	k.sent("ioctl ALLOC_DM", "ioctl REG_DM_MR", "ioctl DEREG_MR", "ioctl FREE_DM")
	errorIs(t, second(pd.RegDM(m, 0, 1, 0)), os.ErrClosed, "RegDM after Close")
	for _, c := range []struct {
		length int
		o      DMOptions
		field  string
	}{{0, DMOptions{}, "length"}, {4097, DMOptions{}, "length"}, {1, DMOptions{Align: -2}, "Align"}, {1, DMOptions{Align: 48}, "Align"}} {
		_, err := d.AllocDM(c.length, c.o)
		wantArg(t, err, c.field)
	}
	for _, c := range []struct {
		dm             *DM
		offset, length int
		access         Access
		field          string
	}{
		{nil, 0, 1, 0, "dm"}, {m, 0, 1, AccessOnDemand, "access"}, {m, 0, 1, AccessRemoteWrite, "access"},
		{m, -1, 1, 0, "offset"}, {m, 1001, 1, 0, "offset"}, {m, 0, 0, 0, "length"}, {m, 1, 1000, 0, "length"},
	} {
		_, err := pd.RegDM(c.dm, c.offset, c.length, c.access)
		wantArg(t, err, c.field)
	}
	k.sent()
	k.refuse["ALLOC_DM"], k.refuse["REG_DM_MR"] = syscall.ENOMEM, syscall.EINVAL
	errorIs(t, second(d.AllocDM(1, DMOptions{})), syscall.ENOMEM, "refused")
	must(t, pd.Close(), d.Close())
}

func TestCounters(t *testing.T) {
	d, k := objectDevice(t)
	c := value(d.CreateCounters())(t)
	values := make([]uint64, 3)
	for _, cached := range []bool{false, true} {
		clear(values)
		must(t, c.Read(values, cached))
		call := k.last("READ_COUNTERS")
		if diff := cmp.Diff([]uint64{100, 101, 102}, values); diff != "" {
			t.Errorf("values (-want +got):\n%s", diff)
		}
		if flags := call.attr(abi.UVERBS_ATTR_READ_COUNTERS_FLAGS).Data; (flags == 1) != cached || call.attr(abi.UVERBS_ATTR_READ_COUNTERS_HANDLE).Data != fakeHandle {
			t.Errorf("flags are %d, the handle %d", flags, call.attr(abi.UVERBS_ATTR_READ_COUNTERS_HANDLE).Data)
		}
	}
	wantArg(t, c.Read(nil, false), "values")
	wantArg(t, c.Read(make([]uint64, 8192), false), "values")
	must(t, c.Read(make([]uint64, 8191), false))
	k.refuse["READ_COUNTERS"] = syscall.EINVAL
	if err := c.Read(values, false); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "while a flow uses them") {
		t.Errorf("EINVAL: %v", err)
	}
	busy(t, d.Close(), "1 Counters")
	k.took()
	must(t, c.Close(), c.Close())
	k.sent("ioctl DESTROY_COUNTERS")
	errorIs(t, c.Read(values, false), os.ErrClosed, "Read after Close")
	k.refuse["CREATE_COUNTERS"] = syscall.ENOMEM
	errorIs(t, second(d.CreateCounters()), syscall.ENOMEM, "refused")
	must(t, d.Close())
}

func TestDMAH(t *testing.T) {
	d, k := objectDevice(t)
	h := value(d.AllocDMAH(DMAHOptions{CPU: new(3), MemType: TPHMemPersistent, ProcessingHint: new(uint8(2))}))(t)
	c := k.last("ALLOC_DMAH")
	want := []kernel.Attr{
		{ID: abi.UVERBS_ATTR_ALLOC_DMAH_HANDLE, Flags: 1, Data: fakeHandle},
		{ID: abi.UVERBS_ATTR_ALLOC_DMAH_CPU_ID, Flags: 1, Len: 4, Data: 3},
		{ID: abi.UVERBS_ATTR_ALLOC_DMAH_TPH_MEM_TYPE, Flags: 1, Enum: 1},
		{ID: abi.UVERBS_ATTR_ALLOC_DMAH_PH, Flags: 1, Len: 1, Data: 2, In: []byte{2}},
	}
	if diff := cmp.Diff(want, c.attrs); diff != "" {
		t.Errorf("attributes (-want +got):\n%s", diff)
	}
	must(t, h.Close())
	c = k.last("DEALLOC_DMAH")
	if got := c.attr(abi.UVERBS_ATTR_FREE_DMA_HANDLE).Data; got != fakeHandle {
		t.Errorf("handle %d is freed, want %d", got, fakeHandle)
	}
	must(t, h.Close())
	h = value(d.AllocDMAH(DMAHOptions{}))(t)
	if c := k.last("ALLOC_DMAH"); len(c.attrs) != 1 {
		t.Errorf("attributes are %+v, want the handle", c.attrs)
	}
	must(t, h.Close())
	k.sent("ioctl ALLOC_DMAH", "ioctl DEALLOC_DMAH", "ioctl ALLOC_DMAH", "ioctl DEALLOC_DMAH")
	for field, o := range map[string]DMAHOptions{"CPU": {CPU: new(-1)}, "MemType": {MemType: 3}, "ProcessingHint": {ProcessingHint: new(uint8(4))}} {
		_, err := d.AllocDMAH(o)
		wantArg(t, err, field)
	}
	for errno, hint := range map[syscall.Errno]string{syscall.EPERM: "not allowed on processor 3", syscall.EINVAL: "no processor 3"} {
		k.refuse["ALLOC_DMAH"] = errno
		if _, err := d.AllocDMAH(DMAHOptions{CPU: new(3)}); !errors.Is(err, errno) || !strings.Contains(err.Error(), hint) {
			t.Errorf("%v: %v", errno, err)
		}
		if _, err := d.AllocDMAH(DMAHOptions{}); strings.Contains(err.Error(), "processor") {
			t.Errorf("%v without a processor: %v", errno, err)
		}
	}
	must(t, d.Close())
}

func TestNoParentDomain(t *testing.T) {
	d, _ := objectDevice(t)
	pd := value(d.AllocPD())(t)
	for verb, f := range map[string]func() error{
		"ALLOC_TD":            func() error { _, err := d.AllocTD(); return err },
		"ALLOC_PARENT_DOMAIN": func() error { _, err := pd.AllocParentDomain(nil); return err },
	} {
		var fe *FeatureError
		if err := f(); !errors.As(err, &fe) || fe.Driver != "rxe" || fe.Feature != verb {
			t.Errorf("%s: %v", verb, err)
		}
	}
	must(t, pd.Close(), d.Close())
}

func TestParentDomain(t *testing.T) {
	d, k, err := openFakeMlx5(t, func([]byte) {})
	must(t, err)
	k.withObjects(d)
	pd := value(d.AllocPD())(t)
	k.refuse["ALLOC_UAR"] = syscall.ENOMEM
	errorIs(t, second(d.AllocTD()), syscall.ENOMEM, "refused")
	delete(k.refuse, "ALLOC_UAR")
	td := value(d.AllocTD())(t)
	k.took()
	parent := value(pd.AllocParentDomain(td))(t)
	_, err = parent.AllocParentDomain(nil)
	wantArg(t, err, "PD")
	buf := value(AllocBuffer(1, BufferOptions{}))(t)
	mr := value(parent.RegMR(buf, MROptions{}))(t)
	var req abi.RegMR
	if copy(bytesOf(&req), k.last("REG_MR").in); req.PDHandle != pd.handle {
		t.Errorf("the parent domain's handle is %d, want the PD's, %d", req.PDHandle, pd.handle)
	}
	busy(t, pd.Close(), "1 parent domain")
	busy(t, td.Close(), "1 parent domain")
	busy(t, parent.Close(), "1 MR")
	must(t, mr.Close(), buf.Close())
	k.took()
	must(t, parent.Close(), parent.Close())
	k.sent() // the kernel keeps the PD
	must(t, td.Close(), td.Close(), value(pd.AllocParentDomain(nil))(t).Close(), pd.Close())
	k.sent("ioctl DEALLOC_PD")
	if td.mlx5.users != 0 {
		t.Errorf("the register of a closed thread domain has %d users", td.mlx5.users)
	}
	errorIs(t, second(pd.AllocParentDomain(nil)), os.ErrClosed, "AllocParentDomain after Close")
	must(t, d.Close())
	errorIs(t, second(d.AllocTD()), os.ErrClosed, "AllocTD after Close")
}

// TestObjectsRefused: what every verb says when the kernel hides it, and that nothing is
// left of the object. A command that is not issued must not keep memory pinned: the
// collector would end the program.
func TestObjectsRefused(t *testing.T) {
	eachFakePath(t, func(t *testing.T, d *Device, k *fakeKernel, method, legacy string) {
		pd, cq := value(d.AllocPD())(t), value(d.CreateCQ(CQOptions{Size: 7}))(t)
		qp := value(pd.CreateQP(QPOptions{SendCQ: cq, RecvCQ: cq}))(t)
		for _, c := range absentVerbs(d, pd, cq, qp) {
			k.refuse[c.feature] = syscall.EOPNOTSUPP
			if method == "ioctl" && features()[c.feature].hidden {
				k.refuse[c.feature] = syscall.EPROTONOSUPPORT
			}
			err := c.do()
			var f *FeatureError
			if !errors.As(err, &f) || f.Feature != c.feature {
				t.Errorf("%s: %v (%T)", c.feature, err, err)
			}
		}
		for range 3 {
			runtime.GC()
		}
		must(t, qp.Close(), cq.Close(), pd.Close(), d.Close())
	})
}

// absentVerbs are the verbs that make objects which rxe does not have.
func absentVerbs(d *Device, pd *PD, cq *CQ, qp *QP) []struct {
	feature string
	do      func() error
} {
	dm := &DM{length: 10, object: object{dev: d}}
	return []struct {
		feature string
		do      func() error
	}{
		{"OPEN_XRCD", func() error { _, err := d.OpenXRCD(XRCDOptions{}); return err }},
		{"CREATE_FLOW", func() error { _, err := qp.CreateFlow(FlowOptions{Specs: []flow.Spec{flow.Eth{}}}); return err }},
		{"CREATE_WQ", func() error { _, err := pd.CreateWQ(WQOptions{CQ: cq}); return err }},
		{"ALLOC_DM", func() error { _, err := d.AllocDM(10, DMOptions{}); return err }},
		{"REG_DM_MR", func() error { _, err := pd.RegDM(dm, 0, 1, 0); return err }},
		{"CREATE_COUNTERS", func() error { _, err := d.CreateCounters(); return err }},
		{"ALLOC_DMAH", func() error { _, err := d.AllocDMAH(DMAHOptions{}); return err }},
		{"CREATE_COMP_CNTR", func() error { return second(d.CreateCompCounter(CompCounterOptions{})) }},
		{"QUERY_COMP_CNTR_CAPS", func() error { return second(d.CompCounterCaps()) }},
	}
}
