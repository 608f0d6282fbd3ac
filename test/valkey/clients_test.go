package valkey

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	valkeygo "github.com/valkey-io/valkey-go"

	"github.com/goverbs/goverbs/cm/valkey"
)

// value returns size bytes that depend on a number.
func value(size, number int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte((i + number) * (i>>8 + 7) >> 3)
	}
	return b
}

// largest is the size of the largest values.
const largest = 64 << 20

// checkGoRedis has go-redis do everything that its users do.
func checkGoRedis(t *testing.T, address string) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*timeout)
	defer cancel()
	c := goRedis(t, address, redis.Options{})
	must(t, c.Set(ctx, "key", "value", 0).Err())
	if got, err := c.Get(ctx, "key").Result(); err != nil || got != "value" {
		t.Errorf("the value is %q, %v", got, err)
	}
	if err := c.Get(ctx, "none").Err(); !errors.Is(err, redis.Nil) {
		t.Errorf("a key without a value: %v", err)
	}

	const many = 10_000
	p := c.Pipeline()
	for i := range many {
		p.Set(ctx, fmt.Sprint("k", i), fmt.Sprint("v", i), 0)
	}
	for i := range many {
		p.Get(ctx, fmt.Sprint("k", i))
	}
	all, err := p.Exec(ctx)
	must(t, err)
	for i := range many {
		if got := all[many+i].(*redis.StringCmd).Val(); got != fmt.Sprint("v", i) {
			t.Fatalf("answer %d of a pipeline is %q", i, got)
		}
	}

	tx, err := c.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.Incr(ctx, "count")
		p.IncrBy(ctx, "count", 41)
		return nil
	})
	must(t, err)
	if got := tx[1].(*redis.IntCmd).Val(); got != 42 {
		t.Errorf("a transaction counts to %d", got)
	}
	err = c.Watch(ctx, func(tx *redis.Tx) error {
		must(t, c.Set(ctx, "count", 1, 0).Err()) // by another connection
		_, err := tx.TxPipelined(ctx, func(p redis.Pipeliner) error { return p.Set(ctx, "count", 2, 0).Err() })
		return err
	}, "count")
	if !errors.Is(err, redis.TxFailedErr) {
		t.Errorf("a transaction whose key has changed: %v", err)
	}
	checkMessages(t, ctx, c)

	big := value(largest, 1)
	must(t, c.Set(ctx, "big", big, 0).Err())
	got, err := c.Get(ctx, "big").Bytes()
	must(t, err)
	if sha256.Sum256(got) != sha256.Sum256(big) {
		t.Errorf("%d bytes come back, or others than were set", len(got))
	}
	must(t, c.Del(ctx, "big").Err())
}

// checkMessages sends many messages to a subscriber, which begins to read when all are sent.
func checkMessages(t *testing.T, ctx context.Context, c *redis.Client) {
	t.Helper()
	const many = 5000
	sub := c.Subscribe(ctx, "news")
	defer sub.Close()
	_, err := sub.Receive(ctx)
	must(t, err)
	p := c.Pipeline()
	for i := range many {
		p.Publish(ctx, "news", fmt.Sprint("message ", i))
	}
	_, err = p.Exec(ctx)
	must(t, err)
	for i := range many {
		m, err := sub.ReceiveMessage(ctx)
		must(t, err)
		if m.Payload != fmt.Sprint("message ", i) {
			t.Fatalf("message %d is %q", i, m.Payload)
		}
	}
}

// checkValkeyGo has valkey-go do everything that its users do.
func checkValkeyGo(t *testing.T, address string) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*timeout)
	defer cancel()
	c := valkeyGo(t, address)
	var tasks sync.WaitGroup // it sends what several goroutines want by one connection
	for g := range 20 {
		tasks.Go(func() {
			for i := range 100 {
				k, v := fmt.Sprint("k", g), fmt.Sprint("v", i)
				all := c.DoMulti(ctx, c.B().Set().Key(k).Value(v).Build(), c.B().Get().Key(k).Build())
				if got, err := all[1].ToString(); err != nil || got != v {
					t.Errorf("the value is %q, %v; want %q", got, err, v)
					return
				}
			}
		})
	}
	tasks.Wait()

	err := c.Dedicated(func(d valkeygo.DedicatedClient) error {
		all := d.DoMulti(ctx, d.B().Multi().Build(), d.B().Set().Key("tx").Value("1").Build(), d.B().Incr().Key("tx").Build(), d.B().Exec().Build())
		answers, err := all[3].ToArray()
		if err != nil || len(answers) != 2 {
			return fmt.Errorf("a transaction has %d answers: %w", len(answers), err)
		}
		if n, err := answers[1].AsInt64(); err != nil || n != 2 {
			return fmt.Errorf("a transaction counts to %d: %w", n, err)
		}
		return nil
	})
	must(t, err)

	const many = 1000
	sub := valkeyGo(t, address) // its own, because miniredis lets a subscriber do nothing else
	got, subscribed := make(chan string, many), make(chan struct{})
	listen, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- sub.Receive(valkeygo.WithOnSubscriptionHook(listen, func(s valkeygo.PubSubSubscription) {
			if s.Kind == "subscribe" {
				close(subscribed)
			}
		}), sub.B().Subscribe().Channel("letters").Build(), func(m valkeygo.PubSubMessage) { got <- m.Message })
	}()
	select {
	case <-subscribed:
	case err := <-ended:
		t.Fatal(err)
	}
	inOrder(ctx, t, got, many, func(m string) error { return c.Do(ctx, c.B().Publish().Channel("letters").Message(m).Build()).Error() })
	stop()
	<-ended

	big := value(largest, 2)
	must(t, c.Do(ctx, c.B().Set().Key("big").Value(valkeygo.BinaryString(big)).Build()).Error())
	back, err := c.Do(ctx, c.B().Get().Key("big").Build()).AsBytes()
	must(t, err)
	if !bytes.Equal(back, big) {
		t.Errorf("%d bytes come back, or others than were set", len(back))
	}
	must(t, c.Do(ctx, c.B().Del().Key("big").Build()).Error())
}

