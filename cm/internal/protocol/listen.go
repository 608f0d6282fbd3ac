package protocol

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/cm/internal/limits"
	"github.com/goverbs/goverbs/cm/internal/redial"
	"github.com/goverbs/goverbs/cm/rdmacm"
)

// Dial connects to "host:port". It tries the addresses of the host one after the other.
func Dial(ctx context.Context, address string, c *Config) (Wire, error) {
	addrs, err := Lookup(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("%s: dial %s: %w", c.Network, address, err)
	}
	var errs []error
	for i, a := range addrs {
		waits := func(err error) bool { return i == len(addrs)-1 && noPlace(err) } // others have a next address
		var s *Stream
		err := redial.Within(ctx, redial.Timeout, func(ctx context.Context) error {
			return redial.Retry(ctx, waits, func() error {
				return rdmacm.RetryPort(func() (err error) {
					s, err = c.dial(ctx, a)
					return err
				})
			})
		})
		if err == nil {
			return s.wire, nil
		}
		if errs = append(errs, fmt.Errorf("%s: dial %s: %w", c.Network, a, err)); ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

// noPlace reports whether err is the refusal of a listener that has no place for the connection.
func noPlace(err error) bool {
	e, ok := errors.AsType[*rdmacm.EventError](err)
	return ok && e.Type == rdmacm.EventRejected && redial.Passes(Refused(e.PrivateData))
}

// dial connects to one address.
func (c *Config) dial(ctx context.Context, to netip.AddrPort) (*Stream, error) {
	ch, err := OpenChannel(netip.Addr{}, to.Addr())
	if err != nil {
		return nil, err
	}
	id, err := ch.NewID(rdmacm.TCP)
	if err != nil {
		return nil, errors.Join(err, ch.Release())
	}
	if err := id.ResolveWait(ctx, rdmacm.Addr{}, rdmacm.AddrOf(to)); err != nil {
		return nil, errors.Join(err, id.Close(), ch.Release())
	}
	s, err := newStream(c, ch, id, false)
	if err != nil {
		return nil, err
	}
	answer, err := id.ConnectWait(ctx, s.wire.Param(nil))
	if err != nil {
		return nil, errors.Join(c.rejection(err), s.release())
	}
	data := answer.Param.PrivateData
	if err = c.Check(data); err == nil {
		err = s.grow()
	}
	if err != nil {
		return nil, errors.Join(err, s.release())
	}
	s.start(data)
	return s, nil
}

// rejection adds to an error of a connection what its private data says of the protocol of the listener.
func (c *Config) rejection(err error) error {
	var e *rdmacm.EventError
	if !errors.As(err, &e) || e.Type != rdmacm.EventRejected {
		return err
	}
	switch text := Refused(e.PrivateData); {
	case redial.Passes(text):
		return fmt.Errorf("%q: %w", text, err)
	case text != "":
		return fmt.Errorf("%q: %w: %w", text, syscall.EPROTO, err)
	case SpeaksCM(e.PrivateData):
		return fmt.Errorf("%w: %w", c.Check(e.PrivateData), err)
	case c.Silent != "" && rdmacm.Reason(e.Status) == rdmacm.ReasonConsumer:
		return fmt.Errorf("%s: %w", c.Silent, err)
	}
	return err
}

// Listener accepts connections. It is safe for concurrent use.
type Listener struct {
	config  *Config
	report  func(rdmacm.Addr, error)
	channel *Channel
	id      *rdmacm.ID
	addr    rdmacm.Addr

	ctx    context.Context // ends with the listener; its cause is the reason
	cancel context.CancelCauseFunc
	ready  chan *Stream
	tasks  sync.WaitGroup
	close  func() error
	places *Places

	mu   sync.Mutex
	held map[*Device]bool // guarded by mu: devices that stay open between connections
}

// Listen listens on "host:port". refused may be nil; it is called with the reason for each request that the
// listener has rejected, and for each connection that was given up before its peer completed it.
func Listen(ctx context.Context, address string, c *Config, limits limits.Limits, refused func(rdmacm.Addr, error)) (*Listener, error) {
	addrs, err := Lookup(ctx, address)
	var l *Listener
	if err == nil {
		err = rdmacm.RetryPort(func() (err error) {
			l, err = listen(addrs[0], c, limits, refused)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("%s: listen on %s: %w", c.Network, address, err)
	}
	return l, nil
}

// listen listens on an address.
func listen(at netip.AddrPort, c *Config, limits limits.Limits, refused func(rdmacm.Addr, error)) (*Listener, error) {
	ch, err := OpenChannel(at.Addr(), netip.Addr{})
	if err != nil {
		return nil, err
	}
	id, err := ch.NewID(rdmacm.TCP)
	if err != nil {
		return nil, errors.Join(err, ch.Release())
	}
	l := &Listener{config: c, report: refused, channel: ch, id: id, ready: make(chan *Stream, limits.Backlog), held: map[*Device]bool{}}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	l.places = NewPlaces(l.ctx, limits)
	l.close = sync.OnceValue(l.closeAll)
	if err = id.Bind(rdmacm.AddrOf(at)); err == nil {
		err = id.Listen(0)
	}
	if err == nil {
		var all rdmacm.Addrs
		all, err = id.Addrs()
		l.addr = all.Local
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	l.tasks.Go(l.run)
	return l, nil
}

// Addr returns the address of the listener, a [rdmacm.Addr].
func (l *Listener) Addr() net.Addr { return l.addr }

// Counts returns how many connections there are, and the limits; see [Places].
func (l *Listener) Counts() (conns, waiting, halfOpen int, most limits.Limits) {
	conns, waiting, halfOpen = l.places.Counts()
	return conns, waiting, halfOpen, l.places.limits
}

// run handles requests until the listener is closed.
func (l *Listener) run() {
	for {
		e, err := l.id.NextRequest(l.ctx)
		switch {
		case err == nil:
		case l.ctx.Err() != nil:
			return
		default:
			l.cancel(err)
			return
		}
		data := e.Param.PrivateData
		invalid := l.config.Check(data)
		var addrs rdmacm.Addrs
		if invalid == nil || l.report != nil {
			addrs, _, _ = e.ID.AddrsByIndex() // the zero value if it has none
		}
		if invalid != nil { // it takes no place
			l.refuse(e.ID, addrs.Remote, invalid, l.config.Refusal(data))
			continue
		}
		r, err := l.places.Admit(addrs.Remote.IP)
		if err != nil {
			l.refuse(e.ID, addrs.Remote, err, refusal(cmVersion, err.Error()))
			continue
		}
		l.tasks.Go(func() {
			l.places.Answer(r, func() error { return l.accept(e, addrs.Remote, r) })
		})
	}
}

// refuse rejects a request with private data.
func (l *Listener) refuse(id *rdmacm.ID, from rdmacm.Addr, err error, data []byte) {
	l.refused(from, err)
	id.Reject(data, rdmacm.ReasonConsumer)
	id.Close()
}

// refused reports why a request was rejected or given up.
func (l *Listener) refused(from rdmacm.Addr, err error) {
	if l.report != nil {
		l.report(from, err)
	}
}

// accept answers a request.
func (l *Listener) accept(e *rdmacm.Event, from rdmacm.Addr, r *Request) (err error) {
	defer func() {
		if err != nil && l.ctx.Err() == nil {
			l.refused(from, err)
		}
	}()
	s, err := newStream(l.config, l.channel.Use(), e.ID, true)
	if err != nil {
		return err
	}
	l.hold(s.dev)
	if err := e.ID.CheckRemote(s.dev.Dev); err != nil {
		return errors.Join(err, s.release())
	}
	ctx, cancel := context.WithTimeout(r.Ctx, HalfOpenTimeout)
	defer cancel()
	p := s.wire.Param(&e.Param)
	l.places.Answering(r)
	err = e.ID.AcceptWait(ctx, p)
	if err == nil {
		err = s.grow()
	}
	if err == nil && !l.places.Completed(r) {
		err = ErrEvicted
	}
	if err != nil {
		return errors.Join(err, s.release())
	}
	s.from, s.place = l, r
	s.start(e.Param.PrivateData)
	l.ready <- s // never blocks: it has room for all that count as waiting
	return nil
}

// hold keeps a device open until the listener is closed.
func (l *Listener) hold(d *Device) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.held[d] && d.Use() {
		l.held[d] = true
	}
}

// Accept waits for the next connection. After Close the error matches [net.ErrClosed].
func (l *Listener) Accept() (Wire, error) {
	select {
	case s := <-l.ready:
		l.places.Accepted(s.place)
		return s.wire, nil
	case <-l.ctx.Done():
		return nil, &net.OpError{Op: "accept", Net: l.config.Network, Addr: l.addr, Err: context.Cause(l.ctx)}
	}
}

// Close stops listening and closes the connections that Accept has not returned.
func (l *Listener) Close() error { return l.close() }

// closeAll is Close for the first call.
func (l *Listener) closeAll() error {
	l.cancel(net.ErrClosed)
	l.tasks.Wait()
	errs := []error{l.id.Close()}
	for len(l.ready) > 0 {
		select {
		case s := <-l.ready:
			l.tasks.Go(func() { s.Close() }) // an error is about the peer
		default: // Accept has returned it
		}
	}
	l.tasks.Wait()
	for d := range l.held { // no task uses it any more
		errs = append(errs, d.Release())
	}
	return errors.Join(append(errs, l.channel.Release())...)
}
