package rxe

import (
	"encoding/binary"
	"errors"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/test/testenv"
)

// fuzzSpan is how much memory a fuzzed ring has at most, without the header.
const fuzzSpan = 16 << 10

// arena is memory with an inaccessible page on either side, so that a read or
// write out of bounds is a fault and no silent success. One is enough: a fuzz
// worker runs one input at a time.
var arena = sync.OnceValues(func() ([]byte, error) {
	const page = 64 << 10 // a multiple of every page size
	r, err := mmio.MapAnonymous(3*page, false)
	if err != nil {
		return nil, err
	}
	b := r.Bytes()
	if err := unix.Mprotect(b[:page], unix.PROT_NONE); err != nil {
		return nil, err
	}
	return b[page : 2*page], unix.Mprotect(b[2*page:], unix.PROT_NONE)
})

// place copies a ring into the arena so that it ends at the guard page. It is
// rounded up to whole elements of 8 bytes, for the alignment of its start.
func place(t *testing.T, header []byte, size uint16) []byte {
	all, err := arena()
	testenv.Must(t, err)
	n := min(int(size), fuzzSpan+hdrSize) &^ 7
	mem := all[len(all)-n:]
	clear(all)
	// The four words of the header that mean something, as far as they fit.
	for i, at := range []int{hdrLog2ElemSize, hdrIndexMask, hdrProducer, hdrConsumer} {
		if len(header) >= 4*i+4 && at+4 <= n {
			copy(mem[at:at+4], header[4*i:])
		}
	}
	return mem
}

// fuzzHeader is the seed form of place's header.
func fuzzHeader(words ...uint32) []byte {
	var b []byte
	for _, w := range words {
		b = binary.NativeEndian.AppendUint32(b, w)
	}
	return b
}

// fuzzSeeds adds rings that are good and rings that are nearly so, with
// operations that go around them.
func fuzzSeeds(f *testing.F) {
	around := make([]byte, 0, 256)
	for i := range 64 {
		around = append(around, byte(i%3), byte(i*5), 2, 1, 3, byte(i))
	}
	for _, size := range []uint16{0, 8, 383, 384, 384 + 8<<8, 384 + 8<<9, 384 + 256<<6, 1<<16 - 1} {
		for _, h := range [][]byte{
			fuzzHeader(8, 7, 0, 0), fuzzHeader(9, 7, 3, 3), fuzzHeader(6, 255, 10, 250), fuzzHeader(6, 0, 0, 0),
			fuzzHeader(8, 7, 8, 0), fuzzHeader(8, 7, 0, 1<<31), fuzzHeader(31, 0, 0, 0), fuzzHeader(64, 7, 0, 0),
			fuzzHeader(8, 1<<32-1, 0, 0), fuzzHeader(31, 1<<32-1, 0, 0), fuzzHeader(8, 6, 0, 0),
		} {
			f.Add(h, size, uint8(3), uint8(2), around)
		}
	}
}

// script hands out the bytes of a fuzzed sequence of operations, then zeros.
type script []byte

func (s *script) next() int {
	if len(*s) == 0 {
		return 0
	}
	b := (*s)[0]
	*s = (*s)[1:]
	return int(b)
}

// word is an index that the hostile kernel writes: small as a rule, large now
// and then.
func (s *script) word() uint32 {
	w := uint32(s.next())
	if w >= 0xf0 {
		w = w<<24 | uint32(s.next())
	}
	return w
}

// checkPosting runs a script on a producing ring. It checks Room against a
// model and leaves the checking of memory accesses to the guard pages.
func checkPosting(t *testing.T, mem []byte, ops script, entries int, q *producer, fill func(i int)) {
	mask := binary.NativeEndian.Uint32(mem[hdrIndexMask:])
	head, tail := binary.NativeEndian.Uint32(mem[hdrProducer:]), binary.NativeEndian.Uint32(mem[hdrConsumer:])
	if q.Cap() != int(mask) || q.Cap() < entries || head > mask || tail > mask {
		t.Fatalf("made with mask %d, producer %d, consumer %d for %d entries, capacity %d", mask, head, tail, entries, q.Cap())
	}
	for len(ops) > 0 {
		switch ops.next() % 4 {
		case 0, 1: // post n
			n := ops.next() % (q.Cap() + 2)
			room, err := q.Room(n)
			if n > int(mask-(head-tail)&mask) { // the index had to be loaded
				seen := binary.NativeEndian.Uint32(mem[hdrConsumer:])
				corrupt := seen > mask || (head-seen)&mask > (head-tail)&mask
				if corrupt != (err == ErrCorrupt) {
					t.Fatalf("consumer %d after %d, producer %d, mask %d: %v", seen, tail, head, mask, err)
				}
				if corrupt {
					return
				}
				tail = seen
			}
			if want := n <= int(mask-(head-tail)&mask); room != want || err != nil {
				t.Fatalf("Room(%d) = %v, %v with producer %d, consumer %d, mask %d", n, room, err, head, tail, mask)
			}
			if !room {
				continue
			}
			for i := range n {
				fill(i)
			}
			q.Publish(n)
			head = (head + uint32(n)) & mask
			if got := binary.NativeEndian.Uint32(mem[hdrProducer:]); got != head {
				t.Fatalf("published %d, want %d", got, head)
			}
		case 2: // the kernel stores an index
			binary.NativeEndian.PutUint32(mem[hdrConsumer:], ops.word())
		case 3: // the kernel spoils the rest of the header
			at := []int{hdrLog2ElemSize, hdrIndexMask, hdrProducer}[ops.next()%3]
			binary.NativeEndian.PutUint32(mem[at:], ops.word())
		}
	}
}

