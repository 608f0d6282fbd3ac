package valkey

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/goverbs/goverbs/cm/valkey"
	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// port is the server's port, over RDMA and over TCP.
const port = "6379"

// serverEnv names the program of the server, if it is not valkey-server.
const serverEnv = "GOVERBS_VALKEY_SERVER"

// server starts a server of Valkey, which the clients reach over RDMA at the address that it returns, and
// over TCP at 127.0.0.1.
func server(t *testing.T, options ...string) (address string, p *program.Program) {
	t.Helper()
	testenv.Guest(t)
	if testenv.TheRig().Soft { // it is in the guest
		testenv.Skip(t, &uverbs.FeatureError{Feature: "valkey-server"})
	}
	dir := t.TempDir()
	p = program.Launch(t, append([]string{cmp.Or(os.Getenv(serverEnv), "valkey-server"), "--dir", dir, "--bind", "127.0.0.1", "--port", port,
		"--rdma-bind", host(), "--rdma-port", port, "--save", "", "--protected-mode", "no"}, options...)...)
	p.KeepRunning()
	address = net.JoinHostPort(host(), port)
	p.Until(t, "accepts connections", func() bool {
		c, err := valkey.Dial(t.Context(), address, small)
		if err == nil {
			err = c.Close()
		}
		return err == nil
	})
	return address, p
}

// TestServerClients: all clients with a server of Valkey.
func TestServerClients(t *testing.T) {
	address, _ := server(t)
	t.Run("go-redis", func(t *testing.T) { checkGoRedis(t, address) })
	t.Run("valkey-go", func(t *testing.T) { checkValkeyGo(t, address) })
	t.Run("rueidis", func(t *testing.T) { checkRueidis(t, address, true) })
}

// TestServerMany: 500 connections, and large values at high concurrency.
func TestServerMany(t *testing.T) {
	address, _ := server(t)
	t.Run("connections", func(t *testing.T) { checkMany(t, address, 500, 2, 100, small) })
	t.Run("values", func(t *testing.T) { checkMany(t, address, 64, 5, 1<<20, valkey.Options{}) })
}

// TestServerRestart: clients get an error when the server ends, and work again when there is a new one. When it is
// killed while a large value is on its way, that is an error, too.
func TestServerRestart(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*timeout)
	defer cancel()
	big := value(largest, 4)
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		address, p := server(t)
		c := goRedis(t, address, redis.Options{MaxRetries: -1})
		must(t, c.Set(ctx, "key", "value", 0).Err())
		done := make(chan error, 1)
		go func() {
			for {
				if err := c.Set(ctx, "big", big, 0).Err(); err != nil {
					done <- err
					return
				}
			}
		}()
		time.Sleep(300 * time.Millisecond)
		p.Signal(signal)
		<-p.Ended
		select {
		case err := <-done:
			t.Logf("%v: %v", signal, err)
			if errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v, and the client waits until its deadline: %v", signal, err)
			}
		case <-ctx.Done():
			t.Fatalf("%v, and the client hangs", signal)
		}
		if err := c.Get(ctx, "key").Err(); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("without a server: %v, want ECONNREFUSED", err)
		}
		_, again := server(t)
		if err := c.Get(ctx, "key").Err(); !errors.Is(err, redis.Nil) {
			t.Errorf("with a new server: %v", err)
		}
		again.Signal(syscall.SIGTERM)
		<-again.Ended
	}
}

// victimEnv makes this program a client that does not end: its value is the address of the server.
const victimEnv = "GOVERBS_VALKEY_VICTIM"

