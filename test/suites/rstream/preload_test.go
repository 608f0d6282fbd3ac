package rstream

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/cm/rsocket"
	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

// preload starts a program whose TCP connections are rsockets.
func preload(t *testing.T, line ...string) *program.Program {
	t.Helper()
	return preloadBy(t, (*exec.Cmd).Start, line...)
}

// preloadBy is preload with another way to start the program.
func preloadBy(t *testing.T, start func(*exec.Cmd) error, line ...string) *program.Program {
	t.Helper()
	library, err := filepath.Glob("/usr/lib/*/rsocket/librspreload.so")
	if err != nil || len(library) != 1 {
		t.Fatalf("librspreload.so is not there: %v, %v", library, err)
	}
	return program.LaunchBy(t, func(c *exec.Cmd) error {
		c.Env = append(os.Environ(), "LD_PRELOAD="+library[0])
		return start(c)
	}, line...)
}

// counter counts the connections of a listener.
type counter struct {
	net.Listener
	n atomic.Int32
}

// Accept implements [net.Listener].
func (l *counter) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.n.Add(1)
	}
	return c, err
}

// TestCurl: curl, with librspreload.so, and our web server: requests over one connection, a body
// each way.
func TestCurl(t *testing.T) {
	testenv.Guest(t)
	const size = 8 << 20
	body := make([]byte, size)
	for i := range body {
		body[i] = byte(i * i >> 9)
	}
	l := &counter{Listener: listen(t, "8080", rsocket.Options{})}
	url := serve(t, l, func(w http.ResponseWriter, r *http.Request) {
		h := sha256.New()
		if _, err := io.Copy(h, r.Body); err != nil {
			t.Error(err)
		}
		if r.URL.Path == "/body" {
			w.Write(body)
			return
		}
		fmt.Fprintf(w, "%s %x\n", r.URL.Path, h.Sum(nil))
	})
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }

	empty := fmt.Sprintf("%x", sha256.Sum256(nil))
	if got, want := preload(t, "curl", "-sS", url+"/1", url+"/2", url+"/3").Wait(t), fmt.Sprintf("/1 %s\n/2 %[1]s\n/3 %[1]s\n", empty); got != want {
		t.Errorf("curl prints %q, want %q", got, want)
	}
	if n := l.n.Load(); n != 1 {
		t.Errorf("three requests have used %d connections, want 1", n)
	}
	preload(t, "curl", "-sS", "-o", file("down"), url+"/body").Wait(t)
	got, err := os.ReadFile(file("down"))
	must(t, err)
	if sha256.Sum256(got) != sha256.Sum256(body) {
		t.Errorf("%d bytes arrive, or others than were sent", len(got))
	}
	if got, want := preload(t, "curl", "-sS", "-H", "Expect:", "--data-binary", "@"+file("down"), url+"/up").Wait(t), fmt.Sprintf("/up %x\n", sha256.Sum256(body)); got != want {
		t.Errorf("curl sends a body and prints %q, want %q", got, want)
	}
}

// TestRedis: redis-cli, with librspreload.so, and a server of ours that knows two commands.
func TestRedis(t *testing.T) {
	const port = "6379"
	l := listen(t, port, rsocket.Options{})
	stored := map[string]string{}
	serve := func(c net.Conn) error {
		r := bufio.NewReader(c)
		for {
			words, err := readCommand(r)
			if err == io.EOF {
				return nil
			}
			if err != nil {
				return err
			}
			answer := "-ERR unknown command\r\n"
			switch {
			case len(words) == 3 && strings.EqualFold(words[0], "SET"):
				stored[words[1]] = words[2]
				answer = "+OK\r\n"
			case len(words) == 2 && strings.EqualFold(words[0], "GET"):
				v := stored[words[1]]
				answer = fmt.Sprintf("$%d\r\n%s\r\n", len(v), v)
			}
			if _, err := io.WriteString(c, answer); err != nil {
				return err
			}
		}
	}
	value := strings.Repeat("0123456789abcdef", 20_000)
	for _, s := range []struct{ input, want string }{
		{"SET small 17", "OK"}, {"GET small", "17"}, {"SET large " + value, "OK"}, {"GET large", value},
	} {
		served := make(chan error, 1)
		go func() {
			c, err := l.Accept()
			if err == nil {
				if err = serve(c); errors.Is(err, syscall.ECONNRESET) { // redis-cli exits without closing its socket
					err = nil
				}
				c.Close()
			}
			served <- err
		}()
		file := filepath.Join(t.TempDir(), "input")
		must(t, os.WriteFile(file, []byte(s.input+"\n"), 0o644))
		cli := preloadBy(t, func(c *exec.Cmd) error {
			in, err := os.Open(file)
			if err != nil {
				return err
			}
			defer in.Close()
			c.Stdin = in
			return c.Start()
		}, "redis-cli", "-h", address(), "-p", port)
		if got := strings.TrimSpace(cli.Wait(t)); got != s.want {
			t.Errorf("redis-cli gets %d bytes, want %d", len(got), len(s.want))
		}
		must(t, <-served)
	}
}

// readCommand reads a command of redis: an array of strings.
func readCommand(r *bufio.Reader) ([]string, error) {
	number := func(mark byte) (n int, err error) {
		line, err := r.ReadString('\n')
		if err != nil {
			return 0, err
		}
		if line[0] != mark {
			return 0, fmt.Errorf("%q does not begin with %c", line, mark)
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	n, err := number('*')
	if err != nil {
		return nil, err
	}
	words := make([]string, n)
	for i := range words {
		length, err := number('$')
		if err != nil {
			return nil, err
		}
		b := make([]byte, length+2)
		if _, err := io.ReadFull(r, b); err != nil {
			return nil, err
		}
		words[i] = string(b[:length])
	}
	return words, nil
}
