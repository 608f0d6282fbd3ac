package uverbs

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// fakeKernel is a [kernel.Device] that plays an rxe device. Rings are memory of a memfd, the file of
// the CharDevice. Doorbells and the arming of CQs are written to that file directly: they are
// appended to it.
type fakeKernel struct {
	*kernel.CharDevice
	t    testing.TB
	file *os.File // the memfd

	noIoctl bool                                     // the kernel has no methods beside INVOKE_WRITE
	refuse  map[string]syscall.Errno                 // what to answer to a verb
	ahNum   uint32                                   // of AHs; 0 before Linux 5.16
	invalid func(qp *abi.CreateQP) syscall.Errno     // what the driver thinks of a QP
	port    abi.QueryPortResp                        // of port 1; the others are down
	gids    []abi.GIDEntry                           // of all ports
	query   abi.QueryQPResp                          // the answer to QUERY_QP
	events  *os.File                                 // the write end of the last completion channel
	async   *os.File                                 // the write end of the file of asynchronous events
	mapped  int                                      // bytes of other devices' files that were mapped before
	old     int                                      // bytes of the kernel's own mappings that are in no ring any more
	seen    func(c *kernel.Command, byWrite bool)    // if set, gets every command first
	hooks   []func(c *fakeCall, errno syscall.Errno) // see after
	asked   syscall.Errno                            // the last answer
	driver  driver                                   // of the device, rxe's unless it is set
	context []byte                                   // what the driver answers to GET_CONTEXT
	uars    []uint32                                 // handles of the UAR pages of mlx5 that are allocated
	uarPage int                                      // size of such a page in bytes; 0 is the host's
	uarOdd  bool                                     // pages cannot be mapped

	mu    sync.Mutex
	calls []fakeCall
	next  uint32                 // last handle
	space int64                  // where the next ring goes
	rings map[uint32][]*fakeRing // of a CQ one, of a QP the send and the receive ring
}

// fakeCall is a command that the kernel got.
type fakeCall struct {
	verb string
	path string // "ioctl", "invoke" or "write"
	in   []byte // the core struct of a legacy command
	core []byte // where the core's part of the answer goes
	drv  []byte // where the driver's part goes

	attrs []kernel.Attr // of an ioctl
}

// doorbells is the place in the memfd where what is written comes to lie.
const doorbells = 1 << 24

