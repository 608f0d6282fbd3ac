package cm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/uverbs"
)

// Conn is a reliable connection for messages, RDMA and atomics, made by [Dial] or
// [Listener.Accept]. Messages arrive whole and in order. A side that sends faster than the
// other takes waits in Send; nothing is lost or retried for want of a receive.
//
// All methods are safe for concurrent use, but what Recv returns is for one goroutine.
type Conn struct {
	loop     *eventLoop
	id       *ID
	dev      *device    // nil until attach
	domain   *domain    // nil until attach
	pd       *uverbs.PD // of domain
	listener *Listener  // that counts the connection, nil if it was dialled
	o        Options
	addrs    Addrs
	index    uint32 // of the device that the ID is on
	version  uint8  // of the protocol
	private  []byte // the peer's
	maxSend  int    // the largest message that the peer takes

	completions
	mem         memory // slots for receiving
	win         window // what of that there is, and the small slots of the beginning
	out         memory // slots for sending, none before the first message
	ctl         memory // slots for control messages
	qp          *uverbs.QP
	probeMR     *uverbs.MR // on iWARP: where answers of the peer's device go, see probe
	probeRemote Remote     // on iWARP: memory of the peer's that is read for such an answer

	// reading is held, by putting something in, by the goroutine that is parked for the next
	// completion, on behalf of all that wait.
	parkTurn chan struct{}
	spinHint bool // what was last waited for came soon: looking for a while is worth it
	liveness liveness

	mu         sync.Mutex
	changed    chan struct{} // closed at the next change; nil if nobody waits for one
	users      int           // goroutines that are in a method
	closing    bool          // Close was called
	destroying bool          // what the kernel has is gone, or about to
	chShutdown bool          // the completion channel was shut down, as the device has flushed nothing
	memoryGone bool          // so is the memory, with what has arrived in it
	err        error         // why nothing can be sent, and nothing more will come

	// Receiving.
	inbox          []arrival // a ring of arrived messages
	inHead         int       // number of the next message to take
	inTail         int       // number of the next message to arrive
	heldSlot       int       // slot of the message that Recv has returned, -1 for none
	lease          recvLease // once all else is gone, of that message to who may be reading it
	consumed       int       // messages taken that the peer was not told of
	eof            bool      // the peer has ended
	peerClosedRead bool      // and takes no messages any more
	mustRecvFirst  bool      // nothing may be sent before something has arrived: iWARP, and the peer has connected

	// Sending.
	sendRing           []entry    // a ring of what is in the send queue
	posted, completed  uint64     // numbers of the next entry to post and to retire
	msgPosted, msgDone uint64     // messages
	ctlPosted, ctlDone uint64     // control messages
	opsPosted, opsDone uint64     // RDMA operations
	msgSignaled        uint64     // number of the last message with a completion
	signaledEnd        uint64     // number after that of the last entry with a completion
	opBytes            int        // bytes of RDMA operations that are on their way
	credits, peerDepth int        // messages that the peer has room for, now and at most
	peer               peerWindow // and of what size
	endSent            bool       // this side has ended
	sge, probeSGE      [1]uverbs.SGE
	free               *op // operations to use again
}

// arrival is a message that has arrived.
type arrival struct{ slot, length int }

// entry is what is known of a work request in the send queue.
type entry struct {
	kind entryKind
	op   *op
}

// entryKind says what a work request is.
type entryKind uint8

const (
	entryMessage entryKind = iota
	entryControl
	entryOp
	entryPart // of an operation, whose end another entry is
)

// op is an RDMA operation or a probe.
type op struct {
	done      bool
	abandoned bool // nobody waits for it
	size      int
	next      *op
}

// Sizes beyond what the options say.
const (
	// spareRecv are receives beyond Depth: for the message that Recv has returned, and for
	// control messages, which need no credit. Those are two ends, and two returns of credits,
	// as each is for half of them.
	spareRecv = 1 + 4
	ctlSlots  = 4
	maxRDAtom = 16 // READs and atomics under way, each way

	recvBit = 1 << 63 // of a work request's ID
)

// newConn begins a connection, which has nothing of a device yet. The ID and the use of the hub are the
// connection's if newConn succeeds, and so is its place among those of the listener, if there is one.
func newConn(h *eventLoop, id *ID, o Options, from *Listener) (*Conn, error) {
	addrs, index, err := id.addrs()
	if err != nil {
		return nil, err
	}
	return &Conn{loop: h, id: id, o: o, listener: from, addrs: addrs, index: index, heldSlot: -1, parkTurn: make(chan struct{}, 1)}, nil
}

