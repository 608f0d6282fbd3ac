package uverbs

import (
	"cmp"
	"errors"
	"strings"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// AH is an address handle, which holds the path to a peer for datagrams (struct ibv_ah). It is safe
// for concurrent use. Close it only after the work requests that use it have completed.
type AH struct {
	object
	handle uint32
	attr   AHAttr

	ahDrivers
}

// CreateAH creates an address handle (ibv_create_ah). On RoCE the kernel resolves the peer's
// Ethernet address, which may take some time; if it cannot, the error says why.
//
// On a port that needs a GRH in every packet and is not of Ethernet (see [PortAttr.GRHRequired]), CreateAH
// sets attr.Global itself, and fails if attr.GRH.DGID is zero.
func (p *PD) CreateAH(attr AHAttr) (*AH, error) {
	if err := p.usable(); err != nil {
		return nil, err
	}
	if err := attr.check("CreateAH", "", p.dev); err != nil {
		return nil, err
	}
	if err := attr.complete("CreateAH", "", p.dev); err != nil {
		return nil, err
	}
	a := &AH{attr: attr}
	if err := a.addParents(p.dev, "AH", "DESTROY_AH", &p.object); err != nil {
		return nil, err
	}
	req := &abi.CreateAH{
		PDHandle: p.handle,
		Attr: abi.AHAttr{
			GRH: abi.GlobalRoute{
				DGID:         attr.GRH.DGID,
				FlowLabel:    attr.GRH.FlowLabel,
				SGIDIndex:    attr.GRH.SGIDIndex,
				HopLimit:     attr.GRH.HopLimit,
				TrafficClass: attr.GRH.TrafficClass,
			},
			DLID:        attr.DLID,
			SL:          attr.SL,
			SrcPathBits: attr.SrcPathBits,
			StaticRate:  uint8(attr.StaticRate),
			PortNum:     attr.Port,
		},
	}
	if attr.Global {
		req.Attr.IsGlobal = 1
	}
	resp := &abi.CreateAHResp{}
	u := p.dev.driver.ahUdata()
	if errno := p.dev.cmd.legacy(abi.IB_USER_VERBS_CMD_CREATE_AH, bytesOf(req), bytesOf(resp), u); errno != 0 {
		a.removeParents()
		hint := routeHint(p.dev, errno, attr)
		if errno == syscall.EINVAL && !strings.Contains(hint, "matches the peer's family") && !strings.Contains(hint, "on AWS") {
			hint += ", or " + usedUp(p.dev.Name(), "AHs", p.dev.attr.MaxAH)
		}
		return nil, about(p.dev.cmd.fail("CREATE_AH", errno, cmp.Or(hint, p.dev.fullHint(errno, "AHs", p.dev.attr.MaxAH))), "", attr.given())
	}
	a.handle = resp.AHHandle
	if err := p.dev.driver.openAH(a, u); err != nil {
		err = errors.Join(err, a.destroyKernel())
		a.removeParents()
		return nil, err
	}
	return a, a.markCreated(a)
}

// Attr returns the attributes that the address handle was created with.
func (a *AH) Attr() AHAttr { return a.attr }

// destroyKernel destroys the kernel's object.
func (a *AH) destroyKernel() error {
	errno := a.dev.cmd.destroy(abi.UVERBS_OBJECT_AH, abi.UVERBS_METHOD_AH_DESTROY, abi.UVERBS_ATTR_DESTROY_AH_HANDLE, a.handle)
	if absent(errno) {
		req := &abi.DestroyAH{AHHandle: a.handle}
		errno = a.dev.cmd.legacy(abi.IB_USER_VERBS_CMD_DESTROY_AH, bytesOf(req), nil, udata{})
	}
	return a.dev.cmd.fail(a.destroy, errno, "")
}

// Close destroys the address handle (ibv_destroy_ah).
func (a *AH) Close() error { return a.close(a.destroyKernel, nil) }

// check returns an ArgError if a value is out of range. The prefix comes before the field names.
func (a *AHAttr) check(op, prefix string, d *Device) error {
	switch {
	case a.Port < 1 || a.Port > d.attr.PhysPortCount:
		return argErr(op, prefix+"Port", a.Port, "1 to %d", d.attr.PhysPortCount)
	case a.SL > 15:
		return argErr(op, prefix+"SL", a.SL, "0 to 15")
	case a.GRH.FlowLabel > 1<<20-1:
		return argErr(op, prefix+"GRH.FlowLabel", a.GRH.FlowLabel, "0 to %d (20 bits)", 1<<20-1)
	}
	return nil
}

// complete sets Global on a port that is not of Ethernet and needs a GRH in every packet, because the kernel
// refuses the address without it. The prefix comes before the field names.
func (a *AHAttr) complete(op, prefix string, d *Device) error {
	if a.Global {
		return nil
	}
	port, err := d.facts(a.Port)
	if err != nil || port.LinkLayer == ib.LinkLayerEthernet || !port.gidNeeded() {
		return err
	}
	if a.GRH.DGID.IsZero() {
		return argErr(op, prefix+"GRH.DGID", "zero", "the peer's GID, as port %d of %s needs a GRH in every packet", a.Port, d.Name())
	}
	a.Global = true
	return nil
}
