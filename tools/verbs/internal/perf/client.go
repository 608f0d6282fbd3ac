package perf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
	"github.com/goverbs/goverbs/tools/verbs/internal/places"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// Client measures with a Server.
type Client struct {
	Config Config
	Local  Local
	Host   string // Host is the server's name or address.
	Port   int    // Port is the TCP port of its control connection.

	Secret     []byte // Secret is what the server must know; nil for a server without one.
	PeerDevice string // PeerDevice is the server's device, if the server has a secret; empty for one that suits.
	PeerGID    ib.GID // PeerGID is a GID of that device; the zero GID is the address of the server.

	// Timeline is the time between two samples of each size, at least LeastTimeline; 0 is none.
	Timeline time.Duration
	// Measured is called with each size's result as it comes, if it is not nil.
	Measured func(Size)
	// Running is called when the traffic of a size begins, with the size and a function that
	// returns how many messages are done. It returns a function that is called when the traffic
	// ends. It may be nil.
	Running func(size int, count func() int64) (stop func())

	tamper func([]byte) // see End
	via    *Pipe        // leads to the server; nil is TCP
	report Report
	conn   *control
	end    *End
	live   atomic.Pointer[End] // the same, for other goroutines
	due    atomic.Bool         // the server has not said yet that it has sent all of a size
}

// Run measures all sizes. If that fails, or the context ends, the report has the sizes that are finished; it is nil
// if there is none.
func (cl *Client) Run(ctx context.Context) (*Report, error) {
	if err := cl.Config.Validate(); err != nil {
		return nil, err
	}
	if err := cl.Local.Validate(&cl.Config); err != nil {
		return nil, err
	}
	var r *Report
	err := rdmacm.RetryPort(func() (err error) {
		r, err = cl.run(ctx)
		return err
	})
	return r, err
}

// run is a session with the server.
func (cl *Client) run(ctx context.Context) (*Report, error) {
	addr := address(cl.Host, cl.Port)
	conn, err := dialServer(ctx, addr, cl.Secret, cl.via)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	cl.conn = &control{conn: conn, name: "server " + addr, inbox: make(chan received, inboxRoom), cancel: cancel}
	cl.due.Store(false)
	cl.conn.end = func(sent int64) error {
		if !cl.due.CompareAndSwap(true, false) {
			return cl.conn.outOfOrder(kindFinished, ", but nothing is under way")
		}
		cl.live.Load().Stop(sent)
		return nil
	}
	defer cl.conn.start()()
	err = Pinned(cl.Local.CPU, func() error { return cl.play(ctx) })
	if err != nil {
		cause := because(ctx, err) // before the server hears of it, and hangs up
		cl.conn.fail(err)
		return cl.report.finished(), cause
	}
	return &cl.report, nil
}

// Finish ends a test without an end, and reports whether it has any traffic. It is safe for concurrent use.
func (cl *Client) Finish() bool {
	end := cl.live.Load()
	return end != nil && end.Finish()
}

// Limit returns how long the server has let a test without an end run, if that has ended it, or else 0. It is for the
// time after Run.
func (cl *Client) Limit() time.Duration {
	if cl.end == nil || !cl.Config.Endless || cl.end.limited == nil || !cl.end.limited.Load() {
		return 0
	}
	return cl.end.limit
}

// because returns why a context has ended if that is what an error comes from: a peer that is
// gone, or says what it did not like, says more than a retry that was in vain or a rejection.
func because(ctx context.Context, err error) error {
	var wc *uverbs.WCError
	var event *rdmacm.EventError
	lost := errors.As(err, &wc) || errors.As(err, &event) || errors.Is(err, syscall.ENOTCONN) // as iWARP says before there is a completion
	if lost && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
	cause := context.Cause(ctx)
	if cause == nil || errors.Is(err, cause) {
		return err
	}
	return fmt.Errorf("%w (%w)", cause, err)
}

