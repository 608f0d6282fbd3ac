package subnet

import (
	"slices"
	"time"
)

// Places in PortInfo: InfiniBand architecture, chapter 14.
const (
	piMKey           = 0
	piPrefix         = 8
	piLID            = 16
	piSMLID          = 18
	piCapMask        = 20
	piLease          = 26
	piLocalPort      = 28
	piWidthEnabled   = 29
	piWidthSupported = 30
	piWidthActive    = 31
	piState          = 32 // with the supported speeds
	piPhysState      = 33 // with LinkDownDefaultState
	piLMC            = 34 // with M_KeyProtectBits
	piSpeed          = 35 // active and enabled
	piMTU            = 36 // with MasterSMSL
	piVLCap          = 37
	piArbHighCap     = 39
	piArbLowCap      = 40
	piMTUCap         = 41
	piOperVLs        = 43
	piMKeyViolations = 44
	piGUIDCap        = 50
	piTimeout        = 51 // with ClientReregister
	piRespTime       = 52
	piExt2           = 56 // active, supported and enabled
	piCapMask2       = 60
	piExtActive      = 62 // active and supported
	piExtEnabled     = 63

	stateDown   = 1
	stateInit   = 2
	stateArmed  = 3
	stateActive = 4

	physSleep    = 1
	physPolling  = 2
	physDisabled = 3
	physLinkUp   = 5

	// Bits of CapabilityMask.
	capTrap, capSLMap, capSystemGUID, capExtSpeeds, capMask2, capCM, capRereg = 1 << 3, 1 << 6, 1 << 11, 1 << 14, 1 << 15, 1 << 16, 1 << 25
	cap2ExtSpeeds2, cap2XDR                                                   = 1 << 11, 1 << 12 // of CapabilityMask2

	subnetPrefix = 0xfe80000000000000
	guidCap      = 32
	pkeyCap      = 128
	arbCap       = 8  // entries of each table of VL arbitration
	vlCap        = 4  // VL0 to VL7
	mtuCap       = 5  // 4096 bytes
	extNone      = 30 // a value of LinkSpeedExtEnabled
)

func seconds(n uint16) time.Duration { return time.Duration(n) * time.Second }

func (p *port) state() byte     { return p.info[piState] & 15 }
func (p *port) setState(s byte) { p.info[piState] = p.info[piState]&0xf0 | s }
func (p *port) phys() byte      { return p.info[piPhysState] >> 4 }
func (p *port) setPhys(s byte)  { p.info[piPhysState] = p.info[piPhysState]&15 | s<<4 }
func (p *port) lid() uint16     { return be.Uint16(p.info[piLID:]) }
func (p *port) linkUp() bool    { return p.peer != nil && p.phys() == physLinkUp }
func (p *port) external() bool  { return p.node.sw != nil && p.num > 0 }

// hasLID reports whether a LID is one of the port's.
func (p *port) hasLID(lid uint16) bool {
	lmc := p.info[piLMC] & 7
	return p.lid() != 0 && lid>>lmc == p.lid()>>lmc
}