// fakeVerbs are the commands that the library uses, by the number of write().
var fakeVerbs = map[uint32]struct {
	name string
	resp int // size of the core's part of the answer
}{
	abi.IB_USER_VERBS_CMD_GET_CONTEXT:         {"GET_CONTEXT", 8},
	abi.IB_USER_VERBS_CMD_QUERY_DEVICE:        {"QUERY_DEVICE", 176},
	abi.IB_USER_VERBS_CMD_QUERY_PORT:          {"QUERY_PORT", 40},
	abi.IB_USER_VERBS_CMD_ALLOC_PD:            {"ALLOC_PD", 4},
	abi.IB_USER_VERBS_CMD_DEALLOC_PD:          {"DEALLOC_PD", 0},
	abi.IB_USER_VERBS_CMD_REG_MR:              {"REG_MR", 12},
	abi.IB_USER_VERBS_CMD_DEREG_MR:            {"DEREG_MR", 0},
	abi.IB_USER_VERBS_CMD_REREG_MR:            {"REREG_MR", 8},
	abi.IB_USER_VERBS_CMD_ALLOC_MW:            {"ALLOC_MW", 8},
	abi.IB_USER_VERBS_CMD_DEALLOC_MW:          {"DEALLOC_MW", 0},
	abi.IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL: {"CREATE_COMP_CHANNEL", 4},
	abi.IB_USER_VERBS_CMD_CREATE_CQ:           {"CREATE_CQ", 8},
	abi.IB_USER_VERBS_CMD_RESIZE_CQ:           {"RESIZE_CQ", 8},
	abi.IB_USER_VERBS_CMD_DESTROY_CQ:          {"DESTROY_CQ", 8},
	abi.IB_USER_VERBS_CMD_CREATE_QP:           {"CREATE_QP", 32},
	abi.IB_USER_VERBS_CMD_QUERY_QP:            {"QUERY_QP", 128},
	abi.IB_USER_VERBS_CMD_MODIFY_QP:           {"MODIFY_QP", 0},
	abi.IB_USER_VERBS_CMD_DESTROY_QP:          {"DESTROY_QP", 4},
	abi.IB_USER_VERBS_CMD_CREATE_AH:           {"CREATE_AH", 4},
	abi.IB_USER_VERBS_CMD_DESTROY_AH:          {"DESTROY_AH", 0},
	abi.IB_USER_VERBS_CMD_ATTACH_MCAST:        {"ATTACH_MCAST", 0},
	abi.IB_USER_VERBS_CMD_DETACH_MCAST:        {"DETACH_MCAST", 0},
	abi.IB_USER_VERBS_CMD_CREATE_SRQ:          {"CREATE_SRQ", 16},
	abi.IB_USER_VERBS_CMD_MODIFY_SRQ:          {"MODIFY_SRQ", 0},
	abi.IB_USER_VERBS_CMD_QUERY_SRQ:           {"QUERY_SRQ", 16},
	abi.IB_USER_VERBS_CMD_DESTROY_SRQ:         {"DESTROY_SRQ", 4},
	abi.IB_USER_VERBS_CMD_REQ_NOTIFY_CQ:       {"REQ_NOTIFY_CQ", 0},
	abi.IB_USER_VERBS_CMD_POST_SEND:           {"POST_SEND", 4},

	abi.IB_USER_VERBS_CMD_FLAG_EXTENDED | abi.IB_USER_VERBS_EX_CMD_QUERY_DEVICE: {"EX_QUERY_DEVICE", 304},
	abi.IB_USER_VERBS_CMD_FLAG_EXTENDED | abi.IB_USER_VERBS_EX_CMD_CREATE_CQ:    {"EX_CREATE_CQ", 16},
	abi.IB_USER_VERBS_CMD_FLAG_EXTENDED | abi.IB_USER_VERBS_EX_CMD_MODIFY_CQ:    {"EX_MODIFY_CQ", 0},
}

// fakeMethods are the ioctl methods, by object and method.
var fakeMethods = map[[2]uint16]string{
	{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_GET_CONTEXT}:            "GET_CONTEXT",
	{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_PORT}:             "QUERY_PORT",
	{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_GID_TABLE}:        "QUERY_GID_TABLE",
	{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_GID_ENTRY}:        "QUERY_GID_ENTRY",
	{abi.UVERBS_OBJECT_PD, abi.UVERBS_METHOD_PD_DESTROY}:                 "DEALLOC_PD",
	{abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_MR_DESTROY}:                 "DEREG_MR",
	{abi.UVERBS_OBJECT_CQ, abi.UVERBS_METHOD_CQ_CREATE}:                  "CREATE_CQ",
	{abi.UVERBS_OBJECT_CQ, abi.UVERBS_METHOD_CQ_DESTROY}:                 "DESTROY_CQ",
	{abi.UVERBS_OBJECT_QP, abi.UVERBS_METHOD_QP_CREATE}:                  "CREATE_QP",
	{abi.UVERBS_OBJECT_QP, abi.UVERBS_METHOD_QP_DESTROY}:                 "DESTROY_QP",
	{abi.UVERBS_OBJECT_AH, abi.UVERBS_METHOD_AH_DESTROY}:                 "DESTROY_AH",
	{abi.UVERBS_OBJECT_SRQ, abi.UVERBS_METHOD_SRQ_DESTROY}:               "DESTROY_SRQ",
	{abi.UVERBS_OBJECT_SRQ, abi.UVERBS_METHOD_SRQ_CREATE}:                "CREATE_SRQ",
	{abi.UVERBS_OBJECT_ASYNC_EVENT, abi.UVERBS_METHOD_ASYNC_EVENT_ALLOC}: "ASYNC_EVENT_ALLOC",
	{abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_QUERY_MR}:                   "QUERY_MR",
	{abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_ADVISE_MR}:                  "ADVISE_MR",
	{abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_REG_DMABUF_MR}:              "REG_DMABUF_MR",
	{abi.UVERBS_OBJECT_MW, abi.UVERBS_METHOD_MW_DESTROY}:                 "DEALLOC_MW",
	{mlx5.ObjectUAR, mlx5.MethodUARAlloc}:                                "ALLOC_UAR",
	{mlx5.ObjectUAR, mlx5.MethodUARDestroy}:                              "FREE_UAR",
}

