// Package rping pings a peer over the connection manager, as rdma-core's rping does, which may be the peer.
package rping

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/peer"
	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
	"github.com/goverbs/goverbs/tools/verbs/internal/places"
)

// Options say what is played.
type Options struct {
	Server, Client bool          // Server and Client choose the role.
	Address        string        // Address is the host or address of the server; a server without it listens on all.
	Source         string        // Source is the host or address that a client connects from.
	Port           int           // Port of the connection manager.
	Count          int           // Count is the number of pings of a client; 0 is no limit.
	Size           int           // Size of a ping of a client, in bytes.
	PKey           uint16        // PKey is the partition that a connection must be in; 0 is any.
	Verify         bool          // Verify has a client compare what comes back.
	Verbose        bool          // Verbose prints the text of each ping.
	Persistent     bool          // Persistent has a server serve any number of clients.
	OwnQP          bool          // OwnQP has the QP not be of the ID, and its states changed one by one.
	Debug          bool          // Debug prints each step.
	Timeout        time.Duration // Timeout ends the play when the peer does nothing.
	MaxClients     int           // MaxClients is how many clients a server serves at once.
	JSON           bool          // JSON prints the result as JSON.
}

// Sizes of a ping in bytes. The smallest has room for the longest header of a ping's text; the
// largest is the maximum of rdma-core's rping.
const (
	MinPing = 26
	MaxPing = 64<<10 - 1
)

// check refuses impossible options before anything is opened.
func (o *Options) check() error {
	switch {
	case o.Server == o.Client:
		return command.Usagef("give either --server (-s) or --client (-c)")
	case o.Client && o.Address == "":
		return command.Usagef("--address (-a) is missing: a client needs the server's address")
	case o.Server && o.Source != "":
		return command.Usagef("--source (-I) is %s, allowed: only with --client (-c)", peertext.Quote(o.Source))
	case o.Client && o.Persistent:
		return command.Usagef("--persistent (-P) is true, allowed: only with --server (-s)")
	case o.Timeout <= 0:
		return command.Usagef("--timeout is %s, allowed: more than 0", o.Timeout)
	case o.JSON && o.Verbose:
		return command.Usagef("--verbose (-v) and --json exclude each other")
	}
	return nil
}

// Result is what a run did.
type Result struct {
	Role          string  `json:"role"`                     // client or server
	Local         string  `json:"local_address"`            // IP address and port
	Remote        string  `json:"remote_address,omitempty"` // the peer's IP address and port (client)
	Device        string  `json:"device,omitempty"`         // the device of the connection (client)
	Connections   int     `json:"connections"`              // clients that were served, or 1
	Failed        int     `json:"failed"`                   // connections that ended with an error
	Pings         int     `json:"pings"`                    // of all connections
	Bytes         int64   `json:"bytes"`                    // both directions
	Seconds       float64 `json:"seconds"`                  // connected; a server adds up its clients
	MicrosPerPing float64 `json:"us_per_ping"`              // there and back; 0 if there was none
}

// add adds the counts of one connection.
func (r *Result) add(pings int, bytes int64, took time.Duration, err error) {
	r.Connections++
	if err != nil {
		r.Failed++
	}
	r.Pings += pings
	r.Bytes += bytes
	r.Seconds += took.Seconds()
	if r.Pings > 0 {
		r.MicrosPerPing = r.Seconds * 1e6 / float64(r.Pings)
	}
}

// print writes the result.
func (r *Result) print(out io.Writer, asJSON bool) error {
	if asJSON {
		return command.PrintJSON(out, r)
	}
	_, err := fmt.Fprintf(out, "%d pings, %d bytes in %.2f seconds = %.2f usec/ping\n", r.Pings, r.Bytes, r.Seconds, r.MicrosPerPing)
	return err
}

// run is a run of the command.
type run struct {
	o       *Options
	text    io.Writer // gets a line for each ping and listener, if they are printed
	log     io.Writer
	channel *rdmacm.Channel

	mu     sync.Mutex
	result Result // guarded by mu

	// Of a server without -P:
	client    atomic.Pointer[end]     // the client that it plays with, nil until it has sent a ping
	others    context.CancelCauseFunc // disconnects all other clients
	clientErr error                   // guarded by mu: why it has ended
}

// Run plays one role. It prints the result to out, and what is wrong with clients to log. Both must be
// safe for concurrent use.
func (o *Options) Run(ctx context.Context, out, log io.Writer) (err error) {
	if err := o.check(); err != nil {
		return err
	}
	addr, err := peer.Lookup(ctx, "--address", o.Address)
	if err != nil {
		return err
	}
	var source netip.AddrPort
	if o.Source != "" {
		ip, err := peer.Lookup(ctx, "--source", o.Source)
		if err != nil {
			return err
		}
		source = netip.AddrPortFrom(ip, 0)
	}
	r := &run{o: o, text: out, log: log}
	if o.JSON {
		r.text = io.Discard
	}
	local, remote := addr, netip.Addr{} // of a server
	if o.Client {
		local, remote = source.Addr(), addr
	}
	if r.channel, err = rdmacm.OpenChannel(rdmacm.ChannelOptions{Local: local, Remote: remote}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.channel.Close()) }()
	peer := netip.AddrPortFrom(addr, uint16(o.Port))
	if o.Client {
		err = rdmacm.RetryPort(func() error { return r.connect(ctx, source, peer) })
	} else {
		err = r.listen(ctx, peer)
	}
	if err != nil {
		return err
	}
	return r.result.print(out, o.JSON)
}

