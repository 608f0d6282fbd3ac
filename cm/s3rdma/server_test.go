package s3rdma

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// slowChannel is a channel whose completions are late.
type slowChannel struct {
	channel
	wait func(ctx context.Context)
}

func (s *slowChannel) Wait(ctx context.Context, wcs []uverbs.WC) (int, error) {
	if s.wait(ctx); ctx.Err() != nil {
		return 0, ctx.Err()
	}
	return s.channel.Wait(ctx, wcs)
}

// slow makes the channels of an initiator wait before each look for completions.
func (r *rig) slow(t *testing.T, wait func(ctx context.Context)) {
	t.Helper()
	open := r.initiator.open
	r.initiator.open = func() (channel, error) {
		c, err := open()
		return &slowChannel{c, wait}, err
	}
	for _, l := range r.initiator.idle {
		testenv.Must(t, l.close())
	}
	r.initiator.idle = nil
}

// get returns a request with a token.
func get(method, url string, token Token) *http.Request {
	req := httptest.NewRequest(method, url, nil)
	req.Header.Set(tokenHeader, token.String())
	return req
}

// TestReadAfterHandler has handlers that return while another goroutine reads the body: the read
// that waits fails, and the memory that a writer has stays as it is until the writer returns.
func TestReadAfterHandler(t *testing.T) {
	r := newRig(t, InitiatorOptions{Networks: everywhere, Chunk: 4096, Depth: 2, Transfers: 2, PerPeer: 2})
	waits := make(chan bool, 1)
	var stuck atomic.Bool
	r.slow(t, func(ctx context.Context) {
		if stuck.Load() {
			waits <- true
			<-ctx.Done()
		}
	})
	g := r.region(t, 1<<16)
	fill(g.Bytes(), 1)
	_, token := r.offer(t, g, http.MethodPut)
	var body io.ReadCloser
	ended := make(chan error, 1)
	stuck.Store(true)
	r.initiator.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body = r.Body
		go func() {
			_, err := body.Read(make([]byte, 1000))
			ended <- err
		}()
		<-waits
		r.Body.Close()
		w.WriteHeader(http.StatusForbidden)
	}), HandlerOptions{}).ServeHTTP(httptest.NewRecorder(), get(http.MethodPut, "/b/k", token))
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the Read that waits returns %v", err)
	}
	if n, err := body.Read(make([]byte, 10)); n != 0 || !errors.Is(err, http.ErrBodyReadAfterClose) {
		t.Errorf("a later Read returns %d, %v", n, err)
	}
	stuck.Store(false)
	hold, lent := make(chan bool), make(chan []byte)
	r.initiator.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body = r.Body
		go func() {
			_, err := body.(io.WriterTo).WriteTo(writer(func(p []byte) (int, error) {
				lent <- p
				<-hold
				return len(p), nil
			}))
			ended <- err
		}()
		data := <-lent
		go func() { lent <- data }()
		w.WriteHeader(http.StatusForbidden)
	}), HandlerOptions{}).ServeHTTP(httptest.NewRecorder(), get(http.MethodPut, "/b/k", token))
	data := <-lent
	want := string(data)
	h := r.region(t, 1<<16)
	_, other := r.offer(t, h, http.MethodPut)
	rd, err := r.initiator.Reader(t.Context(), other)
	testenv.Must(t, err)
	_, err = io.Copy(io.Discard, rd)
	testenv.Must(t, err)
	closed(t, rd)
	if string(data) != want {
		t.Error("the memory that a writer has is another transfer's")
	}
	if n := len(r.initiator.slots); n != 1 {
		t.Errorf("%d transfers are under way, want that of the writer", n)
	}
	close(hold)
	if err := <-ended; !errors.Is(err, http.ErrBodyReadAfterClose) {
		t.Errorf("WriteTo returns %v", err)
	}
	if n := len(r.initiator.slots); n != 0 {
		t.Errorf("%d transfers have not ended", n)
	}
}

