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

// busyWait is how long a wait for an event keeps its processor before it parks.
const busyWait = 10 * time.Millisecond

// pingpongEnd is one side of a ping-pong.
type pingpongEnd struct {
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
	ah     *uverbs.AH      // the way to it, of a UD QP

	header   int          // bytes before the data in the buffer
	sgl      []uverbs.SGE // the data
	posted   int          // receives in the queue
	sent     int
	received int
	pending  int
	progress atomic.Int64 // completions so far, for watch
}

// close closes everything, last first.
func (e *pingpongEnd) close() error {
	var errs []error
	for i := len(e.undo) - 1; i >= 0; i-- {
		errs = append(errs, e.undo[i]())
	}
	return errors.Join(errs...)
}

// newPingpongEnd opens the device and creates a QP with its receives posted.
func newPingpongEnd(o *pingpongOptions) (_ *pingpongEnd, err error) {
	e := &pingpongEnd{o: o}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	if o.device == "" {
		e.dev, err = uverbs.OpenFirst()
	} else {
		e.dev, err = uverbs.Open(o.device)
	}
	if err != nil {
		return nil, err
	}
	e.undo = append(e.undo, e.dev.Close)
	if err := o.checkDevice(e.dev); err != nil {
		return nil, err
	}
	if o.typ == perf.UD {
		e.header = uverbs.GRHSize
	}
	if e.pd, err = e.dev.AllocPD(); err != nil {
		return nil, err
	}
	e.undo = append(e.undo, e.pd.Close)
	if e.buf, err = uverbs.AllocBuffer(e.header + o.size); err != nil {
		return nil, err
	}
	e.undo = append(e.undo, e.buf.Close)
	access := uverbs.AccessLocalWrite
	if o.odp {
		access |= uverbs.AccessOnDemand
	}
	if e.mr, err = e.pd.RegMR(e.buf, access); err != nil {
		return nil, err
	}
	e.undo = append(e.undo, e.mr.Close)
	e.sgl = []uverbs.SGE{e.mr.SGE(e.header, o.size)}
	if o.event {
		if e.ch, err = e.dev.CreateCompChannel(); err != nil {
			return nil, err
		}
		e.undo = append(e.undo, e.ch.Close)
		if err := e.ch.SetBusyWait(busyWait); err != nil {
			return nil, err
		}
	}
	if e.cq, err = e.dev.CreateCQ(uverbs.CQOptions{MaxCQE: o.recvDepth + 1, Channel: e.ch}); err != nil {
		return nil, err
	}
	e.undo = append(e.undo, e.cq.Close)
	if e.qp, err = e.pd.CreateQP(o.qpOptions(e.cq)); err != nil {
		return nil, err
	}
	e.undo = append(e.undo, e.qp.Close)
	if o.typ == perf.UD {
		err = e.qp.ReadyUD(pingpongQKey)
	} else {
		err = e.qp.Init()
	}
	if err != nil {
		return nil, err
	}
	return e, e.postRecvs()
}

// pingpongQKey is the Q_Key of ibv_ud_pingpong.
const pingpongQKey = 0x11111111

