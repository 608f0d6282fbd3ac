package ring

import (
	"encoding/binary"
	"os"
	"runtime"
	"syscall"
	"testing"
)

// TestSizes compares the geometry of rings with that of rxe_queue_init: elements of a power of two of
// bytes and at least 64, a power of two of slots, one of them free. More than a page begins at a page.
func TestSizes(t *testing.T) {
	page := os.Getpagesize()
	for _, c := range []struct {
		what            string
		count, elemSize int
		slots, shift    int
	}{
		{"none", 0, 8, 1, 6},
		{"one", 1, 64, 2, 6},
		{"two need a third slot", 2, 65, 4, 7},
		{"three fill four slots", 3, 128, 4, 7},
		{"four need eight", 4, 129, 8, 8},
		{"completions", 100, CQESize, 128, 7},
		{"a send queue with 1 SGE", 64, SendElemSize(1, 0), 128, 8},
		{"a send queue with 512 bytes inline", 128, SendElemSize(4, 512), 256, 10},
		{"a receive queue with 32 SGEs", 127, RecvElemSize(32), 128, 10},
		{"the largest CQ", 1<<15 - 1, CQESize, 1 << 15, 7},
	} {
		r := newRing(t, c.count, c.elemSize)
		mem := r.Bytes()
		if r.Slots() != c.slots || r.Cap() != c.slots-1 {
			t.Errorf("%s: %d slots and room for %d, want %d slots", c.what, r.Slots(), r.Cap(), c.slots)
		}
		shift, mask := binary.NativeEndian.Uint32(mem[hdrLog2ElemSize:]), binary.NativeEndian.Uint32(mem[hdrIndexMask:])
		if int(shift) != c.shift || int(mask) != c.slots-1 {
			t.Errorf("%s: the program sees log2_elem_size %d and index_mask %#x, want %d and %#x", c.what, shift, mask, c.shift, c.slots-1)
		}
		size, align := hdrSize+c.slots<<c.shift, 64
		if size > page {
			align = page
		}
		if len(mem) != size || cap(mem) != size || address(mem)%align != 0 {
			t.Errorf("%s: %d bytes (of %d) at %#x, want %d at a multiple of %d", c.what, len(mem), cap(mem), address(mem), size, align)
		}
		if m := MapOf(r, 8192); m != (Map{Offset: 8192, Size: uint32(size)}) {
			t.Errorf("%s: the map is %+v", c.what, m)
		}
	}
}

// TestPair: the rings of a pair are neighbors, the shorter one first, and neither reaches into the other.
func TestPair(t *testing.T) {
	for _, shortFirst := range []bool{true, false} {
		var r [2]Ring
		long, short := &r[0], &r[1]
		if errno := InitPair(long, short, 20, 256, 20, 64); errno != 0 {
			t.Fatal(errno)
		}
		if shortFirst {
			long, short = new(Ring), new(Ring)
			if errno := InitPair(short, long, 20, 64, 20, 256); errno != 0 {
				t.Fatal(errno)
			}
		}
		a, b := short.Bytes(), long.Bytes()
		if len(a) != hdrSize+32*64 || cap(a) != len(a) || len(b) != hdrSize+32*256 || cap(b) != len(b) {
			t.Errorf("%d bytes (of %d) and %d (of %d)", len(a), cap(a), len(b), cap(b))
		}
		if address(a)+len(a) != address(b) || address(a)%os.Getpagesize() != 0 {
			t.Errorf("the rings are at %#x and %#x", address(a), address(b))
		}
		clear(a)
		if p := newProgram(t, b); p.mask() != 31 || len(p.elem(31)) != 256 {
			t.Errorf("the long ring has the mask %#x", p.mask())
		}
	}
}

