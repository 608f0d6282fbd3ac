package soft

import (
	"slices"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// kinds are the kinds of objects that have handles.
var kinds = []uint16{
	abi.UVERBS_OBJECT_PD, abi.UVERBS_OBJECT_CQ, abi.UVERBS_OBJECT_QP, abi.UVERBS_OBJECT_SRQ,
	abi.UVERBS_OBJECT_AH, abi.UVERBS_OBJECT_MR, abi.UVERBS_OBJECT_MW,
}

// TestHandles: a new object gets the smallest free handle, of all kinds of objects together.
func TestHandles(t *testing.T) {
	c := newClient(t)
	pd, cq := c.pd(), c.cq()
	if pd != 0 || cq != 1 || c.pd() != 2 {
		t.Fatalf("first handles are %d and %d", pd, cq)
	}
	c.ok(c.destroy(abi.UVERBS_OBJECT_CQ, cq))
	if h := c.pd(); h != 1 {
		t.Errorf("the handle that was freed is 1, the new one is %d", h)
	}
	for want := range uint32(1000) {
		if h := c.pd(); h != want+3 {
			t.Fatalf("handle %d, want %d", h, want+3)
		}
	}
	c.ok(c.destroy(abi.UVERBS_OBJECT_PD, 130))
	c.ok(c.destroy(abi.UVERBS_OBJECT_PD, 70))
	if a, b, d := c.pd(), c.pd(), c.pd(); a != 70 || b != 130 || d != 1003 {
		t.Errorf("handles after 70 and 130 were freed: %d, %d, %d", a, b, d)
	}
	if n := len(c.ctx.handles.all()); n > 2048 {
		t.Errorf("room for %d objects after 1004", n)
	}
}

// TestFailureFreesHandle: a command that fails keeps no handle and no object.
func TestFailureFreesHandle(t *testing.T) {
	c := newClient(t)
	pd := c.pd()
	for range 3 {
		req := abi.AllocMW{PDHandle: pd, MWType: 9}
		c.want("ALLOC_MW of an unknown type", c.legacy(abi.IB_USER_VERBS_CMD_ALLOC_MW, kernel.Bytes(&req), kernel.Bytes(&abi.AllocMWResp{}), nil, nil), syscall.EINVAL)
		req = abi.AllocMW{PDHandle: 99, MWType: 1}
		c.want("ALLOC_MW of no PD", c.legacy(abi.IB_USER_VERBS_CMD_ALLOC_MW, kernel.Bytes(&req), kernel.Bytes(&abi.AllocMWResp{}), nil, nil), syscall.ENOENT)
	}
	if h := c.window(pd, 1); h != pd+1 {
		t.Errorf("the next handle is %d", h)
	}
}

// one creates an object of a kind and what it needs.
func (c *client) one(kind uint16) uint32 {
	c.t.Helper()
	switch kind {
	case abi.UVERBS_OBJECT_PD:
		return c.pd()
	case abi.UVERBS_OBJECT_CQ:
		return c.cq()
	case abi.UVERBS_OBJECT_QP:
		return c.qp(c.pd(), c.cq())
	case abi.UVERBS_OBJECT_SRQ:
		return c.srq(c.pd())
	case abi.UVERBS_OBJECT_AH:
		return c.ah(c.pd())
	case abi.UVERBS_OBJECT_MR:
		h, _ := c.region(c.pd())
		return h
	case abi.UVERBS_OBJECT_MW:
		return c.window(c.pd(), 1)
	}
	c.t.Fatalf("no object of kind %d", kind)
	return 0
}

// TestWrongHandle: an unknown handle is ENOENT, that of another kind of object EINVAL, by legacy
// commands and by methods.
func TestWrongHandle(t *testing.T) {
	for _, destroy := range []func(*client, uint16, uint32) syscall.Errno{(*client).destroy, (*client).destroyMethod} {
		c := newClient(t)
		for _, kind := range kinds {
			h := c.one(kind)
			c.want("destroy an unknown handle", destroy(c, kind, 1000), syscall.ENOENT)
			for _, other := range kinds {
				if other != kind {
					c.want("destroy as another kind", destroy(c, other, h), syscall.EINVAL)
				}
			}
			c.want("destroy", destroy(c, kind, h), 0)
			c.want("destroy again", destroy(c, kind, h), syscall.ENOENT)
		}
	}
}

// TestHandlesOfContexts: the handles of a context mean nothing in another one.
func TestHandlesOfContexts(t *testing.T) {
	d := newDevice(t, Options{})
	a, b := open(t, d, kernel.PathAuto), open(t, d, kernel.PathAuto)
	a.begin()
	b.begin()
	pd := a.pd()
	b.want("destroy the PD of another context", b.destroy(abi.UVERBS_OBJECT_PD, pd), syscall.ENOENT)
	a.ok(a.destroy(abi.UVERBS_OBJECT_PD, pd))
}

// TestBusy: an object that others refer to cannot be destroyed.
func TestBusy(t *testing.T) {
	c := newClient(t)
	pd, scq, rcq := c.pd(), c.cq(), c.cq()
	srq := c.srq(pd)
	req := rcRequest(pd, scq)
	req.RecvCQHandle, req.IsSRQ, req.SRQHandle = rcq, 1, srq
	resp, _, _, errno := c.createQP(req)
	c.ok(errno)
	type user struct {
		kind   uint16
		handle uint32
	}
	qp := user{abi.UVERBS_OBJECT_QP, resp.QPHandle}
	busy := func(when string, users ...user) {
		t.Helper()
		for _, o := range []user{{abi.UVERBS_OBJECT_PD, pd}, {abi.UVERBS_OBJECT_CQ, scq}, {abi.UVERBS_OBJECT_CQ, rcq}, {abi.UVERBS_OBJECT_SRQ, srq}} {
			if slices.Contains(users, o) {
				c.want(when, c.destroy(o.kind, o.handle), syscall.EBUSY)
				c.want(when, c.destroyMethod(o.kind, o.handle), syscall.EBUSY)
			}
		}
	}
	busy("with a QP", user{abi.UVERBS_OBJECT_PD, pd}, user{abi.UVERBS_OBJECT_CQ, scq}, user{abi.UVERBS_OBJECT_CQ, rcq}, user{abi.UVERBS_OBJECT_SRQ, srq})
	c.ok(c.destroy(qp.kind, qp.handle))
	c.ok(c.destroy(abi.UVERBS_OBJECT_CQ, scq))
	c.ok(c.destroy(abi.UVERBS_OBJECT_CQ, rcq))
	busy("with an SRQ", user{abi.UVERBS_OBJECT_PD, pd})
	c.ok(c.destroy(abi.UVERBS_OBJECT_SRQ, srq))
	for kind, h := range map[uint16]uint32{
		abi.UVERBS_OBJECT_AH: c.ah(pd), abi.UVERBS_OBJECT_MW: c.window(pd, 2),
		abi.UVERBS_OBJECT_MR: func() uint32 { h, _ := c.region(pd); return h }(),
	} {
		busy("with an object", user{abi.UVERBS_OBJECT_PD, pd})
		c.ok(c.destroy(kind, h))
	}
	c.ok(c.destroy(abi.UVERBS_OBJECT_PD, pd))
}

// TestLocked: an object that a command uses cannot be destroyed, and one that is being destroyed
// cannot be used.
func TestLocked(t *testing.T) {
	c := newClient(t)
	pd := c.pd()
	o := c.ctx.handles.find(uint64(pd))
	o.acquire()
	c.want("destroy during a command", c.destroy(abi.UVERBS_OBJECT_PD, pd), syscall.EBUSY)
	o.release()
	o.acquireExclusive()
	req := abi.AllocMW{PDHandle: pd, MWType: 1}
	c.want("use during a destruction", c.legacy(abi.IB_USER_VERBS_CMD_ALLOC_MW, kernel.Bytes(&req), kernel.Bytes(&abi.AllocMWResp{}), nil, nil), syscall.EBUSY)
	o.releaseExclusive()
	c.ok(c.destroy(abi.UVERBS_OBJECT_PD, pd))
}

// everything creates objects of all kinds that refer to each other, and files.
func (c *client) everything() {
	c.t.Helper()
	ch := c.channel()
	c.channel() // never opened
	pd := c.pd()
	cq, _ := c.cqOf(int32(ch), 1)
	srq := c.srq(pd)
	req := rcRequest(pd, cq)
	req.IsSRQ, req.SRQHandle = 1, srq
	_, _, _, errno := c.createQP(req)
	c.ok(errno)
	c.qp(pd, cq)
	c.ah(pd)
	c.region(pd)
	c.window(pd, 1)
	c.window(pd, 2)
}

// TestCloseContext: closing a context destroys everything in it, and leaks no file and no object.
func TestCloseContext(t *testing.T) {
	d := newDevice(t, Options{})
	before := numFiles(t)
	for range 3 {
		c := open(t, d, kernel.PathAuto)
		c.begin()
		c.everything()
		f, err := c.conn.Events(c.channel(), "channel")
		must(t, err)
		must(t, c.conn.Close())
		if err := c.conn.Close(); err != nil {
			t.Errorf("Close again: %v", err)
		}
		f.Close()
		if left := c.ctx.handles.list(); slices.ContainsFunc(left, func(o *object) bool { return !o.dead }) {
			t.Errorf("%d objects are left", len(left))
		}
	}
	if got := numFiles(t); got != before {
		t.Errorf("%d files are open, %d were", got, before)
	}
	p := &d.pools
	for i, pool := range []*pool{&p.qps, &p.cqs, &p.srqs, &p.mrs, &p.mws, &p.pds, &p.ahs} {
		if n := pool.n.Load(); n != 0 {
			t.Errorf("the device counts %d objects of pool %d", n, i)
		}
	}
	if mrs, mws := d.memory.Len(); mrs != 0 || mws != 0 {
		t.Errorf("%d regions and %d windows are left", mrs, mws)
	}
}

// TestRemove: after the device was closed, commands fail with EIO, except those that destroy.
func TestRemove(t *testing.T) {
	d := newDevice(t, Options{})
	c := open(t, d, kernel.PathAuto)
	async := c.begin()
	events, err := c.conn.Events(async, "events")
	must(t, err)
	defer events.Close()
	ch := c.channel()
	completions, err := c.conn.Events(ch, "channel")
	must(t, err)
	defer completions.Close()
	pd := c.pd()
	mw, cq := c.window(pd, 1), c.cq()
	must(t, d.Close())
	if err := d.Close(); err != nil {
		t.Errorf("Close again: %v", err)
	}
	var ev abi.AsyncEventDesc
	if n, err := events.Read(kernel.Bytes(&ev)); n != 16 || ev.EventType != eventDeviceFatal {
		t.Errorf("event %d of %d bytes (%v), want DEVICE_FATAL", ev.EventType, n, err)
	}
	if n, err := completions.Read(make([]byte, 8)); n != 0 || err == nil {
		t.Errorf("reading completion events: %d bytes, %v", n, err)
	}
	if !c.conn.Removed() {
		t.Error("QUERY_DEVICE does not fail with EIO")
	}
	c.want("ALLOC_PD", c.legacy(abi.IB_USER_VERBS_CMD_ALLOC_PD, kernel.Bytes(&abi.AllocPD{}), kernel.Bytes(&abi.AllocPDResp{}), nil, nil), syscall.EIO)
	c.want("REQ_NOTIFY_CQ", c.legacy(abi.IB_USER_VERBS_CMD_REQ_NOTIFY_CQ, kernel.Bytes(&abi.ReqNotifyCQ{CQHandle: cq}), nil, nil, nil), syscall.EIO)
	c.want("CREATE_COMP_CHANNEL", c.legacy(abi.IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, kernel.Bytes(&abi.CreateCompChannel{}), kernel.Bytes(&abi.CreateCompChannelResp{}), nil, nil), syscall.EIO)
	if _, err := c.conn.Map(4096, 4096); err == nil {
		t.Error("Map works")
	}
	c.want("destroy a PD that others referred to", c.destroy(abi.UVERBS_OBJECT_PD, pd), 0)
	c.want("destroy an MW", c.destroyMethod(abi.UVERBS_OBJECT_MW, mw), 0)
	c.want("destroy a CQ", c.destroy(abi.UVERBS_OBJECT_CQ, cq), 0)
	c.want("destroy it again", c.destroy(abi.UVERBS_OBJECT_CQ, cq), syscall.ENOENT)
	if _, err := d.open(); err == nil {
		t.Error("a device that was closed can be opened")
	}
}

// TestLimits: a device has as many objects as it may, and EINVAL then, as rxe.
func TestLimits(t *testing.T) {
	c := open(t, newDevice(t, Options{Limits: Limits{QPs: 1, CQs: 2, SRQs: 1, MRs: 1, MWs: 1, PDs: 2, AHs: 1}}), kernel.PathAuto)
	c.begin()
	pd := c.pd()
	cq := c.cq()
	first := map[uint16]uint32{}
	for range 2 {
		for _, kind := range kinds {
			switch kind {
			case abi.UVERBS_OBJECT_QP:
				first[kind] = c.qp(pd, cq)
			case abi.UVERBS_OBJECT_SRQ:
				first[kind] = c.srq(pd)
			case abi.UVERBS_OBJECT_AH:
				first[kind] = c.ah(pd)
			case abi.UVERBS_OBJECT_MR:
				first[kind], _ = c.region(pd)
			case abi.UVERBS_OBJECT_MW:
				first[kind] = c.window(pd, 1)
			default:
				first[kind] = c.one(kind)
			}
		}
		_, _, _, errno := c.createQP(rcRequest(pd, cq))
		c.want("one QP too many", errno, syscall.EINVAL)
		_, _, errno = c.createAH(pd, func(*abi.AHAttr) {})
		c.want("one AH too many", errno, syscall.EINVAL)
		c.want("one PD too many", c.legacy(abi.IB_USER_VERBS_CMD_ALLOC_PD, kernel.Bytes(&abi.AllocPD{}), kernel.Bytes(&abi.AllocPDResp{}), nil, nil), syscall.EINVAL)
		mw := abi.AllocMW{PDHandle: pd, MWType: 1}
		c.want("one MW too many", c.legacy(abi.IB_USER_VERBS_CMD_ALLOC_MW, kernel.Bytes(&mw), kernel.Bytes(&abi.AllocMWResp{}), nil, nil), syscall.EINVAL)
		for kind, h := range first {
			c.ok(c.destroy(kind, h))
		}
	}
}

// TestQPFlags: which types of QPs may be created with which flags.
func TestQPFlags(t *testing.T) {
	const (
		loopback = abi.IB_UVERBS_QP_CREATE_BLOCK_MULTICAST_LOOPBACK
		padding  = abi.IB_UVERBS_QP_CREATE_PCI_WRITE_END_PADDING
		fcs      = abi.IB_UVERBS_QP_CREATE_SCATTER_FCS
		vlan     = abi.IB_UVERBS_QP_CREATE_CVLAN_STRIPPING
	)
	for _, f := range []struct {
		typ, flags uint32
		want       syscall.Errno
	}{
		{abi.IB_UVERBS_QPT_RC, 0, 0},
		{abi.IB_UVERBS_QPT_RC, loopback, syscall.EINVAL},
		{abi.IB_UVERBS_QPT_RC, fcs, syscall.EINVAL},
		{abi.IB_UVERBS_QPT_UD, 0, 0},
		{abi.IB_UVERBS_QPT_UD, loopback, 0},
		{abi.IB_UVERBS_QPT_UD, loopback | padding, 0},
		{abi.IB_UVERBS_QPT_UD, fcs, syscall.EINVAL},
		{abi.IB_UVERBS_QPT_UD, vlan, syscall.EINVAL},
		{abi.IB_UVERBS_QPT_UD, loopback | vlan, syscall.EINVAL},
		{abi.IB_UVERBS_QPT_RAW_PACKET, fcs | vlan, 0},
		{abi.IB_UVERBS_QPT_DRIVER, fcs, 0},
	} {
		if got := checkQPFlags(f.typ, f.flags); got != f.want {
			t.Errorf("type %d, flags %#x: %v, want %v", f.typ, f.flags, got, f.want)
		}
	}
}
