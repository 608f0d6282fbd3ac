package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs"
)

// atOnce is how many connections are made at once.
const atOnce = 50

// ends are the connections of one side, made step by step.
type ends struct {
	channel    *rdmacm.Channel
	dev        *uverbs.Device
	pd         *uverbs.PD
	ids        []*rdmacm.ID
	send, recv *uverbs.CQ // of all queue pairs, made with the first, as cmtime does
}

// newEnds opens what a side needs.
func newEnds(device string) (*ends, error) {
	e := &ends{}
	var err error
	if e.dev, err = uverbs.Open(device, uverbs.OpenOptions{}); err != nil {
		return nil, err
	}
	if e.pd, err = e.dev.AllocPD(); err != nil {
		return nil, err
	}
	e.channel, err = rdmacm.OpenChannel(rdmacm.ChannelOptions{})
	return e, err
}

// queues gives an ID a QP.
func (e *ends) queues(id *rdmacm.ID) error {
	if e.send == nil {
		for _, cq := range []**uverbs.CQ{&e.send, &e.recv} {
			var err error
			if *cq, err = e.dev.CreateCQ(uverbs.CQOptions{Size: 1}); err != nil {
				return err
			}
		}
	}
	_, err := id.CreateQP(e.pd, uverbs.QPOptions{SendCQ: e.send, RecvCQ: e.recv, MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1})
	return err
}

// accept is the side that is connected to. It says where it listens, and ends with the program.
func accept(out io.Writer, device string) error {
	ctx := context.Background()
	e, err := newEnds(device)
	if err != nil {
		return err
	}
	l, err := e.channel.NewID(rdmacm.TCP)
	if err != nil {
		return err
	}
	if err := errors.Join(l.Bind(rdmacm.Addr{IP: serverIP}), l.Listen(0)); err != nil {
		return err
	}
	addrs, err := l.Addrs()
	if err != nil {
		return err
	}
	fmt.Fprintln(out, addrs.Local)
	for {
		ev, err := e.channel.Next(ctx)
		if err != nil {
			return err
		}
		switch ev.Type {
		case rdmacm.EventConnectRequest:
			if err = e.queues(ev.ID); err == nil {
				err = ev.ID.Accept(rdmacm.ConnParam{})
			}
		case rdmacm.EventDisconnected:
			err = ev.ID.Close()
		}
		if err != nil {
			return err
		}
	}
}

// connect makes connections as cmtime of rdma-core does, all taking a step before any takes the
// next, and prints the nanoseconds per connection.
func connect(out io.Writer, device, to string) error {
	addr, err := netip.ParseAddrPort(to)
	if err != nil {
		return err
	}
	e, err := newEnds(device)
	if err != nil {
		return err
	}
	begin := time.Now()
	for range atOnce {
		id, err := e.channel.NewID(rdmacm.TCP)
		if err != nil {
			return err
		}
		e.ids = append(e.ids, id)
	}
	for _, s := range []struct {
		do  func(*rdmacm.ID) error
		end rdmacm.EventType // none if it is done when it returns
	}{
		{func(id *rdmacm.ID) error { return id.ResolveAddr(rdmacm.Addr{}, rdmacm.AddrOf(addr), 2*time.Second) }, rdmacm.EventAddrResolved},
		{func(id *rdmacm.ID) error { return id.ResolveRoute(2 * time.Second) }, rdmacm.EventRouteResolved},
		{e.queues, noEvent},
		{func(id *rdmacm.ID) error {
			return id.Connect(rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 5})
		}, rdmacm.EventEstablished},
	} {
		if err := e.step(s.do, s.end); err != nil {
			return err
		}
	}
	took := time.Since(begin)
	fmt.Fprintf(out, "%.1f\n", float64(took.Nanoseconds())/atOnce)
	var errs []error
	for _, id := range e.ids {
		errs = append(errs, id.Close())
	}
	return errors.Join(errs...)
}

// listen is the side that dial connects to. It says where it listens, and ends with the program.
func listen(out io.Writer) error {
	ctx := context.Background()
	l, err := cm.Listen(ctx, serverAny, cm.ListenOptions{})
	if err != nil {
		return err
	}
	fmt.Fprintln(out, l.Addr())
	for {
		c, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		go func() {
			c.Recv(ctx) // until the peer closes
			c.Close()
		}()
	}
}

