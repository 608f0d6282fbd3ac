package peer

import (
	"strings"
	"testing"

	"github.com/goverbs/goverbs/uverbs"
)

// strangeReceives are completions of a receive for a message of n bytes that no exchange of this program
// allows, with what the error says.
func strangeReceives(id uint64, n uint32) map[string]uverbs.WC {
	recv := func(change func(*uverbs.WC)) uverbs.WC {
		wc := uverbs.WC{ID: id, Opcode: uverbs.WCRecv, ByteLen: n}
		change(&wc)
		return wc
	}
	return map[string]uverbs.WC{
		"is a RECV_RDMA_WITH_IMM of": recv(func(wc *uverbs.WC) { wc.Opcode, wc.Flags = uverbs.WCRecvRDMAWrite, uverbs.WCWithImm }),
		"is a RDMA_READ of":          recv(func(wc *uverbs.WC) { wc.Opcode = uverbs.WCRDMARead }),
		"with immediate data":        recv(func(wc *uverbs.WC) { wc.Flags, wc.Imm = uverbs.WCWithImm|uverbs.WCWithGRH, 0x1f }),
		"that invalidates a key":     recv(func(wc *uverbs.WC) { wc.Flags, wc.InvalidatedRKey = uverbs.WCWithInv, 0x2f }),
		"of 0 bytes":                 recv(func(wc *uverbs.WC) { wc.ByteLen = 0 }),
		"of 4294967295 bytes":        recv(func(wc *uverbs.WC) { wc.ByteLen = 1<<32 - 1 }),
	}
}

// TestCheckCompletion: a receive that is none of a SEND of the awaited length is refused, also one with the
// header of a datagram.
func TestCheckCompletion(t *testing.T) {
	for _, length := range []int{100, uverbs.GRHSize + 100} {
		good := uverbs.WC{ID: 1, Opcode: uverbs.WCRecv, ByteLen: uint32(length), Flags: uverbs.WCWithGRH}
		if err := CheckCompletion(&good, uverbs.WCRecv, length); err != nil {
			t.Errorf("a receive of %d bytes: %v", length, err)
		}
		for want, wc := range strangeReceives(1, uint32(length)) {
			if err := CheckCompletion(&wc, uverbs.WCRecv, length); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: %v, want %q", wc, err, want)
			}
		}
	}
}
