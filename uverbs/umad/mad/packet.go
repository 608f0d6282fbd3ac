package mad

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
)

// Sizes in bytes.
const (
	Size       = 256 // Size is the size of a MAD.
	HeaderSize = 24  // HeaderSize is the size of the header that all MADs have.
)

// Class is a management class (MgmtClass).
type Class uint8

// Management classes. 0x30 to 0x4f are vendor classes with an OUI.
const (
	ClassSubnLID      Class = 0x01 // subnet management, routed by LID; QP0
	ClassSubnDirected Class = 0x81 // subnet management, by a route of ports; QP0
	ClassSA           Class = 0x03 // subnet administration (SubnAdm)
	ClassPerf         Class = 0x04 // performance management
	ClassPing         Class = 0x32 // vendor class of OpenFabrics, for the ping of rdma-core's ibping
)

// OUIOpenIB identifies OpenFabrics among the vendors.
const OUIOpenIB = 0x001405

// SMP reports whether MADs of the class go to QP0.
func (c Class) SMP() bool { return c == ClassSubnLID || c == ClassSubnDirected }

// Vendor reports whether the class is a vendor class with an OUI.
func (c Class) Vendor() bool { return c >= 0x30 && c <= 0x4f }

// RMPP reports whether messages of the class can have several packets, among the classes of this package.
func (c Class) RMPP() bool { return c == ClassSA || c.Vendor() }

// Version returns the version of the class that the formats of this package belong to (ClassVersion).
func (c Class) Version() uint8 {
	if c == ClassSA {
		return 2
	}
	return 1
}

// String returns the name of the class, as the specification has it in the names of methods.
func (c Class) String() string {
	switch c {
	case ClassSubnLID:
		return "Subn"
	case ClassSubnDirected:
		return "directed Subn"
	case ClassSA:
		return "SubnAdm"
	case ClassPerf:
		return "Perf"
	}
	return fmt.Sprintf("class %#02x ", uint8(c))
}

// dataOffset is where the data of a class begins, in bytes.
func (c Class) dataOffset() int {
	switch {
	case c.SMP(), c == ClassPerf:
		return 64
	case c == ClassSA:
		return 56
	case c.Vendor():
		return 40
	}
	return HeaderSize
}

// Method is the kind of request or answer that a MAD is (Method).
type Method uint8

// Methods. An answer has the bit MethodResponse.
const (
	MethodGet         Method = 0x01
	MethodSet         Method = 0x02
	MethodSend        Method = 0x03
	MethodTrap        Method = 0x05
	MethodReport      Method = 0x06
	MethodTrapRepress Method = 0x07
	MethodGetTable    Method = 0x12 // SA only
	MethodDelete      Method = 0x15 // SA only
	MethodResponse    Method = 0x80
	MethodGetResp            = MethodGet | MethodResponse // answer to Get and to Set
)

// Response returns the method of the answer.
func (m Method) Response() Method {
	switch m {
	case MethodSet:
		return MethodGetResp
	case MethodTrap:
		return MethodTrapRepress
	}
	return m | MethodResponse
}

// String returns the name of the method.
func (m Method) String() string {
	names := map[Method]string{MethodGet: "Get", MethodSet: "Set", MethodSend: "Send", MethodTrap: "Trap", MethodReport: "Report",
		MethodTrapRepress: "TrapRepress", MethodGetTable: "GetTable", MethodDelete: "Delete"}
	name, ok := names[m&^MethodResponse]
	switch {
	case !ok:
		return fmt.Sprintf("Method(%#02x)", uint8(m))
	case m&MethodResponse != 0:
		return name + "Resp"
	}
	return name
}

// Header is the header of all MADs.
type Header struct {
	BaseVersion   uint8  `mad:"0"`  // BaseVersion is 1.
	Class         Class  `mad:"1"`  // Class is the management class.
	ClassVersion  uint8  `mad:"2"`  // ClassVersion is the version of the class.
	Method        Method `mad:"3"`  // Method is the kind of request or answer.
	Status        Status `mad:"4"`  // Status is 0 in requests.
	ClassSpecific uint16 `mad:"6"`  // ClassSpecific has the hop pointer and the hop count of a directed route.
	TID           uint64 `mad:"8"`  // TID is the transaction ID, which the answer repeats.
	Attribute     AttrID `mad:"16"` // Attribute is what the MAD reads or writes.
	Modifier      uint32 `mad:"20"` // Modifier is the attribute modifier, which chooses a port or a block.
}

// SMPHeader is the additional header of subnet management.
type SMPHeader struct {
	MKey        uint64    `mad:"24"`  // MKey is the management key (M_Key).
	DrSLID      uint16    `mad:"32"`  // DrSLID is the LID where a directed route begins, 0xffff for this port.
	DrDLID      uint16    `mad:"34"`  // DrDLID is the LID where a directed route ends, 0xffff for the last port.
	InitialPath [64]uint8 `mad:"128"` // InitialPath has the ports by which a directed route leaves each node, from index 1.
	ReturnPath  [64]uint8 `mad:"192"` // ReturnPath has the ports by which it entered.
}

