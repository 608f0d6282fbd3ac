package softrxe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/suites/classic"
	"github.com/goverbs/goverbs/test/suites/interop"
)

// peerWord is the first argument of a test binary that is a peer: a program of its own, as the software
// device of a connection has to be in the process that connects.
const peerWord = "peer"

// listens is the line that a peer prints when it listens.
const peerListens = "listening on "

// peer starts a peer in the place.
func (p place) peer(t *testing.T, words ...string) *program.Program {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	return p.launch(t, append([]string{exe, peerWord}, words...)...)
}

// server starts a peer that listens, and waits until it does.
func (p place) server(t *testing.T, words ...string) *program.Program {
	t.Helper()
	s := p.peer(t, words...)
	s.Until(t, "listened", func() bool { return strings.Contains(s.Output(), peerListens) })
	return s
}

// peerMain is the main function of a peer: its words are what it does, the address of the server or
// of its own in a multicast group, and how often it does it.
func peerMain(words []string) int {
	if err := runPeer(words); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// runPeer executes the command in words.
func runPeer(words []string) error {
	n, err := strconv.Atoi(words[2])
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience(n))
	defer cancel()
	addr, err := netip.ParseAddrPort(words[1])
	if err != nil {
		return err
	}
	if do := peerConns[words[0]]; do != nil {
		return do(ctx, addr.String(), n)
	}
	if serve, ok := peerServers[words[0]]; ok {
		return runServer(ctx, addr, n, serve)
	}
	do, ok := peerClients[words[0]]
	if !ok {
		return fmt.Errorf("%q is nothing that a peer does", words[0])
	}
	var local, remote netip.Addr
	if words[0] == "hear" || words[0] == "say" {
		local = addr.Addr()
	} else {
		remote = addr.Addr()
	}
	c, err := rdmacm.OpenChannel(rdmacm.ChannelOptions{Local: local, Remote: remote})
	if err != nil {
		return err
	}
	return errors.Join(do(ctx, c, addr, n), c.Close())
}

// patience bounds a peer that makes n connections.
func patience(n int) time.Duration { return program.Patience + time.Duration(n)*program.Patience/200 }

// peerServer is a server of package interop in a port space.
type peerServer struct {
	space rdmacm.PortSpace
	serve func(ctx context.Context, l *rdmacm.ID, n int) error
}

// once is a server or client that does something once.
func once(f func(context.Context, *rdmacm.ID) error) func(context.Context, *rdmacm.ID, int) error {
	return func(ctx context.Context, l *rdmacm.ID, _ int) error { return f(ctx, l) }
}

// peerServers are the servers for rdma-core's clients.
var peerServers = map[string]peerServer{
	"serve-matose":      {rdmacm.TCP, interop.ServeMatose},
	"serve-hello":       {rdmacm.TCP, once(interop.ServeHello)},
	"serve-daddy":       {rdmacm.UDP, once(interop.ServeDaddy)},
	"serve-connections": {rdmacm.TCP, interop.ServeConnections},
	"hang":              {rdmacm.TCP, hang},
}

// peerClients are the clients for rdma-core's servers.
var peerClients = map[string]func(context.Context, *rdmacm.Channel, netip.AddrPort, int) error{
	"matose":      interop.Matose,
	"connections": interop.ConnectAll,
	"hello": func(ctx context.Context, c *rdmacm.Channel, addr netip.AddrPort, _ int) error {
		return interop.Greet(ctx, c, addr)
	},
	"hear": func(ctx context.Context, c *rdmacm.Channel, addr netip.AddrPort, _ int) error {
		return hear(ctx, c, addr.Addr())
	},
	"say": func(ctx context.Context, c *rdmacm.Channel, addr netip.AddrPort, _ int) error {
		return interop.Say(ctx, c, addr.Addr(), saidTo)
	},
	"daddy": func(ctx context.Context, c *rdmacm.Channel, addr netip.AddrPort, _ int) error {
		return interop.Daddy(ctx, c, addr)
	},
}

// The multicast groups to which mckey sends, and from which it receives.
var heardFrom, saidTo = netip.MustParseAddr("239.7.7.2"), netip.MustParseAddr("239.7.7.1")

// hear receives messages of mckey.
func hear(ctx context.Context, c *rdmacm.Channel, local netip.Addr) error {
	ctx, cancel := context.WithTimeout(ctx, hearTime)
	defer cancel()
	return interop.Hear(ctx, c, local, heardFrom)
}

// hearTime bounds how long hear waits for messages that were lost. mckey sleeps for three seconds before
// it sends.
const hearTime = 15 * time.Second

