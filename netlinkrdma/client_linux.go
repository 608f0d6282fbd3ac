package netlinkrdma

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/netlinkrdma/internal/abi"
)

// receiveTimeout limits the wait for one datagram, in seconds. Only adding and deleting links takes
// long in the kernel: adding may load modules, and deleting waits for the users of the device.
const receiveTimeout = 60

// socket exchanges messages with the kernel. Tests replace it.
type socket interface {
	Send(*nl.NetlinkRequest) error
	Receive() ([]syscall.NetlinkMessage, *unix.SockaddrNetlink, error)
	Close()
}

// kernelRelease returns the release of the running kernel, or "" if it is unknown.
func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

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
	// Extended acks only add the kernel's explanation to errors.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	return kernelSocket(fd), nil
}

// kernelSocket is a blocking socket. The kernel handles a request and queues the answer before send
// returns, so waiting in Go's netpoller would gain nothing, and its deadlines wake a thread each
// time.
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

// Receive returns the next datagram. The error is EAGAIN if none arrives in time.
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

// Close closes the socket.
func (s kernelSocket) Close() { unix.Close(int(s)) }

// open starts a session. The error is an *unreachable.
func (c *client) open() (*session, error) {
	s, err := c.dial()
	if err != nil {
		return nil, &unreachable{err}
	}
	return &session{s}, nil
}

// get sends the command and returns the attributes of the one reply.
func (s *session) get(cmd int, attrs ...*rtAttr) ([]byte, error) {
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
func (s *session) dump(cmd int, attrs ...*rtAttr) ([][]byte, error) {
	return s.do(cmd, unix.NLM_F_DUMP, attrs)
}

// set sends a command whose answer is only success or failure.
func (s *session) set(cmd int, attrs ...*rtAttr) error {
	_, err := s.do(cmd, unix.NLM_F_ACK, attrs)
	return err
}

// do sends a request and collects the answer. The error is an *unreachable if the kernel gave no
// answer, and an *answer if it refused the request. The flags must include NLM_F_ACK or NLM_F_DUMP,
// so that every answer has an end.
func (s *session) do(cmd, flags int, attrs []*rtAttr) ([][]byte, error) {
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
			continue // another process wrote to this socket
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

// rtAttr is an attribute of a request.
type rtAttr = nl.RtAttr

func u8Attr(typ int, v uint8) *rtAttr { return nl.NewRtAttr(typ, nl.Uint8Attr(v)) }

func u32Attr(typ int, v uint32) *rtAttr { return nl.NewRtAttr(typ, nl.Uint32Attr(v)) }

func u64Attr(typ int, v uint64) *rtAttr { return nl.NewRtAttr(typ, nl.Uint64Attr(v)) }

func stringAttr(typ int, s string) *rtAttr { return nl.NewRtAttr(typ, nl.ZeroTerminated(s)) }

// nestedAttr returns an attribute that others are added to.
func nestedAttr(typ int) *rtAttr { return nl.NewRtAttr(typ|unix.NLA_F_NESTED, nil) }
