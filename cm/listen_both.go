package cm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
)

// ListenConfig makes listeners that accept connections by RDMA and by TCP on the same port, as the
// peers of a [Dialer] need it. The zero value is ready for use.
type ListenConfig struct {
	RDMA ListenOptions    // RDMA has the options of connections by RDMA.
	TCP  net.ListenConfig // TCP listens for TCP.

	// RequireRDMA says that Listen fails if it is not possible to accept RDMA on the address, because
	// there is no RDMA device for it or no access to one. Otherwise the listener then accepts TCP
	// alone; see [DualListener.RDMAErr].
	RequireRDMA bool
}

// DualListener is a [net.Listener] that accepts connections by RDMA and by TCP. It is safe for
// concurrent use.
type DualListener struct {
	tcp      net.Listener
	rdma     *Listener // nil without RDMA
	required bool

	accepted chan acceptResult // results of tcp
	done     chan struct{}     // closed by Close
	close    func() error

	mu     sync.Mutex
	noRDMA error // guarded by mu
}

// acceptResult is what Accept of the TCP listener has returned.
type acceptResult struct {
	conn net.Conn
	err  error
}

// Listen listens on "host:port". The network is "tcp", "tcp4" or "tcp6", and the address is as for
// [net.Listen]: without a host, the listener accepts RDMA on all addresses of all RDMA devices. With
// port 0 the kernel chooses a port that both can use; see [DualListener.Addr]. On iWARP, RDMA and TCP
// cannot listen on the same port, so that Listen fails with EADDRINUSE.
//
// The context limits the lookup of the host and the port. Its end does not affect the listener.
func (lc *ListenConfig) Listen(ctx context.Context, network, address string) (*DualListener, error) {
	switch network {
	case "tcp", "tcp4", "tcp6":
	default:
		return nil, &net.OpError{Op: "listen", Net: network, Err: net.UnknownNetworkError(network)}
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: err}
	}
	l, err := lc.listen(ctx, network, address)
	const most = 9
	for tries := 1; port == "0" && errors.Is(err, syscall.EADDRINUSE) && tries < most; tries++ { // RDMA has the port already
		l, err = lc.listen(ctx, network, address)
	}
	if err != nil {
		return nil, opErrorOf("listen", network, err)
	}
	return l, nil
}

// listen is one attempt of Listen.
func (lc *ListenConfig) listen(ctx context.Context, network, address string) (*DualListener, error) {
	tcp, err := lc.TCP.Listen(ctx, network, address)
	if err != nil {
		return nil, err
	}
	l := &DualListener{tcp: tcp, required: lc.RequireRDMA, accepted: make(chan acceptResult), done: make(chan struct{})}
	if l.rdma, err = Listen(ctx, tcp.Addr().String(), lc.RDMA); err != nil {
		if lc.RequireRDMA || !isNoRDMA(err) {
			return nil, errors.Join(err, tcp.Close())
		}
		l.noRDMA = err
	}
	l.close = sync.OnceValue(l.closeAll)
	go l.acceptTCP()
	return l, nil
}

// acceptTCP passes the results of the TCP listener to Accept.
func (l *DualListener) acceptTCP() {
	for {
		c, err := l.tcp.Accept()
		select {
		case l.accepted <- acceptResult{c, err}:
		case <-l.done:
			if err == nil {
				c.Close()
			}
			return
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

// Accept waits for the next connection, a [*Stream] or a [*net.TCPConn]. After Close the error
// matches [net.ErrClosed]. If the listener can no longer accept RDMA, because the device was removed
// or the process has changed its user, it continues with TCP, unless [ListenConfig].RequireRDMA is
// set.
func (l *DualListener) Accept() (net.Conn, error) {
	select {
	case <-l.done:
		return nil, l.acceptError(net.ErrClosed)
	default:
	}
	var ready <-chan *Conn
	var ended <-chan struct{}
	if l.rdma != nil {
		ready, ended = l.rdma.ready, l.rdma.ctx.Done()
	}
	for {
		select {
		case c := <-ready:
			return l.rdma.take(c).Stream(), nil
		case a := <-l.accepted:
			return a.conn, a.err
		case <-l.done:
			return nil, l.acceptError(net.ErrClosed)
		case <-ended:
			err := fmt.Errorf("cm: accept on %s: %w", l.rdma.addr, l.rdma.endErr())
			if l.required && !errors.Is(err, net.ErrClosed) {
				return nil, l.acceptError(err)
			}
			l.mu.Lock()
			l.noRDMA = err
			l.mu.Unlock()
			ended = nil
		}
	}
}

// acceptError returns the error of Accept.
func (l *DualListener) acceptError(err error) error {
	return &net.OpError{Op: "accept", Net: l.Addr().Network(), Addr: l.Addr(), Err: err}
}

// RDMAErr returns the reason why the listener does not accept RDMA, or nil if it does.
func (l *DualListener) RDMAErr() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.noRDMA
}

// Addr returns the address of the listener, a [*net.TCPAddr]. RDMA uses the same IP address and port.
func (l *DualListener) Addr() net.Addr { return l.tcp.Addr() }

// Close stops listening. Connections that Accept has not returned are closed; see [Listener.Close].
func (l *DualListener) Close() error { return l.close() }

// closeAll is Close for the first call.
func (l *DualListener) closeAll() error {
	close(l.done)
	err := l.tcp.Close()
	if l.rdma != nil {
		err = errors.Join(err, l.rdma.Close())
	}
	return err
}
