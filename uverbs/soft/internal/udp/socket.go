package udp

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// Options are the options of a Socket. The zero value is the recommended default.
type Options struct {
	// MTU is the MTU of RoCE in bytes, 256 to 4096, that the link must be able to carry. Open fails if
	// it is not. With 0, Open does not look.
	MTU int
	// ReceiveBuffer is the size in bytes of the receive buffer that the socket asks for. With 0, it is
	// DefaultReceiveBuffer. The system may give less, see Socket.ReceiveBuffer.
	ReceiveBuffer int
	// NoGSO makes the socket send packets one by one instead of as segments of one buffer.
	NoGSO bool
	// NoGRO makes the socket receive packets one by one.
	NoGRO bool
	// Large reports whether the device takes large packets from loopback addresses now. It is called for each packet
	// to such an address. With nil, the device takes none, and Socket.TakesLarge returns false.
	Large func() bool
	// Plain makes the socket use what every system has: one call for each packet.
	Plain bool
}

// DefaultReceiveBuffer is the size in bytes of the receive buffer that a Socket asks for.
const DefaultReceiveBuffer = 8 << 20

// Meta is what a Socket knows of a received packet besides its bytes.
type Meta struct {
	// IP has the fields of the IP header. They are zero with Options.Plain and on other systems than
	// Linux.
	IP
	// ID is the ID of the IPv4 header, which the ICRC reveals. It is 0 with IPv6.
	ID uint16
	// To is the address that the packet was sent to: the socket's, or that of a multicast group.
	To netip.AddrPort
}

// Handler handles a received packet, from BTH to ICRC. The ICRC is right, or a peer has left it out, see peers.go. The
// memory of the packet is used again when the handler has returned. Addresses have no zone.
type Handler func(from netip.AddrPort, packet []byte, meta Meta)

// Done ends a batch of packets, and reports whether another one is wanted. If it is nil, none is.
type Done func() (more bool)

// Socket sends and receives packets of RoCE v2 at one address of the host.
//
// All methods are safe for concurrent use, but only one goroutine at a time may call Receive.
type Socket struct {
	bound    netip.AddrPort // with the zone
	options  Options
	counters counters
	peers    peers
	t        transport

	mu     sync.Mutex
	closed bool
	groups map[netip.Addr]*group
}

// transport is what a socket wants of the system. Its methods return net.ErrClosed after close.
type transport interface {
	// send seals and sends a batch.
	send(b *Batch) error
	// receive waits for packets and handles batches of them.
	receive(h Handler, done Done) error
	// poll is receive without waiting. It reports whether there were packets.
	poll(h Handler, done Done, wait bool) bool
	// joinGroup opens a transport that receives the packets of a multicast group.
	joinGroup(group netip.Addr) (transport, error)
	// receiveBuffer returns the size of the receive buffer in bytes.
	receiveBuffer() int
	// drops returns how many packets the system has dropped because the receive buffer was full.
	drops() uint64
	local() netip.AddrPort
	close() error
}

// Open opens a socket that is bound to an address of this host. A port of 0 lets the system choose one.
// The error is an *OpenError, which says what is wrong in words.
func Open(local netip.AddrPort, o Options) (*Socket, error) {
	local = netip.AddrPortFrom(local.Addr().Unmap(), local.Port())
	if o.ReceiveBuffer == 0 {
		o.ReceiveBuffer = DefaultReceiveBuffer
	}
	if err := checkLocal(local.Addr(), o.MTU); err != nil {
		return nil, &OpenError{Addr: local, Reason: err.Error(), Err: err}
	}
	s := &Socket{options: o, groups: map[netip.Addr]*group{}, peers: peers{loopback: local.Addr().IsLoopback(), large: o.Large}}
	var err error
	if s.t, err = openTransport(local, &s.options, &s.counters, &s.peers); err != nil {
		return nil, newOpenError(local, err)
	}
	s.bound = s.t.local()
	return s, nil
}

// LocalAddr returns the address that the socket is bound to.
func (s *Socket) LocalAddr() netip.AddrPort { return s.bound }

// ReceiveBuffer returns the size in bytes of the receive buffer that the system gave to the socket. It
// counts the system's overhead too: on Linux, a packet of 1 KiB uses about 2.3 KB and one of 4 KiB 8 KB.
func (s *Socket) ReceiveBuffer() int { return s.t.receiveBuffer() }

