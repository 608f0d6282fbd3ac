//go:build amd64 || arm64

package mlx5

import (
	"encoding/hex"
	"strings"
	"testing"
)

// TestRawHeader: the WQE of a frame for an adapter that wants 18 bytes of header in it, byte by
// byte as struct mlx5_wqe_eth_seg has them, given in pieces and with inline data behind, and how
// it is described.
func TestRawHeader(t *testing.T) {
	k := newCard(t, Raw, 16, 3, 100)
	k.sq.WantHeader(18)
	frame := make([]byte, 40)
	for i := range frame {
		frame[i] = byte(0x10 + i)
	}
	k.post(7, Send, Signaled, func(s *SendSlot) {
		if n := s.HeaderLeft(); n != 18 {
			t.Errorf("%d bytes are wanted", n)
		}
		s.AddHeader(frame[:1])
		s.AddHeader(frame[1:10])
		s.AddHeader(frame[10:18])
		if n := s.HeaderLeft(); n != 0 {
			t.Errorf("%d more bytes are wanted", n)
		}
		ok(t, s.AddSGE(0x1122334455667788, 1000, 0xabcd))
	})
	k.post(8, Send, 0, func(s *SendSlot) {
		s.AddHeader(frame[:18])
		ok(t, s.AddInline(frame[18:]))
	})
	k.post(9, Send, 0, func(s *SendSlot) { s.AddHeader(frame[:18]) })
	head := "00000000" + "00000000" + "00000000" + "0012" + "1011" + "12131415161718191a1b1c1d1e1f2021"
	for i, want := range []string{
		"0000000a" + "4a5b6c04" + "00000008" + "00000000" + head + "000003e80000abcd1122334455667788",
		"0000010a" + "4a5b6c05" + "00000000" + "00000000" + head + "80000016" + "22232425262728292a2b2c2d2e2f3031323334353637",
		"0000030a" + "4a5b6c03" + "00000000" + "00000000" + head,
	} {
		if got := hex.EncodeToString(k.take()); !strings.HasPrefix(got, want) {
			t.Errorf("WQE %d is\n%s, want\n%s", i, got, want)
		}
	}
	for id, length := range map[uint64]uint32{7: 1018, 8: 40, 9: 18} {
		if i, found := k.sq.Find(id); !found || i.Length != length {
			t.Errorf("%d: %+v, %v; want %d bytes", id, i, found, length)
		}
	}
}
