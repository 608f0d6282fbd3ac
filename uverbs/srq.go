package uverbs

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// SRQOptions are the options of [PD.CreateSRQ].
type SRQOptions struct {
	MaxWR  int // MaxWR is the minimum number of receives that it holds; by default 64.
	MaxSGE int // MaxSGE is the maximum number of SGEs of a receive; by default 1.

	XRCD *XRCD // XRCD is the XRC domain of the SRQ, or nil. XRC senders select the SRQ by its number.
	CQ   *CQ   // CQ receives the completions of the SRQ. It is required with XRCD, and must be nil without.
}

// srqType returns the type of the SRQ.
func (o *SRQOptions) srqType() uint32 {
	if o.XRCD != nil {
		return abi.IB_UVERBS_SRQT_XRC
	}
	return abi.IB_UVERBS_SRQT_BASIC
}

// SRQAttr are the attributes of a shared receive queue (struct ibv_srq_attr).
type SRQAttr struct {
	MaxWR  int // MaxWR is the number of receives that it holds.
	MaxSGE int // MaxSGE is the maximum number of SGEs of a receive.
	Limit  int // Limit is the limit that SetLimit armed, or 0.
}

// SRQ is a shared receive queue, from which several QPs take their receives (struct ibv_srq). It is
// safe for concurrent use.
type SRQ struct {
	object
	handle uint32
	cookie uint64 // user_handle that events carry
	num    uint32

	post   sync.Mutex // held while the ring is written or replaced
	maxWR  int
	maxSGE int
	kind   driverKind
	region *mmio.Region
	srqDrivers
}

// CreateSRQ creates a shared receive queue (ibv_create_srq, ibv_create_srq_ex). [SRQ.Attr] returns its
// size, which is at least the requested one. The error is a [FeatureError] if the driver does not support
// SRQs or an option.
func (p *PD) CreateSRQ(o SRQOptions) (*SRQ, error) {
	if err := p.usable(); err != nil {
		return nil, err
	}
	d := p.dev
	o.MaxWR = orDefault(o.MaxWR, defaultQueueSize)
	o.MaxSGE = orDefault(o.MaxSGE, 1)
	if d.attr.MaxSRQ == 0 {
		return nil, &FeatureError{Feature: "SRQ", Driver: d.driver.name()}
	}
	if o.MaxWR < 1 || o.MaxWR > int(d.attr.MaxSRQWR) {
		return nil, argErr("CreateSRQ", "MaxWR", o.MaxWR, "1 to %d (max_srq_wr of %s)", d.attr.MaxSRQWR, d.Name())
	}
	if o.MaxSGE < 1 || o.MaxSGE > int(d.attr.MaxSRQSGE) {
		return nil, argErr("CreateSRQ", "MaxSGE", o.MaxSGE, "1 to %d (max_srq_sge of %s)", d.attr.MaxSRQSGE, d.Name())
	}
	if (o.XRCD != nil) != (o.CQ != nil) {
		return nil, argErr("CreateSRQ", "CQ", map[bool]string{false: "nil", true: "a CQ"}[o.CQ != nil], "a CQ with XRCD, otherwise nil")
	}
	if lacking := d.driver.unsupportedSRQ(&o); lacking != "" {
		return nil, &FeatureError{Feature: "CREATE_SRQ with " + lacking, Driver: d.driver.name()}
	}
	uses := []*object{&p.object}
	if o.XRCD != nil {
		uses = append(uses, &o.XRCD.object)
	}
	if o.CQ != nil {
		uses = append(uses, &o.CQ.object)
	}
	s := &SRQ{kind: d.driver.kind()}
	if err := s.addParents(d, "SRQ", "DESTROY_SRQ", uses...); err != nil {
		return nil, err
	}
	if err := s.create(p, o); err != nil {
		s.removeParents()
		return nil, err
	}
	d.targets.created(s.cookie, s)
	return s, s.markCreated(s)
}

// create asks the kernel for the SRQ and maps its ring.
func (s *SRQ) create(p *PD, o SRQOptions) (err error) {
	s.cookie = s.dev.targets.reserve()
	defer func() {
		if err != nil {
			s.dev.targets.drop(s.cookie)
		}
	}()
	u, err := s.dev.driver.prepareSRQ(s, &o)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.dev.driver.freeSRQ(s))
		}
	}()
	errno := s.createIoctl(p, o, u)
	if s.dev.cmd.older(errno) {
		errno = s.createLegacy(p, o, u)
	}
	if errno != 0 {
		hint := ""
		if errno == syscall.EINVAL {
			hint = usedUp(s.dev.Name(), "SRQs", s.dev.attr.MaxSRQ)
		}
		return about(s.dev.cmd.fail("CREATE_SRQ", errno, s.dev.ringHint(errno, hint, s.region)), "", fmt.Sprintf("MaxWR %d, MaxSGE %d", o.MaxWR, o.MaxSGE))
	}
	if err := s.dev.driver.mapSRQ(s, u); err != nil {
		return errors.Join(err, s.destroyKernel())
	}
	return nil
}

