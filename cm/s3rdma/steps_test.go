package s3rdma

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// Steps of a transfer of stepChunks chunks.
const (
	beforeFirst  = "before the first chunk"
	inTheMiddle  = "after two chunks"
	beforeAnswer = "before the answer"

	stepChunk  = 4096
	stepChunks = 8
)

// stepper stops the server once, at a step of a request.
type stepper struct {
	step    string
	armed   atomic.Bool
	reached chan bool
	goOn    chan bool
	stalled atomic.Bool  // no chunk completes any more
	channel *stepChannel // of the last transfer
}

// at stops the server if this is the step, and reports whether it did.
func (s *stepper) at(step string) bool {
	if step != s.step || !s.armed.Swap(false) {
		return false
	}
	s.reached <- true
	<-s.goOn
	return true
}

// stepChannel is a channel that stops at the steps.
type stepChannel struct {
	channel
	s    *stepper
	done int // chunks
}

func (c *stepChannel) Point(ctx context.Context, t Token) error {
	c.done, c.s.channel = 0, c
	err := c.channel.Point(ctx, t)
	c.s.at(beforeFirst)
	return err
}

func (c *stepChannel) Wait(ctx context.Context, wcs []uverbs.WC) (int, error) {
	if c.done == 2 && c.s.at(inTheMiddle) {
		return 0, nil // the time for a chunk begins anew
	}
	if c.s.stalled.Load() {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	n, err := c.channel.Wait(ctx, wcs[:1])
	c.done += n
	return n, err
}

// stepCase is a request that something happens to at a step.
type stepCase struct {
	*rig
	*stepper
	t      *testing.T
	server *httptest.Server
	dial   net.Conn                // the client's connection
	cancel context.CancelCauseFunc // of the client's context
	stop   context.CancelFunc      // of the server's context
	gone   <-chan struct{}         // closed when the server's context ends
}

// stepCause is what happens. A function says how the client's call ends.
type stepCause struct {
	happens func(*stepCase)
	client  func(error) bool // of the client's error; nil if the data goes by the body, or was moved before
	first   bool             // the client's call ends before the server goes on
	deaf    bool             // the server's handler does not notice
	goesOn  bool             // the transfer goes on
	timeout bool             // the client's time is over
	kills   string           // "target", "initiator", or nothing
}

// errStop is why a client gives up.
var errStop = errors.New("the user has had enough")

// lost reports whether an error says that a connection has ended.
func lost(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.ErrUnexpectedEOF)
}

// removeDevice removes a device as the kernel does; on kernel devices, a queue pair goes alone.
func (c *stepCase) removeDevice(of string) {
	if testenv.TheRig().Soft {
		dev := c.dev
		if of == "initiator" {
			dev = c.initiator.dev
		}
		testenv.Must(c.t, soft.ByName(dev.Name()).Close())
		return
	}
	if of == "initiator" {
		c.killInitiator()
	} else {
		testenv.Must(c.t, c.target.end.Close())
	}
}

// killInitiator destroys the server's queue pair, as the kernel does when a process ends.
func (c *stepCase) killInitiator() {
	c.initiator.o.Timeout = 1 // a CQ does not tell that a queue pair is gone
	if ch, ok := c.channel.channel.(*dci); ok {
		testenv.Must(c.t, ch.QP.Close())
	} else {
		testenv.Must(c.t, c.channel.channel.(*rcChannel).qp.Close())
	}
}

