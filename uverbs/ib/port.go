package ib

import "fmt"

// NodeType is the kind of an RDMA device (enum rdma_node_type).
type NodeType uint8

// Types of nodes.
const (
	NodeCA          NodeType = 1 + iota // channel adapter, InfiniBand or RoCE (RDMA_NODE_IB_CA)
	NodeSwitch                          // InfiniBand switch (RDMA_NODE_IB_SWITCH)
	NodeRouter                          // InfiniBand router (RDMA_NODE_IB_ROUTER)
	NodeRNIC                            // iWARP adapter (RDMA_NODE_RNIC)
	NodeUSNIC                           // Cisco usNIC (RDMA_NODE_USNIC)
	NodeUSNICUDP                        // Cisco usNIC over UDP (RDMA_NODE_USNIC_UDP)
	NodeUnspecified                     // a vendor's own protocol, such as EFA (RDMA_NODE_UNSPECIFIED)
)

// String returns the name that the kernel uses in sysfs (ibv_node_type_str).
func (t NodeType) String() string {
	return nameOf("NodeType", int(t), "", "CA", "switch", "router", "RNIC", "usNIC", "usNIC UDP", "unspecified")
}

// AtomicCap says which accesses an atomic operation is atomic with (enum ib_atomic_cap,
// rdma/ib_verbs.h).
type AtomicCap uint32

// Atomic capabilities (IBV_ATOMIC_NONE and following).
const (
	AtomicNone   AtomicCap = iota // no atomics
	AtomicHCA                     // with atomics of other QPs of this device
	AtomicGlobal                  // also with accesses of the CPU
)

// String returns the name that ibv_devinfo prints.
func (c AtomicCap) String() string {
	switch c {
	case AtomicNone:
		return "ATOMIC_NONE"
	case AtomicHCA:
		return "ATOMIC_HCA"
	case AtomicGlobal:
		return "ATOMIC_GLOB"
	}
	return fmt.Sprintf("atomic capability %d", uint32(c))
}

// PortState is the logical state of a port (enum ib_port_state).
type PortState uint8

// States of ports (IB_PORT_NOP and following). Only an active port carries traffic.
const (
	PortNop         PortState = iota // no state
	PortDown                         // no link
	PortInit                         // waits for the subnet manager
	PortArmed                        // configured by the subnet manager
	PortActive                       // up
	PortActiveDefer                  // active, link lost for the moment
)

// String returns the name that the kernel uses in sysfs (ibv_port_state_str).
func (s PortState) String() string {
	return nameOf("PortState", int(s), "NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER")
}

// PhysState is the physical state of the link of a port (enum ib_port_phys_state).
type PhysState uint8

// Physical states (IB_PORT_PHYS_STATE_SLEEP and following).
const (
	PhysSleep         PhysState = 1 + iota // without a link, to save power
	PhysPolling                            // looks for a peer
	PhysDisabled                           // turned off
	PhysTraining                           // agrees with the peer on the parameters of the link
	PhysLinkUp                             // the link works
	PhysErrorRecovery                      // restores the link after errors
	PhysTest                               // a test of the transceiver
)

// String returns the name that the kernel uses in sysfs.
func (s PhysState) String() string {
	return nameOf("PhysState", int(s), "", "Sleep", "Polling", "Disabled", "PortConfigurationTraining", "LinkUp", "LinkErrorRecovery", "Phy Test")
}

// Words returns the state in words, as ibv_devinfo prints it.
func (s PhysState) Words() string {
	names := []string{"", "SLEEP", "POLLING", "DISABLED", "PORT_CONFIGURATION TRAINING", "LINK_UP", "LINK_ERROR_RECOVERY", "PHY TEST"}
	if int(s) < len(names) && s != 0 {
		return names[s]
	}
	return "invalid physical state"
}

// LinkWidth is the width of a link, in the encoding of the InfiniBand standard (enum ib_port_width).
type LinkWidth uint8

// Lanes returns the number of lanes, 0 if unknown.
func (w LinkWidth) Lanes() int { return map[LinkWidth]int{1: 1, 2: 4, 4: 8, 8: 12, 16: 2}[w] }

// LinkSpeed is the speed of a lane, in the encoding of the InfiniBand standard (enum ib_port_speed).
type LinkSpeed uint32

// Gbps returns the speed in Gbit/s, 0 if unknown.
func (s LinkSpeed) Gbps() float64 {
	return map[LinkSpeed]float64{1: 2.5, 2: 5, 4: 10, 8: 10, 16: 14, 32: 25, 64: 50, 128: 100, 256: 200}[s]
}

// VLNum is a number of virtual lanes, in the encoding of the InfiniBand standard (enum ib_port_data_vls).
type VLNum uint8

// Count returns the number of virtual lanes for data, 0 if unknown.
func (n VLNum) Count() int { return map[VLNum]int{1: 1, 2: 2, 3: 4, 4: 8, 5: 15}[n] }

// LinkLayer is the kind of network that a port is connected to (enum rdma_link_layer).
type LinkLayer uint8

// Link layers (IB_LINK_LAYER_UNSPECIFIED and following).
const (
	LinkLayerUnspecified LinkLayer = iota
	LinkLayerInfiniBand            // InfiniBand or Omni-Path
	LinkLayerEthernet              // RoCE or iWARP
)

// String returns the name that the kernel uses in sysfs.
func (l LinkLayer) String() string {
	return nameOf("LinkLayer", int(l), "Unspecified", "InfiniBand", "Ethernet")
}

// nameOf returns names[v], or a text with typ and v if it has no name.
func nameOf(typ string, v int, names ...string) string {
	if v < len(names) && names[v] != "" {
		return names[v]
	}
	return fmt.Sprintf("%s(%d)", typ, v)
}
