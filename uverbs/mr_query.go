package uverbs

import (
	"fmt"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// MRAttr are the kernel's attributes of a region.
type MRAttr struct {
	LKey   uint32 // LKey is the key for local work requests.
	RKey   uint32 // RKey is the key for the peer.
	Length uint64 // Length is the length in bytes.
	IOVA   uint64 // IOVA is the address of the first byte, like [MR.Addr].
}

// Query reads the region's keys and addresses from the kernel (UVERBS_METHOD_QUERY_MR). It needs
// Linux 5.9 and the ioctl interface.
func (m *MR) Query() (MRAttr, error) {
	if err := m.acquire(); err != nil {
		return MRAttr{}, err
	}
	defer m.release()
	a, errno := m.dev.queryMR(m.handle)
	return a, m.dev.cmd.failSince("QUERY_MR", errno, "", Version{5, 9})
}

// queryMR returns the attributes of the region with a handle.
func (d *Device) queryMR(handle uint32) (MRAttr, syscall.Errno) {
	var lkey, rkey [4]byte
	var length, iova [8]byte
	cmd := newIoctl(abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_QUERY_MR)
	defer cmd.done()
	cmd.obj(abi.UVERBS_ATTR_QUERY_MR_HANDLE, handle)
	cmd.out(abi.UVERBS_ATTR_QUERY_MR_RESP_LKEY, lkey[:])
	cmd.out(abi.UVERBS_ATTR_QUERY_MR_RESP_RKEY, rkey[:])
	cmd.out(abi.UVERBS_ATTR_QUERY_MR_RESP_LENGTH, length[:])
	cmd.out(abi.UVERBS_ATTR_QUERY_MR_RESP_IOVA, iova[:])
	if errno := d.cmd.ioctl(cmd); errno != 0 {
		return MRAttr{}, errno
	}
	return MRAttr{LKey: le32(lkey[:]), RKey: le32(rkey[:]), Length: le64(length[:]), IOVA: le64(iova[:])}, 0
}

// Advice is an argument of [PD.AdviseMR] (enum ib_uverbs_advise_mr_advice,
// rdma/ib_user_ioctl_verbs.h).
type Advice uint32

// Values of Advice.
const (
	AdvicePrefetch        Advice = abi.IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH          // page the memory in for reading (IBV_ADVISE_MR_ADVICE_PREFETCH)
	AdvicePrefetchWrite   Advice = abi.IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE    // page the memory in for writing (IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE)
	AdvicePrefetchNoFault Advice = abi.IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT // map only pages that are in memory already (IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT)
)

// String returns the advice's name.
func (a Advice) String() string {
	names := [...]string{"PREFETCH", "PREFETCH_WRITE", "PREFETCH_NO_FAULT"}
	if int(a) < len(names) {
		return names[a]
	}
	return fmt.Sprintf("advice %d", uint32(a))
}

// AdviseOptions are the options of [PD.AdviseMR]; the zero value does not wait.
type AdviseOptions struct {
	Flush bool // Flush waits until the advice was followed (IBV_ADVISE_MR_FLAG_FLUSH).
}

// maxAdvise is the maximum number of SGEs in an attribute.
const maxAdvise = 4095

// AdviseMR tells the device that memory of on-demand regions is about to be used (ibv_advise_mr).
// Without o.Flush the advice is a hint, and failing to follow it is no error. The error is a
// [FeatureError] if the driver does not support on-demand paging. Give rxe of Linux 7.2 no other
// regions than those with [AccessOnDemand]: it may crash the kernel.
func (p *PD) AdviseMR(a Advice, sgl []SGE, o AdviseOptions) error {
	const op = "AdviseMR"
	if a > AdvicePrefetchNoFault {
		return argErr(op, "advice", uint32(a), "the Advice constants, up to %d", uint32(AdvicePrefetchNoFault))
	}
	if len(sgl) == 0 || len(sgl) > maxAdvise {
		return argErr(op, "number of SGEs", len(sgl), "1 to %d", maxAdvise)
	}
	list := make([]abi.SGE, len(sgl))
	for i, s := range sgl {
		if s.outside {
			return fmt.Errorf("uverbs: %s: SGE %d: %w", op, i, ErrSGERange)
		}
		list[i] = abi.SGE{Addr: s.Addr, Length: s.Length, LKey: s.LKey}
	}
	if err := p.acquire(); err != nil {
		return err
	}
	defer p.release()
	var flags uint64
	if o.Flush {
		flags |= abi.IB_UVERBS_ADVISE_MR_FLAG_FLUSH
	}
	cmd := newIoctl(abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_ADVISE_MR)
	defer cmd.done()
	cmd.obj(abi.UVERBS_ATTR_ADVISE_MR_PD_HANDLE, p.handle)
	cmd.u64(abi.UVERBS_ATTR_ADVISE_MR_ADVICE, uint64(a))
	cmd.u64(abi.UVERBS_ATTR_ADVISE_MR_FLAGS, flags)
	cmd.in(abi.UVERBS_ATTR_ADVISE_MR_SGE_LIST, sliceBytes(list))
	errno := p.dev.cmd.ioctl(cmd)
	hint := ""
	switch errno {
	case syscall.EINVAL, syscall.ENOENT, syscall.EPERM, syscall.EFAULT:
		hint = "an SGE may be outside every on-demand MR of this PD, or its memory may not be mapped or not be writable"
	}
	return p.dev.cmd.failSince("ADVISE_MR", errno, hint, Version{5, 0})
}
