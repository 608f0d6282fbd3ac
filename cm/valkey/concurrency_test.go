package valkey

import (
	"context"
	"net"
	"testing"

	"github.com/goverbs/goverbs/test/pairs"
)

// concurrency is what the documentation of each type says.
var concurrency = pairs.Table{
	{Object: (*Conn)(nil), Often: true, Methods: map[pairs.Use]string{
		pairs.Freely: "Close LocalAddr Read RemoteAddr SetDeadline SetReadDeadline SetWriteDeadline Write",
	}},
	{Object: (*Dialer)(nil), Methods: map[pairs.Use]string{pairs.Freely: "DialContext MemoryPerConn"}},
	{Object: (*Listener)(nil), Methods: map[pairs.Use]string{pairs.Freely: "Accept Addr Close"}},
}

// TestConcurrencyTable: the table has every exported method of every object, once.
func TestConcurrencyTable(t *testing.T) { concurrency.Check(t) }

// TestPairs runs pairs and triples of methods on connections with large and with small buffers.
func TestPairs(t *testing.T) {
	build := func(t *testing.T, o Options) pairs.World {
		l := newListener(t, o)
		w, _ := pairs.NewStream(t, l, func(ctx context.Context) (net.Conn, error) { return Dial(ctx, l.Addr().String(), o) })
		return w
	}
	pairs.Run(t, concurrency, map[string]func(*testing.T) pairs.World{
		"default": func(t *testing.T) pairs.World { return build(t, Options{}) },
		"small": func(t *testing.T) pairs.World {
			return build(t, Options{RecvBuffer: 8193, SendBuffer: 4096, RecvDepth: 16, SendDepth: 16})
		},
	})
}
