package netlinkrdma

import (
	"errors"
	"fmt"
	"slices"

	"github.com/goverbs/goverbs/netlinkrdma/internal/abi"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// Port is a snapshot of a port of a device. It is a plain value.
//
// The kernel does not report the link layer over netlink. It reports a LID for ports that use
// InfiniBand or Omni-Path and for no others, so LinkLayer is InfiniBand for ports with a LID,
// unspecified for other ports of a device with [ib.NodeUnspecified], such as EFA, and Ethernet for the
// rest. This holds for each port, also on devices that mix both.
type Port struct {
	Num         uint32       // Num is the port number, from 1.
	State       ib.PortState // State is ib.PortActive if the port can be used.
	PhysState   ib.PhysState // PhysState is the state of the physical link.
	LinkLayer   ib.LinkLayer // LinkLayer decides how peers are addressed.
	Netdev      string       // Netdev is the network interface of the port; empty if there is none, or if it is in another network namespace.
	NetdevIndex int          // NetdevIndex is the index of Netdev, 0 if there is none.

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
		State:        ib.PortState(m.u8(abi.RDMA_NLDEV_ATTR_PORT_STATE)),
		PhysState:    ib.PhysState(m.u8(abi.RDMA_NLDEV_ATTR_PORT_PHYS_STATE)),
		LinkLayer:    ib.LinkLayerEthernet,
		Netdev:       m.name(abi.RDMA_NLDEV_ATTR_NDEV_NAME),
		NetdevIndex:  int(m.u32(abi.RDMA_NLDEV_ATTR_NDEV_INDEX)),
		LID:          m.u32(abi.RDMA_NLDEV_ATTR_LID),
		SMLID:        m.u32(abi.RDMA_NLDEV_ATTR_SM_LID),
		LMC:          m.u8(abi.RDMA_NLDEV_ATTR_LMC),
		SubnetPrefix: m.u64(abi.RDMA_NLDEV_ATTR_SUBNET_PREFIX),
		CapFlags:     m.u64(abi.RDMA_NLDEV_ATTR_CAP_FLAGS),
	}
	switch {
	case m.has(abi.RDMA_NLDEV_ATTR_LID):
		p.LinkLayer = ib.LinkLayerInfiniBand
	case dev.NodeType == ib.NodeUnspecified:
		p.LinkLayer = ib.LinkLayerUnspecified
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
