package conformance

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// rcSteps are what Connect does, step by step, with the values that it chooses.
func rcSteps(t *testing.T, s, peer *side) (rtr, rts func()) {
	t.Helper()
	local, err := s.qp.Endpoint()
	must(t, err)
	remote, err := peer.qp.Endpoint()
	must(t, err)
	rtr = func() {
		t.Helper()
		must(t, s.qp.Modify(uverbs.QPAttr{
			State: ib.QPRTR, PathMTU: ib.MTU1024, DestQPN: remote.QPN, RQPSN: remote.PSN, MaxDestRdAtomic: 4, MinRNRTimer: 12,
			AH: uverbs.AHAttr{Port: 1, DLID: remote.LID, Global: !rig.InfiniBand(), GRH: uverbs.GRH{DGID: remote.GID, SGIDIndex: uint8(ipv4Index), HopLimit: 64}},
		}, uverbs.AttrState|uverbs.AttrAH|uverbs.AttrPathMTU|uverbs.AttrDestQPN|uverbs.AttrRQPSN|uverbs.AttrMaxDestRdAtomic|uverbs.AttrMinRNRTimer))
	}
	rts = func() {
		t.Helper()
		must(t, s.qp.Modify(uverbs.QPAttr{
			State: ib.QPRTS, SQPSN: local.PSN, Timeout: 14, RetryCount: 6, RNRRetry: 6, MaxRdAtomic: 4,
		}, uverbs.AttrState|uverbs.AttrSQPSN|uverbs.AttrTimeout|uverbs.AttrRetryCount|uverbs.AttrRNRRetry|uverbs.AttrMaxRdAtomic))
	}
	return rtr, rts
}

// twoSides are not connected.
func twoSides(t *testing.T) (a, b *side) {
	t.Helper()
	testenv.Guest(t)
	dev := openDevice(t, deviceName)
	return newSide(t, dev, uverbs.QPOptions{}), newSide(t, dev, uverbs.QPOptions{})
}

// TestPostBeforeRTS posts in each state on the way to RTS. A request that is refused leaves nothing
// behind; receives wait for their messages.
func TestPostBeforeRTS(t *testing.T) {
	testenv.NeedsIB(t, "manual QP state changes")
	a, b := twoSides(t)
	post := func(id uint64, recv error) {
		t.Helper()
		errorIs(t, a.qp.PostSend(send(id, a.mr.SGE(0, 8))), uverbs.ErrState, "PostSend in %s", a.qp.State())
		errorIs(t, a.qp.PostRecv(id, a.mr.SGE(100*int(id), 100)), recv, "PostRecv in %s", a.qp.State())
	}
	must(t, a.qp.Modify(uverbs.QPAttr{State: ib.QPReset}, uverbs.AttrState))
	post(0, uverbs.ErrState)
	must(t, a.qp.Init())
	post(1, nil)
	toRTR, toRTS := rcSteps(t, a, b)
	toRTR()
	post(2, nil)

	// In RTR it receives, though it cannot send yet.
	rtr, rts := rcSteps(t, b, a)
	rtr()
	rts()
	for id := range uint64(2) {
		want := b.fill(0, 100, byte(50*id))
		must(t, b.qp.PostSend(send(id, b.mr.SGE(0, 100))))
		b.want(t, id, uverbs.WCSend)
		a.want(t, id+1, uverbs.WCRecv)
		a.holds(t, 100*int(id+1), want)
	}
	a.none(t)
	toRTS()
	must(t, b.qp.PostRecv(5, b.mr.SGE(0, 8)), a.qp.PostSend(send(6, a.mr.SGE(0, 8))))
	a.want(t, 6, uverbs.WCSend)
	b.want(t, 5, uverbs.WCRecv)
}

