package s3rdma

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unicode"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// inProcess opens a software device, wherever the tests run.
func inProcess(t testing.TB) *uverbs.Device {
	t.Helper()
	d, err := soft.New(soft.Options{})
	testenv.Must(t, err)
	t.Cleanup(func() { closed(t, d) })
	dev, err := uverbs.Open(d.Name(), uverbs.OpenOptions{})
	testenv.Must(t, err)
	t.Cleanup(func() { closed(t, dev) })
	return dev
}

// noEnd is the end of a target that nobody reaches.
type noEnd struct{}

func (noEnd) Endpoint() (uverbs.Endpoint, error) {
	return uverbs.Endpoint{QPN: 7, GID: ib.GID(netip.MustParseAddr("192.0.2.1").As16())}, nil
}
func (noEnd) Close() error { return nil }

// aloneRegion returns a region that no server reaches.
func aloneRegion(t testing.TB, n int) *Region {
	t.Helper()
	target, err := newTarget(inProcess(t), func(*uverbs.PD) (end, error) { return noEnd{}, nil })
	testenv.Must(t, err)
	t.Cleanup(func() { closed(t, target) })
	g, err := target.Alloc(n, uverbs.BufferOptions{})
	testenv.Must(t, err)
	t.Cleanup(func() { closed(t, g) })
	return g
}

// script is a server that answers with texts of HTTP, the last one again and again.
type script struct {
	answers []string
	next    int
	bodies  []string // of the requests
}

func (s *script) RoundTrip(req *http.Request) (*http.Response, error) {
	body := ""
	if req.Body != nil {
		b, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		body = string(b)
	}
	s.bodies = append(s.bodies, body)
	text := s.answers[min(s.next, len(s.answers)-1)]
	s.next++
	return http.ReadResponse(bufio.NewReader(strings.NewReader(text)), req)
}

// fuzzSize is the size of the memory that is offered in the tests of answers.
const fuzzSize = 100

