package rsocket

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/cm/internal/protocol"
	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs"
)

// Network is the name of the network in the errors of connections.
const Network = "rsocket"

// Options are the options of a connection. The zero value suits most programs, and is what librdmacm
// uses.
type Options struct {
	RecvBuffer int // RecvBuffer is the size of the buffer for received data, in bytes, from 4 KiB to 1 GiB; zero is 128 KiB. It is rounded up to an even number.
	SendBuffer int // SendBuffer is the size of the buffer for data to send, in bytes, from 4 KiB to 1 GiB; zero is 128 KiB.
	Credits    int // Credits is how many messages with data the peer may send before this side reads them, from 16 to 16384; zero is 384.
	SendDepth  int // SendDepth is how many messages with data of this side may be unacknowledged, from 16 to 16384; zero is 384.
	Mappings   int // Mappings is how many mappings the peer may make for [Conn.WriteAt], up to 128; zero is none.

	KeepAlive time.Duration // KeepAlive is how often an idle connection checks whether the peer is still there; zero is 15 s, and a negative value disables the check.
	Linger    time.Duration // Linger is the longest time that Close waits until everything that was written has arrived; zero is 5 s.

	Isolation Isolation // Isolation says which connections share a PD; zero is ConnPD.
}

// Isolation says which connections share a PD. A peer that learns or guesses the key of memory can
// write into it if the memory belongs to the PD of the peer's own connection, and not otherwise.
type Isolation uint8

// Levels of isolation.
const (
	// ConnPD means that each connection has its own PD. This is the default, unlike that of
	// package cm, because every peer may write into the buffers of its connection: with a shared
	// PD, a guessed key would be enough to write into the stream of another peer. A connection
	// registers its own memory in any case, so a PD adds little to its cost.
	ConnPD Isolation = iota
	// SharedPD means that all connections of the process on a device share a PD. It is for
	// devices that have few PDs, and for peers that trust each other.
	SharedPD
)

// String returns the name of the constant.
func (i Isolation) String() string {
	switch i {
	case ConnPD:
		return "ConnPD"
	case SharedPD:
		return "SharedPD"
	}
	return fmt.Sprintf("isolation %d", uint8(i))
}

// defaults returns the options with their defaults filled in.
func (o Options) defaults(op string) (Options, error) {
	const least, most = 4 << 10, 1 << 30
	for _, f := range []struct {
		name              string
		value             *int
		zero, least, most int
	}{
		{"RecvBuffer", &o.RecvBuffer, 128 << 10, least, most},
		{"SendBuffer", &o.SendBuffer, 128 << 10, least, most},
		{"Credits", &o.Credits, 384, 16, 16384},
		{"SendDepth", &o.SendDepth, 384, 16, 16384},
	} {
		if *f.value == 0 {
			*f.value = f.zero
		}
		if *f.value < f.least || *f.value > f.most {
			return o, argErr(op, f.name, *f.value, "%d to %d", f.least, f.most)
		}
	}
	if o.Mappings < 0 || o.Mappings > maxMappings {
		return o, argErr(op, "Mappings", o.Mappings, "0 to %d", maxMappings)
	}
	if o.Isolation > SharedPD {
		return o, argErr(op, "Isolation", o.Isolation, "ConnPD or SharedPD")
	}
	o.RecvBuffer += o.RecvBuffer & 1
	if o.KeepAlive == 0 {
		o.KeepAlive = 15 * time.Second
	}
	if o.Linger < 0 {
		return o, argErr(op, "Linger", o.Linger, "at least 0")
	}
	if o.Linger == 0 {
		o.Linger = 5 * time.Second
	}
	return o, nil
}

// argErr returns an error for an argument that is not valid.
func argErr(op, field string, given any, allowed string, args ...any) error {
	return &uverbs.ArgError{Package: "rsocket", Op: op, Field: field, Given: fmt.Sprint(given), Allowed: fmt.Sprintf(allowed, args...)}
}

