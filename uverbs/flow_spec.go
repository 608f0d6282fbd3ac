package uverbs

import (
	"fmt"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// FlowSpec is one part of a flow: a header to match ([FlowEth], [FlowIPv4], [FlowIPv6], [FlowTCP],
// [FlowUDP], [FlowVXLAN], [FlowGRE], [FlowMPLS], [FlowESP]) or an action ([FlowActionDrop],
// [FlowActionCount]).
//
// A packet matches if its fields equal those of Val in all bits that are set in Mask. All numbers
// are in host byte order. Specs with Inner set apply to the packet inside a tunnel.
type FlowSpec interface {
	// encode returns the spec in the kernel's form.
	encode() ([]byte, error)
	// uses returns the object that the spec names, or nil.
	uses() *object
}

// Types of specs (enum ib_flow_spec_type). They are not in the kernel's uapi headers, but equal the
// IBV_FLOW_SPEC constants of libibverbs.
const (
	flowSpecEth         = 0x20
	flowSpecIPv4        = 0x30
	flowSpecIPv6        = 0x31
	flowSpecESP         = 0x34
	flowSpecTCP         = 0x40
	flowSpecUDP         = 0x41
	flowSpecVXLAN       = 0x50
	flowSpecGRE         = 0x51
	flowSpecMPLS        = 0x60
	flowSpecInner       = 0x100
	flowSpecActionDrop  = 0x1001
	flowSpecActionCount = 0x1003
)

// FlowEth matches the Ethernet header (IBV_FLOW_SPEC_ETH).
type FlowEth struct {
	Val, Mask FlowEthFilter // Val is compared in the bits that are set in Mask.
	Inner     bool          // Inner selects the header inside a tunnel.
}

// FlowEthFilter are the fields of an Ethernet header.
type FlowEthFilter struct {
	DstMAC    [6]byte // DstMAC is the destination address.
	SrcMAC    [6]byte // SrcMAC is the source address.
	EtherType uint16  // EtherType is the protocol of the payload.
	VLANTag   uint16  // VLANTag is the tag of IEEE 802.1Q: priority (3 bits), CFI (1), VLAN (12).
}

// FlowIPv4 matches the IPv4 header (IBV_FLOW_SPEC_IPV4_EXT).
type FlowIPv4 struct {
	Val, Mask FlowIPv4Filter // Val is compared in the bits that are set in Mask.
	Inner     bool           // Inner selects the header inside a tunnel.
}

// FlowIPv4Filter are the fields of an IPv4 header.
type FlowIPv4Filter struct {
	Src, Dst [4]byte // Src and Dst are the addresses.
	Proto    uint8   // Proto is the protocol number.
	TOS      uint8   // TOS is the type of service.
	TTL      uint8   // TTL is the time to live.
	Flags    uint8   // Flags are the fragmentation bits.
}

// FlowIPv6 matches the IPv6 header (IBV_FLOW_SPEC_IPV6).
type FlowIPv6 struct {
	Val, Mask FlowIPv6Filter // Val is compared in the bits that are set in Mask.
	Inner     bool           // Inner selects the header inside a tunnel.
}

// FlowIPv6Filter are the fields of an IPv6 header.
type FlowIPv6Filter struct {
	Src, Dst     [16]byte // Src and Dst are the addresses.
	FlowLabel    uint32   // FlowLabel has 20 bits.
	NextHeader   uint8    // NextHeader is the protocol number.
	TrafficClass uint8    // TrafficClass corresponds to the TOS of IPv4.
	HopLimit     uint8    // HopLimit corresponds to the TTL of IPv4.
}

// FlowTCP matches the TCP header (IBV_FLOW_SPEC_TCP).
type FlowTCP struct {
	Val, Mask FlowPortFilter // Val is compared in the bits that are set in Mask.
	Inner     bool           // Inner selects the header inside a tunnel.
}

// FlowUDP matches the UDP header (IBV_FLOW_SPEC_UDP).
type FlowUDP struct {
	Val, Mask FlowPortFilter // Val is compared in the bits that are set in Mask.
	Inner     bool           // Inner selects the header inside a tunnel.
}

// FlowPortFilter are the ports of TCP or UDP.
type FlowPortFilter struct {
	Dst, Src uint16 // Dst and Src are the ports.
}

// FlowVXLAN matches the VXLAN header (IBV_FLOW_SPEC_VXLAN_TUNNEL).
type FlowVXLAN struct {
	Val, Mask uint32 // Val is the 24-bit network identifier, compared in the bits that are set in Mask.
}

// FlowGRE matches the GRE header (IBV_FLOW_SPEC_GRE).
type FlowGRE struct {
	Val, Mask FlowGREFilter // Val is compared in the bits that are set in Mask.
}

// FlowGREFilter are the fields of a GRE header.
type FlowGREFilter struct {
	Flags    uint16 // Flags are the first 16 bits of the header: the optional fields and the version.
	Protocol uint16 // Protocol is the payload's EtherType.
	Key      uint32 // Key is the optional key.
}

// FlowMPLS matches an MPLS label (IBV_FLOW_SPEC_MPLS).
type FlowMPLS struct {
	Val, Mask uint32 // Val is an entry of the label stack: label (20 bits), traffic class (3), bottom of stack (1), TTL (8).
	Inner     bool   // Inner selects the header inside a tunnel.
}

// FlowESP matches the IPsec ESP header (IBV_FLOW_SPEC_ESP).
type FlowESP struct {
	Val, Mask FlowESPFilter // Val is compared in the bits that are set in Mask.
	Inner     bool          // Inner selects the header inside a tunnel.
}

// FlowESPFilter are the fields of an ESP header.
type FlowESPFilter struct {
	SPI, Seq uint32 // SPI is the security parameters index, Seq the sequence number.
}

// FlowActionDrop drops matching packets (IBV_FLOW_SPEC_ACTION_DROP).
type FlowActionDrop struct{}

// FlowActionCount counts matching packets (IBV_FLOW_SPEC_ACTION_COUNT).
type FlowActionCount struct {
	Counters *Counters // Counters receive the counts.
}

// specHdr returns the header of a spec.
func specHdr[T any](typ uint32, inner bool, spec *T) abi.FlowSpecHdr {
	if inner {
		typ |= flowSpecInner
	}
	return abi.FlowSpecHdr{Type: typ, Size: uint16(len(bytesOf(spec)))}
}

// bits32 checks that neither value nor mask has more than n bits.
func bits32(field string, val, mask uint32, n int) error {
	if limit := uint32(1)<<n - 1; val > limit || mask > limit {
		return argErr("CreateFlow", field, fmt.Sprintf("%#x, mask %#x", val, mask), "%d bits", n)
	}
	return nil
}

func (f FlowEth) encode() ([]byte, error) {
	s := &abi.FlowSpecEth{}
	s.Hdr = specHdr(flowSpecEth, f.Inner, s)
	f.Val.put(&s.Val)
	f.Mask.put(&s.Mask)
	return bytesOf(s), nil
}

func (f *FlowEthFilter) put(to *abi.FlowEthFilter) {
	to.DstMac, to.SrcMac = f.DstMAC, f.SrcMAC
	to.EtherType.Put(f.EtherType)
	to.VlanTag.Put(f.VLANTag)
}

func (f FlowIPv4) encode() ([]byte, error) {
	s := &abi.FlowSpecIPv4{}
	s.Hdr = specHdr(flowSpecIPv4, f.Inner, s)
	f.Val.put(&s.Val)
	f.Mask.put(&s.Mask)
	return bytesOf(s), nil
}

func (f *FlowIPv4Filter) put(to *abi.FlowIPv4Filter) {
	copy(bytesOf(&to.SrcIP), f.Src[:])
	copy(bytesOf(&to.DstIP), f.Dst[:])
	to.Proto, to.Tos, to.Ttl, to.Flags = f.Proto, f.TOS, f.TTL, f.Flags
}

// flowLabelBits is the length of an IPv6 flow label.
const flowLabelBits = 20

func (f FlowIPv6) encode() ([]byte, error) {
	if err := bits32("FlowIPv6.FlowLabel", f.Val.FlowLabel, f.Mask.FlowLabel, flowLabelBits); err != nil {
		return nil, err
	}
	s := &abi.FlowSpecIPv6{}
	s.Hdr = specHdr(flowSpecIPv6, f.Inner, s)
	f.Val.put(&s.Val)
	f.Mask.put(&s.Mask)
	return bytesOf(s), nil
}

func (f *FlowIPv6Filter) put(to *abi.FlowIPv6Filter) {
	to.SrcIP, to.DstIP = f.Src, f.Dst
	to.FlowLabel.Put(f.FlowLabel)
	to.NextHdr, to.TrafficClass, to.HopLimit = f.NextHeader, f.TrafficClass, f.HopLimit
}

func (f FlowTCP) encode() ([]byte, error) { return encodePorts(flowSpecTCP, f.Inner, f.Val, f.Mask) }
func (f FlowUDP) encode() ([]byte, error) { return encodePorts(flowSpecUDP, f.Inner, f.Val, f.Mask) }

// encodePorts encodes TCP and UDP, which differ in the type only.
func encodePorts(typ uint32, inner bool, val, mask FlowPortFilter) ([]byte, error) {
	s := &abi.FlowSpecTcpUdp{}
	s.Hdr = specHdr(typ, inner, s)
	s.Val.DstPort.Put(val.Dst)
	s.Val.SrcPort.Put(val.Src)
	s.Mask.DstPort.Put(mask.Dst)
	s.Mask.SrcPort.Put(mask.Src)
	return bytesOf(s), nil
}

// vniBits is the length of a VXLAN network identifier.
const vniBits = 24

func (f FlowVXLAN) encode() ([]byte, error) {
	if err := bits32("FlowVXLAN.Val", f.Val, f.Mask, vniBits); err != nil {
		return nil, err
	}
	s := &abi.FlowSpecTunnel{}
	s.Hdr = specHdr(flowSpecVXLAN, false, s)
	s.Val.TunnelID.Put(f.Val)
	s.Mask.TunnelID.Put(f.Mask)
	return bytesOf(s), nil
}

func (f FlowGRE) encode() ([]byte, error) {
	s := &abi.FlowSpecGre{}
	s.Hdr = specHdr(flowSpecGRE, false, s)
	f.Val.put(&s.Val)
	f.Mask.put(&s.Mask)
	return bytesOf(s), nil
}

func (f *FlowGREFilter) put(to *abi.FlowGreFilter) {
	to.CKsRes0Ver.Put(f.Flags)
	to.Protocol.Put(f.Protocol)
	to.Key.Put(f.Key)
}

func (f FlowMPLS) encode() ([]byte, error) {
	s := &abi.FlowSpecMpls{}
	s.Hdr = specHdr(flowSpecMPLS, f.Inner, s)
	s.Val.Label.Put(f.Val)
	s.Mask.Label.Put(f.Mask)
	return bytesOf(s), nil
}

func (f FlowESP) encode() ([]byte, error) {
	s := &abi.FlowSpecESP{}
	s.Hdr = specHdr(flowSpecESP, f.Inner, s)
	f.Val.put(&s.Val)
	f.Mask.put(&s.Mask)
	return bytesOf(s), nil
}

// put writes in network byte order: the kernel's drivers read the fields so, although the header
// declares them as __u32.
func (f *FlowESPFilter) put(to *abi.FlowSpecESPFilter) {
	var spi, seq abi.Be32
	spi.Put(f.SPI)
	seq.Put(f.Seq)
	copy(bytesOf(&to.Spi), bytesOf(&spi))
	copy(bytesOf(&to.Seq), bytesOf(&seq))
}

func (f FlowActionDrop) encode() ([]byte, error) {
	s := &abi.FlowSpecActionDrop{}
	s.Hdr = specHdr(flowSpecActionDrop, false, s)
	return bytesOf(s), nil
}

func (f FlowActionCount) encode() ([]byte, error) {
	if f.Counters == nil {
		return nil, argErr("CreateFlow", "FlowActionCount.Counters", "nil", "Counters")
	}
	s := &abi.FlowSpecActionCount{Handle: f.Counters.handle}
	s.Hdr = specHdr(flowSpecActionCount, false, s)
	return bytesOf(s), nil
}

func (f FlowEth) uses() *object         { return nil }
func (f FlowIPv4) uses() *object        { return nil }
func (f FlowIPv6) uses() *object        { return nil }
func (f FlowTCP) uses() *object         { return nil }
func (f FlowUDP) uses() *object         { return nil }
func (f FlowVXLAN) uses() *object       { return nil }
func (f FlowGRE) uses() *object         { return nil }
func (f FlowMPLS) uses() *object        { return nil }
func (f FlowESP) uses() *object         { return nil }
func (f FlowActionDrop) uses() *object  { return nil }
func (f FlowActionCount) uses() *object { return &f.Counters.object }
