package soft_test

import (
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// ok fails the test if there is an error.
func ok(t testing.TB, errs ...error) {
	t.Helper()
	for _, err := range errs {
		testenv.Must(t, err)
	}
}

// TestPostRecvInErr: receives complete as flushed when they are posted to a QP in state ERR, also again after a
// reset. A CQ that is armed for solicited completions raises an event for them.
func TestPostRecvInErr(t *testing.T) {
	d, err := soft.New(soft.Options{})
	ok(t, err)
	defer d.Close()
	dev, err := uverbs.Open(d.Name(), uverbs.OpenOptions{})
	ok(t, err)
	defer dev.CloseAll()
	pd, err := dev.AllocPD()
	ok(t, err)
	ch, err := dev.CreateCompChannel()
	ok(t, err)
	cq, err := dev.CreateCQ(uverbs.CQOptions{Size: 100, Channel: ch})
	ok(t, err)
	qp, err := pd.CreateQP(uverbs.QPOptions{Type: ib.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 4, MaxRecvWR: 8})
	ok(t, err)
	flushed := func(id uint64) {
		t.Helper()
		var wcs [1]uverbs.WC
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			if n, err := cq.Poll(wcs[:]); err != nil || n > 0 {
				ok(t, err)
				break
			}
			if time.Now().After(end) {
				t.Fatalf("receive %d does not complete", id)
			}
		}
		if wcs[0].ID != id || wcs[0].Status != uverbs.WCWRFlushErr {
			t.Errorf("completion %+v, want %d flushed", wcs[0], id)
		}
	}
	for range 2 {
		ok(t, qp.Init(), qp.PostRecv(1), cq.NotifySolicited(), qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState))
		flushed(1)
		ok(t, qp.PostRecv(2))
		flushed(2)
		ok(t, qp.PostRecvs(uverbs.RecvWR{ID: 3}, uverbs.RecvWR{ID: 4}))
		flushed(3)
		flushed(4)
		got, err := ch.Next(t.Context())
		ok(t, err)
		if got != cq {
			t.Errorf("an event of %v", got)
		}
		ok(t, qp.Modify(uverbs.QPAttr{State: ib.QPReset}, uverbs.AttrState))
	}
}

// TestTooManyReads: a QP whose MaxRdAtomic is more than the MaxDestRdAtomic of its peer works until it has that many
// READs under way.
func TestTooManyReads(t *testing.T) {
	d, err := soft.New(soft.Options{})
	ok(t, err)
	defer d.Close()
	options := func(n uint8) uverbs.QPOptions {
		return uverbs.QPOptions{MaxSendWR: 16, Path: uverbs.PathOptions{MaxRdAtomic: n}}
	}
	a, b := newSide(t, d, options(8)), newSide(t, d, options(4))
	connect(t, a, b)
	post := func(n int) {
		t.Helper()
		var wrs []uverbs.SendWR
		for i := range n {
			wrs = append(wrs, uverbs.SendWR{ID: uint64(i), Opcode: uverbs.WRRDMARead, Flags: uverbs.SendSignaled,
				SGL: []uverbs.SGE{a.mr.SGE(0, 1<<15)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
		}
		ok(t, a.qp.PostSend(wrs...))
	}
	var wcs [16]uverbs.WC
	for range 3 {
		post(4)
		for got := 0; got < 4; {
			n, err := a.cq.Wait(t.Context(), wcs[:])
			ok(t, err)
			for i := range wcs[:n] {
				ok(t, a.qp.Err(&wcs[i]))
			}
			got += n
		}
	}
	post(8)
	for got := 0; got < 8; {
		n, err := a.cq.Wait(t.Context(), wcs[:])
		ok(t, err)
		for _, wc := range wcs[:n] {
			want := uverbs.WCSuccess
			switch {
			case got == 4:
				want = uverbs.WCRemInvReqErr
			case got > 4:
				want = uverbs.WCWRFlushErr
			}
			if wc.ID != uint64(got) || wc.Status != want {
				t.Errorf("completion of %d: %v, want of %d: %v", wc.ID, wc.Status, got, want)
			}
			got++
		}
	}
}
