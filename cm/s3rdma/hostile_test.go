package s3rdma

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
)

// do sends a request with headers, and returns the status, the header and the body of the answer.
func do(t *testing.T, method, url string, header map[string]string, body io.Reader) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	testenv.Must(t, err)
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	testenv.Must(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	testenv.Must(t, err)
	return resp.StatusCode, resp.Header, string(text)
}

// TestHostileClient sends requests with tokens that are wrong, or not the client's: each is
// refused, nothing is stored, and no memory changes.
func TestHostileClient(t *testing.T) {
	r := newRig(t, InitiatorOptions{Networks: everywhere})
	c, dir := serveStore(t, func(h http.Handler) http.Handler { return r.initiator.Handler(h, HandlerOptions{}) })
	testenv.Must(t, os.WriteFile(filepath.Join(dir, "object"), make([]byte, 8192), 0o600))
	g := r.region(t, 8192)
	fill(g.Bytes(), 9)
	want := bytes.Clone(g.Bytes())
	for _, method := range []string{http.MethodGet, http.MethodPut} {
		x, good := r.offer(t, g, method)
		change := func(f func(*Token)) string {
			tok := good
			f(&tok)
			return tok.String()
		}
		url := c.Endpoint + "/b/object"
		if method == http.MethodPut {
			url = c.Endpoint + "/b/new"
		}
		for name, test := range map[string]struct {
			header map[string]string
			status int
		}{
			"another key":         {map[string]string{tokenHeader: change(func(tok *Token) { tok.RKey ^= 0x100 })}, 500},
			"another address":     {map[string]string{tokenHeader: change(func(tok *Token) { tok.Addr += 1 << 30 })}, 500},
			"more than there is":  {map[string]string{tokenHeader: change(func(tok *Token) { tok.Addr += 4096 })}, 500},
			"no token":            {map[string]string{tokenHeader: "x"}, 400},
			"target 0":            {map[string]string{tokenHeader: strings.Replace(good.String(), fmt.Sprintf(":%06x:", good.DCTN), ":000000:", 1)}, 400},
			"not signed":          {map[string]string{tokenHeader: good.String(), "Authorization": "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host;x-amz-date, Signature=0"}, 403},
			"presigned, not this": {map[string]string{tokenHeader: good.String(), "presigned": "host"}, 403},
		} {
			u := url
			if s := test.header["presigned"]; s != "" {
				delete(test.header, "presigned")
				u += "?X-Amz-SignedHeaders=" + s
			}
			status, header, text := do(t, method, u, test.header, nil)
			if status != test.status || header.Get(replyHeader) != "" || !strings.Contains(text, "<Error>") || strings.Contains(text, "lkey") || header.Get("Etag") != "" {
				t.Errorf("%s %s: %d %v %s, want %d", method, name, status, header, text, test.status)
			}
		}
		status, _, text := do(t, method, url, map[string]string{tokenHeader: good.String()}, strings.NewReader("data"))
		if status != 400 || !strings.Contains(text, "a token and a body") {
			t.Errorf("%s with a body: %d %s", method, status, text)
		}
		x.loan.end(false)
		if !bytes.Equal(g.Bytes(), want) {
			t.Errorf("%s: the memory has changed", method)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "new")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the server has stored an object: %v", err)
	}
	for name, tok := range map[string]string{"hipObject": strings.Repeat("00", 44), "elbencho": "rc:0:0:0:0"} {
		status, header, _ := do(t, http.MethodPut, c.Endpoint+"/b/new", map[string]string{tokenHeader: tok}, nil)
		if status != 501 || header.Get(replyHeader) != "501" {
			t.Errorf("a token of %s: %d %v, want 501", name, status, header)
		}
		status, header, text := do(t, http.MethodGet, c.Endpoint+"/b/object", map[string]string{tokenHeader: tok}, nil)
		if status != 200 || header.Get(replyHeader) != "501" || len(text) != 8192 {
			t.Errorf("a token of %s: %d %v and %d bytes, want the object", name, status, header, len(text))
		}
	}
	if res, err := c.Put(t.Context(), "b/new", g, 8192, PutOptions{}); err != nil || !res.RDMA { // all of it has left the server well
		t.Errorf("Put returns %+v, %v", res, err)
	}
}

// TestDirection tries the other direction than the request offers.
func TestDirection(t *testing.T) {
	r := newRig(t, InitiatorOptions{Networks: everywhere})
	g := r.region(t, 8192)
	_, token := r.offer(t, g, http.MethodPut)
	w, err := r.initiator.Writer(t.Context(), token)
	testenv.Must(t, err)
	w.Write(make([]byte, 100))
	if err := w.Close(); err == nil {
		t.Error("a WRITE to the memory of a PUT has succeeded")
	}
	h := r.region(t, 8192)
	_, token = r.offer(t, h, http.MethodGet)
	rd, err := r.initiator.Reader(t.Context(), token)
	testenv.Must(t, err)
	if n, err := rd.Read(make([]byte, 100)); err == nil {
		t.Errorf("a READ from the memory of a GET returns %d bytes", n)
	}
	closed(t, rd)
}

