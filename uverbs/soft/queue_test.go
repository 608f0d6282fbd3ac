package soft

import (
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
)

// mapsFail fails the test unless mapping fails with EINVAL.
func (c *client) mapsFail(what string, offset uint64, size int) {
	c.t.Helper()
	if r, err := c.conn.Map(offset, size); !errors.Is(err, syscall.EINVAL) {
		c.t.Errorf("map %s: %v, %v, want EINVAL", what, r, err)
	}
}

// TestMap: a ring can be mapped once, by the context that has it, up to its size and while the object
// exists.
func TestMap(t *testing.T) {
	d := newDevice(t, Options{})
	c, other := open(t, d, kernel.PathAuto), open(t, d, kernel.PathAuto)
	c.begin()
	other.begin()
	pd := c.pd()
	cq, at := c.cqOf(-1, 0)
	page := os.Getpagesize()
	if at.Offset == 0 || at.Offset%uint64(page) != 0 || at.Size == 0 {
		t.Errorf("a CQ is at %+v", at)
	}
	c.mapsFail("more than there is", at.Offset, int(at.Size)+1)
	c.mapsFail("nothing", at.Offset, 0)
	c.mapsFail("no object", at.Offset+1, int(at.Size))
	other.mapsFail("an object of another context", at.Offset, int(at.Size))
	r, err := c.conn.Map(at.Offset, int(at.Size))
	must(t, err)
	if mask := binary.NativeEndian.Uint32(r.Bytes()[4:]); mask != 15 {
		t.Errorf("the mask of a ring for 10 is %d, want 15", mask)
	}
	c.mapsFail("an object twice", at.Offset, int(at.Size))
	r.Close()

	resp, rq, sq, errno := c.createQP(rcRequest(pd, cq))
	c.ok(errno)
	_, srqAt, num := c.srqOf(pd)
	if num < 0x20001 {
		t.Errorf("SRQ number %#x, want those of rxe", num)
	}
	_, unmapped := c.cqOf(-1, 0)
	seen := map[uint64]bool{}
	for _, at := range []ring.Map{rq, sq, srqAt, unmapped} {
		if seen[at.Offset] {
			t.Errorf("two rings are at %#x", at.Offset)
		}
		seen[at.Offset] = true
	}
	c.ok(c.destroy(abi.UVERBS_OBJECT_QP, resp.QPHandle))
	c.mapsFail("the receives of a QP that was destroyed", rq.Offset, int(rq.Size))
	c.mapsFail("its sends", sq.Offset, int(sq.Size))
	if r, err := c.conn.Map(srqAt.Offset, int(srqAt.Size)); err != nil {
		t.Error(err)
	} else {
		r.Close()
	}
}

// TestQPWithSRQ: a QP with an SRQ has no ring for receives, and its capabilities for them are the
// requested ones.
func TestQPWithSRQ(t *testing.T) {
	c := newClient(t)
	pd, cq := c.pd(), c.cq()
	req := rcRequest(pd, cq)
	req.IsSRQ, req.SRQHandle, req.MaxRecvWR, req.MaxRecvSGE = 1, c.srq(pd), 1<<30, 77
	resp, rq, sq, errno := c.createQP(req)
	c.ok(errno)
	if rq != (ring.Map{}) || sq.Size == 0 || resp.MaxRecvWR != 1<<30 || resp.MaxRecvSGE != 77 || resp.MaxSendWR != 7 {
		t.Errorf("rings at %+v and %+v, capabilities %+v", rq, sq, resp)
	}
}