// RMPPHeader is the additional header of classes whose messages can have several packets.
type RMPPHeader struct {
	Version  uint8    `mad:"24"`     // Version is the version of RMPP, 1 if the header is in use.
	Type     RMPPType `mad:"25"`     // Type is the kind of packet.
	RespTime uint8    `mad:"26.0 5"` // RespTime is the time to answer, 4.096 µs·2ⁿ.
	Flags    uint8    `mad:"26.5 3"` // Flags has the bits RMPPActive, RMPPFirst and RMPPLast.
	Status   uint8    `mad:"27"`     // Status is the RMPP status, see [RMPPError].
	Data1    uint32   `mad:"28"`     // Data1 is the number of the segment.
	Data2    uint32   `mad:"32"`     // Data2 is the length of the payload in bytes, or the last segment of the window.
}

// Bits of RMPPHeader.Flags.
const (
	RMPPActive = 1 // the header is in use
	RMPPFirst  = 2 // first packet
	RMPPLast   = 4 // last packet
)

// SAHeader is the additional header of subnet administration.
type SAHeader struct {
	SMKey           uint64 `mad:"36"` // SMKey is the key of the subnet manager (SM_Key), which some requests need.
	AttributeOffset uint16 `mad:"44"` // AttributeOffset is the distance of the records of a table, in units of 8 bytes.
	ComponentMask   Mask   `mad:"48"` // ComponentMask says which fields of a record a request gives.
}

// put encodes the header in the format of the tags. Every MAD has the header, so it is done without reflection.
func (h *Header) put(b []byte) {
	b[0], b[1], b[2], b[3] = h.BaseVersion, uint8(h.Class), h.ClassVersion, uint8(h.Method)
	binary.BigEndian.PutUint16(b[4:], uint16(h.Status))
	binary.BigEndian.PutUint16(b[6:], h.ClassSpecific)
	binary.BigEndian.PutUint64(b[8:], h.TID)
	binary.BigEndian.PutUint16(b[16:], uint16(h.Attribute))
	binary.BigEndian.PutUint32(b[20:], h.Modifier)
}

// get decodes the header.
func (h *Header) get(b []byte) {
	*h = Header{
		BaseVersion: b[0], Class: Class(b[1]), ClassVersion: b[2], Method: Method(b[3]),
		Status: Status(binary.BigEndian.Uint16(b[4:])), ClassSpecific: binary.BigEndian.Uint16(b[6:]), TID: binary.BigEndian.Uint64(b[8:]),
		Attribute: AttrID(binary.BigEndian.Uint16(b[16:])), Modifier: binary.BigEndian.Uint32(b[20:]),
	}
}

// vendorHeader is the additional header of a vendor class.
type vendorHeader struct {
	OUI uint32 `mad:"37 24"`
}

// Packet is a MAD. The class decides which of the headers besides Header are used.
type Packet struct {
	Header            // Header is the header of all MADs.
	SMP    SMPHeader  // SMP is for the classes of subnet management.
	RMPP   RMPPHeader // RMPP is for subnet administration and vendors.
	SA     SAHeader   // SA is for subnet administration.
	OUI    uint32     // OUI is for vendors, which it identifies (24 bits).
	Data   []byte     // Data is the attribute, at most 64 to 232 bytes depending on the class; longer if RMPP is active.
}

// newPacket makes a request.
func newPacket(c Class, m Method, attr AttrID, modifier uint32) *Packet {
	return &Packet{Header: Header{BaseVersion: 1, Class: c, ClassVersion: c.Version(), Method: m, Attribute: attr, Modifier: modifier}}
}

// NewSMP returns a MAD of subnet management that is routed by LID.
func NewSMP(m Method, attr AttrID, modifier uint32) *Packet {
	return newPacket(ClassSubnLID, m, attr, modifier)
}

// NewDirectedSMP returns a MAD of subnet management that takes a route, given by the port through which
// it leaves each node. Without ports it goes to this node. A route has at most 63 ports; the error
// matches [ErrRange] if it has more.
func NewDirectedSMP(m Method, attr AttrID, modifier uint32, route ...uint8) (*Packet, error) {
	p := newPacket(ClassSubnDirected, m, attr, modifier)
	if len(route) >= len(p.SMP.InitialPath) {
		return nil, fmt.Errorf("mad: a directed route of %d ports, at most %d fit: %w", len(route), len(p.SMP.InitialPath)-1, ErrRange)
	}
	p.ClassSpecific = uint16(len(route)) // hop pointer 0
	p.SMP.DrSLID, p.SMP.DrDLID = 0xffff, 0xffff
	copy(p.SMP.InitialPath[1:], route)
	return p, nil
}

// Route returns the ports of a directed route.
func (p *Packet) Route() []uint8 {
	n := min(int(p.ClassSpecific&0xff), len(p.SMP.InitialPath)-1)
	return slices.Clone(p.SMP.InitialPath[1 : n+1])
}

