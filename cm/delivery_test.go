package cm

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs"
)

// manyWaiting returns the ends of a connection whose receiver has room for many messages, and whose large
// receives are there already.
func manyWaiting(t *testing.T) (sender, receiver *Conn) {
	t.Helper()
	ctx := within(t)
	o := ConnOptions{MessageSize: 64, Depth: 4096, Tuning: Tuning{SendDepth: 64}}
	l := newListener(t, ListenOptions{ConnOptions: o})
	sender, receiver = connect(t, l, DialOptions{ConnOptions: o})
	for announced := false; !announced; {
		must(t, sender.Send(ctx, nil))
		value(receiver.Recv(ctx))(t)
		receiver.mu.Lock()
		announced = receiver.win.announced
		receiver.mu.Unlock()
	}
	return sender, receiver
}

// ended waits until the connection manager has reported the end of the connection.
func ended(t *testing.T, c *Conn) {
	t.Helper()
	ctx := within(t)
	for over := false; !over; time.Sleep(time.Millisecond) {
		must(t, ctx.Err())
		c.mu.Lock()
		over = c.err != nil
		c.mu.Unlock()
	}
}

// TestCloseDeliversAll: everything that was sent before Close arrives, also if much more of it waits in the CQ
// than one poll takes.
func TestCloseDeliversAll(t *testing.T) {
	const n = 3000
	ctx := within(t)
	sender, receiver := manyWaiting(t)
	for i := range n {
		must(t, sender.Send(ctx, binary.BigEndian.AppendUint32(nil, uint32(i))))
	}
	must(t, sender.Close())
	ended(t, receiver)
	for i := range n {
		got, err := receiver.Recv(ctx)
		if err != nil {
			t.Fatalf("message %d of %d: %v", i, n, err)
		}
		if binary.BigEndian.Uint32(got) != uint32(i) {
			t.Fatalf("message %d is %x", i, got)
		}
	}
	if _, err := receiver.Recv(ctx); err != io.EOF {
		t.Errorf("after the end: %v", err)
	}
}

// TestStreamCloseDeliversAll is TestCloseDeliversAll for the ways to read a stream.
func TestStreamCloseDeliversAll(t *testing.T) {
	for name, read := range map[string]func(r *Stream) (int64, error){
		"WriteTo": func(r *Stream) (int64, error) { return io.Copy(io.Discard, r) },
		"Read of 10 bytes": func(r *Stream) (int64, error) {
			return io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{r}, make([]byte, 10))
		},
		"Read of 32 KiB": func(r *Stream) (int64, error) { return io.Copy(io.Discard, struct{ io.Reader }{r}) },
	} {
		t.Run(name, func(t *testing.T) {
			const n = 3000
			sender, receiver := manyWaiting(t)
			w, r := sender.Stream(), receiver.Stream()
			for range n {
				value(w.Write(make([]byte, 10)))(t)
			}
			must(t, w.Close())
			ended(t, receiver)
			if got, err := read(r); err != nil || got != 10*n {
				t.Errorf("%d of %d bytes, %v", got, 10*n, err)
			}
		})
	}
}

// TestStreamReadNothing: Read of 0 bytes returns at once, as that of a TCP connection, with the error of one
// that could not wait.
func TestStreamReadNothing(t *testing.T) {
	l := newListener(t, ListenOptions{})
	client, _ := connect(t, l, DialOptions{})
	s := client.Stream()
	s.SetReadDeadline(time.Now().Add(time.Minute))
	if n, err := s.Read(nil); n != 0 || err != nil {
		t.Errorf("Read(nil): %d, %v", n, err)
	}
	s.SetReadDeadline(time.Unix(1, 0))
	if n, err := s.Read(nil); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Read(nil) after the deadline: %d, %v", n, err)
	}
	must(t, s.Close())
	if n, err := s.Read(nil); n != 0 || !errors.Is(err, errClosed) {
		t.Errorf("Read(nil) after Close: %d, %v", n, err)
	}
}

// TestSendAfterPeerClosed: after the peer's Close all methods that send something return the same error, and
// those that are under way too.
func TestSendAfterPeerClosed(t *testing.T) {
	ctx := within(t)
	for _, waits := range []bool{false, true} {
		l := newListener(t, ListenOptions{})
		client, server := connect(t, l, DialOptions{})
		mr := value(client.PD().RegMR(value(uverbs.AllocBuffer(4096, uverbs.BufferOptions{}))(t), uverbs.MROptions{Access: uverbs.AccessLocalWrite}))(t)
		remote := value(server.PD().RegMR(value(uverbs.AllocBuffer(4096, uverbs.BufferOptions{}))(t), uverbs.MROptions{Access: uverbs.AccessLocalWrite | uverbs.AccessRemoteRead | uverbs.AccessRemoteWrite | uverbs.AccessRemoteAtomic}))(t)
		to, local := RemoteOf(remote), mr.SGE(0, 8)
		must(t, client.RDMARead(ctx, local, to))
		must(t, server.Close())
		if waits {
			ended(t, client)
		} else if _, err := client.Recv(ctx); err != io.EOF {
			t.Errorf("Recv: %v", err)
		}
		for name, send := range map[string]func() error{
			"Send":        func() error { return client.Send(ctx, nil) },
			"Flush":       func() error { return client.Flush(ctx) },
			"RDMAWrite":   func() error { return client.RDMAWrite(ctx, local, to) },
			"RDMARead":    func() error { return client.RDMARead(ctx, local, to) },
			"CompareSwap": func() error { return client.CompareSwap(ctx, local, to, 0, 1) },
			"FetchAdd":    func() error { return client.FetchAdd(ctx, local, to, 1) },
		} {
			if err := send(); !errors.Is(err, syscall.EPIPE) || !strings.Contains(err.Error(), "the peer has closed it") {
				if errors.Is(err, errors.ErrUnsupported) { // atomics
					continue
				}
				t.Errorf("%s, DISCONNECTED was waited for: %t: %v", name, waits, err)
			}
		}
		if err := client.CloseWrite(ctx); err != nil && !errors.Is(err, syscall.EPIPE) {
			t.Errorf("CloseWrite: %v", err)
		}
		must(t, client.Close(), mr.Close(), remote.Close())
	}
}

// TestTransferWhilePeerCloses: READs that are under way when the peer closes succeed or say that it has closed.
func TestTransferWhilePeerCloses(t *testing.T) {
	ctx := within(t)
	l := newListener(t, ListenOptions{})
	for range 20 {
		client, server := connect(t, l, DialOptions{})
		mr := value(client.PD().RegMR(value(uverbs.AllocBuffer(1<<16, uverbs.BufferOptions{}))(t), uverbs.MROptions{Access: uverbs.AccessLocalWrite}))(t)
		remote := value(server.PD().RegMR(value(uverbs.AllocBuffer(1<<16, uverbs.BufferOptions{}))(t), uverbs.MROptions{Access: uverbs.AccessLocalWrite | uverbs.AccessRemoteRead}))(t)
		var all sync.WaitGroup
		begun := make(chan bool, 4)
		for range cap(begun) {
			all.Go(func() {
				for first := true; ; first = false {
					if err := client.RDMARead(ctx, mr.SGE(0, 1<<16), RemoteOf(remote)); err != nil {
						if !errors.Is(err, syscall.EPIPE) {
							t.Errorf("READ: %v", err)
						}
						return
					}
					if first {
						begun <- true
					}
				}
			})
		}
		for range cap(begun) {
			<-begun
		}
		must(t, server.Close())
		all.Wait()
		must(t, client.Close(), mr.Close(), remote.Close())
	}
}
