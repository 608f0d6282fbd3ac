package cm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// attacksEnv says how many attacks TestHostilePeers makes, if not as many as take some seconds.
const attacksEnv = "GOVERBS_ATTACKS"

// attacker is a program that speaks raw verbs and knows the protocol of Conn.
type attacker struct {
	t       *testing.T
	channel *Channel
	pd      *uverbs.PD
	mr      *uverbs.MR // the first half is sent from, the second received into
	to      netip.AddrPort
	rng     *rand.Rand
}

// newAttacker makes an attacker of a listener.
func newAttacker(t *testing.T, l *Listener) *attacker {
	t.Helper()
	pd, _ := openPD(t)
	mem := value(uverbs.AllocBuffer(2 * attackMemory))(t)
	mr := value(pd.RegMR(mem, uverbs.AccessLocalWrite))(t)
	t.Cleanup(func() { must(t, mr.Close(), mem.Close()) })
	return &attacker{t: t, channel: openKernel(t), pd: pd, mr: mr, to: netip.MustParseAddrPort(l.Addr().String())}
}

// victim is a connection of an attacker's.
type victim struct {
	*attacker
	id     *ID
	qp     *uverbs.QP
	cq     *uverbs.CQ
	remote Remote // memory that the server has told its peers of

	version uint8 // of the answer
}

// attack is something that a hostile peer does.
type attack struct {
	name  string
	does  func(ctx context.Context, v *victim) error // on a connection that is there; nil if there is none
	dials func(ctx context.Context, a *attacker) error
	ends  error // what the server's connection ends with
	goes  bool  // the peer then disconnects
}

// send posts a SEND of the first bytes of the memory.
func (v *victim) send(op uverbs.WROpcode, b []byte, change func(*uverbs.SendWR)) error {
	copy(v.mr.Bytes(), b)
	wr := uverbs.SendWR{Opcode: op, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{v.mr.SGE(0, len(b))}}
	if change != nil {
		change(&wr)
	}
	return v.qp.PostSend(wr)
}

// frame lays a message out.
func frame(h header, data []byte) []byte {
	b := make([]byte, headerSize, headerSize+len(data))
	h.put(b)
	return append(b, data...)
}

// sends is an attack that is one SEND.
func sends(b []byte) func(context.Context, *victim) error {
	return func(_ context.Context, v *victim) error { return v.send(uverbs.WRSend, b, nil) }
}