// fakeDevice opens a device of a kernel that has everything.
func fakeDevice(t testing.TB, path abiPath) (*Device, *fakeKernel) {
	t.Helper()
	d, k, err := openFake(t, path, func(*fakeKernel) {})
	if err != nil {
		t.Fatal(err)
	}
	return d, k
}

// openFake opens a device of a kernel that change has changed, as open does.
func openFake(t testing.TB, path abiPath, change func(k *fakeKernel)) (*Device, *fakeKernel, error) {
	t.Helper()
	fd, err := unix.MemfdCreate("uverbs0", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	k := &fakeKernel{
		t: t, file: os.NewFile(uintptr(fd), "uverbs0"), refuse: map[string]syscall.Errno{}, rings: map[uint32][]*fakeRing{},
		port: abi.QueryPortResp{State: uint8(PortActive), MaxMTU: 5, ActiveMTU: 3, GIDTblLen: 4, PhysState: 5, LinkLayer: uint8(LinkLayerEthernet)},
	}
	k.CharDevice = value(kernel.NewCharDevice(k.file, kernel.CharOptions{}))(t)
	if _, err := k.file.Seek(doorbells, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	k.mapped = k.ringsMapped()
	change(k)
	d := &Device{info: DeviceInfo{Name: "rxe0", Driver: "rxe"}, driver: rxeDriver{}}
	if k.driver != nil {
		d.info.Driver, d.driver = k.driver.name(), k.driver
	}
	d.object.dev, d.object.kind, d.object.destroy = d, "Device", "CLOSE_DEVICE"
	t.Cleanup(func() {
		k.file.Close()
		if k.events != nil {
			k.events.Close()
		}
		if k.async != nil {
			k.async.Close()
		}
		if d.async != nil {
			d.async.Close()
		}
	})
	d.cmd = newCommands(k, path, "rxe0", d.driver)
	if err = d.getContext(); err == nil {
		err = d.queryDevice()
	}
	return d, k, err
}

// Do implements [kernel.Device].
func (k *fakeKernel) Do(cmd *kernel.Command, byWrite bool) syscall.Errno {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.seen != nil {
		k.seen(cmd, byWrite)
	}
	l, legacy := cmd.Legacy()
	c := fakeCall{path: "ioctl", attrs: cmd.Attrs(), drv: cmd.Attr(abi.UVERBS_ATTR_UHW_OUT).Out}
	switch {
	case legacy && byWrite:
		c.path, c.in, c.core = "write", slices.Concat(l.In, l.DrvIn), l.Out
	case legacy:
		c.path, c.in, c.core = "invoke", slices.Clone(l.In), l.Out
	case k.noIoctl:
		return syscall.EPROTONOSUPPORT
	}
	verb := fakeVerbs[l.Number]
	if c.verb = verb.name; !legacy {
		c.verb = fakeMethods[[2]uint16{cmd.Object, cmd.Method}]
	}
	if c.verb == "" {
		k.t.Errorf("the kernel got an unknown command: %+v", c)
		return syscall.EINVAL
	}
	if legacy && len(l.Out) != verb.resp {
		k.t.Errorf("the response of %s has %d bytes, want %d", c.verb, len(l.Out), verb.resp)
	}
	if c.verb == "QUERY_DEVICE" && k.asked == syscall.EINVAL { // to see whether the device is still there
		return k.refuse[c.verb]
	}
	k.asked = k.answer(&c)
	for _, hook := range k.hooks {
		hook(&c, k.asked)
	}
	c.attrs = slices.Clone(c.attrs) // cmd is not kept
	k.calls = append(k.calls, c)
	return k.asked
}

// after calls hook with every command that follows, once it is answered. The hook may change the
// answer.
func (k *fakeKernel) after(hook func(c *fakeCall, errno syscall.Errno)) {
	k.hooks = append(k.hooks, hook)
}

// answer answers a command.
func (k *fakeKernel) answer(c *fakeCall) syscall.Errno {
	if errno := k.refuse[c.verb]; errno != 0 {
		return errno
	}
	if c.path == "ioctl" {
		return k.method(c)
	}
	return k.legacy(c)
}

// attr returns an attribute of an ioctl, or an empty one.
func (c *fakeCall) attr(id uint16) *kernel.Attr {
	if i := slices.IndexFunc(c.attrs, func(a kernel.Attr) bool { return a.ID == id }); i >= 0 {
		return &c.attrs[i]
	}
	return &kernel.Attr{}
}

// put copies to the caller's memory.
func (k *fakeKernel) put(to, b []byte) {
	if len(to) < len(b) {
		k.t.Errorf("there is room for %d bytes, the kernel has %d", len(to), len(b))
		return
	}
	copy(to, b)
}

// u32 and u64 are what outputs mostly are.
func u32(v uint32) []byte { return binary.LittleEndian.AppendUint32(nil, v) }
func u64(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }

// method answers an ioctl.
func (k *fakeKernel) method(c *fakeCall) syscall.Errno {
	out := func(id uint16, b []byte) {
		k.put(c.attr(id).Out, b)
	}
	switch c.verb {
	case "GET_CONTEXT":
		if k.context != nil {
			out(abi.UVERBS_ATTR_UHW_OUT, k.context)
		}
		out(abi.UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, u32(2))
		out(abi.UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, u64(0))
	case "ALLOC_UAR":
		page := make([]byte, orDefault(k.uarPage, os.Getpagesize()))
		if _, err := k.file.WriteAt(page, k.space); err != nil {
			k.t.Fatal(err)
		}
		handle := k.handle()
		k.uars = append(k.uars, handle)
		c.attr(mlx5.AttrUARHandle).Data = uint64(handle)
		out(mlx5.AttrUARMapOffset, u64(uint64(k.space)))
		out(mlx5.AttrUARMapLength, u32(uint32(len(page))))
		out(mlx5.AttrUARPageID, u32(7+16*uint32(k.space/int64(len(page)))))
		if k.uarOdd {
			out(mlx5.AttrUARMapOffset, u64(1<<63)) // which cannot be mapped
		}
		k.space += int64(len(page))
	case "FREE_UAR":
		handle := uint32(c.attr(mlx5.AttrUARDestroy).Data)
		i := slices.Index(k.uars, handle)
		if i < 0 {
			k.t.Errorf("UAR %d is freed, which is not one of %v", handle, k.uars)
			return syscall.ENOENT
		}
		k.uars = slices.Delete(k.uars, i, i+1)
	case "ASYNC_EVENT_ALLOC":
		r, w := k.pipe()
		k.async = w
		c.attr(abi.UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE).Data = uint64(r)
	case "QUERY_PORT":
		resp := abi.QueryPortRespEx{LegacyResp: k.portResp(uint8(c.attr(abi.UVERBS_ATTR_QUERY_PORT_PORT_NUM).Data)), PortCapFlags2: 9, ActiveSpeedEx: 256}
		out(abi.UVERBS_ATTR_QUERY_PORT_RESP, bytesOf(&resp))
	case "QUERY_GID_TABLE":
		if size := c.attr(abi.UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE).Data; size != 32 {
			k.t.Errorf("the size of a GID entry is said to be %d, want 32", size)
		}
		out(abi.UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES, sliceBytes(k.gids))
		out(abi.UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES, u64(uint64(len(k.gids))))
	case "QUERY_GID_ENTRY":
		port, index := c.attr(abi.UVERBS_ATTR_QUERY_GID_ENTRY_PORT).Data, c.attr(abi.UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX).Data
		i := slices.IndexFunc(k.gids, func(e abi.GIDEntry) bool { return uint64(e.PortNum) == port && uint64(e.GIDIndex) == index })
		if i < 0 {
			return syscall.ENODATA
		}
		out(abi.UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, bytesOf(&k.gids[i]))
	case "QUERY_MR":
		out(abi.UVERBS_ATTR_QUERY_MR_RESP_LKEY, u32(0x1112))
		out(abi.UVERBS_ATTR_QUERY_MR_RESP_RKEY, u32(0x2223))
		out(abi.UVERBS_ATTR_QUERY_MR_RESP_LENGTH, u64(0x3334))
		out(abi.UVERBS_ATTR_QUERY_MR_RESP_IOVA, u64(0x4445))
	case "REG_DMABUF_MR":
		c.attr(abi.UVERBS_ATTR_REG_DMABUF_MR_HANDLE).Data = uint64(k.handle())
		out(abi.UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, u32(0x5556))
		out(abi.UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, u32(0x6667))
	case "CREATE_CQ":
		cqe := uint32(c.attr(abi.UVERBS_ATTR_CREATE_CQ_CQE).Data)
		handle := k.createCQ(c, cqe)
		c.attr(abi.UVERBS_ATTR_CREATE_CQ_HANDLE).Data = uint64(handle)
		out(abi.UVERBS_ATTR_CREATE_CQ_RESP_CQE, u32(k.rings[handle][0].mask))
	case "CREATE_SRQ":
		maxWR, maxSGE := uint32(c.attr(abi.UVERBS_ATTR_CREATE_SRQ_MAX_WR).Data), uint32(c.attr(abi.UVERBS_ATTR_CREATE_SRQ_MAX_SGE).Data)
		c.attr(abi.UVERBS_ATTR_CREATE_SRQ_HANDLE).Data = uint64(k.createSRQ(c, maxWR, maxSGE))
		out(abi.UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, u32(maxWR))
		out(abi.UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, u32(maxSGE))
	case "CREATE_QP":
		var cap abi.QPCap
		copy(bytesOf(&cap), c.attr(abi.UVERBS_ATTR_CREATE_QP_CAP).In)
		resp, errno := k.createQP(c, &abi.CreateQP{MaxSendWR: cap.MaxSendWR, MaxRecvWR: cap.MaxRecvWR, MaxSendSGE: cap.MaxSendSGE,
			MaxRecvSGE: cap.MaxRecvSGE, MaxInlineData: cap.MaxInlineData})
		if errno != 0 {
			return errno
		}
		c.attr(abi.UVERBS_ATTR_CREATE_QP_HANDLE).Data = uint64(resp.QPHandle)
		out(abi.UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, u32(resp.QPN))
		out(abi.UVERBS_ATTR_CREATE_QP_RESP_CAP, bytesOf(&abi.QPCap{MaxSendWR: resp.MaxSendWR, MaxRecvWR: resp.MaxRecvWR,
			MaxSendSGE: resp.MaxSendSGE, MaxRecvSGE: resp.MaxRecvSGE, MaxInlineData: resp.MaxInlineData}))
	}
	return 0
}

// legacy answers a command of the write() interface.
func (k *fakeKernel) legacy(c *fakeCall) syscall.Errno {
	switch c.verb {
	case "GET_CONTEXT":
		r, w := k.pipe()
		k.async = w
		k.put(c.core, bytesOf(&abi.GetContextResp{AsyncFD: r, NumCompVectors: 2}))
	case "QUERY_DEVICE":
		resp := k.device()
		k.put(c.core, bytesOf(&resp.Base))
	case "EX_QUERY_DEVICE":
		k.put(c.core, bytesOf(k.device()))
	case "QUERY_PORT":
		var req abi.QueryPort
		copy(bytesOf(&req), c.in)
		resp := k.portResp(req.PortNum)
		k.put(c.core, bytesOf(&resp))
	case "ALLOC_PD":
		k.put(c.core, u32(k.handle()))
	case "REG_MR":
		k.put(c.core, bytesOf(&abi.RegMRResp{MRHandle: k.handle(), LKey: 0x1111, RKey: 0x2222}))
	case "REREG_MR":
		k.put(c.core, bytesOf(&abi.ReregMRResp{LKey: 0x3333, RKey: 0x4444}))
	case "ALLOC_MW":
		k.put(c.core, bytesOf(&abi.AllocMWResp{MWHandle: k.handle(), RKey: 0x77ff}))
	case "CREATE_COMP_CHANNEL":
		r, w := k.pipe()
		k.events = w
		k.put(c.core, u32(r))
	case "CREATE_CQ":
		var req abi.CreateCQ
		copy(bytesOf(&req), c.in)
		handle := k.createCQ(c, req.CQE)
		k.put(c.core, bytesOf(&abi.CreateCQResp{CQHandle: handle, CQE: k.rings[handle][0].mask}))
	case "EX_CREATE_CQ":
		var req abi.ExCreateCQ
		copy(bytesOf(&req), c.in)
		handle := k.createCQ(c, req.CQE)
		k.put(c.core, bytesOf(&abi.ExCreateCQResp{Base: abi.CreateCQResp{CQHandle: handle, CQE: k.rings[handle][0].mask}, ResponseLength: 16}))
	case "RESIZE_CQ":
		var req abi.ResizeCQ
		copy(bytesOf(&req), c.in)
		errno := k.resizeCQ(c, req.CQHandle, req.CQE)
		if errno != 0 {
			return errno
		}
		k.put(c.core, bytesOf(&abi.ResizeCQResp{CQE: k.rings[req.CQHandle][0].mask}))
	case "CREATE_QP":
		var req abi.CreateQP
		copy(bytesOf(&req), c.in)
		resp, errno := k.createQP(c, &req)
		if errno != 0 {
			return errno
		}
		k.put(c.core, bytesOf(resp))
	case "QUERY_QP":
		k.put(c.core, bytesOf(&k.query))
	case "CREATE_SRQ":
		var req abi.CreateSRQ
		copy(bytesOf(&req), c.in)
		k.put(c.core, bytesOf(&abi.CreateSRQResp{SRQHandle: k.createSRQ(c, req.MaxWR, req.MaxSGE), MaxWR: req.MaxWR, MaxSGE: req.MaxSGE}))
	case "QUERY_SRQ":
		k.put(c.core, bytesOf(&abi.QuerySRQResp{MaxWR: 31, MaxSGE: 2, SRQLimit: 5}))
	case "CREATE_AH":
		k.put(c.core, u32(k.handle()))
		k.put(c.drv, u32(k.ahNum))
	}
	return 0
}

// device is what the device can do.
func (k *fakeKernel) device() *abi.ExQueryDeviceResp {
	resp := &abi.ExQueryDeviceResp{Base: abi.QueryDeviceResp{
		FWVer: 1<<32 | 2<<16 | 3, MaxSRQ: 9, MaxSRQWR: 1000, MaxSRQSGE: 3, MaxMRSize: 1 << 30, MaxQPWR: 1000, MaxSGE: 4, MaxCQE: 1000, MaxQPRDAtom: 16, MaxQPInitRDAtom: 8,
		AtomicCap: uint32(AtomicHCA), PhysPortCnt: 2, DeviceCapFlags: 5,
	}, TimestampMask: 7, HCACoreClock: 1000, DeviceCapFlagsEx: 1 << 40, MaxDMSize: 99, MaxWQTypeRQ: 20, RawPacketCaps: 5, XRCODPCaps: 8,
		// No bit of general ODP, so that nothing is done on demand.
		ODPCaps:          abi.ODPCaps{PerTransportCaps: abi.ODPCapsPerTransportCaps{RCODPCaps: 9, UCODPCaps: 10, UDODPCaps: 11}},
		RSSCaps:          abi.RSSCaps{SupportedQPTs: 1 << 8, MaxRWQIndirectionTables: 21, MaxRWQIndirectionTableSize: 22},
		TMCaps:           abi.TMCaps{MaxRndvHdrSize: 31, MaxNumTags: 32, Flags: 1, MaxOps: 34, MaxSGE: 35},
		CQModerationCaps: abi.CQModerationCaps{MaxCQModerationCount: 41, MaxCQModerationPeriod: 42},
	}
	resp.Base.NodeGUID.Put(0x0102030405060708)
	return resp
}

// portResp describes a port.
func (k *fakeKernel) portResp(port uint8) abi.QueryPortResp {
	if port == 1 {
		return k.port
	}
	return abi.QueryPortResp{State: uint8(PortDown), PhysState: 3, GIDTblLen: 4, LinkLayer: uint8(LinkLayerEthernet)}
}

// handle makes a handle.
func (k *fakeKernel) handle() uint32 {
	k.next++
	return k.next
}

// pipe returns the descriptor of the read end, which the library owns, and the write end.
func (k *fakeKernel) pipe() (uint32, *os.File) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		k.t.Fatal(err)
	}
	return uint32(p[0]), os.NewFile(uintptr(p[1]), "events")
}

