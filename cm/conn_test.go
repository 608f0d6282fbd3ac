package cm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/internal/cmtest"
	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// within returns a context for a whole test.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 12*timeout)
	t.Cleanup(cancel)
	return ctx
}

// newListener listens on the first device.
func newListener(t *testing.T, o ListenOptions) *Listener {
	t.Helper()
	testenv.Guest(t)
	l := value(Listen(within(t), net.JoinHostPort(first.String(), "0"), o))(t)
	t.Cleanup(func() { must(t, l.Close(), l.Close()) })
	return l
}

// connect dials a listener and accepts.
func connect(t *testing.T, l *Listener, o DialOptions) (client, server *Conn) {
	t.Helper()
	ctx := within(t)
	client = value(Dial(ctx, l.Addr().String(), o))(t)
	server = value(l.Accept(ctx))(t)
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

// waits are the ways to wait.
var waits = []WaitMode{WaitSpinThenPark, WaitSpin, WaitPark}

// TestConn: messages, credits, what each side learns of the other.
func TestConn(t *testing.T) {
	for _, wait := range waits {
		t.Run(wait.String(), func(t *testing.T) {
			ctx := within(t)
			l := newListener(t, ListenOptions{PrivateData: []byte("welcome"), ConnOptions: ConnOptions{MessageSize: 1000, Depth: 3, Tuning: Tuning{SendDepth: 2, Wait: wait}}})
			client, server := connect(t, l, DialOptions{PrivateData: []byte("hello"), ConnOptions: ConnOptions{MessageSize: 2000, Depth: 1, Tuning: Tuning{SendDepth: 3, Wait: wait}}})
			if string(client.PrivateData()) != "welcome" || string(server.PrivateData()) != "hello" {
				t.Errorf("private data is %q and %q", client.PrivateData(), server.PrivateData())
			}
			if client.MaxMessage() != 1000 || server.MaxMessage() != 1000 {
				t.Errorf("messages have %d and %d bytes at most", client.MaxMessage(), server.MaxMessage())
			}
			if client.RemoteAddr().String() != l.Addr().String() || server.RemoteAddr().String() != client.LocalAddr().String() {
				t.Errorf("addresses are %s to %s and %s to %s", client.LocalAddr(), client.RemoteAddr(), server.LocalAddr(), server.RemoteAddr())
			}
			for i := range 50 { // ping-pong
				msg := bytes.Repeat([]byte{byte(i)}, i*20)
				must(t, client.Send(ctx, msg))
				got := value(server.Recv(ctx))(t)
				if !bytes.Equal(got, msg) {
					t.Fatalf("message %d is %x", i, got)
				}
				must(t, server.Send(ctx, got))
				if got = value(client.Recv(ctx))(t); !bytes.Equal(got, msg) {
					t.Fatalf("answer %d is %x", i, got)
				}
			}
			flood(t, ctx, client, server)
			flood(t, ctx, server, client)
			var arg *rdmacm.ArgError
			if err := client.Send(ctx, make([]byte, 1001)); !errors.As(err, &arg) || arg.Field != "msg" {
				t.Errorf("a message that is too long: %v", err)
			}
			must(t, client.Flush(ctx), client.Close(), client.Close())
			if _, err := server.Recv(ctx); err != io.EOF {
				t.Errorf("after the end: %v", err)
			}
			must(t, server.Close())
			for _, err := range []error{client.Send(ctx, nil), client.Flush(ctx), client.CloseWrite(ctx), client.RDMAWrite(ctx, uverbs.SGE{}, Remote{})} {
				if !errors.Is(err, net.ErrClosed) || !errors.Is(err, os.ErrClosed) {
					t.Errorf("after Close: %v", err)
				}
			}
		})
	}
}

// flood sends faster than the peer takes.
func flood(t *testing.T, ctx context.Context, from, to *Conn) {
	t.Helper()
	const n = 300
	sent := make(chan error, 1)
	go func() {
		for i := range n {
			if err := from.Send(ctx, binary.BigEndian.AppendUint32(nil, uint32(i))); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	for i := range n {
		if i%50 == 0 {
			time.Sleep(time.Millisecond)
		}
		if got := value(to.Recv(ctx))(t); binary.BigEndian.Uint32(got) != uint32(i) {
			t.Fatalf("message %d is %x", i, got)
		}
	}
	must(t, <-sent)
}

// TestConnBothWays: both sides send and receive at once, with messages of any size.
func TestConnBothWays(t *testing.T) {
	ctx := within(t)
	l := newListener(t, ListenOptions{ConnOptions: ConnOptions{MessageSize: 5000, Depth: 4}})
	client, server := connect(t, l, DialOptions{ConnOptions: ConnOptions{MessageSize: 5000, Depth: 5}})
	var all sync.WaitGroup
	for i, pair := range [][2]*Conn{{client, server}, {server, client}} {
		const n = 500
		all.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(i)))
			for range n {
				if err := pair[0].Send(ctx, fillRandom(r)); err != nil {
					t.Error(err)
					return
				}
			}
			if err := pair[0].CloseWrite(ctx); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(i)))
			for j := range n {
				got, err := pair[1].Recv(ctx)
				if err != nil || !bytes.Equal(got, fillRandom(r)) {
					t.Errorf("message %d of %d bytes is wrong: %v", j, len(got), err)
					return
				}
			}
			if _, err := pair[1].Recv(ctx); err != io.EOF {
				t.Errorf("after the end: %v", err)
			}
		})
	}
	all.Wait()
	if err := client.Send(ctx, nil); !errors.Is(err, syscall.EPIPE) || !strings.Contains(err.Error(), "this side") {
		t.Errorf("Send after CloseWrite: %v", err)
	}
	must(t, client.Close(), server.Close())
}