// attacks returns those that the device can make.
func attacks() []attack {
	request := greeting{kind: greetingRequest, depth: 16, size: 32 << 10, first: 4}
	data := []byte("a message that looks well")
	good := frame(header{kind: msgData, length: len(data)}, data)
	all := []attack{
		{name: "no header", does: sends([]byte{1, 0, 0}), ends: syscall.EPROTO},
		{name: "nothing", does: sends(nil), ends: syscall.EPROTO},
		{name: "kind 9", does: sends([]byte{9, 0, 0, 0, 0, 0, 0, 0}), ends: syscall.EPROTO},
		{name: "a length that is too long", does: sends([]byte{1, 0, 0, 0, 0, 0, 1, 0xb8, 'x'}), ends: syscall.EPROTO},
		{name: "a length that is too short", does: sends([]byte{1, 0, 0, 0, 0, 0, 0, 0, 'x'}), ends: syscall.EPROTO},
		{name: "forged credits", does: sends(frame(header{kind: msgCredits, credits: 60000}, nil)), ends: syscall.EPROTO},
		{name: "forged credits with data", does: sends(frame(header{kind: msgData, credits: 13, length: 1}, []byte{1})), ends: syscall.EPROTO},
		{name: "growth without end", does: sends(frame(header{kind: msgGrown, recvs: 1<<31 - 1}, nil)), ends: syscall.EPROTO},
		{name: "a flag", does: sends([]byte{1, 1, 0, 0, 0, 0, 0, 0}), ends: syscall.EPROTO},
		{name: "a message that is longer than the receive", does: sends(frame(header{kind: msgData, length: 2000}, make([]byte, 2000))), ends: errAny},
		{name: "a flood of control messages", goes: true, ends: errAny, does: func(ctx context.Context, v *victim) error {
			for range 200 {
				err := v.send(uverbs.WRSend, frame(header{kind: msgPad}, nil), nil)
				if err == nil {
					err = v.await(ctx)
				}
				if err != nil && testenv.TheRig().IWARP() {
					return nil // a message has found no receive, which ends the connection there
				}
				if err != nil {
					return err
				}
			}
			return nil
		}},
		{name: "gone", goes: true, ends: syscall.ECONNRESET, does: func(context.Context, *victim) error { return nil }},
		{name: "a greeting of another kind", dials: func(ctx context.Context, a *attacker) error {
			_, err := a.dial(ctx, greeting{kind: greetingAnswer, depth: 1, size: 1}.encode())
			return err
		}},
		{name: "no greeting", dials: func(ctx context.Context, a *attacker) error {
			b := make([]byte, a.rng.IntN(50))
			for i := range b {
				b[i] = byte(a.rng.Uint32())
			}
			_, err := a.dial(ctx, b)
			return err
		}},
	}
	if testenv.TheRig().IWARP() { // without immediate data; and siw's kernel does not tell programs of invalidation
		return all
	}
	imm := func(b []byte, size int) func(context.Context, *victim) error {
		return func(_ context.Context, v *victim) error {
			return v.send(uverbs.WRRDMAWriteWithImm, b, func(wr *uverbs.SendWR) {
				wr.SGL[0].Length = uint32(size)
				wr.RemoteAddr, wr.RKey, wr.Imm = v.remote.Addr, v.remote.RKey, 7
			})
		}
	}
	return append(all,
		attack{name: "a WRITE with immediate data", does: imm(good, len(good)), ends: syscall.EPROTO},
		attack{name: "a long WRITE with immediate data", does: imm(good, attackMemory), ends: syscall.EPROTO},
		attack{name: "a WRITE of nothing with immediate data", does: imm(nil, 0), ends: syscall.EPROTO},
		attack{name: "a SEND with immediate data", ends: syscall.EPROTO, does: func(_ context.Context, v *victim) error {
			return v.send(uverbs.WRSendWithImm, good, func(wr *uverbs.SendWR) { wr.Imm = 7 })
		}},
		attack{name: "a SEND that invalidates", ends: errAny, does: func(_ context.Context, v *victim) error {
			return v.send(uverbs.WRSendWithInv, good, func(wr *uverbs.SendWR) { wr.InvalidateRKey = v.remote.RKey })
		}},
		attack{name: "a request that stays half open", dials: func(ctx context.Context, a *attacker) error {
			id, err := a.channel.NewID(TCP)
			if err != nil {
				return err
			}
			if err := id.ResolveWait(ctx, Addr{}, AddrOf(a.to)); err != nil {
				return errors.Join(err, id.Close())
			}
			err = id.Connect(ConnParam{PrivateData: request.encode(), QPN: 1<<23 + uint32(id.uid)})
			if err == nil {
				_, err = id.Wait(ctx)
			}
			halfOpens.Store(id, true) // stays until the end
			return err
		}},
	)
}

// halfOpens are IDs of half-open requests.
var halfOpens sync.Map

// attackMemory is how much memory the server tells its peers of, in bytes.
const attackMemory = 64 << 10

// errAny stands for whatever the device makes of an attack that it refuses itself.
var errAny = errors.New("an error")

