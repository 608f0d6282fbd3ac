package udp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
)

// maxPacket is the size of the largest packet: MTU 4096 with the largest headers, rounded up.
const maxPacket = 4096 + 128

// plain is the transport of every system: one call of package net for each packet.
type plain struct {
	conn   *net.UDPConn
	bound  netip.AddrPort
	self   netip.AddrPort // without zone
	c      *counters
	peers  *peers
	buffer []byte // of receive
}

// openPlain opens a plain transport.
func openPlain(local netip.AddrPort, o *Options, c *counters, p *peers) (transport, error) {
	network := "udp6"
	if local.Addr().Is4() {
		network = "udp4"
	}
	lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		if e := raw.Control(func(fd uintptr) { err = dontFragment(fd, local.Addr().Is4()) }); e != nil {
			return e
		}
		if err != nil {
			return fmt.Errorf("don't fragment: %w", err)
		}
		return nil
	}}
	pc, err := lc.ListenPacket(context.Background(), network, local.String())
	if err != nil {
		return nil, err
	}
	conn := pc.(*net.UDPConn)
	p.large = nil // the buffer is too small
	// The system may give less, which ReceiveBuffer tells, or even refuse: then it is the default.
	_ = conn.SetReadBuffer(o.ReceiveBuffer)
	bound := conn.LocalAddr().(*net.UDPAddr).AddrPort()
	bound = netip.AddrPortFrom(bound.Addr().Unmap(), bound.Port())
	self := netip.AddrPortFrom(bound.Addr().WithZone(""), bound.Port())
	return &plain{conn: conn, bound: bound, self: self, c: c, peers: p, buffer: make([]byte, maxPacket+1)}, nil
}

func (p *plain) send(b *Batch) error {
	var first *SendError
	for i := range b.Len() {
		to, data := b.Packet(i)
		to = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
		if to.Addr().Is4() != p.self.Addr().Is4() {
			first = firstError(first, p.c.refused(to, len(data), errAFNoSupport))
			continue
		}
		b.seal(i, p.self, to, 0, p.peers.marks(to, 1))
		p.c.sendCalls.Add(1)
		if _, err := p.conn.WriteToUDPAddrPort(data, onLink(to, p.bound)); err != nil {
			if errors.Is(err, net.ErrClosed) {
				return net.ErrClosed
			}
			first = firstError(first, p.c.refused(to, len(data), errnoOf(err)))
			continue
		}
		p.c.sent.Add(1)
		p.c.sentBytes.Add(uint64(len(data)))
	}
	if first != nil {
		return first
	}
	return nil
}

// onLink gives a link-local destination without a zone that of the socket.
func onLink(to, bound netip.AddrPort) netip.AddrPort {
	a := to.Addr()
	if a.Zone() != "" || !a.IsLinkLocalUnicast() && !a.IsLinkLocalMulticast() {
		return to
	}
	return netip.AddrPortFrom(a.WithZone(bound.Addr().Zone()), to.Port())
}

// firstError returns the error of the two that came first.
func firstError(first, next *SendError) *SendError {
	if first != nil {
		return first
	}
	return next
}

// errnoOf returns the system's error in an error of package net, or the error itself.
func errnoOf(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

// poll does nothing: package net cannot read without waiting.
func (p *plain) poll(Handler, Done, bool) bool { return false }

func (p *plain) receive(h Handler, done Done) error {
	for {
		if err := p.receiveOne(h); err != nil {
			return err
		}
		if done == nil || !done() {
			return nil
		}
	}
}

// receiveOne waits for a packet and handles it.
func (p *plain) receiveOne(h Handler) error {
	n, from, err := p.conn.ReadFromUDPAddrPort(p.buffer)
	p.c.receiveCalls.Add(1)
	switch {
	case errors.Is(err, net.ErrClosed):
		return net.ErrClosed
	case errors.Is(err, errMsgSize), n == len(p.buffer):
		p.c.truncated.Add(1)
		return nil
	case err != nil:
		p.c.receiveFailures.Add(1)
		return nil
	}
	from = netip.AddrPortFrom(from.Addr().Unmap().WithZone(""), from.Port())
	p.c.deliver(p.peers, h, from, p.buffer[:n], Meta{To: p.self})
	return nil
}

// deliver checks a packet and gives it to the handler.
func (c *counters) deliver(p *peers, h Handler, from netip.AddrPort, packet []byte, meta Meta) {
	if len(packet) < minPacket {
		c.short.Add(1)
		return
	}
	if len(packet) > p.most(from) {
		c.truncated.Add(1)
		return
	}
	id, ok := p.check(from, meta.To, packet)
	if !ok {
		c.badICRC.Add(1)
		return
	}
	p.received(from, packet)
	c.received.Add(1)
	c.receivedBytes.Add(uint64(len(packet)))
	meta.ID = id
	h(from, packet, meta)
}

// joinGroup fails: package net binds sockets of multicast groups to all addresses, where they take the
// port from the socket of the address.
func (p *plain) joinGroup(netip.Addr) (transport, error) { return nil, errors.ErrUnsupported }

func (p *plain) drops() uint64 { return 0 } // package net does not tell

func (p *plain) receiveBuffer() (size int) {
	raw, err := p.conn.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) { size = receiveBufferOf(fd) }) // 0 if closed
	return size
}

func (p *plain) local() netip.AddrPort { return p.bound }

func (p *plain) close() error { return p.conn.Close() }