// TestElementSizes compares element sizes and granted limits with those of rxe_init_sq, rxe_init_rq
// and rxe_cq_from_init.
func TestElementSizes(t *testing.T) {
	for _, c := range []struct{ sge, inline, size, gotSGE, gotInline int }{
		{0, 0, 208, 0, 0},
		{1, 0, 224, 1, 16},
		{4, 64, 272, 4, 64},
		{1, 100, 308, 6, 100},
		{32, 512, 720, 32, 512},
	} {
		sge, inline := SendCaps(c.sge, c.inline)
		if size := SendElemSize(c.sge, c.inline); size != c.size || sge != c.gotSGE || inline != c.gotInline {
			t.Errorf("%d SGEs and %d bytes inline: size %d, granted %d and %d; want %d, %d and %d",
				c.sge, c.inline, size, sge, inline, c.size, c.gotSGE, c.gotInline)
		}
	}
	if RecvElemSize(0) != 40 || RecvElemSize(32) != 552 || wcSize != 48 {
		t.Errorf("receives have %d and %d bytes, completions %d", RecvElemSize(0), RecvElemSize(32), wcSize)
	}
}

// TestIndices: a program can store any index, and the device uses it masked (queue_get_producer,
// queue_addr_from_index); what the device stores is masked.
func TestIndices(t *testing.T) {
	r := newRing(t, 7, 64)
	p := newProgram(t, r.Bytes())
	for _, c := range []struct{ stored, want uint32 }{{0, 0}, {7, 7}, {8, 0}, {0xffffffff, 7}, {0x80000003, 3}} {
		p.producer.Release(c.stored)
		p.consumer.Release(c.stored)
		if got := r.Producer(); got != c.want {
			t.Errorf("producer %#x: got %d, want %d", c.stored, got, c.want)
		}
		if got := r.Consumer(); got != c.want {
			t.Errorf("consumer %#x: got %d, want %d", c.stored, got, c.want)
		}
	}
	r.SetProducer(9)
	r.SetConsumer(10)
	if p, c := p.producer.Acquire(), p.consumer.Acquire(); p != 1 || c != 2 {
		t.Errorf("the program sees producer %d and consumer %d, want 1 and 2", p, c)
	}
	if r.Next(7) != 0 || r.Next(3) != 4 {
		t.Errorf("after 7 comes %d, after 3 %d", r.Next(7), r.Next(3))
	}
	for _, c := range []struct {
		from, to uint32
		n        int
		full     bool
	}{{0, 0, 0, false}, {0, 7, 7, true}, {7, 0, 1, false}, {6, 5, 7, true}, {0xfffffff9, 0, 7, true}} {
		if n, full := r.Count(c.from, c.to), r.Full(c.to, c.from); n != c.n || full != c.full {
			t.Errorf("from %d to %d: %d elements, full %t; want %d, %t", c.from, c.to, n, full, c.n, c.full)
		}
	}
	for i := range uint32(8) {
		p.elem(i)[0] = byte(i) + 1
	}
	for _, i := range []uint32{0, 7, 8, 0xffffffff} {
		e := r.Elem(i)
		if len(e) != 64 || cap(e) != 64 || e[0] != byte(i&7)+1 {
			t.Errorf("element %#x has %d bytes (of %d), the first %d", i, len(e), cap(e), e[0])
		}
	}
}

// TestReset: a QP in RESET has a ring without old requests (rxe_queue_reset), and the indices stay.
func TestReset(t *testing.T) {
	r := newRing(t, 3, 64)
	p := newProgram(t, r.Bytes())
	p.producer.Release(2)
	r.SetConsumer(1)
	for i := range uint32(4) {
		p.elem(i)[63] = 1
	}
	r.Reset()
	for i := range uint32(4) {
		if r.Elem(i)[63] != 0 {
			t.Errorf("element %d keeps its bytes", i)
		}
	}
	if r.Producer() != 2 || r.Consumer() != 1 || p.mask() != 3 {
		t.Errorf("producer %d, consumer %d, mask %d; want 2, 1, 3", r.Producer(), r.Consumer(), p.mask())
	}
}

