package valkey

import (
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/cm/internal/protocol"
	"github.com/goverbs/goverbs/cm/rsocket"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// FuzzParseCommand: any bytes give an error, or a command that encodes to the same, without what has no
// meaning.
func FuzzParseCommand(f *testing.F) {
	for op := range registerXferMemory + 2 {
		b := make([]byte, commandSize)
		command{op: op, selects: 3, features: 1 << 40, buffer: segment{1 << 41, 65536, 8}}.put(b)
		f.Add(b)
	}
	f.Add([]byte("PING\r\n"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := parseCommand(b)
		if err != nil {
			if !errors.Is(err, syscall.EPROTO) {
				t.Errorf("%v does not match EPROTO", err)
			}
			return
		}
		var got [commandSize]byte
		c.put(got[:])
		used := map[opcode][]int{getServerFeature: {0, 4, 24, 32}, setClientFeature: {0, 4, 24, 32}, keepalive: {0, 2}, registerXferMemory: {0, 2, 16, 32}}[c.op]
		for i := range got {
			want := byte(0)
			for u := 0; u < len(used); u += 2 {
				if i >= used[u] && i < used[u+1] {
					want = b[i]
				}
			}
			if got[i] != want {
				t.Fatalf("% x encodes to % x", b, got)
			}
		}
		if again, err := parseCommand(got[:]); err != nil || again != c {
			t.Errorf("%+v is read again as %+v, %v", c, again, err)
		}
	})
}

// TestBytes: commands are on the wire as Valkey's documentation says.
func TestBytes(t *testing.T) {
	for want, c := range map[string]command{
		"\x00\x00\x00\x05" + strings.Repeat("\x00", 20) + "\x00\x00\x00\x00\x00\x00\x00\x09":                         {op: getServerFeature, selects: 5, features: 9},
		"\x00\x02" + strings.Repeat("\x00", 30):                                                                      {op: keepalive},
		"\x00\x03" + strings.Repeat("\x00", 14) + "\x00\x00\x12\x34\x56\x78\x9a\xbc\x00\x10\x00\x00\x00\x00\x0d\xef": {op: registerXferMemory, buffer: segment{0x123456789abc, 1 << 20, 0xdef}},
	} {
		var b [commandSize]byte
		c.put(b[:])
		if string(b[:]) != want {
			t.Errorf("%s is % x, want % x", c.op, b, want)
		}
	}
}

// TestOtherProtocol: a peer that speaks another protocol, on each side.
func TestOtherProtocol(t *testing.T) {
	testenv.Guest(t)
	host := testenv.TheRig().Addrs[0]
	ofCM, err := cm.Listen(t.Context(), host+":0", cm.ListenOptions{})
	must(t, err)
	defer ofCM.Close()
	ofRsocket, err := rsocket.Listen(t.Context(), host+":0", rsocket.ListenOptions{})
	must(t, err)
	defer ofRsocket.Close()
	for addr, say := range map[net.Addr]string{ofCM.Addr(): "the protocol of cm.Conn and cm.Stream, not Valkey's", ofRsocket.Addr(): "this port speaks rsocket"} {
		_, err := DialContext(t.Context(), "tcp", addr.String())
		if !errors.Is(err, syscall.ECONNREFUSED) || !errors.Is(err, syscall.EPROTO) || !strings.Contains(err.Error(), say) {
			t.Errorf("a listener of another package: %v, want %q", err, say)
		}
	}
	ours := newListener(t, Options{})
	for name, dial := range map[string]func(address string) error{
		"a cm.Conn": func(address string) error {
			_, err := cm.Dial(t.Context(), address, cm.DialOptions{})
			return err
		},
		"a cm.Stream": func(address string) error {
			_, err := new(cm.Dialer).DialContext(t.Context(), "tcp", address)
			return err
		},
		"a rsocket.Conn": func(address string) error {
			_, err := rsocket.Dial(t.Context(), address, rsocket.Options{})
			return err
		},
	} {
		if err := dial(ours.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), "this port speaks Valkey's protocol") {
			t.Errorf("our listener, from %s: %v", name, err)
		}
	}
	shared.CheckNext(t, ours)
}

// pairWith connects a hostile peer with an honest one and lets it act. The honest side then reads until
// an error, which is returned.
func pairWith(t *testing.T, l *Listener, act func(c *conn)) error {
	t.Helper()
	client, server, err := connect(l, Options{})
	must(t, err)
	hostile := client.(*Conn).c
	hostile.Mu.Lock()
	act(hostile)
	hostile.Mu.Unlock()
	must(t, server.SetDeadline(time.Now().Add(timeout)))
	_, err = io.Copy(io.Discard, struct{ io.Reader }{server})
	hostile.Mu.Lock()
	hostile.Fail(errors.New("the test is over"))
	hostile.Mu.Unlock()
	client.Close()
	server.Close()
	return err
}

