package uverbs

import (
	"slices"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// Flags that say what a reregistration changes (enum ib_mr_rereg_flags). They are part of the
// command, but not in the kernel's uapi headers.
const (
	reregTranslation = 1 << 0
	reregPD          = 1 << 1
	reregAccess      = 1 << 2
)

// ReregOptions say what [MR.Rereg] changes. Zero fields leave it as it is. Offset, Length and IOVA
// require Buffer.
type ReregOptions struct {
	PD     *PD     // PD is the new protection domain.
	Access *Access // Access are the new access rights, for example new(uverbs.AccessLocalWrite).
	Buffer *Buffer // Buffer is the new memory.

	Offset int     // Offset is the start of the region in Buffer, in bytes.
	Length int     // Length is the length of the region in bytes; by default up to the end of Buffer.
	IOVA   *uint64 // IOVA is the address of the first byte, as in [MROptions].
}

// Rereg changes the memory, the PD or the access rights of a region (ibv_rereg_mr). The keys may
// change, so send them to the peer again. Work requests that use the region must have completed. No
// other method of the region may be called meanwhile.
//
// After a [FeatureError], for a change that the driver does not support, or an [ArgError] the
// region is unchanged. After any other error it can only be closed.
func (m *MR) Rereg(o ReregOptions) error {
	if err := m.acquire(); err != nil {
		return err
	}
	defer m.release()
	s, req, err := o.request(m)
	if err != nil {
		return err
	}
	was := m.pd
	pd := was
	if o.PD != nil {
		pd = o.PD
	}
	if err = m.addParent(&pd.object); err == nil {
		resp := &abi.ReregMRResp{}
		errno := m.dev.cmd.legacy(abi.IB_USER_VERBS_CMD_REREG_MR, bytesOf(req), bytesOf(resp), udata{})
		if errno == 0 {
			m.removeParent(&was.object)
			if o.Buffer != nil {
				m.releaseMemory(&m.mem)
			}
			m.dev.tree.Lock() // mrOf may read them
			defer m.dev.tree.Unlock()
			m.pd = pd
			m.setRegion(s, resp.LKey, resp.RKey)
			return nil
		}
		m.removeParent(&pd.object)
		err = m.dev.regError("REREG_MR", errno, s)
	}
	if o.Buffer != nil {
		o.Buffer.release()
	}
	return err
}

// request returns the new region and the command for it. The caller releases the new buffer.
func (o *ReregOptions) request(m *MR) (*region, *abi.ReregMR, error) {
	const op = "Rereg"
	if m.imported {
		return nil, nil, argErr(op, "MR", "imported", "an MR that this process registered")
	}
	s := m.mem
	req := &abi.ReregMR{MRHandle: m.handle}
	if o.Access != nil {
		s.access = *o.Access
		req.Flags |= reregAccess
	}
	if o.PD != nil {
		req.PDHandle = o.PD.handle
		req.Flags |= reregPD
		if o.PD.dev != m.dev {
			return nil, nil, argErr(op, "PD", "of "+m.dev.other(o.PD.dev), "a PD of %s", m.dev.Name())
		}
	}
	if o.Buffer == nil && (o.Offset != 0 || o.Length != 0 || o.IOVA != nil) {
		return nil, nil, argErr(op, "Buffer", "nil", "a buffer, since Offset, Length or IOVA are given")
	}
	if o.Buffer == nil && req.Flags == 0 {
		return nil, nil, argErr(op, "options", "empty", "at least one of PD, Access and Buffer")
	}
	if err := m.dev.checkAccess(op, s.access, accessMR); err != nil {
		return nil, nil, err
	}
	req.AccessFlags = uint32(s.access)
	if o.Buffer == nil {
		return &s, req, nil
	}
	if err := m.dev.cmd.untranslated("REREG_MR with new memory"); err != nil {
		return nil, nil, err
	}
	part := MROptions{Access: s.access, Offset: o.Offset, Length: o.Length, IOVA: o.IOVA}
	next := new(region)
	if err := part.region(op, o.Buffer, next); err != nil {
		return nil, nil, err
	}
	if err := m.dev.checkReregIOVA(next); err != nil {
		o.Buffer.release()
		return nil, nil, err
	}
	req.Start, req.Length, req.HCAVA = next.start, next.length, next.iova
	req.Flags |= reregTranslation
	return next, req, nil
}

// other names another device, which may be the same one opened twice.
func (d *Device) other(of *Device) string {
	switch {
	case of == nil:
		return "no device"
	case of.Name() == d.Name():
		return "another Open of " + d.Name()
	}
	return of.Name()
}

// checkReregIOVA refuses an IOVA that an older kernel would use as the address of the memory.
func (d *Device) checkReregIOVA(s *region) error {
	since := d.driver.capabilities().reregIOVASince
	if v := d.cmd.kernelVersion(); s.iova != s.start && v != (Version{}) && slices.Compare(v[:], since[:]) < 0 {
		return &FeatureError{Feature: "REREG_MR with an IOVA", Since: since, Driver: d.driver.name()}
	}
	return nil
}
