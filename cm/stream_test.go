package cm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"github.com/goverbs/goverbs/test/testenv"
)

// TestStream: a stream is as package net's tests want a connection, with either way to wait.
func TestStream(t *testing.T) {
	for _, wait := range waits[:load(testenv.Brief(), len(waits), len(waits), 1)] {
		t.Run(wait.String(), func(t *testing.T) {
			if wait != WaitPark {
				testenv.Tags(t, testenv.AnyCard)
			}
			l := newListener(t, ListenOptions{ConnOptions: ConnOptions{MessageSize: 1000, Depth: 5, Tuning: Tuning{Wait: wait}}})
			nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
				ctx, cancel := context.WithTimeout(context.Background(), 4*timeout)
				defer cancel()
				client, err := DialStream(ctx, l.Addr().String(), DialOptions{ConnOptions: ConnOptions{MessageSize: 900, Tuning: Tuning{Wait: wait}}})
				if err != nil {
					return nil, nil, nil, err
				}
				server, err := l.Streams().Accept()
				if err != nil {
					client.Close()
					return nil, nil, nil, err
				}
				return client, server, func() { client.Close(); server.Close() }, nil
			})
		})
	}
}

// TestStreamCopy: a megabyte each way at once, with half close, by Read and by WriteTo.
func TestStreamCopy(t *testing.T) {
	l := newListener(t, ListenOptions{})
	client, server := connect(t, l, DialOptions{ConnOptions: ConnOptions{MessageSize: 5000}})
	data := make([]byte, 1<<20)
	r := rand.New(rand.NewPCG(3, 4))
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	echoed := make(chan error, 1)
	go func() {
		s := server.Stream()
		_, err := io.Copy(s, s) // by WriteTo
		if err == nil {
			err = s.CloseWrite()
		}
		echoed <- err
	}()
	s := client.Stream()
	written := make(chan error, 1)
	go func() {
		for at := 0; at < len(data); {
			n, err := s.Write(data[at:min(len(data), at+100_000)])
			if err != nil {
				written <- err
				return
			}
			at += n
		}
		written <- s.CloseWrite()
	}()
	s.SetReadDeadline(time.Now().Add(12 * timeout))
	got := value(io.ReadAll(struct{ io.Reader }{s}))(t)
	must(t, <-written, <-echoed)
	if !bytes.Equal(got, data) {
		t.Errorf("%d bytes came back, or others than were sent", len(got))
	}
	must(t, s.Close())
}

// TestHTTP2: a web server and its client, with TLS and HTTP/2, over RDMA.
func TestHTTP2(t *testing.T) {
	l := newListener(t, ListenOptions{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		fmt.Fprintf(w, "%s %s from %s: %d bytes", r.Proto, r.URL.Path, r.RemoteAddr, len(body))
	}))
	server.Listener.Close()
	server.Listener = l.Streams()
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	client := server.Client()
	transport := client.Transport.(*http.Transport)
	transport.TLSClientConfig.ServerName = "example.com" // the certificate's
	var from net.Addr
	transport.DialContext = func(ctx context.Context, _, addr string) (net.Conn, error) {
		s, err := DialStream(ctx, addr, DialOptions{})
		if err != nil {
			return nil, err
		}
		from = s.LocalAddr()
		return s, nil
	}
	for i := range 3 {
		resp := value(client.Post(fmt.Sprintf("%s/%d", server.URL, i), "text/plain", bytes.NewReader(make([]byte, 300_000))))(t)
		body := value(io.ReadAll(resp.Body))(t)
		resp.Body.Close()
		if want := fmt.Sprintf("HTTP/2.0 /%d from %s: 300000 bytes", i, from); string(body) != want {
			t.Errorf("answer is %q, want %q", body, want)
		}
	}
	transport.CloseIdleConnections()
	ctx := within(t)
	must(t, server.Config.Shutdown(ctx))
	if _, err := l.Accept(ctx); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after the server's Shutdown: %v", err)
	}
}

