// Package peer has what servers and clients that play with programs of rdma-core expect of a peer.
package peer

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/goverbs/goverbs/tools/verbs/internal/places"
)

// maxUnknown is how many connections that have not said hello yet a server with one client reads
// from at once.
const maxUnknown = 64

// FirstClient waits for the client of a server that serves one. It returns the first connection on
// which hello succeeds, and what hello has returned. All others, such as those of a port scanner,
// are closed and reported to log. Each has a goroutine, so that a silent one does not delay the
// client. FirstClient closes the listener.
func FirstClient[T any](ctx context.Context, l net.Listener, log io.Writer, hello func(context.Context, net.Conn) (T, error)) (first net.Conn, said T, err error) {
	waiting, end := context.WithCancel(ctx)
	defer end()
	defer context.AfterFunc(waiting, func() { l.Close() })()
	var mu sync.Mutex // guards the results
	greet := func(c net.Conn) {
		stop := context.AfterFunc(waiting, func() { c.Close() })
		got, herr := hello(waiting, c)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case !stop(): // there is a client, or ctx has ended
		case herr == nil:
			first, said = c, got
			end()
			return
		default:
			fmt.Fprintf(log, "%s is not the client: %v\n", c.RemoteAddr(), herr)
		}
		c.Close()
	}
	var all sync.WaitGroup
	room := &places.Places{Most: maxUnknown} // a silent host does not take all places
	for {
		var c net.Conn
		if c, err = l.Accept(); err != nil {
			break
		}
		from := places.AddrOf(c.RemoteAddr())
		if err := room.Take(from); err != nil {
			fmt.Fprintf(log, "%s is not heard, %v\n", c.RemoteAddr(), err)
			c.Close()
			continue
		}
		all.Go(func() {
			defer room.Leave(from)
			greet(c)
		})
	}
	end()
	all.Wait()
	switch {
	case first != nil:
		return first, said, nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	return nil, said, fmt.Errorf("wait for a client: %w", err)
}
