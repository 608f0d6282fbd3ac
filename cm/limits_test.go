package cm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/internal/limits"
	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// refusals are what [ListenOptions].Refused was called with.
type refusals struct {
	mu      sync.Mutex
	all     []error
	most    int
	reached func() // called when there are most
}

func (r *refusals) add(_ rdmacm.Addr, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all = append(r.all, err); len(r.all) == r.most {
		r.reached()
	}
}

// dial dials a listener that tells it of its refusals until it has refused three times: Dial has got at least one then.
func (r *refusals) dial(ctx context.Context, l *Listener, o DialOptions) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.mu.Lock()
	r.most, r.reached = len(r.all)+3, cancel
	r.mu.Unlock()
	_, err := Dial(ctx, l.Addr().String(), o)
	return err
}

func (r *refusals) list() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.all)
}

// halfOpen makes a request that its peer does not complete, and returns its ID, which has the
// answer. The peer has no QP, but its kernel wants a number, and each only once.
func halfOpen(t *testing.T, ctx context.Context, c *rdmacm.Channel, l *Listener) *rdmacm.ID {
	t.Helper()
	id := newID(t, c, rdmacm.TCP)
	must(t, id.ResolveWait(ctx, rdmacm.Addr{}, l.addr))
	param := rdmacm.ConnParam{PrivateData: greeting{kind: greetingRequest, depth: 4, size: 100}.encode(), QPN: unusedQPN()}
	value(id.ConnectWait(ctx, param))(t)
	return id
}

// lastUnusedQPN is the last result of unusedQPN.
var lastUnusedQPN atomic.Uint32

// unusedQPN returns a number that no QP has. Each call returns another one.
func unusedQPN() uint32 { return 1<<23 + lastUnusedQPN.Add(1) }

// expectRefusal fails the test unless an error is a refusal with a text.
func expectRefusal(t *testing.T, what string, err error, why string) {
	t.Helper()
	var refused *RefusedError
	if !errors.As(err, &refused) || refused.Why != why {
		t.Errorf("%s: %v, want a refusal with %q", what, err, why)
	}
}

// TestMaxConns: a listener has as many connections as its options allow, in number or in bytes, and takes
// others when some are closed.
func TestMaxConns(t *testing.T) {
	one := value(small.MemoryPerConn())(t)
	for name, set := range map[string]func(*ListenOptions){
		"MaxConns":  func(o *ListenOptions) { o.MaxConns = 3 },
		"MaxMemory": func(o *ListenOptions) { o.MaxMemory = 4*one - 1 },
	} {
		t.Run(name, func(t *testing.T) {
			ctx := within(t)
			var told refusals
			o := ListenOptions{ConnOptions: small}
			o.Refused = told.add
			o.AddrShare = -1
			set(&o)
			l := newListener(t, o)
			var conns [][2]*Conn
			for range 3 {
				client, server := connect(t, l, DialOptions{ConnOptions: small})
				conns = append(conns, [2]*Conn{client, server})
			}
			expectRefusal(t, "a connection too many", told.dial(ctx, l, DialOptions{ConnOptions: small}), refusedMany)
			for _, c := range conns { // one waits, one goes, one comes
				dialed := make(chan *Conn, 1)
				refused, enough := context.WithCancel(ctx)
				told.mu.Lock()
				told.most, told.reached = len(told.all)+1, enough
				told.mu.Unlock()
				go func() {
					client, err := Dial(ctx, l.Addr().String(), DialOptions{ConnOptions: small})
					if err != nil {
						t.Error(err)
					}
					dialed <- client
				}()
				<-refused.Done()
				must(t, c[0].Close(), c[1].Close())
				server := value(l.Accept(ctx))(t)
				client := <-dialed
				t.Cleanup(func() { must(t, client.Close(), server.Close()) })
				must(t, client.Send(ctx, []byte("new")))
				if got := value(server.Recv(ctx))(t); string(got) != "new" {
					t.Errorf("received %q", got)
				}
			}
		})
	}
}

