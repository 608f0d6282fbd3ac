package uverbs

import (
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// PD is a protection domain: a QP can use only MRs of its own PD (struct ibv_pd). It is safe for
// concurrent use.
type PD struct {
	object
	handle uint32
	parent *PD // the PD of a parent domain, or nil
	pdDrivers
}

// Device returns the device of the PD.
func (p *PD) Device() *Device { return p.dev }

// AllocPD allocates a protection domain (ibv_alloc_pd).
func (d *Device) AllocPD() (*PD, error) {
	pd := &PD{}
	if err := pd.addParents(d, "PD", "DEALLOC_PD", &d.object); err != nil {
		return nil, err
	}
	req := &abi.AllocPD{}
	resp := &abi.AllocPDResp{}
	if errno := d.cmd.legacy(abi.IB_USER_VERBS_CMD_ALLOC_PD, bytesOf(req), bytesOf(resp), d.driver.pdUdata()); errno != 0 {
		pd.removeParents()
		return nil, d.cmd.fail("ALLOC_PD", errno, d.fullHint(errno, "PDs", d.attr.MaxPD))
	}
	pd.handle = resp.PDHandle
	return pd, pd.markCreated(pd)
}

// Handle returns the kernel's handle of the PD, for [Device.ImportPD] in a process that shares the
// device.
func (p *PD) Handle() uint32 { return p.handle }

// Close frees the protection domain (ibv_dealloc_pd). It fails with EBUSY while another object uses
// it, also one of another process. A PD of [Device.ImportPD] stays with its owner
// (ibv_unimport_pd).
func (p *PD) Close() error {
	return p.close(func() error {
		if p.parent != nil || p.imported {
			return nil // the kernel does not know parent domains
		}
		errno := p.dev.cmd.destroy(abi.UVERBS_OBJECT_PD, abi.UVERBS_METHOD_PD_DESTROY, abi.UVERBS_ATTR_DESTROY_PD_HANDLE, p.handle)
		if absent(errno) {
			req := &abi.DeallocPD{PDHandle: p.handle}
			errno = p.dev.cmd.legacy(abi.IB_USER_VERBS_CMD_DEALLOC_PD, bytesOf(req), nil, udata{})
		}
		return p.dev.endShared(p.destroy, errno)
	}, nil)
}

// endShared returns the error of a command that destroys an object which other processes may use.
func (d *Device) endShared(verb string, errno syscall.Errno) error {
	hint := ""
	if errno == syscall.EBUSY {
		if d.leaving.Load() {
			return nil
		}
		hint = "another process that shares the device may still use it"
	}
	return d.cmd.fail(verb, errno, hint)
}
