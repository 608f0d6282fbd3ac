package netlinkrdma

import (
	"encoding/binary"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxErrno is the largest errno that the kernel can return (MAX_ERRNO, err.h).
const maxErrno = 4095

// answer is an error with which the kernel answered a request.
type answer struct {
	errno syscall.Errno
	text  string // explanation in an extended ack, usually empty
}

func (a *answer) Error() string {
	if a.text == "" {
		return a.errno.Error()
	}
	return fmt.Sprintf("%v (kernel: %s)", a.errno.Error(), a.text)
}

func (a *answer) Unwrap() error { return a.errno }

// reply collects the messages that answer one request.
type reply struct {
	seq      uint32
	payloads [][]byte // attributes of each message
}

// add adds a message. It returns true when the answer is complete, and an *answer if the kernel
// refused the request.
//
// The type of a reply is not checked: the kernel answers PORT_GET with type GET.
func (r *reply) add(m *syscall.NetlinkMessage) (done bool, err error) {
	if m.Header.Seq != r.seq {
		return false, nil // left over from an answer that was not read to its end
	}
	switch m.Header.Type {
	case unix.NLMSG_NOOP:
		return false, nil
	case unix.NLMSG_OVERRUN:
		return false, fmt.Errorf("netlink lost a message")
	case unix.NLMSG_DONE:
		if len(m.Data) == 0 {
			return true, nil
		}
		return true, ackError(m)
	case unix.NLMSG_ERROR:
		return true, ackError(m)
	}
	r.payloads = append(r.payloads, m.Data)
	return false, nil
}

// ackError decodes NLMSG_ERROR (struct nlmsgerr), where errno 0 is success, and
// NLMSG_DONE, which has the errno only.
func ackError(m *syscall.NetlinkMessage) error {
	if len(m.Data) < 4 {
		return fmt.Errorf("netlink ack of %d bytes, shorter than an errno", len(m.Data))
	}
	errno := -int64(int32(binary.NativeEndian.Uint32(m.Data)))
	if errno <= 0 {
		return nil
	}
	if errno > maxErrno {
		return fmt.Errorf("netlink ack with errno %d, more than %d", errno, maxErrno)
	}
	return &answer{errno: syscall.Errno(errno), text: extendedAck(m)}
}

// extendedAck returns the kernel's explanation of an error, if there is one and
// it can be read.
func extendedAck(m *syscall.NetlinkMessage) string {
	if m.Header.Flags&unix.NLM_F_ACK_TLVS == 0 {
		return ""
	}
	tlvs := m.Data[4:]
	if m.Header.Type == unix.NLMSG_ERROR {
		// The request precedes the attributes: its header, and the rest unless capped.
		n := unix.SizeofNlMsghdr
		if len(tlvs) < n {
			return ""
		}
		if m.Header.Flags&unix.NLM_F_CAPPED == 0 {
			n = max(n, align(int(int32(binary.NativeEndian.Uint32(tlvs)))))
		}
		if len(tlvs) < n {
			return ""
		}
		tlvs = tlvs[n:]
	}
	for a, err := range attributes(tlvs) {
		if err == nil && a.typ == unix.NLMSGERR_ATTR_MSG {
			return printable(cString(a.data))
		}
	}
	return ""
}
