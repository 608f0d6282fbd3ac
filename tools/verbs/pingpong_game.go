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

	"github.com/goverbs/goverbs/tools/verbs/internal/perf"
	"github.com/goverbs/goverbs/uverbs"
)

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
	remote uverbs.Endpoint // the peer

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
	if g.cq, err = g.dev.CreateCQ(o.recvDepth+1, uverbs.CQOptions{Channel: g.ch}); err != nil {
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
		MaxRecvWR: o.recvDepth,
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

// checkDevice refuses options that the device or this program does not support.
func (o *pingpongOptions) checkDevice(dev *uverbs.Device) error {
	attr := dev.QueryDevice()
	unsupported := func(feature string) error {
		return &uverbs.FeatureError{Feature: feature, Driver: dev.Info().Driver}
	}
	const odpSupport, odpImplicit = 1, 2 // IB_UVERBS_ODP_SUPPORT and _IMPLICIT, ib_user_verbs.h
	switch {
	case dev.Info().IWARP():
		return fmt.Errorf("%s is an iWARP device, where only the connection manager connects QPs: use verbs rping, or verbs perf with --cm", dev.Name())
	case o.ts && attr.TimestampMask == 0:
		return unsupported("completion timestamps (--ts)")
	case o.dm && attr.MaxDMSize == 0:
		return unsupported("device memory (--dm)")
	case (o.odp || o.iodp || o.prefetch) && attr.ODPGeneralCaps&odpSupport == 0:
		return unsupported("on-demand paging (--odp, --iodp, --prefetch)")
	case o.iodp && attr.ODPGeneralCaps&odpImplicit == 0:
		return unsupported("implicit on-demand paging (--iodp)")
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
	// Fill the buffer before the peer can send, because its message arrives in the same buffer.
	g.fill(host != "")
	local, remote, err := g.connect(ctx, out, host)
	if err != nil {
		return err
	}
	g.remote = remote
	g.result.Local, g.result.Remote = endpointOf(local), endpointOf(remote)
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
	// There is one goroutine. With a second processor the scheduler would migrate it and wake
	// threads to do so.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	start := time.Now()
	if err := g.loop(ctx, host == ""); err != nil {
		return err
	}
	g.measure(time.Since(start))
	return nil
}

// pageSize is the distance of the bytes that --verify looks at.
const pageSize = 4096

// fill writes the same data as ibv_rc_pingpong. A client puts a zero at the start of each page,
// which a server checks with --verify.
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
	r.Bytes = 2 * int64(g.o.size) * int64(g.o.iterations)
	r.Iterations = g.o.iterations
	r.Seconds = took.Seconds()
	r.MbitPerSecond = float64(r.Bytes) * 8 / 1e6 / r.Seconds
	r.MicrosPerIteration = r.Seconds * 1e6 / float64(g.o.iterations)
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
	// Report a port that is down or a wrong GID index before a client connects.
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
	for ; g.posted < g.o.recvDepth; g.posted++ {
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

// spins is the number of empty polls between checks of the context.
const spins = 1 << 15

// loop exchanges messages until all are sent and received.
func (g *game) loop(ctx context.Context, server bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go g.watch(ctx, cancel)
	var wcs [2]uverbs.WC
	for empty := 0; g.received < g.o.iterations || g.sent < g.o.iterations; {
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

// watch ends the game if nothing completes for the timeout.
func (g *game) watch(ctx context.Context, cancel context.CancelCauseFunc) {
	perf.Watch(ctx, g.o.timeout, &g.progress, func() {
		cancel(fmt.Errorf("nothing completed for %s: the peer %s may be gone", g.o.timeout, g.remote))
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
		if server && g.o.verify {
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
	if g.pending &^= int(wc.ID); g.sent < g.o.iterations && g.pending == 0 {
		g.pending = recvID
		return g.send()
	}
	return nil
}

// validate compares the first byte of each page with the one that the client wrote.
func (g *game) validate() error {
	b := g.buf.Bytes()
	for i := 0; i < g.o.size; i += pageSize {
		if b[i] != 0 {
			return fmt.Errorf("message %d: invalid data in page %d: byte %#02x, expected 0x00", g.received, i/pageSize, b[i])
		}
	}
	return nil
}
