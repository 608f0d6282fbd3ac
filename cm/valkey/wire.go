package valkey

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/goverbs/goverbs/cm/internal/protocol"
)

// Names of the fields and commands come from Valkey's documentation.

// commandSize is the size of a command, in bytes:
//
//	0   opcode (u16)
//	2   GetServerFeature, SetClientFeature: select (u16)
//	16  RegisterXferMemory: address (u64)
//	24  RegisterXferMemory: length in bytes (u32), key (u32)
//	24  GetServerFeature, SetClientFeature: features (u64)
//
// Numbers are in network byte order. Other bytes are 0.
const commandSize = 32

// opcode says what a command is.
type opcode uint16

// Opcodes.
const (
	getServerFeature   opcode = 0 // a client asks for features, and the server answers
	setClientFeature   opcode = 1 // a client says which features it uses
	keepalive          opcode = 2
	registerXferMemory opcode = 3 // the sender's buffer for data
)

// String returns the name of the command.
func (o opcode) String() string {
	switch o {
	case getServerFeature:
		return "GetServerFeature"
	case setClientFeature:
		return "SetClientFeature"
	case keepalive:
		return "Keepalive"
	case registerXferMemory:
		return "RegisterXferMemory"
	}
	return fmt.Sprintf("command %d", uint16(o))
}

// command is a command. Each opcode uses some of the fields.
type command struct {
	op       opcode
	selects  uint16 // which features are meant; an answer repeats it
	features uint64 // bits, none of which has a meaning yet
	buffer   segment
}

// segment is memory of the peer.
type segment struct {
	addr   uint64
	length uint32 // in bytes
	key    uint32
}

// wraps reports whether a segment goes beyond the largest address.
func (s segment) wraps() bool {
	return s.length > 0 && s.addr > math.MaxUint64-uint64(s.length-1)
}

// put writes a command.
func (c command) put(b []byte) {
	clear(b[:commandSize])
	binary.BigEndian.PutUint16(b, uint16(c.op))
	switch c.op {
	case getServerFeature, setClientFeature:
		binary.BigEndian.PutUint16(b[2:], c.selects)
		binary.BigEndian.PutUint64(b[24:], c.features)
	case registerXferMemory:
		binary.BigEndian.PutUint64(b[16:], c.buffer.addr)
		binary.BigEndian.PutUint32(b[24:], c.buffer.length)
		binary.BigEndian.PutUint32(b[28:], c.buffer.key)
	}
}

// parseCommand reads a command. Bytes without a meaning are ignored.
func parseCommand(b []byte) (c command, err error) {
	if len(b) != commandSize {
		return c, protocol.Violation("the peer has sent a command of %d bytes, want %d", len(b), commandSize)
	}
	switch c.op = opcode(binary.BigEndian.Uint16(b)); c.op {
	case getServerFeature, setClientFeature:
		c.selects, c.features = binary.BigEndian.Uint16(b[2:]), binary.BigEndian.Uint64(b[24:])
	case keepalive:
	case registerXferMemory:
		c.buffer = segment{binary.BigEndian.Uint64(b[16:]), binary.BigEndian.Uint32(b[24:]), binary.BigEndian.Uint32(b[28:])}
	default:
		return c, protocol.Violation("the peer has sent %s, which is not known", c.op)
	}
	return c, nil
}

// What listeners and clients say of other protocols.
const (
	speaks = "Valkey's protocol for RDMA, not that of cm.Conn, cm.Stream or rsocket"
	silent = "the listener gives no reason, as those of rsocket do, or one that has no room for another connection"
)

// errSpeaksCM is the error of a peer that speaks the protocol of package cm.
var errSpeaksCM = protocol.Violation("the peer speaks the protocol of cm.Conn and cm.Stream, not Valkey's")

// checkPrivateData returns an error if a request or an answer has the private data of another
// protocol. Valkey uses no private data, but on InfiniBand it is padded with zeros.
func checkPrivateData(b []byte) error {
	const rsocketSize, rsocketVersion = 40, 1
	switch {
	case protocol.SpeaksCM(b):
		return errSpeaksCM
	case len(b) >= rsocketSize && b[0] == rsocketVersion:
		return protocol.Violation("the peer seems to speak rsocket, not Valkey's protocol: its private data begins with % x", b[:8])
	}
	for i := range b {
		if b[i] != 0 {
			return protocol.Violation("the peer does not speak Valkey's protocol, which has no private data: it has sent % x", b[:min(len(b), 16)])
		}
	}
	return nil
}
