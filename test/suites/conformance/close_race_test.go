package conformance

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// connectToSelf connects a QP with itself, or on iWARP, where that cannot be, with one of the same
// PD. The first message on iWARP has a completion in the CQ.
func connectToSelf(t *testing.T, s *side, qp *queuePair) {
	t.Helper()
	switch {
	case rig.EFA():
		if qp != s.qp {
			must(t, initQP(qp.QP))
		}
		qp.meets(wayTo(t, s, s), qp)
	case rig.IWARP():
		cq, err := s.dev.CreateCQ(uverbs.CQOptions{Size: 16})
		must(t, err)
		closeLater(t, cq)
		peer, err := s.pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq})
		must(t, err)
		closeLater(t, peer)
		must(t, peer.Init())
		if qp != s.qp {
			must(t, qp.Init())
		}
		joinIWARP(t, qp.QP, peer, s.cq)
	default:
		end, err := qp.Endpoint()
		must(t, err)
		must(t, qp.Connect(t.Context(), end))
	}
}

// writeToSelf writes from a side's memory to its own.
func writeToSelf(s *side) uverbs.SendWR {
	return uverbs.SendWR{ID: 1, Opcode: uverbs.WRRDMAWrite, SGL: []uverbs.SGE{s.mr.SGE(0, 8)}, RemoteAddr: s.mr.Addr() + 64, RKey: s.mr.RKey()}
}

// TestCloseWhileInUse closes objects that another goroutine is using. That goroutine gets
// os.ErrClosed, or what it would have got before the close, and touches no memory that is gone.
func TestCloseWhileInUse(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink, testenv.Long)
	testenv.Guest(t)
	dev := openDevice(t, deviceName)
	bad := uverbs.WC{ID: 1 << 41, Status: uverbs.WCLocProtErr}
	for _, c := range []struct {
		name  string
		close func(*side) error // what is closed while use runs
		use   func(*side) error // again and again, until it says that the object is closed
	}{
		{"PostRecv", func(s *side) error { return s.qp.Close() }, func(s *side) error { return s.qp.PostRecv(1, s.mr.SGE(0, 8)) }},
		{"PostSend", func(s *side) error { return s.qp.Close() }, func(s *side) error { return s.qp.PostSend(writeToSelf(s)) }},
		{"Err", func(s *side) error { return s.qp.Close() }, func(s *side) error {
			s.qp.Err(&bad)
			return s.qp.PostRecv(1, s.mr.SGE(0, 8))
		}},
		{"Query", func(s *side) error { return s.qp.Close() }, func(s *side) error { _, err := s.qp.Query(); return err }},
		{"Modify", func(s *side) error { return s.qp.Close() }, func(s *side) error {
			if rig.EFA() {
				return s.qp.Modify(uverbs.QPAttr{QKey: testQKey}, uverbs.AttrQKey)
			}
			return s.qp.Modify(uverbs.QPAttr{MinRNRTimer: 12}, uverbs.AttrMinRNRTimer)
		}},
		{"Endpoint", func(s *side) error { return s.qp.Close() }, func(s *side) error { _, err := s.qp.Endpoint(); return err }},
		{"Poll", func(s *side) error { return errors.Join(s.qp.Close(), s.cq.Close()) }, func(s *side) error {
			_, err := s.cq.Poll(make([]uverbs.WC, 4))
			return err
		}},
		{"Notify", func(s *side) error { return errors.Join(s.qp.Close(), s.cq.Close()) }, func(s *side) error { return s.cq.Notify() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			switch c.name {
			case "Modify":
				testenv.NeedsIB(t, "acknowledgements")
			case "Endpoint":
				testenv.NeedsIB(t, "GIDs")
			}
			for range 10 {
				s := newSide(t, dev, uverbs.QPOptions{})
				connectToSelf(t, s, s.qp)
				must(t, c.use(s))
				closeBeside(t, func() error { return c.use(s) }, func() error { return c.close(s) })
			}
		})
	}
}

// closeBeside calls use again and again, and closes what it uses meanwhile.
func closeBeside(t *testing.T, use, closeIt func() error) {
	t.Helper()
	var wg sync.WaitGroup
	started := make(chan struct{})
	wg.Go(func() {
		for n := 0; ; n++ {
			err := use()
			if n == 0 {
				close(started)
			}
			switch {
			case errors.Is(err, os.ErrClosed):
				return
			case err != nil && !errors.Is(err, uverbs.ErrQueueFull):
				t.Errorf("error is %v, want os.ErrClosed", err)
				return
			}
		}
	})
	<-started
	time.Sleep(100 * time.Microsecond)
	must(t, closeIt())
	wg.Wait()
}

// TestCloseWQWhileInUse does the same as TestCloseWhileInUse with a work queue.
func TestCloseWQWhileInUse(t *testing.T) {
	testenv.Guest(t)
	testenv.Needs(t, "work queues", "mlx5")
	testenv.NeedsRoCE(t, "Ethernet")
	s := newSide(t, openDevice(t, deviceName), uverbs.QPOptions{})
	for range 10 {
		wq, err := s.pd.CreateWQ(uverbs.WQOptions{CQ: s.cq})
		must(t, err)
		closeBeside(t, func() error { return errors.Join(wq.Modify(uverbs.WQReady), wq.Modify(uverbs.WQReset)) }, wq.Close)
	}
}

// TestPollWhileQPsClose: one goroutine polls the CQ of several QPs, whose work requests fail, while
// others close them.
func TestPollWhileQPsClose(t *testing.T) {
	testenv.Guest(t)
	dev := openDevice(t, deviceName)
	for range 2 {
		a := newSide(t, dev, uverbs.QPOptions{})
		var qps []*queuePair
		for range 4 {
			qp, err := asSide(a.pd.CreateQP(uverbs.QPOptions{Type: reliable, SendCQ: a.cq, RecvCQ: a.cq, MaxSendWR: 8}))
			must(t, err)
			connectToSelf(t, a, qp)
			qps = append(qps, qp)
		}
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			wcs := make([]uverbs.WC, 4)
			for {
				if _, err := a.cq.Poll(wcs); err != nil {
					t.Errorf("Poll: %v", err)
				}
				runtime.Gosched()
				select {
				case <-stop:
					return
				default:
				}
			}
		})
		must(t, inThreads(len(qps), func(i int) error {
			for n := range 4 {
				wr := send(uint64(n), uverbs.SGE{Addr: 4096, Length: 8, LKey: 0x1000})
				if err := qps[i].PostSend(wr); err != nil && !errors.Is(err, uverbs.ErrState) {
					return err
				}
			}
			return qps[i].Close()
		}))
		close(stop)
		wg.Wait()
	}
}