// createCQ makes a completion ring.
func (k *fakeKernel) createCQ(c *fakeCall, cqe uint32) uint32 {
	handle := k.handle()
	ring := k.newRing(6, cqe)
	k.rings[handle] = []*fakeRing{ring}
	k.put(c.drv, ring.info)
	return handle
}

// resizeCQ moves what is in a completion ring to the start of a new one, as rxe does.
func (k *fakeKernel) resizeCQ(c *fakeCall, handle, cqe uint32) syscall.Errno {
	old := k.rings[handle][0]
	n := (old.producer.Acquire() - old.consumer.Acquire()) & old.mask
	if cqe < n {
		return syscall.EINVAL
	}
	ring := k.newRing(old.shift, cqe)
	for i := range n {
		from := 384 + ((old.consumer.Acquire()+i)&old.mask)<<old.shift
		to := 384 + i<<ring.shift
		copy(ring.mem[to:to+1<<ring.shift], old.mem[from:])
	}
	ring.producer.Release(n)
	k.rings[handle] = []*fakeRing{ring}
	k.old += len(old.mem)
	k.put(c.drv, ring.info)
	return 0
}

// createSRQ makes a receive ring.
func (k *fakeKernel) createSRQ(c *fakeCall, maxWR, maxSGE uint32) uint32 {
	handle := k.handle()
	ring := k.newRing(uint(bits.Len32(40+16*maxSGE-1)), maxWR)
	k.rings[handle] = []*fakeRing{ring}
	k.put(c.drv, append(slices.Clone(ring.info), append(u32(0x200+handle), u32(0)...)...))
	return handle
}

