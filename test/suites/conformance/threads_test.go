package conformance

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// inThreads runs a function in a number of goroutines at the same time, and joins what they
// return.
func inThreads(n int, run func(thread int) error) error {
	var group sync.WaitGroup
	var ready atomic.Int64
	errs := make([]error, n)
	for i := range n {
		group.Go(func() {
			// Short work would be done by one before the others are there.
			for ready.Add(1); ready.Load() < int64(n); {
				runtime.Gosched()
			}
			errs[i] = run(i)
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// TestConcurrentCreateAndClose has goroutines create objects of a kind and close them, first each
// one immediately, and then all at the end.
func TestConcurrentCreateAndClose(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink, testenv.Long)
	testenv.NeedsIB(t, "GIDs")
	testenv.Guest(t)
	dev := openDevice(t, deviceName)
	const threads, each = 5, 20 // no more than the AHs that rxe of Linux 5.10 has
	for _, m := range makers(t, dev) {
		t.Run(m.name, func(t *testing.T) {
			m.need(t)
			must(t, inThreads(threads, func(int) error {
				for range each {
					c, err := m.make()
					if err != nil {
						return err
					}
					if err := c.Close(); err != nil {
						return err
					}
				}
				return nil
			}))
			var all [threads][each]closer
			must(t, inThreads(threads, func(thread int) (err error) {
				for i := range each {
					if all[thread][i], err = m.make(); err != nil {
						return err
					}
				}
				return nil
			}))
			must(t, inThreads(threads, func(thread int) (err error) {
				for i := range each { // the other goroutines' objects as well
					err = errors.Join(err, all[(thread+i)%threads][i].Close())
				}
				return err
			}))
		})
	}
}

// TestConcurrentAHs has goroutines create an AH, send a datagram with it and close it.
func TestConcurrentAHs(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.NeedsIB(t, "GIDs")
	testenv.Guest(t)
	dev := openDevice(t, deviceName)
	const threads, rounds = 8, 20
	gid := gidOf(t, dev)
	var from, to [threads]*side
	for i := range threads {
		from[i], to[i] = newSide(t, dev, uverbs.QPOptions{Type: ib.UD}), newSide(t, dev, uverbs.QPOptions{Type: ib.UD})
	}
	must(t, inThreads(threads, func(i int) error {
		a, b := from[i], to[i]
		for round := range uint64(rounds) {
			ah, err := a.pd.CreateAH(uverbs.AHAttr{Port: 1, DLID: lidOf(t, gid.GID), Global: true, GRH: uverbs.GRH{DGID: gid.GID, SGIDIndex: uint8(gid.Index), HopLimit: 1}})
			if err != nil {
				return err
			}
			a.buf.Bytes()[0] = byte(round)
			if err := errors.Join(b.qp.PostRecv(round, b.mr.SGE(0, 100)), a.qp.PostSend(datagram(round, ah, b, a.mr.SGE(0, 1)))); err != nil {
				return err
			}
			for _, s := range []*side{a, b} {
				wc, err := s.poll()
				if err := errors.Join(err, s.qp.Err(&wc)); err != nil {
					return err
				}
				if wc.ID != round || wc.QPN != s.qp.QPN() {
					return fmt.Errorf("completion of %d on QP %d, want %d on QP %d", wc.ID, wc.QPN, round, s.qp.QPN())
				}
			}
			if got := b.buf.Bytes()[uverbs.GRHSize]; got != byte(round) {
				return fmt.Errorf("received %d, want %d", got, round)
			}
			if err := ah.Close(); err != nil {
				return err
			}
		}
		return nil
	}))
}

// TestPeerClosesDuringReads closes QPs while peers read from them, in several goroutines. Each
// request of the peers fails once, and a connection beside them keeps working.
func TestPeerClosesDuringReads(t *testing.T) {
	testenv.NotOnEFA(t, "connections")
	testenv.Tags(t, testenv.AnyLink, testenv.Long)
	testenv.NeedsIB(t, "acknowledgements")
	testenv.Guest(t)
	dev := openDevice(t, deviceName)
	const threads, rounds, batch = 4, 4, 16
	healthy, target := newSide(t, dev, uverbs.QPOptions{}), newSide(t, dev, uverbs.QPOptions{})
	connect(t, healthy, target)
	var pairs [threads][rounds][2]*side
	for i := range pairs {
		for j := range pairs[i] {
			a, b := newSide(t, dev, refusing), newSide(t, dev, refusing)
			connect(t, a, b)
			pairs[i][j] = [2]*side{a, b}
		}
	}
	stop, stopped := make(chan bool), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			if err := healthy.readOnce(target, 3000); err != nil {
				stopped <- err
				return
			}
		}
	}()
	must(t, inThreads(threads, func(thread int) error {
		for _, p := range pairs[thread] {
			running, closed := make(chan bool), make(chan error, 1)
			go func() {
				<-running
				closed <- p[1].qp.Close()
			}()
			err := readUntilGone(p[0], p[1], batch, running)
			if err := errors.Join(err, <-closed, p[0].qp.Close()); err != nil {
				return err
			}
		}
		return nil
	}))
	close(stop)
	must(t, <-stopped)
}

// readUntilGone keeps reads in flight until one fails, and then checks what becomes of the
// rest. It closes running when the first have succeeded.
func readUntilGone(a, b *side, batch int, running chan bool) error {
	var wrs []uverbs.SendWR
	for i := range batch {
		wr := send(uint64(i), a.mr.SGE(0, 1000))
		wr.Opcode, wr.RemoteAddr, wr.RKey = uverbs.WRRDMARead, b.mr.Addr(), b.mr.RKey()
		wrs = append(wrs, wr)
	}
	failed := false
	for round := 0; !failed; round++ {
		if err := a.qp.PostSend(wrs...); err != nil {
			return err
		}
		for i := range batch {
			wc, err := a.poll()
			if err != nil {
				return err
			}
			want := uverbs.WCSuccess
			switch {
			case failed:
				want = uverbs.WCWRFlushErr
			case wc.Status != want:
				failed, want = true, uverbs.WCRetryExcErr
			}
			if wc.ID != uint64(i) || wc.Status != want {
				return fmt.Errorf("completion of %d: %w, want of %d: %s", wc.ID, wc.Status, i, want)
			}
		}
		if round == 0 {
			close(running)
		}
	}
	return nil
}
