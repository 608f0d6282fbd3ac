package s3rdma

import (
	"bytes"
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
)

// everywhere are the networks of the software devices, whose addresses are not that of the test's
// TCP connection.
var everywhere = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}

// store is a server of objects in a directory, without anything about RDMA.
type store struct{ dir string }

func (s store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	file := filepath.Join(s.dir, filepath.Base(r.URL.Path))
	if part := r.URL.Query().Get("partNumber"); part != "" {
		file += "." + part
	}
	if r.Method != http.MethodPut {
		f, err := os.Open(file)
		if err != nil {
			http.Error(w, "<Error><Code>NoSuchKey</Code><Message>no such key</Message></Error>", http.StatusNotFound)
			return
		}
		defer f.Close()
		sum := md5.New()
		io.Copy(sum, f)
		w.Header().Set("ETag", fmt.Sprintf(`"%x"`, sum.Sum(nil)))
		http.ServeContent(w, r, "", time.Time{}, f)
		return
	}
	data, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, "<Error><Code>IncompleteBody</Code></Error>", http.StatusInternalServerError)
		return
	}
	if sum := r.Header.Get("X-Amz-Checksum-Crc64nvme"); sum != "" && sum != checksum(data) {
		http.Error(w, "<Error><Code>BadDigest</Code></Error>", http.StatusBadRequest)
		return
	}
	if _, err := os.Stat(file); err == nil && r.Header.Get("If-None-Match") == "*" {
		http.Error(w, "<Error><Code>PreconditionFailed</Code></Error>", http.StatusPreconditionFailed)
		return
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		panic(err)
	}
	w.Header().Set("ETag", fmt.Sprintf(`"%x"`, md5.Sum(data)))
}

// serveStore serves a directory.
func serveStore(t *testing.T, wrap func(http.Handler) http.Handler) (*Client, string) {
	t.Helper()
	s, dir := newStore(t, wrap)
	return &Client{Endpoint: s.URL, Timeout: 20 * time.Second}, dir
}

// newStore returns a server of a directory.
func newStore(t *testing.T, wrap func(http.Handler) http.Handler) (*httptest.Server, string) {
	t.Helper()
	dir := t.TempDir()
	var h http.Handler = store{dir}
	if wrap != nil {
		h = wrap(h)
	}
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s, dir
}

// fill fills memory with bytes of a seed.
func fill(p []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range p {
		p[i] = byte(r.Uint32())
	}
}

// TestObjects puts and gets objects of many sizes, whole, in ranges and in parts: all by RDMA.
func TestObjects(t *testing.T) {
	const chunk = 4096
	r := newRig(t, InitiatorOptions{Chunk: chunk, Depth: 3, Networks: everywhere})
	var moved int64
	c, dir := serveStore(t, func(h http.Handler) http.Handler {
		return r.initiator.Handler(h, HandlerOptions{Report: func(_ *http.Request, n int64, err error) {
			if err != nil {
				t.Errorf("the server reports %v", err)
			}
			moved += n
		}})
	})
	g := r.region(t, 300<<10)
	for i, n := range []int{1, 7, chunk - 1, chunk, chunk + 1, 3 * chunk, 3*chunk + 5, 100 * chunk / 2, 300 << 10} {
		fill(g.Bytes()[:n], uint64(i))
		want := bytes.Clone(g.Bytes()[:n])
		moved = 0
		res, err := c.Put(t.Context(), "b/object", g, n, PutOptions{Checksum: i%2 == 0})
		if err != nil || !res.RDMA || res.N != n || moved != int64(n) {
			t.Fatalf("%d bytes: Put returns %+v, %v; the server has moved %d", n, res, err, moved)
		}
		if got, err := os.ReadFile(filepath.Join(dir, "object")); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes: the server has other data, %v", n, err)
		}
		clear(g.Bytes())
		res, err = c.Get(t.Context(), "b/object", g, GetOptions{})
		if err != nil || !res.RDMA || res.N != n || !bytes.Equal(g.Bytes()[:n], want) {
			t.Fatalf("%d bytes: Get returns %+v, %v, or other data", n, res, err)
		}
		if n < 7 {
			continue
		}
		clear(g.Bytes())
		res, err = c.Get(t.Context(), "b/object", g, GetOptions{Offset: 3, Length: n - 5})
		if err != nil || !res.RDMA || res.N != n-5 || !bytes.Equal(g.Bytes()[:n-5], want[3:n-2]) || g.Bytes()[n-5] != 0 {
			t.Fatalf("%d bytes: Get of a range returns %+v, %v, or other data", n, res, err)
		}
		res, err = c.Get(t.Context(), "b/object", g, GetOptions{Offset: 2})
		if err != nil || res.N != n-2 || !bytes.Equal(g.Bytes()[:n-2], want[2:]) {
			t.Fatalf("%d bytes: Get from an offset returns %+v, %v, or other data", n, res, err)
		}
	}
	res, err := c.Put(t.Context(), "b/parts", g, 1000, PutOptions{UploadID: "u", Part: 7})
	if err != nil || !res.RDMA {
		t.Fatalf("Put of a part returns %+v, %v", res, err)
	}
	if fi, err := os.Stat(filepath.Join(dir, "parts.7")); err != nil || fi.Size() != 1000 {
		t.Fatalf("the part: %v, %v", fi, err)
	}
}

