package valkey

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/goverbs/goverbs/cm/internal/protocol"
	"github.com/goverbs/goverbs/cm/internal/streamtest"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

func TestMain(m *testing.M) { streamtest.Main(m, map[string]string{"rxe": "", "mlx5": "", "soft": ""}) }

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
	Network: Network, Depth: "RecvDepth", Odd: 8193, Wrong: wrongData,
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
	return Options{RecvBuffer: o.RecvBuffer, SendBuffer: o.SendBuffer, RecvDepth: o.Depth, SendDepth: o.SendDepth, Linger: o.Linger, Isolation: Isolation(o.Isolation)}
}

// wrongData is private data of other protocols, and what the error says.
var wrongData = map[string]streamtest.Wrong{
	"cm":      {Data: []byte("gv\x02\x01"), Say: "the protocol of cm.Conn and cm.Stream, not Valkey's"},
	"rsocket": {Data: append([]byte{1, 2, 1, 0x80}, make([]byte, 36)...), Say: "seems to speak rsocket"},
	"other":   {Data: append(make([]byte, 20), 9), Say: "which has no private data"},
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

// TestDevice: iWARP cannot speak the protocol, and a connection on a device that cannot fails before it makes anything there.
func TestDevice(t *testing.T) {
	iwarp := uverbs.DeviceInfo{Protocol: "iw"} // as the kernel has it
	if err := checkDevice(iwarp); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("on iWARP: %v, want ErrUnsupported", err)
	}
	l := newListener(t, Options{})
	o, err := Options{}.defaults("Dial")
	must(t, err)
	config, c := o.config(), new(conn)
	config.New = func() protocol.Wire { return c }
	config.Device = func(uverbs.DeviceInfo) error { return checkDevice(iwarp) }
	if _, err := protocol.Dial(t.Context(), l.Addr().String(), config); !errors.Is(err, errors.ErrUnsupported) || c.PD != nil || c.QP != nil {
		t.Errorf("Dial: %v, want ErrUnsupported; it has made a PD: %v, a QP: %v", err, c.PD != nil, c.QP != nil)
	}
}
