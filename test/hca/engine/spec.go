package engine

// Buffer is memory of the guest that holds a queue: pages of one size, and where in the
// first page the queue begins.
type Buffer struct {
	Pages    []uint64 // Pages are bus addresses.
	PageSize uint64   // PageSize in bytes, a power of two, at least 4096.
	Offset   uint64   // Offset of the queue in the first page, in bytes.
}

// EQSpec is an event queue to create.
type EQSpec struct {
	Buf    Buffer // Buf holds the entries, 64 bytes each.
	Log    uint   // Log is log2 of the number of entries.
	Vector int    // Vector is the MSI-X vector.
	UAR    uint32 // UAR is the page on which the EQ is armed.
	Events uint64 // Events has bit t set for each asynchronous event type t that goes here.
}

// CQSpec is a completion queue to create, or the state of one that is queried.
type CQSpec struct {
	Buf           Buffer     // Buf holds the entries.
	Log           uint       // Log is log2 of the number of entries.
	EntrySize     int        // EntrySize is 64 or 128, in bytes.
	EQN           uint32     // EQN is the event queue for completions.
	UAR           uint32     // UAR is the page on which the CQ is armed.
	DBR           uint64     // DBR is the bus address of the doorbell record.
	IgnoreOverrun bool       // IgnoreOverrun is the oi bit: no check of the consumer index.
	Mini          MiniFormat // Mini is how CQEs are compressed; 0 is not at all.
	Collapsed     bool       // Collapsed is the cc bit: every CQE goes to entry 0.
	ModCount      uint16     // ModCount is the moderation's number of CQEs.
	ModPeriod     uint16     // ModPeriod is the moderation's time, in µs.
	Failed        bool       // Failed, of a query: the CQ has overrun.
	Armed         bool       // Armed, of a query: a notification is requested.
	Producer      uint32     // Producer, of a query: the counter of written CQEs, 24 bits.
}

// MiniFormat is what the small entries of compressed CQEs have beside the number of bytes (mini_cqe_res_format + 1).
type MiniFormat uint8

// The formats.
const (
	MiniHash   MiniFormat = 1 // the hash by which a queue was chosen; none is modelled
	MiniCsum   MiniFormat = 2 // the sum over the frame
	MiniStride MiniFormat = 4 // the sum, and the index of the stride
)

// AccessMode is how a memory key translates addresses.
type AccessMode uint8

// The access modes (MLX5_MKC_ACCESS_MODE_* in mlx5_ifc.h).
const (
	ModePA  AccessMode = 0 // bus addresses
	ModeMTT AccessMode = 1 // a list of pages
	ModeKLM AccessMode = 2 // a list of (length, key, address)
	ModeKSM AccessMode = 3 // the same with entries of one size
	ModeOwn AccessMode = 5 // the device's own memory: Start is a place in it, and addresses begin at 0
)

// Access is a set of rights. Local read is a right of its own, as in the mkey context.
type Access uint8

// The rights. The bits are the same as in the mkey context's access byte (MLX5_PERM_* in
// mlx5/device.h).
const (
	LocalRead    Access = 1 << 2
	LocalWrite   Access = 1 << 3
	RemoteRead   Access = 1 << 4
	RemoteWrite  Access = 1 << 5
	RemoteAtomic Access = 1 << 6
)

// KLM is one entry of an indirect memory key (struct mlx5_klm).
type KLM struct {
	Length uint32 // Length in bytes; of a KSM the entry size of the key counts instead.
	Key    uint32 // Key is the memory key that the entry leads to.
	VA     uint64 // VA is the address in that key.
}

// MKeySpec is a memory key to create, or the state of one that is queried.
type MKeySpec struct {
	Variant     uint8      // Variant is the key's low byte (mkey_7_0).
	PD          uint32     // PD is the protection domain.
	QPN         uint32     // QPN binds the key to one QP; 0xffffff is none.
	Mode        AccessMode // Mode is how addresses are translated.
	Access      Access     // Access is what the key allows.
	Start       uint64     // Start is the first address.
	Length      uint64     // Length in bytes.
	Length64    bool       // Length64 means the whole address space: no bounds.
	Free        bool       // Free means no translation yet; a UMR makes it valid.
	UMREnable   bool       // UMREnable allows UMR to change it.
	RemoteInval bool       // RemoteInval allows SEND with invalidate to free it.
	LogPageSize uint       // LogPageSize of MTT and KSM entries.
	Pages       []uint64   // Pages are an MTT's entries; their low 12 bits are flags.
	KLMs        []KLM      // KLMs are the entries of an indirect key.
	PageFaults  bool       // PageFaults says that a page which is missing is a page fault (pg_access).
	Entries     int        // Entries is how many octowords (16 bytes) of translation a UMR may fill.
}

