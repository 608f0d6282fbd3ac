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
	err = p.run(&p.readDeadline, what, func(ctx context.Context) error {
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
	var err error
	if ok {
		err = p.run(&p.writeDeadline, "send", func(ctx context.Context) error { return p.Send(ctx, b, peer) })
	} else {
		err = argErr("send", "to", fmt.Sprintf("a %T", to), "a cm.Peer")
	}
	if err != nil {
		return 0, netError("write", p.LocalAddr(), to, err)
	}
	return len(b), nil
}

// run calls do with a context that ends at the deadline, unless p is closed.
func (p *PacketConn) run(d *deadline, what string, do func(ctx context.Context) error) error {
	if p.closing.Load() {
		return p.opError(what, errClosed)
	}
	return d.run(do)
}

// SetDeadline sets the deadlines of ReadFrom and WriteTo. After its deadline a call returns an error that
// matches [os.ErrDeadlineExceeded]. The zero time means no deadline.
func (p *PacketConn) SetDeadline(t time.Time) error {
	return p.setDeadline(t, &p.readDeadline, &p.writeDeadline)
}

// SetReadDeadline sets the deadline of ReadFrom.
func (p *PacketConn) SetReadDeadline(t time.Time) error {
	return p.setDeadline(t, &p.readDeadline)
}

// SetWriteDeadline sets the deadline of WriteTo.
func (p *PacketConn) SetWriteDeadline(t time.Time) error {
	return p.setDeadline(t, &p.writeDeadline)
}

// setDeadline sets deadlines, unless p is closed.
func (p *PacketConn) setDeadline(t time.Time, of ...*deadline) error {
	if p.closing.Load() {
		return netError("set", p.LocalAddr(), nil, p.opError("set deadline", errClosed))
	}
	for _, d := range of {
		d.set(t)
	}
	return nil
}
