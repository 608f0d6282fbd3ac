package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/cm/internal/inprocess"
	"github.com/goverbs/goverbs/test/pairs"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// idArgs are arguments for the methods of an ID.
type idArgs struct {
	ctx   context.Context
	addr  Addr
	group netip.Addr
	to    *Channel
	pd    *uverbs.PD
	cq    *uverbs.CQ
	take  func(*Event) // gets the events
}

// call calls a method of an ID by its name. ok is false if there is none.
func (a *idArgs) call(id *ID, name string) (err error, ok bool) {
	p := ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 7, RNRRetryCount: 7}
	var e *Event
	switch name {
	case "Accept":
		err = id.Accept(p)
	case "AcceptWait":
		err = id.AcceptWait(a.ctx, p)
	case "Addrs":
		_, err = id.Addrs()
	case "Bind":
		err = id.Bind(Addr{IP: a.addr.IP})
	case "CheckRemote":
		err = id.CheckRemote(a.pd.Device())
	case "Close":
		err = id.Close()
	case "Connect":
		err = id.Connect(p)
	case "ConnectWait":
		_, err = id.ConnectWait(a.ctx, p)
	case "CreateQP":
		_, err = id.CreateQP(a.pd, uverbs.QPOptions{SendCQ: a.cq, RecvCQ: a.cq})
	case "CreateSRQ":
		_, err = id.CreateSRQ(a.pd, uverbs.SRQOptions{})
	case "Disconnect":
		err = id.Disconnect()
	case "DisconnectWait":
		err = id.DisconnectWait(a.ctx)
	case "RequestDisconnect":
		err = id.RequestDisconnect()
	case "ECE":
		id.ECE()
	case "Establish":
		err = id.Establish()
	case "GIDs":
		_, err = id.GIDs()
	case "Join":
		var g *Group
		if g, err = id.Join(a.group, JoinFullMember); err == nil {
			err = g.Close()
		}
	case "JoinWait":
		e, err = id.JoinWait(a.ctx, a.group, JoinFullMember)
	case "Listen":
		err = id.Listen(4)
	case "Migrate":
		err = id.Migrate(a.to)
	case "Notify":
		err = id.Notify(uverbs.EventCommEst)
	case "Paths":
		_, err = id.Paths()
	case "AddrsByIndex":
		_, _, err = id.AddrsByIndex()
	case "QPAttr":
		_, _, err = id.QPAttr(ib.QPInit)
	case "Reject":
		err = id.Reject(nil, ReasonConsumer)
	case "NextRequest":
		e, err = id.NextRequest(a.ctx)
	case "ResolveAddr":
		err = id.ResolveAddr(Addr{}, a.addr, time.Second)
	case "ResolveRoute":
		err = id.ResolveRoute(time.Second)
	case "ResolveService":
		err = id.ResolveService("printer", 0)
	case "ResolveWait":
		err = id.ResolveWait(a.ctx, Addr{}, a.addr)
	case "Services":
		_, err = id.Services()
	case "SetAFOnly":
		err = id.SetAFOnly(true)
	case "SetAckTimeout":
		err = id.SetAckTimeout(time.Second)
	case "SetECE":
		err = id.SetECE(ECEOff)
	case "SetPath":
		err = id.SetPath(Path{MTU: ib.MTU1024, PKey: defaultPKey})
	case "SetQPAckTimeout":
		id.SetQPAckTimeout(time.Second)
	case "SetRNRRetryCount":
		err = id.SetRNRRetryCount(7)
	case "SetReuseAddr":
		err = id.SetReuseAddr(true)
	case "SetRetryCount":
		err = id.SetRetryCount(7)
	case "ShareEvents":
		id.ShareEvents()
	case "SetTOS":
		err = id.SetTOS(1)
	case "Next":
		e, err = id.Next(a.ctx)
	case "WriteEvent":
		err = id.WriteEvent(1, 2)
	default:
		return nil, false
	}
	if e != nil && a.take != nil {
		a.take(e)
	}
	return err, true
}

// TestPairs runs pairs and triples of methods of IDs in different states.
func TestPairs(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsIB(t, "datagrams and moves of QPs by the program")
	testenv.NeedsNoLoss(t, "the limits of time are short")
	worlds := maps.Clone(idWorlds)
	if !testenv.TheRig().Soft {
		// Linux 6.1 may wait without end in cm_destroy_id for an ID that has sent a request.
		delete(worlds, "new ID")
		delete(worlds, "resolved ID")
	}
	pairs.Run(t, concurrency, worlds)
}

