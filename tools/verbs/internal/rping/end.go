package rping

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/tools/internal/objects"
	"github.com/goverbs/goverbs/tools/verbs/internal/peer"
	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// Work request IDs.
const (
	sendID   = iota + 1 // a message to the peer
	recvID              // one from it
	memoryID            // a READ or a WRITE
)

// errDisconnected says that the peer has ended the connection.
var errDisconnected = errors.New("the peer has disconnected")

// end is one side of a connection.
type end struct {
	*run
	id   *rdmacm.ID
	size int // of the memory for pings, in bytes

	cq     *uverbs.CQ
	qp     *uverbs.QP
	msg    *uverbs.MR    // a message received, and one to send
	data   *uverbs.MR    // a client has the source in it and then the sink
	opened objects.Stack // what the QP stands on

	gone   chan struct{} // closed when the connection has ended
	enough atomic.Bool   // the user has interrupted
	pings  int
	bytes  int64
}

// name returns the peer's address.
func (e *end) name() (string, error) {
	a, err := e.id.Addrs()
	return a.Remote.String(), err
}

// close closes everything, the ID after the QP and before what the QP stands on.
func (e *end) close() error {
	return errors.Join(e.closeID(), e.opened.Close())
}

// closeID closes the ID, and before it a QP that is not the ID's.
func (e *end) closeID() error {
	if e.o.OwnQP && e.qp != nil {
		if err := e.qp.Close(); err != nil {
			return err
		}
	}
	return e.id.Close()
}

// open opens the device that the ID is on, with a QP and a receive in it.
func (e *end) open(size int) error {
	a, err := e.id.Addrs()
	if err != nil {
		return err
	}
	dev := e.opened.Device(a.Device)
	if err := e.opened.Err(); err != nil {
		return err
	}
	pd := e.opened.PD(dev)
	e.msg = e.opened.MR(pd, 2*advertLen, uverbs.AccessLocalWrite)
	e.data = e.opened.MR(pd, size, dataAccess(e.o.Server, dev.Info().IWARP()))
	const depth = 4 // a send, a READ or WRITE, a receive, and one to spare
	e.cq = e.opened.CQ(dev, uverbs.CQOptions{Size: depth, Events: true})
	if err := e.opened.Err(); err != nil {
		return err
	}
	o := uverbs.QPOptions{SendCQ: e.cq, RecvCQ: e.cq, MaxSendWR: 2, MaxRecvWR: 1}
	if e.o.OwnQP {
		e.qp, err = pd.CreateQP(o)
		if err == nil {
			err = e.to(ib.QPInit)
		}
	} else {
		e.qp, err = e.id.CreateQP(pd, o)
	}
	if err == nil && e.o.PKey != 0 {
		err = inPartition(e.qp, a.Port, e.o.PKey)
	}
	if err != nil {
		return err
	}
	return e.postRecv()
}

// inPartition returns an error unless a QP is in a partition of a port.
func inPartition(qp *uverbs.QP, port uint8, partition uint16) error {
	at, err := qp.Device().Port(port)
	if err != nil {
		return err
	}
	if at.LinkLayer != ib.LinkLayerInfiniBand {
		return fmt.Errorf("--pkey is 0x%04x, but only InfiniBand has partitions", partition)
	}
	attr, err := qp.Query()
	if err != nil {
		return err
	}
	key, err := qp.Device().PKey(port, int(attr.PKeyIndex))
	if err == nil && (key^partition)&0x7fff != 0 {
		like := fmt.Sprintf("ib0.%04x", partition|0x8000)
		if partition&0x7fff == 0x7fff {
			like = "ib0"
		}
		err = fmt.Errorf("--pkey is 0x%04x, but the network interface with the address is in partition 0x%04x: use the address of one like %s", partition, key, like)
	}
	return err
}

