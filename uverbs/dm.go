package uverbs

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// DMOptions are the options of [Device.AllocDM]. The zero value requires no alignment.
type DMOptions struct {
	Align int // Align is the alignment in bytes, a power of two; 0 is any.
}

// DM is memory on the device (struct ibv_dm). Work requests access it through an MR of [PD.RegDM],
// and the program with [DM.ReadAt] and [DM.WriteAt]. New memory may contain data of an earlier
// user. A DM is safe for concurrent use.
type DM struct {
	object
	handle uint32
	length uint64
	mlx5   *mlx5DM // nil if the driver has no device memory
}

// dmWord is the unit of access to device memory, in bytes.
const dmWord = 4

// AllocDM allocates length bytes of device memory (ibv_alloc_dm). [DeviceAttr].MaxDMSize is the
// size of the device's memory.
func (d *Device) AllocDM(length int, o DMOptions) (*DM, error) {
	if length < 1 {
		return nil, argErr("AllocDM", "length", length, "1 byte and more")
	}
	if limit := d.attr.MaxDMSize; limit > 0 && uint64(length) > limit {
		return nil, argErr("AllocDM", "length", length, "1 to %d bytes (max_dm_size of %s)", limit, d.Name())
	}
	if o.Align < 0 || o.Align&(o.Align-1) != 0 {
		return nil, argErr("AllocDM", "Align", o.Align, "powers of two, and 0 for any")
	}
	m := &DM{length: uint64(length)}
	if err := m.addParents(d, "DM", "FREE_DM", &d.object); err != nil {
		return nil, err
	}
	cmd := newIoctl(abi.UVERBS_OBJECT_DM, abi.UVERBS_METHOD_DM_ALLOC)
	defer cmd.done()
	handle := cmd.newObj(abi.UVERBS_ATTR_ALLOC_DM_HANDLE)
	cmd.u64(abi.UVERBS_ATTR_ALLOC_DM_LENGTH, m.length)
	cmd.u32(abi.UVERBS_ATTR_ALLOC_DM_ALIGNMENT, uint32(bits.TrailingZeros(uint(max(o.Align, 1)))))
	if d.mlx5 != nil { // the kernel requires the attributes for the location
		m.mlx5 = &mlx5DM{}
		cmd.out(mlx5.AttrDMPage, m.mlx5.page[:2])
		cmd.out(mlx5.AttrDMOffset, m.mlx5.start[:])
	}
	if errno := d.cmd.ioctl(cmd); errno != 0 {
		m.removeParents()
		return nil, d.cmd.fail("ALLOC_DM", errno, "")
	}
	m.handle = uint32(handle.Data)
	return m, m.markCreated(m)
}

// ImportDM imports device memory that another process has allocated on the same device, by its handle
// ([DM.Handle], ibv_import_dm). This process can then register it, read it and write it. Close leaves
// the memory allocated. It needs Linux 5.13. The error is a [FeatureError] if the driver has no
// device memory.
func (d *Device) ImportDM(handle uint32) (*DM, error) {
	m := &DM{handle: handle}
	m.imported = true
	if err := m.addParents(d, "DM", "FREE_DM", &d.object); err != nil {
		return nil, err
	}
	err := noFeature(d, "ImportDM")
	if d.mlx5 != nil {
		err = m.query()
	}
	if err != nil {
		m.removeParents()
		return nil, err
	}
	return m, m.markCreated(m)
}

// Len returns the memory's length in bytes.
func (m *DM) Len() int { return int(m.length) }

// Handle returns the kernel's handle of the memory, for [Device.ImportDM] in a process that shares
// the device.
func (m *DM) Handle() uint32 { return m.handle }

// Close frees the memory (ibv_free_dm). It fails with EBUSY while an MR uses it, also one of another
// process. Memory of [Device.ImportDM] stays with its owner (ibv_unimport_dm).
func (m *DM) Close() error {
	return m.close(func() error {
		if m.imported {
			return nil
		}
		errno := m.dev.cmd.destroy(abi.UVERBS_OBJECT_DM, abi.UVERBS_METHOD_DM_FREE, abi.UVERBS_ATTR_FREE_DM_HANDLE, m.handle)
		return m.dev.endShared(m.destroy, errno)
	}, m.unmap)
}

