package perf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs"
)

// listen returns a listener on loopback.
func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// served is a server whose log can be read.
type served struct {
	addr string
	mu   sync.Mutex
	said []string
}

// serve runs a server.
func serve(t *testing.T, s *Server) *served {
	t.Helper()
	sv := &served{}
	s.Log = func(format string, args ...any) {
		sv.mu.Lock()
		defer sv.mu.Unlock()
		sv.said = append(sv.said, fmt.Sprintf(format, args...))
	}
	l := listen(t)
	sv.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return sv
}

// says waits until the server's log has a line with a text in it.
func (sv *served) says(t *testing.T, want string) {
	t.Helper()
	for range 1000 {
		sv.mu.Lock()
		said := strings.Join(sv.said, "\n")
		sv.mu.Unlock()
		if strings.Contains(said, want) {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	sv.mu.Lock()
	defer sv.mu.Unlock()
	t.Errorf("the server does not say %q, but:\n%s", want, strings.Join(sv.said, "\n"))
}

// hears has the server hear a client, which perhaps says that this is all, hang up on it, and say what was wrong.
func (sv *served) hears(t *testing.T, send string, all bool, want string) {
	t.Helper()
	conn, err := net.Dial("tcp", sv.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, send) // the server may not read all
	if all {
		conn.(*net.TCPConn).CloseWrite()
	}
	conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the server does not hang up")
	}
	sv.says(t, "client "+conn.LocalAddr().String()+": ")
	sv.says(t, want)
	sv.mu.Lock()
	sv.said = nil
	sv.mu.Unlock()
}

// frame makes a frame of a text.
func frame(text string) string {
	return string(binary.BigEndian.AppendUint32(nil, uint32(len(text)))) + text
}

// TestBadClients: the server says what each does wrong, and goes on.
func TestBadClients(t *testing.T) {
	sv := serve(t, &Server{Local: Local{GID: Auto, CPU: Auto}})
	hi := string(preamble())
	for name, c := range map[string]struct{ send, want string }{
		"another protocol": {"GET / HTTP/1.1\r\n\r\n", `another protocol: got "GET / HTTP/1.1\r\n"`},
		"perftest":         {"6.06\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", `another protocol: got "6.06`},
		"hangs up":         {"goverbs", "got 7 of 16 bytes: the peer has hung up"},
		"short garbage":    {"\x00\xff", "another protocol"},
		"nothing":          {"", "got 0 of 16 bytes: the peer has hung up"},
		"newer":            {magic + "\x00\x00\x00\x63", "version 99 of the protocol, this side version 6"},
		"no message":       {hi, "is gone: the peer has hung up"},
		"a huge message":   {hi + "\xff\xff\xff\xff", "a message of 4294967295 bytes, allowed: 1 to"},
		"an empty message": {hi + "\x00\x00\x00\x00", "a message of 0 bytes"},
		"not JSON":         {hi + frame("hello"), "a message that is not valid JSON"},
		"cut":              {hi + frame(`{"kind":"hello"}`)[:9], "unexpected EOF"},
		"another order":    {hi + frame(`{"kind":"start","size":1}`), `"start" instead of "hello"`},
		"too many":         {hi + strings.Repeat(frame(`{"kind":"ready"}`), 50), "does not keep to the order of messages"},
		"an error":         {hi + frame(`{"kind":"error","error":"out of \u001b[2Jorder"}`), `says: "out of \x1b[2Jorder"`},
		"no limits":        {hi + frame(`{"kind":"hello"}`), "does not contain the limits"},
	} {
		t.Run(name, func(t *testing.T) {
			sv.hears(t, c.send, !strings.HasSuffix(c.send, "hello\"}"), c.want)
		})
	}
}

// TestSilentClients: a client that connects and says nothing, or nothing more, is hung up on, and the
// log says why.
func TestSilentClients(t *testing.T) {
	usual := answerTime
	answerTime = 200 * time.Millisecond
	t.Cleanup(func() { answerTime = usual }) // when the server has ended
	sv := serve(t, &Server{Local: Local{GID: Auto, CPU: Auto}})
	hi := string(preamble())
	for _, c := range []struct{ name, send, want string }{
		{"before the preamble", "", "got 0 of 16 bytes: nothing came for 200ms"},
		{"within the preamble", hi[:13], "got 13 of 16 bytes: nothing came for 200ms"},
		{"after the preamble", hi, `has not sent "hello" for 200ms`},
		{"within a message", hi + frame(`{"kind":"hello"}`)[:9], `has not sent "hello" for 200ms`},
	} {
		t.Run(c.name, func(t *testing.T) {
			sv.hears(t, c.send, false, c.want)
		})
	}
}

// TestBadServers: the client says what is wrong with what it has reached.
func TestBadServers(t *testing.T) {
	for name, c := range map[string]struct {
		play func(net.Conn)
		want string
	}{
		"another protocol": {func(c net.Conn) { io.WriteString(c, "SSH-2.0-OpenSSH_9.2\r\n") }, `another protocol: got "SSH-2.0-OpenSSH_`},
		"hangs up":         {func(net.Conn) {}, "got 0 of 16 bytes"},
		"newer":            {func(c net.Conn) { io.WriteString(c, magic+"\x00\x00\x00\x07") }, "the peer speaks version 7 of the protocol, this side version 6"},
	} {
		t.Run(name, func(t *testing.T) {
			l := listen(t)
			go func() {
				if conn, err := l.Accept(); err == nil {
					io.ReadFull(conn, make([]byte, preambleLen))
					c.play(conn)
					conn.Close()
				}
			}()
			port := l.Addr().(*net.TCPAddr).Port
			cl := &Client{Config: Default(Send, Lat), Local: Local{GID: Auto, CPU: Auto}, Host: "127.0.0.1", Port: port}
			if _, err := cl.Run(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), l.Addr().String()) {
				t.Errorf("error is %v, want %q and the server's address", err, c.want)
			}
		})
	}
	l := listen(t)
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	cl := &Client{Config: Default(Send, Lat), Local: Local{GID: Auto, CPU: Auto}, Host: "127.0.0.1", Port: port}
	if _, err := cl.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "no perf server at 127.0.0.1:") {
		t.Errorf("nobody serves: %v", err)
	}
}

