package cm

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime/pprof"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// roleEnv names what this program plays when a test starts it once more.
const roleEnv = "GOVERBS_CM_ROLE"

// nobody is an unprivileged user, and a group.
const nobody = 65534

// die ends the program as nothing else does.
func die() {
	syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// check ends the program if there is an error.
func check(err error) {
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

// play plays a role. A server prints the address at which it listens; a client is given an address.
func play(role, addr string) {
	ctx := context.Background()
	switch role {
	case "serves steps":
		check(serveSteps(ctx))
	case "serves small", "serves default":
		check(serveConns(ctx, dialSizes[strings.TrimPrefix(role, "serves ")]))
	case "may not open":
		check(syscall.Setgid(nobody))
		check(syscall.Setuid(nobody))
		_, err := rdmacm.OpenChannel(rdmacm.ChannelOptions{})
		fmt.Println(err)
	case "becomes another user":
		err := becomeNobody(ctx)
		if err == nil {
			err = errors.New("all is well")
		}
		fmt.Println(strings.ReplaceAll(err.Error(), "\n", "; "))
	case "is another user":
		id := newIDOrExit()
		check(syscall.Setuid(nobody))
		fmt.Println(id.Bind(rdmacm.AddrOf(netip.AddrPortFrom(first, 0))))
	default:
		playDying(ctx, role, addr)
	}
}

// newIDOrExit returns an ID on a channel of its own.
func newIDOrExit() *rdmacm.ID {
	channel, err := rdmacm.OpenChannel(rdmacm.ChannelOptions{})
	check(err)
	id, err := channel.NewID(rdmacm.TCP)
	check(err)
	return id
}

// playDying plays a peer that dies at a certain point.
func playDying(ctx context.Context, role, addr string) {
	serve := func() *Conn {
		l, err := Listen(ctx, firstAny, ListenOptions{})
		check(err)
		fmt.Println(l.Addr())
		c, err := l.Accept(ctx)
		check(err)
		return c
	}
	switch role {
	case "dies when asked":
		_, err := Listen(ctx, firstAny, ListenOptions{})
		check(err)
		l, err := Listen(ctx, firstAny, ListenOptions{Check: func(*Request) ([]byte, error) {
			die()
			return nil, nil
		}})
		check(err)
		fmt.Println(l.Addr())
		l.Accept(ctx)
	case "echoes":
		c := serve()
		for {
			msg, err := c.Recv(ctx)
			if err == io.EOF {
				check(c.Close())
				return
			}
			check(err)
			check(c.Send(ctx, msg))
		}
	case "dies when connected":
		serve()
		die()
	case "dies in traffic":
		c := serve()
		for range 100 {
			_, err := c.Recv(ctx)
			check(err)
		}
		die()
	case "dies with an answer unsent":
		c := serve()
		_, err := c.Recv(ctx)
		check(err)
		die()
	case "dies after resolving":
		check(newIDOrExit().ResolveWait(ctx, rdmacm.Addr{}, rdmacm.AddrOf(netip.MustParseAddrPort(addr))))
		die()
	case "dies before it is established":
		id := newIDOrExit()
		check(id.ResolveWait(ctx, rdmacm.Addr{}, rdmacm.AddrOf(netip.MustParseAddrPort(addr))))
		_, err := id.ConnectWait(ctx, rdmacm.ConnParam{PrivateData: greeting{kind: greetingRequest, depth: 1, size: 100}.encode(), QPN: 1})
		check(err)
		die()
	case "dies as a client":
		c, err := Dial(ctx, addr, DialOptions{})
		check(err)
		check(c.Send(ctx, []byte("here I am")))
		check(c.Flush(ctx))
		die()
	}
}

// other starts this program in a role, and returns the first line that it prints.
func other(t testing.TB, role, addr string) string {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", addr) // os.Args[0] need not be a path
	cmd.Env = append(os.Environ(), roleEnv+"="+role)
	out := value(cmd.StdoutPipe())(t)
	must(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	if addr != "" && addr != "-" { // it prints nothing
		return ""
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	must(t, err)
	return strings.TrimSpace(line)
}

// nothingLeft fails the test if the process or the kernel has more than before, in the end, and
// returns what there is.
func nothingLeft(t *testing.T, before kernelUse) (after kernelUse) {
	t.Helper()
	for end := time.Now().Add(6 * timeout); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if after = use(t); noMore(after, before) {
			return after
		}
	}
	var stacks strings.Builder
	pprof.Lookup("goroutine").WriteTo(&stacks, 1)
	t.Errorf("there was %+v, and is %+v\n%s", before, after, &stacks)
	return after
}

// quietBefore is what there was when the first test asked.
var quietBefore *kernelUse

// quiet returns what there is when nothing of earlier tests is left, which is so at once where they
// have waited for it themselves.
func quiet(t *testing.T) kernelUse {
	testenv.Guest(t)
	if quietBefore == nil {
		for _, name := range testenv.TheRig().Devices {
			firstUse(t, name)
		}
		must(t, value(Listen(t.Context(), firstAny, ListenOptions{ConnOptions: small}))(t).Close()) // lets Go's runtime open its own descriptors
		time.Sleep(2 * idleGrace)
		now := use(t)
		quietBefore = &now
		return now
	}
	now := use(t)
	for end := time.Now().Add(2 * idleGrace); !noMore(now, *quietBefore) && time.Now().Before(end); now = use(t) {
		time.Sleep(20 * time.Millisecond)
	}
	return now
}

// firstUse uses a device: mlx5_ib of newer kernels has a CQ of its own from when a region first needs it.
func firstUse(t *testing.T, name string) {
	t.Helper()
	dev := value(uverbs.Open(name, uverbs.OpenOptions{}))(t)
	pd := value(dev.AllocPD())(t)
	mr := value(pd.RegSlice(make([]byte, 64), uverbs.AccessLocalWrite))(t)
	must(t, mr.Close(), pd.Close(), dev.Close())
}

// gone fails the test unless an error says that the peer at addr is gone.
func gone(t *testing.T, what string, err error, addr string) {
	t.Helper()
	if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.ETIMEDOUT) || !strings.Contains(err.Error(), addr) {
		t.Errorf("%s: %v", what, err)
	}
}

// TestProcesses: a connection with another process, both of whose sides close it, and one whose peer
// is killed, which this side notices by itself.
func TestProcesses(t *testing.T) {
	testenv.Guest(t)
	ctx := within(t)
	c := value(Dial(ctx, other(t, "echoes", ""), DialOptions{}))(t)
	for i := range 100 {
		msg := bytes.Repeat([]byte{byte(i)}, 1+i*i*3)
		must(t, c.Send(ctx, msg))
		if got := value(c.Recv(ctx))(t); !bytes.Equal(got, msg) {
			t.Fatalf("%d bytes come back, want %d", len(got), len(msg))
		}
	}
	must(t, c.CloseWrite(ctx))
	if _, err := c.Recv(ctx); err != io.EOF {
		t.Errorf("Recv: %v", err)
	}
	must(t, c.Close())
	addr := other(t, "dies when connected", "")
	o := DialOptions{ConnOptions: ConnOptions{KeepAlive: 100 * time.Millisecond, Tuning: Tuning{AckTimeout: 16 * time.Millisecond, RetryCount: 2}}}
	if c, err := Dial(ctx, addr, o); err == nil { // or else it has died before the last step
		_, err = c.Recv(ctx)
		gone(t, "Recv", err, addr)
		must(t, c.Close())
	}
}

// peerNetwork is how the addresses of the devices begin.
var peerNetwork = first.String()[:4]

// TestPeerDies: a peer that is killed, in each phase of the set-up and of traffic.
func TestPeerDies(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsKernel(t, "the ends of the connections of a process that dies")
	before := quiet(t)
	ctx := within(t)
	t.Run("a server that gets a request", func(t *testing.T) {
		addr := other(t, "dies when asked", "")
		if _, err := Dial(ctx, addr, DialOptions{}); err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), addr) {
			t.Errorf("Dial: %v", err)
		}
	})
	t.Run("a server that is connected", func(t *testing.T) {
		addr := other(t, "dies when connected", "")
		c, err := Dial(ctx, addr, DialOptions{})
		if testenv.TheRig().Driver == "siw" && err != nil { // Dial has something to send there
			gone(t, "Dial", err, addr)
			return
		}
		must(t, err)
		_, err = c.Recv(ctx)
		gone(t, "Recv", err, addr)
		gone(t, "Send", c.Send(ctx, nil), addr)
		must(t, c.Close())
	})
	t.Run("a server that is sent to", func(t *testing.T) {
		addr := other(t, "dies in traffic", "")
		c := value(Dial(ctx, addr, DialOptions{ConnOptions: ConnOptions{Depth: 3}}))(t)
		var all sync.WaitGroup
		all.Go(func() {
			_, err := c.Recv(ctx)
			gone(t, "Recv", err, addr)
		})
		var err error
		for err == nil {
			err = c.Send(ctx, make([]byte, 1000))
		}
		gone(t, "Send", err, addr)
		all.Wait()
		gone(t, "Flush", c.Flush(ctx), addr)
		must(t, c.Close())
	})
	t.Run("a server with an answer unsent", func(t *testing.T) {
		addr := other(t, "dies with an answer unsent", "")
		c := value(Dial(ctx, addr, DialOptions{}))(t)
		s := c.Stream()
		_, err := s.Write([]byte("question"))
		must(t, err)
		var opErr *net.OpError
		if _, err = s.Read(make([]byte, 10)); !errors.As(err, &opErr) {
			t.Errorf("Read: %v", err)
		}
		gone(t, "RDMARead", err, addr)
		must(t, s.Close())
	})
	l := value(Listen(ctx, firstAny, ListenOptions{}))(t)
	t.Run("clients", func(t *testing.T) { clientsDie(t, ctx, l) })
	must(t, l.Close())
	nothingLeft(t, before)
}

