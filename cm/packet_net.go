package cm

import (
	"context"
	"fmt"
	"net"
	"time"
)

var _ net.PacketConn = (*PacketConn)(nil)

// ReadFrom waits for a datagram, copies it to b and returns its sender, a [Peer]. The end of a datagram longer
// than b is lost. It returns the errors of [PacketConn.Recv] as a [net.OpError].
func (p *PacketConn) ReadFrom(b []byte) (n int, from net.Addr, err error) {
	const what = "receive"
	var peer Peer
	err = p.readDeadline.run(func(ctx context.Context) error {
		if err := p.begin(ctx, &p.recv, what); err != nil {
			return err
		}
		defer func() { <-p.recv.turn }()
		data, sender, err := p.next(ctx, what)
		n, peer = copy(b, data), sender
		return err
	})
	if err != nil {
		return 0, nil, netError("read", p.LocalAddr(), nil, err)
	}
	return n, peer, nil
}

// WriteTo sends a datagram to a [Peer], as [PacketConn.Send] does, whose errors it returns as a [net.OpError].
func (p *PacketConn) WriteTo(b []byte, to net.Addr) (int, error) {
	peer, ok := to.(Peer)
	err := error(argErr("send", "to", fmt.Sprintf("a %T", to), "a cm.Peer"))
	if ok {
		err = p.writeDeadline.run(func(ctx context.Context) error { return p.Send(ctx, b, peer) })
	}
	if err != nil {
		return 0, netError("write", p.LocalAddr(), to, err)
	}
	return len(b), nil
}

// SetDeadline sets the deadlines of ReadFrom and WriteTo. After its deadline a call returns an error that
// matches [os.ErrDeadlineExceeded]. The zero time means no deadline.
func (p *PacketConn) SetDeadline(t time.Time) error {
	p.readDeadline.set(t)
	p.writeDeadline.set(t)
	return nil
}

// SetReadDeadline sets the deadline of ReadFrom.
func (p *PacketConn) SetReadDeadline(t time.Time) error {
	p.readDeadline.set(t)
	return nil
}

// SetWriteDeadline sets the deadline of WriteTo.
func (p *PacketConn) SetWriteDeadline(t time.Time) error {
	p.writeDeadline.set(t)
	return nil
}
