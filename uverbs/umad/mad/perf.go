package mad

import "github.com/goverbs/goverbs/uverbs/ib"

// ClassPortInfo describes the agent of a management class.
type ClassPortInfo struct {
	BaseVersion     uint8  `mad:"0"`       // BaseVersion is the supported base version of MADs.
	ClassVersion    uint8  `mad:"1"`       // ClassVersion is the supported version of the class.
	CapabilityMask  uint16 `mad:"2"`       // CapabilityMask says what the agent supports, see PerfAllPorts and others.
	CapabilityMask2 uint32 `mad:"4.0 27"`  // CapabilityMask2 has more of these.
	RespTimeValue   uint8  `mad:"7.3 5"`   // RespTimeValue is the longest time to answer, 4.096 µs·2ⁿ.
	RedirectGID     ib.GID `mad:"8"`       // RedirectGID is the GID of another agent that answers, or 0.
	RedirectTC      uint8  `mad:"24"`      // RedirectTC is the traffic class to it.
	RedirectSL      uint8  `mad:"25.0 4"`  // RedirectSL is the service level to it.
	RedirectFL      uint32 `mad:"25.4 20"` // RedirectFL is the flow label to it.
	RedirectLID     uint16 `mad:"28"`      // RedirectLID is its LID, or 0.
	RedirectPKey    uint16 `mad:"30"`      // RedirectPKey is the partition key to it.
	RedirectQP      uint32 `mad:"33 24"`   // RedirectQP is its QP.
	RedirectQKey    uint32 `mad:"36"`      // RedirectQKey is the Q_Key of that QP.
	TrapGID         ib.GID `mad:"40"`      // TrapGID is where traps go.
	TrapTC          uint8  `mad:"56"`      // TrapTC is their traffic class.
	TrapSL          uint8  `mad:"57.0 4"`  // TrapSL is their service level.
	TrapFL          uint32 `mad:"57.4 20"` // TrapFL is their flow label.
	TrapLID         uint16 `mad:"60"`      // TrapLID is the LID where they go.
	TrapPKey        uint16 `mad:"62"`      // TrapPKey is their partition key.
	TrapHL          uint8  `mad:"64"`      // TrapHL is their hop limit.
	TrapQP          uint32 `mad:"65 24"`   // TrapQP is the QP where they go.
	TrapQKey        uint32 `mad:"68"`      // TrapQKey is the Q_Key of that QP.
}

// Bits of ClassPortInfo.CapabilityMask of performance management.
const (
	PerfAllPorts       = 1 << 8  // port 255 stands for all ports (AllPortSelect)
	PerfExtended       = 1 << 9  // has PortCountersExtended (IsExtendedWidthSupported)
	PerfExtendedNoIETF = 1 << 10 // has them without those of unicast and multicast (IsExtendedWidthSupportedNoIETF)
	PerfXmitWait       = 1 << 12 // has PortXmitWait (IsPortXmitWaitSupported)
	PerfQP1Dropped     = 1 << 15 // has QP1Dropped (IsQP1DroppedSupported)
)

// PerfAdditional is a bit of ClassPortInfo.CapabilityMask2 of performance management: the agent has all
// counters of PortCountersExtended (IsAdditionalPortCountersExtendedSupported).
const PerfAdditional = 1 << 1

// ID implements Attribute.
func (*ClassPortInfo) ID() AttrID { return AttrClassPortInfo }

// PortCounters has the counters of a port. They stop at their maximum. A request names the port in
// PortSelect; Set writes the counters that CounterSelect names.
type PortCounters struct {
	PortSelect                   uint8  `mad:"1"`      // PortSelect is the number of the port, or 255 for all if the agent supports that.
	CounterSelect                uint16 `mad:"2"`      // CounterSelect has a bit for each counter, in their order.
	SymbolErrorCounter           uint16 `mad:"4"`      // SymbolErrorCounter counts minor errors of the link.
	LinkErrorRecoveryCounter     uint8  `mad:"6"`      // LinkErrorRecoveryCounter counts recoveries of the link that succeeded.
	LinkDownedCounter            uint8  `mad:"7"`      // LinkDownedCounter counts recoveries of the link that failed.
	PortRcvErrors                uint16 `mad:"8"`      // PortRcvErrors counts received packets with an error.
	PortRcvRemotePhysicalErrors  uint16 `mad:"10"`     // PortRcvRemotePhysicalErrors counts received packets that another port had marked bad.
	PortRcvSwitchRelayErrors     uint16 `mad:"12"`     // PortRcvSwitchRelayErrors counts received packets that the switch could not forward.
	PortXmitDiscards             uint16 `mad:"14"`     // PortXmitDiscards counts packets dropped because the port was down or congested.
	PortXmitConstraintErrors     uint8  `mad:"16"`     // PortXmitConstraintErrors counts packets that were not sent because of their P_Key or kind.
	PortRcvConstraintErrors      uint8  `mad:"17"`     // PortRcvConstraintErrors counts received packets dropped for the same reasons.
	CounterSelect2               uint8  `mad:"18"`     // CounterSelect2 has bit 0 for PortXmitWait and bit 1 for QP1Dropped.
	LocalLinkIntegrityErrors     uint8  `mad:"19.0 4"` // LocalLinkIntegrityErrors counts how often errors exceeded LocalPhyErrors.
	ExcessiveBufferOverrunErrors uint8  `mad:"19.4 4"` // ExcessiveBufferOverrunErrors counts how often overruns exceeded OverrunErrors.
	QP1Dropped                   uint16 `mad:"20"`     // QP1Dropped counts packets to QP1 that were dropped.
	VL15Dropped                  uint16 `mad:"22"`     // VL15Dropped counts subnet management packets that were dropped.
	PortXmitData                 uint32 `mad:"24"`     // PortXmitData counts sent data, in units of 4 bytes.
	PortRcvData                  uint32 `mad:"28"`     // PortRcvData counts received data, in units of 4 bytes.
	PortXmitPkts                 uint32 `mad:"32"`     // PortXmitPkts counts sent packets.
	PortRcvPkts                  uint32 `mad:"36"`     // PortRcvPkts counts received packets.
	PortXmitWait                 uint32 `mad:"40"`     // PortXmitWait counts ticks in which the port had data and no credits.
}

