package protocol

import (
	"fmt"
	"runtime"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/uverbs"
)

// Goroutines that wait in the methods of a connection poll the CQs, each on behalf of all. If there is no
// completion, one of them has the turn: it arms the CQs and waits on the completion channel. The others wait
// until it wakes them. With [Config].Background, a goroutine of the connection has the turn all the time.
//
// Sends have a CQ of their own, so that a goroutine in Read is not woken when what it has written before is
// acknowledged. That CQ is armed only while something waits for room to send.

// Wait makes progress on the connection until a condition is met, the connection has failed or is closed, or
// the deadline of w is over. The caller holds s.Mu, which is released meanwhile. The condition is called with
// s.Mu held.
func (s *Stream) Wait(w *Waiter, met func() bool) error {
	done, err := s.look(w, met)
	if done {
		return err
	}
	w.busy = true
	if w.sends {
		s.wantSends++
	}
	for armed := !w.sends; !done; {
		switch {
		case s.turn.take(w):
			done, err = s.waitWithTurn(w, met)
			s.turn.giveUp()
		case !armed: // the one that has the turn arms this CQ from its next wait on
			armed = true
			if err := s.sendCQ.Notify(); err != nil {
				s.Fail(err)
			}
			done, err = s.look(w, met)
		default:
			s.waitForTurn(w)
			done, err = s.look(w, met)
		}
	}
	w.busy = false
	if w.sends {
		s.wantSends--
	}
	return err
}

// waitForTurn waits until the goroutine that has the turn wakes this one or gives up its turn.
func (s *Stream) waitForTurn(w *Waiter) {
	s.Mu.Unlock()
	if s.background() { // nobody gives up the turn before the end, which wakes all
		<-w.wake
	} else {
		select {
		case s.turn.taken <- struct{}{}:
			<-s.turn.taken // Wait takes it again, with s.Mu
		case <-w.wake:
		}
	}
	s.Mu.Lock()
}

// waitWithTurn waits for completions until the wait is over. The caller holds s.Mu and has the turn.
func (s *Stream) waitWithTurn(w *Waiter, met func() bool) (done bool, err error) {
	for {
		ctx := s.turn.context()
		sends, armErr := s.arm()
		if armErr != nil {
			s.Fail(armErr)
		}
		if done, err = s.look(w, met); done {
			return true, err
		}
		more := s.more || s.wantsSends() && !sends // look has sent something
		s.Mu.Unlock()
		if more {
			runtime.Gosched() // let other goroutines in
		} else {
			_, err = s.events.Next(ctx)
		}
		s.Mu.Lock()
		if err != nil && ctx.Err() == nil {
			s.Fail(err)
		}
		if w == &s.runner {
			continue // it polls once the CQs are armed, so that the goroutines that it wakes find s.Mu free soon
		}
		if done, err = s.look(w, met); done {
			return true, err
		}
	}
}

// run handles completions until the connection has failed or is closed. It has the turn.
func (s *Stream) run() {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.waitWithTurn(&s.runner, func() bool { return false }) // has no deadline
	s.turn.giveUp()
}

// arm asks for an event at the next completion that somebody waits for.
// It reports whether these include completions of sends.
func (s *Stream) arm() (sends bool, err error) {
	if s.Closed {
		return true, nil
	}
	if sends = s.wantsSends(); sends {
		if err := s.sendCQ.Notify(); err != nil {
			return true, err
		}
	}
	return sends, s.recvCQ.Notify()
}

// wantsSends reports whether something waits until sends are complete.
func (s *Stream) wantsSends() bool {
	return !s.Closed && (s.wantSends > 0 || s.ControlsOut+s.PerMessage() > s.MaxControls)
}

// look polls and reports whether a wait is over.
func (s *Stream) look(w *Waiter, met func() bool) (done bool, err error) {
	if s.Closed {
		return true, nil
	}
	s.Poll()
	if met() || s.Err != nil {
		return true, nil
	}
	err = w.check()
	return err != nil, err
}

// notify wakes the goroutines that wait for the turn. The caller holds s.Mu.
func (s *Stream) notify() {
	for _, w := range s.waiters() {
		if w.busy {
			w.next()
		}
	}
}

// Interrupt makes all goroutines that wait look again, also the one that has the turn. It is for changes that no
// completion reports. The caller holds s.Mu.
func (s *Stream) Interrupt() {
	for _, w := range s.waiters() {
		w.interrupt()
	}
}