// blockingReader blocks in Read until it is released. It tells which memory it was given.
type blockingReader struct {
	given   chan []byte
	release chan struct{}
}

// Read implements [io.Reader].
func (r *blockingReader) Read(p []byte) (int, error) {
	r.given <- p
	<-r.release
	return copy(p, "late"), nil
}

// TestStreamSizes: the messages of a stream fill whole packets of 4 KiB, unless that costs a message more.
func TestStreamSizes(t *testing.T) {
	for _, c := range []struct {
		maxSend, n int
		want       []int
	}{
		{32 << 10, 1, []int{1}},
		{32 << 10, 32760, []int{32760}},
		{32 << 10, 32 << 10, []int{32 << 10}},
		{32 << 10, 32<<10 + 1, []int{32760, 9}},
		{32 << 10, 2 * 32760, []int{32760, 32760}},
		{32 << 10, 64 << 10, []int{32 << 10, 32 << 10}},
		{32 << 10, 64<<10 + 1, []int{32760, 32760, 17}},
		{32 << 10, 96 << 10, []int{32760, 32760, 32760, 24}},
		{100, 250, []int{100, 100, 50}},
		{4088, 4089, []int{4088, 1}},
	} {
		conn := &Conn{maxSend: c.maxSend}
		var got []int
		for n := c.n; n > 0; n -= got[len(got)-1] {
			got = append(got, conn.nextSize(n))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%d bytes in messages of up to %d: %d, want %d", c.n, c.maxSend, got, c.want)
		}
	}
}

// TestStreamReadFrom: ReadFrom reads into registered memory, and Write does not wait for it. The
// memory is not reused while the reader has it, even after Close.
func TestStreamReadFrom(t *testing.T) {
	l := newListener(t, ListenOptions{})
	client, server := connect(t, l, DialOptions{ConnOptions: ConnOptions{Isolation: ConnPD}})
	s, peer := client.Stream(), server.Stream()
	data := make([]byte, 3<<20)
	r := rand.New(rand.NewPCG(5, 6))
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	var pieces [][]byte // that io.Copy has passed on
	copied := make(chan error, 1)
	go func() {
		n, err := io.Copy(s, struct{ io.Reader }{bytes.NewReader(data)})
		if err == nil && n != int64(len(data)) {
			err = fmt.Errorf("%d bytes are copied", n)
		}
		copied <- errors.Join(err, s.CloseWrite())
	}()
	peer.SetDeadline(time.Now().Add(12 * timeout))
	n := value(peer.WriteTo(writerFunc(func(p []byte) (int, error) { pieces = append(pieces, bytes.Clone(p)); return len(p), nil })))(t)
	must(t, <-copied)
	if got := bytes.Join(pieces, nil); n != int64(len(data)) || !bytes.Equal(got, data) {
		t.Errorf("%d bytes arrive, or others than were sent", len(got))
	}

	client, server = connect(t, l, DialOptions{})
	s, peer = client.Stream(), server.Stream()
	reader := &blockingReader{make(chan []byte), make(chan struct{})}
	failed := make(chan error, 1)
	go func() {
		_, err := s.ReadFrom(reader)
		failed <- err
	}()
	given := <-reader.given
	client.mu.Lock()
	if own := client.lent.mem.bytes(client.lent.next)[headerSize:]; &own[0] != &given[0] {
		t.Error("ReadFrom reads into other memory than that of the connection")
	}
	client.mu.Unlock()
	value(s.Write([]byte("now")))(t)
	got := make([]byte, 3)
	value(io.ReadFull(peer, got))(t)
	if string(got) != "now" {
		t.Errorf("%q arrives", got)
	}
	must(t, s.Close())
	other, _ := connect(t, l, DialOptions{})
	for _, m := range []*memory{&other.mem, &other.ctl, &other.win.smallMem} {
		for i := range m.slots {
			if b := m.bytes(i); overlap(b, given) {
				t.Error("memory that is lent belongs to another connection as well")
			}
		}
	}
	close(reader.release)
	if err := <-failed; !errors.Is(err, net.ErrClosed) {
		t.Errorf("ReadFrom, closed while it reads: %v", err)
	}
	if client.lent.mem.pool != nil {
		t.Error("the lent memory was not returned")
	}
}

