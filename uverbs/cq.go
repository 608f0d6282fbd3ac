package uverbs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// CQOptions are the options of [Device.CreateCQ]. The zero value is a CQ without events, large
// enough for a QP with queues of the default sizes.
type CQOptions struct {
	// Size is the minimum number of completions that the CQ holds, up to DeviceAttr.MaxCQE; by
	// default 128. All requests that complete between two polls must fit: normally MaxSendWR and
	// MaxRecvWR of each QP, and MaxWR of each SRQ, that uses the CQ.
	Size int

	// Events gives the CQ a channel of its own, for [CQ.Wait]. Close closes the channel, too.
	Events bool
	// Channel delivers the events of the CQ. Use it instead of Events to wait for several CQs in
	// one goroutine, or for [CompChannel.SetBusyWait].
	Channel *CompChannel

	Vector int     // Vector is the completion vector (interrupt), from 0 to DeviceAttr.CompVectors-1.
	Flags  CQFlags // Flags are properties that few drivers support.

	// CQESize is the size in bytes of a completion as the device writes it (mlx5dv_create_cq). Only
	// mlx5 supports it: 64, the default, or 128, which has room for more data (see QPOptions.InlineRecv).
	CQESize int
}

// CQ is a completion queue (struct ibv_cq). One goroutine at a time may use it: see Concurrency in the
// package documentation. Close may be called at any time; calls that begin after it fail with
// [os.ErrClosed].
type CQ struct {
	object
	handle uint32
	cqe    atomic.Uint32 // capacity
	ch     *CompChannel
	ownsCh bool    // Close closes ch, see CQOptions.Events
	cookie uint64  // user_handle that events of both kinds carry
	qps    qpTable // the QPs that use the CQ

	kind driverKind
	cqDrivers
	region         *mmio.Region
	awaitFirstRecv atomic.Int32 // number of QPs that wait for the first message of their peer
	armed          atomic.Bool  // Wait has armed the CQ and its channel has not returned the event yet
	overrun        atomic.Int64 // when NextEvent has last returned EventCQErr, in nanoseconds since started; 0 for never
}

// CreateCQ creates a completion queue (ibv_create_cq, ibv_create_cq_ex). [CQ.Size] returns its size.
// The error is an [ArgError] if an option is out of range for the device, and a [FeatureError] if
// the driver does not support a flag.
func (d *Device) CreateCQ(o CQOptions) (*CQ, error) {
	limit := int(d.attr.MaxCQE)
	o.Size = orDefault(o.Size, min(2*defaultQueueSize, limit))
	switch {
	case o.Size < 1 || o.Size > limit:
		return nil, argErr("CreateCQ", "Size", o.Size, "1 to %d (max_cqe of %s)", limit, d.Name())
	case o.Vector < 0 || o.Vector >= d.vectors:
		return nil, argErr("CreateCQ", "Vector", o.Vector, "0 to %d", d.vectors-1)
	case o.Flags&^cqFlagsAll != 0:
		return nil, argErr("CreateCQ", "Flags", o.Flags, "%s", cqFlagsAll)
	case o.Events && o.Channel != nil:
		return nil, argErr("CreateCQ", "Channel", "a channel", "nil with Events")
	case !o.Events:
		return d.createCQ(o)
	}
	ch, err := d.CreateCompChannel()
	if err != nil {
		return nil, err
	}
	o.Channel = ch
	cq, err := d.createCQ(o)
	if err != nil {
		return nil, errors.Join(err, ch.Close())
	}
	return cq, nil
}

// createCQ creates a CQ with options that were checked.
func (d *Device) createCQ(o CQOptions) (*CQ, error) {
	cq := &CQ{ch: o.Channel, ownsCh: o.Events, kind: d.driver.kind()}
	parents := []*object{&d.object}
	if o.Channel != nil {
		parents = append(parents, &o.Channel.object)
	}
	if err := cq.addParents(d, "CQ", "DESTROY_CQ", parents...); err != nil {
		return nil, err
	}
	if o.Channel != nil {
		o.Channel.only.Store(nil)
	}
	if err := cq.create(o); err != nil {
		cq.removeParents()
		return nil, err
	}
	if o.Channel != nil {
		o.Channel.addCQ(cq)
	}
	d.targets.created(cq.cookie, cq)
	return cq, cq.markCreated(cq)
}

