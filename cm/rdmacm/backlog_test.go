package rdmacm

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// TestRequestBacklog: a listener of a program that does not look has no more requests than its backlog, although another
// goroutine reads the channel all the time. The rest is rejected.
func TestRequestBacklog(t *testing.T) {
	ctx := within(t)
	c := openKernel(t)
	l := newID(t, c, TCP)
	must(t, l.Bind(Addr{IP: first}), l.Listen(3))
	to := value(l.Addrs())(t).Local
	reader := newID(t, c, TCP) // whose events do not come
	stopped, stop := context.WithCancel(ctx)
	var reading sync.WaitGroup
	reading.Go(func() { reader.Next(stopped) })
	pd, cq := openPD(t)
	out := openKernel(t)
	var rejected atomic.Int32
	var ids []*ID
	var waiting sync.WaitGroup
	request := func() {
		id := newID(t, out, TCP)
		must(t, id.ResolveWait(ctx, Addr{}, to))
		qp := value(id.CreateQP(pd, uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}))(t)
		waiting.Go(func() {
			id.Connect(ConnParam{QPN: qp.QPN()})
			if e, err := id.Next(stopped); err == nil && e.Type == EventRejected {
				rejected.Add(1)
			}
		})
		ids = append(ids, id)
	}
	for range 8 {
		request()
	}
	// A rejection that the kernel has lost comes when it repeats the request, after 4 s and more. siw
	// does not repeat one: another request takes its place.
	last := time.Now()
	for rejected.Load() < 5 && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
		if testenv.TheRig().IWARP() && time.Since(last) > 10*time.Second {
			request()
			last = time.Now()
		}
	}
	stop()
	reading.Wait()
	waiting.Wait()
	c.mu.Lock()
	pending := len(c.pending)
	c.mu.Unlock()
	if n := int(rejected.Load()); pending != 3 || n < 5 || n > len(ids)-3 {
		t.Errorf("%d requests wait and %d of %d were rejected, want 3 and 5", pending, n, len(ids))
	}
	for range 3 {
		must(t, value(c.Next(ctx))(t).ID.Close())
	}
	for _, id := range ids {
		must(t, id.Close())
	}
}

// TestNextSkipsWaitedIDs: Next does not take the events of an ID that has been waited for by itself.
func TestNextSkipsWaitedIDs(t *testing.T) {
	ctx := within(t)
	c := openKernel(t)
	id := newID(t, c, TCP)
	over, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := id.Next(over); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	must(t, id.ResolveAddr(Addr{}, Addr{IP: first, Port: 7}, time.Second))
	short, stop := context.WithTimeout(ctx, 200*time.Millisecond)
	defer stop()
	if e, err := c.Next(short); err == nil {
		t.Errorf("Next has taken %+v", e)
	}
	if e := value(id.Next(ctx))(t); e.Type != EventAddrResolved {
		t.Errorf("Wait returns %+v", e)
	}
	must(t, id.Close())
}