// stepCauses are what happens to requests.
func stepCauses() map[string]stepCause {
	stopped := func(err error) bool { return errors.Is(err, errStop) }
	late := func(err error) bool { return errors.Is(err, context.DeadlineExceeded) }
	cut := func(c *stepCase) { c.dial.Close() }
	return map[string]stepCause{
		"the client stops":                       {happens: func(c *stepCase) { c.cancel(errStop) }, client: stopped, first: true},
		"the client stops, unnoticed":            {happens: func(c *stepCase) { c.cancel(errStop) }, client: stopped, first: true, deaf: true},
		"the client's time is over":              {timeout: true, client: late, first: true},
		"the client's time is over, unnoticed":   {timeout: true, client: late, first: true, deaf: true},
		"the client's connection ends":           {happens: cut, client: lost, first: true},
		"the client's connection ends unnoticed": {happens: cut, client: lost, first: true, deaf: true},
		"the client is killed":                   {happens: func(c *stepCase) { cut(c); testenv.Must(c.t, c.target.end.Close()) }, client: lost, first: true, kills: "target"},
		"the client is killed, unnoticed":        {happens: func(c *stepCase) { cut(c); testenv.Must(c.t, c.target.end.Close()) }, client: lost, first: true, deaf: true, kills: "target"},
		"the client's device is removed":         {happens: func(c *stepCase) { c.removeDevice("target") }, kills: "target"},
		"the client's device does not answer": {happens: func(c *stepCase) {
			c.initiator.o.Timeout = 1
			c.stalled.Store(true)
		}},
		"the server stops the request":    {happens: func(c *stepCase) { c.stop() }},
		"the server's connection ends":    {happens: func(c *stepCase) { c.server.CloseClientConnections() }, client: lost, first: true},
		"the server is killed":            {happens: func(c *stepCase) { c.server.CloseClientConnections(); c.killInitiator() }, client: lost, first: true, deaf: true, kills: "initiator"},
		"the server's device is removed":  {happens: func(c *stepCase) { c.removeDevice("initiator") }, kills: "initiator"},
		"the server closes its initiator": {happens: func(c *stepCase) { go c.initiator.Close() }, goesOn: true, kills: "initiator"},
	}
}

// TestSteps has both sides stop, die, go silent and lose connections at each step of a transfer.
// The client's call ends with the cause, or the data goes by the body. Once it has ended nobody
// touches the memory; nothing is left behind, half an object neither; the next request works.
func TestSteps(t *testing.T) {
	testenv.Guest(t)
	files := func() int {
		names, _ := os.ReadDir("/proc/self/fd") // which Linux has
		return len(names)
	}
	t.Run("first", func(t *testing.T) { newRig(t, InitiatorOptions{}) }) // what the process opens once
	for name, cause := range stepCauses() {
		for _, step := range []string{beforeFirst, inTheMiddle, beforeAnswer} {
			for _, method := range []string{http.MethodGet, http.MethodPut} {
				goroutines, open := runtime.NumGoroutine(), files()
				t.Run(fmt.Sprintf("%s/%s/%s", method, step, name), func(t *testing.T) {
					for limit := 20 * time.Millisecond; !runStep(t, method, step, cause, limit); {
						limit *= 2 // the machine was too slow to come to the step
					}
				})
				for end := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > goroutines || files() > open; runtime.Gosched() {
					if time.Now().After(end) {
						stacks := make([]byte, 1<<20)
						t.Fatalf("%d goroutines and %d files are left, of %d and %d:\n%s", runtime.NumGoroutine(), files(), goroutines, open, stacks[:runtime.Stack(stacks, true)])
					}
				}
			}
		}
	}
}

