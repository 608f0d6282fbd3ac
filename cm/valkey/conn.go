package valkey

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
	maxControls = 8 // commands that may be outstanding
	maxTransfer = 64 << 10
	leastRoom   = 2048 // bytes of the send buffer that must be free, so that writes do not become small

	flushGrace = time.Second // how long the reason may come after a flushed work request
)

// Conn is a connection that speaks Valkey's protocol for RDMA. It is a [net.Conn] and safe for
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
	sbuf   *protocol.Region // data to send, then commands to send
	rbuf   *protocol.Region // two halves for received data
	cbuf   *protocol.Region // received commands of the first receives
	rest   *protocol.Region // received commands of the other receives; nil if there are none

	ctx    context.Context // ends when the connection is released
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	readMu, writeMu, closeMu sync.Mutex // each is held during one kind of calls, and locked before mu
	reader, writer, closer   waiter

	mu sync.Mutex // guards the rest
	state
	err         error // why the connection has failed
	started     bool  // the connection is established
	gone        bool  // the peer has disconnected
	closing     bool  // Close was called
	closed      bool  // the connection is closed
	flushed     bool  // a work request has failed, as a consequence of something that is not known yet
	undelivered bool  // a WRITE with data has failed
	wcs         [16]uverbs.WC
	suspect     *failure // of a work request; poll has still to see what has arrived before
	more        bool     // the CQs may have more completions than poll has taken
	wantSends   int      // goroutines that wait for room to send
	liveness    protocol.Liveness

	writeAt     int    // offset of the next byte in sbuf
	room        int    // bytes that are free in sbuf
	slots       int    // work requests with data that may be posted
	controls    uint32 // commands that were sent
	controlsOut int    // commands that are outstanding
	probing     bool   // a probe is outstanding
}

// newConn makes a connection for an ID whose route is known.
func newConn(channel *protocol.Channel, id *rdmacm.ID, o Options) (_ *Conn, err error) {
	c := &Conn{o: o, channel: channel, id: id}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			if c.dev != nil {
				err = c.dev.Removed(err)
			}
			err = errors.Join(err, c.release())
		}
	}()
	c.reader.init(false)
	c.writer.init(true)
	c.closer.init(true)
	if c.addrs, err = id.Addrs(); err != nil {
		return nil, err
	}
	if c.dev, err = protocol.UseDevice(c.addrs.Device); err != nil {
		return nil, err
	}
	if c.dev.Dev.Info().IWARP() {
		return nil, &uverbs.FeatureError{Feature: "RDMA WRITE with immediate data, which Valkey's protocol needs", Driver: "iWARP"}
	}
	if c.pd = c.dev.PD; o.Isolation == ConnPD {
		if c.pd, err = c.dev.Dev.AllocPD(); err != nil {
			return nil, err
		}
	}
	// Servers of Valkey ask for no repetition of a WRITE that finds no receive.
	if err := protocol.SetRetries(id); err != nil {
		return nil, err
	}
	return c, c.createQueues()
}

// firstRecvs is how many receives a connection has before it is established. A peer sends only commands
// before this side announces a buffer, and one at first.
const firstRecvs = 16

// createQueues makes the queues of the connection, and the memory that it needs while the peer has not
// completed it.
func (c *Conn) createQueues() (err error) {
	o := &c.o
	if c.cbuf, err = protocol.Register(c.pd, firstRecvs*commandSize, 0); err != nil {
		return err
	}
	if c.events, err = c.dev.Dev.CreateCompChannel(); err != nil {
		return err
	}
	sends := o.SendDepth + maxControls + 1 // and a probe
	if c.sendCQ, err = c.dev.Dev.CreateCQ(uverbs.CQOptions{MaxCQE: sends, Channel: c.events}); err != nil {
		return err
	}
	if c.recvCQ, err = c.dev.Dev.CreateCQ(uverbs.CQOptions{MaxCQE: o.RecvDepth, Channel: c.events}); err != nil {
		return err
	}
	qo := uverbs.QPOptions{SendCQ: c.sendCQ, RecvCQ: c.recvCQ, MaxSendWR: sends, MaxRecvWR: o.RecvDepth, SignalAll: true}
	if c.qp, err = c.id.CreateQP(c.pd, qo); err != nil {
		return err
	}
	return c.postRecvs(0, firstRecvs)
}