// TestPeerErrorFirst: an error that the peer reports, or its end, comes before the failure that it causes
// on this side, which waits a moment for it.
func TestPeerErrorFirst(t *testing.T) {
	said := &PeerError{Peer: "server", Text: "no memory"}
	for _, err := range []error{&rdmacm.EventError{Type: rdmacm.EventRejected, Status: 28}, &uverbs.WCError{}, syscall.ENOTCONN} {
		waits := 0
		for range 20 {
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Millisecond, func() { cancel(said) })
			if got := because(ctx, err); errors.Is(got, said) && errors.Is(got, err) {
				waits++
			}
		}
		if waits == 0 { // on a machine that is very busy now and then
			t.Errorf("%v: the peer is not heard", err)
		}
	}
}

// TestTakeBeforeEnd: an answer counts, although the peer has hung up since and both are known at once.
func TestTakeBeforeEnd(t *testing.T) {
	for range 100 {
		ctx, cancel := context.WithCancelCause(t.Context())
		c := &control{name: "server", inbox: make(chan received, 1)}
		c.inbox <- received{message: message{Kind: kindRails}}
		cancel(io.EOF)
		if m, err := c.take(ctx, time.Minute, kindRails); err != nil || m.Kind != kindRails {
			t.Fatalf("the answer is %q, %v", m.Kind, err)
		}
		if _, err := c.take(ctx, time.Minute, kindRails); err != io.EOF {
			t.Fatalf("after it: %v", err)
		}
	}
}
