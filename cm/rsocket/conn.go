package rsocket

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/uverbs"
)

// Sizes that no option sets.
const (
	controls     = 4  // control messages that may be outstanding on each side
	spareRecvs   = 16 // receives beyond the credits, for control messages
	maxTransfer  = 64 << 10
	leastSend    = 2048 // bytes of the send buffer that must be free, so that writes do not become small
	tableEntries = 2

	flushGrace = time.Second // how long the reason may come after a flushed work request
)

// Conn is a connection that speaks the protocol of rsocket. It is a [net.Conn] and safe for
// concurrent use.
type Conn struct {
	o       Options
	channel *channel
	id      *cm.ID
	addrs   cm.Addrs
	dev     *device
	iwarp   bool

	events *uverbs.CompChannel
	cq     *uverbs.CQ
	qp     *uverbs.QP
	sbuf   *region // data to send, then room for control messages
	rbuf   *region // two halves for received data, then on iWARP for messages
	table  *region // the buffers that the peer announces

	ctx    context.Context // ends when the connection is released
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	readMu, writeMu             sync.Mutex // held during a Read and a Write; locked before mu
	readDeadline, writeDeadline deadline
	keepAlive                   *time.Timer

	mu      sync.Mutex
	changed chan struct{} // closed at the next change
	err     error         // why the connection has failed
	closed  bool          // the connection is closed
	ending  bool          // Close has told the peer
	flushed bool          // a work request was flushed
	wcs     [16]uverbs.WC

	// Receiving.
	data        []uint32 // lengths of the messages that are not read
	readAt      int      // offset of the next byte to read
	granted     int      // bytes that the peer may still write
	free        int      // bytes that were read and not granted again
	grantAt     int      // offset of the half to grant next
	received    uint16   // messages with data that were read
	creditsDue  uint16   // number of the message at which to give credits
	eof         bool     // the peer sends no more
	gone        bool     // the peer has disconnected
	mustReceive bool     // nothing may be sent before something has arrived

	// Sending.
	writeAt       int    // offset of the next byte in sbuf
	room          int    // bytes that are free in sbuf
	slots         int    // work requests with data that may be posted
	controlsOut   int    // control messages that are outstanding
	controlNumber int    // number of the next control message
	sent          uint16 // messages with data
	sendUntil     uint16 // number of the message from which on there are no credits
	order         binary.ByteOrder
	maxCredits    uint16
	remote        segment   // the peer's buffer
	nextEntry     int       // entry of table with the next buffer
	announced     int       // entries of table that the peer has announced; on iWARP only whether there were any
	remoteTable   segment   // the peer's table
	remoteEntry   int       // its entry to write next
	writeClosed   bool      // this side sends no more
	undelivered   bool      // a WRITE with data has failed
	lastTraffic   time.Time // for keep-alive
}

// IDs of work requests. The lower bits are a length.
const (
	idRecv    uint64 = 1 << (40 + iota)
	idData           // a WRITE with data
	idMessage        // on iWARP: the SEND after a WRITE with data
	idControl        // a control message
	idLength  uint64 = 1<<32 - 1
)

// newConn makes a connection for an ID whose route is known.
func newConn(channel *channel, id *cm.ID, o Options) (c *Conn, err error) {
	c = &Conn{o: o, channel: channel, id: id, order: binary.LittleEndian}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			err = errors.Join(err, c.release())
		}
	}()
	if c.addrs, err = id.Addrs(); err != nil {
		return nil, err
	}
	if c.dev, err = useDevice(c.addrs.Device); err != nil {
		return nil, err
	}
	c.iwarp = c.dev.dev.Info().IWARP()
	if c.sbuf, err = c.dev.register(o.SendBuffer+controls*segmentSize, 0); err != nil {
		return nil, err
	}
	recvs := o.Credits + spareRecvs
	if c.rbuf, err = c.dev.register(o.RecvBuffer+recvs*4, uverbs.AccessRemoteWrite); err != nil {
		return nil, err
	}
	if c.table, err = c.dev.register(tableEntries*segmentSize, uverbs.AccessRemoteWrite); err != nil {
		return nil, err
	}
	sends := o.SendDepth + 2*controls
	if c.events, err = c.dev.dev.CreateCompChannel(); err != nil {
		return nil, err
	}
	if c.cq, err = c.dev.dev.CreateCQ(uverbs.CQOptions{MaxCQE: recvs + sends, Channel: c.events}); err != nil {
		return nil, err
	}
	qo := uverbs.QPOptions{SendCQ: c.cq, RecvCQ: c.cq, MaxSendWR: sends, MaxRecvWR: recvs, SignalAll: true}
	if c.iwarp {
		qo.MaxInline = 4
	}
	if c.qp, err = id.CreateQP(c.dev.pd, qo); err != nil {
		return nil, err
	}
	for i := range recvs {
		if err := c.postRecv(i); err != nil {
			return nil, err
		}
	}
	half := o.RecvBuffer / 2
	c.granted, c.free, c.grantAt = half, half, half
	c.creditsDue = uint16(o.Credits / 2)
	c.room, c.slots = o.SendBuffer, o.SendDepth
	c.nextEntry, c.remoteEntry = 1, 1
	return c, nil
}