// create asks the kernel for the CQ and maps its ring.
func (c *CQ) create(o CQOptions) (err error) {
	d := c.dev
	c.cookie = d.targets.reserve()
	defer func() {
		if err != nil {
			d.targets.drop(c.cookie)
		}
	}()
	u, err := d.driver.prepareCQ(c, &o)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.driver.freeCQ(c))
		}
	}()
	errno := c.createIoctl(o, u)
	if absent(errno) && u.unsupported != nil {
		f := *u.unsupported
		f.Err = &Error{Op: "CREATE_CQ", Device: d.Name(), Errno: errno}
		return &f
	}
	if c.dev.cmd.older(errno) {
		errno = c.createLegacy(o, u)
	}
	if o.Flags != 0 && (errno == syscall.EINVAL || errno == syscall.EOPNOTSUPP) { // rxe of Linux 5.10 says EINVAL
		return &FeatureError{
			Feature: "CREATE_CQ with " + o.Flags.String(),
			Driver:  d.driver.name(),
			Err:     &Error{Op: "CREATE_CQ", Device: d.Name(), Errno: errno},
		}
	}
	if errno != 0 {
		return about(d.cmd.fail("CREATE_CQ", errno, d.ringHint(errno, d.fullHint(errno, "CQs", d.attr.MaxCQ), c.region)), "", fmt.Sprintf("Size %d", o.Size))
	}
	if err := d.driver.mapCQ(c, u); err != nil {
		return errors.Join(err, c.destroyKernel())
	}
	return nil
}

// createIoctl uses UVERBS_METHOD_CQ_CREATE.
func (c *CQ) createIoctl(o CQOptions, u udata) (errno syscall.Errno) {
	cmd := newIoctl(abi.UVERBS_OBJECT_CQ, abi.UVERBS_METHOD_CQ_CREATE)
	defer cmd.done()
	cmd.Brief = true
	handle := cmd.newObj(abi.UVERBS_ATTR_CREATE_CQ_HANDLE)
	var resp [4]byte
	cmd.out(abi.UVERBS_ATTR_CREATE_CQ_RESP_CQE, resp[:])
	cmd.u32(abi.UVERBS_ATTR_CREATE_CQ_CQE, uint32(o.Size))
	cmd.u64(abi.UVERBS_ATTR_CREATE_CQ_USER_HANDLE, c.cookie)
	cmd.u32(abi.UVERBS_ATTR_CREATE_CQ_COMP_VECTOR, uint32(o.Vector))
	if c.ch != nil {
		cmd.fd(abi.UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL, c.ch.fd)
	}
	if o.Flags != 0 {
		cmd.u32(abi.UVERBS_ATTR_CREATE_CQ_FLAGS, uint32(o.Flags))
	}
	c.dev.eventFDAttr(cmd, abi.UVERBS_ATTR_CREATE_CQ_EVENT_FD)
	cmd.udata(u)
	if errno = c.dev.cmd.ioctl(cmd); errno == 0 {
		c.handle = uint32(handle.Data)
		c.cqe.Store(le32(resp[:]))
	}
	return errno
}

// createLegacy uses IB_USER_VERBS_CMD_CREATE_CQ, or IB_USER_VERBS_EX_CMD_CREATE_CQ if there are
// flags.
func (c *CQ) createLegacy(o CQOptions, u udata) syscall.Errno {
	channel := int32(-1)
	if c.ch != nil {
		channel = int32(c.ch.fd)
	}
	resp := &abi.ExCreateCQResp{}
	var errno syscall.Errno
	if o.Flags != 0 {
		req := &abi.ExCreateCQ{UserHandle: c.cookie, CQE: uint32(o.Size), CompVector: uint32(o.Vector), CompChannel: channel, Flags: uint32(o.Flags)}
		errno = c.dev.cmd.legacy(abi.IB_USER_VERBS_EX_CMD_CREATE_CQ|abi.IB_USER_VERBS_CMD_FLAG_EXTENDED, bytesOf(req), bytesOf(resp), u)
	} else {
		req := &abi.CreateCQ{UserHandle: c.cookie, CQE: uint32(o.Size), CompVector: uint32(o.Vector), CompChannel: channel}
		errno = c.dev.cmd.legacy(abi.IB_USER_VERBS_CMD_CREATE_CQ, bytesOf(req), bytesOf(&resp.Base), u)
	}
	if errno == 0 {
		c.handle = resp.Base.CQHandle
		c.cqe.Store(resp.Base.CQE)
	}
	return errno
}

// notifyCommands prepares REQ_NOTIFY_CQ for any completion, and for solicited ones.
func (c *CQ) notifyCommands() *[2]fastCommand {
	f := new([2]fastCommand)
	for i := range f {
		req := abi.ReqNotifyCQ{CQHandle: c.handle, SolicitedOnly: uint32(i)}
		f[i].Init(c.dev.cmd.Conn, abi.IB_USER_VERBS_CMD_REQ_NOTIFY_CQ, bytesOf(&req), 0)
	}
	return f
}

// Size returns the number of completions that the CQ holds.
func (c *CQ) Size() int { return int(c.cqe.Load()) }

// unusable returns why a CQ has no ring.
func (c *CQ) unusable() error {
	if c.dev == nil {
		return errZero("Poll")
	}
	return ErrCQOverrun // Resize has lost the ring
}

