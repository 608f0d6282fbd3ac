// Package ibcm implements the communication manager of InfiniBand and RoCE: the management
// datagrams (MADs) of class 7 and the protocol that establishes and ends connections with them. It
// behaves on the wire like the kernel's module ib_cm, but believes less of what peers say:
//
//   - A message about an ID counts only from the address of the ID's peer to the ID's own address.
//     The transport says which these are; with RoCE v2 they come from the IP header. A REQ must ask
//     for that path.
//   - Duplicates and stale connections are recognized per source address, so the claims of a host are about its own
//     connections only.
//   - Communication and transaction IDs are random, each by itself.
//   - Until a peer has proven by an RTU, MRA or DREQ with the right IDs that it receives packets at its address, it
//     gets at most three messages for each REQ.
//   - A peer cannot prolong a handshake, the end of a connection or TIMEWAIT without limit.
//
// Where source addresses can be forged, the random numbers remain. A host that sees no packets of others has to guess
// the 24 bits of a QPN to end a connection by a REQ, as if the peer had started again, or the 32 bits of a communication
// ID to end a handshake by a REJ, as if the peer had given up. Any other message about an established connection needs
// both IDs, of 64 bits.
//
// The package does no input or output of its own. A [Manager] is told about received MADs and about
// the time, and calls functions of its user. It has no lock: the user serializes all calls.
package ibcm

import (
	"encoding/binary"
	"errors"
)

// Sizes of a MAD in bytes.
const (
	MADSize    = 256 // a whole MAD
	headerSize = 24  // the header that all MADs have
)

// Contents of the header of every MAD of this class.
const (
	baseVersion  = 1
	classCM      = 7
	classVersion = 2
	methodSend   = 3
)

// Attr is the attribute ID of a MAD, which is the type of the message.
type Attr uint16

// Attributes of the messages (IBTA 16.7.3).
const (
	AttrREQ     Attr = 0x10 // request for a connection
	AttrMRA     Attr = 0x11 // message receipt acknowledgment: the answer takes time
	AttrREJ     Attr = 0x12 // rejection
	AttrREP     Attr = 0x13 // reply to a request
	AttrRTU     Attr = 0x14 // ready to use
	AttrDREQ    Attr = 0x15 // request to disconnect
	AttrDREP    Attr = 0x16 // reply to a request to disconnect
	AttrSIDRREQ Attr = 0x17 // request for the QP of a service that receives datagrams
	AttrSIDRREP Attr = 0x18 // reply to an AttrSIDRREQ
)

// Message is the content of a MAD.
type Message interface {
	// Attr returns the attribute ID of the message.
	Attr() Attr

	put(mad []byte) // encodes the message into an empty MAD
	get(mad []byte) // decodes the message
}

// Errors of Decode.
var (
	errSize   = errors.New("ibcm: the MAD does not have 256 bytes")
	errHeader = errors.New("ibcm: the MAD is not a message of the communication manager")
	errAttr   = errors.New("ibcm: the message is unknown")
)

// Encode encodes a message with a transaction ID.
func Encode(mad *[MADSize]byte, tid uint64, m Message) {
	*mad = [MADSize]byte{0: baseVersion, 1: classCM, 2: classVersion, 3: methodSend}
	binary.BigEndian.PutUint64(mad[8:], tid)
	binary.BigEndian.PutUint16(mad[16:], uint16(m.Attr()))
	m.put(mad[:])
}

// Decode decodes a MAD. It returns the transaction ID and the message.
func Decode(mad []byte) (tid uint64, m Message, err error) {
	if len(mad) != MADSize {
		return 0, nil, errSize
	}
	if mad[0] != baseVersion || mad[1] != classCM || mad[2] != classVersion || mad[3] != methodSend {
		return 0, nil, errHeader
	}
	if m = newMessage(Attr(binary.BigEndian.Uint16(mad[16:]))); m == nil {
		return 0, nil, errAttr
	}
	m.get(mad)
	return binary.BigEndian.Uint64(mad[8:]), m, nil
}

// newMessage returns an empty message, or nil if the attribute is unknown. The messages about
// alternate paths are not among them, because RoCE has no alternate paths.
func newMessage(a Attr) Message {
	switch a {
	case AttrREQ:
		return &REQ{}
	case AttrMRA:
		return &MRA{}
	case AttrREJ:
		return &REJ{}
	case AttrREP:
		return &REP{}
	case AttrRTU:
		return &RTU{}
	case AttrDREQ:
		return &DREQ{}
	case AttrDREP:
		return &DREP{}
	case AttrSIDRREQ:
		return &SIDRREQ{}
	case AttrSIDRREP:
		return &SIDRREP{}
	}
	return nil
}

// putModifier stores the attribute modifier of a MAD. It carries the options of an [ECE].
func putModifier(mad []byte, v uint32) { binary.BigEndian.PutUint32(mad[20:], v) }

// modifier loads the attribute modifier of a MAD.
func modifier(mad []byte) uint32 { return binary.BigEndian.Uint32(mad[20:]) }

// put24 stores a number of 24 bits in network byte order.
func put24(b []byte, v uint32) { b[0], b[1], b[2] = byte(v>>16), byte(v>>8), byte(v) }

// get24 loads a number of 24 bits in network byte order.
func get24(b []byte) uint32 { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }

// bit returns 1<<shift if set is true, or else 0.
func bit(set bool, shift int) byte {
	if set {
		return 1 << shift
	}
	return 0
}