// TestEmpty puts and gets an object without data.
func TestEmpty(t *testing.T) {
	r := newRig(t, InitiatorOptions{Networks: everywhere})
	c, _ := serveStore(t, func(h http.Handler) http.Handler { return r.initiator.Handler(h, HandlerOptions{}) })
	g := r.region(t, 4096)
	if res, err := c.Put(t.Context(), "b/empty", g, 0, PutOptions{}); err != nil || res.N != 0 {
		t.Fatalf("Put returns %+v, %v", res, err)
	}
	if res, err := c.Get(t.Context(), "b/empty", g, GetOptions{}); err != nil || res.N != 0 {
		t.Fatalf("Get returns %+v, %v", res, err)
	}
}

// TestShort gets an object that does not fit.
func TestShort(t *testing.T) {
	r := newRig(t, InitiatorOptions{Networks: everywhere})
	for _, body := range []bool{false, true} {
		c, dir := serveStore(t, func(h http.Handler) http.Handler { return r.initiator.Handler(h, HandlerOptions{}) })
		c.BodyOnly = body
		os.WriteFile(filepath.Join(dir, "big"), make([]byte, 5000), 0o600)
		g := r.region(t, 4096)
		_, err := c.Get(t.Context(), "b/big", g, GetOptions{})
		if _, ok := errors.AsType[*ResponseError](err); !errors.Is(err, io.ErrShortBuffer) || ok == body {
			t.Errorf("body %v: Get returns %v", body, err)
		}
	}
}

// TestDeclined has servers that move nothing by RDMA: the data goes by the body, and arrives.
func TestDeclined(t *testing.T) {
	r := newRig(t, InitiatorOptions{Networks: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}})
	kinds := map[string]func(http.Handler) http.Handler{
		"one that ignores tokens, and checks sums": nil,
		"one that ignores tokens and sums": func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				r.Header.Del(sumHeader)
				h.ServeHTTP(w, r)
			})
		},
		"one that declines": func(h http.Handler) http.Handler { return r.initiator.Handler(h, HandlerOptions{}) },
		"one that answers 501": func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get(tokenHeader) != "" {
					http.Error(w, "<Error><Code>S3RdmaNotSupported</Code></Error>", http.StatusNotImplemented)
					return
				}
				h.ServeHTTP(w, r)
			})
		},
		"one without an ETag": func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				r.Header.Del(sumHeader)
				h.ServeHTTP(withoutETag{w}, r)
			})
		},
	}
	for name, wrap := range kinds {
		t.Run(name, func(t *testing.T) {
			offers := 0
			c, dir := serveStore(t, func(h http.Handler) http.Handler {
				if wrap != nil {
					h = wrap(h)
				}
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					offers += len(r.Header.Values(tokenHeader))
					h.ServeHTTP(w, r)
				})
			})
			g := r.region(t, 10000)
			fill(g.Bytes(), 1)
			want := bytes.Clone(g.Bytes())
			res, err := c.Put(t.Context(), "b/object", g, 10000, PutOptions{})
			if err != nil || res.RDMA || res.N != 10000 {
				t.Fatalf("Put returns %+v, %v", res, err)
			}
			if got, err := os.ReadFile(filepath.Join(dir, "object")); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("the server has %d bytes, %v", len(got), err)
			}
			clear(g.Bytes())
			res, err = c.Get(t.Context(), "b/object", g, GetOptions{})
			if err != nil || res.RDMA || res.N != 10000 || !bytes.Equal(g.Bytes(), want) {
				t.Fatalf("Get returns %+v, %v, or other data", res, err)
			}
			res, err = c.Get(t.Context(), "b/object", g, GetOptions{Offset: 100, Length: 50})
			if err != nil || res.N != 50 || !bytes.Equal(g.Bytes()[:50], want[100:150]) {
				t.Fatalf("Get of a range returns %+v, %v, or other data", res, err)
			}
			if offers != 1 {
				t.Errorf("the server has had %d offers, want 1", offers)
			}
			c.servers = servers{} // as if some minutes had passed
			res, err = c.Get(t.Context(), "b/object", g, GetOptions{})
			if err != nil || res.RDMA || res.N != 10000 || !bytes.Equal(g.Bytes(), want) || offers != 2 {
				t.Errorf("a later Get returns %+v, %v, or other data, after %d offers", res, err, offers)
			}
			c.servers = servers{}
			if _, err = c.Put(t.Context(), "b/object", g, 10000, PutOptions{Checksum: true}); err != nil {
				t.Errorf("Put with a sum: %v", err)
			}
			if _, err = c.Put(t.Context(), "b/new", g, 10000, PutOptions{Header: http.Header{"If-None-Match": {"*"}}}); err != nil {
				t.Errorf("Put of a new object: %v", err)
			}
		})
	}
}

