package uverbs

import (
	"fmt"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

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
