package rsocket

import (
	"encoding/binary"
	"math"

	"github.com/goverbs/goverbs/cm/internal/protocol"
	"github.com/goverbs/goverbs/uverbs"
)

// state is what a connection knows about its two directions. Its methods use neither the device nor
// locks.
type state struct {
	iwarp bool
	order binary.ByteOrder // of the peer's host

	// Receiving.
	first       []byte   // the buffer that the private data has announced; shorter when data was read
	firstLeft   int      // bytes of it that have not arrived
	recvBuf     []byte   // two halves, which are announced later
	lengths     []uint32 // ring: the lengths of the messages with data that are not read
	head        int      // index of the first one in lengths
	waiting     int      // how many there are
	readAt      int      // offset of the next byte to read
	granted     int      // bytes that the peer may still write
	free        int      // bytes that were read and not granted again
	grantAt     int      // offset of the half to grant next
	received    uint16   // messages with data that were read
	creditsAt   uint16   // number of the message at which to give credits
	eof         bool     // the peer sends no more
	gone        bool     // the peer has disconnected, or both sides have ended
	peerClosed  bool     // the peer has said that it neither sends nor receives
	writeClosed bool     // this side sends no more
	violation   error    // how the peer has violated the protocol

	// Sending.
	table          []byte  // where the peer announces its buffers, then its mappings
	nextEntry      int     // entry of table with the next buffer
	announced      int     // entries of table that the peer has announced; on iWARP only whether there were any
	remote         segment // the rest of the peer's buffer
	sent           uint16  // messages with data
	sendUntil      uint16  // number of the message from which on there are no credits
	mostCredits    uint16
	remoteTable    segment   // the peer's table
	remoteEntry    int       // its entry to write next
	mappings       []mapping // memory that the peer has mapped, by index
	remoteMappings int       // how many mappings the peer has room for
}

// init prepares the state of a connection that is not established. first is a buffer for the first data.
func (s *state) init(mappings int, table, first []byte) {
	s.order = binary.LittleEndian
	s.table, s.first = table, first
	s.mappings = make([]mapping, mappings)
	s.granted, s.firstLeft = len(first), len(first)
	s.nextEntry, s.remoteEntry = 1, 1
}

// grow gives an established connection the buffer for data.
func (s *state) grow(credits int, recvBuf []byte) {
	s.recvBuf, s.free = recvBuf, len(recvBuf)
	s.lengths = make([]uint32, credits)
	s.creditsAt = uint16(credits / 2)
}

// connect takes the private data of the peer.
func (s *state) connect(peer connData) {
	if peer.bigEndian {
		s.order = binary.BigEndian
	}
	s.mostCredits, s.sendUntil = peer.credits, peer.credits
	s.remote, s.remoteTable = peer.buffer, peer.table
	s.remoteEntry %= int(peer.table.length)
	s.remoteMappings = peer.mappings
}

// receive handles a receive that has completed. On iWARP the message is in number. After a violation it
// handles nothing more.
func (s *state) receive(wc *uverbs.WC, number []byte) error {
	if s.violation != nil {
		return s.violation
	}
	msg, err := s.parse(wc, number)
	if err == nil {
		err = s.handle(msg, wc.ByteLen)
	}
	s.violation = err
	return err
}

// parse returns the message of a receive that has completed.
func (s *state) parse(wc *uverbs.WC, number []byte) (uint32, error) {
	imm := wc.Flags&uverbs.WCWithImm != 0
	switch {
	case !s.iwarp && wc.Opcode == uverbs.WCRecvRDMAWrite && imm:
		return wc.Imm, nil
	case s.iwarp && wc.Opcode == uverbs.WCRecv && !imm && wc.ByteLen == messageSize:
		return s.order.Uint32(number), nil
	}
	return 0, protocol.Violation("the peer has sent %d bytes by %s, which is no message of rsocket", wc.ByteLen, wc.Opcode)
}

// handle handles a message that has come with a WRITE of the given number of bytes. On iWARP that is
// not known, and the number has no meaning.
func (s *state) handle(msg uint32, written uint32) error {
	switch op, value := msg>>opShift, msg&valueMask; op {
	case opData:
		return s.handleData(value, written)
	case opCredits:
		return s.handleCredits(uint16(value), written)
	case opMapping:
		const indexMask = 1<<16 - 1
		return s.handleMapping(value&indexMask, written)
	case opControl:
		switch value {
		case controlShutdown:
			s.eof = true
			s.gone = s.gone || s.writeClosed
		case controlDisconnect:
			s.eof, s.gone, s.peerClosed = true, true, true
		default:
			return protocol.Violation("the peer has sent control message %d, want %d or %d", value, controlDisconnect, controlShutdown)
		}
		return nil
	default:
		return protocol.Violation("the peer has sent a message of type %d, want %d, %d, %d or %d", op, opData, opCredits, opMapping, opControl)
	}
}

// handleData handles a message that says how many bytes of data the peer has written.
func (s *state) handleData(length, written uint32) error {
	switch {
	case s.eof:
		return protocol.Violation("the peer has sent data after its end")
	case !s.iwarp && length != written:
		return protocol.Violation("the peer says that it has written %d bytes of data, and its WRITE has %d", length, written)
	case int(length) > s.granted:
		return protocol.Violation("the peer says that it has written %d bytes, and has room for %d", length, s.granted)
	case s.waiting == len(s.lengths):
		return protocol.Violation("the peer has sent more than the %d messages that it has credits for", len(s.lengths))
	}
	if length == 0 { // nothing to read
		s.received++
		return nil
	}
	s.granted -= int(length)
	s.firstLeft -= min(s.firstLeft, int(length))
	s.lengths[(s.head+s.waiting)%len(s.lengths)] = length
	s.waiting++
	return nil
}

