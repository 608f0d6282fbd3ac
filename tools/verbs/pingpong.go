package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/goverbs/goverbs/tools/verbs/internal/perf"
	"github.com/goverbs/goverbs/uverbs"
)

// pingpongOptions are the command line's; the names are those of ibv_rc_pingpong.
type pingpongOptions struct {
	port     int
	device   string
	ibPort   uint8
	size     int
	mtu      int
	rxDepth  int
	iters    int
	sl       uint8
	event    bool
	gidIndex int
	odp      bool
	iodp     bool
	prefetch bool
	ts       bool
	chk      bool
	dm       bool
	newSend  bool
	timeout  time.Duration
	json     bool
}

func newPingpong() *cobra.Command {
	var o pingpongOptions
	cmd := &cobra.Command{
		Use:   "pingpong [HOST]",
		Short: "Exchange messages with a peer and time it",
		Long: `Exchange messages over an RC queue pair and print bandwidth and time per iteration.
Without HOST wait for a client, with HOST connect to the server there. Either end may
be rdma-core's ibv_rc_pingpong; give both the same --size and --iters.
` + trust + `A server listens on all addresses, takes the first client that connects, and ends with it: run it
where only hosts that you trust can reach --port.`,
		Example: `  verbs pingpong                 wait for a client
  verbs pingpong 10.1.0.1        connect to it
  verbs pingpong -e -n 10000 10.1.0.1`,
		Args: arguments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			host := ""
			if len(args) == 1 {
				host = args[0]
			}
			return o.run(cmd.Context(), cmd.OutOrStdout(), host)
		},
	}
	f := cmd.Flags()
	f.IntVarP(&o.port, "port", "p", 18515, "TCP port of the exchange")
	f.StringVarP(&o.device, "ib-dev", "d", "", "RDMA device (default: the first usable one)")
	f.Uint8VarP(&o.ibPort, "ib-port", "i", 1, "port of the device")
	f.IntVarP(&o.size, "size", "s", 4096, "message size in bytes")
	f.IntVarP(&o.mtu, "mtu", "m", 1024, "path MTU in bytes, the same on both sides")
	f.IntVarP(&o.rxDepth, "rx-depth", "r", 500, "number of receives to post at a time")
	f.IntVarP(&o.iters, "iters", "n", 1000, "number of exchanges")
	f.Uint8VarP(&o.sl, "sl", "l", 0, "service level")
	f.BoolVarP(&o.event, "events", "e", false, "sleep on completion events instead of polling")
	f.BoolVar(&o.event, "event", false, "the same as --events")
	f.IntVarP(&o.gidIndex, "gid-idx", "g", -1, "local GID index")
	defaultIs(f, "gid-idx", "chosen to suit the peer")
	f.BoolVarP(&o.odp, "odp", "o", false, "register the buffer for on-demand paging")
	f.BoolVarP(&o.iodp, "iodp", "O", false, "use implicit on-demand paging")
	f.BoolVarP(&o.prefetch, "prefetch", "P", false, "prefetch an on-demand MR")
	f.BoolVarP(&o.ts, "ts", "t", false, "get completions with a timestamp")
	f.BoolVarP(&o.chk, "chk", "c", false, "validate the received data (server)")
	f.BoolVarP(&o.dm, "dm", "j", false, "use device memory")
	f.BoolVarP(&o.newSend, "new_send", "N", false, "accepted for ibv_rc_pingpong's sake: there is one way to post")
	f.DurationVar(&o.timeout, "timeout", 30*time.Second, "give up when nothing completes for this long")
	f.BoolVar(&o.json, "json", false, "print the result as JSON")
	return cmd
}

// check refuses impossible options before anything is opened.
func (o *pingpongOptions) check() error {
	switch {
	case o.port < 1 || o.port > 65535:
		return fmt.Errorf("--port is %d, allowed: 1 to 65535", o.port)
	case o.size < 1:
		return fmt.Errorf("--size is %d, allowed: 1 byte and more", o.size)
	case o.rxDepth < 2:
		return fmt.Errorf("--rx-depth is %d, allowed: 2 and more", o.rxDepth)
	case o.iters < 1:
		return fmt.Errorf("--iters is %d, allowed: 1 and more", o.iters)
	case o.ibPort < 1:
		return fmt.Errorf("--ib-port is %d, allowed: 1 and more", o.ibPort)
	case o.gidIndex < -1:
		return fmt.Errorf("--gid-idx is %d, allowed: 0 and more", o.gidIndex)
	case o.timeout <= 0:
		return fmt.Errorf("--timeout is %s, allowed: more than 0", o.timeout)
	}
	_, err := uverbs.MTUFromBytes(o.mtu)
	return err
}