// createQP makes a send and a receive ring.
func (k *fakeKernel) createQP(c *fakeCall, req *abi.CreateQP) (*abi.CreateQPResp, syscall.Errno) {
	if k.invalid != nil {
		if errno := k.invalid(req); errno != 0 {
			return nil, errno
		}
	}
	handle := k.handle()
	// struct rxe_send_wqe has 208 bytes, struct rxe_recv_wqe 40, an SGE 16.
	sq := k.newRing(uint(bits.Len32(208+max(16*req.MaxSendSGE, req.MaxInlineData)-1)), req.MaxSendWR)
	rq := k.newRing(uint(bits.Len32(40+16*req.MaxRecvSGE-1)), req.MaxRecvWR)
	k.rings[handle] = []*fakeRing{sq, rq}
	k.put(c.drv, append(slices.Clone(rq.info), sq.info...))
	return &abi.CreateQPResp{QPHandle: handle, QPN: 0x100 + handle, MaxSendWR: req.MaxSendWR, MaxRecvWR: req.MaxRecvWR,
		MaxSendSGE: req.MaxSendSGE, MaxRecvSGE: req.MaxRecvSGE, MaxInlineData: req.MaxInlineData}, 0
}

// fakeRing is the kernel's own mapping of a ring (struct rxe_queue_buf).
type fakeRing struct {
	mem                []byte
	shift              uint
	mask               uint32
	producer, consumer *mmio.Index
	info               []byte // struct mminfo
}

