package prm

// Flow steering: create_flow_table_in_bits and the like, tirc, tisc and rqtc.
var (
	FTType         = Field{0x80, 8}
	FTNumber       = Field{0xa8, 24}
	FTCLogSize     = Field{0x18, 8}
	FTCMissAction  = Field{0x04, 4}
	FTCMissTable   = Field{0x28, 24}
	FTModifySelect = Field{0x70, 16}
	FGStart        = Field{0xe0, 32}
	FGEnd          = Field{0x120, 32}
	FGEnable       = Field{0x1f8, 8}
	FGNumber       = Field{0xc0, 32} // of DESTROY_FLOW_GROUP
	FTEIndex       = Field{0x100, 32}
	FTEGroup       = Field{0x20, 32}
	FTETag         = Field{0x48, 24}
	FTEAction      = Field{0x70, 16}
	FTEDestCount   = Field{0x88, 24}
	FTECntCount    = Field{0xa8, 24}
	DestType       = Field{0x00, 8}
	DestID         = Field{0x08, 24}
	FlowCounterID  = Field{0x40, 32}
	FlowQueryClear = Field{0xc0, 1}
	FlowQueryCount = Field{0xd0, 16}
	FlowQueryID    = Field{0xe0, 32}

	FlowCounterBulk = Field{0x73, 13} // flow_counter_bulk_log_size and flow_counter_bulk
	TIRCDispType    = Field{0x20, 4}
	TIRCInlineRQN   = Field{0xe8, 24}
	TIRCIndirect    = Field{0x108, 24}
	TIRCDomain      = Field{0x128, 24}
	TISCLAGPort     = Field{0x04, 4} // lag_tx_port_affinity
	TISModifyLAG    = Field{0xbd, 1} // of MODIFY_TIS
	TISCDomain      = Field{0x128, 24}
	RQTActual       = Field{0xd0, 16}
	RQTEntry        = Field{0x08, 24}
)

// Offsets and lengths in bytes, and values.
const (
	TISCtx   = 0x80 / 8 // of QUERY_TIS
	TISCSize = 0x500 / 8
	FTCtx    = 0xc0 / 8
	FGMatch  = 0x200 / 8
	FTECtx   = 0x200 / 8
	FTEMatch = 0x200 / 8
	FTEDest  = 0x1800 / 8 // byte of the list in the context
	FTESize  = 0x300      // bytes of the context

	FlowStatistics = 0x80 / 8 // byte of traffic_counter_bits in the answer

	RQTList = 0x780 / 8 // byte of the list in the context
)
