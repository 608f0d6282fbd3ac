package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs"
)

// Port is the port of the connection manager on which a peer answers, unless another one is given.
const Port = 9879

// Limits.
const (
	minRate, maxRate = 1, 1000
	maxPaths         = 16
	mostPeers        = 1024    // addresses that are probed
	mostFile         = 1 << 20 // bytes of a file of peers
	mostSessions     = 1 << 16
)

// resolveEach is how often names are looked up and files read. Tests shorten it.
var resolveEach = 10 * time.Second

// Options are the options of a [Prober].
type Options struct {
	// Peers are the peers to probe: names or addresses, each with :PORT or without. A name may have many
	// addresses, such as that of a headless service of Kubernetes; all of them are probed except the addresses of
	// this host, and names are looked up again. An entry @FILE stands for the lines of a file, which is read again; there
	// # begins a comment.
	Peers []string

	Rate   int        // Rate is the number of datagrams per second to each peer on each path, 1 to 1000; zero is 50.
	Paths  int        // Paths is the number of paths to each peer, each with a flow label of its own, 1 to 16; zero is 4.
	Source netip.Addr // Source is the local address of probes; by default the route chooses it.

	// Listen is an address on which probes of other hosts are answered, such as :9879 for all addresses of this
	// host; empty for none.
	Listen string
	// Allow are the networks whose hosts are answered; none means all.
	Allow []netip.Prefix
	// Sessions is how many paths of other hosts are answered, up to 65536; zero is 1024. One address may hold 64.
	Sessions int

	// Warn, if set, is called with what fails: once for each peer, name, file or device until it works again, or for an
	// hour. All requests that are refused count as one.
	Warn func(error)
}

// argError is the error of an option.
func argError(field string, value any, allowed string) error {
	return &uverbs.ArgError{Package: "probe", Op: "New", Field: field, Given: fmt.Sprint(value), Allowed: allowed}
}

// check checks the options and fills in their defaults.
func (o *Options) check() error {
	for _, n := range []struct {
		field              string
		value              *int
		first, last, usual int
	}{{"Rate", &o.Rate, minRate, maxRate, 50}, {"Paths", &o.Paths, 1, maxPaths, 4}, {"Sessions", &o.Sessions, 1, mostSessions, 1024}} {
		if *n.value == 0 {
			*n.value = n.usual
		}
		if *n.value < n.first || *n.value > n.last {
			return argError(n.field, *n.value, fmt.Sprintf("%d to %d", n.first, n.last))
		}
	}
	for _, peer := range o.Peers {
		if _, err := readPeers(peer); err != nil {
			return err
		}
	}
	for _, n := range o.Allow {
		if !n.IsValid() {
			return argError("Allow", n, "networks such as 10.0.0.0/8")
		}
	}
	if o.Listen != "" {
		if _, err := o.listen(); err != nil {
			return err
		}
	}
	if len(o.Peers) == 0 && o.Listen == "" {
		return argError("Peers", "empty", "one peer and more, unless Listen is set")
	}
	return nil
}

// listen returns the address to listen on.
func (o *Options) listen() (netip.AddrPort, error) {
	text := o.Listen
	if strings.HasPrefix(text, ":") {
		text = "[::]" + text
	}
	listen, err := netip.ParseAddrPort(text)
	if err != nil || listen.Port() == 0 {
		return listen, argError("Listen", strconv.Quote(o.Listen), "IP:PORT or :PORT with a port from 1 to 65535, such as :9879")
	}
	return listen, nil
}

// splitPeer splits HOST or HOST:PORT.
func splitPeer(peer string) (host string, port uint16, err error) {
	host, port = strings.Trim(peer, "[]"), Port
	if _, aerr := netip.ParseAddr(host); aerr != nil && strings.Contains(peer, ":") {
		var text string
		if host, text, err = net.SplitHostPort(peer); err == nil {
			n, perr := strconv.ParseUint(text, 10, 16)
			port, err = uint16(n), perr
		}
	}
	bad := func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`/"@`, r) }
	if err != nil || port == 0 || host == "" || host[0] == '-' || len(host) > 253 || strings.ContainsFunc(host, bad) {
		return "", 0, argError("Peers", strconv.Quote(peer), "HOST, HOST:PORT, [IPv6]:PORT or @FILE, with a port from 1 to 65535")
	}
	return host, port, nil
}

