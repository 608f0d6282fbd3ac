package rsocket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/cm/internal/protocol"
	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs"
)

// Sizes that no option sets.
const (
	maxControls = 4  // control messages that may be outstanding on each side
	spareRecvs  = 16 // receives beyond the credits, for control messages
	maxTransfer = 64 << 10
	firstBuffer = 2048 // bytes of the buffer that the private data announces, before there is memory for more
	leastRoom   = 2048 // bytes of the send buffer that must be free, so that writes do not become small

	flushGrace = time.Second // how long the reason may come after a flushed work request
)

// Conn is a connection that speaks the protocol of rsocket. It is a [net.Conn] and safe for
// concurrent use.
type Conn struct {
	o       Options
	channel *protocol.Channel
	id      *rdmacm.ID
	addrs   rdmacm.Addrs
	dev     *protocol.Device
	pd      *uverbs.PD        // that of dev, or its own
	from    *Listener         // counts the connection until it is released; nil after Dial
	place   *protocol.Request // its place in from

	events *uverbs.CompChannel
	sendCQ *uverbs.CQ
	recvCQ *uverbs.CQ
	qp     *uverbs.QP
	sbuf   *protocol.Region // data to send, then room for announcements
	rbuf   *protocol.Region // two halves for received data
	table  *protocol.Region // the buffers that the peer announces, its mappings, the first buffer, and on iWARP room for messages

	ctx    context.Context // ends when the connection is released
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	readMu, writeMu, closeMu sync.Mutex // each is held during one kind of calls, and locked before mu
	reader, writer, closer   waiter
	turn                     turn

	mu sync.Mutex // guards the rest
	state
	err         error // why the connection has failed
	closed      bool  // the connection is closed
	closing     bool  // Close was called
	ending      bool  // Close has told the peer
	flushed     bool  // a work request has failed, as a consequence of something that is not known yet
	undelivered bool  // a WRITE with data has failed
	wcs         [16]uverbs.WC
	suspect     *failure // of a work request; poll has still to see what has arrived before
	more        bool     // the CQs may have more completions than poll has taken
	wantSends   int      // goroutines that wait for room to send
	liveness    protocol.Liveness

	writeAt       int        // offset of the next byte in sbuf
	room          int        // bytes that are free in sbuf
	slots         int        // work requests with data that may be posted
	controlsOut   int        // work requests for control messages that are outstanding
	announcements int        // how many there were
	probing       bool       // a probe is outstanding
	endingWrites  int        // calls of CloseWrite that wait until those of Write have returned
	outgoing      [4]byte    // a message, for iWARP
	mapped        []*Mapping // by index; nil if it is free
	mapsMade      int        // how often Map was called
}

// newConn makes a connection for an ID whose route is known.
func newConn(channel *protocol.Channel, id *rdmacm.ID, o Options) (_ *Conn, err error) {
	c := &Conn{o: o, channel: channel, id: id}
	c.turn.taken = make(chan struct{}, 1)
	c.ctx, c.cancel = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			if c.dev != nil {
				err = c.dev.Removed(err)
			}
			err = errors.Join(err, c.release())
		}
	}()
	if c.addrs, err = id.Addrs(); err != nil {
		return nil, err
	}
	if c.dev, err = protocol.UseDevice(c.addrs.Device); err != nil {
		return nil, err
	}
	if c.pd = c.dev.PD; o.Isolation == ConnPD {
		if c.pd, err = c.dev.Dev.AllocPD(); err != nil {
			return nil, err
		}
	}
	c.iwarp = c.dev.Dev.Info().IWARP()
	if err := protocol.SetRetries(id); err != nil {
		return nil, err
	}
	recvs := o.recvs()
	if c.table, err = protocol.Register(c.pd, o.firstSize(c.iwarp), uverbs.AccessRemoteWrite); err != nil {
		return nil, err
	}
	sends := o.SendDepth + 2*maxControls + 1 // and a probe
	if c.events, err = c.dev.Dev.CreateCompChannel(); err != nil {
		return nil, err
	}
	if c.sendCQ, err = c.dev.Dev.CreateCQ(uverbs.CQOptions{MaxCQE: sends, Channel: c.events}); err != nil {
		return nil, err
	}
	if c.recvCQ, err = c.dev.Dev.CreateCQ(uverbs.CQOptions{MaxCQE: recvs, Channel: c.events}); err != nil {
		return nil, err
	}
	qo := uverbs.QPOptions{SendCQ: c.sendCQ, RecvCQ: c.recvCQ, MaxSendWR: sends, MaxRecvWR: recvs, SignalAll: true}
	if c.iwarp {
		qo.MaxInline = messageSize
	}
	if c.qp, err = id.CreateQP(c.pd, qo); err != nil {
		return nil, err
	}
	for i := range recvs {
		if err := c.postRecv(i); err != nil {
			return nil, err
		}
	}
	all := c.table.MR.Bytes()
	c.state.init(o.Mappings, all[:o.tableSize()], all[o.tableSize():][:firstBuffer])
	c.reader.init(&c.turn, false)
	c.writer.init(&c.turn, true)
	c.closer.init(&c.turn, true)
	return c, nil
}