// TestWriteAfterHandler has writers that are used while, and after, another goroutine ends them: a
// Write that waits fails, no WRITE is under way when the answer goes out, and the memory that a
// reader has is not another transfer's.
func TestWriteAfterHandler(t *testing.T) {
	r := newRig(t, InitiatorOptions{Networks: everywhere, Chunk: 4096, Depth: 2, Transfers: 2, PerPeer: 2})
	waits := make(chan bool, 1)
	var stuck atomic.Bool
	r.slow(t, func(ctx context.Context) {
		if stuck.Load() {
			waits <- true
			<-ctx.Done()
		}
	})
	g := r.region(t, 1<<16)
	_, token := r.offer(t, g, http.MethodGet)
	ended := make(chan error, 1)
	stuck.Store(true)
	w, err := r.initiator.Writer(t.Context(), token)
	testenv.Must(t, err)
	go func() {
		_, err := w.Write(make([]byte, 1<<16))
		ended <- err
	}()
	<-waits
	testenv.Must(t, w.Abort())
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the Write that waits returns %v", err)
	}
	stuck.Store(false)

	hold, lent := make(chan bool), make(chan []byte)
	sent := 0
	answer := httptest.NewRecorder()
	r.initiator.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Write(make([]byte, 4097))
		go func() {
			_, err := w.(io.ReaderFrom).ReadFrom(reader(func(p []byte) (int, error) {
				lent <- p
				<-hold
				fill(p, 99) // which another transfer must not see
				return len(p), nil
			}))
			ended <- err
		}()
		data := <-lent
		go func() { lent <- data }()
	}), HandlerOptions{}).ServeHTTP(onHeader{answer, func() { sent = len(r.initiator.slots) }}, get(http.MethodGet, "/b/k", token))
	if answer.Code != http.StatusInternalServerError || sent != 1 {
		t.Errorf("the answer is %d, with %d transfers, want 500 with the one of the reader", answer.Code, sent)
	}
	<-lent
	h := r.region(t, 1<<16)
	_, other := r.offer(t, h, http.MethodGet)
	want := make([]byte, 8000)
	fill(want, 5)
	w, err = r.initiator.Writer(t.Context(), other)
	testenv.Must(t, err)
	_, err = w.Write(want)
	testenv.Must(t, err)
	close(hold)
	if err := <-ended; !errors.Is(err, errDone) {
		t.Errorf("ReadFrom returns %v", err)
	}
	closed(t, w)
	if !bytes.Equal(h.Bytes()[:len(want)], want) {
		t.Error("the memory that a reader has was another transfer's")
	}

	x, third := r.offer(t, r.region(t, 1<<16), http.MethodGet)
	for i := range 100 { // for the race detector
		done := make(chan bool)
		r.initiator.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusOK)
			go func() {
				defer close(done)
				for err := error(nil); err == nil; {
					if i%2 == 0 {
						_, err = w.Write(want[:100])
					} else {
						_, err = w.(io.ReaderFrom).ReadFrom(bytes.NewReader(want[:100]))
					}
				}
			}()
		}), HandlerOptions{}).ServeHTTP(httptest.NewRecorder(), get(http.MethodGet, "/b/k", third))
		<-done
	}
	x.loan.end(false)
	if n := len(r.initiator.slots); n != 0 || len(r.initiator.peers) != 0 {
		t.Errorf("%d transfers have not ended", n)
	}
}

// reader is a function as a reader.
type reader func([]byte) (int, error)

func (r reader) Read(p []byte) (int, error) { return r(p) }

// onHeader is an answer that calls a function before it goes out.
type onHeader struct {
	http.ResponseWriter
	call func()
}

func (o onHeader) WriteHeader(status int) {
	o.call()
	o.ResponseWriter.WriteHeader(status)
}

func (o onHeader) Unwrap() http.ResponseWriter { return o.ResponseWriter }