// QPType is the service type of a QP (MLX5_QP_ST_* in mlx5/qp.h).
type QPType uint8

// The service types.
const (
	RC     QPType = 0x0
	UC     QPType = 0x1
	UD     QPType = 0x2
	XRC    QPType = 0x3 // an initiator, or with NoSQ a target
	DCI    QPType = 0x5 // an initiator of DC; also of the responders of a DCT
	QP0    QPType = 0x7
	QP1    QPType = 0x8
	RawEth QPType = 0x9
	RegUMR QPType = 0xc
)

// RQType is where a QP takes receive WQEs from (MLX5_*_RQ in mlx5/qp.h).
type RQType uint8

// The kinds of receive queue.
const (
	RQOwn  RQType = 0
	RQSRQ  RQType = 1
	RQNone RQType = 3
)

// NoUserIndex in place of a user index: CQEs carry the SRQ's number.
const NoUserIndex = 0xffffff

// QPSpec is a QP to create: what the QP context says in CREATE_QP.
type QPSpec struct {
	Type          QPType // Type is the service type.
	PD            uint32 // PD is the protection domain.
	SendCQ        uint32 // SendCQ is the CQ of the send queue.
	RecvCQ        uint32 // RecvCQ is the CQ of the receive queue.
	UAR           uint32 // UAR is the page on which its doorbells ring.
	UserIndex     uint32 // UserIndex goes into CQEs; NoUserIndex is none.
	DBR           uint64 // DBR is the bus address of the doorbell record.
	Buf           Buffer // Buf holds the receive queue and then the send queue.
	NoSQ          bool   // NoSQ: there is no send queue.
	LogSQ         uint   // LogSQ is log2 of the send queue's size in blocks of 64 bytes.
	RQ            RQType // RQ is where receive WQEs come from.
	LogRQ         uint   // LogRQ is log2 of the number of receive WQEs.
	LogRQStride   uint   // LogRQStride is log2 of a receive WQE's size in bytes.
	SRQN          uint32 // SRQN is the SRQ, or RMP, with RQSRQ.
	XRCD          uint32 // XRCD is the XRC domain of a target.
	ScatterReq    int    // ScatterReq is 0, 32 or 64: READ and atomic results up to it go into the CQE (cs_req).
	ScatterRes    int    // ScatterRes is 0, 32 or 64: messages up to it go into the CQE (cs_res).
	DethSQPN      uint32 // DethSQPN is the source QPN in datagrams; 0 is the QP's own.
	BlockLoopback bool   // BlockLoopback keeps own multicasts from QPs of this device.
	LogStreams    uint   // LogStreams is log2 of the number of streams of a DCI; 0 is one, whose failure makes the DCI fail.
	LogFailed     uint   // LogFailed is log2 of the number of failed streams with which a DCI fails.
}

// DCTSpec is a target of DC to create.
type DCTSpec struct {
	PD         uint32 // PD is the protection domain.
	CQN        uint32 // CQN is the completion queue.
	SRQN       uint32 // SRQN is the SRQ that receive WQEs come from.
	UserIndex  uint32 // UserIndex goes into CQEs; NoUserIndex is none.
	Key        uint64 // Key is the access key that requests must have.
	RRE        bool   // RRE allows remote reads.
	RWE        bool   // RWE allows remote writes.
	RAE        bool   // RAE allows remote atomics.
	AtomicMode uint8  // AtomicMode is kept and given back.
	CounterSet uint8  // CounterSet counts the connections; 0 is none.
	ScatterRes int    // ScatterRes is 0, 32 or 64: messages up to it go into the CQE (cs_res).
	MinRNRNAK  uint8  // MinRNRNAK is the RNR timer's code in NAKs.
	MTU        uint8  // MTU is 1 to 5, 256 to 4096 bytes.
	Port       uint8  // Port of the device, 1.
	PKeyIndex  uint16 // PKeyIndex into the port's table.
	GIDIndex   uint8  // GIDIndex is the entry of the GID table that answers come from (my_addr_index).
	HopLimit   uint8  // HopLimit of answers.
	TClass     uint8  // TClass of answers.
	FlowLabel  uint32 // FlowLabel of answers, 20 bits.
	EthPrio    uint8  // EthPrio is kept and given back.
	OutOfOrder bool   // OutOfOrder has receives used, and data placed, in another order than messages are sent in (dp_ordering_1).
}

// DCTState is the state of a target (MLX5_DCTC_STATE_* in mlx5_ifc.h).
type DCTState uint8

// The states.
const (
	DCTActive   DCTState = 0
	DCTDraining DCTState = 1
	DCTDrained  DCTState = 2
)

