package soft

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
)

// allocMWCommand returns ALLOC_MW in INVOKE_WRITE with a core struct of a number of bytes.
func allocMWCommand(pd uint32, in, out int) *kernel.Command {
	req := abi.AllocMW{PDHandle: pd, MWType: 1}
	b := append(kernel.Bytes(&req), make([]byte, 64)...)
	cmd := kernel.NewCommand(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_INVOKE_WRITE)
	cmd.Add(abi.UVERBS_ATTR_CORE_IN).SetIn(b[:in])
	cmd.Add(abi.UVERBS_ATTR_CORE_OUT).SetOut(make([]byte, out))
	cmd.Add(abi.UVERBS_ATTR_WRITE_CMD).SetUint(abi.IB_USER_VERBS_CMD_ALLOC_MW, 8)
	return cmd
}

// TestLegacySizes: a core struct that is too short is ENOSPC. A longer one must end in zeros, and more
// room is zeroed.
func TestLegacySizes(t *testing.T) {
	c := newClient(t)
	pd := c.pd()
	size, room := len(kernel.Bytes(new(abi.AllocMW))), len(kernel.Bytes(new(abi.AllocMWResp)))
	for _, s := range []struct {
		in, out int
		want    syscall.Errno
	}{
		{size, room, 0}, {size - 1, room, syscall.ENOSPC}, {size, room - 1, syscall.ENOSPC}, {4, room, syscall.ENOSPC},
		{3, room, syscall.EINVAL}, // the attribute has at least 4 bytes
		{size + 8, room + 8, 0},
	} {
		c.want(fmt.Sprintf("ALLOC_MW of %d bytes, answer of %d", s.in, s.out), c.conn.Do(allocMWCommand(pd, s.in, s.out)), s.want)
	}
	cmd := allocMWCommand(pd, size+8, room+8)
	cmd.Attr(abi.UVERBS_ATTR_CORE_IN).In[size+7] = 1
	c.want("a longer request with something in it", c.conn.Do(cmd), syscall.EOPNOTSUPP)
	cmd = allocMWCommand(pd, size, room+8)
	out := cmd.Attr(abi.UVERBS_ATTR_CORE_OUT).Out
	for i := range out {
		out[i] = 0xff
	}
	if c.ok(c.conn.Do(cmd)); !isZero(out[room:]) || isZero(out[:room]) {
		t.Errorf("answer %x", out)
	}
}

// TestWriteSizes: by write() the sizes are whole words, and bytes behind the core struct of a command
// without a driver's part belong to the core struct.
func TestWriteSizes(t *testing.T) {
	c := open(t, newDevice(t, Options{}), kernel.PathWrite)
	c.begin()
	pd := c.pd()
	destroy := func(in, drvIn []byte) syscall.Errno {
		return c.legacy(abi.IB_USER_VERBS_CMD_DEALLOC_PD, in, nil, drvIn, nil)
	}
	req := kernel.Bytes(&abi.DeallocPD{PDHandle: pd})
	c.want("half a word", destroy(append(req, 0, 0), nil), syscall.EINVAL)
	c.want("something behind it", destroy(req, []byte{1, 0, 0, 0}), syscall.EOPNOTSUPP)
	c.want("zeros behind it", destroy(req, []byte{0, 0, 0, 0}), 0)
	c.want("a method", c.conn.Do(kernel.NewCommand(abi.UVERBS_OBJECT_PD, abi.UVERBS_METHOD_PD_DESTROY)), syscall.ENOTTY)
	cmd := kernel.NewCommand(abi.UVERBS_OBJECT_PD, abi.UVERBS_METHOD_PD_DESTROY)
	c.want("a method by write", c.ctx.Do(cmd, true), syscall.EINVAL)
}

