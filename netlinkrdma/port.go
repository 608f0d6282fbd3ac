package netlinkrdma

import (
	"errors"
	"fmt"
	"slices"

	"github.com/goverbs/goverbs/netlinkrdma/internal/abi"
)

// PortState is the logical state of a port (enum ib_port_state in the kernel's
// rdma/ib_verbs.h, IBV_PORT_ACTIVE and so on in libibverbs).
type PortState uint8

// The port states. Only an active port carries traffic.
const (
	PortNop         PortState = 0 // no state (IB_PORT_NOP)
	PortDown        PortState = 1 // no link (IB_PORT_DOWN)
	PortInit        PortState = 2 // waits for the subnet manager (IB_PORT_INIT)
	PortArmed       PortState = 3 // configured by the subnet manager (IB_PORT_ARMED)
	PortActive      PortState = 4 // up (IB_PORT_ACTIVE)
	PortActiveDefer PortState = 5 // active, link lost for the moment (IB_PORT_ACTIVE_DEFER)
)

// String returns the name that the kernel uses in sysfs.
func (s PortState) String() string {
	names := [...]string{"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"}
	return nameOf("PortState", names[:], int(s))
}

// PhysState is the physical state of the link of a port (enum ib_port_phys_state in the kernel's
// rdma/ib_verbs.h).
type PhysState uint8

// The physical states.
const (
	PhysSleep         PhysState = 1 // IB_PORT_PHYS_STATE_SLEEP
	PhysPolling       PhysState = 2 // looks for a peer (IB_PORT_PHYS_STATE_POLLING)
	PhysDisabled      PhysState = 3 // IB_PORT_PHYS_STATE_DISABLED
	PhysTraining      PhysState = 4 // IB_PORT_PHYS_STATE_PORT_CONFIGURATION_TRAINING
	PhysLinkUp        PhysState = 5 // IB_PORT_PHYS_STATE_LINK_UP
	PhysErrorRecovery PhysState = 6 // IB_PORT_PHYS_STATE_LINK_ERROR_RECOVERY
	PhysTest          PhysState = 7 // IB_PORT_PHYS_STATE_PHY_TEST
)

// String returns the name that the kernel uses in sysfs.
func (s PhysState) String() string {
	names := [...]string{PhysSleep: "Sleep", PhysPolling: "Polling", PhysDisabled: "Disabled",
		PhysTraining: "PortConfigurationTraining", PhysLinkUp: "LinkUp",
		PhysErrorRecovery: "LinkErrorRecovery", PhysTest: "Phy Test"}
	return nameOf("PhysState", names[:], int(s))
}

// LinkLayer is the kind of network that a port is connected to (enum rdma_link_layer in the
// kernel's rdma/ib_verbs.h).
type LinkLayer uint8

// The link layers.
const (
	LinkLayerUnspecified LinkLayer = 0 // IB_LINK_LAYER_UNSPECIFIED
	LinkLayerInfiniBand  LinkLayer = 1 // InfiniBand or Omni-Path (IB_LINK_LAYER_INFINIBAND)
	LinkLayerEthernet    LinkLayer = 2 // IB_LINK_LAYER_ETHERNET
)

// String returns the name that the kernel uses in sysfs.
func (l LinkLayer) String() string {
	names := [...]string{"Unspecified", "InfiniBand", "Ethernet"}
	return nameOf("LinkLayer", names[:], int(l))
}

// Port is a snapshot of a port of a device. It is a plain value.
//
// The kernel does not report the link layer over netlink. It reports a LID for ports that use
// InfiniBand or Omni-Path and for no others, so LinkLayer is InfiniBand for ports with a LID and
// Ethernet for all others. This holds for each port, also on devices that mix both.
type Port struct {
	Num         uint32    // Num is the port number, from 1.
	State       PortState // State is PortActive if the port can be used.
	PhysState   PhysState // PhysState is the state of the physical link.
	LinkLayer   LinkLayer // LinkLayer decides how peers are addressed.
	Netdev      string    // Netdev is the network interface of the port; empty if there is none, or if it is in another network namespace.
	NetdevIndex int       // NetdevIndex is the index of Netdev, 0 if there is none.

	// The rest is for ports with link layer InfiniBand only, and zero elsewhere.

	LID          uint32 // LID is the local identifier of the port; Omni-Path uses all 32 bits.
	SMLID        uint32 // SMLID is the LID of the subnet manager.
	LMC          uint8  // LMC is the number of low LID bits that the port ignores.
	SubnetPrefix uint64 // SubnetPrefix is the upper half of the port's GIDs, in host order.
	CapFlags     uint64 // CapFlags has CapabilityMask in the lower 32 bits and CapabilityMask2 in the upper ones.
}

// Ports returns the ports of a device in ascending order. dev must come from [Devices] or
// [DeviceByName]. The error matches [fs.ErrNotExist] if the device no longer exists or was renamed.
// If some ports fail, the others are returned together with the first error.
func Ports(dev Device) ([]Port, error) { return system.ports(dev) }

