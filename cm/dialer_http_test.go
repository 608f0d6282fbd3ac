package cm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
)

// webServer is a server on a listener for RDMA and TCP that answers with a hash of the body, or sends
// the body back if the path is /echo.
func webServer(t *testing.T, l net.Listener, start func(*httptest.Server)) *httptest.Server {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/echo" {
			if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
				t.Error(err)
			}
			io.Copy(w, r.Body)
			return
		}
		h := sha256.New()
		if _, err := io.Copy(h, r.Body); err != nil {
			t.Error(err)
		}
		fmt.Fprintf(w, "%x", h.Sum(nil))
	}))
	s.Listener.Close()
	s.Listener = l
	start(s)
	t.Cleanup(s.Close)
	return s
}

// dialCounter counts connections by network.
type dialCounter struct{ rdma, tcp atomic.Int32 }

// count is for Dialer.Chosen.
func (d *dialCounter) count(c Choice) {
	if _, byTCP := c.Conn.(*net.TCPConn); byTCP {
		d.tcp.Add(1)
	} else {
		d.rdma.Add(1)
	}
}

// post sends a body and checks the hash that comes back.
func post(client *http.Client, url string, body []byte) error {
	resp, err := client.Post(url, "application/octet-stream", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if want := fmt.Sprintf("%x", sha256.Sum256(body)); err == nil && string(got) != want {
		err = fmt.Errorf("the hash of %d bytes is %s, want %s", len(body), got, want)
	}
	return err
}

// TestDialerHTTP: a web server that accepts RDMA and TCP, and clients of both kinds: one connection
// for requests one after the other, 100 requests at once or fewer, and a large body each way.
func TestDialerHTTP(t *testing.T) {
	server := webServer(t, listenBoth(t, ListenConfig{}), (*httptest.Server).Start)
	var chosen dialCounter
	d := Dialer{FallbackDelay: time.Minute, Chosen: chosen.count}
	transport := &http.Transport{DialContext: d.DialContext, MaxIdleConnsPerHost: 100}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: time.Minute}
	for i := range 20 {
		must(t, post(client, server.URL, make([]byte, i*1000)))
	}
	if rdma, tcp := chosen.rdma.Load(), chosen.tcp.Load(); rdma != 1 || tcp != 0 {
		t.Errorf("20 requests, one after the other, have used %d connections by RDMA and %d by TCP, want 1 and 0", rdma, tcp)
	}
	var all sync.WaitGroup
	byTCP := &http.Client{Transport: &http.Transport{}, Timeout: time.Minute}
	defer byTCP.CloseIdleConnections()
	brief := testenv.Brief()
	atOnce, size := load(brief, 100, 25, 10), load(brief, 64<<20, 4<<20, 1<<20)
	for i := range atOnce {
		all.Go(func() {
			if err := post(client, server.URL, make([]byte, 3000+i)); err != nil {
				t.Error(err)
			}
		})
		if i%10 == 0 {
			all.Go(func() {
				if err := post(byTCP, server.URL, make([]byte, 3000+i)); err != nil {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
	if tcp := chosen.tcp.Load(); tcp != 0 {
		t.Errorf("%d connections by TCP", tcp)
	}

	sent, received := sha256.New(), sha256.New()
	body := io.LimitReader(&randomReader{rand.NewChaCha8([32]byte{7})}, int64(size))
	resp := value(client.Post(server.URL+"/echo", "application/octet-stream", io.TeeReader(body, sent)))(t)
	defer resp.Body.Close()
	if n := value(io.Copy(received, resp.Body))(t); n != int64(size) || !bytes.Equal(sent.Sum(nil), received.Sum(nil)) {
		t.Errorf("%d of %d bytes come back, or others", n, size)
	}
}

// randomReader hides all methods of a source of random bytes but Read.
type randomReader struct{ io.Reader }

// TestDialerTLS: a web server and its client with TLS, and a TLS connection by hand with half close
// and deadlines.
func TestDialerTLS(t *testing.T) {
	server := webServer(t, listenBoth(t, ListenConfig{}), (*httptest.Server).StartTLS)
	var chosen dialCounter
	d := Dialer{FallbackDelay: time.Minute, Chosen: chosen.count}
	client := server.Client()
	config := client.Transport.(*http.Transport).TLSClientConfig
	config.ServerName = "example.com" // the certificate's
	client.Transport.(*http.Transport).DialContext = d.DialContext
	must(t, post(client, server.URL, make([]byte, 1<<20)))
	if rdma, tcp := chosen.rdma.Load(), chosen.tcp.Load(); rdma != 1 || tcp != 0 {
		t.Errorf("%d connections by RDMA, %d by TCP", rdma, tcp)
	}

	l := tls.NewListener(listenBoth(t, ListenConfig{}), server.TLS)
	served := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			served <- err
			return
		}
		_, err = io.Copy(c, c)
		served <- errors.Join(err, c.Close())
	}()
	raw := value(d.Dial("tcp", l.Addr().String()))(t)
	c := tls.Client(raw, config)
	must(t, c.HandshakeContext(within(t)))
	must(t, c.SetReadDeadline(time.Now().Add(-time.Second)))
	var timeoutErr net.Error
	if _, err := c.Read(make([]byte, 1)); !errors.As(err, &timeoutErr) || !timeoutErr.Timeout() {
		t.Errorf("read after the deadline: %v", err)
	}
	must(t, c.SetDeadline(time.Now().Add(4*timeout)))
	buffers := net.Buffers{[]byte("one "), []byte("two "), []byte("three")}
	value(buffers.WriteTo(c))(t)
	must(t, c.CloseWrite())
	if got := value(io.ReadAll(c))(t); string(got) != "one two three" {
		t.Errorf("%q comes back", got)
	}
	must(t, c.Close(), <-served)
}

// TestDialerCancelled: the end of a request's context ends the attempt to connect.
func TestDialerCancelled(t *testing.T) {
	var d Dialer
	client := &http.Client{Transport: &http.Transport{DialContext: d.DialContext}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := client.Do(value(http.NewRequestWithContext(ctx, "GET", "http://10.1.0.1:9/", nil))(t)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := d.DialContext(ctx, "tcp", "10.1.0.1:9"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
