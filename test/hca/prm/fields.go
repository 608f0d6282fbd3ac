package prm

// What every command begins with, and every answer.
var (
	InOpcode = Field{0x00, 16}
	InUID    = Field{0x10, 16}
	InOpMod  = Field{0x30, 16}

	OutStatus   = Field{0x00, 8}
	OutSyndrome = Field{0x20, 32}
)

// ObjectNumber is where nearly all commands and answers have the number of the object that
// they are about: qpn, cqn, pd, uar, xrcd, mkey_index, ...
var ObjectNumber = Field{0x48, 24}

// EQNumber is where the EQ commands have it.
var EQNumber = Field{0x58, 8}

// PageList is the byte at which the creating commands have their list of pages.
const PageList = 0x880 / 8

// eqc_bits, create_eq_in_bits.
var (
	EQCState    = Field{0x14, 4}
	EQCPageOff  = Field{0x54, 6}
	EQCLogSize  = Field{0x63, 5}
	EQCUAR      = Field{0x68, 24}
	EQCIntr     = Field{0xb4, 12}
	EQCLogPage  = Field{0xc3, 5}
	EQCConsumer = Field{0x148, 24}
	EQCProducer = Field{0x168, 24}
)

// Numbers that go with them: bytes where records are and how long they are, and values.
const (
	EQCtx        = 0x80 / 8 // byte in the command
	EQBitmask    = 0x2c0 / 8
	EQStateArmed = 0x9
	EQStateFired = 0xa
)

// cqc_bits, create_cq_in_bits, modify_cq_in_bits.
var (
	CQCStatus   = Field{0x00, 4}
	CQCCQESize  = Field{0x08, 3}
	CQCOI       = Field{0x0e, 1}
	CQCComp     = Field{0x11, 1}
	CQCMini     = Field{0x12, 2} // mini_cqe_res_format
	CQCState    = Field{0x14, 4}
	CQCPageOff  = Field{0x54, 6}
	CQCLogSize  = Field{0x63, 5}
	CQCUAR      = Field{0x68, 24}
	CQCPeriod   = Field{0x84, 12}
	CQCMaxCount = Field{0x90, 16}
	CQCEQN      = Field{0xa0, 32}
	CQCLogPage  = Field{0xc3, 5}
	CQCProducer = Field{0x168, 24}
	CQCDBR      = Field{0x1c0, 64}

	ModifyCQSelect = Field{0x60, 32}
)

// Numbers that go with them: bytes where records are and how long they are, and values.
const (
	CQCtx   = 0x80 / 8
	CQCSize = 64
)

// Operation modifiers and selectors of MODIFY_CQ: device.h, enum mlx5_modify_cq_mask of cq.h.
const (
	ModifyCQOpModify = 0
	ModifyCQOpResize = 1

	ModifyCQPeriod     = 1 << 0
	ModifyCQCount      = 1 << 1
	ModifyCQOverrun    = 1 << 2
	ModifyCQPeriodMode = 1 << 4
)

// mkc_bits, create_mkey_in_bits.
var (
	MKCFree          = Field{0x01, 1}
	MKCMode42        = Field{0x03, 3}
	MKCUMREn         = Field{0x10, 1}
	MKCAtomic        = Field{0x11, 1}
	MKCRemoteWrite   = Field{0x12, 1}
	MKCRemoteRead    = Field{0x13, 1}
	MKCLocalWrite    = Field{0x14, 1}
	MKCLocalRead     = Field{0x15, 1}
	MKCMode10        = Field{0x16, 2}
	MKCQPN           = Field{0x20, 24}
	MKCKey           = Field{0x38, 8}
	MKCLength64      = Field{0x60, 1}
	MKCBSFEn         = Field{0x61, 1}
	MKCRemoteInv     = Field{0x67, 1}
	MKCPD            = Field{0x68, 24}
	MKCStart         = Field{0x80, 64}
	MKCLen           = Field{0xc0, 64}
	MKCTranslations  = Field{0x1a0, 32}
	MKCLogPage       = Field{0x1da, 6}
	MKeyPGAccess     = Field{0x60, 1}
	MKeyUMEMValid    = Field{0x61, 1}
	MKeyTranslations = Field{0x300, 32} // translations_octword_actual_size
)

