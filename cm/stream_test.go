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
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"github.com/goverbs/goverbs/test/testenv"
)

// TestStream: a stream is as package net's tests want a connection, with either way to wait.
func TestStream(t *testing.T) {
	for _, wait := range waits {
		t.Run(wait.String(), func(t *testing.T) {
			if wait != WaitPark {
				testenv.Tags(t, testenv.AnyCard)
			}
			l := newListener(t, ListenOptions{ConnOptions: ConnOptions{Wait: wait, MessageSize: 1000, Depth: 5}})
			nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
				ctx, cancel := context.WithTimeout(context.Background(), 4*timeout)
				defer cancel()
				client, err := DialStream(ctx, l.Addr().String(), DialOptions{ConnOptions: ConnOptions{Wait: wait, MessageSize: 900}})
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