// address returns the address of a server; one without a port is reached through a pipe.
func address(host string, port int) string {
	if port == 0 {
		return host
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// dialServer connects to a server, through a pipe if there is one. The server must have the same secret, or none
// if it is nil.
func dialServer(ctx context.Context, addr string, secret []byte, via *Pipe) (conn net.Conn, err error) {
	if via != nil {
		conn, err = via.open()
	} else {
		conn, err = (&net.Dialer{Timeout: answerTime}).DialContext(ctx, "tcp", addr)
	}
	if err != nil && via != nil {
		return nil, fmt.Errorf("server %s: %w", addr, err)
	} else if err != nil {
		return nil, fmt.Errorf("no perf server at %s (verbs %s serve): %w", addr, strings.TrimPrefix(magicOf(secret), "goverbs "), err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	ready, err := hail(conn, secret)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("server %s: %w", addr, err)
	}
	return ready, nil
}

// play connects and measures.
func (cl *Client) play(ctx context.Context) (err error) {
	dev, port, err := OpenDevice(cl.Local, places.AddrOf(cl.conn.conn.LocalAddr()))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	if err := cl.Config.CheckType(dev); err != nil {
		return err
	}
	if err := cl.Local.Partition(dev, port, &cl.Config); err != nil {
		return err
	}
	if err := cl.agree(ctx, dev, port); err != nil {
		return err
	}
	if cl.end, err = NewEnd(dev, port, cl.Config, cl.Local, false); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cl.end.Close()) }()
	cl.end.tamper = cl.tamper
	cl.live.Store(cl.end)
	if err := cl.connect(ctx); err != nil {
		return err
	}
	for _, size := range cl.Config.Sizes {
		result, err := cl.measure(ctx, size)
		if err != nil {
			return atSize(size, err)
		}
		cl.report.Results = append(cl.report.Results, result)
		if cl.Measured != nil {
			cl.Measured(result)
		}
	}
	return nil
}

// agree settles what the two devices can do.
func (cl *Client) agree(ctx context.Context, dev *uverbs.Device, port uint8) error {
	attr, err := dev.Port(port)
	if err != nil {
		return err
	}
	mine := limits(dev, attr)
	if err := cl.Config.fit(mine); err != nil {
		return err
	}
	if err := cl.conn.put(message{Kind: kindHello, Limits: &mine, Device: cl.PeerDevice}); err != nil {
		return err
	}
	m, err := cl.conn.take(ctx, answerTime, kindHello)
	if err != nil {
		return err
	}
	theirs := *m.Limits
	if mine.IWARP != theirs.IWARP {
		return fmt.Errorf("%s has %s of driver %s, and this side %s of driver %s: one is of iWARP, and the two do not understand each other",
			cl.conn.name, theirs.Device, theirs.Driver, mine.Device, mine.Driver)
	}
	if err := cl.Config.fit(theirs); err != nil {
		return fmt.Errorf("%s: %w", cl.conn.name, err)
	}
	c := &cl.Config
	c.MTU = cmp.Or(c.MTU, min(mine.MTU, theirs.MTU))
	c.RdAtomic = cmp.Or(c.RdAtomic, min(mine.RdAtomic, theirs.RdAtomic))
	cl.report = Report{
		Schema: ReportSchema, Test: c.Name(), Time: time.Now().UTC().Truncate(time.Second), Config: *c,
		Client: Side{Device: mine.Device, Driver: mine.Driver, Address: cl.conn.conn.LocalAddr().String()},
		Server: Side{Device: theirs.Device, Driver: theirs.Driver, Address: cl.conn.conn.RemoteAddr().String()},
	}
	return nil
}

// connect connects the queue pairs.
func (cl *Client) connect(ctx context.Context) error {
	cl.conn.agree(cl.end.Config, cl.end.Limits.IWARP)
	if err := cl.conn.put(message{Kind: kindOpen, Config: &cl.Config}); err != nil {
		return err
	}
	opened, err := cl.conn.take(ctx, answerTime, kindOpened)
	if err != nil {
		return err
	}
	cl.end.limit = opened.MaxTime
	var ids *connections
	if cl.Config.CM {
		if ids, err = resolve(ctx, cl.end, opened.CMAddr, opened.CMToken); err != nil {
			return err
		}
	}
	peer := cl.PeerGID
	if peer.IsZero() { // the first address of the server is known from the control connection
		peer = ib.GID(places.AddrOf(cl.conn.conn.RemoteAddr()).As16())
	}
	mine, err := cl.end.Peers(peer)
	if err != nil {
		return err
	}
	var from netip.Addr
	if ids != nil {
		a, err := ids.ids[0].Addrs()
		if err != nil {
			return err
		}
		from = a.Local.IP
	}
	path, err := cl.end.openPath(peer, from)
	if err != nil {
		return err
	}
	if path != nil {
		for i := range mine {
			mine[i].GID, mine[i].LID = path.GID, path.LID
		}
	}
	if err := cl.conn.put(message{Kind: kindPeers, Peers: mine, Path: path, Inline: cl.end.Inline}); err != nil {
		return err
	}
	if ids != nil {
		if err := ids.connect(ctx); err != nil {
			return err
		}
	}
	theirs, err := cl.conn.take(ctx, answerTime, kindPeers)
	if err != nil {
		return err
	}
	if err := cl.end.Connect(ctx, theirs.Peers); err != nil {
		return err
	}
	cl.report.Client.Inline, cl.report.Server.Inline = cl.end.Inline, theirs.Inline
	if !cl.end.Limits.IWARP {
		cl.report.Client.GID, cl.report.Server.GID = mine[0].GID.String(), theirs.Peers[0].GID.String()
	}
	if err := cl.end.greet(ctx); err != nil {
		return err
	}
	var token []byte
	if path != nil {
		if err := cl.end.connectPath(ctx, theirs.Path); err != nil {
			return err
		}
		if token, err = cl.end.fetchToken(ctx, theirs.Path); err != nil {
			return err
		}
	}
	return cl.conn.put(message{Kind: kindConnected, Token: token})
}

// measure measures one size.
func (cl *Client) measure(ctx context.Context, size int) (Size, error) {
	if err := cl.end.Prepare(size); err != nil {
		return Size{}, err
	}
	cl.due.Store(cl.Config.Both)
	if err := cl.conn.put(message{Kind: kindStart, Size: size}); err != nil {
		return Size{}, err
	}
	if _, err := cl.conn.take(ctx, answerTime, kindReady); err != nil {
		return Size{}, err
	}
	if cl.Running != nil {
		defer cl.Running(size, cl.end.Count)()
	}
	stop := func() []Sample { return nil }
	if cl.Timeline > 0 {
		cl.end.exact = true
		stop = sampleEvery(cl.Timeline, cl.end.Count, cl.end.portDown)
	}
	run, err := cl.end.Run(ctx, size, func(sent int64) error {
		return cl.conn.put(message{Kind: kindFinished, Sent: sent})
	})
	cl.end.count.Store(cl.end.progress())
	samples := stop()
	if err != nil {
		return Size{}, err
	}
	m, err := cl.conn.take(ctx, cl.Config.Timeout+answerTime, kindReport)
	if err != nil {
		return Size{}, err
	}
	if cl.due.Load() {
		return Size{}, cl.conn.outOfOrder(kindReport, fmt.Sprintf(" instead of %q", kindFinished))
	}
	c := &cl.Config
	if c.Verify && c.Metric == BW {
		if c.Op == Read {
			err = cl.end.verifyRead(size, run.AllSent/int64(c.QPs))
		} else if c.Both && m.Run != nil {
			err = cl.end.VerifyMemory(size, m.Run.AllSent/int64(c.QPs))
		}
	}
	result := c.Result(size, run, m.Run)
	result.Timeline = samples
	return result, err
}

// Validate refuses what is not possible, or not together with a config.
func (l *Local) Validate(c *Config) error {
	switch {
	case l.GID < Auto:
		return field("gid", l.GID, "0 and more")
	case l.CPU < Auto || l.CPU > 1023:
		return field("cpu", l.CPU, "0 to 1023")
	case slices.Contains(l.Counters, ""):
		return field("report-counters", `""`, "names of counters, which verbs stat lists, separated by commas")
	case len(slices.Compact(slices.Sorted(slices.Values(l.Counters)))) < len(l.Counters):
		return field("report-counters", peertext.Quote(strings.Join(l.Counters, ",")), "each counter once")
	case l.NullMR && c.Op != Write && c.Op != Read:
		return fmt.Errorf("--use-null-mr is for WRITE and READ, and this is %s", c.Name())
	case l.PKeyIndex != nil && c.CM:
		return fmt.Errorf("--pkey-index is %d, but with --cm the connection manager takes the partition from the network interface", *l.PKeyIndex)
	}
	return l.exclude(c)
}
