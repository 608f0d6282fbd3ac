package soft

import (
	"encoding/binary"
	"os"
	"runtime"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
)

// newDevice returns a device that is closed with the test.
func newDevice(t testing.TB, o Options) *Device {
	t.Helper()
	d, err := New(o)
	must(t, err)
	t.Cleanup(func() { d.Close() })
	return d
}

// client is a program that issues commands to an open device.
type client struct {
	t    testing.TB
	ctx  *context
	conn *kernel.Conn
}

// open opens a device, without a context.
func open(t testing.TB, d *Device, path kernel.Path) *client {
	t.Helper()
	ctx, err := d.open()
	must(t, err)
	c := &client{t, ctx, kernel.NewConn(ctx, path, d.Name())}
	t.Cleanup(func() { c.conn.Close() })
	return c
}

// newClient opens a new device and creates a context.
func newClient(t testing.TB) *client {
	t.Helper()
	c := open(t, newDevice(t, Options{}), kernel.PathAuto)
	c.begin()
	return c
}

// begin creates a context and its file of asynchronous events, whose number it returns.
func (c *client) begin() uint32 {
	c.t.Helper()
	var resp abi.GetContextResp
	c.ok(c.legacy(abi.IB_USER_VERBS_CMD_GET_CONTEXT, kernel.Bytes(&abi.GetContext{}), kernel.Bytes(&resp), nil, nil))
	return resp.AsyncFD
}

// legacy issues a legacy command.
func (c *client) legacy(number uint32, in, out, drvIn, drvOut []byte) syscall.Errno {
	return c.conn.Legacy(number, in, out, drvIn, drvOut)
}

// ok fails the test if an errno is not 0.
func (c *client) ok(errno syscall.Errno) {
	c.t.Helper()
	if errno != 0 {
		c.t.Fatalf("errno %d: %v", int(errno), errno)
	}
}

// want fails the test if an errno is not the one wanted.
func (c *client) want(what string, got, want syscall.Errno) {
	c.t.Helper()
	if got != want {
		c.t.Errorf("%s: %d (%v), want %d (%v)", what, int(got), got, int(want), want)
	}
}

// Creation of objects. Each returns the handle.

func (c *client) pd() uint32 {
	c.t.Helper()
	var resp abi.AllocPDResp
	c.ok(c.legacy(abi.IB_USER_VERBS_CMD_ALLOC_PD, kernel.Bytes(&abi.AllocPD{}), kernel.Bytes(&resp), nil, nil))
	return resp.PDHandle
}

func (c *client) channel() uint32 {
	c.t.Helper()
	var resp abi.CreateCompChannelResp
	c.ok(c.legacy(abi.IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, kernel.Bytes(&abi.CreateCompChannel{}), kernel.Bytes(&resp), nil, nil))
	return resp.FD
}

// cqOf creates a CQ with a completion channel, which may be -1, and a user handle.
func (c *client) cqOf(channel int32, userHandle uint64) (handle uint32, at ring.Map) {
	c.t.Helper()
	var resp abi.CreateCQResp
	drv := make([]byte, len(ring.CQResponse(ring.Map{})))
	req := abi.CreateCQ{CQE: 10, CompChannel: channel, UserHandle: userHandle}
	c.ok(c.legacy(abi.IB_USER_VERBS_CMD_CREATE_CQ, kernel.Bytes(&req), kernel.Bytes(&resp), nil, drv))
	if resp.CQE < 10 {
		c.t.Errorf("a CQ for 10 has room for %d", resp.CQE)
	}
	return resp.CQHandle, mapOf(drv)
}

func (c *client) cq() uint32 {
	c.t.Helper()
	h, _ := c.cqOf(-1, 0)
	return h
}

func (c *client) srq(pd uint32) uint32 {
	c.t.Helper()
	h, _, _ := c.srqOf(pd)
	return h
}