// newRing makes a ring for so many entries, rounded up as rxe does.
func (k *fakeKernel) newRing(shift uint, entries uint32) *fakeRing {
	mask := uint32(1)<<bits.Len32(entries) - 1
	page := os.Getpagesize() - 1
	size := (384 + int(mask+1)<<shift + page) &^ page
	offset := k.space
	k.space += int64(size)
	if k.space > doorbells {
		k.t.Fatal("the rings reach into the doorbells")
	}
	if _, err := k.file.WriteAt(append(u32(uint32(shift)), u32(mask)...), offset); err != nil {
		k.t.Fatal(err)
	}
	if _, err := k.file.WriteAt([]byte{0}, offset+int64(size)-1); err != nil {
		k.t.Fatal(err)
	}
	region, err := mmio.Map(k.file, uint64(offset), size)
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { region.Close() })
	r := &fakeRing{mem: region.Bytes(), shift: shift, mask: mask, info: append(u64(uint64(offset)), u64(uint64(size))...)}
	for at, index := range map[uintptr]**mmio.Index{128: &r.producer, 256: &r.consumer} {
		if *index, err = mmio.IndexAt(r.mem, at); err != nil {
			k.t.Fatal(err)
		}
	}
	return r
}

// ringsMapped returns how much of the command file is mapped by the library since the
// device was opened, in bytes.
func (k *fakeKernel) ringsMapped() int {
	k.t.Helper()
	total := -k.mapped - k.old
	for line := range strings.Lines(string(value(os.ReadFile("/proc/self/maps"))(k.t))) {
		if !strings.Contains(line, "memfd:uverbs0") {
			continue
		}
		var from, to int
		if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
			k.t.Fatal(err)
		}
		total += to - from
	}
	for _, rings := range k.rings {
		for _, r := range rings {
			total -= len(r.mem)
		}
	}
	return total
}

