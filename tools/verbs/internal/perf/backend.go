package perf

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// backend is what a server's sessions run tests on. It is reached only by what has been checked.
type backend interface {
	// limits returns the limits of the device for clients that have connected to an address of this
	// machine.
	limits(to netip.Addr) (Limits, error)

	// open opens that device and makes the server's side of a test.
	open(to netip.Addr, c Config) (side, error)
}

// side is the server's side of a test. The methods are called in this order, from Prepare on for each
// size; Stop is called by another goroutine while a size is under way.
type side interface {
	// listen returns the address of the connection manager, or "" if the test needs none.
	listen() (addr string, token []byte, err error)
	// accept accepts the connections of the client, if the connection manager makes them.
	accept(ctx context.Context) error
	// peers returns this side's queue pairs, and the largest message that they send inline, in
	// bytes.
	peers(remote ib.GID) ([]Peer, int, error)
	// path connects the path to the client's end, and returns what the client must know; see path.go.
	path(ctx context.Context, client *Peer) (*Peer, error)
	// greeted checks the token that the client has read, and waits for the first message that each connection
	// needs on iWARP.
	greeted(ctx context.Context, token []byte) error
	// Connect connects this side's queue pairs to the client's.
	Connect(ctx context.Context, peers []Peer) error

	Prepare(size int) error
	Run(ctx context.Context, size int, sent func(messages int64) error) (*Run, error)
	Stop(sent int64)
	verify(size int, run *Run) error

	name() string // of the device
	close() error
}

// devices are the RDMA devices of this machine.
type devices struct {
	server *Server
	device string // "" for that of server.Local, or one that suits

	mu    sync.Mutex
	asked map[netip.Addr]*asked // guarded by mu
}

// asked is what the device for an address has answered.
type asked struct {
	done   chan struct{} // closed when there is the answer; the others are not read before
	at     time.Time     // when it answered
	limits Limits
	err    error
}

// fresh is for how long an answer holds, so that many clients do not open the device as often.
const fresh = time.Second

// local returns what the server's side chooses.
func (d *devices) local() Local {
	l := d.server.Local
	if d.device != "" {
		l.Device = d.device
	}
	return l
}

// limits implements backend. A device that does not answer holds up its own clients only.
func (d *devices) limits(to netip.Addr) (Limits, error) {
	const most = 64 // addresses
	d.mu.Lock()
	a := d.asked[to]
	if a != nil && (!a.answered() || time.Since(a.at) < fresh) {
		d.mu.Unlock()
		<-a.done
		return a.limits, a.err
	}
	if d.asked == nil || len(d.asked) >= most {
		d.asked = map[netip.Addr]*asked{}
	}
	a = &asked{done: make(chan struct{})}
	d.asked[to] = a
	d.mu.Unlock()
	defer close(a.done)
	a.limits, a.err = d.ask(to)
	a.at = time.Now()
	return a.limits, a.err
}

// answered reports whether there is the answer.
func (a *asked) answered() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// ask asks the device.
func (d *devices) ask(to netip.Addr) (l Limits, err error) {
	dev, port, err := OpenDevice(d.local(), to)
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	attr, err := dev.Port(port)
	if err != nil {
		return l, err
	}
	return limits(dev, attr), nil
}

// open implements backend.
func (d *devices) open(to netip.Addr, c Config) (side, error) {
	dev, port, err := OpenDevice(d.local(), to)
	if err != nil {
		return nil, err
	}
	end, err := NewEnd(dev, port, c, d.local(), true)
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	end.tamper = d.server.tamper
	return &deviceSide{End: end, to: to}, nil
}

// deviceSide is a side on a device.
type deviceSide struct {
	*End
	to  netip.Addr
	ids *connections // nil unless the connection manager connects the queue pairs
}

// listen implements side.
func (d *deviceSide) listen() (addr string, token []byte, err error) {
	if !d.Config.CM {
		return "", nil, nil
	}
	if !d.to.IsValid() { // the control connection has no address
		addrs := slices.DeleteFunc(addrsOf(d.Dev.Info()), netip.Addr.IsLinkLocalUnicast)
		if len(addrs) == 0 {
			return "", nil, refusef("the network interface of %s has no address for the connection manager", d.Dev.Name())
		}
		d.to = addrs[0]
	}
	if d.ids, err = listenIDs(d.End, d.to); err != nil {
		return "", nil, err
	}
	return d.ids.addr.String(), d.ids.token, nil
}

// accept implements side.
func (d *deviceSide) accept(ctx context.Context) error {
	if d.ids == nil {
		return nil
	}
	return d.ids.accept(ctx)
}

// peers implements side.
func (d *deviceSide) peers(remote ib.GID) ([]Peer, int, error) {
	all, err := d.Peers(remote)
	return all, d.Inline, err
}

// path implements side.
func (d *deviceSide) path(ctx context.Context, client *Peer) (*Peer, error) {
	if client == nil { // on iWARP
		return nil, nil
	}
	var local netip.Addr
	if d.Config.CM {
		local = d.to
	}
	mine, err := d.openPath(client.GID, local)
	if err != nil {
		return nil, err
	}
	return mine, d.connectPath(ctx, client)
}

// greeted implements side.
func (d *deviceSide) greeted(ctx context.Context, token []byte) error {
	if err := d.checkToken(token); err != nil {
		return err
	}
	return d.End.greeted(ctx)
}

// verify implements side.
func (d *deviceSide) verify(size int, run *Run) error {
	c := &d.Config
	done := (d.peerHas.Load() - 1) / int64(c.QPs)
	if err := d.VerifyMemory(size, done); err != nil {
		return err
	}
	if c.Both && c.Op == Read {
		return d.verifyRead(size, run.AllSent/int64(c.QPs))
	}
	return nil
}

// name implements side.
func (d *deviceSide) name() string { return d.Dev.Name() }

// close implements side.
func (d *deviceSide) close() error { return errors.Join(d.End.Close(), d.Dev.Close()) }
