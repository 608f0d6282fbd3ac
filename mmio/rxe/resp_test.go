package rxe

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// resp is n bytes of a response, as struct mminfo and its users have them in
// rdma_user_rxe.h.
func resp(n int, fields ...field) []byte {
	b := bytes.Repeat([]byte{0xee}, n)
	write(b, fields)
	return b
}

func TestDecodeResp(t *testing.T) {
	one := []field{{"mi.offset", 0, uint64(0x1112131415161000)}, {"mi.size", 8, uint32(0x21222000)}}
	want := MapInfo{Offset: 0x1112131415161000, Size: 0x21222000}

	if got, err := DecodeCQResp(resp(16, one...)); got != want || err != nil {
		t.Errorf("create CQ: %+v, %v; want %+v", got, err, want)
	}
	if got, err := DecodeResizeCQResp(resp(16, one...)); got != want || err != nil {
		t.Errorf("resize CQ: %+v, %v; want %+v", got, err, want)
	}
	got, srqn, err := DecodeSRQResp(resp(24, append(one, field{"srq_num", 16, uint32(0x31323334)})...))
	if got != want || srqn != 0x31323334 || err != nil {
		t.Errorf("create SRQ: %+v, %#x, %v; want %+v, 0x31323334", got, srqn, err, want)
	}
	rq, sq, err := DecodeQPResp(resp(32, append(one, field{"sq_mi.offset", 16, uint64(0x5000)}, field{"sq_mi.size", 24, uint32(0x6000)})...))
	if diff := cmp.Diff([]MapInfo{want, {Offset: 0x5000, Size: 0x6000}}, []MapInfo{rq, sq}); diff != "" || err != nil {
		t.Errorf("create QP: %v (-want +got):\n%s", err, diff)
	}
}

func TestRespSizes(t *testing.T) {
	got := []int{CQRespSize, ResizeCQRespSize, QPRespSize, SRQRespSize}
	if diff := cmp.Diff([]int{16, 16, 32, 24}, got); diff != "" {
		t.Errorf("sizes of the C structs (-want +got):\n%s", diff)
	}
}

// decoders are all of them, without what they decode.
var decoders = map[string]struct {
	size   int
	decode func(b []byte) error
}{
	"rxe_create_cq_resp":  {16, func(b []byte) error { _, err := DecodeCQResp(b); return err }},
	"rxe_resize_cq_resp":  {16, func(b []byte) error { _, err := DecodeResizeCQResp(b); return err }},
	"rxe_create_qp_resp":  {32, func(b []byte) error { _, _, err := DecodeQPResp(b); return err }},
	"rxe_create_srq_resp": {24, func(b []byte) error { _, _, err := DecodeSRQResp(b); return err }},
}

func TestDecodeRespLength(t *testing.T) {
	for name, d := range decoders {
		for n := range d.size {
			if err := d.decode(make([]byte, n)); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s of %d bytes: %v, want an error that names it", name, n, err)
			}
		}
		for _, n := range []int{d.size, d.size + 1, 4096} {
			if err := d.decode(make([]byte, n)); err != nil {
				t.Errorf("%s of %d bytes: %v", name, n, err)
			}
		}
	}
	if mi, err := DecodeCQResp(resp(15)); mi != (MapInfo{}) || err == nil {
		t.Errorf("short response: %+v, %v; want nothing and an error", mi, err)
	}
}

func FuzzDecodeResp(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(resp(15))
	f.Add(resp(16, field{"mi.offset", 0, uint64(0x1000)}, field{"mi.size", 8, uint32(0x2000)}))
	f.Add(resp(24, field{"srq_num", 16, uint32(1)}))
	f.Add(resp(32, field{"sq_mi.offset", 16, uint64(0x1000)}))
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		for name, d := range decoders {
			if err := d.decode(b); (err == nil) != (len(b) >= d.size) {
				t.Errorf("%s of %d bytes: %v", name, len(b), err)
			}
		}
		if !bytes.Equal(before, b) {
			t.Error("a decoder changed its input")
		}
	})
}
