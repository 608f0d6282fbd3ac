package rstream

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/goverbs/goverbs/cm/rsocket"
	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

// TestCivetweb: Go's HTTP client and a web server in C without support for RDMA: several files over
// one connection, a file of 8 MiB among them, a part of a file, and one that does not exist. See
// the package's documentation for other servers.
func TestCivetweb(t *testing.T) {
	testenv.Guest(t)
	const port, size = "8084", 8 << 20
	dir := t.TempDir()
	files := map[string][]byte{}
	for name, n := range map[string]int{"large": size, "empty": 0, "one": 1, "two": 4095, "three": 100_000} {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(i * i >> 9)
		}
		files[name] = b
		must(t, os.WriteFile(filepath.Join(dir, name), b, 0o644))
	}
	server := preload(t, "civetweb", "-listening_ports", net.JoinHostPort(address(), port), "-document_root", dir, "-num_threads", "4",
		"-enable_keep_alive", "yes", "-keep_alive_timeout_ms", "60000", "-allow_sendfile_call", "no")
	server.KeepRunning()

	var dials atomic.Int32
	client := &http.Client{Timeout: program.Patience, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			dials.Add(1)
			return rsocket.Dial(ctx, net.JoinHostPort(address(), port), rsocket.Options{})
		},
	}}
	defer client.CloseIdleConnections()
	get := func(name, part string) (status int, body []byte, err error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+net.JoinHostPort(address(), port)+"/"+name, nil)
		if err != nil {
			return 0, nil, err
		}
		if part != "" {
			r.Header.Set("Range", part)
		}
		resp, err := client.Do(r)
		if err != nil {
			return 0, nil, err
		}
		defer resp.Body.Close()
		body, err = io.ReadAll(resp.Body)
		return resp.StatusCode, body, err
	}
	server.Serving(t, netlinkrdma.PortSpaceTCP, 8084)
	for _, c := range []struct {
		name, part string
		status     int
		want       []byte // nil if the body is the server's own
	}{
		{"one", "", http.StatusOK, files["one"]},
		{"empty", "", http.StatusOK, files["empty"]},
		{"two", "", http.StatusOK, files["two"]},
		{"large", "", http.StatusOK, files["large"]},
		{"three", "", http.StatusOK, files["three"]},
		{"large", "bytes=1000000-3000000", http.StatusPartialContent, files["large"][1_000_000:3_000_001]},
		{"large", "", http.StatusOK, files["large"]},
		{"none", "", http.StatusNotFound, nil},
	} {
		t.Run(fmt.Sprintf("%s %s", c.name, c.part), func(t *testing.T) {
			status, body, err := get(c.name, c.part)
			must(t, err)
			if status != c.status {
				t.Errorf("the status is %d, want %d", status, c.status)
			}
			if c.want != nil && sha256.Sum256(body) != sha256.Sum256(c.want) {
				t.Errorf("%d bytes arrive, or others than the %d of the file", len(body), len(c.want))
			}
		})
	}
	if n := dials.Load(); n != 1 {
		t.Errorf("the requests have used %d connections, want 1", n)
	}
}