// WriteAt copies b to the memory at offset off (ibv_memcpy_to_dm). It is like [io.WriterAt], but
// off and the length of b must be multiples of 4 bytes, and the range must be within the memory;
// otherwise it fails with an [ArgError] and copies nothing. Work requests posted later see the
// data. The error is a [FeatureError] if the driver cannot map the memory.
func (m *DM) WriteAt(b []byte, off int64) (int, error) {
	return m.access("WriteAt", b, off, true)
}

// ReadAt copies from the memory at offset off to b, with the conditions of WriteAt
// (ibv_memcpy_from_dm). It sees the data of work requests whose completions were polled before.
// Every 4 bytes are a separate read of the device, which takes about a microsecond, so use RDMA
// READ for long reads.
func (m *DM) ReadAt(b []byte, off int64) (int, error) {
	return m.access("ReadAt", b, off, false)
}

// access copies to or from the memory, by store.
func (m *DM) access(op string, b []byte, off int64, store bool) (int, error) {
	if err := m.acquire(); err != nil {
		return 0, err
	}
	defer m.release()
	if off < 0 || uint64(off) > m.length || off%dmWord != 0 {
		return 0, argErr(op, "off", off, "multiples of %d from 0 to %d", dmWord, m.length)
	}
	if limit := m.length - uint64(off); uint64(len(b)) > limit || len(b)%dmWord != 0 {
		return 0, argErr(op, "length of b", len(b), "multiples of %d from 0 to %d", dmWord, limit)
	}
	if m.mlx5 == nil {
		return 0, noFeature(m.dev, "MEMCPY_DM")
	}
	if len(b) == 0 {
		return 0, nil
	}
	if err := m.copy(int(off), b, store); err != nil {
		return 0, err
	}
	return len(b), nil
}

// RegDM registers length bytes of device memory from offset on (ibv_reg_dm_mr). Addresses in the MR
// begin at 0, and [MR.Bytes] returns nil. Close the MR before the DM.
func (p *PD) RegDM(dm *DM, offset, length int, access Access) (*MR, error) {
	if err := p.usable(); err != nil {
		return nil, err
	}
	if dm == nil {
		return nil, argErr("RegDM", "dm", "nil", "a DM")
	}
	if access&^accessPeer != 0 {
		return nil, argErr("RegDM", "access", fmt.Sprintf("%#x", uint32(access)), "any of the bits %#x", uint32(accessPeer))
	}
	if access&(AccessRemoteWrite|AccessRemoteAtomic) != 0 && access&AccessLocalWrite == 0 {
		return nil, argErr("RegDM", "access", fmt.Sprintf("%#x", uint32(access)), "AccessLocalWrite, too, if AccessRemoteWrite or AccessRemoteAtomic is set")
	}
	if offset < 0 || uint64(offset) > dm.length {
		return nil, argErr("RegDM", "offset", offset, "0 to %d", dm.length)
	}
	if limit := dm.length - uint64(offset); length < 1 || uint64(length) > limit {
		return nil, argErr("RegDM", "length", length, "1 to %d", limit)
	}
	s := &region{access: access, length: uint64(length)}
	mr := &MR{pd: p}
	if err := mr.addParents(p.dev, "MR", "DEREG_MR", &p.object, &dm.object); err != nil {
		return nil, err
	}
	cmd := newIoctl(abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_DM_MR_REG)
	defer cmd.done()
	handle := cmd.newObj(abi.UVERBS_ATTR_REG_DM_MR_HANDLE)
	cmd.u64(abi.UVERBS_ATTR_REG_DM_MR_OFFSET, uint64(offset))
	cmd.u64(abi.UVERBS_ATTR_REG_DM_MR_LENGTH, s.length)
	cmd.obj(abi.UVERBS_ATTR_REG_DM_MR_PD_HANDLE, p.handle)
	// Addresses always begin at 0, but the kernel requires the flag.
	cmd.u32(abi.UVERBS_ATTR_REG_DM_MR_ACCESS_FLAGS, uint32(access)|abi.IB_UVERBS_ACCESS_ZERO_BASED)
	cmd.obj(abi.UVERBS_ATTR_REG_DM_MR_DM_HANDLE, dm.handle)
	lkey, rkey := make([]byte, 4), make([]byte, 4)
	cmd.out(abi.UVERBS_ATTR_REG_DM_MR_RESP_LKEY, lkey)
	cmd.out(abi.UVERBS_ATTR_REG_DM_MR_RESP_RKEY, rkey)
	if errno := p.dev.cmd.ioctl(cmd); errno != 0 {
		mr.removeParents()
		return nil, p.dev.cmd.fail("REG_DM_MR", errno, "")
	}
	mr.handle = uint32(handle.Data)
	mr.setRegion(s, le32(lkey), le32(rkey))
	return mr, mr.markCreated(mr)
}

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
	page, start, err := m.locate()
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

