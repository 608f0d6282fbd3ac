package cm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Listener takes connections that others [Dial]. It is safe for concurrent use.
type Listener struct {
	hub  *hub
	id   *ID
	addr Addr
	o    Options

	ctx    context.Context // ends with the listener
	cancel context.CancelFunc
	ready  chan *Conn
	wg     sync.WaitGroup // of requests that are being answered

	mu      sync.Mutex
	waiting int  // guarded by mu: requests and connections that Accept has not returned
	closed  bool // guarded by mu
}

// Listen listens on "host:port". Without a host, or with the unspecified address, that is all
// addresses of all RDMA devices; with port 0 the kernel chooses one, see [Listener.Addr].
func Listen(ctx context.Context, address string, o Options) (*Listener, error) {
	o, err := o.defaults("Listen", MaxAcceptData)
	if err != nil {
		return nil, err
	}
	addrs, err := lookup(ctx, address)
	if err != nil {
		return nil, err
	}
	h, err := newHub()
	if err != nil {
		return nil, err
	}
	id, err := h.channel.NewID(TCP)
	if err != nil {
		h.release()
		return nil, err
	}
	l := &Listener{hub: h, id: id, o: o, ready: make(chan *Conn, o.Backlog)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	var all Addrs
	if err = id.Bind(addrs[0]); err == nil {
		all, err = id.Addrs()
	}
	if err == nil {
		l.addr = all.Local
		h.watch(id, l.event)
		err = id.Listen(o.Backlog)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cm: listen on %s: %w", address, err), l.Close())
	}
	return l, nil
}

// Addr returns the address that the listener is on.
func (l *Listener) Addr() net.Addr { return l.addr }

// event takes a request.
func (l *Listener) event(e *Event) {
	if e.Type != ConnectRequest {
		return
	}
	l.mu.Lock()
	full, closed := l.waiting >= l.o.Backlog, l.closed
	if !full && !closed {
		l.waiting++
		l.wg.Add(1)
	}
	l.mu.Unlock()
	switch {
	case closed:
		e.ID.Close()
	case full:
		refuse(e.ID, "too many connections are waiting to be accepted")
		e.ID.Close()
	default:
		go l.answer(e)
	}
}

// refuse rejects a request with words.
func refuse(id *ID, why string) {
	why = why[:min(len(why), maxRefusal)]
	id.Reject(hello{kind: helloRefusal, data: []byte(why)}.encode(), ReasonConsumer)
}

// answer answers a request, and gives the connection to Accept.
func (l *Listener) answer(e *Event) {
	defer l.wg.Done()
	deepen(0)
	// The peer may never say that it is ready; the kernel gives up on it after a while.
	const longest = 2 * time.Minute
	ctx, cancel := context.WithTimeout(l.ctx, longest)
	defer cancel()
	c, err := l.accept(ctx, e)
	if err != nil { // the peer is told, or gone
		l.done()
		return
	}
	l.ready <- c // has room for all that are counted as waiting
}

// done counts a request that is no longer waiting.
func (l *Listener) done() {
	l.mu.Lock()
	l.waiting--
	l.mu.Unlock()
}

// accept makes a connection of a request.
func (l *Listener) accept(ctx context.Context, e *Event) (c *Conn, err error) {
	if !l.hub.use() {
		return nil, errors.Join(errClosed, e.ID.Close())
	}
	defer func() {
		switch {
		case err == nil:
		case c == nil:
			refuse(e.ID, err.Error())
			err = errors.Join(err, e.ID.Close())
			l.hub.release()
		default:
			err = errors.Join(err, c.destroy())
			c = nil
		}
	}()
	peer, err := parseHello(e.Param.PrivateData, helloRequest)
	if err != nil {
		return nil, err
	}
	data, err := l.check(e.ID, peer)
	if err != nil {
		return nil, err
	}
	if err := e.ID.setOptions(l.o); err != nil {
		return nil, err
	}
	if c, err = newConn(l.hub, e.ID, l.o); err != nil {
		return nil, err
	}
	c.mute = onIWARP(c.dev.dev)
	p := c.param(helloAnswer, data)
	p.ResponderResources = min(p.ResponderResources, e.Param.ResponderResources)
	p.InitiatorDepth = min(p.InitiatorDepth, e.Param.InitiatorDepth)
	if err = e.ID.AcceptWait(ctx, p, ECE{}); err != nil {
		return c, err
	}
	c.start(peer, e.Param.PrivateData)
	return c, nil
}

// check asks the program about a request, and returns the answer's private data.
func (l *Listener) check(id *ID, peer hello) ([]byte, error) {
	if l.o.Check == nil {
		return l.o.PrivateData, nil
	}
	a, err := id.Addrs()
	if err != nil {
		return nil, err
	}
	data, err := l.o.Check(&Request{Local: a.Local, Remote: a.Remote, PrivateData: peer.data})
	if err == nil && len(data) > MaxAcceptData {
		err = argErr("Check", "private data", fmt.Sprintf("%d bytes long", len(data)), "up to %d bytes", MaxAcceptData)
	}
	return data, err
}

// Accept waits for the next connection. Setting one up goes on without it, so that a peer that
// is slow in it holds up no other. The error matches [net.ErrClosed] after Close.
func (l *Listener) Accept(ctx context.Context) (*Conn, error) {
	select {
	case c := <-l.ready:
		l.done()
		return c, nil
	case <-l.ctx.Done():
		return nil, fmt.Errorf("cm: accept on %s: %w", l.addr, errClosed)
	case <-ctx.Done():
		return nil, fmt.Errorf("cm: accept on %s: %w", l.addr, ctx.Err())
	}
}

// Close stops listening. Connections that Accept has returned stay; those that it has not are
// closed, and requests are rejected.
func (l *Listener) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	l.mu.Unlock()
	l.hub.unwatch(l.id)
	errs := []error{l.id.Close()}
	l.cancel()
	l.wg.Wait()
	for {
		select {
		case c := <-l.ready:
			errs = append(errs, c.Close())
			continue
		default:
		}
		break
	}
	l.hub.release()
	return errors.Join(errs...)
}
