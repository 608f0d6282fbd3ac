package rsocket

import (
	"context"
	"net"
	"time"

	"github.com/goverbs/goverbs/cm/internal/protocol"
)

// Network is the name of the network in the errors of connections.
const Network = "rsocket"

// Dial connects to a program that listens with rsocket at "host:port" (rsocket, rconnect). It tries the
// addresses of the host one after the other. Without a deadline of ctx, it tries each for 10 seconds.
// While the listener has too many connections it tries again in that time, if the listener is of this
// module. The error matches ECONNREFUSED if the peer rejects the connection, and EPROTO if it does not
// speak rsocket; if it speaks the protocol of package cm, the error says so. Once the connection is
// established, the end of ctx does not affect it.
func Dial(ctx context.Context, address string, o Options) (*Conn, error) {
	o, err := o.defaults("Dial")
	if err != nil {
		return nil, err
	}
	w, err := protocol.Dial(ctx, address, o.config())
	if err != nil {
		return nil, err
	}
	return &Conn{w.(*conn)}, nil
}

// Listener accepts connections. It is a [net.Listener] and safe for concurrent use.
type Listener struct{ l *protocol.Listener }

// Listen listens on "host:port" (rbind, rlisten). Without a host, it listens on all addresses of all
// RDMA devices. With port 0 the kernel chooses a port; see [Listener.Addr]. The context limits the lookup
// of the host and the port.
func Listen(ctx context.Context, address string, o ListenOptions) (*Listener, error) {
	limits, err := o.limits()
	if err != nil {
		return nil, err
	}
	l, err := protocol.Listen(ctx, address, o.config(), limits, o.Refused)
	if err != nil {
		return nil, err
	}
	return &Listener{l}, nil
}

// Addr returns the address of the listener, a [rdmacm.Addr].
func (l *Listener) Addr() net.Addr { return l.l.Addr() }

// Accept waits for the next connection, a [*Conn] (raccept). After Close the error matches
// [net.ErrClosed].
func (l *Listener) Accept() (net.Conn, error) {
	w, err := l.l.Accept()
	if err != nil {
		return nil, err
	}
	return &Conn{w.(*conn)}, nil
}

// Close stops listening and closes the connections that Accept has not returned.
func (l *Listener) Close() error { return l.l.Close() }

// Conn is a connection that speaks the protocol of rsocket. It is a [net.Conn] and safe for
// concurrent use.
type Conn struct{ c *conn }

// LocalAddr returns the address of this side, a [rdmacm.Addr] (rgetsockname).
func (c *Conn) LocalAddr() net.Addr { return c.c.LocalAddr() }

// RemoteAddr returns the address of the peer, a [rdmacm.Addr] (rgetpeername).
func (c *Conn) RemoteAddr() net.Addr { return c.c.RemoteAddr() }

// Read returns data that has arrived, or waits for some (rrecv, rread). It returns io.EOF after the
// peer has closed its side.
func (c *Conn) Read(p []byte) (n int, err error) { return c.c.Read(p, c.c.canRead, c.c.take) }

// Write writes p (rsend, rwrite). It returns as soon as all of p is copied and posted; [Conn.Close]
// waits until it has arrived.
func (c *Conn) Write(p []byte) (n int, err error) { return c.c.Write(p, c.c.canWrite, c.c.writeSome) }

// CloseWrite ends the writing direction (rshutdown): the peer reads io.EOF after the last byte. A Write
// that waits for room returns with an error that matches EPIPE.
func (c *Conn) CloseWrite() error { return c.c.closeWrite() }

// Close closes the connection (rclose). The peer reads everything that was written before, and then io.EOF.
// Close waits until the peer's device has acknowledged everything, and if the peer has ended its direction before,
// until the peer closes, too. If the first takes longer than [Options].Linger, or the peer is gone before it has
// acknowledged everything, Close returns an error; the second is given up after that time. The connection is closed in
// any case. On iWARP, Close first waits until the peer has read so much that it owes no credits, for
// up to Linger. Package [cm] says under "The end of a connection" what is known after Close.
// Pending and later calls fail with an error that matches [net.ErrClosed]. A second Close returns nil.
func (c *Conn) Close() error { return c.c.Close() }

// SetDeadline sets the deadlines of Read and Write. After its deadline a call returns an error that
// matches [os.ErrDeadlineExceeded]. The zero time means no deadline.
func (c *Conn) SetDeadline(t time.Time) error { return c.c.SetDeadline(t) }

// SetReadDeadline sets the deadline of Read.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.c.SetReadDeadline(t) }

// SetWriteDeadline sets the deadline of Write and CloseWrite.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.c.SetWriteDeadline(t) }