// readPeers returns the peers that an entry stands for: itself, or the lines of a file.
func readPeers(entry string) (peers []string, err error) {
	name, ok := strings.CutPrefix(entry, "@")
	if !ok {
		_, _, err = splitPeer(entry)
		return []string{entry}, err
	}
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // do not wait for the other end of a pipe
	if err != nil {
		return nil, fmt.Errorf("probe: peers: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("probe: peers: %s is no regular file", name)
	}
	text, err := io.ReadAll(io.LimitReader(f, mostFile+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("probe: peers: %w", err)
	case len(text) == 0 || len(text) > mostFile:
		return nil, fmt.Errorf("probe: peers: %s has %d bytes, allowed: 1 to %d; a comment alone stands for no peers", name, info.Size(), mostFile)
	}
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if _, _, err := splitPeer(line); err != nil {
			return nil, fmt.Errorf("%w, in %s", err, name)
		}
		peers = append(peers, line)
	}
	return peers, nil
}

// Prober probes peers, and answers their probes. Its methods may be called concurrently, but Run
// once.
type Prober struct {
	o       Options
	devices devices
	answers answers

	mu       sync.Mutex
	peers    []*peer
	channels map[bool]*rdmacm.Channel // whether it is of devices in software
	warned   map[string]time.Time     // by what the warning is about
}

// address is an address of a peer, and how the peer was given.
type address struct {
	name string
	netip.AddrPort
}

// peer is an address that is probed.
type peer struct {
	address
	paths []*path
	stop  context.CancelFunc
	done  sync.WaitGroup
}

// New returns a Prober. Its errors name the option, its value and what is allowed.
func New(o Options) (*Prober, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	o.Peers, o.Allow = slices.Clone(o.Peers), slices.Clone(o.Allow)
	p := &Prober{o: o, devices: devices{open: map[string]*device{}}, channels: map[bool]*rdmacm.Channel{}, warned: map[string]time.Time{}}
	p.answers.p = p
	return p, nil
}

// Run probes the peers and answers until the context ends, which is no error. It fails if it cannot
// listen, but waits for RDMA where there is none yet.
func (p *Prober) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	if p.o.Listen != "" {
		all.Go(func() {
			err := p.answers.start()
			for ; noRDMA(err) && ctx.Err() == nil; err = p.answers.start() {
				p.warn("listen", err)
				pause(ctx, resolveEach)
			}
			if err == nil {
				err = p.answers.run(ctx)
			}
			cancel(err)
		})
	}
	files, found := map[string][]string{}, map[string][]netip.AddrPort{}
	for ctx.Err() == nil {
		p.follow(ctx, p.resolve(ctx, p.names(files), found))
		pause(ctx, resolveEach)
	}
	p.follow(ctx, nil)
	all.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ch := range p.channels {
		ch.Close()
	}
	clear(p.channels)
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// noRDMA reports whether an error says that there is no RDMA yet.
func noRDMA(err error) bool {
	return errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.ENODEV) || errors.Is(err, fs.ErrNotExist)
}