// ID implements Attribute.
func (*PortCounters) ID() AttrID { return AttrPortCounters }

// PortCountersExtended has counters of 64 bits of a port. The bits of CounterSelect are not those of
// [PortCounters]. SymbolErrorCounter and those that follow are 0 unless the agent has [PerfAdditional].
type PortCountersExtended struct {
	PortSelect                   uint8  `mad:"1"`   // PortSelect is the number of the port, or 255 for all if the agent supports that.
	CounterSelect                uint16 `mad:"2"`   // CounterSelect has a bit for each counter up to PortMulticastRcvPkts, in their order.
	CounterSelect2               uint32 `mad:"4"`   // CounterSelect2 has a bit for each counter from SymbolErrorCounter on.
	PortXmitData                 uint64 `mad:"8"`   // PortXmitData counts sent data, in units of 4 bytes.
	PortRcvData                  uint64 `mad:"16"`  // PortRcvData counts received data, in units of 4 bytes.
	PortXmitPkts                 uint64 `mad:"24"`  // PortXmitPkts counts sent packets.
	PortRcvPkts                  uint64 `mad:"32"`  // PortRcvPkts counts received packets.
	PortUnicastXmitPkts          uint64 `mad:"40"`  // PortUnicastXmitPkts counts sent unicast packets.
	PortUnicastRcvPkts           uint64 `mad:"48"`  // PortUnicastRcvPkts counts received unicast packets.
	PortMulticastXmitPkts        uint64 `mad:"56"`  // PortMulticastXmitPkts counts sent multicast packets.
	PortMulticastRcvPkts         uint64 `mad:"64"`  // PortMulticastRcvPkts counts received multicast packets.
	SymbolErrorCounter           uint64 `mad:"72"`  // SymbolErrorCounter counts minor errors of the link.
	LinkErrorRecoveryCounter     uint64 `mad:"80"`  // LinkErrorRecoveryCounter counts recoveries of the link that succeeded.
	LinkDownedCounter            uint64 `mad:"88"`  // LinkDownedCounter counts recoveries of the link that failed.
	PortRcvErrors                uint64 `mad:"96"`  // PortRcvErrors counts received packets with an error.
	PortRcvRemotePhysicalErrors  uint64 `mad:"104"` // PortRcvRemotePhysicalErrors counts received packets that another port had marked bad.
	PortRcvSwitchRelayErrors     uint64 `mad:"112"` // PortRcvSwitchRelayErrors counts received packets that the switch could not forward.
	PortXmitDiscards             uint64 `mad:"120"` // PortXmitDiscards counts packets dropped because the port was down or congested.
	PortXmitConstraintErrors     uint64 `mad:"128"` // PortXmitConstraintErrors counts packets that were not sent because of their P_Key or kind.
	PortRcvConstraintErrors      uint64 `mad:"136"` // PortRcvConstraintErrors counts received packets dropped for the same reasons.
	LocalLinkIntegrityErrors     uint64 `mad:"144"` // LocalLinkIntegrityErrors counts how often errors exceeded LocalPhyErrors.
	ExcessiveBufferOverrunErrors uint64 `mad:"152"` // ExcessiveBufferOverrunErrors counts how often overruns exceeded OverrunErrors.
	VL15Dropped                  uint64 `mad:"160"` // VL15Dropped counts subnet management packets that were dropped.
	PortXmitWait                 uint64 `mad:"168"` // PortXmitWait counts ticks in which the port had data and no credits.
	QP1Dropped                   uint64 `mad:"176"` // QP1Dropped counts packets to QP1 that were dropped.
}

// ID implements Attribute.
func (*PortCountersExtended) ID() AttrID { return AttrPortCountersExtended }
