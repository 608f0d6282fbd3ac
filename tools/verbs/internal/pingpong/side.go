package pingpong

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/tools/internal/objects"
	"github.com/goverbs/goverbs/tools/verbs/internal/peer"
	"github.com/goverbs/goverbs/tools/verbs/internal/perf"
	"github.com/goverbs/goverbs/tools/verbs/internal/places"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// Work request IDs, which are bits of what is pending.
const (
	recvID = 1
	sendID = 2
)

// side is one side of a ping-pong.
type side struct {
	o      *Options
	client bool
	events bool   // wait for completion events
	server ib.GID // where the client has found the server, if the device has that network; it may be zero
	dev    *uverbs.Device
	pd     *uverbs.PD
	cq     *uverbs.CQ
	srq    *uverbs.SRQ  // or nil
	qps    []*queuePair // those that send
	recvQP *uverbs.QP   // the one that receives, with XRC
	opened objects.Stack
	result Result
	ah     *uverbs.AH // the address handle of the peer, of a UD or SRD QP
	conn   net.Conn   // to the peer, with XRC
	clock  clock      // with --ts
	memory

	header   int          // bytes before the data in the buffer
	sgl      []uverbs.SGE // the data
	posted   int          // receives in the queue
	sent     int
	received int
	progress atomic.Int64 // completions so far, for watch
}

// queuePair is a queue pair with what it is waiting for.
type queuePair struct {
	*uverbs.QP
	remote  address // the peer
	pending int
}

// open opens a device, or the first one, and creates a QP with its receives posted.
func (e *side) open(device string) (err error) {
	o := e.o
	e.opened, e.qps, e.posted = objects.Stack{}, nil, 0
	defer func() {
		if err != nil {
			err = errors.Join(err, e.opened.Close())
		}
	}()
	e.dev = e.opened.Device(device)
	if err := e.opened.Err(); err != nil {
		return err
	}
	if err := o.checkDevice(e.dev); err != nil {
		return err
	}
	if o.Type == perf.UD {
		e.header = uverbs.GRHSize
	}
	// A program that polls takes the processor from its device, or from that of the peer.
	e.events = o.Events || e.dev.Info().InProcess && !o.Poll
	e.pd = e.opened.PD(e.dev)
	e.openMemory(e.header + o.Size)
	cq := uverbs.CQOptions{Size: o.RecvDepth + o.queuePairs(), Events: e.events}
	if o.Timestamps {
		cq.Flags = uverbs.CQTimestamp
	}
	e.cq = e.opened.CQ(e.dev, cq)
	e.createQPs()
	if err := e.opened.Err(); err != nil {
		return err
	}
	e.sgl = []uverbs.SGE{e.mr.SGE(e.at+e.header, o.Size)}
	if err := e.fill(); err != nil { // before the peer can send, because its message arrives in the same memory
		return err
	}
	return e.postRecvs()
}

// meet makes the side suit its TCP connection. Unless a device is named, it opens the one that has the address of
// this end, instead of the first one. The QPs of a client then have a GID that suits the address of the server.
func (e *side) meet(c net.Conn) error {
	at := places.AddrOf(c.LocalAddr())
	if err := e.move(at); err != nil || !e.client {
		return err
	}
	table, err := e.dev.GIDTable(e.o.IBPort)
	if slices.ContainsFunc(table, func(g uverbs.GIDEntry) bool { return g.GID.Addr() == at.Unmap().WithZone("") }) {
		e.server = ib.GID(places.AddrOf(c.RemoteAddr()).As16())
	}
	return err
}

// move opens the device that has an address of this host, unless a device is named.
func (e *side) move(at netip.Addr) error {
	if e.o.Device != "" {
		return nil
	}
	dev, err := objects.OpenDeviceAt("", at)
	if err != nil {
		return err
	}
	name := dev.Name()
	if err := dev.Close(); err != nil || name == e.dev.Name() {
		return err
	}
	if err := e.opened.Close(); err != nil {
		return err
	}
	return e.open(name)
}

// queuePairs returns the number of queue pairs that send.
func (o *Options) queuePairs() int {
	if o.Type == TypeSRQ {
		return o.QPs
	}
	return 1
}