// TestReadWhileEnteringRTS reads from a QP in state RTR, and goes on while it enters RTS.
func TestReadWhileEnteringRTS(t *testing.T) {
	testenv.NeedsIB(t, "manual QP state changes")
	a, b := twoSides(t)
	rtr, rts := rcSteps(t, b, a)
	rtr()
	toRTR, toRTS := rcSteps(t, a, b)
	toRTR()
	toRTS()
	var reads atomic.Int64
	changed, done := make(chan bool), make(chan error, 1)
	want := b.fill(0, 3000, 3)
	go func() {
		for more := 50; more > 0; reads.Add(1) {
			select {
			case <-changed:
				changed = nil
			default:
			}
			if changed == nil {
				more--
			}
			if err := a.readOnce(b, 3000); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for end := time.Now().Add(deadline); reads.Load() < 50 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	rts()
	close(changed)
	must(t, <-done)
	a.holds(t, 0, want)
}

// readOnce reads from the start of the peer's buffer. It does not use testing.T, so that it
// can run in a goroutine.
func (s *side) readOnce(peer *side, n int) error {
	wr := send(1, s.mr.SGE(0, n))
	wr.Opcode, wr.RemoteAddr, wr.RKey = uverbs.WRRDMARead, peer.mr.Addr(), peer.mr.RKey()
	if err := s.qp.PostSend(wr); err != nil {
		return err
	}
	wc, err := s.poll()
	if err != nil {
		return err
	}
	return s.qp.Err(&wc)
}

// poll is next without testing.T.
func (s *side) poll() (uverbs.WC, error) {
	var wc [1]uverbs.WC
	for end := time.Now().Add(deadline); time.Now().Before(end); {
		if n, err := s.cq.Poll(wc[:]); n == 1 || err != nil {
			return wc[0], err
		}
	}
	return wc[0], errors.New("no completion in time")
}

// TestPostDuringMoveToErr moves a QP to ERR while a goroutine posts. Each request completes once
// and in order: first they succeed, then they are flushed, including those that are posted long
// after.
func TestPostDuringMoveToErr(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	const batch = 16
	testenv.Guest(t)
	if rxeBefore(t, 6, 0) {
		testenv.Skip(t, &uverbs.FeatureError{Feature: "flush of sends in ERR", Since: uverbs.Version{6, 0}})
	}
	for range 3 {
		a, b := pairOnce(t, uverbs.QPOptions{})
		next, flushed := uint64(0), false
		reads := func() error { // one batch
			var wrs []uverbs.SendWR
			for i := range uint64(batch) {
				wr := send(next+i, a.mr.SGE(0, 100))
				wr.Opcode, wr.RemoteAddr, wr.RKey = uverbs.WRRDMARead, b.mr.Addr(), b.mr.RKey()
				wrs = append(wrs, wr)
			}
			if err := a.qp.PostSend(wrs...); err != nil {
				return err
			}
			for range batch {
				wc, err := a.poll()
				if err != nil {
					return err
				}
				if err := a.qp.Err(&wc); wc.ID != next && !rig.EFA() || err != nil && !uverbs.IsFlush(err) || err == nil && flushed {
					return errors.Join(fmt.Errorf("completion of %d, want %d, flushed before: %t", wc.ID, next, flushed), err)
				} else if err != nil {
					flushed = true
				}
				next++
			}
			return nil
		}
		must(t, reads())
		if flushed {
			t.Fatal("flushed in RTS")
		}
		started, done := make(chan bool), make(chan error, 1)
		go func() {
			close(started)
			for !flushed {
				if err := reads(); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
		<-started
		must(t, a.qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState))
		must(t, <-done, reads())
		time.Sleep(50 * time.Millisecond)
		must(t, reads())
		a.none(t)
	}
}

// TestCreateAndCloseManyQPs creates and closes many QPs beside a connection: no two QPs that exist
// at the same time have the same number, and the connection keeps working.
func TestCreateAndCloseManyQPs(t *testing.T) {
	testenv.Tags(t, testenv.Long)
	a, b := pairOnce(t, uverbs.QPOptions{})
	stop, done := make(chan bool), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if err := a.readOnce(b, 100); err != nil {
				done <- err
				return
			}
		}
	}()
	cq, err := a.dev.CreateCQ(uverbs.CQOptions{Size: 1})
	must(t, err)
	closeLater(t, cq)
	inUse := map[uint32]bool{a.qp.QPN(): true, b.qp.QPN(): true}
	var recent [8]*uverbs.QP
	for i := range 50 {
		qp, err := a.pd.CreateQP(uverbs.QPOptions{Type: reliable, SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1})
		must(t, err)
		closeLater(t, qp)
		if inUse[qp.QPN()] {
			t.Errorf("QP number %d is in use", qp.QPN())
		}
		inUse[qp.QPN()] = true
		old := &recent[i%len(recent)]
		if *old != nil {
			must(t, (*old).Close())
			delete(inUse, (*old).QPN())
		}
		*old = qp
	}
	close(stop)
	must(t, <-done)
}

// TestQPDefaults checks that sizes of zero select the defaults.
func TestQPDefaults(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		c := newSide(t, openDevice(t, deviceName), uverbs.QPOptions{}).qp.Caps()
		if c.MaxSendWR < 64 || c.MaxRecvWR < 64 || c.MaxSendSGE < 1 || c.MaxRecvSGE < 1 {
			t.Errorf("the queues are %+v, want 64 requests of one SGE at least", c)
		}
	})
}
