//go:build amd64 || arm64

package uverbs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// overRig makes queue pairs on a software device.
func overRig(tb testing.TB, n int) []*QP {
	d := value(Open(soft.NewT(tb, soft.Options{}).Name(), OpenOptions{}))(tb)
	tb.Cleanup(func() { must(tb, d.CloseAll()) })
	pd, cq := value(d.AllocPD())(tb), value(d.CreateCQ(CQOptions{Size: 64, Events: true}))(tb)
	qps := make([]*QP, n)
	for i := range qps {
		qps[i] = value(pd.CreateQP(QPOptions{SendCQ: cq, RecvCQ: cq}))(tb)
	}
	return qps
}

// TestConnectPair: both queue pairs can send, and an error of either is returned.
func TestConnectPair(t *testing.T) {
	q := overRig(t, 3)
	must(t, ConnectPair(t.Context(), q[0], q[1]))
	errorIs(t, ConnectPair(t.Context(), q[0], nil), syscall.EINVAL, "nil")
	errorIs(t, second(q[0].ConnectOver(t.Context(), nil, nil)), syscall.EINVAL, "nil")
	if a, b := q[0].State(), q[1].State(); a != ib.QPRTS || b != ib.QPRTS {
		t.Errorf("the states are %s and %s, want RTS", a, b)
	}
	must(t, q[2].Close())
	for _, pair := range [][2]*QP{{q[2], q[0]}, {q[0], q[2]}} {
		if err := ConnectPair(t.Context(), pair[0], pair[1]); err == nil {
			t.Error("a closed queue pair was connected")
		}
	}
}

// TestConnectOver: both sides get the other's note and are connected, over a stream that does not buffer, and what
// follows in the stream is left there.
func TestConnectOver(t *testing.T) {
	q := overRig(t, 2)
	here, there := net.Pipe()
	defer here.Close()
	long := bytes.Repeat([]byte{7}, 4096)
	done := make(chan error, 1)
	go func() {
		note, err := q[1].ConnectOver(context.Background(), there, nil)
		if err == nil && !bytes.Equal(note, long) {
			err = errors.New("another note than was sent")
		}
		done <- err
		there.Write([]byte("next"))
	}()
	note, err := q[0].ConnectOver(t.Context(), here, long)
	must(t, err, <-done)
	if len(note) != 0 || q[0].State() != ib.QPRTS || q[1].State() != ib.QPRTS {
		t.Errorf("note %q, states %s and %s, want none and RTS", note, q[0].State(), q[1].State())
	}
	next := make([]byte, 4)
	if _, err := io.ReadFull(here, next); err != nil || string(next) != "next" {
		t.Errorf("after the exchange: %q, %v", next, err)
	}
}

// stream is one whose peer has sent something before, and reads nothing.
type stream struct {
	io.Reader
	io.Writer
}

// TestConnectOverErrors: what a peer must not send is refused with what is wrong, and the end of the context or of
// the stream ends the call.
func TestConnectOverErrors(t *testing.T) {
	good := "\x00\x0bqpn=1,psn=1"
	for sent, want := range map[string]string{
		"":                        "closed the stream",
		"\x00":                    "closed the stream",
		"\x00\x05qpn":             "closed the stream",
		"\x01\x01":                "Endpoint has 257 bytes, must be 0 to 256",
		"\xff\xff":                "must be 0 to 256",
		"\x00\x00\x00\x00":        "qpn",
		"\x00\x05qpn=x\x00\x00":   `qpn is "x"`,
		good + "\x10\x01":         "note has 4097 bytes, must be 0 to 4096",
		good + "\x00\x02a":        "closed the stream",
		good + "\x00\x00\x00":     "remote GID",
		"GET / HTTP/1.1\r\n\r\n.": "must be 0 to 256",
	} {
		q := overRig(t, 1)[0]
		if _, err := q.ConnectOver(t.Context(), stream{strings.NewReader(sent), io.Discard}, nil); err == nil || !strings.Contains(err.Error(), want) || errors.Is(err, io.EOF) {
			t.Errorf("%q: %v, want %q", sent, err, want)
		}
	}
	q := overRig(t, 2)
	remote := value(value(q[1].Endpoint())(t).MarshalText())(t)
	hello := string(append([]byte{0, byte(len(remote))}, remote...)) + "\x00\x00\x02"
	if _, err := q[0].ConnectOver(t.Context(), stream{strings.NewReader(hello), io.Discard}, nil); err == nil || !strings.Contains(err.Error(), "the peer says 2") {
		t.Errorf("a peer that is not connected: %v", err)
	}
	if _, err := q[1].ConnectOver(t.Context(), nil, make([]byte, 4097)); !errors.As(err, new(*ArgError)) {
		t.Errorf("a long note: %v, want an ArgError", err)
	}
	here, there := net.Pipe()
	defer there.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := q[1].ConnectOver(ctx, here, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a silent peer: %v, want DeadlineExceeded", err)
	}
}

// FuzzConnectOver: whatever a peer sends, ConnectOver returns, and reads no more than the longest message.
func FuzzConnectOver(f *testing.F) {
	f.Add([]byte("\x00\x0bqpn=1,psn=1\x00\x01a\x01"))
	f.Add([]byte("\x00\x1eqpn=1,psn=1,gid=127.0.0.1,mtu=1024\x00\x00\x01"))
	q := overRig(f, 1)[0]
	f.Fuzz(func(t *testing.T, sent []byte) {
		r := bytes.NewReader(sent)
		note, err := q.ConnectOver(t.Context(), stream{r, io.Discard}, nil)
		if err == nil && len(note) > maxNote || len(sent)-r.Len() > 2+maxEndpointText+2+maxNote+1 {
			t.Errorf("%d bytes of %d read, a note of %d", len(sent)-r.Len(), len(sent), len(note))
		}
		must(t, q.Modify(QPAttr{State: ib.QPReset}, AttrState))
	})
}

// lateEnd is a stream on which a context ends when the last byte of each side has been read.
type lateEnd struct {
	net.Conn
	end context.CancelFunc

	written, set chan bool
}

func (l lateEnd) Read(b []byte) (n int, err error) {
	if n, err = l.Conn.Read(b); len(b) == 1 {
		<-l.written
		l.end()
		<-l.set
	}
	return n, err
}

func (l lateEnd) Write(b []byte) (n int, err error) {
	if n, err = l.Conn.Write(b); len(b) == 1 {
		close(l.written)
	}
	return n, err
}

func (l lateEnd) SetDeadline(at time.Time) error {
	defer close(l.set)
	return l.Conn.SetDeadline(at)
}

// TestConnectOverLateEnd: a stream whose deadline is over is no success.
func TestConnectOverLateEnd(t *testing.T) {
	q := overRig(t, 2)
	here, there := net.Pipe()
	defer here.Close()
	done := make(chan error, 1)
	go func() { done <- second(q[0].ConnectOver(t.Context(), there, nil)) }()
	ctx, end := context.WithCancel(t.Context())
	if _, err := q[1].ConnectOver(ctx, lateEnd{here, end, make(chan bool), make(chan bool)}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want Canceled", err)
	}
	must(t, <-done)
}
