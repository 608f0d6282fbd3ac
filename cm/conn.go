package cm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/cm/internal/inprocess"
	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// Conn is a reliable connection that carries messages, RDMA operations and atomics. [Dial] and
// [Listener.Accept] make one. Messages arrive whole and in order. While the peer has no room for a
// message, Send waits.
//
// All methods are safe for concurrent use, but one goroutine at a time may call Recv, because the
// memory that it returns is valid until the next Recv. Any number may call RecvInto.
type Conn struct {
	loop     *eventLoop
	id       *rdmacm.ID
	dev      *device    // nil until attach
	domain   *domain    // nil until attach
	pd       *uverbs.PD // the PD of domain
	listener *Listener  // the listener that counts the connection, nil if it was dialed
	key      netip.Addr // what the address of the peer counts as there
	o        ConnOptions
	addrs    rdmacm.Addrs
	portMTU  ib.MTU // of an accepted connection: the active MTU of this side's port
	index    uint32 // index of the device that the ID is on
	version  uint8  // version of the protocol
	private  []byte // private data of the peer
	maxSend  int    // size of the largest message that the peer accepts

	completions
	mem         memory     // slots for receiving, except the small ones
	win         window     // the state of the receives, and the small slots
	out         memory     // slots for sending, none before the first message
	lent        lentMemory // more slots for sending
	ctl         memory     // slots for control messages
	qp          *uverbs.QP
	probeMR     *uverbs.MR // on iWARP: memory that the replies of the peer's device go to, see probe
	probeRemote Remote     // on iWARP: memory of the peer that a probe reads

	// parkTurn is held, by a value in the channel, by the one goroutine that waits on the
	// completion channel for all goroutines of the connection.
	parkTurn  chan struct{}
	spinHint  bool // the last wait was short, so that it is worth spinning in the next one
	lastLarge bool // the last message, in either direction, was larger than a packet
	liveness  peerCheck

	mu         sync.Mutex
	waiting    []waker     // those of the goroutines that wait for the next change
	users      int         // goroutines that are inside a method
	closing    bool        // Close was called
	destroying bool        // the kernel's objects are gone, or are about to be
	chShutdown bool        // the completion channel was shut down, because the device has flushed nothing
	memoryGone bool        // the memory is gone too, with the messages that were not taken
	err        error       // why nothing more can be sent or received
	reported   bool        // a method has returned err
	flushTimer *time.Timer // shuts the completion channel down; nil if no goroutine waited when the connection ended

	// Receiving.
	inbox          []arrival // a ring of received messages
	inHead         int       // number of the next message to take
	inTail         int       // number of the next message to arrive
	heldSlot       int       // slot of the message that Recv has returned, -1 if there is none
	lease          recvLease // after Close: the slot of that message, which the program may still read
	consumed       int       // messages taken whose credits the peer has not got back
	eof            bool      // the peer has sent its end
	receiving      bool      // a goroutine is in Recv
	peerClosedRead bool      // the peer no longer receives messages
	mustRecvFirst  bool      // nothing may be sent before something has arrived: on iWARP, on the side that has accepted

	// Sending.
	sendRing           []sendKind // a ring with the kinds of the SENDs in the send queue
	opRing             []op       // a ring with the RDMA operations in the send queue
	posted, completed  uint64     // numbers of the next SEND to post and to complete
	msgPosted, msgDone uint64     // messages
	ctlPosted, ctlDone uint64     // control messages
	opsPosted, opsDone uint64     // numbers of the next RDMA operation to post and to complete
	msgSignaled        uint64     // number of the last message that asked for a completion
	signaledEnd        uint64     // number of the SEND after the last one that asked for a completion
	opBytes            int        // bytes of the RDMA operations that are not complete
	credits, peerDepth int        // messages that the peer has room for now, and at most
	peer               peerWindow // sizes of the peer's receives
	endSent            bool       // this side has sent its end
	probeSGE           [1]uverbs.SGE
}

// arrival is a message that has arrived.
type arrival struct{ slot, length int }

// sendKind is what a SEND is.
type sendKind uint8

const (
	msgSend sendKind = iota
	ctlSend
)

// op is an RDMA operation or a probe.
type op struct {
	sends uint64 // number of the next SEND when the operation was posted
	size  int    // bytes
	probe bool   // it is one of Conn.probe, and not one of the program
}

// Sizes that no option sets.
const (
	// spareRecv is the number of receives beyond Depth: one for the message that Recv has
	// returned, and four for control messages, which cost no credit. Four are enough for two
	// ends and for two messages that return credits, because each of those returns at least
	// half of them.
	spareRecv = 1 + 4
	ctlSlots  = 4
	maxSGEs   = 2  // of SendSGE
	maxRDAtom = 16 // READs and atomics in flight, in each direction

	recvBit = 1 << 63 // set in the ID of a receive
	opBit   = 1 << 62 // set in the ID of an RDMA operation
)