func (c *client) ports(dev Device) ([]Port, error) {
	if dev.FromSysfs {
		ports, err := sysfsPorts(c.sysfs, dev.Name)
		if err != nil {
			return nil, &Error{Op: "list ports of", Device: dev.Name, Err: err}
		}
		return ports, nil
	}
	ports, err := c.netlinkPorts(dev)
	var u *unreachable
	if errors.As(err, &u) {
		var serr error
		if ports, serr = sysfsPorts(c.sysfs, dev.Name); serr == nil {
			return ports, nil
		}
		err = bothFailed(err, serr)
	}
	if err != nil {
		return ports, explain(&Error{Op: "list ports of", Device: dev.Name, Err: err})
	}
	return ports, nil
}

func (c *client) netlinkPorts(dev Device) ([]Port, error) {
	s, err := c.open()
	if err != nil {
		return nil, err
	}
	defer s.close()
	index := u32Attr(abi.RDMA_NLDEV_ATTR_DEV_INDEX, dev.Index)
	replies, err := s.dump(abi.RDMA_NLDEV_CMD_PORT_GET, index)
	if err != nil {
		return nil, gone(err, dev.Index)
	}
	ports := make([]Port, 0, len(replies))
	for _, b := range replies {
		p, err := decodePort(b, dev)
		if err != nil {
			return nil, err
		}
		ports = insertPort(ports, p)
	}
	return s.missingPorts(dev, ports, index)
}

// missingPorts adds the ports that the dump left out. The dump ends silently at the first port that
// the driver cannot query. Queried one by one, the ports after it answer, and the failing port
// returns its error.
func (s *session) missingPorts(dev Device, ports []Port, index *rtAttr) ([]Port, error) {
	have := make(map[uint32]bool, len(ports))
	for _, p := range ports {
		have[p.Num] = true
	}
	var first error
	for n := uint32(1); n <= min(dev.Ports, maxPorts); n++ {
		if have[n] {
			continue
		}
		b, err := s.get(abi.RDMA_NLDEV_CMD_PORT_GET, index, u32Attr(abi.RDMA_NLDEV_ATTR_PORT_INDEX, n))
		if err == nil {
			var p Port
			if p, err = decodePort(b, dev); err == nil {
				ports = insertPort(ports, p)
			}
		}
		if err != nil && first == nil {
			first = fmt.Errorf("port %d: %w", n, err)
		}
	}
	return ports, first
}

// insertPort adds a port to those that have smaller and larger numbers.
func insertPort(ports []Port, p Port) []Port {
	n := len(ports)
	for n > 0 && ports[n-1].Num > p.Num {
		n--
	}
	return slices.Insert(ports, n, p)
}

// maxPorts limits the search for missing ports. An adapter has at most one port per virtual
// function; a Device with more ports is not genuine.
const maxPorts = 4096

// decodePort decodes a reply to RDMA_NLDEV_CMD_PORT_GET (fill_port_info in the
// kernel's nldev.c).
func decodePort(b []byte, dev Device) (Port, error) {
	m := parse(b)
	m.need(abi.RDMA_NLDEV_ATTR_DEV_NAME, abi.RDMA_NLDEV_ATTR_PORT_INDEX,
		abi.RDMA_NLDEV_ATTR_PORT_STATE, abi.RDMA_NLDEV_ATTR_PORT_PHYS_STATE)
	p := Port{
		Num:          m.u32(abi.RDMA_NLDEV_ATTR_PORT_INDEX),
		State:        PortState(m.u8(abi.RDMA_NLDEV_ATTR_PORT_STATE)),
		PhysState:    PhysState(m.u8(abi.RDMA_NLDEV_ATTR_PORT_PHYS_STATE)),
		LinkLayer:    LinkLayerEthernet,
		Netdev:       m.name(abi.RDMA_NLDEV_ATTR_NDEV_NAME),
		NetdevIndex:  int(m.u32(abi.RDMA_NLDEV_ATTR_NDEV_INDEX)),
		LID:          m.u32(abi.RDMA_NLDEV_ATTR_LID),
		SMLID:        m.u32(abi.RDMA_NLDEV_ATTR_SM_LID),
		LMC:          m.u8(abi.RDMA_NLDEV_ATTR_LMC),
		SubnetPrefix: m.u64(abi.RDMA_NLDEV_ATTR_SUBNET_PREFIX),
		CapFlags:     m.u64(abi.RDMA_NLDEV_ATTR_CAP_FLAGS),
	}
	if m.has(abi.RDMA_NLDEV_ATTR_LID) {
		p.LinkLayer = LinkLayerInfiniBand
	}
	name := m.name(abi.RDMA_NLDEV_ATTR_DEV_NAME)
	if m.err != nil {
		return Port{}, m.err
	}
	if name != dev.Name {
		// The program made the Device itself (index 0 is valid), or the device was renamed.
		return Port{}, fmt.Errorf("%w: index %d belongs to %s", noDevice{}, dev.Index, name)
	}
	return p, nil
}
