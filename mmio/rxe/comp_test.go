package rxe

import (
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// wc is everything that a completion says.
type wc struct {
	WRID            uint64
	Status          uint32
	Opcode          uint32
	VendorErr       uint32
	ByteLen         uint32
	Imm             uint32
	InvalidatedRKey uint32
	QPN             uint32
	SrcQP           uint32
	Flags           uint32
	PKeyIndex       uint16
	SLID            uint16
	SL              uint8
	DLIDPathBits    uint8
	PortNum         uint8
}

// read fills w with what a completion says, as a caller's slice is filled.
func read(w *wc, c Completion) {
	w.WRID, w.Status, w.Opcode, w.VendorErr, w.ByteLen = c.WRID(), c.Status(), c.Opcode(), c.VendorErr(), c.ByteLen()
	w.Imm, w.InvalidatedRKey = c.Imm(), c.InvalidatedRKey()
	w.QPN, w.SrcQP, w.Flags = c.QPN(), c.SrcQP(), c.Flags()
	w.PKeyIndex, w.SLID, w.SL, w.DLIDPathBits, w.PortNum = c.PKeyIndex(), c.SLID(), c.SL(), c.DLIDPathBits(), c.PortNum()
}

// golden is struct ib_uverbs_wc with a different value in every byte. The offsets come from the C
// header.
var golden = []field{
	{"wr_id", 0, uint64(0x0102030405060708)},
	{"status", 8, uint32(0x11121314)},
	{"opcode", 12, uint32(0x21222324)},
	{"vendor_err", 16, uint32(0x31323334)},
	{"byte_len", 20, uint32(0x41424344)},
	{"ex.imm_data", 24, be32(0x51525354)},
	{"qp_num", 28, uint32(0x61626364)},
	{"src_qp", 32, uint32(0x71727374)},
	{"wc_flags", 36, uint32(0x81828384)},
	{"pkey_index", 40, uint16(0x9192)},
	{"slid", 42, uint16(0xa1a2)},
	{"sl", 44, uint8(0xb1)},
	{"dlid_path_bits", 45, uint8(0xb2)},
	{"port_num", 46, uint8(0xb3)},
}

func TestCompletionBytes(t *testing.T) {
	p := newPeer(6, 2)
	q := must[*CompQueue](t)(NewCompQueue(p.mem, 3))
	p.put(golden...)
	if n, err := q.Avail(); n != 1 || err != nil {
		t.Fatalf("Avail() = %d, %v; want 1", n, err)
	}
	var got wc
	read(&got, q.Entry(0))
	want := wc{
		WRID: 0x0102030405060708, Status: 0x11121314, Opcode: 0x21222324, VendorErr: 0x31323334, ByteLen: 0x41424344,
		Imm: 0x51525354, InvalidatedRKey: binary.NativeEndian.Uint32([]byte{0x51, 0x52, 0x53, 0x54}), QPN: 0x61626364,
		SrcQP: 0x71727374, Flags: 0x81828384, PKeyIndex: 0x9192, SLID: 0xa1a2, SL: 0xb1, DLIDPathBits: 0xb2, PortNum: 0xb3,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("completion (-want +got):\n%s", diff)
	}
	q.Release(1)
	if got := p.consumer(); got != 1 {
		t.Errorf("the kernel sees consumer %d, want 1", got)
	}
}

// TestCompletionsWrap runs batches of every size around the ring, from every
// start, and checks each entry, the order and the published index.
func TestCompletionsWrap(t *testing.T) {
	const shift, log2Elems, mask = 6, 3, 7
	for start := range uint32(mask + 1) {
		for batch := 1; batch <= mask; batch++ {
			p := newPeer(shift, log2Elems)
			p.startAt(start)
			q := must[*CompQueue](t)(NewCompQueue(p.mem, mask))
			var id uint64
			for range 4 {
				for i := range batch {
					if !p.put(field{"wr_id", 0, id + uint64(i)}) {
						t.Fatalf("start %d, batch %d: the kernel finds no room", start, batch)
					}
				}
				n, err := q.Avail()
				if n != batch || err != nil {
					t.Fatalf("start %d: Avail() = %d, %v; want %d", start, n, err, batch)
				}
				for i := range n {
					if got := q.Entry(i).WRID(); got != id {
						t.Errorf("start %d, batch %d: entry %d has ID %d, want %d", start, batch, i, got, id)
					}
					id++
				}
				q.Release(n)
				if got, want := p.consumer(), (start+uint32(id))&mask; got != want {
					t.Fatalf("start %d, batch %d: the kernel sees consumer %d, want %d", start, batch, got, want)
				}
				if n, err := q.Avail(); n != 0 || err != nil {
					t.Fatalf("start %d: Avail() = %d, %v of an empty ring", start, n, err)
				}
			}
		}
	}
}

func TestCompletionsReleasedInParts(t *testing.T) {
	p := newPeer(6, 2)
	q := must[*CompQueue](t)(NewCompQueue(p.mem, 3))
	for i := range uint64(3) {
		p.put(field{"wr_id", 0, i})
	}
	if p.put(field{"wr_id", 0, uint64(3)}) {
		t.Fatal("a ring of four took a fourth entry")
	}
	for i := range uint64(3) {
		if n, err := q.Avail(); n != 3-int(i) || err != nil {
			t.Fatalf("Avail() = %d, %v; want %d", n, err, 3-i)
		}
		if got := q.Entry(0).WRID(); got != i {
			t.Errorf("ID %d, want %d", got, i)
		}
		q.Release(1)
		if q.Release(0); p.consumer() != uint32(i)+1 {
			t.Errorf("the kernel sees consumer %d, want %d", p.consumer(), i+1)
		}
	}
}

func TestCompQueueHostileIndex(t *testing.T) {
	for _, tc := range []struct {
		name     string
		producer uint32
		want     error
		n        int
	}{
		{"as it was", 4, nil, 2},
		{"two on", 6, nil, 4},
		{"around to one before the consumer", 1, nil, 7}, // a full ring, for all one can know
		{"one back", 3, ErrCorrupt, 0},
		{"back to the consumer", 2, ErrCorrupt, 0},
		{"one past the mask", 8, ErrCorrupt, 0},
		{"right but for a high bit", 1<<16 + 5, ErrCorrupt, 0},
		{"top bit", 1 << 31, ErrCorrupt, 0},
		{"all ones", math.MaxUint32, ErrCorrupt, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPeer(6, 3)
			p.startAt(2)
			q := must[*CompQueue](t)(NewCompQueue(p.mem, 7))
			p.put()
			p.put()
			if n, err := q.Avail(); n != 2 || err != nil {
				t.Fatal(n, err)
			}
			p.setProducer(tc.producer)
			if n, err := q.Avail(); n != tc.n || err != tc.want {
				t.Errorf("Avail() = %d, %v; want %d, %v", n, err, tc.n, tc.want)
			}
		})
	}
}

func TestPollDoesNotAllocate(t *testing.T) {
	p := newPeer(6, 3)
	q := must[*CompQueue](t)(NewCompQueue(p.mem, 7))
	var w wc
	if n := testing.AllocsPerRun(1000, func() {
		p.index = (p.index + 7) & p.mask
		p.setProducer(p.index)
		n, err := q.Avail()
		if n != 7 || err != nil {
			t.Fatal(n, err)
		}
		for i := range n {
			read(&w, q.Entry(i))
		}
		q.Release(n)
	}); n != 0 {
		t.Errorf("%v allocations for seven completions, want 0", n)
	}
}

// TestInjected: the text names the queue and, if the code has it, the number of the work request.
func TestInjected(t *testing.T) {
	for code, want := range map[uint32]string{
		0: "", 2: "", 1 << 2: "", 1: "fail=send of", 3: "fail=recv of", 1 | 1<<2: "fail=send:0 of", 3 | 4<<2: "fail=recv:3 of", 1<<32 - 1: "fail=recv:1073741822 of",
	} {
		text, ok := Injected(code)
		if ok != (want != "") || !strings.Contains(text, want) {
			t.Errorf("%#x: %q, %v, want %q", code, text, ok, want)
		}
	}
}
