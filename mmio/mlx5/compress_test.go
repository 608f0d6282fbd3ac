//go:build amd64 || arm64

package mlx5

import (
	"bytes"
	"slices"
	"testing"
)

// compressed has the device write one title for completions with these byte counts, as struct mlx5_mini_cqe8 says.
// The first completion has the index first.
func (c *card) compressed(opcode byte, first uint16, counts ...uint32) {
	n := uint32(len(counts))
	at := func(i uint32) []byte { return c.cqMB[(c.pi+i)%(1<<c.cqeLog)*64:][:64] }
	for i, count := range counts {
		array := at(max(uint32(i)&^7, 1))
		mini := array[i%8*8:][:8]
		copy(mini, append(append(u16(first+uint16(i)), 0x0a, 0), u32(count)...)) // the index and opcode are of sends
	}
	copy(at(0), make([]byte, 64))
	title := at(0)
	for off, b := range map[int][]byte{idxOffset: u32(0x654321), lenOffset: u32(n), opOffset: u32(0x4a5b6c), cntOffset: u16(first)} {
		copy(title[off:], b)
	}
	title[63] = opcode<<4 | cqeMini | byte(c.pi>>c.cqeLog)&1
	c.pi += n
}

// compressedCQ gives the card a CQ of 32 completions, of which so many have been written and read.
func compressedCQ(t *testing.T, c Compression, index uint32) *card {
	t.Helper()
	k := newCard(t, Connected, 8, 1, 0)
	k.withCQ(t, 32, 64)
	k.cq.Compress(c)
	for range index {
		k.sent(0)
		if _, ok := k.cq.Next(); !ok {
			t.Fatal("no completion")
		}
		k.cq.Release(0)
	}
	return k
}

// TestCompressed: compressed completions of any number, anywhere in the ring, are what they stand for, and the
// completions after them are found in their places.
func TestCompressed(t *testing.T) {
	for n := 2; n <= 32; n++ {
		for _, index := range []uint32{0, 1, 31, 40} {
			for _, how := range []string{"next", "avail"} {
				k := compressedCQ(t, CompressedEntries, index)
				var counts, got []uint32
				var indices, want []uint16
				for i := range n {
					counts, want = append(counts, uint32(1000+i)), append(want, uint16(0xfffe+i))
				}
				k.compressed(cqeRespSend, 0xfffe, counts...)
				if n < 32 {
					k.put(cqeRespSend, 0, map[int][]byte{lenOffset: u32(7), cntOffset: u16(77)})
					counts, want = append(counts, 7), append(want, 77)
				}
				if how == "avail" && k.cq.Avail(100) != len(counts) {
					t.Fatalf("%d completions from %d: %d are there", n, index, k.cq.Avail(100))
				}
				for {
					e, ok := k.cq.Next()
					if !ok {
						break
					}
					if len(got) < n && (e.Kind() != KindRecv || e.UserIndex() != 0x654321 || e.QPN() != 0x5b6c+0x4a0000 || e.HasInline()) {
						t.Fatalf("%d completions from %d: completion %d has kind %d, index %#x", n, index, len(got), e.Kind(), e.UserIndex())
					}
					got, indices = append(got, e.ByteCount()), append(indices, e.Counter())
				}
				if !slices.Equal(got, counts) || !slices.Equal(indices, want) {
					t.Fatalf("%d completions from %d, %s: byte counts %d, indices %d, want %d, %d", n, index, how, got, indices, counts, want)
				}
			}
		}
	}
}

// TestCompressedStrides: the index of a stride follows the strides of the completion before. Sends have
// their index and opcode themselves.
func TestCompressedStrides(t *testing.T) {
	k := compressedCQ(t, CompressedStrides, 5)
	k.compressed(cqeRespSend, 3, 1<<16|60, 4<<16|200, 1<<31|2<<16, 1<<16|9)
	var got []uint16
	for range 4 {
		e, _ := k.cq.Next()
		s := e.Strides()
		got = append(got, e.Counter(), s.Count(), uint16(s.Length()))
		if s.Filler() != (len(got) == 9) {
			t.Errorf("completion %x: filler %v", s, s.Filler())
		}
	}
	if want := []uint16{3, 1, 60, 4, 4, 200, 8, 2, 0, 10, 1, 9}; !slices.Equal(got, want) {
		t.Errorf("strides %d, want %d", got, want)
	}
	k.compressed(cqeReq, 500, 0, 0, 0)
	for i := range 3 {
		if e, ok := k.cq.Next(); !ok || e.Kind() != KindSend || e.Counter() != uint16(500+i) || get8(e.p, opOffset) != opSend {
			t.Errorf("send %d: kind %d, index %d, opcode %#x", i, e.Kind(), e.Counter(), get8(e.p, opOffset))
		}
	}
}

