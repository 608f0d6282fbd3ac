package cm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/internal/redial"
	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// attacksEnv sets the number of attacks in TestHostilePeers. The default is three of each kind.
const attacksEnv = "GOVERBS_ATTACKS"

// outcomes holds the errors that ended the server's connections, by the addresses of their peers.
type outcomes struct {
	mu    sync.Mutex
	ended map[string]chan error
}

// of returns the channel for the outcome of the connection with a peer.
func (o *outcomes) of(addr string) chan error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended[addr] == nil {
		o.ended[addr] = make(chan error, 1)
	}
	return o.ended[addr]
}

// forget makes room for another connection with the address.
func (o *outcomes) forget(addr string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.ended, addr)
}

// attackedServer sends back what its peers send. All peers may write to its memory.
type attackedServer struct {
	l        *Listener
	register sync.Once
	buf      *uverbs.Buffer
	mr       *uverbs.MR
	ended    outcomes
	serving  sync.WaitGroup
}

// newAttackedServer starts a server, which serves until its listener is closed.
func newAttackedServer(t *testing.T, ctx context.Context) *attackedServer {
	t.Helper()
	s := &attackedServer{ended: outcomes{ended: map[string]chan error{}}}
	s.l = value(Listen(ctx, firstAny, ListenOptions{HalfOpen: 16, Refused: s.refused, Check: func(r *Request) ([]byte, error) {
		pd, err := r.PD()
		if err != nil {
			return nil, err
		}
		s.register.Do(func() {
			s.buf = value(uverbs.AllocBuffer(attackMemory, uverbs.BufferOptions{}))(t)
			s.mr = value(pd.RegMR(s.buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite}))(t)
		})
		return RemoteOf(s.mr).MarshalBinary()
	}}))(t)
	s.serving.Go(func() {
		for {
			c, err := s.l.Accept(ctx)
			if err != nil {
				return
			}
			s.serving.Go(func() { s.serve(ctx, c) })
		}
	})
	return s
}

// refused records the error of a connection that Accept does not return, because the peer has disconnected
// before it was known to be ready. That happens if packets are lost.
func (s *attackedServer) refused(remote rdmacm.Addr, err error) {
	if errors.Is(err, syscall.ECONNRESET) {
		select {
		case s.ended.of(remote.String()) <- err:
		default: // nobody waits for earlier ones either
		}
	}
}

// serve sends back what comes on a connection, and records the error that ends it.
func (s *attackedServer) serve(ctx context.Context, c *Conn) {
	var err error
	for err == nil {
		var msg []byte
		if msg, err = c.Recv(ctx); err == nil {
			err = c.Send(ctx, msg)
		}
	}
	c.Close()
	select {
	case s.ended.of(c.RemoteAddr().String()) <- err:
	case <-ctx.Done():
	}
}

