package perf

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// pipes returns both ends of a Pipe, the coordinator's first.
func pipes(t *testing.T) (a, b *Pipe) {
	t.Helper()
	x, y := net.Pipe()
	var all sync.WaitGroup
	var errs [2]error
	// Both preambles are written first, for which a pipe of the kernel has room.
	all.Go(func() { a, errs[0] = newPipe(&early{Conn: x}, 1) })
	all.Go(func() { b, errs[1] = newPipe(&early{Conn: y}, 2) })
	if all.Wait(); errs[0] != nil || errs[1] != nil {
		t.Fatal(errs)
	}
	t.Cleanup(func() { a.Close(); b.Close(); <-a.Done(); <-b.Done() })
	return a, b
}

// early is a connection whose first write does not wait for its reader.
type early struct {
	net.Conn
	first sync.Once
	sent  chan struct{}
}

func (e *early) Write(b []byte) (n int, err error) {
	first := false
	e.first.Do(func() {
		first, e.sent = true, make(chan struct{})
		b := bytes.Clone(b)
		go func() { e.Conn.Write(b); close(e.sent) }()
	})
	if first {
		return len(b), nil
	}
	<-e.sent
	return e.Conn.Write(b)
}

// TestPipe: streams of both sides are carried side by side, and the end of one ends no other.
func TestPipe(t *testing.T) {
	a, b := pipes(t)
	for _, ends := range [][2]*Pipe{{a, b}, {b, a}, {a, b}} {
		from, err := ends[0].open()
		if err != nil {
			t.Fatal(err)
		}
		want := bytes.Repeat([]byte("0123456789abcdef"), 3*pipeFrame/16)
		var all sync.WaitGroup
		all.Go(func() {
			from.Write(want)
			from.Close()
		})
		to, err := ends[1].accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(to)
		if all.Wait(); err != nil || !bytes.Equal(got, want) {
			t.Errorf("got %d bytes, want %d: %v", len(got), len(want), err)
		}
		if _, err := to.Write([]byte("x")); err == nil {
			t.Error("a stream that the other side has ended takes bytes")
		}
	}
	s, err := a.open()
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
	if _, err := s.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("after the end of the connection: %v", err)
	}
	<-a.Done()
	if _, err := a.open(); err == nil {
		t.Error("a connection that has ended has a new stream")
	}
	if _, err := a.accept(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// TestPipeJoin: a server reaches another one through the coordinator while it is allowed to, and no longer.
func TestPipeJoin(t *testing.T) {
	a, serverA := pipes(t)
	b, serverB := pipes(t)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { join(ctx, a, b) })
	mine, err := serverA.open()
	if err != nil {
		t.Fatal(err)
	}
	all.Go(func() { mine.Write([]byte("hello")) })
	theirs, err := serverB.accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(theirs, got); err != nil || string(got) != "hello" {
		t.Errorf("%q, %v", got, err)
	}
	cancel()
	if _, err := theirs.Read(got); !errors.Is(err, io.EOF) {
		t.Errorf("after the test: %v", err)
	}
	if _, err := mine.Read(got); !errors.Is(err, io.EOF) {
		t.Errorf("after the test: %v", err)
	}
	all.Wait()
}