// createIoctl uses UVERBS_METHOD_SRQ_CREATE.
func (s *SRQ) createIoctl(p *PD, o SRQOptions, u udata) syscall.Errno {
	cmd := newIoctl(abi.UVERBS_OBJECT_SRQ, abi.UVERBS_METHOD_SRQ_CREATE)
	defer cmd.done()
	handle := cmd.newObj(abi.UVERBS_ATTR_CREATE_SRQ_HANDLE)
	cmd.obj(abi.UVERBS_ATTR_CREATE_SRQ_PD_HANDLE, p.handle)
	cmd.u64(abi.UVERBS_ATTR_CREATE_SRQ_USER_HANDLE, s.cookie)
	cmd.u32(abi.UVERBS_ATTR_CREATE_SRQ_MAX_WR, uint32(o.MaxWR))
	cmd.u32(abi.UVERBS_ATTR_CREATE_SRQ_MAX_SGE, uint32(o.MaxSGE))
	cmd.u32(abi.UVERBS_ATTR_CREATE_SRQ_LIMIT, 0)
	cmd.u64(abi.UVERBS_ATTR_CREATE_SRQ_TYPE, uint64(o.srqType()))
	if o.XRCD != nil {
		cmd.obj(abi.UVERBS_ATTR_CREATE_SRQ_XRCD_HANDLE, o.XRCD.handle)
	}
	if o.CQ != nil {
		cmd.obj(abi.UVERBS_ATTR_CREATE_SRQ_CQ_HANDLE, o.CQ.handle)
	}
	s.dev.eventFDAttr(cmd, abi.UVERBS_ATTR_CREATE_SRQ_EVENT_FD)
	var maxWR, maxSGE, num [4]byte
	cmd.out(abi.UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, maxWR[:])
	cmd.out(abi.UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, maxSGE[:])
	if o.XRCD != nil { // other SRQs have no number in the kernel
		cmd.out(abi.UVERBS_ATTR_CREATE_SRQ_RESP_SRQ_NUM, num[:])
	}
	cmd.udata(u)
	errno := s.dev.cmd.ioctl(cmd)
	if errno == 0 {
		s.handle, s.num = uint32(handle.Data), le32(num[:])
		s.maxWR, s.maxSGE = int(le32(maxWR[:])), int(le32(maxSGE[:]))
	}
	return errno
}

// createLegacy uses IB_USER_VERBS_CMD_CREATE_SRQ, or CREATE_XSRQ for an SRQ of a domain.
func (s *SRQ) createLegacy(p *PD, o SRQOptions, u udata) syscall.Errno {
	number := uint32(abi.IB_USER_VERBS_CMD_CREATE_SRQ)
	req := bytesOf(&abi.CreateSRQ{UserHandle: s.cookie, PDHandle: p.handle, MaxWR: uint32(o.MaxWR), MaxSGE: uint32(o.MaxSGE)})
	if typ := o.srqType(); typ != abi.IB_UVERBS_SRQT_BASIC {
		number = abi.IB_USER_VERBS_CMD_CREATE_XSRQ
		x := &abi.CreateXSRQ{UserHandle: s.cookie, SRQType: typ, PDHandle: p.handle, MaxWR: uint32(o.MaxWR), MaxSGE: uint32(o.MaxSGE),
			XRCDHandle: o.XRCD.handle, CQHandle: o.CQ.handle}
		req = bytesOf(x)
	}
	resp := &abi.CreateSRQResp{}
	errno := s.dev.cmd.legacy(number, req, bytesOf(resp), u)
	if errno == 0 {
		s.handle, s.num = resp.SRQHandle, resp.SRQN
		s.maxWR, s.maxSGE = int(resp.MaxWR), int(resp.MaxSGE)
	}
	return errno
}

// SRQN returns the number of the SRQ, which XRC senders use (ibv_get_srq_num).
func (s *SRQ) SRQN() uint32 { return s.num }

// Attr returns the size of the queue without asking the kernel. Limit is 0; [SRQ.Query] returns it.
func (s *SRQ) Attr() SRQAttr {
	s.post.Lock()
	defer s.post.Unlock()
	return SRQAttr{MaxWR: s.maxWR, MaxSGE: s.maxSGE}
}

// PostRecv posts a receive to the queue (ibv_post_srq_recv). It fails with [ErrQueueFull]
// or a [PostError].
func (s *SRQ) PostRecv(id uint64, sgl ...SGE) error {
	wr := [1]RecvWR{{id, sgl}}
	return s.PostRecvs(wr[:]...)
}