// TestCreateQPRefused: the values of CREATE_QP are checked as the kernel and rxe check them.
func TestCreateQPRefused(t *testing.T) {
	c := newClient(t)
	pd, cq := c.pd(), c.cq()
	for what, s := range map[string]struct {
		change func(*abi.CreateQP)
		want   syscall.Errno
	}{
		"an unknown type":     {func(q *abi.CreateQP) { q.QPType = 99 }, syscall.EINVAL},
		"a GSI QP":            {func(q *abi.CreateQP) { q.QPType = 1 }, syscall.EINVAL},
		"raw packets":         {func(q *abi.CreateQP) { q.QPType = abi.IB_UVERBS_QPT_RAW_PACKET }, syscall.EOPNOTSUPP},
		"XRC sends":           {func(q *abi.CreateQP) { q.QPType = abi.IB_UVERBS_QPT_XRC_INI }, syscall.EOPNOTSUPP},
		"XRC receives":        {func(q *abi.CreateQP) { q.QPType = abi.IB_UVERBS_QPT_XRC_TGT }, syscall.EINVAL},
		"no PD":               {func(q *abi.CreateQP) { q.PDHandle = 99 }, syscall.ENOENT},
		"a CQ as PD":          {func(q *abi.CreateQP) { q.PDHandle = cq }, syscall.EINVAL},
		"no CQ for receives":  {func(q *abi.CreateQP) { q.RecvCQHandle = 99 }, syscall.ENOENT},
		"no CQ for sends":     {func(q *abi.CreateQP) { q.SendCQHandle = 99 }, syscall.ENOENT},
		"no SRQ":              {func(q *abi.CreateQP) { q.IsSRQ, q.SRQHandle = 1, 99 }, syscall.ENOENT},
		"too many sends":      {func(q *abi.CreateQP) { q.MaxSendWR = 1<<20 + 1 }, syscall.EINVAL},
		"too many receives":   {func(q *abi.CreateQP) { q.MaxRecvWR = 1<<20 + 1 }, syscall.EINVAL},
		"too many SGEs":       {func(q *abi.CreateQP) { q.MaxSendSGE = 33 }, syscall.EINVAL},
		"too much inline":     {func(q *abi.CreateQP) { q.MaxInlineData = 513 }, syscall.EINVAL},
		"as much as there is": {func(q *abi.CreateQP) { q.MaxInlineData, q.MaxSendSGE, q.MaxRecvSGE = 512, 32, 32 }, 0},
	} {
		req := rcRequest(pd, cq)
		s.change(&req)
		_, _, _, errno := c.createQP(req)
		c.want(what, errno, s.want)
	}
	req := rcRequest(pd, cq)
	c.want("no room for the driver's answer", c.legacy(abi.IB_USER_VERBS_CMD_CREATE_QP, kernel.Bytes(&req), make([]byte, 64), nil, make([]byte, 24)), syscall.EINVAL)
	c.want("something for the driver", c.legacy(abi.IB_USER_VERBS_CMD_CREATE_QP, kernel.Bytes(&req), make([]byte, 64), make([]byte, 8), make([]byte, 32)), syscall.EINVAL)
	ex := abi.ExCreateQP{PDHandle: pd, SendCQHandle: cq, RecvCQHandle: cq, QPType: abi.IB_UVERBS_QPT_UD}
	create := func(change func(*abi.ExCreateQP)) syscall.Errno {
		req := ex
		change(&req)
		return c.legacy(extended|abi.IB_USER_VERBS_EX_CMD_CREATE_QP, kernel.Bytes(&req), make([]byte, 64), nil, make([]byte, 32))
	}
	c.want("flags", create(func(q *abi.ExCreateQP) { q.CreateFlags = 2 }), syscall.EOPNOTSUPP)
	c.want("unknown flags", create(func(q *abi.ExCreateQP) { q.CreateFlags = 1 }), syscall.EINVAL)
	c.want("an indirection table", create(func(q *abi.ExCreateQP) { q.CompMask = 1 }), syscall.EINVAL)
	c.want("unknown parts", create(func(q *abi.ExCreateQP) { q.CompMask = 2 }), syscall.EINVAL)
	c.want("a UD QP", create(func(*abi.ExCreateQP) {}), 0)
}