// clientsDie starts clients that die, and checks that the listener survives them.
func clientsDie(t *testing.T, ctx context.Context, l *Listener) {
	other(t, "dies after resolving", l.Addr().String())
	if testenv.TheRig().Driver != "siw" { // siw's listener may die with a client that is killed while it connects
		other(t, "dies before it is established", l.Addr().String())
	}
	other(t, "dies as a client", l.Addr().String())
	for { // the second client may have been accepted before it died
		c := value(l.Accept(ctx))(t)
		msg, err := c.Recv(ctx)
		if string(msg) == "here I am" {
			_, err = c.Recv(ctx)
			gone(t, "Recv", err, peerNetwork)
			must(t, c.Close())
			break
		}
		gone(t, "Recv", err, peerNetwork)
		must(t, c.Close())
	}
	// The listener still works.
	client := value(Dial(ctx, l.Addr().String(), DialOptions{}))(t)
	must(t, client.Close())
	server := value(l.Accept(ctx))(t)
	if _, err := server.Recv(ctx); err != io.EOF {
		t.Errorf("Recv: %v", err)
	}
	must(t, server.Close())
}

// TestBothSidesClose: both sides close at the same time, with messages under way.
func TestBothSidesClose(t *testing.T) {
	before := quiet(t)
	ctx := within(t)
	l := value(Listen(ctx, firstAny, ListenOptions{ConnOptions: small}))(t)
	for range 20 {
		client, server := value(Dial(ctx, l.Addr().String(), DialOptions{ConnOptions: small}))(t), value(l.Accept(ctx))(t)
		var all sync.WaitGroup
		for _, c := range []*Conn{client, server} {
			all.Go(func() {
				if err := c.Send(ctx, []byte("last words")); err != nil && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
					t.Error(err)
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
	must(t, l.Close())
	nothingLeft(t, before)
}

// TestCloseEndsWaitingCalls: Close ends what other goroutines wait for.
func TestCloseEndsWaitingCalls(t *testing.T) {
	ctx := within(t)
	for _, wait := range waits {
		l := newListener(t, ListenOptions{ConnOptions: ConnOptions{Depth: 1, Tuning: Tuning{Wait: wait}}})
		client, server := connect(t, l, DialOptions{ConnOptions: ConnOptions{Tuning: Tuning{Wait: wait}}})
		var all sync.WaitGroup
		all.Go(func() {
			if _, err := client.Recv(ctx); !errors.Is(err, net.ErrClosed) {
				t.Errorf("%s: Recv: %v", wait, err)
			}
		})
		must(t, client.Send(ctx, nil))
		all.Go(func() { // for want of credit
			if err := client.Send(ctx, nil); !errors.Is(err, net.ErrClosed) {
				t.Errorf("%s: Send: %v", wait, err)
			}
		})
		time.Sleep(10 * time.Millisecond)
		must(t, client.Close())
		all.Wait()
		must(t, server.Close())
		accept := make(chan error, 1)
		go func() {
			_, err := l.Accept(ctx)
			accept <- err
		}()
		time.Sleep(time.Millisecond)
		must(t, l.Close())
		if err := <-accept; !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept: %v", err)
		}
	}
}

// TestListenerClosesAllTogether: a listener that is closed closes what waits to be accepted all at once, so
// that peers that do not take what was sent to them hold it up no longer than one does.
func TestListenerClosesAllTogether(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard)
	testenv.NeedsIB(t, "peers that acknowledge nothing")
	before := quiet(t)
	ctx := within(t)
	const n = 5
	o := ListenOptions{ConnOptions: small}
	o.Linger, o.AckTimeout = time.Hour, time.Minute
	l := value(Listen(ctx, firstAny, o))(t)
	clients := make([]*Conn, n)
	for i := range clients {
		clients[i] = value(Dial(ctx, l.Addr().String(), DialOptions{ConnOptions: small}))(t)
	}
	until(t, "all wait", func() bool { return len(l.ready) == n })
	servers := make([]*Conn, n)
	for i := range servers {
		servers[i] = <-l.ready
		l.ready <- servers[i]
		must(t, clients[i].qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState)) // it acknowledges nothing
	}
	closed := make(chan error, 1)
	go func() { closed <- l.Close() }()
	for _, c := range servers {
		until(t, "it is being closed", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.closing && c.users == 0 && c.err == nil || c.endSent
		})
	}
	select {
	case err := <-closed:
		t.Errorf("the listener is closed: %v", err)
	default:
	}
	for _, c := range servers {
		c.mu.Lock()
		c.fail(syscall.ETIMEDOUT)
		c.mu.Unlock()
	}
	if err := <-closed; !errors.Is(err, syscall.ETIMEDOUT) || strings.Count(err.Error(), "connection with") != n {
		t.Errorf("Close: %v", err)
	}
	for _, c := range clients {
		c.Close()
	}
	nothingLeft(t, before)
}