// Notify arms the CQ: the next completion raises one event on its channel (ibv_req_notify_cq). If
// there are completions already, some drivers, such as mlx5, raise the event at once, and others
// raise none. So call [CQ.Poll] after Notify and before waiting.
func (c *CQ) Notify() error { return c.notify(false) }

// NotifySolicited arms the CQ for failed completions and for receives that the sender marked
// [SendSolicited]. siw and efa raise an event for any completion. The kernel's rxe raises none for most failed
// completions, so a program on rxe uses [CQ.Notify] if it has to notice errors.
func (c *CQ) NotifySolicited() error { return c.notify(true) }

func (c *CQ) notify(solicited bool) error {
	if err := c.acquire(); err != nil {
		return err
	}
	defer c.release()
	if c.ch == nil {
		return argErr("Notify", "Channel of the CQ", "nil", "a CompChannel, given in CQOptions")
	}
	return c.arm(solicited)
}

// Resize changes the size of the CQ to at least size completions (ibv_resize_cq). [CQ.Size] returns
// the new size. Completions in the CQ stay in order, and the CQ stays armed. It fails with EINVAL
// if the CQ has more than size completions, and with a [FeatureError] if the driver does not support
// it. The CQ must not be polled meanwhile, but a goroutine may wait for its events.
//
// If the new ring cannot be mapped, the CQ is lost: Poll fails with [ErrCQOverrun], and the CQ can
// only be closed.
func (c *CQ) Resize(size int) error {
	if err := c.acquire(); err != nil {
		return err
	}
	defer c.release()
	d := c.dev
	if limit := int(d.attr.MaxCQE); size < 1 || size > limit {
		return argErr("Resize", "size", size, "1 to %d (max_cqe of %s)", limit, d.Name())
	}
	if err := d.cmd.untranslated("RESIZE_CQ"); err != nil {
		return err
	}
	u, ready, err := d.driver.prepareResize(c, &size)
	if err != nil || !ready {
		return err
	}
	req := &abi.ResizeCQ{CQHandle: c.handle, CQE: uint32(size)}
	resp := &abi.ResizeCQResp{}
	errno := d.cmd.legacy(abi.IB_USER_VERBS_CMD_RESIZE_CQ, bytesOf(req), bytesOf(resp), u)
	if errno != 0 {
		hint := ""
		if errno == syscall.EINVAL {
			hint = fmt.Sprintf("there may be more than %d completions in it; poll them first; or it has lost a completion (EventCQErr)", size)
		}
		return errors.Join(d.cmd.fail("RESIZE_CQ", errno, hint), c.abandonResize())
	}
	old, err := d.driver.remapCQ(c, int(resp.CQE), u)
	if err != nil {
		c.invalidate()
		return err
	}
	c.overrun.Store(0)
	if err := old.Close(); err != nil {
		return fmt.Errorf("uverbs: CQ: unmap old ring: %w", err)
	}
	return nil
}

// cqModerate is IB_CQ_MODERATE (rdma/ib_verbs.h), the attribute that MODIFY_CQ can change.
const cqModerate = 1

// Modify moderates the events of the CQ: one is raised only when there are count completions, or
// when period has passed since the first of them (ibv_modify_cq). The period is rounded up to
// microseconds. [DeviceAttr] has the maxima; 0 and 0 end moderation. It fails with a [FeatureError]
// if the driver does not support it, such as rxe.
func (c *CQ) Modify(count int, period time.Duration) error {
	if err := c.acquire(); err != nil {
		return err
	}
	defer c.release()
	mostCount, mostPeriod := c.dev.attr.MaxCQModerationCount, c.dev.attr.MaxCQModerationPeriod
	if mostCount == 0 && mostPeriod == 0 { // not supported; leave the error to the kernel
		mostCount, mostPeriod = math.MaxUint16, math.MaxUint16
	}
	if count < 0 || count > int(mostCount) {
		return argErr("Modify", "count", count, "0 to %d (max_cq_moderation_count of %s)", mostCount, c.dev.Name())
	}
	if most := time.Duration(mostPeriod) * time.Microsecond; period < 0 || period > most {
		return argErr("Modify", "period", period, "0 to %s (max_cq_moderation_period of %s)", most, c.dev.Name())
	}
	req := &abi.ExModifyCQ{CQHandle: c.handle, AttrMask: cqModerate}
	req.Attr.CQCount = uint16(count)
	req.Attr.CQPeriod = uint16((period + time.Microsecond - 1) / time.Microsecond)
	errno := c.dev.cmd.legacy(abi.IB_USER_VERBS_EX_CMD_MODIFY_CQ|abi.IB_USER_VERBS_CMD_FLAG_EXTENDED, bytesOf(req), nil, udata{})
	return c.dev.cmd.fail("MODIFY_CQ", errno, "")
}