// victim sets a large value again and again.
func victim(address string) int {
	c := redis.NewClient(&redis.Options{Addr: address, Dialer: valkey.DialContext, ReadTimeout: timeout, WriteTimeout: timeout})
	big := value(largest, 5)
	for {
		if err := c.Set(context.Background(), "victim", big, 0).Err(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Println("set")
	}
}

// TestServerVictim: a client that is killed while a large value is on its way leaves nothing on the server, and others
// do not notice.
func TestServerVictim(t *testing.T) {
	address, _ := server(t)
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	c := goRedis(t, address, redis.Options{})
	clients := func() string {
		info, err := c.Info(ctx, "clients").Result()
		must(t, err)
		return regexp.MustCompile(`connected_clients:\d+`).FindString(info)
	}
	before := clients()
	exe, err := os.Executable()
	must(t, err)
	p := program.LaunchBy(t, func(c *exec.Cmd) error {
		c.Env = append(os.Environ(), victimEnv+"="+address)
		return c.Start()
	}, exe)
	p.Until(t, "has set a value", func() bool { return strings.Contains(p.Output(), "set\n") })
	during := clients()
	p.Signal(syscall.SIGKILL)
	<-p.Ended
	if before == during {
		t.Errorf("the server has %s with and without the victim", before)
	}
	for clients() != before {
		if ctx.Err() != nil {
			t.Fatalf("the server still has %s", clients())
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// TestServerIdle: the server sends a command to an idle connection every 3 s, each of which needs a receive. The
// connection works after more of them than it has receives.
func TestServerIdle(t *testing.T) {
	address, _ := server(t)
	c, err := valkey.Dial(t.Context(), address, valkey.Options{RecvDepth: 16, KeepAlive: -1})
	must(t, err)
	ping := func() {
		t.Helper()
		must(t, c.SetDeadline(time.Now().Add(5*time.Second)))
		_, err := c.Write([]byte("PING\r\n"))
		must(t, err)
		var b [7]byte
		n, err := c.Read(b[:])
		must(t, err)
		if string(b[:n]) != "+PONG\r\n" {
			t.Errorf("the answer is %q", b[:n])
		}
	}
	ping()
	time.Sleep(17 * 3 * time.Second)
	ping()
	must(t, c.Close())
}

// TestServerBusy: the server runs nothing for a while, and the client sends more messages than the server has
// receives. All are answered.
func TestServerBusy(t *testing.T) {
	address, _ := server(t, "--enable-debug-command", "yes")
	c, err := valkey.Dial(t.Context(), address, valkey.Options{})
	must(t, err, c.SetDeadline(time.Now().Add(timeout)))
	other := goRedis(t, address, redis.Options{})
	slept := make(chan error, 1)
	go func() { slept <- other.Do(t.Context(), "DEBUG", "SLEEP", "3").Err() }()
	time.Sleep(500 * time.Millisecond)
	const many = 1500
	for range many {
		_, err := c.Write([]byte("PING\r\n"))
		must(t, err)
	}
	must(t, <-slept)
	want := bytes.Repeat([]byte("+PONG\r\n"), many)
	got := make([]byte, len(want))
	for n := 0; n < len(got); {
		k, err := c.Read(got[n:])
		if n += k; err != nil {
			t.Fatalf("after %d of %d answers: %v", n/7, many, err)
		}
	}
	if !bytes.Equal(got, want) {
		t.Error("other answers arrive")
	}
	must(t, c.Close())
}

// TestServerCLI: valkey-cli as the client of our listener.
func TestServerCLI(t *testing.T) {
	server(t)
	newProxy(t, net.JoinHostPort(host(), "7000"), "127.0.0.1:"+port, valkey.Options{})
	cli := func(args ...string) string {
		return strings.TrimSpace(program.Launch(t, append([]string{"valkey-cli", "--rdma", "-h", host(), "-p", "7000"}, args...)...).Wait(t))
	}
	if got := cli("SET", "small", "17"); got != "OK" {
		t.Errorf("SET prints %q", got)
	}
	if got := cli("GET", "small"); got != "17" {
		t.Errorf("GET prints %q", got)
	}
	file := filepath.Join(t.TempDir(), "value")
	big := bytes.Repeat([]byte("0123456789abcdef"), 3<<20/16)
	must(t, os.WriteFile(file, big, 0o644))
	set := program.LaunchBy(t, func(c *exec.Cmd) error {
		in, err := os.Open(file)
		if err != nil {
			return err
		}
		defer in.Close()
		c.Stdin = in
		return c.Start()
	}, "valkey-cli", "--rdma", "-h", host(), "-p", "7000", "-x", "SET", "large")
	if got := strings.TrimSpace(set.Wait(t)); got != "OK" {
		t.Errorf("SET of a large value prints %q", got)
	}
	if got := cli("GET", "large"); got != string(big) {
		t.Errorf("GET of a large value prints %d bytes, want %d", len(got), len(big))
	}
}

// TestServerBenchmark: valkey-benchmark as the client of our listener, with small values, and with large ones
// at high concurrency.
func TestServerBenchmark(t *testing.T) {
	server(t)
	newProxy(t, net.JoinHostPort(host(), "7000"), "127.0.0.1:"+port, valkey.Options{})
	for _, args := range []string{"-t set,get -n 2000 -c 50", "-t set,get -n 64 -c 32 -d 1048576"} {
		line := append([]string{"valkey-benchmark", "--rdma", "-h", host(), "-p", "7000", "-q"}, strings.Fields(args)...)
		out := program.Launch(t, line...).Wait(t)
		if n := strings.Count(out, "requests per second"); n != 2 {
			t.Errorf("%s: %d results, want 2:\n%s", args, n, out)
		}
		t.Logf("%s:\n%s", args, lastLines(out))
	}
}

// lastLines returns the results of valkey-benchmark, without the lines that they replace.
func lastLines(out string) string {
	var all []string
	for line := range strings.Lines(out) {
		parts := strings.Split(strings.TrimSpace(line), "\r")
		if s := parts[len(parts)-1]; s != "" {
			all = append(all, s)
		}
	}
	return strings.Join(all, "\n")
}

// TestServerFigures prints figures of go-redis over RDMA beside TCP. They are of an emulated machine with software
// devices, and are not held against a limit.
func TestServerFigures(t *testing.T) {
	address, _ := server(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*timeout)
	defer cancel()
	ways := map[string]*redis.Client{
		"RDMA": goRedis(t, address, redis.Options{}),
		"TCP":  goRedis(t, "127.0.0.1:"+port, redis.Options{Dialer: new(net.Dialer).DialContext}),
	}
	big := value(8<<20, 6)
	const rounds = 300
	for _, way := range []string{"TCP", "RDMA", "TCP", "RDMA"} {
		c := ways[way]
		var pings []time.Duration
		for range rounds {
			begin := time.Now()
			must(t, c.Ping(ctx).Err())
			pings = append(pings, time.Since(begin))
		}
		slices.Sort(pings)
		begin := time.Now()
		p := c.Pipeline()
		for range 5000 {
			p.Incr(ctx, "figure")
		}
		_, err := p.Exec(ctx)
		must(t, err)
		pipeline := time.Since(begin)
		begin = time.Now()
		must(t, c.Set(ctx, "big", big, 0).Err())
		set := time.Since(begin)
		begin = time.Now()
		must(t, c.Get(ctx, "big").Err())
		get := time.Since(begin)
		mib := func(d time.Duration) float64 { return float64(len(big)) / (1 << 20) / d.Seconds() }
		t.Logf("%-4s PING %v (median), 5000 INCR in a pipeline %v, SET of 8 MiB %.0f MiB/s, GET %.0f MiB/s", way, pings[rounds/2].Round(time.Microsecond), pipeline.Round(time.Millisecond), mib(set), mib(get))
	}
}
