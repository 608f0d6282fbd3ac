package udp

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// Buffers of a receiver.
const (
	groBuffers    = 32      // with UDP_GRO
	groBufferSize = 1 << 16 // one of them holds a buffer of segments
	plainBuffers  = 64      // without, for one packet each
	receiveCtl    = 4 * 24  // bytes of control messages: traffic class, hop limit, size of segments

	// bufferOffset is where buffers begin in a cache line. The payload of a SEND begins with the next one then, as most
	// receives do: between places that differ, a copy of 32 KiB takes half as long again.
	bufferOffset = 64 - wire.BTHSize
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

	handler Handler // of Socket.Receive
	done    Done    // of Socket.Receive

	wait  func(fd uintptr) bool // persistent closure for RawConn.Read
	look  func(fd uintptr)      // persistent closure for RawConn.Control
	found bool                  // guarded by turn: look has received something

	empty atomic.Uint64 // calls that have found nothing
}

// receive stays in one RawConn.Read for all batches. Each new one would have to begin with a call that usually
// finds nothing, since it forgets which packets the runtime's poller has reported. Within one, a batch that
// leaves buffers unused was all there is, and the next packet ends the wait: epoll is edge-triggered.
func (t *mmsg) receive(h Handler, done Done) error {
	t.r.handler, t.r.done = h, done
	if t.raw.Read(t.r.wait) != nil || t.closed.Load() {
		return net.ErrClosed
	}
	return nil
}

func (t *mmsg) poll(h Handler, done Done, wait bool) bool {
	r := &t.r
	if wait {
		r.turn.Lock()
	} else if !r.turn.TryLock() {
		return false
	}
	defer r.turn.Unlock()
	r.found = false
	if t.raw.Control(r.look) != nil || !r.found {
		return false
	}
	t.handle(h, done)
	return !t.closed.Load()
}

// handle gives the packets of a batch to the handler, and reports whether another batch is wanted. The caller
// holds turn.
func (t *mmsg) handle(h Handler, done Done) (more bool) {
	r := &t.r
	t.c.receiveCalls.Add(1)
	if r.got == 0 {
		t.c.receiveFailures.Add(1)
		return done != nil
	}
	for i := range r.got {
		if t.closed.Load() {
			return false
		}
		r.deliver(i, h)
	}
	return done != nil && done()
}

// serve handles batches until there are no more packets, and reports whether no other batch is wanted.
func (r *receiver) serve(fd uintptr) (end bool) {
	r.turn.Lock()
	defer r.turn.Unlock()
	for r.receive(fd) {
		if !r.t.handle(r.handler, r.done) {
			return true
		}
		if 0 < r.got && r.got < len(r.messages) {
			break
		}
	}
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
			r.empty.Add(1)
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
		r.t.c.deliver(r.t.peers, h, from, data[:n:n], meta)
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
