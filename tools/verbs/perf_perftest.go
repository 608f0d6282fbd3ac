package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/tools/internal/objects"
	"github.com/goverbs/goverbs/tools/verbs/internal/peer"
	"github.com/goverbs/goverbs/tools/verbs/internal/perf"
	"github.com/goverbs/goverbs/tools/verbs/internal/perftest"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// checkPerftest refuses options that the programs of perftest do not have, or that are not implemented with them.
func (o *perfOptions) checkPerftest(changed func(flag string) bool, host string) error {
	c := &o.config
	switch {
	case c.Endless && host == "":
		return errors.New("--run-infinitely with --perftest needs HOST: the client ends the test, which is perftest's here")
	case c.Endless && c.Both:
		return errors.New("--run-infinitely and --both exclude each other with --perftest")
	case o.local.Counters != nil && host == "" && !c.Both && c.Metric == perf.BW && c.Op != perf.Send && !c.Imm:
		return fmt.Errorf("--report-counters with --perftest needs HOST or --both, as the server of %s does not know when the test begins", c.Name())
	case o.local.Counters != nil && host == "" && c.Metric == perf.Lat:
		return errors.New("--report-counters with --perftest needs HOST, as latency is the client's to measure")
	case c.Duration != 0:
		return fmt.Errorf("--duration is %s, but perftest counts messages: give --iterations", c.Duration)
	case changed("warmup") && c.Warmup != 0:
		return fmt.Errorf("--warmup is %d, allowed with --perftest: 0, as all messages count", c.Warmup)
	case c.Verify:
		return errors.New("--verify is true, allowed with --perftest: false, as the content of its messages is not defined")
	case !c.All && len(c.Sizes) != 1:
		return fmt.Errorf("--size has %d sizes, allowed with --perftest: 1, or --all", len(c.Sizes))
	case host == "" && c.Metric == perf.Lat && o.plot != "":
		return errors.New("--plot: with --perftest latency is the client's to measure, and without HOST this is the server")
	case c.Iterations < 5:
		return fmt.Errorf("--iterations is %d, allowed with --perftest: 5 and more", c.Iterations)
	case changed("mgid") && host != "":
		return fmt.Errorf("--mgid is %s, but with --perftest its server chooses the group (ib_send_bw -M)", o.mgid)
	case o.local.Foreign() && c.CM && c.Type == perf.UD && host != "" && (c.Metric == perf.Lat || c.Both):
		return errors.New("--dmabuf and --use-dm with --perftest --cm: datagrams begin with one that this program writes, and the memory is not its to write")
	}
	if o.dataAddr != "" {
		if _, err := netip.ParseAddr(o.dataAddr); err != nil {
			return fmt.Errorf("--data-addr is %q, allowed: an IP address", o.dataAddr)
		}
	}
	c.Warmup = 0
	return nil
}

// perftestEnd is one side of a test with a program of perftest.
type perftestEnd struct {
	o        *perfOptions
	server   bool
	test     perftest.Test
	measured func(perf.Size) // called with each result; may be nil
	running  func(size int, count func() int64) (stop func())

	session *perftest.Session
	peer    string // who the peer is
	remote  netip.AddrPort
	local   netip.AddrPort
	dev     *uverbs.Device
	port    uint8
	end     *perf.End
	runs    []*perf.Run
	ready   atomic.Pointer[perf.End] // end, for finish
	report  perf.Report

	channel   *rdmacm.Channel
	listeners map[rdmacm.PortSpace]*rdmacm.ID
	ids       []*rdmacm.ID // those of the queue pairs
	opened    objects.Stack
}

// run measures with a program of perftest: as its client, or without a host as its server.
func (e *perftestEnd) run(ctx context.Context, log io.Writer, host string) (_ *perf.Report, err error) {
	c := &e.o.config
	e.test = perftest.Test{
		Op: c.Op, Latency: c.Metric == perf.Lat, Both: c.Both, Sweep: c.All, Iterations: c.Iterations,
		Type: strings.ToUpper(c.Type), QPs: c.QPs, Sizes: c.Sizes, Imm: c.Imm, Swap: c.AtomicType == perf.Swap, Endless: c.Endless, Multicast: e.o.mcg,
	}
	defer func() { err = errors.Join(err, e.opened.Close()) }()
	if c.CM {
		err = e.connectPeerCM(ctx, log, host)
	} else {
		err = e.connectPeer(ctx, log, host)
	}
	if err != nil {
		return nil, err
	}
	e.peer = "perftest at " + e.remote.String()
	err = perf.Pinned(e.o.local.CPU, func() error { return e.play(ctx) })
	if err != nil {
		err = fmt.Errorf("%s: %w", e.peer, err)
		if len(e.report.Results) == 0 {
			return nil, err
		}
		return &e.report, err
	}
	if e.server && e.test.Latency {
		fmt.Fprintf(log, "%s was served with %d messages of each size\n", e.peer, c.Iterations)
	}
	return &e.report, nil
}