// withoutETag is an answer without an ETag.
type withoutETag struct{ http.ResponseWriter }

func (w withoutETag) WriteHeader(status int) {
	w.Header().Del("Etag")
	w.ResponseWriter.WriteHeader(status)
}

func (w withoutETag) Write(p []byte) (int, error) {
	w.Header().Del("Etag")
	return w.ResponseWriter.Write(p)
}

// TestKeyGone tries the token of a request after it has returned, and after its context has ended,
// while another request offers the same memory: a server that is late neither reads nor writes a
// byte.
func TestKeyGone(t *testing.T) {
	r := newRig(t, InitiatorOptions{Networks: everywhere})
	g := r.region(t, 8192)
	fill(g.Bytes(), 3)
	want := bytes.Clone(g.Bytes())
	for _, cancelled := range []bool{false, true} {
		for _, method := range []string{http.MethodGet, http.MethodPut} {
			ctx, cancel := context.WithCancel(t.Context())
			req, _ := http.NewRequest(method, "http://h/b/k", nil)
			x, err := g.Offer(ctx, req, 0, g.Len())
			testenv.Must(t, err)
			token, err := ParseToken(req.Header.Get(tokenHeader))
			testenv.Must(t, err)
			if cancelled {
				cancel()
			}
			answer := http.Header{replyHeader: {"200"}, bytesHeader: {"8192"}}
			if n, err := x.End(&http.Response{StatusCode: 200, Header: answer}, nil); cancelled != errors.Is(err, context.Canceled) || cancelled != (n == 0) {
				t.Errorf("%s, cancelled %v: End returns %d, %v", method, cancelled, n, err)
			}
			cancel()
			x, again := r.offer(t, g, method)
			if again.Addr == token.Addr {
				t.Errorf("two requests offer the memory at one address, %#x", token.Addr)
			}
			refused(t, r, token)
			if !bytes.Equal(g.Bytes(), want) {
				t.Errorf("%s, cancelled %v: the memory has changed", method, cancelled)
			}
			x.loan.end(false)
		}
	}
}

// refused reads and writes what a token describes, which must fail.
func refused(t *testing.T, r *rig, token Token) {
	t.Helper()
	if w, err := r.initiator.Writer(t.Context(), token); err == nil {
		w.Write(make([]byte, min(100, token.Size)))
		if err := w.Close(); err == nil {
			t.Errorf("a WRITE to %s has succeeded", token)
		}
	}
	if rd, err := r.initiator.Reader(t.Context(), token); err == nil {
		if n, err := rd.Read(make([]byte, 100)); n > 0 || err == nil || err == io.EOF {
			t.Errorf("a READ from %s returns %d bytes, %v", token, n, err)
		}
		closed(t, rd)
	}
}
