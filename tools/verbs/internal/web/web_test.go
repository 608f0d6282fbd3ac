package web

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// serving starts a server and returns its address, and a function that ends it.
func serving(t *testing.T, s *Server) (address string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.4.4.4:0") // where no other test listens when this one has ended
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		if err := s.Serve(ctx, l); err != nil {
			t.Errorf("the server ends with %v", err)
		}
	})
	stop = func() { cancel(); all.Wait() }
	t.Cleanup(stop)
	return l.Addr().String(), stop
}

// pages returns a server of one page.
func pages(body string) *Server {
	return &Server{Hosts: []string{"x", "h"}, HeadTime: time.Minute, WriteTime: time.Minute, Most: 8, Pages: map[string]Page{"/page": {"text/plain", func() []byte { return []byte(body) }}}}
}

// ask sends bytes, and returns the answer up to the end of the connection.
func ask(t *testing.T, address, request string) string {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Minute))
	io.WriteString(conn, request) // what is too much may be refused
	conn.(*net.TCPConn).CloseWrite()
	answer, err := io.ReadAll(conn)
	if err != nil {
		t.Errorf("%.60q: %v", request, err)
	}
	return string(answer)
}

// TestAnswers has requests and what the answer begins with.
func TestAnswers(t *testing.T) {
	address, _ := serving(t, pages("hello"))
	const host = "Host: x\r\n\r\n"
	for request, want := range map[string]string{
		"GET /page HTTP/1.1\r\n" + host:                               "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n",
		"GET /page?a=b HTTP/1.1\nHost: x\n\n":                         "HTTP/1.1 200 ",
		"GET http://x:1/page HTTP/1.1\r\n" + host:                     "HTTP/1.1 200 ",
		"GET /page HTTP/1.0\r\n\r\n":                                  "HTTP/1.1 200 ",
		"GET /nothing HTTP/1.1\r\n" + host:                            "HTTP/1.1 404 Not Found\r\n",
		"GET http://x HTTP/1.1\r\n" + host:                            "HTTP/1.1 404 Not Found\r\n",
		"POST /page HTTP/1.1\r\nContent-Length: 3\r\n" + host + "abc": "HTTP/1.1 405 Method Not Allowed\r\n",
		"GET /page HTTP/1.1\r\n\r\n":                                  "HTTP/1.1 400 Bad Request\r\n",
		"GET /page HTTP/1.1\r\nHost: y\r\n" + host:                    "HTTP/1.1 400 ",
		"GET /page HTTP/1.1\r\nno colon\r\n" + host:                   "HTTP/1.1 400 ",
		"GET /page HTTP/1.1\r\nHost : x\r\n\r\n":                      "HTTP/1.1 400 ",
		"GET /page\r\n" + host:                                        "HTTP/1.1 400 ",
		"GET  /page HTTP/1.1\r\n" + host:                              "HTTP/1.1 400 ",
		"G(T /page HTTP/1.1\r\n" + host:                               "HTTP/1.1 400 ",
		"GET /page HTTX/1.1\r\n" + host:                               "HTTP/1.1 400 ",
		"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n":        "HTTP/1.1 400 ", // TLS
		"GET /page HTTP/2.0\r\n" + host:                               "HTTP/1.1 505 HTTP Version Not Supported\r\n",
		"GET /page HTTP/1.1\r\nHost: x\r\n":                           "HTTP/1.1 400 ", // it ends before an empty line
		"GET /page HTTP/1.1\r\nX: " + strings.Repeat("a", 64<<10):     "HTTP/1.1 431 Request Header Fields Too Large\r\n",
	} {
		if got := ask(t, address, request); !strings.HasPrefix(got, want) {
			t.Errorf("%.60q is answered with %q, want %q", request, got, want)
		}
	}
	if got := ask(t, address, "HEAD /page HTTP/1.1\r\n"+host); !strings.Contains(got, "Content-Length: 5\r\n") || !strings.HasSuffix(got, "\r\n\r\n") {
		t.Errorf("HEAD is answered with %q", got)
	}
	if got := ask(t, address, ""); got != "" {
		t.Errorf("nothing is answered with %q", got)
	}
	if got := ask(t, address, "PUT /page HTTP/1.1\r\n"+host); !strings.Contains(got, "\r\nAllow: GET, HEAD\r\n") || !strings.Contains(got, `the method is "PUT", allowed: GET, HEAD`) {
		t.Errorf("PUT is answered with %q", got)
	}
}

