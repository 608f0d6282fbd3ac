package s3rdma

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
)

// TestCompressed gets objects that are stored compressed, and from servers that compress: the bytes
// of the object arrive.
func TestCompressed(t *testing.T) {
	if !transport(nil).(*http.Transport).DisableCompression {
		t.Error("the default transport takes compressed answers")
	}
	r := newRig(t, InitiatorOptions{Networks: everywhere})
	g := r.region(t, 8192)
	data := bytes.Repeat([]byte("a"), 1000)
	var z bytes.Buffer
	zw := gzip.NewWriter(&z)
	zw.Write(data)
	testenv.Must(t, zw.Close())
	for name, test := range map[string]struct {
		handle http.HandlerFunc
		want   []byte
	}{
		"stored": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(z.Bytes()))
		}, z.Bytes()},
		"compresses": {func(w http.ResponseWriter, r *http.Request) {
			if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
				w.Write(data)
				return
			}
			w.Header().Set("Content-Encoding", "gzip")
			w.Write(z.Bytes())
		}, data},
	} {
		s := httptest.NewServer(r.initiator.Handler(test.handle, HandlerOptions{}))
		defer s.Close()
		for _, body := range []bool{false, true} {
			c := &Client{Endpoint: s.URL, BodyOnly: body}
			res, err := c.Get(t.Context(), "b/k", g, GetOptions{})
			if err != nil || res.RDMA == body || !bytes.Equal(g.Bytes()[:res.N], test.want) {
				t.Errorf("%s, by the body %v: Get returns %d bytes, %v, want %d", name, body, res.N, err, len(test.want))
			}
		}
	}
}

// TestRepeated has a server that ends a connection after a request: net/http sends it again with
// the same token, and what it answers then is not trusted.
func TestRepeated(t *testing.T) {
	r := newRig(t, InitiatorOptions{Networks: everywhere})
	g := r.region(t, 8192)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Must(t, err)
	defer l.Close()
	go func() {
		for k := 0; ; k++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for j := 0; ; j++ {
					b := make([]byte, 4096)
					n, err := c.Read(b)
					switch {
					case err != nil, k == 0 && j == 2: // the server has the token, and perhaps goes on
						return
					case !bytes.Contains(b[:n], []byte("HEAD")) && bytes.Contains(b[:n], []byte(tokenHeader)):
						io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Amz-Rdma-Reply: 200\r\nX-Amz-Rdma-Bytes-Transferred: 5\r\n\r\n")
					default:
						io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody")
					}
				}
			}()
		}
	}()
	c := &Client{Endpoint: "http://" + l.Addr().String(), Transport: new(http.Transport)}
	for i, rdma := range []bool{true, true, false, true} {
		res, err := c.Get(t.Context(), "b/k", g, GetOptions{})
		if err != nil || res.RDMA != rdma || !rdma && string(g.Bytes()[:res.N]) != "body" {
			t.Errorf("request %d: Get returns %+v, %v, want by RDMA %v", i, res, err, rdma)
		}
	}
}

// TestConditional puts a new object to a server that has moved data before.
func TestConditional(t *testing.T) {
	r := newRig(t, InitiatorOptions{Networks: everywhere})
	c, _ := serveStore(t, func(h http.Handler) http.Handler { return r.initiator.Handler(h, HandlerOptions{}) })
	g := r.region(t, 8192)
	isNew := PutOptions{Header: http.Header{"If-None-Match": {"*"}}}
	for i, rdma := range []bool{false, true} {
		if res, err := c.Put(t.Context(), "b/new"+string(rune('0'+i)), g, 8192, isNew); err != nil || res.RDMA != rdma {
			t.Errorf("Put returns %+v, %v, want by RDMA %v", res, err, rdma)
		}
		if res, err := c.Put(t.Context(), "b/object", g, 8192, PutOptions{}); err != nil || !res.RDMA {
			t.Errorf("Put returns %+v, %v", res, err)
		}
	}
	_, err := c.Put(t.Context(), "b/new1", g, 8192, isNew)
	if e, ok := errors.AsType[*ResponseError](err); !ok || e.Code != "PreconditionFailed" {
		t.Errorf("Put of an object that exists: %v", err)
	}
}

// TestServers follows what a client knows of a server.
func TestServers(t *testing.T) {
	put := httptest.NewRequest(http.MethodPut, "/b/k", nil)
	isNew := httptest.NewRequest(http.MethodPut, "/b/k", nil)
	isNew.Header.Set("If-None-Match", "*")
	r := newRig(t, InitiatorOptions{}).region(t, 4096)
	for _, test := range []struct {
		name          string
		ends          []error
		any, aboutNew bool
	}{
		{"nothing", nil, true, false},
		{"moved", []error{nil}, true, true},
		{"declined", []error{ErrDeclined}, false, false},
		{"ignored", []error{errIgnored}, false, false},
		{"unproven", []error{ErrUnproven}, false, false},
		{"moved, then declined", []error{nil, ErrDeclined, ErrDeclined}, true, true},
		{"moved, then ignored", []error{nil, errIgnored}, true, false},
		{"moved, then ignored twice", []error{nil, errIgnored, errIgnored}, false, false},
		{"other error", []error{io.EOF}, true, false},
		{"repeated", []error{errRepeated}, true, false},
	} {
		var s servers
		for _, err := range test.ends {
			s.learn("a", err)
		}
		if a, n := s.takes("a", put, r), s.takes("a", isNew, r); a != test.any || n != test.aboutNew {
			t.Errorf("%s: offers %v, of conditional requests %v", test.name, a, n)
		}
		if !s.takes("b", put, r) {
			t.Errorf("%s: another server gets no offers", test.name)
		}
		if known := s.of["a"]; !known.quiet.IsZero() {
			known.quiet = known.quiet.Add(-quiet)
			s.of["a"] = known
			if !s.takes("a", put, r) {
				t.Errorf("%s: no offers after some minutes", test.name)
			}
		}
	}
}