func (c *client) srqOf(pd uint32) (handle uint32, at ring.Map, num uint32) {
	c.t.Helper()
	var resp abi.CreateSRQResp
	drv := make([]byte, len(ring.SRQResponse(ring.Map{}, 0)))
	req := abi.CreateSRQ{PDHandle: pd, MaxWR: 10, MaxSGE: 2}
	c.ok(c.legacy(abi.IB_USER_VERBS_CMD_CREATE_SRQ, kernel.Bytes(&req), kernel.Bytes(&resp), nil, drv))
	return resp.SRQHandle, mapOf(drv), binary.LittleEndian.Uint32(drv[16:])
}

// qpRequest returns a request for an RC QP.
func rcRequest(pd, cq uint32) abi.CreateQP {
	return abi.CreateQP{
		PDHandle: pd, SendCQHandle: cq, RecvCQHandle: cq, QPType: abi.IB_UVERBS_QPT_RC,
		MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1,
	}
}

// createQP creates a QP.
func (c *client) createQP(req abi.CreateQP) (resp abi.CreateQPResp, rq, sq ring.Map, errno syscall.Errno) {
	drv := make([]byte, len(ring.QPResponse(ring.Map{}, ring.Map{})))
	errno = c.legacy(abi.IB_USER_VERBS_CMD_CREATE_QP, kernel.Bytes(&req), kernel.Bytes(&resp), nil, drv)
	return resp, mapOf(drv), mapOf(drv[16:]), errno
}

func (c *client) qp(pd, cq uint32) uint32 {
	c.t.Helper()
	resp, _, _, errno := c.createQP(rcRequest(pd, cq))
	c.ok(errno)
	return resp.QPHandle
}

// region registers memory that is unmapped with the test.
func (c *client) region(pd uint32) (handle uint32, keys abi.RegMRResp) {
	c.t.Helper()
	mem, err := mmio.MapAnonymous(os.Getpagesize(), false)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { mem.Close() })
	addr := kernel.Addr(mem.Bytes())
	req := abi.RegMR{PDHandle: pd, Start: addr, HCAVA: addr, Length: uint64(len(mem.Bytes())), AccessFlags: abi.IB_UVERBS_ACCESS_LOCAL_WRITE}
	c.ok(c.legacy(abi.IB_USER_VERBS_CMD_REG_MR, kernel.Bytes(&req), kernel.Bytes(&keys), nil, nil))
	return keys.MRHandle, keys
}

func (c *client) window(pd uint32, typ uint8) uint32 {
	c.t.Helper()
	var resp abi.AllocMWResp
	req := abi.AllocMW{PDHandle: pd, MWType: typ}
	c.ok(c.legacy(abi.IB_USER_VERBS_CMD_ALLOC_MW, kernel.Bytes(&req), kernel.Bytes(&resp), nil, nil))
	return resp.MWHandle
}

// createAH creates an address handle to the device itself.
func (c *client) createAH(pd uint32, change func(*abi.AHAttr)) (handle, num uint32, errno syscall.Errno) {
	var resp abi.CreateAHResp
	req := abi.CreateAH{PDHandle: pd, Attr: abi.AHAttr{IsGlobal: 1, PortNum: 1, GRH: abi.GlobalRoute{SGIDIndex: 1}}}
	req.Attr.GRH.DGID = c.ctx.dev.table[1].gid()
	change(&req.Attr)
	drv := make([]byte, len(ring.AHResponse(0)))
	errno = c.legacy(abi.IB_USER_VERBS_CMD_CREATE_AH, kernel.Bytes(&req), kernel.Bytes(&resp), nil, drv)
	return resp.AHHandle, binary.LittleEndian.Uint32(drv), errno
}

func (c *client) ah(pd uint32) uint32 {
	c.t.Helper()
	h, num, errno := c.createAH(pd, func(*abi.AHAttr) {})
	c.ok(errno)
	if num == 0 {
		c.t.Error("address handle number is 0, which rxe does not use")
	}
	return h
}

// mapOf decodes struct mminfo.
func mapOf(b []byte) ring.Map {
	return ring.Map{Offset: binary.LittleEndian.Uint64(b), Size: binary.LittleEndian.Uint32(b[8:])}
}

