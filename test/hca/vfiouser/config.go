package vfiouser

import "sync/atomic"

// ID says what the device is, in configuration space.
type ID struct {
	Vendor    uint16 // Vendor ID.
	Device    uint16 // Device ID.
	SubVendor uint16 // SubVendor is the subsystem's vendor ID.
	SubDevice uint16 // SubDevice is the subsystem's ID.
	Class     uint32 // Class is base class, subclass and interface: 0x020000.
	Revision  uint8  // Revision of the device.
}

// Places in configuration space: linux/pci_regs.h. The capabilities stand where they do on a
// ConnectX.
const (
	configSize = 4096

	pciCommand     = 0x04
	pciStatus      = 0x06
	pciRevision    = 0x08
	pciClass       = 0x09
	pciCacheLine   = 0x0c
	pciBAR0        = 0x10
	pciSubVendor   = 0x2c
	pciSubDevice   = 0x2e
	pciCapList     = 0x34
	pciIntrLine    = 0x3c
	pciExpress     = 0x60
	pciMSIX        = 0x9c
	capIDExpress   = 0x10
	capIDMSIX      = 0x11
	statusCapList  = 0x10
	bar64Prefetch  = 0x0c
	commandBits    = 0x0547 // I/O, memory, bus master, parity, SERR, INTx disable
	msixControl    = 0xc000 // enable, function mask
	expEndpoint2   = 0x0002 // an endpoint, version 2 of the capability
	expDevCap      = 0x10008fe1
	expDevCtlBits  = 0x7fff // function level reset is an order, not a setting
	expLink16xGen3 = 0x0103
)

// space is the configuration space: what it holds, and which bits the guest may write.
type space struct {
	value, writable [configSize]byte
	bars            [6]atomic.Uint64 // what the address registers of 64-bit BARs hold, for other goroutines
}

func newSpace(id ID, bars [6]uint64, vectors int, table, pba uint32) *space {
	s := &space{}
	v := s.value[:]
	le.PutUint16(v, id.Vendor)
	le.PutUint16(v[2:], id.Device)
	le.PutUint16(v[pciStatus:], statusCapList)
	v[pciRevision] = id.Revision
	v[pciClass], v[pciClass+1], v[pciClass+2] = byte(id.Class), byte(id.Class>>8), byte(id.Class>>16)
	le.PutUint16(v[pciSubVendor:], id.SubVendor)
	le.PutUint16(v[pciSubDevice:], id.SubDevice)
	v[pciCapList] = pciExpress
	s.allow(pciCommand, commandBits)
	s.allow(pciCacheLine, 0xff)
	s.allow(pciIntrLine, 0xff)
	// Every BAR is a 64-bit one and takes two registers.
	for i := 0; i < len(bars); i += 2 {
		if bars[i] == 0 {
			continue
		}
		le.PutUint32(v[pciBAR0+4*i:], bar64Prefetch)
		mask := ^(bars[i] - 1)
		le.PutUint32(s.writable[pciBAR0+4*i:], uint32(mask))
		le.PutUint32(s.writable[pciBAR0+4*i+4:], uint32(mask>>32))
	}

	v[pciExpress], v[pciExpress+1] = capIDExpress, pciMSIX
	le.PutUint16(v[pciExpress+2:], expEndpoint2)
	le.PutUint32(v[pciExpress+4:], expDevCap)
	s.allow(pciExpress+8, expDevCtlBits)
	le.PutUint32(v[pciExpress+12:], expLink16xGen3)
	le.PutUint16(v[pciExpress+18:], expLink16xGen3)

	v[pciMSIX] = capIDMSIX
	le.PutUint16(v[pciMSIX+2:], uint16(vectors-1))
	s.allow(pciMSIX+2, msixControl)
	le.PutUint32(v[pciMSIX+4:], table) // in BAR 0
	le.PutUint32(v[pciMSIX+8:], pba)
	return s
}

// allow lets the guest write bits of a 16-bit register.
func (s *space) allow(off int, bits uint16) { le.PutUint16(s.writable[off:], bits) }

// write does what hardware does: bits that cannot be written stay as they are.
func (s *space) write(off uint64, p []byte) {
	for i, b := range p {
		k := off + uint64(i)
		s.value[k] = s.value[k]&^s.writable[k] | b&s.writable[k]
	}
	for i := 0; i < len(s.bars); i += 2 {
		s.bars[i].Store(le.Uint64(s.value[pciBAR0+4*i:]) &^ 0xf)
	}
}
