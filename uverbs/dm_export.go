package uverbs

import (
	"os"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// ExportDMABuf exports the memory as a dma-buf (ibv_dm_export_dmabuf_fd), which [PD.RegDMABuf] of
// another Device can use, or another driver that imports dma-bufs for transfers between PCI devices and
// does not pin them. The file has whole pages; the
// memory begins at the offset, in bytes, and has the length of the DM:
//
//	f, offset, err := dm.ExportDMABuf()
//	mr, err := pd.RegDMABuf(f, uverbs.MROptions{Offset: offset, Length: dm.Len(), Access: access})
//
// The data goes from one PCI device to the other, so the two must be able to reach each other: they
// are the same device, are behind one PCIe switch, or the host bridge forwards between them. The kernel
// finds that out when the memory is registered or first accessed.
//
// The caller closes the file; a region of RegDMABuf needs it no more. Once the DM is closed by the process
// that allocated it, the kernel revokes the dma-buf, and accesses to regions of it fail.
//
// The error is a [FeatureError] if the driver or the kernel does not support it. It needs Linux 7.0
// with CONFIG_PCI_P2PDMA, and mlx5 supports it.
func (m *DM) ExportDMABuf() (f *os.File, offset int, err error) {
	if err := m.acquire(); err != nil {
		return nil, 0, err
	}
	defer m.release()
	d := m.dev
	if m.mlx5 == nil {
		return nil, 0, noFeature(d, "EXPORT_DMABUF")
	}
	page, start, err := m.locateMlx5()
	if err != nil {
		return nil, 0, err
	}
	cmd := newIoctl(abi.UVERBS_OBJECT_DMABUF, abi.UVERBS_METHOD_DMABUF_ALLOC)
	defer cmd.done()
	fd := cmd.newObj(abi.UVERBS_ATTR_ALLOC_DMABUF_HANDLE)
	cmd.u64(abi.UVERBS_ATTR_ALLOC_DMABUF_PGOFF, page)
	if errno := d.cmd.ioctl(cmd); errno != 0 {
		hint := ""
		if errno == syscall.EINVAL && m.imported {
			hint = "the memory may have been freed by the process that allocated it"
		}
		return nil, 0, d.cmd.failSince("EXPORT_DMABUF", errno, hint, Version{7, 0})
	}
	return os.NewFile(uintptr(fd.Data), "dma-buf of "+d.Name()), int(start), nil
}
