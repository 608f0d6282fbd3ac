package wire

// Opcode is the first byte of a BTH. The high three bits are the transport and the low five bits the
// operation, so UC|WriteFirst is the opcode of an RDMA WRITE First on UC.
type Opcode uint8

// Transports.
const (
	RC Opcode = 0x00 // reliable connection
	UC Opcode = 0x20 // unreliable connection
	UD Opcode = 0x60 // unreliable datagram
)

// Operations. By itself, each is the opcode on RC.
const (
	SendFirst          Opcode = 0x00 // SEND First
	SendMiddle         Opcode = 0x01 // SEND Middle
	SendLast           Opcode = 0x02 // SEND Last
	SendLastImm        Opcode = 0x03 // SEND Last with Immediate
	SendOnly           Opcode = 0x04 // SEND Only
	SendOnlyImm        Opcode = 0x05 // SEND Only with Immediate
	WriteFirst         Opcode = 0x06 // RDMA WRITE First
	WriteMiddle        Opcode = 0x07 // RDMA WRITE Middle
	WriteLast          Opcode = 0x08 // RDMA WRITE Last
	WriteLastImm       Opcode = 0x09 // RDMA WRITE Last with Immediate
	WriteOnly          Opcode = 0x0a // RDMA WRITE Only
	WriteOnlyImm       Opcode = 0x0b // RDMA WRITE Only with Immediate
	ReadRequest        Opcode = 0x0c // RDMA READ Request
	ReadResponseFirst  Opcode = 0x0d // RDMA READ Response First
	ReadResponseMiddle Opcode = 0x0e // RDMA READ Response Middle
	ReadResponseLast   Opcode = 0x0f // RDMA READ Response Last
	ReadResponseOnly   Opcode = 0x10 // RDMA READ Response Only
	Acknowledge        Opcode = 0x11 // Acknowledge
	AtomicAcknowledge  Opcode = 0x12 // ATOMIC Acknowledge
	CompareSwap        Opcode = 0x13 // CmpSwap
	FetchAdd           Opcode = 0x14 // FetchAdd
	SendLastInv        Opcode = 0x16 // SEND Last with Invalidate
	SendOnlyInv        Opcode = 0x17 // SEND Only with Invalidate
	Flush              Opcode = 0x1c // FLUSH
	AtomicWrite        Opcode = 0x1d // ATOMIC WRITE
)

// CNP is the opcode of a congestion notification packet, which network cards send. It belongs to no
// transport. Parse answers it with CongestionNotification.
const CNP Opcode = 0x81

const (
	transportMask Opcode = 0xe0
	operationMask Opcode = 0x1f
)

// info is a set of properties of an opcode: its headers behind the BTH, and its role.
type info uint32

const (
	hasDETH info = 1 << iota
	hasRETH
	hasAtomicETH
	hasAETH
	hasAtomicAckETH
	hasImm
	hasIETH
	hasFETH
	hasPayload
	isRequest
	isResponse
	isSend
	isWrite
	isStart // FIRST or ONLY
	isMiddle
	isEnd       // LAST or ONLY
	needsRecv   // takes a receive from the receive queue
	completes   // completes a receive
	isReadReply // one of the READ responses

	isOnly = isStart | isEnd
)

// Sizes in bytes.
const (
	BTHSize          = 12 // base transport header, which begins every packet
	DETHSize         = 8  // datagram extended transport header
	RETHSize         = 16 // RDMA extended transport header
	AtomicETHSize    = 28 // atomic extended transport header
	AETHSize         = 4  // acknowledge extended transport header
	AtomicAckETHSize = 8  // atomic acknowledge extended transport header
	ImmSize          = 4  // immediate data
	IETHSize         = 4  // invalidate extended transport header
	FETHSize         = 4  // flush extended transport header
	ICRCSize         = 4  // invariant CRC, which ends every packet

	// MaxHeaderSize is the size of the largest BTH with extensions: that of an atomic request.
	MaxHeaderSize = BTHSize + AtomicETHSize
)

// headers lists the extension headers with their sizes, in the order in which they stand in a packet.
// FETH comes before RETH; no opcode has any other pair of which the order is in doubt.
var headers = [...]struct {
	has  info
	size uint8
}{
	{hasDETH, DETHSize},
	{hasFETH, FETHSize},
	{hasRETH, RETHSize},
	{hasAtomicETH, AtomicETHSize},
	{hasAETH, AETHSize},
	{hasAtomicAckETH, AtomicAckETHSize},
	{hasImm, ImmSize},
	{hasIETH, IETHSize},
}