// handleCredits handles a message that gives credits, and may announce a buffer.
func (s *state) handleCredits(until uint16, written uint32) error {
	if n := until - s.sent; n > s.mostCredits {
		return protocol.Violation("the peer gives credits for %d messages, and said at first that it has %d", n, s.mostCredits)
	}
	s.sendUntil = until
	switch {
	case s.iwarp:
		s.announced = 1
	case written == segmentSize:
		if s.announced++; s.announced > tableEntries {
			return protocol.Violation("the peer has announced %d buffers that are not used yet, and the table has %d entries", s.announced, tableEntries)
		}
	case written > 0:
		return protocol.Violation("the peer has announced a buffer with %d bytes, want %d", written, segmentSize)
	}
	return s.takeBuffer()
}

// takeBuffer takes the peer's next buffer from the table if the last one is used up. It looks only at
// entries whose message has arrived, since the device may be writing into another one. On iWARP a
// message does not say whether it follows an entry; there, takeBuffer looks twice.
func (s *state) takeBuffer() error {
	if s.remote.length > 0 || s.announced == 0 {
		return nil
	}
	entry := s.table[s.nextEntry*segmentSize:][:segmentSize]
	next := getSegment(entry, binary.LittleEndian)
	if s.iwarp && (next.length == 0 || next != getSegment(entry, binary.LittleEndian)) {
		return nil
	}
	clear(entry)
	s.nextEntry = (s.nextEntry + 1) % tableEntries
	if !s.iwarp {
		s.announced--
	}
	switch {
	case next.length == 0:
		return protocol.Violation("the peer has announced a buffer of 0 bytes, or has written it into another entry of the table")
	case next.wraps():
		return protocol.Violation("the peer has announced a buffer of %d bytes at %#x, which goes beyond the largest address", next.length, next.addr)
	}
	s.remote = next
	return nil
}

// mayWrite reports whether the peer has credits and a buffer for data.
func (s *state) mayWrite() bool {
	return s.sent != s.sendUntil && s.remote.length > 0
}

// owedNothing reports whether the peer has given all credits that it gives for what was sent so far. It gives some when
// half of its buffer is free or half of its credits are used up. If it has announced another buffer behind the one
// that is used, less than half is free; so it is when its program has read everything.
func (s *state) owedNothing() bool {
	next := getSegment(s.table[s.nextEntry*segmentSize:], binary.LittleEndian)
	return s.remote.length > 0 && next.length > 0 && s.sendUntil-s.sent > s.mostCredits-s.mostCredits/2
}

// advance records that n bytes are sent, for which there must be room in the peer's buffer. It
// returns where they go.
func (s *state) advance(n int) segment {
	to := segment{s.remote.addr, s.remote.key, uint32(n)}
	s.sent++
	s.remote.addr += uint64(n)
	s.remote.length -= uint32(n)
	return to
}

// read copies data that has arrived into p.
func (s *state) read(p []byte) (n int) {
	for n < len(p) && s.waiting > 0 {
		left := &s.lengths[s.head]
		k := 0
		if len(s.first) > 0 {
			k = copy(p[n:], s.first[:min(len(s.first), int(*left))])
			s.first = s.first[k:]
		} else {
			k = copy(p[n:], s.recvBuf[s.readAt:min(len(s.recvBuf), s.readAt+int(*left))])
			s.readAt = (s.readAt + k) % len(s.recvBuf)
			s.free += k
		}
		n += k
		if *left -= uint32(k); *left == 0 {
			s.head = (s.head + 1) % len(s.lengths)
			s.waiting--
			s.received++
		}
	}
	return n
}

// owesCredits reports whether it is time to tell the peer that it may send more, and whether there is
// also a buffer to announce.
func (s *state) owesCredits() (due, buffer bool) {
	buffer = s.free >= len(s.recvBuf)/2 && (s.firstLeft == 0 || s.granted == s.firstLeft)
	return (buffer || int16(s.received-s.creditsAt) >= 0) && !s.gone, buffer
}

// credit returns the message that gives all credits.
func (s *state) credit() uint32 {
	s.creditsAt = s.received + uint16(len(s.lengths)/2)
	return message(opCredits, uint32(s.received+uint16(len(s.lengths))))
}

// grant grants the next half of the buffer. It returns the offset of that half, and the entry in the
// peer's table that announces it.
func (s *state) grant() (offset int, entry uint64) {
	half := len(s.recvBuf) / 2
	offset = s.grantAt
	s.free -= half
	s.granted += half
	s.grantAt = half - s.grantAt
	entry = s.remoteTable.addr + uint64(s.remoteEntry)*segmentSize
	s.remoteEntry = (s.remoteEntry + 1) % int(s.remoteTable.length)
	return offset, entry
}

// wraps reports whether a segment goes beyond the largest address.
func (s segment) wraps() bool {
	return s.length > 0 && s.addr > math.MaxUint64-uint64(s.length-1)
}
