package protocol

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs"
)

// Config is a protocol, with the options of its connections.
type Config struct {
	Network string                      // Network is the name of the network in errors.
	Check   func(data []byte) error     // Check returns what is wrong with the private data of a request or an answer.
	Refusal func(request []byte) []byte // Refusal returns the private data of the rejection of a request that is not valid.
	Silent  string                      // Silent is what a rejection without a reason means; "" if Dial adds nothing to it.
	New     func() Wire                 // New makes the value that speaks the protocol for one connection.

	Device func(uverbs.DeviceInfo) error // Device returns why a device cannot speak the protocol; it is nil if every device can.

	RecvBuffer  int  // RecvBuffer is the size of the memory for received data, in bytes.
	SendBuffer  int  // SendBuffer is the size of the memory for data to send, in bytes.
	SendExtra   int  // SendExtra is the size of the memory behind it, from which messages without data are sent.
	Receives    int  // Receives is the number of receives.
	SendDepth   int  // SendDepth is how many work requests with data may be outstanding.
	MaxControls int  // MaxControls is how many messages without data may be outstanding.
	Sends       int  // Sends is how many work requests may be outstanding in all, without probes.
	MaxInline   int  // MaxInline is the size of messages on iWARP, in bytes.
	SharedPD    bool // SharedPD says that the connections share a PD.
	Background  bool // Background says that a goroutine handles messages while no method is called.

	KeepAlive time.Duration // KeepAlive is how often an idle connection is checked; not if it is not positive.
	Linger    time.Duration // Linger is the longest time that Close waits.
}

// Wire speaks a protocol for one connection. Its type embeds [Stream], which calls the other methods. The caller
// holds Mu, except during Prepare, Param and Grow.
type Wire interface {
	// Prepare makes the memory that the connection needs before it is established, and posts its receives.
	Prepare() error
	// Param returns the parameters of the request, or of the answer to one, which is nil on the other side.
	Param(request *rdmacm.ConnParam) rdmacm.ConnParam
	// Grow takes RecvMem, and may make more memory. Peers that do not complete a connection take none of it.
	Grow() error
	// Start takes the private data of the peer, which is valid.
	Start(data []byte)
	// Received handles a receive, posts it again, and returns how the peer has violated the protocol.
	Received(wc *uverbs.WC) error
	// SendOwed sends what this side owes its peer, if it can.
	SendOwed()
	// Cause returns the failure of a work request that has completed with an error.
	Cause(status uverbs.WCStatus, err error) *Failure
	// Gone reports whether the peer has ended the connection.
	Gone() bool
	// Lost handles the end of a connection that is not gone, because of err, or of a disconnect if err is nil.
	Lost(err error)
	// End waits for Close, with Closer, until everything has arrived, and returns what Close returns.
	End() error

	Base() *Stream
}

// Stream is the part of a connection that the protocols have in common.
type Stream struct {
	*Config
	wire    Wire
	channel *Channel
	ID      *rdmacm.ID // ID is the connection's.
	addrs   rdmacm.Addrs
	dev     *Device
	PD      *uverbs.PD // PD is the one of the device, or the connection's own.
	Server  bool       // Server says that this side has accepted the connection.
	IWARP   bool       // IWARP says that a WRITE has no immediate value.
	from    *Listener  // counts the connection until it is released; nil after Dial
	place   *Request   // its place in from

	events         *uverbs.CompChannel
	sendCQ, recvCQ *uverbs.CQ
	QP             *uverbs.QP // QP is the connection's.
	SendMem        *Region    // SendMem is for data to send, and has SendExtra bytes behind it.
	RecvMem        *Region    // RecvMem is for received data.
	regions        []*Region  // all memory

	ctx    context.Context // ends when the connection is released
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	readMu, WriteMu, closeMu sync.Mutex // WriteMu and the others are held during one kind of calls, and locked before Mu.
	Reader, Writer, Closer   Waiter     // Reader, Writer and Closer are for Read, the calls with WriteMu, and Close.
	runner, watcher          Waiter
	turn                     turn

	Mu          sync.Mutex // Mu guards the rest.
	Err         error      // Err is why the connection has failed.
	Closed      bool       // Closed says that the connection is closed.
	Closing     bool       // Closing says that Close was called.
	MustReceive bool       // MustReceive says that nothing may be sent before something has arrived.
	flushed     bool       // a work request has failed, as a consequence of something that is not known yet
	undelivered bool       // a WRITE with data, or the message for the end, has failed
	parted      bool       // the connection managers of both sides have ended the connection
	wcs         [16]uverbs.WC
	suspect     *Failure // of a work request; Poll has still to see what has arrived before
	more        bool     // the CQs may have more completions than Poll has taken
	wantSends   int      // goroutines that wait for room to send
	liveness    Liveness

	SendAt      int  // SendAt is the offset of the next byte in SendMem.
	Room        int  // Room is how many bytes of SendBuffer are free.
	Slots       int  // Slots is how many work requests with data may be posted.
	ControlsOut int  // ControlsOut is how many work requests for messages without data are outstanding.
	probing     bool // a probe is outstanding
}