// PostRecvs posts receives in order, all or none. It fails with the errors of [SRQ.PostRecv].
func (s *SRQ) PostRecvs(wrs ...RecvWR) error {
	s.post.Lock()
	defer s.post.Unlock()
	if err := s.usable(); err != nil {
		return err
	}
	return givenRecv(s.postRecvs(wrs), wrs, s.maxSGE, s.dev)
}

// Attributes of MODIFY_SRQ (enum ib_srq_attr_mask, rdma/ib_verbs.h).
const (
	srqMaxWR = 1 << 0
	srqLimit = 1 << 1
)

// SetLimit arms the limit (ibv_modify_srq, IBV_SRQ_LIMIT). Once fewer than n receives are left, one
// [EventSRQLimitReached] is raised. 0 disarms the limit.
func (s *SRQ) SetLimit(n int) error {
	if err := s.acquire(); err != nil {
		return err
	}
	defer s.release()
	if most := s.Attr().MaxWR; n < 0 || n > most {
		return argErr("SetLimit", "limit", n, "0 to %d, the size of the SRQ", most)
	}
	return s.modify(srqLimit, 0, n)
}

// Resize changes the number of receives that the queue holds to at least maxWR (ibv_modify_srq,
// IBV_SRQ_MAX_WR). Posted receives stay. The error is a [FeatureError] if the driver does not
// support it.
func (s *SRQ) Resize(maxWR int) error {
	if err := s.acquire(); err != nil {
		return err
	}
	defer s.release()
	s.post.Lock()
	defer s.post.Unlock()
	if maxWR < 1 || maxWR > int(s.dev.attr.MaxSRQWR) {
		return argErr("Resize", "MaxWR", maxWR, "1 to %d (max_srq_wr of %s)", s.dev.attr.MaxSRQWR, s.dev.Name())
	}
	return s.modify(srqMaxWR, maxWR, 0)
}

// modify changes attributes. The caller has acquired the SRQ and, to change the size, then locked post, in the
// order of Close.
func (s *SRQ) modify(mask uint32, maxWR, limit int) error {
	req := &abi.ModifySRQ{SRQHandle: s.handle, AttrMask: mask, MaxWR: uint32(maxWR), SRQLimit: uint32(limit)}
	return s.dev.driver.modifySRQ(s, mask&srqMaxWR != 0, func(u udata) error {
		errno := s.dev.cmd.legacy(abi.IB_USER_VERBS_CMD_MODIFY_SRQ, bytesOf(req), nil, u)
		return s.dev.cmd.fail("MODIFY_SRQ", errno, "")
	})
}

// Query reads the attributes from the device (ibv_query_srq).
func (s *SRQ) Query() (SRQAttr, error) {
	if err := s.acquire(); err != nil {
		return SRQAttr{}, err
	}
	defer s.release()
	req := &abi.QuerySRQ{SRQHandle: s.handle}
	resp := &abi.QuerySRQResp{}
	if errno := s.dev.cmd.legacy(abi.IB_USER_VERBS_CMD_QUERY_SRQ, bytesOf(req), bytesOf(resp), udata{}); errno != 0 {
		return SRQAttr{}, s.dev.cmd.fail("QUERY_SRQ", errno, "")
	}
	attr := SRQAttr{MaxWR: int(resp.MaxWR), MaxSGE: int(resp.MaxSGE), Limit: int(resp.SRQLimit)}
	s.queried(&attr)
	return attr, nil
}

// destroyKernel destroys the kernel's object.
func (s *SRQ) destroyKernel() error {
	cmd := newIoctl(abi.UVERBS_OBJECT_SRQ, abi.UVERBS_METHOD_SRQ_DESTROY)
	defer cmd.done()
	cmd.obj(abi.UVERBS_ATTR_DESTROY_SRQ_HANDLE, s.handle)
	resp := &abi.DestroySRQResp{}
	cmd.out(abi.UVERBS_ATTR_DESTROY_SRQ_RESP, bytesOf(resp))
	errno := s.dev.cmd.ioctl(cmd)
	if absent(errno) {
		req := &abi.DestroySRQ{SRQHandle: s.handle}
		errno = s.dev.cmd.legacy(abi.IB_USER_VERBS_CMD_DESTROY_SRQ, bytesOf(req), bytesOf(resp), udata{})
	}
	return s.dev.cmd.fail(s.destroy, errno, "")
}

// Close destroys the queue (ibv_destroy_srq). It fails with EBUSY while a QP uses it.
func (s *SRQ) Close() error {
	return s.close(func() error {
		if err := s.destroyKernel(); err != nil {
			return err
		}
		s.dev.targets.drop(s.cookie)
		return nil
	}, func() error {
		s.post.Lock() // waits for a PostRecv in progress
		defer s.post.Unlock()
		return s.dev.driver.freeSRQ(s)
	})
}
