package cm

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/goverbs/goverbs/cm/internal/limits"
	"github.com/goverbs/goverbs/cm/rdmacm"
)

// errEvicted is the error of a connection that was given up because its peer did not complete it in
// time and another request needed the place.
var errEvicted = errors.New("the peer has not completed the connection, and another request needed its place")

// errHalfOpen is the error of a connection that was given up because its peer did not complete it.
var errHalfOpen = fmt.Errorf("the peer has not completed the connection: %w", os.ErrDeadlineExceeded)

// halfOpenTimeout is how long a peer has to complete its connection. The kernel may give up earlier or
// later, as the peer has asked for. Tests change it.
var halfOpenTimeout = 30 * time.Second

// makesRoom returns the answer whose place a request of an address takes, or nil. It is the oldest one to the
// address with the most. If no address has more than this one, or this one holds its share, it is the oldest one,
// to any address or to this one. Its peer must have had enough time. The caller holds l.mu.
func (l *Listener) makesRoom(own bool, key netip.Addr) (first *pendingAccept) {
	largest, larger := l.usage.Largest(key)
	for a := range l.pending {
		switch {
		case first != nil && a.number > first.number:
		case own && a.key != key, !own && larger && a.key != largest:
		default:
			first = a
		}
	}
	if first != nil && time.Since(first.since) < limits.EvictAfter(!own && larger) {
		return nil
	}
	return first
}

// pendingAccept is a connection that was accepted, or is about to be, and whose peer is not ready
// yet.
type pendingAccept struct {
	l           *Listener
	c           *Conn
	key         netip.Addr // what the address of the peer counts as
	peer        greeting
	private     []byte
	number      uint64    // later ones have higher numbers
	since       time.Time // when it was accepted
	giveUpTimer *time.Timer

	acceptMu sync.Mutex // held until Accept has done everything
}

// awaitPeer registers the handler for the events of the peer. It returns false if the listener is
// closed.
func (l *Listener) awaitPeer(a *pendingAccept) bool {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return false
	}
	l.lastNumber++
	a.number = l.lastNumber
	l.pending[a] = true
	a.giveUpTimer = time.AfterFunc(halfOpenTimeout, func() { a.fail(errHalfOpen) })
	l.mu.Unlock()
	l.loop.register(a.c.id, eventHandler{a.event, a.fail})
	return true
}

// claim ends the wait for the peer. It returns true for the first caller only; that caller has to do what
// comes next.
func (a *pendingAccept) claim() bool {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	return a.claimLocked()
}

// claimLocked is claim for a caller that holds a.l.mu.
func (a *pendingAccept) claimLocked() bool {
	waits := a.l.pending[a]
	if delete(a.l.pending, a); waits {
		a.l.usage.Add(a.key, limits.Count{HalfOpen: -1})
	}
	if a.giveUpTimer != nil {
		a.giveUpTimer.Stop()
	}
	return waits
}

// event handles an event of the ID: the peer is ready, or never will be.
func (a *pendingAccept) event(e *rdmacm.Event) {
	a.acceptMu.Lock() // the event may arrive before Accept has returned
	defer a.acceptMu.Unlock()
	switch {
	case e.Type == rdmacm.EventAddrChange: // the peer may still become ready
	case e.Type != rdmacm.EventEstablished || e.Status != 0:
		err := e.Err()
		if err == nil {
			err = &rdmacm.EventError{Type: e.Type, Device: a.c.addrs.Device, PrivateData: e.Param.PrivateData}
		}
		a.fail(err)
	case a.claim():
		a.c.start(a.peer, a.private)
		a.l.ready <- a.c // never blocks: it has room for all that count as waiting
		a.l.wg.Done()
	}
}

// fail gives the connection up.
func (a *pendingAccept) fail(err error) {
	if a.claim() {
		go func() { // not in the event loop, whose events the kernel may wait for
			a.abandon(err)
			a.l.accepted(a.key)
			a.l.wg.Done()
		}()
	}
}

// abandon destroys the connection after Accept has returned: later, the handle of the ID may belong
// to another ID.
func (a *pendingAccept) abandon(err error) {
	a.acceptMu.Lock()
	defer a.acceptMu.Unlock()
	a.c.abandon(err)
	a.l.reportRefused(a.c.addrs.Remote, err)
}
