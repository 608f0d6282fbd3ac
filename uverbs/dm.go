package uverbs

import (
	"fmt"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// DMOptions are the options of [Device.AllocDM]. The zero value requires no alignment.
type DMOptions struct {
	LogAlign uint32 // LogAlign is the base-2 logarithm of the alignment in bytes, up to 63.
}

// DM is memory on the device (struct ibv_dm). Work requests access it through an MR of [PD.RegDM],
// and the program with [DM.ReadAt] and [DM.WriteAt]. New memory may contain data of an earlier
// user. A DM is safe for concurrent use.
type DM struct {
	object
	handle uint32
	length uint64
	dmDrivers
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
	if o.LogAlign > 63 {
		return nil, argErr("AllocDM", "LogAlign", o.LogAlign, "0 to 63")
	}
	m := &DM{length: uint64(length)}
	if err := m.addParents(d, "DM", "FREE_DM", &d.object); err != nil {
		return nil, err
	}
	cmd := newIoctl(abi.UVERBS_OBJECT_DM, abi.UVERBS_METHOD_DM_ALLOC)
	defer cmd.done()
	handle := cmd.newObj(abi.UVERBS_ATTR_ALLOC_DM_HANDLE)
	cmd.u64(abi.UVERBS_ATTR_ALLOC_DM_LENGTH, m.length)
	cmd.u32(abi.UVERBS_ATTR_ALLOC_DM_ALIGNMENT, o.LogAlign)
	if d.mlx5 != nil {
		m.allocAttrsMlx5(cmd)
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
		err = m.queryMlx5()
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
	}, m.unmapMlx5)
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
	if err := m.copyMlx5(int(off), b, store); err != nil {
		return 0, err
	}
	return len(b), nil
}

// RegDM registers length bytes of device memory from offset on (ibv_reg_dm_mr). Addresses in the MR
// begin at 0, and [MR.Bytes] returns nil. Close the MR before the DM.
func (p *PD) RegDM(dm *DM, offset, length int, access Access) (*MR, error) {
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
