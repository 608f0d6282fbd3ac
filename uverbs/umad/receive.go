package umad

import (
	"context"
	"runtime"
	"time"

	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// A goroutine that waits for a message becomes the receiver of its port if there is none. The receiver waits in
// the transport and delivers messages to the goroutines that wait for them, until it has its own message. The
// others wait for a message or to become the receiver.
//
// So an answer does not pass from one thread to another, unless requests overlap.

// next returns the next message from a channel of the agent, or nil if there is none until a time. The zero time
// means no limit. Errors name req, the request that is not answered; it is nil for a call that waits for requests.
func (a *Agent) next(ctx context.Context, req *mad.Packet, from <-chan *Message, until time.Time) (*Message, error) {
	select {
	case a.port.receiver <- struct{}{}:
		return a.receive(ctx, req, from, until)
	default:
	}
	var late <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		late = timer.C
	}
	select {
	case a.port.receiver <- struct{}{}:
		return a.receive(ctx, req, from, until)
	case m := <-from:
		return m, nil
	case <-late:
		return nil, nil
	case <-ctx.Done():
	case <-a.closed:
	case <-a.port.done:
	}
	return nil, a.over(ctx, req)
}

// The receiver waits for briefWait first, and then for longWait at a time if it has no limit.
const (
	briefWait = 10 * time.Millisecond
	longWait  = time.Hour
)

// receive is next for the receiver of the port. It looks for a message once even if the time is over. It registers
// with ctx only after a brief wait without a message, since most answers come before.
func (a *Agent) receive(ctx context.Context, req *mad.Packet, from <-chan *Message, until time.Time) (*Message, error) {
	p := a.port
	defer func() { <-p.receiver }()
	looked, watched := false, false
	for wait := briefWait; ; wait, looked = longWait, true {
		select {
		case m := <-from:
			return m, nil
		default:
		}
		if err := a.over(ctx, req); err != nil {
			return nil, err
		}
		if !until.IsZero() {
			left := max(time.Until(until), 0)
			if left == 0 && looked {
				return nil, nil
			}
			wait = min(wait, left)
		}
		if wait > briefWait && !watched {
			watched = true
			defer context.AfterFunc(ctx, p.transport.Interrupt)()
		}
		m, err := p.transport.Receive(wait)
		switch {
		case err != nil:
			p.end(err)
		case m != nil && p.deliver(m) && len(from) == 0:
			// Another goroutine waits for the message. It is first in line on this processor, which the
			// next wait would keep.
			runtime.Gosched()
		}
	}
}

// deliver hands a message to its agent, and reports whether a call gets it.
func (p *Port) deliver(m *Message) bool {
	p.mu.Lock()
	a := p.agents[m.Agent]
	p.mu.Unlock()
	return a != nil && a.deliver(m)
}