// createQPs creates the queue pairs and makes them ready to receive.
func (e *side) createQPs() {
	q := e.o.qpOptions(e.cq)
	switch e.o.Type {
	case TypeSRQ:
		e.srq = e.opened.SRQ(e.pd, uverbs.SRQOptions{MaxWR: e.o.RecvDepth})
		q.SRQ, q.MaxRecvWR = e.srq, 0
	case TypeXRC:
		e.createXRC(q.Path)
		q.Type, q.RecvCQ, q.MaxRecvWR = ib.XRCSend, nil, 0
	}
	for range e.o.queuePairs() {
		qp := e.opened.QP(e.pd, q)
		e.qps = append(e.qps, &queuePair{QP: qp})
		e.opened.Do(func() error {
			if e.o.datagrams() {
				return qp.ReadyUD(qkey)
			}
			return qp.Init()
		})
	}
}

// createXRC creates the SRQ and the queue pair that receives, in a domain of their own.
func (e *side) createXRC(path uverbs.PathOptions) {
	xrcd := objects.Open(&e.opened, func() (*uverbs.XRCD, error) { return e.dev.OpenXRCD(uverbs.XRCDOptions{}) })
	e.srq = e.opened.SRQ(e.pd, uverbs.SRQOptions{MaxWR: e.o.RecvDepth, XRCD: xrcd, CQ: e.cq})
	e.recvQP = objects.Open(&e.opened, func() (*uverbs.QP, error) { return xrcd.CreateQP(uverbs.XRCRecvOptions{Path: path}) })
	e.opened.Do(func() error { return e.recvQP.Init() })
}

// datagrams reports whether each message names the queue pair that it goes to.
func (o *Options) datagrams() bool { return o.Type == perf.UD || o.Type == perf.SRD }

// qkey is the Q_Key of ibv_ud_pingpong.
const qkey = 0x11111111

// qpOptions returns the QP that rdma-core's program for its type has.
func (o *Options) qpOptions(cq *uverbs.CQ) uverbs.QPOptions {
	mtu, _ := uverbs.MTUFromBytes(o.MTU) // checked before
	q := uverbs.QPOptions{
		Type:      ib.RC,
		SendCQ:    cq,
		RecvCQ:    cq,
		MaxSendWR: 1,
		MaxRecvWR: o.RecvDepth,
		Path: uverbs.PathOptions{
			Port:        o.IBPort,
			MTU:         mtu,
			SL:          o.SL,
			PKey:        o.PKey,
			MaxRdAtomic: 1,
		},
	}
	switch o.Type {
	case perf.UC:
		q.Type = ib.UC
	case perf.UD:
		q.Type = ib.UD
	case perf.SRD:
		q.Type = ib.SRD
	}
	if o.datagrams() {
		q.Path.MaxRdAtomic = 0
	}
	if o.GID >= 0 {
		q.Path.GIDIndex = new(o.GID)
	}
	return q
}

// checkDevice refuses options that the device or this program does not support.
func (o *Options) checkDevice(dev *uverbs.Device) error {
	if dev.Info().IWARP() {
		return fmt.Errorf("%s is an iWARP device, where only the connection manager connects QPs: use verbs rping, or verbs perf with --cm", dev.Name())
	}
	if err := o.checkCaps(dev); err != nil {
		return err
	}
	if o.datagrams() {
		port, err := dev.Port(o.IBPort)
		if err != nil {
			return err
		}
		mtu := port.ActiveMTU.Bytes()
		if o.Type == perf.SRD {
			mtu = int(port.MaxMsgSize)
		}
		if o.Size > mtu {
			return fmt.Errorf("--size is %d, allowed: 1 to %d, the MTU of %s, as a datagram is one packet", o.Size, mtu, dev.Name())
		}
	}
	return nil
}

// play connects and exchanges the messages.
func (e *side) play(ctx context.Context, out, log io.Writer, host string) error {
	local, remote, err := e.connect(ctx, out, log, host)
	if err != nil {
		return err
	}
	if e.conn != nil {
		defer e.conn.Close()
	}
	e.result.QPs = len(e.qps)
	e.result.Local, e.result.Remote = endpointOf(local[0].Endpoint), endpointOf(remote[0].Endpoint)
	starts := (host != "") != (e.o.Type == TypeXRC) // the client starts, but in ibv_xsrq_pingpong the server
	for _, q := range e.qps {
		q.pending = recvID
		if starts {
			if err := e.send(q); err != nil {
				return err
			}
		}
	}
	start := time.Now()
	if err := e.loop(ctx, host == ""); err != nil {
		return err
	}
	e.measure(time.Since(start))
	if e.conn != nil {
		return sayEnd(e.conn)
	}
	return nil
}

