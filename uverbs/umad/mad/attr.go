package mad

import "fmt"

// AttrID is an attribute ID (AttributeID). The same number means another attribute in another class.
type AttrID uint16

// AttrClassPortInfo is an attribute of all classes but subnet management.
const AttrClassPortInfo AttrID = 0x01

// Attributes of subnet management.
const (
	AttrNodeDescription          AttrID = 0x10
	AttrNodeInfo                 AttrID = 0x11
	AttrSwitchInfo               AttrID = 0x12
	AttrGUIDInfo                 AttrID = 0x14
	AttrPortInfo                 AttrID = 0x15
	AttrPKeyTable                AttrID = 0x16 // P_KeyTable
	AttrSLtoVLTable              AttrID = 0x17 // SLtoVLMappingTable
	AttrVLArbitrationTable       AttrID = 0x18
	AttrLinearForwardingTable    AttrID = 0x19
	AttrMulticastForwardingTable AttrID = 0x1b
	AttrSMInfo                   AttrID = 0x20
)

// Attributes of performance management.
const (
	AttrPortCounters         AttrID = 0x12
	AttrPortCountersExtended AttrID = 0x1d
)

// Attributes of subnet administration.
const (
	AttrNodeRecord     AttrID = 0x11
	AttrPortInfoRecord AttrID = 0x12
	AttrServiceRecord  AttrID = 0x31
	AttrPathRecord     AttrID = 0x35
	AttrMCMemberRecord AttrID = 0x38
)

// attrName returns the name of an attribute of the class, or its number.
func (c Class) attrName(id AttrID) string {
	var names map[AttrID]string
	switch {
	case c.SMP():
		names = map[AttrID]string{
			AttrNodeDescription: "NodeDescription", AttrNodeInfo: "NodeInfo", AttrSwitchInfo: "SwitchInfo", AttrGUIDInfo: "GUIDInfo",
			AttrPortInfo: "PortInfo", AttrPKeyTable: "P_KeyTable", AttrSLtoVLTable: "SLtoVLMappingTable",
			AttrVLArbitrationTable: "VLArbitrationTable", AttrLinearForwardingTable: "LinearForwardingTable",
			AttrMulticastForwardingTable: "MulticastForwardingTable", AttrSMInfo: "SMInfo",
		}
	case c == ClassPerf:
		names = map[AttrID]string{AttrClassPortInfo: "ClassPortInfo", AttrPortCounters: "PortCounters", AttrPortCountersExtended: "PortCountersExtended"}
	case c == ClassSA:
		names = map[AttrID]string{
			AttrClassPortInfo: "ClassPortInfo", AttrNodeRecord: "NodeRecord", AttrPortInfoRecord: "PortInfoRecord",
			AttrServiceRecord: "ServiceRecord", AttrPathRecord: "PathRecord", AttrMCMemberRecord: "MCMemberRecord",
		}
	}
	if name := names[id]; name != "" {
		return name
	}
	return fmt.Sprintf("attribute %#04x", uint16(id))
}