// idWorld has an ID whose methods run, with the channels that it may be on.
type idWorld struct {
	t        *testing.T
	id       *ID
	group    *Group // of the ID; may be nil
	channels [2]*Channel
	a        idArgs

	peer     *Channel      // has the IDs of the other side
	accepted chan *ID      // they serve the connections to a.addr
	far      *ID           // the other side of the ID, if it is connected; or the ID, if it has joined the group
	to       uverbs.AHAttr // of the group
	send     uverbs.SendWR
	recv     uverbs.SGE

	finish  []func() error // what End does, the last one first
	handles int            // how many IDs and groups the connection manager of the software devices had before
	closed  atomic.Bool    // a method that closes was called
	ended   atomic.Bool    // one that ends the connection was

	mu   sync.Mutex
	errs []error // guarded by mu: of methods
}

// idWorlds are worlds whose IDs are in different states.
var idWorlds = map[string]func(*testing.T) pairs.World{
	"new ID": func(t *testing.T) pairs.World { return newIDWorld(t, TCP) },
	"resolved ID": func(t *testing.T) pairs.World {
		w := newIDWorld(t, TCP)
		w.resolve()
		return w
	},
	"connected ID": func(t *testing.T) pairs.World {
		w := newIDWorld(t, TCP)
		w.resolve()
		value(w.id.ConnectWait(within(t), ConnParam{RetryCount: 7, RNRRetryCount: 7}))(t)
		w.far = <-w.accepted
		w.accepted <- w.far // to be closed
		return w
	},
	"listening ID": func(t *testing.T) pairs.World {
		w := newIDWorld(t, TCP)
		must(t, w.id.Bind(Addr{IP: first}), w.id.Listen(4))
		w.a.addr = value(w.id.Addrs())(t).Local
		return dialedWorld{w}
	},
	"datagram ID": func(t *testing.T) pairs.World {
		w := newIDWorld(t, UDP)
		must(t, w.id.Bind(Addr{IP: first}))
		w.newQP()
		w.group = value(w.id.Join(netip.AddrFrom4([4]byte{239, 7, 1, 1}), JoinFullMember))(t)
		to := value(w.channels[0].Next(within(t)))(t).UD
		ah := value(w.a.pd.CreateAH(to.AH))(t)
		w.later(ah.Close)
		w.far, w.to, w.send.AH, w.send.RemoteQPN, w.send.RemoteQKey = w.id, to.AH, ah, to.QPN, to.QKey
		return w
	},
}

// newIDWorld makes a world with a new ID.
func newIDWorld(t *testing.T, space PortSpace) *idWorld {
	w := &idWorld{t: t, handles: inprocess.Host.Len(), accepted: make(chan *ID, 1000)}
	dev := value(uverbs.Open(testenv.TheRig().Devices[0], uverbs.OpenOptions{}))(t)
	w.later(dev.Close)
	w.a.cq = value(dev.CreateCQ(uverbs.CQOptions{Size: 64}))(t)
	w.later(w.a.cq.Close)
	w.a.pd = value(dev.AllocPD())(t)
	w.later(w.a.pd.Close)
	buf := value(uverbs.AllocBuffer(4096, uverbs.BufferOptions{}))(t)
	w.later(buf.Close)
	mr := value(w.a.pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite}))(t)
	w.later(mr.Close)
	w.send = uverbs.SendWR{Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{mr.SGE(0, 100)}}
	w.recv = mr.SGE(2048, 100+uverbs.GRHSize)
	for _, c := range []**Channel{&w.channels[0], &w.channels[1], &w.peer} {
		*c = value(OpenChannel(ChannelOptions{}))(t)
		w.later((*c).Close) // which fails if an ID is left
	}
	l := value(w.peer.NewID(TCP))(t)
	must(t, l.Bind(Addr{IP: first}), l.Listen(0))
	w.a.addr = value(l.Addrs())(t).Local
	served := make(chan struct{})
	go func() {
		w.serve(l)
		close(served)
	}()
	w.later(func() error {
		err := l.Close()
		<-served
		for len(w.accepted) > 0 {
			err = errors.Join(err, (<-w.accepted).Close())
		}
		return err
	})
	w.id = value(w.channels[0].NewID(space))(t)
	w.later(func() error { return w.id.Close() })
	return w
}

