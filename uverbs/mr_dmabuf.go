package uverbs

import (
	"fmt"
	"math"
	"os"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// RegDMABuf registers memory of another device, such as a GPU, that its driver exports as a dma-buf
// (ibv_reg_dmabuf_mr). The options Offset and Length select a part of it. Without IOVA the address
// of the region's first byte is Offset. The file may be closed afterwards. RegDMABuf needs Linux
// 5.12, the ioctl interface and a driver that supports it.
//
// With the option DataDirect the adapter accesses the memory through a second PCI function, which some
// ConnectX-8 have beside a GPU; [Device.DataDirectPath] says where. The exporter must be able to pin the
// memory, and the address of the region's first byte is a multiple of a page's size. The kernel leaves out
// AccessRelaxedOrdering where the function does not have it, and takes the region away when the function is
// removed. The error is a [FeatureError] if the adapter has no such function, or before Linux 6.12. No test
// here has such an adapter: what they see is how the option is refused.
func (p *PD) RegDMABuf(f *os.File, o MROptions) (*MR, error) {
	const op = "RegDMABuf"
	if f == nil {
		return nil, argErr(op, "file", "nil", "the file of a dma-buf")
	}
	if err := p.dev.checkAccess(op, o.Access, accessDMABuf); err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("uverbs: %s: %w", op, err)
	}
	if size := info.Size(); size > math.MaxInt || size <= 0 {
		return nil, argErr(op, "file", fmt.Sprintf("%d bytes long", size), "the file of a dma-buf")
	}
	offset, length, err := o.part(op, int(info.Size()))
	if err != nil {
		return nil, err
	}
	s := &region{access: o.Access, start: uint64(offset), length: uint64(length), direct: o.DataDirect}
	if s.iova, err = o.iova(op, s.start, s.length); err != nil {
		return nil, err
	}
	if err = o.checkDataDirect(op, s.iova); err != nil {
		return nil, err
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("uverbs: %s: %w", op, err)
	}
	mr := &MR{}
	if err := mr.use(p, o.DMAH); err != nil {
		return nil, err
	}
	var regErr error
	// Control keeps the descriptor open, so that its number is not reused.
	if err = raw.Control(func(fd uintptr) { regErr = mr.registerDMABuf(p, s, o.DMAH, int(fd)) }); err == nil {
		err = regErr
	} else {
		err = fmt.Errorf("uverbs: %s: %w", op, os.ErrClosed)
	}
	if err != nil {
		mr.removeParents()
		return nil, err
	}
	return mr, mr.markCreated(mr)
}

// registerDMABuf registers the dma-buf of a descriptor.
func (m *MR) registerDMABuf(p *PD, s *region, h *DMAH, fd int) error {
	if h != nil {
		return p.dev.cmd.fail("REG_MR_EX", m.registerEx(p, s, h, fd), "")
	}
	var lkey, rkey [4]byte
	cmd := newIoctl(abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_REG_DMABUF_MR)
	defer cmd.done()
	handle := cmd.newObj(abi.UVERBS_ATTR_REG_DMABUF_MR_HANDLE)
	cmd.obj(abi.UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE, p.handle)
	cmd.u64(abi.UVERBS_ATTR_REG_DMABUF_MR_OFFSET, s.start)
	cmd.u64(abi.UVERBS_ATTR_REG_DMABUF_MR_LENGTH, s.length)
	cmd.u64(abi.UVERBS_ATTR_REG_DMABUF_MR_IOVA, s.iova)
	cmd.u32(abi.UVERBS_ATTR_REG_DMABUF_MR_FD, uint32(fd))
	cmd.u32(abi.UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS, uint32(s.access))
	cmd.out(abi.UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, lkey[:])
	cmd.out(abi.UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, rkey[:])
	if s.direct {
		if err := p.dev.addDataDirect(cmd); err != nil {
			return err
		}
	}
	switch errno := p.dev.cmd.ioctl(cmd); {
	case errno == 0:
	case s.direct:
		return p.dev.dataDirectError(errno)
	default:
		return p.dev.cmd.failSince("REG_DMABUF_MR", errno, dmabufHint(errno), Version{5, 12})
	}
	m.handle = uint32(handle.Data)
	m.setRegion(s, le32(lkey[:]), le32(rkey[:]))
	return nil
}

// dmabufHint explains a refused dma-buf.
func dmabufHint(errno syscall.Errno) string {
	if errno == syscall.EINVAL || errno == syscall.EBADF {
		return "the file may not be a dma-buf, or the adapter may not support it: mlx5_ib needs one that changes regions by work requests (UMR)"
	}
	return ""
}
