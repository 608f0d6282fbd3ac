package cm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
	"weak"

	"github.com/goverbs/goverbs/cm/internal/limits"
	"github.com/goverbs/goverbs/cm/internal/redial"
	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs"
)

// Listener accepts the connections that peers [Dial]. It is safe for concurrent use.
type Listener struct {
	loop   *eventLoop
	id     *rdmacm.ID
	addr   rdmacm.Addr
	device string // name of the device of addr, empty if there is none
	o      ListenOptions

	ctx    context.Context // ends with the listener; its cause is the reason
	cancel context.CancelCauseFunc
	ready  chan *Conn
	work   chan *request  // passes requests to goroutines that have answered others
	wg     sync.WaitGroup // counts the requests that are being answered

	mu         sync.Mutex
	usage      limits.Usage            // guarded by mu: requests, and connections that are not closed
	closed     bool                    // guarded by mu
	pending    map[*pendingAccept]bool // guarded by mu: accepted requests whose peers are not ready yet
	lastNumber uint64                  // guarded by mu: number of the last answer
	domains    map[*device]*domain     // guarded by mu: for ListenerPD

	prepareMu sync.Mutex // held during Prepare
	prepared  []prepared // guarded by prepareMu: what Prepare has returned
}

// Listen listens on "host:port". Without a host, or with the unspecified address, it listens on all
// addresses of all RDMA devices: the kernel's devices, or without any, the software devices of this
// process (package soft). With port 0 the kernel chooses a port; see [Listener.Addr].
//
// The context limits the lookup of the host and the port. Its end does not affect the listener.
func Listen(ctx context.Context, address string, o ListenOptions) (*Listener, error) {
	o, err := o.defaults()
	if err != nil {
		return nil, err
	}
	addrs, err := lookup(ctx, nil, "ip", address)
	if err != nil {
		return nil, err
	}
	var l *Listener
	try := func() (err error) {
		l, err = listenOn(addrs[0], o)
		return err
	}
	if addrs[0].Port() != 0 {
		err = try()
	} else {
		err = rdmacm.RetryPort(try)
	}
	if err != nil {
		return nil, &addressed{"listen on", address, err}
	}
	return l, nil
}