// postRecv posts a receive. Messages have room for a number only on iWARP.
func (c *Conn) postRecv(i int) error {
	if c.iwarp {
		return c.qp.PostRecv(idRecv|uint64(i), c.rbuf.mr.SGE(c.o.RecvBuffer+4*i, 4))
	}
	return c.qp.PostRecv(idRecv | uint64(i))
}

// param returns the parameters of a request or an answer.
func (c *Conn) param() cm.ConnParam {
	d := connData{
		credits: uint16(c.o.Credits),
		table:   segment{c.table.mr.Addr(), c.table.mr.RKey(), tableEntries},
		buffer:  segment{c.rbuf.mr.Addr(), c.rbuf.mr.RKey(), uint32(c.o.RecvBuffer / 2)},
	}
	p := cm.ConnParam{PrivateData: d.encode(), FlowControl: true, RetryCount: 7, RNRRetryCount: 7}
	if c.iwarp {
		p.InitiatorDepth = 1 // iWARP reads while it connects
	}
	return p
}

// start makes the connection ready for use with the private data of the peer.
func (c *Conn) start(peer connData) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if peer.bigEndian {
		c.order = binary.BigEndian
	}
	c.maxCredits, c.sendUntil = peer.credits, peer.credits
	c.remote, c.remoteTable = peer.buffer, peer.table
	c.remoteEntry %= int(peer.table.length)
	c.readDeadline, c.writeDeadline = newDeadline(), newDeadline()
	c.tasks.Go(c.run)
	c.tasks.Go(c.watch)
	c.lastTraffic = time.Now()
	if c.o.KeepAlive > 0 {
		c.keepAlive = time.AfterFunc(c.o.KeepAlive, c.checkPeer)
	}
}

// run handles completions until the connection is released.
func (c *Conn) run() {
	for {
		c.mu.Lock()
		more := c.poll()
		if !more {
			if err := c.cq.Notify(); err != nil {
				c.fail(err)
				c.mu.Unlock()
				return
			}
			more = c.poll()
		}
		c.giveCredits()
		c.mu.Unlock()
		if more {
			continue
		}
		if _, err := c.events.Wait(c.ctx); err != nil {
			c.mu.Lock()
			c.fail(err)
			c.mu.Unlock()
			return
		}
	}
}

// watch handles the events of the ID.
func (c *Conn) watch() {
	for {
		e, err := c.id.Wait(c.ctx)
		if err != nil {
			return
		}
		switch e.Type {
		case cm.EventDisconnected, cm.EventDeviceRemoval, cm.EventRejected:
			c.mu.Lock()
			for c.poll() { // what arrived before
			}
			if e.Type == cm.EventDeviceRemoval {
				c.fail(fmt.Errorf("the device is being removed: %w", syscall.ENODEV))
			} else {
				c.lost(fmt.Errorf("the peer is gone without closing the connection: %w", syscall.ECONNRESET))
			}
			c.id.Disconnect()
			c.mu.Unlock()
		}
	}
}

// checkPeer writes nothing to the peer if the connection was idle, which fails if the peer is gone.
func (c *Conn) checkPeer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || c.gone || c.closed {
		return
	}
	if time.Since(c.lastTraffic) >= c.o.KeepAlive && c.controlsOut < controls && !c.mustReceive {
		c.controlsOut++
		b := c.qp.BeginSend()
		b.Write(idControl, uverbs.SendSignaled, 0, 0)
		c.post(b)
	}
	c.keepAlive.Reset(c.o.KeepAlive)
}

// fail ends the connection with an error, unless it has ended. The caller holds c.mu.
func (c *Conn) fail(err error) {
	if c.err == nil {
		c.err = err
		if !c.closed {
			c.id.Disconnect() // moves the QP to ERR
		}
	}
	c.notify()
}

