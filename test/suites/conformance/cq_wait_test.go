package conformance

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// TestCQWait plays ping-pong between two sides that both sleep in CQ.Wait: one lost completion would
// stop them.
func TestCQWait(t *testing.T) {
	testenv.Guest(t)
	a, b := pair(t, uverbs.QPOptions{})
	rounds := 5000
	if testenv.Brief() || testenv.SoftFaults() != "" { // a lost message costs 67 ms
		rounds = 500
	}
	ctx := withDeadline(t)
	for _, s := range []*side{a, b} {
		must(t, s.qp.PostRecv(1, s.mr.SGE(0, 8)))
	}
	play := func(s *side, serve bool) error {
		wcs := make([]uverbs.WC, 2)
		if serve {
			if err := s.qp.PostSend(send(2, s.mr.SGE(64, 8))); err != nil {
				return err
			}
		}
		for received, sent := 0, 0; received < rounds || sent < rounds; {
			n, err := s.cq.Wait(ctx, wcs)
			if err != nil {
				return err
			}
			for i := range wcs[:n] {
				if err := s.qp.Err(&wcs[i]); err != nil {
					return err
				}
				if wcs[i].ID == 2 {
					sent++
					continue
				}
				if received++; received < rounds {
					if err := s.qp.PostRecv(1, s.mr.SGE(0, 8)); err != nil {
						return err
					}
				}
				if serve && received == rounds {
					continue
				}
				if err := s.qp.PostSend(send(2, s.mr.SGE(64, 8))); err != nil {
					return err
				}
			}
		}
		return nil
	}
	var errs [2]error
	var group sync.WaitGroup
	group.Go(func() { errs[0] = play(a, true) })
	group.Go(func() { errs[1] = play(b, false) })
	group.Wait()
	must(t, errs[:]...)
}

// TestCQWaitCanceled checks that without a completion Wait ends with its context, and with the
// channel.
func TestCQWaitCanceled(t *testing.T) {
	testenv.Guest(t)
	a, _ := pair(t, uverbs.QPOptions{})
	wcs := make([]uverbs.WC, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if n, err := a.cq.Wait(ctx, wcs); n != 0 || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Wait is %d, %v; want the end of the context", n, err)
	}
	time.AfterFunc(20*time.Millisecond, func() { a.ch.Shutdown() })
	if n, err := a.cq.Wait(t.Context(), wcs); n != 0 || !errors.Is(err, os.ErrClosed) {
		t.Errorf("Wait is %d, %v; want os.ErrClosed", n, err)
	}
}
