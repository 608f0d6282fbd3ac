package udp

import (
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// Limits of the kernel for a buffer of segments.
const (
	maxSegments     = 64    // UDP_MAX_SEGMENTS before Linux 6.9
	maxSegmentBytes = 65507 // a UDP datagram over IPv4
)

// A sender has the memory that one call of send needs. The kernel reads it through pointers, which
// newSender sets once.
type sender struct {
	t        *mmsg
	messages [BatchPackets]unix.Mmsghdr
	names    [BatchPackets]unix.RawSockaddrInet6
	vectors  [BatchPackets]unix.Iovec
	controls [BatchPackets][sendControl]byte
	ends     [BatchPackets]int // index in the batch of the packet behind the message

	next, end int           // messages[next:end] are sent next
	errno     syscall.Errno // the kernel's answer to messages[next]
	calls     uint64

	once func(fd uintptr)           // persistent closures: no allocation for each call
	wait func(fd uintptr) (ok bool) // for RawConn.Write
}

// sendControl is the size of control messages: traffic class, hop limit and size of segments.
const sendControl = 3 * 24

func (t *mmsg) acquire() *sender {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.senders); n > 0 {
		s := t.senders[n-1]
		t.senders = t.senders[:n-1]
		return s
	}
	return newSender(t)
}

func (t *mmsg) release(s *sender) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.senders = append(t.senders, s)
}

func (t *mmsg) send(b *Batch) error {
	s := t.acquire()
	defer t.release(s)
	return s.send(b)
}

// send sends a batch. at is the first packet that is not sent yet. The kernel has refused to send packets
// before single as segments, so they go one by one.
func (s *sender) send(b *Batch) error {
	var first *SendError
	single, suspect := 0, false // suspect: segments are the reason
	for at := 0; at < b.Len(); {
		if to, data := b.Packet(at); s.t.wrongFamily(to.Addr()) {
			first = firstError(first, s.t.c.refused(to, len(data), errAFNoSupport))
			at++
			continue
		}
		s.build(b, at, single)
		if err := s.transmit(); err != nil {
			return err
		}
		start := at
		if s.next > 0 {
			at = s.ends[s.next-1]
		}
		s.count(b, start, at)
		if suspect && at >= single {
			suspect = false
			s.t.gso.Store(false) // the link cannot compute checksums of segments, or the like
		}
		if s.next == s.end {
			continue
		}
		if end := s.ends[s.next]; end-at > 1 {
			s.t.c.gsoFB.Add(1)
			single, suspect = end, s.errno != unix.ENOBUFS && s.errno != unix.ENOMEM
			continue
		}
		to, data := b.Packet(at)
		if s.errno == unix.EMSGSIZE && len(data) > maxPacket {
			s.t.peers.tooLong.Store(true) // the QP sends it again as packets of its MTU
		}
		first = firstError(first, s.t.c.refused(to, len(data), s.errno))
		suspect = false
		at++
	}
	if first != nil {
		return first
	}
	return nil
}

// count counts packets [from, to) of a batch as sent.
func (s *sender) count(b *Batch, from, to int) {
	bytes := 0
	for i := from; i < to; i++ {
		_, data := b.Packet(i)
		bytes += len(data)
	}
	s.t.c.sent.Add(uint64(to - from))
	s.t.c.sentBytes.Add(uint64(bytes))
	s.t.c.sendCalls.Add(s.calls)
	s.calls = 0
}

// build makes messages of the packets of a batch from at on, and seals them. If some of these must go one
// by one, it stops behind them. It also stops at a packet that the socket cannot send because of its
// destination.
func (s *sender) build(b *Batch, at, single int) {
	gso := s.t.gso.Load()
	s.next, s.end, s.errno = 0, 0, 0
	limit := b.Len()
	if at < single {
		gso, limit = false, single
	}
	for at < limit {
		n := 1
		if gso {
			n = segments(b, at)
		}
		to, data := b.Packet(at)
		if s.t.wrongFamily(to.Addr()) {
			return
		}
		bytes := 0
		marks := s.t.peers.marks(to, n)
		for k := range n {
			// Segment k of a buffer gets ID k, and a packet of its own ID 0.
			_, d := b.Packet(at + k)
			b.seal(at+k, s.t.self, to, uint16(k), marks)
			bytes += len(d)
		}
		segment := 0
		if n > 1 {
			segment = len(data)
		}
		s.set(s.end, to, b.span(at, bytes), b.IP(at), segment)
		at += n
		s.ends[s.end] = at
		s.end++
	}
}

// segments returns how many packets from at on can be segments of one buffer: they go to one
// destination and are of one size, but for the last one, which may be smaller.
func segments(b *Batch, at int) int {
	to, data := b.Packet(at)
	size, bytes := len(data), len(data)
	n := 1
	for at+n < b.Len() && n < maxSegments {
		next, data := b.Packet(at + n)
		if next != to || len(data) > size || bytes+len(data) > maxSegmentBytes || b.IP(at+n) != b.IP(at) {
			break
		}
		bytes += len(data)
		n++
		if len(data) < size {
			break
		}
	}
	return n
}

// transmit sends messages[next:end] and advances next. It waits while the send buffer is full. If the
// kernel refuses messages[next], errno is set. It returns net.ErrClosed if the socket is closed.
func (s *sender) transmit() error {
	if err := s.t.raw.Control(s.once); err != nil {
		return net.ErrClosed
	}
	if s.errno != unix.EAGAIN {
		return nil
	}
	if err := s.t.raw.Write(s.wait); err != nil {
		return net.ErrClosed
	}
	return nil
}

// try sends messages until all are sent, the kernel refuses one or the send buffer is full.
func (s *sender) try(fd uintptr) {
	for s.errno = 0; s.next < s.end; {
		n, errno := s.call(fd)
		s.calls++
		switch errno {
		case 0:
			s.next += n
		case unix.EINTR:
		default:
			s.errno = errno
			return
		}
	}
}

// call sends as many messages as the kernel takes.
func (s *sender) call(fd uintptr) (n int, errno syscall.Errno) {
	if m := &s.messages[s.next]; s.end-s.next == 1 && m.Hdr.Controllen == 0 {
		return 1, sendto(fd, m)
	}
	return sendmmsg(fd, s.messages[s.next:s.end])
}

// wrongFamily reports whether packets to an address cannot be sent from the socket.
func (t *mmsg) wrongFamily(to netip.Addr) bool {
	return t.is4 != (to.Is4() || to.Is4In6())
}