// TestClient: Go's client reads the pages, also one larger than any buffer, and what is sent after the request
// does not break the answer.
func TestClient(t *testing.T) {
	body := strings.Repeat("0123456789abcdef", 1<<18)
	address, _ := serving(t, pages(body))
	for range 3 {
		r, err := http.Get("http://" + address + "/page")
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || string(got) != body || r.ContentLength != int64(len(body)) || r.Header.Get("Date") == "" {
			t.Errorf("%d bytes, %v, %q", len(got), err, r.Header)
		}
	}
	r, err := http.Post("http://"+address+"/page", "text/plain", strings.NewReader(body[:32<<10]))
	if err != nil || r.StatusCode != 405 {
		t.Errorf("POST: %v, %v", r, err)
	} else {
		r.Body.Close()
	}
}

// open connects and sends a request, if there is one.
func open(t *testing.T, address, request string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	return conn
}

// TestSlow: clients that send no whole request, or never read, are cut; meanwhile others are served, as long as there
// are not too many.
func TestSlow(t *testing.T) {
	s := pages(strings.Repeat("x", 64<<20)) // no buffer is as large
	s.HeadTime, s.WriteTime, s.Most = time.Second, time.Second, 8
	s.Pages["/small"] = Page{"text/plain", func() []byte { return []byte("small") }}
	address, _ := serving(t, s)
	begun := time.Now()
	never := open(t, address, "GET /page HTTP/1.1\r\nHost: x\r\n\r\n")
	half := open(t, address, "GET /page HT")
	if got := ask(t, address, "GET /small HTTP/1.1\r\nHost: x\r\n\r\n"); !strings.HasSuffix(got, "\r\n\r\nsmall") {
		t.Errorf("beside slow clients: %.200q", got)
	}
	answer, err := io.ReadAll(half)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 408 Request Timeout\r\n") {
		t.Errorf("half a request is answered with %.200q, %v", answer, err)
	}
	var free bool
	for time.Since(begun) < time.Minute && !free { // all places are free in the end
		var conns []net.Conn
		for range s.Most / 2 { // the share of one address
			conns = append(conns, open(t, address, "GET /sm"))
		}
		extra := open(t, address, "GET /small HTTP/1.1\r\nHost: x\r\n\r\n")
		refusal, _ := io.ReadAll(extra) // an error means that even those who are refused are too many
		extra.Close()
		if strings.HasPrefix(string(refusal), "HTTP/1.1 503 Service Unavailable\r\n") {
			free = true
			for _, c := range conns {
				io.WriteString(c, "all HTTP/1.1\r\nHost: x\r\n\r\n")
				answer, err := io.ReadAll(c)
				free = free && err == nil && strings.HasSuffix(string(answer), "small")
			}
		}
		for _, c := range conns {
			c.Close()
		}
	}
	if !free {
		t.Error("a client that never reads keeps its place, or there is no limit")
	}
	n, err := io.Copy(io.Discard, never)
	if n >= 64<<20 {
		t.Errorf("the client that did not read gets all of %d bytes later, %v", n, err)
	}
}

// TestShare: slow clients at one address leave places for others.
func TestShare(t *testing.T) {
	s := pages("hello")
	address, _ := serving(t, s)
	var slow []net.Conn
	for range 4 * s.Most {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, "GET /pa") // those that are refused may have been hung up on
		slow = append(slow, c)
	}
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}}
	for i := range s.Most {
		c, err := d.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, "GET /page HTTP/1.1\r\nHost: x\r\n\r\n")
		if got, err := io.ReadAll(c); err != nil || !strings.HasSuffix(string(got), "hello") {
			t.Errorf("scrape %d beside %d slow clients at another address: %v, %q", i, len(slow), err, got)
		}
		c.Close()
	}
}

