package soft_test

import (
	"errors"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// TestResources counts objects of each kind while they are there, of two contexts.
func TestResources(t *testing.T) {
	dev, err := soft.New(soft.Options{})
	testenv.Must(t, err)
	defer dev.Close()
	want := func(when string, want soft.ResourceCounts) {
		t.Helper()
		if got := dev.Resources(); got != want {
			t.Errorf("%s: %+v, want %+v", when, got, want)
		}
	}
	want("before", soft.ResourceCounts{})
	d, err := uverbs.Open(dev.Name(), uverbs.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	other, err := uverbs.Open(dev.Name(), uverbs.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pd, err := d.AllocPD()
	_, err2 := other.AllocPD()
	if err = errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	mr, err := pd.RegSlice(make([]byte, 64), uverbs.AccessLocalWrite)
	mw, err1 := pd.AllocMW(uverbs.MWType2)
	cq, err2 := d.CreateCQ(uverbs.CQOptions{Size: 3})
	srq, err3 := pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 3, MaxSGE: 1})
	if err = errors.Join(err, err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	qp, err := pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, SRQ: srq})
	gids, err1 := d.GIDTable(1)
	if err = errors.Join(err, err1); err != nil {
		t.Fatal(err)
	}
	ah, err := pd.CreateAH(uverbs.AHAttr{Port: 1, Global: true, GRH: uverbs.GRH{DGID: gids[0].GID, HopLimit: 1}}) // itself
	testenv.Must(t, err)
	want("with all", soft.ResourceCounts{Contexts: 2, PDs: 2, MRs: 1, MWs: 1, CQs: 1, QPs: 1, SRQs: 1, AHs: 1})
	testenv.Must(t, errors.Join(qp.Close(), srq.Close(), mw.Close(), mr.Close(), other.CloseAll()))
	want("with some closed", soft.ResourceCounts{Contexts: 1, PDs: 1, CQs: 1, AHs: 1})
	testenv.Must(t, errors.Join(ah.Close(), cq.Close(), pd.Close(), d.Close()))
	want("after", soft.ResourceCounts{})
}
