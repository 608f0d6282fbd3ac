package prm

// hca_vport_context_bits and the commands about virtual ports of an InfiniBand card.
var (
	OtherVPort      = Field{0x40, 1}
	VPortNumber     = Field{0x50, 16}
	HVPFieldSelect  = Field{0x00, 32}
	HVPHasSMI       = Field{0x101, 1}
	HVPGRHRequired  = Field{0x103, 1}
	HVPPhysState    = Field{0x110, 4}
	HVPPolicy       = Field{0x114, 4}
	HVPPortState    = Field{0x118, 4}
	HVPVPortState   = Field{0x11c, 4}
	HVPSystemGUID   = Field{0x140, 64}
	HVPPortGUID     = Field{0x180, 64}
	HVPNodeGUID     = Field{0x1c0, 64}
	HVPCapMask1     = Field{0x200, 32}
	HVPCapMask1Sel  = Field{0x220, 32}
	HVPLID          = Field{0x300, 16}
	HVPInitReply    = Field{0x314, 4}
	HVPLMC          = Field{0x318, 3}
	HVPSubnetTime   = Field{0x31b, 5}
	HVPSMLID        = Field{0x320, 16}
	HVPSMSL         = Field{0x330, 4}
	HVPQKeyViol     = Field{0x340, 16}
	HVPPKeyViol     = Field{0x350, 16}
	QueryIndex      = Field{0x70, 16} // gid_index, pkey_index
	GIDsNum         = Field{0x60, 16}
	VPortStateAdmin = Field{0x78, 4}
	VPortStateOper  = Field{0x7c, 4}
)

// Offsets and lengths in bytes, and values.
const (
	HCAVPort     = 0x80 / 8
	HCAVPortSize = 0x1000 / 8
	GIDTable     = 0x80 / 8
	PKeyTable    = 0x80 / 8
)

// nic_vport_context_bits and the commands about it.
var (
	NICListType    = Field{0x65, 3} // of QUERY
	NICSelInline   = Field{0x78, 1}
	NICSelLBUC     = Field{0x74, 1}
	NICSelLBMC     = Field{0x75, 1}
	NICSelNodeGUID = Field{0x77, 1}
	NICSelPortGUID = Field{0x76, 1}
	NICSelMTU      = Field{0x79, 1}
	NICSelEvent    = Field{0x7a, 1}
	NICSelPromisc  = Field{0x7b, 1}
	NICSelAddress  = Field{0x7c, 1}
	NICSelAddrList = Field{0x7d, 1}
	NICSelRoCE     = Field{0x7e, 1}
	NICSelectWord  = Field{0x60, 32}
	NVPInlineMode  = Field{0x05, 3} // InlineNone and the following, as SQCInlineMode
	NVPDisableLBMC = Field{0x1d, 1}
	NVPDisableLBUC = Field{0x1e, 1}
	NVPRoCEEn      = Field{0x1f, 1}
	NVPEventWord   = Field{0x20, 32}
	NVPMTU         = Field{0x130, 16}
	NVPSystemGUID  = Field{0x140, 64}
	NVPPortGUID    = Field{0x180, 64}
	NVPNodeGUID    = Field{0x1c0, 64}
	NVPPromiscBits = Field{0x780, 3}
	NVPListType    = Field{0x785, 3}
	NVPListSize    = Field{0x794, 12}
	NVPMACHigh     = Field{0x7b0, 16}
	NVPMACLow      = Field{0x7c0, 32}
)

// Offsets and lengths in bytes, and values.
const (
	NICVPortOut     = 0x80 / 8  // byte in QUERY's answer
	NICVPortIn      = 0x800 / 8 // byte in MODIFY
	NVPList         = 0x800 / 8
	NVPListUnicast  = 0
	NVPListMulticat = 1
	NVPListVLAN     = 2
)

// NICVPortHead is nic_vport_context without its address list, in bytes.
const NICVPortHead = 0x100

// roce_addr_layout_bits, set_roce_address_in_bits.
var (
	RoCEIndex   = Field{0x40, 16}
	RoCEVLAN    = Field{0x83, 1}
	RoCEVLANID  = Field{0x84, 12}
	RoCEMACHigh = Field{0x90, 16}
	RoCEMACLow  = Field{0xa0, 32}
	RoCEL3Type  = Field{0xd4, 4}
	RoCEVersion = Field{0xd8, 8}
)

// Offsets and lengths in bytes, and values.
const (
	RoCEAddr = 0x80 / 8
	RoCESize = 0x100 / 8
)
