package streamtest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/nettest"
)

// Conn: a connection is as package net's tests want it, with large and small buffers.
func (p *Protocol) Conn(t *testing.T) {
	for name, o := range map[string]Options{"default": {}, "small": {RecvBuffer: p.Odd, SendBuffer: 4096, Depth: 16, SendDepth: 16}} {
		t.Run(name, func(t *testing.T) {
			l := p.Listener(t, o)
			nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
				c1, c2, err = p.Connect(l, Options{})
				return c1, c2, func() { c1.Close(); c2.Close() }, err
			})
		})
	}
}

// Copy: megabytes each way at once, with half close if the protocol has it, in pieces of many sizes.
func (p *Protocol) Copy(t *testing.T) {
	for _, o := range []Options{{}, {RecvBuffer: p.Odd, SendBuffer: 5000, Depth: 17, SendDepth: 19}, {RecvBuffer: 4 << 20, SendBuffer: 1 << 20}} {
		t.Run(fmt.Sprint(o.RecvBuffer), func(t *testing.T) {
			l := p.Listener(t, o)
			client, server, err := p.Connect(l, o)
			Must(t, err)
			data := make([]byte, 3<<20)
			r := rand.New(rand.NewPCG(3, 4))
			for i := range data {
				data[i] = byte(r.Uint32())
			}
			half, canEnd := client.(interface{ CloseWrite() error })
			echoed := make(chan error, 1)
			go func() {
				var err error
				if canEnd {
					_, err = io.Copy(server, struct{ io.Reader }{server})
				} else {
					_, err = io.CopyN(server, struct{ io.Reader }{server}, int64(len(data)))
				}
				echoed <- errors.Join(err, server.Close())
			}()
			written := make(chan error, 1)
			go func() {
				for at := 0; at < len(data); {
					n, err := client.Write(data[at:min(len(data), at+1+r.IntN(100_000))])
					if err != nil {
						written <- err
						return
					}
					at += n
				}
				if canEnd {
					written <- half.CloseWrite()
				} else {
					written <- nil
				}
			}()
			Must(t, client.SetReadDeadline(time.Now().Add(3*Timeout)))
			got, err := io.ReadAll(client)
			Must(t, err, <-written, <-echoed)
			if !bytes.Equal(got, data) {
				t.Errorf("%d bytes come back, or others than were sent", len(got))
			}
			Must(t, client.Close())
		})
	}
}

// Allocs: reads and writes of any size, which wait for each other, do not allocate.
func (p *Protocol) Allocs(t *testing.T) {
	l := p.Listener(t, Options{})
	for _, size := range []int{1, 64, 5000, 300_000} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			client, server, err := p.Connect(l, Options{})
			Must(t, err)
			end := time.Now().Add(3 * Timeout)
			Must(t, client.SetDeadline(end), server.SetDeadline(end))
			echoed := make(chan error, 1)
			go func() {
				b := make([]byte, size)
				for {
					if _, err := io.ReadFull(server, b); err != nil {
						echoed <- err
						return
					}
					if _, err := server.Write(b); err != nil {
						echoed <- err
						return
					}
				}
			}()
			b := make([]byte, size)
			round := func() {
				if _, err = client.Write(b); err == nil {
					_, err = io.ReadFull(client, b)
				}
			}
			for range 20 {
				round()
			}
			Must(t, err)
			if n := testing.AllocsPerRun(200, round); n != 0 {
				t.Errorf("a round trip of %d bytes makes %v allocations, want 0", size, n)
			}
			Must(t, err, client.Close())
			if err := <-echoed; err != io.EOF {
				t.Errorf("the peer ends with %v", err)
			}
			Must(t, server.Close())
		})
	}
}

// CloseDelivers: what was written before Close arrives, whoever closes.
func (p *Protocol) CloseDelivers(t *testing.T) {
	l := p.Listener(t, Options{})
	for i := range 20 {
		client, server, err := p.Connect(l, Options{})
		Must(t, err)
		if i%2 == 0 {
			client, server = server, client
		}
		data := bytes.Repeat([]byte{byte(i), 1, 2}, 80_000)
		read := make(chan []byte, 1)
		go func() {
			got, err := io.ReadAll(server)
			if err != nil {
				t.Error(err)
			}
			read <- got
		}()
		_, err = client.Write(data)
		Must(t, err, client.Close())
		if got := <-read; !bytes.Equal(got, data) {
			t.Errorf("%d bytes arrive, want %d", len(got), len(data))
		}
		Must(t, server.Close())
	}
}

// Linger: Close waits for data that is not acknowledged, and says so when it gives up.
func (p *Protocol) Linger(t *testing.T) {
	const linger = 50 * time.Millisecond
	client, server, err := p.Connect(p.Listener(t, Options{}), Options{Linger: linger})
	Must(t, err)
	c := p.Stream(client)
	c.Mu.Lock()
	c.Room-- // a byte that is never acknowledged
	c.Mu.Unlock()
	begin := time.Now()
	if err := client.Close(); !errors.Is(err, os.ErrDeadlineExceeded) || !strings.Contains(err.Error(), "Linger of 50ms is over") || time.Since(begin) < linger {
		t.Errorf("Close returns %v after %v", err, time.Since(begin))
	}
	Must(t, server.Close())
}

// WriteWhileClosing: a Write that waits for room returns as soon as Close is called, and a later one too, though
// Close still waits for what was written before.
func (p *Protocol) WriteWhileClosing(t *testing.T) {
	client, server, err := p.Connect(p.Listener(t, Options{}), Options{Linger: Timeout})
	Must(t, err)
	c := p.Stream(client)
	c.Mu.Lock()
	c.Room-- // a byte that is not acknowledged for now
	c.Mu.Unlock()
	wrote, closed := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := client.Write(make([]byte, 10<<20))
		wrote <- err
	}()
	for waits := false; !waits; time.Sleep(time.Millisecond) {
		c.Mu.Lock()
		waits = c.Writer.Busy()
		c.Mu.Unlock()
	}
	go func() { closed <- client.Close() }()
	if err := <-wrote; !errors.Is(err, net.ErrClosed) {
		t.Errorf("the Write that waits: %v", err)
	}
	if n, err := client.Write([]byte("late")); n != 0 || !errors.Is(err, net.ErrClosed) {
		t.Errorf("the later Write: %d, %v", n, err)
	}
	c.Mu.Lock()
	c.Room++
	c.Interrupt()
	c.Mu.Unlock()
	go io.Copy(io.Discard, server) // rsocket on iWARP waits until it is read
	Must(t, <-closed, server.Close())
}

// Close: random operations while both sides close.
func (p *Protocol) Close(t *testing.T) {
	l := p.Listener(t, Options{Linger: time.Second})
	r := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		client, server, err := p.Connect(l, Options{Linger: time.Second})
		Must(t, err)
		done := make(chan error, 2)
		for _, c := range []net.Conn{client, server} {
			n, end := r.IntN(1_000_000), r.IntN(2) == 0
			go func() {
				c.SetDeadline(time.Now().Add(200 * time.Millisecond)) // neither reads, so both may wait for room
				c.Write(make([]byte, n))
				if half, ok := c.(interface{ CloseWrite() error }); ok && end {
					half.CloseWrite()
				}
				c.Close()
				_, err := c.Write([]byte("late"))
				if !strings.Contains(err.Error(), "closed") {
					done <- err
					return
				}
				done <- nil
			}()
		}
		Must(t, <-done, <-done)
	}
}
