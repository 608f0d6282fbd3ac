package uverbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
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
// On an InfiniBand port that needs a GRH in every packet (see [PortAttr.GRHRequired]), CreateAH
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
		if errno == syscall.EINVAL && !strings.Contains(hint, "matches the peer's family") {
			hint += ", or " + usedUp(p.dev.Name(), "AHs", p.dev.attr.MaxAH)
		}
		return nil, about(p.dev.cmd.fail("CREATE_AH", errno, hint), "", attr.given())
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

// grhSize is the number of bytes before a datagram that hold the GRH.
const grhSize = 40

// GRHSize is the number of bytes before the data of every datagram that a UD QP receives. They hold
// the GRH, or on RoCE the IP header. See [ParseGRH].
const GRHSize = grhSize

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
	if len(b) < grhSize {
		return ReceivedGRH{}, argErr("ParseGRH", "length", len(b), "%d bytes and more", grhSize)
	}
	v4 := b[20:grhSize]
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

// complete sets Global on an InfiniBand port that needs a GRH in every packet, because the kernel
// refuses the address without it. The prefix comes before the field names.
func (a *AHAttr) complete(op, prefix string, d *Device) error {
	if a.Global {
		return nil
	}
	port, err := d.facts(a.Port)
	if err != nil || port.LinkLayer != ib.LinkLayerInfiniBand || !port.GRHRequired() {
		return err
	}
	if a.GRH.DGID.IsZero() {
		return argErr(op, prefix+"GRH.DGID", "zero", "the peer's GID, as port %d of %s needs a GRH in every packet", a.Port, d.Name())
	}
	a.Global = true
	return nil
}

// hardwareAddr converts an Ethernet address, and fails if it does not have 6 bytes.
func hardwareAddr(ip netip.Addr, mac net.HardwareAddr) ([6]byte, error) {
	if len(mac) != 6 {
		return [6]byte{}, fmt.Errorf("uverbs: Ethernet address of %s: the interface has %q, not an Ethernet address: %w", ip, mac, syscall.EINVAL)
	}
	return [6]byte(mac), nil
}

// multicastAddr maps a multicast group to its Ethernet address (RFC 1112, RFC 2464).
func multicastAddr(ip netip.Addr) [6]byte {
	if ip.Is4() {
		b := ip.As4()
		return [6]byte{0x01, 0x00, 0x5e, b[1] & 0x7f, b[2], b[3]}
	}
	b := ip.As16()
	return [6]byte{0x33, 0x33, b[12], b[13], b[14], b[15]}
}