// later has End call a function.
func (w *idWorld) later(f func() error) { w.finish = append(w.finish, f) }

// serve accepts connections until the listener is closed.
func (w *idWorld) serve(l *ID) {
	for {
		e, err := l.NextRequest(context.Background())
		if err != nil {
			return
		}
		_, err = e.ID.CreateQP(w.a.pd, uverbs.QPOptions{SendCQ: w.a.cq, RecvCQ: w.a.cq})
		if err == nil {
			err = e.ID.Accept(ConnParam{RetryCount: 7, RNRRetryCount: 7})
		}
		w.Check("Accept of the peer", err)
		w.accepted <- e.ID
	}
}

// newQP makes the QP of the ID.
func (w *idWorld) newQP() *uverbs.QP {
	return value(w.id.CreateQP(w.a.pd, uverbs.QPOptions{SendCQ: w.a.cq, RecvCQ: w.a.cq}))(w.t)
}

// resolve makes the ID ready to connect.
func (w *idWorld) resolve() {
	must(w.t, w.id.ResolveWait(within(w.t), Addr{}, w.a.addr))
	w.newQP()
}

func (w *idWorld) Objects() []any {
	all := []any{w.id, w.channels[0], w.channels[1]}
	if w.group != nil {
		all = append(all, w.group)
	}
	return all
}

func (w *idWorld) Override(object any, name string) (call func(*rand.Rand), skip bool) {
	return func(r *rand.Rand) {
		switch name {
		case "Close":
			w.closed.Store(true)
		case "Disconnect", "DisconnectWait":
			w.ended.Store(true)
		}
		a := w.a
		var cancel context.CancelFunc
		a.ctx, cancel = context.WithTimeout(context.Background(), 2*time.Millisecond)
		defer cancel()
		a.to, a.group = w.channels[r.IntN(2)], netip.AddrFrom4([4]byte{239, 7, 2, byte(r.IntN(4))})
		a.take = func(e *Event) { w.take(r, e) }
		var err error
		switch o := object.(type) {
		case *ID:
			var ok bool
			if err, ok = a.call(o, name); !ok {
				err = errors.New("the world does not have the method")
			}
		case *Group:
			err = o.Close()
		case *Channel:
			err = w.ofChannel(o, name, &a)
		}
		w.Check(name, err)
	}, false
}

// ofChannel calls a method of a channel.
func (w *idWorld) ofChannel(c *Channel, name string, a *idArgs) error {
	switch name {
	case "Close":
		return c.Close()
	case "InProcess":
		c.InProcess()
		return nil
	case "NewID":
		id, err := c.NewID(UDP)
		if err != nil {
			return err
		}
		w.Check("Bind", id.Bind(Addr{IP: first}))
		w.Check("Close of a new ID", id.Close())
		return nil
	case "Next":
		e, err := c.Next(a.ctx)
		if err == nil {
			a.take(e)
		}
		return err
	case "Read":
		e, err := c.Read(a.ctx)
		if err == nil {
			e.AdvanceQP()
			a.take(e)
		}
		return err
	}
	return errors.New("the world does not have the method")
}

// take answers the request of an event, if it is one.
func (w *idWorld) take(r *rand.Rand, e *Event) {
	if e.Listen == nil {
		return
	}
	switch r.IntN(3) {
	case 0:
		w.Check("Reject", e.ID.Reject(nil, ReasonConsumer))
	case 1:
		_, err := e.ID.CreateQP(w.a.pd, uverbs.QPOptions{SendCQ: w.a.cq, RecvCQ: w.a.cq})
		w.Check("CreateQP of a request", err)
		w.Check("Accept", e.ID.Accept(ConnParam{}))
	}
	w.Check("Close of a request", e.ID.Close())
}