// Poll handles completions, and has the protocol send what they call for. The caller holds s.Mu.
func (s *Stream) Poll() {
	const maxPolls = 64 // a peer that sends without a pause must not keep others out of the connection
	s.more = false
	if s.Closed {
		return
	}
	any := false
	for polls := 1; ; polls++ {
		// Sends come first: what the peer has sent before one failed is handled before the failure.
		sent, err := s.sendCQ.Poll(s.wcs[:])
		for i := range s.wcs[:sent] {
			s.completeSend(&s.wcs[i])
		}
		received := 0
		if err == nil {
			received, err = s.recvCQ.Poll(s.wcs[:])
		}
		for i := range s.wcs[:received] {
			s.completeRecv(&s.wcs[i])
		}
		if err != nil {
			s.more = false
			s.Fail(err)
			return
		}
		any = any || received+sent > 0
		if s.more = max(received, sent) == len(s.wcs); !s.more || polls == maxPolls {
			break
		}
	}
	if s.suspect != nil && !s.more {
		s.Failed(s.suspect)
		s.suspect = nil
	}
	s.wire.SendOwed()
	if any {
		s.liveness.Used()
		s.notify()
	}
}

// pollAll handles all completions that are in the CQs now. The caller holds s.Mu.
func (s *Stream) pollAll() {
	for left := s.Receives; ; left -= len(s.wcs) {
		if s.Poll(); !s.more || left <= 0 {
			return
		}
	}
}

// IDs of work requests. The lower bits are a length, or the index of a receive.
const (
	IDData    uint64 = 1 << (40 + iota) // a WRITE with data; the lower bits are its length
	IDMessage                           // on iWARP: the SEND after a WRITE with data
	IDControl                           // a message without data
	IDEnd                               // the message without data that ends the direction
	idProbe                             // a WRITE of nothing
	idLow     uint64 = 1<<32 - 1
)

// completeSend handles the completion of a work request that is not a receive.
func (s *Stream) completeSend(wc *uverbs.WC) {
	switch wc.ID &^ idLow {
	case IDData:
		s.Room += int(wc.ID & idLow)
		s.Slots++
	case IDMessage:
		s.Slots++
	case IDControl, IDEnd:
		s.ControlsOut--
	case idProbe:
		s.probing = false
	}
	s.liveness.Done++
	s.undelivered = s.undelivered || wc.Status != uverbs.WCSuccess && wc.ID&(IDData|IDMessage|IDEnd) != 0
	s.suspected(wc)
}

// completeRecv handles the completion of a receive.
func (s *Stream) completeRecv(wc *uverbs.WC) {
	if wc.Status != uverbs.WCSuccess {
		s.suspected(wc)
		return
	}
	s.MustReceive = false
	if err := s.wire.Received(wc); err != nil {
		s.Fail(err)
	}
}

// Failure is why a work request has failed.
type Failure struct {
	Err         error
	Consequence bool // Consequence says that it may be one of something that another completion or an event reports.
}

// suspected notes the failure of a work request, if it has failed and is the first one.
func (s *Stream) suspected(wc *uverbs.WC) {
	if wc.Status == uverbs.WCSuccess || s.suspect != nil {
		return
	}
	err := s.QP.Err(wc)
	if wc.Status == uverbs.WCRetryExcErr {
		s.suspect = &Failure{fmt.Errorf("%w: %w", syscall.ETIMEDOUT, err), false}
	} else {
		s.suspect = s.wire.Cause(wc.Status, err)
	}
}

// Failed ends the connection because of a failure, if it has not ended. The caller holds s.Mu.
func (s *Stream) Failed(f *Failure) {
	switch {
	case s.wire.Gone() || s.Err != nil:
	case !f.Consequence:
		s.Fail(f.Err)
	case !s.flushed: // give the reason time to come
		const grace = time.Second
		s.flushed = true
		time.AfterFunc(grace, func() {
			s.Mu.Lock()
			defer s.Mu.Unlock()
			s.Poll()
			s.lost(f.Err)
		})
	}
}

// lost handles the end of a connection that the peer has not announced. err is nil if the peer has disconnected.
// The caller holds s.Mu.
func (s *Stream) lost(err error) {
	if !s.wire.Gone() {
		s.wire.Lost(err)
		s.Interrupt()
	}
}

// Fail ends the connection with an error, unless it has ended. The caller holds s.Mu.
func (s *Stream) Fail(err error) {
	if s.Err != nil || s.Closed {
		return
	}
	s.Err = s.dev.Removed(err)
	s.ID.Disconnect() // moves the QP to ERR
	s.Interrupt()
}

// PerMessage is how many work requests a WRITE with its message takes.
func (s *Stream) PerMessage() int {
	if s.IWARP {
		return 2
	}
	return 1
}

// CanSendControl reports whether a message without data may be sent.
func (s *Stream) CanSendControl() bool {
	return s.ControlsOut+s.PerMessage() <= s.MaxControls && !s.MustReceive
}

// Post posts work requests. The caller holds s.Mu.
func (s *Stream) Post(b *uverbs.SendBuilder) {
	s.liveness.Posted()
	s.Posted(b.Post())
}

// Posted handles the error of a post.
func (s *Stream) Posted(err error) {
	if err != nil {
		s.Failed(&Failure{err, true})
	}
}
