package conformance

import (
	"errors"
	"fmt"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// mostDepth is how deep the queues of TestDepthLimits are if the device allows more: all that a ConnectX
// allows, and what the other devices work off in some seconds.
func mostDepth() int {
	if onMLX5 {
		return 1 << 15
	}
	return 1 << 12
}

// deepest calls create with limit for the value of a field, and then with what the error allows, until that
// succeeds. It returns the value.
func deepest(t *testing.T, field string, limit int, create func(n int) error) int {
	t.Helper()
	for err := create(limit); err != nil; err = create(limit) {
		var low, most int
		arg := argError(t, err, field)
		if _, err := fmt.Sscanf(arg.Allowed, "%d to %d", &low, &most); err != nil || most < 1 || most >= limit {
			t.Fatalf("%s of %d allows %q, want a lower limit", field, limit, arg.Allowed)
		}
		limit = most
	}
	return limit
}

// TestDepthLimits fills the deepest send queue, receive queue, SRQ and CQ at once. Each request completes, and
// in order.
func TestDepthLimits(t *testing.T) {
	testenv.Tags(t, testenv.SpecialCard, testenv.Long)
	testenv.NeedsIB(t, "limits of queues")
	testenv.Guest(t)
	dev := openDevice(t, deviceName)
	attr := dev.Attr()
	a, b := newSide(t, dev, uverbs.QPOptions{}), newSide(t, dev, uverbs.QPOptions{})
	var err error
	largest := int(attr.MaxCQE)
	if !onMLX5 {
		largest = min(largest, 4*mostDepth())
	}
	for _, s := range []*side{a, b} {
		s.cq, err = dev.CreateCQ(uverbs.CQOptions{Size: largest})
		must(t, err)
		closeLater(t, s.cq)
	}
	var srq *uverbs.SRQ
	if !rig.EFA() {
		srq, err = b.pd.CreateSRQ(uverbs.SRQOptions{MaxWR: min(int(attr.MaxSRQWR), mostDepth())})
		must(t, err)
		closeLater(t, srq)
	}
	create := func(s *side, o uverbs.QPOptions) error {
		o.Type, o.SendCQ, o.RecvCQ = reliable, s.cq, s.cq
		s.qp, err = asSide(s.pd.CreateQP(o))
		if err == nil {
			closeLater(t, s.qp)
		}
		return err
	}
	limit := min(int(attr.MaxQPWR), mostDepth())
	sends := deepest(t, "MaxSendWR", limit, func(n int) error { return create(a, uverbs.QPOptions{MaxSendWR: n}) })
	deepest(t, "MaxRecvWR", limit, func(n int) error { return create(b, uverbs.QPOptions{MaxRecvWR: n}) })
	must(t, initQP(a.qp.QP), initQP(b.qp.QP))
	connect(t, a, b)
	write := uverbs.SendWR{Opcode: uverbs.WRRDMAWrite, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
	t.Run("sends", func(t *testing.T) {
		for range 2 { // over the end of the ring
			posts(t, sends, func(id uint64) error { write.ID = id; return a.qp.PostSend(write) })
			completes(t, a, sends)
		}
	})
	t.Run("receives", func(t *testing.T) { receivesFrom(t, a, b, sends, b.qp.Caps().MaxRecvWR, b.qp.PostRecv) })
	t.Run("SRQ", func(t *testing.T) {
		testenv.NotOnEFA(t, "SRQ")
		must(t, create(a, uverbs.QPOptions{MaxSendWR: sends}), create(b, uverbs.QPOptions{SRQ: srq}), a.qp.Init(), b.qp.Init())
		connect(t, a, b)
		receivesFrom(t, a, b, sends, srq.Attr().MaxWR, srq.PostRecv)
	})
}

// receivesFrom fills a queue of receives of b, sends as many messages, as many at once as the send queue of a
// has room for, and checks what completes at both ends.
func receivesFrom(t *testing.T, a, b *side, sends, recvs int, post func(uint64, ...uverbs.SGE) error) {
	t.Helper()
	posts(t, recvs, func(id uint64) error { return post(id, b.mr.SGE(64, 8)) })
	if err := post(uint64(recvs), b.mr.SGE(64, 8)); !errors.Is(err, uverbs.ErrQueueFull) {
		t.Fatalf("a receive more than %d: %v, want ErrQueueFull", recvs, err)
	}
	for left := recvs; left > 0; {
		n := min(left, sends)
		posts(t, n, func(id uint64) error { return a.qp.PostSend(send(id, a.mr.SGE(0, 8))) })
		completes(t, a, n)
		left -= n
	}
	completes(t, b, recvs)
}

// posts posts n requests with the IDs 0 to n-1.
func posts(t *testing.T, n int, post func(id uint64) error) {
	t.Helper()
	for i := range n {
		if err := post(uint64(i)); err != nil {
			testenv.Skip(t, cardLacks(err))
			t.Fatalf("request %d of %d: %v", i+1, n, err)
		}
	}
}

// completes polls the completions of n requests with the IDs 0 to n-1.
func completes(t *testing.T, s *side, n int) {
	t.Helper()
	for i := range n {
		wc := s.next(t)
		if err := s.qp.Err(&wc); err != nil || wc.ID != uint64(i) && !rig.EFA() {
			t.Fatalf("completion %d of %d is of request %d: %v", i+1, n, wc.ID, err)
		}
	}
}