// TestAttributes: attributes are checked as the kernel checks them.
func TestAttributes(t *testing.T) {
	c := newClient(t)
	pd := c.pd()
	destroy := func(change func(*kernel.Command)) syscall.Errno {
		cmd := kernel.NewCommand(abi.UVERBS_OBJECT_PD, abi.UVERBS_METHOD_PD_DESTROY)
		cmd.Add(abi.UVERBS_ATTR_DESTROY_PD_HANDLE).Data = uint64(pd)
		change(cmd)
		return c.conn.Do(cmd)
	}
	handle := func(change func(*kernel.Attr)) func(*kernel.Command) {
		return func(cmd *kernel.Command) { change(cmd.Attr(abi.UVERBS_ATTR_DESTROY_PD_HANDLE)) }
	}
	for what, s := range map[string]struct {
		change func(*kernel.Command)
		want   syscall.Errno
	}{
		"unknown method":                {func(cmd *kernel.Command) { cmd.Method = 7 }, syscall.EPROTONOSUPPORT},
		"unknown object":                {func(cmd *kernel.Command) { cmd.Object = 77 }, syscall.EPROTONOSUPPORT},
		"unknown mandatory attribute":   {func(cmd *kernel.Command) { cmd.Add(5) }, syscall.EPROTONOSUPPORT},
		"no handle":                     {handle(func(a *kernel.Attr) { a.ID, a.Flags = 9, 0 }), syscall.EINVAL},
		"the handle twice":              {func(cmd *kernel.Command) { *cmd.Add(0) = *cmd.Attr(0) }, syscall.EINVAL},
		"a handle with a length":        {handle(func(a *kernel.Attr) { a.Len = 4 }), syscall.EINVAL},
		"a handle with an enum":         {handle(func(a *kernel.Attr) { a.Enum = 1 }), syscall.EINVAL},
		"a negative handle":             {handle(func(a *kernel.Attr) { a.Data = 1 << 63 }), syscall.EINVAL},
		"a handle of more than 32 bits": {handle(func(a *kernel.Attr) { a.Data |= 1 << 32 }), syscall.ENOENT},
	} {
		c.want(what, destroy(s.change), s.want)
	}
	c.want("an unknown optional attribute", destroy(func(cmd *kernel.Command) { cmd.Add(5).Flags = 0 }), 0)
	if h := c.pd(); h != pd {
		t.Errorf("the PD is still there: the next handle is %d", h)
	}
}

// createCQCommand returns CREATE of a CQ.
func createCQCommand() *kernel.Command {
	cmd := kernel.NewCommand(abi.UVERBS_OBJECT_CQ, abi.UVERBS_METHOD_CQ_CREATE)
	cmd.Add(abi.UVERBS_ATTR_CREATE_CQ_HANDLE)
	cmd.Add(abi.UVERBS_ATTR_CREATE_CQ_CQE).SetUint(10, 4)
	cmd.Add(abi.UVERBS_ATTR_CREATE_CQ_USER_HANDLE).SetUint(1, 8)
	cmd.Add(abi.UVERBS_ATTR_CREATE_CQ_COMP_VECTOR).SetUint(0, 4)
	cmd.Add(abi.UVERBS_ATTR_CREATE_CQ_RESP_CQE).SetOut(make([]byte, 4))
	cmd.AddDriver(nil, make([]byte, len(ring.CQResponse(ring.Map{}))))
	return cmd
}

