// Package subnet is a model of an InfiniBand subnet: switches, channel adapters, and the links between them.
// A subnet manager that is not changed, such as opensm, can rule it. It is the referee of goverbs'
// fabric walk, and shares no code with it.
//
// # Parts
//
// A [Topology] says what is connected with what. [Read] reads one in the format of ibnetdiscover, which is
// also what ibsim reads; [FatTree], [Ring] and [Line] make one. [New] makes a [Subnet] of it, in which every
// port has state: links are up, and ports are in state INIT without a LID, until a subnet manager configures
// them, or [Subnet.Assign] does.
//
// # Agents
//
// Every node answers SMPs, by LID, by directed route and by a mix of both, and performance management.
// Adapters also answer ibping. A switch forwards packets by its linear and multicast forwarding tables,
// counts them by port, and sends trap 128 when the state of a link changes, until the subnet manager
// represses it. M_Keys are checked, and expire by their lease.
//
// # Endpoints
//
// [Subnet.Attach] attaches an [Endpoint] to a port of an adapter. It sends and receives packets there. With its own agents
// it is a whole adapter, like a modelled card; otherwise the model's agents answer what the endpoint leaves.
// The tests in test/suites/fabric make an endpoint a port of package umad.
//
// # Faults
//
// [Subnet.SetLink] takes links down and up, [Subnet.SetLoss] loses packets on a link, [Subnet.LimitLink] makes a link
// narrower or slower than its ports, and [Subnet.Intercept] replaces the agents of a node.
//
// # Limits
//
// A packet takes no time. There are no credits and no congestion, and VL15 drops nothing. Partitions are not enforced by
// switches, and the M_Key of a packet that arrives at an endpoint with its own agents is that endpoint's
// concern. Speeds end with XDR. Random forwarding tables are absent, by the capabilities.
// DefaultMulticastPrimaryPort, DefaultMulticastNotPrimaryPort and MulticastFDBTop of SwitchInfo can be set, but are not
// used.
package subnet
