package rping

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
)

// advert is a message of a client: the memory that the server is to READ or WRITE. The messages of
// a server have the same length, and their content is ignored.
type advert struct {
	addr uint64
	rkey uint32
	size uint32 // in bytes
}

// advertLen is the length of every message.
const advertLen = 16

// String describes the memory.
func (a advert) String() string {
	return fmt.Sprintf("%d bytes at %#x with rkey %#x", a.size, a.addr, a.rkey)
}

// put encodes the advert.
func (a advert) put(b []byte) {
	binary.BigEndian.PutUint64(b, a.addr)
	binary.BigEndian.PutUint32(b[8:], a.rkey)
	binary.BigEndian.PutUint32(b[12:], a.size)
}

// parseAdvert decodes an advert.
func parseAdvert(b []byte) advert {
	return advert{binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])}
}

// check refuses memory that cannot hold a ping or is longer than max bytes.
func (a advert) check(max int) error {
	switch {
	case a.size < 1 || int64(a.size) > int64(max):
		return fmt.Errorf("the size of the peer's memory is %d bytes, allowed: 1 to %d", a.size, max)
	case a.addr > math.MaxUint64-uint64(a.size):
		return fmt.Errorf("the address of the peer's memory is %#x, allowed for %d bytes: up to %#x", a.addr, a.size, math.MaxUint64-uint64(a.size))
	}
	return nil
}

// pingText writes the text of a ping, with a NUL at the end: its number, and letters, the first of
// which differs from ping to ping.
func pingText(b []byte, n int) {
	const first, last = 'A', 'z'
	head := copy(b, fmt.Sprintf("rdma-ping-%d: ", n))
	for i := range b[head:] {
		b[head+i] = first + byte((n+i)%(last-first+1))
	}
	b[len(b)-1] = 0
}

// upToNUL returns the text in b, without the NUL that ends it.
func upToNUL(b []byte) []byte {
	text, _, _ := bytes.Cut(b, []byte{0})
	return text
}

// differ returns where two texts of one length differ, -1 if they do not.
func differ(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}
