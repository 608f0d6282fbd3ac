package mad

import "github.com/goverbs/goverbs/uverbs/ib"

// NodeInfo describes a node, and the port by which the request came.
type NodeInfo struct {
	BaseVersion     uint8       `mad:"0"`     // BaseVersion is the supported base version of MADs.
	ClassVersion    uint8       `mad:"1"`     // ClassVersion is the supported version of subnet management.
	NodeType        ib.NodeType `mad:"2"`     // NodeType is NodeCA, NodeSwitch or NodeRouter.
	NumPorts        uint8       `mad:"3"`     // NumPorts is the number of physical ports.
	SystemImageGUID ib.GUID     `mad:"4"`     // SystemImageGUID is shared by the nodes of a system.
	NodeGUID        ib.GUID     `mad:"12"`    // NodeGUID identifies the node.
	PortGUID        ib.GUID     `mad:"20"`    // PortGUID identifies the port; all ports of a switch have the same.
	PartitionCap    uint16      `mad:"28"`    // PartitionCap is the number of P_Keys that a port can have.
	DeviceID        uint16      `mad:"30"`    // DeviceID is the vendor's number of the device.
	Revision        uint32      `mad:"32"`    // Revision is the vendor's revision of the device.
	LocalPortNum    uint8       `mad:"36"`    // LocalPortNum is the port through which the request came.
	VendorID        uint32      `mad:"37 24"` // VendorID is the OUI of the vendor.
}

// ID implements Attribute.
func (*NodeInfo) ID() AttrID { return AttrNodeInfo }

// NodeDescription names a node in words.
type NodeDescription struct {
	NodeString string `mad:"0 512"` // NodeString has at most 64 bytes, without the zeros that fill them.
}

// ID implements Attribute.
func (*NodeDescription) ID() AttrID { return AttrNodeDescription }

// SwitchInfo describes a switch.
type SwitchInfo struct {
	LinearFDBCap                   uint16 `mad:"0"`      // LinearFDBCap is the number of entries of the linear forwarding table.
	RandomFDBCap                   uint16 `mad:"2"`      // RandomFDBCap is the number of entries of the random forwarding table.
	MulticastFDBCap                uint16 `mad:"4"`      // MulticastFDBCap is the number of entries of the multicast forwarding table.
	LinearFDBTop                   uint16 `mad:"6"`      // LinearFDBTop is the last LID of the linear forwarding table.
	DefaultPort                    uint8  `mad:"8"`      // DefaultPort is where packets go that the random table does not have.
	DefaultMulticastPrimaryPort    uint8  `mad:"9"`      // DefaultMulticastPrimaryPort is where multicast packets go that the table does not have.
	DefaultMulticastNotPrimaryPort uint8  `mad:"10"`     // DefaultMulticastNotPrimaryPort is the same for those from the primary port.
	LifeTimeValue                  uint8  `mad:"11.0 5"` // LifeTimeValue is how long a packet may stay, 4.096 µs·2ⁿ.
	PortStateChange                bool   `mad:"11.5 1"` // PortStateChange says that the state of a port has changed.
	OptimizedSLtoVLProgramming     uint8  `mad:"11.6 2"` // OptimizedSLtoVLProgramming is the mode of programming the SLtoVL tables of many ports at once.
	LIDsPerPort                    uint16 `mad:"12"`     // LIDsPerPort is the number of LIDs of a port, for the random table.
	PartitionEnforcementCap        uint16 `mad:"14"`     // PartitionEnforcementCap is the number of P_Keys that a port enforces.
	InboundEnforcementCap          bool   `mad:"16.0 1"` // InboundEnforcementCap says that P_Keys of received packets can be checked.
	OutboundEnforcementCap         bool   `mad:"16.1 1"` // OutboundEnforcementCap says that P_Keys of sent packets can be checked.
	FilterRawInboundCap            bool   `mad:"16.2 1"` // FilterRawInboundCap says that received raw packets can be dropped.
	FilterRawOutboundCap           bool   `mad:"16.3 1"` // FilterRawOutboundCap says that sent raw packets can be dropped.
	EnhancedPort0                  bool   `mad:"16.4 1"` // EnhancedPort0 says that port 0 is like a port of an adapter.
	MulticastFDBTop                uint16 `mad:"18"`     // MulticastFDBTop is the last LID of the multicast forwarding table.
}

