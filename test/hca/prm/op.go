package prm

import "fmt"

// Op is a command's operation code: MLX5_CMD_OP_* (mlx5_ifc.h).
type Op uint16

// The commands that the model executes, and some that it refuses by name.
const (
	QueryHCACap          Op = 0x100
	QueryAdapter         Op = 0x101
	InitHCA              Op = 0x102
	TeardownHCA          Op = 0x103
	EnableHCA            Op = 0x104
	DisableHCA           Op = 0x105
	QueryPages           Op = 0x107
	ManagePages          Op = 0x108
	SetHCACap            Op = 0x109
	QueryISSI            Op = 0x10a
	SetISSI              Op = 0x10b
	SetDriverVersion     Op = 0x10d
	CreateMKey           Op = 0x200
	QueryMKey            Op = 0x201
	DestroyMKey          Op = 0x202
	QuerySpecialContexts Op = 0x203
	PageFaultResume      Op = 0x204
	AllocMEMIC           Op = 0x205
	DeallocMEMIC         Op = 0x206
	CreateEQ             Op = 0x301
	DestroyEQ            Op = 0x302
	QueryEQ              Op = 0x303
	GenEQE               Op = 0x304
	CreateCQ             Op = 0x400
	DestroyCQ            Op = 0x401
	QueryCQ              Op = 0x402
	ModifyCQ             Op = 0x403
	CreateQP             Op = 0x500
	DestroyQP            Op = 0x501
	RST2INITQP           Op = 0x502
	INIT2RTRQP           Op = 0x503
	RTR2RTSQP            Op = 0x504
	RTS2RTSQP            Op = 0x505
	SQERR2RTSQP          Op = 0x506
	ToERRQP              Op = 0x507
	ToRSTQP              Op = 0x50a
	QueryQP              Op = 0x50b
	SQDRTSQP             Op = 0x50c
	MADIFC               Op = 0x50d
	INIT2INITQP          Op = 0x50e
	CreateSRQ            Op = 0x700
	DestroySRQ           Op = 0x701
	QuerySRQ             Op = 0x702
	ArmRQ                Op = 0x703
	CreateXRCSRQ         Op = 0x705
	DestroyXRCSRQ        Op = 0x706
	QueryXRCSRQ          Op = 0x707
	ArmXRCSRQ            Op = 0x708
	CreateDCT            Op = 0x710
	DestroyDCT           Op = 0x711
	DrainDCT             Op = 0x712
	QueryDCT             Op = 0x713
	ArmDCT               Op = 0x714
	QueryVPortState      Op = 0x750
	ModifyVPortState     Op = 0x751
	QueryNICVPortCtx     Op = 0x754
	ModifyNICVPortCtx    Op = 0x755
	QueryRoCEAddress     Op = 0x760
	SetRoCEAddress       Op = 0x761
	QueryHCAVPortCtx     Op = 0x762
	ModifyHCAVPortCtx    Op = 0x763
	QueryHCAVPortGID     Op = 0x764
	QueryHCAVPortPKey    Op = 0x765
	QueryVNICEnv         Op = 0x76f
	QueryVPortCounter    Op = 0x770
	AllocQCounter        Op = 0x771
	DeallocQCounter      Op = 0x772
	QueryQCounter        Op = 0x773
	SetPPRateLimit       Op = 0x780
	AllocPD              Op = 0x800
	DeallocPD            Op = 0x801
	AllocUAR             Op = 0x802
	DeallocUAR           Op = 0x803
	AccessReg            Op = 0x805
	AttachToMCG          Op = 0x806
	DetachFromMCG        Op = 0x807
	Nop                  Op = 0x80d
	AllocXRCD            Op = 0x80e
	DeallocXRCD          Op = 0x80f
	AllocTransportDomain Op = 0x816
	DeallocTransportDom  Op = 0x817
	QueryLAG             Op = 0x842
	CreateTIR            Op = 0x900
	ModifyTIR            Op = 0x901
	DestroyTIR           Op = 0x902
	CreateSQ             Op = 0x904
	ModifySQ             Op = 0x905
	DestroySQ            Op = 0x906
	QuerySQ              Op = 0x907
	CreateRQ             Op = 0x908
	ModifyRQ             Op = 0x909
	DestroyRQ            Op = 0x90a
	QueryRQ              Op = 0x90b
	CreateRMP            Op = 0x90c
	ModifyRMP            Op = 0x90d
	DestroyRMP           Op = 0x90e
	QueryRMP             Op = 0x90f
	CreateTIS            Op = 0x912
	ModifyTIS            Op = 0x913
	DestroyTIS           Op = 0x914
	QueryTIS             Op = 0x915
	CreateRQT            Op = 0x916
	ModifyRQT            Op = 0x917
	DestroyRQT           Op = 0x918
	SetFlowTableRoot     Op = 0x92f
	CreateFlowTable      Op = 0x930
	DestroyFlowTable     Op = 0x931
	CreateFlowGroup      Op = 0x933
	DestroyFlowGroup     Op = 0x934
	SetFlowTableEntry    Op = 0x936
	DeleteFlowTableEntry Op = 0x938
	AllocFlowCounter     Op = 0x939
	DeallocFlowCounter   Op = 0x93a
	QueryFlowCounter     Op = 0x93b
	ModifyFlowTable      Op = 0x93c
	CreateUCtx           Op = 0xa04
	DestroyUCtx          Op = 0xa06
)

