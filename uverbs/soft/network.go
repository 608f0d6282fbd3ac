package soft

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/soft/internal/engine"
	"github.com/goverbs/goverbs/uverbs/soft/internal/udp"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// network carries the packets of a device between its UDP socket and its engine.
type network struct {
	socket *udp.Socket
	engine *engine.Device
	done   sync.WaitGroup // the goroutine that receives
}

// openNetwork opens the socket of a device. Packets arrive from start on.
func openNetwork(local netip.AddrPort) (*network, error) {
	socket, err := udp.Open(local, udp.Options{})
	if err != nil {
		return nil, err
	}
	return &network{socket: socket}, nil
}

// start begins to receive.
func (n *network) start(d *engine.Device) {
	n.engine = d
	n.done.Go(func() {
		r := d.NewReceiver()
		handle := receiver(r)
		for n.socket.Receive(handle) == nil {
			r.Flush()
		}
	})
}

// receiver returns a handler that gives packets to the engine.
func receiver(r *engine.Receiver) udp.Handler {
	var m engine.Meta // of one goroutine
	return func(from netip.AddrPort, packet []byte, meta udp.Meta) {
		m = engine.Meta{From: from.Addr(), To: meta.To.Addr(), IP: meta.IP, ID: meta.ID}
		r.Packet(&m, packet)
	}
}

// close closes the socket and waits for the goroutine that receives.
func (n *network) close() {
	n.socket.Close()
	n.done.Wait()
}

// Resolve returns where packets to a peer are sent. Only the address of the socket reaches other hosts:
// the other entries of the GID table exist in this process alone.
func (n *network) Resolve(from, to netip.Addr) (netip.AddrPort, syscall.Errno) {
	local := n.socket.LocalAddr()
	if from.WithZone("") != local.Addr().WithZone("") || !hasRoute(local.Addr(), to) {
		return netip.AddrPort{}, syscall.ENETUNREACH
	}
	return netip.AddrPortFrom(to, local.Port()), 0
}

// hasRoute reports whether the system knows a way from a local address to another one. It connects a
// UDP socket, which sends nothing.
func hasRoute(from, to netip.Addr) bool {
	c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, wire.Port)))
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// Send sends packets. Those that the system refuses are lost.
func (n *network) Send(_ netip.Addr, b *udp.Batch) { n.socket.Send(b) }

// Join makes the interface of the socket a member of a multicast group. A group of the other address
// family exists in this process alone.
func (n *network) Join(group netip.Addr) syscall.Errno {
	if group.Unmap().Is4() != n.socket.LocalAddr().Addr().Is4() {
		return 0
	}
	r := n.engine.NewReceiver()
	handle := receiver(r)
	err := n.socket.JoinGroup(group, func(from netip.AddrPort, packet []byte, meta udp.Meta) {
		handle(from, packet, meta)
		r.Flush()
	})
	if err == nil {
		return 0
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return syscall.EOPNOTSUPP
}

// Leave ends a membership.
func (n *network) Leave(group netip.Addr) { n.socket.LeaveGroup(group) }