// TestModifyRefused: the checks that the command makes itself.
func TestModifyRefused(t *testing.T) {
	c := newClient(t)
	qp := c.qp(c.pd(), c.cq())
	for what, s := range map[string]struct {
		req  abi.ModifyQP
		want syscall.Errno
	}{
		"no QP":              {abi.ModifyQP{QPHandle: 99, AttrMask: attrState}, syscall.ENOENT},
		"an unknown mask":    {abi.ModifyQP{AttrMask: 1 << 21}, syscall.EOPNOTSUPP},
		"an unknown state":   {abi.ModifyQP{AttrMask: attrState, QPState: 7}, syscall.EINVAL},
		"an unknown current": {abi.ModifyQP{AttrMask: attrCurState, CurQPState: 7}, syscall.EINVAL},
		"no port":            {abi.ModifyQP{AttrMask: attrState | attrPort | 0x18, QPState: 1, PortNum: 2}, syscall.EINVAL},
		"an AV of no port":   {abi.ModifyQP{AttrMask: attrState | attrAV, QPState: stateRTR}, syscall.EINVAL},
		"an AV too early":    {abi.ModifyQP{AttrMask: attrState | attrAV, QPState: stateRTR, Dest: abi.QPDest{PortNum: 1}}, syscall.EINVAL},
		"an alternate path":  {abi.ModifyQP{AttrMask: attrAltPath, AltPortNum: 1}, syscall.EINVAL},
		"Init":               {abi.ModifyQP{AttrMask: attrState | attrPort | 0x18, QPState: 1, PortNum: 1}, 0},
	} {
		if s.req.QPHandle == 0 {
			s.req.QPHandle = qp
		}
		c.want(what, c.legacy(abi.IB_USER_VERBS_CMD_MODIFY_QP, kernel.Bytes(&s.req), nil, nil, nil), s.want)
	}
	ex := abi.ExModifyQP{Base: abi.ModifyQP{QPHandle: qp, AttrMask: attrState | attrRateLimit, QPState: stateErr}}
	c.want("a rate limit", c.legacy(extended|abi.IB_USER_VERBS_EX_CMD_MODIFY_QP, kernel.Bytes(&ex), make([]byte, 8), nil, nil), syscall.EOPNOTSUPP)
}

// TestResizeSRQ: MODIFY_SRQ writes the place of the new ring to the address in the driver's part, or
// fails with EFAULT if nothing can be written there.
func TestResizeSRQ(t *testing.T) {
	c := newClient(t)
	srq, old, _ := c.srqOf(c.pd())
	at := make([]byte, 16)
	var pin runtime.Pinner
	pin.Pin(&at[0])
	defer pin.Unpin()
	resize := func(req abi.ModifySRQ, addr uint64) syscall.Errno {
		req.SRQHandle = srq
		return c.legacy(abi.IB_USER_VERBS_CMD_MODIFY_SRQ, kernel.Bytes(&req), nil, binary.NativeEndian.AppendUint64(nil, addr), nil)
	}
	more := abi.ModifySRQ{AttrMask: srqMaxWR, MaxWR: 100}
	c.ok(resize(more, kernel.Addr(at)))
	place := mapOf(at)
	c.mapsFail("the old ring", old.Offset, int(old.Size))
	r, err := c.conn.Map(place.Offset, int(place.Size))
	must(t, err)
	if mask := binary.NativeEndian.Uint32(r.Bytes()[4:]); mask != 127 {
		t.Errorf("the mask of a ring for 100 is %d, want 127", mask)
	}
	r.Close()
	c.want("no memory", resize(more, 0), syscall.EFAULT)
	c.want("no memory at 4096", resize(more, 4096), syscall.EFAULT)
	c.want("an address that is none", resize(more, 1<<63), syscall.EFAULT)
	c.want("no address", c.legacy(abi.IB_USER_VERBS_CMD_MODIFY_SRQ, kernel.Bytes(&abi.ModifySRQ{SRQHandle: srq}), nil, nil, nil), syscall.EINVAL)
	c.want("more than 8 bytes", c.legacy(abi.IB_USER_VERBS_CMD_MODIFY_SRQ, kernel.Bytes(&abi.ModifySRQ{SRQHandle: srq}), nil, make([]byte, 16), nil), 0)
	c.want("more than 8 bytes that mean something", c.legacy(abi.IB_USER_VERBS_CMD_MODIFY_SRQ, kernel.Bytes(&abi.ModifySRQ{SRQHandle: srq}), nil, append(make([]byte, 15), 1), nil), syscall.EOPNOTSUPP)
	c.want("no receives", resize(abi.ModifySRQ{AttrMask: srqMaxWR}, kernel.Addr(at)), syscall.EINVAL)
	c.want("a limit", resize(abi.ModifySRQ{AttrMask: srqLimit, SRQLimit: 127}, 0), 0)
	c.want("a limit above the size", resize(abi.ModifySRQ{AttrMask: srqLimit, SRQLimit: 128}, 0), syscall.EINVAL)
	var resp abi.QuerySRQResp
	c.ok(c.legacy(abi.IB_USER_VERBS_CMD_QUERY_SRQ, kernel.Bytes(&abi.QuerySRQ{SRQHandle: srq}), kernel.Bytes(&resp), nil, nil))
	if resp.MaxWR != 127 || resp.MaxSGE != 2 || resp.SRQLimit != 127 {
		t.Errorf("QUERY_SRQ: %+v", resp)
	}
}