// fillRandom returns a message of random size and content.
func fillRandom(r *rand.Rand) []byte {
	b := make([]byte, r.IntN(5001))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// TestConnRDMA: each operation, on memory that was advertised in a message.
func TestConnRDMA(t *testing.T) {
	ctx := within(t)
	l := newListener(t, ListenOptions{})
	client, server := connect(t, l, DialOptions{ConnOptions: ConnOptions{Tuning: Tuning{Transfers: 2}}})
	region := func(c *Conn, access uverbs.Access) *uverbs.MR {
		buf := value(uverbs.AllocBuffer(8192, uverbs.BufferOptions{}))(t)
		mr := value(c.PD().RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite | access}))(t)
		t.Cleanup(func() { must(t, mr.Close(), buf.Close()) })
		return mr
	}
	far := region(server, uverbs.AccessRemoteWrite|uverbs.AccessRemoteRead|uverbs.AccessRemoteAtomic)
	near := region(client, 0)
	must(t, server.Send(ctx, value(RemoteOf(far).MarshalBinary())(t)))
	var remote Remote
	must(t, remote.UnmarshalBinary(value(client.Recv(ctx))(t)))
	copy(near.Bytes(), "written")
	must(t, client.RDMAWrite(ctx, near.SGE(0, 7), remote.At(100)))
	if string(far.Bytes()[100:107]) != "written" {
		t.Errorf("the peer has %q", far.Bytes()[100:107])
	}
	must(t, client.RDMARead(ctx, near.SGE(4096, 7), remote.At(100)))
	if string(near.Bytes()[4096:4103]) != "written" {
		t.Errorf("read %q", near.Bytes()[4096:4103])
	}
	testAtomics(t, client, near, far, remote)
	var arg *rdmacm.ArgError
	if err := client.RDMAWrite(ctx, near.SGE(0, 200), remote.At(8000)); !errors.As(err, &arg) {
		t.Errorf("beyond the peer's memory: %v", err)
	}
	var all sync.WaitGroup // more at once than there may be
	for i := range 8 {
		all.Go(func() {
			if err := client.RDMAWrite(ctx, near.SGE(i*64, 64), remote.At(uint32(i*64))); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	// An access that the peer has not allowed ends the connection, on both sides.
	remote.RKey++
	if err := client.RDMAWrite(ctx, near.SGE(0, 7), remote); err == nil || !strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("a key that is wrong: %v", err)
	}
	if err := client.Send(ctx, nil); err == nil {
		t.Error("the connection goes on")
	}
	client.Close()
	if _, err := server.Recv(ctx); err == nil {
		t.Error("the connection goes on for the peer")
	}
}

// testAtomics uses those that the device has.
func testAtomics(t *testing.T, client *Conn, near, far *uverbs.MR, remote Remote) {
	t.Helper()
	ctx := within(t)
	if testenv.Lacks(t, client.FetchAdd(ctx, near.SGE(8, 8), remote.At(8), 0)) {
		if !testenv.Lacks(t, client.CompareSwap(ctx, near.SGE(8, 8), remote.At(8), 0, 0)) {
			t.Error("there is one atomic without the other")
		}
		return
	}
	word := func(mr *uverbs.MR) uint64 { return binary.NativeEndian.Uint64(mr.Bytes()[8:]) }
	must(t, client.FetchAdd(ctx, near.SGE(8, 8), remote.At(8), 5), client.FetchAdd(ctx, near.SGE(8, 8), remote.At(8), 6))
	if word(near) != 5 || word(far) != 11 {
		t.Errorf("fetch and add: %d here, %d there", word(near), word(far))
	}
	must(t, client.CompareSwap(ctx, near.SGE(8, 8), remote.At(8), 11, 77))
	if word(near) != 11 || word(far) != 77 {
		t.Errorf("compare and swap: %d here, %d there", word(near), word(far))
	}
}

// TestConnRefused: who is refused learns why.
func TestConnRefused(t *testing.T) {
	ctx := within(t)
	l := newListener(t, ListenOptions{Check: func(r *Request) ([]byte, error) {
		if string(r.PrivateData) != "sesame" {
			return nil, fmt.Errorf("%q from %s is not the word", r.PrivateData, r.Remote.IP)
		}
		return []byte("come in"), nil
	}})
	to := l.Addr().String()
	_, err := Dial(ctx, to, DialOptions{PrivateData: []byte("barley")})
	var refused *RefusedError
	if !errors.As(err, &refused) || !errors.Is(err, syscall.ECONNREFUSED) || refused.Why != fmt.Sprintf("%q from %s is not the word", "barley", first) && refused.Why != fmt.Sprintf("%q from %s is not the word", "barley", second) {
		t.Errorf("Dial: %v", err)
	}
	client, _ := connect(t, l, DialOptions{PrivateData: []byte("sesame")})
	if string(client.PrivateData()) != "come in" {
		t.Errorf("private data is %q", client.PrivateData())
	}
	type bad struct {
		to  string
		is  error
		say string
	}
	all := []bad{
		{firstBad, syscall.ECONNREFUSED, "nobody listens"},
		{"192.0.2.1:9", cmtest.NoRoute(), "192.0.2.1:9"},
		{"10.1.0.1", nil, "missing port"},
		{"10.1.0.1:http9", nil, "unknown port"},
	}
	if !loopbackReached() {
		all = append(all, bad{"127.0.0.1:9", syscall.ENODEV, "loopback"})
	}
	for _, c := range all {
		if _, err := Dial(ctx, c.to, DialOptions{}); err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.say) {
			t.Errorf("Dial %s: %v", c.to, err)
		}
	}
	var arg *rdmacm.ArgError
	for field, o := range map[string]DialOptions{
		"PrivateData": {PrivateData: make([]byte, MaxDialData+1)}, "Depth": {ConnOptions: ConnOptions{Depth: -1}}, "MessageSize": {ConnOptions: ConnOptions{MessageSize: maxMessageSize + 1}},
		"RetryCount": {ConnOptions: ConnOptions{Tuning: Tuning{RetryCount: 8}}}, "Wait": {ConnOptions: ConnOptions{Tuning: Tuning{Wait: 3}}}, "Spin": {ConnOptions: ConnOptions{Tuning: Tuning{Spin: -1}}},
		"Linger": {ConnOptions: ConnOptions{Linger: -1}}, "AckTimeout": {ConnOptions: ConnOptions{Tuning: Tuning{AckTimeout: -1}}},
		"Timeout": {Timeout: -1},
	} {
		if _, err := Dial(ctx, to, o); !errors.As(err, &arg) || arg.Field != field {
			t.Errorf("Dial with %s: %v", field, err)
		}
	}
	// The port is taken, also by who listens on more addresses, or would; a context ends.
	for _, addr := range []string{to, fmt.Sprintf(":%d", l.addr.Port), fmt.Sprintf("0.0.0.0:%d", l.addr.Port)} {
		if _, err := Listen(ctx, addr, ListenOptions{}); !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "taken") {
			t.Errorf("Listen on %s: %v", addr, err)
		}
	}
	everywhere := value(Listen(ctx, ":0", ListenOptions{}))(t)
	if _, err := Listen(ctx, fmt.Sprintf("%s:%d", first, everywhere.addr.Port), ListenOptions{}); !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "taken") {
		t.Errorf("Listen beside a listener on all addresses: %v", err)
	}
	must(t, everywhere.Close())
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := Dial(short, noHost.String()+":9", DialOptions{}); err == nil {
		t.Error("Dial of nobody")
	}
	for what, dial := range map[string]func(context.Context) error{
		"Dial": func(ctx context.Context) error {
			_, err := Dial(ctx, noHost.String()+":9", DialOptions{Timeout: 20 * time.Millisecond})
			return err
		},
		"DialPacket": func(ctx context.Context) error {
			_, err := DialPacket(ctx, noHost.String()+":9", PacketOptions{Timeout: 20 * time.Millisecond})
			return err
		},
	} {
		if err := dial(context.WithoutCancel(ctx)); !errors.Is(err, syscall.ETIMEDOUT) || !strings.Contains(err.Error(), "no answer for 20ms") {
			t.Errorf("%s of nobody, with a timeout: %v", what, err)
		}
	}
	if _, err := l.Accept(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Accept: %v", err)
	}
	if _, err := client.Recv(short); !errors.Is(err, os.ErrDeadlineExceeded) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Recv: %v", err)
	}
}

