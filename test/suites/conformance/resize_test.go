package conformance

import (
	"errors"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// TestResizeBusy resizes a CQ while a QP that completes to it closes and an event comes, again and
// again: what the other QP has done completes once and in order, and the next events come.
func TestResizeBusy(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink, testenv.SpecialCard, testenv.Unordered, testenv.Long)
	testenv.NeedsIB(t, "CQ resizing")
	testenv.Guest(t)
	testenv.Skip(t, resizes(t, deviceName))
	dev := openDevice(t, deviceName)
	a, b := newSide(t, dev, uverbs.QPOptions{}), newSide(t, dev, uverbs.QPOptions{})
	connect(t, a, b)
	const ofClosed = 1 << 32
	sent, received := uint64(0), uint64(0)
	deliver := func(n int) {
		t.Helper()
		for range n {
			must(t, b.qp.PostRecv(sent, b.mr.SGE(0, 8)), a.qp.PostSend(send(sent, a.mr.SGE(0, 8))))
			a.want(t, sent, uverbs.WCSend)
			sent++
		}
	}
	// collect polls what b has received, and what a QP has that is closed now, if the driver leaves
	// it in the CQ.
	collect := func() {
		t.Helper()
		for received < sent {
			wc := b.next(t)
			if wc.ID == ofClosed && wc.QPN != b.qp.QPN() {
				continue
			}
			if wc.ID != received || wc.QPN != b.qp.QPN() || wc.Err() != nil || wc.Opcode != uverbs.WCRecv {
				t.Fatalf("completion %+v, want of receive %d on QP %d", wc, received, b.qp.QPN())
			}
			received++
		}
	}
	waitAndPoll := func() {
		t.Helper()
		must(t, b.cq.Notify())
		deliver(1)
		if cq, err := b.ch.Next(withDeadline(t)); cq != b.cq || err != nil {
			t.Fatalf("Wait is %p, %v, want the resized CQ", cq, err)
		}
		collect()
	}
	for round := range 12 {
		// A second QP, whose completions lie between those of the first.
		from := newSide(t, dev, uverbs.QPOptions{})
		qp, err := b.pd.CreateQP(uverbs.QPOptions{SendCQ: b.cq, RecvCQ: b.cq})
		must(t, err, qp.Init())
		to := *b
		to.qp = &queuePair{QP: qp}
		connect(t, from, &to)
		must(t, b.cq.Notify())
		for range 4 {
			deliver(2)
			must(t, qp.PostRecv(ofClosed, b.mr.SGE(0, 8)), from.qp.PostSend(send(3, from.mr.SGE(0, 8))))
			from.want(t, 3, uverbs.WCSend)
		}
		deliver(1)
		ended := make(chan error, 2)
		go func() { ended <- qp.Close() }()
		go func() {
			_, err := b.ch.Next(t.Context())
			ended <- err
		}()
		err = b.cq.Resize([]int{300, 100}[round%2])
		must(t, err, errors.Join(<-ended, <-ended))
		collect()
		b.none(t)
		waitAndPoll()
		waitAndPoll()
	}
}

// TestResizeInFlight resizes a CQ while receives complete to it that a batch of sends causes, with others
// that nobody has polled: each completes once and in order.
func TestResizeInFlight(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink, testenv.SpecialCard)
	testenv.NeedsIB(t, "CQ resizing")
	testenv.Guest(t)
	testenv.Skip(t, resizes(t, deviceName))
	const batch = 32
	a, b := pair(t, uverbs.QPOptions{})
	must(t, b.cq.Resize(2*batch))
	sent, received := uint64(0), uint64(0)
	for round := range 60 {
		wrs := make([]uverbs.SendWR, batch)
		for i := range wrs {
			must(t, b.qp.PostRecv(sent, b.mr.SGE(0, 8)))
			wrs[i] = send(sent, a.mr.SGE(0, 8))
			sent++
		}
		must(t, a.qp.PostSend(wrs...))
		for i := range 4 { // with up to two batches in the CQ
			must(t, b.cq.Resize([]int{2 * batch, 300, 3 * batch, 150}[(round+i)%4]))
		}
		for i := range wrs {
			a.want(t, wrs[i].ID, uverbs.WCSend)
		}
		leave := uint64(round % batch)
		for received < sent-leave {
			b.want(t, received, uverbs.WCRecv)
			received++
		}
	}
	for received < sent {
		b.want(t, received, uverbs.WCRecv)
		received++
	}
	b.none(t)
}
