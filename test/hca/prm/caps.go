package prm

// Kinds of capabilities: enum mlx5_cap_type (device.h). QUERY_HCA_CAP's modifier has the kind
// above bit 0, which asks for the current values rather than the largest possible.
const (
	CapGeneral   = 0x00
	CapEthernet  = 0x01
	CapODP       = 0x02
	CapAtomic    = 0x03
	CapRoCE      = 0x04
	CapFlowTable = 0x07
	CapQoS       = 0x0c
	CapDebug     = 0x0d
	CapDevMem    = 0x0f
	CapGeneral2  = 0x20
)

// cmd_hca_cap_bits.
var (
	CapPageRequestDisable = Field{0x06, 1}
	CapKind2              = Field{0x20, 1} // hca_cap_2: the kind CapGeneral2 is there
	CapVHCAID             = Field{0x30, 16}
	CapLogMaxSRQSize      = Field{0x80, 8}
	CapLogMaxQPSize       = Field{0x88, 8}
	CapLogMaxQP           = Field{0x9b, 5}
	CapECE                = Field{0xa3, 1}
	CapLogMaxSRQ          = Field{0xab, 5}
	CapMaxSGL             = Field{0xc0, 8}
	CapLogMaxCQSize       = Field{0xc8, 8}
	CapLogMaxCQ           = Field{0xdb, 5}
	CapLogMaxEQSize       = Field{0xe0, 8}
	CapLogMaxMKey         = Field{0xea, 6}
	CapTerminateMKey      = Field{0xf6, 1}
	CapDumpFillMKey       = Field{0xf8, 1}
	CapLogMaxEQ           = Field{0xfc, 4}
	CapMaxIndirection     = Field{0x100, 8}
	CapFixedBufferSize    = Field{0x108, 1}
	CapLogMaxMRWSize      = Field{0x109, 7}
	CapUMROffset          = Field{0x118, 1} // umr_extended_translation_offset
	CapNullMKey           = Field{0x119, 1}
	CapLogMaxKLMList      = Field{0x11a, 6}
	CapQPExtension        = Field{0x122, 1} // qpc_extension
	CapLogMaxRAReqDC      = Field{0x12a, 6}
	CapLogMaxRAResDC      = Field{0x13a, 6}
	CapReleaseAllPages    = Field{0x145, 1}
	CapLogMaxRAReqQP      = Field{0x14a, 6}
	CapRTS2RTSSport       = Field{0x151, 1} // rts2rts_qp_udp_sport
	CapRTS2RTSLAGPort     = Field{0x152, 1} // rts2rts_lag_tx_port_affinity
	CapLogMaxRAResQP      = Field{0x15a, 6}
	CapRTS2RTSCounters    = Field{0x169, 1} // rts2rts_qp_counters_set_id
	CapGIDTableSize       = Field{0x170, 16}
	CapOutOfSeqCount      = Field{0x180, 1}
	CapRetransmitCounters = Field{0x182, 1}
	CapDebugBit           = Field{0x183, 1}  // debug: there are capabilities of the kind CapDebug
	CapModifyRQCounters   = Field{0x184, 1}  // modify_rq_counter_set_id
	CapMaxQPCount         = Field{0x186, 10} // counter sets
	CapPKeyTableSize      = Field{0x190, 16}
	CapIBVirt             = Field{0x1a2, 1}
	CapNICFlowTable       = Field{0x1a6, 1}
	CapDeviceMemory       = Field{0x1a8, 1}
	CapLocalCAAckDelay    = Field{0x1ab, 5}
	CapErrorCounters      = Field{0x1b1, 1} // enhanced_error_q_counters
	CapPortType           = Field{0x1b6, 2}
	CapNumPorts           = Field{0x1b8, 8}
	CapLogMaxMsg          = Field{0x1c3, 5}
	CapMaxTC              = Field{0x1cc, 4}
	CapStatRateSupport    = Field{0x1e0, 16}
	CapCQEVersion         = Field{0x1fc, 4}
	CapCompactAddress     = Field{0x200, 1}
	CapStridingRQ         = Field{0x201, 1}
	CapUMRFence           = Field{0x20a, 2}
	CapScatterCQE         = Field{0x215, 1}
	CapDCT                = Field{0x21a, 1}
	CapQoSBit             = Field{0x21b, 1}
	CapEthNetOffloads     = Field{0x21c, 1}
	CapRoCEBit            = Field{0x21d, 1}
	CapAtomicBit          = Field{0x21e, 1}
	CapCQOI               = Field{0x220, 1}
	CapCQResize           = Field{0x221, 1}
	CapCQModeration       = Field{0x222, 1}
	CapPageFaults         = Field{0x227, 1} // pg
	CapBlockLBMC          = Field{0x228, 1}
	CapCD                 = Field{0x22c, 1}
	CapAPM                = Field{0x22e, 1}
	CapIMAICL             = Field{0x231, 1}
	CapQKV                = Field{0x236, 1}
	CapPKV                = Field{0x237, 1}
	CapSetDETHSQPN        = Field{0x238, 1}
	CapXRC                = Field{0x23c, 1}
	CapUD                 = Field{0x23d, 1}
	CapUC                 = Field{0x23e, 1}
	CapRC                 = Field{0x23f, 1}
	CapUAR4K              = Field{0x240, 1}
	CapLogPageSize        = Field{0x258, 8}
	CapBF                 = Field{0x260, 1}
	CapDriverVersion      = Field{0x261, 1}
	CapLogBFRegSize       = Field{0x26b, 5}
	CapLAGPort            = Field{0x278, 1} // lag_tx_port_affinity
	CapLAGPorts           = Field{0x27c, 4} // num_lag_ports
	CapMaxWQESizeSQ       = Field{0x290, 16}
	CapMaxWQESizeRQ       = Field{0x2b0, 16}
	CapMaxQPMCG           = Field{0x2e7, 25}
	CapLogMaxMCG          = Field{0x318, 8}
	CapLogMaxTD           = Field{0x323, 5}
	CapLogMaxPD           = Field{0x32b, 5}
	CapUnorderedUD        = Field{0x330, 1} // dp_ordering_ooo_all_ud
	CapUnorderedUC        = Field{0x331, 1} // dp_ordering_ooo_all_uc
	CapUnorderedXRC       = Field{0x332, 1} // dp_ordering_ooo_all_xrc
	CapUnorderedDC        = Field{0x333, 1} // dp_ordering_ooo_all_dc
	CapUnorderedRC        = Field{0x334, 1} // dp_ordering_ooo_all_rc
	CapLogMaxXRCD         = Field{0x33b, 5}
	CapLogMaxRQ           = Field{0x363, 5}
	CapLogMaxSQ           = Field{0x36b, 5}
	CapLogMaxTIR          = Field{0x373, 5}
	CapLogMaxTIS          = Field{0x37b, 5}
	CapCyclicRecvWQE      = Field{0x380, 1}
	CapLogMaxRMP          = Field{0x383, 5}
	CapLogMaxRQT          = Field{0x38b, 5}
	CapLogMaxRQTSize      = Field{0x393, 5}
	CapLogMaxTISPerSQ     = Field{0x39b, 5}
	CapFewStrides         = Field{0x3a0, 1} // ext_stride_num_range
	CapLogMaxStrideRQ     = Field{0x3a3, 5}
	CapLogMinStrideRQ     = Field{0x3ab, 5}
	CapLogMaxStrideSQ     = Field{0x3b3, 5}
	CapLogMinStrideSQ     = Field{0x3bb, 5}
	CapLogMaxWQSize       = Field{0x3db, 5}
	CapLogMaxVLANList     = Field{0x3eb, 5}
	CapLogMaxMCList       = Field{0x3f3, 5}
	CapLogMaxUCList       = Field{0x3fb, 5}
	CapLogMaxUCtx         = Field{0x463, 5}
	CapCmdChecksum        = Field{0x210, 2}
	CapLogUARPage         = Field{0x490, 16}
	CapDeviceFrequencyMHz = Field{0x4c0, 32}
	CapDeviceFrequencyKHz = Field{0x4e0, 32}
	CapUARsPerPage        = Field{0x520, 32}
	CapLogMaxDCIStreams   = Field{0x58b, 5}  // log_max_dci_stream_channels
	CapLogMaxDCIFailed    = Field{0x593, 5}  // log_max_dci_errored_streams
	CapMiniStride         = Field{0x5bc, 1}  // mini_cqe_resp_stride_index
	CapCompressed         = Field{0x5bf, 1}  // cqe_compression
	CapCompressedMost     = Field{0x5d0, 16} // cqe_compression_max_num
	CapUCtx               = Field{0x6a0, 32}
)