// TestHalfOpen: peers that complete nothing take the place of others that complete nothing, not of honest
// ones, and leave nothing.
func TestHalfOpen(t *testing.T) {
	testenv.Needs(t, "half-open requests", "rxe", "mlx5") // on iWARP the kernel answers for the peer
	before := quiet(t)
	t.Run("in time", func(t *testing.T) { // a peer that still has time keeps its place
		ctx := within(t)
		o := ListenOptions{ConnOptions: small}
		var told refusals
		o.HalfOpen, o.AddrShare, o.Refused = 2, -1, told.add
		l := newListener(t, o)
		old := limits.Patience
		limits.Patience = time.Hour
		defer func() { limits.Patience = old }()
		c := openKernel(t)
		ids := []*rdmacm.ID{halfOpen(t, ctx, c, l), halfOpen(t, ctx, c, l)}
		expectRefusal(t, "a request while others complete theirs", told.dial(ctx, l, DialOptions{ConnOptions: small}), refusedFull)
		for _, id := range ids {
			must(t, id.Close())
		}
	})
	old := limits.Patience
	limits.Patience = 0
	defer func() { limits.Patience = old }()
	for name, o := range map[string]ListenOptions{
		"HalfOpen": {HalfOpen: 4}, "Backlog": {Backlog: 4, HalfOpen: 100}, "MaxConns": {MaxConns: 4},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := within(t)
			var told refusals
			o.ConnOptions, o.AddrShare, o.Refused = small, -1, told.add
			l := value(Listen(ctx, net.JoinHostPort(first.String(), "0"), o))(t)
			c := openKernel(t)
			var ids []*rdmacm.ID
			for range 20 {
				ids = append(ids, halfOpen(t, ctx, c, l))
			}
			client := value(Dial(ctx, l.Addr().String(), DialOptions{ConnOptions: small}))(t)
			server := value(l.Accept(ctx))(t)
			must(t, client.Send(ctx, []byte("through")))
			if got := value(server.Recv(ctx))(t); string(got) != "through" {
				t.Errorf("received %q", got)
			}
			for end := time.Now().Add(timeout); len(told.list()) < 17 && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
			if all := told.list(); len(all) != 17 || !errors.Is(all[0], errEvicted) {
				t.Errorf("%d requests made room: %v, want 17", len(all), all)
			}
			for _, id := range ids {
				must(t, id.Close())
			}
			must(t, client.Close(), server.Close(), l.Close())
		})
	}
	nothingLeft(t, before)
}

// TestRefusalTexts: a peer is told the program's own words, and of everything else a fixed text. The program
// is told the cause.
func TestRefusalTexts(t *testing.T) {
	ctx := within(t)
	var told refusals
	broken := errors.New("REG_MR (65536 bytes at 0x7f0000000000)")
	var fails atomic.Bool
	l := newListener(t, ListenOptions{Refused: told.add, Check: func(*Request) ([]byte, error) {
		if fails.Load() {
			return make([]byte, MaxAcceptData+1), nil
		}
		return nil, broken
	}})
	_, err := Dial(ctx, l.Addr().String(), DialOptions{})
	expectRefusal(t, "Check's words", err, broken.Error())
	fails.Store(true)
	_, err = Dial(ctx, l.Addr().String(), DialOptions{})
	expectRefusal(t, "an error of the listener's", err, refusedFailed)
	pd, cq := openPD(t)
	id := newID(t, openKernel(t), rdmacm.TCP)
	must(t, id.ResolveWait(ctx, rdmacm.Addr{}, l.addr))
	value(id.CreateQP(pd, uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}))(t)
	_, err = id.ConnectWait(ctx, rdmacm.ConnParam{PrivateData: []byte("what is your version?")})
	expectRefusal(t, "another protocol", refusalError(err), refusedProtocol)
	all := slices.CompactFunc(told.list(), func(a, b error) bool { return a.Error() == b.Error() }) // a peer that loses a refusal asks again
	var arg *rdmacm.ArgError
	if len(all) != 3 || all[0] != broken || !errors.As(all[1], &arg) || !errors.Is(all[2], syscall.EPROTO) {
		t.Errorf("the program was told %v", all)
	}
}

