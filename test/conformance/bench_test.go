package conformance

import (
	"fmt"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// BenchmarkQPs sends messages of 64 bytes over one connection after another, all on one
// CQ. The time per message should not depend on how many connections there are.
func BenchmarkQPs(b *testing.B) {
	testenv.Guest(b)
	for _, pairs := range []int{1, 500} {
		b.Run(fmt.Sprintf("%d QPs", 2*pairs), func(b *testing.B) { benchmarkQPs(b, pairs) })
	}
}

func benchmarkQPs(b *testing.B, pairs int) {
	check := func(err error) {
		if err != nil {
			b.Helper()
			b.Fatal(err)
		}
	}
	dev, err := uverbs.Open(deviceName)
	check(err)
	defer dev.Close()
	pd, err := dev.AllocPD()
	check(err)
	defer pd.Close()
	buf, err := uverbs.AllocBuffer(4096)
	check(err)
	defer buf.Close()
	mr, err := pd.RegMR(buf, uverbs.AccessLocalWrite)
	check(err)
	defer mr.Close()
	cq, err := dev.CreateCQ(16, uverbs.CQOptions{})
	check(err)
	defer cq.Close()
	qps := make([][2]*uverbs.QP, pairs)
	for i := range qps {
		var ends [2]uverbs.Endpoint
		for side := range 2 {
			qp, err := pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1,
				Path: uverbs.PathOptions{GID: uverbs.GIDAt(ipv4Index)}})
			check(err)
			defer qp.Close()
			qps[i][side] = qp
			ends[side], err = qp.Endpoint()
			check(err)
		}
		check(qps[i][0].Connect(b.Context(), ends[1]))
		check(qps[i][1].Connect(b.Context(), ends[0]))
	}
	var wcs [2]uverbs.WC
	next := 0
	b.ReportAllocs()
	for b.Loop() {
		from, to := qps[next][0], qps[next][1]
		next = (next + 1) % pairs
		check(to.PostRecv(1, mr.SGE(2048, 64)))
		check(from.PostSend(send(2, mr.SGE(0, 64))))
		for done := 0; done < 2; {
			n, err := cq.Poll(wcs[:])
			check(err)
			for _, wc := range wcs[:n] {
				check(wc.Err())
			}
			done += n
		}
	}
}