// dataAccess returns the access rights to the memory for pings. A client's is read and written by
// the server. A server's is only the local end of a READ and a WRITE, but on iWARP what a READ
// fetches comes as a write of the peer.
func dataAccess(server, iwarp bool) uverbs.Access {
	switch {
	case !server:
		return uverbs.AccessLocalWrite | uverbs.AccessRemoteRead | uverbs.AccessRemoteWrite
	case iwarp:
		return uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite
	}
	return uverbs.AccessLocalWrite
}

// iwarp reports whether the kernel moves the QP when it is connected.
func (e *end) iwarp() bool { return e.qp.Device().Info().IWARP() }

// to brings a QP that is not the ID's into a state.
func (e *end) to(states ...ib.QPState) error {
	for _, s := range states {
		if s != ib.QPInit && e.iwarp() {
			continue
		}
		attr, mask, err := e.id.QPAttr(s)
		if err != nil {
			return err
		}
		if err := e.qp.Modify(attr, mask); err != nil {
			return err
		}
	}
	return nil
}

// within bounds a step by the timeout.
func (e *end) within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, e.o.Timeout, fmt.Errorf("the peer has done nothing for %s", e.o.Timeout))
}

// accept accepts a client.
func (e *end) accept(ctx context.Context, request *rdmacm.Event) error {
	ctx, cancel := e.within(ctx)
	defer cancel()
	err := e.open(e.size)
	if err == nil && request.Param.InitiatorDepth == 0 {
		err = errors.New("it serves no RDMA READ (responder_resources is 0)")
	}
	if err != nil {
		return errors.Join(err, e.id.Reject(nil, rdmacm.ReasonConsumer))
	}
	p := rdmacm.ConnParam{
		ResponderResources: min(request.Param.ResponderResources, 1),
		InitiatorDepth:     1,
		RNRRetryCount:      7,
	}
	if e.o.OwnQP {
		if err := e.to(ib.QPInit, ib.QPRTR, ib.QPRTS); err != nil {
			return errors.Join(err, e.id.Reject(nil, rdmacm.ReasonConsumer))
		}
		p.QPN = e.qp.QPN()
	}
	if err := e.id.AcceptWait(ctx, p); err != nil {
		return peer.Cause(ctx, err)
	}
	if e.o.OwnQP && e.iwarp() {
		return e.qp.SetKernelState(ib.QPRTR)
	}
	return nil
}

// connect connects to a server.
func (e *end) connect(ctx context.Context, source, addr netip.AddrPort) error {
	ctx, cancel := context.WithTimeoutCause(ctx, e.o.Timeout, fmt.Errorf("server %s has not answered for %s", addr, e.o.Timeout))
	defer cancel()
	if err := e.id.ResolveWait(ctx, rdmacm.AddrOf(source), rdmacm.AddrOf(addr)); err != nil {
		return peer.Cause(ctx, err)
	}
	if err := e.open(2 * e.size); err != nil {
		return err
	}
	p := rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 7, RNRRetryCount: 7}
	if e.o.OwnQP {
		p.QPN = e.qp.QPN()
	}
	if _, err := e.id.ConnectWait(ctx, p); err != nil {
		return peer.Cause(ctx, err)
	}
	if !e.o.OwnQP {
		return nil
	}
	if e.iwarp() {
		return e.qp.SetKernelState(ib.QPRTS)
	}
	// INIT once more: only now is it known what the peer may do.
	if err := e.to(ib.QPInit, ib.QPRTR, ib.QPRTS); err != nil {
		return err
	}
	return e.id.Establish()
}

// play plays a role on the connection, and ends it.
func (e *end) play(ctx context.Context, role func(context.Context) error) error {
	e.gone = make(chan struct{})
	const grace = time.Second // for the ping that is under way
	user := ctx
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(user))
	defer context.AfterFunc(user, func() {
		e.enough.Store(true)
		if e.o.Client {
			time.Sleep(grace)
		}
		cancel(context.Cause(user))
	})()
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		e.watch(watching, cancel)
	}()
	err := role(ctx)
	err = errors.Join(err, e.disconnect())
	stop()
	<-watched
	cancel(nil)
	return err
}

