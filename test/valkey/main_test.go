package valkey

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	valkeygo "github.com/valkey-io/valkey-go"

	"github.com/goverbs/goverbs/cm/valkey"
	"github.com/goverbs/goverbs/test/softrig"
	"github.com/goverbs/goverbs/test/testenv"
)

func TestMain(m *testing.M) {
	if address := os.Getenv(victimEnv); address != "" {
		os.Exit(victim(address))
	}
	if testenv.TheRig().Soft {
		if _, err := softrig.Make(); err != nil {
			fmt.Fprintln(os.Stderr, "software devices:", err)
			os.Exit(2)
		}
	}
	os.Exit(testenv.MainFor(m, map[string]string{"rxe": "", "mlx5": "", "soft": "all TestServer*: valkey-server"}))
}

// timeout bounds a step. Nothing takes that long unless it hangs.
const timeout = time.Minute

// must fails the test on an error.
func must(t testing.TB, errs ...error) {
	t.Helper()
	testenv.Must(t, errors.Join(errs...))
}

// host is the address of the first device.
func host() string { return testenv.TheRig().Addrs[0] }

// small are options for many connections within one process.
var small = valkey.Options{RecvBuffer: 64 << 10, SendBuffer: 32 << 10, RecvDepth: 64, SendDepth: 32}

// goRedis makes a client with go-redis.
func goRedis(t testing.TB, address string, o redis.Options) *redis.Client {
	t.Helper()
	o.Addr = address
	if o.Dialer == nil {
		o.Dialer = valkey.DialContext
	}
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = 5*timeout, timeout, timeout, timeout // dials may wait for each other
	// Connections of a client share these options, and go-redis 9.23 changes them without a lock if the server
	// does not know such notifications.
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	c := redis.NewClient(&o)
	t.Cleanup(func() { c.Close() })
	return c
}

// valkeyGo makes a client with valkey-go.
func valkeyGo(t testing.TB, address string) valkeygo.Client {
	t.Helper()
	c, err := valkeygo.NewClient(valkeygo.ClientOption{
		InitAddress: []string{address}, DisableCache: true, ForceSingleClient: true, ConnWriteTimeout: timeout,
		DialCtxFn: func(ctx context.Context, address string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return valkey.DialContext(ctx, "tcp", address)
		},
	})
	must(t, err)
	t.Cleanup(c.Close)
	return c
}

// proxy is a server over RDMA that passes the connections on to a server over TCP.
type proxy struct {
	*valkey.Listener
	served sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool // guarded by mu
}

// newProxy starts a proxy, which ends with the test.
func newProxy(t testing.TB, listen, to string, o valkey.Options) *proxy {
	t.Helper()
	testenv.Guest(t)
	l, err := valkey.Listen(t.Context(), listen, valkey.ListenOptions{Options: o})
	must(t, err)
	p := &proxy{Listener: l, conns: map[net.Conn]bool{}}
	p.served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.served.Go(func() { p.serve(t, c, to) })
		}
	})
	t.Cleanup(func() {
		must(t, l.Close())
		p.cut()
		p.served.Wait()
	})
	return p
}

// serve passes a connection on.
func (p *proxy) serve(t testing.TB, c net.Conn, to string) {
	p.mu.Lock()
	p.conns[c] = true
	p.mu.Unlock()
	up, err := net.Dial("tcp", to)
	if err != nil {
		t.Error(err)
		c.Close()
		return
	}
	done := make(chan struct{}, 2)
	for _, way := range [2][2]net.Conn{{c, up}, {up, c}} {
		p.served.Go(func() {
			io.Copy(way[0], struct{ io.Reader }{way[1]})
			done <- struct{}{}
		})
	}
	<-done
	c.Close()
	up.Close()
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
}

// cut closes all connections. It returns how many there were.
func (p *proxy) cut() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		n++
		go c.Close() // it waits until what was written has arrived
	}
	return n
}

// newMini starts a server in this process behind a proxy, and returns its address.
func newMini(t testing.TB, o valkey.Options) *proxy {
	t.Helper()
	testenv.Guest(t)
	m := miniredis.NewMiniRedis()
	must(t, m.StartAddr("127.0.0.1:0"))
	t.Cleanup(m.Close)
	return newProxy(t, host()+":0", m.Addr(), o)
}
