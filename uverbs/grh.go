package uverbs

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// GRHSize is the number of bytes before the data of every datagram that a UD QP receives. They hold
// the GRH, or on RoCE the IP header. See [ParseGRH].
const GRHSize = 40

// ReceivedGRH is the header before a received datagram.
type ReceivedGRH struct {
	SGID         ib.GID // SGID is the sender's GID.
	DGID         ib.GID // DGID is the receiver's GID, or a multicast group.
	TrafficClass uint8  // TrafficClass is the traffic class in the IP header.
	FlowLabel    uint32 // FlowLabel has 20 bits; 0 with IPv4.
	HopLimit     uint8  // HopLimit is the number of routers that the packet could still cross.
	NextHeader   uint8  // NextHeader is 0x1b for InfiniBand, 17 for UDP.
	IPv4         bool   // IPv4 reports an IPv4 header; the GIDs are IPv4-mapped addresses.
}

// Next headers that a GRH may announce: InfiniBand's own, and UDP for RoCE v2.
const (
	nextIB  = 0x1b
	nextUDP = 17
)

// ParseGRH parses the first [GRHSize] bytes of a received datagram, which are valid if the WC has
// [WCWithGRH]. An IPv4 header is in the last 20 of them; the first 20 are then undefined.
func ParseGRH(b []byte) (ReceivedGRH, error) {
	if len(b) < GRHSize {
		return ReceivedGRH{}, argErr("ParseGRH", "length", len(b), "%d bytes and more", GRHSize)
	}
	v4 := b[20:GRHSize]
	mayBe4, mayBe6 := v4[0] == 0x45, b[0]>>4 == 6
	// The checksum decides, but loopback packets may have none.
	switch {
	case mayBe4 && headerSum(v4) == 0xffff:
		return grh4(v4), nil
	case mayBe6 && (b[6] == nextIB || b[6] == nextUDP):
		return grh6(b), nil
	case mayBe4 && v4[9] == nextUDP:
		return grh4(v4), nil
	}
	return ReceivedGRH{}, fmt.Errorf("uverbs: ParseGRH: the header is neither IPv4 nor IPv6: %w", syscall.EINVAL)
}

// grh4 reads an IPv4 header.
func grh4(b []byte) ReceivedGRH {
	return ReceivedGRH{
		SGID:         netip.AddrFrom4([4]byte(b[12:16])).As16(),
		DGID:         netip.AddrFrom4([4]byte(b[16:20])).As16(),
		TrafficClass: b[1],
		HopLimit:     b[8],
		NextHeader:   b[9],
		IPv4:         true,
	}
}

// grh6 reads a GRH, which is an IPv6 header.
func grh6(b []byte) ReceivedGRH {
	word := binary.BigEndian.Uint32(b)
	return ReceivedGRH{
		SGID:         ib.GID(b[8:24]),
		DGID:         ib.GID(b[24:40]),
		TrafficClass: uint8(word >> 20),
		FlowLabel:    word & (1<<20 - 1),
		HopLimit:     b[7],
		NextHeader:   b[6],
	}
}

// headerSum is the ones' complement sum of an IPv4 header, 0xffff if its checksum is right.
func headerSum(b []byte) uint32 {
	sum := uint32(0)
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return sum
}

// AHAttrFor returns the path back to the sender of a datagram that arrived at a port
// (ibv_init_ah_from_wc). The beginning of the receive buffer is grh; it is used only if the WC has
// [WCWithGRH].
func (d *Device) AHAttrFor(port uint8, wc *WC, grh []byte) (AHAttr, error) {
	if err := d.usable(); err != nil {
		return AHAttr{}, err
	}
	if wc == nil {
		return AHAttr{}, argErr("AHAttrFor", "wc", "nil", "the completion of a datagram")
	}
	attr := AHAttr{DLID: wc.SLID, SL: wc.SL, SrcPathBits: wc.PathBits, Port: port}
	if wc.Flags&WCWithGRH == 0 {
		return attr, nil
	}
	h, err := ParseGRH(grh)
	if err != nil {
		return AHAttr{}, err
	}
	local, err := d.localGID(port, h.DGID)
	if err != nil {
		return AHAttr{}, err
	}
	if local.Type != ib.GIDTypeIB { // Ethernet has no LIDs, whatever the device writes
		attr.DLID = 0
	}
	attr.Global = true
	attr.GRH = GRH{DGID: h.SGID, FlowLabel: h.FlowLabel, SGIDIndex: uint8(local.Index), HopLimit: 0xff, TrafficClass: h.TrafficClass}
	return attr, nil
}

// CreateAHFor creates an address handle for the sender of a datagram (ibv_create_ah_from_wc). See
// [Device.AHAttrFor] for the arguments.
func (p *PD) CreateAHFor(port uint8, wc *WC, grh []byte) (*AH, error) {
	if err := p.usable(); err != nil {
		return nil, err
	}
	attr, err := p.dev.AHAttrFor(port, wc, grh)
	if err != nil {
		return nil, err
	}
	return p.CreateAH(attr)
}

// localGID returns the GID that a datagram was sent to. For a multicast GID it returns the GID that
// [ChooseGID] prefers.
func (d *Device) localGID(port uint8, gid ib.GID) (found GIDEntry, err error) {
	table, err := d.GIDTable(port)
	if err != nil {
		return found, err
	}
	ok := false
	for _, e := range table {
		// A GID is listed for RoCE v1 and for v2; rxe and most networks use v2.
		if e.GID == gid && (!ok || e.Type == ib.GIDTypeRoCEv2) {
			found, ok = e, true
		}
	}
	if !ok && gid.Addr().IsMulticast() {
		found, ok = ChooseGID(table, gid)
	}
	if !ok || found.Index > 255 {
		return found, argErr("AHAttrFor", "destination of the datagram", gid.Addr(), "a GID of port %d: %s", port, gidList(table))
	}
	return found, nil
}