// TestCreateCQMethod checks the attributes of CREATE of a CQ.
func TestCreateCQMethod(t *testing.T) {
	c := newClient(t)
	cmd := createCQCommand()
	c.ok(c.conn.Do(cmd))
	if cqe := cmd.Attr(abi.UVERBS_ATTR_CREATE_CQ_RESP_CQE).Out[0]; cqe != 15 {
		t.Errorf("a CQ for 10 has room for %d, want 15", cqe)
	}
	at := mapOf(cmd.Attr(abi.UVERBS_ATTR_UHW_OUT).Out)
	if r, err := c.conn.Map(at.Offset, int(at.Size)); err != nil {
		t.Error(err)
	} else {
		r.Close()
	}
	c.ok(c.destroy(abi.UVERBS_OBJECT_CQ, uint32(cmd.Attr(abi.UVERBS_ATTR_CREATE_CQ_HANDLE).Data)))
	attr := func(id uint16, change func(*kernel.Attr)) func(*kernel.Command) {
		return func(cmd *kernel.Command) { change(cmd.Attr(id)) }
	}
	add := func(id uint16, change func(*kernel.Attr)) func(*kernel.Command) {
		return func(cmd *kernel.Command) { change(cmd.Add(id)) }
	}
	for what, s := range map[string]struct {
		change func(*kernel.Command)
		want   syscall.Errno
	}{
		"no entries":                     {attr(abi.UVERBS_ATTR_CREATE_CQ_CQE, func(a *kernel.Attr) { a.Data = 0 }), syscall.EINVAL},
		"too many entries":               {attr(abi.UVERBS_ATTR_CREATE_CQ_CQE, func(a *kernel.Attr) { a.Data = 1 << 15 }), syscall.EINVAL},
		"an integer of the wrong length": {attr(abi.UVERBS_ATTR_CREATE_CQ_CQE, func(a *kernel.Attr) { a.Len = 8 }), syscall.EINVAL},
		"a vector that is not there":     {attr(abi.UVERBS_ATTR_CREATE_CQ_COMP_VECTOR, func(a *kernel.Attr) { a.Data = 1 << 20 }), syscall.EINVAL},
		"little room for the answer":     {attr(abi.UVERBS_ATTR_CREATE_CQ_RESP_CQE, func(a *kernel.Attr) { a.Len = 3 }), syscall.EINVAL},
		"an answer without memory":       {attr(abi.UVERBS_ATTR_CREATE_CQ_RESP_CQE, func(a *kernel.Attr) { a.Out = nil }), syscall.EFAULT},
		"little room for the driver":     {attr(abi.UVERBS_ATTR_UHW_OUT, func(a *kernel.Attr) { a.Len = 8 }), syscall.EINVAL},
		"time stamps":                    {add(abi.UVERBS_ATTR_CREATE_CQ_FLAGS, func(a *kernel.Attr) { a.SetUint(1, 4) }), syscall.EOPNOTSUPP},
		"unknown flags":                  {add(abi.UVERBS_ATTR_CREATE_CQ_FLAGS, func(a *kernel.Attr) { a.SetUint(8, 4) }), syscall.EINVAL},
		"flags of 5 bytes":               {add(abi.UVERBS_ATTR_CREATE_CQ_FLAGS, func(a *kernel.Attr) { a.SetUint(0, 5) }), syscall.EINVAL},
		"a channel that is not there":    {add(abi.UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL, func(a *kernel.Attr) { a.Data = 99 }), syscall.EBADF},
		"a channel that is no number":    {add(abi.UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL, func(a *kernel.Attr) { a.Data = 1 << 40 }), syscall.EINVAL},
		"no flags":                       {add(abi.UVERBS_ATTR_CREATE_CQ_FLAGS, func(a *kernel.Attr) { a.SetUint(0, 8) }), 0},
	} {
		cmd := createCQCommand()
		s.change(cmd)
		c.want(what, c.conn.Do(cmd), s.want)
	}
	if left := c.ctx.handles.list(); len(left) != 1 {
		t.Errorf("%d objects, want the one that was created", len(left))
	}
}

