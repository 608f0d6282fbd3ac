package engine

import (
	"net/netip"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/kernel"
	"github.com/goverbs/goverbs/uverbs/soft/internal/udp"
)

// An AV is an address vector: how to reach a peer.
type AV struct {
	GRH          bool // the fields below are valid, without which there is no path
	DGID         [16]byte
	SGIDIndex    uint8  // index in the device's GID table
	FlowLabel    uint32 // 20 bits
	HopLimit     uint8  // number of routers that a packet may cross
	TrafficClass uint8
	Port         uint8 // local port
}

// A Network carries packets to devices that are not on the same [Host]. Its methods must not call the
// engine.
type Network interface {
	// Resolve returns where to send packets from a local address to a peer's address, or the errno
	// with which the kernel would refuse such a path: ENETUNREACH, EHOSTUNREACH and others.
	Resolve(from, to netip.Addr) (netip.AddrPort, syscall.Errno)

	// Send sends the packets of a batch from a local address. It keeps nothing of the batch, and may
	// lose packets.
	Send(from netip.Addr, b *udp.Batch)

	// TakesLarge reports whether a packet to a peer may have a payload of up to udp.LargePayload bytes now. Only
	// peers at loopback addresses do.
	TakesLarge(to netip.AddrPort) bool

	// Join and Leave make the device a member of a multicast group, and end that.
	Join(group netip.Addr) syscall.Errno
	Leave(group netip.Addr)
}

// A path is where the packets of a QP or an address handle go. It does not change.
type path struct {
	device   *Device // whose packets these are
	local    *Device // the destination if it was on the same host; nil: the network, or a group
	group    bool    // the destination is a group with members on the same host
	src, dst netip.Addr
	to       netip.AddrPort // of the network; invalid for a group that only this host can reach
	large    bool           // it leads over the loopback interface, so packets may be larger than the MTU
	ip       udp.IP
}

// destination returns the device of the same host that a path leads to: the one that was found at first
// or, once that is closed, the one that has taken its place, or nil.
func (p *path) destination() *Device {
	if !p.local.closed.Load() {
		return p.local
	}
	return p.device.config.Host.find(p.dst)
}

// defaultHopLimit is used if an AV has no hop limit.
const defaultHopLimit = 64

// newPath checks an AV and resolves it, with the errnos of rdma_fill_sgid_attr and
// rdma_addr_find_l2_eth_by_grh in the kernel.
func (d *Device) newPath(av *AV) (*path, syscall.Errno) {
	if av.Port != 1 || !av.GRH {
		return nil, syscall.EINVAL
	}
	table := *d.gids.Load()
	if int(av.SGIDIndex) >= len(table) || !table[av.SGIDIndex].Valid {
		return nil, kernel.ENODATA
	}
	return d.pathFrom(addrOfGID(table[av.SGIDIndex].GID), av)
}

// pathFrom resolves an AV from a local address.
func (d *Device) pathFrom(src netip.Addr, av *AV) (*path, syscall.Errno) {
	p := &path{
		device: d,
		src:    src,
		dst:    addrOfGID(av.DGID),
		ip:     udp.IP{TrafficClass: av.TrafficClass, HopLimit: av.HopLimit, FlowLabel: av.FlowLabel & 0xfffff},
	}
	multicast := p.dst.IsMulticast()
	if p.ip.HopLimit == 0 {
		p.ip.HopLimit = defaultHopLimit
	}
	if p.src.Is4() != p.dst.Is4() && !multicast {
		return nil, syscall.EINVAL
	}
	if p.src != d.config.ViaNetwork || p.src.Is4() != p.dst.Is4() {
		if p.group = multicast; !multicast {
			p.local = d.config.Host.find(p.dst)
		}
	}
	if p.local == nil && d.config.Network != nil {
		var errno syscall.Errno
		if p.to, errno = d.config.Network.Resolve(p.src, p.dst); errno != 0 && !multicast {
			return nil, errno
		}
		p.large = p.src.IsLoopback() && p.to.Addr().IsLoopback()
		return p, 0
	}
	if p.local == nil && !multicast {
		return nil, syscall.ENETUNREACH
	}
	return p, 0
}