// TestResizeCQ: RESIZE_CQ answers with the place of the new ring.
func TestResizeCQ(t *testing.T) {
	c := newClient(t)
	cq, old := c.cqOf(-1, 0)
	resize := func(entries uint32, room int) (abi.ResizeCQResp, ring.Map, syscall.Errno) {
		var resp abi.ResizeCQResp
		drv := make([]byte, room)
		errno := c.legacy(abi.IB_USER_VERBS_CMD_RESIZE_CQ, kernel.Bytes(&abi.ResizeCQ{CQHandle: cq, CQE: entries}), kernel.Bytes(&resp), nil, drv)
		return resp, mapOf(append(drv, make([]byte, 16)...)), errno
	}
	resp, at, errno := resize(1000, 16)
	if c.ok(errno); resp.CQE != 1023 || at.Offset == old.Offset {
		t.Errorf("resized to %d, at %+v", resp.CQE, at)
	}
	c.mapsFail("the old ring", old.Offset, int(old.Size))
	for _, bad := range [][2]int{{0, 16}, {1 << 15, 16}, {10, 15}} {
		_, _, errno := resize(uint32(bad[0]), bad[1])
		c.want("RESIZE_CQ", errno, syscall.EINVAL)
	}
	r, err := c.conn.Map(at.Offset, int(at.Size))
	must(t, err)
	r.Close()
}

// TestDestroyCounts: DESTROY of a CQ and of a QP answers how many of its events the program has read.
func TestDestroyCounts(t *testing.T) {
	c := open(t, newDevice(t, Options{}), kernel.PathAuto)
	async, err := c.conn.Events(c.begin(), "asynchronous events")
	must(t, err)
	defer async.Close()
	number := c.channel()
	file, err := c.conn.Events(number, "channel")
	must(t, err)
	defer file.Close()
	handle, _ := c.cqOf(int32(number), 4711)
	object := c.ctx.handles.find(uint64(handle)).self.(*cq)
	for range 3 {
		object.channel.completion(4711, &object.completed)
		object.async.async(0, 4711, &object.failed)
	}
	if got := readEvent(t, file); got != 4711 {
		t.Errorf("event of %d, want 4711", got)
	}
	var ev abi.AsyncEventDesc
	for range 2 {
		if _, err := async.Read(kernel.Bytes(&ev)); err != nil || ev.Element != 4711 {
			t.Errorf("event %+v, %v", ev, err)
		}
	}
	var resp abi.DestroyCQResp
	c.ok(c.legacy(abi.IB_USER_VERBS_CMD_DESTROY_CQ, kernel.Bytes(&abi.DestroyCQ{CQHandle: handle}), kernel.Bytes(&resp), nil, nil))
	if resp.CompEventsReported != 1 || resp.AsyncEventsReported != 2 {
		t.Errorf("DESTROY_CQ: %+v, want 1 and 2 events", resp)
	}
	empty(t, file)
	empty(t, async)
	c.conn.EventsClosed(number)
	if _, err := c.conn.Events(number, "channel"); !errors.Is(err, syscall.EBADF) {
		t.Errorf("a channel that was closed is opened: %v", err)
	}
}

// TestAddressHandles: CREATE_AH checks the address vector.
func TestAddressHandles(t *testing.T) {
	c := newClient(t)
	pd := c.pd()
	for what, s := range map[string]struct {
		change func(*abi.AHAttr)
		want   syscall.Errno
	}{
		"no port":             {func(a *abi.AHAttr) { a.PortNum = 0 }, syscall.EINVAL},
		"no GRH":              {func(a *abi.AHAttr) { a.IsGlobal = 0 }, syscall.EINVAL},
		"an unused GID":       {func(a *abi.AHAttr) { a.GRH.SGIDIndex = 3 }, kernel.ENODATA},
		"IPv4 from IPv6":      {func(a *abi.AHAttr) { a.GRH.SGIDIndex = 2 }, syscall.EINVAL},
		"nobody":              {func(a *abi.AHAttr) { a.GRH.DGID[12] = 10 }, syscall.ENETUNREACH},
		"itself, from itself": {func(*abi.AHAttr) {}, 0},
		"a group": {func(a *abi.AHAttr) {
			a.GRH.DGID, a.GRH.SGIDIndex = [16]byte{10: 0xff, 11: 0xff, 12: 239, 15: 1}, 0
		}, 0},
	} {
		_, _, errno := c.createAH(pd, s.change)
		c.want(what, errno, s.want)
	}
	_, _, errno := c.createAH(99, func(*abi.AHAttr) {})
	c.want("no PD", errno, syscall.ENOENT)
}

