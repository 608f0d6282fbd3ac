package hca

import (
	"math/bits"
	"time"

	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/prm"
	"github.com/goverbs/goverbs/test/hca/subnet"
)

// subnetAgent is what the card's agent of subnet management keeps, besides the state, the addresses and the
// tables of the port, which are the engine's.
type subnetAgent struct {
	info     [subnetBytes]byte // PortInfo
	slToVL   [8]byte           // the VL of each SL, 4 bits
	vlArb    [4][subnetBytes]byte
	leaseEnd time.Duration // when the lease of the M_Key ends; 0 if it does not
	// managed: a subnet manager has to bring the port up, or has set it.
	managed bool
	// unplugged: the other end of the link is off.
	unplugged bool

	pkeyViolations, qkeyViolations counter
}

// newSubnetAgent gives what is kept after power-on.
func newSubnetAgent(managed bool) subnetAgent {
	s := subnetAgent{managed: managed}
	apply(s.info[:], []setting{
		{piLocalPort, 1}, {piWidthEnabled, widthsSupported}, {piWidthSupported, widthsSupported},
		{piSpeedEnabled, speedsSupported}, {piSpeedSupported, speedsSupported}, {piExtEnabled, extSupported}, {piExtSupported, extSupported},
		{piDownDefault, physPolling}, {piPhys, physLinkUp}, {piMTUCap, mtu4096}, {piGUIDCap, gidCount},
		{piVLCap, vls0To3}, {piVLs, vls0To3}, {piVLArbHighCap, vlArbEntries}, {piVLArbLowCap, vlArbEntries}, {piSubnetTimeout, subnetTimeout},
	})
	s.use(s.enabled())
	for i := range s.slToVL { // SL 0 to 15 on VL 0 to 3
		s.slToVL[i] = []byte{0x01, 0x23}[i%2]
	}
	return s
}

// enabled returns the widths and speeds that the port may use.
func (s *subnetAgent) enabled() (subnet.Width, subnet.Speed) {
	b := s.info[:]
	ext := piExtEnabled.Get(b)
	if ext == extOff {
		ext = 0
	}
	return subnet.Width(piWidthEnabled.Get(b)), subnet.Speed(piSpeedEnabled.Get(b) | ext<<3)
}

// supports reports whether the port can have a width and speed.
func (s *subnetAgent) supports(w subnet.Width, v subnet.Speed) bool {
	return w&^widthsSupported == 0 && v&^(speedsSupported|extSupported<<3) == 0
}

// use stores the width and speed in use: the best of those given.
func (s *subnetAgent) use(w subnet.Width, v subnet.Speed) {
	b := s.info[:]
	speed, ext := uint64(v)&speedsSupported, uint64(v)>>3
	best := func(set uint64) uint64 { return 1 << bits.Len64(set) >> 1 }
	piWidthActive.Put(b, best(uint64(w)))
	piExtActive.Put(b, best(ext))
	piSpeedActive.Put(b, best(speed))
	if ext != 0 {
		piSpeedActive.Put(b, speedQDR) // LinkSpeedActive is QDR while an extended speed is active
	}
}

// checkMKey compares the M_Key of a datagram with the port's, as its protection level wants it (chapter 14.2.4). A
// datagram with a wrong one gets no answer: that it was dropped is all that the driver learns. hidden says that
// the sender may not read the port's.
func (d *Device) checkMKey(in []byte, ignored bool) (hidden bool, err error) {
	s := &d.subnet
	b, now := s.info[:], time.Duration(d.now())
	if s.leaseEnd > 0 && now >= s.leaseEnd {
		s.leaseEnd = 0
		piProtect.Put(b, 0)
	}
	key := piMKey.Get(b)
	if ignored || key == 0 || be.Uint64(in[madKey:]) == key {
		s.leaseEnd = 0
		return false, nil
	}
	if protect := piProtect.Get(b); in[madMethod] == methodGet && protect < 2 {
		return protect == 1, nil
	}
	if n := piMKeyViolations.Get(b); n < 0xffff {
		piMKeyViolations.Put(b, n+1)
	}
	if lease := piLease.Get(b); lease > 0 && s.leaseEnd == 0 {
		s.leaseEnd = now + time.Duration(lease)*time.Second
	}
	return false, refuse(prm.BadPacket, "M_Key", "%#x is not the port's", be.Uint64(in[madKey:]))
}

