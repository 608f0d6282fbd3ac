package ibcm

import "encoding/binary"

// Sizes of the private data of messages, in bytes.
const (
	REQPrivateSize     = 92
	REPPrivateSize     = 196
	REJPrivateSize     = 148
	RTUPrivateSize     = 224
	MRAPrivateSize     = 222
	DREQPrivateSize    = 220
	DREPPrivateSize    = 224
	SIDRREQPrivateSize = 216
	SIDRREPPrivateSize = 136
	InfoSize           = 72 // size of the additional information of REJ and SIDR_REP
)

// ECE has the options for enhanced connections.
type ECE struct {
	VendorID uint32 // 24 bits; in SIDRREP 16
	Options  uint32
}

// TransportType is the transport of a requested connection.
type TransportType uint8

// Transports of connections.
const (
	TransportRC  TransportType = 0
	TransportUC  TransportType = 1
	TransportRD  TransportType = 2
	TransportExt TransportType = 3 // REQ.ExtTransport says which
)

// PathInfo is a path in a REQ, as its sender sees it.
type PathInfo struct {
	LocalLID     uint16
	RemoteLID    uint16
	LocalGID     [16]byte
	RemoteGID    [16]byte
	FlowLabel    uint32 // 20 bits
	Rate         uint8  // 6 bits
	TrafficClass uint8
	HopLimit     uint8
	SL           uint8 // 4 bits
	SubnetLocal  bool
	AckTimeout   uint8 // 5 bits: local ACK timeout
}

// pathSize is the size of a PathInfo in a MAD.
const pathSize = 44

func (p *PathInfo) put(b []byte) {
	binary.BigEndian.PutUint16(b, p.LocalLID)
	binary.BigEndian.PutUint16(b[2:], p.RemoteLID)
	copy(b[4:], p.LocalGID[:])
	copy(b[20:], p.RemoteGID[:])
	binary.BigEndian.PutUint32(b[36:], p.FlowLabel<<12|uint32(p.Rate&0x3f))
	b[40] = p.TrafficClass
	b[41] = p.HopLimit
	b[42] = p.SL<<4 | bit(p.SubnetLocal, 3)
	b[43] = p.AckTimeout << 3
}

func (p *PathInfo) get(b []byte) {
	word := binary.BigEndian.Uint32(b[36:])
	*p = PathInfo{
		LocalLID:     binary.BigEndian.Uint16(b),
		RemoteLID:    binary.BigEndian.Uint16(b[2:]),
		LocalGID:     [16]byte(b[4:]),
		RemoteGID:    [16]byte(b[20:]),
		FlowLabel:    word >> 12,
		Rate:         uint8(word) & 0x3f,
		TrafficClass: b[40],
		HopLimit:     b[41],
		SL:           b[42] >> 4,
		SubnetLocal:  b[42]&8 != 0,
		AckTimeout:   b[43] >> 3,
	}
}

// REQ asks for a connection.
type REQ struct {
	CommID             uint32 // communication ID of the sender
	Service            uint64 // service ID
	GUID               uint64 // node GUID of the sender
	QKey               uint32
	QPN                uint32 // 24 bits
	ResponderResources uint8
	InitiatorDepth     uint8
	RemoteTimeout      uint8 // 5 bits: how long the receiver may take to answer
	Transport          TransportType
	FlowControl        bool
	PSN                uint32 // 24 bits: the first that the sender expects to receive
	LocalTimeout       uint8  // 5 bits: how long the sender may take to answer
	RetryCount         uint8  // 3 bits
	PKey               uint16
	MTU                uint8 // 4 bits
	RNRRetryCount      uint8 // 3 bits
	MaxRetries         uint8 // 4 bits: how often a message is repeated
	SRQ                bool
	ExtTransport       uint8 // 3 bits
	Primary            PathInfo
	Alternate          PathInfo // there is none if LocalLID is 0
	ECE                ECE
	Private            [REQPrivateSize]byte
}

// Attr implements Message.
func (*REQ) Attr() Attr { return AttrREQ }