// exchangeUntil is honest client number i: it exchanges messages with the server at addr until over
// is closed.
func exchangeUntil(t *testing.T, ctx context.Context, addr string, i int, over <-chan struct{}, exchanged *atomic.Int64) {
	c, err := Dial(ctx, addr, DialOptions{})
	if err != nil {
		t.Errorf("honest client %d: %v", i, err)
		return
	}
	defer c.Close()
	for k := 0; ; k++ {
		msg := binary.BigEndian.AppendUint64(bytes.Repeat([]byte{byte(i)}, k%600), uint64(k))
		if err := c.Send(ctx, msg); err != nil {
			t.Errorf("honest client %d, message %d: %v", i, k, err)
			return
		}
		if got, err := c.Recv(ctx); err != nil || !bytes.Equal(got, msg) {
			t.Errorf("honest client %d, message %d is %q: %v", i, k, got, err)
			return
		}
		exchanged.Add(1)
		select {
		case <-over:
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// attackRun is n attacks, which several attackers make in turn.
type attackRun struct {
	n     int
	list  []attack
	ended *outcomes
	next  atomic.Int64
	early atomic.Pointer[memoryInUse] // after a quarter of the attacks
}

// memoryInUse is how much memory this process uses, in bytes.
type memoryInUse struct {
	heap       uint64 // the Go heap
	small      uint64 // slots in use for small receives and control messages
	registered uint64 // registered for messages
	pinned     uint64 // what the kernel counts as pinned (VmPin); 0 with software devices
}

// measureMemory measures it.
func measureMemory(t *testing.T) (m memoryInUse) {
	m.heap = liveHeap()
	devices.mu.Lock()
	all := slices.Collect(maps.Values(devices.open))
	devices.mu.Unlock()
	for _, d := range all {
		d.mu.Lock()
		shared := d.shared
		d.mu.Unlock()
		if shared == nil {
			continue
		}
		for _, p := range []*pool{&shared.pool, &shared.first} {
			p.mu.Lock()
			for _, r := range p.regions {
				m.registered += uint64(len(r.bytes))
			}
			if p == &shared.first {
				m.small += uint64(p.used)
			}
			p.mu.Unlock()
		}
	}
	_, text, _ := strings.Cut(string(value(os.ReadFile("/proc/self/status"))(t)), "\nVmPin:")
	m.pinned = value(strconv.ParseUint(strings.Fields(text)[0], 10, 64))(t) << 10
	return m
}

// isFlat fails the test if more memory is in use than earlier. The honest connections may have grown in
// between.
func (m memoryInUse) isFlat(t *testing.T, early memoryInUse) {
	t.Helper()
	for _, f := range []struct {
		what              string
		before, now, more uint64
	}{
		{"heap", early.heap, m.heap, 4 << 20},
		{"memory of small messages", early.small, m.small, 256 << 10},
		{"registered memory", early.registered, m.registered, 16 << 20},
		{"pinned memory", early.pinned, m.pinned, 16 << 20},
	} {
		t.Logf("%s: %d KiB after a quarter of the attacks, %d KiB after all", f.what, f.before>>10, f.now>>10)
		if f.now > f.before+f.more {
			t.Errorf("the %s has grown from %d to %d bytes", f.what, f.before, f.now)
		}
	}
}

// makeBy has an attacker make attacks until all are made or the test has failed.
func (r *attackRun) makeBy(ctx context.Context, a *attacker) {
	for {
		i := int(r.next.Add(1)) - 1
		if i >= r.n || a.t.Failed() {
			return
		}
		if i == r.n/4 {
			m := measureMemory(a.t)
			r.early.Store(&m)
		}
		what := r.list[i%len(r.list)]
		try := func() error { return a.make(ctx, what, r.ended) }
		err := redial.Retry(ctx, new(DialOptions).waits, try) // rxe of Linux 5.10 uses the number of a QP again at once
		for again := 0; again < 3 && errors.Is(err, errFirstLost); again++ {
			err = try()
		}
		if err != nil {
			a.t.Errorf("attack %d, %s: %v", i, what.name, err)
		}
	}
}

// TestHostilePeers: attacks on a listener, many at once, while honest clients work. No honest client notices,
// every attack ends its own connection with the error that it should, and nothing is left.
func TestHostilePeers(t *testing.T) {
	before := quiet(t)
	list := attacks()
	n := 3 * len(list)
	if s := os.Getenv(attacksEnv); s != "" {
		n = value(strconv.Atoi(s))(t)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*timeout+time.Duration(n)*timeout/10)
	defer cancel()

	s := newAttackedServer(t, ctx)
	addr := s.l.Addr().String()
	over := make(chan struct{})
	var honest sync.WaitGroup
	var exchanged atomic.Int64
	for i := range 3 {
		honest.Go(func() { exchangeUntil(t, ctx, addr, i, over, &exchanged) })
	}

	dev := value(uverbs.Open(testenv.TheRig().Devices[0], uverbs.OpenOptions{}))(t)
	pd := value(dev.AllocPD())(t)
	channel := openKernel(t)
	all := &attackRun{n: n, list: list, ended: &s.ended}
	var attacking sync.WaitGroup
	seed := uint64(time.Now().UnixNano())
	t.Logf("%d attacks of %d kinds, seed %d", n, len(list), seed)
	for w := range 4 {
		mem := value(uverbs.AllocBuffer(2*attackMemory, uverbs.BufferOptions{}))(t)
		a := &attacker{t: t, channel: channel, pd: pd, to: netip.MustParseAddrPort(addr), rng: rand.New(rand.NewPCG(seed, uint64(w)))}
		a.mr = value(pd.RegMR(mem, uverbs.MROptions{Access: uverbs.AccessLocalWrite}))(t)
		attacking.Go(func() {
			defer mem.Close()
			defer a.mr.Close()
			all.makeBy(ctx, a)
		})
	}
	attacking.Wait()
	now := measureMemory(t)
	close(over)
	honest.Wait()
	t.Logf("%d exchanges of honest clients", exchanged.Load())
	if exchanged.Load() == 0 {
		t.Error("no honest client has exchanged anything")
	}
	if early := all.early.Load(); early != nil { // or the attacks have failed before
		now.isFlat(t, *early)
	}
	halfOpens.Range(func(id, _ any) bool {
		must(t, id.(*rdmacm.ID).Close())
		halfOpens.Delete(id)
		return true
	})
	must(t, s.l.Close())
	s.serving.Wait()
	must(t, channel.Close(), s.mr.Close(), s.buf.Close(), pd.Close(), dev.Close())
	nothingLeft(t, before)
}

// liveHeap returns how much of the heap is in use, in bytes.
func liveHeap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestLaterVersion: a peer of a later version, which speaks this one too, is told this version and understood.
func TestLaterVersion(t *testing.T) {
	ctx := within(t)
	l := newListener(t, ListenOptions{PrivateData: make([]byte, remoteSize)})
	a := newAttacker(t, l)
	v := value(a.dial(ctx, greeting{version: 3, kind: greetingRequest, depth: 16, size: 1000}.encode()))(t)
	if v.version != 2 {
		t.Errorf("the answer has version %d", v.version)
	}
	server := value(l.Accept(ctx))(t)
	must(t, v.send(uverbs.WRSend, frame(header{kind: msgData, length: 2}, []byte("hi")), nil), v.await(ctx))
	if got := value(server.Recv(ctx))(t); string(got) != "hi" {
		t.Errorf("received %q", got)
	}
	must(t, server.Send(ctx, []byte("welcome")))
	var wcs [1]uverbs.WC
	for n := 0; n == 0; n = value(v.cq.Poll(wcs[:]))(t) {
		must(t, ctx.Err())
	}
	want := frame(header{kind: msgData, credits: 1, length: 7}, []byte("welcome"))
	if got := a.mr.Bytes()[attackMemory:][:wcs[0].ByteLen]; wcs[0].Err() != nil || !bytes.Equal(got, want) {
		t.Errorf("the peer is sent %q, %v, want %q", got, wcs[0].Err(), want)
	}
	must(t, v.send(uverbs.WRSend, frame(header{kind: msgEnd, closesRead: true}, nil), nil))
	if _, err := server.Recv(ctx); err != io.EOF {
		t.Errorf("after the end: %v", err)
	}
	must(t, server.Close(), v.id.Close(), v.cq.Close())
}