// finish ends a test without an end, and reports whether it has any traffic.
func (e *perftestEnd) finish() bool {
	end := e.ready.Load()
	return end != nil && end.Finish()
}

// open opens the device.
func (e *perftestEnd) open(local perf.Local) (attr uverbs.PortAttr, err error) {
	if e.dev, e.port, err = perf.OpenDevice(local, e.local.Addr()); err != nil {
		return attr, err
	}
	e.opened.Keep(e.dev)
	if err := e.o.local.Partition(e.dev, e.port, &e.o.config); err != nil {
		return attr, err
	}
	return e.dev.Port(e.port)
}

// connectPeer connects to the peer over TCP.
func (e *perftestEnd) connectPeer(ctx context.Context, log io.Writer, host string) error {
	var conn net.Conn
	var err error
	if e.server {
		conn, e.session, err = e.accept(ctx, log)
	} else {
		d := net.Dialer{Timeout: 10 * time.Second}
		addr := net.JoinHostPort(host, strconv.Itoa(e.o.port))
		if conn, err = d.DialContext(ctx, "tcp", addr); err != nil {
			err = fmt.Errorf("no perftest server at %s (%s): %w", addr, e.test.Program(), err)
		}
	}
	if err != nil {
		return err
	}
	e.opened.Keep(conn)
	e.remote, e.local = conn.RemoteAddr().(*net.TCPAddr).AddrPort(), conn.LocalAddr().(*net.TCPAddr).AddrPort()
	e.remote = netip.AddrPortFrom(e.remote.Addr().Unmap(), e.remote.Port())
	attr, err := e.open(e.o.local)
	if err == nil {
		err = e.o.config.CheckType(e.dev)
	}
	if err == nil && e.session == nil {
		e.session = perftest.NewSession(conn, false, attr.LinkLayer != ib.LinkLayerInfiniBand || e.o.local.GID != perf.Auto)
	}
	return err
}

// accept waits for a client, and reads its version.
func (e *perftestEnd) accept(ctx context.Context, log io.Writer) (net.Conn, *perftest.Session, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort("", strconv.Itoa(e.o.port)))
	if err != nil {
		return nil, nil, err
	}
	e.waiting(log, l.Addr())
	return peer.FirstClient(ctx, l, log, func(ctx context.Context, c net.Conn) (*perftest.Session, error) {
		s := perftest.NewSession(c, true, false) // a server learns from the client what records have
		return s, s.Greet(ctx)
	})
}

// waiting logs that the server waits for a client.
func (e *perftestEnd) waiting(log io.Writer, addr net.Addr) {
	fmt.Fprintf(log, "waiting for %s on %s\n", e.test.Program(), addr)
}

// connectPeerCM connects to the peer by the connection manager.
func (e *perftestEnd) connectPeerCM(ctx context.Context, log io.Writer, host string) (err error) {
	var remote netip.Addr
	if !e.server {
		if remote, err = peer.Lookup(ctx, "HOST", host); err != nil {
			return err
		}
	}
	from, err := addrOfSoft(e.o.local.Device)
	if err != nil {
		return err
	}
	if e.channel, err = rdmacm.OpenChannel(rdmacm.ChannelOptions{Local: from, Remote: remote}); err != nil {
		return err
	}
	e.opened.Keep(e.channel)
	if e.server {
		err = e.acceptCM(ctx, log)
	} else {
		e.remote = netip.AddrPortFrom(remote, uint16(e.o.port))
		if e.session, err = perftest.DialCM(ctx, e.channel, netip.AddrPort{}, e.remote); err != nil {
			err = fmt.Errorf("no perftest server at %s (%s -R): %w", e.remote, e.test.Program(), err)
		}
	}
	if err != nil {
		return err
	}
	e.opened.Keep(e.session)
	a, err := e.session.Addrs()
	if err != nil {
		return err
	}
	e.local = netip.AddrPortFrom(a.Local.IP, a.Local.Port)
	if e.server {
		e.remote = netip.AddrPortFrom(a.Remote.IP, a.Remote.Port)
	}
	local := e.o.local
	if local.Device != "" && local.Device != a.Device {
		return fmt.Errorf("--dev is %s, but the connection with %s is on %s", local.Device, e.remote, a.Device)
	}
	local.Device, local.Port = a.Device, a.Port
	_, err = e.open(local)
	return err
}

