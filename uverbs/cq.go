package uverbs

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/rxe"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// CQOptions are the options of [Device.CreateCQ]; the zero value is a CQ that is
// polled.
type CQOptions struct {
	Channel *CompChannel // Channel delivers the CQ's events; nil for a CQ that is only polled.
	Vector  int          // Vector is the completion vector (interrupt) to use, from 0.
}

// CQ is a completion queue (struct ibv_cq). One goroutine at a time may call its
// methods, except that Close is safe against a concurrent Close.
type CQ struct {
	object
	handle uint32
	cqe    int
	ch     *CompChannel
	cookie uint64 // user_handle that events of both kinds carry

	kind   driverKind
	ring   *rxe.CompQueue
	region *mmio.Region

	arm    *fastCommand // REQ_NOTIFY_CQ, any completion
	armSol *fastCommand // REQ_NOTIFY_CQ, solicited only
}

// CreateCQ creates a completion queue with room for at least cqe completions
// (ibv_create_cq); [CQ.Cap] tells how many it is. It fails if the device allows
// fewer.
func (d *Device) CreateCQ(cqe int, o CQOptions) (*CQ, error) {
	if limit := int(d.attr.MaxCQE); cqe < 1 || cqe > limit {
		return nil, argErr("CreateCQ", "cqe", cqe, "1 to %d (max_cqe of %s)", limit, d.Name())
	}
	if o.Vector < 0 || o.Vector >= d.vectors {
		return nil, argErr("CreateCQ", "Vector", o.Vector, "0 to %d", d.vectors-1)
	}
	cq := &CQ{ch: o.Channel, kind: d.driver.kind()}
	parents := []*object{&d.object}
	if o.Channel != nil {
		parents = append(parents, &o.Channel.object)
	}
	if err := cq.join(d, "CQ", "DESTROY_CQ", parents...); err != nil {
		return nil, err
	}
	if err := cq.create(cqe, o.Vector); err != nil {
		cq.leave()
		return nil, err
	}
	return cq, nil
}

// create asks the kernel for the CQ and maps its ring.
func (c *CQ) create(cqe, vector int) (err error) {
	d := c.dev
	c.cookie = d.addTarget(c)
	defer func() {
		if err != nil {
			d.dropTarget(c.cookie)
		}
	}()
	u := d.driver.cqUdata()
	errno := c.createIoctl(cqe, vector, u)
	if absent(errno) {
		errno = c.createLegacy(cqe, vector, u)
	}
	if errno != 0 {
		return d.cmd.fail("CREATE_CQ", errno, "")
	}
	if err := d.driver.mapCQ(c, u); err != nil {
		return errors.Join(err, c.destroyKernel())
	}
	c.arm = c.notifyCommand(0)
	c.armSol = c.notifyCommand(1)
	return nil
}

// createIoctl uses UVERBS_METHOD_CQ_CREATE.
func (c *CQ) createIoctl(cqe, vector int, u udata) (errno syscall.Errno) {
	cmd := newIoctl(abi.UVERBS_OBJECT_CQ, abi.UVERBS_METHOD_CQ_CREATE)
	handle := cmd.newObj(abi.UVERBS_ATTR_CREATE_CQ_HANDLE)
	var resp [4]byte
	cmd.out(abi.UVERBS_ATTR_CREATE_CQ_RESP_CQE, resp[:])
	cmd.u32(abi.UVERBS_ATTR_CREATE_CQ_CQE, uint32(cqe))
	cmd.u64(abi.UVERBS_ATTR_CREATE_CQ_USER_HANDLE, c.cookie)
	cmd.u32(abi.UVERBS_ATTR_CREATE_CQ_COMP_VECTOR, uint32(vector))
	if c.ch != nil {
		cmd.fd(abi.UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL, c.ch.fd)
	}
	c.dev.eventFDAttr(cmd, abi.UVERBS_ATTR_CREATE_CQ_EVENT_FD)
	cmd.udata(u)
	if errno = c.dev.cmd.ioctl(cmd); errno == 0 {
		c.handle = uint32(handle.Data)
		c.cqe = int(le32(resp[:]))
	}
	return errno
}