// Cap2ForceOrdering is dp_ordering_force of cmd_hca_cap_2_bits.
var Cap2ForceOrdering = Field{0x88, 1}

// Numbers that go with them: bytes where records are and how long they are, and values.
const (
	CapPortTypeIB       = 0
	CapPortTypeEthernet = 1
	CapGIDTable64       = 3 // 8 << n entries
	CapPKeyTable128     = 0 // 128 << n entries
)

// Rights of a user context: MLX5_UCTX_CAP_* (mlx5_ifc.h).
const UCtxRawTX = 1 << 0

// atomic_caps_bits.
var (
	CapAtomicMode      = Field{0x40, 2}
	CapAtomicHostOrder = Field{0x46, 1}
	CapAtomicOps       = Field{0x90, 16}
	CapAtomicSizeQP    = Field{0xb0, 16}
	CapAtomicSizeDC    = Field{0xd0, 16}
)

// odp_cap_bits: odp_per_transport_service_cap_bits of what may wait for pages.
var (
	CapODPRC  = Field{0x80, 32}
	CapODPUD  = Field{0xc0, 32}
	CapODPXRC = Field{0xe0, 32}
	CapODPDC  = Field{0x100, 32}
)

// odp_per_transport_service_cap_bits, of one service.
const (
	ODPSend       = 1 << 31
	ODPReceive    = 1 << 30
	ODPWrite      = 1 << 29
	ODPRead       = 1 << 28
	ODPAtomic     = 1 << 27
	ODPSRQReceive = 1 << 26
)

