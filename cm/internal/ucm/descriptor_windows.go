package ucm

import (
	"errors"
	"net"
	"net/netip"

	"golang.org/x/sys/windows"
)

// descriptor is a TCP connection of this process with itself, whose read end is readable while it is
// set. Go's netpoller waits on Windows for sockets that become readable, and not for pipes or events.
type descriptor struct {
	r windows.Handle
	w net.Conn
}

func newDescriptor() (descriptor, error) {
	l, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)))
	if err != nil {
		return descriptor{}, err
	}
	defer l.Close()
	r, err := windows.WSASocket(windows.AF_INET, windows.SOCK_STREAM, windows.IPPROTO_TCP, nil, 0,
		windows.WSA_FLAG_OVERLAPPED|windows.WSA_FLAG_NO_HANDLE_INHERIT)
	if err != nil {
		return descriptor{}, err
	}
	w, err := connectTo(l, r)
	if err != nil {
		windows.Closesocket(r)
		return descriptor{}, err
	}
	return descriptor{r, w}, nil
}

// connectTo connects a socket to a listener and returns the other end.
func connectTo(l *net.TCPListener, r windows.Handle) (net.Conn, error) {
	to := l.Addr().(*net.TCPAddr).AddrPort()
	if err := windows.Connect(r, &windows.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}); err != nil {
		return nil, err
	}
	sa, err := windows.Getsockname(r)
	if err != nil {
		return nil, err
	}
	w, err := l.Accept()
	if err != nil {
		return nil, err
	}
	own, ok := sa.(*windows.SockaddrInet4)
	if !ok || int(w.RemoteAddr().(*net.TCPAddr).AddrPort().Port()) != own.Port {
		w.Close()
		return nil, errors.New("another program has connected")
	}
	return w, nil
}

// number returns the socket that becomes readable.
func (d descriptor) number() int { return int(d.r) }

// set makes the descriptor readable. It cannot fail, as the connection is empty.
func (d descriptor) set() { d.w.Write([]byte{1}) }

// clear makes the descriptor unreadable.
func (d descriptor) clear() {
	var b [1]byte
	windows.Recvfrom(d.r, b[:], 0)
}

// release frees the resources of the descriptor other than its number.
func (d descriptor) release() { d.w.Close() }
