package rsocket

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/internal/protocol"
	"github.com/goverbs/goverbs/cm/internal/streamtest"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

func TestMain(m *testing.M) {
	streamtest.Main(m, map[string]string{"rxe": "", "mlx5": "", "siw": "all TestHalfOpen*: half-open requests\nall TestAddrShare: half-open requests\nall TestBusyPeer: retries of the device\nall TestRetries: retries of the device", "soft": ""})
}

// timeout bounds each step.
const timeout = streamtest.Timeout

// must fails the test on an error.
func must(t testing.TB, errs ...error) {
	t.Helper()
	streamtest.Must(t, errs...)
}

// newListener makes a listener on the first device, which is closed at the end of the test.
func newListener(t testing.TB, o Options) *Listener {
	t.Helper()
	testenv.Guest(t)
	l, err := Listen(t.Context(), testenv.TheRig().Addrs[0]+":0", ListenOptions{Options: o})
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	return l
}

// connect makes a connection.
func connect(l *Listener, o Options) (client, server net.Conn, err error) {
	return streamtest.Connect(l, func(ctx context.Context, address string) (net.Conn, error) { return Dial(ctx, address, o) })
}

// shared are the tests of every protocol.
var shared = &streamtest.Protocol{
	Network: Network, Depth: "Credits", Odd: 4097, Data: goodData, Wrong: wrongData(),
	Listen: func(ctx context.Context, address string, o streamtest.Options) (net.Listener, error) {
		return Listen(ctx, address, ListenOptions{
			Options: options(o), Backlog: o.Backlog, HalfOpen: o.HalfOpen, MaxConns: o.MaxConns, AddrShare: o.AddrShare, MaxMemory: o.MaxMemory, Refused: o.Refused,
		})
	},
	Dial: func(ctx context.Context, address string, o streamtest.Options) (net.Conn, error) {
		return Dial(ctx, address, options(o))
	},
	Memory: func(o streamtest.Options) (int64, error) { return options(o).MemoryPerConn() },
	Places: func(l net.Listener) *protocol.Listener { return l.(*Listener).l },
	Stream: func(c net.Conn) *protocol.Stream { return &c.(*Conn).c.Stream },
}

// options returns the package's options.
func options(o streamtest.Options) Options {
	mappings := 0
	if o.Depth > 0 {
		mappings = maxMappings
	}
	return Options{RecvBuffer: o.RecvBuffer, SendBuffer: o.SendBuffer, Credits: o.Depth, SendDepth: o.SendDepth, Mappings: mappings, Linger: o.Linger, Isolation: Isolation(o.Isolation)}
}

// goodData is the private data of a request that is valid.
var goodData = connData{credits: 384, table: segment{1 << 40, 7, 2}, buffer: segment{1 << 41, 8, 65536}}.encode()

// wrongData is private data that is not valid, and what the error says.
func wrongData() map[string]streamtest.Wrong {
	change := func(at int, to ...byte) []byte {
		b := bytes.Clone(goodData)
		copy(b[at:], to)
		return b
	}
	return map[string]streamtest.Wrong{
		"version":    {Data: change(0, 2), Say: "its private data has version 2, want 1"},
		"zeros":      {Data: make([]byte, connDataSize), Say: "its private data has version 0, want 1"},
		"no credits": {Data: change(2, 0, 0), Say: "gives 0 credits"},
		"no table":   {Data: change(20, 0, 0, 0, 0), Say: "table of buffers has 0 entries"},
		"long table": {Data: change(20, 1, 0, 0, 0), Say: "table of buffers has 16777216 entries"},
		"no buffer":  {Data: change(36, 0, 0, 0, 0), Say: "buffer has 0 bytes"},
		"high table": {Data: change(8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xf0), Say: "goes beyond the largest address"},
	}
}

// The tests that both protocols share; see package streamtest.