func (m *REQ) put(mad []byte) {
	b := mad[headerSize:]
	putModifier(mad, m.ECE.Options)
	binary.BigEndian.PutUint32(b, m.CommID)
	put24(b[5:], m.ECE.VendorID)
	binary.BigEndian.PutUint64(b[8:], m.Service)
	binary.BigEndian.PutUint64(b[16:], m.GUID)
	binary.BigEndian.PutUint32(b[28:], m.QKey)
	put24(b[32:], m.QPN)
	b[35] = m.ResponderResources
	b[39] = m.InitiatorDepth
	b[43] = m.RemoteTimeout<<3 | uint8(m.Transport&3)<<1 | bit(m.FlowControl, 0)
	put24(b[44:], m.PSN)
	b[47] = m.LocalTimeout<<3 | m.RetryCount&7
	binary.BigEndian.PutUint16(b[48:], m.PKey)
	b[50] = m.MTU<<4 | m.RNRRetryCount&7
	b[51] = m.MaxRetries<<4 | bit(m.SRQ, 3) | m.ExtTransport&7
	m.Primary.put(b[52:])
	m.Alternate.put(b[52+pathSize:])
	copy(b[140:], m.Private[:])
}

func (m *REQ) get(mad []byte) {
	b := mad[headerSize:]
	*m = REQ{
		CommID:             binary.BigEndian.Uint32(b),
		Service:            binary.BigEndian.Uint64(b[8:]),
		GUID:               binary.BigEndian.Uint64(b[16:]),
		QKey:               binary.BigEndian.Uint32(b[28:]),
		QPN:                get24(b[32:]),
		ResponderResources: b[35],
		InitiatorDepth:     b[39],
		RemoteTimeout:      b[43] >> 3,
		Transport:          TransportType(b[43] >> 1 & 3),
		FlowControl:        b[43]&1 != 0,
		PSN:                get24(b[44:]),
		LocalTimeout:       b[47] >> 3,
		RetryCount:         b[47] & 7,
		PKey:               binary.BigEndian.Uint16(b[48:]),
		MTU:                b[50] >> 4,
		RNRRetryCount:      b[50] & 7,
		MaxRetries:         b[51] >> 4,
		SRQ:                b[51]&8 != 0,
		ExtTransport:       b[51] & 7,
		ECE:                ECE{get24(b[5:]), modifier(mad)},
		Private:            [REQPrivateSize]byte(b[140:]),
	}
	m.Primary.get(b[52:])
	m.Alternate.get(b[52+pathSize:])
}

// REP accepts a request.
type REP struct {
	CommID             uint32 // communication ID of the sender
	RemoteCommID       uint32 // communication ID of the receiver
	QKey               uint32
	QPN                uint32 // 24 bits
	PSN                uint32 // 24 bits: the first that the sender expects to receive
	ResponderResources uint8
	InitiatorDepth     uint8
	AckDelay           uint8 // 5 bits: how long the sender's device may delay an ACK
	Failover           uint8 // 2 bits
	FlowControl        bool
	RNRRetryCount      uint8 // 3 bits
	SRQ                bool
	GUID               uint64 // node GUID of the sender
	ECE                ECE
	Private            [REPPrivateSize]byte
}

// Attr implements Message.
func (*REP) Attr() Attr { return AttrREP }

func (m *REP) put(mad []byte) {
	b := mad[headerSize:]
	putModifier(mad, m.ECE.Options)
	binary.BigEndian.PutUint32(b, m.CommID)
	binary.BigEndian.PutUint32(b[4:], m.RemoteCommID)
	binary.BigEndian.PutUint32(b[8:], m.QKey)
	put24(b[12:], m.QPN)
	b[15] = byte(m.ECE.VendorID >> 16)
	b[19] = byte(m.ECE.VendorID >> 8)
	put24(b[20:], m.PSN)
	b[23] = byte(m.ECE.VendorID)
	b[24] = m.ResponderResources
	b[25] = m.InitiatorDepth
	b[26] = m.AckDelay<<3 | m.Failover&3<<1 | bit(m.FlowControl, 0)
	b[27] = m.RNRRetryCount<<5 | bit(m.SRQ, 4)
	binary.BigEndian.PutUint64(b[28:], m.GUID)
	copy(b[36:], m.Private[:])
}