// mlx5DM is the location of device memory and its mapping, which is created on first use.
type mlx5DM struct {
	page, start [8]byte // the kernel's response

	mu     sync.Mutex
	region *mmio.Region // guarded by mu
	mem    *mlx5.Memory // guarded by mu
}

// dmWord must be the word size of the device.
const _ = -(dmWord ^ mlx5.WordSize)

// query reads the location and the length of imported memory (MLX5_IB_METHOD_DM_QUERY).
func (m *DM) query() error {
	m.mlx5 = &mlx5DM{}
	cmd := newIoctl(abi.UVERBS_OBJECT_DM, mlx5.MethodDMQuery)
	defer cmd.done()
	var length [8]byte
	cmd.obj(mlx5.AttrDMQueryHandle, m.handle)
	cmd.out(mlx5.AttrDMQueryPage, m.mlx5.page[:2])
	cmd.out(mlx5.AttrDMQueryOffset, m.mlx5.start[:])
	cmd.out(mlx5.AttrDMQueryLength, length[:])
	errno := m.dev.cmd.ioctl(cmd)
	m.length = le64(length[:])
	return m.dev.importErr("QUERY_DM", "DM", m.handle, errno, Version{5, 13})
}

// copy copies b to the memory, or from it. b is within the memory.
func (m *DM) copy(at int, b []byte, store bool) error {
	mem, err := m.mlx5.mapped(m)
	switch {
	case err != nil:
		return err
	case store:
		mem.Store(at, b)
	default:
		mem.Load(at, b)
	}
	return nil
}

// mapped returns the mapping, and creates it on first use.
func (x *mlx5DM) mapped(m *DM) (*mlx5.Memory, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mem != nil {
		return x.mem, nil
	}
	offset, size := mlx5.MemoryMap(uint16(le64(x.page[:])), m.Len(), os.Getpagesize())
	region, err := m.dev.cmd.Map(offset, size)
	if errno := syscall.Errno(0); errors.As(err, &errno) { // EIO if the device was removed
		return nil, m.dev.cmd.fail("MAP_DM", errno, "")
	}
	if err != nil {
		return nil, fmt.Errorf("uverbs: %s: map device memory: %w", m.dev.Name(), err)
	}
	mem, err := mlx5.NewMemory(region.Bytes(), le64(x.start[:]), m.Len())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("uverbs: %s: %w", m.dev.Name(), err), region.Close())
	}
	x.region, x.mem = region, mem
	return mem, nil
}

// locate returns the offset at which programs map the memory, and where it begins in that mapping.
func (m *DM) locate() (page, start uint64, err error) {
	page, size := mlx5.MemoryMap(uint16(le64(m.mlx5.page[:])), m.Len(), os.Getpagesize())
	start = le64(m.mlx5.start[:])
	if start > uint64(size) || uint64(m.Len()) > uint64(size)-start {
		return 0, 0, fmt.Errorf("uverbs: %s: %d bytes of device memory at %#x of a mapping of %d: %w", m.dev.Name(), m.Len(), start, size, mlx5.ErrLayout)
	}
	return page, start, nil
}

// unmap removes the mapping, if there is one. Before that, the kernel does not give the memory to
// another process.
func (m *DM) unmap() error {
	x := m.mlx5
	if x == nil {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return mmio.RetireAll(x.region)
}