// measure fills in the result.
func (e *side) measure(took time.Duration) {
	r := &e.result
	r.Bytes = 2 * int64(e.o.Size) * int64(e.o.Iterations)
	r.Iterations = e.o.Iterations
	r.Seconds = took.Seconds()
	r.MbitPerSecond = float64(r.Bytes) * 8 / 1e6 / r.Seconds
	r.MicrosPerIteration = r.Seconds * 1e6 / float64(e.o.Iterations)
	if e.clock.count > 1 {
		e.clock.KHz = e.dev.Attr().CoreClockKHz
		r.Clock = &e.clock
	}
}

// connect exchanges addresses with the peer and connects the QPs.
func (e *side) connect(ctx context.Context, out, log io.Writer, host string) (local, remote []address, err error) {
	port := strconv.Itoa(e.o.Port)
	form := e.o.form()
	// A port that is down or a wrong GID index is reported before a client connects.
	if local, err = e.addresses(nil); err != nil {
		return
	}
	if host != "" {
		remote, e.conn, err = dialExchange(ctx, net.JoinHostPort(host, port), form, func(c net.Conn) ([]address, error) {
			err := e.meet(c)
			if err == nil {
				local, err = e.addresses(nil)
			}
			e.print(out, "local", local)
			return local, err
		})
		if err != nil {
			return
		}
		e.print(out, "remote", remote)
		err = e.reach(ctx, remote)
		return
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort("", port))
	if err != nil {
		return
	}
	defer l.Close()
	remote, e.conn, err = acceptExchange(ctx, l, log, form, func(c net.Conn, remote []address) ([]address, error) {
		err := e.meet(c)
		if err == nil {
			local, err = e.addresses(remote)
		}
		if err != nil {
			return nil, err
		}
		e.print(out, "local", local)
		return local, e.reach(ctx, remote)
	})
	if err == nil {
		e.print(out, "remote", remote)
	}
	return
}

// form returns the form of the exchange.
func (o *Options) form() exchangeForm {
	switch o.Type {
	case TypeSRQ:
		return manyForm(o.QPs, srqQPs)
	case TypeXRC:
		return xrcForm
	}
	return oneForm
}

// addresses returns the addresses of this side's QPs, for a peer unless remote is nil.
func (e *side) addresses(remote []address) (all []address, err error) {
	of := func(q *uverbs.QP, i int) (uverbs.Endpoint, error) {
		if remote == nil {
			return q.EndpointFor(uverbs.Endpoint{GID: e.server})
		}
		return q.EndpointFor(remote[i].Endpoint)
	}
	for i, q := range e.qps {
		var a address
		if a.Endpoint, err = of(q.QP, i); err != nil {
			return nil, err
		}
		if e.recvQP != nil {
			a.sendQPN, a.srqn = a.QPN, e.srq.SRQN() // the PSN comes from the sender
			receiver, err := of(e.recvQP, i)
			if err != nil {
				return nil, err
			}
			a.QPN = receiver.QPN
		}
		all = append(all, a)
	}
	return all, nil
}

// reach makes the QPs ready to send to the peer.
func (e *side) reach(ctx context.Context, remote []address) error {
	for i, q := range e.qps {
		q.remote = remote[i]
		if e.o.datagrams() {
			return e.reachUD(remote[i].Endpoint)
		}
		if err := q.Connect(ctx, remote[i].Endpoint); err != nil {
			return err
		}
		if e.recvQP != nil {
			sender := remote[i].Endpoint
			sender.QPN = remote[i].sendQPN
			if err := e.recvQP.Connect(ctx, sender); err != nil {
				return err
			}
		}
	}
	return nil
}

// reachUD makes the address handle of the peer of a UD or SRD QP.
func (e *side) reachUD(remote uverbs.Endpoint) error {
	attr, err := perf.AHAttr(e.dev, e.o.IBPort, e.o.GID, remote.LID, remote.GID)
	if err != nil {
		return err
	}
	attr.SL = e.o.SL
	e.ah = objects.Open(&e.opened, func() (*uverbs.AH, error) { return e.pd.CreateAH(attr) })
	return e.opened.Err()
}

// print writes addresses as rdma-core's programs do.
func (e *side) print(out io.Writer, side string, all []address) {
	for _, a := range all {
		numbers := fmt.Sprintf("QPN 0x%06x, PSN 0x%06x", a.QPN, a.PSN)
		if e.recvQP != nil {
			numbers = fmt.Sprintf("QPN RECV 0x%06x SEND 0x%06x, PSN 0x%06x, SRQN 0x%06x", a.QPN, a.sendQPN, a.PSN, a.srqn)
		}
		fmt.Fprintf(out, "  %-15s LID 0x%04x, %s, GID %s\n", side+" address:", a.LID, numbers, a.GID.Addr())
	}
}

