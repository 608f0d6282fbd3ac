//go:build linux

package udp

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sendmmsg sends messages and returns how many the kernel took. If it took none, errno says why.
func sendmmsg(fd uintptr, messages []unix.Mmsghdr) (n int, errno syscall.Errno) {
	r, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(&messages[0])), uintptr(len(messages)), 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(r), 0
}

// sendto sends the only buffer of a message that has no control messages. The kernel copies fewer structs
// than for sendmmsg.
func sendto(fd uintptr, m *unix.Mmsghdr) syscall.Errno {
	h := &m.Hdr
	_, _, errno := unix.Syscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(h.Iov.Base)), uintptr(h.Iov.Len), 0, uintptr(unsafe.Pointer(h.Name)), uintptr(h.Namelen))
	return errno
}

// recvmmsg receives messages, without waiting, and returns how many.
func recvmmsg(fd uintptr, messages []unix.Mmsghdr) (n int, errno syscall.Errno) {
	r, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&messages[0])), uintptr(len(messages)), unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(r), 0
}

func newSender(t *mmsg) *sender {
	s := &sender{t: t}
	s.once = s.try
	s.wait = func(fd uintptr) bool {
		s.try(fd)
		return s.errno != unix.EAGAIN
	}
	for i := range s.messages {
		h := &s.messages[i].Hdr
		h.Name = (*byte)(unsafe.Pointer(&s.names[i]))
		h.Iov = &s.vectors[i]
		h.SetIovlen(1)
		h.Control = &s.controls[i][0]
	}
	return s
}

// set fills message i: destination, data, fields of the IP header, and the size of its segments if it
// has some.
func (s *sender) set(i int, to netip.AddrPort, data []byte, ip IP, segment int) {
	h := &s.messages[i].Hdr
	h.Namelen = s.t.putAddr(&s.names[i], to)
	s.vectors[i].Base = &data[0]
	s.vectors[i].SetLen(len(data))
	control := s.controls[i][:]
	n := 0
	if ip.TrafficClass != 0 {
		n += putControl(control[n:], s.t.level(), s.t.pick(unix.IP_TOS, unix.IPV6_TCLASS), 4, uint64(ip.TrafficClass))
	}
	if ip.HopLimit != 0 && (ip.HopLimit != defaultHopLimit || to.Addr().IsMulticast()) {
		n += putControl(control[n:], s.t.level(), s.t.pick(unix.IP_TTL, unix.IPV6_HOPLIMIT), 4, uint64(ip.HopLimit))
	}
	if segment != 0 {
		n += putControl(control[n:], unix.IPPROTO_UDP, unix.UDP_SEGMENT, 2, uint64(segment))
	}
	h.SetControllen(n)
}

func (t *mmsg) level() int32 { return t.pick(unix.IPPROTO_IP, unix.IPPROTO_IPV6) }

// pick returns the number for the socket's family.
func (t *mmsg) pick(v4, v6 int32) int32 {
	if t.is4 {
		return v4
	}
	return v6
}

// putControl writes a control message with a number of 2 or 4 bytes, and returns its size.
func putControl(b []byte, level, typ int32, size int, value uint64) int {
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	h.Level, h.Type = level, typ
	h.SetLen(unix.CmsgLen(size))
	data := b[unix.CmsgLen(0):]
	if size == 2 {
		binary.NativeEndian.PutUint16(data, uint16(value))
	} else {
		binary.NativeEndian.PutUint32(data, uint32(value))
	}
	return unix.CmsgSpace(size)
}

// putAddr writes an address as the kernel wants it and returns its size. A link-local address is one of
// the socket's link.
func (t *mmsg) putAddr(sa *unix.RawSockaddrInet6, a netip.AddrPort) uint32 {
	if t.is4 {
		sa4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(sa))
		*sa4 = unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: a.Addr().As4()}
		putPort(&sa4.Port, a.Port())
		return unix.SizeofSockaddrInet4
	}
	*sa = unix.RawSockaddrInet6{Family: unix.AF_INET6, Addr: a.Addr().As16()}
	putPort(&sa.Port, a.Port())
	if a.Addr().IsLinkLocalUnicast() || a.Addr().IsLinkLocalMulticast() {
		sa.Scope_id = t.zone
	}
	return unix.SizeofSockaddrInet6
}

// addrOf returns the address that the kernel wrote, without zone.
func addrOf(sa *unix.RawSockaddrInet6) netip.AddrPort {
	if sa.Family == unix.AF_INET {
		sa4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(sa))
		return netip.AddrPortFrom(netip.AddrFrom4(sa4.Addr), portOf(&sa4.Port))
	}
	return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), portOf(&sa.Port))
}

// Ports are in network order.
func putPort(p *uint16, port uint16) {
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(p))[:], port)
}

func portOf(p *uint16) uint16 { return binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(p))[:]) }

// init allocates the buffers of a receiver.
func (r *receiver) init(t *mmsg, to netip.AddrPort, gro bool) {
	n := plainBuffers
	r.t, r.to, r.size = t, to, maxPacket
	if gro {
		n, r.size = groBuffers, groBufferSize
	}
	r.buffers = make([]byte, bufferOffset+n*r.size)[bufferOffset:]
	r.messages = make([]unix.Mmsghdr, n)
	r.names = make([]unix.RawSockaddrInet6, n)
	r.vectors = make([]unix.Iovec, n)
	r.controls = make([][receiveCtl]byte, n)
	r.wait = r.serve
	r.look = func(fd uintptr) { r.found = r.receive(fd) }
	for i := range r.messages {
		r.vectors[i].Base = &r.buffers[i*r.size]
		r.vectors[i].SetLen(r.size)
		h := &r.messages[i].Hdr
		h.Name = (*byte)(unsafe.Pointer(&r.names[i]))
		h.Iov = &r.vectors[i]
		h.SetIovlen(1)
		h.Control = &r.controls[i][0]
		r.reset(i)
	}
}

// reset makes message i ready to be received into again.
func (r *receiver) reset(i int) {
	h := &r.messages[i].Hdr
	h.Namelen = unix.SizeofSockaddrInet6
	h.SetControllen(receiveCtl)
	h.Flags = 0
}

// dropsOf returns how many packets the kernel dropped because the socket's receive buffer was full.
func dropsOf(fd int) uint64 {
	var info [9]uint32 // SK_MEMINFO_VARS
	const drops = 8    // SK_MEMINFO_DROPS
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO, uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0 // before Linux 4.12
	}
	return uint64(info[drops])
}