// TestPipeAttacks: what no other side sends ends the connection, and nothing waits.
func TestPipeAttacks(t *testing.T) {
	frame := func(number, n uint32, b string) []byte {
		return append(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, number), n), b...)
	}
	many := func() (all []byte) { // streams that begin and end, which nobody has accepted
		for i := range uint32(100) {
			all = append(all, frame(2*i+2, 0, "")...)
		}
		return all
	}
	for name, c := range map[string]struct {
		sent []byte
		ends bool
	}{
		"a long frame":                 {frame(2, pipeFrame+1, ""), true},
		"ends of streams that are not": {many(), false},
		"a number of this side":        {frame(1, 1, "x"), false},
		"number 0":                     {frame(0, 1, "x"), false},
		"half a frame":                 {frame(2, 5, "x"), false},
	} {
		t.Run(name, func(t *testing.T) {
			x, y := net.Pipe()
			go func() {
				io.ReadFull(y, make([]byte, preambleLen))
				y.Write(preambleOf(pipeMagic))
				y.Write(c.sent)
				io.Copy(io.Discard, y)
			}()
			p, err := NewPipe(x)
			if err != nil {
				t.Fatal(err)
			}
			if c.ends {
				<-p.Done()
				if err := p.Err(); err == nil || !strings.Contains(err.Error(), "a frame of 16385 bytes, allowed: up to 16384") {
					t.Error(err)
				}
			} else {
				select {
				case <-p.Done():
					t.Error("the connection has ended")
				case s := <-p.in:
					t.Errorf("there is a stream %v", s)
				case <-time.After(50 * time.Millisecond):
				}
			}
			y.Close()
			<-p.Done()
			x.Close()
		})
	}
	x, y := net.Pipe()
	defer y.Close()
	go func() {
		io.ReadFull(y, make([]byte, preambleLen))
		io.WriteString(y, "Last login: Mon Nov 30 16:00:00 2026 from 10.0.0.1\n")
	}()
	var banner *BannerError
	if _, err := checkPreamble(io.MultiReader(strings.NewReader("gob"), neverEnds{}), pipeMagic); !errors.As(err, &banner) || string(banner.Got) != "gob" {
		t.Errorf("a short banner: %v", err)
	}
	if _, err := NewPipe(x); !errors.As(err, &banner) || string(banner.Got) != "Last login: Mon " || !strings.Contains(err.Error(), `expected "goverbs pipe"`) {
		t.Errorf("a banner: %v", err)
	}
}

// TestPipeStreams: the other side has no more streams than allowed, also of those that have ended.
func TestPipeStreams(t *testing.T) {
	p := &Pipe{in: make(chan net.Conn, pipeStreams), streams: map[uint32]*stream{}, rw: closed{}}
	p.last[1] = 1 // this side's are odd
	for i := range uint32(pipeStreams) {
		if err := p.take(2*i+2, []byte("x")); err != nil || p.streams[2*i+2] == nil {
			t.Fatalf("stream %d: %v", i, err)
		}
		p.end(2*i + 2)
	}
	if err := p.take(1000, nil); err == nil || !strings.Contains(err.Error(), "more than 16 streams") {
		t.Errorf("one more: %v", err)
	}
	if err := p.take(2, nil); err != nil || len(p.streams) > 0 {
		t.Errorf("a number that was used: %v", err)
	}
}

// TestPipeSlow: a stream that nobody reads does not hold up another one, and ends when too much has come for it.
func TestPipeSlow(t *testing.T) {
	usual := answerTime
	answerTime = time.Hour
	defer func() { answerTime = usual }()
	a, b := pipes(t)
	open := func() (from, to net.Conn) {
		from, err := a.open()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := from.Write([]byte("first")); err != nil {
			t.Fatal(err)
		}
		to, err = b.accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return from, to
	}
	slow, unread := open()
	quick, other := open()
	defer unread.Close()
	sent := 0
	for sent < 100*pipeQueue {
		if _, err := slow.Write(make([]byte, pipeFrame)); err != nil {
			break
		}
		if sent++; sent == 10 {
			got := make([]byte, 5)
			if _, err := io.ReadFull(other, got); err != nil || string(got) != "first" {
				t.Fatalf("the other stream has %q, %v", got, err)
			}
		}
	}
	if sent < pipeQueue || sent == 100*pipeQueue { // how many are on their way when the end comes is left to chance
		t.Errorf("the stream has ended after %d frames, want %d to %d", sent, pipeQueue, 100*pipeQueue-1)
	}
	go quick.Write([]byte("again"))
	got := make([]byte, 5)
	if _, err := io.ReadFull(other, got); err != nil || string(got) != "again" {
		t.Errorf("the other stream has %q, %v", got, err)
	}
}

// neverEnds is a reader that nothing comes from.
type neverEnds struct{}

func (neverEnds) Read([]byte) (int, error) { panic("it reads on after the first wrong byte") }

// closed is a connection that has ended.
type closed struct{ io.ReadWriteCloser }

func (closed) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
