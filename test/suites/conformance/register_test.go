package conformance

import (
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// TestThreadDomain checks that QPs of a thread domain work, and that the domain outlives them.
func TestThreadDomain(t *testing.T) {
	testenv.Tags(t, testenv.SpecialCard)
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "thread domains", "mlx5")
		s := newSide(t, openDevice(t, deviceName), uverbs.QPOptions{})
		td, err := s.dev.AllocTD()
		testenv.Skip(t, err)
		must(t, err)
		closeLater(t, td)
		pd, err := s.pd.AllocParentDomain(td)
		must(t, err)
		closeLater(t, pd)
		for range 3 {
			qp, err := pd.CreateQP(uverbs.QPOptions{SendCQ: s.cq, RecvCQ: s.cq, MaxInline: 32})
			must(t, err)
			closeLater(t, qp)
			e, err := qp.Endpoint()
			must(t, err, qp.Connect(t.Context(), e))
			for i := range uint64(20) {
				wr := send(i)
				wr.Inline = []byte{1, 2, 3}
				must(t, qp.PostRecv(100+i, s.mr.SGE(0, 8)), qp.PostSend(wr))
				for range 2 {
					if wc := s.next(t); wc.Err() != nil || wc.QPN != qp.QPN() {
						t.Fatalf("%d: %v", i, qp.Err(&wc))
					}
				}
			}
		}
		if err := td.Close(); err == nil {
			t.Error("the domain was closed with a parent domain in it")
		}
	})
}

// TestManyRegisters gives QPs registers of their own, then registers that they share, and has all
// of them work.
func TestManyRegisters(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "registers", "mlx5")
		s := newSide(t, openDevice(t, deviceName), uverbs.QPOptions{})
		var qps []*uverbs.QP
		for range 100 {
			qp, err := s.pd.CreateQP(uverbs.QPOptions{SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: 4, MaxRecvWR: 4, Path: uverbs.PathOptions{GIDIndex: new(ipv4Index)}})
			must(t, err)
			closeLater(t, qp)
			e, err := qp.Endpoint()
			must(t, err, qp.Connect(t.Context(), e))
			qps = append(qps, qp)
		}
		for i, qp := range qps {
			must(t, qp.PostRecv(uint64(i), s.mr.SGE(8*i, 8)), qp.PostSend(send(uint64(i), s.mr.SGE(0, 8))))
		}
		seen := map[uint64]int{}
		for range 2 * len(qps) {
			wc := s.next(t)
			must(t, wc.Err())
			if wc.QPN != qps[wc.ID].QPN() {
				t.Fatalf("%+v is of another QP", wc)
			}
			seen[wc.ID]++
		}
		for i := range qps {
			if seen[uint64(i)] != 2 {
				t.Errorf("QP %d has %d completions, want 2", i, seen[uint64(i)])
			}
		}
	})
}

// TestHighRegisters has CQs and QPs on pages of registers whose number has more than 16 bits,
// which is all that the kernel's older way to name a CQ's page has room for.
func TestHighRegisters(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		const high = 1 << 16
		do := inject(t, deviceName)
		card, err := testenv.OpenCard(deviceName)
		must(t, err)
		closeLater(t, card)
		_, err = card.Do("uars %d", high) // an error if there are not so many
		testenv.NeedsCard(t, "UAR pages above 65535", err == nil)
		t.Cleanup(func() { do("uars 0x100") })
		dev := openDevice(t, deviceName)
		if n := do("uars %d", high); n == "0" {
			t.Fatal("no page is above 65535")
		}
		cq, err := dev.CreateCQ(uverbs.CQOptions{Size: 1})
		testenv.Skip(t, err)
		must(t, err, cq.Close())
		a, b := newSide(t, dev, uverbs.QPOptions{MaxInline: 64}), newSide(t, dev, uverbs.QPOptions{})
		connect(t, a, b)
		for i := range uint64(10) {
			must(t, b.qp.PostRecv(i, b.mr.SGE(0, 100)), b.cq.Notify())
			wr := send(i, a.mr.SGE(0, 100))
			if i%2 == 1 {
				wr.SGL, wr.Inline = nil, []byte{1, 2, 3}
			}
			must(t, a.qp.PostSend(wr))
			a.want(t, i, uverbs.WCSend)
			_, err := b.ch.Next(withDeadline(t))
			must(t, err)
			b.want(t, i, uverbs.WCRecv)
		}
	})
}