// ID implements Attribute.
func (*SwitchInfo) ID() AttrID { return AttrSwitchInfo }

// GUIDInfo is a block of a port's table of GUIDs. The modifier is the number of the block.
type GUIDInfo struct {
	GUID [8]ib.GUID `mad:"0"` // GUID are the GUIDs; the first one of block 0 is read-only.
}

// ID implements Attribute.
func (*GUIDInfo) ID() AttrID { return AttrGUIDInfo }

// PortInfo describes a port. The modifier is the number of the port; 0 is the port by which the
// request came, or the management port of a switch.
type PortInfo struct {
	MKey                         uint64       `mad:"0"`      // MKey is the management key (M_Key), which guards the port.
	GIDPrefix                    uint64       `mad:"8"`      // GIDPrefix is the upper half of the port's GIDs.
	LID                          uint16       `mad:"16"`     // LID is the base LID of the port.
	MasterSMLID                  uint16       `mad:"18"`     // MasterSMLID is the LID of the subnet manager.
	CapabilityMask               uint32       `mad:"20"`     // CapabilityMask says what the port supports, see CapIsSM and others.
	DiagCode                     uint16       `mad:"24"`     // DiagCode is the vendor's result of a self-test.
	MKeyLeasePeriod              uint16       `mad:"26"`     // MKeyLeasePeriod is the lease period of the M_Key, in seconds.
	LocalPortNum                 uint8        `mad:"28"`     // LocalPortNum is the port through which the request came.
	LinkWidthEnabled             Width        `mad:"29"`     // LinkWidthEnabled has the widths that the port may use.
	LinkWidthSupported           Width        `mad:"30"`     // LinkWidthSupported has the widths that the port can use.
	LinkWidthActive              Width        `mad:"31"`     // LinkWidthActive is the width in use.
	LinkSpeedSupported           uint8        `mad:"32.0 4"` // LinkSpeedSupported has bits: 1 SDR, 2 DDR, 4 QDR.
	PortState                    ib.PortState `mad:"32.4 4"` // PortState is the logical state.
	PortPhysicalState            ib.PhysState `mad:"33.0 4"` // PortPhysicalState is the state of the link.
	LinkDownDefaultState         uint8        `mad:"33.4 4"` // LinkDownDefaultState is 1 for Sleep or 2 for Polling.
	MKeyProtectBits              uint8        `mad:"34.0 2"` // MKeyProtectBits say what the M_Key guards.
	LMC                          uint8        `mad:"34.5 3"` // LMC is the number of low LID bits that the port ignores.
	LinkSpeedActive              uint8        `mad:"35.0 4"` // LinkSpeedActive is the bit of the speed in use; see LinkSpeedExtActive.
	LinkSpeedEnabled             uint8        `mad:"35.4 4"` // LinkSpeedEnabled has the bits of the speeds that the port may use.
	NeighborMTU                  ib.MTU       `mad:"36.0 4"` // NeighborMTU is the MTU in use: 1 for 256 bytes to 5 for 4096.
	MasterSMSL                   uint8        `mad:"36.4 4"` // MasterSMSL is the service level to the subnet manager.
	VLCap                        uint8        `mad:"37.0 4"` // VLCap is the largest OperationalVLs.
	InitType                     uint8        `mad:"37.4 4"` // InitType is what initialization the port asks for.
	VLHighLimit                  uint8        `mad:"38"`     // VLHighLimit is the limit of the high priority arbitration, in units of 4 KiB.
	VLArbitrationHighCap         uint8        `mad:"39"`     // VLArbitrationHighCap is the number of entries of the high priority table.
	VLArbitrationLowCap          uint8        `mad:"40"`     // VLArbitrationLowCap is the number of entries of the low priority table.
	InitTypeReply                uint8        `mad:"41.0 4"` // InitTypeReply is what initialization was done.
	MTUCap                       ib.MTU       `mad:"41.4 4"` // MTUCap is the largest NeighborMTU.
	VLStallCount                 uint8        `mad:"42.0 3"` // VLStallCount is how many packets in sequence a VL drops before it stalls.
	HOQLife                      uint8        `mad:"42.3 5"` // HOQLife is how long a packet may be the first of a VL, 4.096 µs·2ⁿ.
	OperationalVLs               uint8        `mad:"43.0 4"` // OperationalVLs is 1 for 1 VL, then 2, 4, 8 and 15 VLs.
	PartitionEnforcementInbound  bool         `mad:"43.4 1"` // PartitionEnforcementInbound says that P_Keys of received packets are checked.
	PartitionEnforcementOutbound bool         `mad:"43.5 1"` // PartitionEnforcementOutbound says that P_Keys of sent packets are checked.
	FilterRawInbound             bool         `mad:"43.6 1"` // FilterRawInbound says that received raw packets are dropped.
	FilterRawOutbound            bool         `mad:"43.7 1"` // FilterRawOutbound says that sent raw packets are dropped.
	MKeyViolations               uint16       `mad:"44"`     // MKeyViolations counts MADs with a wrong M_Key.
	PKeyViolations               uint16       `mad:"46"`     // PKeyViolations counts packets with a wrong P_Key.
	QKeyViolations               uint16       `mad:"48"`     // QKeyViolations counts packets with a wrong Q_Key.
	GUIDCap                      uint8        `mad:"50"`     // GUIDCap is the number of GUIDs that the port can have.
	ClientReregister             bool         `mad:"51.0 1"` // ClientReregister tells clients to subscribe again.
	MulticastPKeyTrapSuppression uint8        `mad:"51.1 2"` // MulticastPKeyTrapSuppression suppresses traps about wrong P_Keys of multicast packets.
	SubnetTimeOut                uint8        `mad:"51.3 5"` // SubnetTimeOut is the longest delay to a port of the subnet, 4.096 µs·2ⁿ.
	RespTimeValue                uint8        `mad:"52.3 5"` // RespTimeValue is the longest time to answer a MAD, 4.096 µs·2ⁿ.
	LocalPhyErrors               uint8        `mad:"53.0 4"` // LocalPhyErrors is a threshold for link integrity errors.
	OverrunErrors                uint8        `mad:"53.4 4"` // OverrunErrors is a threshold for buffer overruns.
	MaxCreditHint                uint16       `mad:"54"`     // MaxCreditHint is the most credits that the port needs.
	LinkRoundTripLatency         uint32       `mad:"57 24"`  // LinkRoundTripLatency is in units of 4 ns.
	CapabilityMask2              uint16       `mad:"60"`     // CapabilityMask2 is valid if CapabilityMask has CapMask2.
	LinkSpeedExtActive           uint8        `mad:"62.0 4"` // LinkSpeedExtActive is the bit of the speed in use, 0 if another field has it: 1 FDR, 2 EDR, 4 HDR, 8 NDR.
	LinkSpeedExtSupported        uint8        `mad:"62.4 4"` // LinkSpeedExtSupported has the bits of the speeds that the port can use.
	LinkSpeedExtEnabled          uint8        `mad:"63.3 5"` // LinkSpeedExtEnabled has the bits of the speeds that the port may use.
	LinkSpeedExtActive2          uint8        `mad:"56.1 2"` // LinkSpeedExtActive2 is 1 if the port runs at XDR; it is valid, like the next two, with Cap2ExtSpeeds2.
	LinkSpeedExtSupported2       uint8        `mad:"56.3 2"` // LinkSpeedExtSupported2 has bit 1 for XDR among the speeds that the port can use.
	LinkSpeedExtEnabled2         uint8        `mad:"56.5 3"` // LinkSpeedExtEnabled2 has bit 1 for XDR among the speeds that the port may use.
}

