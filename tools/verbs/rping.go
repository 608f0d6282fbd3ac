package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
	"github.com/goverbs/goverbs/tools/verbs/internal/places"
)

// rpingOptions are the flags of the command, with the letters of rdma-core's rping.
type rpingOptions struct {
	server     bool
	client     bool
	address    string
	source     string
	port       int
	count      int
	size       int
	verify     bool
	verbose    bool
	persistent bool
	ownQP      bool
	debug      bool
	timeout    time.Duration
	maxClients int
	json       bool
}

// Sizes of a ping in bytes. The smallest has room for the longest header of a ping's text; the
// largest is the maximum of rdma-core's rping.
const (
	minPing = 26
	maxPing = 64<<10 - 1
)

func newRping() *command.Command {
	var o rpingOptions
	cmd := &command.Command{
		Use:   "rping [flags] -s|-c",
		Short: "Ping a peer over the connection manager, by RDMA READ and WRITE",
		Long: `For each ping, the client sends the address of its text, the server fetches the text by RDMA READ,
the client sends the address of a second buffer, and the server writes the text there by RDMA WRITE.
Either side may be rdma-core's rping, whose flags have the same letters.

A server plays with one client, the first that sends a ping. With -P it plays with any number of
them. Up to --max-clients are connected at once, half of them from one address, so that a client
that sends nothing does not keep others out. The server takes pings of any size, and disconnects a
client that sends nothing for --timeout.
` + trust + `A server without -a listens on all addresses. Give it an address of a network that you trust. Each
client takes 64 KiB of memory and a queue pair.`,
		Example: `  verbs rping -s                          # wait for a client, on all addresses
  verbs rping -s -P -a 10.1.0.1           # serve clients until interrupted
  verbs rping -c -a 10.1.0.1 -C 10 -v     # ping ten times, and show what comes back
  verbs rping -c -a 10.1.0.1 -V           # ping and compare until interrupted`,
		Args: command.Arguments(0),
		Run: func(cmd *command.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.Out(), cmd.Err())
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&o.server, "server", "s", false, "be the server")
	f.BoolVarP(&o.client, "client", "c", false, "be the client")
	f.StringVarP(&o.address, "address", "a", "", "`HOST` or address of the server (server: default all)")
	f.StringVarP(&o.source, "source", "I", "", "`HOST` or address to connect from (client)")
	command.NumberVar(f, &o.port, "port", "p", 7174, 1, maxPort, "`PORT` of the connection manager")
	command.NumberVar(f, &o.count, "count", "C", 0, 0, math.MaxInt, "ping `N` times (client; default until interrupted)")
	command.NumberVar(f, &o.size, "size", "S", 64, minPing, maxPing, "size of a ping in `BYTES` (client)")
	f.BoolVarP(&o.verify, "verify", "V", false, "compare what comes back (client)")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "show the text of each ping")
	f.BoolVarP(&o.persistent, "persistent", "P", false, "serve any number of clients (server)")
	f.BoolVarP(&o.ownQP, "own-qp", "q", false, "change the states of the QP one by one instead of by the connection manager's ID")
	f.BoolVarP(&o.debug, "debug", "d", false, "show each step on standard error")
	f.DurationVar(&o.timeout, "timeout", 30*time.Second, "give up when the peer does nothing for this `TIME`")
	command.NumberVar(f, &o.maxClients, "max-clients", "", 64, 1, maxClients, "serve up to `N` clients at once, half of them from one address (server)")
	command.JSONFlag(cmd, &o.json)
	return cmd
}

// check refuses impossible options before anything is opened.
func (o *rpingOptions) check() error {
	switch {
	case o.server == o.client:
		return command.Usagef("give either --server (-s) or --client (-c)")
	case o.client && o.address == "":
		return command.Usagef("--address (-a) is missing: a client needs the server's address")
	case o.server && o.source != "":
		return command.Usagef("--source (-I) is %s, allowed: only with --client (-c)", peertext.Quote(o.source))
	case o.client && o.persistent:
		return command.Usagef("--persistent (-P) is true, allowed: only with --server (-s)")
	case o.timeout <= 0:
		return command.Usagef("--timeout is %s, allowed: more than 0", o.timeout)
	case o.json && o.verbose:
		return command.Usagef("--verbose (-v) and --json exclude each other")
	}
	return nil
}

