package rsocket

import (
	"context"
	"net"
	"testing"

	"github.com/goverbs/goverbs/test/pairs"
)

// concurrency is what the documentation of each type says.
var concurrency = pairs.Table{
	{Object: (*Conn)(nil), Often: true, Methods: map[pairs.Use]string{
		pairs.Freely: "Close CloseWrite LocalAddr Map Read RemoteAddr SetDeadline SetReadDeadline SetWriteDeadline Write WriteAt",
	}},
	{Object: (*Mapping)(nil), Methods: map[pairs.Use]string{pairs.Freely: "Bytes Close"}},
	{Object: (*Listener)(nil), Methods: map[pairs.Use]string{pairs.Freely: "Accept Addr Close"}},
}

// TestConcurrencyTable: the table has every exported method of every object, once.
func TestConcurrencyTable(t *testing.T) { concurrency.Check(t) }

// TestPairs runs pairs and triples of methods on connections with large and with small buffers.
func TestPairs(t *testing.T) {
	build := func(t *testing.T, o Options) pairs.World {
		l := newListener(t, o)
		w, peer := pairs.NewStream(t, l, func(ctx context.Context) (net.Conn, error) { return Dial(ctx, l.Addr().String(), o) })
		m, err := w.Conn.(*Conn).Map(4096, 0)
		must(t, err)
		_, err = peer.(*Conn).Map(4096, 0) // for WriteAt
		must(t, err)
		w.Others = []any{m}
		return w
	}
	pairs.Run(t, concurrency, map[string]func(*testing.T) pairs.World{
		"default": func(t *testing.T) pairs.World { return build(t, Options{Mappings: 2}) },
		"small": func(t *testing.T) pairs.World {
			return build(t, Options{RecvBuffer: 5001, SendBuffer: 4096, Credits: 16, SendDepth: 16, Mappings: 2})
		},
	})
}

// TestMappingBytes: a mapping has no memory once it, or the connection, is closed.
func TestMappingBytes(t *testing.T) {
	l := newListener(t, Options{Mappings: 2})
	client, server, err := connect(l, Options{})
	must(t, err)
	var mappings [2]*Mapping
	for i := range mappings {
		mappings[i], err = client.(*Conn).Map(100, int64(1000*i))
		must(t, err)
		if n := len(mappings[i].Bytes()); n != 100 {
			t.Fatalf("the memory has %d bytes", n)
		}
	}
	must(t, mappings[0].Close(), server.Close(), client.Close())
	for i, m := range mappings {
		if b := m.Bytes(); b != nil {
			t.Errorf("mapping %d has %d bytes", i, len(b))
		}
	}
}
