package perftest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/tools/internal/objects"
	"github.com/goverbs/goverbs/tools/verbs/internal/peer"
	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
	"github.com/goverbs/goverbs/uverbs"
)

// Messages of a cmLink: some receives, and behind them one to send.
const (
	slotLen  = binaryDVLen // the longest message
	receives = 4           // perftest has one, as messages alternate
	sendSlot = receives
)

// cmLink sends messages over the queue pair of a connection of the connection manager.
type cmLink struct {
	id    *rdmacm.ID
	cq    *uverbs.CQ
	qp    *uverbs.QP
	mr    *uverbs.MR
	inbox [][]byte
	open  objects.Stack // what the messages need, besides the ID

	life context.Context // ends when the connection does
	stop context.CancelFunc
	over chan struct{} // closed when the connection is no longer watched

	server bool
	last   bool // the peer is to hang up first, if it does so soon
}

// openCM makes what a connection's messages need, on the device that the ID is on.
func openCM(id *rdmacm.ID) (_ *cmLink, err error) {
	l := &cmLink{id: id}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	a, err := id.Addrs()
	if err != nil {
		return nil, err
	}
	dev := l.open.Device(a.Device)
	pd := l.open.PD(dev)
	l.mr = l.open.MR(pd, (receives+1)*slotLen, uverbs.AccessLocalWrite)
	l.cq = l.open.CQ(dev, uverbs.CQOptions{Size: receives + 1, Events: true})
	if err := l.open.Err(); err != nil {
		return nil, err
	}
	if l.qp, err = id.CreateQP(pd, uverbs.QPOptions{SendCQ: l.cq, RecvCQ: l.cq, MaxSendWR: 1, MaxRecvWR: receives}); err != nil {
		return nil, err
	}
	for slot := range receives {
		if err := l.postRecv(slot); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// postRecv posts a receive.
func (l *cmLink) postRecv(slot int) error {
	return l.qp.PostRecv(uint64(slot), l.mr.SGE(slot*slotLen, slotLen))
}

// live has life end with the connection.
func (l *cmLink) live() {
	var cancel context.CancelCauseFunc
	l.life, cancel = context.WithCancelCause(context.Background())
	waiting, stop := context.WithCancel(context.Background())
	l.stop, l.over = stop, make(chan struct{})
	go func() {
		defer close(l.over)
		for {
			e, err := l.id.Next(waiting)
			switch {
			case err != nil:
				cancel(err)
				return
			case e.Type == rdmacm.EventDisconnected || e.Type == rdmacm.EventDeviceRemoval:
				cancel(errGone)
				return
			}
		}
	}()
}

// close ends the connection and closes everything, the ID before what its QP stands on.
func (l *cmLink) close() error {
	const timeout = 2 * time.Second
	if l.last {
		select {
		case <-l.life.Done():
		case <-time.After(timeout):
		}
	}
	if l.stop != nil {
		l.stop()
		<-l.over
		l.id.Disconnect() // it may be so already
	}
	return errors.Join(l.id.Close(), l.open.Close())
}

// await waits until what it waits for is there.
func (l *cmLink) await(ctx context.Context, there func(sent bool) bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.life, func() { cancel(context.Cause(l.life)) })()
	var wcs [receives + 1]uverbs.WC
	sent := false
	for !there(sent) {
		n, err := l.cq.Wait(ctx, wcs[:])
		if err != nil {
			return peer.Cause(ctx, err)
		}
		for i := range wcs[:n] {
			wc := &wcs[i]
			if err := l.qp.Err(wc); err != nil {
				if wc.Status == uverbs.WCWRFlushErr {
					return errGone
				}
				return err
			}
			if wc.ID == sendSlot {
				sent = true
				continue
			}
			if wc.Opcode != uverbs.WCRecv || wc.ByteLen > slotLen {
				return fmt.Errorf("got a %s of %d bytes, allowed: a SEND of up to %d", wc.Opcode, wc.ByteLen, slotLen)
			}
			at := int(wc.ID) * slotLen
			l.inbox = append(l.inbox, append([]byte(nil), l.mr.Bytes()[at:at+int(wc.ByteLen)]...))
			if err := l.postRecv(int(wc.ID)); err != nil {
				return err
			}
		}
	}
	return nil
}

// write sends a message.
func (l *cmLink) write(ctx context.Context, b []byte) error {
	at := sendSlot * slotLen
	copy(l.mr.Bytes()[at:at+slotLen], b)
	err := l.qp.PostSend(uverbs.SendWR{ID: sendSlot, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{l.mr.SGE(at, len(b))}})
	if err != nil {
		return err
	}
	return l.await(ctx, func(sent bool) bool { return sent })
}

// next returns the next message.
func (l *cmLink) next(ctx context.Context) ([]byte, error) {
	if err := l.await(ctx, func(bool) bool { return len(l.inbox) > 0 }); err != nil {
		return nil, err
	}
	b := l.inbox[0]
	l.inbox = l.inbox[1:]
	return b, nil
}

// read returns the next message, which has n bytes.
func (l *cmLink) read(ctx context.Context, n int) ([]byte, error) {
	b, err := l.next(ctx)
	if err == nil && len(b) != n {
		return nil, fmt.Errorf("got a message of %d bytes, %s, expected %d", len(b), peertext.Quote(b), n)
	}
	return b, err
}

// writeRecord sends a record.
func (l *cmLink) writeRecord(ctx context.Context, r Record) error { return l.write(ctx, r.binary()) }

// readRecord returns the next record.
func (l *cmLink) readRecord(ctx context.Context) (Record, error) {
	b, err := l.next(ctx)
	if err != nil {
		return Record{}, err
	}
	return parseBinary(b)
}

// watch calls gone if the connection ends before the function that it returns is called.
func (l *cmLink) watch(gone func()) (stop func()) {
	ended := context.AfterFunc(l.life, gone)
	return func() { ended() }
}

// finish has nothing to say, but a server lets its client hang up first: what the client has sent may
// be here before it is complete there, and fails if the connection has ended then.
func (l *cmLink) finish(context.Context) error {
	l.last = l.server
	return nil
}

// controlParam are perftest's parameters of the connection that carries messages.
var controlParam = rdmacm.ConnParam{RetryCount: 7, RNRRetryCount: 7}

// newCM begins a session on a connection.
func newCM(l *cmLink, server bool) *Session {
	l.live()
	l.server = server
	return &Session{Server: server, link: l, cm: true, step: stepTimeout, run: runTimeout}
}

// DialCM connects to a server that runs with -R.
func DialCM(ctx context.Context, ch *rdmacm.Channel, local, remote netip.AddrPort) (*Session, error) {
	ctx, cancel := within(ctx, stepTimeout)
	defer cancel()
	var s *Session
	err := rdmacm.RetryPort(func() (err error) {
		s, err = dialCM(ctx, ch, local, remote)
		return err
	})
	return s, err
}

// dialCM connects from the next port.
func dialCM(ctx context.Context, ch *rdmacm.Channel, local, remote netip.AddrPort) (*Session, error) {
	id, err := ch.NewID(rdmacm.TCP)
	if err != nil {
		return nil, err
	}
	if err := id.ResolveWait(ctx, rdmacm.AddrOf(local), rdmacm.AddrOf(remote)); err != nil {
		return nil, errors.Join(err, id.Close())
	}
	l, err := openCM(id)
	if err != nil {
		return nil, err
	}
	if _, err := id.ConnectWait(ctx, controlParam); err != nil {
		return nil, errors.Join(err, l.close())
	}
	return newCM(l, false), nil
}

// ErrNotClient is the error of AcceptCM if the peer is not a perftest program, or is gone.
var ErrNotClient = errors.New("the peer is not the client")

// AcceptCM accepts the connection of a client that runs with -R, and reads its version.
func AcceptCM(ctx context.Context, request *rdmacm.Event) (*Session, error) {
	ctx, cancel := within(ctx, stepTimeout)
	defer cancel()
	l, err := openCM(request.ID)
	if err != nil {
		return nil, err
	}
	if err := request.ID.AcceptWait(ctx, controlParam); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrNotClient, err), l.close())
	}
	s := newCM(l, true)
	if err := s.Greet(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrNotClient, err), s.Close())
	}
	return s, nil
}