// listenOn listens on an address.
func listenOn(addr netip.AddrPort, o ListenOptions) (*Listener, error) {
	loop, id, err := newLoopID(rdmacm.TCP, addr.Addr(), netip.Addr{}, startEventLoop)
	if err != nil {
		return nil, err
	}
	l := &Listener{loop: loop, id: id, o: o, ready: make(chan *Conn, o.limits.Backlog), work: make(chan *request), pending: map[*pendingAccept]bool{}}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	var all rdmacm.Addrs
	if err = id.Bind(rdmacm.AddrOf(addr)); err == nil {
		all, err = id.Addrs()
	}
	if err == nil {
		l.addr, l.device = all.Local, all.Device
		err = all.CheckReachable()
	}
	if err == nil {
		loop.register(id, eventHandler{l.event, l.cancel})
		err = id.Listen(0) // as many as the kernel allows: admit limits them, and the kernel drops others without an answer
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Addr returns the address of the listener, an [rdmacm.Addr].
func (l *Listener) Addr() net.Addr { return l.addr }

// event handles an event of the listener's ID. A listener on all addresses belongs to no device and
// survives the removal of one.
func (l *Listener) event(e *rdmacm.Event) {
	switch e.Type {
	case rdmacm.EventConnectRequest:
		l.handleRequest(e)
	case rdmacm.EventDeviceRemoval:
		l.cancel(errRemoved(l.device))
	}
}

// request is a connection request that the listener has a place for.
type request struct {
	event  *rdmacm.Event
	peer   greeting
	addrs  rdmacm.Addrs   // without the name of the device
	index  uint32         // index of the device
	key    netip.Addr     // what the address of the peer counts as
	evicts *pendingAccept // the answer whose place it takes; nil if a place was free
}

// Reasons sent to the peer. They are fixed, because any host can cause them.
const (
	refusedFull     = redial.ManyWaiting
	refusedMany     = redial.Many
	refusedOfAddr   = ", from this address"
	refusedProtocol = "the request has no protocol version that this side speaks"
	refusedFailed   = "the connection could not be set up"
	refusedECE      = "the request has no suitable options for enhanced connections"
)

// handleRequest starts to answer a request if it is valid and there is a place for it, and rejects
// it otherwise.
func (l *Listener) handleRequest(e *rdmacm.Event) {
	peer, err := parseGreeting(e.Param.PrivateData, greetingRequest)
	if err != nil { // an invalid request takes no place
		l.refuse(e.ID, refusedProtocol, err)
		e.ID.Close()
		return
	}
	if l.o.ECE == rdmacm.ECERequired && !e.Param.ECE.Any() {
		l.refuse(e.ID, refusedECE, rdmacm.ErrNoECE)
		e.ID.Close()
		return
	}
	addrs, index, err := e.ID.AddrsByIndex() // by index, as the lookup of the device's name lists all devices
	if err != nil {
		l.refuse(e.ID, refusedFailed, err)
		e.ID.Close()
		return
	}
	r := &request{event: e, peer: peer, addrs: addrs, index: index, key: limits.Key(addrs.Remote.IP)}
	ok, why := l.admit(r)
	switch {
	case !ok && why == "":
		e.ID.Close()
	case !ok:
		l.refuse(e.ID, why, errors.New(why))
		e.ID.Close()
	default:
		select {
		case l.work <- r:
		default:
			go l.serveRequests(r)
		}
	}
}

// admit finds a place for a request: a free one, or the place of another request (see makesRoom). If there is
// none, it returns false and a reason for the peer. The reason is empty if the listener is closed.
func (l *Listener) admit(r *request) (ok bool, why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false, ""
	}
	if full, conns := l.o.limits.Full(&l.usage, r.key); full != limits.Room {
		if r.evicts = l.makesRoom(full == limits.OfAddr, r.key); r.evicts == nil {
			why = refusedFull
			if conns {
				why = refusedMany
			}
			if full == limits.OfAddr {
				why += refusedOfAddr
			}
			return false, why
		}
		r.evicts.claimLocked()
		l.usage.Add(r.evicts.key, limits.Count{Waiting: -1})
	}
	l.usage.Add(r.key, limits.Count{Waiting: 1, HalfOpen: 1, Conns: 1})
	l.wg.Add(1)
	return true, ""
}

// release changes what a key holds: -1 for what there is one less of.
func (l *Listener) release(key netip.Addr, change limits.Count) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.usage.Add(key, change)
}

// connClosed counts a connection that was closed.
func (l *Listener) connClosed(key netip.Addr) { l.release(key, limits.Count{Conns: -1}) }

// domain returns the domain of the listener's connections on a device, for [ListenerPD].
func (l *Listener) domain(d *device) *domain {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.domains[d]
	if m == nil {
		m = &domain{dev: d, keepFor: idleGrace}
		if l.domains == nil {
			l.domains = map[*device]*domain{}
		}
		maps.DeleteFunc(l.domains, func(d *device, _ *domain) bool { return !d.known() }) // closed, or removed
		l.domains[d] = m
	}
	return m
}

// refuse rejects a request with a reason for the peer, and reports the error to the program.
func (l *Listener) refuse(id *rdmacm.ID, words string, why error) {
	words = strings.ToValidUTF8(words[:min(len(words), maxRefusal)], "")
	if l.o.Refused != nil {
		addrs, _, _ := id.AddrsByIndex() // the zero value if it has none
		l.reportRefused(addrs.Remote, why)
	}
	reason := rdmacm.ReasonConsumer
	if errors.Is(why, rdmacm.ErrNoECE) {
		reason = rdmacm.ReasonVendorOption
	}
	id.Reject(greeting{kind: greetingRefusal, data: []byte(words)}.encode(), reason)
}