// TestConnProtocolViolations: a peer that does not speak the protocol.
func TestConnProtocolViolations(t *testing.T) {
	ctx := within(t)
	l := newListener(t, ListenOptions{})
	c := openKernel(t)
	pd, cq := openPD(t)
	buf := value(uverbs.AllocBuffer(4096, uverbs.BufferOptions{}))(t)
	mr := value(pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite}))(t)
	defer func() { must(t, mr.Close(), buf.Close()) }()
	dial := func(greeting []byte) (*rdmacm.ID, *uverbs.QP, *rdmacm.Event, error) {
		id := newID(t, c, rdmacm.TCP)
		must(t, id.ResolveWait(ctx, rdmacm.Addr{}, l.addr))
		qp := value(id.CreateQP(pd, uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}))(t)
		must(t, qp.PostRecv(1, mr.SGE(2048, 2048)), qp.PostRecv(2, mr.SGE(2048, 2048))) // the peer sends the address of its memory, and that it ends
		e, err := id.ConnectWait(ctx, rdmacm.ConnParam{PrivateData: greeting, RetryCount: 6, RNRRetryCount: 6})
		return id, qp, e, err
	}
	good := greeting{kind: greetingRequest, depth: 4, size: 100}.encode()
	for name, b := range map[string][]byte{
		"nothing": nil, "text": []byte("GET / HTTP/1.0\r\n\r\n"), "version 1": {'g', 'v', 1, 1, 0, 4, 0, 0, 0, 0, 0, 100},
		"an answer": {'g', 'v', 2, 2, 0, 4, 0, 0, 0, 0, 0, 100}, "no room": {'g', 'v', 2, 1, 0, 0, 0, 0, 0, 0, 0, 100},
		"no size": {'g', 'v', 2, 1, 0, 4, 0, 0, 0, 0, 0, 0}, "a huge size": {'g', 'v', 2, 1, 0, 4, 0, 0, 0xff, 0, 0, 0},
		"more at first than there is": {'g', 'v', 2, 1, 0, 4, 5, 0, 0, 0, 0, 100},
		"more data than there is":     {'g', 'v', 2, 1, 0, 4, 0, 200, 0, 0, 0, 100},
	} {
		if _, _, _, err := dial(b); !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(refusalError(err).Error(), "protocol") {
			t.Errorf("%s: %v", name, refusalError(err))
		}
	}
	// Messages that are wrong end the connection with an error that says so.
	for name, b := range map[string][]byte{
		"too short": {1, 0, 0}, "kind 9": {9, 0, 0, 0, 0, 0, 0, 0}, "a wrong length": {1, 0, 0, 0, 0, 0, 0, 5, 1},
		"credits for nothing": {2, 0, 1, 0, 0, 0, 0, 0}, "an end with data": {3, 0, 0, 0, 0, 0, 0, 1, 1},
		"growth of what was all there": {5, 0, 0, 0, 0, 0, 0, 9}, "growth with data": {5, 0, 0, 0, 0, 0, 0, 9, 1},
	} {
		id, qp, e, err := dial(good)
		must(t, err)
		if _, err := parseGreeting(e.Param.PrivateData, greetingAnswer); err != nil {
			t.Error(err)
		}
		server := value(l.Accept(ctx))(t)
		copy(buf.Bytes(), b)
		must(t, qp.PostSend(uverbs.SendWR{Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{mr.SGE(0, len(b))}}))
		if _, err := server.Recv(ctx); !errors.Is(err, syscall.EPROTO) {
			t.Errorf("%s: %v", name, err)
		}
		must(t, server.Close(), id.Close())
	}
}

