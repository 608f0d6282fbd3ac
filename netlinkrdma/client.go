package netlinkrdma

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/netlinkrdma/internal/abi"
)

// receiveTimeout bounds the wait for one datagram, in seconds. Nothing but
// adding and deleting links takes time in the kernel: the first may load
// modules, the second waits for the users of a device to let go.
const receiveTimeout = 60

// socket is what speaks with the kernel. Tests put a fake one in its place.
type socket interface {
	Send(*nl.NetlinkRequest) error
	Receive() ([]syscall.NetlinkMessage, *unix.SockaddrNetlink, error)
	Close()
}

// client is where answers come from. It is immutable.
type client struct {
	dial  func() (socket, error)
	sysfs fs.FS // what /sys holds
}

// system asks the running kernel.
var system = &client{dial: dialKernel, sysfs: os.DirFS("/sys")}

// dialKernel opens a socket in the network namespace of the calling thread.
func dialKernel() (socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_RDMA)
	if err != nil {
		return nil, os.NewSyscallError("socket(NETLINK_RDMA)", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("bind(NETLINK_RDMA)", err)
	}
	wait := &unix.Timeval{Sec: receiveTimeout}
	for _, opt := range []int{unix.SO_SNDTIMEO, unix.SO_RCVTIMEO} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, opt, wait); err != nil {
			unix.Close(fd)
			return nil, os.NewSyscallError("setsockopt(NETLINK_RDMA)", err)
		}
	}
	// Without extended acks errors only lack the kernel's explanation.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	return kernelSocket(fd), nil
}

// kernelSocket is a socket that blocks. The kernel does what a request is about, and has its answer
// there, before sending it returns, so that nothing is won by having Go's runtime wait for it, whose
// deadlines wake a thread each time.
type kernelSocket int

// buffers are for datagrams of any size.
var buffers = sync.Pool{New: func() any { return new([nl.RECEIVE_BUFFER_SIZE]byte) }}

// Send sends a request to the kernel.
func (s kernelSocket) Send(req *nl.NetlinkRequest) error {
	b := req.Serialize()
	for {
		if err := unix.Sendto(int(s), b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != unix.EINTR {
			return err
		}
	}
}

// Receive takes the next datagram. EAGAIN says that none has come in time.
func (s kernelSocket) Receive() ([]syscall.NetlinkMessage, *unix.SockaddrNetlink, error) {
	buf := buffers.Get().(*[nl.RECEIVE_BUFFER_SIZE]byte)
	defer buffers.Put(buf)
	for {
		n, from, err := unix.Recvfrom(int(s), buf[:], 0)
		if err == unix.EINTR {
			continue
		}
		addr, ok := from.(*unix.SockaddrNetlink)
		if err == nil && !ok {
			err = unix.EAFNOSUPPORT
		}
		if err != nil {
			return nil, nil, err
		}
		n = min((n+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1), len(buf)) // the last message has its padding
		msgs, err := syscall.ParseNetlinkMessage(append([]byte(nil), buf[:n]...))
		return msgs, addr, err
	}
}

// Close gives the socket back.
func (s kernelSocket) Close() { unix.Close(int(s)) }

// session is one socket for one or more requests in a row.
type session struct {
	sock socket
}

// open starts a session. The error is an *unreachable.
func (c *client) open() (*session, error) {
	s, err := c.dial()
	if err != nil {
		return nil, &unreachable{err}
	}
	return &session{s}, nil
}

func (s *session) close() { s.sock.Close() }

// get sends the command and returns the attributes of the one reply.
func (s *session) get(cmd int, attrs ...*nl.RtAttr) ([]byte, error) {
	replies, err := s.do(cmd, unix.NLM_F_ACK, attrs)
	if err != nil {
		return nil, err
	}
	if len(replies) != 1 {
		return nil, fmt.Errorf("%d replies of the kernel instead of one", len(replies))
	}
	return replies[0], nil
}

// dump sends the command and returns the attributes of each reply.
func (s *session) dump(cmd int, attrs ...*nl.RtAttr) ([][]byte, error) {
	return s.do(cmd, unix.NLM_F_DUMP, attrs)
}

// set sends a command that has no reply but success or failure.
func (s *session) set(cmd int, attrs ...*nl.RtAttr) error {
	_, err := s.do(cmd, unix.NLM_F_ACK, attrs)
	return err
}

// do sends a request and collects the answer. The error is an *unreachable if
// the kernel could not be asked, an *answer if it refused. One of NLM_F_ACK and
// NLM_F_DUMP must be among the flags, so that every answer has an end.
func (s *session) do(cmd, flags int, attrs []*nl.RtAttr) ([][]byte, error) {
	req := nl.NewNetlinkRequest(abi.RDMA_NL_NLDEV<<abi.RDMA_NL_CLIENT_SHIFT|cmd, flags)
	for _, a := range attrs {
		req.AddData(a)
	}
	if err := s.sock.Send(req); err != nil {
		return nil, &unreachable{os.NewSyscallError("sendto", err)}
	}
	r := reply{seq: req.Seq}
	for {
		msgs, from, err := s.sock.Receive()
		if errors.Is(err, unix.EAGAIN) {
			return nil, &unreachable{fmt.Errorf("no answer within %d s", receiveTimeout)}
		}
		if err != nil {
			return nil, &unreachable{os.NewSyscallError("recvfrom", err)}
		}
		if from.Pid != nl.PidKernel {
			continue // some process writes to our port
		}
		for i := range msgs {
			done, err := r.add(&msgs[i])
			if err != nil {
				return nil, err
			}
			if done {
				return r.payloads, nil
			}
		}
	}
}

// unreachable means that the kernel gave no answer over netlink, so that asking
// sysfs is worth a try.
type unreachable struct {
	err error
}

func (e *unreachable) Error() string { return e.err.Error() }
func (e *unreachable) Unwrap() error { return e.err }

func u8Attr(typ int, v uint8) *nl.RtAttr { return nl.NewRtAttr(typ, nl.Uint8Attr(v)) }

func u32Attr(typ int, v uint32) *nl.RtAttr { return nl.NewRtAttr(typ, nl.Uint32Attr(v)) }

func stringAttr(typ int, s string) *nl.RtAttr { return nl.NewRtAttr(typ, nl.ZeroTerminated(s)) }