// notify wakes the goroutines that wait. The caller holds c.mu.
func (c *Conn) notify() {
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

// wait waits until a condition is met, the connection has failed, or the deadline is over. The caller
// holds c.mu, which is released meanwhile.
func (c *Conn) wait(d *deadline, met func() bool) error {
	for {
		if c.closed { // nothing is left to look at
			return nil
		}
		c.poll()
		c.giveCredits()
		if met() || c.err != nil {
			return nil
		}
		over := d.over()
		if c.changed == nil {
			c.changed = make(chan struct{})
		}
		changed := c.changed
		c.mu.Unlock()
		var err error
		select {
		case <-over:
			err = d.err()
		case <-changed:
		}
		c.mu.Lock()
		if err != nil {
			return err
		}
	}
}

// poll handles completions. It reports whether there were any. The caller holds c.mu.
func (c *Conn) poll() bool {
	n, err := c.cq.Poll(c.wcs[:])
	if err != nil {
		c.fail(err)
		return false
	}
	for i := range c.wcs[:n] {
		c.complete(&c.wcs[i])
	}
	if n > 0 {
		c.lastTraffic = time.Now()
		c.notify()
	}
	return n > 0
}

// complete handles a completion.
func (c *Conn) complete(wc *uverbs.WC) {
	switch kind, length := wc.ID&^idLength, int(wc.ID&idLength); kind {
	case idData:
		c.room += length
		c.slots++
		c.undelivered = c.undelivered || wc.Status != uverbs.WCSuccess
	case idMessage:
		c.slots++
	case idControl:
		c.controlsOut -= max(length, 1)
	case idRecv:
		if wc.Status == uverbs.WCSuccess {
			c.receive(wc, length)
			return
		}
	}
	switch {
	case wc.Status == uverbs.WCSuccess || c.gone || c.err != nil:
	case wc.Status == uverbs.WCWRFlushErr: // a consequence of something that another completion or an event reports
		if !c.flushed {
			c.flushed = true
			err := c.qp.Err(wc)
			time.AfterFunc(flushGrace, func() {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.lost(err)
			})
		}
	default:
		err := c.qp.Err(wc)
		if wc.Status == uverbs.WCRetryExcErr {
			err = fmt.Errorf("%w: %w", syscall.ETIMEDOUT, err)
		}
		c.fail(err)
	}
}

// lost handles the end of a connection that the peer has not announced. After this side's own end it is
// what the peer does then. The caller holds c.mu.
func (c *Conn) lost(err error) {
	if c.ending {
		c.gone = true
		c.notify()
	} else if !c.gone {
		c.fail(err)
	}
}

// receive handles a message.
func (c *Conn) receive(wc *uverbs.WC, i int) {
	var msg uint32
	switch {
	case c.iwarp && wc.ByteLen == 4:
		msg = c.order.Uint32(c.rbuf.mr.Bytes()[c.o.RecvBuffer+4*i:])
	case !c.iwarp && wc.Flags&uverbs.WCWithImm != 0:
		msg = wc.Imm
	default:
		c.fail(protoErr("the peer has sent a message of %d bytes that is not one of rsocket", wc.ByteLen))
		return
	}
	c.mustReceive = false
	if err := c.handle(msg, wc.ByteLen > 0); err != nil {
		c.fail(err)
		return
	}
	if err := c.postRecv(i); err != nil {
		c.fail(err)
	}
}

// handle handles a message, which may have come with memory that was written. The caller holds c.mu.
func (c *Conn) handle(msg uint32, written bool) error {
	value := msg & valueMask
	switch op := msg >> opShift; op {
	case opData:
		switch {
		case c.eof:
			return protoErr("the peer has sent data after its end")
		case int(value) > c.granted:
			return protoErr("the peer says that it has written %d bytes, and has room for %d", value, c.granted)
		case len(c.data) >= c.o.Credits:
			return protoErr("the peer has sent more than the %d messages that it has credits for", c.o.Credits)
		}
		c.granted -= int(value)
		c.data = append(c.data, value)
	case opCredits:
		until := uint16(value)
		if n := until - c.sent; n > c.maxCredits {
			return protoErr("the peer gives credits for %d messages, and said at first that it has %d", n, c.maxCredits)
		}
		c.sendUntil = until
		if written {
			c.announced++
		}
		c.takeBuffer()
	case opMapping:
		return protoErr("the peer announces mapped memory, and this side has said that it has room for none")
	case opControl:
		switch value {
		case controlShutdown:
			c.eof = true
			c.gone = c.gone || c.writeClosed
		case controlDisconnect:
			c.eof, c.gone = true, true
		default:
			return protoErr("the peer has sent control message %d, want %d or %d", value, controlDisconnect, controlShutdown)
		}
	default:
		return protoErr("the peer has sent a message of type %d, want %d, %d or %d", op, opData, opCredits, opControl)
	}
	return nil
}

// takeBuffer takes the peer's next buffer from the table if the last one is used up. It looks only at
// entries whose message has arrived, since the device may be writing into another one. On iWARP a
// message does not say whether it follows an entry; there, takeBuffer looks twice.
func (c *Conn) takeBuffer() {
	if c.remote.length > 0 || c.announced == 0 {
		return
	}
	entry := c.table.mr.Bytes()[c.nextEntry*segmentSize:][:segmentSize]
	s := getSegment(entry, binary.LittleEndian)
	if s.length == 0 || c.iwarp && s != getSegment(entry, binary.LittleEndian) {
		return
	}
	clear(entry)
	c.remote = s
	c.nextEntry = (c.nextEntry + 1) % tableEntries
	if !c.iwarp {
		c.announced--
	}
}

// giveCredits tells the peer that it may send more, if it is time for that. The caller holds c.mu.
func (c *Conn) giveCredits() {
	half := c.o.RecvBuffer / 2
	buffer := c.free >= half
	need := 1
	if buffer && c.iwarp {
		need = 2
	}
	if !buffer && int16(c.received-c.creditsDue) < 0 || c.controlsOut+need > controls || c.mustReceive || c.gone || c.closed || c.err != nil {
		return
	}
	c.creditsDue = c.received + uint16(c.o.Credits/2)
	msg := message(opCredits, uint32(c.received+uint16(c.o.Credits)))
	if !buffer {
		c.sendControl(msg)
		return
	}
	at := c.o.SendBuffer + c.controlNumber%controls*segmentSize
	c.controlNumber++
	segment{c.rbuf.mr.Addr() + uint64(c.grantAt), c.rbuf.mr.RKey(), uint32(half)}.put(c.sbuf.mr.Bytes()[at:], c.order)
	c.free -= half
	c.granted += half
	c.grantAt = half - c.grantAt
	to := c.remoteTable.addr + uint64(c.remoteEntry)*segmentSize
	c.remoteEntry = (c.remoteEntry + 1) % int(c.remoteTable.length)
	c.controlsOut += need
	b := c.qp.BeginSend()
	c.write(b, idControl, idControl, c.sbuf.mr.SGE(at, segmentSize), to, c.remoteTable.key, msg)
	c.post(b)
}

// sendControl sends a message without data. The caller has checked that it may.
func (c *Conn) sendControl(msg uint32) {
	c.controlsOut++
	b := c.qp.BeginSend()
	if c.iwarp {
		b.Send(idControl, uverbs.SendSignaled)
		b.Inline(c.number(msg))
	} else {
		b.WriteImm(idControl, uverbs.SendSignaled, 0, 0, msg)
	}
	c.post(b)
}

// number returns a message as iWARP carries it.
func (c *Conn) number(msg uint32) []byte {
	var b [4]byte
	c.order.PutUint32(b[:], msg)
	return b[:]
}

// write adds a WRITE and its message to a builder.
func (c *Conn) write(b *uverbs.SendBuilder, id, messageID uint64, from uverbs.SGE, to uint64, key, msg uint32) {
	if !c.iwarp {
		b.WriteImm(id, uverbs.SendSignaled, to, key, msg)
		b.SGE(from)
		return
	}
	b.Write(id, uverbs.SendSignaled, to, key)
	b.SGE(from)
	b.Send(messageID, uverbs.SendSignaled)
	b.Inline(c.number(msg))
}

// post posts work requests. The caller holds c.mu.
func (c *Conn) post(b *uverbs.SendBuilder) {
	c.lastTraffic = time.Now()
	if err := b.Post(); err != nil && !c.gone {
		c.fail(err)
	}
}

// LocalAddr returns the address of this side, a [cm.Addr].
func (c *Conn) LocalAddr() net.Addr { return c.addrs.Local }

// RemoteAddr returns the address of the peer, a [cm.Addr].
func (c *Conn) RemoteAddr() net.Addr { return c.addrs.Remote }

// release releases everything that the connection has.
func (c *Conn) release() error {
	c.cancel()
	if c.keepAlive != nil {
		c.keepAlive.Stop()
	}
	c.tasks.Wait()
	errs := []error{c.id.Close()} // closes the QP too
	if c.cq != nil {
		errs = append(errs, c.cq.Close())
	}
	if c.events != nil {
		errs = append(errs, c.events.Close())
	}
	errs = append(errs, c.sbuf.close(), c.rbuf.close(), c.table.close())
	if c.dev != nil {
		errs = append(errs, c.dev.release())
	}
	return errors.Join(append(errs, c.channel.release())...)
}
