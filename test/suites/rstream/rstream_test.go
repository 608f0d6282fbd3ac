package rstream

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/rsocket"
	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

func TestMain(m *testing.M) {
	os.Exit(testenv.MainFor(m, map[string]string{"rxe": "", "mlx5": "", "siw": ""}))
}

// must fails a test on an error.
var must = testenv.Must

// listen makes a listener on the address of the first device.
func listen(t *testing.T, port string, o rsocket.Options) *rsocket.Listener {
	t.Helper()
	testenv.Guest(t)
	l, err := rsocket.Listen(t.Context(), net.JoinHostPort(address(), port), rsocket.ListenOptions{Options: o})
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	return l
}

// address is the address of the first device.
func address() string { return testenv.TheRig().Addrs[0] }

// accept waits for a connection.
func accept(t *testing.T, l net.Listener) net.Conn {
	t.Helper()
	c, err := l.Accept()
	must(t, err, c.SetDeadline(time.Now().Add(program.Patience)))
	t.Cleanup(func() { c.Close() })
	return c
}

// dial connects to a program that is about to listen.
func dial(t *testing.T, server *program.Program, port string, o rsocket.Options) (c net.Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), program.Patience)
	defer cancel()
	server.Until(t, "accepted a connection", func() (ok bool) {
		conn, err := rsocket.Dial(ctx, net.JoinHostPort(address(), port), o)
		if err == nil {
			c = conn
		}
		return err == nil
	})
	must(t, c.SetDeadline(time.Now().Add(program.Patience)))
	t.Cleanup(func() { c.Close() })
	return c
}

// transfer is what a program of rstream does with its peer: it sends count messages and receives as
// many, some times over.
type transfer struct {
	size, count, iterations int
	verify                  bool // each byte is the one before plus 1
	sent, received          byte // the next ones
	buf                     []byte
}

// send sends n bytes.
func (r *transfer) send(c net.Conn, n int) error {
	p := r.memory(n)
	if r.verify {
		for i := range p {
			p[i] = r.sent
			r.sent++
		}
	}
	_, err := c.Write(p)
	return err
}

// receive receives n bytes.
func (r *transfer) receive(c net.Conn, n int) error {
	p := r.memory(n)
	if _, err := io.ReadFull(c, p); err != nil || !r.verify {
		return err
	}
	for i, b := range p {
		if b != r.received {
			return fmt.Errorf("byte %d of %d is %d, want %d", i, n, b, r.received)
		}
		r.received++
	}
	return nil
}

// memory returns n bytes; every call returns the same memory.
func (r *transfer) memory(n int) []byte {
	if len(r.buf) < n {
		r.buf = make([]byte, n)
	}
	return r.buf[:n]
}

