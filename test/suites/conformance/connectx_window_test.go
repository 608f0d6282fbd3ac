package conformance

import (
	"slices"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// TestWindowZeroBased: the addresses of a window that is bound so count from 0, up to its length.
func TestWindowZeroBased(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.Guest(t)
	testenv.Needs(t, "zero-based windows", "mlx5")
	a, b := pair(t, refusing)
	mw, mr := window(t, b, uverbs.MWType2)
	wr := binding(50, mw, mr, windowRights|uverbs.AccessZeroBased)
	wr.Bind.Addr, wr.Bind.Length = mr.Addr()+4096, 1000
	must(t, b.qp.PostSend(wr))
	b.want(t, 50, uverbs.WCBindMW)
	want := slices.Clone(b.fill(4096, 1000, 5))
	if st := a.rdma(t, uverbs.WRRDMARead, a.mr.SGE(8192, 900), 100, mw.RKey()); st != uverbs.WCSuccess {
		t.Errorf("RDMA READ: %s", st)
	}
	a.holds(t, 8192, want[100:])
	want = slices.Clone(a.fill(0, 50, 99))
	if st := a.rdma(t, uverbs.WRRDMAWrite, a.mr.SGE(0, 50), 0, mw.RKey()); st != uverbs.WCSuccess {
		t.Errorf("RDMA WRITE: %s", st)
	}
	b.holds(t, 4096, want)
	if st := a.rdma(t, uverbs.WRRDMARead, a.mr.SGE(8192, 8), 993, mw.RKey()); st != uverbs.WCRemAccessErr {
		t.Errorf("RDMA READ past the end: %s, want %s", st, uverbs.WCRemAccessErr)
	}
}

// TestWindowAfterQP: a window of type 2 whose QP is closed can be closed.
func TestWindowAfterQP(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.Guest(t)
	testenv.Needs(t, "QPs that may be closed with a window of type 2", "mlx5")
	_, b := pair(t, uverbs.QPOptions{})
	mw, mr := window(t, b, uverbs.MWType2)
	b.bound(t, mw, mr, windowRights)
	must(t, b.qp.Close(), mw.Close(), mr.Close())
}
