package rsocket

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// TestOwedNothing: a sender that is owed nothing gets no credits for what it has sent, wherever that is and however
// it is read. It is owed nothing at the latest when the peer has read everything.
func TestOwedNothing(t *testing.T) {
	const tableAt, key = 1 << 20, 5
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 0))
		credits, half := 16+r.IntN(50), 2048+r.IntN(4000)
		begin := func() *state {
			s := &state{iwarp: true}
			s.init(0, make([]byte, tableEntries*segmentSize), make([]byte, firstBuffer))
			s.grow(credits, make([]byte, 2*half))
			s.connect(connData{credits: uint16(credits), table: segment{tableAt, key, tableEntries}, buffer: segment{1 << 30, key, firstBuffer}})
			return s
		}
		from, to := begin(), begin()
		gives := func() bool {
			due, buffer := to.owesCredits()
			if !due {
				return false
			}
			msg := to.credit()
			if buffer {
				offset, entry := to.grant()
				segment{1<<31 + uint64(offset), key, uint32(half)}.put(from.table[entry-tableAt:], binary.LittleEndian)
			}
			must(t, from.handle(msg, 0), from.takeBuffer())
			return true
		}
		var underway []uint32 // messages with data
		receives := func() bool {
			k := 0
			if len(underway) > 0 && r.IntN(2) == 0 {
				must(t, to.handleData(underway[0], 0))
				underway, k = underway[1:], 1
			} else if k = to.read(make([]byte, 1+r.IntN(2000))); k == 0 && len(underway) > 0 {
				return true
			}
			return k > 0
		}
		for left := r.IntN(20 * half); left > 0; {
			must(t, from.takeBuffer())
			if from.mayWrite() && r.IntN(2) == 0 {
				n := min(left, 1+r.IntN(1000), int(from.remote.length))
				from.advance(n)
				underway, left = append(underway, uint32(n)), left-n
			}
			receives()
			gives()
		}
		must(t, from.takeBuffer())
		for !from.owedNothing() {
			if !receives() && !gives() {
				t.Fatalf("seed %d: the peer has read everything, and the sender is still owed something: %+v", seed, from.remote)
			}
			gives()
			must(t, from.takeBuffer())
		}
		for receives() {
			if due, _ := to.owesCredits(); due {
				t.Fatalf("seed %d: the peer gives credits to a sender that is owed nothing", seed)
			}
		}
	}
}
