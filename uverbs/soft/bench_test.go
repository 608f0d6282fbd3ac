package soft_test

import (
	"testing"

	"github.com/goverbs/goverbs/uverbs"
)

// BenchmarkWrite writes 64 bytes to the peer's memory and polls for the completion, one after the
// other.
func BenchmarkWrite(b *testing.B) {
	x, y := twoSides(b, ways["directly"], uverbs.QPOptions{Path: uverbs.PathOptions{Access: uverbs.AccessRemoteWrite}})
	wr := uverbs.SendWR{
		Opcode: uverbs.WRRDMAWrite, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{x.mr.SGE(0, 64)},
		RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey(),
	}
	var wc [1]uverbs.WC
	b.ReportAllocs()
	for b.Loop() {
		if err := x.qp.PostSend(wr); err != nil {
			b.Fatal(err)
		}
		for n := 0; n == 0; {
			var err error
			if n, err = x.cq.Poll(wc[:]); err != nil {
				b.Fatal(err)
			}
		}
		if wc[0].Status != uverbs.WCSuccess {
			b.Fatal(wc[0].Status)
		}
	}
}
