package cm

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/uverbs"
)

// A connection has no goroutine of its own, except for attend. The goroutines that wait in its methods poll the CQ,
// each on behalf of all. If there is no completion, one of them waits on the completion channel,
// and the others wait for the changes that it makes.

// condition reports whether the wait of a method is over. It is called with c.mu held. The number is
// for isDone and canTransfer.
type condition func(c *Conn, n uint64) bool

// canRecv reports whether Recv has something to return.
func canRecv(c *Conn, _ uint64) bool {
	return c.inHead != c.inTail || c.eof || c.err != nil || c.closing
}

// canSend reports whether a message can be sent.
func canSend(c *Conn, _ uint64) bool {
	return c.credits > 0 && c.msgPosted-c.msgDone < uint64(c.o.SendDepth) && !c.mustRecvFirst || c.endSent || c.peerClosedRead || c.err != nil || c.closing
}

// canSendControl reports whether a control message can be sent.
func canSendControl(c *Conn, _ uint64) bool {
	return c.ctlPosted-c.ctlDone < ctlSlots && !c.mustRecvFirst || c.err != nil
}

// canTransfer reports whether n RDMA operations can be posted.
func canTransfer(c *Conn, n uint64) bool {
	return c.opsPosted-c.opsDone+n <= uint64(c.o.Transfers) && !c.mustRecvFirst || c.peerClosedRead || c.err != nil || c.closing
}

// canProbe reports whether the send queue has room for a probe.
func canProbe(c *Conn, _ uint64) bool {
	return c.opsPosted-c.opsDone < uint64(c.o.Transfers) || c.err != nil
}

// isDone reports whether the wait for the work request with the ID is over.
func isDone(c *Conn, id uint64) bool { return c.isComplete(id) || c.err != nil }

// isComplete reports whether the operation or the SEND with the ID is complete.
func (c *Conn) isComplete(id uint64) bool {
	if n := id &^ opBit; n != id {
		return n < c.opsDone
	}
	return id < c.completed
}

// allSent reports whether the peer's device has acknowledged everything.
func allSent(c *Conn, _ uint64) bool { return !c.outstanding() || c.err != nil }

// await makes progress on the connection until a condition is met, ctx ends, or the connection is
// destroyed. The caller holds c.mu and is counted in c.users.
func (c *Conn) await(ctx context.Context, met condition, n uint64) error {
	c.win.relieved = true
	c.poll()
	if met(c, n) {
		return nil
	}
	if c.destroying {
		return errClosed
	}
	begin := time.Now()
	if c.o.Wait == WaitSpin || c.o.Wait == WaitSpinThenPark && c.spinHint && !c.slowData() {
		if c.spin(ctx, begin, met, n) {
			return nil
		}
	}
	growStack4K(0)
	err := c.waitParked(ctx, met, n)
	c.spinHint = worthSpinning(begin, c.o.Spin)
	return err
}

// slowData reports whether the last message was large and the device in software: its data takes longer than
// waking up, and the processor that would poll can copy it meanwhile.
func (c *Conn) slowData() bool { return c.lastLarge && c.dev.dev.Info().InProcess }

// worthSpinning reports whether a wait that began at begin was so short that the next one should
// spin first. The factor takes into account that a goroutine that parks waits longer than one that
// spins.
func worthSpinning(begin time.Time, spin time.Duration) bool {
	const parked = 2
	return time.Since(begin)/parked < spin
}