// runStep runs a case. It returns false if the client's time was over before the step.
func runStep(t *testing.T, method, step string, cause stepCause, limit time.Duration) bool {
	o := InitiatorOptions{Networks: everywhere, Chunk: stepChunk, Depth: 2, Transfers: 2, PerPeer: 2}
	c := &stepCase{rig: newRig(t, o), t: t, stepper: &stepper{step: step, reached: make(chan bool, 1), goOn: make(chan bool)}}
	open := c.initiator.open
	c.initiator.open = func() (channel, error) {
		ch, err := open()
		return &stepChannel{channel: ch, s: c.stepper}, err
	}
	for _, l := range c.initiator.idle {
		l.channel = &stepChannel{channel: l.channel, s: c.stepper}
	}
	reported := make(chan error, 10)
	var handlers sync.WaitGroup
	var transfers int // at the answer
	server, dir := newStore(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get(tokenHeader) == "" {
				h.ServeHTTP(w, r)
				return
			}
			handlers.Add(1)
			defer handlers.Done()
			ctx := r.Context()
			if c.armed.Load() && cause.deaf {
				ctx = context.WithoutCancel(ctx)
			}
			ctx, c.stop = context.WithCancel(ctx)
			defer c.stop()
			c.gone = ctx.Done()
			c.initiator.Handler(h, HandlerOptions{Report: func(_ *http.Request, _ int64, err error) { reported <- err }}).ServeHTTP(onHeader{w, func() {
				c.initiator.mu.Lock()
				transfers = len(c.initiator.peers)
				c.initiator.mu.Unlock()
				if !cause.timeout || ctx.Err() == nil { // else this is the answer to a transfer that was too late
					c.at(beforeAnswer)
				}
			}}, r.WithContext(ctx))
		})
	})
	c.server = server
	transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		c.dial, err = new(net.Dialer).DialContext(ctx, network, addr)
		return c.dial, err
	}}
	client := &Client{Endpoint: server.URL, Transport: transport}
	defer transport.CloseIdleConnections()
	object := make([]byte, stepChunk*stepChunks)
	fill(object, 1)
	file := filepath.Join(dir, "object")
	if method == http.MethodGet {
		testenv.Must(t, os.WriteFile(file, object, 0o600))
	}
	g := c.region(t, len(object)+1) // so that no HEAD asks for more
	call := func(ctx context.Context) (res Result, err error) {
		if method == http.MethodGet {
			clear(g.Bytes())
			if res, err = client.Get(ctx, "b/object", g, GetOptions{}); err == nil && !bytes.Equal(g.Bytes()[:res.N], object) {
				t.Error("the client has other data")
			}
			return res, err
		}
		copy(g.Bytes(), object)
		return client.Put(ctx, "b/object", g, len(object), PutOptions{})
	}
	type end struct {
		Result
		err error
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	c.cancel = cancel
	if cause.timeout {
		client.Timeout = limit
	}
	c.armed.Store(true)
	ended := make(chan end, 1)
	go func() {
		res, err := call(ctx)
		ended <- end{res, err}
	}()
	var res end
	select {
	case <-c.reached:
	case res = <-ended:
		if c.armed.Store(false); cause.timeout {
			close(c.goOn)
			handlers.Wait()
			return false
		}
		t.Fatalf("the call returns %+v before the step", res)
	}
	if cause.happens != nil {
		cause.happens(c)
	}
	pattern := bytes.Repeat([]byte{0xa5}, g.Len())
	if cause.first {
		res = <-ended
		copy(g.Bytes(), pattern)
		if !cause.deaf {
			<-c.gone
		}
	}
	close(c.goOn)
	served := <-reported
	handlers.Wait()
	if !cause.first {
		res = <-ended
		copy(g.Bytes(), pattern)
	}
	fails := step != beforeAnswer && !cause.goesOn
	byBody := cause.client == nil && fails
	switch {
	case cause.client != nil && !cause.client(res.err):
		t.Errorf("the client's call returns %+v", res)
	case cause.client == nil && (res.err != nil || res.N != len(object) || res.RDMA == byBody):
		t.Errorf("the client's call returns %+v, want %d bytes, by the body %v", res, len(object), byBody)
	}
	if what := "failed at byte"; (served == nil) == fails || served != nil && !strings.Contains(served.Error(), what) && !errors.Is(served, context.Canceled) {
		t.Errorf("the server reports %v, want nothing before the answer, and otherwise %q", served, what)
	}
	if method == http.MethodGet && transfers != 0 {
		t.Error("a transfer is under way when the answer goes out")
	}
	switch got, err := os.ReadFile(file); {
	case method == http.MethodPut && fails && !byBody:
		if !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the server has %d bytes of an object that was not put, %v", len(got), err)
		}
	case !bytes.Equal(got, object):
		t.Errorf("the server has %d bytes, %v, want the object", len(got), err)
	}
	if !bytes.Equal(g.Bytes(), pattern) {
		t.Error("the memory has changed after the call")
	}
	if n := len(c.initiator.slots); n != 0 && cause.kills != "initiator" || len(c.initiator.peers) != 0 || g.lent {
		t.Errorf("%d transfers have not ended, and the region is in use: %v", n, g.lent)
	}

	c.stalled.Store(false)
	client.Timeout, client.servers = 0, servers{} // as if minutes had passed
	switch cause.kills {
	case "target":
		c.newTarget(t)
		g = c.region(t, len(object)+1)
	case "initiator":
		c.newInitiator(t, o)
	default:
		c.initiator.o.Timeout = time.Minute
	}
	if res, err := call(t.Context()); err != nil || !res.RDMA || res.N != len(object) {
		t.Errorf("the next call returns %+v, %v", res, err)
	}
	if err := <-reported; err != nil {
		t.Errorf("of the next request, the server reports %v", err)
	}
	if n := len(c.initiator.idle); n != 1 {
		t.Errorf("%d channels are idle at the end, want 1", n)
	}
	return true
}