// Bits of PortInfo.CapabilityMask.
const (
	CapIsSM         = 1 << 1  // a subnet manager runs on the port (IsSM)
	CapTrap         = 1 << 3  // sends traps (IsTrapSupported)
	CapSMDisabled   = 1 << 10 // no subnet manager runs on the port (IsSMdisabled)
	CapExtSpeeds    = 1 << 14 // has extended speeds (IsExtendedSpeedsSupported)
	CapMask2        = 1 << 15 // has CapabilityMask2 (IsCapabilityMask2Supported)
	CapCM           = 1 << 16 // has a connection manager (IsCommunicationManagementSupported)
	CapVendorClass  = 1 << 20 // supports a vendor class (IsVendorClassSupported)
	CapClientRereg  = 1 << 25 // has ClientReregister (IsClientReregistrationSupported)
	Cap2LinkWidth2X = 1 << 4  // of CapabilityMask2: has width 2X (IsLinkWidth2xSupported)
	Cap2ExtSpeeds2  = 1 << 11 // of CapabilityMask2: has XDR (IsExtendedSpeeds2Supported)
)

// Width is a set of link widths, or one.
type Width uint8

// Link widths, in lanes.
const (
	Width1X  Width = 1
	Width4X  Width = 2
	Width8X  Width = 4
	Width12X Width = 8
	Width2X  Width = 16
)

