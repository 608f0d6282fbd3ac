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
	most := c.wholePackets()
	b := c.qp.BeginSend()
	for n < len(p) && canSend(c, nil) {
		k := min(len(p)-n, most)
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
	if !c.peerTakes(c.maxSend) && !c.peer.wantSent && c.credits > 1 && canSendControl(c, nil) {
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

// waitRoom waits until a message of the given size can be sent.
func (c *Conn) waitRoom(ctx context.Context, what string, size int) error {
	for {
		if !canSend(c, nil) {
			if err := c.await(ctx, canSend, nil); err != nil {
				return c.waitErr(what, err)
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

// stageSlot adds the SEND of a message that is in a slot already.
func (c *Conn) stageSlot(to *uverbs.SendBuilder, m *memory, i, length int, signaled bool) {
	header{kind: msgData, credits: c.consumed, length: length}.put(m.bytes(i))
	c.consumed = 0
	c.credits--
	c.msgPosted++
	c.peer.sent++
	if signaled {
		c.msgSignaled = c.msgPosted
		to.Send(c.recordSignaled(msgSend), uverbs.SendSignaled)
	} else {
		to.Send(c.record(msgSend), 0)
	}
	to.SGE(m.sge(i, headerSize+length))
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
	if err := c.await(ctx, canTransfer, nil); err != nil {
		return c.waitErr(what, err)
	}
	if err := c.sendErr(what); err != nil {
		return err
	}
	return c.finishOp(ctx, what, c.probe())
}

// Recv waits for a message and returns it. The slice is valid until the next Recv. After Close it
// stays valid as long as the program refers to the connection. After the last message of a peer
// that has called Close or CloseWrite, the error is io.EOF. Otherwise it matches ECONNRESET if the
// peer is gone without closing the connection, and ETIMEDOUT if the peer no longer answers.
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
	c.repostHeld()
	if !canRecv(c, nil) {
		if err := c.await(ctx, canRecv, nil); err != nil {
			return nil, c.waitErr(what, err)
		}
	}
	if c.err != nil && !c.closing && c.inHead == c.inTail && !c.eof { // it has failed: what has arrived before still counts
		c.pollAll()
	}
	switch {
	case c.closing:
		return nil, c.opError(what, errClosed)
	case c.inHead != c.inTail:
		return c.nextMessage(), nil
	case c.eof:
		return nil, io.EOF
	}
	return nil, c.report()
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

// nextMessage removes the first message from the inbox, and returns credits to the peer.
func (c *Conn) nextMessage() []byte {
	msg := c.takeMessage()
	c.returnCredits()
	return msg
}

// takeMessage removes the first message from the inbox. Its slot is held until the next one.
func (c *Conn) takeMessage() []byte {
	m := c.inbox[c.inHead%len(c.inbox)]
	c.inHead++
	c.heldSlot = m.slot
	c.consumed++
	from, i := c.slotMemory(m.slot)
	return from.bytes(i)[headerSize:][:m.length:m.length]
}

// repostHeld posts the receive of the message that Recv last returned again.
func (c *Conn) repostHeld() {
	if slot := c.dropHeld(); slot >= 0 {
		if err := c.postRecv(slot); err != nil {
			c.fail(err)
		}
	}
}

// dropHeld ends the use of the message that Recv last returned. It returns the slot whose receive to
// post again, or -1.
func (c *Conn) dropHeld() (slot int) {
	if c.heldSlot < 0 || c.err != nil {
		return -1
	}
	slot, c.heldSlot = c.heldSlot, -1
	if !c.countRepost(slot) {
		return -1
	}
	return slot
}