// Numbers that go with them: bytes where records are and how long they are, and values.
const (
	MKCtx   = 0x80 / 8
	MKCSize = 64

	// MKeyList is where QUERY_MKEY has the translation: bsf0_klm0_pas_mtt0_1.
	MKeyList = 0x300 / 8
)

// page_fault_resume_in_bits; in newer headers trans_page_fault_info_bits.
var (
	FaultError = Field{0x40, 1}
	FaultType  = Field{0x45, 3}
	FaultWQ    = Field{0x48, 24}
	FaultToken = Field{0x68, 24}
)

// qpc_bits.
var (
	QPOptParam       = Field{0x80, 32}
	QPECEIn          = Field{0xa0, 32}
	QPECEOut         = Field{0x60, 32}
	QPOptParam2      = Field{0x840, 64} // opt_param_mask_95_32, behind the context
	QPHasExt         = Field{0x40, 1}   // qpc_ext: there is an extended context
	QPExtStream      = Field{0x10, 16}  // dci_stream_channel_id, in the extended context
	QPCState         = Field{0x00, 4}
	QPCLAGPort       = Field{0x04, 4} // lag_tx_port_affinity
	QPCType          = Field{0x08, 8}
	QPCPMState       = Field{0x13, 2}
	QPCWQSignature   = Field{0x20, 1}
	QPCBlockLBMC     = Field{0x21, 1}
	QPCForceOrdering = Field{0x27, 1} // dp_ordering_force
	QPCPD            = Field{0x28, 24}
	QPCMTU           = Field{0x40, 3}
	QPCLogMsgMax     = Field{0x43, 5}
	QPCLogRQSize     = Field{0x49, 4}
	QPCLogRQStride   = Field{0x4d, 3}
	QPCNoSQ          = Field{0x50, 1}
	QPCLogSQSize     = Field{0x51, 4}
	QPCCounterSet    = Field{0x60, 8}
	QPCUAR           = Field{0x68, 24}
	QPCUserIndex     = Field{0x88, 24}
	QPCLogPage       = Field{0xa3, 5}
	QPCRemoteQPN     = Field{0xa8, 24}
	QPCLogSRAMax     = Field{0x388, 3}
	QPCRetryCount    = Field{0x38d, 3}
	QPCRNRRetry      = Field{0x390, 3}
	QPCNextSendPSN   = Field{0x3c8, 24}
	QPCLogDCIStreams = Field{0x3e3, 5}
	QPCCQNSnd        = Field{0x3e8, 24}
	QPCLogDCIFailed  = Field{0x403, 5}
	QPCDETHSQPN      = Field{0x408, 24}
	QPCLastAckedPSN  = Field{0x448, 24}
	QPCLogRRAMax     = Field{0x488, 3}
	QPCAtomicMode    = Field{0x48c, 4}
	QPCRRE           = Field{0x490, 1}
	QPCRWE           = Field{0x491, 1}
	QPCRAE           = Field{0x492, 1}
	QPCPageOff       = Field{0x494, 6}
	QPCOrdering1     = Field{0x49c, 1} // dp_ordering_1
	QPCMinRNRNAK     = Field{0x4a3, 5}
	QPCNextRcvPSN    = Field{0x4a8, 24}
	QPCXRCD          = Field{0x4c8, 24}
	QPCCQNRcv        = Field{0x4e8, 24}
	QPCDBR           = Field{0x500, 64}
	QPCQKey          = Field{0x540, 32}
	QPCRQType        = Field{0x565, 3}
	QPCSRQN          = Field{0x568, 24}
	QPCHWSQCounter   = Field{0x5a0, 16}
	QPCHWRQCounter   = Field{0x5c0, 32}
	QPCScatterReq    = Field{0x630, 8}
	QPCScatterRes    = Field{0x638, 8}
)