// NewPerf returns a MAD of performance management.
func NewPerf(m Method, attr AttrID) *Packet { return newPacket(ClassPerf, m, attr, 0) }

// NewSA returns a MAD of subnet administration. It asks for the records that equal the given record in
// the fields of the mask.
func NewSA(m Method, record Attribute, mask Mask) (*Packet, error) {
	p := newPacket(ClassSA, m, 0, 0)
	p.SA.ComponentMask = mask
	return p, p.Put(record)
}

// NewVendor returns a MAD of a vendor class.
func NewVendor(c Class, oui uint32, m Method, attr AttrID) *Packet {
	p := newPacket(c, m, attr, 0)
	p.OUI = oui
	return p
}

// Reply returns an answer to p, without data.
func (p *Packet) Reply() *Packet {
	r := *p
	r.Method, r.Status, r.Data = p.Method.Response(), 0, nil
	if p.Class == ClassSubnDirected {
		r.Status = statusDirected // it takes the route backwards
	}
	return &r
}

// Put encodes an attribute into the MAD.
func (p *Packet) Put(a Attribute) error {
	data, err := Marshal(a)
	if err == nil {
		p.Attribute, p.Data = a.ID(), data
	}
	return err
}

// Decode decodes the attribute of the MAD, or the first record of a table. It fails with p.Err if the
// MAD reports an error, and if it has another attribute.
func (p *Packet) Decode(a Attribute) error {
	if err := p.Err(); err != nil {
		return err
	}
	if _, err := structOf(a); err != nil {
		return err
	}
	if p.Attribute != a.ID() {
		return fmt.Errorf("mad: %v does not have attribute %#04x", p, uint16(a.ID()))
	}
	return Unmarshal(p.Data, a)
}

// Marshal encodes the MAD. The result has 256 bytes, or more if RMPP is active.
func (p *Packet) Marshal() ([]byte, error) {
	at := p.Class.dataOffset()
	size := Size
	switch {
	case p.rmppActive():
		size = max(size, at+len(p.Data))
	case p.Class.SMP():
		size = 128 // the paths follow
	}
	if at+len(p.Data) > size {
		return nil, fmt.Errorf("mad: %v has %d bytes of data, at most %d fit: %w", p, len(p.Data), size-at, ErrRange)
	}
	b := make([]byte, max(size, Size))
	p.Header.put(b)
	var err error
	if p.Class.SMP() {
		err = encodeHeader(b, &p.SMP)
	}
	if p.Class.RMPP() && p.RMPP != (RMPPHeader{}) {
		err = encodeHeader(b, &p.RMPP)
	}
	if err == nil && p.Class == ClassSA {
		err = encodeHeader(b, &p.SA)
	}
	if err == nil && p.Class.Vendor() {
		err = encodeHeader(b, &vendorHeader{p.OUI})
	}
	copy(b[at:], p.Data)
	return b, err
}

// rmppActive reports whether the message may have several packets.
func (p *Packet) rmppActive() bool { return p.Class.RMPP() && p.RMPP.Flags&RMPPActive != 0 }

// Parse decodes a MAD. Data is a copy of its data. A MAD of a class without RMPP has at most 256 bytes;
// what follows is ignored.
func Parse(b []byte) (*Packet, error) {
	p := &Packet{}
	if len(b) < HeaderSize {
		return nil, fmt.Errorf("mad: %d bytes, the header has %d: %w", len(b), HeaderSize, io.ErrUnexpectedEOF)
	}
	p.Header.get(b)
	at, least := p.Class.dataOffset(), p.Class.dataOffset()
	if p.Class.SMP() {
		least = Size
	}
	if len(b) < least {
		return nil, fmt.Errorf("mad: %v has %d bytes, want at least %d: %w", p, len(b), least, io.ErrUnexpectedEOF)
	}
	end := min(len(b), Size)
	if p.Class.SMP() {
		decodeHeader(b, &p.SMP)
		end = 128
	}
	if p.Class.RMPP() && [12]byte(b[HeaderSize:]) != [12]byte{} {
		decodeHeader(b, &p.RMPP)
	}
	if p.Class == ClassSA {
		decodeHeader(b, &p.SA)
	}
	if p.Class.Vendor() {
		p.OUI = binary.BigEndian.Uint32(b[36:]) & 0xffffff
	}
	if p.rmppActive() {
		end = len(b)
	}
	p.Data = slices.Clone(b[at:end])
	return p, nil
}

// String returns what the MAD is, as the specification writes it: "SubnGet(NodeInfo)".
func (p *Packet) String() string {
	text := fmt.Sprintf("%v%v(%s", p.Class, p.Method, p.Class.attrName(p.Attribute))
	if p.Modifier != 0 {
		text += fmt.Sprintf(" %#x", p.Modifier)
	}
	if text += ")"; p.Class == ClassSubnDirected {
		text += fmt.Sprintf(" by route %d", p.Route())
	}
	return text
}
