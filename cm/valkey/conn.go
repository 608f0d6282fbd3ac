package valkey

import (
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/goverbs/goverbs/cm/internal/protocol"
	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs"
)

// Sizes that no option sets.
const (
	maxControls = 8  // commands that may be outstanding
	firstRecvs  = 16 // receives before a connection is established: a peer sends only commands before this side announces a buffer, and one at first
)

// conn speaks the protocol for a connection, as [protocol.Wire] describes.
//
// It has a goroutine that handles completions also while no method of the connection is called. A peer writes until
// the buffer that was announced to it is full, in as many messages as it likes, and each needs a receive; a server of
// Valkey breaks the connection off if too many of them wait for one.
type conn struct {
	protocol.Stream
	state // guarded by Mu, as the rest

	cbuf     *protocol.Region // received commands of the first receives
	rest     *protocol.Region // received commands of the other receives; nil if there are none
	gone     bool             // the peer has disconnected
	controls uint32           // commands that were sent
}

// checkDevice returns an error if a device cannot speak the protocol.
func checkDevice(info uverbs.DeviceInfo) error {
	if info.IWARP() {
		return &uverbs.FeatureError{Feature: "RDMA WRITE with immediate data, which Valkey's protocol needs", Driver: "iWARP"}
	}
	return nil
}

// Prepare implements [protocol.Wire].
func (c *conn) Prepare() (err error) {
	c.server = c.Server
	if c.cbuf, err = c.Register(firstRecvs*commandSize, 0); err != nil {
		return err
	}
	return c.postRecvs(0, firstRecvs)
}

// Grow implements [protocol.Wire]. It posts the other receives.
func (c *conn) Grow() (err error) {
	if n := c.Receives - firstRecvs; n > 0 {
		if c.rest, err = c.Register(n*commandSize, 0); err != nil {
			return err
		}
	}
	c.recvBuf = c.RecvMem.MR.Bytes()[:c.RecvBuffer]
	return c.postRecvs(firstRecvs, c.Receives)
}

// postRecvs posts the receives from one number to another.
func (c *conn) postRecvs(from, to int) error {
	for i := from; i < to; i++ {
		if err := c.postRecv(i); err != nil {
			return err
		}
	}
	return nil
}

// postRecv posts a receive, with memory for a command.
func (c *conn) postRecv(i int) error {
	mr, at := c.recvRegion(i)
	return c.QP.PostRecv(uint64(i), mr.SGE(at, commandSize))
}

// recvMemory returns the memory of a receive.
func (c *conn) recvMemory(i int) []byte {
	mr, at := c.recvRegion(i)
	return mr.Bytes()[at:][:commandSize]
}

// recvRegion returns where the memory of a receive is.
func (c *conn) recvRegion(i int) (mr *uverbs.MR, at int) {
	if i < firstRecvs {
		return c.cbuf.MR, i * commandSize
	}
	return c.rest.MR, (i - firstRecvs) * commandSize
}

// Param implements [protocol.Wire]. Servers of Valkey accept one READ, which the protocol does not use.
func (c *conn) Param(request *rdmacm.ConnParam) rdmacm.ConnParam {
	p := rdmacm.ConnParam{FlowControl: true, RetryCount: protocol.RetryCount, RNRRetryCount: protocol.RNRRetryCount, InitiatorDepth: 1, ResponderResources: 1}
	if request != nil {
		p.InitiatorDepth = min(p.InitiatorDepth, request.InitiatorDepth)
		p.ResponderResources = min(p.ResponderResources, request.ResponderResources)
	}
	return p
}

// Start implements [protocol.Wire].
func (c *conn) Start([]byte) {}

// Received implements [protocol.Wire].
func (c *conn) Received(wc *uverbs.WC) error {
	i := int(wc.ID)
	if err := c.receive(wc, c.recvMemory(i)); err != nil {
		return err
	}
	c.Posted(c.postRecv(i))
	return nil
}

