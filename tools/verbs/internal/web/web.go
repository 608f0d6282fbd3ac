// Package web serves a few pages over HTTP/1.1. Package net/http would make the program larger, with HTTP/2 and much
// else that a scrape of metrics does not need.
//
// A connection carries one request: a server of metrics gets one each few seconds. A client that is slow or never
// reads is cut after a time, and keeps nobody else waiting.
package web

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/goverbs/goverbs/tools/verbs/internal/places"
)

// Page is what a path stands for.
type Page struct {
	Type string        // Type is the media type.
	Body func() []byte // Body makes the content; it may be called concurrently.
}

// Server serves pages. Set the fields before Serve.
type Server struct {
	Pages map[string]Page // Pages has the pages by path, such as "/metrics".

	HeadTime  time.Duration // HeadTime is how long a client may take to send its request.
	WriteTime time.Duration // WriteTime is how long a client may take to read the answer.
	Most      int           // Most is the largest number of connections at a time, half of them from one address.

	// Hosts are names of this host. A request may name it by one of them, by "localhost" or by an
	// IP address: any other name that leads here comes from a page in somebody's browser.
	Hosts []string
}

// headLimit is the largest size of a request, in bytes.
const headLimit = 8 << 10

// Serve answers requests until the context ends, which is no error. It closes the listener, and returns when all
// connections are closed.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	var all sync.WaitGroup
	defer all.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	room, refusing := &places.Places{Most: s.Most}, make(chan struct{}, s.Most)
	for {
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				conn.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		case err != nil: // there are too many open files, for example
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
			continue
		}
		from := places.AddrOf(conn.RemoteAddr())
		if full := room.Take(from); full != nil {
			select {
			case refusing <- struct{}{}:
				all.Go(func() {
					defer func() { <-refusing }()
					defer conn.Close()
					defer context.AfterFunc(ctx, func() { conn.Close() })()
					s.answer(conn, errorf(503, "there is no place, %v", full), false)
					linger(conn)
				})
			default:
				conn.Close()
			}
			continue
		}
		all.Go(func() {
			defer room.Leave(from)
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { conn.Close() })()
			s.serve(conn)
		})
	}
}

// serve answers the request of a connection.
func (s *Server) serve(conn net.Conn) {
	conn.SetReadDeadline(time.Now().Add(s.HeadTime))
	head, err := readHead(conn)
	if err == nil && head == nil {
		return // the client has changed its mind, or only looked whether the port is open
	}
	var r request
	if err == nil {
		r, err = parse(string(head))
	}
	if err == nil {
		err = s.allowed(r)
	}
	if err != nil {
		s.answer(conn, err, r.method == "HEAD")
		linger(conn)
		return
	}
	page := s.Pages[r.path]
	s.write(conn, "200 OK", page.Type, "", page.Body(), r.method == "HEAD")
	linger(conn)
}

// allowed returns the answer to a request that is none for a page.
func (s *Server) allowed(r request) error {
	if !s.named(r.host) {
		return errorf(421, "the host is %.100q, allowed: an IP address, localhost, %s", r.host, strings.Join(s.Hosts, ", "))
	}
	if _, ok := s.Pages[r.path]; !ok {
		return errorf(404, "there is no %.100q here; / says what there is", r.path)
	}
	if r.method != "GET" && r.method != "HEAD" {
		return errorf(405, "the method is %.20q, allowed: GET, HEAD", r.method)
	}
	return nil
}

// named reports whether a host that a request names is this one. One of HTTP/1.0 names none.
func (s *Server) named(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.TrimSuffix(name, ".")
	_, err := netip.ParseAddr(strings.Trim(name, "[]"))
	is := func(known string) bool { return strings.EqualFold(name, known) }
	return host == "" || err == nil || is("localhost") || slices.ContainsFunc(s.Hosts, is)
}

// Error is an answer that says what is wrong with a request.
type Error struct {
	Status int    // Status is the HTTP status code.
	Text   string // Text says what is wrong.
}

func (e *Error) Error() string { return e.Text }

func errorf(status int, format string, args ...any) error {
	return &Error{status, fmt.Sprintf(format, args...)}
}

// reasons has the text of each status.
var reasons = map[int]string{
	400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 408: "Request Timeout", 421: "Misdirected Request",
	431: "Request Header Fields Too Large", 503: "Service Unavailable", 505: "HTTP Version Not Supported",
}