// debugf prints a step.
func (r *run) debugf(format string, args ...any) {
	if r.o.Debug {
		fmt.Fprintf(r.log, "rping: "+format+"\n", args...)
	}
}

// listen serves clients.
func (r *run) listen(ctx context.Context, addr netip.AddrPort) (err error) {
	listener, err := r.channel.NewID(rdmacm.TCP)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, listener.Close()) }()
	if err := listener.Bind(rdmacm.AddrOf(addr)); err != nil {
		return err
	}
	if err := listener.Listen(0); err != nil {
		return err
	}
	r.result.Role, r.result.Local = "server", addr.String()
	fmt.Fprintf(r.text, "listening on %s\n", addr)
	if r.o.Persistent {
		return r.serveAll(ctx, ctx, listener)
	}
	waiting, others := context.WithCancelCause(ctx)
	r.others = others
	err = r.serveAll(ctx, waiting, listener)
	if err == nil && r.client.Load() == nil {
		err = context.Cause(ctx)
	}
	return err
}

// errNotTheClient says that a server without -P plays with another client.
var errNotTheClient = errors.New("the server has another client")

// choose makes the client of an end the one that a server without -P plays with, if there is none yet.
func (r *run) choose(e *end) error {
	if r.o.Persistent {
		return nil
	}
	if !r.client.CompareAndSwap(nil, e) {
		return errNotTheClient
	}
	r.others(errNotTheClient)
	return nil
}

// serveAll serves clients, each in a goroutine, until waiting ends. It rejects a client above
// the limit before it opens anything for it. It returns the error of the client of a server without -P.
func (r *run) serveAll(ctx, waiting context.Context, listener *rdmacm.ID) (err error) {
	var all sync.WaitGroup
	defer func() {
		err = errors.Join(err, listener.Close()) // clients that connect later are refused
		if err != nil && r.others != nil {
			r.others(err)
		}
		all.Wait()
		err = errors.Join(err, r.clientErr)
	}()
	room := &places.Places{Most: r.o.MaxClients}
	for {
		request, err := listener.NextRequest(waiting)
		if waiting.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		a, err := request.ID.Addrs()
		if err == nil {
			err = room.Take(a.Remote.IP)
		}
		if err != nil {
			r.debugf("a client is rejected, %v", err)
			if err := errors.Join(request.ID.Reject(nil, rdmacm.ReasonConsumer), request.ID.Close()); err != nil {
				r.debugf("reject: %v", err) // the client may be gone
			}
			continue
		}
		all.Go(func() {
			defer room.Leave(a.Remote.IP)
			r.serve(ctx, waiting, request)
		})
	}
}

// serve serves one client. It disconnects it at the end of waiting, unless the server has chosen it.
func (r *run) serve(ctx, waiting context.Context, request *rdmacm.Event) {
	e := &end{run: r, id: request.ID, size: MaxPing}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(waiting, func() {
		if r.client.Load() != e {
			cancel(context.Cause(waiting))
		}
	})()
	from, err := e.name()
	start := time.Now()
	if err == nil {
		r.debugf("%s wants to connect", from)
		if err = e.accept(ctx, request); err == nil {
			start = time.Now()
			err = e.play(ctx, e.serve)
		}
		r.debugf("%s is gone, after %d pings", from, e.pings)
	}
	err = errors.Join(err, e.close())
	if err != nil {
		err = fmt.Errorf("client %s: %w", from, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	chosen := r.client.Load() == e
	if chosen || r.o.Persistent {
		r.result.add(e.pings, e.bytes, time.Since(start), err)
	}
	switch {
	case chosen:
		r.clientErr = err
	case err != nil:
		fmt.Fprintf(r.log, "verbs: %v\n", err)
	}
}

// connect connects to a server and pings it.
func (r *run) connect(ctx context.Context, source, addr netip.AddrPort) (err error) {
	id, err := r.channel.NewID(rdmacm.TCP)
	if err != nil {
		return err
	}
	e := &end{run: r, id: id, size: r.o.Size}
	defer func() { err = errors.Join(err, e.close()) }()
	if err := e.connect(ctx, source, addr); err != nil {
		return err
	}
	a, err := id.Addrs()
	if err != nil {
		return err
	}
	r.debugf("connected from %s to %s over %s", a.Local, a.Remote, a.Device)
	r.result = Result{Role: "client", Local: a.Local.String(), Remote: a.Remote.String(), Device: a.Device}
	start := time.Now()
	err = e.play(ctx, e.ping)
	r.result.add(e.pings, e.bytes, time.Since(start), err)
	if err != nil {
		return fmt.Errorf("server %s: %w", addr, err)
	}
	return nil
}
