package protocol

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/goverbs/goverbs/cm/internal/limits"
	"github.com/goverbs/goverbs/cm/internal/redial"
)

// ErrEvicted is the error of a connection that was given up because its peer did not complete it in
// time and another request needed the place.
var ErrEvicted = errors.New("the peer has not completed the connection, and another request needed its place")

// HalfOpenTimeout is how long a peer has to complete its connection. Tests change it.
var HalfOpenTimeout = 30 * time.Second

// Places are the places of a listener for requests and connections. They are safe for concurrent use.
type Places struct {
	ctx    context.Context
	limits limits.Limits

	mu         sync.Mutex
	usage      limits.Usage      // guarded by mu
	pending    map[*Request]bool // guarded by mu: requests whose peers have not completed the connection
	lastNumber uint64            // guarded by mu: number of the last answer
}

// NewPlaces returns the places of a listener. The contexts of its requests end with ctx.
func NewPlaces(ctx context.Context, limits limits.Limits) *Places {
	return &Places{ctx: ctx, limits: limits, pending: map[*Request]bool{}}
}

// Request is a connection request that the listener has a place for.
type Request struct {
	Ctx    context.Context // Ctx ends with the listener, and when another request takes the place.
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when nothing is left of the request
	evicts *Request      // the request whose place it takes; nil if a place was free
	key    netip.Addr    // what the address of the peer counts as

	number uint64    // guarded by Places.mu: later ones have higher numbers; 0 until the peer was answered
	since  time.Time // guarded by Places.mu: when the peer was answered
}

// Errors of requests that found no place.
var (
	ErrManyConns   = errors.New(redial.Many)
	ErrManyWaiting = errors.New(redial.ManyWaiting)
)

// request, accepted and closed are what a request, Accept and the end of a connection change.
var (
	request   = limits.Count{Waiting: 1, HalfOpen: 1, Conns: 1}
	completed = limits.Count{HalfOpen: -1}
	accepted  = limits.Count{Waiting: -1}
	closed    = limits.Count{Conns: -1}
	failed    = limits.Count{Waiting: -1, HalfOpen: -1, Conns: -1}
)

// Admit finds a place for a request from an address: a free one, or the place of another request (see
// makesRoom). If there is none, the error says which limit is reached.
func (p *Places) Admit(from netip.Addr) (*Request, error) {
	r := &Request{done: make(chan struct{}), key: limits.Key(from)}
	p.mu.Lock()
	defer p.mu.Unlock()
	if full, conns := p.limits.Full(&p.usage, r.key); full != limits.Room {
		if r.evicts = p.makesRoom(full == limits.OfAddr, r.key); r.evicts == nil {
			return nil, fullErr(full, conns)
		}
		delete(p.pending, r.evicts)
		p.usage.Add(r.evicts.key, failed)
		r.evicts.cancel(ErrEvicted)
	}
	r.Ctx, r.cancel = context.WithCancelCause(p.ctx)
	p.usage.Add(r.key, request)
	p.pending[r] = true
	return r, nil
}

// fullErr returns the error of a request that found no place.
func fullErr(full limits.Full, conns bool) error {
	err := ErrManyWaiting
	if conns {
		err = ErrManyConns
	}
	if full == limits.OfAddr {
		err = fmt.Errorf("%w, from this address", err)
	}
	return err
}

// Answer calls answer for a request that was admitted, once nothing is left of the request whose place
// it takes. If answer fails, it gives the place free.
func (p *Places) Answer(r *Request, answer func() error) {
	if r.evicts != nil {
		<-r.evicts.done // what it had is released
	}
	if answer() != nil {
		p.failed(r)
	}
	r.cancel(nil)
	close(r.done)
}

// makesRoom returns the request whose place a request of an address takes, or nil. It is the oldest one of the
// address with the most. If no address has more than this one, or this one holds its share, it is the oldest one,
// of any address or of this one. Its peer was answered, and must have had enough time. The caller holds p.mu.
func (p *Places) makesRoom(own bool, key netip.Addr) (first *Request) {
	largest, larger := p.usage.Largest(key)
	for r := range p.pending {
		switch {
		case r.number == 0, first != nil && r.number > first.number:
		case own && r.key != key, !own && larger && r.key != largest:
		default:
			first = r
		}
	}
	if first != nil && time.Since(first.since) < limits.EvictAfter(!own && larger) {
		return nil
	}
	return first
}

// Answering notes that a peer is being answered: its time begins.
func (p *Places) Answering(r *Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastNumber++
	r.number, r.since = p.lastNumber, time.Now()
}

// Completed ends the wait for the peer. It returns false if another request has taken the place.
func (p *Places) Completed(r *Request) bool { return p.leave(r, completed) }

// failed gives the place of a request free, unless another request has taken it.
func (p *Places) failed(r *Request) { p.leave(r, failed) }

// leave ends the wait for the peer of a request and changes what its address holds. It returns false if
// another request has taken the place.
func (p *Places) leave(r *Request, change limits.Count) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	kept := p.pending[r]
	if delete(p.pending, r); kept {
		p.usage.Add(r.key, change)
	}
	return kept
}

// Accepted counts a connection that no longer waits for Accept.
func (p *Places) Accepted(r *Request) { p.change(r, accepted) }

// Closed counts a connection that was closed.
func (p *Places) Closed(r *Request) { p.change(r, closed) }

// change changes what the address of a request holds.
func (p *Places) change(r *Request, change limits.Count) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.usage.Add(r.key, change)
}

// Counts returns how many connections there are, how many of them wait for Accept, and how many are
// requests in progress.
func (p *Places) Counts() (conns, waiting, halfOpen int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.usage.Conns, p.usage.Waiting, p.usage.HalfOpen
}