// createLegacy uses IB_USER_VERBS_CMD_CREATE_CQ.
func (c *CQ) createLegacy(cqe, vector int, u udata) syscall.Errno {
	req := &abi.CreateCQ{
		UserHandle:  c.cookie,
		CQE:         uint32(cqe),
		CompVector:  uint32(vector),
		CompChannel: -1,
	}
	if c.ch != nil {
		req.CompChannel = int32(c.ch.fd)
	}
	resp := &abi.CreateCQResp{}
	errno := c.dev.cmd.legacy(abi.IB_USER_VERBS_CMD_CREATE_CQ, bytesOf(req), bytesOf(resp), u)
	if errno == 0 {
		c.handle, c.cqe = resp.CQHandle, int(resp.CQE)
	}
	return errno
}

// notifyCommand prepares REQ_NOTIFY_CQ.
func (c *CQ) notifyCommand(solicited uint32) *fastCommand {
	req := &abi.ReqNotifyCQ{CQHandle: c.handle, SolicitedOnly: solicited}
	return newFastCommand(c.dev.cmd, abi.IB_USER_VERBS_CMD_REQ_NOTIFY_CQ, bytesOf(req), nil)
}

// Cap returns how many completions the CQ holds.
func (c *CQ) Cap() int { return c.cqe }

// Poll moves completions into wcs and returns how many there were (ibv_poll_cq); 0
// means none are there yet. A failed work request is not an error of Poll: look at
// [WC.Err]. Poll fails with [ErrCQOverrun] if the queue is broken, and with
// [os.ErrClosed] after Close.
func (c *CQ) Poll(wcs []WC) (int, error) {
	if c.gone.Load() {
		return 0, c.errClosed()
	}
	switch c.kind {
	case kindRxe:
		return pollRxe(c.ring, wcs)
	}
	return 0, nil
}

// Notify arms the CQ: the next completion raises an event on its channel, once
// (ibv_req_notify_cq). Completions that are there already raise none, so poll once
// more before waiting.
func (c *CQ) Notify() error { return c.notify(c.arm) }

// NotifySolicited arms the CQ for completions of receives that the sender marked
// [Solicited], and for failures.
func (c *CQ) NotifySolicited() error { return c.notify(c.armSol) }

func (c *CQ) notify(cmd *fastCommand) error {
	if c.gone.Load() {
		return c.errClosed()
	}
	if c.ch == nil {
		return argErr("Notify", "Channel of the CQ", "nil", "a CompChannel, given in CQOptions")
	}
	if errno := cmd.issue(); errno != 0 {
		return c.dev.cmd.fail("REQ_NOTIFY_CQ", errno, "")
	}
	return nil
}

// destroyKernel destroys the kernel's object. The kernel drops the events about it that
// nobody has read and answers how many were read; a C library waits here until the program
// has acknowledged as many, which nobody does here, see [Device.WaitEvent].
func (c *CQ) destroyKernel() error {
	cmd := newIoctl(abi.UVERBS_OBJECT_CQ, abi.UVERBS_METHOD_CQ_DESTROY)
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

// Close destroys the completion queue (ibv_destroy_cq). It fails with EBUSY while a
// QP uses it. Events about it that nobody has waited for are dropped.
func (c *CQ) Close() error {
	var unmapErr error // of a ring whose CQ is gone all the same
	err := c.close(func() error {
		if err := c.destroyKernel(); err != nil {
			return err
		}
		c.dev.dropTarget(c.cookie)
		if err := c.region.Close(); err != nil {
			unmapErr = fmt.Errorf("uverbs: CQ: unmap ring: %w", err)
		}
		return nil
	})
	return errors.Join(err, unmapErr)
}