// addrOfSoft returns an address of a software device, and none for other devices.
func addrOfSoft(name string) (netip.Addr, error) {
	infos, err := uverbs.Devices()
	if err != nil || !slices.ContainsFunc(infos, func(i uverbs.DeviceInfo) bool { return i.Name == name && i.InProcess }) {
		return netip.Addr{}, err
	}
	dev, err := uverbs.Open(name, uverbs.OpenOptions{})
	if err != nil {
		return netip.Addr{}, err
	}
	defer dev.Close()
	gids, err := dev.GIDTable(1)
	for _, g := range gids {
		if a := g.GID.Addr(); a.IsValid() && !a.IsLinkLocalUnicast() {
			return a, err
		}
	}
	return netip.Addr{}, err
}

// acceptCM waits for a client; the listeners stay for the connections of its queue pairs.
func (e *perftestEnd) acceptCM(ctx context.Context, log io.Writer) error {
	addr := netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(e.o.port))
	e.listeners = map[rdmacm.PortSpace]*rdmacm.ID{}
	for _, space := range []rdmacm.PortSpace{rdmacm.TCP, e.space()} {
		if e.listeners[space] != nil {
			continue
		}
		l, err := e.channel.NewID(space)
		if err != nil {
			return err
		}
		e.opened.Keep(l)
		e.listeners[space] = l
		if err := l.Bind(rdmacm.AddrOf(addr)); err != nil {
			return err
		}
		if err := l.Listen(0); err != nil {
			return err
		}
	}
	e.waiting(log, net.TCPAddrFromAddrPort(addr))
	for {
		request, err := e.listeners[rdmacm.TCP].NextRequest(ctx)
		if err != nil {
			return err
		}
		if e.session, err = perftest.AcceptCM(ctx, request); ctx.Err() != nil || !errors.Is(err, perftest.ErrNotClient) {
			return err
		}
		fmt.Fprintln(log, err)
	}
}

// space is the port space of the connections of queue pairs.
func (e *perftestEnd) space() rdmacm.PortSpace {
	if e.o.config.Type == perf.UD {
		return rdmacm.UDP
	}
	return rdmacm.TCP
}

// play plays the test.
func (e *perftestEnd) play(ctx context.Context) error {
	attr, err := e.dev.Port(e.port)
	if err != nil {
		return err
	}
	s := e.session
	s.Test, s.Timeout = e.test, e.o.config.Timeout
	mtu := attr.ActiveMTU
	if e.o.config.MTU != 0 {
		if mtu, err = uverbs.MTUFromBytes(e.o.config.MTU); err != nil {
			return err
		}
	}
	if err := s.Hello(ctx, perftest.DefaultParams(mtu)); err != nil {
		return err
	}
	e.peer = fmt.Sprintf("perftest %s at %s", s.Version, e.remote)
	reports, err := s.Play(ctx, e)
	if err != nil {
		return err
	}
	if err := e.checkReceived(); err != nil {
		return err
	}
	e.addReports(reports)
	return e.disconnect()
}

// checkReceived fails if more messages have arrived than expected: the peer has other options.
// The last ones may have arrived after the last poll.
func (e *perftestEnd) checkReceived() error {
	if !e.test.Messages() || e.test.Latency {
		return nil
	}
	n, err := e.end.RecvCQ.Poll(make([]uverbs.WC, 1))
	if err != nil {
		return err
	}
	want := int64(e.test.Iterations * e.test.QPs)
	for i, run := range e.runs {
		if run.Received > want || n > 0 && i == len(e.runs)-1 {
			return fmt.Errorf("more messages have come than the %d of %d bytes that were expected: it must run %s", want, e.test.Sizes[i], e.session.Command())
		}
	}
	return nil
}

