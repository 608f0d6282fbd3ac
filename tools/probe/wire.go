package probe

import (
	"encoding/binary"
	"errors"
)

// A prober asks the peer's connection manager for the QP that answers datagrams (SIDR), on port
// 9879 of the port space for datagrams. The request has a request as private data, the answer a
// grant. With the token of the grant it connects an RC QP, on the same port of the port space for
// connections: the private data is another request, and that of the answer a target, 8 bytes that
// the prober may read.
//
// Datagrams have one size in both directions, so that a peer cannot be made to send more than it
// receives. An echo repeats the ping, and says which of the pings before it have arrived. Integers
// are big-endian.

const (
	magic   = 0x67767072 // "gvpr"
	version = 1

	requestSize  = 28 // magic, version, rate, flow label, token, Q_Key
	grantSize    = 16 // magic, version, token
	targetSize   = 20 // magic, address, key, version
	datagramSize = 64 // magic, kind, token, sequence number, arrived, dwell, zeros

	maxLabel = 1<<20 - 1
	maxQKey  = 1<<31 - 1 // the highest bit is for privileged programs
)

// request is what a prober asks for.
type request struct {
	rate  int    // datagrams per second
	label uint32 // flow label of the answers
	token uint64 // of the grant, for an RC connection
	qkey  uint32 // of the answers, which no other host knows
}

// errWire is the error of bytes that are not of this protocol.
var errWire = errors.New("the peer does not speak the protocol of probes, or another version of it")

// header appends what all private data begins with.
func header() []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, magic), version)
}

// hasHeader reports whether b begins so and has size bytes; the connection manager may append
// zeros.
func hasHeader(b []byte, size int) bool {
	return len(b) >= size && binary.BigEndian.Uint32(b) == magic && binary.BigEndian.Uint32(b[4:]) == version
}

func (r request) marshal() []byte {
	b := binary.BigEndian.AppendUint32(header(), uint32(r.rate))
	b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(b, r.label), r.token)
	return binary.BigEndian.AppendUint32(b, r.qkey)
}

func parseRequest(b []byte) (r request, err error) {
	if !hasHeader(b, requestSize) {
		return r, errWire
	}
	r.label, r.token, r.qkey = binary.BigEndian.Uint32(b[12:]), binary.BigEndian.Uint64(b[16:]), binary.BigEndian.Uint32(b[24:])
	rate := binary.BigEndian.Uint32(b[8:])
	if rate < minRate || rate > maxRate || r.label > maxLabel || r.qkey > maxQKey {
		return r, errWire
	}
	r.rate = int(rate)
	return r, nil
}

func marshalGrant(token uint64) []byte { return binary.BigEndian.AppendUint64(header(), token) }

func parseGrant(b []byte) (token uint64, err error) {
	if !hasHeader(b, grantSize) {
		return 0, errWire
	}
	return binary.BigEndian.Uint64(b[8:]), nil
}

// target is memory that a prober may read.
type target struct {
	addr uint64
	rkey uint32
}

func (t target) marshal() []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(header(), t.addr), t.rkey)
}

func parseTarget(b []byte) (target, error) {
	if !hasHeader(b, targetSize) {
		return target{}, errWire
	}
	return target{binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint32(b[16:])}, nil
}

// The kinds of datagrams.
const (
	kindPing = 1
	kindEcho = 2
)

// datagram is a ping or an echo.
type datagram struct {
	kind    uint32
	token   uint64
	seq     uint64
	arrived uint64 // of an echo: bit i says whether ping seq-1-i has arrived
	dwell   uint64 // of an echo: nanoseconds from its arrival to its answer, by the device's clock; 0 if unknown
}

// put writes the datagram into b, which has datagramSize bytes that are otherwise zero.
func (d *datagram) put(b []byte) {
	binary.BigEndian.PutUint32(b, magic)
	binary.BigEndian.PutUint32(b[4:], d.kind)
	for i, v := range []uint64{d.token, d.seq, d.arrived, d.dwell} {
		binary.BigEndian.PutUint64(b[8+8*i:], v)
	}
}

// parseDatagram reads a datagram of a kind.
func parseDatagram(b []byte, kind uint32) (d datagram, ok bool) {
	if len(b) != datagramSize || binary.BigEndian.Uint32(b) != magic || binary.BigEndian.Uint32(b[4:]) != kind {
		return d, false
	}
	u64 := func(i int) uint64 { return binary.BigEndian.Uint64(b[8+8*i:]) }
	return datagram{kind, u64(0), u64(1), u64(2), u64(3)}, true
}

// window has which numbers of a sequence have arrived: the highest, and which of the 64 before it.
type window struct{ highest, before uint64 }

// add adds a number, and returns which of the 64 before it have arrived.
func (w *window) add(seq uint64) (arrived uint64) {
	if seq > w.highest {
		w.before = w.before<<1 | 1 // a shift of 64 and more is 0 in Go
		w.before <<= seq - w.highest - 1
		w.highest = seq
		return w.before
	}
	back := w.highest - seq
	if back > 0 {
		w.before |= 1 << (back - 1)
	}
	return w.before >> back
}