// dial makes a connection with a greeting.
func (a *attacker) dial(ctx context.Context, greeting []byte) (v *victim, err error) {
	id, err := a.channel.NewID(TCP)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, id.Close())
		}
	}()
	if err := id.ResolveWait(ctx, Addr{}, AddrOf(a.to)); err != nil {
		return nil, err
	}
	v = &victim{attacker: a, id: id}
	if v.cq, err = a.pd.Device().CreateCQ(uverbs.CQOptions{MaxCQE: 64}); err != nil {
		return nil, err
	}
	if v.qp, err = id.CreateQP(a.pd, uverbs.QPOptions{SendCQ: v.cq, RecvCQ: v.cq, MaxSendWR: 8, MaxRecvWR: 8}); err != nil {
		return nil, errors.Join(err, v.cq.Close())
	}
	for range 8 {
		if err := v.qp.PostRecv(1, a.mr.SGE(attackMemory, 512)); err != nil {
			return nil, err
		}
	}
	e, err := id.ConnectWait(ctx, ConnParam{PrivateData: greeting, RetryCount: 6, RNRRetryCount: 6, ResponderResources: 1, InitiatorDepth: 1})
	if err != nil {
		return nil, errors.Join(err, id.Close(), v.cq.Close())
	}
	h, err := parseGreeting(e.Param.PrivateData, greetingAnswer)
	if v.version = h.version; err == nil {
		err = v.remote.UnmarshalBinary(h.data)
	}
	return v, err
}

// await waits until what was sent has its completion.
func (v *victim) await(ctx context.Context) error {
	var wcs [4]uverbs.WC
	for ctx.Err() == nil {
		n, err := v.cq.Poll(wcs[:])
		if err != nil {
			return err
		}
		for _, wc := range wcs[:n] {
			if wc.ID == 0 {
				return wc.Err()
			}
		}
		runtime.Gosched()
	}
	return ctx.Err()
}

// outcomes are what the server's connections have ended with, by the addresses of their peers.
type outcomes struct {
	mu    sync.Mutex
	ended map[string]chan error
}

// of returns where the outcome of a connection comes.
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

