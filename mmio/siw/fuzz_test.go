package siw

import (
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/test/testenv"
)

// arena is memory with an inaccessible page on either side, so that a read or write out of
// bounds is a fault and no silent success. One is enough: a fuzz worker runs one input at a time.
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

// place returns memory for a ring of some size that ends at the guard page, with what somebody
// has left in it.
func place(t *testing.T, size int, garbage []byte) []byte {
	all, err := arena()
	testenv.Must(t, err)
	clear(all)
	mem := all[len(all)-max(0, min(size, len(all)))&^7:]
	for i := range mem {
		if len(garbage) > 0 {
			mem[i] = garbage[i%len(garbage)]
		}
	}
	return mem
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

// seeds adds rings that are good and some that are not, with operations that go around them.
func seeds(f *testing.F) {
	around := make([]byte, 0, 256)
	for i := range 64 {
		around = append(around, byte(i%5), byte(i*5), byte(i%7))
	}
	for _, num := range []int{0, 1, 3, 4, 8, 64, 1 << 20, -1} {
		for _, size := range []int{0, 119, 120, 8 * 120, 8*120 - 1, 64 * 120, 4*32 + 8, 4 * 32} {
			f.Add(num, size, []byte(nil), around)
			f.Add(num, size, []byte{0xff, 0, 1}, around)
		}
	}
}

// FuzzPost runs a script of a program and of a kernel that writes anything anywhere, on a send
// or a receive ring. Nothing outside the memory may be touched; and where the kernel takes only
// what is valid, it takes what was posted, in order.
func FuzzPost(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, num, size int, garbage, ops []byte) {
		for _, elem := range []int{sqeSize, rqeSize} {
			mem := place(t, size, garbage)
			p := &peer{mem: mem, size: elem, num: uint32(num)}
			good := num > 0 && num <= 1<<28 && num&(num-1) == 0 && len(mem) >= num*elem
			var q poster
			var err error
			if elem == sqeSize {
				var sq *SendQueue
				if sq, err = NewSendQueue(mem, num, 3); err == nil {
					q = poster{p, sq.Room, func(i int, id uint64) {
						s := sq.Slot(i)
						s.Start(id, uint8(id%12), uint8(id)&(Signaled|Solicited|Fence))
						s.SetRDMA(id, uint32(id))
						for range id % 5 {
							s.AddSGE(id, uint32(id), 1)
						}
						if id%3 == 0 {
							s.AddInline(make([]byte, id%100))
						}
					}, func(n int) { sq.Publish(n); sq.Find(uint64(n)) }, sq.Cap, sq.Recall}
				}
			} else {
				var rq *RecvQueue
				if rq, err = NewRecvQueue(mem, num, 3); err == nil {
					q = poster{p, rq.Room, func(i int, id uint64) {
						s := rq.Slot(i)
						s.Start(id)
						for range id % 5 {
							s.AddSGE(id, uint32(id), 1)
						}
					}, rq.Publish, rq.Cap, rq.Recall}
				}
			}
			if good != (err == nil) || err != nil && !errors.Is(err, ErrMapping) {
				t.Fatalf("%d elements of %d bytes in %d: %v", num, elem, len(mem), err)
			}
			if err == nil {
				runPost(t, q, script(ops), len(garbage) == 0)
			}
		}
	})
}

// runPost runs a script. Honest says that nothing is in the ring that was not posted.
func runPost(t *testing.T, q poster, ops script, honest bool) {
	var posted, taken uint64
	for len(ops) > 0 {
		switch ops.next() % 5 {
		case 0, 1:
			n := ops.next() % (q.capa() + 2)
			room := q.room(n)
			if honest && room != (int(posted-taken)+n <= q.capa()) {
				t.Fatalf("Room(%d) = %v with %d of %d in use", n, room, posted-taken, q.capa())
			}
			if !room || n == 0 {
				continue
			}
			for i := range n {
				q.fill(i, posted+uint64(i))
			}
			q.publish(n)
			posted += uint64(n)
		case 2, 3:
			e := q.p.take()
			if !honest || e == nil {
				continue
			}
			if id := binary.LittleEndian.Uint64(e); id != taken || e[elemSGEs] > 3 {
				t.Fatalf("the kernel takes ID %d with %d entries, want ID %d and up to 3", id, e[elemSGEs], taken)
			}
			taken++
		case 4:
			switch what := ops.next(); {
			case what%16 == 0: // the kernel is gone
				ids := q.recall()
				if !honest {
					continue
				}
				var want []uint64
				for id := taken; id < posted; id++ {
					want = append(want, id)
				}
				if !slices.Equal(ids, want) {
					t.Fatalf("recalled %v, want %v", ids, want)
				}
				return
			case what%16 == 1: // somebody writes into the ring
				q.p.mem[(ops.next()<<8|ops.next())%len(q.p.mem)] = byte(ops.next())
				honest = false
			}
		}
	}
}

// FuzzComp reads a ring into which anything is written.
func FuzzComp(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, num, size int, garbage, ops []byte) {
		mem := place(t, size, garbage)
		q, err := NewCompQueue(mem, num)
		good := num > 0 && num <= 1<<28 && num&(num-1) == 0 && len(mem) >= num*cqeSize+ctrlSize
		if good != (err == nil) || err != nil && !errors.Is(err, ErrMapping) {
			t.Fatalf("%d elements in %d bytes: %v", num, len(mem), err)
		}
		if err != nil {
			return
		}
		p := &peer{mem: mem, size: cqeSize, num: uint32(num)}
		at := uint32(0)
		for s := script(ops); len(s) > 0; {
			switch s.next() % 4 {
			case 0, 1:
				c, ok := q.Next()
				e := p.elem(at)
				if ok != (e[elemFlags]&flagValid != 0) || c.WRID() != binary.LittleEndian.Uint64(e) || c.Opcode() != e[cqeOpcode] ||
					c.Status() != binary.LittleEndian.Uint16(e[cqeStatus:]) || c.ByteLen() != binary.LittleEndian.Uint32(e[cqeBytes:]) ||
					c.QPN() != binary.LittleEndian.Uint32(e[cqeQPID:]) {
					t.Fatalf("Next = %+v, %v of % x", c, ok, e)
				}
				if !ok {
					continue
				}
				if q.Release(); e[elemFlags] != 0 {
					t.Fatalf("flags %#x after Release", e[elemFlags])
				}
				at++
			case 2:
				mem[(s.next()<<8|s.next())%len(mem)] = byte(s.next())
			case 3:
				q.Arm()
			}
		}
	})
}

// FuzzResponses decodes anything.
func FuzzResponses(f *testing.F) {
	f.Add([]byte(nil), false)
	f.Add(make([]byte, 64), true)
	f.Add([]byte{9, 0, 0, 0, 16, 0, 0, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0, 0, 0, 0, 0}, false)
	f.Fuzz(func(t *testing.T, b []byte, shared bool) {
		check := func(kind string, r Ring, elem, extra uint64, err error) {
			if err == nil && (r.Num == 0 || r.Num&(r.Num-1) != 0 || r.Size != uint64(r.Num)*elem+extra) {
				t.Errorf("%s: %+v of % x", kind, r, b)
			}
		}
		r, err := DecodeCQResp(b)
		check("CQ", r, cqeSize, ctrlSize, err)
		r, err = DecodeSRQResp(b)
		check("SRQ", r, rqeSize, 0, err)
		rq, sq, err := DecodeQPResp(b, shared)
		check("send", sq, sqeSize, 0, err)
		if !shared {
			check("receive", rq, rqeSize, 0, err)
		}
	})
}