// writer is a function as a writer.
type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// TestProxy has a proxy behind the handler, whose server refuses the requests while it sends their
// bodies.
func TestProxy(t *testing.T) {
	r := newRig(t, InitiatorOptions{Networks: everywhere, Chunk: 64 << 10, Depth: 4, Transfers: 4, PerPeer: 4})
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	defer backend.Close()
	u, err := url.Parse(backend.URL)
	testenv.Must(t, err)
	s := httptest.NewServer(r.initiator.Handler(httputil.NewSingleHostReverseProxy(u), HandlerOptions{}))
	defer s.Close()
	c := &Client{Endpoint: s.URL, Transport: new(http.Transport)}
	done := make(chan bool)
	for range 4 {
		g := r.region(t, 4<<20)
		go func() {
			defer func() { done <- true }()
			for range 10 {
				if _, err := c.Put(t.Context(), "b/k", g, g.Len(), PutOptions{}); err == nil {
					t.Error("Put has succeeded")
				}
			}
		}()
	}
	for range 4 {
		<-done
	}
}

// TestAfterClose uses readers and writers after their end.
func TestAfterClose(t *testing.T) {
	r := newRig(t, InitiatorOptions{Chunk: 4096, Depth: 2})
	_, token := r.offer(t, r.region(t, 20_000), http.MethodPut)
	rd, err := r.initiator.Reader(t.Context(), token)
	testenv.Must(t, err)
	_, err = rd.Read(make([]byte, 10))
	testenv.Must(t, err)
	closed(t, rd)
	if n, err := rd.WriteTo(io.Discard); n != 0 || !errors.Is(err, errDone) {
		t.Errorf("WriteTo returns %d, %v", n, err)
	}
	rd, err = r.initiator.Reader(t.Context(), token)
	testenv.Must(t, err)
	if n, err := rd.WriteTo(writer(func(p []byte) (int, error) { return 10, nil })); n != 10 || !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("WriteTo a writer of 10 bytes returns %d, %v", n, err)
	}
	rest, err := io.ReadAll(rd)
	if len(rest) != 20_000-10 || err != nil {
		t.Errorf("%d bytes are left, %v", len(rest), err)
	}
	closed(t, rd)
	_, token = r.offer(t, r.region(t, 20_000), http.MethodGet)
	for name, end := range map[string]func(*Writer) error{"Close": (*Writer).Close, "Abort": (*Writer).Abort} {
		w, err := r.initiator.Writer(t.Context(), token)
		testenv.Must(t, err)
		_, err = w.Write(make([]byte, 5000))
		testenv.Must(t, err)
		testenv.Must(t, end(w))
		if n, err := w.Write(make([]byte, 10)); n != 0 || !errors.Is(err, errDone) {
			t.Errorf("Write after %s returns %d, %v", name, n, err)
		}
		if n, err := w.ReadFrom(strings.NewReader("x")); n != 0 || !errors.Is(err, errDone) {
			t.Errorf("ReadFrom after %s returns %d, %v", name, n, err)
		}
		closed(t, w)
		testenv.Must(t, w.Abort())
	}
}

// TestTimeout has a peer whose device does not answer.
func TestTimeout(t *testing.T) {
	r := newRig(t, InitiatorOptions{Timeout: 1})
	r.slow(t, func(ctx context.Context) { <-ctx.Done() })
	_, token := r.offer(t, r.region(t, 8192), http.MethodPut)
	rd, err := r.initiator.Reader(t.Context(), token)
	testenv.Must(t, err)
	if _, err := rd.Read(make([]byte, 10)); !errors.Is(err, errTimeout) {
		t.Errorf("Read returns %v", err)
	}
	closed(t, rd)
	if o := (InitiatorOptions{}); o.defaults() != nil || o.Path.RNRRetry != 6 || o.Timeout <= 0 {
		t.Errorf("by default, the device tries %d times and the transfer waits for %v", o.Path.RNRRetry, o.Timeout)
	}
}