// ID implements Attribute.
func (*PortInfo) ID() AttrID { return AttrPortInfo }

// PKeyTable is a block of a port's table of P_Keys. The modifier is the number of the block, and at a
// switch the port in the upper 16 bits.
type PKeyTable struct {
	PKey [32]uint16 `mad:"0"` // PKey are the partition keys; the uppermost bit says that the port is a full member.
}

// ID implements Attribute.
func (*PKeyTable) ID() AttrID { return AttrPKeyTable }

// SLtoVLTable maps service levels to virtual lanes. At a switch the modifier has the input port in bits
// 8 to 15 and the output port in bits 0 to 7.
type SLtoVLTable struct {
	VL [16]uint8 `mad:"0 4"` // VL is the virtual lane of each service level; 15 drops the packet.
}

// ID implements Attribute.
func (*SLtoVLTable) ID() AttrID { return AttrSLtoVLTable }

// VLWeight is an entry of a table of VL arbitration.
type VLWeight struct {
	VL     uint8 `mad:"0.4 4"` // VL is the virtual lane.
	Weight uint8 `mad:"1"`     // Weight is what it may send in its turn, in units of 64 bytes.
}

// VLArbitrationTable is half of a table of VL arbitration. The modifier has the block in the upper 16
// bits (1 and 2 low priority, 3 and 4 high priority) and the port of a switch in bits 0 to 7.
type VLArbitrationTable struct {
	Entry [32]VLWeight `mad:"0"` // Entry is VL/WeightBlock.
}

// ID implements Attribute.
func (*VLArbitrationTable) ID() AttrID { return AttrVLArbitrationTable }

// LinearForwardingTable is a block of a switch's table. The modifier is the number of the block, which
// begins with LID 64·n.
type LinearForwardingTable struct {
	Port [64]uint8 `mad:"0"` // Port is the output port of each LID; 255 drops the packet.
}

// ID implements Attribute.
func (*LinearForwardingTable) ID() AttrID { return AttrLinearForwardingTable }

// MulticastForwardingTable is a block of a switch's table. The modifier has the number of the block, which
// begins with LID 0xc000+32·n, and in the upper 4 bits which 16 ports the masks are for.
type MulticastForwardingTable struct {
	PortMask [32]uint16 `mad:"0"` // PortMask is the set of output ports of each LID.
}

// ID implements Attribute.
func (*MulticastForwardingTable) ID() AttrID { return AttrMulticastForwardingTable }

// SMInfo describes a subnet manager.
type SMInfo struct {
	GUID     ib.GUID `mad:"0"`      // GUID is the GUID of the port on which the subnet manager runs.
	SMKey    uint64  `mad:"8"`      // SMKey is the key of the subnet manager (SM_Key), or 0.
	ActCount uint32  `mad:"16"`     // ActCount grows while the subnet manager lives.
	Priority uint8   `mad:"20.0 4"` // Priority decides which subnet manager becomes master; the largest wins.
	SMState  uint8   `mad:"20.4 4"` // SMState is 0 inactive, 1 discovering, 2 standby or 3 master.
}

// ID implements Attribute.
func (*SMInfo) ID() AttrID { return AttrSMInfo }