// newConn makes a connection that has no objects of a device yet. It owns the ID, a
// reference to the event loop and, if there is a listener, a place among its connections.
func newConn(loop *eventLoop, id *rdmacm.ID, addrs rdmacm.Addrs, index uint32, o ConnOptions, from *Listener) *Conn {
	return &Conn{loop: loop, id: id, o: o, listener: from, addrs: addrs, index: index, heldSlot: -1, parkTurn: make(chan struct{}, 1)}
}

// openDevice opens the device that the ID is on.
func (c *Conn) openDevice() (err error) {
	if c.dev == nil {
		if c.dev, err = useDevice(c.index); err != nil {
			return err
		}
		c.addrs.Device = c.dev.dev.Name()
	}
	return nil
}

// attach opens the device that the ID is on and gets the connection's PD.
func (c *Conn) attach() (err error) {
	if err := c.openDevice(); err != nil || c.domain != nil {
		return err
	}
	m := c.dev.shared
	switch {
	case c.o.Isolation == ConnPD:
		m = &domain{dev: c.dev}
	case c.o.Isolation == ListenerPD && c.listener != nil:
		m = c.listener.domain(c.dev)
	}
	if c.pd, err = m.use(); err != nil {
		return err
	}
	c.domain = m
	return nil
}

// make allocates the memory and the queues and posts the receives. If make fails the caller must
// call destroy to release what was allocated.
func (c *Conn) make() (err error) {
	id, o := c.id, c.o
	if err := c.attach(); err != nil {
		return err
	}
	if c.probeMR, err = c.domain.probeMemory(); err != nil {
		return err
	}
	recvs, ops := o.Depth+spareRecv, o.Transfers
	if onIWARP(c.dev.dev) {
		recvs++                          // for the first message of the dialing side: without a receive it would break the connection
		ops = max(2*ops, maxFirstProbes) // a WRITE takes two work requests; see also sendFirst
	}
	c.inbox = make([]arrival, recvs)
	c.sendRing, c.opRing = make([]sendKind, o.SendDepth+ctlSlots), make([]op, ops)
	if err = c.makeWindow(recvs); err != nil {
		return err
	}
	if c.ctl, err = c.domain.first.alloc(ctlSlots, headerSize); err != nil {
		return err
	}
	if c.completions, err = c.dev.cqs.get(c.entries()); err != nil {
		return err
	}
	c.qp, err = id.CreateQP(c.pd, uverbs.QPOptions{SendCQ: c.cq, RecvCQ: c.cq, MaxSendWR: c.sends(), MaxRecvWR: c.recvs(), MaxSendSGE: 1 + maxSGEs})
	if err != nil {
		return err
	}
	return c.postAll()
}

// param returns the parameters of the connection, with a greeting that describes what this side
// receives.
func (c *Conn) param(kind uint8, data []byte) rdmacm.ConnParam {
	h := greeting{version: c.version, kind: kind, depth: c.o.Depth, size: c.o.MessageSize, data: data}
	if c.win.startsSmall {
		h.first = firstDepth
	}
	greeting := h.encode()
	if kind == greetingAnswer && c.portMTU != 0 {
		greeting = append(greeting, byte(c.portMTU))
	}
	if c.probeMR != nil {
		greeting, _ = RemoteOf(c.probeMR).AppendBinary(greeting) // it never fails
	}
	attr := c.dev.dev.Attr()
	return rdmacm.ConnParam{
		PrivateData:        greeting,
		ResponderResources: uint8(min(attr.MaxQPRdAtom, maxRDAtom)),
		InitiatorDepth:     uint8(min(attr.MaxQPInitRdAtom, maxRDAtom)),
		RetryCount:         uint8(c.o.RetryCount),
		RNRRetryCount:      6, // not needed, because there are credits
		MTU:                c.portMTU,
		AnswerMTU:          answerMTU,
	}
}

// answerMTU returns the MTU that the private data of an answer has, or 0.
func answerMTU(private []byte) ib.MTU {
	h, err := parseGreeting(private, greetingAnswer)
	at := greetingSize + len(h.data)
	if err != nil || at >= len(private) {
		return 0
	}
	return ib.MTU(private[at])
}