// TestGetChecksum gets an object with sums, right and wrong, of each kind, by RDMA and by the body.
func TestGetChecksum(t *testing.T) {
	const data = "123456789"
	r := newRig(t, InitiatorOptions{Networks: everywhere})
	g := r.region(t, 100)
	send := http.Header{}
	s := httptest.NewServer(r.initiator.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Amz-Checksum-Mode") == "ENABLED" {
			maps.Copy(w.Header(), send)
		}
		io.WriteString(w, data)
	}), HandlerOptions{}))
	defer s.Close()
	for _, body := range []bool{false, true} {
		get := func(o GetOptions) (Result, error) {
			return (&Client{Endpoint: s.URL, BodyOnly: body}).Get(t.Context(), "b/k", g, o)
		}
		for name, sum := range map[string]string{ // the check values of the catalogues of sums
			"Crc32": "cbf43926", "Crc32c": "e3069283", "Crc64nvme": "ae8b14860a799888", "Sha1": "f7c3bc1d808e04732adf679965ccc34ca7ae3441",
			"Sha256": "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225",
		} {
			raw, err := hex.DecodeString(sum)
			testenv.Must(t, err)
			send = http.Header{"X-Amz-Checksum-" + name: {base64.StdEncoding.EncodeToString(raw)}}
			if res, err := get(GetOptions{Checksum: true}); err != nil || !res.Checked || res.RDMA == body || string(g.Bytes()[:res.N]) != data {
				t.Errorf("%s: Get returns %+v, %v", name, res, err)
			}
			if res, err := get(GetOptions{}); err != nil || res.Checked {
				t.Errorf("%s: Get without Checksum returns %+v, %v", name, res, err)
			}
			raw[0] ^= 1
			send = http.Header{"X-Amz-Checksum-" + name: {base64.StdEncoding.EncodeToString(raw)}}
			if res, err := get(GetOptions{Checksum: true}); !errors.Is(err, syscall.EBADMSG) || res.Checked {
				t.Errorf("%s, of other data: Get returns %+v, %v", name, res, err)
			}
		}
		for _, send = range []http.Header{{}, {"X-Amz-Checksum-Crc32": {"y/Q5Jg==-2"}}, {"X-Amz-Checksum-Crc32": {"AAAAAA=="}, "X-Amz-Checksum-Type": {"COMPOSITE"}}} {
			if res, err := get(GetOptions{Checksum: true}); err != nil || res.Checked {
				t.Errorf("%v: Get returns %+v, %v", send, res, err)
			}
		}
	}
}

// TestBadOptions has calls that make no sense.
func TestBadOptions(t *testing.T) {
	r := newRig(t, InitiatorOptions{})
	c, _ := serveStore(t, nil)
	g := r.region(t, 8192)
	gone := r.region(t, 8192)
	closed(t, gone)
	for name, test := range map[string]struct {
		call func() (Result, error)
		want string
	}{
		"Checksum of a closed region": {func() (Result, error) { return c.Put(t.Context(), "b/k", gone, 8192, PutOptions{Checksum: true}) }, "the region is closed"},
		"Checksum of a dma-buf": {func() (Result, error) {
			return c.Put(t.Context(), "b/k", &Region{size: 10}, 10, PutOptions{Checksum: true})
		}, "want none of a dma-buf"},
		"Checksum of a part": {func() (Result, error) {
			return c.Get(t.Context(), "b/k", g, GetOptions{Length: 5, Checksum: true})
		}, "Checksum is set with Offset or Length"},
		"Part without UploadID": {func() (Result, error) { return c.Put(t.Context(), "b/k", g, 10, PutOptions{Part: 3}) }, "Part is 3 and UploadID is empty"},
		"Range": {func() (Result, error) {
			return c.Get(t.Context(), "b/k", g, GetOptions{Header: http.Header{"range": {"bytes=0-1"}}})
		}, `Header has the Range "bytes=0-1", want Offset and Length`},
		"Offset": {func() (Result, error) {
			return c.Get(t.Context(), "b/k", g, GetOptions{Offset: math.MaxInt64, Length: 1})
		}, "Offset is 9223372036854775807, want 0 to"},
		"object": {func() (Result, error) { return c.Get(t.Context(), "b", g, GetOptions{}) }, `the object is "b", want BUCKET/KEY`},
	} {
		if _, err := test.call(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
	if _, err := gone.hold(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("hold: %v", err)
	}
	if res, err := c.Put(t.Context(), "b/k", &Region{size: 10}, 0, PutOptions{}); err != nil || res.N != 0 {
		t.Errorf("Put of nothing from a dma-buf: %+v, %v", res, err)
	}
}

// TestEscape checks that the path of a request is the one that signatures have.
func TestEscape(t *testing.T) {
	const object = "b/a b+c&d=e,(f)/%2F:é@~_-.!*'$;"
	want := "/b/a%20b%2Bc%26d%3De%2C%28f%29/%252F%3A%C3%A9%40~_-.%21%2A%27%24%3B"
	req, err := (&Client{Endpoint: "http://h/"}).request(t.Context(), http.MethodGet, object, url.Values{}, nil)
	testenv.Must(t, err)
	if got := req.URL.EscapedPath(); got != want || req.URL.Path != "/"+object {
		t.Errorf("the path is %s, want %s", got, want)
	}
}