// dial dials connections all at once, and again when both ends have closed them. It prints the nanoseconds per
// connection of both.
func dial(out io.Writer, device, to string) error {
	dev, err := netlinkrdma.DeviceByName(device)
	if err != nil {
		return err
	}
	var took [2]time.Duration
	for i := range took {
		before, err := netlinkrdma.Resources(dev, netlinkrdma.ListOptions{})
		if err != nil {
			return err
		}
		conns, errs := make([]*cm.Conn, atOnce), make([]error, atOnce)
		var all sync.WaitGroup
		begin := time.Now()
		for i := range conns {
			all.Go(func() { conns[i], errs[i] = cm.Dial(context.Background(), to, cm.DialOptions{}) })
		}
		all.Wait()
		took[i] = time.Since(begin)
		if err := errors.Join(errs...); err != nil {
			return err
		}
		for _, c := range conns {
			if err := c.Close(); err != nil {
				return err
			}
		}
		for closed := false; !closed; time.Sleep(5 * time.Millisecond) { // by the other end too
			now, err := netlinkrdma.Resources(dev, netlinkrdma.ListOptions{})
			if err != nil {
				return err
			}
			closed = now.QPs <= before.QPs
		}
	}
	fmt.Fprintf(out, "%.1f %.1f\n", float64(took[0].Nanoseconds())/atOnce, float64(took[1].Nanoseconds())/atOnce)
	return nil
}

// conns makes connections with itself at an address, over which messages of 64 bytes go one after the other, after one over
// each that is not timed. It prints the nanoseconds per message.
func conns(out io.Writer, at string, count, messages int) error {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return err
	}
	if want := uint64(2*count + 100); files.Cur < want { // each end has a file
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: want, Max: max(want, files.Max)}); err != nil {
			return fmt.Errorf("%d open files: %w", want, err)
		}
	}
	// Without large messages, and without probes of those that are idle meanwhile.
	o := cm.ConnOptions{MessageSize: 64, KeepAlive: -1}
	ctx := context.Background()
	l, err := cm.Listen(ctx, at, cm.ListenOptions{ConnOptions: o})
	if err != nil {
		return err
	}
	from, to := make([]*cm.Conn, count), make([]*cm.Conn, count)
	for i := range from {
		if from[i], to[i], err = connected(ctx, l, o); err != nil {
			return fmt.Errorf("connection %d: %w", i+1, err)
		}
	}
	msg := make([]byte, 64)
	var begin time.Time
	for i := range count + messages {
		if i == count {
			runtime.GC() // what making the connections has left; messages make no garbage
			begin = time.Now()
		}
		if err := from[i%count].Send(ctx, msg); err != nil {
			return err
		}
		if _, err := to[i%count].Recv(ctx); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "%.1f\n", float64(time.Since(begin).Nanoseconds())/float64(messages))
	return nil
}

// connected returns both ends of a connection with a listener of this process.
func connected(ctx context.Context, l *cm.Listener, o cm.ConnOptions) (from, to *cm.Conn, err error) {
	accepted := make(chan error, 1)
	go func() {
		var err error
		to, err = l.Accept(ctx)
		accepted <- err
	}()
	from, err = cm.Dial(ctx, l.Addr().String(), cm.DialOptions{ConnOptions: o})
	return from, to, errors.Join(err, <-accepted)
}

// noEvent stands for a step that is done when it returns.
const noEvent = ^rdmacm.EventType(0)

// step has all connections take a step, and waits until they have.
func (e *ends) step(do func(*rdmacm.ID) error, end rdmacm.EventType) error {
	for _, id := range e.ids {
		if err := do(id); err != nil {
			return err
		}
	}
	if end == noEvent {
		return nil
	}
	for left := len(e.ids); left > 0; {
		ev, err := e.channel.Next(context.Background())
		if err != nil {
			return err
		}
		switch {
		case ev.Type == rdmacm.EventAddrError && errors.Is(ev.Err(), syscall.ETIMEDOUT):
			err = do(ev.ID) // as cmtime does
		case ev.Type == end:
			left--
		default:
			err = fmt.Errorf("%s instead of %s: %w", ev.Type, end, ev.Err())
		}
		if err != nil {
			return err
		}
	}
	return nil
}