// rpingResult is what a run did.
type rpingResult struct {
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
func (r *rpingResult) add(pings int, bytes int64, took time.Duration, err error) {
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
func (r *rpingResult) print(out io.Writer, asJSON bool) error {
	if asJSON {
		return command.PrintJSON(out, r)
	}
	_, err := fmt.Fprintf(out, "%d pings, %d bytes in %.2f seconds = %.2f usec/ping\n", r.Pings, r.Bytes, r.Seconds, r.MicrosPerPing)
	return err
}

// rping is a run of the command.
type rping struct {
	o       *rpingOptions
	text    io.Writer // gets a line for each ping and listener, if they are printed
	log     io.Writer
	channel *rdmacm.Channel

	mu     sync.Mutex
	result rpingResult // guarded by mu

	// Of a server without -P:
	client    atomic.Pointer[rpingEnd] // the client that it plays with, nil until it has sent a ping
	others    context.CancelCauseFunc  // disconnects all other clients
	clientErr error                    // guarded by mu: why it has ended
}

// run plays one role.
func (o *rpingOptions) run(ctx context.Context, out, log io.Writer) (err error) {
	if err := o.check(); err != nil {
		return err
	}
	addr, err := lookup(ctx, "--address", o.address)
	if err != nil {
		return err
	}
	var source netip.AddrPort
	if o.source != "" {
		ip, err := lookup(ctx, "--source", o.source)
		if err != nil {
			return err
		}
		source = netip.AddrPortFrom(ip, 0)
	}
	r := &rping{o: o, text: &lines{w: out}, log: &lines{w: log}}
	if o.json {
		r.text = io.Discard
	}
	local, remote := addr, netip.Addr{} // of a server
	if o.client {
		local, remote = source.Addr(), addr
	}
	if r.channel, err = rdmacm.OpenChannelFor(local, remote); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.channel.Close()) }()
	peer := netip.AddrPortFrom(addr, uint16(o.port))
	if o.client {
		err = rdmacm.RetryPort(func() error { return r.connect(ctx, source, peer) })
	} else {
		err = r.listen(ctx, peer)
	}
	if err != nil {
		return err
	}
	return r.result.print(out, o.json)
}

// debugf prints a step.
func (r *rping) debugf(format string, args ...any) {
	if r.o.debug {
		fmt.Fprintf(r.log, "rping: "+format+"\n", args...)
	}
}

// lines writes for several goroutines.
type lines struct {
	mu sync.Mutex
	w  io.Writer // guarded by mu
}

// Write implements io.Writer.
func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// lookup returns the address of a host; without a host it is the unspecified address.
func lookup(ctx context.Context, flag, host string) (netip.Addr, error) {
	if host == "" {
		return netip.IPv4Unspecified(), nil
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip, nil
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%s is %s: %w", flag, peertext.Quote(host), err)
	}
	return ips[0].Unmap(), nil
}

// listen serves clients.
func (r *rping) listen(ctx context.Context, addr netip.AddrPort) (err error) {
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
	if r.o.persistent {
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
func (r *rping) choose(e *rpingEnd) error {
	if r.o.persistent {
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
func (r *rping) serveAll(ctx, waiting context.Context, listener *rdmacm.ID) (err error) {
	var all sync.WaitGroup
	defer func() {
		err = errors.Join(err, listener.Close()) // clients that connect later are refused
		if err != nil && r.others != nil {
			r.others(err)
		}
		all.Wait()
		err = errors.Join(err, r.clientErr)
	}()
	room := &places.Places{Most: r.o.maxClients}
	for {
		request, err := listener.Request(waiting)
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
func (r *rping) serve(ctx, waiting context.Context, request *rdmacm.Event) {
	e := &rpingEnd{rping: r, id: request.ID, size: maxPing}
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
	if chosen || r.o.persistent {
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
func (r *rping) connect(ctx context.Context, source, addr netip.AddrPort) (err error) {
	id, err := r.channel.NewID(rdmacm.TCP)
	if err != nil {
		return err
	}
	e := &rpingEnd{rping: r, id: id, size: r.o.size}
	defer func() { err = errors.Join(err, e.close()) }()
	if err := e.connect(ctx, source, addr); err != nil {
		return err
	}
	a, err := id.Addrs()
	if err != nil {
		return err
	}
	r.debugf("connected from %s to %s over %s", a.Local, a.Remote, a.Device)
	r.result = rpingResult{Role: "client", Local: a.Local.String(), Remote: a.Remote.String(), Device: a.Device}
	start := time.Now()
	err = e.play(ctx, e.ping)
	r.result.add(e.pings, e.bytes, time.Since(start), err)
	if err != nil {
		return fmt.Errorf("server %s: %w", addr, err)
	}
	return nil
}