// result is what a run measured.
type result struct {
	Bytes         int64   `json:"bytes"`          // both directions
	Iterations    int     `json:"iterations"`     // exchanges
	Seconds       float64 `json:"seconds"`        // all of them
	MbitPerSecond float64 `json:"mbit_per_s"`     // both directions
	UsecPerIter   float64 `json:"usec_per_iter"`  // a message there and one back
	Local         string  `json:"local_address"`  // GID or LID and QP number
	Remote        string  `json:"remote_address"` // the same of the peer
}

// run plays a whole game.
func (o *pingpongOptions) run(ctx context.Context, out io.Writer, host string) error {
	if err := o.check(); err != nil {
		return err
	}
	text := out
	if o.json {
		text = io.Discard
	}
	g, err := newGame(o)
	if err != nil {
		return err
	}
	runErr := g.play(ctx, text, host)
	if err := g.close(); runErr == nil && err != nil {
		return err
	}
	if runErr != nil {
		return runErr
	}
	if o.json {
		return printJSON(out, g.result)
	}
	fmt.Fprintf(out, "%d bytes in %.2f seconds = %.2f Mbit/sec\n", g.result.Bytes, g.result.Seconds, g.result.MbitPerSecond)
	fmt.Fprintf(out, "%d iters in %.2f seconds = %.2f usec/iter\n", g.result.Iterations, g.result.Seconds, g.result.UsecPerIter)
	return nil
}

// Work request IDs, which are bits of what is pending.
const (
	recvID = 1
	sendID = 2
)

// hold is how long a wait for an event keeps its processor.
const hold = 10 * time.Millisecond

// game is one side of a ping-pong.
type game struct {
	o      *pingpongOptions
	dev    *uverbs.Device
	ch     *uverbs.CompChannel
	pd     *uverbs.PD
	buf    *uverbs.Buffer
	mr     *uverbs.MR
	cq     *uverbs.CQ
	qp     *uverbs.QP
	undo   []func() error // closes what was opened, last first
	result result

	sgl      []uverbs.SGE
	posted   int // receives in the queue
	sent     int
	received int
	pending  int
	progress atomic.Int64 // completions so far, for watch
}

// close closes everything, last first.
func (g *game) close() error {
	var errs []error
	for i := len(g.undo) - 1; i >= 0; i-- {
		errs = append(errs, g.undo[i]())
	}
	return errors.Join(errs...)
}

// newGame opens the device and creates a QP with its receives posted.
func newGame(o *pingpongOptions) (_ *game, err error) {
	g := &game{o: o}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.close())
		}
	}()
	if o.device == "" {
		g.dev, err = uverbs.OpenFirst()
	} else {
		g.dev, err = uverbs.Open(o.device)
	}
	if err != nil {
		return nil, err
	}
	g.undo = append(g.undo, g.dev.Close)
	if err := o.checkDevice(g.dev); err != nil {
		return nil, err
	}
	if g.pd, err = g.dev.AllocPD(); err != nil {
		return nil, err
	}
	g.undo = append(g.undo, g.pd.Close)
	if g.buf, err = uverbs.AllocBuffer(o.size); err != nil {
		return nil, err
	}
	g.undo = append(g.undo, g.buf.Close)
	access := uverbs.AccessLocalWrite
	if o.odp {
		access |= uverbs.AccessOnDemand
	}
	if g.mr, err = g.pd.RegMR(g.buf, access); err != nil {
		return nil, err
	}
	g.undo = append(g.undo, g.mr.Close)
	g.sgl = []uverbs.SGE{g.mr.SGE(0, o.size)}
	if o.event {
		if g.ch, err = g.dev.CreateCompChannel(); err != nil {
			return nil, err
		}
		g.undo = append(g.undo, g.ch.Close)
		if err := g.ch.SetHold(hold); err != nil {
			return nil, err
		}
	}
	if g.cq, err = g.dev.CreateCQ(o.rxDepth+1, uverbs.CQOptions{Channel: g.ch}); err != nil {
		return nil, err
	}
	g.undo = append(g.undo, g.cq.Close)
	if g.qp, err = g.pd.CreateQP(o.qpOptions(g.cq)); err != nil {
		return nil, err
	}
	g.undo = append(g.undo, g.qp.Close)
	if err := g.qp.Init(); err != nil {
		return nil, err
	}
	return g, g.postRecvs()
}