// TestCheckBeforeAllocation: Check is called before the device has any object for the connection, and its PD is made when it
// asks for one.
func TestCheckBeforeAllocation(t *testing.T) {
	before := quiet(t)
	ctx := within(t)
	var during kernelUse
	var pd *uverbs.PD
	l := value(Listen(ctx, net.JoinHostPort(first.String(), "0"), ListenOptions{ConnOptions: ConnOptions{Isolation: ConnPD}, Check: func(r *Request) ([]byte, error) {
		during = use(t)
		var err error
		if string(r.PrivateData) == "with memory" {
			pd, err = r.PD()
		} else if len(r.PrivateData) > 0 {
			err = errors.New("go away")
		}
		return nil, err
	}}))(t)
	idle := use(t)
	if _, err := Dial(ctx, l.Addr().String(), DialOptions{PrivateData: []byte("a stranger")}); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Error(err)
	}
	var more netlinkrdma.ResourceCounts // of which the stranger has some at its own end
	for i, d := range during.devices {
		more.PDs += d.PDs - idle.devices[i].PDs
		more.MRs += d.MRs - idle.devices[i].MRs
		more.QPs += d.QPs - idle.devices[i].QPs
		more.CQs += d.CQs - idle.devices[i].CQs
	}
	own := netlinkrdma.ResourceCounts{PDs: 1, MRs: 1, QPs: 1, CQs: 1}
	if testenv.TheRig().IWARP() {
		own.MRs++ // which a probe reads
	}
	if more != own && during.devices != nil {
		t.Errorf("during Check there is %+v more than before, and the peer has %+v", more, own)
	}
	client := value(Dial(ctx, l.Addr().String(), DialOptions{PrivateData: []byte("with memory")}))(t)
	server := value(l.Accept(ctx))(t)
	if pd == nil || server.PD() != pd || client.PD() == pd {
		t.Error("the connection's PD is not the one that Check has got")
	}
	must(t, client.Close(), server.Close(), l.Close())
	nothingLeft(t, before)
}

// TestUnacceptedMemory: a connection that the program has not accepted yet has memory for its first messages and
// no more, whatever its peer sends.
func TestUnacceptedMemory(t *testing.T) {
	attendAfter(t, 10*time.Millisecond)
	ctx := within(t)
	for name, large := range map[string]bool{"an idle peer": false, "a peer with a large message": true} {
		t.Run(name, func(t *testing.T) {
			l := newListener(t, ListenOptions{})
			client := value(Dial(ctx, l.Addr().String(), DialOptions{}))(t)
			sent := make(chan error, 1)
			go func() {
				if large {
					sent <- client.Send(ctx, pattern(1, 32<<10))
				} else {
					sent <- nil
				}
			}()
			var waiting *Conn
			for waiting == nil {
				must(t, ctx.Err())
				select {
				case waiting = <-l.ready:
				case <-time.After(time.Millisecond):
				}
			}
			for range 20 { // as its timer does
				time.Sleep(10 * time.Millisecond)
				waiting.checkLiveness()
			}
			if hasLarge(waiting) {
				t.Error("it has memory for large messages")
			}
			l.ready <- waiting
			server := value(l.Accept(ctx))(t)
			if large {
				if got := value(server.Recv(ctx))(t); len(got) != 32<<10 {
					t.Errorf("received %d bytes", len(got))
				}
			} else {
				awaitAttended(t, server)
			}
			must(t, <-sent, client.Close(), server.Close())
		})
	}
}

