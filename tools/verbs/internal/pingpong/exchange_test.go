package pingpong

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// endpoint is a peer's, and hello is what ibv_rc_pingpong sends for it.
var endpoint = uverbs.Endpoint{LID: 0x12, QPN: 0x345678, PSN: 0x9abcde, GID: ib.GID{10: 0xff, 11: 0xff, 12: 10, 13: 1, 14: 0, 15: 2}}

const hello = "0012:345678:9abcde:00000000000000000000ffff0a010002\x00"

func TestHello(t *testing.T) {
	if got := string(encodeHello(endpoint)); got != hello {
		t.Errorf("encoded %q, want %q", got, hello)
	}
	got, err := decodeHello([]byte(hello))
	if err != nil || got != endpoint {
		t.Errorf("decoded %+v, %v, want %+v", got, err, endpoint)
	}
	if len(hello) != 52 {
		t.Errorf("the message has %d bytes, ibv_rc_pingpong's has 52", len(hello))
	}
}

func TestHelloBad(t *testing.T) {
	for _, s := range []string{
		"",
		strings.ToUpper(hello),
		hello[:len(hello)-1] + "0",
		strings.Replace(hello, ":", " ", 1),
		strings.Replace(hello, "9abcde", "9abcdg", 1),
		"-" + hello[1:],
		hello + "x",
	} {
		if e, err := decodeHello([]byte(s)); err == nil {
			t.Errorf("%q is taken for %+v", s, e)
		} else if !strings.Contains(err.Error(), "another protocol") {
			t.Errorf("%q: %v does not say what was expected", s, err)
		}
	}
}

