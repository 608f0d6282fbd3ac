package uverbs

import (
	"fmt"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// DMOptions are the options of [Device.AllocDM]; the zero value has no wish as to where
// the memory begins.
type DMOptions struct {
	LogAlign uint32 // LogAlign is the binary logarithm of the alignment, which is in bytes.
}

// DM is memory of the device itself (struct ibv_dm). It is safe for concurrent use.
//
// The program reaches it by work requests, with an MR of [PD.RegDMMR]. To copy to and from
// it by the processor takes a mapping that only the device's driver knows.
type DM struct {
	object
	handle uint32
	length uint64
}

// A dmDriver is a driver whose ALLOC_DM has attributes of its own.
type dmDriver interface{ dmAttrs(*ioctlCommand) }

// AllocDM allocates memory of the device (ibv_alloc_dm); [DeviceAttr.MaxDMSize] tells how
// much there is.
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
	if err := m.join(d, "DM", "FREE_DM", &d.object); err != nil {
		return nil, err
	}
	cmd := newIoctl(abi.UVERBS_OBJECT_DM, abi.UVERBS_METHOD_DM_ALLOC)
	handle := cmd.newObj(abi.UVERBS_ATTR_ALLOC_DM_HANDLE)
	cmd.u64(abi.UVERBS_ATTR_ALLOC_DM_LENGTH, m.length)
	cmd.u32(abi.UVERBS_ATTR_ALLOC_DM_ALIGNMENT, o.LogAlign)
	if drv, ok := d.driver.(dmDriver); ok {
		drv.dmAttrs(cmd)
	}
	if errno := d.cmd.ioctl(cmd); errno != 0 {
		m.leave()
		return nil, d.cmd.fail("ALLOC_DM", errno, "")
	}
	m.handle = uint32(handle.Data)
	return m, nil
}

// Len returns the memory's length in bytes.
func (m *DM) Len() int { return int(m.length) }

// Close frees the memory (ibv_free_dm). It fails with EBUSY while an MR uses it.
func (m *DM) Close() error {
	return m.close(func() error {
		cmd := newIoctl(abi.UVERBS_OBJECT_DM, abi.UVERBS_METHOD_DM_FREE)
		cmd.obj(abi.UVERBS_ATTR_FREE_DM_HANDLE, m.handle)
		return m.dev.cmd.fail(m.destroy, m.dev.cmd.ioctl(cmd), "")
	}, nil)
}

// RegDMMR registers part of the device's memory (ibv_reg_dm_mr). Addresses in the MR begin
// at 0, and it has no [MR.Bytes]. The DM cannot be closed before the MR.
func (p *PD) RegDMMR(dm *DM, offset, length int, access Access) (*MR, error) {
	if dm == nil {
		return nil, argErr("RegDMMR", "dm", "nil", "a DM")
	}
	if access&^accessPeer != 0 {
		return nil, argErr("RegDMMR", "access", fmt.Sprintf("%#x", uint32(access)), "rights of local and remote access, together %#x", uint32(accessPeer))
	}
	if access&(AccessRemoteWrite|AccessRemoteAtomic) != 0 && access&AccessLocalWrite == 0 {
		return nil, argErr("RegDMMR", "access", fmt.Sprintf("%#x", uint32(access)), "remote write and remote atomic only together with AccessLocalWrite")
	}
	if offset < 0 || uint64(offset) > dm.length {
		return nil, argErr("RegDMMR", "offset", offset, "0 to %d", dm.length)
	}
	if limit := dm.length - uint64(offset); length < 1 || uint64(length) > limit {
		return nil, argErr("RegDMMR", "length", length, "1 to %d", limit)
	}
	s := &region{access: access, length: uint64(length)}
	mr := &MR{pd: p}
	if err := mr.join(p.dev, "MR", "DEREG_MR", &p.object, &dm.object); err != nil {
		return nil, err
	}
	cmd := newIoctl(abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_DM_MR_REG)
	handle := cmd.newObj(abi.UVERBS_ATTR_REG_DM_MR_HANDLE)
	cmd.u64(abi.UVERBS_ATTR_REG_DM_MR_OFFSET, uint64(offset))
	cmd.u64(abi.UVERBS_ATTR_REG_DM_MR_LENGTH, s.length)
	cmd.obj(abi.UVERBS_ATTR_REG_DM_MR_PD_HANDLE, p.handle)
	// The kernel wants to be told that addresses begin at 0, which they do in any case.
	cmd.u32(abi.UVERBS_ATTR_REG_DM_MR_ACCESS_FLAGS, uint32(access)|abi.IB_UVERBS_ACCESS_ZERO_BASED)
	cmd.obj(abi.UVERBS_ATTR_REG_DM_MR_DM_HANDLE, dm.handle)
	lkey, rkey := make([]byte, 4), make([]byte, 4)
	cmd.out(abi.UVERBS_ATTR_REG_DM_MR_RESP_LKEY, lkey)
	cmd.out(abi.UVERBS_ATTR_REG_DM_MR_RESP_RKEY, rkey)
	if errno := p.dev.cmd.ioctl(cmd); errno != 0 {
		mr.leave()
		return nil, p.dev.cmd.fail("REG_DM_MR", errno, "")
	}
	mr.handle = uint32(handle.Data)
	mr.become(s, le32(lkey), le32(rkey))
	return mr, nil
}