// reportRefused calls ListenOptions.Refused if it is set.
func (l *Listener) reportRefused(from rdmacm.Addr, why error) {
	if l.o.Refused != nil {
		l.o.Refused(from, why)
	}
}

// serveRequests answers a request, and those that arrive soon after it: reusing the goroutine saves
// growing a stack.
func (l *Listener) serveRequests(r *request) {
	growStack16K(0)
	idle := time.NewTimer(idleGrace)
	defer idle.Stop()
	for {
		if a := r.evicts; a != nil {
			a.abandon(errEvicted)
			l.wg.Done()
		}
		if err := l.accept(r); err != nil { // the peer is informed, or gone
			l.accepted(r.key)
			l.wg.Done()
		}
		idle.Reset(idleGrace)
		select {
		case r = <-l.work:
		case <-idle.C:
			return
		case <-l.ctx.Done():
			return
		}
	}
}

// accepted counts a request or connection that no longer waits for Accept.
func (l *Listener) accepted(key netip.Addr) { l.release(key, limits.Count{Waiting: -1}) }

// accept makes a connection for a request and accepts it. If accept succeeds, an event will report
// the result.
func (l *Listener) accept(r *request) error {
	e, peer := r.event, r.peer
	expected := false
	defer func() {
		if !expected { // otherwise claimLocked does it
			l.release(r.key, limits.Count{HalfOpen: -1})
		}
	}()
	if !l.loop.acquire() {
		l.connClosed(r.key)
		return errors.Join(errClosed, e.ID.Close())
	}
	c := newConn(l.loop, e.ID, r.addrs, r.index, l.o.ConnOptions, l)
	c.version, c.key = peer.version, r.key
	p, words, err := l.setUp(c, peer, &e.Param)
	if err != nil {
		l.refuse(e.ID, words, err)
		return c.abandon(err)
	}
	a := &pendingAccept{l: l, c: c, key: r.key, peer: peer, private: e.Param.PrivateData, since: time.Now()}
	a.acceptMu.Lock()
	defer a.acceptMu.Unlock()
	if expected = l.awaitPeer(a); !expected {
		return c.abandon(errClosed)
	}
	if err := e.ID.Accept(p); err != nil && a.claim() {
		if errors.Is(err, rdmacm.ErrNoECE) {
			l.refuse(e.ID, refusedECE, err)
		} else {
			l.reportRefused(c.addrs.Remote, err)
		}
		return c.abandon(err)
	}
	return nil
}

// abandon destroys a connection that is not established yet.
func (c *Conn) abandon(err error) error {
	c.dev.forgetIfRemoved(err)
	return errors.Join(err, c.destroy())
}

// setUp asks the program about a request and makes the queues and the memory of the connection. It
// returns the parameters of the answer, or an error with a reason for the peer. The peer learns
// only what the program's own error says.
func (l *Listener) setUp(c *Conn, peer greeting, asked *rdmacm.ConnParam) (p rdmacm.ConnParam, words string, err error) {
	if err = c.openDevice(); err == nil {
		err = c.id.CheckRemote(c.dev.dev)
	}
	if err != nil {
		return p, refusedFailed, err
	}
	data, err := l.checkRequest(c, peer)
	if err != nil {
		return p, err.Error(), err
	}
	if data == nil {
		data, err = l.answerData(c)
	} else {
		err = checkPrivateData("Check", data, MaxAcceptData)
	}
	if err == nil {
		err = setOptions(c.id, l.o.ConnOptions)
	}
	if err == nil {
		err = c.make()
	}
	switch {
	case errors.Is(err, rdmacm.ErrNoECE):
		return p, refusedECE, err
	case err != nil:
		return p, refusedFailed, err
	}
	if c.mustRecvFirst = onIWARP(c.dev.dev); !c.mustRecvFirst {
		port, err := c.dev.dev.Port(c.addrs.Port)
		if err != nil {
			return p, refusedFailed, err
		}
		c.portMTU = port.ActiveMTU
	}
	p = c.param(greetingAnswer, data)
	p.ResponderResources = min(p.ResponderResources, asked.ResponderResources)
	p.InitiatorDepth = min(p.InitiatorDepth, asked.InitiatorDepth)
	return p, "", nil
}

