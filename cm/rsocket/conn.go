package rsocket

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"net"
	"syscall"

	"github.com/goverbs/goverbs/cm/internal/protocol"
	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs"
)

// Sizes that no option sets.
const (
	maxControls = 4    // control messages that may be outstanding on each side
	spareRecvs  = 16   // receives beyond the credits, for control messages
	firstBuffer = 2048 // bytes of the buffer that the private data announces, before there is memory for more
)

// conn speaks the protocol for a connection, as [protocol.Wire] describes. Except on iWARP it has no goroutine for completions.
type conn struct {
	protocol.Stream
	state // guarded by Mu, as the rest

	o      Options
	table  *protocol.Region // the buffers that the peer announces, its mappings, the first buffer, and on iWARP room for messages
	ending bool             // Close has told the peer

	announcements int        // how many there were
	endingWrites  int        // calls of CloseWrite that wait until those of Write have returned
	outgoing      [4]byte    // a message, for iWARP
	mapped        []*Mapping // by index; nil if it is free
	mapsMade      int        // how often Map was called
}

// Prepare implements [protocol.Wire].
func (c *conn) Prepare() (err error) {
	c.state.iwarp = c.IWARP
	if c.table, err = c.Register(c.o.firstSize(c.IWARP), uverbs.AccessRemoteWrite); err != nil {
		return err
	}
	for i := range c.Receives {
		if err := c.postRecv(i); err != nil {
			return err
		}
	}
	all := c.table.MR.Bytes()
	c.state.init(c.o.Mappings, all[:c.o.tableSize()], all[c.o.tableSize():][:firstBuffer])
	return nil
}

// Grow implements [protocol.Wire].
func (c *conn) Grow() error {
	c.state.grow(c.o.Credits, c.RecvMem.MR.Bytes()[:c.RecvBuffer])
	return nil
}

// postRecv posts a receive. Receives have memory only on iWARP, for a message.
func (c *conn) postRecv(i int) error {
	if c.iwarp {
		return c.QP.PostRecv(uint64(i), c.table.MR.SGE(c.o.firstSize(false)+messageSize*i, messageSize))
	}
	return c.QP.PostRecv(uint64(i))
}

// number returns the memory of a receive, which only iWARP needs.
func (c *conn) number(i int) []byte {
	if !c.iwarp {
		return nil
	}
	return c.table.MR.Bytes()[c.o.firstSize(false)+messageSize*i:][:messageSize]
}

// Param implements [protocol.Wire].
func (c *conn) Param(request *rdmacm.ConnParam) rdmacm.ConnParam {
	d := connData{
		credits:  uint16(c.o.Credits),
		table:    segment{c.table.MR.Addr(), c.table.MR.RKey(), tableEntries},
		mappings: c.o.Mappings,
		buffer:   segment{c.table.MR.Addr() + uint64(c.o.tableSize()), c.table.MR.RKey(), firstBuffer},
	}
	p := rdmacm.ConnParam{PrivateData: d.encode(), FlowControl: true, RetryCount: protocol.RetryCount, RNRRetryCount: protocol.RNRRetryCount}
	switch {
	case request != nil:
		p.InitiatorDepth = min(request.InitiatorDepth, math.MaxInt8)
		p.ResponderResources = min(request.ResponderResources, math.MaxInt8)
	case c.iwarp:
		p.InitiatorDepth = 1 // iWARP reads while it connects
	}
	return p
}

// Start implements [protocol.Wire].
func (c *conn) Start(data []byte) {
	peer, _ := parseConnData(data) // it is valid
	c.connect(peer)
}

// Received implements [protocol.Wire].
func (c *conn) Received(wc *uverbs.WC) error {
	i := int(wc.ID)
	if err := c.receive(wc, c.number(i)); err != nil {
		return err
	}
	c.Posted(c.postRecv(i))
	return nil
}

// Cause implements [protocol.Wire].
func (c *conn) Cause(status uverbs.WCStatus, err error) *protocol.Failure {
	if c.iwarp && (status == uverbs.WCGeneralErr || status == uverbs.WCLocQPOpErr) { // the TCP connection is gone
		return &protocol.Failure{Err: fmt.Errorf("%w: %w", syscall.ECONNRESET, err), Consequence: true}
	}
	return &protocol.Failure{Err: err, Consequence: status == uverbs.WCWRFlushErr}
}

// Gone implements [protocol.Wire].
func (c *conn) Gone() bool { return c.gone }

// Lost implements [protocol.Wire]. After this side's own end, a disconnect or a failure is what the peer does then.
func (c *conn) Lost(err error) {
	switch {
	case c.ending:
		c.gone = true
	case err == nil:
		c.Fail(fmt.Errorf("the peer is gone without closing the connection: %w", syscall.ECONNRESET))
	default:
		c.Fail(err)
	}
}

// canRead reports whether Read has something to return.
func (c *conn) canRead() bool { return c.waiting > 0 || c.eof }

// take reads data that has arrived, or returns why there is none.
func (c *conn) take(p []byte) (n int, err error) {
	switch {
	case c.waiting > 0:
	case c.eof:
		return 0, io.EOF
	default:
		return 0, c.Err
	}
	n = c.read(p)
	c.SendOwed()
	return n, nil
}

// canWrite reports whether data can be written, or never again.
func (c *conn) canWrite() bool {
	if err := c.takeBuffer(); err != nil { // on iWARP an entry may have arrived since
		c.Fail(err)
		return true
	}
	return c.mayWrite() && !c.MustReceive && c.CanStage() || c.neverWrites()
}

