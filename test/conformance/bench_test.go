package conformance

import (
	"fmt"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// BenchmarkQPs sends messages of 64 bytes over connections that share one CQ, a list of
// them over each in turn. The time per message should not depend on how many connections
// there are.
//
// What grows with the number of those in use is the memory that a turn touches, most of it
// the kernel's. In an emulated machine that shows, as each page costs a walk of the page
// table: hence the lists of 16, which share the cost of a turn.
func BenchmarkQPs(b *testing.B) {
	testenv.Guest(b)
	for _, list := range []int{1, 16} {
		for _, n := range []struct {
			name        string
			pairs, used int
		}{{"2 QPs", 1, 1}, {"1000 QPs, 2 in use", 500, 1}, {"1000 QPs", 500, 500}} {
			b.Run(fmt.Sprintf("list of %d/%s", list, n.name), func(b *testing.B) { benchmarkQPs(b, n.pairs, n.used, list) })
		}
	}
}

func benchmarkQPs(b *testing.B, pairs, used, list int) {
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
	cq, err := dev.CreateCQ(2*list, uverbs.CQOptions{})
	check(err)
	defer cq.Close()
	qps := make([][2]*uverbs.QP, pairs)
	for i := range qps {
		var ends [2]uverbs.Endpoint
		for side := range 2 {
			qp, err := pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, MaxSendWR: list, MaxRecvWR: list,
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
	sends, recvs := make([]uverbs.SendWR, list), make([]uverbs.RecvWR, list)
	for i := range list {
		sends[i] = send(uint64(i), mr.SGE(0, 64))
		recvs[i] = uverbs.RecvWR{SGL: []uverbs.SGE{mr.SGE(2048, 64)}}
	}
	wcs := make([]uverbs.WC, 2*list)
	next := 0
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%list != 0 {
			continue // it was of the list
		}
		from, to := qps[next][0], qps[next][1]
		next = (next + 1) % used
		check(to.PostRecvs(recvs...))
		check(from.PostSend(sends...))
		for done := 0; done < 2*list; {
			n, err := cq.Poll(wcs)
			check(err)
			for _, wc := range wcs[:n] {
				check(wc.Err())
			}
			done += n
		}
	}
}
