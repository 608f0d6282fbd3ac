package cm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/test/testenv"
)

// TestCredentials: who has changed user is told what the kernel minds.
func TestCredentials(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsKernel(t, "checks of credentials")
	if said := other(t, "is another user", "-"); !strings.Contains(said, "permission denied") || !strings.Contains(said, "credentials") {
		t.Errorf("Bind says %q", said)
	}
}

// TestUserChanges: a program becomes another user while it listens, and has connections.
func TestUserChanges(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard)
	testenv.Guest(t)
	testenv.NeedsKernel(t, "checks of credentials")
	if said := other(t, "becomes another user", "-"); said != "all is well" {
		t.Error(said)
	}
}

// userChange has objects that the superuser opened, and becomes nobody.
type userChange struct {
	ctx  context.Context
	errs []error

	l              *Listener
	client, server *Conn
	pending        *Conn // not accepted yet
	channel        *rdmacm.Channel
	id             *rdmacm.ID
	packets        *PacketConn // nil on iWARP
	packetErr      chan error  // the result of a Recv of datagrams
}

// must records an error.
func (u *userChange) must(what string, err error) {
	if err != nil {
		u.errs = append(u.errs, fmt.Errorf("%s: %w", what, err))
	}
}

// denied records an error unless err is EACCES and its text has the words and "credentials".
func (u *userChange) denied(what string, err error, words ...string) {
	if !errors.Is(err, syscall.EACCES) {
		u.errs = append(u.errs, fmt.Errorf("%s: %w, want EACCES", what, err))
		return
	}
	for _, w := range append(words, "credentials") {
		if !strings.Contains(err.Error(), w) {
			u.errs = append(u.errs, fmt.Errorf("%s: %w does not say %q", what, err, w))
		}
	}
}

// becomeNobody opens a listener, a datagram socket, connections and IDs as the superuser, becomes
// nobody, and checks which of them still work.
func becomeNobody(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 12*timeout)
	defer cancel()
	u := &userChange{ctx: ctx, packetErr: make(chan error, 1)}
	files := func() int {
		all, _ := os.ReadDir("/proc/self/fd")
		return len(all)
	}
	warm, err := Listen(ctx, firstAny, ListenOptions{}) // opens files that Go's runtime keeps
	if err != nil {
		return err
	}
	u.must("Close", warm.Close())
	time.Sleep(2 * idleGrace)
	before := files()
	if err := u.open(); err != nil {
		return err
	}
	// Before Linux 5.16, a user other than the superuser may register 64 KiB.
	u.must("setrlimit", unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}))
	u.must("setgid", syscall.Setgid(nobody))
	u.must("setuid", syscall.Setuid(nobody))

	u.useConn()
	u.useListener()
	u.useID()
	if err := u.openAgain(); err != nil {
		return errors.Join(append(u.errs, err)...)
	}
	u.pending.Close()
	u.client.Close()
	u.server.Close()
	for end := time.Now().Add(6 * timeout); files() > before; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			u.must("files", fmt.Errorf("there were %d, and are %d", before, files()))
			break
		}
	}
	return errors.Join(u.errs...)
}

// open opens everything.
func (u *userChange) open() (err error) {
	ctx := u.ctx
	if u.l, err = Listen(ctx, firstAny, ListenOptions{}); err != nil {
		return err
	}
	if u.client, err = Dial(ctx, u.l.Addr().String(), DialOptions{}); err != nil {
		return err
	}
	if u.server, err = u.l.Accept(ctx); err != nil {
		return err
	}
	if u.pending, err = Dial(ctx, u.l.Addr().String(), DialOptions{}); err != nil {
		return err
	}
	for len(u.l.ready) == 0 {
		runtime.Gosched()
	}
	if u.channel, err = rdmacm.OpenChannel(rdmacm.ChannelOptions{}); err != nil {
		return err
	}
	if u.id, err = u.channel.NewID(rdmacm.TCP); err != nil {
		return err
	}
	if testenv.TheRig().IWARP() {
		return nil
	}
	if u.packets, err = ListenPacket(ctx, firstAny, PacketOptions{}); err != nil {
		return err
	}
	go func() {
		_, _, err := u.packets.Recv(ctx)
		u.packetErr <- err
	}()
	return nil
}