// Base implements [Wire] for a type that embeds Stream.
func (s *Stream) Base() *Stream { return s }

// newStream makes a connection for an ID whose route is known. It uses the channel from now on.
func newStream(c *Config, channel *Channel, id *rdmacm.ID, server bool) (*Stream, error) {
	wire := c.New()
	s := wire.Base()
	s.Config, s.wire, s.channel, s.ID, s.Server = c, wire, channel, id, server
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.turn.taken = make(chan struct{}, 1)
	for _, w := range s.waiters() {
		w.init(&s.turn, w != &s.Reader && w != &s.runner)
	}
	if err := s.prepare(); err != nil {
		if s.dev != nil {
			err = s.dev.Removed(err)
		}
		return nil, errors.Join(err, s.release())
	}
	return s, nil
}

// prepare makes what the connection needs while its peer has not completed it.
func (s *Stream) prepare() (err error) {
	var index uint32
	if s.addrs, index, err = s.ID.AddrsByIndex(); err != nil {
		return err
	}
	if s.dev, err = UseDevice(index); err != nil {
		return err
	}
	dev := s.dev.Dev
	if s.Device != nil {
		if err := s.Device(dev.Info()); err != nil {
			return err
		}
	}
	s.IWARP = dev.Info().IWARP()
	if s.PD = s.dev.PD; !s.SharedPD {
		if s.PD, err = dev.AllocPD(); err != nil {
			return err
		}
	}
	if err := SetRetries(s.ID); err != nil {
		return err
	}
	if s.events, err = dev.CreateCompChannel(); err != nil {
		return err
	}
	sends := s.Sends + 1 // and a probe
	if s.sendCQ, err = dev.CreateCQ(uverbs.CQOptions{Size: sends, Channel: s.events}); err != nil {
		return err
	}
	if s.recvCQ, err = dev.CreateCQ(uverbs.CQOptions{Size: s.Receives, Channel: s.events}); err != nil {
		return err
	}
	o := uverbs.QPOptions{SendCQ: s.sendCQ, RecvCQ: s.recvCQ, MaxSendWR: sends, MaxRecvWR: s.Receives, SignalAll: true}
	if s.IWARP {
		o.MaxInline = s.MaxInline
	}
	if s.QP, err = s.ID.CreateQP(s.PD, o); err != nil {
		return err
	}
	return s.wire.Prepare()
}

// Register makes memory that is freed with the connection.
func (s *Stream) Register(size int, access uverbs.Access) (*Region, error) {
	r, err := Register(s.PD, size, access)
	if err == nil {
		s.regions = append(s.regions, r)
	}
	return r, err
}

// Registered returns how much memory the connection has, in bytes.
func (s *Stream) Registered() (n int64) {
	for _, r := range s.regions {
		n += int64(r.Buf.Len())
	}
	return n
}

// Unregister frees memory that Register has made. The caller holds s.Mu.
func (s *Stream) Unregister(r *Region) error {
	s.regions = slices.DeleteFunc(s.regions, func(other *Region) bool { return other == r })
	return r.Close()
}

// grow makes the memory for data once the connection is established.
func (s *Stream) grow() (err error) {
	if s.SendMem, err = s.Register(s.SendBuffer+s.SendExtra, 0); err != nil {
		return err
	}
	if s.RecvMem, err = s.Register(s.RecvBuffer, uverbs.AccessRemoteWrite); err != nil {
		return err
	}
	s.Room, s.Slots = s.SendBuffer, s.SendDepth
	return s.wire.Grow()
}