// Numbers that go with them: bytes where records are and how long they are, and values.
const (
	QPCtx          = 0xc0 / 8
	QPOptParam2End = 0x880 / 8 // the extended context
	QPExtSize      = 0x600 / 8
	QPCSize        = 0x740 / 8
	QPCPrimary     = 0xc0 / 8  // ads_bits
	QPCSecondary   = 0x220 / 8 // ads_bits
)

// Transport services (qpc.st) and kinds of receive queues (qpc.rq_type): qp.h, mlx5_ifc.h.
const (
	STRC   = 0x0
	STUC   = 0x1
	STUD   = 0x2
	STXRC  = 0x3
	STDCI  = 0x5
	STQP0  = 0x7
	STQP1  = 0x8
	STRaw  = 0x9
	STUMR  = 0xc
	RQOwn  = 0x0
	RQSRQ  = 0x1
	RQNone = 0x3
)

// QP states (qpc.state): enum mlx5_qp_state of qp.h.
const (
	QPStateRST  = 0
	QPStateINIT = 1
	QPStateRTR  = 2
	QPStateRTS  = 3
	QPStateSQER = 4
	QPStateSQD  = 5
	QPStateERR  = 6
	QPStateSQDR = 7 // still draining
)

// Bits of opt_param_mask: enum mlx5_qp_optpar of qp.h.
const (
	OptAltPath     = 1 << 0
	OptRRE         = 1 << 1
	OptRAE         = 1 << 2
	OptRWE         = 1 << 3
	OptPKeyIndex   = 1 << 4
	OptQKey        = 1 << 5
	OptRNRTimeout  = 1 << 6
	OptPrimaryPath = 1 << 7
	OptSRAMax      = 1 << 8
	OptRRAMax      = 1 << 9
	OptPMState     = 1 << 10
	OptRetryCount  = 1 << 12
	OptRNRRetry    = 1 << 13
	OptAckTimeout  = 1 << 14
	OptLAGPort     = 1 << 15
	OptPriPort     = 1 << 16
	OptSRQN        = 1 << 18
	OptCQNRcv      = 1 << 19
	OptCounterSet  = 1 << 25
)

// OptSport is a bit of opt_param_mask_95_32: MLX5_QPC_OPT_MASK_32_UDP_SPORT (mlx5_ifc.h of rdma-core).
const OptSport = 1 << 2

// ads_bits: an address path.
var (
	ADSPKeyIndex  = Field{0x10, 16}
	ADSGRH        = Field{0x28, 1}
	ADSMLID       = Field{0x29, 7}
	ADSRLID       = Field{0x30, 16}
	ADSAckTimeout = Field{0x40, 5}
	ADSSrcAddr    = Field{0x48, 8}
	ADSStatRate   = Field{0x54, 4}
	ADSHopLimit   = Field{0x58, 8}
	ADSTClass     = Field{0x64, 8}
	ADSFlowLabel  = Field{0x6c, 20}
	ADSUDPSport   = Field{0x110, 16}
	ADSEthPrio    = Field{0x121, 3}
	ADSSL         = Field{0x124, 4}
	ADSPort       = Field{0x128, 8}
	ADSRMACHigh   = Field{0x130, 16}
	ADSRMACLow    = Field{0x140, 32}
)

// Numbers that go with them: bytes where records are and how long they are, and values.
const (
	ADSRGID = 0x80 / 8
	ADSSize = 0x160 / 8
)

// wq_bits: the queue in an RMP, an RQ or an SQ.
var (
	WQType      = Field{0x00, 4}
	WQSignature = Field{0x04, 1}
	WQPageOff   = Field{0x2b, 5}
	WQLWM       = Field{0x30, 16}
	WQPD        = Field{0x48, 24}
	WQUAR       = Field{0x68, 24}
	WQDBR       = Field{0x80, 64}
	WQLogStride = Field{0x10c, 4}
	WQLogPage   = Field{0x113, 5}
	WQLogSize   = Field{0x11b, 5}
	WQLogNum    = Field{0x134, 4} // log_wqe_num_of_strides
	WQTwoBytes  = Field{0x138, 1} // two_byte_shift_en
	WQLogBytes  = Field{0x13d, 3} // log_wqe_stride_size
)