// Check implements the check of errors. Most methods fail in most states of the ID. The connection manager never says
// that it does not know an ID.
func (w *idWorld) Check(method string, err error) {
	kinds := []error{context.DeadlineExceeded, syscall.EINVAL, syscall.EBUSY, syscall.EADDRINUSE, syscall.EISCONN, syscall.ENOTCONN, syscall.ENODATA,
		uverbs.ErrState, errors.ErrUnsupported}
	if strings.HasPrefix(method, "Close") {
		kinds = []error{syscall.EBUSY} // of a channel
	}
	if method == "CheckRemote" && !testenv.TheRig().Soft {
		kinds = append(kinds, syscall.EADDRNOTAVAIL) // the ID has no peer
	}
	if w.closed.Load() {
		kinds = append(kinds, os.ErrClosed)
	}
	for _, kind := range kinds {
		if errors.Is(err, kind) {
			return
		}
	}
	var unexpected *EventError // such as that of WriteEvent
	if err == nil || errors.As(err, &unexpected) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.errs = append(w.errs, fmt.Errorf("%s: %w", method, err))
}

// Agree implements [pairs.World]: the ID is closed if the connection manager does not have it.
func (w *idWorld) Agree() error {
	w.mu.Lock()
	err := errors.Join(w.errs...)
	w.errs = nil
	w.mu.Unlock()
	if err != nil {
		return err
	}
	closed := w.id.closed.Load()
	resp := &abi.QueryAddrResp{}
	req := &abi.Query{Response: abi.PtrTo(resp), ID: w.id.handle, Option: abi.RDMA_USER_CM_QUERY_ADDR}
	errno := query(w.id.channel.Load().file, abi.RDMA_USER_CM_CMD_QUERY, req, resp)
	switch {
	case closed && errno == errClosedFile: // the channel was closed, too
	case closed && errno == syscall.EINVAL && !testenv.TheRig().Soft: // another file has an ID with this number by now
	case closed && errno != syscall.ENOENT, !closed && errno != 0:
		return fmt.Errorf("the connection manager says %v of the ID; the ID is closed: %t", errno, closed)
	}
	return nil
}

// Exchange implements [pairs.World]: it sends a message to the peer, or to the group.
func (w *idWorld) Exchange() (done bool, err error) {
	if w.closed.Load() || w.ended.Load() || w.far == nil {
		return w.closed.Load() || w.ended.Load(), nil
	}
	far := w.far.queues.qp.Load()
	if w.group != nil {
		if err := far.AttachMulticast(w.to.GRH.DGID, w.to.DLID); err != nil {
			return false, err
		}
		defer func() { err = errors.Join(err, far.DetachMulticast(w.to.GRH.DGID, w.to.DLID)) }()
	}
	err = errors.Join(far.PostRecv(1, w.recv), w.id.queues.qp.Load().PostSend(w.send))
	var wcs [2]uverbs.WC
	for n, end := 0, time.Now().Add(timeout); n < len(wcs) && err == nil; {
		var more int
		more, err = w.a.cq.Poll(wcs[:])
		n += more
		for _, wc := range wcs[:more] {
			err = errors.Join(err, wc.Err())
		}
		if time.Now().After(end) {
			err = errors.Join(err, fmt.Errorf("%d completions of a message and its receive", n))
		}
	}
	return false, err
}

// End implements [pairs.World].
func (w *idWorld) End() {
	for i := len(w.finish) - 1; i >= 0; i-- {
		if err := w.finish[i](); err != nil {
			w.t.Errorf("at the end: %v", err)
		}
	}
	for _, c := range append(w.channels[:], w.peer) {
		if len(c.groups) != 0 || len(c.pending) != 0 {
			w.t.Errorf("a closed channel has %d groups and %d events", len(c.groups), len(c.pending))
		}
	}
	if n := inprocess.Host.Len(); n != w.handles {
		w.t.Errorf("the connection manager had %d IDs and groups, and has %d", w.handles, n)
	}
}

// dialedWorld is an idWorld whose ID listens.
type dialedWorld struct{ *idWorld }

// Serve makes a connection to it.
func (w dialedWorld) Serve(*rand.Rand) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	id := value(w.peer.NewID(TCP))(w.t)
	err := id.ResolveWait(ctx, Addr{}, w.a.addr)
	if err == nil {
		_, err = id.CreateQP(w.a.pd, uverbs.QPOptions{SendCQ: w.a.cq, RecvCQ: w.a.cq})
	}
	if err == nil {
		_, err = id.ConnectWait(ctx, ConnParam{})
	}
	w.Check("Dial", err)
	w.Check("Close of a dialed ID", id.Close())
}