// checkMany has n connections with go-redis at work at the same time, each with a value of its own that is
// set and read several times.
func checkMany(t *testing.T, address string, n, times, size int, o valkey.Options) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*timeout)
	defer cancel()
	d := valkey.Dialer{Options: o}
	dialing := make(chan struct{}, 16) // a server answers one request after the other
	c := goRedis(t, address, redis.Options{PoolSize: n, MaxRetries: -1, Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
		dialing <- struct{}{}
		defer func() { <-dialing }()
		return d.DialContext(ctx, network, address)
	}})
	begin := time.Now()
	var tasks, working sync.WaitGroup
	working.Add(n)
	for i := range n {
		tasks.Go(func() {
			conn := c.Conn() // its own connection, which all keep until the last one is at work
			defer conn.Close()
			defer working.Wait()
			defer working.Done()
			key, v := fmt.Sprint("many", i), value(size, i)
			for range times {
				if err := conn.Set(ctx, key, v, 0).Err(); err != nil {
					t.Errorf("connection %d: %v", i, err)
					return
				}
				got, err := conn.Get(ctx, key).Bytes()
				if err != nil || !bytes.Equal(got, v) {
					t.Errorf("connection %d: %d bytes come back, or others than were set: %v", i, len(got), err)
					return
				}
			}
		})
	}
	tasks.Wait()
	if got := int(c.PoolStats().TotalConns); got < n && !t.Failed() {
		t.Errorf("there were %d connections, want %d", got, n)
	}
	t.Logf("%d connections, %d times %d bytes each way: %v", n, times, size, time.Since(begin).Round(time.Millisecond))
}

// TestGoRedis: go-redis with a server in this process.
func TestGoRedis(t *testing.T) { checkGoRedis(t, newMini(t, valkey.Options{}).Addr().String()) }

// TestValkeyGo: valkey-go with a server in this process.
func TestValkeyGo(t *testing.T) { checkValkeyGo(t, newMini(t, valkey.Options{}).Addr().String()) }

// TestMany: many connections with small values, and some with large ones.
func TestMany(t *testing.T) {
	address := newMini(t, small).Addr().String()
	t.Run("connections", func(t *testing.T) { checkMany(t, address, 500, 2, 100, small) })
	t.Run("values", func(t *testing.T) { checkMany(t, address, 32, 3, 1<<20, small) })
}

// TestCut: the connection is lost while a large value is on its way, in each direction. The client gets an
// error, and its next command works.
func TestCut(t *testing.T) {
	s := newMini(t, small)
	ctx, cancel := context.WithTimeout(t.Context(), 2*timeout)
	defer cancel()
	c := goRedis(t, s.Addr().String(), redis.Options{MaxRetries: -1})
	big := value(largest, 3)
	must(t, c.Set(ctx, "big", big, 0).Err())
	for name, act := range map[string]func() error{
		"set": func() error { return c.Set(ctx, "other", big, 0).Err() },
		"get": func() error { return c.Get(ctx, "big").Err() },
	} {
		done := make(chan error, 1)
		go func() { done <- act() }()
		time.Sleep(20 * time.Millisecond)
		s.cut()
		if err := <-done; err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s of a large value, and the connection is lost: %v", name, err)
		} else {
			t.Logf("%s: %v", name, err)
		}
		if got, err := c.Get(ctx, "big").Bytes(); err != nil || !bytes.Equal(got, big) {
			t.Errorf("the next command gets %d bytes: %v", len(got), err)
		}
	}
}

// inOrder publishes messages, which a subscriber receives in order.
func inOrder(ctx context.Context, t *testing.T, got <-chan string, many int, publish func(string) error) {
	t.Helper()
	for i := range many {
		must(t, publish(fmt.Sprint(i)))
	}
	for i := range many {
		select {
		case m := <-got:
			if m != fmt.Sprint(i) {
				t.Fatalf("message %d is %q", i, m)
			}
		case <-ctx.Done():
			t.Fatalf("%d of %d messages arrive", i, many)
		}
	}
}