// makeMemory makes the memory for data. Peers that do not complete a connection take none of it.
func (c *Conn) makeMemory() (err error) {
	if c.sbuf, err = protocol.Register(c.pd, c.o.sendSize(), 0); err != nil {
		return err
	}
	if c.rbuf, err = protocol.Register(c.pd, c.o.RecvBuffer, uverbs.AccessRemoteWrite); err != nil {
		return err
	}
	c.state.grow(c.o.Credits, c.rbuf.MR.Bytes()[:c.o.RecvBuffer])
	c.room, c.slots = c.o.SendBuffer, c.o.SendDepth
	return nil
}

// postRecv posts a receive. Receives have memory only on iWARP, for a message.
func (c *Conn) postRecv(i int) error {
	if c.iwarp {
		return c.qp.PostRecv(uint64(i), c.table.MR.SGE(c.o.firstSize(false)+messageSize*i, messageSize))
	}
	return c.qp.PostRecv(uint64(i))
}

// number returns the memory of a receive, which only iWARP needs.
func (c *Conn) number(i int) []byte {
	if !c.iwarp {
		return nil
	}
	return c.table.MR.Bytes()[c.o.firstSize(false)+messageSize*i:][:messageSize]
}

// param returns the parameters of a request or an answer.
func (c *Conn) param() rdmacm.ConnParam {
	d := connData{
		credits:  uint16(c.o.Credits),
		table:    segment{c.table.MR.Addr(), c.table.MR.RKey(), tableEntries},
		mappings: c.o.Mappings,
		buffer:   segment{c.table.MR.Addr() + uint64(c.o.tableSize()), c.table.MR.RKey(), firstBuffer},
	}
	p := rdmacm.ConnParam{PrivateData: d.encode(), FlowControl: true, RetryCount: protocol.RetryCount, RNRRetryCount: protocol.RNRRetryCount}
	if c.iwarp {
		p.InitiatorDepth = 1 // iWARP reads while it connects
	}
	return p
}

// start makes the connection ready for use with the private data of the peer.
func (c *Conn) start(peer connData) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.connect(peer)
	c.tasks.Go(c.watch)
	c.liveness.KeepAlive = c.o.KeepAlive
	c.liveness.Start(c.checkPeer)
	c.giveCredits()
}

// watch handles the events of the ID.
func (c *Conn) watch() {
	for {
		e, err := c.id.Wait(c.ctx)
		if err != nil {
			return
		}
		switch e.Type {
		case rdmacm.EventDisconnected, rdmacm.EventDeviceRemoval, rdmacm.EventRejected:
			c.mu.Lock()
			c.pollAll() // what arrived before
			if e.Type == rdmacm.EventDeviceRemoval {
				c.fail(fmt.Errorf("the device is being removed: %w", syscall.ENODEV))
			} else {
				c.lost(fmt.Errorf("the peer is gone without closing the connection: %w", syscall.ECONNRESET))
			}
			c.id.Disconnect()
			c.mu.Unlock()
		}
	}
}

// checkPeer fails the connection if the peer no longer answers. If the connection was idle, it writes
// nothing to the peer, whose device answers that although its program may be busy. Everything else needs a
// receive of the peer, and waits for it without limit: of that, the device notices that the peer is gone. On
// iWARP a WRITE completes before it is answered; there the connection ends when TCP gives up.
func (c *Conn) checkPeer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pollAll()
	if c.err != nil || c.closed {
		return
	}
	probe, err := c.liveness.Check(!c.allSent() || c.probing, c.probing && !c.iwarp)
	switch {
	case err != nil:
		c.fail(err)
	case probe && !c.gone && !c.mustReceive:
		c.probing = true
		b := c.qp.BeginSend()
		b.Write(idProbe, uverbs.SendSignaled, 0, 0)
		c.post(b)
	}
}

// LocalAddr returns the address of this side, a [rdmacm.Addr].
func (c *Conn) LocalAddr() net.Addr { return c.addrs.Local }

// RemoteAddr returns the address of the peer, a [rdmacm.Addr].
func (c *Conn) RemoteAddr() net.Addr { return c.addrs.Remote }

// release releases everything that the connection has.
func (c *Conn) release() error {
	c.cancel()
	c.liveness.Stop()
	c.tasks.Wait()
	c.reader.set(time.Time{})
	c.writer.set(time.Time{})
	c.closer.set(time.Time{})
	errs := []error{c.id.Close()} // closes the QP too
	for _, cq := range []*uverbs.CQ{c.sendCQ, c.recvCQ} {
		if cq != nil {
			errs = append(errs, cq.Close())
		}
	}
	if c.events != nil {
		errs = append(errs, c.events.Close())
	}
	errs = append(errs, c.closeMappings(), c.sbuf.Close(), c.rbuf.Close(), c.table.Close())
	if c.pd != nil && c.pd != c.dev.PD {
		errs = append(errs, c.pd.Close())
	}
	if c.dev != nil {
		errs = append(errs, c.dev.Release())
	}
	if c.from != nil {
		c.from.places.Closed(c.place)
	}
	return errors.Join(append(errs, c.channel.Release())...)
}