// start makes the connection ready for use. It takes the greeting of the peer and the private data
// that the greeting is part of.
func (c *Conn) start(peer greeting, private []byte) {
	c.mu.Lock()
	if rest := private[greetingSize+len(peer.data):]; c.probeMR != nil && len(rest) >= remoteSize {
		if err := c.probeRemote.UnmarshalBinary(rest); err != nil || c.probeRemote.Length == 0 {
			c.probeRemote = Remote{}
		}
		c.probeSGE[0] = c.probeMR.SGE(1, 1)
	}
	c.credits, c.peerDepth = peer.depth, peer.depth
	if peer.first > 0 {
		c.credits, c.peer.mayBeSmall, c.peer.firstCredits = peer.first, true, uint32(peer.first)
	}
	c.maxSend = min(c.o.MessageSize, peer.size)
	c.private = peer.data
	c.liveness.start(c)
	c.mu.Unlock()
	c.loop.register(c.id, eventHandler{event: c.event}) // without a lost function: the connection survives the end of the events
}

// maxFirstProbes is how many probes sendFirst posts at most. It waits twice as long after each, so
// the last one goes out after 40 s.
const maxFirstProbes = 12

// sendFirst sends the first message if this side has dialed on iWARP, which requires that side to
// send first. It then probes the peer's device. Soft iWARP may miss what arrives while it accepts,
// until something more arrives. Therefore sendFirst posts another probe as long as something is
// not answered. It is not bound by ConnOptions.Transfers, because nothing else uses the send queue
// yet.
func (c *Conn) sendFirst(ctx context.Context) error {
	if !onIWARP(c.dev.dev) {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.users++
	defer c.end()
	c.sendControl(header{kind: msgCredits})
	wait := 20 * time.Millisecond
	for probes := 0; ; probes++ {
		if probes < maxFirstProbes && c.err == nil {
			c.probe()
		}
		soon, cancel := context.WithTimeout(ctx, wait)
		err := c.await(soon, allSent, 0)
		cancel()
		switch {
		case err == nil:
			return c.err
		case ctx.Err() != nil, c.destroying:
			return err
		}
		wait *= 2
	}
}

// ECE returns the options for enhanced connections that the connection uses; see [ConnOptions].ECE. The
// zero value is none.
func (c *Conn) ECE() rdmacm.ECE { return c.id.ECE() }

// LocalAddr returns the address of this side, an [rdmacm.Addr].
func (c *Conn) LocalAddr() net.Addr { return c.addrs.Local }

// RemoteAddr returns the address of the peer, an [rdmacm.Addr].
func (c *Conn) RemoteAddr() net.Addr { return c.addrs.Remote }

// PrivateData returns the private data of the peer's request or answer.
func (c *Conn) PrivateData() []byte { return c.private }

// MaxMessage returns the size of the largest message that Send accepts, in bytes. It is the smaller
// MessageSize of the two sides.
func (c *Conn) MaxMessage() int { return c.maxSend }

// PD returns the PD with which to register memory for RDMA. Unless [ConnOptions].Isolation says
// otherwise, all connections of the process on one device share the PD. Memory that is registered
// with it can be used on each of them, and every peer that knows the key can access it. An MR keeps
// its PD open, also without a connection: a server registers its memory once, for all connections
// with the same PD, see [ListenOptions].Prepare. Close the MRs when they are no longer needed.
func (c *Conn) PD() *uverbs.PD { return c.pd }

// QP returns the QP of the connection, for queries. Do not post to it or change its state.
func (c *Conn) QP() *uverbs.QP { return c.qp }

// fail ends the connection with an error, unless it has ended already. The caller holds c.mu.
func (c *Conn) fail(err error) {
	if c.err != nil {
		return
	}
	c.err = &connError{c.addrs.Remote, removed(err, c.addrs.Device)}
	c.flushQP()
	c.notify()
	if len(c.parkTurn) > 0 { // a goroutine waits for the device to flush a work request
		c.flushTimer = time.AfterFunc(flushGrace, c.shutdownChannel)
	}
}

// connError is why a connection has ended. Most connections end without a failure, so the text is
// made only on demand.
type connError struct {
	remote rdmacm.Addr
	err    error
}

// Error implements the error interface.
func (e *connError) Error() string {
	return "cm: connection with " + e.remote.String() + ": " + e.err.Error()
}

// Unwrap returns the reason.
func (e *connError) Unwrap() error { return e.err }

// flushQP moves the QP to the error state. The device then completes all work requests as flushed,
// which wakes the goroutine that waits for a completion. The caller holds c.mu.
func (c *Conn) flushQP() {
	if !c.destroying && c.qp != nil {
		c.qp.SetErrCause(c.err)
		c.qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState)
	}
}

// errReset is the error of a connection whose peer has disconnected, or is gone, without sending an
// end message.
var errReset = fmt.Errorf("the peer has disconnected, or is gone, without closing the connection: %w", syscall.ECONNRESET)

// errTakenBack is the error of a connection whose listener has accepted it, and rejected it before it knew that this
// side was ready.
var errTakenBack = fmt.Errorf("the listener has taken its answer back, perhaps to give the place to another client: %w", syscall.ECONNRESET)