// subnetAttrs are the attributes of subnet management. hidden says that PortInfo has no M_Key.
func (d *Device) subnetAttrs(hidden bool) map[uint16]attribute {
	s := &d.subnet
	onePort := func(mod uint32) bool { return mod&^extendedSpeeds <= 1 }
	block := func(n int) func(uint32) bool { return func(mod uint32) bool { return int(mod) < n } }
	vlArb := func(mod uint32) *[subnetBytes]byte { return &s.vlArb[mod>>16-1] }
	return map[uint16]attribute{
		attrNodeDesc: {get: func(_ uint32, b []byte) { d.readRegister(regNodeDesc, b) }},
		attrNodeInfo: {get: d.nodeInfo},
		attrPortInfo: {valid: onePort, set: d.setPortInfo, get: func(_ uint32, b []byte) {
			d.portInfo(b)
			if hidden {
				piMKey.Put(b, 0)
			}
		}},
		attrGUIDInfo:  {valid: block(gidCount / guidsInBlock), get: d.guidInfo, set: d.setGUIDInfo},
		attrPKeyTable: {valid: block(pkeyCount / pkeysInBlock), get: d.pkeyTable, set: d.setPKeyTable},
		attrSLToVL: {get: func(_ uint32, b []byte) { copy(b, s.slToVL[:]) }, set: func(_ uint32, b []byte) (uint16, func([]byte)) {
			copy(s.slToVL[:], b)
			return statusOK, nil
		}},
		attrMellanoxPort: {valid: onePort, get: func(uint32, []byte) {}}, // all zeros: no FDR10
		attrVLArb: {valid: func(mod uint32) bool { return mod>>16 >= 1 && mod>>16 <= 4 }, get: func(mod uint32, b []byte) { copy(b, vlArb(mod)[:]) },
			set: func(mod uint32, b []byte) (uint16, func([]byte)) {
				copy(vlArb(mod)[:], b)
				return statusOK, nil
			}},
	}
}

const (
	extendedSpeeds = 1 << 31 // of PortInfo's modifier: the subnet manager knows them
	guidsInBlock   = 8
	pkeysInBlock   = 32
)

func (d *Device) nodeInfo(_ uint32, b []byte) {
	b[0], b[1], b[2], b[3] = 1, 1, 1, 1 // versions, a channel adapter with one port
	be.PutUint64(b[4:], d.hvp.systemGUID)
	be.PutUint64(b[12:], d.hvp.nodeGUID)
	be.PutUint64(b[20:], d.hvp.portGUID)
	be.PutUint16(b[28:], pkeyCount)
	be.PutUint16(b[30:], ID.Device)
	be.PutUint32(b[36:], 1<<24|uint32(ID.Vendor)) // port 1
}

func (d *Device) guidInfo(block uint32, b []byte) {
	p := d.eng.Port()
	for i := range guidsInBlock {
		if k := int(block)*guidsInBlock + i; k < len(p.GIDs) && !p.GIDs[k].Invalid {
			copy(b[8*i:], p.GIDs[k].Addr[8:])
		}
	}
}

// setGUIDInfo sets a block of GUIDs. The first of all is the port's own, and stays.
func (d *Device) setGUIDInfo(block uint32, b []byte) (uint16, func([]byte)) {
	d.eng.ChangePort(func(p *engine.PortState) {
		for i := range guidsInBlock {
			if k := int(block)*guidsInBlock + i; k > 0 && k < len(p.GIDs) {
				p.GIDs[k] = gidOf(p.Subnet, be.Uint64(b[8*i:]))
			}
		}
	})
	return statusOK, nil
}

// gidOf makes an entry of the GID table. GUID 0 is an empty one.
func gidOf(prefix, guid uint64) engine.GID {
	if guid == 0 {
		return engine.GID{Invalid: true}
	}
	var g engine.GID
	be.PutUint64(g.Addr[:], prefix)
	be.PutUint64(g.Addr[8:], guid)
	return g
}

func (d *Device) pkeyTable(block uint32, b []byte) {
	for i, key := range d.eng.Port().PKeys[block*pkeysInBlock:][:pkeysInBlock] {
		be.PutUint16(b[2*i:], key)
	}
}

func (d *Device) setPKeyTable(block uint32, b []byte) (uint16, func([]byte)) {
	d.eng.ChangePort(func(p *engine.PortState) {
		for i := range pkeysInBlock {
			p.PKeys[int(block)*pkeysInBlock+i] = be.Uint16(b[2*i:])
		}
	})
	return statusOK, nil
}
