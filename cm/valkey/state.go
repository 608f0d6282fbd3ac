package valkey

import (
	"github.com/goverbs/goverbs/cm/internal/protocol"
	"github.com/goverbs/goverbs/uverbs"
)

// maxAsked is how many questions for features a peer may ask before it gets the answers.
const maxAsked = 8

// state is what a connection knows about its two directions. Its methods use neither the device nor
// locks.
type state struct {
	server bool // this side has accepted the connection

	// Receiving. The counts are of bytes since the beginning.
	recvBuf   []byte           // two halves, of which the peer may write one at a time
	granted   uint64           // that the peer was allowed to write
	arrived   uint64           // that the peer has written
	consumed  uint64           // that the program has read
	asked     [maxAsked]uint16 // which features the peer has asked for
	asks      int              // how many of them need an answer
	violation error            // how the peer has violated the protocol

	// Sending.
	remote segment // the rest of the peer's buffer
}

// receive handles a receive that has completed, with the memory of the receive. After a violation it
// handles nothing more.
func (s *state) receive(wc *uverbs.WC, memory []byte) error {
	if s.violation == nil {
		s.violation = s.handle(wc, memory)
	}
	return s.violation
}

// handle handles a receive.
func (s *state) handle(wc *uverbs.WC, memory []byte) error {
	imm := wc.Flags&uverbs.WCWithImm != 0
	switch {
	case wc.Opcode == uverbs.WCRecvRDMAWrite && imm:
		return s.handleData(wc.Imm, wc.ByteLen)
	case wc.Opcode == uverbs.WCRecv && !imm && int(wc.ByteLen) <= len(memory):
		c, err := parseCommand(memory[:wc.ByteLen])
		if err != nil {
			return err
		}
		return s.handleCommand(c)
	}
	return protocol.Violation("the peer has sent %d bytes by %s, which is no message of Valkey's protocol", wc.ByteLen, wc.Opcode)
}

// handleData handles a message that says how many bytes of data the peer has written.
func (s *state) handleData(length, written uint32) error {
	switch room := s.granted - s.arrived; {
	case length != written:
		return protocol.Violation("the peer says that it has written %d bytes of data, and its WRITE has %d", length, written)
	case uint64(length) > room:
		return protocol.Violation("the peer says that it has written %d bytes, and has room for %d", length, room)
	}
	s.arrived += uint64(length)
	return nil
}

// handleCommand handles a command.
func (s *state) handleCommand(c command) error {
	switch c.op {
	case getServerFeature:
		switch {
		case !s.server:
			return protocol.Violation("the peer has sent %s, and this side has not asked for features", c.op)
		case s.asks == maxAsked:
			return protocol.Violation("the peer has sent %s %d times without waiting for an answer", c.op, maxAsked+1)
		}
		s.asked[s.asks] = c.selects
		s.asks++
	case setClientFeature:
		switch {
		case !s.server:
			return protocol.Violation("the peer has sent %s, which only clients send", c.op)
		case c.features != 0:
			return protocol.Violation("the peer wants to use the features %#x, and this side has offered none", c.features)
		}
	case registerXferMemory:
		return s.handleBuffer(c.buffer)
	}
	return nil
}

// handleBuffer handles the announcement of a buffer of the peer.
func (s *state) handleBuffer(b segment) error {
	switch {
	case s.remote.length > 0:
		return protocol.Violation("the peer has announced a buffer while %d bytes of its last one are not used", s.remote.length)
	case b.length == 0:
		return protocol.Violation("the peer has announced a buffer of 0 bytes")
	case b.wraps():
		return protocol.Violation("the peer has announced a buffer of %d bytes at %#x, which goes beyond the largest address", b.length, b.addr)
	}
	s.remote = b
	return nil
}

// answer returns the answer to the first open question for features. There must be one.
func (s *state) answer() command {
	c := command{op: getServerFeature, selects: s.asked[0]}
	copy(s.asked[:], s.asked[1:s.asks])
	s.asks--
	return c
}

// half is the size of a half of the buffer, which is what is announced.
func (s *state) half() uint64 { return uint64(len(s.recvBuf) / 2) }

// owesBuffer reports whether to announce the next half: the peer has used all of the last one, and the
// program has read all of the next one.
func (s *state) owesBuffer() bool {
	return s.arrived == s.granted && s.granted-s.consumed <= s.half()
}

// grant grants the next half of the buffer, and returns its offset.
func (s *state) grant() (offset int) {
	offset = int(s.granted % uint64(len(s.recvBuf)))
	s.granted += s.half()
	return offset
}

// unread returns how many bytes can be read.
func (s *state) unread() int { return int(s.arrived - s.consumed) }

// read copies data that has arrived into p.
func (s *state) read(p []byte) (n int) {
	for n < len(p) && s.unread() > 0 {
		at := int(s.consumed % uint64(len(s.recvBuf)))
		k := copy(p[n:], s.recvBuf[at:min(len(s.recvBuf), at+s.unread())])
		n += k
		s.consumed += uint64(k)
	}
	return n
}

// advance records that n bytes are sent, for which there must be room in the peer's buffer. It
// returns where they go.
func (s *state) advance(n int) segment {
	to := segment{s.remote.addr, uint32(n), s.remote.key}
	s.remote.addr += uint64(n)
	s.remote.length -= uint32(n)
	return to
}
