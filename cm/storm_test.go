package cm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/internal/limits"
	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/test/testenv"
)

// TestDialStorm: many clients that dial at once all get a connection, although the listener has no place for so many
// requests, and a message goes both ways over each.
func TestDialStorm(t *testing.T) {
	defer func(old time.Duration) { limits.Patience = old }(limits.Patience)
	limits.Patience = time.Minute // a guest that waits for a processor may need more than its peers have
	conns := 1000
	dial := DialOptions{}
	if v := testenv.Kernel(t); v[0] == 5 && v[1] < 19 { // rxe has 100 address handles, of which each attempt takes some
		conns = 20
	} else if !testenv.TheRig().Soft || testenv.SoftFaults() != "" { // emulated, and with less memory; or packets are lost
		conns, dial.ConnOptions = load(testenv.Brief(), 100, 50, 25), small
	}
	for name, o := range map[string]ListenOptions{"default options": {}, "small backlog": {Backlog: conns/8 + 1}} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 40*timeout)
			defer cancel()
			var refused refusals
			o.Refused, o.ConnOptions = refused.add, dial.ConnOptions
			l := newListener(t, o)
			var all sync.WaitGroup
			all.Go(func() {
				for range conns {
					c, err := l.Accept(ctx)
					if err != nil {
						t.Error(err)
						return
					}
					all.Go(func() {
						if err := answerOne(ctx, c); err != nil {
							t.Error(err)
						}
					})
				}
			})
			for i := range conns {
				all.Go(func() {
					c, err := Dial(ctx, l.Addr().String(), dial)
					if err == nil {
						err = errors.Join(roundTrip(ctx, c, fmt.Sprint("number ", i)), c.Close())
					}
					if err != nil {
						t.Error(i, err)
						cancel()
					}
				})
			}
			all.Wait()
			n := len(refused.list())
			if t.Logf("%d connections, %d refusals", conns, n); n == 0 && o.Backlog > 0 {
				t.Error("the listener had a place for each request")
			}
		})
	}
}

// TestTakenBack: a listener that gives the place of a connection to another one, before it knows that the connection is
// complete, is told from a peer that is gone.
func TestTakenBack(t *testing.T) {
	client, _ := connect(t, newListener(t, ListenOptions{}), DialOptions{})
	client.event(&rdmacm.Event{Type: rdmacm.EventRejected, Status: int32(rdmacm.ReasonConsumer)})
	if _, err := client.Recv(t.Context()); !errors.Is(err, errTakenBack) || !errors.Is(err, syscall.ECONNRESET) {
		t.Error(err)
	}
}
