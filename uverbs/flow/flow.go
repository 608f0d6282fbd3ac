// Package flow has the values of flow rules, which direct packets to a queue pair: the headers to match, and
// what to do with the packets. They are options of uverbs.QP.CreateFlow.
package flow

import (
	"fmt"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// Type is the kind of a flow (enum ibv_flow_attr_type).
type Type uint32

// Kinds of flows.
const (
	Normal     Type = iota // packets that match the specs (IBV_FLOW_ATTR_NORMAL)
	AllDefault             // Ethernet packets that go to no other QP (IBV_FLOW_ATTR_ALL_DEFAULT)
	MCDefault              // multicast packets that go to no other QP (IBV_FLOW_ATTR_MC_DEFAULT)
	Sniffer                // copies of all packets of the port (IBV_FLOW_ATTR_SNIFFER)
)

// Flags are properties of a flow (enum ibv_flow_flags).
type Flags uint32

// Flags of a flow.
const (
	DontTrap Flags = 1 << 1 // matching packets also go to flows of lower priority (IBV_FLOW_ATTR_FLAGS_DONT_TRAP)
	Egress   Flags = 1 << 2 // match packets that are sent (IBV_FLOW_ATTR_FLAGS_EGRESS)
)

// FlagsAll are all flags.
const FlagsAll = DontTrap | Egress

// Spec is one part of a flow: a header to match ([Eth], [IPv4], [IPv6], [TCP], [UDP], [VXLAN], [GRE], [MPLS], [ESP])
// or an action ([Drop], [Tag]).
//
// A packet matches if its fields equal those of Val in all bits that are set in Mask. All numbers
// are in host byte order. Specs with Inner set apply to the packet inside a tunnel.
type Spec interface {
	// encode returns the spec in the kernel's form.
	encode() ([]byte, error)
}

// Error reports a value that a field of a spec does not have room for.
type Error struct {
	Field   string // Field is the type and the field, such as "VXLAN.Val".
	Given   string // Given is the value.
	Allowed string // Allowed says which values are valid.
}

// Error implements error.
func (e *Error) Error() string {
	return fmt.Sprintf("flow: %s is %s, allowed: %s", e.Field, e.Given, e.Allowed)
}

// Unwrap returns EINVAL.
func (e *Error) Unwrap() error { return syscall.EINVAL }

// Encode returns specs in the kernel's form, as CREATE_FLOW has them (struct ib_uverbs_flow_spec). The error is
// an [Error]. No spec may be nil.
func Encode(specs []Spec) ([]byte, error) {
	var all []byte
	for _, s := range specs {
		b, err := s.encode()
		if err != nil {
			return nil, err
		}
		all = append(all, b...)
	}
	return all, nil
}

// Types of specs (enum ib_flow_spec_type). They are not in the kernel's uapi headers, but equal the
// IBV_FLOW_SPEC constants of libibverbs.
const (
	specEth   = 0x20
	specIPv4  = 0x30
	specIPv6  = 0x31
	specESP   = 0x34
	specTCP   = 0x40
	specUDP   = 0x41
	specVXLAN = 0x50
	specGRE   = 0x51
	specMPLS  = 0x60
	specInner = 0x100
	specTag   = 0x1000
	specDrop  = 0x1001
)

// Eth matches the Ethernet header (IBV_FLOW_SPEC_ETH).
type Eth struct {
	Val, Mask EthFilter // Val is compared in the bits that are set in Mask.
	Inner     bool      // Inner selects the header inside a tunnel.
}

// EthFilter are the fields of an Ethernet header.
type EthFilter struct {
	DstMAC    [6]byte // DstMAC is the destination address.
	SrcMAC    [6]byte // SrcMAC is the source address.
	EtherType uint16  // EtherType is the protocol of the payload.
	VLANTag   uint16  // VLANTag is the tag of IEEE 802.1Q: priority (3 bits), CFI (1), VLAN (12).
}

// IPv4 matches the IPv4 header (IBV_FLOW_SPEC_IPV4_EXT).
type IPv4 struct {
	Val, Mask IPv4Filter // Val is compared in the bits that are set in Mask.
	Inner     bool       // Inner selects the header inside a tunnel.
}

// IPv4Filter are the fields of an IPv4 header.
type IPv4Filter struct {
	Src, Dst [4]byte // Src and Dst are the addresses.
	Proto    uint8   // Proto is the protocol number.
	TOS      uint8   // TOS is the type of service.
	TTL      uint8   // TTL is the time to live.
	Flags    uint8   // Flags are the fragmentation bits.
}

// IPv6 matches the IPv6 header (IBV_FLOW_SPEC_IPV6).
type IPv6 struct {
	Val, Mask IPv6Filter // Val is compared in the bits that are set in Mask.
	Inner     bool       // Inner selects the header inside a tunnel.
}

// IPv6Filter are the fields of an IPv6 header.
type IPv6Filter struct {
	Src, Dst     [16]byte // Src and Dst are the addresses.
	FlowLabel    uint32   // FlowLabel has 20 bits.
	NextHeader   uint8    // NextHeader is the protocol number.
	TrafficClass uint8    // TrafficClass corresponds to the TOS of IPv4.
	HopLimit     uint8    // HopLimit corresponds to the TTL of IPv4.
}

// TCP matches the TCP header (IBV_FLOW_SPEC_TCP).
type TCP struct {
	Val, Mask Ports // Val is compared in the bits that are set in Mask.
	Inner     bool  // Inner selects the header inside a tunnel.
}

// UDP matches the UDP header (IBV_FLOW_SPEC_UDP).
type UDP struct {
	Val, Mask Ports // Val is compared in the bits that are set in Mask.
	Inner     bool  // Inner selects the header inside a tunnel.
}

// Ports are the ports of TCP or UDP.
type Ports struct {
	Dst, Src uint16 // Dst and Src are the ports.
}

// VXLAN matches the VXLAN header (IBV_FLOW_SPEC_VXLAN_TUNNEL).
type VXLAN struct {
	Val, Mask uint32 // Val is the 24-bit network identifier, compared in the bits that are set in Mask.
}

// GRE matches the GRE header (IBV_FLOW_SPEC_GRE).
type GRE struct {
	Val, Mask GREFilter // Val is compared in the bits that are set in Mask.
}

// GREFilter are the fields of a GRE header.
type GREFilter struct {
	Flags    uint16 // Flags are the first 16 bits of the header: the optional fields and the version.
	Protocol uint16 // Protocol is the payload's EtherType.
	Key      uint32 // Key is the optional key.
}

// MPLS matches an MPLS label (IBV_FLOW_SPEC_MPLS).
type MPLS struct {
	Val, Mask uint32 // Val is an entry of the label stack: label (20 bits), traffic class (3), bottom of stack (1), TTL (8).
	Inner     bool   // Inner selects the header inside a tunnel.
}

// ESP matches the IPsec ESP header (IBV_FLOW_SPEC_ESP).
type ESP struct {
	Val, Mask ESPFilter // Val is compared in the bits that are set in Mask.
	Inner     bool      // Inner selects the header inside a tunnel.
}

// ESPFilter are the fields of an ESP header.
type ESPFilter struct {
	SPI, Seq uint32 // SPI is the security parameters index, Seq the sequence number.
}

// Drop drops matching packets (IBV_FLOW_SPEC_ACTION_DROP).
type Drop struct{}

// Tag marks matching packets with a number: the completions of their receives have it in uverbs.WC.FlowTag
// (IBV_FLOW_SPEC_ACTION_TAG). mlx5 supports it for raw packet QPs. Two flows with the same specs have the same tag.
type Tag struct {
	ID uint32 // ID has 24 bits; 0 is the tag of other packets.
}

// header returns the header of a spec.
func header[T any](typ uint32, inner bool, spec *T) abi.FlowSpecHdr {
	if inner {
		typ |= specInner
	}
	return abi.FlowSpecHdr{Type: typ, Size: uint16(len(kernel.Bytes(spec)))}
}

// bits32 checks that neither value nor mask has more than n bits.
func bits32(field string, val, mask uint32, n int) error {
	if limit := uint32(1)<<n - 1; val > limit || mask > limit {
		return &Error{field, fmt.Sprintf("%#x, mask %#x", val, mask), fmt.Sprintf("%d bits", n)}
	}
	return nil
}

func (f Eth) encode() ([]byte, error) {
	s := &abi.FlowSpecEth{}
	s.Hdr = header(specEth, f.Inner, s)
	f.Val.put(&s.Val)
	f.Mask.put(&s.Mask)
	return kernel.Bytes(s), nil
}

func (f *EthFilter) put(to *abi.FlowEthFilter) {
	to.DstMac, to.SrcMac = f.DstMAC, f.SrcMAC
	to.EtherType.Put(f.EtherType)
	to.VlanTag.Put(f.VLANTag)
}

func (f IPv4) encode() ([]byte, error) {
	s := &abi.FlowSpecIPv4{}
	s.Hdr = header(specIPv4, f.Inner, s)
	f.Val.put(&s.Val)
	f.Mask.put(&s.Mask)
	return kernel.Bytes(s), nil
}

func (f *IPv4Filter) put(to *abi.FlowIPv4Filter) {
	copy(kernel.Bytes(&to.SrcIP), f.Src[:])
	copy(kernel.Bytes(&to.DstIP), f.Dst[:])
	to.Proto, to.Tos, to.Ttl, to.Flags = f.Proto, f.TOS, f.TTL, f.Flags
}

// flowLabelBits is the length of an IPv6 flow label.
const flowLabelBits = 20

func (f IPv6) encode() ([]byte, error) {
	if err := bits32("IPv6.FlowLabel", f.Val.FlowLabel, f.Mask.FlowLabel, flowLabelBits); err != nil {
		return nil, err
	}
	s := &abi.FlowSpecIPv6{}
	s.Hdr = header(specIPv6, f.Inner, s)
	f.Val.put(&s.Val)
	f.Mask.put(&s.Mask)
	return kernel.Bytes(s), nil
}

func (f *IPv6Filter) put(to *abi.FlowIPv6Filter) {
	to.SrcIP, to.DstIP = f.Src, f.Dst
	to.FlowLabel.Put(f.FlowLabel)
	to.NextHdr, to.TrafficClass, to.HopLimit = f.NextHeader, f.TrafficClass, f.HopLimit
}

func (f TCP) encode() ([]byte, error) { return encodePorts(specTCP, f.Inner, f.Val, f.Mask) }
func (f UDP) encode() ([]byte, error) { return encodePorts(specUDP, f.Inner, f.Val, f.Mask) }

// encodePorts encodes TCP and UDP, which differ in the type only.
func encodePorts(typ uint32, inner bool, val, mask Ports) ([]byte, error) {
	s := &abi.FlowSpecTcpUdp{}
	s.Hdr = header(typ, inner, s)
	s.Val.DstPort.Put(val.Dst)
	s.Val.SrcPort.Put(val.Src)
	s.Mask.DstPort.Put(mask.Dst)
	s.Mask.SrcPort.Put(mask.Src)
	return kernel.Bytes(s), nil
}

// vniBits is the length of a VXLAN network identifier.
const vniBits = 24

func (f VXLAN) encode() ([]byte, error) {
	if err := bits32("VXLAN.Val", f.Val, f.Mask, vniBits); err != nil {
		return nil, err
	}
	s := &abi.FlowSpecTunnel{}
	s.Hdr = header(specVXLAN, false, s)
	s.Val.TunnelID.Put(f.Val)
	s.Mask.TunnelID.Put(f.Mask)
	return kernel.Bytes(s), nil
}

func (f GRE) encode() ([]byte, error) {
	s := &abi.FlowSpecGre{}
	s.Hdr = header(specGRE, false, s)
	f.Val.put(&s.Val)
	f.Mask.put(&s.Mask)
	return kernel.Bytes(s), nil
}

func (f *GREFilter) put(to *abi.FlowGreFilter) {
	to.CKsRes0Ver.Put(f.Flags)
	to.Protocol.Put(f.Protocol)
	to.Key.Put(f.Key)
}

func (f MPLS) encode() ([]byte, error) {
	s := &abi.FlowSpecMpls{}
	s.Hdr = header(specMPLS, f.Inner, s)
	s.Val.Label.Put(f.Val)
	s.Mask.Label.Put(f.Mask)
	return kernel.Bytes(s), nil
}

func (f ESP) encode() ([]byte, error) {
	s := &abi.FlowSpecESP{}
	s.Hdr = header(specESP, f.Inner, s)
	f.Val.put(&s.Val)
	f.Mask.put(&s.Mask)
	return kernel.Bytes(s), nil
}

// put writes in network byte order: the kernel's drivers read the fields so, although the header
// declares them as __u32.
func (f *ESPFilter) put(to *abi.FlowSpecESPFilter) {
	var spi, seq abi.Be32
	spi.Put(f.SPI)
	seq.Put(f.Seq)
	copy(kernel.Bytes(&to.Spi), kernel.Bytes(&spi))
	copy(kernel.Bytes(&to.Seq), kernel.Bytes(&seq))
}

func (f Tag) encode() ([]byte, error) {
	if limit := uint32(1<<24 - 1); f.ID > limit {
		return nil, &Error{"Tag.ID", fmt.Sprintf("%#x", f.ID), fmt.Sprintf("0 to %#x", limit)}
	}
	s := &abi.FlowSpecActionTag{TagID: f.ID}
	s.Hdr = header(specTag, false, s)
	return kernel.Bytes(s), nil
}

func (f Drop) encode() ([]byte, error) {
	s := &abi.FlowSpecActionDrop{}
	s.Hdr = header(specDrop, false, s)
	return kernel.Bytes(s), nil
}