// Cause implements [protocol.Wire].
func (c *conn) Cause(status uverbs.WCStatus, err error) *protocol.Failure {
	switch status {
	case uverbs.WCRemAccessErr, uverbs.WCRemInvReqErr: // a peer that ends takes its buffer away before it disconnects
		err = fmt.Errorf("the peer does not let this side write into the buffer that it has announced: %w: %w", syscall.EPROTO, err)
	case uverbs.WCWRFlushErr:
		err = fmt.Errorf("%w: %w", syscall.ECONNRESET, err)
	default:
		return &protocol.Failure{Err: err}
	}
	return &protocol.Failure{Err: err, Consequence: true}
}

// Gone implements [protocol.Wire].
func (c *conn) Gone() bool { return c.gone }

// Lost implements [protocol.Wire]. A disconnect is how a peer ends a connection.
func (c *conn) Lost(err error) {
	if c.gone = err == nil; !c.gone {
		c.Fail(err)
	}
}

// canRead reports whether Read has something to return.
func (c *conn) canRead() bool { return c.unread() > 0 || c.gone }

// take reads data that has arrived, or returns why there is none.
func (c *conn) take(p []byte) (n int, err error) {
	switch {
	case c.unread() > 0:
	case c.Err != nil:
		return 0, c.Err
	default:
		return 0, io.EOF
	}
	n = c.read(p)
	c.SendOwed()
	return n, nil
}

// writable returns why nothing can be sent, or nil.
func (c *conn) writable() error {
	switch {
	case c.Closing:
		return net.ErrClosed
	case c.Err != nil:
		return c.Err
	case c.gone:
		return fmt.Errorf("the peer has closed the connection: %w", syscall.EPIPE)
	}
	return nil
}

// canWrite reports whether data can be written, or never again.
func (c *conn) canWrite() bool {
	return c.remote.length > 0 && c.CanStage() || c.gone || c.Closing
}

// writeSome sends the beginning of p by one WRITE, or returns why nothing can be sent.
func (c *conn) writeSome(p []byte) (int, error) {
	if err := c.writable(); err != nil || len(p) == 0 {
		return 0, err
	}
	from, n := c.Stage(p, c.remote.length)
	c.Slots--
	to := c.advance(n)
	b := c.QP.BeginSend()
	b.WriteImm(protocol.IDData|uint64(n), uverbs.SendSignaled, to.addr, to.key, to.length)
	b.SGE(from)
	c.Post(b)
	return n, nil
}

// End implements [protocol.Wire].
func (c *conn) End() error {
	if err := c.Wait(&c.Closer, c.AllSentOrGone); err != nil {
		return err
	}
	switch {
	case c.Err != nil:
		return c.Err
	case !c.Delivered():
		return protocol.ErrUndelivered
	case c.gone:
		return nil
	}
	return c.Part()
}

// canSendCommand reports whether a command may be sent.
func (c *conn) canSendCommand() bool {
	return c.CanSendControl() && !c.gone && !c.Closed && c.Err == nil
}

// SendOwed implements [protocol.Wire].
func (c *conn) SendOwed() {
	if c.owesBuffer() && c.canSendCommand() {
		offset := c.grant()
		c.sendCommand(command{op: registerXferMemory, buffer: segment{c.RecvMem.MR.Addr() + uint64(offset), uint32(c.half()), c.RecvMem.MR.RKey()}})
	}
	for c.asks > 0 && c.canSendCommand() {
		c.sendCommand(c.answer())
	}
}

// sendCommand sends a command. The caller has checked that it may.
func (c *conn) sendCommand(cmd command) {
	at := c.SendBuffer + int(c.controls%maxControls)*commandSize // RC completes sends in order, so it is free
	c.controls++
	c.ControlsOut++
	cmd.put(c.SendMem.MR.Bytes()[at:])
	b := c.QP.BeginSend()
	b.Send(protocol.IDControl, uverbs.SendSignaled)
	b.SGE(c.SendMem.MR.SGE(at, commandSize))
	c.Post(b)
}
