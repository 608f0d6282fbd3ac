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

	"github.com/goverbs/goverbs/test/testenv"
)

// TestCredentials: who has changed user is told what the kernel minds.
func TestCredentials(t *testing.T) {
	testenv.Guest(t)
	if said := other(t, "is another user", "-"); !strings.Contains(said, "permission denied") || !strings.Contains(said, "credentials") {
		t.Errorf("Bind says %q", said)
	}
}

// TestUserChanges: a program becomes another user while it listens, and has connections.
func TestUserChanges(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard)
	testenv.Guest(t)
	if said := other(t, "becomes another user", "-"); said != "all is well" {
		t.Error(said)
	}
}

// becomeNobody has a listener, a datagram socket, connections and IDs of the superuser, becomes
// nobody, and sees that everything ends, or goes on, as it should.
func becomeNobody(ctx context.Context, _ string) error {
	ctx, cancel := context.WithTimeout(ctx, 12*timeout)
	defer cancel()
	var errs []error
	must := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
	}
	denied := func(what string, err error, words ...string) {
		if !errors.Is(err, syscall.EACCES) {
			errs = append(errs, fmt.Errorf("%s: %w, want EACCES", what, err))
			return
		}
		for _, w := range append(words, "credentials") {
			if !strings.Contains(err.Error(), w) {
				errs = append(errs, fmt.Errorf("%s: %w does not say %q", what, err, w))
			}
		}
	}
	files := func() int {
		all, _ := os.ReadDir("/proc/self/fd")
		return len(all)
	}
	warm, err := Listen(ctx, "10.1.0.1:0", ListenOptions{}) // has Go's runtime open what it keeps
	if err != nil {
		return err
	}
	must("Close", warm.Close())
	time.Sleep(2 * idleGrace)
	before := files()

	l, err := Listen(ctx, "10.1.0.1:0", ListenOptions{})
	if err != nil {
		return err
	}
	client, err := Dial(ctx, l.Addr().String(), DialOptions{})
	if err != nil {
		return err
	}
	server, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	pending, err := Dial(ctx, l.Addr().String(), DialOptions{}) // nobody accepts it
	if err != nil {
		return err
	}
	for len(l.ready) == 0 {
		runtime.Gosched()
	}
	channel, err := OpenChannel()
	if err != nil {
		return err
	}
	id, err := channel.NewID(TCP)
	if err != nil {
		return err
	}
	var packets *PacketConn
	var packetErr = make(chan error, 1)
	if !testenv.TheRig().IWARP() {
		if packets, err = ListenPacket(ctx, "10.1.0.1:0", PacketOptions{}); err != nil {
			return err
		}
		go func() {
			_, _, err := packets.Recv(ctx)
			packetErr <- err
		}()
	}

	// Before 5.16 who is not the superuser may register 64 KiB.
	must("setrlimit", unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}))
	must("setgid", syscall.Setgid(nobody))
	must("setuid", syscall.Setuid(nobody))

	// A connection that is there goes on.
	must("Send", client.Send(ctx, []byte("still here")))
	if msg, err := server.Recv(ctx); string(msg) != "still here" {
		must("Recv", fmt.Errorf("%q: %w", msg, err))
	}
	// Requests are what the listener can no longer take; the pending connection comes first.
	if c, err := l.Accept(ctx); err != nil {
		must("Accept", err)
	} else {
		must("Close", c.Close())
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
	denied("Accept", <-accept, "cm: accept on 10.1.0.1:")
	must("Close of the listener", l.Close())
	stop() // what the kernel has of the listener goes with the last connection of it
	dialling.Wait()
	if !errors.Is(dialErr, context.Canceled) {
		must("Dial to who may not answer", fmt.Errorf("%w", dialErr))
	}
	if packets != nil {
		// They end by themselves, with what the kernel has of them, and it rejects who asked.
		dialling.Go(func() { _, dialErr = DialPacket(ctx, packets.LocalAddr().String(), PacketOptions{}) })
		denied("Recv of datagrams", <-packetErr, "datagrams at 10.1.0.1:")
		dialling.Wait()
		if !errors.Is(dialErr, syscall.ECONNREFUSED) {
			must("DialPacket to who may not answer", fmt.Errorf("%w", dialErr))
		}
		must("Close of datagrams", packets.Close())
	}
	// A channel that was open is of no use, and can be closed.
	denied("Bind", id.Bind(AddrOf(netip.MustParseAddrPort("10.1.0.1:0"))))
	if err := id.Bind(AddrOf(netip.MustParseAddrPort("10.1.0.1:80"))); !strings.Contains(fmt.Sprint(err), "CAP_NET_BIND_SERVICE") {
		must("Bind to a port that needs rights", fmt.Errorf("%w", err))
	}
	denied("Close of an ID", id.Close())
	must("Close of an ID once more", id.Close())
	must("Close of a channel", channel.Close())

	// What is opened now works, whatever thread it is used by.
	if l, err = Listen(ctx, "10.1.0.1:0", ListenOptions{}); err != nil {
		return errors.Join(append(errs, err)...)
	}
	var all sync.WaitGroup
	const n = 20
	results := make(chan error, 2*n)
	for range n {
		all.Go(func() {
			runtime.LockOSThread() // and ends with it
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
		must("as nobody", err)
	}
	must("Close", l.Close())
	if _, err := Listen(ctx, "10.1.0.1:80", ListenOptions{}); !errors.Is(err, syscall.EACCES) || !strings.Contains(err.Error(), "CAP_NET_BIND_SERVICE") {
		must("Listen on a port that needs rights", fmt.Errorf("%w", err))
	}
	pending.Close()
	client.Close()
	server.Close()
	for end := time.Now().Add(6 * timeout); files() > before; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			must("files", fmt.Errorf("there were %d, and are %d", before, files()))
			break
		}
	}
	return errors.Join(errs...)
}