// TestListenerCloseEndsWaitingConns: connections that wait to be accepted end with the listener, and those
// beyond the backlog are refused.
func TestListenerCloseEndsWaitingConns(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard)
	before := quiet(t)
	ctx := within(t)
	o := ListenOptions{ConnOptions: small}
	var told refusals
	o.Backlog, o.HalfOpen, o.Refused = 2, 2, told.add // a client may be through before its server knows
	l := value(Listen(ctx, firstAny, o))(t)
	first := value(Dial(ctx, l.Addr().String(), DialOptions{ConnOptions: small}))(t)
	second := value(Dial(ctx, l.Addr().String(), DialOptions{ConnOptions: small}))(t)
	if err := told.dial(ctx, l, DialOptions{ConnOptions: small}); !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), "too many") {
		t.Errorf("beyond the backlog: %v", err)
	}
	until(t, "both wait to be accepted", func() bool { return len(l.ready) == 2 }) // or else they are rejected
	must(t, l.Close())
	for _, c := range []*Conn{first, second} {
		if _, err := c.Recv(ctx); err != io.EOF {
			t.Errorf("Recv: %v", err)
		}
		must(t, c.Close())
	}
	if _, err := Dial(ctx, l.Addr().String(), DialOptions{ConnOptions: small}); !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), "nobody listens") {
		t.Errorf("after Close: %v", err)
	}
	nothingLeft(t, before)
}

