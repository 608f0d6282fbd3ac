package udp

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Buffers of a receiver.
const (
	groBuffers    = 32      // with UDP_GRO
	groBufferSize = 1 << 16 // one of them holds a buffer of segments
	plainBuffers  = 64      // without, for one packet each
	receiveCtl    = 4 * 24  // bytes of control messages: traffic class, hop limit, size of segments
)

// A receiver has the memory that receive needs. The kernel writes to it through pointers, which init
// sets once.
type receiver struct {
	t        *mmsg
	to       netip.AddrPort
	size     int // of a buffer
	buffers  []byte
	messages []unix.Mmsghdr
	names    []unix.RawSockaddrInet6
	vectors  []unix.Iovec
	controls [][receiveCtl]byte

	turn  sync.Mutex    // held from the receiving of a batch until it was handled
	got   int           // guarded by turn: messages[:got] are received
	errno syscall.Errno // guarded by turn: the kernel's answer if got is 0

	wait  func(fd uintptr) bool // persistent closure for RawConn.Read
	look  func(fd uintptr)      // persistent closure for RawConn.Control
	found bool                  // guarded by turn: look has received something
}

func (t *mmsg) receive(h Handler, done func()) error {
	r := &t.r
	if err := t.raw.Read(r.wait); err != nil {
		return net.ErrClosed
	}
	defer r.turn.Unlock() // which try has locked
	return t.handle(h, done)
}

func (t *mmsg) poll(h Handler, done func()) bool {
	r := &t.r
	if !r.turn.TryLock() {
		return false
	}
	defer r.turn.Unlock()
	r.found = false
	if t.raw.Control(r.look) != nil || !r.found {
		return false
	}
	return t.handle(h, done) == nil
}

// handle gives the packets of a batch to the handler. The caller holds turn.
func (t *mmsg) handle(h Handler, done func()) error {
	r := &t.r
	t.c.receiveCalls.Add(1)
	if r.got == 0 {
		t.c.receiveFailures.Add(1)
		return nil
	}
	for i := range r.got {
		if t.closed.Load() {
			return net.ErrClosed // the handler has closed the socket
		}
		r.deliver(i, h)
	}
	if done != nil {
		done()
	}
	return nil
}

// try takes the turn and receives what is there. It reports false, without the turn, if nothing is.
func (r *receiver) try(fd uintptr) bool {
	r.turn.Lock()
	if r.receive(fd) {
		return true
	}
	r.turn.Unlock()
	return false
}

// receive receives what is there, and reports false if nothing is. The caller holds turn.
func (r *receiver) receive(fd uintptr) bool {
	for i := range r.messages[:max(r.got, 1)] {
		r.reset(i)
	}
	for {
		n, errno := recvmmsg(fd, r.messages)
		switch errno {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			r.got = 0
			return false
		}
		r.got, r.errno = n, errno
		return true
	}
}

// deliver gives the packets of message i to the handler.
func (r *receiver) deliver(i int, h Handler) {
	m := &r.messages[i]
	if m.Hdr.Flags&unix.MSG_TRUNC != 0 {
		r.t.c.truncated.Add(1)
		return
	}
	from := addrOf(&r.names[i])
	meta, segment := r.meta(i)
	data := r.buffers[i*r.size:][:m.Len]
	if len(data) == 0 {
		r.t.c.short.Add(1)
	}
	if segment <= 0 {
		segment = len(data)
	}
	for len(data) > 0 {
		n := min(segment, len(data))
		r.t.c.deliver(h, from, data[:n:n], meta)
		data = data[n:]
	}
}

// meta reads the control messages of message i.
func (r *receiver) meta(i int) (meta Meta, segment int) {
	meta.To = r.to
	rest := r.controls[i][:r.messages[i].Hdr.Controllen]
	for len(rest) > 0 {
		h, data, next, err := unix.ParseOneSocketControlMessage(rest)
		if err != nil {
			return meta, segment // cut off: the kernel sends nothing unasked for
		}
		switch value := intOf(data); {
		case h.Level == unix.IPPROTO_UDP && h.Type == unix.UDP_GRO:
			segment = value
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TOS, h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_TCLASS:
			meta.TrafficClass = uint8(value)
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TTL, h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_HOPLIMIT:
			meta.HopLimit = uint8(value)
		}
		rest = next
	}
	return meta, segment
}

// intOf returns the number in a control message: an int, or the one byte of IP_TOS.
func intOf(data []byte) int {
	switch {
	case len(data) >= 4:
		return int(int32(binary.NativeEndian.Uint32(data)))
	case len(data) > 0:
		return int(data[0])
	}
	return 0
}