// operations are the properties of the operations on RC, by their low five bits.
var operations = [1 << 5]info{
	SendFirst:          isRequest | isSend | isStart | hasPayload | needsRecv,
	SendMiddle:         isRequest | isSend | isMiddle | hasPayload,
	SendLast:           isRequest | isSend | isEnd | hasPayload | completes,
	SendLastImm:        isRequest | isSend | isEnd | hasPayload | completes | hasImm,
	SendOnly:           isRequest | isSend | isOnly | hasPayload | completes | needsRecv,
	SendOnlyImm:        isRequest | isSend | isOnly | hasPayload | completes | needsRecv | hasImm,
	WriteFirst:         isRequest | isWrite | isStart | hasPayload | hasRETH,
	WriteMiddle:        isRequest | isWrite | isMiddle | hasPayload,
	WriteLast:          isRequest | isWrite | isEnd | hasPayload,
	WriteLastImm:       isRequest | isWrite | isEnd | hasPayload | completes | needsRecv | hasImm,
	WriteOnly:          isRequest | isWrite | isOnly | hasPayload | hasRETH,
	WriteOnlyImm:       isRequest | isWrite | isOnly | hasPayload | completes | needsRecv | hasRETH | hasImm,
	ReadRequest:        isRequest | isOnly | hasRETH,
	ReadResponseFirst:  isResponse | isReadReply | isStart | hasPayload | hasAETH,
	ReadResponseMiddle: isResponse | isReadReply | isMiddle | hasPayload,
	ReadResponseLast:   isResponse | isReadReply | isEnd | hasPayload | hasAETH,
	ReadResponseOnly:   isResponse | isReadReply | isOnly | hasPayload | hasAETH,
	Acknowledge:        isResponse | isOnly | hasAETH,
	AtomicAcknowledge:  isResponse | isOnly | hasAETH | hasAtomicAckETH,
	CompareSwap:        isRequest | isOnly | hasAtomicETH,
	FetchAdd:           isRequest | isOnly | hasAtomicETH,
	SendLastInv:        isRequest | isSend | isEnd | hasPayload | completes | hasIETH,
	SendOnlyInv:        isRequest | isSend | isOnly | hasPayload | completes | needsRecv | hasIETH,
	Flush:              isRequest | isOnly | hasFETH | hasRETH,
	AtomicWrite:        isRequest | isOnly | hasRETH | hasPayload,
}

// opcodes and sizes hold the properties of all opcodes and the sizes of their headers, BTH included.
// The properties of an unknown opcode are 0.
var (
	opcodes = allOpcodes()
	sizes   = allSizes()
)

func allOpcodes() (all [256]info) {
	for op, in := range operations {
		all[RC|Opcode(op)] = in
	}
	for op := SendFirst; op <= WriteOnlyImm; op++ {
		all[UC|op] = operations[op]
	}
	for _, op := range []Opcode{SendOnly, SendOnlyImm} {
		all[UD|op] = operations[op] | hasDETH
	}
	return all
}

func allSizes() (all [256]uint8) {
	for op, in := range opcodes {
		all[op] = BTHSize
		for _, h := range headers {
			if in&h.has != 0 {
				all[op] += h.size
			}
		}
	}
	return all
}

func (o Opcode) has(in info) bool { return opcodes[o]&in != 0 }

// Transport returns RC, UC or UD, or a transport that Parse does not accept.
func (o Opcode) Transport() Opcode { return o & transportMask }

// Operation returns the opcode without its transport, as it is on RC.
func (o Opcode) Operation() Opcode { return o & operationMask }

// Known reports whether the opcode exists on RC, UC or UD.
func (o Opcode) Known() bool { return opcodes[o] != 0 }

// HeaderSize returns the size in bytes of the BTH and the extension headers.
func (o Opcode) HeaderSize() int { return int(sizes[o]) }

// IsRequest reports whether the packet goes to the responder.
func (o Opcode) IsRequest() bool { return o.has(isRequest) }

// IsResponse reports whether the packet goes to the requester: an acknowledgement, or data of a READ.
func (o Opcode) IsResponse() bool { return o.has(isResponse) }

// IsSend reports whether the packet is part of a SEND.
func (o Opcode) IsSend() bool { return o.has(isSend) }

// IsWrite reports whether the packet is part of an RDMA WRITE. An ATOMIC WRITE is not.
func (o Opcode) IsWrite() bool { return o.has(isWrite) }

// IsReadRequest reports whether the packet is an RDMA READ Request.
func (o Opcode) IsReadRequest() bool { return o == RC|ReadRequest }

// IsReadResponse reports whether the packet is one of the RDMA READ Responses.
func (o Opcode) IsReadResponse() bool { return o.has(isReadReply) }

// IsAtomic reports whether the packet is a CmpSwap or FetchAdd request.
func (o Opcode) IsAtomic() bool { return o.has(hasAtomicETH) }

// First reports whether the packet is the first one of a message of several packets.
func (o Opcode) First() bool { return opcodes[o]&isOnly == isStart }

// Middle reports whether the packet is neither the first nor the last one of its message.
func (o Opcode) Middle() bool { return o.has(isMiddle) }

// Last reports whether the packet is the last one of a message of several packets.
func (o Opcode) Last() bool { return opcodes[o]&isOnly == isEnd }

// Only reports whether the packet is a whole message.
func (o Opcode) Only() bool { return opcodes[o]&isOnly == isOnly }

// Starts reports whether the packet begins a message: First or Only.
func (o Opcode) Starts() bool { return o.has(isStart) }

// Ends reports whether the packet ends a message: Last or Only.
func (o Opcode) Ends() bool { return o.has(isEnd) }

// HasDETH reports whether the packet has a Q_Key and a source QPN.
func (o Opcode) HasDETH() bool { return o.has(hasDETH) }

// HasRETH reports whether the packet has a remote address, rkey and length.
func (o Opcode) HasRETH() bool { return o.has(hasRETH) }

// HasAETH reports whether the packet has a syndrome and an MSN.
func (o Opcode) HasAETH() bool { return o.has(hasAETH) }

// HasImm reports whether the packet has immediate data.
func (o Opcode) HasImm() bool { return o.has(hasImm) }

// HasInv reports whether the packet has an rkey to invalidate.
func (o Opcode) HasInv() bool { return o.has(hasIETH) }

// HasPayload reports whether the packet may carry data.
func (o Opcode) HasPayload() bool { return o.has(hasPayload) }

// NeedsRecv reports whether the responder takes a receive for the packet: the first packet of a SEND,
// and the last one of an RDMA WRITE with Immediate.
func (o Opcode) NeedsRecv() bool { return o.has(needsRecv) }

// CompletesRecv reports whether the packet completes a receive.
func (o Opcode) CompletesRecv() bool { return o.has(completes) }