// qpOptions returns the QP that rdma-core's program for its type has.
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
	switch o.typ {
	case perf.UC:
		q.Type = uverbs.UC
	case perf.UD:
		q.Type = uverbs.UD
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
	if o.typ == perf.UD {
		port, err := dev.QueryPort(o.ibPort)
		if err != nil {
			return err
		}
		if mtu := port.ActiveMTU.Bytes(); o.size > mtu {
			return fmt.Errorf("--size is %d, allowed: 1 to %d, the MTU of %s, as a datagram is one packet", o.size, mtu, dev.Name())
		}
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
func (e *pingpongEnd) play(ctx context.Context, out, log io.Writer, host string) error {
	// Fill the buffer before the peer can send, because its message arrives in the same buffer.
	e.fill(host != "")
	local, remote, err := e.connect(ctx, out, log, host)
	if err != nil {
		return err
	}
	e.remote = remote
	e.result.Local, e.result.Remote = endpointOf(local), endpointOf(remote)
	if e.ch != nil {
		if err := e.cq.Notify(); err != nil {
			return err
		}
	}
	e.pending = recvID
	if host != "" {
		if err := e.send(); err != nil {
			return err
		}
	}
	// There is one goroutine, unless the device has some in this process. With a second processor the
	// scheduler would migrate it and wake threads to do so.
	if !e.dev.Info().InProcess {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	}
	start := time.Now()
	if err := e.loop(ctx, host == ""); err != nil {
		return err
	}
	e.measure(time.Since(start))
	return nil
}

// pageSize is the distance of the bytes that --verify looks at.
const pageSize = 4096

// fill writes the same data as ibv_rc_pingpong. A client puts a zero at the start of each page,
// which a server checks with --verify.
func (e *pingpongEnd) fill(client bool) {
	b := e.buf.Bytes()[e.header:]
	for i := range b {
		b[i] = 0x7b
		if client && i%pageSize == 0 {
			b[i] = 0
		}
	}
}

// measure fills in the result.
func (e *pingpongEnd) measure(took time.Duration) {
	r := &e.result
	r.Bytes = 2 * int64(e.o.size) * int64(e.o.iterations)
	r.Iterations = e.o.iterations
	r.Seconds = took.Seconds()
	r.MbitPerSecond = float64(r.Bytes) * 8 / 1e6 / r.Seconds
	r.MicrosPerIteration = r.Seconds * 1e6 / float64(e.o.iterations)
}

// connect exchanges endpoints with the peer and connects the QP.
func (e *pingpongEnd) connect(ctx context.Context, out, log io.Writer, host string) (local, remote uverbs.Endpoint, err error) {
	port := strconv.Itoa(e.o.port)
	if host != "" {
		if local, err = e.qp.Endpoint(); err != nil {
			return
		}
		printEndpoint(out, "local", local)
		if remote, err = dialExchange(ctx, net.JoinHostPort(host, port), local); err != nil {
			return
		}
		printEndpoint(out, "remote", remote)
		err = e.reach(ctx, remote)
		return
	}
	// Report a port that is down or a wrong GID index before a client connects.
	if _, err = e.qp.Endpoint(); err != nil {
		return
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort("", port))
	if err != nil {
		return
	}
	defer l.Close()
	remote, err = acceptExchange(ctx, l, log, func(remote uverbs.Endpoint) (uverbs.Endpoint, error) {
		var err error
		if local, err = e.qp.EndpointFor(remote); err != nil {
			return local, err
		}
		printEndpoint(out, "local", local)
		return local, e.reach(ctx, remote)
	})
	if err == nil {
		printEndpoint(out, "remote", remote)
	}
	return
}

// reach makes the QP ready to send to the peer.
func (e *pingpongEnd) reach(ctx context.Context, remote uverbs.Endpoint) error {
	if e.o.typ != perf.UD {
		return e.qp.Connect(ctx, remote)
	}
	attr := uverbs.AHAttr{DLID: remote.LID, SL: e.o.sl, Port: e.o.ibPort}
	if !remote.GID.IsZero() {
		index, err := e.gidIndex(remote.GID)
		if err != nil {
			return err
		}
		const hops = 64
		attr.Global, attr.GRH = true, uverbs.GRH{DGID: remote.GID, SGIDIndex: uint8(index), HopLimit: hops}
	}
	var err error
	if e.ah, err = e.pd.CreateAH(attr); err != nil {
		return err
	}
	e.undo = append(e.undo, e.ah.Close)
	return nil
}

// gidIndex returns the index of the local GID for a peer.
func (e *pingpongEnd) gidIndex(peer uverbs.GID) (int, error) {
	if e.o.gidIndex >= 0 {
		return e.o.gidIndex, nil
	}
	table, err := e.dev.GIDTable(e.o.ibPort)
	if err != nil {
		return 0, err
	}
	entry, ok := uverbs.ChooseGID(table, peer)
	if !ok {
		return 0, fmt.Errorf("the GID table of port %d of %s is empty", e.o.ibPort, e.dev.Name())
	}
	return entry.Index, nil
}

// printEndpoint writes an endpoint as ibv_rc_pingpong does.
func printEndpoint(out io.Writer, side string, e uverbs.Endpoint) {
	fmt.Fprintf(out, "  %-15s LID 0x%04x, QPN 0x%06x, PSN 0x%06x, GID %s\n", side+" address:", e.LID, e.QPN, e.PSN, e.GID.Addr())
}

// postRecvs fills the receive queue.
func (e *pingpongEnd) postRecvs() error {
	message := e.mr.SGE(0, e.header+e.o.size)
	for ; e.posted < e.o.recvDepth; e.posted++ {
		if err := e.qp.PostRecv(recvID, message); err != nil {
			return err
		}
	}
	return nil
}

// send posts the next message.
func (e *pingpongEnd) send() error {
	e.pending |= sendID
	wr := uverbs.SendWR{ID: sendID, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: e.sgl}
	if e.ah != nil {
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = e.ah, e.remote.QPN, pingpongQKey
	}
	return e.qp.PostSend(wr)
}

// spins is the number of empty polls between checks of the context.
const spins = 1 << 15

// loop exchanges messages until all are sent and received.
func (e *pingpongEnd) loop(ctx context.Context, server bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go e.watch(ctx, cancel)
	var wcs [2]uverbs.WC
	for empty := 0; e.received < e.o.iterations || e.sent < e.o.iterations; {
		n, err := e.cq.Poll(wcs[:])
		if err != nil {
			return err
		}
		if n > 0 {
			for i := range wcs[:n] {
				if err := e.complete(&wcs[i], server); err != nil {
					return err
				}
			}
			e.progress.Store(int64(e.received + e.sent))
			continue
		}
		if e.ch != nil {
			if err := e.wait(ctx); err != nil {
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

// watch ends the ping-pong if nothing completes for the timeout.
func (e *pingpongEnd) watch(ctx context.Context, cancel context.CancelCauseFunc) {
	perf.Watch(ctx, e.o.timeout, &e.progress, func() {
		cancel(fmt.Errorf("nothing completed for %s: the peer %s may be gone", e.o.timeout, e.remote))
	})
}

// wait sleeps until the CQ has an event, and arms it for the next.
func (e *pingpongEnd) wait(ctx context.Context) error {
	if _, err := e.ch.Wait(ctx); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return err
	}
	return e.cq.Notify()
}

// complete handles a completion, and sends when it is this side's turn.
func (e *pingpongEnd) complete(wc *uverbs.WC, server bool) error {
	if err := e.qp.Err(wc); err != nil {
		return err
	}
	switch wc.ID {
	case sendID:
		e.sent++
	case recvID:
		e.received++
		if got := int(wc.ByteLen) - e.header; got != e.o.size {
			return fmt.Errorf("message %d has %d bytes, expected %d: give both sides the same --size", e.received, got, e.o.size)
		}
		if server && e.o.verify {
			if err := e.validate(); err != nil {
				return err
			}
		}
		if e.posted--; e.posted <= 1 {
			if err := e.postRecvs(); err != nil {
				return err
			}
		}
	}
	if e.pending &^= int(wc.ID); e.sent < e.o.iterations && e.pending == 0 {
		e.pending = recvID
		return e.send()
	}
	return nil
}

// validate compares the first byte of each page with the one that the client wrote.
func (e *pingpongEnd) validate() error {
	b := e.buf.Bytes()[e.header:]
	for i := 0; i < e.o.size; i += pageSize {
		if b[i] != 0 {
			return fmt.Errorf("message %d: invalid data in page %d: byte %#02x, expected 0x00", e.received, i/pageSize, b[i])
		}
	}
	return nil
}