// TestHost: a request that names another host is refused, as a page in a browser may have the name of its server
// lead here.
func TestHost(t *testing.T) {
	s := pages("hello")
	s.Hosts = []string{"node1", "node1.example.com"}
	address, _ := serving(t, s)
	for host, want := range map[string]string{
		"127.0.0.1": "200", "127.0.0.1:9879": "200", "[::1]:9879": "200", "[::1]": "200", "localhost": "200", "LocalHost:1": "200",
		"node1": "200", "NODE1:9879": "200", "node1.example.com.": "200",
		"evil.example": "421", "node1.evil.example": "421", "127.0.0.1.evil.example": "421", "localhost.evil:9879": "421", "x y": "421",
	} {
		for _, request := range []string{"GET /page HTTP/1.1\r\nHost: %s\r\n\r\n", "GET http://%s/page HTTP/1.1\r\nHost: localhost\r\n\r\n"} {
			if strings.Contains(host, " ") && strings.HasPrefix(request, "GET http") {
				continue // it would end the path
			}
			got := ask(t, address, fmt.Sprintf(request, host))
			if !strings.HasPrefix(got, "HTTP/1.1 "+want+" ") || want == "421" && (strings.Contains(got, "hello") || !strings.Contains(got, "allowed: an IP address, localhost, node1, node1.example.com")) {
				t.Errorf("%q: got %.200q, want %s", fmt.Sprintf(request, host), got, want)
			}
		}
	}
}

// TestStop: the server ends although clients are connected.
func TestStop(t *testing.T) {
	s := pages(strings.Repeat("x", 64<<20))
	address, stop := serving(t, s)
	open(t, address, "GET /page HTTP/1.1\r\nHost: x\r\n\r\n")
	open(t, address, "GET")
	stop()
	if conn, err := net.Dial("tcp", address); err == nil {
		conn.Close()
		t.Error("it still listens")
	}
}

// flaky fails to accept a connection, and then works.
type flaky struct {
	net.Listener
	failures atomic.Int32
}

func (f *flaky) Accept() (net.Conn, error) {
	if f.failures.Add(1) < 3 {
		return nil, errors.New("too many open files")
	}
	return f.Listener.Accept()
}

// TestAcceptFails: the server goes on when there were too many open files.
func TestAcceptFails(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { pages("hello").Serve(ctx, &flaky{Listener: l}) })
	defer all.Wait()
	defer cancel()
	if got := ask(t, l.Addr().String(), "GET /page HTTP/1.1\r\nHost: x\r\n\r\n"); !strings.HasSuffix(got, "hello") {
		t.Errorf("the answer is %q", got)
	}
}

// FuzzHead: what is taken for a request is one for package http, too, with the same path; and where a request
// ends does not depend on how its bytes come.
func FuzzHead(f *testing.F) {
	for _, s := range []string{"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "GET http://h/a?b HTTP/1.1\nHost: x\n\nrest", "HEAD / HTTP/1.0\r\n\r\n", "\r\n\r\n", "GET / HTTP/1.1\r\nHost: x\r\n a\r\n\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		whole, err := readHead(bytes.NewReader(b))
		parts, perr := readHead(oneByte{bytes.NewReader(b)})
		if !bytes.Equal(whole, parts) || (err == nil) != (perr == nil) {
			t.Fatalf("at once: %q, %v; byte by byte: %q, %v", whole, err, parts, perr)
		}
		if err != nil || whole == nil {
			return
		}
		if !bytes.HasPrefix(b, whole) {
			t.Fatalf("%q is not the beginning of %q", whole, b)
		}
		r, err := parse(string(whole))
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || reasons[e.Status] == "" {
				t.Errorf("the error is %v", err)
			}
			return
		}
		h, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(whole)))
		if err != nil {
			return // it looks at the values of lines, too
		}
		plain := strings.HasPrefix(r.path, "/") && !strings.ContainsAny(r.path, "%#")
		if h.Method != r.method || plain && h.URL.Path != r.path && h.URL.Path != "" {
			t.Errorf("%q: %+v, package http reads %s %s", whole, r, h.Method, h.URL)
		}
	})
}

// oneByte reads a byte at a time.
type oneByte struct{ r io.Reader }

func (o oneByte) Read(b []byte) (int, error) { return o.r.Read(b[:min(1, len(b))]) }
