package cm

import (
	"context"
	"fmt"
	"io"
	"syscall"

	"github.com/goverbs/goverbs/uverbs"
)

// Send sends a message. It copies the message, which may be a slice that Recv returned, and returns
// as soon as the copy is posted. The peer may not have received it yet; see [Conn.Flush]. Send
// waits while the peer has no room. If Send fails, no part of the message was sent. The error
// matches
//
//   - EPIPE if the peer has closed its side, or CloseWrite was called,
//   - ECONNRESET if the peer is gone without closing the connection,
//   - ETIMEDOUT if the peer no longer answers,
//   - ENOMEM if there is no memory for the first message, and
//   - the error of ctx if ctx ends first.
func (c *Conn) Send(ctx context.Context, msg []byte) error {
	const what = "send"
	if len(msg) > c.maxSend {
		return argErr(what, "msg", fmt.Sprintf("%d bytes long", len(msg)), "up to %d bytes, the smaller MessageSize of both sides", c.maxSend)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.begin(what); err != nil {
		return err
	}
	defer c.end()
	if err := c.waitRoom(ctx, what, len(msg)); err != nil {
		return err
	}
	b := c.qp.BeginSend()
	c.stage(b, msg)
	c.post(b)
	return c.report()
}

// maxMTU is the largest MTU of a port, in bytes. The smaller ones divide it.
const maxMTU = 4096

// sendSome sends as much of p as there is room for, at least one message, and returns the number of
// bytes.
func (c *Conn) sendSome(ctx context.Context, p []byte) (n int, err error) {
	const what = "send"
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.begin(what); err != nil {
		return 0, err
	}
	defer c.end()
	if len(p) == 0 {
		return 0, nil
	}
	if err := c.waitRoom(ctx, what, 0); err != nil {
		return 0, err
	}
	if len(p) > firstData {
		c.wantIfSmall()
	}
	b := c.qp.BeginSend()
	for n < len(p) && canSend(c, 0) {
		k := c.nextSize(len(p) - n)
		if !c.peerTakes(k) {
			k = firstData
		}
		c.stage(b, p[n:n+k])
		n += k
	}
	c.post(b)
	return n, c.report()
}

// wantIfSmall asks the peer for large receives, unless it has them or got a request already, or the
// request would have to wait.
func (c *Conn) wantIfSmall() {
	if !c.peerTakes(c.maxSend) && !c.peer.wantSent && c.credits > 1 && canSendControl(c, 0) {
		c.sendWant()
	}
}

// wholePackets returns how many bytes of data a message of a stream has at most, so that it fills
// whole packets.
func (c *Conn) wholePackets() int {
	if whole := (headerSize + c.maxSend) &^ (maxMTU - 1); whole > 0 {
		return whole - headerSize
	}
	return c.maxSend
}

// nextSize returns the size of the next message of a stream if n bytes are left: as many as fill whole
// packets. Where full messages save one, as for 64 KiB with the default MessageSize, a packet more for each
// is cheaper than a message of a few bytes, which costs a slot, a credit and a completion of its own.
func (c *Conn) nextSize(n int) int {
	const few = 2 // messages
	whole := c.wholePackets()
	if n <= few*c.maxSend && n > few*whole || n <= c.maxSend {
		return min(n, c.maxSend)
	}
	return min(n, whole)
}

// waitRoom waits until a message of the given size can be sent.
func (c *Conn) waitRoom(ctx context.Context, what string, size int) error {
	for {
		if !canSend(c, 0) {
			if err := c.await(ctx, canSend, 0); err != nil {
				return c.waitErr(what, c.noRoom(err))
			}
		}
		if c.endSent && !c.closing {
			return c.opError(what, fmt.Errorf("this side was closed for writing: %w", syscall.EPIPE))
		}
		if err := c.sendErr(what); err != nil {
			return err
		}
		if c.peerTakes(size) {
			break
		}
		if err := c.prepareLarge(ctx); err != nil {
			return c.waitErr(what, err)
		}
	}
	if err := c.sendMemory(); err != nil {
		return c.opError(what, fmt.Errorf("memory for messages: %w", err))
	}
	return nil
}

// noRoom says what a wait for room has waited for.
func (c *Conn) noRoom(err error) error {
	if c.credits == 0 && c.peerDepth > 0 {
		return fmt.Errorf("the peer has no room; its program must receive some of %d messages: %w", c.peerDepth, err)
	}
	return err
}

// sendMemory allocates the slots for sending before the first message, so that a side that only
// receives does not need them. The caller holds c.mu.
func (c *Conn) sendMemory() (err error) {
	if c.out.pool == nil {
		c.out, err = c.domain.pool.alloc(c.o.SendDepth, headerSize+c.maxSend)
	}
	return err
}

// tcpZeroCopy is the least size, in bytes, of a message that soft iWARP passes to TCP without a
// copy. The slot of such a message must not be reused before TCP has sent it, which may be after
// later requests have completed. So it needs a completion of its own. The limit in the driver is
// one page (SENDPAGE_THRESH), which is 4 KiB or more.
const tcpZeroCopy = 4 << 10

// stage copies a message into a slot and adds its SEND to the builder, which the caller posts. The
// caller has checked that there is room.
func (c *Conn) stage(to *uverbs.SendBuilder, msg []byte) {
	i := int(c.msgPosted % uint64(c.o.SendDepth))
	copy(c.out.bytes(i)[headerSize:], msg)
	// One completion covers all requests before it.
	size := headerSize + len(msg)
	signaled := c.msgPosted+1-c.msgSignaled >= uint64(c.o.SendDepth+1)/2 || c.probeMR != nil && size >= tcpZeroCopy
	c.stageSlot(to, &c.out, i, len(msg), signaled)
}

// stageSlot adds the SEND of a message, of which length bytes are in a slot already and the rest in
// other memory, and returns its ID.
func (c *Conn) stageSlot(to *uverbs.SendBuilder, m *memory, i, length int, signaled bool, rest ...uverbs.SGE) (id uint64) {
	h := header{kind: msgData, credits: c.consumed, length: length + totalLength(rest)}
	h.put(m.bytes(i))
	c.lastLarge = h.length > maxMTU
	c.consumed = 0
	c.credits--
	c.msgPosted++
	c.peer.sent++
	if signaled {
		c.msgSignaled = c.msgPosted
		id = c.recordSignaled(msgSend)
		to.Send(id, uverbs.SendSignaled)
	} else {
		id = c.record(msgSend)
		to.Send(id, 0)
	}
	to.SGE(m.sge(i, headerSize+length))
	to.SGE(rest...)
	return id
}

// totalLength returns how many bytes the SGEs have.
func totalLength(sges []uverbs.SGE) (n int) {
	for _, s := range sges {
		n += int(s.Length)
	}
	return n
}

// SendSGE sends a message that is in registered memory of up to two SGEs, without a copy. The memory
// must be registered with [Conn.PD]. SendSGE returns when the program may change it again. If ctx
// ends first the message may have been sent, and the memory stays in use until the connection is
// closed; to wait again use [Conn.StartSend]. In errors of the device the header of the message is
// SGE 0. The rest is as for [Conn.Send].
func (c *Conn) SendSGE(ctx context.Context, sges ...uverbs.SGE) error {
	op, err := c.startSend(ctx, "send", sges)
	if err != nil {
		return err
	}
	return op.wait(ctx, "send")
}

// StartSend starts [Conn.SendSGE]. It waits while the peer has no room, or SendDepth messages are
// not acknowledged. If it fails, no part of the message was sent. Otherwise the memory is in use
// until the Op is complete. It saves the copy of [Conn.Send], and a wait for each message; the depth of
// both sides limits how many are in flight. To serve peers of which some may be slow, use a goroutine for each.
func (c *Conn) StartSend(ctx context.Context, sges ...uverbs.SGE) (Op, error) {
	return c.startSend(ctx, "start send", sges)
}

// startSend is StartSend.
func (c *Conn) startSend(ctx context.Context, what string, sges []uverbs.SGE) (Op, error) {
	n := totalLength(sges)
	switch {
	case len(sges) > maxSGEs:
		return Op{}, argErr(what, "sges", fmt.Sprintf("%d long", len(sges)), "up to %d", maxSGEs)
	case n > c.maxSend:
		return Op{}, argErr(what, "sges", fmt.Sprintf("%d bytes in all", n), "up to %d bytes, the smaller MessageSize of both sides", c.maxSend)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.begin(what); err != nil {
		return Op{}, err
	}
	defer c.end()
	if err := c.waitRoom(ctx, what, n); err != nil {
		return Op{}, err
	}
	consumed, signaled, end := c.consumed, c.msgSignaled, c.signaledEnd
	b := c.qp.BeginSend()
	id := c.stageSlot(b, &c.out, int(c.msgPosted%uint64(c.o.SendDepth)), 0, true, sges...)
	if err := b.Post(); err == nil {
		c.liveness.sendPosted(c)
	} else if !c.notTold(err) { // nothing was posted, most likely for a wrong SGE
		c.consumed, c.msgSignaled, c.signaledEnd = consumed, signaled, end
		c.credits++
		c.msgPosted--
		c.peer.sent--
		c.posted--
		return Op{}, c.opError(what, err)
	}
	return Op{c, id}, nil
}

// Flush waits until the peer's device has received everything that was sent. The error is as for Send.
func (c *Conn) Flush(ctx context.Context) error {
	const what = "flush"
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.begin(what); err != nil {
		return err
	}
	defer c.end()
	if err := c.await(ctx, canTransfer, 1); err != nil {
		return c.waitErr(what, err)
	}
	if err := c.sendErr(what); err != nil {
		return err
	}
	return c.waitOp(ctx, what, c.probe())
}

// Recv waits for a message and returns it. The slice is valid until the next Recv. After Close it
// stays valid as long as the program refers to the connection. One goroutine at a time may use Recv
// and what it returns; while one waits in Recv, the Recv of another fails with EBUSY. After the last
// message of a peer that has called Close or CloseWrite, the error is io.EOF. Otherwise it matches
// ECONNRESET if the peer is gone without closing the connection, or the device has ended it since it refused an RDMA
// operation of the peer; ETIMEDOUT if the peer no longer answers; and EPROTO if it violated the protocol.
func (c *Conn) Recv(ctx context.Context) ([]byte, error) {
	const what = "receive"
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.begin(what); err != nil {
		c.heldSlot = -1
		c.lease.release()
		return nil, err
	}
	defer c.end()
	if c.receiving {
		return nil, c.opError(what, fmt.Errorf("another goroutine waits in Recv, whose message is valid until the next one; use RecvInto: %w", syscall.EBUSY))
	}
	c.receiving = true
	c.repostHeld()
	err := c.waitMessage(ctx, what)
	if c.receiving = false; err != nil {
		return nil, err
	}
	return c.nextMessage(), nil
}

// RecvInto waits for a message, copies it into buf and returns its length. Any number of goroutines
// may call it, and it leaves what Recv has returned valid. If the message is longer than buf,
// RecvInto copies nothing, the error is an [rdmacm.ArgError] with both lengths, and the message stays
// for the next call. [Conn.MaxMessage] bytes are always enough. The other errors are as for [Conn.Recv].
func (c *Conn) RecvInto(ctx context.Context, buf []byte) (n int, err error) {
	const what = "receive"
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.begin(what); err != nil {
		return 0, err
	}
	defer c.end()
	if err := c.waitMessage(ctx, what); err != nil {
		return 0, err
	}
	if need := c.inbox[c.inHead%len(c.inbox)].length; need > len(buf) {
		return 0, argErr(what, "buf", fmt.Sprintf("%d bytes long", len(buf)), "at least %d bytes, the length of the message, which stays for the next call", need)
	}
	slot, msg := c.takeMessage()
	n = copy(buf, msg)
	c.repost(slot)
	c.returnCredits()
	return n, nil
}

// waitMessage waits until a message is in the inbox, or returns why none comes.
func (c *Conn) waitMessage(ctx context.Context, what string) error {
	if !canRecv(c, 0) {
		if err := c.await(ctx, canRecv, 0); err != nil {
			return c.waitErr(what, err)
		}
	}
	if c.err != nil && !c.closing && c.inHead == c.inTail && !c.eof { // it has failed: what has arrived before still counts
		c.pollAll()
	}
	switch {
	case c.closing:
		return c.opError(what, errClosed)
	case c.inHead != c.inTail:
		return nil
	case c.eof:
		return io.EOF
	}
	return c.report()
}

// checkOpen returns an error if the connection is closed.
func (c *Conn) checkOpen(what string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return c.opError(what, errClosed)
	}
	return nil
}

// tryRecv is Recv for a message that has arrived. It returns nil if there is none.
func (c *Conn) tryRecv() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.begin("receive") != nil {
		return nil
	}
	defer c.end()
	if c.repostHeld(); c.inHead == c.inTail {
		c.poll()
	}
	if c.inHead == c.inTail {
		return nil
	}
	return c.nextMessage()
}

// nextMessage removes the first message from the inbox for Recv, and returns credits to the peer.
func (c *Conn) nextMessage() (msg []byte) {
	c.heldSlot, msg = c.takeMessage()
	c.returnCredits()
	return msg
}

// takeMessage removes the first message from the inbox and returns it with its slot.
func (c *Conn) takeMessage() (slot int, msg []byte) {
	m := c.inbox[c.inHead%len(c.inbox)]
	c.inHead++
	c.consumed++
	from, i := c.slotMemory(m.slot)
	return m.slot, from.bytes(i)[headerSize:][:m.length:m.length]
}

// repostHeld posts the receive of the message that Recv last returned again.
func (c *Conn) repostHeld() {
	if slot := c.heldSlot; slot >= 0 && c.err == nil {
		c.heldSlot = -1
		c.repost(slot)
	}
}

// repost posts the receive of a message that is no longer needed again, unless the connection has
// failed.
func (c *Conn) repost(slot int) {
	if c.err == nil && c.countRepost(slot) {
		if err := c.postRecv(slot); err != nil {
			c.fail(err)
		}
	}
}