// start makes the connection ready for use with the private data of the peer.
func (s *Stream) start(data []byte) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.MustReceive = s.Server && s.IWARP
	s.wire.Start(data)
	s.liveness.KeepAlive = s.KeepAlive
	s.liveness.Start(s.checkPeer)
	s.wire.SendOwed()
	s.tasks.Go(s.watch)
	if s.background() {
		s.turn.take(&s.runner)
		s.tasks.Go(s.run)
	}
}

// background reports whether a goroutine handles messages while no method is called. On iWARP it does so in any
// case: a listener may not send before a message has arrived, which its peer may wait for.
func (s *Stream) background() bool { return s.Background || s.IWARP }

// waiters returns all waiters.
func (s *Stream) waiters() [5]*Waiter {
	return [...]*Waiter{&s.Reader, &s.Writer, &s.Closer, &s.runner, &s.watcher}
}

// watch handles the events of the ID.
func (s *Stream) watch() {
	for {
		e, err := s.ID.Next(s.ctx)
		if err != nil {
			return
		}
		switch e.Type {
		case rdmacm.EventDisconnected, rdmacm.EventDeviceRemoval, rdmacm.EventRejected:
			s.Mu.Lock()
			s.pollAll() // what arrived before
			switch {
			case e.Type == rdmacm.EventDeviceRemoval:
				s.Fail(fmt.Errorf("the device is being removed: %w", syscall.ENODEV))
			case e.Status < 0: // the peer has not answered
				s.Fail(e.Err())
			default:
				s.parted = true
				s.lost(nil)
				s.Interrupt()
				s.Wait(&s.watcher, s.AllSent) // a peer that waits in Part acknowledges it
			}
			s.ID.Disconnect() // answers
			s.Mu.Unlock()
		}
	}
}

// checkPeer fails the connection if the peer no longer answers. If the connection was idle, it writes
// nothing to the peer, whose device answers that although its program may be busy. Everything else needs a
// receive of the peer, and waits for it without limit: of that, the device notices that the peer is gone. On
// iWARP a WRITE completes before it is answered; there the connection ends when TCP gives up. While nothing may be
// sent, it does not notice: a peer may be idle for as long as it likes before its first message.
func (s *Stream) checkPeer() {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.pollAll()
	if s.Err != nil || s.Closed {
		return
	}
	probe, err := s.liveness.Check(!s.AllSent() || s.probing, s.probing && !s.IWARP)
	switch {
	case err != nil:
		s.Fail(err)
	case probe && !s.wire.Gone() && !s.MustReceive:
		s.probing = true
		b := s.QP.BeginSend()
		b.Write(idProbe, uverbs.SendSignaled, 0, 0)
		s.Post(b)
	}
}

// LocalAddr returns the address of this side, a [rdmacm.Addr].
func (s *Stream) LocalAddr() net.Addr { return s.addrs.Local }

// RemoteAddr returns the address of the peer, a [rdmacm.Addr].
func (s *Stream) RemoteAddr() net.Addr { return s.addrs.Remote }

// release releases everything that the connection has.
func (s *Stream) release() error {
	s.cancel()
	s.liveness.Stop()
	s.tasks.Wait()
	for _, w := range [...]*Waiter{&s.Reader, &s.Writer, &s.Closer} {
		w.set(time.Time{})
	}
	errs := []error{s.ID.Close()} // closes the QP too
	for _, cq := range []*uverbs.CQ{s.sendCQ, s.recvCQ} {
		if cq != nil {
			errs = append(errs, cq.Close())
		}
	}
	if s.events != nil {
		errs = append(errs, s.events.Close())
	}
	for _, r := range s.regions {
		errs = append(errs, r.Close())
	}
	if s.PD != nil && s.PD != s.dev.PD {
		errs = append(errs, s.PD.Close())
	}
	if s.dev != nil {
		errs = append(errs, s.dev.Release())
	}
	if s.from != nil {
		s.from.places.Closed(s.place)
	}
	return errors.Join(append(errs, s.channel.Release())...)
}