// Numbers that go with them: bytes where records are and how long they are, and values.
const (
	WQSize       = 0x600 / 8
	WQInCtx      = 0x180 / 8 // byte of the queue in rmpc, rqc and sqc
	WQCtx        = 0x100 / 8 // byte of the context in the command
	WQCtxSize    = 0x780 / 8
	WQLinkedList = 0x0
	WQCyclic     = 0x1
	WQStriding   = 0x3 // MLX5_WQ_TYPE_CYCLIC_STRIDING_RQ

	// The fields about strides have values from these on; WQLogNum from 10 on has smaller ones.
	StrideMinLogNum   = 9
	StrideMinLogBytes = 6
	StrideFewLogNum   = 10 - 3
)

// rmpc_bits, modify_rmp_in_bits, rqc_bits, sqc_bits and the commands about them.
var (
	RMPCState     = Field{0x08, 4}
	RateIndex     = Field{0x50, 16} // of SET_PP_RATE_LIMIT
	Rate          = Field{0x80, 32} // kbit/s
	ModifyState   = Field{0x40, 4}  // rmp_state, rq_state, sq_state
	ModifyMaskLWM = Field{0xbf, 1}  // of MODIFY_RMP
	ModifyMask    = Field{0x80, 64} // of MODIFY_RQ and MODIFY_SQ
	RQCKeepVLAN   = Field{0x03, 1}  // vsd: VLAN strip disable
	RQCMemType    = Field{0x04, 4}
	RQCState      = Field{0x08, 4}
	RQCUserIndex  = Field{0x28, 24}
	RQCCQN        = Field{0x48, 24}
	RQCCounterSet = Field{0x60, 8}
	RQCRMPN       = Field{0x88, 24}
	SQCInlineMode = Field{0x05, 3}
	SQCState      = Field{0x08, 4}
	SQCUserIndex  = Field{0x28, 24}
	SQCCQN        = Field{0x48, 24}
	SQCRate       = Field{0xf0, 16} // packet_pacing_rate_limit_index
	SQCTISCount   = Field{0x100, 16}
	SQCTIS        = Field{0x168, 24}
)

// States of an RQ, SQ or RMP: enum of mlx5_ifc.h.
const (
	WQStateRST = 0
	WQStateRDY = 1
	WQStateERR = 3
)

// xrc_srqc_bits, srqc_bits.
var (
	SRQCState     = Field{0x00, 4}
	SRQCLogSize   = Field{0x04, 4}
	SRQCSignature = Field{0x20, 1}
	SRQCLogStride = Field{0x25, 3}
	SRQCXRCD      = Field{0x28, 24}
	SRQCPageOff   = Field{0x40, 6}
	SRQCCQN       = Field{0x48, 24}
	SRQCLogPage   = Field{0x82, 6}
	SRQCUserIndex = Field{0x88, 24} // XRC only
	SRQCPD        = Field{0xc8, 24}
	SRQCLWM       = Field{0xe0, 16}
	SRQCDBR       = Field{0x140, 64}
	ArmLWM        = Field{0x70, 16}
)

// Numbers that go with them: bytes where records are and how long they are, and values.
const (
	SRQCtx   = 0x80 / 8
	SRQCSize = 64
)

// Several small commands.
var (
	ISSICurrent     = Field{0x50, 16}
	ISSISupported   = Field{0x360, 32}
	PagesNum        = Field{0x60, 32} // QUERY_PAGES' answer, MANAGE_PAGES' input
	PagesOut        = Field{0x40, 32}
	DumpFillMKey    = Field{0x40, 32}
	NullMKey        = Field{0x80, 32}
	TermMKey        = Field{0xa0, 32}
	AdapterIEEE     = Field{0x148, 24}
	AdapterVendor   = Field{0x170, 16}
	RegisterID      = Field{0x50, 16}
	CounterSetID    = Field{0x58, 8} // ALLOC's answer, DEALLOC's input
	QueryCounterID  = Field{0xf8, 8}
	QueryClear      = Field{0xc0, 1}
	MADPort         = Field{0x58, 8}
	TeardownProfile = Field{0x50, 16}
	UCtxCaps        = Field{0x80, 32} // CREATE_UCTX's input
	UCtxID          = Field{0x50, 16} // CREATE_UCTX's answer, DESTROY_UCTX's input
	LAGState        = Field{0x5d, 3}  // QUERY_LAG's answer
	LAGRemap2       = Field{0x74, 4}  // tx_remap_affinity_2
	LAGRemap1       = Field{0x7c, 4}
)