// writerFunc is a function as an [io.Writer].
type writerFunc func(p []byte) (int, error)

// Write implements [io.Writer].
func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// overlap reports whether two slices share a byte.
func overlap(a, b []byte) bool {
	for i := range a {
		if &a[i] == &b[0] {
			return true
		}
	}
	for i := range b {
		if &b[i] == &a[0] {
			return true
		}
	}
	return false
}

// TestStreamBadReader: ReadFrom with a Reader that breaks the rules, or fails.
func TestStreamBadReader(t *testing.T) {
	l := newListener(t, ListenOptions{ConnOptions: small})
	client, server := connect(t, l, DialOptions{ConnOptions: small})
	s := client.Stream()
	errBroken := errors.New("it is broken")
	for _, c := range []struct {
		read    int
		err, is error
		sent    int64
	}{{-1, nil, syscall.EINVAL, 0}, {1 << 30, nil, syscall.EINVAL, 0}, {2, errBroken, errBroken, 2}} {
		if n, err := s.ReadFrom(readerFunc(func([]byte) (int, error) { return c.read, c.err })); !errors.Is(err, c.is) || n != c.sent {
			t.Errorf("Read returns %d, %v; ReadFrom %d, %v", c.read, c.err, n, err)
		}
	}
	must(t, s.CloseWrite())
	if got := value(io.ReadAll(server.Stream()))(t); len(got) != 2 {
		t.Errorf("%d bytes arrive, want 2", len(got))
	}
}

// readerFunc is a function as an [io.Reader].
type readerFunc func(p []byte) (int, error)

// Read implements [io.Reader].
func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestStreamAllocs: writes and reads that wait for each other do not allocate, with either way to wait. The largest
// messages do not fit into the peer's buffers, so writes wait, too, with a deadline of their own.
func TestStreamAllocs(t *testing.T) {
	rounds := load(testenv.Brief(), 200, 40, 40) // fewer, and what the streams make at first counts
	for _, wait := range waits {
		l := newListener(t, ListenOptions{ConnOptions: ConnOptions{Tuning: Tuning{Wait: wait}}})
		for _, size := range []int{1, 64, 5000, 300_000} {
			t.Run(fmt.Sprint(wait, " ", size), func(t *testing.T) {
				one, other := connect(t, l, DialOptions{ConnOptions: ConnOptions{Tuning: Tuning{Wait: wait}}})
				client, server := one.Stream(), other.Stream()
				end := time.Now().Add(12 * timeout)
				must(t, client.SetDeadline(end), server.SetDeadline(end))
				echoed := make(chan error, 1)
				go func() {
					b := make([]byte, size)
					var err error
					for err == nil {
						if _, err = io.ReadFull(server, b); err == nil {
							_, err = server.Write(b)
						}
					}
					echoed <- err
				}()
				b := make([]byte, size)
				var err error
				round := func() {
					if _, err = client.Write(b); err == nil {
						_, err = io.ReadFull(client, b)
					}
				}
				for range 20 {
					round()
				}
				must(t, err)
				n := testing.AllocsPerRun(rounds, round)
				for try := 1; n != 0 && try < 3; try++ { // what ends of earlier connections counts as well
					n = testing.AllocsPerRun(rounds, round)
				}
				if n != 0 {
					t.Errorf("a round trip of %d bytes makes %v allocations, want 0", size, n)
				}
				must(t, err, client.Close())
				if err := <-echoed; err != io.EOF {
					t.Errorf("the peer ends with %v", err)
				}
			})
		}
	}
}
