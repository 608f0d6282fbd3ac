package probe

import (
	"encoding/binary"
	"errors"
)

// A prober asks the peer's connection manager for the QP that answers datagrams (SIDR), on port
// 9879 of the port space for datagrams. The request has a request as private data, the answer the
// token of a session. With it the prober connects an RC QP, on the same port of the port space for
// connections: the private data is another request, and that of the answer a target, 8 bytes that
// the prober may read.
//
// Datagrams have one size in both directions, so that a peer cannot be made to send more than it
// receives. An echo repeats the ping, and says which of the pings before it have arrived. Integers
// are big-endian.

const (
	magic        = 0x67767072 // "gvpr"
	version      = 1
	datagramSize = 64 // a datagram, then zeros

	maxLabel = 1<<20 - 1
	maxQKey  = 1<<31 - 1 // the highest bit is for privileged programs
)

// request is what a prober asks for.
type request struct {
	Rate  uint32 // datagrams per second
	Label uint32 // flow label of the answers
	Token uint64 // of the session, for an RC connection
	QKey  uint32 // of the answers, which no other host knows
}

// target is memory that a prober may read.
type target struct {
	Addr uint64
	RKey uint32
}

// errWire is the error of bytes that are not of this protocol.
var errWire = errors.New("the peer does not speak the protocol of probes, or another version of it")

// marshal returns private data.
func marshal[T request | target | uint64](body T) []byte {
	be := binary.BigEndian
	b := be.AppendUint32(be.AppendUint32(nil, magic), version)
	switch v := any(body).(type) {
	case request:
		b = be.AppendUint32(be.AppendUint32(b, v.Rate), v.Label)
		b = be.AppendUint32(be.AppendUint64(b, v.Token), v.QKey)
	case target:
		b = be.AppendUint32(be.AppendUint64(b, v.Addr), v.RKey)
	case uint64:
		b = be.AppendUint64(b, v)
	}
	return b
}

// parse reads private data, to which the connection manager may have appended zeros.
func parse[T request | target | uint64](b []byte) (body T, err error) {
	be, size := binary.BigEndian, len(marshal(body))
	if len(b) < size || be.Uint32(b) != magic || be.Uint32(b[4:]) != version {
		return body, errWire
	}
	b = b[8:]
	switch v := any(&body).(type) {
	case *request:
		*v = request{be.Uint32(b), be.Uint32(b[4:]), be.Uint64(b[8:]), be.Uint32(b[16:])}
	case *target:
		*v = target{be.Uint64(b), be.Uint32(b[8:])}
	case *uint64:
		*v = be.Uint64(b)
	}
	return body, nil
}

// parseRequest reads and checks a request.
func parseRequest(b []byte) (request, error) {
	r, err := parse[request](b)
	if err == nil && (r.Rate < minRate || r.Rate > maxRate || r.Label > maxLabel || r.QKey > maxQKey) {
		err = errWire
	}
	return r, err
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