// regMRCommand returns REG_MR for a page of this process.
func regMRCommand(pd uint32, addr uint64) *kernel.Command {
	cmd := kernel.NewCommand(abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_REG_MR)
	cmd.Add(abi.UVERBS_ATTR_REG_MR_HANDLE)
	cmd.Add(abi.UVERBS_ATTR_REG_MR_PD_HANDLE).Data = uint64(pd)
	cmd.Add(abi.UVERBS_ATTR_REG_MR_IOVA).SetUint(addr+1<<20, 8)
	cmd.Add(abi.UVERBS_ATTR_REG_MR_LENGTH).SetUint(100, 8)
	cmd.Add(abi.UVERBS_ATTR_REG_MR_ACCESS_FLAGS).SetUint(abi.IB_UVERBS_ACCESS_LOCAL_WRITE, 4)
	cmd.Add(abi.UVERBS_ATTR_REG_MR_ADDR).SetUint(addr, 8)
	cmd.Add(abi.UVERBS_ATTR_REG_MR_RESP_LKEY).SetOut(make([]byte, 4))
	cmd.Add(abi.UVERBS_ATTR_REG_MR_RESP_RKEY).SetOut(make([]byte, 4))
	return cmd
}

// TestRegMRMethod checks the attributes of REG_MR, and QUERY_MR.
func TestRegMRMethod(t *testing.T) {
	c := newClient(t)
	pd := c.pd()
	mem := make([]byte, 2*os.Getpagesize())
	addr := kernel.Addr(mem)
	cmd := regMRCommand(pd, addr)
	c.ok(c.conn.Do(cmd))
	var lkey, rkey [4]byte
	var length, iova [8]byte
	query := kernel.NewCommand(abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_QUERY_MR)
	query.Add(abi.UVERBS_ATTR_QUERY_MR_HANDLE).Data = cmd.Attr(abi.UVERBS_ATTR_REG_MR_HANDLE).Data
	query.Add(abi.UVERBS_ATTR_QUERY_MR_RESP_LKEY).SetOut(lkey[:])
	query.Add(abi.UVERBS_ATTR_QUERY_MR_RESP_RKEY).SetOut(rkey[:])
	query.Add(abi.UVERBS_ATTR_QUERY_MR_RESP_LENGTH).SetOut(length[:])
	c.ok(c.conn.Do(query)) // without the IOVA, which is optional
	query.Add(abi.UVERBS_ATTR_QUERY_MR_RESP_IOVA).SetOut(iova[:])
	c.ok(c.conn.Do(query))
	if string(lkey[:]) != string(cmd.Attr(abi.UVERBS_ATTR_REG_MR_RESP_LKEY).Out) || length != [8]byte{100} || rkey != lkey ||
		mapOf(append(iova[:], 0, 0, 0, 0)).Offset != addr+1<<20 {
		t.Errorf("keys %x and %x, length %x, IOVA %x of %#x", lkey, rkey, length, iova, addr)
	}
	for what, s := range map[string]struct {
		change func(*kernel.Command)
		want   syscall.Errno
	}{
		"a dma-buf":           {func(cmd *kernel.Command) { cmd.Add(abi.UVERBS_ATTR_REG_MR_FD).Data = 1 }, syscall.EOPNOTSUPP},
		"an offset":           {func(cmd *kernel.Command) { cmd.Add(abi.UVERBS_ATTR_REG_MR_FD_OFFSET).SetUint(0, 8) }, syscall.EINVAL},
		"a DMA handle":        {func(cmd *kernel.Command) { cmd.Add(abi.UVERBS_ATTR_REG_MR_DMA_HANDLE) }, syscall.EINVAL},
		"another page offset": {func(cmd *kernel.Command) { cmd.Attr(abi.UVERBS_ATTR_REG_MR_IOVA).Data++ }, syscall.EINVAL},
		"zero-based":          {func(cmd *kernel.Command) { cmd.Attr(abi.UVERBS_ATTR_REG_MR_ACCESS_FLAGS).Data = 32 }, syscall.EOPNOTSUPP},
		"unknown rights":      {func(cmd *kernel.Command) { cmd.Attr(abi.UVERBS_ATTR_REG_MR_ACCESS_FLAGS).Data = 1 << 31 }, syscall.EINVAL},
		"no memory there": {func(cmd *kernel.Command) {
			cmd.Attr(abi.UVERBS_ATTR_REG_MR_ADDR).Data = 4096
			cmd.Attr(abi.UVERBS_ATTR_REG_MR_IOVA).Data = 4096
		}, syscall.EFAULT},
	} {
		cmd := regMRCommand(pd, addr)
		s.change(cmd)
		c.want(what, c.conn.Do(cmd), s.want)
	}
	c.want("DEREG_MR", c.destroyMethod(abi.UVERBS_OBJECT_MR, uint32(query.Attr(abi.UVERBS_ATTR_QUERY_MR_HANDLE).Data)), 0)
}