// qpOptions returns the QP that ibv_rc_pingpong has.
func (o *pingpongOptions) qpOptions(cq *uverbs.CQ) uverbs.QPOptions {
	mtu, _ := uverbs.MTUFromBytes(o.mtu) // checked before
	q := uverbs.QPOptions{
		Type:      uverbs.RC,
		SendCQ:    cq,
		RecvCQ:    cq,
		MaxSendWR: 1,
		MaxRecvWR: o.rxDepth,
		Path: uverbs.PathOptions{
			Port:        o.ibPort,
			MTU:         mtu,
			SL:          o.sl,
			MaxRdAtomic: 1,
		},
	}
	if o.gidIndex >= 0 {
		q.Path.GID = uverbs.GIDAt(o.gidIndex)
	}
	return q
}

// checkDevice refuses options that the device or the library has not.
func (o *pingpongOptions) checkDevice(dev *uverbs.Device) error {
	attr := dev.QueryDevice()
	lacks := func(feature string) error {
		return &uverbs.FeatureError{Feature: feature, Driver: dev.Info().Driver}
	}
	const odpSupport, odpImplicit = 1, 2 // IB_UVERBS_ODP_SUPPORT and _IMPLICIT, ib_user_verbs.h
	switch {
	case dev.Info().IWARP():
		return fmt.Errorf("%s is of iWARP, where the connection manager alone connects QPs: try verbs rping, or verbs perf with --cm", dev.Name())
	case o.ts && attr.TimestampMask == 0:
		return lacks("completion timestamps (--ts)")
	case o.dm && attr.MaxDMSize == 0:
		return lacks("device memory (--dm)")
	case (o.odp || o.iodp || o.prefetch) && attr.ODPGeneralCaps&odpSupport == 0:
		return lacks("on-demand paging (--odp, --iodp, --prefetch)")
	case o.iodp && attr.ODPGeneralCaps&odpImplicit == 0:
		return lacks("implicit on-demand paging (--iodp)")
	}
	for _, f := range []struct {
		given bool
		name  string
	}{{o.ts, "--ts"}, {o.dm, "--dm"}, {o.iodp, "--iodp"}, {o.prefetch, "--prefetch"}} {
		if f.given {
			return fmt.Errorf("%s is not implemented by this program: %w", f.name, errors.ErrUnsupported)
		}
	}
	return nil
}

// play connects and exchanges the messages.
func (g *game) play(ctx context.Context, out io.Writer, host string) error {
	// Before the peer can send: its message comes into the same buffer.
	g.fill(host != "")
	local, remote, err := g.connect(ctx, out, host)
	if err != nil {
		return err
	}
	g.result.Local, g.result.Remote = local.String(), remote.String()
	if g.ch != nil {
		if err := g.cq.Notify(); err != nil {
			return err
		}
	}
	g.pending = recvID
	if host != "" {
		if err := g.send(); err != nil {
			return err
		}
	}
	// One goroutine does all: with a second processor the scheduler would move it about
	// and wake threads for that.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	start := time.Now()
	if err := g.loop(ctx, host == ""); err != nil {
		return err
	}
	g.measure(time.Since(start))
	return nil
}

// pageSize is the distance of the bytes that --chk looks at.
const pageSize = 4096

// fill writes what ibv_rc_pingpong has in its buffer. A client puts a zero at the start
// of each page, which is what --chk of the server looks for.
func (g *game) fill(client bool) {
	b := g.buf.Bytes()
	for i := range b {
		b[i] = 0x7b
		if client && i%pageSize == 0 {
			b[i] = 0
		}
	}
}

// measure fills in the result.
func (g *game) measure(took time.Duration) {
	r := &g.result
	r.Bytes = 2 * int64(g.o.size) * int64(g.o.iters)
	r.Iterations = g.o.iters
	r.Seconds = took.Seconds()
	r.MbitPerSecond = float64(r.Bytes) * 8 / 1e6 / r.Seconds
	r.UsecPerIter = r.Seconds * 1e6 / float64(g.o.iters)
}