// peerConns are both ends of connections of package cm.
var peerConns = map[string]func(ctx context.Context, addr string, n int) error{
	"serve-conns": func(ctx context.Context, addr string, n int) error { return serveConns(ctx, addr, n, cm.ConnOptions{}) },
	"serve-many":  func(ctx context.Context, addr string, n int) error { return serveConns(ctx, addr, n, small) },
	"serve-dead":  func(ctx context.Context, addr string, _ int) error { return serveDead(ctx, addr) },
	"conns":       dialInTurn,
	"conns-once":  dialAtOnce,
	"many":        dialMany,
	"streams":     dialStreams,
	"refused":     dialRefused,
	"denied":      dialDenied,
	"dead":        dialDead,
}

// runServer listens for a server.
func runServer(ctx context.Context, addr netip.AddrPort, n int, s peerServer) error {
	c, err := rdmacm.OpenChannel(rdmacm.ChannelOptions{Local: addr.Addr()})
	if err != nil {
		return err
	}
	l, err := classic.Listen(c, s.space, addr)
	if err != nil {
		return errors.Join(err, c.Close())
	}
	fmt.Println(peerListens + addr.String())
	return errors.Join(s.serve(ctx, l, n), l.Close(), c.Close())
}

// hang takes requests and never answers.
func hang(ctx context.Context, l *rdmacm.ID, _ int) error {
	if _, err := l.NextRequest(ctx); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// denied is the private data of a dial that the server's check rejects.
const denied = "denied"

// serveConns echoes on n connections. A connection that begins with "stream" is a stream.
func serveConns(ctx context.Context, addr string, n int, o cm.ConnOptions) error {
	l, err := cm.Listen(ctx, addr, cm.ListenOptions{ConnOptions: o, Check: func(r *cm.Request) ([]byte, error) {
		if string(r.PrivateData) == denied {
			return nil, errors.New("nobody may enter")
		}
		return append([]byte("to "), r.PrivateData...), nil
	}})
	if err != nil {
		return err
	}
	fmt.Println(peerListens + l.Addr().String())
	var wg sync.WaitGroup
	errs := make(chan error, n)
	for range n {
		conn, err := l.Accept(ctx)
		if err != nil {
			errs <- err
			break
		}
		wg.Go(func() { errs <- echo(ctx, conn) })
	}
	wg.Wait()
	close(errs)
	for e := range errs {
		err = errors.Join(err, e)
	}
	return errors.Join(err, l.Close())
}

// echo sends back what comes until the peer has sent everything.
func echo(ctx context.Context, conn *cm.Conn) error {
	if string(conn.PrivateData()) == "stream" {
		s := conn.Stream()
		_, err := io.Copy(s, s)
		return errors.Join(err, s.Close())
	}
	for {
		msg, err := conn.Recv(ctx)
		if err == io.EOF {
			return conn.Close()
		}
		if err == nil {
			err = conn.Send(ctx, msg)
		}
		if err != nil {
			return errors.Join(err, conn.Close())
		}
	}
}

// dialConn makes a connection and sends some messages, which come back.
func dialConn(ctx context.Context, addr, name string) error {
	conn, err := cm.Dial(ctx, addr, cm.DialOptions{PrivateData: []byte(name)})
	if err != nil {
		return fmt.Errorf("connection %s: %w", name, err)
	}
	if got := string(conn.PrivateData()); got != "to "+name {
		err = fmt.Errorf("connection %s: the private data of the answer is %q", name, got)
	}
	for i := 0; i < 3 && err == nil; i++ {
		if err = comesBack(ctx, conn, strings.Repeat(name+" ", 1+i*500)); err != nil {
			err = fmt.Errorf("connection %s: %w", name, err)
		}
	}
	return errors.Join(err, conn.Close())
}

// dialInTurn makes connections one after another.
func dialInTurn(ctx context.Context, addr string, n int) error {
	for i := range n {
		if err := dialConn(ctx, addr, strconv.Itoa(i)); err != nil {
			return err
		}
	}
	return nil
}

// dialAtOnce makes connections at the same time.
func dialAtOnce(ctx context.Context, addr string, n int) error {
	errs := make(chan error, n)
	for i := range n {
		go func() { errs <- dialConn(ctx, addr, strconv.Itoa(i)) }()
	}
	var err error
	for range n {
		err = errors.Join(err, <-errs)
	}
	return err
}

// small are options of connections of which there are many. Checks of 10,000 idle connections every 15 s are
// more than an emulated guest can do.
var small = cm.ConnOptions{MessageSize: 64, Depth: 2, KeepAlive: -1, Tuning: cm.Tuning{SendDepth: 2, Transfers: 1}}

// manyAtOnce is how many of them are dialled or have a message at a time. Each attempt takes some address handles, and rxe of
// Linux 5.10 has 100.
const manyAtOnce = 20

// dialMany makes connections and sends a message over each, which comes back, as it is made, and again when
// all are open.
func dialMany(ctx context.Context, addr string, n int) error {
	began := time.Now()
	tell := func(what string) error {
		var i unix.Sysinfo_t
		err := unix.Sysinfo(&i)
		fmt.Printf("%s: %s, %d MiB of memory are free\n", what, time.Since(began).Round(time.Millisecond), i.Freeram*uint64(i.Unit)>>20)
		return err
	}
	if err := tell("begin"); err != nil {
		return err
	}
	conns, errs := make([]*cm.Conn, n), make(chan error, n)
	each := func(do func(i int) error) error {
		turn := make(chan struct{}, manyAtOnce)
		for i := range n {
			go func() {
				turn <- struct{}{}
				errs <- do(i)
				<-turn
			}()
		}
		var err error
		for range n {
			if e := <-errs; err == nil {
				err = e
			}
		}
		return err
	}
	for _, step := range []struct {
		what string
		do   func(i int) error
	}{
		{"all are open", func(i int) (err error) {
			if conns[i], err = cm.Dial(ctx, addr, cm.DialOptions{ConnOptions: small}); err != nil {
				return fmt.Errorf("connection %d: %w", i, err)
			}
			return comesBack(ctx, conns[i], "first "+strconv.Itoa(i))
		}},
		{"each had another message", func(i int) error { return comesBack(ctx, conns[i], "then "+strconv.Itoa(i)) }},
		{"all are closed", func(i int) error { return conns[i].Close() }},
	} {
		if err := errors.Join(each(step.do), tell(step.what)); err != nil {
			return err
		}
	}
	return nil
}

// comesBack sends a message, and checks that the same comes back.
func comesBack(ctx context.Context, conn *cm.Conn, want string) error {
	err := conn.Send(ctx, []byte(want))
	var got []byte
	if err == nil {
		got, err = conn.Recv(ctx)
	}
	if err == nil && string(got) != want {
		err = fmt.Errorf("%q comes back as %q", want, got)
	}
	return err
}

// dialStreams sends data over streams and reads it back.
func dialStreams(ctx context.Context, addr string, n int) error {
	for range n {
		s, err := cm.DialStream(ctx, addr, cm.DialOptions{PrivateData: []byte("stream")})
		if err != nil {
			return err
		}
		want := strings.Repeat("0123456789abcdef", 16<<10)
		sent := make(chan error, 1)
		go func() {
			_, err := io.WriteString(s, want)
			sent <- errors.Join(err, s.CloseWrite())
		}()
		got, err := io.ReadAll(s)
		if err := errors.Join(err, <-sent, s.Close()); err != nil {
			return err
		}
		if string(got) != want {
			return fmt.Errorf("%d bytes come back as %d others", len(want), len(got))
		}
	}
	return nil
}

// dialRefused dials an address where nobody listens.
func dialRefused(ctx context.Context, addr string, n int) error {
	for range n {
		_, err := cm.Dial(ctx, addr, cm.DialOptions{})
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return fmt.Errorf("to dial where nobody listens: %w, want ECONNREFUSED", err)
		}
		fmt.Println(err)
	}
	return nil
}