// powerOn sets the state after power-on, without a link.
func (p *port) powerOn() {
	b := &p.info
	clear(b[:])
	width, speed := p.node.spec.Ports[p.num].rate()
	widths := Width1X | width
	if width == Width8X || width == Width12X {
		widths |= Width4X
	}
	speeds := speed | (speed - 1)
	be.PutUint64(b[piPrefix:], subnetPrefix)
	caps := uint32(capTrap | capSLMap | capSystemGUID | capExtSpeeds)
	if p.node.sw == nil {
		caps |= capCM | capRereg
		b[piGUIDCap] = guidCap
		p.guids = make([]uint64, guidCap)
		p.guids[0] = p.guid
		p.pkeys = make([]uint16, pkeyCap)
	} else {
		p.pkeys = make([]uint16, enforceCap)
	}
	if slices.ContainsFunc(p.node.spec.Ports, func(p Port) bool { return p.Speed == XDR }) {
		caps |= capMask2
		be.PutUint16(b[piCapMask2:], cap2ExtSpeeds2|cap2XDR)
		b[piExt2] = byte(speed/XDR)<<3 | byte(speed/XDR)
	}
	if p.external() {
		caps = 0
		be.PutUint16(b[piCapMask2:], 0)
		be.PutUint64(b[piPrefix:], 0)
	}
	be.PutUint32(b[piCapMask:], caps)
	p.pkeys[0] = 0xffff
	b[piWidthEnabled], b[piWidthSupported], b[piWidthActive] = byte(widths), byte(widths), byte(width)
	b[piState] = byte(speeds&7)<<4 | stateDown
	b[piPhysState] = physPolling<<4 | physPolling
	b[piSpeed] = byte(SDR)<<4 | byte(speeds&7)
	b[piExtActive], b[piExtEnabled] = byte(speeds>>3&15), byte(speeds>>3&15)
	b[piMTU] = 4 << 4
	b[piVLCap], b[piArbHighCap], b[piArbLowCap] = vlCap<<4, arbCap, arbCap
	b[piMTUCap], b[piOperVLs] = mtuCap, vlCap<<4
	b[piTimeout], b[piRespTime] = 18, 16
	if p.node.sw != nil && p.num == 0 {
		b[piState], b[piPhysState] = b[piState]&0xf0|stateActive, physLinkUp<<4|physPolling
		p.setSpeed(width, speed)
	}
	rows := 1
	if p.node.sw != nil {
		rows = len(p.node.ports)
	}
	p.sl2vl = make([][8]byte, rows)
	for i := range p.sl2vl {
		for k := range p.sl2vl[i] {
			p.sl2vl[i][k] = byte(2*k%8)<<4 | byte((2*k+1)%8)
		}
	}
	for i := range arbCap {
		p.vlarb[0][2*i], p.vlarb[0][2*i+1] = byte(i), 64
		p.vlarb[2][2*i] = byte(i)
	}
}

// enabled returns the widths and speeds that the port may use.
func (p *port) enabled() (Width, Speed) {
	ext := p.info[piExtEnabled] & 15
	if p.info[piExtEnabled]&31 == extNone {
		ext = 0
	}
	return Width(p.info[piWidthEnabled]), Speed(p.info[piSpeed]&7|ext<<3) | Speed(p.info[piExt2]&1)*XDR
}

// active returns the width and speed in use.
func (p *port) active() (Width, Speed) {
	v := Speed(p.info[piExtActive]>>4)<<3 | Speed(p.info[piExt2]>>5&1)*XDR
	if v == 0 {
		v = Speed(p.info[piSpeed] >> 4)
	}
	return Width(p.info[piWidthActive]), v
}

// setSpeed stores the width and speed in use.
func (p *port) setSpeed(w Width, s Speed) {
	p.info[piWidthActive] = byte(w)
	base, ext := byte(s), byte(0)
	if s >= FDR {
		base, ext = byte(QDR), byte(s>>3&15)
	}
	p.info[piExt2] = byte(s/XDR)<<5 | p.info[piExt2]&31
	p.info[piSpeed] = base<<4 | p.info[piSpeed]&15
	p.info[piExtActive] = ext<<4 | p.info[piExtActive]&15
}

// portInfo is the attribute PortInfo.
func portInfo(r *request) uint16 {
	num := int(r.mod & 0xff)
	if r.mod&^(1<<31|0xff) != 0 || num >= len(r.at.node.ports) {
		return statusBadValue
	}
	if num == 0 && r.at.node.sw == nil {
		num = r.at.num
	}
	p := r.at.node.ports[num]
	if r.set {
		if r.at.node.sw == nil && p != r.at {
			return statusBadValue
		}
		if !p.validPortInfo(r.data) {
			copy(r.data, p.info[:])
			return statusBadValue
		}
		p.setPortInfo(r.data)
	}
	copy(r.data, p.info[:])
	r.data[piLocalPort] = byte(r.in.num)
	if !r.hasKey && p.info[piLMC]>>6 != 0 {
		clear(r.data[piMKey : piMKey+8])
	}
	return 0
}

// validPortInfo reports whether the values of a Set are allowed.
func (p *port) validPortInfo(b []byte) bool {
	if !p.external() {
		lid, sm := be.Uint16(b[piLID:]), be.Uint16(b[piSMLID:])
		if lid == 0 || lid >= lidMulticast || sm == 0 || sm >= lidMulticast || lid&(1<<(b[piLMC]&7)-1) != 0 {
			return false // the low bits of the LID say which one it is
		}
	}
	if p.node.sw != nil && p.num == 0 {
		return true // it has no link
	}
	state, phys, down, mtu := b[piState]&15, b[piPhysState]>>4, b[piPhysState]&15, b[piMTU]>>4
	now := p.state()
	switch {
	case state > stateActive || state == stateInit, state >= stateArmed && phys != 0:
		return false
	case state == stateArmed && now != stateInit && now != stateArmed:
		return false
	case state == stateActive && now != stateArmed && now != stateActive:
		return false
	case phys > physDisabled || down > physPolling:
		return false
	}
	return mtu >= 1 && mtu <= mtuCap && b[piOperVLs]>>4 <= vlCap && p.validRates(b)
}

