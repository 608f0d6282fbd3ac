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
// ConnectX-8 have beside a GPU; DataDirectPath of package uverbs/mlx5 says where. The exporter must be able to pin the
// memory, and the address of the region's first byte is a multiple of a page's size. The kernel leaves out
// AccessRelaxedOrdering where the function does not have it, and takes the region away when the function is
// removed. The error is a [FeatureError] if the adapter has no such function, or before Linux 6.12. No test
// here has such an adapter: what they see is how the option is refused.
func (p *PD) RegDMABuf(f *os.File, o MROptions) (*MR, error) {
	const op = "RegDMABuf"
	if err := p.usable(); err != nil {
		return nil, err
	}
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
	s := &region{access: o.Access, start: uint64(offset), length: uint64(length), direct: o.DataDirect, file: true}
	if s.iova, err = o.iova(op, s.start, s.length); err != nil {
		return nil, err
	}
	if err = o.checkDataDirect(op, s.iova); err != nil {
		return nil, err
	}
	mr := &MR{}
	if err = mr.registerFile(p, s, o.DMAH, f); err != nil {
		return nil, err
	}
	return mr, mr.markCreated(mr)
}

// checkDataDirect returns an error if options exclude DataDirect.
func (o *MROptions) checkDataDirect(op string, iova uint64) error {
	page := uint64(os.Getpagesize())
	switch {
	case !o.DataDirect:
	case o.DMAH != nil:
		return argErr(op, "DMAH", "set", "nil with DataDirect")
	case iova%page != 0 && o.IOVA != nil:
		return argErr(op, "IOVA", iova, "multiples of a page's %d bytes, with DataDirect", page)
	case iova%page != 0:
		return argErr(op, "Offset", o.Offset, "multiples of a page's %d bytes, with DataDirect", page)
	}
	return nil
}

// registerFile registers the dma-buf of a file.
func (m *MR) registerFile(p *PD, s *region, h *DMAH, f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return fmt.Errorf("uverbs: RegDMABuf: %w", err)
	}
	if err = p.dev.supportsMR("REG_DMABUF_MR", s); err != nil {
		return err
	}
	if err = m.use(p, h); err != nil {
		return err
	}
	// Control keeps the descriptor open, so that its number is not reused.
	if raw.Control(func(fd uintptr) { err = m.registerDMABuf(p, s, h, int(fd)) }) != nil {
		err = fmt.Errorf("uverbs: RegDMABuf: %w", os.ErrClosed)
	}
	if err != nil {
		m.removeParents()
	}
	return err
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
		return p.dev.cmd.failSince("REG_DMABUF_MR", errno, p.dev.dmabufHint(errno), Version{5, 12})
	}
	m.handle = uint32(handle.Data)
	m.setRegion(s, le32(lkey[:]), le32(rkey[:]))
	return nil
}

// dmabufHint explains a refused dma-buf.
func (d *Device) dmabufHint(errno syscall.Errno) string {
	if errno == syscall.EINVAL || errno == syscall.EBADF {
		return "the file may not be a dma-buf" + d.driver.capabilities().noDMABuf
	}
	return ""
}

// TPHMemType is the kind of memory that a DMA handle is for (enum ibv_tph_mem_type).
type TPHMemType uint8

// Kinds of memory. The kernel's numbers are one less, because the zero value here selects none.
const (
	TPHMemVolatile   TPHMemType = 1 + iota // volatile memory (IBV_TPH_MEM_TYPE_VM)
	TPHMemPersistent                       // persistent memory (IBV_TPH_MEM_TYPE_PM)
)

// DMAHOptions are the options of [Device.AllocDMAH]. Nil and zero fields are left to the device.
type DMAHOptions struct {
	CPU            *int       // CPU is the processor whose cache receives the data; the calling thread must be allowed to run there.
	MemType        TPHMemType // MemType is the kind of memory.
	ProcessingHint *uint8     // ProcessingHint is the processing hint of PCI, 0 to 3: how device and processor will use the data.
}

// maxProcessingHint is the largest 2-bit value.
const maxProcessingHint = 3

// DMAH is a DMA handle (struct ibv_dmah). It selects the cache that a device's accesses go to, by
// PCI's TLP processing hints. It needs Linux 6.17 and a card whose mlx5 driver has them. It has
// only been tested on devices that refuse it. A DMAH is safe for concurrent use.
type DMAH struct {
	object
	handle uint32
}

// AllocDMAH allocates a DMA handle (ibv_alloc_dmah). It fails with EPERM if the calling thread may
// not run on the processor o.CPU.
func (d *Device) AllocDMAH(o DMAHOptions) (*DMAH, error) {
	if o.CPU != nil && (*o.CPU < 0 || int64(*o.CPU) >= 1<<32) {
		return nil, argErr("AllocDMAH", "CPU", *o.CPU, "the number of a processor, from 0")
	}
	if o.MemType > TPHMemPersistent {
		return nil, argErr("AllocDMAH", "MemType", o.MemType, "the TPHMem constants, or zero")
	}
	if o.ProcessingHint != nil && *o.ProcessingHint > maxProcessingHint {
		return nil, argErr("AllocDMAH", "ProcessingHint", *o.ProcessingHint, "0 to %d", maxProcessingHint)
	}
	h := &DMAH{}
	if err := h.addParents(d, "DMAH", "DEALLOC_DMAH", &d.object); err != nil {
		return nil, err
	}
	cmd := newIoctl(abi.UVERBS_OBJECT_DMAH, abi.UVERBS_METHOD_DMAH_ALLOC)
	defer cmd.done()
	handle := cmd.newObj(abi.UVERBS_ATTR_ALLOC_DMAH_HANDLE)
	if o.CPU != nil {
		cmd.u32(abi.UVERBS_ATTR_ALLOC_DMAH_CPU_ID, uint32(*o.CPU))
	}
	if o.MemType != 0 {
		cmd.attr(abi.UVERBS_ATTR_ALLOC_DMAH_TPH_MEM_TYPE).Enum = uint8(o.MemType - 1) // one without an input
	}
	if o.ProcessingHint != nil {
		cmd.in(abi.UVERBS_ATTR_ALLOC_DMAH_PH, []byte{*o.ProcessingHint})
	}
	if errno := d.cmd.ioctl(cmd); errno != 0 {
		h.removeParents()
		return nil, d.cmd.fail("ALLOC_DMAH", errno, o.hint(errno))
	}
	h.handle = uint32(handle.Data)
	return h, h.markCreated(h)
}

// hint explains a refused allocation.
func (o *DMAHOptions) hint(errno syscall.Errno) string {
	switch {
	case o.CPU == nil:
		return ""
	case errno == syscall.EPERM:
		return fmt.Sprintf("the calling thread is not allowed on processor %d (sched_setaffinity, cpuset)", *o.CPU)
	case errno == syscall.EINVAL:
		return fmt.Sprintf("there may be no processor %d", *o.CPU)
	}
	return ""
}

// Close frees the handle (ibv_dealloc_dmah).
func (h *DMAH) Close() error {
	return h.close(func() error {
		errno := h.dev.cmd.destroy(abi.UVERBS_OBJECT_DMAH, abi.UVERBS_METHOD_DMAH_FREE, abi.UVERBS_ATTR_FREE_DMA_HANDLE, h.handle)
		return h.dev.cmd.fail(h.destroy, errno, "")
	}, nil)
}