// TestRejectedLate: a listener that gives a connection up before it knows that the peer is ready rejects it, and
// the peer, for which the connection is established, notices.
func TestRejectedLate(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard)
	ctx := within(t)
	l := newListener(t, ListenOptions{})
	client, server := connect(t, l, DialOptions{ConnOptions: ConnOptions{KeepAlive: -1}})
	waiting := make(chan error, 1)
	go func() {
		_, err := client.Recv(ctx)
		waiting <- err
	}()
	client.event(&rdmacm.Event{ID: client.id, Type: rdmacm.EventRejected, Status: int32(rdmacm.ReasonConsumer)})
	if err := <-waiting; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("Recv: %v", err)
	}
	if err := client.Send(ctx, nil); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("Send: %v", err)
	}
	client.Close()
	server.Close()
}

// TestKeepAlive: an idle connection notices that its peer is gone, if nobody says so.
func TestKeepAlive(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard)
	ctx := within(t)
	l := newListener(t, ListenOptions{ConnOptions: ConnOptions{KeepAlive: -1}})
	for name, patient := range map[string]bool{"the device gives up": false, "the device does not give up": true} {
		t.Run(name, func(t *testing.T) {
			o := ConnOptions{KeepAlive: 20 * time.Millisecond, Tuning: Tuning{AckTimeout: time.Millisecond, RetryCount: 2, Wait: WaitPark}}
			if patient {
				o.AckTimeout, o.RetryCount = 0, 7
			}
			client, server := connect(t, l, DialOptions{ConnOptions: o})
			if patient {
				client.expectsSoon()
			}
			time.Sleep(100 * time.Millisecond)
			must(t, client.Send(ctx, nil)) // it was well so far
			value(server.Recv(ctx))(t)
			// The peer's QP answers no more, and its connection manager says nothing of it.
			must(t, server.qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState))
			_, err := client.Recv(ctx)
			gone(t, "Recv", err, l.Addr().String())
			if text := err.Error(); strings.Contains(text, "RDMA_") || strings.Contains(text, "request 4") || !testenv.TheRig().IWARP() && !patient && !strings.Contains(text, "keep-alive") {
				t.Errorf("Recv: %v, want a keep-alive that has no answer", err)
			}
		})
	}
}

