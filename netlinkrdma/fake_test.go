package netlinkrdma

import (
	"encoding/binary"
	"io/fs"
	"slices"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/netlinkrdma/internal/abi"
)

// request is a request to the fake kernel.
type request struct {
	cmd   int
	flags uint16
	seq   uint32
	attrs *message
}

// datagram is what one recvfrom returns.
type datagram []syscall.NetlinkMessage

// fakeKernel answers a request with datagrams.
type fakeKernel func(request) []datagram

// fakeSocket is a socket to a fakeKernel.
type fakeSocket struct {
	t      *testing.T
	kernel fakeKernel
	queue  []datagram
	from   uint32
	open   *int
}

func (s *fakeSocket) Send(req *nl.NetlinkRequest) error {
	msgs, err := syscall.ParseNetlinkMessage(req.Serialize())
	if err != nil || len(msgs) != 1 {
		s.t.Fatalf("request %x: %d messages, %v", req.Serialize(), len(msgs), err)
	}
	h := msgs[0].Header
	if client := h.Type >> abi.RDMA_NL_CLIENT_SHIFT; client != abi.RDMA_NL_NLDEV {
		s.t.Errorf("request for client %d, want RDMA_NL_NLDEV", client)
	}
	if h.Flags&unix.NLM_F_REQUEST == 0 || h.Flags&(unix.NLM_F_ACK|unix.NLM_F_DUMP) == 0 {
		s.t.Errorf("request with flags %#x, want NLM_F_REQUEST and one that makes the answer end", h.Flags)
	}
	m := parse(msgs[0].Data)
	if m.err != nil {
		s.t.Errorf("request %x: %v", msgs[0].Data, m.err)
	}
	s.queue = append(s.queue, s.kernel(request{int(h.Type & abi.RDMA_NL_OP_MASK), h.Flags, h.Seq, m})...)
	return nil
}

func (s *fakeSocket) Receive() ([]syscall.NetlinkMessage, *unix.SockaddrNetlink, error) {
	if len(s.queue) == 0 {
		return nil, nil, unix.EAGAIN // what nl makes of a timeout
	}
	d := s.queue[0]
	s.queue = s.queue[1:]
	return d, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: s.from}, nil
}

func (s *fakeSocket) Close() { *s.open-- }

// fakeClient talks to a fake kernel; sysfs is empty. At the end of the test all
// its sockets must be closed.
func fakeClient(t *testing.T, kernel fakeKernel) *client {
	t.Helper()
	open := new(int)
	t.Cleanup(func() {
		if *open != 0 {
			t.Errorf("%d sockets left open", *open)
		}
	})
	return &client{
		dial: func() (socket, error) {
			*open++
			return &fakeSocket{t: t, kernel: kernel, open: open}, nil
		},
		sysfs: fstest.MapFS{},
	}
}

// deafClient cannot even open a socket.
func deafClient(errno error, sysfs fs.FS) *client {
	return &client{dial: func() (socket, error) { return nil, errno }, sysfs: sysfs}
}

// data is a message with a payload, as the kernel sends it: all have type GET.
func (r request) data(flags uint16, attrs ...[]byte) syscall.NetlinkMessage {
	const typ = abi.RDMA_NL_NLDEV<<abi.RDMA_NL_CLIENT_SHIFT | abi.RDMA_NLDEV_CMD_GET
	return syscall.NetlinkMessage{
		Header: syscall.NlMsghdr{Type: typ, Flags: flags, Seq: r.seq},
		Data:   slices.Concat(attrs...),
	}
}

// end is NLMSG_ERROR with that errno, or NLMSG_DONE if the request was a dump.
func (r request) end(errno syscall.Errno) syscall.NetlinkMessage {
	typ := uint16(unix.NLMSG_ERROR)
	if r.flags&unix.NLM_F_DUMP != 0 {
		typ = unix.NLMSG_DONE
	}
	return syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: typ, Seq: r.seq}, Data: u32(uint32(-int32(errno)))}
}

// one is the answer with a single reply.
func (r request) one(attrs ...[]byte) []datagram {
	return []datagram{{r.data(0, attrs...)}, {r.end(0)}}
}

// all is the answer to a dump.
func (r request) all(replies ...[]byte) []datagram {
	var d datagram
	for _, b := range replies {
		d = append(d, r.data(unix.NLM_F_MULTI, b))
	}
	return []datagram{d, {r.end(0)}}
}

// refuse is the answer that consists of an errno.
func (r request) refuse(errno syscall.Errno) []datagram { return []datagram{{r.end(errno)}} }

func u32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

func u64(v uint64) []byte { return binary.NativeEndian.AppendUint64(nil, v) }

func cstr(s string) []byte { return append([]byte(s), 0) }

// nla is one attribute with its padding.
func nla(typ int, payload []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(unix.NLA_HDRLEN+len(payload)))
	b = binary.NativeEndian.AppendUint16(b, uint16(typ))
	b = append(b, payload...)
	return append(b, make([]byte, align(len(payload))-len(payload))...)
}

// deviceReply has what the kernel says of a device at least.
func deviceReply(index uint32, name string, ports uint32, more ...[]byte) []byte {
	return slices.Concat(
		nla(abi.RDMA_NLDEV_ATTR_DEV_INDEX, u32(index)),
		nla(abi.RDMA_NLDEV_ATTR_DEV_NAME, cstr(name)),
		nla(abi.RDMA_NLDEV_ATTR_PORT_INDEX, u32(ports)),
		nla(abi.RDMA_NLDEV_ATTR_NODE_GUID, u64(0x020000fffe000000+uint64(index))),
		nla(abi.RDMA_NLDEV_ATTR_DEV_NODE_TYPE, []byte{1}),
		slices.Concat(more...))
}

// portReply has what the kernel says of a port at least.
func portReply(name string, num uint32, more ...[]byte) []byte {
	return slices.Concat(
		nla(abi.RDMA_NLDEV_ATTR_DEV_NAME, cstr(name)),
		nla(abi.RDMA_NLDEV_ATTR_PORT_INDEX, u32(num)),
		nla(abi.RDMA_NLDEV_ATTR_PORT_STATE, []byte{4}),
		nla(abi.RDMA_NLDEV_ATTR_PORT_PHYS_STATE, []byte{5}),
		slices.Concat(more...))
}

func charDevReply(name string, more ...[]byte) []byte {
	return slices.Concat(
		nla(abi.RDMA_NLDEV_ATTR_CHARDEV, u64(0xe7c1)), // 231:193
		nla(abi.RDMA_NLDEV_ATTR_CHARDEV_ABI, u64(2)),
		nla(abi.RDMA_NLDEV_ATTR_CHARDEV_NAME, cstr(name)),
		slices.Concat(more...))
}