// connect exchanges endpoints with the peer and connects the QP.
func (g *game) connect(ctx context.Context, out io.Writer, host string) (local, remote uverbs.Endpoint, err error) {
	port := strconv.Itoa(g.o.port)
	if host != "" {
		if local, err = g.qp.Endpoint(); err != nil {
			return
		}
		printEndpoint(out, "local", local)
		if remote, err = dialExchange(ctx, net.JoinHostPort(host, port), local); err != nil {
			return
		}
		printEndpoint(out, "remote", remote)
		err = g.qp.Connect(ctx, remote)
		return
	}
	// A port that is down or a wrong GID index shall not wait for a client.
	if _, err = g.qp.Endpoint(); err != nil {
		return
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort("", port))
	if err != nil {
		return
	}
	defer l.Close()
	remote, err = acceptExchange(ctx, l, func(remote uverbs.Endpoint) (uverbs.Endpoint, error) {
		var err error
		if local, err = g.qp.EndpointFor(remote); err != nil {
			return local, err
		}
		printEndpoint(out, "local", local)
		return local, g.qp.Connect(ctx, remote)
	})
	if err == nil {
		printEndpoint(out, "remote", remote)
	}
	return
}

// printEndpoint writes an endpoint as ibv_rc_pingpong does.
func printEndpoint(out io.Writer, side string, e uverbs.Endpoint) {
	fmt.Fprintf(out, "  %-15s LID 0x%04x, QPN 0x%06x, PSN 0x%06x, GID %s\n", side+" address:", e.LID, e.QPN, e.PSN, e.GID.Addr())
}

// postRecvs fills the receive queue.
func (g *game) postRecvs() error {
	for ; g.posted < g.o.rxDepth; g.posted++ {
		if err := g.qp.PostRecv(recvID, g.sgl...); err != nil {
			return err
		}
	}
	return nil
}

// send posts the next message.
func (g *game) send() error {
	g.pending |= sendID
	return g.qp.PostSend(uverbs.SendWR{ID: sendID, Opcode: uverbs.WRSend, Flags: uverbs.Signaled, SGL: g.sgl})
}

// spins is the number of fruitless polls between looks at the context.
const spins = 1 << 15

// loop exchanges messages until all are sent and received.
func (g *game) loop(ctx context.Context, server bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go g.watch(ctx, cancel)
	var wcs [2]uverbs.WC
	for empty := 0; g.received < g.o.iters || g.sent < g.o.iters; {
		n, err := g.cq.Poll(wcs[:])
		if err != nil {
			return err
		}
		if n > 0 {
			for i := range wcs[:n] {
				if err := g.complete(&wcs[i], server); err != nil {
					return err
				}
			}
			g.progress.Store(int64(g.received + g.sent))
			continue
		}
		if g.ch != nil {
			if err := g.wait(ctx); err != nil {
				return err
			}
		} else if empty++; empty%spins == 0 {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			runtime.Gosched() // costs less than being preempted, by a signal, for running too long
		}
	}
	return nil
}

// watch ends the game if there is no progress for too long.
func (g *game) watch(ctx context.Context, cancel context.CancelCauseFunc) {
	perf.Watch(ctx, g.o.timeout, &g.progress, func() {
		cancel(fmt.Errorf("nothing completed for %s: the peer %s may be gone", g.o.timeout, g.result.Remote))
	})
}

// wait sleeps until the CQ has an event, and arms it for the next.
func (g *game) wait(ctx context.Context) error {
	if _, err := g.ch.Wait(ctx); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return err
	}
	return g.cq.Notify()
}

// complete handles a completion, and sends when it is this side's turn.
func (g *game) complete(wc *uverbs.WC, server bool) error {
	if err := g.qp.Err(wc); err != nil {
		return err
	}
	switch wc.ID {
	case sendID:
		g.sent++
	case recvID:
		g.received++
		if int(wc.ByteLen) != g.o.size {
			return fmt.Errorf("message %d has %d bytes, expected %d: give both sides the same --size", g.received, wc.ByteLen, g.o.size)
		}
		if server && g.o.chk {
			if err := g.validate(); err != nil {
				return err
			}
		}
		if g.posted--; g.posted <= 1 {
			if err := g.postRecvs(); err != nil {
				return err
			}
		}
	}
	if g.pending &^= int(wc.ID); g.sent < g.o.iters && g.pending == 0 {
		g.pending = recvID
		return g.send()
	}
	return nil
}

// validate looks for the bytes that the client put at the start of each page.
func (g *game) validate() error {
	b := g.buf.Bytes()
	for i := 0; i < g.o.size; i += pageSize {
		if b[i] != 0 {
			return fmt.Errorf("message %d: invalid data in page %d: byte %#02x, expected 0x00", g.received, i/pageSize, b[i])
		}
	}
	return nil
}
