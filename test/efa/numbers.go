package efa

import "encoding/binary"

var le = binary.LittleEndian

// Registers in BAR 0.
const (
	regVersion     = 0x00
	regController  = 0x04
	regCaps        = 0x08
	regAQBaseLo    = 0x10
	regAQBaseHi    = 0x14
	regAQCaps      = 0x18
	regACQBaseLo   = 0x20
	regACQBaseHi   = 0x24
	regACQCaps     = 0x28
	regAQDoorbell  = 0x2c
	regAENQCaps    = 0x34
	regAENQBaseLo  = 0x38
	regAENQBaseHi  = 0x3c
	regAENQCons    = 0x40
	regIntrMask    = 0x4c
	regControl     = 0x54
	regStatus      = 0x58
	regRead        = 0x5c
	regAnswerLo    = 0x60
	regAnswerHi    = 0x64
	regEQDoorbell  = 0x68
	regsEnd        = 0x6c
	controlReset   = 1 << 0
	controlMBZ     = 0x0ffffffe // AQ restart is not modelled: Linux does not use it
	statusReady    = 1 << 0
	statusReset    = 1 << 3
	capsReset      = 10 << 1 // timeout of a reset, in 100 ms
	capsWidth      = 48      // bits of bus addresses
	eqArm          = 1 << 31
	unreadRegister = 0xffffffff
)

// opcode is a command's.
type opcode uint8

// The commands.
const (
	opCreateQP   opcode = 1
	opModifyQP   opcode = 2
	opQueryQP    opcode = 3
	opDestroyQP  opcode = 4
	opCreateAH   opcode = 5
	opDestroyAH  opcode = 6
	opRegMR      opcode = 7
	opDeregMR    opcode = 8
	opCreateCQ   opcode = 9
	opDestroyCQ  opcode = 10
	opGetFeature opcode = 11
	opSetFeature opcode = 12
	opGetStats   opcode = 13
	opAllocPD    opcode = 14
	opDeallocPD  opcode = 15
	opAllocUAR   opcode = 16
	opDeallocUAR opcode = 17
	opCreateEQ   opcode = 18
	opDestroyEQ  opcode = 19

	opCreateCounter  opcode = 25
	opDestroyCounter opcode = 26
	opAttachCounter  opcode = 27
	opModifyCounter  opcode = 28
	opDetachCounter  opcode = 29
)

// status is the answer of a command.
type status uint8

// The statuses.
const (
	statusOK          status = 0
	statusNoResources status = 1
	statusUnsupported status = 3
	statusMalformed   status = 4
	statusIllegal     status = 5
	statusBusy        status = 7
)

func (s status) String() string {
	names := map[status]string{
		statusOK: "success", statusNoResources: "no resources", statusUnsupported: "unsupported opcode",
		statusMalformed: "malformed request", statusIllegal: "illegal parameter", statusBusy: "resource is busy",
	}
	return names[s]
}

// Features of GET_FEATURE and SET_FEATURE.
const (
	featDevice    = 1
	featAENQ      = 2
	featNetwork   = 3
	featQueues    = 4
	featHints     = 5
	featHost      = 6
	featEQs       = 7
	featQueuesToo = 9
)

// Groups of asynchronous events.
const (
	groupKeepAlive = 4
	allGroups      = 0x1e
)

// Bits of device_caps.
const (
	capRead        = 1 << 0
	capRNRRetry    = 1 << 1
	capWrite       = 1 << 3
	capUnsolicited = 1 << 4
	capCounters    = 1 << 5
)

// Sizes of what the driver and the card share.
const (
	commandSize   = 64
	aenqEntrySize = 64
	eqEntrySize   = 16
	pageSize      = 4096
)

// Limits of the card.
const (
	maxQPs       = 256
	maxCQs       = 512
	maxEQs       = 64
	maxPDs       = 256
	maxUARs      = 64
	maxMRs       = 4096
	maxAHs       = 1024
	maxMRPages   = 1 << 20
	maxPages     = 1 << 22 // of all MRs
	maxSQDepth   = 1024
	maxRQDepth   = 1024 // descriptors
	maxCQDepth   = 16384
	eqDepth      = 1024
	sendSGEs     = 2
	recvSGEs     = 3
	inlineData   = 32
	inlineWide   = 80
	maxLLQ       = maxSQDepth * 128
	mtu          = 8928
	maxRDMA      = 1 << 30
	linkGbits    = 100
	pageSizes    = 1<<32 - pageSize // every power of two from 4 KiB to 2 GiB
	maxPageShift = 31

	maxCounters     = 64
	maxCounterValue = 1<<48 - 1
)

// The BARs. Every UAR is a page of BAR 4, with a word for each of the card's queues.
const (
	barRegisters = 0
	barLLQ       = 2
	barDoorbells = 4

	registersSize = 0x4000
	llqSize       = maxQPs * maxLLQ
	doorbellsSize = maxUARs * pageSize

	// MSIXTable is the place of the MSI-X table in BAR 0, MSIXPBA that of the pending array.
	MSIXTable = 0x2000
	MSIXPBA   = 0x3000
	// Vectors is the number of MSI-X interrupts: one for commands, the others for event queues.
	Vectors = 33

	doorbellSQ = 0x000
	doorbellRQ = 0x400
	doorbellCQ = 0x800
)