// Open implements perftest.Engine.
func (e *perftestEnd) Open(ctx context.Context) (_ []perftest.Record, err error) {
	agreed := e.session.Agreed
	own := perftest.DefaultParams(agreed.MTU)
	if agreed.CycleBuffer != own.CycleBuffer && !e.test.Latency && e.test.Op != perftest.Send && (e.server || e.test.Both) {
		return nil, fmt.Errorf("its pages have %d bytes, and as many of memory are used for short messages: allowed are pages of %d", agreed.CycleBuffer, own.CycleBuffer)
	}
	c := e.o.config
	c.MTU = agreed.MTU.Bytes()
	if e.end, err = perf.NewEnd(e.dev, e.port, c, e.o.local, e.server); err != nil {
		return nil, err
	}
	e.opened.Keep(e.end)
	e.ready.Store(e.end)
	if e.end.Limits.IWARP {
		if err := e.checkIWARP(); err != nil {
			return nil, err
		}
	}
	e.session.Test.Sizes = e.end.Config.Sizes
	if c.CM {
		if err := e.connectCM(ctx); err != nil {
			return nil, err
		}
	}
	remote := ib.GID(e.remote.Addr().As16())
	peers, err := e.end.Peers(remote)
	if err != nil {
		return nil, err
	}
	e.report = perf.Report{Schema: perf.ReportSchema, Test: c.Name(), Time: time.Now().UTC().Truncate(time.Second), Config: e.end.Config, Results: []perf.Size{}}
	mine, theirs := e.sides()
	*mine = perf.Side{
		Device: e.dev.Name(), Driver: e.dev.Info().Driver, Address: e.local.String(), Inline: e.end.Inline,
	}
	if !e.end.Limits.IWARP {
		mine.GID = peers[0].GID.String()
	}
	*theirs = perf.Side{Address: e.remote.String(), Perftest: e.session.Version}
	var records []perftest.Record
	if c.Paired() { // those that send come first
		peers = append(peers, peers...)
	}
	for i, p := range peers {
		if c.Paired() && i < len(e.end.QPs) {
			p.QPN, p.PSN = p.SendQPN, p.SendPSN
		}
		r := perftest.Record{LID: p.LID, OutReads: e.reads(), QPN: p.QPN, PSN: p.PSN, RKey: p.RKey, Addr: p.Addr, GID: p.GID, SRQN: p.SRQN}
		if e.counts() {
			r.Addr = p.Own
		}
		if e.server && !c.MGID.IsZero() {
			r.GID, r.QPN = c.MGID, ib.MulticastQPN
		}
		records = append(records, r)
	}
	return records, nil
}

// counts reports whether the sides exchange how many messages they have received, in memory whose
// address is in the records: where a message without a receive ends the connection.
func (e *perftestEnd) counts() bool {
	return e.end.Limits.IWARP && e.test.Op == perftest.Send && !e.test.Latency
}

// checkIWARP refuses what perftest does as if it were not on iWARP, or is not spoken of here.
func (e *perftestEnd) checkIWARP() error {
	switch {
	case e.server && e.test.Op == perftest.Write && e.test.Latency, e.server && e.test.Both && e.test.Op != perftest.Send:
		return fmt.Errorf("in %s the server begins, and on iWARP the side that connects has to: let perftest be the server", e.test.Program())
	case e.counts() && e.test.Sweep:
		return errors.New("--all: how perftest counts the messages of several sizes on iWARP is not known here: give one size")
	}
	return nil
}

// sides are the report's parts on this side and the other.
func (e *perftestEnd) sides() (mine, theirs *perf.Side) {
	if e.server {
		return &e.report.Server, &e.report.Client
	}
	return &e.report.Client, &e.report.Server
}

// reads is how many READs and atomics a queue pair has under way, and serves.
func (e *perftestEnd) reads() int {
	if e.test.Op != perftest.Read && e.test.Op != perftest.Atomic {
		return 1
	}
	return cmp.Or(e.end.Config.RdAtomic, e.end.Limits.RdAtomic)
}

// Connect implements perftest.Engine.
func (e *perftestEnd) Connect(ctx context.Context, remote []perftest.Record) error {
	_, theirs := e.sides()
	if !e.end.Limits.IWARP {
		theirs.GID = remote[0].GID.String()
	}
	var senders []perftest.Record
	if e.o.config.Paired() { // the peer's queue pairs that send come first
		senders, remote = remote[:len(remote)/2], remote[len(remote)/2:]
	}
	var peers []perf.Peer
	if e.o.mcg && !e.server {
		if e.end.Config.MGID = remote[0].GID; !remote[0].GID.Addr().IsMulticast() {
			return fmt.Errorf("it receives from %s, which is no multicast group: it must run %s", remote[0].GID, e.session.Command())
		}
	}
	for i, r := range remote {
		if err := e.placed(r.GID); err != nil {
			return err
		}
		if (!e.server || e.test.Both) && e.reads() > max(r.OutReads, 1) {
			return fmt.Errorf("it serves %d READs or atomics at a time, and this side has %d under way: give --outs %d", r.OutReads, e.reads(), r.OutReads)
		}
		p := perf.Peer{QPN: r.QPN, PSN: r.PSN, LID: r.LID, GID: r.GID, Addr: r.Addr, RKey: r.RKey, SRQN: r.SRQN}
		if senders != nil {
			p.SendQPN, p.SendPSN = senders[i].QPN, senders[i].PSN
		}
		if e.counts() { // it does not say how many receives it has: by default as many as this side
			p.Own, p.Recvs = r.Addr, min(e.end.Config.RecvDepth, e.o.config.Iterations)
		}
		peers = append(peers, p)
	}
	return e.end.Connect(ctx, peers)
}

