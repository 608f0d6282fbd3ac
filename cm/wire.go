package cm

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"syscall"
)

// The messages between the two sides of a Conn. PROTOCOL.md describes the protocol, also for other
// implementations. This is only the layout, in network byte order.
//
// Private data begins with a greeting:
//
//	0  "gv"
//	2  version
//	3  kind: 1 request, 2 answer, 3 refusal
//	4  messages that the sender of the greeting can receive (u16)
//	6  if not 0: how many of them it can receive at first, of up to 440 bytes (firstData)
//	7  bytes of the program's data, or of the reason of a refusal
//	8  size of the largest message that it can receive (u32)
//	12 the data
//
// In an answer, except on iWARP, a byte follows: the path MTU of this side's port (enum ib_mtu), or 0.
//
// On iWARP 16 bytes follow that describe memory of the sender, in the format of
// [Remote.AppendBinary]. The peer reads its first byte to learn that everything before has arrived.
//
// A message begins with a header:
//
//	0  kind: 1 data, 2 credits, 3 end, 4 want, 5 grown, 6 pad
//	1  of an end: 1 if the sender no longer receives; otherwise 0
//	2  credits: how many more messages the receiver may send (u16)
//	4  bytes of data (u32); of grown: the number of small receives
//	8  the data
const (
	greetingSize = 12
	headerSize   = 8
)

// Versions of the protocol. A request has the highest version that its sender speaks. The answer
// has the lower one of the highest versions of the two sides. An implementation also speaks the
// version before its highest, so that hosts can be upgraded one by one.
const (
	wireVersion    = 2
	minWireVersion = 2
)

// Kinds of greetings.
const (
	greetingRequest = 1 + iota
	greetingAnswer
	greetingRefusal
)

// Kinds of messages.
const (
	msgData = 1 + iota
	msgCredits
	msgEnd
	msgWant  // the sender has a message that is too large for a small receive; costs a credit
	msgGrown // the sender has posted large receives, behind the small ones
	msgPad   // uses up a small receive
)

// Limits of private data, in bytes.
const (
	MaxDialData   = 44  // in a request, for [DialOptions]
	MaxAcceptData = 183 // in an answer, for [ListenOptions]
)

// maxRefusal is the length of the longest reason of a refusal, in bytes.
const maxRefusal = 136

// greeting is the start of the private data of a request, an answer or a refusal.
type greeting struct {
	kind    uint8
	depth   int
	size    int
	data    []byte
	first   int   // messages at first, of up to firstData bytes; 0 if there are no small receives
	version uint8 // 0 is wireVersion
}

// encode returns the greeting as bytes.
func (h greeting) encode() []byte {
	b := make([]byte, greetingSize, greetingSize+len(h.data))
	b[0], b[1], b[2], b[3] = 'g', 'v', cmp.Or(h.version, wireVersion), h.kind
	binary.BigEndian.PutUint16(b[4:], uint16(h.depth))
	b[6], b[7] = uint8(h.first), uint8(len(h.data))
	binary.BigEndian.PutUint32(b[8:], uint32(h.size))
	return append(b, h.data...)
}

// protocolError is a violation of the protocol by the peer.
type protocolError struct{ what string }

func (e *protocolError) Error() string { return "the peer does not speak this protocol: " + e.what }

// Unwrap returns EPROTO.
func (e *protocolError) Unwrap() error { return syscall.EPROTO }

func protoErr(format string, args ...any) error {
	return &protocolError{fmt.Sprintf(format, args...)}
}

// parseGreeting decodes a greeting. b may have zeros after it, since the connection manager pads
// private data. The version of the result is the one to use: for a request, the highest that both
// sides support.
func parseGreeting(b []byte, kind uint8) (greeting, error) {
	if len(b) < greetingSize || b[0] != 'g' || b[1] != 'v' {
		return greeting{}, protoErr("its private data is not a greeting; does the program there use Conn?")
	}
	if b[3] != kind {
		return greeting{}, protoErr("its greeting has kind %d, not %d", b[3], kind)
	}
	version := b[2]
	if kind == greetingRequest {
		version = min(version, wireVersion)
	}
	if kind != greetingRefusal && (version < minWireVersion || version > wireVersion) {
		return greeting{}, protoErr("its greeting has version %d, this side speaks versions %d to %d", b[2], minWireVersion, wireVersion)
	}
	h := greeting{kind: kind, depth: int(binary.BigEndian.Uint16(b[4:])), size: int(binary.BigEndian.Uint32(b[8:])), first: int(b[6]), version: version}
	n := int(b[7])
	if greetingSize+n > len(b) {
		return greeting{}, protoErr("its greeting claims %d bytes of data, but has only %d", n, len(b)-greetingSize)
	}
	if kind != greetingRefusal && (h.depth < 1 || h.depth > maxDepth || h.size < 1 || h.size > maxMessageSize) {
		return greeting{}, protoErr("it claims to receive %d messages of %d bytes; valid are 1 to %d messages of 1 to %d bytes", h.depth, h.size, maxDepth, maxMessageSize)
	}
	if h.first > h.depth {
		return greeting{}, protoErr("it claims to receive %d messages, but %d of them at first", h.depth, h.first)
	}
	h.data = append([]byte(nil), b[greetingSize:greetingSize+n]...)
	return h, nil
}

// header is the header of a message.
type header struct {
	kind       uint8
	closesRead bool // of an end: the sender no longer receives
	credits    int
	length     int
	recvs      uint32 // of msgGrown: how many small receives were posted
}

// put encodes the header into the first bytes of b.
func (h header) put(b []byte) {
	_ = b[headerSize-1]
	b[0], b[1] = h.kind, 0
	if h.closesRead {
		b[1] = 1
	}
	binary.BigEndian.PutUint16(b[2:], uint16(h.credits))
	binary.BigEndian.PutUint32(b[4:], uint32(h.length)|h.recvs) // one of the two is 0
}

// parseHeader decodes the header of the message b.
func parseHeader(b []byte) (header, error) {
	if len(b) < headerSize {
		return header{}, protoErr("a message of %d bytes is shorter than a header", len(b))
	}
	h := header{kind: b[0], closesRead: b[1] != 0, credits: int(binary.BigEndian.Uint16(b[2:])), length: int(binary.BigEndian.Uint32(b[4:]))}
	if h.kind == msgGrown {
		h.recvs, h.length = uint32(h.length), 0
	}
	if h.length != len(b)-headerSize {
		return header{}, protoErr("a message with %d bytes of data whose header claims %d", len(b)-headerSize, h.length)
	}
	if h.kind < msgData || h.kind > msgPad {
		return header{}, protoErr("a message of kind %d, valid are %d to %d", h.kind, msgData, msgPad)
	}
	if b[1] > 1 || h.closesRead && h.kind != msgEnd {
		return header{}, protoErr("a message of kind %d whose second byte is %d; valid is 0, or 1 in an end", h.kind, b[1])
	}
	if h.kind != msgData && h.length != 0 {
		return header{}, protoErr("a message of kind %d with %d bytes of data", h.kind, h.length)
	}
	return h, nil
}