// answer writes an error.
func (s *Server) answer(conn net.Conn, err error, head bool) {
	var e *Error
	if !errors.As(err, &e) {
		return // the connection is broken
	}
	more := ""
	if e.Status == 405 {
		more = "Allow: GET, HEAD\r\n"
	}
	s.write(conn, strconv.Itoa(e.Status)+" "+reasons[e.Status], "text/plain; charset=utf-8", more, []byte(e.Text+"\n"), head)
}

// write writes an answer. A client that does not read it is cut.
func (s *Server) write(conn net.Conn, status, typ, more string, body []byte, head bool) {
	conn.SetWriteDeadline(time.Now().Add(s.WriteTime))
	text := fmt.Sprintf("HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nDate: %s\r\n%sConnection: close\r\n\r\n",
		status, typ, len(body), time.Now().UTC().Format("Mon, 02 Jan 2006 15:04:05 GMT"), more)
	_, err := io.WriteString(conn, text)
	if err == nil && !head {
		conn.Write(body) // an error means that the client is gone
	}
}

// linger waits until the client has closed the connection, and throws away what it still sends: a connection that
// is closed with data unread is reset, and the client may lose the answer.
func linger(conn net.Conn) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok || tcp.CloseWrite() != nil {
		return
	}
	conn.SetReadDeadline(time.Now().Add(time.Second))
	io.Copy(io.Discard, io.LimitReader(conn, 64<<10))
}

// readHead reads a request up to the empty line. It returns nil if the client sends nothing.
func readHead(r io.Reader) ([]byte, error) {
	b := make([]byte, 0, headLimit)
	for {
		n, err := r.Read(b[len(b):cap(b)])
		from := max(0, len(b)-3) // the empty line may begin in the part before
		b = b[:len(b)+n]
		if end := headEnd(b, from); end >= 0 {
			return b[:end], nil
		}
		var timeout net.Error
		switch {
		case len(b) == headLimit:
			return nil, errorf(431, "the request is larger than %d bytes", headLimit)
		case err != nil && len(b) == 0:
			return nil, nil
		case errors.As(err, &timeout) && timeout.Timeout():
			return nil, errorf(408, "the request was not complete in time")
		case err == io.EOF:
			return nil, errorf(400, "the request ends before an empty line")
		case err != nil:
			return nil, err
		}
	}
}

// headEnd returns the number of bytes up to and with the empty line that ends a request, or -1.
func headEnd(b []byte, from int) int {
	for i := from; i < len(b); i++ {
		if b[i] != '\n' {
			continue
		}
		if i+1 < len(b) && b[i+1] == '\n' {
			return i + 2
		}
		if i+2 < len(b) && b[i+1] == '\r' && b[i+2] == '\n' {
			return i + 3
		}
	}
	return -1
}

// request is what is needed of a request.
type request struct{ method, path, host string }

// parse takes a request apart. Of its header only the host counts, but it must be one.
func parse(head string) (request, error) {
	line, rest, _ := strings.Cut(head, "\n")
	words := strings.Split(strings.TrimSuffix(line, "\r"), " ")
	if len(words) != 3 || !token(words[0]) || words[1] == "" {
		return request{}, errorf(400, "the request line is %.200q, want METHOD PATH VERSION", line)
	}
	r := request{method: words[0]}
	major, minor, ok := strings.Cut(words[2], ".")
	switch {
	case !ok || !strings.HasPrefix(major, "HTTP/") || len(minor) != 1 || minor[0] < '0' || minor[0] > '9':
		return r, errorf(400, "the version is %.20q, want HTTP/1.1", words[2])
	case major != "HTTP/1":
		return r, errorf(505, "the version is %.20q, allowed: HTTP/1.0, HTTP/1.1", words[2])
	}
	hosts := 0
	for line := range strings.SplitSeq(rest, "\n") {
		line = strings.TrimSuffix(line, "\r")
		if line == "" {
			break
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok || !token(name) {
			return r, errorf(400, "a header line is %.200q, want NAME: VALUE", line)
		}
		if strings.EqualFold(name, "Host") {
			hosts++
			r.host = strings.Trim(value, " \t")
		}
	}
	if hosts > 1 || hosts == 0 && minor != "0" {
		return r, errorf(400, "there are %d lines Host, want one", hosts)
	}
	r.path, _, _ = strings.Cut(words[1], "?")
	if scheme, after, ok := strings.Cut(r.path, "://"); ok && strings.EqualFold(scheme, "http") { // as for a proxy
		host, path, _ := strings.Cut(after, "/")
		r.path, r.host = "/"+path, host
	}
	return r, nil
}

// token reports whether a word may be a method or the name of a header line.
func token(word string) bool {
	return word != "" && !strings.ContainsFunc(word, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
}