func FuzzSendQueue(f *testing.F) {
	fuzzSeeds(f)
	data := make([]byte, 1<<10)
	f.Fuzz(func(t *testing.T, header []byte, size uint16, entries, limit uint8, ops []byte) {
		mem := place(t, header, size)
		maxSGE, maxInline := int(limit%33), int(limit)*2
		q, err := NewSendQueue(mem, int(entries), maxSGE, maxInline)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) || q != nil {
				t.Fatal(q, err)
			}
			return
		}
		checkPosting(t, mem, ops, int(entries), &q.producer, func(i int) {
			s := q.Slot(i)
			s.Start(uint64(i), Write, 0)
			s.SetRDMA(1, 2)
			s.SetAtomic(1, 2, 3, 4)
			s.SetImm(5)
			s.SetInvalidate(6)
			if i%2 == 0 {
				for n := 0; ; n++ {
					if err := s.AddSGE(7, 8, 9); err != nil {
						if n != maxSGE || err != ErrTooManySGE {
							t.Fatalf("%d entries of %d, then %v", n, maxSGE, err)
						}
						break
					}
				}
				return
			}
			for n := 0; ; n += 7 {
				if err := s.AddInline(data[:7]); err != nil {
					if n+7 <= maxInline || err != ErrInlineTooLong {
						t.Fatalf("%d bytes of %d, then %v", n, maxInline, err)
					}
					break
				}
			}
		})
	})
}

func FuzzRecvQueue(f *testing.F) {
	fuzzSeeds(f)
	f.Fuzz(func(t *testing.T, header []byte, size uint16, entries, limit uint8, ops []byte) {
		mem := place(t, header, size)
		q, err := NewRecvQueue(mem, int(entries), int(limit))
		if err != nil {
			if !errors.Is(err, ErrCorrupt) || q != nil {
				t.Fatal(q, err)
			}
			return
		}
		checkPosting(t, mem, ops, int(entries), &q.producer, func(i int) {
			s := q.Slot(i)
			s.Start(uint64(i))
			for n := 0; ; n++ {
				if err := s.AddSGE(7, 8, 9); err != nil {
					if n != int(limit) || err != ErrTooManySGE {
						t.Fatalf("%d entries of %d, then %v", n, limit, err)
					}
					break
				}
			}
		})
	})
}

func FuzzCompQueue(f *testing.F) {
	fuzzSeeds(f)
	f.Fuzz(func(t *testing.T, header []byte, size uint16, entries, _ uint8, ops []byte) {
		mem := place(t, header, size)
		q, err := NewCompQueue(mem, int(entries))
		if err != nil {
			if !errors.Is(err, ErrCorrupt) || q != nil {
				t.Fatal(q, err)
			}
			return
		}
		mask := binary.NativeEndian.Uint32(mem[hdrIndexMask:])
		tail := binary.NativeEndian.Uint32(mem[hdrConsumer:])
		if q.Cap() != int(mask) || q.Cap() < int(entries) {
			t.Fatalf("capacity %d for mask %d and %d entries", q.Cap(), mask, entries)
		}
		var w wc
		for script := script(ops); len(script) > 0; {
			switch script.next() % 4 {
			case 0, 1: // poll
				n, err := q.Avail()
				if err != nil {
					if err != ErrCorrupt || n != 0 {
						t.Fatal(n, err)
					}
					return
				}
				head := binary.NativeEndian.Uint32(mem[hdrProducer:])
				if head > mask || n != int((head-tail)&mask) {
					t.Fatalf("Avail() = %d with producer %d, consumer %d, mask %d", n, head, tail, mask)
				}
				n = min(n, script.next())
				for i := range n {
					read(&w, q.Entry(i))
				}
				q.Release(n)
				tail = (tail + uint32(n)) & mask
				if got := binary.NativeEndian.Uint32(mem[hdrConsumer:]); got != tail {
					t.Fatalf("published %d, want %d", got, tail)
				}
			case 2: // the kernel stores an index
				binary.NativeEndian.PutUint32(mem[hdrProducer:], script.word())
			case 3: // the kernel spoils the rest of the header
				at := []int{hdrLog2ElemSize, hdrIndexMask, hdrConsumer}[script.next()%3]
				binary.NativeEndian.PutUint32(mem[at:], script.word())
			}
		}
	})
}