// destroyers are the ways to destroy an object by a legacy command.
var destroyers = map[uint16]func(c *client, handle uint32) syscall.Errno{
	abi.UVERBS_OBJECT_PD: func(c *client, h uint32) syscall.Errno {
		return c.legacy(abi.IB_USER_VERBS_CMD_DEALLOC_PD, kernel.Bytes(&abi.DeallocPD{PDHandle: h}), nil, nil, nil)
	},
	abi.UVERBS_OBJECT_MR: func(c *client, h uint32) syscall.Errno {
		return c.legacy(abi.IB_USER_VERBS_CMD_DEREG_MR, kernel.Bytes(&abi.DeregMR{MRHandle: h}), nil, nil, nil)
	},
	abi.UVERBS_OBJECT_MW: func(c *client, h uint32) syscall.Errno {
		return c.legacy(abi.IB_USER_VERBS_CMD_DEALLOC_MW, kernel.Bytes(&abi.DeallocMW{MWHandle: h}), nil, nil, nil)
	},
	abi.UVERBS_OBJECT_AH: func(c *client, h uint32) syscall.Errno {
		return c.legacy(abi.IB_USER_VERBS_CMD_DESTROY_AH, kernel.Bytes(&abi.DestroyAH{AHHandle: h}), nil, nil, nil)
	},
	abi.UVERBS_OBJECT_CQ: func(c *client, h uint32) syscall.Errno {
		return c.legacy(abi.IB_USER_VERBS_CMD_DESTROY_CQ, kernel.Bytes(&abi.DestroyCQ{CQHandle: h}), kernel.Bytes(&abi.DestroyCQResp{}), nil, nil)
	},
	abi.UVERBS_OBJECT_QP: func(c *client, h uint32) syscall.Errno {
		return c.legacy(abi.IB_USER_VERBS_CMD_DESTROY_QP, kernel.Bytes(&abi.DestroyQP{QPHandle: h}), kernel.Bytes(&abi.DestroyQPResp{}), nil, nil)
	},
	abi.UVERBS_OBJECT_SRQ: func(c *client, h uint32) syscall.Errno {
		return c.legacy(abi.IB_USER_VERBS_CMD_DESTROY_SRQ, kernel.Bytes(&abi.DestroySRQ{SRQHandle: h}), kernel.Bytes(&abi.DestroySRQResp{}), nil, nil)
	},
}

// destroy destroys an object by a legacy command.
func (c *client) destroy(kind uint16, handle uint32) syscall.Errno {
	return destroyers[kind](c, handle)
}

// destroyMethod destroys an object by a method. Its attributes have the same numbers for all kinds
// of objects.
func (c *client) destroyMethod(kind uint16, handle uint32) syscall.Errno {
	method := uint16(0) // DESTROY of PD, AH and MW
	cmd := kernel.NewCommand(kind, method)
	cmd.Add(abi.UVERBS_ATTR_DESTROY_PD_HANDLE).Data = uint64(handle)
	switch kind {
	case abi.UVERBS_OBJECT_MR:
		cmd.Method = abi.UVERBS_METHOD_MR_DESTROY
	case abi.UVERBS_OBJECT_CQ:
		cmd.Method = abi.UVERBS_METHOD_CQ_DESTROY
		cmd.Add(abi.UVERBS_ATTR_DESTROY_CQ_RESP).SetOut(kernel.Bytes(&abi.DestroyCQResp{}))
	case abi.UVERBS_OBJECT_QP:
		cmd.Method = abi.UVERBS_METHOD_QP_DESTROY
		cmd.Add(abi.UVERBS_ATTR_DESTROY_QP_RESP).SetOut(kernel.Bytes(&abi.DestroyQPResp{}))
	case abi.UVERBS_OBJECT_SRQ:
		cmd.Method = abi.UVERBS_METHOD_SRQ_DESTROY
		cmd.Add(abi.UVERBS_ATTR_DESTROY_SRQ_RESP).SetOut(kernel.Bytes(&abi.DestroySRQResp{}))
	}
	return c.conn.Do(cmd)
}

// numFiles returns the number of open files of the process, where that is known.
func numFiles(t testing.TB) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil && runtime.GOOS == "linux" {
		t.Fatal(err)
	}
	return len(all)
}