var opNames = map[Op]string{
	QueryHCACap: "QUERY_HCA_CAP", QueryAdapter: "QUERY_ADAPTER", InitHCA: "INIT_HCA", TeardownHCA: "TEARDOWN_HCA",
	EnableHCA: "ENABLE_HCA", DisableHCA: "DISABLE_HCA", QueryPages: "QUERY_PAGES", ManagePages: "MANAGE_PAGES",
	SetHCACap: "SET_HCA_CAP", QueryISSI: "QUERY_ISSI", SetISSI: "SET_ISSI", SetDriverVersion: "SET_DRIVER_VERSION",
	CreateMKey: "CREATE_MKEY", QueryMKey: "QUERY_MKEY", DestroyMKey: "DESTROY_MKEY", QuerySpecialContexts: "QUERY_SPECIAL_CONTEXTS",
	PageFaultResume: "PAGE_FAULT_RESUME", AllocMEMIC: "ALLOC_MEMIC", DeallocMEMIC: "DEALLOC_MEMIC",
	CreateEQ: "CREATE_EQ", DestroyEQ: "DESTROY_EQ", QueryEQ: "QUERY_EQ", GenEQE: "GEN_EQE",
	CreateCQ: "CREATE_CQ", DestroyCQ: "DESTROY_CQ", QueryCQ: "QUERY_CQ", ModifyCQ: "MODIFY_CQ",
	CreateQP: "CREATE_QP", DestroyQP: "DESTROY_QP", RST2INITQP: "RST2INIT_QP", INIT2RTRQP: "INIT2RTR_QP", RTR2RTSQP: "RTR2RTS_QP",
	RTS2RTSQP: "RTS2RTS_QP", SQERR2RTSQP: "SQERR2RTS_QP", ToERRQP: "2ERR_QP", ToRSTQP: "2RST_QP", QueryQP: "QUERY_QP",
	SQDRTSQP: "SQD_RTS_QP", MADIFC: "MAD_IFC", INIT2INITQP: "INIT2INIT_QP",
	CreateSRQ: "CREATE_SRQ", DestroySRQ: "DESTROY_SRQ", QuerySRQ: "QUERY_SRQ", ArmRQ: "ARM_RQ",
	CreateXRCSRQ: "CREATE_XRC_SRQ", DestroyXRCSRQ: "DESTROY_XRC_SRQ", QueryXRCSRQ: "QUERY_XRC_SRQ", ArmXRCSRQ: "ARM_XRC_SRQ",
	CreateDCT: "CREATE_DCT", DestroyDCT: "DESTROY_DCT", DrainDCT: "DRAIN_DCT", QueryDCT: "QUERY_DCT", ArmDCT: "ARM_DCT_FOR_KEY_VIOLATION",
	QueryVPortState: "QUERY_VPORT_STATE", ModifyVPortState: "MODIFY_VPORT_STATE",
	QueryNICVPortCtx: "QUERY_NIC_VPORT_CONTEXT", ModifyNICVPortCtx: "MODIFY_NIC_VPORT_CONTEXT",
	SetPPRateLimit:   "SET_PP_RATE_LIMIT",
	QueryRoCEAddress: "QUERY_ROCE_ADDRESS", SetRoCEAddress: "SET_ROCE_ADDRESS",
	QueryHCAVPortCtx: "QUERY_HCA_VPORT_CONTEXT", ModifyHCAVPortCtx: "MODIFY_HCA_VPORT_CONTEXT",
	QueryHCAVPortGID: "QUERY_HCA_VPORT_GID", QueryHCAVPortPKey: "QUERY_HCA_VPORT_PKEY", QueryVNICEnv: "QUERY_VNIC_ENV",
	QueryVPortCounter: "QUERY_VPORT_COUNTER", AllocQCounter: "ALLOC_Q_COUNTER", DeallocQCounter: "DEALLOC_Q_COUNTER", QueryQCounter: "QUERY_Q_COUNTER",
	AllocPD: "ALLOC_PD", DeallocPD: "DEALLOC_PD", AllocUAR: "ALLOC_UAR", DeallocUAR: "DEALLOC_UAR", AccessReg: "ACCESS_REG",
	AttachToMCG: "ATTACH_TO_MCG", DetachFromMCG: "DETACH_FROM_MCG", Nop: "NOP", AllocXRCD: "ALLOC_XRCD", DeallocXRCD: "DEALLOC_XRCD",
	AllocTransportDomain: "ALLOC_TRANSPORT_DOMAIN", DeallocTransportDom: "DEALLOC_TRANSPORT_DOMAIN",
	CreateTIR: "CREATE_TIR", ModifyTIR: "MODIFY_TIR", DestroyTIR: "DESTROY_TIR", CreateSQ: "CREATE_SQ", ModifySQ: "MODIFY_SQ",
	DestroySQ: "DESTROY_SQ", QuerySQ: "QUERY_SQ", CreateRQ: "CREATE_RQ", ModifyRQ: "MODIFY_RQ", DestroyRQ: "DESTROY_RQ", QueryRQ: "QUERY_RQ",
	CreateRMP: "CREATE_RMP", ModifyRMP: "MODIFY_RMP", DestroyRMP: "DESTROY_RMP", QueryRMP: "QUERY_RMP",
	CreateTIS: "CREATE_TIS", ModifyTIS: "MODIFY_TIS", DestroyTIS: "DESTROY_TIS", QueryTIS: "QUERY_TIS",
	CreateRQT: "CREATE_RQT", ModifyRQT: "MODIFY_RQT", DestroyRQT: "DESTROY_RQT",
	SetFlowTableRoot: "SET_FLOW_TABLE_ROOT", CreateFlowTable: "CREATE_FLOW_TABLE", DestroyFlowTable: "DESTROY_FLOW_TABLE",
	CreateFlowGroup: "CREATE_FLOW_GROUP", DestroyFlowGroup: "DESTROY_FLOW_GROUP", SetFlowTableEntry: "SET_FLOW_TABLE_ENTRY",
	DeleteFlowTableEntry: "DELETE_FLOW_TABLE_ENTRY", AllocFlowCounter: "ALLOC_FLOW_COUNTER", DeallocFlowCounter: "DEALLOC_FLOW_COUNTER",
	QueryFlowCounter: "QUERY_FLOW_COUNTER", ModifyFlowTable: "MODIFY_FLOW_TABLE",
	QueryLAG: "QUERY_LAG", CreateUCtx: "CREATE_UCTX", DestroyUCtx: "DESTROY_UCTX",
}

// String gives the command's name in the kernel's header.
func (op Op) String() string {
	if name, ok := opNames[op]; ok {
		return name
	}
	return fmt.Sprintf("opcode %#x", uint16(op))
}