// rung returns what was written to the command file since the last call.
func (k *fakeKernel) rung() []byte {
	k.t.Helper()
	end, err := k.file.Seek(0, io.SeekCurrent)
	if err != nil {
		k.t.Fatal(err)
	}
	b := make([]byte, end-doorbells)
	if _, err := k.file.ReadAt(b, doorbells); err != nil {
		k.t.Fatal(err)
	}
	if _, err := k.file.Seek(doorbells, io.SeekStart); err != nil {
		k.t.Fatal(err)
	}
	return b
}

// took returns the commands that the kernel got since the last call, as "path VERB".
func (k *fakeKernel) took() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []string
	for _, c := range k.calls {
		all = append(all, fmt.Sprint(c.path, " ", c.verb))
	}
	k.calls = nil
	return all
}

// last returns the last command, which must be a verb.
func (k *fakeKernel) last(verb string) fakeCall {
	k.t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.calls) == 0 || k.calls[len(k.calls)-1].verb != verb {
		k.t.Fatalf("the last command is not %s: %v", verb, k.calls)
	}
	return k.calls[len(k.calls)-1]
}

// must ends the test at the first error.
func must(t testing.TB, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// value returns a value, or ends the test.
func value[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		must(t, err)
		return v
	}
}

// fakeQP is a QP with all that it needs, on a fake device.
type fakeQP struct {
	*fakeKernel
	dev    *Device
	pd     *PD
	cq     *CQ
	qp     *QP
	mr     *MR
	comp   *fakeRing
	sq, rq *fakeRing
}