// device_mem_cap_bits.
var (
	CapMEMIC         = Field{0x00, 1}
	CapMEMICMinLog   = Field{0x2b, 5}
	CapMEMICMaxAlign = Field{0x38, 8}
	CapMEMICStart    = Field{0x40, 64}
	CapMEMICSize     = Field{0x80, 32}
	CapMEMICMost     = Field{0xa0, 32}
)

// per_protocol_networking_offload_caps_bits.
var (
	CapEthChecksum   = Field{0x00, 1}
	CapEthVLAN       = Field{0x01, 1}
	CapEthSelfLB     = Field{0x08, 1}
	CapEthMaxLSO     = Field{0x0b, 5}
	CapEthInlineMode = Field{0x12, 2}
	CapEthRSSTable   = Field{0x14, 4}
)

// qos_cap_bits.
var (
	CapQoSPacing    = Field{0x00, 1}
	CapQoSMaxRate   = Field{0x40, 32} // kbit/s
	CapQoSMinRate   = Field{0x60, 32}
	CapQoSRateTable = Field{0x90, 16}
)

// Which headers of a frame must stand in its WQE (MLX5_INLINE_MODE_*, mlx5/device.h).
const (
	InlineNone = 0
	InlineL2   = 1
)

// roce_cap_bits.
var (
	CapRoCEL3Type    = Field{0x8c, 4}
	CapRoCEVersion   = Field{0x98, 8}
	CapRoCEDestPort  = Field{0xb0, 16}
	CapRoCEMaxSport  = Field{0xc0, 16}
	CapRoCEMinSport  = Field{0xd0, 16}
	CapRoCETableSize = Field{0xf0, 16}
)

// flow_table_nic_cap_bits: where each kind of table has its flow_table_prop_layout_bits.
const (
	CapFTReceive      = 0x200 / 8
	CapFTReceiveRDMA  = 0x400 / 8
	CapFTTransmit     = 0x800 / 8
	CapFTTransmitRDMA = 0xa00 / 8
	CapFTSize         = 0x200 / 8
)

// flow_table_prop_layout_bits.
var (
	CapFTSupport        = Field{0x00, 1}
	CapFTFlowCounter    = Field{0x02, 1}
	CapFTModifyEn       = Field{0x03, 1}
	CapFTModifyRoot     = Field{0x04, 1}
	CapFTIdentifiedMiss = Field{0x05, 1}
	CapFTModify         = Field{0x06, 1}
	CapFTMissDomain     = Field{0x17, 1} // table_miss_action_domain
	CapFTLogMaxSize     = Field{0x22, 6}
	CapFTMaxLevel       = Field{0x38, 8}
	CapFTLogMaxNum      = Field{0x78, 8}
	CapFTLogMaxDest     = Field{0x98, 8}
	CapFTLogMaxFlow     = Field{0xb8, 8}
)

// Numbers that go with them: bytes where records are and how long they are, and values.
const (
	CapFTFields     = 0x100 / 8 // flow_table_fields_supported_bits
	CapFTFieldsSize = 16
)