// rootCause returns the reason for an error with which the device or the peer has ended the
// connection. If the device is being removed, that is the reason, even if no event has reported the
// removal yet.
func (c *Conn) rootCause(err error) error {
	if name, nerr := inprocess.DeviceName(c.dev.dev.Info().Index); nerr == nil && name == "" {
		return errRemoved(c.addrs.Device)
	}
	return err
}

// errCutOff is the error of a connection that the device has ended, if no completion says why.
var errCutOff = fmt.Errorf("the device has ended the connection and does not say why; most likely it refused an RDMA operation of the peer, for its address, key or access right: %w", syscall.ECONNRESET)

// requestErr explains a work request that has failed.
func (c *Conn) requestErr(wc *uverbs.WC) error {
	e, ok := c.qp.Err(wc).(*uverbs.WCError)
	if !ok {
		return wc.Status
	}
	ours := wc.ID&recvBit != 0
	if wc.ID&(recvBit|opBit) == opBit && c.opAt(wc.ID).probe {
		named := *e
		named.Request, ours = "keep-alive, or check of what has arrived", true
		e = &named
	}
	switch cutOff := wc.Status == uverbs.WCWRFlushErr && e.First == nil && e.Cause == nil; {
	case cutOff && ours:
		return errCutOff
	case cutOff: // the request may also be one that the device could not execute
		return fmt.Errorf("%w; %w", errCutOff, &requestError{e})
	}
	return &requestError{e}
}

// ofRequest returns an error of [uverbs.QP.Err] without the number of the work request.
func ofRequest(err error) error {
	if e, ok := err.(*uverbs.WCError); ok {
		return &requestError{e}
	}
	return err
}

// requestError is an error of package uverbs without the numbers of work requests, which the program did not choose.
type requestError struct{ *uverbs.WCError }

// Error implements the error interface.
func (e *requestError) Error() string {
	text := e.WCError.Error() + "\n"
	for w := e.WCError; w != nil; w = w.First {
		for _, end := range []string{" (", ", ", "; ", "\n"} { // of the number
			text = strings.ReplaceAll(text, fmt.Sprint("work request ", w.WC.ID, end), "work request"+end)
		}
	}
	return strings.TrimSuffix(text, "\n")
}

// Unwrap returns the error of package uverbs.
func (e *requestError) Unwrap() error { return e.WCError }

// event handles an event of the connection manager.
func (c *Conn) event(e *rdmacm.Event) {
	growStack4K(0)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.destroying {
		return
	}
	switch e.Type {
	case rdmacm.EventDisconnected, rdmacm.EventRejected: // rejected: the peer has given up before it learned that this side is ready
		c.win.over = true
		c.pollAll() // messages that arrived before the event still count
		switch {
		case e.Type == rdmacm.EventRejected:
			c.fail(errTakenBack)
		case c.eof:
			c.fail(errReset)
		default:
			c.fail(c.rootCause(errReset))
		}
		c.id.Disconnect() // the peer waits for this answer
	case rdmacm.EventDeviceRemoval:
		c.err = nil // an earlier error is a consequence of the removal, or does not matter any more
		c.fail(errRemoved(c.addrs.Device))
		c.dev.forget()
		go c.destroy() // the kernel waits until the objects are destroyed
	}
}

// begin enters a method, which must call end. The caller holds c.mu.
func (c *Conn) begin(what string) error {
	if c.closing {
		return c.opError(what, errClosed)
	}
	c.users++
	return nil
}

// end leaves a method.
func (c *Conn) end() {
	if c.users--; c.users == 0 {
		c.notify()
		if c.win.attended {
			c.liveness.unattended(c)
		}
	}
}

// opError returns the error of a method.
func (c *Conn) opError(what string, err error) error {
	return fmt.Errorf("cm: %s: connection with %s: %w", what, c.addrs.Remote, removed(err, c.addrs.Device))
}

// stopped returns the error of a connection that is closed or has failed, or nil.
func (c *Conn) stopped(what string) error {
	if c.closing {
		return c.opError(what, errClosed)
	}
	return c.report()
}

// report returns why nothing more can be sent or received, or nil, to the program.
func (c *Conn) report() error {
	c.reported = c.err != nil
	return c.err
}

// sendErr returns why nothing can be sent any more, or nil.
func (c *Conn) sendErr(what string) error {
	if c.peerClosedRead && !c.closing {
		return c.opError(what, fmt.Errorf("the peer has closed it: %w", syscall.EPIPE))
	}
	return c.stopped(what)
}

// waitErr returns the error of a wait that has failed.
func (c *Conn) waitErr(what string, err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", err, os.ErrDeadlineExceeded)
	}
	return c.opError(what, err)
}