// TestResize compares with resize_finish of rxe_queue.c: elements go to the start of the new ring, the
// old one is empty, and a ring that is too small is refused.
func TestResize(t *testing.T) {
	r := newRing(t, 7, CQESize)
	p := newProgram(t, r.Bytes())
	for i := range uint32(8) {
		p.elem(i)[71], p.elem(i)[100] = byte(i)+1, 9 // the last byte of an element, and one behind it
	}
	p.consumer.Release(6)
	r.SetProducer(2) // 6, 7, 0, 1 are in use
	for count, want := range map[int]int{2: -1, 3: -1, 4: 7, 100: 127} {
		n, elems, errno := r.Resize(count, 2, r.Consumer())
		if want < 0 {
			if n != nil || errno != syscall.EINVAL || r.Consumer() != 6 {
				t.Errorf("resized to %d with 4 in use: %v, %v, and the consumer is %d", count, n, errno, r.Consumer())
			}
			continue
		}
		if errno != 0 || elems != 4 || n.Cap() != want || n.Producer() != 4 || n.Consumer() != 0 {
			t.Fatalf("resized to %d: %v with %d elements", count, n, elems)
		}
		for i, from := range []byte{6, 7, 0, 1} {
			if e := n.Elem(uint32(i)); e[71] != from+1 || e[100] != 0 {
				t.Errorf("element %d has %d and %d, want %d and 0", i, e[71], e[100], from+1)
			}
		}
		if r.Count(r.Consumer(), 2) != 0 {
			t.Errorf("%d elements are left in the old ring", r.Count(r.Consumer(), 2))
		}
		p.consumer.Release(6)
	}
	if n, elems, errno := r.Resize(0, 6, 6); errno != 0 || n.Cap() != 0 || elems != 0 {
		t.Errorf("an empty ring resized to none: %v with %d elements", n, elems)
	}
}

// TestPassing passes work requests from a program's goroutine to the device and completions back,
// with rings that are full most of the time. The race detector sees whether indices order the rest.
func TestPassing(t *testing.T) {
	const total = 20000
	sq, cq := newRing(t, 7, SendElemSize(1, 0)), newRing(t, 7, CQESize)
	posts, polls := newProgram(t, sq.Bytes()), newProgram(t, cq.Bytes())
	go func() {
		for i := uint32(0); i < total; {
			if (i+1-posts.consumer.Acquire())&posts.mask() == 0 {
				runtime.Gosched()
				continue
			}
			write(posts.elem(i), field{0, uint64(i)}, field{12, uint32(2)}, field{184, uint32(8)}, field{196, uint32(1)}, field{216, uint32(8)})
			i++
			posts.producer.Release(i & posts.mask())
		}
	}()
	go func() { // the device
		var s Send
		for i := uint32(0); i < total; {
			if sq.Count(i, sq.Producer()) == 0 || cq.Full(i, cq.Consumer()) {
				runtime.Gosched()
				continue
			}
			status := uint32(0) // IB_WC_SUCCESS
			if !sq.ReadSend(i, &s, 1) {
				status = 2 // IB_WC_LOC_QP_OP_ERR
			}
			cq.WriteCompletion(i, &Completion{WRID: s.WRID, Status: status, ByteLen: s.Length})
			i++
			sq.SetConsumer(i)
			cq.SetProducer(i)
		}
	}()
	for i := uint32(0); i < total; {
		if (polls.producer.Acquire()-i)&polls.mask() == 0 {
			runtime.Gosched()
			continue
		}
		e := polls.elem(i)
		id, status := binary.NativeEndian.Uint64(e), binary.NativeEndian.Uint32(e[8:])
		if id != uint64(i) || status != 0 {
			t.Fatalf("completion %d has ID %d and status %d", i, id, status)
		}
		i++
		polls.consumer.Release(i & polls.mask())
	}
}