// useConn: an open connection still works.
func (u *userChange) useConn() {
	u.must("Send", u.client.Send(u.ctx, []byte("still here")))
	if msg, err := u.server.Recv(u.ctx); string(msg) != "still here" {
		u.must("Recv", fmt.Errorf("%q: %w", msg, err))
	}
}

// useListener: the listener and the datagram socket can accept no more requests. The listener still
// accepts the pending connection first.
func (u *userChange) useListener() {
	ctx, l, packets := u.ctx, u.l, u.packets
	if c, err := l.Accept(ctx); err != nil {
		u.must("Accept", err)
	} else {
		u.must("Close", c.Close())
	}
	accept := make(chan error, 1)
	go func() {
		_, err := l.Accept(ctx)
		accept <- err
	}()
	var dialling sync.WaitGroup
	var dialErr error
	short, stop := context.WithCancel(ctx)
	dialling.Go(func() { _, dialErr = Dial(short, l.Addr().String(), DialOptions{}) })
	u.denied("Accept", <-accept, "cm: accept on 10.1.0.1:")
	u.must("Close of the listener", l.Close())
	stop() // the kernel keeps the listener until its last connection is closed
	dialling.Wait()
	if !errors.Is(dialErr, context.Canceled) {
		u.must("Dial to a listener that may not answer", fmt.Errorf("%w", dialErr))
	}
	if packets == nil {
		return
	}
	// The datagram socket closes itself, kernel object included, and the kernel rejects the request.
	dialling.Go(func() { _, dialErr = DialPacket(ctx, packets.LocalAddr().String(), PacketOptions{}) })
	u.denied("Recv of datagrams", <-u.packetErr, "datagrams at 10.1.0.1:")
	dialling.Wait()
	if !errors.Is(dialErr, syscall.ECONNREFUSED) {
		u.must("DialPacket to a socket that may not answer", fmt.Errorf("%w", dialErr))
	}
	u.must("Close of datagrams", packets.Close())
}

// useID: an open channel and its ID can only be closed.
func (u *userChange) useID() {
	u.denied("Bind", u.id.Bind(rdmacm.AddrOf(netip.AddrPortFrom(first, 0))))
	if err := u.id.Bind(rdmacm.AddrOf(netip.MustParseAddrPort("10.1.0.1:80"))); !strings.Contains(fmt.Sprint(err), "CAP_NET_BIND_SERVICE") {
		u.must("Bind to a port that needs rights", fmt.Errorf("%w", err))
	}
	u.denied("Close of an ID", u.id.Close())
	u.must("Close of an ID once more", u.id.Close())
	u.must("Close of a channel", u.channel.Close())
}

// openAgain: a listener and connections that user nobody opens work on any thread.
func (u *userChange) openAgain() error {
	ctx := u.ctx
	l, err := Listen(ctx, firstAny, ListenOptions{})
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	const n = 20
	results := make(chan error, 2*n)
	for range n {
		all.Go(func() {
			runtime.LockOSThread() // the thread ends with the goroutine
			c, err := Dial(ctx, l.Addr().String(), DialOptions{ConnOptions: small})
			if err == nil {
				err = errors.Join(c.Send(ctx, []byte("hello")), c.Close())
			}
			results <- err
		})
		all.Go(func() {
			runtime.LockOSThread()
			c, err := l.Accept(ctx)
			if err == nil {
				_, err = c.Recv(ctx)
				err = errors.Join(err, c.Close())
			}
			results <- err
		})
	}
	all.Wait()
	close(results)
	for err := range results {
		u.must("as nobody", err)
	}
	u.must("Close", l.Close())
	if _, err := Listen(ctx, "10.1.0.1:80", ListenOptions{}); !errors.Is(err, syscall.EACCES) || !strings.Contains(err.Error(), "CAP_NET_BIND_SERVICE") {
		u.must("Listen on a port that needs rights", fmt.Errorf("%w", err))
	}
	return nil
}