// TestRecvArrived: a message that has arrived is returned though the context has ended.
func TestRecvArrived(t *testing.T) {
	client, server := connect(t, newListener(t, ListenOptions{}), DialOptions{})
	must(t, client.Send(within(t), []byte("here")), client.Flush(within(t)))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := server.Recv(ended); err != nil || string(got) != "here" {
		t.Errorf("Recv: %q, %v", got, err)
	}
	if _, err := server.Recv(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Recv without a message: %v", err)
	}
}

// TestConnAckTimeout: each end of a connection has the time of its own options.
func TestConnAckTimeout(t *testing.T) {
	testenv.NeedsIB(t, "acknowledgements")
	near, far := ib.AckTimeout(20), ib.AckTimeout(21)
	l := newListener(t, ListenOptions{ConnOptions: ConnOptions{Tuning: Tuning{AckTimeout: far.Duration()}}})
	client, server := connect(t, l, DialOptions{ConnOptions: ConnOptions{Tuning: Tuning{AckTimeout: near.Duration()}}})
	if a, b := value(client.qp.Query())(t).Timeout, value(server.qp.Query())(t).Timeout; a != near || b != far {
		t.Errorf("the time-outs are %s and %s, want %s and %s", a.Duration(), b.Duration(), near.Duration(), far.Duration())
	}
}

