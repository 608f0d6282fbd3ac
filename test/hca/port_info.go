package hca

import (
	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/prm"
)

// portInfo fills the attribute PortInfo in.
func (d *Device) portInfo(b []byte) {
	p, counts := d.eng.Port(), d.eng.PortCounts()
	copy(b, d.subnet.info[:])
	apply(b, []setting{
		{piPrefix, p.Subnet}, {piLID, uint64(p.LID)}, {piSMLID, uint64(p.SMLID)}, {piLMC, uint64(p.LMC)}, {piMTU, uint64(p.MTU)},
		{piCapMask, uint64(d.hvp.capMask)}, {piState, uint64(p.State)},
		{piPKeyViolations, d.subnet.pkeyViolations.of(counts.PKeyViolations, 16)}, {piQKeyViolations, d.subnet.qkeyViolations.of(counts.QKeyViolations, 16)},
	})
}

// portInfoRanges are the values that Set(PortInfo) can give to a field, from lo to hi, and those that change
// nothing and that stand for all that is supported.
var portInfoRanges = []struct {
	f      prm.Field
	lo, hi uint64
}{
	{piLID, 1, firstMLID - 1}, {piSMLID, 1, firstMLID - 1}, {piMTU, 1, mtu4096},
	{piState, portNoChange, portActive}, {piPhys, physNoChange, physOff}, {piDownDefault, physNoChange, physPolling}, {piVLs, 0, vls0To3},
}

// portInfoSets are the sets of bits that Set(PortInfo) enables: 0 changes nothing, and all stands for what is
// supported.
var portInfoSets = []struct {
	enabled        prm.Field
	supported, all uint64
}{
	{piWidthEnabled, widthsSupported, widthAll}, {piSpeedEnabled, speedsSupported, speedAll}, {piExtEnabled, extSupported, extAll},
}

// portInfoPlain are the fields that Set(PortInfo) just sets.
var portInfoPlain = []prm.Field{
	piMKey, piLease, piProtect, piSMSL, piVLHighLimit, piInitReply, piStallLife, piMKeyViolations, piSubnetTimeout, piErrorLimits,
}

// validPortInfo reports whether Set(PortInfo) can set all fields to what they have.
func validPortInfo(b []byte, now engine.LinkState) bool {
	for _, r := range portInfoRanges {
		if v := r.f.Get(b); v < r.lo || v > r.hi {
			return false
		}
	}
	for _, s := range portInfoSets {
		v := s.enabled.Get(b)
		if v&^s.supported != 0 && v != s.all && (s.enabled != piExtEnabled || v != extOff) {
			return false
		}
	}
	if piLID.Get(b)&(1<<piLMC.Get(b)-1) != 0 {
		return false // the low bits say which of the LIDs it is
	}
	state, phys := piState.Get(b), piPhys.Get(b)
	switch {
	case state == portInit, state >= portArmed && phys != physNoChange:
		return false
	case state == portArmed:
		return now == engine.LinkInit || now == engine.LinkArmed
	case state == portActive:
		return now == engine.LinkArmed || now == engine.LinkActive
	}
	return true
}

// setPortInfo is Set(PortInfo). If one field cannot be set, none is.
func (d *Device) setPortInfo(_ uint32, b []byte) (uint16, func([]byte)) {
	s := &d.subnet
	if !validPortInfo(b, d.eng.Port().State) {
		return statusBadValue, nil
	}
	s.managed = true
	for _, f := range portInfoPlain {
		f.Put(s.info[:], f.Get(b))
	}
	for _, f := range []prm.Field{piDownDefault, piVLs} {
		if v := f.Get(b); v != 0 {
			f.Put(s.info[:], v)
		}
	}
	for _, x := range portInfoSets {
		switch v := x.enabled.Get(b); v {
		case 0:
		case x.all:
			x.enabled.Put(s.info[:], x.supported)
		default:
			x.enabled.Put(s.info[:], v)
		}
	}
	d.enable()
	counts := d.eng.PortCounts()
	s.pkeyViolations.set(counts.PKeyViolations, piPKeyViolations.Get(b))
	s.qkeyViolations.set(counts.QKeyViolations, piQKeyViolations.Get(b))
	d.eng.ChangePort(func(p *engine.PortState) {
		p.LID, p.SMLID, p.LMC, p.MTU = uint16(piLID.Get(b)), uint16(piSMLID.Get(b)), uint8(piLMC.Get(b)), uint8(piMTU.Get(b))
		if prefix := piPrefix.Get(b); prefix != p.Subnet {
			p.Subnet = prefix
			for i := range p.GIDs {
				if !p.GIDs[i].Invalid {
					be.PutUint64(p.GIDs[i].Addr[:], prefix)
				}
			}
		}
	})
	d.moveLink(piState.Get(b), piPhys.Get(b))
	if !piReregister.Bool(b) {
		return statusOK, nil
	}
	d.eng.Reregister()
	return statusOK, func(b []byte) { piReregister.Put(b, 1) }
}

// moveLink takes the link to another state, as Set(PortInfo) wants it.
func (d *Device) moveLink(state, phys uint64) {
	switch {
	case state == portArmed, state == portActive:
		d.setLinkState(engine.LinkState(state))
	case state == portDown, phys != physNoChange:
		s := &d.subnet
		d.setLinkState(engine.LinkDown)
		d.trainPeer(phys != physOff)
		switch {
		case phys != physNoChange:
			piPhys.Put(s.info[:], phys)
		default:
			piPhys.Put(s.info[:], piDownDefault.Get(s.info[:]))
		}
		d.linkUp()
	}
}

// linkUp brings a link up that is down, if both ends let it.
func (d *Device) linkUp() {
	s := &d.subnet
	if s.unplugged || piPhys.Get(s.info[:]) == physOff {
		return
	}
	piPhys.Put(s.info[:], physLinkUp)
	d.train()
	if s.managed {
		d.setLinkState(engine.LinkInit)
	} else {
		d.setLinkState(engine.LinkActive)
	}
}

func (d *Device) setLinkState(state engine.LinkState) {
	d.eng.ChangePort(func(p *engine.PortState) { p.State = state })
}

// SetLink says whether the other end of the link is on. The port goes down without it, and up with it; a managed
// one needs a subnet manager then. SetLink fails if the card's place in a subnet has no link.
func (d *Device) SetLink(up bool) (err error) {
	if d.cfg.Subnet != nil {
		d.cfg.Fabric.Do(func() { err = d.cfg.Subnet.SetLink(d.cfg.Node, 1, up) })
		return err
	}
	d.setCable(up)
	return nil
}

// setCable is SetLink for the card itself.
func (d *Device) setCable(up bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cable(up)
}

// cable is setCable with the lock held.
func (d *Device) cable(up bool) {
	s := &d.subnet
	if s.unplugged == !up {
		return
	}
	s.unplugged = !up
	if up {
		d.linkUp()
		return
	}
	if piPhys.Get(s.info[:]) != physOff {
		piPhys.Put(s.info[:], physPolling)
	}
	d.setLinkState(engine.LinkDown)
}