// dialDenied dials a server that rejects it with a text.
func dialDenied(ctx context.Context, addr string, _ int) error {
	_, err := cm.Dial(ctx, addr, cm.DialOptions{PrivateData: []byte(denied)})
	if refused := new(cm.RefusedError); !errors.As(err, &refused) || !strings.Contains(err.Error(), "nobody may enter") {
		return fmt.Errorf("to dial where nobody may enter: %w", err)
	}
	return nil
}

// mortal are the options of a connection that notices soon that its peer is dead.
var mortal = cm.ConnOptions{KeepAlive: time.Second}

// serveDead accepts a connection, and tells that it waits for a message.
func serveDead(ctx context.Context, addr string) error {
	l, err := cm.Listen(ctx, addr, cm.ListenOptions{ConnOptions: mortal})
	if err != nil {
		return err
	}
	fmt.Println(peerListens + l.Addr().String())
	conn, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	return awaitDeath(ctx, conn)
}

// dialDead makes a connection, and tells that it waits for a message.
func dialDead(ctx context.Context, addr string, _ int) error {
	conn, err := cm.Dial(ctx, addr, cm.DialOptions{ConnOptions: mortal})
	if err != nil {
		return err
	}
	return awaitDeath(ctx, conn)
}

// awaitDeath waits for a message of a peer that is killed.
func awaitDeath(ctx context.Context, conn *cm.Conn) error {
	fmt.Println("connected")
	_, err := conn.Recv(ctx)
	conn.Close() // fails with the same error
	if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.ETIMEDOUT) {
		return fmt.Errorf("the peer is dead: %w, want ECONNRESET or ETIMEDOUT", err)
	}
	return nil
}