func (m *REP) get(mad []byte) {
	b := mad[headerSize:]
	*m = REP{
		CommID:             binary.BigEndian.Uint32(b),
		RemoteCommID:       binary.BigEndian.Uint32(b[4:]),
		QKey:               binary.BigEndian.Uint32(b[8:]),
		QPN:                get24(b[12:]),
		PSN:                get24(b[20:]),
		ResponderResources: b[24],
		InitiatorDepth:     b[25],
		AckDelay:           b[26] >> 3,
		Failover:           b[26] >> 1 & 3,
		FlowControl:        b[26]&1 != 0,
		RNRRetryCount:      b[27] >> 5,
		SRQ:                b[27]&0x10 != 0,
		GUID:               binary.BigEndian.Uint64(b[28:]),
		ECE:                ECE{uint32(b[15])<<16 | uint32(b[19])<<8 | uint32(b[23]), modifier(mad)},
		Private:            [REPPrivateSize]byte(b[36:]),
	}
}

// IDs are the communication IDs that most messages begin with.
type IDs struct {
	CommID       uint32 // communication ID of the sender
	RemoteCommID uint32 // communication ID of the receiver
}

func (m *IDs) put(b []byte) {
	binary.BigEndian.PutUint32(b, m.CommID)
	binary.BigEndian.PutUint32(b[4:], m.RemoteCommID)
}

func (m *IDs) get(b []byte) {
	*m = IDs{binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])}
}

// RTU says that the connection can be used.
type RTU struct {
	IDs
	Private [RTUPrivateSize]byte
}

// Attr implements Message.
func (*RTU) Attr() Attr { return AttrRTU }

func (m *RTU) put(mad []byte) {
	b := mad[headerSize:]
	m.IDs.put(b)
	copy(b[8:], m.Private[:])
}

func (m *RTU) get(mad []byte) {
	b := mad[headerSize:]
	m.IDs.get(b)
	m.Private = [RTUPrivateSize]byte(b[8:])
}

// DREQ asks to end a connection.
type DREQ struct {
	IDs
	QPN     uint32 // 24 bits: QP of the receiver
	Private [DREQPrivateSize]byte
}

// Attr implements Message.
func (*DREQ) Attr() Attr { return AttrDREQ }

func (m *DREQ) put(mad []byte) {
	b := mad[headerSize:]
	m.IDs.put(b)
	put24(b[8:], m.QPN)
	copy(b[12:], m.Private[:])
}

func (m *DREQ) get(mad []byte) {
	b := mad[headerSize:]
	m.IDs.get(b)
	m.QPN = get24(b[8:])
	m.Private = [DREQPrivateSize]byte(b[12:])
}

// DREP answers a DREQ.
type DREP struct {
	IDs
	Private [DREPPrivateSize]byte
}

// Attr implements Message.
func (*DREP) Attr() Attr { return AttrDREP }

func (m *DREP) put(mad []byte) {
	b := mad[headerSize:]
	m.IDs.put(b)
	copy(b[8:], m.Private[:])
}

func (m *DREP) get(mad []byte) {
	b := mad[headerSize:]
	m.IDs.get(b)
	m.Private = [DREPPrivateSize]byte(b[8:])
}

// Subject is the kind of message that a REJ rejects or an MRA acknowledges.
type Subject uint8

// Kinds of messages.
const (
	SubjectREQ   Subject = 0
	SubjectREP   Subject = 1
	SubjectOther Subject = 2
)

// REJ rejects a message.
type REJ struct {
	IDs
	Rejected   Subject
	InfoLength uint8 // 7 bits: how much of Info is used
	Reason     Reason
	Info       [InfoSize]byte
	Private    [REJPrivateSize]byte
}

// Attr implements Message.
func (*REJ) Attr() Attr { return AttrREJ }

func (m *REJ) put(mad []byte) {
	b := mad[headerSize:]
	m.IDs.put(b)
	b[8] = uint8(m.Rejected) << 6
	b[9] = m.InfoLength << 1
	binary.BigEndian.PutUint16(b[10:], uint16(m.Reason))
	copy(b[12:], m.Info[:])
	copy(b[84:], m.Private[:])
}

func (m *REJ) get(mad []byte) {
	b := mad[headerSize:]
	m.IDs.get(b)
	m.Rejected = Subject(b[8] >> 6)
	m.InfoLength = b[9] >> 1
	m.Reason = Reason(binary.BigEndian.Uint16(b[10:]))
	m.Info = [InfoSize]byte(b[12:])
	m.Private = [REJPrivateSize]byte(b[84:])
}