// placed refuses a GID to which this side would send, as the server, though its client may be elsewhere: the protocol
// of perftest does not let a client prove that it receives packets there. A GID of this host is its
// own.
func (e *perftestEnd) placed(gid ib.GID) error {
	c, from := e.o.config, e.remote.Addr().Unmap().WithZone("")
	sends := c.Both || c.Metric == perf.Lat && (c.Op == perf.Send || c.Op == perf.Write)
	if !e.server || !sends || e.end.Limits.IWARP || gid.IsZero() {
		return nil
	}
	attr, err := e.dev.Port(e.port)
	if err != nil || attr.LinkLayer != ib.LinkLayerEthernet {
		return err
	}
	at := gid.Addr()
	if own, err := uverbs.OpenAddr(at); err == nil {
		return own.Close()
	}
	return placed(at, from, e.o.dataAddr)
}

// placed refuses an address for messages that is neither that of the control connection nor the one of the flag
// --data-addr. Between loopback addresses all is on this host.
func placed(at, from netip.Addr, data string) error {
	allowed := []netip.Addr{from}
	if data != "" {
		a, _ := netip.ParseAddr(data) // checked before
		allowed = append(allowed, a.Unmap().WithZone(""))
	}
	if slices.Contains(allowed, at) || at.IsLoopback() && from.IsLoopback() {
		return nil
	}
	return fmt.Errorf("its messages are to go to %s, allowed: %v: give --data-addr if that is the address of the same host", at, allowed)
}

// Prepare implements perftest.Engine.
func (e *perftestEnd) Prepare(size int) error { return e.end.Prepare(size) }

// Run implements perftest.Engine. Of write-lat the client has one latency less than messages: the
// server begins.
func (e *perftestEnd) Run(ctx context.Context, size int) (perftest.Report, error) {
	if e.running != nil {
		defer e.running(size, e.end.Count)()
	}
	run, err := e.end.Run(ctx, size, nil)
	if err != nil {
		return perftest.Report{}, err
	}
	if e.server && e.test.Messages() && !e.test.Latency && !e.test.Both {
		run.Sent = run.Received // only this side has measured
	}
	e.runs = append(e.runs, run)
	if !e.test.Both { // else the peer's part is not known yet
		result := e.o.config.Result(size, run, nil)
		e.add(result)
	}
	b := perf.NewBandwidth(run.Sent, size, run.Took)
	return perftest.Report{
		Size: uint64(size), Iterations: uint64(run.Sent), Peak: b.MiBPerSecond, Average: b.MiBPerSecond, Rate: b.MessagesPerSecond / 1e6,
	}, nil
}

// add adds a result.
func (e *perftestEnd) add(s perf.Size) {
	e.report.Results = append(e.report.Results, s)
	if e.measured != nil {
		e.measured(s)
	}
}

// addReports adds the reports of the peer: of its direction, or of the whole test for a passive server.
func (e *perftestEnd) addReports(reports []perftest.Report) {
	for i, r := range reports {
		theirs := &perf.Run{Sent: int64(r.Iterations), AllSent: int64(r.Iterations)}
		if r.Rate > 0 {
			const most = float64(24 * time.Hour)                                     // whatever rate the peer reports
			theirs.Took = time.Duration(min(float64(r.Iterations)/r.Rate*1e3, most)) // µs to ns
		}
		if e.test.Both {
			e.runs[i].Received = theirs.AllSent
			theirs.Received = e.runs[i].AllSent
			e.add(e.o.config.Result(int(r.Size), e.runs[i], theirs))
		} else {
			e.add(e.o.config.Result(int(r.Size), theirs, nil))
		}
	}
}
