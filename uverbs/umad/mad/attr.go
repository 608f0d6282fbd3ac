package mad

import "fmt"

// AttrID is an attribute ID (AttributeID). The same number means another attribute in another class.
type AttrID uint16

// Attributes of several classes.
const (
	AttrClassPortInfo AttrID = 0x01 // of all classes but subnet management
	AttrNotice        AttrID = 0x02
	AttrInformInfo    AttrID = 0x03 // of all classes but subnet management
)

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
	AttrPortInfoExtended         AttrID = 0x33
)

// Attributes of performance management.
const (
	AttrPortCounters               AttrID = 0x12
	AttrPortCountersExtended       AttrID = 0x1d
	AttrPortExtendedSpeedsCounters AttrID = 0x1f
)

// Attributes of subnet administration.
const (
	AttrNodeRecord                     AttrID = 0x11
	AttrPortInfoRecord                 AttrID = 0x12
	AttrSLtoVLTableRecord              AttrID = 0x13 // SLtoVLMappingTableRecord
	AttrSwitchInfoRecord               AttrID = 0x14
	AttrLinearForwardingTableRecord    AttrID = 0x15
	AttrMulticastForwardingTableRecord AttrID = 0x17
	AttrSMInfoRecord                   AttrID = 0x18
	AttrLinkRecord                     AttrID = 0x20
	AttrGUIDInfoRecord                 AttrID = 0x30
	AttrServiceRecord                  AttrID = 0x31
	AttrPKeyTableRecord                AttrID = 0x33 // P_KeyTableRecord
	AttrPathRecord                     AttrID = 0x35
	AttrVLArbitrationTableRecord       AttrID = 0x36
	AttrMCMemberRecord                 AttrID = 0x38
	AttrInformInfoRecord               AttrID = 0xf3
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
			AttrMulticastForwardingTable: "MulticastForwardingTable", AttrSMInfo: "SMInfo", AttrNotice: "Notice", AttrPortInfoExtended: "PortInfoExtended",
		}
	case c == ClassPerf:
		names = map[AttrID]string{AttrClassPortInfo: "ClassPortInfo", AttrPortCounters: "PortCounters", AttrPortCountersExtended: "PortCountersExtended",
			AttrPortExtendedSpeedsCounters: "PortExtendedSpeedsCounters"}
	case c == ClassSA:
		names = map[AttrID]string{
			AttrClassPortInfo: "ClassPortInfo", AttrNotice: "Notice", AttrInformInfo: "InformInfo", AttrNodeRecord: "NodeRecord",
			AttrPortInfoRecord: "PortInfoRecord", AttrSwitchInfoRecord: "SwitchInfoRecord", AttrSMInfoRecord: "SMInfoRecord",
			AttrLinearForwardingTableRecord: "LinearForwardingTableRecord", AttrMulticastForwardingTableRecord: "MulticastForwardingTableRecord",
			AttrLinkRecord: "LinkRecord", AttrGUIDInfoRecord: "GUIDInfoRecord", AttrServiceRecord: "ServiceRecord", AttrPKeyTableRecord: "P_KeyTableRecord",
			AttrPathRecord: "PathRecord", AttrMCMemberRecord: "MCMemberRecord", AttrInformInfoRecord: "InformInfoRecord",
			AttrSLtoVLTableRecord: "SLtoVLMappingTableRecord", AttrVLArbitrationTableRecord: "VLArbitrationTableRecord",
		}
	}
	if name := names[id]; name != "" {
		return name
	}
	return fmt.Sprintf("attribute %#04x", uint16(id))
}