// validRates reports whether a Set enables only widths and speeds that the port supports. All bits mean all
// that it supports.
func (p *port) validRates(b []byte) bool {
	width, speed, ext := b[piWidthEnabled], b[piSpeed]&15, b[piExtEnabled]&31
	return (width == 0xff || width&^p.info[piWidthSupported] == 0) &&
		(speed == 15 || speed&^(p.info[piState]>>4) == 0) &&
		(ext == 31 || ext == extNone || ext&^(p.info[piExtActive]&15) == 0) &&
		b[piExt2]&7&^(p.info[piExt2]>>3&3) == 0
}

// Fields of PortInfo that a Set copies as they are: a place, and the bits. Only ports with a LID have the
// first ones.
type bitsOf struct {
	at   int
	mask byte
}

func span(from, to int) (all []bitsOf) {
	for i := from; i <= to; i++ {
		all = append(all, bitsOf{i, 0xff})
	}
	return all
}

var (
	endPortFields = append(append(span(piMKey, piSMLID+1), span(piLease, piLease+1)...), bitsOf{piLMC, 0xc7}, bitsOf{piMTU, 0x0f}, bitsOf{piTimeout, 0x7f})
	linkFields    = append(span(42, 42), append(span(44, 49), bitsOf{piMTU, 0xf0}, bitsOf{38, 0xff}, bitsOf{piOperVLs, 0x0f}, bitsOf{53, 0xff})...)
)

// setPortInfo stores the values of a Set.
func (p *port) setPortInfo(b []byte) {
	put := func(fields []bitsOf) {
		for _, f := range fields {
			p.info[f.at] = p.info[f.at]&^f.mask | b[f.at]&f.mask
		}
	}
	if !p.external() {
		put(endPortFields)
	}
	if p.node.sw != nil && p.num == 0 {
		return // it has no link
	}
	put(linkFields)
	if v := b[piOperVLs] >> 4; v != 0 {
		p.info[piOperVLs] = p.info[piOperVLs]&15 | v<<4
	}
	if v := b[piPhysState] & 15; v != 0 {
		p.info[piPhysState] = p.info[piPhysState]&0xf0 | v
	}
	p.setEnabled(b)
	p.setLinkState(b[piState]&15, b[piPhysState]>>4)
}

// enableAll enables all widths and speeds that the port supports.
func (p *port) enableAll() {
	p.setEnabled([]byte{piWidthEnabled: 0xff, piSpeed: 15, piExt2: p.info[piExt2] >> 3 & 3, piExtEnabled: 31})
}

// setEnabled stores the widths and speeds that the port may use from the next training of the link on.
func (p *port) setEnabled(b []byte) {
	if v := b[piWidthEnabled]; v == 0xff {
		p.info[piWidthEnabled] = p.info[piWidthSupported]
	} else if v != 0 {
		p.info[piWidthEnabled] = v
	}
	if v := b[piSpeed] & 15; v == 15 {
		p.info[piSpeed] = p.info[piSpeed]&0xf0 | p.info[piState]>>4
	} else if v != 0 {
		p.info[piSpeed] = p.info[piSpeed]&0xf0 | v
	}
	if v := b[piExt2] & 7; v != 0 {
		p.info[piExt2] = p.info[piExt2]&^7 | v
	}
	switch v := b[piExtEnabled] & 31; v {
	case 0:
	case 31:
		p.info[piExtEnabled] = p.info[piExtActive] & 15
	default:
		p.info[piExtEnabled] = v
	}
}

// setLinkState does what PortState and PortPhysicalState of a Set say.
func (p *port) setLinkState(state, phys byte) {
	s := p.node.s
	switch {
	case phys != 0:
		p.retrain(phys)
	case state == stateDown:
		s.takeDown(p, p.node)
		s.relink(p, p.node)
	case state == stateArmed || state == stateActive:
		p.setState(state)
	}
}