// hostileAnswers are answers of servers that lie, err or break off, and how a GET and a PUT of
// fuzzSize bytes end with them.
var hostileAnswers = map[string]struct {
	text     string
	get, put error // nil means that the data has gone by a body
}{
	"chunks that break off":     {"200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", io.ErrUnexpectedEOF, nil},
	"a body that breaks off":    {"200 OK\r\nContent-Length: 10\r\n\r\nhello", io.ErrUnexpectedEOF, nil},
	"full, and breaks off":      {"200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\n" + strings.Repeat("x", fuzzSize) + "\r\n", io.ErrUnexpectedEOF, nil},
	"more than fits":            {"200 OK\r\nContent-Length: 101\r\n\r\n" + strings.Repeat("x", 101), io.ErrShortBuffer, nil},
	"bytes without reply":       {"200 OK\r\nX-Amz-Rdma-Bytes-Transferred: 10\r\nContent-Length: 0\r\n\r\n", syscall.EPROTO, nil},
	"reply without bytes":       {"200 OK\r\nX-Amz-Rdma-Reply: 200\r\nContent-Length: 0\r\n\r\n", syscall.EPROTO, nil},
	"two replies":               {"200 OK\r\nX-Amz-Rdma-Reply: 501\r\nX-Amz-Rdma-Reply: 200\r\nX-Amz-Rdma-Bytes-Transferred: 100\r\nContent-Length: 0\r\n\r\n", syscall.EPROTO, syscall.EPROTO},
	"two numbers of bytes":      {"200 OK\r\nX-Amz-Rdma-Reply: 200\r\nX-Amz-Rdma-Bytes-Transferred: 100\r\nX-Amz-Rdma-Bytes-Transferred: 99\r\nContent-Length: 0\r\n\r\n", syscall.EPROTO, syscall.EPROTO},
	"a byte too many":           {"200 OK\r\nX-Amz-Rdma-Reply: 200\r\nX-Amz-Rdma-Bytes-Transferred: 101\r\nContent-Length: 0\r\n\r\n", syscall.EPROTO, syscall.EPROTO},
	"2^32 bytes and 100":        {"200 OK\r\nX-Amz-Rdma-Reply: 200\r\nX-Amz-Rdma-Bytes-Transferred: 4294967396\r\nContent-Length: 0\r\n\r\n", syscall.EPROTO, syscall.EPROTO},
	"-1 bytes":                  {"200 OK\r\nX-Amz-Rdma-Reply: 200\r\nX-Amz-Rdma-Bytes-Transferred: -1\r\nContent-Length: 0\r\n\r\n", syscall.EPROTO, syscall.EPROTO},
	"bytes in hexadecimal":      {"200 OK\r\nX-Amz-Rdma-Reply: 200\r\nX-Amz-Rdma-Bytes-Transferred: 0x64\r\nContent-Length: 0\r\n\r\n", syscall.EPROTO, syscall.EPROTO},
	"a long number":             {"200 OK\r\nX-Amz-Rdma-Reply: 200\r\nX-Amz-Rdma-Bytes-Transferred: " + strings.Repeat("1", 9000) + "\r\nContent-Length: 0\r\n\r\n", syscall.EPROTO, syscall.EPROTO},
	"a long reply":              {"200 OK\r\nX-Amz-Rdma-Reply: " + strings.Repeat("2", 9000) + "\r\nX-Amz-Rdma-Bytes-Transferred: 100\r\nContent-Length: 0\r\n\r\n", syscall.EPROTO, syscall.EPROTO},
	"a reply that is a list":    {"200 OK\r\nX-Amz-Rdma-Reply: 200, 501\r\nX-Amz-Rdma-Bytes-Transferred: 100\r\nContent-Length: 0\r\n\r\n", syscall.EPROTO, syscall.EPROTO},
	"204":                       {"204 No Content\r\n\r\n", syscall.EPROTO, nil},
	"204 with a reply":          {"204 No Content\r\nX-Amz-Rdma-Reply: 501\r\n\r\n", syscall.EPROTO, nil},
	"a part, by the body":       {"206 Partial\r\nContent-Length: 3\r\nContent-Range: bytes 5-7/100\r\n\r\nabc", syscall.EPROTO, nil},
	"a part, by RDMA":           {"206 Partial\r\nContent-Length: 0\r\nX-Amz-Rdma-Reply: 206\r\nX-Amz-Rdma-Bytes-Transferred: 3\r\nContent-Range: bytes 5-7/100\r\n\r\n", syscall.EPROTO, syscall.EPROTO},
	"a redirect":                {"307 Temporary Redirect\r\nLocation: http://192.0.2.9/b/k\r\nContent-Length: 0\r\n\r\n", new(ResponseError), new(ResponseError)},
	"an error that moves":       {"500 No\r\nX-Amz-Rdma-Reply: 200\r\nX-Amz-Rdma-Bytes-Transferred: 100\r\nContent-Length: 0\r\n\r\n", new(ResponseError), new(ResponseError)},
	"an error of nested XML":    {"400 No\r\n\r\n<Error>" + strings.Repeat("<Code>", 9000), new(ResponseError), new(ResponseError)},
	"an error of other letters": {"400 No\r\n\r\n<Error><Code>\u202eA\x1b[2J</Code><Message>\x00\n" + strings.Repeat("m", 9000) + "</Message></Error>", new(ResponseError), new(ResponseError)},
	"not modified":              {"304 Not Modified\r\n\r\n", new(ResponseError), new(ResponseError)},
	"501 for ever":              {"501 No\r\nContent-Length: 0\r\n\r\n", new(ResponseError), new(ResponseError)},
	"an empty object":           {"200 OK\r\nETag: \"d41d8cd98f00b204e9800998ecf8427e\"\r\nContent-Length: 0\r\n\r\n", nil, nil},
	"half a header":             {"200 OK\r\nETag: x", io.ErrUnexpectedEOF, io.ErrUnexpectedEOF},
}

// TestAnswers gets and puts objects with servers whose answers make no sense.
func TestAnswers(t *testing.T) {
	g := aloneRegion(t, fuzzSize)
	for name, test := range hostileAnswers {
		for method, want := range map[string]error{http.MethodGet: test.get, http.MethodPut: test.put} {
			res, err := answered(t, g, method, &script{answers: []string{"HTTP/1.1 " + test.text}})
			_, is := errors.AsType[*ResponseError](err)
			if _, refused := errors.AsType[*ResponseError](want); refused && !is || !refused && !errors.Is(err, want) || want == nil && res.RDMA {
				t.Errorf("%s: %s returns %+v, %v, want %v", name, method, res, err, want)
			}
		}
	}
}