// Send seals the ICRCs of the packets of a batch and sends them. It waits while the send buffer of the
// socket is full.
//
// A packet that the system refuses counts as lost on the network; Send goes on with the next one, and
// returns the first refusal as a *SendError in the end. If the socket is closed, Send returns
// net.ErrClosed. Send keeps nothing of the batch and does not empty it.
func (s *Socket) Send(b *Batch) error {
	if b.Len() == 0 {
		return nil
	}
	return s.t.send(b)
}

// TakesLarge reports whether a packet of RC to an address may have a payload of up to LargePayload bytes. It may be
// wrong soon; a large packet that the peer does not take any more is lost.
func (s *Socket) TakesLarge(to netip.AddrPort) bool { return s.peers.takesLarge(to) }

// Receive waits until at least one packet has arrived, calls h for each packet that is there, up to a
// batch, and then done. While that returns true, Receive goes on with the next batch. It drops packets
// that are too short or have a wrong ICRC. If the socket is closed, Receive returns net.ErrClosed. It
// returns no other error. Only one goroutine may call it at a time.
func (s *Socket) Receive(h Handler, done Done) error { return s.t.receive(h, done) }

// Poll does the same for one batch, but does not wait. It reports whether it has received something. It may
// be called while Receive waits: the two handle batches in turn, so packets stay in order. If the other
// one is handling a batch, Poll returns false. On systems other than Linux it always does.
func (s *Socket) Poll(h Handler, done Done) bool { return s.t.poll(h, done, false) }

// Look is Poll, but if another goroutine is handling a batch, it waits until that is done.
func (s *Socket) Look(h Handler, done Done) bool { return s.t.poll(h, done, true) }

// Close closes the socket and leaves all multicast groups. Send and Receive return net.ErrClosed from
// then on, also where they were waiting. Close waits for handlers, so it must not be called by one.
func (s *Socket) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	groups := s.groups
	s.groups = nil
	s.mu.Unlock()
	err := s.t.close()
	for _, g := range groups {
		err = errors.Join(err, g.leave())
	}
	return err
}

// A group is a membership in a multicast group: a transport and the goroutine that receives from it.
type group struct {
	t    transport
	done chan struct{}
}

func (g *group) leave() error {
	err := g.t.close()
	<-g.done
	return err
}

// JoinGroup makes the interface of the socket a member of a multicast group. A goroutine calls h for each
// packet that is sent to the group and the socket's port, until LeaveGroup or Close, also for those that
// this socket has sent.
//
// It fails with EADDRINUSE if the socket has joined the group already, with EINVAL if the address is not a
// multicast address of the socket's family, and with errors.ErrUnsupported where the system's sockets
// cannot do it.
func (s *Socket) JoinGroup(addr netip.Addr, h Handler) error {
	addr = addr.Unmap().WithZone("")
	if !addr.IsMulticast() || addr.Is4() != s.bound.Addr().Is4() {
		return &OpenError{netip.AddrPortFrom(addr, s.bound.Port()), "not a multicast address of the socket's family", syscall.EINVAL}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return net.ErrClosed
	}
	if s.groups[addr] != nil {
		return &OpenError{netip.AddrPortFrom(addr, s.bound.Port()), "the socket is a member of the group already", syscall.EADDRINUSE}
	}
	t, err := s.t.joinGroup(addr)
	if err != nil {
		return newOpenError(netip.AddrPortFrom(addr, s.bound.Port()), err)
	}
	g := &group{t: t, done: make(chan struct{})}
	s.groups[addr] = g
	go func() {
		defer close(g.done)
		t.receive(h, func() bool { return true }) // until it is closed
	}()
	return nil
}

// LeaveGroup ends the membership in a multicast group. The handler is not called after LeaveGroup has
// returned, and must not call it. It fails with EADDRNOTAVAIL if the socket is not a member.
func (s *Socket) LeaveGroup(addr netip.Addr) error {
	addr = addr.Unmap().WithZone("")
	s.mu.Lock()
	g := s.groups[addr]
	delete(s.groups, addr)
	s.mu.Unlock()
	if g == nil {
		return &OpenError{netip.AddrPortFrom(addr, s.bound.Port()), "the socket is not a member of the group", syscall.EADDRNOTAVAIL}
	}
	return g.leave()
}

// minPacket is the size of the shortest packet.
const minPacket = wire.BTHSize + wire.ICRCSize