// expectsSoon makes the connection expect an answer long before its device gives up. Some devices never do.
func (c *Conn) expectsSoon() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.o.AckTimeout = time.Millisecond
}

// TestLostPeerWithoutKeepAlive: a connection that does not look after an idle peer notices that its peer is
// gone once it has sent something, though the device never gives up.
func TestLostPeerWithoutKeepAlive(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard)
	ctx := within(t)
	o := ConnOptions{KeepAlive: -1, MessageSize: 64, Tuning: Tuning{Wait: WaitPark}}
	l := newListener(t, ListenOptions{ConnOptions: ConnOptions{KeepAlive: -1}})
	client, server := connect(t, l, DialOptions{ConnOptions: o})
	client.expectsSoon()
	must(t, server.qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState))
	err := client.Send(ctx, []byte("hello"))
	if !testenv.TheRig().IWARP() { // where TCP may have told of the end already
		must(t, err)
	}
	if err == nil {
		_, err = client.Recv(ctx)
	}
	gone(t, "Send or Recv", err, l.Addr().String())
}

// TestKeepAliveUnsignaledSend: a connection stays on which something was sent that has no completion, and then
// nothing for longer than a device may owe an answer.
func TestKeepAliveUnsignaledSend(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard)
	ctx := within(t)
	o := ConnOptions{KeepAlive: 600 * time.Millisecond, MessageSize: 64, Tuning: Tuning{AckTimeout: 50 * time.Millisecond, RetryCount: 1}}
	client, server := connect(t, newListener(t, ListenOptions{ConnOptions: o}), DialOptions{ConnOptions: o})
	for range 2 {
		must(t, client.Send(ctx, []byte("hello")))
		value(server.Recv(ctx))(t)
		time.Sleep(2 * time.Second)
	}
}

// TestTransferPostError: an operation fails like the connection if the device could not be told of it, since it is in the
// queue then. Soft iWARP does that while the connection breaks. Any other error is one of the operation alone.
func TestTransferPostError(t *testing.T) {
	ctx := within(t)
	l := newListener(t, ListenOptions{})
	for _, errno := range []syscall.Errno{syscall.ENOTCONN, syscall.EINVAL, syscall.EFAULT} {
		client, server := connect(t, l, DialOptions{})
		refused := func(err error) error {
			client.mu.Lock()
			defer client.mu.Unlock()
			client.users++
			defer client.end()
			id := client.recordOp(8)
			if err := client.opsStarted("write", client.opsPosted-1, err); err != nil {
				return err
			}
			return client.waitOp(ctx, "write", id)
		}
		if err := refused(uverbs.ErrTooManySGE); !errors.Is(err, uverbs.ErrTooManySGE) {
			t.Errorf("a transfer with too many SGEs: %v", err)
		}
		must(t, client.Send(ctx, []byte("goes on")))
		if got := value(server.Recv(ctx))(t); string(got) != "goes on" {
			t.Errorf("received %q", got)
		}
		connected := errno != syscall.ENOTCONN
		err := refused(&uverbs.Error{Op: "POST_SEND", Errno: errno})
		if !errors.Is(err, errno) || errors.Is(err, syscall.ECONNRESET) == connected {
			t.Errorf("a transfer of which the device was not told, %v: %v", errno, err)
		}
		if after := client.Send(ctx, nil); !errors.Is(after, errno) {
			t.Errorf("Send after %v: %v", err, after)
		}
		client.Close()
		server.Close()
	}
}

// TestReadMessageAfterClose: a message can be read after Close, until the next Recv.
func TestReadMessageAfterClose(t *testing.T) {
	ctx := within(t)
	l := newListener(t, ListenOptions{})
	client, server := connect(t, l, DialOptions{})
	must(t, client.Send(ctx, []byte("the last")))
	msg := value(server.Recv(ctx))(t)
	must(t, server.Close())
	if string(msg) != "the last" {
		t.Errorf("the message is %q", msg)
	}
	if _, err := server.Recv(ctx); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Recv: %v", err)
	}
	p := newPackets(t, firstAny, PacketOptions{})
	q := value(DialPacket(ctx, p.LocalAddr().String(), PacketOptions{}))(t)
	to, _ := q.DialedPeer()
	must(t, q.Send(ctx, []byte("the last"), to))
	data, _, err := p.Recv(ctx)
	must(t, err, p.Close(), q.Close())
	if string(data) != "the last" {
		t.Errorf("the datagram is %q", data)
	}
}
