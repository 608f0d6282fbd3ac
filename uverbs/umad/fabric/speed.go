package fabric

import (
	"math/bits"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// Speed is the speed of a lane, or a set of speeds.
type Speed uint16

// Speeds, the signalling rates of a lane, from the slowest to the fastest.
const (
	SDR   Speed = 1 << iota // 2.5 Gbit/s
	DDR                     // 5 Gbit/s
	QDR                     // 10 Gbit/s
	FDR10                   // 10.3125 Gbit/s, of some vendors
	FDR                     // 14.0625 Gbit/s
	EDR                     // 25.78125 Gbit/s
	HDR                     // 53.125 Gbit/s
	NDR                     // 106.25 Gbit/s
	XDR                     // 212.5 Gbit/s
)

// speeds has the names and rates by bit.
var speeds = [...]struct {
	name string
	rate float64
}{{"SDR", 2.5}, {"DDR", 5}, {"QDR", 10}, {"FDR10", 10.3125}, {"FDR", 14.0625}, {"EDR", 25.78125}, {"HDR", 53.125}, {"NDR", 106.25}, {"XDR", 212.5}}

// Max returns the fastest speed of a set, 0 if it is empty.
func (s Speed) Max() Speed {
	if s == 0 {
		return 0
	}
	return 1 << (bits.Len16(uint16(s)) - 1)
}

// Gbps returns the signalling rate of a lane in Gbit/s, of the fastest one of a set; 0 without a speed.
func (s Speed) Gbps() float64 {
	if s == 0 {
		return 0
	}
	return speeds[bits.Len16(uint16(s))-1].rate
}

// String returns the name, such as "EDR"; "none" without a speed. Several names are separated by "|".
func (s Speed) String() string {
	if s == 0 {
		return "none"
	}
	text := ""
	for i, speed := range speeds {
		if s&(1<<i) != 0 {
			text += "|" + speed.name
		}
	}
	return text[1:]
}

// speedOf joins the bits of all kinds of speed.
func speedOf(basic, extended, extended2 uint8, fdr10 bool) Speed {
	s := Speed(basic&7) | Speed(extended&15)<<4 | Speed(extended2&1)<<8
	if fdr10 {
		s |= FDR10
	}
	return s
}

// HasExtSpeeds reports whether the port has extended speeds, FDR and faster. Of a switch port 0 says so; it is false if
// that is not known.
func (p *Port) HasExtSpeeds() bool {
	i := p.management()
	return i != nil && i.CapabilityMask&mad.CapExtSpeeds != 0
}

// HasExtSpeeds2 reports whether the port has the second field of extended speeds, that of XDR. Of a switch port 0 says so.
func (p *Port) HasExtSpeeds2() bool {
	i := p.management()
	return i != nil && i.CapabilityMask&mad.CapMask2 != 0 && i.CapabilityMask2&mad.Cap2ExtSpeeds2 != 0
}

// extSpeeds returns two fields of extended speeds of the port, without those that it does not have: what the capabilities
// do not announce may be anything.
func (p *Port) extSpeeds(extended, extended2 uint8) (uint8, uint8) {
	switch {
	case !p.HasExtSpeeds():
		return 0, 0
	case !p.HasExtSpeeds2():
		return extended, 0
	}
	return extended, extended2
}

// Speed returns the speed of a lane of the link, 0 if it is not known. The speeds of a switch are not known without the
// PortInfo of port 0.
func (p *Port) Speed() Speed {
	i := p.Info
	if i == nil || p.management() == nil {
		return 0
	}
	switch extended, extended2 := p.extSpeeds(i.LinkSpeedExtActive, i.LinkSpeedExtActive2); {
	case extended2 != 0:
		return speedOf(0, 0, extended2, false)
	case extended != 0:
		return speedOf(0, extended, 0, false)
	case p.fdr10.SpeedActive&1 != 0:
		return FDR10
	}
	return speedOf(i.LinkSpeedActive, 0, 0, false)
}

// SpeedsSupported returns the speeds that the port can use, none if they are not known.
func (p *Port) SpeedsSupported() Speed {
	i := p.Info
	if i == nil || p.management() == nil {
		return 0
	}
	extended, extended2 := p.extSpeeds(i.LinkSpeedExtSupported, i.LinkSpeedExtSupported2)
	return speedOf(i.LinkSpeedSupported, extended, extended2, p.fdr10.SpeedSupported&1 != 0)
}

// SpeedsEnabled returns the speeds that the port may use, none if they are not known.
func (p *Port) SpeedsEnabled() Speed {
	const extendedDisabled = 30
	i := p.Info
	if i == nil || p.management() == nil {
		return 0
	}
	extended, extended2 := p.extSpeeds(i.LinkSpeedExtEnabled, i.LinkSpeedExtEnabled2)
	if extended == extendedDisabled {
		extended = 0
	}
	return speedOf(i.LinkSpeedEnabled, extended, extended2, p.fdr10.SpeedEnabled&1 != 0)
}

// Lanes returns the number of lanes of a width, of the widest one of a set; 0 without a width.
func Lanes(w mad.Width) int {
	for _, c := range widths {
		if w&c.bit != 0 {
			return c.lanes
		}
	}
	return 0
}

// widths are the widths from the widest to the narrowest.
var widths = [...]struct {
	bit   mad.Width
	lanes int
}{{mad.Width12X, 12}, {mad.Width8X, 8}, {mad.Width4X, 4}, {mad.Width2X, 2}, {mad.Width1X, 1}}

// Lanes returns the number of lanes of the link, 0 if it is not known.
func (p *Port) Lanes() int {
	if p.Info == nil {
		return 0
	}
	return Lanes(p.Info.LinkWidthActive)
}

// Gbps returns the signalling rate of the link in Gbit/s, 0 if it is not known.
func (p *Port) Gbps() float64 { return float64(p.Lanes()) * p.Speed().Gbps() }

// Could returns the number of lanes and the speed that both ends of the link support but do not use; a
// value is 0 if there is nothing better than what is in use, or it is not known.
func (p *Port) Could() (lanes int, speed Speed) {
	r := p.Remote
	if r == nil || p.Info == nil || r.Info == nil || p.Info.PortState == ib.PortDown {
		return 0, 0
	}
	if lanes = Lanes(p.Info.LinkWidthSupported & r.Info.LinkWidthSupported); lanes <= p.Lanes() {
		lanes = 0
	}
	if speed = (p.SpeedsSupported() & r.SpeedsSupported()).Max(); speed <= p.Speed() {
		speed = 0
	}
	return lanes, speed
}

// mellanoxPortInfo is a vendor's attribute of subnet management (ExtendedPortInfo). Bit 0 of the speeds
// is FDR10.
type mellanoxPortInfo struct {
	SpeedSupported uint8 `mad:"7"`
	SpeedEnabled   uint8 `mad:"11"`
	SpeedActive    uint8 `mad:"15"`
}

// attrMellanoxPortInfo is the attribute's ID.
const attrMellanoxPortInfo mad.AttrID = 0xff90

// ID implements mad.Attribute.
func (*mellanoxPortInfo) ID() mad.AttrID { return attrMellanoxPortInfo }

// mellanoxDevices are the ranges of device IDs that have the attribute, as infiniband-diags knows them.
// vendor is 0 if the ID alone decides.
var mellanoxDevices = [...]struct {
	vendor      uint32
	first, last uint16
}{
	{0, 0xc738, 0xc73b}, {0, 0xc839, 0xc839}, {0, 0xcb20, 0xcb20}, {0, 0xcf08, 0xcf09}, {0, 0xd2f0, 0xd2f0}, {0, 0x1003, 0x101b}, {0, 0xa2d2, 0xa2d2},
	{0x119f, 0x1b02, 0x1b02}, {0x119f, 0x1b33, 0x1b33}, {0x119f, 0x1b40, 0x1b41}, {0x119f, 0x1b50, 0x1b50}, {0x119f, 0x1b60, 0x1b61},
	{0x119f, 0x1b73, 0x1b73}, {0x119f, 0x1b83, 0x1b83}, {0x119f, 0x1b93, 0x1b94}, {0x119f, 0x1ba0, 0x1ba0}, {0x119f, 0x1bb4, 0x1bb5},
	{0x119f, 0x1bc4, 0x1bc6}, {0x119f, 0x1bd0, 0x1bd5}, {0x119f, 0x1bf0, 0x1bf0},
}

// mayBeFDR10 reports whether only the vendor's attribute says if the port runs at QDR or at FDR10. It is false as long as
// port 0 of a switch is not known.
func (p *Port) mayBeFDR10() bool {
	if !p.Up() || p.management() == nil || p.Info.LinkSpeedActive != uint8(QDR) || p.Speed() > FDR10 {
		return false
	}
	return HasExtendedPortInfo(&p.Node.Info)
}

// HasExtendedPortInfo reports whether the ports of a node have the vendor's attribute ExtendedPortInfo, which says whether
// a port runs at FDR10, as far as infiniband-diags knows the device.
func HasExtendedPortInfo(i *mad.NodeInfo) bool {
	for _, d := range mellanoxDevices {
		if i.DeviceID >= d.first && i.DeviceID <= d.last && (d.vendor == 0 || d.vendor == i.VendorID) {
			return true
		}
	}
	return false
}
