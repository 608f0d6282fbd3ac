package perf

import (
	"encoding/binary"
	"testing"
)

// TestRoom: the number that the peer tells grows past 2^32, and what has come of it in part lets
// nobody send more than the whole.
func TestRoom(t *testing.T) {
	for _, c := range []struct {
		sent, told uint32
		want       int
	}{
		{0, 0, 8}, {5, 0, 3}, {8, 0, 0}, {8, 3, 3}, {0x102, 0xff, 5}, {2, 0xfffffffe, 4}, {3, 3, 8},
	} {
		for part := 0; part <= toldSize; part++ {
			was := c.told - 3 // what was told before
			var b, now [toldSize]byte
			binary.LittleEndian.PutUint32(b[:], was)
			binary.LittleEndian.PutUint32(now[:], c.told)
			copy(b[:], now[:part])
			got := room(8, c.sent, binary.LittleEndian.Uint32(b[:]))
			if got > c.want || part == toldSize && got != c.want {
				t.Errorf("%d sent, told %#x, of which %d bytes have come: room for %d, want %d", c.sent, c.told, part, got, c.want)
			}
		}
	}
}