// pause waits, unless the context ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// resolve returns the addresses of names. Found has the last ones of each name, which stay while it
// cannot be looked up.
func (p *Prober) resolve(ctx context.Context, names []string, found map[string][]netip.AddrPort) (all []address) {
	maps.DeleteFunc(found, func(name string, _ []netip.AddrPort) bool { return !slices.Contains(names, name) })
	own := map[netip.Addr]bool{p.o.Source: true}
	nets, _ := net.InterfaceAddrs()
	for _, n := range nets {
		if n, err := netip.ParsePrefix(n.String()); err == nil {
			own[n.Addr()] = true
		}
	}
	looked := make([][]netip.Addr, len(names))
	var lookups sync.WaitGroup
	slots := make(chan struct{}, 16)
	for i, name := range names {
		host, _, _ := splitPeer(name)
		slots <- struct{}{}
		lookups.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, connectTime)
			defer cancel()
			var err error
			if looked[i], err = net.DefaultResolver.LookupNetIP(ctx, "ip", host); err == nil {
				p.works(name)
			} else if !errors.Is(err, context.Canceled) {
				p.warn(name, fmt.Errorf("probe: %w", err))
			}
		})
	}
	lookups.Wait()
	seen := map[netip.AddrPort]bool{}
	for i, name := range names {
		_, port, _ := splitPeer(name)
		if looked[i] != nil {
			found[name] = nil
		}
		for _, a := range looked[i] {
			if a = a.Unmap(); !own[a] {
				found[name] = append(found[name], netip.AddrPortFrom(a, port))
			}
		}
		for _, a := range found[name] {
			if seen[a] {
				continue
			} else if len(all) == mostPeers {
				p.warn("addresses", fmt.Errorf("probe: the peers have more than %d addresses, the others are not probed", mostPeers))
				return all
			}
			seen[a] = true
			all = append(all, address{name, a})
		}
	}
	return all
}

// names returns the peers, with those of files, once each, and mostPeers of them. A file that cannot be read leaves what
// it had.
func (p *Prober) names(files map[string][]string) (all []string) {
	for _, entry := range p.o.Peers {
		peers, err := readPeers(entry)
		if err == nil {
			p.works(entry)
			files[entry] = peers
		} else {
			p.warn(entry, err)
		}
		for _, name := range files[entry] {
			if len(all) < mostPeers && !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
	}
	return all
}

// follow begins to probe addresses that are new, and ends those that are gone.
func (p *Prober) follow(ctx context.Context, all []address) {
	old := map[address]*peer{}
	for _, t := range p.peers { // which nothing else changes
		old[t.address] = t
	}
	var peers []*peer
	for _, a := range all {
		t := old[a]
		if delete(old, a); t == nil {
			t = &peer{address: a}
			ctx, cancel := context.WithCancel(ctx)
			t.stop = cancel
			for i := range p.o.Paths {
				path := &path{p: p, addr: a.AddrPort, number: i, counters: newCounters()}
				t.paths = append(t.paths, path)
				wait := rand.N(time.Duration(len(all)*p.o.Paths) * time.Millisecond) // not all of them at once
				t.done.Go(func() { pause(ctx, wait); path.run(ctx) })
			}
		}
		peers = append(peers, t)
	}
	p.mu.Lock()
	p.peers = peers
	p.mu.Unlock()
	for _, t := range old {
		t.stop()
	}
	for _, t := range old {
		t.done.Wait()
	}
}

// Results returns what was seen of each path and transport, in the order of Peers. The counters of
// a peer begin anew when it was gone from Peers.
func (p *Prober) Results() (all []Result) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.peers {
		for _, path := range t.paths {
			all = append(all, path.results(Result{Peer: t.name, Addr: t.Addr(), Path: path.number})...)
		}
	}
	return all
}

// channel returns the channel for a peer.
func (p *Prober) channel(remote netip.Addr) (*rdmacm.Channel, error) {
	ch, err := rdmacm.OpenChannel(rdmacm.ChannelOptions{Local: p.o.Source, Remote: remote})
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := p.channels[ch.InProcess()]; old != nil {
		return old, ch.Close()
	}
	p.channels[ch.InProcess()] = ch
	return ch, nil
}

// warn reports an error, one about the same thing once in an hour at most, unless it has worked
// meanwhile. Other hosts must not choose the names of things.
func (p *Prober) warn(about string, err error) {
	if p.o.Warn == nil {
		return
	}
	p.mu.Lock()
	now := time.Now()
	maps.DeleteFunc(p.warned, func(_ string, at time.Time) bool { return now.Sub(at) > time.Hour })
	_, known := p.warned[about]
	if !known {
		p.warned[about] = now
	}
	p.mu.Unlock()
	if !known {
		p.o.Warn(err)
	}
}

// works makes the next warning about something come at once.
func (p *Prober) works(about string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.warned, about)
}