// TestCloseInitiator closes an initiator while a transfer waits for another one: the one that waits
// fails, and both calls of Close wait for the other one.
func TestCloseInitiator(t *testing.T) {
	r := newRig(t, InitiatorOptions{Transfers: 2, PerPeer: 2})
	_, token := r.offer(t, r.region(t, 8192), http.MethodPut)
	var readers []*Reader
	for range 2 {
		rd, err := r.initiator.Reader(t.Context(), token)
		testenv.Must(t, err)
		readers = append(readers, rd)
	}
	other := token
	other.GID[0] ^= 1
	ended, closing := make(chan error, 1), make(chan error, 2)
	go func() {
		_, err := r.initiator.Reader(t.Context(), other)
		ended <- err
	}()
	for range 2 {
		go func() { closing <- r.initiator.Close() }()
	}
	if err := <-ended; !errors.Is(err, os.ErrClosed) {
		t.Errorf("the transfer that waits: %v", err)
	}
	closed(t, readers[0])
	select {
	case err := <-closing:
		t.Errorf("Close has returned %v while there is a transfer", err)
	default:
	}
	closed(t, readers[1])
	testenv.Must(t, <-closing)
	testenv.Must(t, <-closing)
}

// TestPeers has requests of one address with the targets of many.
func TestPeers(t *testing.T) {
	i := &Initiator{o: InitiatorOptions{PerPeer: 2}, peers: map[netip.Addr]int{}}
	at := func(s ...string) (peers []netip.Addr) {
		for _, s := range s {
			peers = append(peers, netip.MustParseAddr(s))
		}
		return peers
	}
	testenv.Must(t, i.enter(at("10.0.0.1", "10.0.1.1")))
	testenv.Must(t, i.enter(at("10.0.0.2", "10.0.1.1")))
	if err := i.enter(at("10.0.0.3", "10.0.1.1")); !errors.Is(err, errTooMany) {
		t.Errorf("a third one of an address: %v", err)
	}
	i.leave(at("10.0.0.2", "10.0.1.1"))
	testenv.Must(t, i.enter(at("10.0.0.1")))
	if err := i.enter(at("10.0.0.1")); !errors.Is(err, errTooMany) {
		t.Errorf("a third one of a target: %v", err)
	}
}

// TestSigned checks which signatures cover a token.
func TestSigned(t *testing.T) {
	for _, test := range []struct {
		query, header string
		status        int // 0 means that the token is covered, or that there is no signature
	}{
		{"", "", 0}, {"", "AWS access:signature", 0}, {"X-Amz-SignedHeaders=host%3Bx-amz-rdma-token", "", 0},
		{"", "AWS4-HMAC-SHA256 Credential=a, SignedHeaders=host;x-amz-rdma-token, Signature=0", 0},
		{"", "AWS4-HMAC-SHA256 Credential=a,SignedHeaders=host,Signature=0", 403},
		{"", "AWS4-HMAC-SHA256 Credential=a, SignedHeaders=, Signature=0", 403},
		{"", "AWS4-HMAC-SHA256 Credential=a, SignedHeaders=host, Signature=0, SignedHeaders=x-amz-rdma-token", 403},
		{"", "AWS4-HMAC-SHA256 Credential=a, SignedHeaders=x-amz-rdma-token, Signature=0, SignedHeaders=host", 403},
		{"X-Amz-SignedHeaders=host", "", 403}, {"X-Amz-SignedHeaders=", "", 403}, {"X-Amz-SignedHeaders=x-amz-rdma-token&X-Amz-SignedHeaders=host", "", 403},
		{"X-Amz-SignedHeaders=host", "x SignedHeaders=x-amz-rdma-token", 400}, {"X-Amz-SignedHeaders=x-amz-rdma-token", "x SignedHeaders=x-amz-rdma-token", 400},
		{"X-Amz-SignedHeaders=host;x-amz-rdma-token", "", 400},
	} {
		req := httptest.NewRequest(http.MethodGet, "/b/k?"+test.query, nil)
		if test.header != "" {
			req.Header.Set("Authorization", test.header)
		}
		status := 0
		if e, ok := errors.AsType[*refusal](signed(req)); ok {
			status = e.status
		}
		if status != test.status {
			t.Errorf("%q with %q: %d, want %d", test.query, test.header, status, test.status)
		}
	}
}
