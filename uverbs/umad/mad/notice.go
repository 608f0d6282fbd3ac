package mad

import (
	"fmt"
	"reflect"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// Trap numbers of generic notices.
const (
	TrapGIDInService     = 64  // a port can be reached from now on; see NoticeGID
	TrapGIDOutOfService  = 65  // a port can no longer be reached; see NoticeGID
	TrapGroupCreated     = 66  // a multicast group was created; see NoticeGID
	TrapGroupDeleted     = 67  // a multicast group was deleted; see NoticeGID
	TrapLinkStateChange  = 128 // a port of a switch has another state; see NoticeSwitch
	TrapLinkIntegrity    = 129 // LocalLinkIntegrityErrors exceeded its threshold; see NoticePort
	TrapBufferOverrun    = 130 // ExcessiveBufferOverrunErrors exceeded its threshold; see NoticePort
	TrapFlowControl      = 131 // a watchdog timer of flow control has ended; see NoticePort
	TrapCapabilityChange = 144 // CapabilityMask or the description of a node has changed; see NoticeChange
	TrapSystemImageGUID  = 145 // SystemImageGUID has changed
	TrapBadMKey          = 256 // a MAD had the wrong M_Key; see NoticeMKey
	TrapBadPKey          = 257 // a packet had the wrong P_Key; see NoticeKey
	TrapBadQKey          = 258 // a packet had the wrong Q_Key; see NoticeKey
)

// Notice is what a trap or a report says. A report of the subnet administrator is a [NoticeReport].
type Notice struct {
	IsGeneric    bool      `mad:"0.0 1"`  // IsGeneric says that the notice is one of the specification, not of a vendor.
	Type         uint8     `mad:"0.1 7"`  // Type is 0 fatal, 1 urgent, 2 security, 3 subnet management, 4 informational.
	ProducerType uint32    `mad:"1 24"`   // ProducerType is the type of the node, 1 CA to 4 class manager, or VendorID.
	TrapNumber   uint16    `mad:"4"`      // TrapNumber is TrapLinkStateChange or another, or DeviceID.
	IssuerLID    uint16    `mad:"6"`      // IssuerLID is the LID of the port that sends the notice.
	NoticeToggle bool      `mad:"8.0 1"`  // NoticeToggle alternates when the notice is read.
	NoticeCount  uint16    `mad:"8.1 15"` // NoticeCount is the number of notices that wait at the issuer.
	DataDetails  [54]uint8 `mad:"10"`     // DataDetails depends on the trap, see Details.
}

// ID implements Attribute.
func (*Notice) ID() AttrID { return AttrNotice }

// NoticeReport is a notice as the subnet administrator reports it to its subscribers.
type NoticeReport struct {
	Notice    Notice `mad:"0"`  // Notice is what the trap said.
	IssuerGID ib.GID `mad:"64"` // IssuerGID is the GID of the port that sent the trap.
}

// ID implements Attribute.
func (*NoticeReport) ID() AttrID { return AttrNotice }

// NoticeGID has the details of the traps 64 to 67.
type NoticeGID struct {
	GID ib.GID `mad:"6"` // GID is the GID of the port or of the group.
}

// NoticeSwitch has the details of trap 128.
type NoticeSwitch struct {
	LID uint16 `mad:"0"` // LID is the LID of the switch.
}

// NoticePort has the details of the traps 129 to 131.
type NoticePort struct {
	LID     uint16 `mad:"2"` // LID is the LID of the port, or of the switch that it is part of.
	PortNum uint8  `mad:"4"` // PortNum is the number of the port.
}

// NoticeChange has the details of trap 144.
type NoticeChange struct {
	LID               uint16 `mad:"2"`     // LID is the LID of the port.
	OtherLocalChanges bool   `mad:"5.7 1"` // OtherLocalChanges says that ChangeFlags has what has changed.
	CapabilityMask    uint32 `mad:"6"`     // CapabilityMask is the capability mask in the port's PortInfo.
	ChangeFlags       uint16 `mad:"10"`    // ChangeFlags has the bits ChangedNodeDescription and others.
	CapabilityMask2   uint16 `mad:"12"`    // CapabilityMask2 is the second capability mask in the port's PortInfo.
}

// Bits of NoticeChange.ChangeFlags: what has changed.
const (
	ChangedNodeDescription  = 1 << 0 // NodeDescription
	ChangedLinkWidthEnabled = 1 << 1 // LinkWidthEnabled of PortInfo
	ChangedLinkSpeedEnabled = 1 << 2 // LinkSpeedEnabled of PortInfo
	ChangedSMPriority       = 1 << 3 // priority of the subnet manager on the port
	ChangedHierarchyInfo    = 1 << 4 // HierarchyInfo
	ChangedCapabilityMask2  = 1 << 5 // CapabilityMask2 of PortInfo
)

// NoticeMKey has the details of trap 256.
type NoticeMKey struct {
	LID       uint16 `mad:"2"`  // LID is the LID of the port.
	DrSLID    uint16 `mad:"4"`  // DrSLID is the DrSLID of the refused MAD.
	Method    Method `mad:"6"`  // Method is the method of the refused MAD.
	Attribute AttrID `mad:"8"`  // Attribute is the attribute of the refused MAD.
	Modifier  uint32 `mad:"10"` // Modifier is the attribute modifier of the refused MAD.
	MKey      uint64 `mad:"14"` // MKey is the wrong M_Key.
}

// NoticeKey has the details of the traps 257 and 258.
type NoticeKey struct {
	LID1 uint16 `mad:"2"`      // LID1 is the source of the packet.
	LID2 uint16 `mad:"4"`      // LID2 is the destination of the packet.
	Key  uint32 `mad:"6"`      // Key is the wrong P_Key or Q_Key.
	SL   uint8  `mad:"10.0 4"` // SL is the service level of the packet.
	QP1  uint32 `mad:"11 24"`  // QP1 is the QP at the source.
	QP2  uint32 `mad:"15 24"`  // QP2 is the QP at the destination.
	GID1 ib.GID `mad:"18"`     // GID1 is the source GID, or 0.
	GID2 ib.GID `mad:"34"`     // GID2 is the destination GID, or 0.
}

// Details decodes DataDetails. The result is a pointer to a NoticeGID, NoticeSwitch, NoticePort,
// NoticeChange, NoticeMKey or NoticeKey, or nil if the trap has no details that the package knows.
func (n *Notice) Details() any {
	if !n.IsGeneric {
		return nil
	}
	b := n.DataDetails[:]
	switch t := n.TrapNumber; {
	case t >= TrapGIDInService && t <= TrapGroupDeleted:
		return decoded(b, &NoticeGID{})
	case t == TrapLinkStateChange:
		return decoded(b, &NoticeSwitch{})
	case t >= TrapLinkIntegrity && t <= TrapFlowControl:
		return decoded(b, &NoticePort{})
	case t == TrapCapabilityChange:
		return decoded(b, &NoticeChange{})
	case t == TrapBadMKey:
		return decoded(b, &NoticeMKey{})
	case t == TrapBadPKey, t == TrapBadQKey:
		return decoded(b, &NoticeKey{})
	}
	return nil
}

// decoded decodes the details of a notice, for which there are enough bytes.
func decoded(b []byte, d any) any {
	v := reflect.ValueOf(d).Elem()
	layoutOf(v.Type()).decode(b, v)
	return d
}

// String says what has happened.
func (n *Notice) String() string {
	if !n.IsGeneric {
		return fmt.Sprintf("trap %d of vendor %#06x from LID %d", n.TrapNumber, n.ProducerType, n.IssuerLID)
	}
	text := fmt.Sprintf("trap %d from LID %d", n.TrapNumber, n.IssuerLID)
	if what := map[uint16]string{
		TrapGIDInService: "GID in service", TrapGIDOutOfService: "GID out of service", TrapGroupCreated: "multicast group created",
		TrapGroupDeleted: "multicast group deleted", TrapLinkStateChange: "link state change", TrapLinkIntegrity: "link integrity",
		TrapBufferOverrun: "buffer overrun", TrapFlowControl: "flow control", TrapCapabilityChange: "capability change",
		TrapSystemImageGUID: "system image GUID", TrapBadMKey: "bad M_Key", TrapBadPKey: "bad P_Key", TrapBadQKey: "bad Q_Key",
	}[n.TrapNumber]; what != "" {
		text += ": " + what
	}
	if d := n.Details(); d != nil {
		text += fmt.Sprintf(" %+v", d)
	}
	return text
}
