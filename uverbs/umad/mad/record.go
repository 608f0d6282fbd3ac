package mad

import "github.com/goverbs/goverbs/uverbs/ib"

// Fields of a [LinkRecord].
const (
	LinkFromLID  Mask = 1 << 0
	LinkFromPort Mask = 1 << 1
	LinkToPort   Mask = 1 << 2
	LinkToLID    Mask = 1 << 3
)

// Fields of a [SwitchInfoRecord], [SMInfoRecord] or [GUIDInfoRecord].
const (
	SwitchLID        Mask = 1 << 0
	SMLID            Mask = 1 << 0
	GUIDInfoLID      Mask = 1 << 0
	GUIDInfoBlockNum Mask = 1 << 1
)

// Fields of a [LinearForwardingTableRecord], [MulticastForwardingTableRecord] or [PKeyTableRecord].
const (
	LinearLID         Mask = 1 << 0
	LinearBlockNum    Mask = 1 << 1
	MulticastLID      Mask = 1 << 0
	MulticastPosition Mask = 1 << 1
	MulticastBlockNum Mask = 1 << 3
	PKeyTableLID      Mask = 1 << 0
	PKeyTableBlockNum Mask = 1 << 1
	PKeyTablePortNum  Mask = 1 << 2
)

// Fields of an [SLtoVLTableRecord] or [VLArbitrationTableRecord].
const (
	SLtoVLTableLID             Mask = 1 << 0
	SLtoVLTableInputPortNum    Mask = 1 << 1
	SLtoVLTableOutputPortNum   Mask = 1 << 2
	VLArbitrationLID           Mask = 1 << 0
	VLArbitrationOutputPortNum Mask = 1 << 1
	VLArbitrationBlockNum      Mask = 1 << 2
)

// InformSubscriberGID is a field of an [InformInfoRecord].
const InformSubscriberGID Mask = 1 << 0

// LinkRecord is a link, seen from one of its ends.
type LinkRecord struct {
	FromLID  uint16 `mad:"0"` // FromLID is the LID of the near end, that of the switch if it is a port of one.
	FromPort uint8  `mad:"2"` // FromPort is the number of the near port.
	ToPort   uint8  `mad:"3"` // ToPort is the number of the far port.
	ToLID    uint16 `mad:"4"` // ToLID is the LID of the far end.
}

// ID implements Attribute.
func (*LinkRecord) ID() AttrID { return AttrLinkRecord }

// SwitchInfoRecord describes a switch.
type SwitchInfoRecord struct {
	LID        uint16     `mad:"0"` // LID is the LID of the switch.
	SwitchInfo SwitchInfo `mad:"4"` // SwitchInfo describes the switch.
}

// ID implements Attribute.
func (*SwitchInfoRecord) ID() AttrID { return AttrSwitchInfoRecord }

// LinearForwardingTableRecord is a block of a switch's table.
type LinearForwardingTableRecord struct {
	LID                   uint16                `mad:"0"` // LID is the LID of the switch.
	BlockNum              uint16                `mad:"2"` // BlockNum is the number of the block, which begins with LID 64·n.
	LinearForwardingTable LinearForwardingTable `mad:"8"` // LinearForwardingTable is the block.
}

// ID implements Attribute.
func (*LinearForwardingTableRecord) ID() AttrID { return AttrLinearForwardingTableRecord }

// MulticastForwardingTableRecord is a block of a switch's table.
type MulticastForwardingTableRecord struct {
	LID                      uint16                   `mad:"0"`     // LID is the LID of the switch.
	Position                 uint8                    `mad:"2.0 4"` // Position says which 16 ports the masks are for.
	BlockNum                 uint16                   `mad:"2.7 9"` // BlockNum is the number of the block, which begins with LID 0xc000+32·n.
	MulticastForwardingTable MulticastForwardingTable `mad:"8"`     // MulticastForwardingTable is the block.
}

// ID implements Attribute.
func (*MulticastForwardingTableRecord) ID() AttrID { return AttrMulticastForwardingTableRecord }

// SMInfoRecord describes a subnet manager.
type SMInfoRecord struct {
	LID    uint16 `mad:"0"` // LID is the LID of the port on which it runs.
	SMInfo SMInfo `mad:"4"` // SMInfo describes the subnet manager; its SMKey is 0 if the request was not trusted.
}

// ID implements Attribute.
func (*SMInfoRecord) ID() AttrID { return AttrSMInfoRecord }