// TestIsolation: with a PD of its own, memory that one peer was told of is out of reach for another, although
// it knows the key. The connection with the wrong key ends; the other does not notice.
func TestIsolation(t *testing.T) {
	before := quiet(t)
	ctx := within(t)
	for _, c := range []struct {
		isolation Isolation
		listeners int  // of the two connections
		reaches   bool // the second peer reaches the first's memory
	}{{SharedPD, 1, true}, {SharedPD, 2, true}, {ListenerPD, 1, true}, {ListenerPD, 2, false}, {ConnPD, 1, false}, {ConnPD, 2, false}} {
		t.Run(fmt.Sprint(c.isolation, " ", c.listeners), func(t *testing.T) {
			o := ListenOptions{ConnOptions: ConnOptions{Isolation: c.isolation}}
			ls := []*Listener{value(Listen(ctx, net.JoinHostPort(first.String(), "0"), o))(t)}
			ls = append(ls, ls[0])
			if c.listeners == 2 {
				ls[1] = value(Listen(ctx, net.JoinHostPort(first.String(), "0"), o))(t)
			}
			var clients, servers []*Conn
			for _, l := range ls {
				clients = append(clients, value(Dial(ctx, l.Addr().String(), DialOptions{}))(t))
				servers = append(servers, value(l.Accept(ctx))(t))
			}
			buf := value(uverbs.AllocBuffer(4096, uverbs.BufferOptions{}))(t)
			mr := value(servers[0].PD().RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite | uverbs.AccessRemoteRead}))(t)
			its := value(uverbs.AllocBuffer(4096, uverbs.BufferOptions{}))(t)
			itsMR := value(clients[1].PD().RegMR(its, uverbs.MROptions{Access: uverbs.AccessLocalWrite}))(t)
			copy(its.Bytes(), "attack")
			err := clients[1].RDMAWrite(ctx, itsMR.SGE(0, 6), RemoteOf(mr))
			if got := string(buf.Bytes()[:6]) == "attack"; got != c.reaches || (err == nil) != c.reaches {
				t.Errorf("the memory was written: %v, %v", got, err)
			}
			must(t, clients[0].Send(ctx, []byte("still here")))
			if got := value(servers[0].Recv(ctx))(t); string(got) != "still here" {
				t.Errorf("received %q", got)
			}
			if !c.reaches {
				if _, err := servers[1].Recv(ctx); err == nil || strings.Contains(err.Error(), "EOF") {
					t.Errorf("the connection with the wrong key goes on: %v", err)
				}
			}
			must(t, mr.Close(), buf.Close(), itsMR.Close(), its.Close())
			for _, conn := range append(clients, servers...) {
				conn.Close()
			}
			must(t, ls[0].Close(), ls[1].Close())
		})
	}
	if _, err := Dial(ctx, firstBad, DialOptions{ConnOptions: ConnOptions{Isolation: ListenerPD}}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("Dial with ListenerPD: %v", err)
	}
	nothingLeft(t, before)
}

// TestProbeMemory: on iWARP each side knows the byte of the other's that its probes read, and nothing of other memory.
func TestProbeMemory(t *testing.T) {
	l := newListener(t, ListenOptions{})
	client, server := connect(t, l, DialOptions{})
	for _, c := range [][2]*Conn{{client, server}, {server, client}} {
		if !testenv.TheRig().IWARP() {
			if c[0].probeMR != nil || c[0].probeRemote != (Remote{}) || c[0].probeSGL() != nil {
				t.Errorf("there is memory for probes: %+v", c[0].probeRemote)
			}
			continue
		}
		if want := RemoteOf(c[1].probeMR); c[0].probeRemote != want || want.Length != 2 {
			t.Errorf("a probe reads %+v, the peer has %+v", c[0].probeRemote, want)
		}
		into := c[0].probeSGL()
		if len(into) != 1 || into[0] != c[0].probeMR.SGE(1, 1) {
			t.Errorf("a probe's answer goes to %+v", into)
		}
	}
}

// TestDisconnectAnswered: a peer that disconnects has its answer at once, though the program here does nothing.
func TestDisconnectAnswered(t *testing.T) {
	ctx := within(t)
	l := newListener(t, ListenOptions{PrivateData: make([]byte, remoteSize)})
	a := newAttacker(t, l)
	v := value(a.dial(ctx, greeting{kind: greetingRequest, depth: 16, size: 1000}.encode()))(t)
	server := value(l.Accept(ctx))(t)
	must(t, v.id.Disconnect())
	short, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if e, err := v.id.Next(short); err != nil || e.Type != rdmacm.EventDisconnected {
		t.Errorf("after Disconnect: %+v, %v", e, err)
	}
	if _, err := server.Recv(ctx); !errors.Is(err, syscall.ECONNRESET) { // a Close before this is known would return it
		t.Errorf("Recv after the peer's Disconnect: %v", err)
	}
	must(t, server.Close(), v.id.Close(), v.cq.Close())
}

// TestAddrShare: one address cannot take all connections of a listener.
func TestAddrShare(t *testing.T) {
	ctx := within(t)
	var told refusals
	l := newListener(t, ListenOptions{ConnOptions: small, MaxConns: 4, Refused: told.add})
	from := func(a netip.Addr) DialOptions {
		return DialOptions{ConnOptions: small, LocalAddr: netip.AddrPortFrom(a, 0)}
	}
	for range 3 {
		c := value(Dial(ctx, l.Addr().String(), from(second)))(t)
		defer c.Close()
		s := value(l.Accept(ctx))(t)
		defer s.Close()
	}
	expectRefusal(t, "more than the share of an address", told.dial(ctx, l, from(second)), refusedMany+refusedOfAddr)
	c := value(Dial(ctx, l.Addr().String(), from(first)))(t)
	defer c.Close()
}