// watch waits for the end of the connection, and has that end the context.
func (e *end) watch(ctx context.Context, cancel context.CancelCauseFunc) {
	for {
		event, err := e.id.Next(ctx)
		if err != nil {
			cancel(err)
			return
		}
		e.debugf("event %s", event.Type)
		switch event.Type {
		case rdmacm.EventDisconnected:
			cancel(errDisconnected)
			close(e.gone)
			return
		case rdmacm.EventDeviceRemoval:
			cancel(errors.New("the device is removed"))
			return
		}
	}
}

// disconnect ends the connection, and gives the peer time to do so too.
func (e *end) disconnect() error {
	const timeout = 2 * time.Second
	if e.o.OwnQP {
		if err := e.qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState); err != nil {
			return err
		}
	}
	if err := e.id.Disconnect(); err != nil {
		return err
	}
	select {
	case <-e.gone:
	case <-time.After(timeout):
	}
	return nil
}

// postRecv posts the receive for the peer's next message.
func (e *end) postRecv() error { return e.qp.PostRecv(recvID, e.msg.SGE(0, advertLen)) }

// send sends a message.
func (e *end) send(a advert) error {
	a.put(e.msg.Bytes()[advertLen:])
	return e.qp.PostSend(uverbs.SendWR{ID: sendID, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled,
		SGL: []uverbs.SGE{e.msg.SGE(advertLen, advertLen)}})
}

// receive waits for the peer's message.
func (e *end) receive(ctx context.Context) (advert, error) {
	if err := e.completion(ctx, awaited{recvID, uverbs.WCRecv}); err != nil {
		return advert{}, err
	}
	a := parseAdvert(e.msg.Bytes())
	return a, e.postRecv()
}

// transfer reads or writes the peer's memory, and waits for it.
func (e *end) transfer(ctx context.Context, op uverbs.WROpcode, a advert, length int) error {
	err := e.qp.PostSend(uverbs.SendWR{ID: memoryID, Opcode: op, Flags: uverbs.SendSignaled,
		SGL: []uverbs.SGE{e.data.SGE(0, length)}, RemoteAddr: a.addr, RKey: a.rkey})
	if err != nil {
		return err
	}
	ctx, cancel := e.within(ctx)
	defer cancel()
	opcode := uverbs.WCRDMAWrite
	if op == uverbs.WRRDMARead {
		opcode = uverbs.WCRDMARead
	}
	if err = e.completion(ctx, awaited{memoryID, opcode}); err == nil {
		e.bytes += int64(length)
	}
	return err
}

// awaited is the completion that a step waits for.
type awaited struct {
	id     uint64
	opcode uverbs.WCOpcode
}

// check returns an error if a completion is neither the one that is awaited nor that of a message to
// the peer.
func (a awaited) check(wc *uverbs.WC) error {
	switch wc.ID {
	case a.id:
		return peer.CheckCompletion(wc, a.opcode, advertLen)
	case sendID:
		return peer.CheckCompletion(wc, uverbs.WCSend, 0)
	}
	return peer.OutOfTurn(wc, recvID)
}

// completion waits for a completion that is none of a send: what the peer answers says more
// than that.
func (e *end) completion(ctx context.Context, want awaited) error {
	var wcs [1]uverbs.WC
	for wc := &wcs[0]; ; {
		if _, err := e.cq.Wait(ctx, wcs[:]); err != nil {
			return peer.Cause(ctx, err)
		}
		if wc.Err() != nil {
			return e.because(ctx, e.qp.Err(wc))
		}
		if err := want.check(wc); err != nil || wc.ID == want.id {
			return err
		}
	}
}