// MRA acknowledges a message whose answer takes time.
type MRA struct {
	IDs
	Acknowledged Subject
	Timeout      uint8 // 5 bits: how long the answer may take
	Private      [MRAPrivateSize]byte
}

// Attr implements Message.
func (*MRA) Attr() Attr { return AttrMRA }

func (m *MRA) put(mad []byte) {
	b := mad[headerSize:]
	m.IDs.put(b)
	b[8] = uint8(m.Acknowledged) << 6
	b[9] = m.Timeout << 3
	copy(b[10:], m.Private[:])
}

func (m *MRA) get(mad []byte) {
	b := mad[headerSize:]
	m.IDs.get(b)
	m.Acknowledged = Subject(b[8] >> 6)
	m.Timeout = b[9] >> 3
	m.Private = [MRAPrivateSize]byte(b[10:])
}

// SIDRREQ asks for the QP of a service that receives datagrams.
type SIDRREQ struct {
	RequestID uint32
	PKey      uint16
	Service   uint64
	Private   [SIDRREQPrivateSize]byte
}

// Attr implements Message.
func (*SIDRREQ) Attr() Attr { return AttrSIDRREQ }

func (m *SIDRREQ) put(mad []byte) {
	b := mad[headerSize:]
	binary.BigEndian.PutUint32(b, m.RequestID)
	binary.BigEndian.PutUint16(b[4:], m.PKey)
	binary.BigEndian.PutUint64(b[8:], m.Service)
	copy(b[16:], m.Private[:])
}

func (m *SIDRREQ) get(mad []byte) {
	b := mad[headerSize:]
	m.RequestID = binary.BigEndian.Uint32(b)
	m.PKey = binary.BigEndian.Uint16(b[4:])
	m.Service = binary.BigEndian.Uint64(b[8:])
	m.Private = [SIDRREQPrivateSize]byte(b[16:])
}

// SIDRStatus is the result of a SIDRREQ.
type SIDRStatus uint8

// Results of a SIDRREQ.
const (
	SIDRSuccess     SIDRStatus = 0
	SIDRUnsupported SIDRStatus = 1 // no such service
	SIDRReject      SIDRStatus = 2 // the service has rejected the request
)

// SIDRREP answers a SIDRREQ.
type SIDRREP struct {
	RequestID  uint32
	Status     SIDRStatus
	InfoLength uint8  // how much of Info is used
	QPN        uint32 // 24 bits
	Service    uint64
	QKey       uint32
	ECE        ECE
	Info       [InfoSize]byte
	Private    [SIDRREPPrivateSize]byte
}

// Attr implements Message.
func (*SIDRREP) Attr() Attr { return AttrSIDRREP }

func (m *SIDRREP) put(mad []byte) {
	b := mad[headerSize:]
	putModifier(mad, m.ECE.Options)
	binary.BigEndian.PutUint32(b, m.RequestID)
	b[4] = uint8(m.Status)
	b[5] = m.InfoLength
	b[7] = byte(m.ECE.VendorID >> 8)
	put24(b[8:], m.QPN)
	b[11] = byte(m.ECE.VendorID)
	binary.BigEndian.PutUint64(b[12:], m.Service)
	binary.BigEndian.PutUint32(b[20:], m.QKey)
	copy(b[24:], m.Info[:])
	copy(b[96:], m.Private[:])
}

func (m *SIDRREP) get(mad []byte) {
	b := mad[headerSize:]
	*m = SIDRREP{
		RequestID:  binary.BigEndian.Uint32(b),
		Status:     SIDRStatus(b[4]),
		InfoLength: b[5],
		QPN:        get24(b[8:]),
		Service:    binary.BigEndian.Uint64(b[12:]),
		QKey:       binary.BigEndian.Uint32(b[20:]),
		ECE:        ECE{uint32(b[7])<<8 | uint32(b[11]), modifier(mad)},
		Info:       [InfoSize]byte(b[24:]),
		Private:    [SIDRREPPrivateSize]byte(b[96:]),
	}
}

// Reason says why a message was rejected.
type Reason uint16

// Reasons that a [Manager] sends.
const (
	ReasonTimeout          Reason = 4
	ReasonInvalidServiceID Reason = 8
	ReasonStaleConn        Reason = 10
	ReasonInvalidGID       Reason = 12
	ReasonConsumer         Reason = 28
)
