package soft

import (
	"runtime"
	"sync"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// TestConcurrentCommands issues commands of one context from several goroutines, which also destroy
// objects of each other.
func TestConcurrentCommands(t *testing.T) {
	c := newClient(t)
	pd, cq := c.pd(), c.cq()
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for j := range 200 {
				resp, _, _, errno := c.createQP(rcRequest(pd, cq))
				if errno != 0 {
					t.Errorf("CREATE_QP: %v", errno)
					return
				}
				modify := abi.ModifyQP{QPHandle: resp.QPHandle, AttrMask: attrState, QPState: stateErr}
				c.legacy(abi.IB_USER_VERBS_CMD_MODIFY_QP, kernel.Bytes(&modify), nil, nil, nil)
				for handle := range uint32(12) {
					if handle%4 == uint32(i) && handle != pd && handle != cq || handle == resp.QPHandle {
						switch errno := c.destroy(abi.UVERBS_OBJECT_QP, handle); errno {
						case 0, syscall.ENOENT, syscall.EBUSY:
						default:
							t.Errorf("round %d, DESTROY_QP: %v", j, errno)
						}
					}
				}
			}
		})
	}
	wg.Wait()
	for _, o := range c.ctx.handles.list() {
		if o.kind == abi.UVERBS_OBJECT_QP {
			c.ok(c.destroy(o.kind, o.handle))
		}
	}
	c.ok(c.destroy(abi.UVERBS_OBJECT_CQ, cq))
	c.ok(c.destroy(abi.UVERBS_OBJECT_PD, pd))
}

// TestGoroutines: a device and its contexts leave no goroutine.
func TestGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 3 {
		d, err := New(Options{Auto: true})
		if err != nil {
			t.Fatal(err)
		}
		c := open(t, d, kernel.PathAuto)
		c.begin()
		c.everything()
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// A goroutine that has told that it is done may still be there for a moment.
	for runtime.NumGoroutine() > before {
		runtime.Gosched()
	}
}

// doorbell returns POST_SEND of a QP as package uverbs issues it.
func (c *client) doorbell(qp uint32) *kernel.Repeated {
	r := new(kernel.Repeated)
	req := abi.PostSend{QPHandle: qp, WQESize: sendWRSize}
	r.Init(c.conn, abi.IB_USER_VERBS_CMD_POST_SEND, kernel.Bytes(&req), len(kernel.Bytes(new(abi.PostSendResp))))
	return r
}

// arm returns REQ_NOTIFY_CQ of a CQ as package uverbs issues it.
func (c *client) arm(cq uint32) *kernel.Repeated {
	r := new(kernel.Repeated)
	r.Init(c.conn, abi.IB_USER_VERBS_CMD_REQ_NOTIFY_CQ, kernel.Bytes(&abi.ReqNotifyCQ{CQHandle: cq}), 0)
	return r
}

// ready moves a QP to state RTS, connected to itself.
func (c *client) ready(qp, qpn uint32) {
	c.t.Helper()
	way := abi.QPDest{DGID: c.ctx.dev.table[1].gid(), SGIDIndex: 1, IsGlobal: 1, PortNum: 1}
	for _, req := range []abi.ModifyQP{
		{AttrMask: 0x39, QPState: 1, PortNum: 1},
		{AttrMask: 0x129181, QPState: 2, Dest: way, PathMTU: 3, DestQPNum: qpn},
		{AttrMask: 0x12e01, QPState: 3, RetryCnt: 7, RNRRetry: 7, Timeout: 14},
	} {
		req.QPHandle = qp
		c.ok(c.legacy(abi.IB_USER_VERBS_CMD_MODIFY_QP, kernel.Bytes(&req), nil, nil, nil))
	}
}

// TestFastCommands: the commands of the data path allocate nothing, and have the errnos of the general
// way.
func TestFastCommands(t *testing.T) {
	c := newClient(t)
	pd, cq := c.pd(), c.cq()
	resp, _, _, errno := c.createQP(rcRequest(pd, cq))
	c.ok(errno)
	ring, arm := c.doorbell(resp.QPHandle), c.arm(cq)
	c.want("the doorbell of a QP that is not ready", ring.Issue(false), syscall.EINVAL)
	c.ready(resp.QPHandle, resp.QPN)
	if n := testing.AllocsPerRun(100, func() {
		if errno := ring.Issue(false) + arm.Issue(false); errno != 0 {
			t.Error(errno)
		}
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
	c.want("the doorbell of a CQ", c.doorbell(cq).Issue(false), syscall.EINVAL)
	c.want("the doorbell of nothing", c.doorbell(99).Issue(false), syscall.ENOENT)
	c.want("arming a PD", c.arm(pd).Issue(false), syscall.EINVAL)
	c.want("arming nothing", c.arm(99).Issue(false), syscall.ENOENT)
	o := c.ctx.handles.find(uint64(cq))
	if !o.acquire() {
		t.Fatal("the CQ is locked")
	}
	c.want("arming a CQ that another command uses", arm.Issue(false), 0)
	o.release()
}

// TestPostSend checks the sizes of POST_SEND with work requests, which rxe ignores.
func TestPostSend(t *testing.T) {
	c := newClient(t)
	resp, _, _, errno := c.createQP(rcRequest(c.pd(), c.cq()))
	c.ok(errno)
	c.ready(resp.QPHandle, resp.QPN)
	post := func(req abi.PostSend, rest int, last byte) syscall.Errno {
		req.QPHandle = resp.QPHandle
		in := append(kernel.Bytes(&req), make([]byte, rest)...)
		in[len(in)-1] |= last
		return c.legacy(abi.IB_USER_VERBS_CMD_POST_SEND, in, make([]byte, 4), nil, nil)
	}
	size := sendWRSize
	c.want("no work requests", post(abi.PostSend{WQESize: size}, 0, 0), 0)
	c.want("small work requests", post(abi.PostSend{WQESize: size - 1}, 0, 0), syscall.EINVAL)
	c.want("one that is missing", post(abi.PostSend{WQESize: size, WRCount: 1}, 0, 0), syscall.ENOSPC)
	c.want("an SGE that is missing", post(abi.PostSend{WQESize: size, WRCount: 1, SGECount: 1}, int(size), 0), syscall.ENOSPC)
	c.want("so many that their size overflows", post(abi.PostSend{WQESize: 1 << 31, WRCount: 1 << 31, SGECount: 1 << 31}, 0, 0), syscall.ENOSPC)
	c.want("one", post(abi.PostSend{WQESize: size, WRCount: 1, SGECount: 1}, int(size)+16, 0), 0)
	c.want("something behind them", post(abi.PostSend{WQESize: size}, 8, 1), syscall.EOPNOTSUPP)
}
