package protocol

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Limits are the limits of a listener.
type Limits struct {
	Backlog  int // Backlog is how many connections may wait for Accept, including requests.
	HalfOpen int // HalfOpen is how many requests may be in progress.
	Conns    int // Conns is how many connections there may be, including requests.
}

// ErrEvicted is the error of a connection that was given up because its peer did not complete it in
// time and another request needed the place.
var ErrEvicted = errors.New("the peer has not completed the connection, and another request needed its place")

// EvictAfter is the least time that a peer has to complete its connection before another request
// may take its place. It is many times what a peer needs that is not too busy. Tests change it.
var EvictAfter = 250 * time.Millisecond

// HalfOpenTimeout is how long a peer has to complete its connection. Tests change it.
var HalfOpenTimeout = 30 * time.Second

// Places are the places of a listener for requests and connections. They are safe for concurrent use.
type Places struct {
	ctx    context.Context
	limits Limits

	mu         sync.Mutex
	waiting    int               // guarded by mu: requests and connections that Accept has not returned
	conns      int               // guarded by mu: requests, and connections that are not closed
	pending    map[*Request]bool // guarded by mu: requests whose peers have not completed the connection
	lastNumber uint64            // guarded by mu: number of the last answer
}

// NewPlaces returns the places of a listener. The contexts of its requests end with ctx.
func NewPlaces(ctx context.Context, limits Limits) *Places {
	return &Places{ctx: ctx, limits: limits, pending: map[*Request]bool{}}
}

// Request is a connection request that the listener has a place for.
type Request struct {
	Ctx    context.Context // Ctx ends with the listener, and when another request takes the place.
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when nothing is left of the request
	evicts *Request      // the request whose place it takes; nil if a place was free

	number uint64    // guarded by Places.mu: later ones have higher numbers; 0 until the peer was answered
	since  time.Time // guarded by Places.mu: when the peer was answered
}

// Admit finds a place for a request: a free one, or the place of the oldest request whose peer has not
// completed the connection in time. If there is none, it returns nil.
func (p *Places) Admit() *Request {
	r := &Request{done: make(chan struct{})}
	r.Ctx, r.cancel = context.WithCancelCause(p.ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns >= p.limits.Conns || p.waiting >= p.limits.Backlog || len(p.pending) >= p.limits.HalfOpen {
		if r.evicts = p.oldestOverdue(); r.evicts == nil {
			r.cancel(nil)
			return nil
		}
		delete(p.pending, r.evicts)
		r.evicts.cancel(ErrEvicted)
	} else {
		p.waiting++
		p.conns++
	}
	p.pending[r] = true
	return r
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

// oldestOverdue returns the oldest request whose peer was answered and has had enough time, or nil. The
// caller holds p.mu.
func (p *Places) oldestOverdue() (first *Request) {
	for r := range p.pending {
		if r.number > 0 && (first == nil || r.number < first.number) {
			first = r
		}
	}
	if first != nil && time.Since(first.since) < EvictAfter {
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
func (p *Places) Completed(r *Request) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	kept := p.pending[r]
	delete(p.pending, r)
	return kept
}

// failed gives the place of a request free, unless another request has taken it.
func (p *Places) failed(r *Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pending[r] {
		delete(p.pending, r)
		p.waiting--
		p.conns--
	}
}

// Accepted counts a connection that no longer waits for Accept.
func (p *Places) Accepted() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting--
}

// Closed counts a connection that was closed.
func (p *Places) Closed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns--
}

// Counts returns how many connections there are, how many of them wait for Accept, and how many are
// requests in progress.
func (p *Places) Counts() (conns, waiting, halfOpen int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conns, p.waiting, len(p.pending)
}