// answered sends a request to a server of a script, and checks what holds of any answers.
func answered(t *testing.T, g *Region, method string, s *script) (res Result, err error) {
	t.Helper()
	fill(g.Bytes(), 1)
	before := string(g.Bytes())
	c := &Client{Endpoint: "http://192.0.2.1", Transport: s}
	if method == http.MethodGet {
		res, err = c.Get(t.Context(), "b/k", g, GetOptions{})
	} else {
		res, err = c.Put(t.Context(), "b/k", g, g.Len(), PutOptions{})
	}
	if g.lent {
		t.Fatalf("%s leaves the region in use", method)
	}
	if err != nil {
		text := err.Error()
		if strings.HasPrefix(text, "s3rdma: ") && (len(text) > 2000 || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })) {
			t.Fatalf("%s: an error of %d bytes, %q", method, len(text), text)
		}
		return res, err
	}
	reply, bytes := res.Header.Get(replyHeader), res.Header.Get(bytesHeader)
	switch {
	case method == http.MethodPut && (res.N != g.Len() || string(g.Bytes()) != before):
		t.Fatalf("PUT returns %+v, or has changed the memory", res)
	case method == http.MethodPut && !res.RDMA && s.bodies[len(s.bodies)-1] != before:
		t.Fatalf("PUT by the body has sent %q", s.bodies)
	case method == http.MethodPut && res.RDMA && bytes != strconv.Itoa(g.Len()) && res.Header.Get("Etag") == "" && res.Header.Get(sumHeader) == "":
		t.Fatalf("PUT believes %v", res.Header)
	case method == http.MethodGet && res.RDMA && (reply != "200" || bytes == "" || res.N > g.Len() || string(g.Bytes()) != before):
		t.Fatalf("GET believes %v, or has changed the memory", res.Header)
	case method == http.MethodGet && !res.RDMA && string(g.Bytes()[res.N:]) != before[res.N:]:
		t.Fatal("GET has changed memory that it has not received")
	}
	return res, nil
}

// FuzzAnswer has servers answer anything, to the first request and to those that follow.
func FuzzAnswer(f *testing.F) {
	g := aloneRegion(f, fuzzSize)
	for _, test := range hostileAnswers {
		f.Add("HTTP/1.1 "+test.text, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\nETag: \"x\"\r\n\r\n"+strings.Repeat("x", 100))
	}
	f.Fuzz(func(t *testing.T, first, then string) {
		for _, method := range []string{http.MethodGet, http.MethodPut} {
			answered(t, g, method, &script{answers: []string{first, then}})
		}
	})
}

// looseChannel is a channel that moves nothing and says that it has. It checks what it is told.
type looseChannel struct {
	posted func(addr uint64, rkey uint32, n uint32)
	ids    []uint64
}

func (c *looseChannel) Point(context.Context, Token) error { return nil }
func (c *looseChannel) Post(_ bool, id, addr uint64, rkey uint32, sge uverbs.SGE) error {
	c.posted(addr, rkey, sge.Length)
	c.ids = append(c.ids, id)
	return nil
}
func (c *looseChannel) Wait(_ context.Context, wcs []uverbs.WC) (int, error) {
	wcs[0].ID = c.ids[0]
	c.ids = c.ids[1:]
	return 1, nil
}
func (c *looseChannel) Err(*uverbs.WC) error { return nil }
func (c *looseChannel) Reset() error         { c.ids = nil; return nil }
func (c *looseChannel) Close() error         { return nil }