// run plays one side.
func (r transfer) run(c net.Conn, client bool) error {
	const hello = 16
	first, second := r.receive, r.send
	if client {
		first, second = r.send, r.receive
	}
	if err := errors.Join(first(c, hello), second(c, hello)); err != nil {
		return err
	}
	for range r.iterations {
		for _, do := range []func(net.Conn, int) error{first, second} {
			for range r.count {
				if err := do(c, r.size); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// pair is a run of rstream.
type pair struct {
	transfer
	options string // of rstream, besides those of the transfer
	o       rsocket.Options
}

// name returns the options of rstream.
func (p *pair) name() string {
	s := fmt.Sprintf("-S %d -C %d -I %d", p.size, p.count, p.iterations)
	if p.verify {
		s += " -T v"
	}
	return strings.TrimSpace(s + " " + p.options)
}

// pairs are runs with all options of rstream that concern rsockets.
var pairs = []pair{
	{transfer: transfer{size: 64, count: 1, iterations: 200, verify: true}},
	{transfer: transfer{size: 64, count: 1, iterations: 200, verify: true}, options: "-T a"},
	{transfer: transfer{size: 1, count: 500, iterations: 2, verify: true}, options: "-T b"},
	{transfer: transfer{size: 3000, count: 100, iterations: 3, verify: true}, options: "-T n -T r"},
	{transfer: transfer{size: 65536, count: 50, iterations: 1, verify: true}, options: "-T a -B 65536"},
	{transfer: transfer{size: 1000000, count: 5, iterations: 2, verify: true}, options: "-T b -i 0"},
	{transfer: transfer{size: 100000, count: 10, iterations: 2, verify: true}, options: "-B 9000 -f ip"},
	{transfer: transfer{size: 5000, count: 300, iterations: 1, verify: true}, options: "-T b", o: rsocket.Options{RecvBuffer: 4096, SendBuffer: 4096, Credits: 16, SendDepth: 16}},
	{transfer: transfer{size: 5000, count: 10, iterations: 1}, options: "-k 1 -i 200"},
}

// TestRstreamServer: rstream's server and our client.
func TestRstreamServer(t *testing.T) {
	testenv.Guest(t)
	for i, p := range pairs {
		t.Run(p.name(), func(t *testing.T) {
			port := strconv.Itoa(7500 + i)
			server := program.Launch(t, append([]string{"rstream", "-b", address(), "-p", port}, strings.Fields(p.name())...)...)
			c := dial(t, server, port, p.o)
			must(t, p.transfer.run(c, true), c.Close())
			if out := server.Wait(t); !strings.Contains(out, "custom") {
				t.Errorf("rstream has not finished: %s", out)
			}
		})
	}
}

// TestRstreamClient: rstream's client and our server.
func TestRstreamClient(t *testing.T) {
	testenv.Guest(t)
	for i, p := range pairs {
		t.Run(p.name(), func(t *testing.T) {
			port := strconv.Itoa(7600 + i)
			l := listen(t, port, p.o)
			client := program.Launch(t, append([]string{"rstream", "-s", address(), "-p", port}, strings.Fields(p.name())...)...)
			c := accept(t, l)
			must(t, p.transfer.run(c, false))
			if n, err := c.Read(make([]byte, 1)); err != io.EOF { // rshutdown
				t.Errorf("after the last byte: %d bytes, %v", n, err)
			}
			must(t, c.Close())
			if out := client.Wait(t); !strings.Contains(out, "custom") {
				t.Errorf("rstream has not finished: %s", out)
			}
		})
	}
}

// Commands of rcopy. A header has the version (u8), the command, its length (u16), a value (u32)
// and a number (u64), in the byte order of the host.
const (
	rcopyOpen, rcopyClose, rcopyWrite = 1, 2, 3

	rcopyAnswer = 0x80
	rcopyHeader = 16
)

// rcopyMessage returns a message of rcopy.
func rcopyMessage(command byte, value uint32, rest []byte) []byte {
	b := make([]byte, rcopyHeader)
	b[1] = command
	binary.LittleEndian.PutUint16(b[2:], uint16(rcopyHeader+len(rest)))
	binary.LittleEndian.PutUint32(b[4:], value)
	return append(b, rest...)
}

// randomFile makes a file.
func randomFile(t *testing.T, size int) (path string, data []byte) {
	t.Helper()
	data = make([]byte, size)
	for i := range data {
		data[i] = byte(i * i >> 7)
	}
	path = filepath.Join(t.TempDir(), "source")
	must(t, os.WriteFile(path, data, 0o644))
	return path, data
}

// TestRcopyClient: rcopy copies a file to our server.
func TestRcopyClient(t *testing.T) {
	path, data := randomFile(t, 3_000_001)
	l := listen(t, "7427", rsocket.Options{})
	client := program.Launch(t, "rcopy", path, address()+":/copy")
	c := accept(t, l)
	next := func(command byte) []byte {
		h := make([]byte, rcopyHeader)
		_, err := io.ReadFull(c, h)
		must(t, err)
		rest := make([]byte, int(binary.LittleEndian.Uint16(h[2:]))-rcopyHeader)
		_, err = io.ReadFull(c, rest)
		must(t, err)
		if h[1] != command {
			t.Fatalf("command %d, want %d", h[1], command)
		}
		return rest
	}
	answer := func(command byte) {
		_, err := c.Write(rcopyMessage(command|rcopyAnswer, 0, nil))
		must(t, err)
	}
	if name, _, _ := strings.Cut(string(next(rcopyOpen)), "\x00"); name != "/copy" {
		t.Errorf("rcopy opens %q", name)
	}
	answer(rcopyOpen)
	got := make([]byte, binary.LittleEndian.Uint64(next(rcopyWrite)))
	_, err := io.ReadFull(c, got)
	must(t, err)
	if !bytes.Equal(got, data) {
		t.Error("another file arrives")
	}
	answer(rcopyWrite)
	next(rcopyClose)
	answer(rcopyClose)
	client.Wait(t)
}

// TestRcopyServer: our client copies a file to rcopy.
func TestRcopyServer(t *testing.T) {
	testenv.Guest(t)
	_, data := randomFile(t, 3_000_001)
	copied := filepath.Join(t.TempDir(), "copy")
	const port = "7428"
	server := program.Launch(t, "rcopy", "-p", port)
	c := dial(t, server, port, rsocket.Options{})
	call := func(command byte, value uint32, rest, data []byte) {
		_, err := c.Write(rcopyMessage(command, value, rest))
		if err == nil && len(data) > 0 {
			_, err = c.Write(data)
		}
		got := make([]byte, rcopyHeader)
		if err == nil {
			_, err = io.ReadFull(c, got)
		}
		must(t, err)
		// After a write, rcopy answers with the number of bytes of the length, which is no error.
		if got[1] != command|rcopyAnswer {
			t.Fatalf("the answer to command %d is % x", command, got)
		}
	}
	call(rcopyOpen, 0o644, append([]byte(copied), 0), nil)
	call(rcopyWrite, 0, binary.LittleEndian.AppendUint64(nil, uint64(len(data))), data)
	call(rcopyClose, 0, nil, nil)
	got, err := os.ReadFile(copied)
	must(t, err)
	if !bytes.Equal(got, data) {
		t.Errorf("another file arrives, of %d bytes", len(got))
	}
	must(t, c.Close())
}