// waitParked is await without spinning.
func (c *Conn) waitParked(ctx context.Context, met condition, n uint64) error {
	for !met(c, n) {
		if c.destroying {
			return errClosed
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if !c.takeTurn(ctx) {
			continue
		}
		err := c.park(ctx, met, n)
		<-c.parkTurn // another goroutine takes its turn
		if err != nil {
			return err
		}
	}
	return nil
}

// spin polls until the condition is met, ctx ends or, unless the mode is [WaitSpin],
// ConnOptions.Spin is over. It reports whether the condition is met. The caller holds c.mu.
func (c *Conn) spin(ctx context.Context, begin time.Time, met condition, n uint64) bool {
	const between = 8 // polls per check of the clock
	until := begin.Add(c.o.Spin)
	for i := 1; ; i++ {
		c.mu.Unlock()
		if i%between == 0 {
			runtime.Gosched()
		}
		c.mu.Lock()
		c.poll()
		switch {
		case met(c, n):
			return true
		case i%between != 0:
		case c.destroying, ctx.Err() != nil, c.o.Wait != WaitSpin && time.Now().After(until):
			return false
		}
	}
}

// park sleeps until the condition is met, and is woken by completions. The caller holds c.mu and
// c.parkTurn.
func (c *Conn) park(ctx context.Context, met condition, n uint64) error {
	for !met(c, n) {
		if c.destroying {
			return errClosed
		}
		if err := c.cq.Notify(); err != nil {
			c.fail(err)
			continue
		}
		more := c.poll()
		if met(c, n) {
			break
		}
		if more { // there is no event for completions that are there already
			if ctx.Err() != nil {
				return ctx.Err()
			}
			c.mu.Unlock() // let other goroutines in
			runtime.Gosched()
			c.mu.Lock()
			continue
		}
		c.mu.Unlock()
		_, err := c.ch.Next(ctx)
		c.mu.Lock()
		if err == nil {
			c.poll()
			continue
		}
		if c.chShutdown {
			if met(c, n) {
				return nil
			}
			return errClosed
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c.fail(err)
	}
	return nil
}

// maxPolls is how many times poll calls the CQ's Poll in a row. Without a limit a peer that sends
// without a pause could keep a goroutine in poll for any time, and all others out of the
// connection.
const maxPolls = 64

// poll takes completions, and reports whether there may be more. The caller holds c.mu.
func (c *Conn) poll() (more bool) {
	if c.memoryGone { // another connection may have the CQ now
		return false
	}
	any := false
	for polls := 1; ; polls++ {
		n, err := c.cq.Poll(c.wcs[:])
		if err != nil {
			c.fail(err)
			return false
		}
		for i := range n {
			c.handleCompletion(&c.wcs[i])
		}
		any = any || n > 0
		if more = n == len(c.wcs); !more || polls == maxPolls {
			break
		}
	}
	if any {
		c.liveness.idle = false
		c.notify()
		c.returnCredits()
	}
	return more
}

// pollAll takes all completions that are in the CQ now, however many receives the connection has. It is
// for a caller that must not miss a message that has arrived. The caller holds c.mu.
func (c *Conn) pollAll() {
	for left := c.entries(); c.poll() && left > 0; {
		left -= maxPolls * len(c.wcs)
	}
}

// handleCompletion handles one completion.
func (c *Conn) handleCompletion(wc *uverbs.WC) {
	if wc.Status != uverbs.WCSuccess {
		switch {
		case c.err != nil:
		case wc.Status == uverbs.WCRetryExcErr:
			c.fail(fmt.Errorf("%w: %w", syscall.ETIMEDOUT, c.requestErr(wc)))
		case refusedByDevice(wc, onIWARP(c.dev.dev)):
			c.fail(fmt.Errorf("%w: %w", protoErr("a message that is longer than the receive, or is not a plain SEND"), c.requestErr(wc)))
		case onIWARP(c.dev.dev) && (wc.Status == uverbs.WCWRFlushErr || wc.Status == uverbs.WCGeneralErr || wc.Status == uverbs.WCLocQPOpErr):
			c.fail(c.rootCause(errReset)) // the TCP connection is gone; an event will report that too
		case wc.Status == uverbs.WCRemOpErr: // the answer of a QP that has failed or is being destroyed
			c.fail(c.rootCause(fmt.Errorf("%w: %w", errReset, c.requestErr(wc))))
		default:
			c.fail(c.rootCause(c.requestErr(wc)))
		}
		return
	}
	var err error
	if wc.ID&recvBit == 0 {
		err = c.complete(wc.ID)
	} else {
		err = c.handleRecv(wc)
	}
	if err != nil {
		c.fail(err)
	}
}

// refusedByDevice reports whether the device has failed a receive because of what the peer has sent.
// All receives are valid, so their status says that. Devices differ in the status for a message that
// is too long: mlx5 and siw have WCLocLenErr, and rxe WCRemInvReqErr or WCLocQPOpErr. siw uses the
// latter when the connection breaks. For a SEND that invalidates a key which it may not, rxe has
// WCRemInvReqErr and mlx5 WCLocAccessErr.
func refusedByDevice(wc *uverbs.WC, iwarp bool) bool {
	if wc.ID&recvBit == 0 {
		return false
	}
	switch wc.Status {
	case uverbs.WCLocLenErr, uverbs.WCLocAccessErr, uverbs.WCRemInvReqErr:
		return true
	case uverbs.WCLocQPOpErr:
		return !iwarp
	}
	return false
}

// handleRecv handles a successful receive, and posts the receives that follow from it.
func (c *Conn) handleRecv(wc *uverbs.WC) error {
	again, grown, err := c.received(wc)
	if grown {
		err = c.postLarge()
	}
	if err != nil || again < 0 {
		return err
	}
	return c.postRecv(again)
}

// received handles a successful receive. The peer controls what it contains. It returns the slot
// whose receive to post again, or -1, and whether to post the large receives before.
func (c *Conn) received(wc *uverbs.WC) (again int, grown bool, err error) {
	h, slot, err := c.parseRecv(wc)
	if err != nil {
		return -1, false, err
	}
	c.mustRecvFirst = false
	keep, err := c.handleMessage(h, slot)
	if err != nil || keep {
		return -1, false, err
	}
	if h.kind == msgWant {
		if grown, err = c.allocLarge(); err != nil {
			return -1, false, fmt.Errorf("memory for messages: %w", err)
		}
	}
	if !c.countRepost(slot) {
		slot = -1
	}
	return slot, grown, nil
}

// parseRecv returns the header of a received message, and its slot. The peer chooses the operation
// that completes a receive, and the length. Only a plain SEND writes as many bytes into the slot as
// the completion says. A WRITE with immediate data also uses a receive, but its bytes go elsewhere:
// the slot still has what an earlier connection has left there.
func (c *Conn) parseRecv(wc *uverbs.WC) (header, int, error) {
	slot := int(wc.ID &^ recvBit)
	m, i := c.slotMemory(slot)
	switch {
	case i >= len(m.slots):
		return header{}, 0, fmt.Errorf("the device has completed receive %d, which was not posted: %w", slot, syscall.EIO)
	case wc.Opcode != uverbs.WCRecv:
		return header{}, 0, protoErr("it has completed a receive with %s; a message is a SEND", wc.Opcode)
	case wc.Flags&uverbs.WCWithImm != 0:
		return header{}, 0, protoErr("a message with immediate data")
	case wc.Flags&uverbs.WCWithInv != 0:
		return header{}, 0, protoErr("a message that invalidates a key")
	case int64(wc.ByteLen) > int64(m.size):
		return header{}, 0, protoErr("a message of %d bytes in a receive of %d bytes", wc.ByteLen, m.size)
	}
	h, err := parseHeader(m.bytes(i)[:wc.ByteLen])
	return h, slot, err
}

// handleMessage handles the message in a slot. It reports whether the slot stays in use until the
// program has read the message.
func (c *Conn) handleMessage(h header, slot int) (keep bool, err error) {
	if c.credits += h.credits; c.credits > c.peerDepth {
		return false, protoErr("it can hold %d messages and now claims %d", c.peerDepth, c.credits)
	}
	if c.peerClosedRead {
		return false, protoErr("a message of kind %d after the end of the connection", h.kind)
	}
	switch h.kind {
	case msgEnd:
		if c.eof && !h.closesRead {
			return false, protoErr("a second end")
		}
		c.eof, c.peerClosedRead = true, h.closesRead
	case msgGrown:
		return false, c.peer.recordGrown(h.recvs)
	case msgWant:
		if c.consumed++; c.consumed > c.o.Depth {
			return false, protoErr("it has asked for memory %d times, more often than it had credits", c.consumed)
		}
		c.win.wantedLate = c.win.announced
	case msgData:
		if c.eof {
			return false, protoErr("a message after the end")
		}
		if n := c.inTail - c.inHead; n >= c.o.Depth || h.length > c.maxSend {
			return false, protoErr("a message of %d bytes behind %d others, allowed are %d messages of %d bytes", h.length, n, c.o.Depth, c.maxSend)
		}
		c.inbox[c.inTail%len(c.inbox)] = arrival{slot, h.length}
		c.lastLarge = h.length > maxMTU
		c.inTail++
		return true, nil
	}
	return false, nil
}

// outstanding reports whether a SEND or an operation is not complete.
func (c *Conn) outstanding() bool { return c.completed != c.posted || c.opsDone != c.opsPosted }

// owed reports whether a work request that asked for a completion is not complete.
func (c *Conn) owed() bool { return c.signaledEnd > c.completed || c.opsDone != c.opsPosted }

// complete handles the completion of a work request, which completes all SENDs before it. An
// operation also completes the operations before it. A SEND does not: on soft iWARP it completes
// before a READ that was posted earlier. All operations ask for completions, so nothing is missed.
func (c *Conn) complete(id uint64) error {
	n := id &^ opBit
	switch {
	case id == n && n < c.posted:
		c.completeSends(n + 1)
		return nil
	case id == n || n >= c.opsPosted:
		return fmt.Errorf("the device has completed request %#x, and %d SENDs and %d operations were posted: %w", id, c.posted, c.opsPosted, syscall.EIO)
	}
	for ; c.opsDone <= n; c.opsDone++ {
		o := *c.opAt(c.opsDone)
		c.completeSends(o.sends)
		c.opBytes -= o.size
	}
	return nil
}

// completeSends handles the completion of the SENDs before a number.
func (c *Conn) completeSends(end uint64) {
	for ; c.completed < end; c.completed++ {
		if c.sendRing[c.completed%uint64(len(c.sendRing))] == msgSend {
			c.msgDone++
		} else {
			c.ctlDone++
		}
	}
}

// record enters a SEND that is about to be posted into the ring of SENDs, and returns its ID.
func (c *Conn) record(kind sendKind) uint64 {
	id := c.posted
	c.sendRing[id%uint64(len(c.sendRing))] = kind
	c.posted++
	return id
}

// recordSignaled is record for a SEND that asks for a completion.
func (c *Conn) recordSignaled(kind sendKind) uint64 {
	id := c.record(kind)
	c.signaledEnd = c.posted
	return id
}

// opAt returns the place of an operation, by its number or its ID, in the ring of operations.
func (c *Conn) opAt(n uint64) *op { return &c.opRing[n&^opBit%uint64(len(c.opRing))] }

// recordOp enters an operation that is about to be posted, on so many bytes, into the ring of
// operations, and returns its ID. The operation asks for a completion.
func (c *Conn) recordOp(size int) uint64 {
	n := c.opsPosted
	*c.opAt(n) = op{sends: c.posted, size: size}
	c.opBytes += size
	c.opsPosted++
	return opBit | n
}

// post posts work requests, and fails the connection if that fails.
func (c *Conn) post(b *uverbs.SendBuilder) {
	if err := b.Post(); err == nil {
		c.liveness.sendPosted(c)
	} else if !c.notTold(err) {
		c.fail(err)
	}
}

// notTold reports whether an error of posting says that the device could not be told of the work requests, and fails the
// connection if so. The work requests are in the queue, and complete as flushed. On iWARP the cause is mostly that the QP
// is not connected any more, which comes before the event that reports it.
func (c *Conn) notTold(err error) bool {
	if !queuedAnyway(err) {
		return false
	}
	if errors.Is(err, syscall.ENOTCONN) {
		err = fmt.Errorf("%w: %w", errReset, err)
	}
	c.fail(c.rootCause(err))
	return true
}

// queuedAnyway reports whether an error of posting comes from the doorbell, which follows when the work requests are in
// the queue. All other errors of posting come before that, and without a command, except os.ErrClosed: if the device was
// closed underneath, the work requests may be in the queue, but nothing completes there any more.
func queuedAnyway(err error) bool {
	_, ok := errors.AsType[*uverbs.Error](err)
	return ok
}

// probe posts a WRITE of 0 bytes. Its completion tells that everything before it has reached the
// peer's device. On iWARP a WRITE completes as soon as TCP has the bytes, but a READ completes when
// the peer has answered, so probe posts a READ there. It reads one byte, because soft iWARP may
// answer a READ of 0 bytes with data that it had to send before. It returns the ID of the operation.
func (c *Conn) probe() (id uint64) {
	b := c.qp.BeginSend()
	id = c.recordOp(0)
	c.opAt(id).probe = true
	if c.probeMR != nil {
		b.Read(id, uverbs.SendSignaled, c.probeRemote.Addr, c.probeRemote.RKey)
		b.SGE(c.probeSGL()...)
	} else {
		b.Write(id, uverbs.SendSignaled, 0, 0)
	}
	c.post(b)
	return id
}

// probeSGL returns where the answer to a probe goes: nowhere if the peer has given no memory to
// read.
func (c *Conn) probeSGL() []uverbs.SGE {
	if c.probeRemote.Length == 0 {
		return nil
	}
	return c.probeSGE[:]
}
