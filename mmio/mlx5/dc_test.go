//go:build amd64 || arm64

package mlx5

import (
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/mmio/mlx5/internal/abi"
)

// TestDCWQE compares WQEs of an initiator, byte by byte, with what libmlx5 makes of the same: the
// access key stands in place of the Q_Key, the number of the DCT in place of the QP's, the stream in the
// control segment; the memory of the peer follows. What changes a local key names no target.
func TestDCWQE(t *testing.T) {
	k := newCard(t, DC, 16, 3, 100)
	av := NewAV(&AVAttr{
		RoCE: true, MAC: [6]byte{2, 0, 0, 0, 0, 9}, Sport: 0xc123, SL: 3, Global: true, GID: [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: 7},
		GIDIndex: 5, HopLimit: 64, TrafficClass: 0x20, FlowLabel: 0x12345,
	})
	k.post(1, Send, Signaled, func(s *SendSlot) {
		s.SetDC(0x123456, 0x0011223344556677, 0, &av)
		ok(t, s.AddSGE(0x1122334455667788, 1000, 0xabcd))
	})
	k.post(2, WriteImm, 0, func(s *SendSlot) {
		s.SetDC(0x20000, 5, 0x1234, &av)
		s.SetRDMA(0x99, 0x77)
		s.SetImm(0xabcdef01)
		ok(t, s.AddInline([]byte{1, 2, 3}))
	})
	k.post(3, FAA, 0, func(s *SendSlot) {
		s.SetDC(7, 5, 0, &av)
		s.SetAtomic(0x98, 4, 0, 0x77)
		ok(t, s.AddSGE(16, 8, 0xabcd))
	})
	k.post(4, LocalInv, 0, func(s *SendSlot) { s.SetLocalInv(0xabc) })
	const address = "0600c123" + "00000000020000000009" + "2040" + "00512345" + "00000000000000000000ffff0a000007"
	for i, want := range []string{
		"0000000a" + "4a5b6c05" + "00000008" + "00000000" + "0011223344556677" + "80123456" + address + "000003e80000abcd1122334455667788",
		"00000209" + "4a5b6c06" + "00123400" + "abcdef01" + "0000000000000005" + "80020000" + address + "00000000000000990000007700000000" + "80000003010203",
		"00000412" + "4a5b6c07" + "00000000" + "00000000" + "0000000000000005" + "80000007" + address + "00000000000000980000007700000000" + "00000000000000040000000000000000" + "000000080000abcd0000000000000010",
		"00000625" + "4a5b6c08" + "00000000" + "00000abc" + "98000000",
	} {
		if got := hex.EncodeToString(k.take()); !strings.HasPrefix(got, want) {
			t.Errorf("WQE %d is\n%s, want\n%s", i, got, want)
		}
	}
	for id, what := range map[uint64]uint32{1: 1000, 2: 3, 3: 8} {
		if i, found := k.sq.Find(id); !found || i.Length != what {
			t.Errorf("%d: %+v, %v; want %d bytes", id, i, found, what)
		}
	}
}

// TestDCRequests compares what is sent to the kernel.
func TestDCRequests(t *testing.T) {
	field := func(b []byte, at, n int) uint64 {
		var v [8]byte
		copy(v[:n], b[at:])
		return binary.LittleEndian.Uint64(v[:])
	}
	dct := (&QPRequest{DC: Target, AccessKey: 0x0123456789abcdef, UserIndex: 7}).Encode()
	// flags at 28, uidx at 32, access_key at 40, dci_streams at 52 (struct mlx5_ib_create_qp)
	if flags, key := field(dct, 28, 4), field(dct, 40, 8); flags != abi.MLX5_QP_FLAG_TYPE_DCT || key != 0x0123456789abcdef || field(dct, 32, 4) != 7 {
		t.Errorf("a DCT is requested by %x", dct)
	}
	dci := (&QPRequest{DC: Initiator}).Encode()
	if flags := field(dci, 28, 4); flags != abi.MLX5_QP_FLAG_TYPE_DCI || field(dci, 52, 2) != 0 {
		t.Errorf("a DCI is requested by %x", dci)
	}
	streams := (&QPRequest{DC: Initiator, LogStreams: 3, LogFailed: 2}).Encode()
	if flags := field(streams, 28, 4); flags != abi.MLX5_QP_FLAG_TYPE_DCI|abi.MLX5_QP_FLAG_DCI_STREAM || field(streams, 52, 2) != 2<<8|3 {
		t.Errorf("a DCI with streams is requested by %x", streams)
	}
	resp := make([]byte, ModifyQPRespSize)
	resp[4], resp[8] = 9, 5
	if n, ece, err := DecodeModifyQP(resp); err != nil || n != 9 || ece != 5 {
		t.Errorf("the number of a DCT is %d and its ECE %#x, %v", n, ece, err)
	}
	if _, _, err := DecodeModifyQP(resp[:4]); err == nil {
		t.Error("a short response has a number")
	}
	caps := make([]byte, QueryDeviceRespSize)
	caps[40], caps[45], caps[49] = 64, 1, 1 // little-endian: 64, 256, 1<<8
	if least, most, types := DecodeRates(caps); least != 64 || most != 256 || types != 256 {
		t.Errorf("rates %d to %d of types %#x", least, most, types)
	}
	if _, most, _ := DecodeRates(caps[:90]); most != 0 {
		t.Error("a short response has rates")
	}
	caps[100], caps[101] = 4, 3
	if streams, failed := DecodeStreams(caps); streams != 4 || failed != 3 {
		t.Errorf("streams %d and %d", streams, failed)
	}
	if streams, failed := DecodeStreams(caps[:101]); streams != 0 || failed != 0 {
		t.Errorf("streams of a short response %d and %d", streams, failed)
	}
}
