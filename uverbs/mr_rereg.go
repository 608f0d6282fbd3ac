package uverbs

import (
	"slices"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// What a reregistration changes (enum ib_mr_rereg_flags). No header for programs has
// these numbers; they are part of the command all the same.
const (
	reregTranslation = 1 << 0
	reregPD          = 1 << 1
	reregAccess      = 1 << 2
)

// ReregOptions say what [MR.Rereg] changes; what is zero stays as it is.
type ReregOptions struct {
	PD     *PD     // PD is the protection domain to move to.
	Access *Access // Access are the new rights, for example new(uverbs.AccessLocalWrite).
	Buffer *Buffer // Buffer is the new memory.

	// Offset, Length and IOVA choose the part of Buffer and its address, as in
	// [MROptions]; they go with Buffer only.
	Offset int
	Length int        // Length is the region's length; 0 is up to the end.
	IOVA   IOVAChoice // IOVA is the address of its first byte.
}

// Rereg changes a region: its memory, its PD or its rights (ibv_rereg_mr). The keys may
// change with it, so tell the peer. Work requests that name the region must have
// completed, and its other methods must not be called meanwhile. A driver that lacks the change says so with a [FeatureError], which leaves
// the region as it was, as does an [ArgError]; after any other error it can only be
// closed.
func (m *MR) Rereg(o ReregOptions) error {
	return m.whileOpen(func() error { return m.rereg(o) })
}

// rereg is Rereg; the region is not closed meanwhile.
func (m *MR) rereg(o ReregOptions) error {
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
			m.pd = pd
			if o.Buffer != nil {
				m.releaseMemory(&m.mem)
			}
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

// request returns what the region shall become, which holds the new buffer, and the
// command for it.
func (o *ReregOptions) request(m *MR) (*region, *abi.ReregMR, error) {
	const op = "Rereg"
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
	if o.Buffer == nil && (o.Offset != 0 || o.Length != 0 || o.IOVA.given) {
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
	part := MROptions{Access: s.access, Offset: o.Offset, Length: o.Length, IOVA: o.IOVA}
	next, err := part.region(op, o.Buffer)
	if err != nil {
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

// other names a device that is not d, which may be the same one opened a second time.
func (d *Device) other(of *Device) string {
	switch {
	case of == nil:
		return "no device"
	case of.Name() == d.Name():
		return "another Open of " + d.Name()
	}
	return of.Name()
}

// checkReregIOVA refuses an IOVA that an older kernel would take for the memory's address.
func (d *Device) checkReregIOVA(s *region) error {
	since := d.driver.capabilities().reregIOVASince
	if v := runningKernel(); s.iova != s.start && v != (Version{}) && slices.Compare(v[:], since[:]) < 0 {
		return &FeatureError{Feature: "REREG_MR with an IOVA", Since: since, Driver: d.driver.name()}
	}
	return nil
}
