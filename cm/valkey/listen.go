package valkey

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/goverbs/goverbs/cm/internal/protocol"
	"github.com/goverbs/goverbs/cm/rdmacm"
)

// Listener accepts connections. It is a [net.Listener] and safe for concurrent use.
type Listener struct {
	o       ListenOptions
	channel *protocol.Channel
	id      *rdmacm.ID
	addr    rdmacm.Addr

	ctx    context.Context // ends with the listener; its cause is the reason
	cancel context.CancelCauseFunc
	ready  chan *Conn
	tasks  sync.WaitGroup
	close  func() error
	places *protocol.Places

	mu   sync.Mutex
	held map[*protocol.Device]bool // guarded by mu: devices that stay open between connections
}

// Listen listens on "host:port". Without a host, it listens on all addresses of all RDMA devices.
// With port 0 the kernel chooses a port; see [Listener.Addr]. The context limits the lookup of the host
// and the port.
func Listen(ctx context.Context, address string, o ListenOptions) (*Listener, error) {
	o, err := o.defaults()
	if err != nil {
		return nil, err
	}
	addrs, err := protocol.Lookup(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("valkey: listen on %s: %w", address, err)
	}
	l, err := listen(addrs[0], o)
	if err != nil {
		return nil, fmt.Errorf("valkey: listen on %s: %w", address, err)
	}
	return l, nil
}

// listen listens on an address.
func listen(at netip.AddrPort, o ListenOptions) (*Listener, error) {
	ch, err := protocol.OpenChannel(at.Addr(), netip.Addr{})
	if err != nil {
		return nil, err
	}
	id, err := ch.NewID(rdmacm.TCP)
	if err != nil {
		return nil, errors.Join(err, ch.Release())
	}
	l := &Listener{o: o, channel: ch, id: id, ready: make(chan *Conn, o.limits.Backlog), held: map[*protocol.Device]bool{}}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	l.places = protocol.NewPlaces(l.ctx, o.limits)
	l.close = sync.OnceValue(l.closeAll)
	if err = id.Bind(rdmacm.AddrOf(at)); err == nil {
		err = id.Listen(o.limits.Backlog)
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

// speaks is what a listener tells peers that use another protocol of this module.
const speaks = "Valkey's protocol for RDMA, not that of cm.Conn, cm.Stream or rsocket"

// run handles requests until the listener is closed.
func (l *Listener) run() {
	for {
		e, err := l.id.Request(l.ctx)
		switch {
		case err == nil:
		case l.ctx.Err() != nil:
			return
		default:
			l.cancel(err)
			return
		}
		if err := checkPrivateData(e.Param.PrivateData); err != nil { // an invalid request takes no place
			l.refusedID(e.ID, err)
			e.ID.Reject(protocol.Refusal(e.Param.PrivateData, speaks), rdmacm.ReasonConsumer)
			e.ID.Close()
			continue
		}
		addrs, _ := e.ID.Addrs() // the zero value if it has none
		r, err := l.places.Admit(addrs.Remote.IP)
		if err != nil {
			l.refused(addrs.Remote, err)
			e.ID.Reject(nil, rdmacm.ReasonConsumer)
			e.ID.Close()
			continue
		}
		l.tasks.Go(func() {
			l.places.Answer(r, func() error { return l.accept(e, addrs.Remote, r) })
		})
	}
}

// accept answers a request.
func (l *Listener) accept(e *rdmacm.Event, from rdmacm.Addr, r *protocol.Request) (err error) {
	defer func() {
		if err != nil && l.ctx.Err() == nil {
			l.refused(from, err)
		}
	}()
	c, err := newConn(l.channel.Use(), e.ID, l.o.Options)
	if err != nil {
		return err
	}
	l.hold(c.dev)
	if err := e.ID.CheckRemote(c.dev.Dev); err != nil {
		return errors.Join(err, c.release())
	}
	c.server = true
	p := c.param()
	p.InitiatorDepth = min(p.InitiatorDepth, e.Param.InitiatorDepth)
	p.ResponderResources = min(p.ResponderResources, e.Param.ResponderResources)
	ctx, cancel := context.WithTimeout(r.Ctx, protocol.HalfOpenTimeout)
	defer cancel()
	l.places.Answering(r)
	err = e.ID.AcceptWait(ctx, p)
	if err == nil {
		err = c.makeMemory()
	}
	if err != nil {
		return errors.Join(err, c.release())
	}
	if !l.places.Completed(r) {
		return errors.Join(protocol.ErrEvicted, c.release())
	}
	c.from, c.place = l, r
	c.start()
	l.ready <- c // never blocks: it has room for all that count as waiting
	return nil
}

// refused calls ListenOptions.Refused if it is set.
func (l *Listener) refused(from rdmacm.Addr, err error) {
	if l.o.Refused != nil {
		l.o.Refused(from, err)
	}
}

// refusedID is refused for a request whose address was not asked for.
func (l *Listener) refusedID(id *rdmacm.ID, err error) {
	if l.o.Refused != nil {
		addrs, _ := id.Addrs() // the zero value if it has none
		l.refused(addrs.Remote, err)
	}
}

// hold keeps a device open until the listener is closed.
func (l *Listener) hold(d *protocol.Device) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.held[d] && d.Use() {
		l.held[d] = true
	}
}

// Accept waits for the next connection, a [*Conn]. After Close the error matches [net.ErrClosed].
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.ready:
		l.places.Accepted(c.place)
		return c, nil
	case <-l.ctx.Done():
		return nil, &net.OpError{Op: "accept", Net: Network, Addr: l.addr, Err: context.Cause(l.ctx)}
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
		case c := <-l.ready:
			errs = append(errs, c.Close())
		default: // Accept has returned it
		}
	}
	for d := range l.held { // no task uses it any more
		errs = append(errs, d.Release())
	}
	return errors.Join(append(errs, l.channel.Release())...)
}