// makeMemory makes the memory for data, and posts the other receives. Peers that do not complete a
// connection take none of it.
func (c *Conn) makeMemory() (err error) {
	o := &c.o
	if c.sbuf, err = protocol.Register(c.pd, o.sendSize(), 0); err != nil {
		return err
	}
	if c.rbuf, err = protocol.Register(c.pd, o.RecvBuffer, uverbs.AccessRemoteWrite); err != nil {
		return err
	}
	if n := o.RecvDepth - firstRecvs; n > 0 {
		if c.rest, err = protocol.Register(c.pd, n*commandSize, 0); err != nil {
			return err
		}
	}
	c.recvBuf = c.rbuf.MR.Bytes()[:o.RecvBuffer]
	c.room, c.slots = o.SendBuffer, o.SendDepth
	return c.postRecvs(firstRecvs, o.RecvDepth)
}

// postRecvs posts the receives from one number to another.
func (c *Conn) postRecvs(from, to int) error {
	for i := from; i < to; i++ {
		if err := c.postRecv(i); err != nil {
			return err
		}
	}
	return nil
}

// postRecv posts a receive, with memory for a command.
func (c *Conn) postRecv(i int) error {
	mr, at := c.recvRegion(i)
	return c.qp.PostRecv(uint64(i), mr.SGE(at, commandSize))
}

// recvMemory returns the memory of a receive.
func (c *Conn) recvMemory(i int) []byte {
	mr, at := c.recvRegion(i)
	return mr.Bytes()[at:][:commandSize]
}

// recvRegion returns where the memory of a receive is.
func (c *Conn) recvRegion(i int) (mr *uverbs.MR, at int) {
	if i < firstRecvs {
		return c.cbuf.MR, i * commandSize
	}
	return c.rest.MR, (i - firstRecvs) * commandSize
}

// param returns the parameters of a request or an answer. Servers of Valkey accept one READ, which the
// protocol does not use.
func (c *Conn) param() rdmacm.ConnParam {
	return rdmacm.ConnParam{FlowControl: true, RetryCount: protocol.RetryCount, RNRRetryCount: protocol.RNRRetryCount, InitiatorDepth: 1, ResponderResources: 1}
}

// start makes the connection ready for use once it is established.
func (c *Conn) start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.started = true
	c.liveness.KeepAlive = c.o.KeepAlive
	c.liveness.Start(c.checkPeer)
	c.sendCommands()
	c.tasks.Go(c.watch)
	c.tasks.Go(c.run)
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
				c.lost()
			}
			c.id.Disconnect()
			c.mu.Unlock()
		}
	}
}

// checkPeer fails the connection if the peer no longer answers. If the connection was idle, it writes
// nothing to the peer, whose device answers that although its program may be busy. Everything else needs a
// receive of the peer, and waits for it without limit: of that, the device notices that the peer is gone.
func (c *Conn) checkPeer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pollAll()
	if c.err != nil || c.closed {
		return
	}
	probe, err := c.liveness.Check(!c.allSent() || c.probing, c.probing)
	switch {
	case err != nil:
		c.fail(err)
	case probe && !c.gone:
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
	for _, w := range [...]*waiter{&c.reader, &c.writer, &c.closer} {
		w.set(time.Time{})
	}
	errs := []error{c.id.Close()} // closes the QP too
	for _, cq := range []*uverbs.CQ{c.sendCQ, c.recvCQ} {
		if cq != nil {
			errs = append(errs, cq.Close())
		}
	}
	if c.events != nil {
		errs = append(errs, c.events.Close())
	}
	errs = append(errs, c.sbuf.Close(), c.rbuf.Close(), c.cbuf.Close(), c.rest.Close())
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