// neverWrites reports whether nothing can be written any more, or a call of CloseWrite waits until calls of Write
// have returned.
func (c *conn) neverWrites() bool { return c.gone || c.writeClosed || c.endingWrites > 0 || c.Closing }

// writeSome sends the beginning of p, or returns why nothing can be sent.
func (c *conn) writeSome(p []byte) (int, error) {
	if err := c.writable(); err != nil || len(p) == 0 {
		return 0, err
	}
	from, n := c.Stage(p, c.remote.length)
	c.Slots -= c.PerMessage()
	b := c.QP.BeginSend()
	c.write(b, protocol.IDData|uint64(n), protocol.IDMessage, from, c.advance(n), message(opData, uint32(n)))
	c.Post(b)
	return n, nil
}

// closeWrite is [Conn.CloseWrite].
func (c *conn) closeWrite() error {
	c.Mu.Lock()
	c.endingWrites++
	c.Interrupt()
	c.Mu.Unlock()
	c.WriteMu.Lock()
	defer c.WriteMu.Unlock()
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.endingWrites--
	if c.writeClosed && !c.Closed {
		return nil
	}
	err := c.Wait(&c.Writer, c.canEnd)
	switch {
	case err != nil:
	case c.Closing:
		err = net.ErrClosed
	case c.Err != nil:
		err = c.Err
	default:
		c.writeClosed = true
		if c.gone {
			break
		}
		what := uint32(controlShutdown)
		if c.eof {
			what = controlDisconnect
			c.gone = true
		}
		c.sendControl(message(opControl, what))
	}
	return c.OpError("close", err)
}

// canEnd reports whether the last control message can be sent, or there is no need for it.
func (c *conn) canEnd() bool { return c.CanSendControl() || c.gone }

// End implements [protocol.Wire]: it tells the peer, and waits until everything has arrived.
func (c *conn) End() error {
	late := c.Wait(&c.Closer, c.canClose)
	if late != nil && !c.canEnd() {
		return late
	}
	if c.Err == nil && !c.gone {
		c.ending = true
		c.sendControl(message(opControl, controlDisconnect))
	}
	if err := c.Wait(&c.Closer, c.AllSent); err != nil || late != nil {
		return cmp.Or(late, err)
	}
	switch {
	case c.peerClosed:
	case c.Err != nil:
		return c.Err
	case !c.Delivered():
		return protocol.ErrUndelivered
	}
	if c.gone { // the peer has ended its direction, and repeats that if the acknowledgment was lost
		c.Part() // an error means only that it is busy, or gone
	}
	return nil
}

// canClose is canEnd for Close. On iWARP an acknowledgment means that TCP has everything. There the peer must also have no
// more credits to give: it gives none after this end, but what arrives at a TCP socket that is closed
// resets the connection, and what is under way to the peer is lost.
func (c *conn) canClose() bool {
	if !c.iwarp || !c.canEnd() || c.gone {
		return c.canEnd()
	}
	if err := c.takeBuffer(); err != nil {
		c.Fail(err)
	}
	return c.owedNothing()
}

// SendOwed implements [protocol.Wire]: it tells the peer that it may send more, if it is time for that.
func (c *conn) SendOwed() {
	due, buffer := c.owesCredits()
	if !due || !c.CanSendControl() || c.ending || c.Closed || c.Err != nil {
		return
	}
	msg := c.credit()
	if !buffer {
		c.sendControl(msg)
		return
	}
	at := c.SendBuffer + c.announcements%maxControls*segmentSize
	c.announcements++
	offset, entry := c.grant()
	segment{c.RecvMem.MR.Addr() + uint64(offset), c.RecvMem.MR.RKey(), uint32(c.RecvBuffer / 2)}.put(c.SendMem.MR.Bytes()[at:], c.order)
	c.ControlsOut += c.PerMessage()
	b := c.QP.BeginSend()
	c.write(b, protocol.IDControl, protocol.IDControl, c.SendMem.MR.SGE(at, segmentSize), segment{addr: entry, key: c.remoteTable.key}, msg)
	c.Post(b)
}

// sendControl sends a message without data. The caller has checked that it may.
func (c *conn) sendControl(msg uint32) {
	id := protocol.IDControl
	if msg>>opShift == opControl {
		id = protocol.IDEnd
	}
	c.ControlsOut++
	b := c.QP.BeginSend()
	if c.iwarp {
		c.send(b, id, msg)
	} else {
		b.WriteImm(id, uverbs.SendSignaled, 0, 0, msg)
	}
	c.Post(b)
}

// write adds a WRITE and its message to a builder.
func (c *conn) write(b *uverbs.SendBuilder, id, messageID uint64, from uverbs.SGE, to segment, msg uint32) {
	if !c.iwarp {
		b.WriteImm(id, uverbs.SendSignaled, to.addr, to.key, msg)
		b.SGE(from)
		return
	}
	b.Write(id, uverbs.SendSignaled, to.addr, to.key)
	b.SGE(from)
	c.send(b, messageID, msg)
}

// send adds a message to a builder as iWARP carries it.
func (c *conn) send(b *uverbs.SendBuilder, id uint64, msg uint32) {
	b.Send(id, uverbs.SendSignaled)
	c.order.PutUint32(c.outgoing[:], msg)
	b.Inline(c.outgoing[:])
}
