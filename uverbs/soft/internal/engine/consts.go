package engine

// QPType is the type of a queue pair (enum ib_qp_type).
type QPType uint8

// Types of queue pairs that the device supports. Programs cannot create a GSI queue pair.
const (
	GSI QPType = 1
	RC  QPType = 2
	UC  QPType = 3
	UD  QPType = 4
)

// State is the state of a queue pair (enum ib_qp_state).
type State uint8

// States of a queue pair.
const (
	Reset State = iota
	Init
	RTR
	RTS
	SQD
	SQE
	Err
)

// AttrMask says which fields of a [QPAttr] are meant (enum ib_qp_attr_mask).
type AttrMask uint32

// Bits of an AttrMask.
const (
	AttrState           AttrMask = 1 << 0
	AttrCurState        AttrMask = 1 << 1
	AttrSQDNotify       AttrMask = 1 << 2
	AttrAccess          AttrMask = 1 << 3
	AttrPKeyIndex       AttrMask = 1 << 4
	AttrPort            AttrMask = 1 << 5
	AttrQKey            AttrMask = 1 << 6
	AttrAV              AttrMask = 1 << 7
	AttrPathMTU         AttrMask = 1 << 8
	AttrTimeout         AttrMask = 1 << 9
	AttrRetryCount      AttrMask = 1 << 10
	AttrRNRRetry        AttrMask = 1 << 11
	AttrRQPSN           AttrMask = 1 << 12
	AttrMaxRdAtomic     AttrMask = 1 << 13
	AttrAltPath         AttrMask = 1 << 14
	AttrMinRNRTimer     AttrMask = 1 << 15
	AttrSQPSN           AttrMask = 1 << 16
	AttrMaxDestRdAtomic AttrMask = 1 << 17
	AttrPathMigState    AttrMask = 1 << 18
	AttrCaps            AttrMask = 1 << 19
	AttrDestQPN         AttrMask = 1 << 20
	AttrRateLimit       AttrMask = 1 << 25
	attrStandard                 = AttrDestQPN<<1 - 1
)

// Status is the status of a completion (enum ib_wc_status).
type Status uint32

// Statuses that the device reports.
const (
	StatusSuccess      Status = 0
	StatusLocLenErr    Status = 1
	StatusLocQPOpErr   Status = 2
	StatusLocProtErr   Status = 4
	StatusFlushErr     Status = 5
	StatusMWBindErr    Status = 6
	StatusRemInvReqErr Status = 9
	StatusRemAccessErr Status = 10
	StatusRemOpErr     Status = 11
	StatusRetryExcErr  Status = 12
	StatusRNRRetryErr  Status = 13
	StatusFatalErr     Status = 19
)

// Asynchronous events (enum ib_event_type).
const (
	EventCQErr     uint32 = 0
	EventQPFatal   uint32 = 1
	EventAccessErr uint32 = 3
	EventSQDrained uint32 = 5
	EventSRQLimit  uint32 = 15
	EventLastWQE   uint32 = 16
)

// Access rights that a QP may grant (enum ib_access_flags).
const (
	// accessQP is RXE_ACCESS_SUPPORTED_QP: remote and local rights, windows, on-demand paging, FLUSH
	// and the optional flags.
	accessQP = 0x1f | 1<<6 | 3<<8 | 0x3ff00000
)

// Limits of the device (rxe_param.h).
const (
	MaxQPWR     = 1 << 20
	MaxSGE      = 32
	MaxInline   = 512 // bytes
	MaxCQE      = 1<<15 - 1
	MaxSRQWR    = 1 << 20
	MaxSRQSGE   = 27
	MaxRdAtomic = 128
	MaxAH       = 1<<15 - 1
	MaxQP       = 1<<20 - 16
	MaxCQ       = 1 << 20
	MaxSRQ      = 1<<20 - 0x20001
	MaxGroups   = 8192
	MaxGroupQPs = 56
	MaxMessage  = 1 << 31 // bytes
	// GRHSize is the number of bytes in front of a datagram in the receiver's memory.
	GRHSize = 40

	minQPN   = 17
	srqLimit = 1 << 20
)