// TestNetworks checks which targets a server takes.
func TestNetworks(t *testing.T) {
	at := func(s string) Token { return Token{GID: netip.MustParseAddr(s).As16()} }
	some := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::/32")}
	for _, test := range []struct {
		networks []netip.Prefix
		gid      string
		from     string
		want     bool
	}{
		{nil, "::ffff:10.0.0.1", "10.0.0.1", true}, {nil, "::ffff:10.0.0.1", "::ffff:10.0.0.1", true}, {nil, "::ffff:10.0.0.1", "10.0.0.2", false},
		{nil, "fe80::1", "fe80::1%eth0", true}, {nil, "fe80::1", "10.0.0.1", false},
		{[]netip.Prefix{netip.MustParsePrefix("::ffff:10.0.0.0/104")}, "::ffff:10.9.9.9", "192.0.2.1", true}, {[]netip.Prefix{netip.MustParsePrefix("::ffff:10.0.0.0/104")}, "::ffff:11.9.9.9", "192.0.2.1", false},
		{some, "::ffff:10.9.9.9", "192.0.2.1", true}, {some, "2001:db8::5", "192.0.2.1", true}, {some, "::ffff:11.0.0.1", "11.0.0.1", false},
	} {
		i := &Initiator{o: InitiatorOptions{Networks: test.networks}}
		if got := i.allows(at(test.gid), netip.MustParseAddr(test.from)); got != test.want {
			t.Errorf("target %s, request from %s, networks %v: %v", test.gid, test.from, test.networks, got)
		}
	}
}

// TestServerDies has servers that end the connection, or do not answer: the call fails, the key is
// gone, and the region can be used again.
func TestServerDies(t *testing.T) {
	r := newRig(t, InitiatorOptions{Networks: everywhere})
	g := r.region(t, 8192)
	var cancel context.CancelFunc
	for name, answer := range map[string]func(net.Conn){
		"at once":      func(net.Conn) {},
		"in an answer": func(c net.Conn) { io.WriteString(c, "HTTP/1.1 200 OK\r\nX-Amz-Rdma-") },
		"never": func(c net.Conn) {
			cancel()
			io.Copy(io.Discard, c) // until the client ends the connection
		},
	} {
		var mu sync.Mutex
		var seen []string
		l, err := net.Listen("tcp", "127.0.0.1:0")
		testenv.Must(t, err)
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				req := make([]byte, 4096)
				n, _ := c.Read(req)
				mu.Lock()
				_, rest, _ := strings.Cut(string(req[:n]), tokenHeader+": ")
				seen = append(seen, rest[:min(len(rest), tokenSize)])
				mu.Unlock()
				answer(c)
				c.Close()
			}
		}()
		c := &Client{Endpoint: "http://" + l.Addr().String(), Transport: &http.Transport{}}
		var ctx context.Context
		ctx, cancel = context.WithCancel(t.Context())
		if _, err := c.Put(ctx, "b/k", g, 8192, PutOptions{}); err == nil {
			t.Errorf("%s: Put has succeeded", name)
		}
		cancel()
		ctx, cancel = context.WithCancel(t.Context())
		if _, err := c.Get(ctx, "b/k", g, GetOptions{}); err == nil {
			t.Errorf("%s: Get has succeeded", name)
		}
		cancel()
		l.Close()
		mu.Lock()
		for _, s := range seen {
			token, err := ParseToken(s)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			refused(t, r, token)
		}
		if len(seen) < 2 {
			t.Errorf("%s: the server has seen %d requests", name, len(seen))
		}
		mu.Unlock()
	}
}

// TestClientDies has clients that go away while the server moves data: the handler learns it, and
// the lane is of use for the next.
func TestClientDies(t *testing.T) {
	r := newRig(t, InitiatorOptions{Networks: everywhere, Transfers: 1, Chunk: 4096, Depth: 2})
	ended, begun, reported := make(chan error, 1), make(chan bool, 1), make(chan error, 3)
	c, _ := serveStore(t, func(h http.Handler) http.Handler {
		slow := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/b/slow" {
				h.ServeHTTP(w, r)
				return
			}
			begun <- true
			<-r.Context().Done()
			var err error
			if r.Method == http.MethodPut {
				_, err = io.Copy(io.Discard, r.Body)
			} else {
				_, err = w.Write(make([]byte, 64<<10))
			}
			ended <- err
		})
		return r.initiator.Handler(slow, HandlerOptions{Report: func(_ *http.Request, _ int64, err error) { reported <- err }})
	})
	g := r.region(t, 64<<10)
	for _, method := range []string{http.MethodPut, http.MethodGet} {
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-begun
			cancel()
		}()
		var err error
		if method == http.MethodPut {
			_, err = c.Put(ctx, "b/slow", g, g.Len(), PutOptions{})
		} else {
			_, err = c.Get(ctx, "b/slow", g, GetOptions{})
		}
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", method, err)
		}
		if err := <-ended; err == nil {
			t.Errorf("%s: the handler sees no error", method)
		}
		if err := <-reported; err == nil {
			t.Errorf("%s: no error is reported", method)
		}
	}
	if res, err := c.Put(t.Context(), "b/object", g, g.Len(), PutOptions{}); err != nil || !res.RDMA {
		t.Errorf("Put returns %+v, %v", res, err)
	}
}