// because returns errDisconnected if that is what makes work requests fail. The last acknowledgement of a
// client that has disconnected can be missing, so a request may fail long before the event comes.
func (e *end) because(ctx context.Context, err error) error {
	const timeout = 5 * time.Second
	select {
	case <-e.gone:
		return errDisconnected
	case <-ctx.Done():
		return peer.Cause(ctx, err) // errDisconnected, if that is why
	case <-time.After(timeout):
		return err
	}
}

// serve is the server's role: it plays until the client has enough.
func (e *end) serve(ctx context.Context) error {
	for {
		waiting, cancel := e.within(ctx)
		source, err := e.receive(waiting)
		cancel()
		if errors.Is(err, errDisconnected) {
			return nil
		}
		if err == nil && e.pings == 0 {
			err = e.choose(e)
		}
		if err == nil {
			err = e.pong(ctx, source)
		}
		switch {
		case err == nil:
			e.pings++
		case e.o.Persistent && e.enough.Load():
			return nil
		default:
			return fmt.Errorf("ping %d: %w", e.pings, err)
		}
	}
}

// pong fetches a ping and puts it back.
func (e *end) pong(ctx context.Context, source advert) error {
	e.debugf("source is %s", source)
	if err := source.check(e.size); err != nil {
		return fmt.Errorf("source: %w", err)
	}
	if err := e.transfer(ctx, uverbs.WRRDMARead, source, int(source.size)); err != nil {
		return fmt.Errorf("RDMA READ: %w", err)
	}
	data := e.data.Bytes()[:source.size]
	if e.o.Verbose {
		fmt.Fprintf(e.text, "server ping data: %s\n", peertext.Quote(upToNUL(data)))
	}
	if err := e.send(advert{}); err != nil {
		return err
	}
	waiting, cancel := e.within(ctx)
	defer cancel()
	sink, err := e.receive(waiting)
	if err != nil {
		return fmt.Errorf("wait for the sink: %w", err)
	}
	e.debugf("sink is %s", sink)
	length := min(len(upToNUL(data))+1, len(data))
	if err := sink.check(MaxPing); err != nil {
		return fmt.Errorf("sink: %w", err)
	}
	if int64(sink.size) < int64(length) {
		return fmt.Errorf("the sink has %d bytes for a text of %d", sink.size, length)
	}
	if err := e.transfer(ctx, uverbs.WRRDMAWrite, sink, length); err != nil {
		return fmt.Errorf("RDMA WRITE: %w", err)
	}
	return e.send(advert{})
}

// ping is the client's role.
func (e *end) ping(ctx context.Context) error {
	for ; e.o.Count == 0 || e.pings < e.o.Count; e.pings++ {
		if e.enough.Load() {
			if e.o.Count == 0 {
				return nil
			}
			return fmt.Errorf("interrupted after %d of %d pings", e.pings, e.o.Count)
		}
		if err := e.once(ctx, e.pings); err != nil {
			return fmt.Errorf("ping %d: %w", e.pings, err)
		}
	}
	return nil
}

// once pings once.
func (e *end) once(ctx context.Context, n int) error {
	source, sink := e.data.Bytes()[:e.size], e.data.Bytes()[e.size:]
	pingText(source, n)
	for _, offset := range []int{0, e.size} {
		if err := e.send(advert{e.data.Addr() + uint64(offset), e.data.RKey(), uint32(e.size)}); err != nil {
			return err
		}
		waiting, cancel := e.within(ctx)
		_, err := e.receive(waiting)
		cancel()
		if err != nil {
			return err
		}
	}
	e.bytes += 2 * int64(e.size)
	if e.o.Verify {
		if i := differ(source, sink); i >= 0 {
			return fmt.Errorf("data mismatch: byte %d is %#02x, sent was %#02x", i, sink[i], source[i])
		}
	}
	if e.o.Verbose {
		fmt.Fprintf(e.text, "ping data: %s\n", peertext.Quote(upToNUL(sink)))
	}
	return nil
}