// TestHostile: what a peer does ends its connection with an error that says so, and the listener goes
// on.
func TestHostile(t *testing.T) {
	l := newListener(t, Options{})
	send := func(cmds ...command) func(*conn) {
		return func(c *conn) {
			for _, cmd := range cmds {
				c.sendCommand(cmd)
			}
		}
	}
	announce := func(b segment) command { return command{op: registerXferMemory, buffer: b} }
	for _, s := range []struct {
		name string
		act  func(c *conn)
		say  string // "" for io.EOF
	}{
		{"more data than was written", func(c *conn) {
			must(t, c.Wait(&c.Writer, c.canWrite))
			c.writeWrong(10, 11)
		}, "says that it has written 11 bytes of data, and its WRITE has 10"},
		{"an unknown command", send(command{op: 77}), "sent command 77, which is not known"},
		{"a short command", func(c *conn) { c.sendBytes(6) }, "a command of 6 bytes, want 32"},
		{"features", send(command{op: setClientFeature, features: 6}), "wants to use the features 0x6"},
		{"a second buffer", send(announce(segment{1 << 40, 4096, 7})), "a buffer while"},
		{"it is gone", func(c *conn) { c.ID.Disconnect() }, ""},
		{"questions", send(command{op: getServerFeature, selects: 3}, command{op: setClientFeature}, command{op: keepalive}), ""},
	} {
		t.Run(s.name, func(t *testing.T) {
			err := pairWith(t, l, s.act)
			if s.say == "" {
				if err != nil && !errors.Is(err, syscall.ECONNRESET) {
					t.Error(err)
				}
			} else if !errors.Is(err, syscall.EPROTO) || !strings.Contains(err.Error(), s.say) {
				t.Errorf("%v, want %q", err, s.say)
			}
		})
	}
	shared.CheckNext(t, l)
}

// writeWrong writes n bytes and says that there are others.
func (c *conn) writeWrong(n int, says uint32) {
	c.Room -= n
	c.Slots--
	to := c.advance(n)
	b := c.QP.BeginSend()
	b.WriteImm(protocol.IDData|uint64(n), uverbs.SendSignaled, to.addr, to.key, says)
	b.SGE(c.SendMem.MR.SGE(0, n))
	c.Post(b)
}

// sendBytes sends n bytes that are no command.
func (c *conn) sendBytes(n int) {
	c.ControlsOut++
	b := c.QP.BeginSend()
	b.Send(protocol.IDControl, uverbs.SendSignaled)
	b.SGE(c.SendMem.MR.SGE(0, n))
	c.Post(b)
}

// TestForgedBuffer: a peer announces a buffer that does not exist.
func TestForgedBuffer(t *testing.T) {
	l := newListener(t, Options{})
	client, server, err := connect(l, Options{})
	must(t, err)
	honest, hostile := server.(*Conn).c, client.(*Conn).c
	honest.Mu.Lock()
	must(t, honest.Wait(&honest.Writer, honest.canWrite))
	honest.remote.addr += 1 << 30
	honest.Mu.Unlock()
	must(t, server.SetDeadline(time.Now().Add(timeout)))
	hostile.Mu.Lock() // so that it does not disconnect as soon as its QP fails
	_, err = server.Write([]byte("into nothing"))
	for err == nil {
		_, err = server.Write(make([]byte, 1000))
	}
	if !errors.Is(err, syscall.EPROTO) || !strings.Contains(err.Error(), "does not let this side write into the buffer that it has announced") {
		t.Errorf("write into a buffer that does not exist: %v", err)
	}
	hostile.Mu.Unlock()
	hostile.Close()
	honest.Close()
}

// TestIsolation: a peer that knows address and key of another connection's buffer writes into that only if
// the two share a PD. Its own connection ends otherwise, and the other does not notice.
func TestIsolation(t *testing.T) {
	for _, isolation := range []Isolation{ConnPD, SharedPD} {
		t.Run(isolation.String(), func(t *testing.T) {
			l := newListener(t, Options{Isolation: isolation})
			client, server, err := connect(l, Options{})
			must(t, err)
			honest := server.(*Conn).c
			b := honest.recvBuf
			end := b[honest.RecvBuffer-6 : honest.RecvBuffer] // no data gets that far
			buffer := segment{honest.RecvMem.MR.Addr() + uint64(honest.RecvBuffer) - 6, 6, honest.RecvMem.MR.RKey()}
			err = pairWith(t, l, func(c *conn) {
				c.Slots--
				copy(c.SendMem.MR.Bytes(), "attack")
				b := c.QP.BeginSend()
				b.Write(protocol.IDData, uverbs.SendSignaled, buffer.addr, buffer.key)
				b.SGE(c.SendMem.MR.SGE(0, 6))
				c.Post(b)
				for c.Err == nil && c.Slots < c.SendDepth {
					c.Poll()
				}
				c.ID.Disconnect()
			})
			reached := string(end) == "attack"
			if want := isolation == SharedPD; reached != want {
				t.Errorf("the buffer of another connection was written: %v, want %v; %v", reached, want, err)
			}
			_, err = client.Write([]byte("still here"))
			must(t, err, client.Close(), server.SetDeadline(time.Now().Add(timeout)))
			got, err := io.ReadAll(server)
			must(t, err, server.Close())
			if string(got) != "still here" {
				t.Errorf("%q arrives", got)
			}
		})
	}
}