// qpTable maps QP numbers to QPs. It is safe for concurrent use.
type qpTable struct {
	changes atomic.Uint32 // counts Store and Delete
	mu      sync.Mutex
	qps     map[uint32]*QP // guarded by mu
}

// Store adds a QP, Delete removes it, and Load looks it up.
func (t *qpTable) Store(qpn uint32, q *QP) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.qps == nil {
		t.qps = map[uint32]*QP{}
	}
	t.qps[qpn] = q
	t.changes.Add(1)
}

// Delete leaves another QP, which may have got the number since the kernel has destroyed q.
func (t *qpTable) Delete(qpn uint32, q *QP) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.qps[qpn] == q {
		delete(t.qps, qpn)
		t.changes.Add(1)
	}
}

func (t *qpTable) Load(qpn uint32) (*QP, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	q, ok := t.qps[qpn]
	return q, ok
}

// failures calls failed for the completions that failed.
func (c *CQ) failures(wcs []WC) {
	for i := range wcs {
		if wcs[i].Status != WCSuccess {
			c.failed(&wcs[i])
		}
	}
}

// failed passes a failed completion to its QP.
func (c *CQ) failed(wc *WC) {
	if q, ok := c.qps.Load(wc.QPN); ok {
		c.setRecvOpcode(q, wc)
		q.failed(wc)
	}
}

// destroyKernel destroys the kernel's object. The kernel drops unread events of the CQ and returns
// how many were read. A C library waits here until that many were acknowledged; this library needs
// no acknowledgements.
func (c *CQ) destroyKernel() error {
	cmd := newIoctl(abi.UVERBS_OBJECT_CQ, abi.UVERBS_METHOD_CQ_DESTROY)
	defer cmd.done()
	cmd.obj(abi.UVERBS_ATTR_DESTROY_CQ_HANDLE, c.handle)
	resp := &abi.DestroyCQResp{}
	cmd.out(abi.UVERBS_ATTR_DESTROY_CQ_RESP, bytesOf(resp))
	errno := c.dev.cmd.ioctl(cmd)
	if absent(errno) {
		req := &abi.DestroyCQ{CQHandle: c.handle}
		errno = c.dev.cmd.legacy(abi.IB_USER_VERBS_CMD_DESTROY_CQ, bytesOf(req), bytesOf(resp), udata{})
	}
	return c.dev.cmd.fail(c.destroy, errno, "")
}

// Close destroys the completion queue (ibv_destroy_cq). It fails with EBUSY while a QP uses it.
// Unread events of the CQ are dropped. With [CQOptions.Events], Close ends a Wait in progress.
func (c *CQ) Close() error {
	err := c.close(func() error {
		if err := c.destroyKernel(); err != nil {
			return err
		}
		c.dev.targets.drop(c.cookie)
		return nil
	}, func() error { return c.dev.driver.freeCQ(c) })
	if c.ownsCh && c.closed.Load() {
		err = errors.Join(err, c.ch.Close())
	}
	return err
}

// Wait moves completions into wcs, like [CQ.Poll], but sleeps until there is at least one. It
// polls, arms the CQ, polls again and waits for the event, so no completion is lost. How it waits is
// described at [CompChannel.Next]. Repeated calls with one context do not allocate.
//
// The CQ must have a channel that no other CQ uses, as [CQOptions.Events] provides. For several CQs
// see [CompChannel.Next].
//
// Wait returns completions even if ctx has ended. Otherwise it returns ctx.Err() wrapped once the
// context ends. It fails with [os.ErrClosed] after Close of a CQ with CQOptions.Events and after
// [CompChannel.Shutdown], and with EBUSY if another goroutine waits on the channel. Closing a CQ with
// CQOptions.Channel does not wake it.
func (c *CQ) Wait(ctx context.Context, wcs []WC) (int, error) {
	if c.ch != nil && c.ch.waiting.Load() && !c.ch.shared() && !c.closed.Load() {
		return 0, c.ch.errBusy() // the goroutine that waits polls, too
	}
	for {
		n, err := c.Poll(wcs)
		switch {
		case n > 0 || err != nil:
			return n, err
		case len(wcs) == 0:
			return 0, argErr("Wait", "wcs", "an empty slice", "room for at least one completion")
		case c.ch == nil || c.ch.shared():
			return 0, argErr("Wait", "Channel of the CQ", "nil or shared", "a channel for this CQ alone, see CQOptions.Events")
		case c.armed.Load():
			// The CQ is still armed, or there is an event that nobody has read.
			if _, err := c.ch.Next(ctx); err != nil {
				return 0, err
			}
		default:
			c.armed.Store(true) // before an event can clear it
			if err := c.Notify(); err != nil {
				c.armed.Store(false)
				return 0, err
			}
		}
	}
}