// DCTInfo is the answer to a query of a target.
type DCTInfo struct {
	Spec       DCTSpec  // Spec is what the target was created with.
	State      DCTState // State is the target's state.
	Violations uint32   // Violations counts requests with a wrong access key.
}

// QPState is the state of a QP (MLX5_QP_STATE_* in mlx5/qp.h).
type QPState uint8

// The states.
const (
	Reset QPState = 0
	Init  QPState = 1
	RTR   QPState = 2
	RTS   QPState = 3
	SQErr QPState = 4
	SQD   QPState = 5
	Err   QPState = 6
)

// String is the state's name.
func (s QPState) String() string {
	if n := [...]string{"RST", "INIT", "RTR", "RTS", "SQER", "SQD", "ERR"}; int(s) < len(n) {
		return n[s]
	}
	return "invalid"
}

// Transition is a command that changes a QP's state.
type Transition uint8

// The transitions: one for each command.
const (
	Rst2Init Transition = iota
	Init2Init
	Init2RTR
	RTR2RTS
	RTS2RTS
	SQErr2RTS
	RTS2SQD
	SQD2SQD
	SQD2RTS
	To2Err
	To2Rst
)

// OptParam is the mask of optional parameters in a transition (enum mlx5_qp_optpar in
// mlx5/qp.h), and from bit 32 on opt_param_mask_95_32.
type OptParam uint64

// The optional parameters.
const (
	OptAltPath     OptParam = 1 << 0
	OptRRE         OptParam = 1 << 1
	OptRAE         OptParam = 1 << 2
	OptRWE         OptParam = 1 << 3
	OptPKeyIndex   OptParam = 1 << 4
	OptQKey        OptParam = 1 << 5
	OptRNRTimeout  OptParam = 1 << 6
	OptPrimary     OptParam = 1 << 7
	OptSRAMax      OptParam = 1 << 8
	OptRRAMax      OptParam = 1 << 9
	OptPMState     OptParam = 1 << 10
	OptRetryCount  OptParam = 1 << 12
	OptRNRRetry    OptParam = 1 << 13
	OptAckTimeout  OptParam = 1 << 14
	OptLagAffinity OptParam = 1 << 15 // is kept: there is one port
	OptPriPort     OptParam = 1 << 16
	OptSRQN        OptParam = 1 << 18
	OptRecvCQ      OptParam = 1 << 19
	OptCounterSet  OptParam = 1 << 25
	OptStream      OptParam = 1 << 32
	OptUDPSport    OptParam = 1 << 34
)

// PMState is the state of path migration (MLX5_QP_PM_* in mlx5/qp.h).
type PMState uint8

// The states of path migration.
const (
	PMArmed    PMState = 0
	PMRearm    PMState = 1
	PMMigrated PMState = 3
)

// Path is an address path (struct mlx5_qp_path).
type Path struct {
	Port       uint8    // Port of the device, 1.
	PKeyIndex  uint16   // PKeyIndex into the port's table.
	GRH        bool     // GRH says that packets have one; on Ethernet they always have.
	PathBits   uint8    // PathBits are the low bits of the source LID.
	RLID       uint16   // RLID is the destination's LID; on Ethernet unused.
	AckTimeout uint8    // AckTimeout is 4.096 µs · 2ⁿ; 0 is none.
	SGIDIndex  uint8    // SGIDIndex into the port's GID table.
	StatRate   uint8    // StatRate limits the rate; not modelled, it only has to be sane.
	HopLimit   uint8    // HopLimit of the GRH.
	TClass     uint8    // TClass of the GRH.
	FlowLabel  uint32   // FlowLabel of the GRH, 20 bits.
	RGID       [16]byte // RGID is the destination's GID.
	RMAC       [6]byte  // RMAC is the destination's MAC, on Ethernet.
	UDPSport   uint16   // UDPSport is RoCE v2's source port.
	SL         uint8    // SL is the service level, or Ethernet's priority.
}