func TestConn(t *testing.T)              { shared.Conn(t) }
func TestLeaks(t *testing.T)             { shared.Leaks(t) }
func TestCopy(t *testing.T)              { shared.Copy(t) }
func TestAllocs(t *testing.T)            { shared.Allocs(t) }
func TestCloseDelivers(t *testing.T)     { shared.CloseDelivers(t) }
func TestLinger(t *testing.T)            { shared.Linger(t) }
func TestWriteWhileClosing(t *testing.T) { shared.WriteWhileClosing(t) }
func TestClose(t *testing.T)             { shared.Close(t) }
func TestHalfOpen(t *testing.T)          { shared.HalfOpen(t) }
func TestMaxConns(t *testing.T)          { shared.MaxConns(t) }
func TestMemoryPerConn(t *testing.T)     { shared.MemoryPerConn(t) }
func TestArguments(t *testing.T)         { shared.Arguments(t) }
func TestAddrShare(t *testing.T)         { shared.AddrShare(t) }
func TestHalfOpenTimeout(t *testing.T)   { shared.HalfOpenTimeout(t) }
func TestHalfOpenMemory(t *testing.T)    { shared.HalfOpenMemory(t) }
func TestWrongRequest(t *testing.T)      { shared.WrongRequest(t) }
func TestWrongAnswer(t *testing.T)       { shared.WrongAnswer(t) }
func TestCut(t *testing.T)               { shared.Cut(t) }

// TestMapped: each side writes into memory of the other that is mapped at an offset, among data.
func TestMapped(t *testing.T) {
	l := newListener(t, Options{Mappings: 2})
	client, server, err := connect(l, Options{Mappings: 1})
	must(t, err)
	end := time.Now().Add(timeout)
	must(t, client.SetDeadline(end), server.SetDeadline(end))
	a, b := client.(*Conn), server.(*Conn)
	tell := func(from, to *Conn) { // what from has done before is done
		t.Helper()
		_, err := from.Write([]byte("done"))
		must(t, err)
		got := make([]byte, 4)
		_, err = io.ReadFull(to, got)
		must(t, err)
	}
	const size, at = 300_000, 1000
	first, err := a.Map(size, at)
	must(t, err)
	second, err := a.Map(8, at+size)
	must(t, err)
	if _, err := a.Map(8, 0); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a third mapping, where there is room for two: %v", err)
	}
	back, err := b.Map(100, 0)
	must(t, err)
	tell(a, b)
	tell(b, a)

	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i * i >> 5)
	}
	n, err := b.WriteAt(data, at+8) // over both mappings
	must(t, err)
	m, err := a.WriteAt(data[:100], 0)
	must(t, err)
	if n != size || m != 100 {
		t.Errorf("%d and %d bytes are written", n, m)
	}
	tell(b, a)
	tell(a, b)
	if !bytes.Equal(first.Bytes()[8:], data[:size-8]) || !bytes.Equal(second.Bytes(), data[size-8:]) || !bytes.Equal(back.Bytes(), data[:100]) {
		t.Error("other bytes arrive than were written")
	}
	for _, offset := range []int64{at - 1, at + size + 8} {
		if n, err := b.WriteAt(data[:2], offset); n != 0 || !errors.Is(err, syscall.ENXIO) {
			t.Errorf("%d bytes are written at %d, where nothing is mapped: %v", n, offset, err)
		}
	}
	if n, err := b.WriteAt(data[:10], at+size+6); n != 2 || !errors.Is(err, syscall.ENXIO) {
		t.Errorf("%d bytes are written at the end of a mapping: %v", n, err)
	}
	var arg *uverbs.ArgError
	if _, err := b.WriteAt(data, -1); !errors.As(err, &arg) || arg.Field != "offset" {
		t.Errorf("a negative offset: %v", err)
	}
	if _, err := Dial(t.Context(), l.Addr().String(), Options{Mappings: maxMappings + 1}); !errors.As(err, &arg) || arg.Field != "Mappings" {
		t.Errorf("more mappings than an option may allow: %v", err)
	}
	if _, err := b.Map(0, 0); !errors.As(err, &arg) || arg.Field != "size" {
		t.Errorf("a mapping of 0 bytes: %v", err)
	}
	tell(b, a)
	must(t, second.Close(), second.Close())
	second, err = a.Map(16, 0) // there is room again
	must(t, err)
	tell(a, b)
	_, err = b.WriteAt(data[:16], 0)
	must(t, err)
	tell(b, a)
	if !bytes.Equal(second.Bytes(), data[:16]) {
		t.Error("other bytes arrive in the mapping that replaces another one")
	}
	for made := 4; ; made++ { // until half of the credits are used up
		must(t, second.Close())
		if second, err = a.Map(16, 0); err != nil {
			if made != 384/2+1 || !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("mapping %d: %v", made, err)
			}
			break
		}
	}
	tell(a, b)
	must(t, client.Close(), server.Close(), first.Close())
}
