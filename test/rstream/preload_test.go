package rstream

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/goverbs/goverbs/cm/rsocket"
	"github.com/goverbs/goverbs/test/program"
	"github.com/goverbs/goverbs/test/testenv"
)

// preload starts a program whose TCP connections are rsockets.
func preload(t *testing.T, line ...string) *program.Program {
	t.Helper()
	library, err := filepath.Glob("/usr/lib/*/rsocket/librspreload.so")
	if err != nil || len(library) != 1 {
		t.Fatalf("librspreload.so is not there: %v, %v", library, err)
	}
	return program.LaunchBy(t, func(c *exec.Cmd) error {
		c.Env = append(os.Environ(), "LD_PRELOAD="+library[0])
		return c.Start()
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

// TestCurl: curl, which knows nothing of RDMA, and our web server: requests over one connection, a large body
// each way, many requests at once.
func TestCurl(t *testing.T) {
	testenv.Guest(t)
	const size = 8 << 20
	body := make([]byte, size)
	for i := range body {
		body[i] = byte(i * i >> 9)
	}
	l := &counter{Listener: listen(t, "8080", rsocket.Options{})}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := sha256.New()
		if _, err := io.Copy(h, r.Body); err != nil {
			t.Error(err)
		}
		if r.URL.Path == "/body" {
			w.Write(body)
			return
		}
		fmt.Fprintf(w, "%s %x\n", r.URL.Path, h.Sum(nil))
	})}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	defer func() {
		s.Close()
		if err := <-served; err != http.ErrServerClosed {
			t.Error(err)
		}
	}()
	url := "http://" + net.JoinHostPort(address(), "8080")
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
	var many [10]*program.Program // curl -Z crashes with librspreload.so
	for i := range many {
		many[i] = preload(t, "curl", "-sS", url+"/many")
	}
	for _, p := range many {
		if got, want := p.Wait(t), fmt.Sprintf("/many %s\n", empty); got != want {
			t.Errorf("one of %d curls at once prints %q, want %q", len(many), got, want)
		}
	}
}