// Numbers that go with them: bytes where records are and how long they are, and values.
const (
	PagesList    = 0x80 / 8
	AdapterPSID  = 0x800 / 8
	RegisterData = 0x80 / 8
	MADData      = 0x80 / 8
	MADSize      = 256
	MCGGID       = 0x80 / 8
	GenEQEData   = 0x80 / 8
	CapsData     = 0x80 / 8
	CapsSize     = 4096
)

// query_q_counter_in_bits, besides the number and the clear bit.
var (
	QueryCounterOther     = Field{0x40, 1} // of another function's port
	QueryCounterAggregate = Field{0xc1, 1} // the sum of all sets
)

// query_q_counter_out_bits.
var (
	QCWriteRequests      = Field{0x80, 32}
	QCReadRequests       = Field{0xc0, 32}
	QCAtomicRequests     = Field{0x100, 32}
	QCDCTConnects        = Field{0x140, 32}
	QCOutOfBuffer        = Field{0x180, 32}
	QCOutOfSequence      = Field{0x1c0, 32}
	QCDuplicate          = Field{0x200, 32}
	QCRNRNAK             = Field{0x240, 32}
	QCPacketSeqErr       = Field{0x280, 32}
	QCImpliedNAK         = Field{0x2c0, 32}
	QCLocalAckTimeout    = Field{0x300, 32}
	QCRNRRetriesExceeded = Field{0x380, 32}
	QCRespLength         = Field{0x3c0, 32}
	QCReqLength          = Field{0x3e0, 32}
	QCRespProtection     = Field{0x440, 32}
	QCReqProtection      = Field{0x460, 32}
	QCRespCQEError       = Field{0x480, 32}
	QCReqCQEError        = Field{0x4a0, 32}
	QCReqMWBinding       = Field{0x4c0, 32}
	QCReqBadResponse     = Field{0x4e0, 32}
	QCReqInvalid         = Field{0x500, 32}
	QCRespInvalid        = Field{0x520, 32}
	QCReqAccess          = Field{0x540, 32}
	QCRespAccess         = Field{0x560, 32}
	QCReqOperation       = Field{0x580, 32}
	QCRetriesExceeded    = Field{0x5a0, 32}
	QCRespFlush          = Field{0x5e0, 32}
	QCReqFlush           = Field{0x600, 32}
)

// query_vport_counter_out_bits: packets and octets in each of its traffic_counters.
var (
	VPCXmitErrors          = Field{0x100, 64}
	VPCRecvUnicast         = Field{0x180, 64}
	VPCRecvUnicastOctets   = Field{0x1c0, 64}
	VPCXmitUnicast         = Field{0x200, 64}
	VPCXmitUnicastOctets   = Field{0x240, 64}
	VPCRecvMulticast       = Field{0x280, 64}
	VPCRecvMulticastOctets = Field{0x2c0, 64}
	VPCXmitMulticast       = Field{0x300, 64}
	VPCXmitMulticastOctets = Field{0x340, 64}
)

// alloc_memic_in_bits, alloc_memic_out_bits and dealloc_memic_in_bits.
var (
	MEMICAlign      = Field{0x78, 8}
	MEMICRangeStart = Field{0x80, 64}
	MEMICRangeSize  = Field{0xc0, 32}
	MEMICAllocSize  = Field{0xe0, 32}
	MEMICAllocated  = Field{0x40, 64}
	MEMICFreeStart  = Field{0x80, 64}
	MEMICFreeSize   = Field{0xc0, 32}
)