// postRecvs fills the receive queue.
func (e *side) postRecvs() error {
	post := e.qps[0].PostRecv
	if e.srq != nil {
		post = e.srq.PostRecv
	}
	message := []uverbs.SGE{e.mr.SGE(e.at, e.header+e.o.Size)}
	for ; e.posted < e.o.RecvDepth; e.posted++ {
		if err := post(recvID, message...); err != nil {
			return err
		}
	}
	return nil
}

// send posts the next message of a QP.
func (e *side) send(q *queuePair) error {
	q.pending |= sendID
	wr := uverbs.SendWR{ID: sendID, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: e.sgl, RemoteSRQN: q.remote.srqn}
	if e.ah != nil {
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = e.ah, q.remote.QPN, qkey
	}
	return q.PostSend(wr)
}

// spins is the number of empty polls between checks of the context.
const spins = 1 << 15

// loop exchanges messages until all are sent and received.
func (e *side) loop(ctx context.Context, server bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go e.watch(ctx, cancel)
	var wcs [2]uverbs.WC
	for empty := 0; e.received < e.o.Iterations || e.sent < e.o.Iterations; {
		n, err := e.poll(ctx, wcs[:])
		if err != nil {
			return err
		}
		for i := range wcs[:n] {
			if err := e.complete(&wcs[i], server); err != nil {
				return err
			}
		}
		if n > 0 {
			e.progress.Store(int64(e.received + e.sent))
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
func (e *side) watch(ctx context.Context, cancel context.CancelCauseFunc) {
	perf.Watch(ctx, e.o.Timeout, &e.progress, func() {
		cancel(fmt.Errorf("nothing completed for %s: the peer %s may be gone", e.o.Timeout, e.qps[0].remote.Endpoint))
	})
}

// poll polls the CQ, or waits for a completion.
func (e *side) poll(ctx context.Context, wcs []uverbs.WC) (int, error) {
	if !e.events {
		return e.cq.Poll(wcs)
	}
	n, err := e.cq.Wait(ctx, wcs)
	if err != nil {
		err = peer.Cause(ctx, err)
	}
	return n, err
}

// owner returns the queue pair of a completion.
func (e *side) owner(wc *uverbs.WC) (*queuePair, error) {
	if len(e.qps) == 1 { // the number may be that of recvQP
		return e.qps[0], nil
	}
	for _, q := range e.qps {
		if q.QPN() == wc.QPN {
			return q, nil
		}
	}
	return nil, fmt.Errorf("a completion is of QP %#x, which is none of this program", wc.QPN)
}

// complete handles a completion, and sends when it is this side's turn.
func (e *side) complete(wc *uverbs.WC, server bool) error {
	q, err := e.owner(wc)
	if err != nil {
		return err
	}
	if err := q.Err(wc); err != nil {
		return err
	}
	if wc.ID != sendID && wc.ID != recvID || q.pending&int(wc.ID) == 0 {
		return peer.OutOfTurn(wc, recvID)
	}
	switch wc.ID {
	case sendID:
		if err := peer.CheckCompletion(wc, uverbs.WCSend, 0); err != nil {
			return err
		}
		e.sent++
	case recvID:
		e.received++
		if e.o.Timestamps {
			e.clock.add(wc.Timestamp, e.dev.Attr().TimestampMask)
		}
		if err := e.checkMessage(wc, q); err != nil {
			return fmt.Errorf("message %d: %w", e.received, err)
		}
		if server && e.o.Verify {
			if err := e.validate(); err != nil {
				return err
			}
		}
		if e.posted--; e.posted <= len(e.qps) {
			if err := e.postRecvs(); err != nil {
				return err
			}
		}
	}
	if q.pending &^= int(wc.ID); e.sent < e.o.Iterations && q.pending == 0 {
		q.pending = recvID
		return e.send(q)
	}
	return nil
}

// checkMessage refuses a message that is none of the peer's of the ping-pong.
func (e *side) checkMessage(wc *uverbs.WC, q *queuePair) error {
	if err := peer.CheckCompletion(wc, uverbs.WCRecv, e.header+e.o.Size); err != nil {
		return fmt.Errorf("%w; give both sides the same --size", err)
	}
	if e.o.datagrams() && wc.SrcQP != q.remote.QPN {
		return fmt.Errorf("it is from queue pair %#x, the peer's is %#x", wc.SrcQP, q.remote.QPN)
	}
	return nil
}
