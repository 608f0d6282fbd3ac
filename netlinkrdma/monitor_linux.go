package netlinkrdma

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/netlinkrdma/internal/abi"
)

func (c *client) openMonitor() (*Monitor, error) {
	const op = "open monitor"
	set, err := c.settings()
	if err != nil {
		return nil, err
	}
	if !set.Monitor {
		return nil, feature{name: "monitor", since: Version{6, 12}}.missing(Device{}, nil)
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_RDMA)
	if err != nil {
		return nil, &Error{Op: op, Err: os.NewSyscallError("socket(NETLINK_RDMA)", err)}
	}
	group := &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (abi.RDMA_NL_GROUP_NOTIFY - 1)}
	if err := unix.Bind(fd, group); err != nil {
		unix.Close(fd)
		return nil, &Error{Op: op, Err: os.NewSyscallError("bind(RDMA_NL_GROUP_NOTIFY)", err)}
	}
	return newMonitor(fd, receiveEvent), nil
}

// receiveEvent reads a datagram from a netlink socket. It returns the datagram's length, which may
// be greater than len(b), and whether the kernel sent it.
func receiveEvent(fd int, b []byte) (n int, kernel bool, err error) {
	n, from, err := unix.Recvfrom(fd, b, unix.MSG_TRUNC)
	sender, ok := from.(*unix.SockaddrNetlink)
	return n, ok && sender.Pid == 0, err
}

// decodeEvents decodes a datagram. It ignores messages other than events. If a message cannot be
// decoded, the others are returned nevertheless.
func decodeEvents(b []byte) ([]Event, error) {
	msgs, first := syscall.ParseNetlinkMessage(b)
	var events []Event
	for _, msg := range msgs {
		if msg.Header.Type != abi.RDMA_NL_NLDEV<<abi.RDMA_NL_CLIENT_SHIFT|abi.RDMA_NLDEV_CMD_MONITOR {
			continue
		}
		e, err := decodeEvent(msg.Data)
		if err != nil {
			first = errors.Join(first, err)
			continue
		}
		events = append(events, e)
	}
	return events, first
}