// GUIDInfoRecord is a block of a port's table of GUIDs.
type GUIDInfoRecord struct {
	LID      uint16   `mad:"0"` // LID is the LID of the port.
	BlockNum uint8    `mad:"2"` // BlockNum is the number of the block, which begins with GUID 8·n.
	GUIDInfo GUIDInfo `mad:"8"` // GUIDInfo is the block.
}

// ID implements Attribute.
func (*GUIDInfoRecord) ID() AttrID { return AttrGUIDInfoRecord }

// PKeyTableRecord is a block of a port's table of P_Keys (P_KeyTableRecord).
type PKeyTableRecord struct {
	LID       uint16    `mad:"0"` // LID is the LID of the port, or of the switch that it is part of.
	BlockNum  uint16    `mad:"2"` // BlockNum is the number of the block, which begins with P_Key 32·n.
	PortNum   uint8     `mad:"4"` // PortNum is the number of the port, if it is one of a switch.
	PKeyTable PKeyTable `mad:"8"` // PKeyTable is the block.
}

// ID implements Attribute.
func (*PKeyTableRecord) ID() AttrID { return AttrPKeyTableRecord }

// SLtoVLTableRecord is a port's table of the virtual lanes of service levels (SLtoVLMappingTableRecord).
type SLtoVLTableRecord struct {
	LID           uint16      `mad:"0"` // LID is the LID of the port, or of the switch that it is part of.
	InputPortNum  uint8       `mad:"2"` // InputPortNum is the port through which packets come, if it is one of a switch.
	OutputPortNum uint8       `mad:"3"` // OutputPortNum is the port through which they go, if it is one of a switch.
	SLtoVLTable   SLtoVLTable `mad:"8"` // SLtoVLTable is the table.
}

// ID implements Attribute.
func (*SLtoVLTableRecord) ID() AttrID { return AttrSLtoVLTableRecord }

// VLArbitrationTableRecord is a block of a port's tables of VL arbitration.
type VLArbitrationTableRecord struct {
	LID                uint16             `mad:"0"` // LID is the LID of the port, or of the switch that it is part of.
	OutputPortNum      uint8              `mad:"2"` // OutputPortNum is the number of the port, if it is one of a switch.
	BlockNum           uint8              `mad:"3"` // BlockNum is 1 or 2 for the halves of the table of low priority, 3 or 4 for high priority.
	VLArbitrationTable VLArbitrationTable `mad:"8"` // VLArbitrationTable is the block.
}

// ID implements Attribute.
func (*VLArbitrationTableRecord) ID() AttrID { return AttrVLArbitrationTableRecord }

// InformInfo subscribes to traps, with method Set. The subnet administrator forwards them as reports.
type InformInfo struct {
	GID           ib.GID `mad:"0"`      // GID is the port that sends the traps; 0 means all of LIDRangeBegin to LIDRangeEnd.
	LIDRangeBegin uint16 `mad:"16"`     // LIDRangeBegin is the first LID, or 0xffff for all.
	LIDRangeEnd   uint16 `mad:"18"`     // LIDRangeEnd is the last LID.
	IsGeneric     uint8  `mad:"22"`     // IsGeneric is 1 for traps of the specification, and 0 for those of a vendor.
	Subscribe     uint8  `mad:"23"`     // Subscribe is 1 to subscribe, and 0 to end that.
	Type          uint16 `mad:"24"`     // Type is the type of the [Notice], or 0xffff for all.
	TrapNumber    uint16 `mad:"26"`     // TrapNumber is the trap number (or device ID) of the Notice, or 0xffff for all.
	QPN           uint32 `mad:"28 24"`  // QPN is the QP that gets the reports.
	RespTimeValue uint8  `mad:"31.3 5"` // RespTimeValue is the longest time until the subscriber answers a report, 4.096 µs·2ⁿ.
	ProducerType  uint32 `mad:"33 24"`  // ProducerType is the type of the node that sends the traps (or VendorID), or 0xffffff for all.
}

// ID implements Attribute.
func (*InformInfo) ID() AttrID { return AttrInformInfo }

// InformInfoRecord is a subscription to traps.
type InformInfoRecord struct {
	SubscriberGID ib.GID     `mad:"0"`  // SubscriberGID is the port that gets the reports.
	Enum          uint16     `mad:"16"` // Enum tells the subscriptions of a port apart.
	InformInfo    InformInfo `mad:"24"` // InformInfo is the subscription.
}

// ID implements Attribute.
func (*InformInfoRecord) ID() AttrID { return AttrInformInfoRecord }