// TestHostilePeers: attacks on a listener, many at once, while honest clients work. No honest client notices,
// every attack ends its own connection with the error that it should, and nothing is left.
func TestHostilePeers(t *testing.T) {
	before := quiet(t)
	n := 160
	if testenv.Slow() {
		n = 60
	}
	if s := os.Getenv(attacksEnv); s != "" {
		n = value(strconv.Atoi(s))(t)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*timeout+time.Duration(n)*timeout/10)
	defer cancel()

	// The server sends back what comes. Its memory is for all peers to write to.
	var register sync.Once
	var buf *uverbs.Buffer
	var mr *uverbs.MR
	l := value(Listen(ctx, "10.1.0.1:0", ListenOptions{HalfOpen: 16, Check: func(r *Request) ([]byte, error) {
		pd, err := r.PD()
		if err != nil {
			return nil, err
		}
		register.Do(func() {
			buf = value(uverbs.AllocBuffer(attackMemory))(t)
			mr = value(pd.RegMR(buf, uverbs.AccessLocalWrite|uverbs.AccessRemoteWrite))(t)
		})
		return RemoteOf(mr).MarshalBinary()
	}}))(t)
	ended := outcomes{ended: map[string]chan error{}}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept(ctx)
			if err != nil {
				return
			}
			serving.Go(func() {
				var err error
				for err == nil {
					var msg []byte
					if msg, err = c.Recv(ctx); err == nil {
						err = c.Send(ctx, msg)
					}
				}
				c.Close()
				select {
				case ended.of(c.RemoteAddr().String()) <- err:
				case <-ctx.Done():
				}
			})
		}
	})

	// Honest clients.
	over := make(chan struct{})
	var honest sync.WaitGroup
	var exchanged atomic.Int64
	for i := range 3 {
		honest.Go(func() {
			c, err := Dial(ctx, l.Addr().String(), DialOptions{})
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
		})
	}

	// Attackers.
	dev := value(uverbs.Open(testenv.TheRig().Devices[0]))(t)
	pd := value(dev.AllocPD())(t)
	channel := openKernel(t)
	list := attacks()
	var heap atomic.Uint64
	var attacking sync.WaitGroup
	var next atomic.Int64
	seed := uint64(time.Now().UnixNano())
	t.Logf("%d attacks of %d kinds, seed %d", n, len(list), seed)
	for w := range 4 {
		mem := value(uverbs.AllocBuffer(2 * attackMemory))(t)
		a := &attacker{t: t, channel: channel, pd: pd, to: netip.MustParseAddrPort(l.Addr().String()), rng: rand.New(rand.NewPCG(seed, uint64(w)))}
		a.mr = value(pd.RegMR(mem, uverbs.AccessLocalWrite))(t)
		attacking.Go(func() {
			defer mem.Close()
			defer a.mr.Close()
			for {
				i := int(next.Add(1)) - 1
				if i >= n || t.Failed() {
					return
				}
				if i == n/4 {
					heap.Store(liveHeap())
				}
				err := a.make(ctx, list[i%len(list)], &ended)
				for again := 0; again < 3 && errors.Is(err, errFirstLost); again++ {
					err = a.make(ctx, list[i%len(list)], &ended)
				}
				if err != nil {
					t.Errorf("attack %d, %s: %v", i, list[i%len(list)].name, err)
				}
			}
		})
	}
	attacking.Wait()
	now := liveHeap()
	close(over)
	honest.Wait()
	t.Logf("%d exchanges of honest clients; %d KiB of heap after a quarter of the attacks, %d KiB after all", exchanged.Load(), heap.Load()>>10, now>>10)
	if exchanged.Load() == 0 {
		t.Error("no honest client has exchanged anything")
	}
	if now > heap.Load()+(4<<20) {
		t.Errorf("the heap has grown from %d to %d bytes", heap.Load(), now)
	}
	halfOpens.Range(func(id, _ any) bool {
		must(t, id.(*ID).Close())
		halfOpens.Delete(id)
		return true
	})
	must(t, l.Close())
	serving.Wait()
	must(t, channel.Close(), mr.Close(), buf.Close(), pd.Close(), dev.Close())
	nothingLeft(t, before)
}

// liveHeap returns how much of the heap is in use, in bytes.
func liveHeap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// errFirstLost is the end of an attack that did not arrive. Soft iWARP loses a first message that comes
// while the server's kernel accepts, more often on busy processors.
var errFirstLost = errors.New("the server's kernel has lost the first message")

// make makes an attack, and compares its outcome at the server.
func (a *attacker) make(ctx context.Context, what attack, ended *outcomes) error {
	if what.dials != nil {
		if err := what.dials(ctx, a); err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
			return err
		}
		return nil
	}
	v, err := a.dial(ctx, greeting{kind: greetingRequest, depth: 16, size: 32 << 10, first: 4}.encode())
	if err != nil {
		return err
	}
	own, err := v.id.Addrs()
	if err == nil {
		err = what.does(ctx, v)
	}
	if err == nil && what.goes {
		v.id.Disconnect() // it fails if the connection is over
	}
	if err != nil {
		return errors.Join(err, v.id.Close(), v.cq.Close())
	}
	select {
	case err = <-ended.of(own.Local.String()):
		ended.forget(own.Local.String())
		switch expected := errors.Is(err, what.ends) || what.ends == errAny && err != nil && err != io.EOF; {
		case expected:
			err = nil
		case onIWARP(v.qp.Device()) && errors.Is(err, syscall.ETIMEDOUT) && strings.Contains(err.Error(), "has to send first"):
			err = errFirstLost
		default:
			err = fmt.Errorf("the server's connection has ended with %v, want %w", err, what.ends)
		}
	case <-ctx.Done():
		err = fmt.Errorf("the server's connection does not end: %w", ctx.Err())
	}
	return errors.Join(err, v.id.Close(), v.cq.Close())
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