// TestHelloValues: a number that no queue pair can have is refused by name, value and range.
func TestHelloValues(t *testing.T) {
	const zero = "00000000000000000000000000000000\x00"
	for text, want := range map[string]string{
		"0000:000002:000000:00000000000000000000ffff0a010002\x00": "",
		"bfff:ffffff:ffffff:" + zero:                              "",
		"0001:000000:000000:" + zero:                              "the peer's QPN is 0x0, allowed: 0x2 to 0xffffff",
		"0001:000001:000000:" + zero:                              "the peer's QPN is 0x1, allowed: 0x2 to 0xffffff",
		"c000:000002:000000:" + zero:                              "the peer's LID is 0xc000, allowed: 0 to 0xbfff",
		"ffff:000002:000000:" + zero:                              "the peer's LID is 0xffff, allowed: 0 to 0xbfff",
		"0000:000002:000000:" + zero:                              "the peer's LID and GID are both 0",
		"0000:000002:000000:ff0e0000000000000000000000000001\x00": "the peer's GID is ff0e",
		"0000:000002:000000:00000000000000000000ffffe0000001\x00": "the peer's GID is ",
	} {
		_, err := decodeHello([]byte(text))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// FuzzHello: what is taken for an endpoint is one that a queue pair can have, and was encoded so.
func FuzzHello(f *testing.F) {
	f.Add([]byte(hello))
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	f.Add([]byte("ffff:000001:000000:ff000000000000000000000000000000\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := decodeHello(b)
		if err != nil {
			return
		}
		if !bytes.Equal(encodeHello(e), b) {
			t.Errorf("%q decodes to %+v, which encodes to %q", b, e, encodeHello(e))
		}
		if e.QPN < 2 || e.QPN >= 1<<24 || e.PSN >= 1<<24 || e.LID >= 0xc000 || e.GID[0] == 0xff || e.LID == 0 && e.GID.IsZero() {
			t.Errorf("%q decodes to %+v", b, e)
		}
	})
}

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

// answer accepts one connection and plays the peer on it.
func answer(l net.Listener, play func(c net.Conn)) {
	go func() {
		c, err := l.Accept()
		if err == nil {
			play(c)
			c.Close()
		}
	}()
}

func TestExchange(t *testing.T) {
	addresses := func(n int, first uint32) (all []address) {
		for i := range uint32(n) {
			a := address{Endpoint: endpoint}
			a.QPN = first + i
			all = append(all, a)
		}
		return all
	}
	xrc := func(first uint32) []address {
		a := addresses(1, first)
		a[0].sendQPN, a[0].srqn = first+1, first+2
		return a
	}
	for name, c := range map[string]struct {
		form           exchangeForm
		client, server []address
	}{
		"one":       {oneForm, addresses(1, 7), addresses(1, 8)},
		"some":      {manyForm(3, srqQPs), addresses(3, 100), addresses(3, 200)},
		"very many": {manyForm(srqQPs-1, srqQPs), addresses(srqQPs-1, 1000), addresses(srqQPs-1, 2000)},
		"XRC":       {xrcForm, xrc(10), xrc(20)},
	} {
		t.Run(name, func(t *testing.T) { exchange(t, c.form, c.client, c.server) })
	}
}

// isOpen checks that a side gets its TCP connection, while that is open.
func isOpen(c net.Conn) error { return c.SetDeadline(time.Now().Add(exchangeTimeout)) }

// exchange has two sides exchange addresses, and say so in the end if the connection stays.
func exchange(t *testing.T, form exchangeForm, client, server []address) {
	l := listen(t)
	type end struct {
		remote []address
		err    error
	}
	ended := make(chan end, 1)
	go func() {
		var connected []address
		remote, c, err := acceptExchange(t.Context(), l, io.Discard, form, func(c net.Conn, remote []address) ([]address, error) {
			connected = remote
			return server, isOpen(c)
		})
		if !slices.Equal(connected, remote) {
			err = errors.Join(err, errors.New("connect was called with other addresses"))
		}
		if c != nil {
			err = errors.Join(err, sayEnd(c), c.Close())
		}
		ended <- end{remote, err}
	}()
	got, c, err := dialExchange(t.Context(), l.Addr().String(), form, func(c net.Conn) ([]address, error) { return client, isOpen(c) })
	if err != nil || !slices.Equal(got, server) || (c != nil) != form.stays {
		t.Errorf("the client got %+v, %v, want %+v, and a connection %v", got, err, server, c)
	}
	if c != nil {
		err = errors.Join(sayEnd(c), c.Close())
	}
	if e := <-ended; e.err != nil || err != nil || !slices.Equal(e.remote, client) {
		t.Errorf("the server got %+v, %v, want %+v; the client ended with %v", e.remote, e.err, client, err)
	}
}

// TestManyHellos: both sides must have the same number of queue pairs.
func TestManyHellos(t *testing.T) {
	form := manyForm(2, 4)
	text := func(n int) []byte {
		return []byte(strings.Repeat(hello, n) + strings.Repeat(string(encodeHello(uverbs.Endpoint{})), 4-n))
	}
	if all, err := form.decode(text(2)); err != nil || len(all) != 2 || all[1].Endpoint != endpoint {
		t.Errorf("%+v, %v", all, err)
	}
	for n, want := range map[int]string{0: "QPN is 0x0", 1: "has 1 queue pairs, expected 2", 3: "more than 2 queue pairs", 4: "more than 2 queue pairs"} {
		if _, err := form.decode(text(n)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d queue pairs: %v, want %q", n, err, want)
		}
	}
}

// xrcHello is what ibv_xsrq_pingpong sends.
const xrcHello = "0000:000046:000047:9a8b7c:000001:00000000000000000000ffff0a010001\x00"

func TestXRCHello(t *testing.T) {
	a, err := decodeXRCHello([]byte(xrcHello))
	if err != nil || a.QPN != 0x46 || a.sendQPN != 0x47 || a.PSN != 0x9a8b7c || a.srqn != 1 || a.GID.Addr().Unmap().String() != "10.1.0.1" {
		t.Errorf("%+v, %v", a, err)
	}
	if got := string(encodeXRCHello(a)); got != xrcHello {
		t.Errorf("it is encoded as %q, want %q", got, xrcHello)
	}
	for text, want := range map[string]string{
		strings.Replace(xrcHello, "000046", "000000", 1): "QPN is 0x0",
		strings.Replace(xrcHello, "000047", "000001", 1): "QPN is 0x1",
		hello: "another protocol",
		strings.Replace(xrcHello, "\x00", " ", 1): "another protocol",
	} {
		if _, err := decodeXRCHello([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// FuzzXRCHello: what is taken for an address was encoded so.
func FuzzXRCHello(f *testing.F) {
	f.Add([]byte(xrcHello))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := decodeXRCHello(b)
		if err != nil {
			return
		}
		if !bytes.Equal(encodeXRCHello(a), b) {
			t.Errorf("%q decodes to %+v, which encodes to %q", b, a, encodeXRCHello(a))
		}
	})
}

func TestDialBad(t *testing.T) {
	closed := listen(t)
	closed.Close()
	for name, c := range map[string]struct {
		addr string
		play func(c net.Conn)
		want string
	}{
		"nobody listens": {addr: closed.Addr().String(), want: "no pingpong server at " + closed.Addr().String()},
		"other protocol": {play: func(c net.Conn) { io.WriteString(c, strings.Repeat("SSH-2.0 ", 10)) }, want: "another protocol"},
		"hangs up":       {play: func(c net.Conn) { io.WriteString(c, hello[:20]) }, want: "got 20 of 52 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			addr := c.addr
			if addr == "" {
				l := listen(t)
				addr = l.Addr().String()
				answer(l, func(conn net.Conn) {
					io.ReadFull(conn, make([]byte, helloLen))
					c.play(conn)
				})
			}
			_, _, err := dialExchange(t.Context(), addr, oneForm, func(net.Conn) ([]address, error) { return []address{{Endpoint: endpoint}}, nil })
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), addr) {
				t.Errorf("error is %v, want %q and %s in it", err, c.want, addr)
			}
		})
	}
}

func TestAcceptBad(t *testing.T) {
	refused := errors.New("refused")
	for name, c := range map[string]struct {
		send    string
		connect error
		want    string
	}{
		"cannot connect": {send: hello, connect: refused, want: "refused"},
		"no done":        {send: hello, want: "did not confirm"},
	} {
		t.Run(name, func(t *testing.T) {
			l := listen(t)
			go func() {
				conn, err := net.Dial("tcp", l.Addr().String())
				if err == nil {
					io.WriteString(conn, c.send)
					conn.(*net.TCPConn).CloseWrite()
					io.Copy(io.Discard, conn)
					conn.Close()
				}
			}()
			_, _, err := acceptExchange(t.Context(), l, io.Discard, oneForm, func(net.Conn, []address) ([]address, error) {
				return []address{{Endpoint: endpoint}}, c.connect
			})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestAcceptCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	l := listen(t)
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, _, err := acceptExchange(ctx, l, io.Discard, oneForm, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v, want the context's", err)
	}
}