// TestLacking: what rxe does not have is refused with its errno.
func TestLacking(t *testing.T) {
	c := newClient(t)
	for _, number := range []uint32{
		abi.IB_USER_VERBS_CMD_OPEN_XRCD, abi.IB_USER_VERBS_CMD_CLOSE_XRCD, abi.IB_USER_VERBS_CMD_OPEN_QP, abi.IB_USER_VERBS_CMD_POLL_CQ,
		abi.IB_USER_VERBS_CMD_POST_RECV, abi.IB_USER_VERBS_CMD_POST_SRQ_RECV, 7, 63, 200,
		extended | abi.IB_USER_VERBS_EX_CMD_MODIFY_CQ, extended | abi.IB_USER_VERBS_EX_CMD_CREATE_FLOW, extended | abi.IB_USER_VERBS_EX_CMD_CREATE_WQ,
		extended | abi.IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL, extended | 200,
	} {
		c.want(fmt.Sprintf("legacy command %#x", number), c.legacy(number, make([]byte, 64), make([]byte, 64), nil, nil), syscall.EOPNOTSUPP)
	}
	for _, number := range []uint32{1 << 30, extended | 1<<29, 1 << 8} {
		c.want(fmt.Sprintf("legacy command %#x", number), c.legacy(number, make([]byte, 64), nil, nil, nil), syscall.EINVAL)
	}
	for _, m := range []methodKey{
		{abi.UVERBS_OBJECT_DM, abi.UVERBS_METHOD_DM_ALLOC}, {abi.UVERBS_OBJECT_COUNTERS, abi.UVERBS_METHOD_COUNTERS_CREATE},
		{abi.UVERBS_OBJECT_FLOW_ACTION, abi.UVERBS_METHOD_FLOW_ACTION_ESP_CREATE}, {abi.UVERBS_OBJECT_WQ, abi.UVERBS_METHOD_WQ_CREATE},
		{abi.UVERBS_OBJECT_DMAH, abi.UVERBS_METHOD_DMAH_ALLOC}, {abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_DM_MR_REG},
		{abi.UVERBS_OBJECT_XRCD, abi.UVERBS_METHOD_XRCD_DESTROY}, {abi.UVERBS_OBJECT_FLOW, abi.UVERBS_METHOD_FLOW_DESTROY},
		{abi.UVERBS_OBJECT_DMABUF, abi.UVERBS_METHOD_DMABUF_ALLOC}, {abi.UVERBS_OBJECT_COMP_CHANNEL, 0},
	} {
		c.want(fmt.Sprintf("method %d of object %d", m.method, m.object), c.conn.Do(kernel.NewCommand(m.object, m.method)), syscall.EPROTONOSUPPORT)
	}
	cmd := kernel.NewCommand(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_PORT_SPEED)
	cmd.Add(abi.UVERBS_ATTR_QUERY_PORT_SPEED_PORT_NUM).SetUint(1, 8)
	cmd.Add(abi.UVERBS_ATTR_QUERY_PORT_SPEED_RESP).SetOut(make([]byte, 8))
	c.want("QUERY_PORT_SPEED", c.conn.Do(cmd), syscall.EOPNOTSUPP)
	c.want("QUERY_CONTEXT", c.conn.Do(kernel.NewCommand(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_CONTEXT)), syscall.EOPNOTSUPP)
}
