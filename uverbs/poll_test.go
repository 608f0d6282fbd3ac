package uverbs

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/mmio/rxe"
)

// newPollRig makes a CQ of 1<<log2Len - 1 completions and its ring.
func newPollRig(tb testing.TB, log2Len int) (*CQ, *ringBytes) {
	tb.Helper()
	r := newRingBytes(6, log2Len)
	cq := &CQ{object: object{dev: bareDevice("rxe0"), kind: "CQ"}, kind: rxeDriver{}.kind()}
	cq.object.kind = "CQ"
	var err error
	if cq.rxe.ring, err = rxe.NewCompQueue(r.mem, int(r.mask)); err != nil {
		tb.Fatal(err)
	}
	return cq, r
}

// TestPollFields decodes struct ib_uverbs_wc with another value in every byte.
func TestPollFields(t *testing.T) {
	cq, r := newPollRig(t, 3)
	for _, f := range []slotField{
		{"wr_id", 0, host64(0x0102030405060708)},
		{"status", 8, host32(0x11121314)},
		{"opcode", 12, host32(0x21222324)},
		{"vendor_err", 16, host32(0x31323334)},
		{"byte_len", 20, host32(0x41424344)},
		{"ex.imm_data", 24, wire32(0x51525354)},
		{"qp_num", 28, host32(0x61626364)},
		{"src_qp", 32, host32(0x71727374)},
		{"wc_flags", 36, host32(0x81828383)},
		{"pkey_index", 40, binary.NativeEndian.AppendUint16(nil, 0x9192)},
		{"slid", 42, binary.NativeEndian.AppendUint16(nil, 0xa1a2)},
		{"sl", 44, []byte{0xb1}},
		{"dlid_path_bits", 45, []byte{0xb2}},
		{"port_num", 46, []byte{0xb3}},
	} {
		copy(r.slot(0)[f.at:], f.want)
	}
	r.put(1)
	wcs := []WC{{VLAN: 1, InvalidatedRKey: 2, FlowTag: 3, Timestamp: 4}, {}} // what rxe does not have must not stay
	if n, err := cq.Poll(wcs); n != 1 || err != nil {
		t.Fatalf("Poll is %d, %v; want 1", n, err)
	}
	want := []WC{{
		ID: 0x0102030405060708, Status: 0x11121314, Opcode: 0x21222324, VendorErr: 0x31323334, ByteLen: 0x41424344,
		Imm: 0x51525354, QPN: 0x61626364, SrcQP: 0x71727374, Flags: WCWithGRH | WCWithImm,
		PKeyIndex: 0x9192, SLID: 0xa1a2, SL: 0xb1, PathBits: 0xb2,
	}, {}}
	if diff := cmp.Diff(want, wcs); diff != "" {
		t.Errorf("completions (-want +got):\n%s", diff)
	}
}

// TestPollFlags: of the kernel's flags only those come through that WC has names for.
func TestPollFlags(t *testing.T) {
	for kernel, want := range map[uint32]WCFlags{0: 0, 1: WCWithGRH, 2: WCWithImm, 3: WCWithGRH | WCWithImm, 4: WCWithInv, 8: 0, math.MaxUint32: WCWithGRH | WCWithImm | WCWithInv} {
		cq, r := newPollRig(t, 3)
		copy(r.slot(0)[36:], host32(kernel))
		r.put(1)
		var wcs [1]WC
		if n, err := cq.Poll(wcs[:]); n != 1 || err != nil || wcs[0].Flags != want {
			t.Errorf("wc_flags %#x: %d, %v, flags %#x; want %#x", kernel, n, err, wcs[0].Flags, want)
		}
	}
}

// TestPollInvalidated: the key takes the place of the immediate, in the order of the host.
func TestPollInvalidated(t *testing.T) {
	cq, r := newPollRig(t, 3)
	copy(r.slot(0)[24:], host32(0x51525354))
	copy(r.slot(0)[36:], host32(1<<2))
	r.put(1)
	var wcs [1]WC
	if n, err := cq.Poll(wcs[:]); n != 1 || err != nil || wcs[0].InvalidatedRKey != 0x51525354 || wcs[0].Imm != 0 {
		t.Errorf("%d, %v: %+v", n, err, wcs[0])
	}
}

// TestPollInParts takes completions in the order of the ring, around its end, and gives
// back what it has taken and no more.
func TestPollInParts(t *testing.T) {
	cq, r := newPollRig(t, 3)
	wcs := make([]WC, 3)
	next := uint64(0)
	for range 5 {
		for i := range uint64(5) {
			copy(r.slot(uint32(next+i)), host64(next+i))
		}
		r.put(5)
		if n, err := cq.Poll(nil); n != 0 || err != nil {
			t.Errorf("Poll of nothing is %d, %v", n, err)
		}
		for _, want := range []int{3, 2, 0} {
			n, err := cq.Poll(wcs)
			if n != want || err != nil {
				t.Fatalf("Poll is %d, %v; want %d", n, err, want)
			}
			for _, wc := range wcs[:n] {
				if wc.ID != next {
					t.Errorf("ID is %d, want %d", wc.ID, next)
				}
				next++
			}
			if got, want := r.get(ringConsumer), uint32(next)&7; got != want {
				t.Errorf("the consumer index is %d, want %d", got, want)
			}
		}
	}
}

func TestPollHostileIndex(t *testing.T) {
	for name, producer := range map[string]uint32{
		"past the ring":         8,
		"right but for one bit": 1<<16 + 3,
		"back":                  1,
		"all ones":              math.MaxUint32,
	} {
		cq, r := newPollRig(t, 3)
		r.put(3)
		var wcs [2]WC
		if n, err := cq.Poll(wcs[:1]); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		r.set(ringProducer, producer)
		wcs = [2]WC{{ID: 77}, {ID: 77}}
		n, err := cq.Poll(wcs[:])
		if n != 0 || !errors.Is(err, ErrCQOverrun) || !errors.Is(err, rxe.ErrCorrupt) {
			t.Errorf("%s: %d, %v; want ErrCQOverrun", name, n, err)
		}
		if wcs[0].ID != 77 || r.get(ringConsumer) != 1 {
			t.Errorf("%s: a completion was taken: %+v, consumer index %d", name, wcs[0], r.get(ringConsumer))
		}
	}
}

func TestPollClosed(t *testing.T) {
	cq, r := newPollRig(t, 3)
	r.put(1)
	cq.closed.Store(true)
	var wcs [1]WC
	if n, err := cq.Poll(wcs[:]); n != 0 || !errors.Is(err, os.ErrClosed) {
		t.Errorf("Poll of a closed CQ is %d, %v; want os.ErrClosed", n, err)
	}
	errorIs(t, cq.Notify(), os.ErrClosed, "Notify of a closed CQ")
}

func TestPollDoesNotAllocate(t *testing.T) {
	cq, r := newPollRig(t, 5)
	wcs := make([]WC, 16)
	for name, want := range map[string]int{"empty": 0, "full": 16} {
		if n := testing.AllocsPerRun(100, func() {
			r.put(uint32(want))
			if n, err := cq.Poll(wcs); n != want || err != nil {
				t.Fatal(n, err)
			}
		}); n != 0 {
			t.Errorf("%s: Poll makes %v allocations, want 0", name, n)
		}
	}
}

func BenchmarkPoll16(b *testing.B) {
	cq, r := newPollRig(b, 6)
	wcs := make([]WC, 16)
	b.ReportAllocs()
	for b.Loop() {
		r.put(16)
		if n, err := cq.Poll(wcs); n != 16 || err != nil {
			b.Fatal(n, err)
		}
	}
}