// Addrs returns the addresses of the connection that carries messages, and its device.
func (s *Session) Addrs() (rdmacm.Addrs, error) { return s.link.(*cmLink).id.Addrs() }

// DialData makes one more connection to the server, for a test's traffic. A server may not listen
// yet: make is called again then, with another ID, after undo.
func DialData(ctx context.Context, ch *rdmacm.Channel, space rdmacm.PortSpace, local, remote netip.AddrPort, p rdmacm.ConnParam, make func(*rdmacm.ID) error, undo func()) (id *rdmacm.ID, e *rdmacm.Event, err error) {
	err = rdmacm.RetryPort(func() (err error) {
		id, e, err = dialData(ctx, ch, space, local, remote, p, make, undo)
		return err
	})
	return id, e, err
}

// dialData makes it from the next port.
func dialData(ctx context.Context, ch *rdmacm.Channel, space rdmacm.PortSpace, local, remote netip.AddrPort, p rdmacm.ConnParam, make func(*rdmacm.ID) error, undo func()) (*rdmacm.ID, *rdmacm.Event, error) {
	const tries, pause = 20, 100 * time.Millisecond
	ctx, cancel := within(ctx, stepTimeout)
	defer cancel()
	for try := 1; ; try++ {
		id, err := ch.NewID(space)
		if err != nil {
			return nil, nil, err
		}
		var e *rdmacm.Event
		made := false
		if err = id.ResolveWait(ctx, rdmacm.AddrOf(local), rdmacm.AddrOf(remote)); err == nil {
			if err = make(id); err == nil {
				made = true
				e, err = id.ConnectWait(ctx, p)
			}
		}
		if err == nil {
			return id, e, nil
		}
		if closed := id.Close(); closed != nil {
			return nil, nil, errors.Join(err, closed)
		}
		if made {
			undo()
		}
		early := errors.Is(err, syscall.ECONNREFUSED) // no listener
		if !early || try == tries {
			return nil, nil, fmt.Errorf("connect a QP to perftest: %w", err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
	}
}
