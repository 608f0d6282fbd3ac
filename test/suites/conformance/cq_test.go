package conformance

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// TestResize changes the size of a CQ again and again, with completions in it and without,
// up and down: none is lost, their order stays, and an armed CQ stays armed.
func TestResize(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink, testenv.SpecialCard)
	testenv.NeedsIB(t, "CQ resizing")
	eachPath(t, func(t *testing.T) {
		a, b := pair(t, uverbs.QPOptions{})
		posted, polled := uint64(0), uint64(0)
		fill := func(n int) {
			t.Helper()
			for range n {
				must(t, b.qp.PostRecv(posted, b.mr.SGE(0, 8)), a.qp.PostSend(send(posted, a.mr.SGE(0, 8))))
				a.want(t, posted, uverbs.WCSend) // the peer has its completion then
				posted++
			}
		}
		poll := func(n int) {
			t.Helper()
			for range n {
				b.want(t, polled, uverbs.WCRecv)
				polled++
			}
		}
		testenv.Skip(t, resizes(t, deviceName))
		for _, step := range []struct{ fill, resize, poll int }{
			{0, 300, 0}, {11, 600, 5}, {1, 7, 3}, {0, 4, 0}, {0, 9, 4}, {9, 9, 9}, {3, 3, 0}, {0, 100, 2}, {40, 41, 41},
		} {
			fill(step.fill)
			must(t, b.cq.Resize(step.resize))
			if got := b.cq.Size(); got < step.resize || got > 2*step.resize {
				t.Errorf("Size is %d after Resize(%d)", got, step.resize)
			}
			poll(step.poll)
		}
		poll(int(posted - polled))
		b.none(t)

		fill(3)
		before := b.cq.Size()
		if err := b.cq.Resize(2); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("Resize below what is there: %v, want EINVAL", err)
		} else {
			says(t, err, "RESIZE_CQ", " completions in it", "poll them first")
		}
		if got := b.cq.Size(); got != before {
			t.Errorf("Size is %d after a failed Resize, want %d", got, before)
		}
		poll(3)
		argError(t, b.cq.Resize(0), "size")
		argError(t, b.cq.Resize(int(b.dev.Attr().MaxCQE)+1), "size")

		must(t, b.cq.Notify(), b.cq.Resize(50))
		fill(1)
		if cq, err := b.ch.Next(withDeadline(t)); cq != b.cq || err != nil {
			t.Errorf("Wait is %p, %v, want the resized CQ", cq, err)
		}
		poll(1)
		// Once more around the ring, several times.
		for range 30 {
			fill(20)
			poll(20)
		}
	})
}

// TestCQFeatures uses features that mlx5 has and rxe does not.
func TestCQFeatures(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		cq, err := dev.CreateCQ(uverbs.CQOptions{Size: 8})
		must(t, err)
		closeLater(t, cq)
		lacks := func(err error, feature string) {
			t.Helper()
			if rig.Driver == "mlx5" {
				must(t, err)
				return
			}
			var f *uverbs.FeatureError
			if !errors.As(err, &f) || f.Feature != feature || f.Driver != rig.Driver {
				t.Errorf("error is %v, want that rxe does not support %s", err, feature)
			}
			testenv.Lacks(t, err)
		}
		lacks(cq.Modify(10, time.Millisecond), "MODIFY_CQ")
		for flags, want := range map[uverbs.CQFlags]string{
			uverbs.CQTimestamp:                          "CREATE_CQ with CQTimestamp",
			uverbs.CQIgnoreOverrun:                      "CREATE_CQ with CQIgnoreOverrun",
			uverbs.CQTimestamp | uverbs.CQIgnoreOverrun: "CREATE_CQ with CQTimestamp|CQIgnoreOverrun",
		} {
			cq, err := dev.CreateCQ(uverbs.CQOptions{Size: 8, Flags: flags})
			lacks(err, want)
			if err == nil {
				must(t, cq.Close())
			}
		}
		_, err = dev.CreateCQ(uverbs.CQOptions{Size: 8, Flags: 1 << 7})
		argError(t, err, "Flags")
	})
}