// checkRequest calls ListenOptions.Check, and returns its private data for the answer, or nil.
func (l *Listener) checkRequest(c *Conn, peer greeting) ([]byte, error) {
	if l.o.Check == nil {
		return nil, nil
	}
	r := &Request{Local: c.addrs.Local, Remote: c.addrs.Remote, PrivateData: peer.data}
	r.conn.Store(c)
	defer r.conn.Store(nil)
	return l.o.Check(r)
}

// answerData returns the private data of the answer without Check.
func (l *Listener) answerData(c *Conn) ([]byte, error) {
	if l.o.Prepare == nil {
		return l.o.PrivateData, nil
	}
	if err := c.attach(); err != nil {
		return nil, err
	}
	return l.prepare(c.pd)
}

// prepare returns what ListenOptions.Prepare returns for a PD, and calls it for a new one.
func (l *Listener) prepare(of *uverbs.PD) ([]byte, error) {
	l.prepareMu.Lock()
	defer l.prepareMu.Unlock()
	pd := weak.Make(of) // which ends while there is no connection
	l.prepared = slices.DeleteFunc(l.prepared, func(p prepared) bool { return p.pd.Value() == nil })
	for _, p := range l.prepared {
		if p.pd == pd {
			return p.data, nil
		}
	}
	data, err := l.o.Prepare(of)
	if err == nil {
		err = checkPrivateData("Prepare", data, MaxAcceptData)
	}
	if err == nil {
		l.prepared = append(l.prepared, prepared{pd, data})
	}
	return data, err
}

// prepared is what ListenOptions.Prepare has returned for a PD.
type prepared struct {
	pd   weak.Pointer[uverbs.PD]
	data []byte
}

// Accept waits for the next connection. The listener sets connections up independently of Accept,
// so that a slow peer does not delay others. After Close the error matches [net.ErrClosed]. A
// listener on an address of a device fails with ENODEV when the device is removed. Any listener
// fails with EACCES after the process has changed its user or group, because the kernel then no
// longer reports requests.
func (l *Listener) Accept(ctx context.Context) (*Conn, error) {
	select {
	case c := <-l.ready:
		return l.take(c), nil
	case <-l.ctx.Done():
		return nil, fmt.Errorf("cm: accept on %s: %w", l.addr, l.endErr())
	case <-ctx.Done():
		return nil, fmt.Errorf("cm: accept on %s: %w", l.addr, ctx.Err())
	}
}

// take returns a connection from l.ready, which no longer waits for Accept.
func (l *Listener) take(c *Conn) *Conn {
	l.accepted(c.key)
	c.accepted()
	return c
}

// endErr returns why the listener has ended.
func (l *Listener) endErr() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return errClosed
	}
	return context.Cause(l.ctx)
}

// Close stops listening. Unanswered requests are rejected. Connections that Accept has not returned
// are closed, all at the same time, so that this takes at most [ConnOptions].Linger. Connections
// that Accept has returned are not affected. Close waits for running calls of Check, Prepare and Refused,
// which must not call it.
func (l *Listener) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	answers := slices.Collect(maps.Keys(l.pending))
	l.mu.Unlock()
	l.loop.unregister(l.id)
	errs := []error{l.loop.closeID(l.id)}
	l.cancel(errClosed)
	for _, a := range answers {
		a.fail(errClosed)
	}
	l.wg.Wait()
	var closing sync.WaitGroup
	for n := len(l.ready); n > 0; n-- {
		select {
		case c := <-l.ready:
			closing.Go(func() {
				if err := c.Close(); err != nil {
					l.mu.Lock()
					defer l.mu.Unlock()
					errs = append(errs, err)
				}
			})
		default: // Accept has returned it
		}
	}
	closing.Wait()
	l.loop.release()
	return errors.Join(errs...)
}