// TestCompressedBad: a title that is not valid is a completion of no known kind, and changes nothing else.
func TestCompressedBad(t *testing.T) {
	for name, bad := range map[string]func(k *card, title []byte){
		"not asked for":    func(k *card, title []byte) { k.cq.Compress(NotCompressed) },
		"none":             func(k *card, title []byte) { copy(title[lenOffset:], u32(0)) },
		"one":              func(k *card, title []byte) { copy(title[lenOffset:], u32(1)) },
		"more than a ring": func(k *card, title []byte) { copy(title[lenOffset:], u32(33)) },
		"very many":        func(k *card, title []byte) { copy(title[lenOffset:], u32(1<<32-1)) },
		"an error":         func(k *card, title []byte) { title[63] = cqeRespErr<<4 | title[63]&0xf },
		"a resize":         func(k *card, title []byte) { title[63] = cqeResize<<4 | title[63]&0xf },
	} {
		k := compressedCQ(t, CompressedEntries, 3)
		k.compressed(cqeRespSend, 0, 1, 2, 3)
		bad(k, k.cqMB[3*64:4*64])
		before := bytes.Clone(k.cqMB)
		if e, ok := k.cq.Next(); !ok || e.Kind() != KindUnknown || !bytes.Equal(before, k.cqMB) {
			t.Errorf("%s: kind %d, %v; the ring changed: %v", name, e.Kind(), ok, !bytes.Equal(before, k.cqMB))
		}
	}
}

// TestCompressedMoved: compressed completions are moved to the new ring when a CQ is resized, and are removed with their queue.
func TestCompressedMoved(t *testing.T) {
	k := compressedCQ(t, CompressedEntries, 30)
	k.compressed(cqeRespSend, 0, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19)
	k.put(cqeResize, 0, nil)
	s, err := k.cq.Succeed(region(t, 64*64), 64)
	ok(t, err)
	q, err := k.cq.Switch(s)
	ok(t, err)
	if n := q.Avail(100); n != 10 || q.mini != CompressedEntries {
		t.Fatalf("%d completions in the new ring, compression %d", n, q.mini)
	}
	q.Sweep(func(e CQE) bool { return e.ByteCount()%2 == 0 })
	for want := uint32(11); want < 20; want += 2 {
		if e, ok := q.Next(); !ok || e.ByteCount() != want || uint32(e.Counter()) != want-10 {
			t.Errorf("%d bytes, index %d, want %d", e.ByteCount(), e.Counter(), want)
		}
	}
	if _, ok := q.Next(); ok {
		t.Error("a completion that was removed is there")
	}
}

// FuzzCompressed: whatever stands in the ring of a CQ with compressed completions, not more completions than it holds are
// read from it, and what was compressed is what it stands for.
func FuzzCompressed(f *testing.F) {
	f.Add([]byte{0, 1, 2}, uint32(7), uint8(5), true)
	f.Add(bytes.Repeat([]byte{0x2c}, 64), uint32(0), uint8(2), false)
	f.Add(append(make([]byte, 44), append([]byte{0, 0, 0, 8}, bytes.Repeat([]byte{0x2d}, 16)...)...), uint32(63), uint8(32), true)
	f.Fuzz(func(t *testing.T, ring []byte, index uint32, n uint8, strides bool) {
		kind := CompressedEntries
		if strides {
			kind = CompressedStrides
		}
		k := compressedCQ(t, kind, index%100)
		for len(ring) > 0 && len(ring) < len(k.cqMB) {
			ring = append(ring, ring...)
		}
		copy(k.cqMB, ring)
		read, left := 0, k.cq.Avail(100)
		for ; read < 100; read++ {
			if _, ok := k.cq.Next(); !ok {
				break
			}
		}
		if read > 32+32 { // twice, as a round of the ring may look like the next one where titles were
			t.Fatalf("%d completions of a ring of 32, %d at first", read, left)
		}
		if n < 2 || n > 32 {
			return
		}
		k = compressedCQ(t, kind, index%100)
		copy(k.cqMB, ring)
		counts := make([]uint32, n)
		for i := range counts {
			if counts[i] = uint32(i)*0x10001 + 1<<16; len(ring) > i {
				counts[i] += uint32(ring[i])
			}
		}
		k.compressed(cqeRespSend, uint16(index), counts...)
		next := uint16(index)
		for i, want := range counts {
			e, ok := k.cq.Next()
			if !ok || e.Kind() != KindRecv || e.ByteCount() != want || e.Counter() != next {
				t.Fatalf("completion %d of %d: %#x bytes, index %d, want %#x, %d", i, n, e.ByteCount(), e.Counter(), want, next)
			}
			if next++; strides {
				next += e.Strides().Count() - 1
			}
		}
	})
}