// newFakeQP makes one. Zero options have 7 work requests with 2 SGEs each way, and 32
// bytes inline.
func newFakeQP(t testing.TB, o QPOptions) *fakeQP {
	t.Helper()
	d, k := fakeDevice(t, pathAuto)
	f := &fakeQP{fakeKernel: k, dev: d, pd: value(d.AllocPD())(t), cq: value(d.CreateCQ(CQOptions{MaxCQE: 31}))(t)}
	buf := value(AllocBuffer(4096))(t)
	f.mr = value(f.pd.RegMR(buf, AccessLocalWrite))(t)
	o.SendCQ, o.RecvCQ = f.cq, f.cq
	o.MaxSendWR, o.MaxRecvWR = orDefault(o.MaxSendWR, 7), orDefault(o.MaxRecvWR, 7)
	o.MaxSendSGE, o.MaxRecvSGE, o.MaxInline = 2, 2, 32
	f.qp = value(f.pd.CreateQP(o))(t)
	f.comp, f.sq, f.rq = k.rings[f.cq.handle][0], k.rings[f.qp.handle][0], k.rings[f.qp.handle][1]
	t.Cleanup(func() { must(t, f.qp.Close(), f.cq.Close(), f.mr.Close(), buf.Close(), f.pd.Close()) })
	return f
}

// state puts the QP into a state without asking anybody.
func (f *fakeQP) state(s QPState) { f.qp.state.Store(uint32(s)) }