// attach opens the device that the connection's ID is on, and gives the connection its PD.
func (c *Conn) attach() (err error) {
	if c.dev == nil {
		if c.dev, err = useDevice(c.index); err != nil {
			return err
		}
		c.addrs.Device = c.dev.dev.Name()
		c.id.device.Store(&c.addrs.Device)
	}
	if c.domain != nil {
		return nil
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

// make makes memory and queues, and posts the receives. What there is when it fails is the
// caller's to release, by destroy.
func (c *Conn) make() (err error) {
	id, o := c.id, c.o
	if err := c.attach(); err != nil {
		return err
	}
	if c.probeMR, err = c.domain.probeMemory(); err != nil {
		return err
	}
	recvs, sends := o.Depth+spareRecv, o.SendDepth+ctlSlots+o.Transfers
	if onIWARP(c.dev.dev) {
		recvs++              // for the greeting: a message without a receive would break the connection
		sends += o.Transfers // a WRITE takes two
	}
	c.inbox = make([]arrival, recvs)
	c.sendRing = make([]entry, sends)
	if err = c.makeWindow(recvs); err != nil {
		return err
	}
	if c.ctl, err = c.domain.first.alloc(ctlSlots, headerSize); err != nil {
		return err
	}
	if c.completions, err = c.dev.cqs.get(c.entries()); err != nil {
		return err
	}
	c.qp, err = id.createQP(c.pd, uverbs.QPOptions{SendCQ: c.cq, RecvCQ: c.cq, MaxSendWR: sends, MaxRecvWR: c.recvs()})
	if err != nil {
		return err
	}
	return c.postAll()
}

// releaseAll gives back what the connection has besides its ID and QP, which closed is the
// outcome of closing. It returns that and its own.
func (c *Conn) releaseAll(closed error) error {
	errs := []error{closed}
	if c.cq != nil && closed == nil {
		if c.chShutdown {
			errs = append(errs, c.completions.close())
		} else {
			errs = append(errs, c.dev.cqs.put(c.completions, c.entries()))
		}
	}
	c.mu.Lock()
	if closed == nil { // else the device may use the memory still
		if c.heldSlot >= 0 {
			m, i := c.slotMemory(c.heldSlot)
			c.lease = leaseSlot(c, m, i)
		}
		c.win.smallMem.release()
		c.mem.release()
		c.out.release()
		c.ctl.release()
	}
	c.mu.Unlock()
	if c.domain != nil {
		c.domain.release()
	}
	if c.dev != nil {
		c.dev.release()
	}
	if c.listener != nil {
		c.listener.connClosed()
	}
	return errors.Join(errs...)
}

// param are the parameters of the connection, which say what this side receives.
func (c *Conn) param(kind uint8, data []byte) ConnParam {
	h := greeting{version: c.version, kind: kind, depth: c.o.Depth, size: c.o.MessageSize, data: data}
	if c.win.startsSmall {
		h.first = firstDepth
	}
	greeting := h.encode()
	if c.probeMR != nil {
		greeting, _ = RemoteOf(c.probeMR).AppendBinary(greeting) // it never fails
	}
	attr := c.dev.dev.QueryDevice()
	return ConnParam{
		PrivateData:        greeting,
		ResponderResources: uint8(min(attr.MaxQPRdAtom, maxRDAtom)),
		InitiatorDepth:     uint8(min(attr.MaxQPInitRdAtom, maxRDAtom)),
		RetryCount:         uint8(c.o.RetryCount),
		RNRRetryCount:      6, // flow control makes it needless
	}
}

// start begins the life of a connection whose peer has greeted, with so much private data.
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
	c.loop.register(c.id, eventHandler{event: c.event}) // without events it goes on
}

// sendFirst has the side that has connected send first, as iWARP demands: it says that it is there,
// and asks the peer's device for an answer. Soft iWARP may not notice what arrives while it
// accepts, before it gets something more: so it is asked again until it answers.
func (c *Conn) sendFirst(ctx context.Context) error {
	if !onIWARP(c.dev.dev) {
		return nil
	}
	const first, growth = 20 * time.Millisecond, 2
	c.mu.Lock()
	defer c.mu.Unlock()
	c.users++
	defer c.end()
	c.sendControl(header{kind: msgCredits})
	answered := c.probe()
	for wait := first; ; wait *= growth {
		soon, cancel := context.WithTimeout(ctx, wait)
		err := c.await(soon, isDone, answered)
		cancel()
		switch {
		case err == nil:
			return c.err
		case ctx.Err() != nil, c.destroying:
			return err
		}
		if canProbe(c, nil) { // else as many as there is room for are on their way
			c.probe().abandoned = true
		}
	}
}

// LocalAddr returns this side's address.
func (c *Conn) LocalAddr() net.Addr { return c.addrs.Local }

// RemoteAddr returns the peer's address.
func (c *Conn) RemoteAddr() net.Addr { return c.addrs.Remote }

// PrivateData returns what the peer has sent with its request or its answer.
func (c *Conn) PrivateData() []byte { return c.private }

// MaxMessage returns the size of the largest message that Send takes, in bytes: the smaller
// MessageSize of both sides.
func (c *Conn) MaxMessage() int { return c.maxSend }

// PD returns the PD to register memory for RDMA with. Unless [Options.Isolation] says otherwise, all
// connections on one device share it, so that the memory serves all of them: a peer of any of them
// that knows a key can use the memory. Unregister it before the last of them is closed.
func (c *Conn) PD() *uverbs.PD { return c.pd }

// QP returns the connection's QP, to look at.
func (c *Conn) QP() *uverbs.QP { return c.qp }

// fail ends the connection with an error, unless it has ended. The caller holds c.mu.
func (c *Conn) fail(err error) {
	if c.err != nil {
		return
	}
	c.err = fmt.Errorf("cm: connection with %s: %w", c.addrs.Remote, removed(err, c.addrs.Device))
	c.flushQP()
	c.notify()
	if len(c.parkTurn) > 0 { // a goroutine is parked until the device has flushed something
		time.AfterFunc(flushGrace, c.shutdownChannel)
	}
}

// flushQP has all that is posted flushed, which wakes who waits. The caller holds c.mu.
func (c *Conn) flushQP() {
	if !c.destroying && c.qp != nil {
		c.qp.SetErrCause(c.err)
		c.qp.Modify(uverbs.QPAttr{State: uverbs.Err}, uverbs.AttrState)
	}
}

// notify wakes who waits for a change. The caller holds c.mu.
func (c *Conn) notify() {
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

// errReset is what a connection ends with whose peer is gone without a word.
var errReset = fmt.Errorf("the peer has disconnected, or is gone, without closing the connection: %w", syscall.ECONNRESET)

// rootCause returns what an error is due to that the device, or the peer, has ended the connection with:
// they do so when the device is being removed, maybe before there is an event that says so.
func (c *Conn) rootCause(err error) error {
	if name, nerr := deviceName(c.dev.dev.Info().Index); nerr == nil && name == "" {
		return errRemoved(c.addrs.Device)
	}
	return err
}

// event takes what the connection manager has to say.
func (c *Conn) event(e *Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.destroying {
		return
	}
	switch e.Type {
	case Disconnected:
		c.poll() // what has arrived before counts
		if c.eof {
			c.fail(errReset)
		} else {
			c.fail(c.rootCause(errReset))
		}
		c.id.Disconnect() // the peer waits for it
	case DeviceRemoval:
		c.err = nil // what has failed before has failed for this, or does not matter any more
		c.fail(errRemoved(c.addrs.Device))
		c.dev.forget()
		go c.destroy() // the kernel waits for it
	}
}

// begin enters a method. The caller holds c.mu.
func (c *Conn) begin(what string) error {
	if c.closing {
		return c.errClosed(what)
	}
	c.users++
	return nil
}

// end leaves it.
func (c *Conn) end() {
	if c.users--; c.users == 0 {
		c.notify()
	}
}

// errClosed is the error of a method of a closed connection.
func (c *Conn) errClosed(what string) error {
	return fmt.Errorf("cm: %s: connection with %s: %w", what, c.addrs.Remote, errClosed)
}

// closedError is what follows a Close. It matches both [net.ErrClosed] and [os.ErrClosed].
type closedError struct{}

var errClosed closedError

func (closedError) Error() string { return "it is closed" }

// Is implements what errors.Is looks for.
func (closedError) Is(target error) bool { return target == net.ErrClosed || target == os.ErrClosed }

// stopped returns why a method cannot go on: the connection is closed or has failed.
func (c *Conn) stopped(what string) error {
	if c.closing {
		return c.errClosed(what)
	}
	return c.err
}

// CloseWrite tells the peer that no more messages come; its Recv returns io.EOF after the last
// one. This side can still receive. A second call does nothing.
func (c *Conn) CloseWrite(ctx context.Context) error {
	const what = "close for writing"
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.begin(what); err != nil {
		return err
	}
	defer c.end()
	return c.sendEnd(ctx, what, false)
}

// sendEnd sends the end, after all messages, unless that is sent already. The caller holds c.mu.
func (c *Conn) sendEnd(ctx context.Context, what string, deaf bool) error {
	if err := c.await(ctx, canSendControl, nil); err != nil {
		return c.waitErr(what, err)
	}
	if c.err != nil || c.endSent && !deaf {
		return c.err
	}
	c.endSent = true
	c.sendControl(header{kind: msgEnd, closesRead: deaf})
	return c.err
}

// Close closes the connection: the peer receives everything that was sent before, and then
// io.EOF. That takes until the peer's device has it, at most Options.Linger, and a second more if the
// device here flushes nothing. Calls that are under way return an error that matches [net.ErrClosed] and
// [os.ErrClosed], as do later ones. The error tells of messages that have not arrived.
func (c *Conn) Close() error {
	c.mu.Lock()
	if c.closing {
		c.mu.Unlock()
		return nil
	}
	c.closing = true
	c.notify()
	err := c.linger()
	c.mu.Unlock()
	c.id.Disconnect()
	return errors.Join(err, c.destroy())
}

// linger has what was sent arrive. The caller holds c.mu.
func (c *Conn) linger() error {
	c.liveness.stop()
	if c.err == nil {
		c.poll()
	}
	deaf := c.peerClosedRead // the peer has closed too
	ctx, cancel := context.WithTimeout(context.Background(), c.o.Linger)
	defer cancel()
	unsent := c.err == nil
	err := c.sendEnd(ctx, "close", true)
	if err == nil && onIWARP(c.dev.dev) { // what was sent is complete before the peer has it
		if err = c.await(ctx, canProbe, nil); err == nil && c.err == nil {
			c.probe().abandoned = true
		}
	}
	if err == nil {
		if err = c.await(ctx, allSent, nil); err != nil {
			err = c.waitErr("close", err)
		} else if c.completed != c.posted {
			err = c.err
		}
	}
	// A peer that has closed wants nothing more but this end: that tells it that its own has
	// arrived, should the acknowledgement be lost with the QP.
	if onIWARP(c.dev.dev) { // it may have closed while it was asked, or before nothing could be posted any more
		c.poll()
		deaf = c.peerClosedRead
	}
	if deaf || err != nil && (!unsent || c.eof) { // or it was told before
		return nil
	}
	return err
}

// flushGrace is how long a device has to flush the queues of a connection that has failed, or is being closed,
// before the goroutine that is parked until then is woken without it. Soft iWARP does not flush receives
// that were posted after its queue pair had failed.
var flushGrace = time.Second

// destroy gives back all that the connection has, once no goroutine is in a method. A device that
// flushes nothing delays it by flushGrace.
func (c *Conn) destroy() error {
	c.mu.Lock()
	if c.destroying {
		c.mu.Unlock()
		return nil
	}
	c.fail(errClosed) // unless it has failed: both flush what is posted
	c.destroying = true
	c.liveness.stop()
	c.notify()
	for c.users > 0 {
		changed := c.change()
		c.mu.Unlock()
		<-changed
		c.mu.Lock()
	}
	c.memoryGone, c.inHead = true, c.inTail
	c.mu.Unlock()
	c.loop.unregister(c.id)
	defer c.loop.releaseLater()
	return c.releaseAll(c.loop.closeID(c.id))
}

// shutdownChannel ends the wait of the goroutine that is parked for the next completion, which no device sends.
func (c *Conn) shutdownChannel() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.memoryGone && c.ch != nil && len(c.parkTurn) > 0 {
		c.chShutdown = true
		c.ch.Shutdown()
	}
}

// change returns a channel that is closed at the next change. The caller holds c.mu.
func (c *Conn) change() <-chan struct{} {
	if c.changed == nil {
		c.changed = make(chan struct{})
	}
	return c.changed
}

// waitErr says what a wait has ended with.
func (c *Conn) waitErr(what string, err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", err, os.ErrDeadlineExceeded)
	}
	return fmt.Errorf("cm: %s: connection with %s: %w", what, c.addrs.Remote, err)
}