// registered registers memory of both sides.
func registered(t testing.TB, client, server *Conn) (near, far *uverbs.MR) {
	t.Helper()
	region := func(c *Conn, access uverbs.Access) *uverbs.MR {
		buf := value(uverbs.AllocBuffer(1<<16, uverbs.BufferOptions{}))(t)
		mr := value(c.PD().RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite | access}))(t)
		t.Cleanup(func() { must(t, mr.Close(), buf.Close()) })
		return mr
	}
	return region(client, 0), region(server, uverbs.AccessRemoteWrite|uverbs.AccessRemoteRead)
}

// TestOps: one goroutine has many operations in flight, one by one and in batches, and waits for the last of them.
func TestOps(t *testing.T) {
	ctx := within(t)
	l := newListener(t, ListenOptions{})
	client, server := connect(t, l, DialOptions{ConnOptions: ConnOptions{Tuning: Tuning{Transfers: 4}}})
	near, far := registered(t, client, server)
	remote := RemoteOf(far)
	const size, n = 1 << 10, 16
	for i := range near.Bytes()[:n*size] {
		near.Bytes()[i] = byte(i / size * 3)
	}
	var ops []Op
	for i := range n { // more than Transfers
		ops = append(ops, value(client.StartWrite(ctx, near.SGE(i*size, size), remote.At(uint32(i*size))))(t))
	}
	must(t, ops[n-1].Wait(ctx))
	for i, op := range ops {
		done, cancel := context.WithCancel(ctx)
		cancel()
		if err := op.Wait(done); err != nil {
			t.Errorf("WRITE %d, after the last one is complete: %v", i, err)
		}
	}
	b := client.Batch()
	for round := range n / 4 {
		for i := range 4 {
			at := (round*4 + i) * size
			b.Read(near.SGE(1<<15+at, size), remote.At(uint32(at)))
		}
		ops[0] = value(b.Start(ctx))(t)
	}
	var all sync.WaitGroup
	for range 2 { // wait for the same operation
		all.Go(func() {
			if err := ops[0].Wait(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if !bytes.Equal(near.Bytes()[1<<15:][:n*size], far.Bytes()[:n*size]) || far.Bytes()[size] != 3 {
		t.Error("what was written, and read again, differs")
	}
	last := value(client.StartRead(ctx, near.SGE(0, size), remote))(t)
	must(t, client.Close())
	if err := last.Wait(ctx); err != nil { // Close waits for it
		t.Errorf("Wait after Close for an operation that was in flight: %v", err)
	}
	if _, err := client.StartRead(ctx, near.SGE(0, size), remote); !errors.Is(err, net.ErrClosed) {
		t.Errorf("StartRead after Close: %v", err)
	}
}

// TestOpMistakes: wrong use of operations and batches has errors that say what is wrong, and leaves the connection as it was.
func TestOpMistakes(t *testing.T) {
	ctx := within(t)
	l := newListener(t, ListenOptions{})
	client, server := connect(t, l, DialOptions{ConnOptions: ConnOptions{Tuning: Tuning{Transfers: 4}}})
	near, far := registered(t, client, server)
	remote := RemoteOf(far)
	b := client.Batch()
	for name, m := range map[string]struct {
		do   func() error
		want string
	}{
		"zero Op":     {func() error { return Op{}.Wait(ctx) }, "Op is the zero value"},
		"zero Batch":  {func() error { z := new(Batch); z.Read(near.SGE(0, 8), remote); return errOf(z.Start(ctx)) }, "Batch is the zero value"},
		"empty Batch": {func() error { return errOf(client.Batch().Start(ctx)) }, "number of operations is 0, allowed: 1 to "},
		"full Batch": {func() error {
			for range 5 {
				b.Write(near.SGE(0, 8), remote)
			}
			return errOf(b.Start(ctx))
		}, "number of operations is 5, allowed: 1 to Tuning.Transfers, which is 4"},
		"longer than remote": {func() error {
			z := client.Batch()
			z.Write(near.SGE(0, 8), remote)
			z.Read(near.SGE(0, 8), Remote{Length: 7})
			return errOf(z.Start(ctx))
		}, "read: local.Length is 8, allowed: up to remote.Length, which is 7"},
		"too many SGEs":     {func() error { return client.SendSGE(ctx, make([]uverbs.SGE, 3)...) }, "sges is 3 long, allowed: up to 2"},
		"message too large": {func() error { return client.SendSGE(ctx, near.SGE(0, 1<<15), near.SGE(0, 1)) }, "32769 bytes in all, allowed: up to 32768 bytes"},
	} {
		var arg *rdmacm.ArgError
		if err := m.do(); !errors.As(err, &arg) || !strings.Contains(err.Error(), m.want) {
			t.Errorf("%s: %v, want %q", name, err, m.want)
		}
	}
	b.Write(near.SGE(0, 8), remote) // the batch can be used again
	must(t, value(b.Start(ctx))(t).Wait(ctx))
	for i := range 50 { // more often than there are credits
		write, send := errOf(client.StartWrite(ctx, near.SGE(near.Len(), 8), remote)), client.SendSGE(ctx, near.SGE(0, 8), near.SGE(near.Len(), 8))
		if !errors.Is(write, uverbs.ErrSGERange) || !errors.Is(send, uverbs.ErrSGERange) {
			t.Fatalf("an SGE outside its MR: WRITE %v, SendSGE %v", write, send)
		}
		must(t, client.SendSGE(ctx, near.SGE(0, i)))
		if msg := value(server.Recv(ctx))(t); len(msg) != i {
			t.Errorf("received %d bytes, want %d", len(msg), i)
		}
	}
	must(t, client.Flush(ctx))
}

// TestOpWhileClosing: an operation that is waited for while Close lingers is complete after Wait.
func TestOpWhileClosing(t *testing.T) {
	ctx := within(t)
	client, server := connect(t, newListener(t, ListenOptions{}), DialOptions{})
	near, far := registered(t, client, server)
	far.Bytes()[7] = 9
	op := value(client.StartRead(ctx, near.SGE(0, 8), RemoteOf(far)))(t)
	closing := func(is bool) {
		client.mu.Lock()
		client.closing = is
		client.mu.Unlock()
	}
	closing(true)
	if err := op.Wait(ctx); err != nil || near.Bytes()[7] != 9 {
		t.Errorf("Wait: %v, read %d", err, near.Bytes()[7])
	}
	closing(false) // for the real one
}

// TestOpWhenDestroyed: Wait says why a connection has ended that is being destroyed, as for a device that is removed.
func TestOpWhenDestroyed(t *testing.T) {
	client, _ := connect(t, newListener(t, ListenOptions{}), DialOptions{})
	op := Op{client, opBit | 1<<40} // is never complete
	client.mu.Lock()
	client.fail(errRemoved(client.addrs.Device))
	client.mu.Unlock()
	must(t, client.destroy())
	if err := op.Wait(within(t)); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("Wait: %v", err)
	}
	client.Close()
	if err := op.Wait(within(t)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Wait after Close: %v", err)
	}
}

// TestOpsFail: when the peer refuses an operation, those after it fail too, and so do later ones.
func TestOpsFail(t *testing.T) {
	ctx := within(t)
	l := newListener(t, ListenOptions{})
	client, server := connect(t, l, DialOptions{})
	near, far := registered(t, client, server)
	wrong := RemoteOf(far)
	wrong.RKey++
	b := client.Batch()
	b.Read(near.SGE(0, 8), wrong)
	b.Read(near.SGE(8, 8), RemoteOf(far))
	last := value(b.Start(ctx))(t)
	for range 2 {
		if err := last.Wait(ctx); err == nil || !strings.Contains(err.Error(), l.Addr().String()) {
			t.Errorf("the READ after one that was refused: %v", err)
		}
	}
	if _, err := client.StartRead(ctx, near.SGE(0, 8), RemoteOf(far)); err == nil {
		t.Error("the connection goes on")
	}
	client.Close()
	if err := last.Wait(ctx); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Wait after Close: %v", err)
	}
}

// TestSendSGE: messages in registered memory arrive between others, in order.
func TestSendSGE(t *testing.T) {
	ctx := within(t)
	l := newListener(t, ListenOptions{})
	client, server := connect(t, l, DialOptions{})
	near, _ := registered(t, client, server)
	for i := range near.Bytes() {
		near.Bytes()[i] = byte(i * 7)
	}
	go func() {
		for size := 1; size <= 8000; size *= 3 {
			op, err := client.StartSend(ctx, near.SGE(0, size), near.SGE(10000, size))
			if err == nil {
				err = client.Send(ctx, near.Bytes()[:size])
			}
			if err == nil {
				err = op.Wait(ctx)
			}
			if err == nil {
				err = client.SendSGE(ctx) // an empty message
			}
			if err != nil {
				t.Error(err)
			}
		}
		client.CloseWrite(ctx)
	}()
	buf := make([]byte, client.MaxMessage())
	for size := 1; size <= 8000; size *= 3 {
		for _, want := range [][]byte{append(bytes.Clone(near.Bytes()[:size]), near.Bytes()[10000:][:size]...), near.Bytes()[:size], nil} {
			n, err := server.RecvInto(ctx, buf)
			if err != nil || !bytes.Equal(buf[:n], want) {
				t.Fatalf("%d bytes: received %d bytes, want %d: %v", size, n, len(want), err)
			}
		}
	}
	if _, err := server.RecvInto(ctx, buf); err != io.EOF {
		t.Errorf("after the last message: %v", err)
	}
}

// TestRecvInto: a message that does not fit stays, and RecvInto leaves that of Recv alone. Recv is for one goroutine.
func TestRecvInto(t *testing.T) {
	ctx := within(t)
	l := newListener(t, ListenOptions{})
	client, server := connect(t, l, DialOptions{ConnOptions: ConnOptions{Depth: 2}})
	must(t, client.Send(ctx, []byte("held")), client.Send(ctx, []byte("eight by")))
	held := value(server.Recv(ctx))(t)
	buf := make([]byte, 8)
	for range 2 {
		var arg *rdmacm.ArgError
		if n, err := server.RecvInto(ctx, buf[:7]); n != 0 || !errors.As(err, &arg) || !strings.Contains(err.Error(), "buf is 7 bytes long, allowed: at least 8 bytes") {
			t.Errorf("a buffer that is too small: %d, %v", n, err)
		}
	}
	if n := value(server.RecvInto(ctx, buf))(t); string(buf[:n]) != "eight by" {
		t.Errorf("received %q", buf[:n])
	}
	for i := range 100 { // each takes a receive, if RecvInto does not post it again
		must(t, client.Send(ctx, []byte{byte(i)}))
		if n := value(server.RecvInto(ctx, buf))(t); n != 1 || buf[0] != byte(i) {
			t.Fatalf("message %d: %d bytes, %d", i, n, buf[0])
		}
	}
	if string(held) != "held" {
		t.Errorf("what Recv has returned is now %q", held)
	}
	short, cancel := context.WithCancel(ctx)
	first := make(chan error)
	go func() { first <- errOf(server.Recv(short)) }()
	for waits := false; !waits; time.Sleep(time.Millisecond) {
		server.mu.Lock()
		waits = server.receiving
		server.mu.Unlock()
	}
	if _, err := server.Recv(ctx); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("Recv while another goroutine is in Recv: %v", err)
	}
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("the first Recv: %v", err)
	}
	must(t, client.Send(ctx, []byte("on")))
	if got := value(server.Recv(ctx))(t); string(got) != "on" {
		t.Errorf("received %q", got)
	}
}

// TestOpsAllocateNothing: starting operations and waiting for them allocates nothing in steady state.
func TestOpsAllocateNothing(t *testing.T) {
	ctx := within(t)
	l := newListener(t, ListenOptions{})
	client, server := connect(t, l, DialOptions{ConnOptions: ConnOptions{Tuning: Tuning{Wait: WaitSpin}}})
	near, far := registered(t, client, server)
	remote, b := RemoteOf(far), client.Batch()
	round := func() {
		one, err := client.StartWrite(ctx, near.SGE(0, 64), remote)
		b.Read(near.SGE(64, 64), remote)
		b.Write(near.SGE(0, 64), remote)
		last, berr := b.Start(ctx)
		must(t, err, berr, one.Wait(ctx), last.Wait(ctx), client.RDMARead(ctx, near.SGE(0, 64), remote))
	}
	round()
	if n := testing.AllocsPerRun(200, round); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