// Dial connects to a program that listens with rsocket at "host:port". It tries the addresses of the
// host one after the other. Without a deadline of ctx, an attempt ends when the kernel gives up, which
// takes over a minute if the host does not answer. The error matches ECONNREFUSED if the peer rejects
// the connection, and EPROTO if it does not speak rsocket; if it speaks the protocol of package cm, the
// error says so. Once the connection is established, the end
// of ctx does not affect it.
func Dial(ctx context.Context, address string, o Options) (*Conn, error) {
	o, err := o.defaults("Dial")
	if err != nil {
		return nil, err
	}
	addrs, err := protocol.Lookup(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("rsocket: dial %s: %w", address, err)
	}
	var errs []error
	for _, a := range addrs {
		var c *Conn
		err := rdmacm.RetryPort(func() (err error) {
			c, err = dial(ctx, a, o)
			return err
		})
		if err == nil {
			return c, nil
		}
		if errs = append(errs, fmt.Errorf("rsocket: dial %s: %w", a, err)); ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

// dial connects to one address.
func dial(ctx context.Context, to netip.AddrPort, o Options) (*Conn, error) {
	ch, err := protocol.OpenChannel(netip.Addr{}, to.Addr())
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
	c, err := newConn(ch, id, o)
	if err != nil {
		return nil, err
	}
	answer, err := id.ConnectWait(ctx, c.param())
	if err != nil {
		return nil, errors.Join(rejection(err), c.release())
	}
	peer, err := parseConnData(answer.Param.PrivateData)
	if err == nil {
		err = c.makeMemory()
	}
	if err != nil {
		return nil, errors.Join(err, c.release())
	}
	c.start(peer)
	return c, nil
}

// rejection adds to an error of a connection what its private data says of the protocol of the listener.
func rejection(err error) error {
	var e *rdmacm.EventError
	if !errors.As(err, &e) || e.Type != rdmacm.EventRejected {
		return err
	}
	switch text := protocol.Refused(e.PrivateData); {
	case text != "":
		return fmt.Errorf("%s: %w: %w", text, syscall.EPROTO, err)
	case protocol.SpeaksCM(e.PrivateData):
		return fmt.Errorf("%w: %w", errSpeaksCM, err)
	}
	return err
}

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
		return nil, fmt.Errorf("rsocket: listen on %s: %w", address, err)
	}
	var l *Listener
	err = rdmacm.RetryPort(func() (err error) {
		l, err = listen(addrs[0], o)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("rsocket: listen on %s: %w", address, err)
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

// refusal returns the private data of the rejection of a request that is not valid. One that has version
// 1 may come from librdmacm, which gets nothing.
func refusal(request []byte) []byte {
	if len(request) > 0 && request[0] == wireVersion {
		return nil
	}
	return protocol.Refusal(request, "rsocket, not the protocol of cm.Conn, cm.Stream or Valkey")
}

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
		peer, err := parseConnData(e.Param.PrivateData)
		if err != nil { // an invalid request takes no place
			l.refusedID(e.ID, err)
			e.ID.Reject(refusal(e.Param.PrivateData), rdmacm.ReasonConsumer)
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
			l.places.Answer(r, func() error { return l.accept(e, addrs.Remote, peer, r) })
		})
	}
}

// accept answers a request.
func (l *Listener) accept(e *rdmacm.Event, from rdmacm.Addr, peer connData, r *protocol.Request) (err error) {
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
	p := c.param()
	p.InitiatorDepth = min(e.Param.InitiatorDepth, math.MaxInt8)
	p.ResponderResources = min(e.Param.ResponderResources, math.MaxInt8)
	ctx, cancel := context.WithTimeout(r.Ctx, protocol.HalfOpenTimeout)
	defer cancel()
	c.mustReceive = c.iwarp
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
	c.start(peer)
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
