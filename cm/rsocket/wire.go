package rsocket

import (
	"encoding/binary"
	"math"

	"github.com/goverbs/goverbs/cm/internal/protocol"
)

// connDataSize is the size of the private data of a request and of an answer:
//
//	0  version, which is 1
//	1  flags: 1 if the sender is a big-endian host, 2 if it knows mapped memory
//	2  credits: how many messages with data its peer may send at first (u16)
//	4  three bytes that are 0
//	7  how many mappings it has room for; if bit 7 is set and others, these times 256
//	8  its table of buffers: address (u64), key (u32), number of entries (u32)
//	24 its first buffer: address (u64), key (u32), length in bytes (u32)
//
// Numbers are in network byte order.
const connDataSize = 40

// Values of the private data.
const (
	wireVersion = 1

	flagBigEndian = 1
	flagMappings  = 2
)

// segment is memory of the peer.
type segment struct {
	addr   uint64
	key    uint32
	length uint32 // in bytes; of a table, in entries
}

// segmentSize is the size of a segment on the wire, in bytes.
const segmentSize = 16

// tableEntries is the number of entries in this side's table of buffers.
const tableEntries = 2

// put writes a segment in the given byte order.
func (s segment) put(b []byte, order binary.ByteOrder) {
	order.PutUint64(b, s.addr)
	order.PutUint32(b[8:], s.key)
	order.PutUint32(b[12:], s.length)
}

// getSegment reads a segment.
func getSegment(b []byte, order binary.ByteOrder) segment {
	return segment{order.Uint64(b), order.Uint32(b[8:]), order.Uint32(b[12:])}
}

// connData is the private data.
type connData struct {
	bigEndian bool
	credits   uint16
	table     segment
	buffer    segment
	mappings  int // of this side at most maxMappings
}

// encode returns the data on the wire. This side is little-endian.
func (d connData) encode() []byte {
	b := make([]byte, connDataSize)
	b[0] = wireVersion
	if d.mappings > 0 {
		b[1] |= flagMappings
	}
	binary.BigEndian.PutUint16(b[2:], d.credits)
	b[7] = byte(d.mappings)
	d.table.put(b[8:], binary.BigEndian)
	d.buffer.put(b[24:], binary.BigEndian)
	return b
}

// errSpeaksCM is the error of a peer that speaks the protocol of package cm.
var errSpeaksCM = protocol.Violation("the peer speaks the protocol of cm.Conn and cm.Stream, not rsocket")

// parseConnData reads private data. The rest is padding.
func parseConnData(b []byte) (d connData, err error) {
	switch {
	case protocol.SpeaksCM(b):
		return d, errSpeaksCM
	case len(b) < connDataSize:
		return d, protocol.Violation("the peer does not speak rsocket: its private data has %d bytes, want %d", len(b), connDataSize)
	case b[0] != wireVersion:
		return d, protocol.Violation("the peer does not speak rsocket, or another version: its private data has version %d, want %d", b[0], wireVersion)
	}
	d.bigEndian = b[1]&flagBigEndian != 0
	d.credits = binary.BigEndian.Uint16(b[2:])
	if b[1]&flagMappings != 0 {
		if d.mappings = int(b[7]); d.mappings > maxMappings {
			d.mappings = (d.mappings - maxMappings) << 8
		}
	}
	d.table = getSegment(b[8:], binary.BigEndian)
	d.buffer = getSegment(b[24:], binary.BigEndian)
	switch {
	case d.credits == 0:
		return d, protocol.Violation("the peer gives 0 credits, want 1 to 65535")
	case d.table.length == 0 || d.table.length > 1<<16:
		return d, protocol.Violation("the peer's table of buffers has %d entries, want 1 to 65536", d.table.length)
	case d.buffer.length == 0:
		return d, protocol.Violation("the peer's buffer has 0 bytes")
	case d.table.addr > math.MaxUint64-uint64(d.table.length)*segmentSize-uint64(d.mappings)*mappingSize:
		return d, protocol.Violation("the peer's table of buffers at %#x goes beyond the largest address", d.table.addr)
	case d.buffer.wraps():
		return d, protocol.Violation("the peer's buffer of %d bytes at %#x goes beyond the largest address", d.buffer.length, d.buffer.addr)
	}
	return d, nil
}

// check returns what is wrong with private data.
func check(b []byte) error {
	_, err := parseConnData(b)
	return err
}

// refusal returns the private data of the rejection of a request that is not valid. One that has version
// 1 may come from librdmacm, which gets nothing.
func refusal(request []byte) []byte {
	if len(request) > 0 && request[0] == wireVersion {
		return nil
	}
	return protocol.Refusal(request, "rsocket, not the protocol of cm.Conn, cm.Stream or Valkey")
}

// A message is a number of 32 bits, the immediate value of a WRITE. Its upper three bits say what it
// is, and the others are its value.
const (
	opShift   = 29
	valueMask = 1<<opShift - 1

	opData    = 0 // value: bytes that were written into the buffer
	opCredits = 4 // value: the number of the message from which on the credits are used up; there may be a new buffer in the table
	opMapping = 6 // value: index of a mapping, in the lower 16 bits
	opControl = 7
)

// Values of a control message.
const (
	controlDisconnect = 0 // the sender neither sends nor receives
	controlKeepAlive  = 1 // not sent as a message
	controlShutdown   = 2 // the sender sends no more data
)

// messageSize is the size of a message that iWARP carries, in bytes.
const messageSize = 4

// message returns a message.
func message(op, value uint32) uint32 { return op<<opShift | value&valueMask }
