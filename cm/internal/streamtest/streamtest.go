// Package streamtest has the tests that the protocols over package protocol share. Their packages run each of them.
package streamtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/internal/protocol"
	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/test/softrig"
	"github.com/goverbs/goverbs/test/testenv"
)

// Timeout bounds each step.
const Timeout = 20 * time.Second

// Options are the options of connections and listeners that the protocols have in common.
type Options struct {
	RecvBuffer, SendBuffer, Depth, SendDepth int // Depth is how many messages may arrive before they are handled.

	Linger    time.Duration
	Isolation uint8

	Backlog, HalfOpen, MaxConns, AddrShare int
	MaxMemory                              int64

	Refused func(remote rdmacm.Addr, err error)
}

// Protocol is a protocol under test.
type Protocol struct {
	Network string
	Depth   string                                                                     // Depth is the name of the option.
	Odd     int                                                                        // Odd is a small, odd size of RecvBuffer.
	Data    []byte                                                                     // Data is the private data of a request that is valid.
	Wrong   map[string]Wrong                                                           // Wrong is private data that is not.
	Listen  func(ctx context.Context, address string, o Options) (net.Listener, error) // Listen calls the package's.
	Dial    func(ctx context.Context, address string, o Options) (net.Conn, error)     // Dial calls the package's.
	Memory  func(o Options) (int64, error)                                             // Memory calls MemoryPerConn.
	Places  func(net.Listener) *protocol.Listener                                      // Places returns what is common.
	Stream  func(net.Conn) *protocol.Stream                                            // Stream returns what is common.
}

// Wrong is private data that is not valid, and what the error says.
type Wrong struct {
	Data []byte
	Say  string
}

// Main runs the tests, on software devices if the rig has such. See [testenv.MainFor] for the lists.
func Main(m *testing.M, lists map[string]string) {
	if testenv.TheRig().Soft {
		if _, err := softrig.Make(); err != nil {
			panic(fmt.Sprint("software devices: ", err))
		}
	}
	os.Exit(testenv.MainFor(m, lists))
}

// Must fails the test on an error.
func Must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// Listener makes a listener on the first device, which is closed at the end of the test.
func (p *Protocol) Listener(t testing.TB, o Options) net.Listener {
	t.Helper()
	testenv.Guest(t)
	if o.Refused == nil {
		o.Refused = func(from rdmacm.Addr, err error) { t.Logf("the listener refuses %v: %v", from, err) }
	}
	l, err := p.Listen(t.Context(), testenv.TheRig().Addrs[0]+":0", o)
	Must(t, err)
	t.Cleanup(func() { Must(t, l.Close()) })
	return l
}

// Connect makes a connection.
func (p *Protocol) Connect(l net.Listener, o Options) (client, server net.Conn, err error) {
	return Connect(l, func(ctx context.Context, address string) (net.Conn, error) { return p.Dial(ctx, address, o) })
}

// Connect makes a connection with a function. If the listener gives the connection up after its peer has completed
// it, Accept returns nothing; Connect closes the listener then, after a time.
func Connect(l net.Listener, dial func(ctx context.Context, address string) (net.Conn, error)) (client, server net.Conn, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	if client, err = dial(ctx, l.Addr().String()); err != nil {
		return nil, nil, err
	}
	defer context.AfterFunc(ctx, func() { l.Close() })()
	if server, err = l.Accept(); err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	return client, server, nil
}

// CheckNext checks that the next connection which a listener accepts is one that works.
func (p *Protocol) CheckNext(t *testing.T, l net.Listener) {
	t.Helper()
	client, server, err := p.Connect(l, Options{})
	Must(t, err)
	CheckArrives(t, client, server)
}

// CheckArrives checks that the last bytes of a connection arrive.
func CheckArrives(t *testing.T, client, server net.Conn) {
	t.Helper()
	_, err := client.Write([]byte("still here"))
	Must(t, err, client.Close(), server.SetDeadline(time.Now().Add(Timeout)))
	got, err := io.ReadAll(server)
	Must(t, err, server.Close())
	if string(got) != "still here" {
		t.Errorf("%q arrives", got)
	}
}