// TestVectors uses every completion vector.
func TestVectors(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		pd, err := dev.AllocPD()
		must(t, err)
		closeLater(t, pd)
		n := dev.Attr().CompVectors
		if n < 1 {
			t.Fatalf("the device has %d completion vectors", n)
		}
		for vector := range n {
			ch, err := dev.CreateCompChannel()
			must(t, err)
			closeLater(t, ch)
			cq, err := dev.CreateCQ(uverbs.CQOptions{Size: 8, Channel: ch, Vector: vector})
			must(t, err)
			closeLater(t, cq)
			flush(t, pd, cq, 1)
			if got, err := ch.Next(withDeadline(t)); got != cq || err != nil {
				t.Errorf("vector %d: Wait is %p, %v, want %p", vector, got, err, cq)
			}
		}
	})
}

// flush arms a CQ and has it get a completion with an ID.
func flush(t *testing.T, pd *uverbs.PD, cq *uverbs.CQ, id uint64) {
	t.Helper()
	qp, err := pd.CreateQP(uverbs.QPOptions{Type: reliable, SendCQ: cq, RecvCQ: cq})
	must(t, err)
	closeLater(t, qp)
	must(t, cq.Notify(), initQP(qp), qp.PostRecv(id, noMemory(t, pd)...), qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState))
}

// TestManyCQs: of many CQs on one channel each has its event, once.
func TestManyCQs(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		pd, err := dev.AllocPD()
		must(t, err)
		closeLater(t, pd)
		ch, err := dev.CreateCompChannel()
		must(t, err)
		closeLater(t, ch)
		missing := map[*uverbs.CQ]uint64{}
		for id := range uint64(40) {
			cq, err := dev.CreateCQ(uverbs.CQOptions{Size: 4, Channel: ch})
			must(t, err)
			closeLater(t, cq)
			missing[cq] = id
		}
		for cq, id := range missing {
			flush(t, pd, cq, id)
		}
		for len(missing) > 0 {
			cq, err := ch.Next(withDeadline(t))
			must(t, err)
			id, ok := missing[cq]
			if !ok {
				t.Fatal("a second event, or one of an unknown CQ")
			}
			if wc := (&side{cq: cq}).next(t); wc.ID != id {
				t.Errorf("completion of %d in the CQ of %d", wc.ID, id)
			}
			delete(missing, cq)
		}
	})
}

// TestSharedCQ: the completions of many QPs in one CQ name the QP.
func TestSharedCQ(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		pd, err := dev.AllocPD()
		must(t, err)
		closeLater(t, pd)
		cq, err := dev.CreateCQ(uverbs.CQOptions{Size: 200})
		must(t, err)
		closeLater(t, cq)
		want, none := map[uint32]uint64{}, noMemory(t, pd) // the next ID of a QP
		var qps []*uverbs.QP
		for range 10 {
			qp, err := pd.CreateQP(uverbs.QPOptions{Type: reliable, SendCQ: cq, RecvCQ: cq})
			must(t, err)
			closeLater(t, qp)
			must(t, initQP(qp))
			for i := range uint64(10) {
				must(t, qp.PostRecv(uint64(qp.QPN())<<8+i, none...))
			}
			want[qp.QPN()] = uint64(qp.QPN()) << 8
			qps = append(qps, qp)
		}
		for _, qp := range qps {
			must(t, qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState))
		}
		for range 100 {
			wc := (&side{cq: cq}).next(t)
			if wc.ID != want[wc.QPN] {
				t.Fatalf("completion of %#x on QP %#x, want %#x", wc.ID, wc.QPN, want[wc.QPN])
			}
			want[wc.QPN]++
		}
	})
}