// FuzzRequest has clients ask for anything. The server moves nothing but the bytes of an offer, which
// the request has once, without a body, and with signatures that cover it. No empty object is stored.
func FuzzRequest(f *testing.F) {
	var posted func(addr uint64, rkey uint32, n uint32)
	o := InitiatorOptions{Networks: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, Chunk: 4096, Depth: 2}
	i, err := newInitiator(inProcess(f), o, func(*Initiator) (channel, error) {
		return &looseChannel{posted: func(addr uint64, rkey uint32, n uint32) { posted(addr, rkey, n) }}, nil
	})
	testenv.Must(f, err)
	f.Cleanup(func() { closed(f, i) })
	good := Token{Addr: 0x1000, Size: 10_000, RKey: 1, DCTN: 7, GID: ib.GID(netip.MustParseAddr("192.0.2.1").As16())}.String()
	for _, header := range []string{
		"", tokenHeader + ": " + good, tokenHeader + ": " + good + "\r\n" + tokenHeader + ": " + good, "x-amz-rdma-token: x", tokenHeader + ": rc:1", tokenHeader + ": " + strings.Replace(good, "c0000201", "c0000301", 1),
		tokenHeader + ": " + good + "\r\nContent-Length: 4", tokenHeader + ": " + good + "\r\nTransfer-Encoding: chunked", tokenHeader + ": " + good + "\r\nRange: bytes=1-2",
		tokenHeader + ": " + good + "\r\nAuthorization: AWS4-HMAC-SHA256 SignedHeaders=host;x-amz-rdma-token, Signature=0", tokenHeader + ": " + good + "\r\nAuthorization: AWS4-HMAC-SHA256 SignedHeaders=host",
		tokenHeader + ": 0000000000001000:ffffffff" + good[25:], tokenHeader + ": ffffffffffffffff" + good[16:],
	} {
		for _, line := range []string{"GET /b/k", "PUT /b/k", "PUT /b/", "PUT //k", "GET /b/k?X-Amz-SignedHeaders=host", "PUT /b/k?partNumber=1&uploadId=x", "PUT /b/k?acl", "GET *", "CONNECT h:1"} {
			f.Add(line+" HTTP/1.1\r\nHost: h\r\n"+header+"\r\n\r\ndata", "192.0.2.1:1", 200)
		}
	}
	f.Fuzz(func(t *testing.T, text, from string, status int) {
		req, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
		if err != nil || status < 200 || status > 599 {
			return
		}
		req.RemoteAddr = from
		offers, object, length, authorized := slices.Clone(req.Header.Values(tokenHeader)), ofObject(req), req.ContentLength, req.Header.Values("Authorization")
		query := req.URL.Query()
		moved := uint64(0)
		posted = func(addr uint64, rkey uint32, n uint32) {
			if len(offers) != 1 || length != 0 || !object {
				t.Fatalf("%q moves data: %q", text, offers)
			}
			tok, err := ParseToken(offers[0])
			if err != nil || addr != tok.Addr+moved || n > 4096 || moved+uint64(n) > uint64(tok.Size) || rkey != tok.RKey || !o.Networks[0].Contains(tok.GID.Addr().Unmap()) {
				t.Fatalf("%d bytes at %#x with key %#x, after %d, of %+v, %v", n, addr, rkey, moved, tok, err)
			}
			for _, list := range append(query["X-Amz-SignedHeaders"], authorized...) {
				if strings.Contains(list, "SignedHeaders=") && !strings.Contains(strings.ToLower(list), "x-amz-rdma-token") {
					t.Fatalf("the signature %q is of another request", list)
				}
			}
			if moved += uint64(n); moved > 1<<20 {
				panic(http.ErrAbortHandler) // enough of it
			}
		}
		w := httptest.NewRecorder()
		reports := 0
		h := i.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body := int64(0)
			if r.Method == http.MethodPut {
				body, _ = io.Copy(io.Discard, io.LimitReader(r.Body, 1<<20))
			}
			switch offered := r.Header.Get(tokenHeader) != ""; {
			case offered && object && len(offers) > 0 && r.Method == http.MethodPut:
				t.Fatalf("the handler gets the offer of %q", text)
			case object && len(offers) > 0 && r.Method == http.MethodPut && body == 0:
				t.Fatalf("the handler gets an empty object of %q", text)
			}
			w.WriteHeader(status)
			if r.Method == http.MethodGet {
				w.Write(bytes.Repeat([]byte("x"), 5000))
			}
		}), HandlerOptions{Report: func(*http.Request, int64, error) { reports++ }})
		func() {
			defer func() {
				if e := recover(); e != nil && e != http.ErrAbortHandler {
					panic(e)
				}
			}()
			h.ServeHTTP(w, req)
		}()
		if want := len(offers) > 0 && object; (reports == 1) != want && (reports != 0 || offers[0] != "" && want) {
			t.Fatalf("%d reports of %q", reports, text)
		}
		if n, err := strconv.ParseUint(w.Header().Get(bytesHeader), 10, 64); w.Header().Get(replyHeader) == "200" && (err != nil || n != moved) {
			t.Fatalf("%v after %d bytes", w.Header(), moved)
		}
		if len(i.slots) != 0 || len(i.peers) != 0 {
			t.Fatalf("%q leaves %d transfers", text, len(i.slots))
		}
	})
}