// QPAttr is what the QP context says in a transition, and what a query answers. Which of
// its fields count depends on the transition.
type QPAttr struct {
	Primary     Path    // Primary is the path in use.
	Alternate   Path    // Alternate is the path to migrate to.
	PMState     PMState // PMState is the state of path migration.
	MTU         uint8   // MTU is 1 to 5, 256 to 4096 bytes.
	LogMsgMax   uint8   // LogMsgMax is log2 of the longest message.
	RemoteQPN   uint32  // RemoteQPN is the QP at the other end.
	SendPSN     uint32  // SendPSN is the next packet sequence number to send.
	RecvPSN     uint32  // RecvPSN is the next one to receive.
	LogSRAMax   uint8   // LogSRAMax is log2 of the READs and atomics under way as initiator.
	LogRRAMax   uint8   // LogRRAMax is the same as target.
	RetryCount  uint8   // RetryCount is how often a packet is sent again.
	RNRRetry    uint8   // RNRRetry is the same after an RNR NAK; 7 is for ever.
	MinRNRNAK   uint8   // MinRNRNAK is the RNR timer's code in NAKs that this QP sends.
	RRE         bool    // RRE allows remote reads.
	RWE         bool    // RWE allows remote writes.
	RAE         bool    // RAE allows remote atomics.
	QKey        uint32  // QKey of datagrams.
	SRQN        uint32  // SRQN with OptSRQN.
	RecvCQ      uint32  // RecvCQ with OptRecvCQ.
	CounterSet  uint8   // CounterSet counts the QP; 0 is none.
	AtomicMode  uint8   // AtomicMode is kept and given back.
	LAGPort     uint8   // LAGPort is the port of a link aggregation that sends; 0 is the choice of the card. It is kept and given back.
	Stream      uint16  // Stream is the stream of a DCI that is reset.
	OutOfOrder  bool    // OutOfOrder has receives used, and data placed, in another order than messages are sent in (dp_ordering_1).
	SQDrained   bool    // SQDrained asks for an event, in RTS2SQD.
	LastAckPSN  uint32  // LastAckPSN, of a query.
	HWSQCounter uint16  // HWSQCounter, of a query: the send WQE to execute next.
	HWRQCounter uint16  // HWRQCounter, of a query: the receive WQE to take next.
}

// QPInfo is the answer to a query.
type QPInfo struct {
	Spec     QPSpec  // Spec is what the QP was created with.
	State    QPState // State is the QP's state.
	Draining bool    // Draining is set in SQD while WQEs are still executed.
	Attr     QPAttr  // Attr is what transitions have set since.
}

// SRQSpec is a shared receive queue to create (an RMP or an XRC SRQ), or the state of
// one that is queried.
type SRQSpec struct {
	XRC       bool   // XRC: it has a domain, a CQ and a user index.
	PD        uint32 // PD is the protection domain.
	XRCD      uint32 // XRCD is the XRC domain.
	CQN       uint32 // CQN is the completion queue of an XRC SRQ.
	UserIndex uint32 // UserIndex of an XRC SRQ.
	DBR       uint64 // DBR is the bus address of the doorbell record.
	Buf       Buffer // Buf holds the WQEs.
	Log       uint   // Log is log2 of the number of WQEs.
	LogStride uint   // LogStride is log2 of a WQE's size in bytes.
	Limit     uint16 // Limit arms the limit event; 0 is none.
	Failed    bool   // Failed, of a query: the SRQ has had a catastrophic error.
}

// WQState is the state of an Ethernet RQ or SQ (MLX5_{RQC,SQC}_STATE_* in mlx5_ifc.h).
type WQState uint8

// The states.
const (
	WQReset WQState = 0
	WQReady WQState = 1
	WQError WQState = 3
)

// RQSpec is a receive queue for Ethernet frames (CREATE_RQ), or the state of one that is queried.
type RQSpec struct {
	CQN            uint32  // CQN is the completion queue.
	PD             uint32  // PD is the protection domain.
	UserIndex      uint32  // UserIndex goes into CQEs.
	DBR            uint64  // DBR is the bus address of the doorbell record.
	Buf            Buffer  // Buf holds the WQEs.
	Log            uint    // Log is log2 of the number of WQEs.
	LogStride      uint    // LogStride is log2 of a WQE's size in bytes.
	Linked         bool    // Linked: WQEs begin with a next segment, and lead to each other.
	RMPN           uint32  // RMPN is the RMP to take WQEs from, if not its own.
	LogStrides     uint    // LogStrides of a striding queue is log2 of the number of strides of a WQE; else 0.
	LogStrideBytes uint    // LogStrideBytes is log2 of a stride's size.
	StripVLAN      bool    // StripVLAN moves the VLAN tag of a frame into its CQE.
	CounterSet     uint8   // CounterSet counts frames for which there is no WQE; 0 is none.
	State          WQState // State, of a query.
}

// SQSpec is a send queue for Ethernet frames (CREATE_SQ), or the state of one that is queried.
type SQSpec struct {
	CQN       uint32  // CQN is the completion queue.
	PD        uint32  // PD is the protection domain.
	UserIndex uint32  // UserIndex goes into CQEs.
	UAR       uint32  // UAR is the page on which its doorbells ring.
	DBR       uint64  // DBR is the bus address of the doorbell record.
	Buf       Buffer  // Buf holds the WQEs.
	Log       uint    // Log is log2 of the number of blocks of 64 bytes.
	Rate      uint32  // Rate is the most that it sends, in kbit/s; 0 is no limit.
	MinInline int     // MinInline is how many bytes of a frame must stand in the Ethernet segment.
	State     WQState // State, of a query.
}
