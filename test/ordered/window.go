package ordered

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// A frame is a message of SRD: a header, and the message of a program.
const (
	headerSize = 24 // kind, 7 bytes that are 0, number and limit, of 8 bytes each in network byte order
	kindData   = 1  // has a message
	kindCredit = 2  // has a limit alone; its number is 0
	kindEnd    = 3  // comes after the last message, and is numbered as if it were one
)

// controls is how many frames of kind credit the receive queue has room for, beside the window. The
// peer sends one when it may announce half a window or more, and has one in flight at a time. Let L
// be the limit that this side knows and w the peer's window. The peer has taken L messages at most,
// so the limits that it may have announced are up to L+w: two steps of half a window. A third frame
// may announce less than L, as others may overtake it.
const controls = 3

// header is the header of a frame.
type header struct {
	kind   byte
	number uint64 // of the message
	limit  uint64 // of the messages that the receiver of the frame may have sent in all
}

// put writes a header.
func (h header) put(b []byte) {
	clear(b[:headerSize])
	b[0] = h.kind
	binary.BigEndian.PutUint64(b[8:], h.number)
	binary.BigEndian.PutUint64(b[16:], h.limit)
}

// errPeer is the first part of each error of what the peer has sent.
var errPeer = errors.New("the peer breaks the protocol")

// parse reads a header.
func parse(b []byte) (header, error) {
	if len(b) < headerSize {
		return header{}, fmt.Errorf("%w: a frame has %d bytes, want %d or more", errPeer, len(b), headerSize)
	}
	h := header{b[0], binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:])}
	reserved := binary.BigEndian.Uint64(b) & (1<<56 - 1)
	control := h.kind == kindCredit || h.kind == kindEnd
	switch {
	case h.kind < kindData || h.kind > kindEnd:
		return h, fmt.Errorf("%w: the kind of a frame is %d, want %d to %d", errPeer, h.kind, kindData, kindEnd)
	case reserved != 0:
		return h, fmt.Errorf("%w: bytes 1 to 7 of a frame are %#x, want 0", errPeer, reserved)
	case control && len(b) != headerSize:
		return h, fmt.Errorf("%w: a frame of kind %d has %d bytes, want %d", errPeer, h.kind, len(b), headerSize)
	case h.kind == kindCredit && h.number != 0:
		return h, fmt.Errorf("%w: a frame of kind %d has number %d, want 0", errPeer, h.kind, h.number)
	}
	return h, nil
}

// window puts the messages of a peer in order, and counts for how many more each side has receives.
// It does no I/O. A frame of the peer can make it return an error, and nothing else.
type window struct {
	size, peers uint64 // messages that this side and the peer have receives for

	sent  uint64 // messages sent, and so the number of the next
	limit uint64 // messages that the peer permits in all

	next  uint64 // number of the next message to deliver
	told  uint64 // the limit that the peer has been told
	above uint64 // all messages that have arrived have smaller numbers
	ends  bool   // the end has arrived: it is the last message
	slots []int  // by number modulo size: the slot that has the message, or none
}

// none stands for a message that has not arrived.
const none = -1

// newWindow returns the window of a new connection. Each side knows the size of the other's.
func newWindow(size, peers int) *window {
	w := &window{size: uint64(size), peers: uint64(peers), limit: uint64(peers), told: uint64(size), slots: make([]int, size)}
	for i := range w.slots {
		w.slots[i] = none
	}
	return w
}

// header returns the header of the next frame, of a kind for which there is credit.
func (w *window) header(kind byte) header {
	w.told = w.next + w.size
	h := header{kind: kind, limit: w.told}
	if kind != kindCredit {
		h.number = w.sent
		w.sent++
	}
	return h
}

// credit reports whether one more message may be sent.
func (w *window) credit() bool { return w.sent < w.limit }

// due reports whether it is time for a frame of kind credit.
func (w *window) due() bool { return !w.ends && w.next+w.size-w.told >= (w.size+1)/2 }

// arrived takes a frame that is in a slot, and reports whether the slot holds a message now.
func (w *window) arrived(slot int, b []byte) (held bool, err error) {
	h, err := parse(b)
	if err != nil {
		return false, err
	}
	if h.limit > w.sent+w.peers {
		return false, fmt.Errorf("%w: it permits %d messages, want up to %d", errPeer, h.limit, w.sent+w.peers)
	}
	if h.kind != kindCredit {
		at := &w.slots[h.number%w.size]
		switch end := w.next + w.size; {
		case h.number < w.next || h.number >= end:
			return false, fmt.Errorf("%w: message %d has arrived, want %d to %d", errPeer, h.number, w.next, end-1)
		case *at != none:
			return false, fmt.Errorf("%w: message %d has arrived twice", errPeer, h.number)
		case w.ends && h.number >= w.above, h.kind == kindEnd && (w.ends || h.number < w.above):
			return false, fmt.Errorf("%w: message %d has arrived, and the end is not the last", errPeer, h.number)
		}
		*at, w.above = slot, max(w.above, h.number+1)
		w.ends = w.ends || h.kind == kindEnd
	}
	w.limit = max(w.limit, h.limit) // an older frame may come later
	return h.kind != kindCredit, nil
}

// first returns the slot of the next message in order, or none, and whether it is the end.
func (w *window) first() (slot int, end bool) {
	slot = w.slots[w.next%w.size]
	return slot, slot != none && w.ends && w.next+1 == w.above
}

// take removes the message that first has returned.
func (w *window) take() {
	w.slots[w.next%w.size] = none
	w.next++
}