// TestGroups: a UD QP joins a group once, and must leave it before it can be destroyed.
func TestGroups(t *testing.T) {
	c := newClient(t)
	pd, cq := c.pd(), c.cq()
	req := rcRequest(pd, cq)
	rc := c.qp(pd, cq)
	req.QPType = abi.IB_UVERBS_QPT_UD
	resp, _, _, errno := c.createQP(req)
	c.ok(errno)
	group := [16]byte{10: 0xff, 11: 0xff, 12: 239, 15: 1}
	attach := func(qp uint32, gid [16]byte) syscall.Errno {
		return c.legacy(abi.IB_USER_VERBS_CMD_ATTACH_MCAST, kernel.Bytes(&abi.AttachMcast{QPHandle: qp, GID: gid}), nil, nil, nil)
	}
	detach := func(qp uint32, gid [16]byte) syscall.Errno {
		return c.legacy(abi.IB_USER_VERBS_CMD_DETACH_MCAST, kernel.Bytes(&abi.DetachMcast{QPHandle: qp, GID: gid}), nil, nil, nil)
	}
	c.want("an RC QP", attach(rc, group), syscall.EINVAL)
	c.want("no group", attach(resp.QPHandle, [16]byte{15: 1}), syscall.EINVAL)
	c.want("no QP", attach(99, group), syscall.ENOENT)
	c.want("leaving before joining", detach(resp.QPHandle, group), syscall.EINVAL)
	c.want("joining", attach(resp.QPHandle, group), 0)
	c.want("joining twice", attach(resp.QPHandle, group), 0)
	c.want("DESTROY_QP of a member", c.destroy(abi.UVERBS_OBJECT_QP, resp.QPHandle), syscall.EBUSY)
	c.want("leaving", detach(resp.QPHandle, group), 0)
	c.want("leaving twice", detach(resp.QPHandle, group), syscall.EINVAL)
	c.want("joining again", attach(resp.QPHandle, group), 0)
	// The end of the context destroys the rest.
	if err := c.conn.Close(); err != nil {
		t.Error(err)
	}
}

// TestRereg: REREG_MR moves a region to another PD and changes its rights, as rxe does.
func TestRereg(t *testing.T) {
	c := newClient(t)
	pd, other := c.pd(), c.pd()
	mr, keys := c.region(pd)
	rereg := func(req abi.ReregMR) syscall.Errno {
		req.MRHandle = mr
		var resp abi.ReregMRResp
		errno := c.legacy(abi.IB_USER_VERBS_CMD_REREG_MR, kernel.Bytes(&req), kernel.Bytes(&resp), nil, nil)
		if errno == 0 && (resp.LKey != keys.LKey || resp.RKey != keys.RKey) {
			t.Errorf("keys %+v, were %+v", resp, keys)
		}
		return errno
	}
	c.want("nothing", rereg(abi.ReregMR{}), syscall.EINVAL)
	c.want("unknown flags", rereg(abi.ReregMR{Flags: 8}), syscall.EOPNOTSUPP)
	c.want("memory", rereg(abi.ReregMR{Flags: 1}), syscall.EOPNOTSUPP)
	c.want("remote without local rights", rereg(abi.ReregMR{Flags: 4, AccessFlags: 2}), syscall.EINVAL)
	c.want("no PD", rereg(abi.ReregMR{Flags: 2, PDHandle: 99}), syscall.ENOENT)
	c.want("the PD of the region", c.destroy(abi.UVERBS_OBJECT_PD, pd), syscall.EBUSY)
	c.want("another PD", rereg(abi.ReregMR{Flags: 2, PDHandle: other}), 0)
	c.want("the old PD", c.destroy(abi.UVERBS_OBJECT_PD, pd), 0)
	c.want("the new PD", c.destroy(abi.UVERBS_OBJECT_PD, other), syscall.EBUSY)
	c.want("rights", rereg(abi.ReregMR{Flags: 4, AccessFlags: 7}), 0)
	c.want("the PD again", rereg(abi.ReregMR{Flags: 2, PDHandle: other}), 0)
	c.ok(c.destroy(abi.UVERBS_OBJECT_MR, mr))
	c.want("the PD without the region", c.destroy(abi.UVERBS_OBJECT_PD, other), 0)
}
