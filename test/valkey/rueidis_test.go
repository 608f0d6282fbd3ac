package valkey

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/goverbs/goverbs/cm/valkey"
)

// rueidisClient makes a client with rueidis. Only a real server can tell clients that what they cache has
// changed.
func rueidisClient(t testing.TB, address string, cache bool) rueidis.Client {
	t.Helper()
	c, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{address}, DisableCache: !cache, ForceSingleClient: true, ConnWriteTimeout: timeout,
		DialCtxFn: func(ctx context.Context, address string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return valkey.DialContext(ctx, "tcp", address)
		},
	})
	must(t, err)
	t.Cleanup(c.Close)
	return c
}

// checkRueidis has rueidis do everything that its users do.
func checkRueidis(t *testing.T, address string, cache bool) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*timeout)
	defer cancel()
	c := rueidisClient(t, address, cache)
	var tasks sync.WaitGroup // it sends what several goroutines want by one connection
	for g := range 20 {
		tasks.Go(func() {
			var all rueidis.Commands
			for i := range 100 {
				k := fmt.Sprintf("r%d-%d", g, i)
				all = append(all, c.B().Set().Key(k).Value(k).Build(), c.B().Get().Key(k).Build())
			}
			for i, r := range c.DoMulti(ctx, all...) {
				got, err := r.ToString()
				want := "OK"
				if i%2 == 1 {
					want = fmt.Sprintf("r%d-%d", g, i/2)
				}
				if err != nil || got != want {
					t.Errorf("answer %d of a pipeline is %q, %v; want %q", i, got, err, want)
					return
				}
			}
		})
	}
	tasks.Wait()

	must(t, c.Dedicated(func(d rueidis.DedicatedClient) error {
		all := d.DoMulti(ctx, d.B().Multi().Build(), d.B().Set().Key("rtx").Value("1").Build(), d.B().Incr().Key("rtx").Build(), d.B().Exec().Build())
		answers, err := all[3].ToArray()
		if err != nil || len(answers) != 2 {
			return fmt.Errorf("a transaction has %d answers: %w", len(answers), err)
		}
		if n, err := answers[1].AsInt64(); err != nil || n != 2 {
			return fmt.Errorf("a transaction counts to %d: %w", n, err)
		}
		return nil
	}))
	checkRueidisMessages(ctx, t, c, rueidisClient(t, address, cache))
	if cache {
		checkRueidisCache(ctx, t, c)
	}

	tasks = sync.WaitGroup{}
	for g := range 8 { // large values by the connection that they share
		tasks.Go(func() {
			k, v := fmt.Sprint("large", g), value(1<<20, g)
			for range 4 {
				all := c.DoMulti(ctx, c.B().Set().Key(k).Value(rueidis.BinaryString(v)).Build(), c.B().Get().Key(k).Build())
				if got, err := all[1].AsBytes(); err != nil || !bytes.Equal(got, v) {
					t.Errorf("%d bytes come back, or others than were set: %v", len(got), err)
					return
				}
			}
		})
	}
	tasks.Wait()
	big := value(largest, 7)
	must(t, c.Do(ctx, c.B().Set().Key("rbig").Value(rueidis.BinaryString(big)).Build()).Error())
	back, err := c.Do(ctx, c.B().Get().Key("rbig").Build()).AsBytes()
	must(t, err)
	if !bytes.Equal(back, big) {
		t.Errorf("%d bytes come back, or others than were set", len(back))
	}
	must(t, c.Do(ctx, c.B().Del().Key("rbig").Build()).Error())
}

// checkRueidisMessages publishes messages, which a subscriber receives in order.
func checkRueidisMessages(ctx context.Context, t *testing.T, c, sub rueidis.Client) {
	t.Helper()
	const many = 1000
	got, subscribed := make(chan string, many), make(chan struct{})
	listen, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- sub.Receive(rueidis.WithOnSubscriptionHook(listen, func(s rueidis.PubSubSubscription) {
			if s.Kind == "subscribe" {
				close(subscribed)
			}
		}), sub.B().Subscribe().Channel("rletters").Build(), func(m rueidis.PubSubMessage) { got <- m.Message })
	}()
	defer func() { stop(); <-ended }()
	select {
	case <-subscribed:
	case err := <-ended:
		ended <- nil
		t.Fatal(err)
	}
	inOrder(ctx, t, got, many, func(m string) error { return c.Do(ctx, c.B().Publish().Channel("rletters").Message(m).Build()).Error() })
}

// checkRueidisCache reads a value twice, of which the second comes from the client, until the server says that
// the value has changed.
func checkRueidisCache(ctx context.Context, t *testing.T, c rueidis.Client) {
	t.Helper()
	read := func() (string, bool) {
		r := c.DoCache(ctx, c.B().Get().Key("cached").Cache(), time.Hour)
		s, err := r.ToString()
		must(t, err)
		return s, r.IsCacheHit()
	}
	set := func(v string) { must(t, c.Do(ctx, c.B().Set().Key("cached").Value(v).Build()).Error()) }
	set("old")
	read()
	if s, hit := read(); s != "old" || !hit {
		t.Errorf("the second time the value is %q, from the client: %t", s, hit)
	}
	set("new")
	for {
		if s, _ := read(); s == "new" {
			return
		}
		if ctx.Err() != nil {
			t.Fatal("the client does not learn that the value has changed")
		}
	}
}

// TestRueidis: rueidis with a server in this process.
func TestRueidis(t *testing.T) {
	checkRueidis(t, newMini(t, valkey.Options{}).Addr().String(), false)
}
