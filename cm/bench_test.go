package cm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// benchConns connects two ends for a benchmark.
func benchConns(b *testing.B, o ConnOptions) (client, server *Conn) {
	testenv.Guest(b)
	ctx := b.Context()
	check := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	l, err := Listen(ctx, firstAny, ListenOptions{ConnOptions: o})
	check(err)
	client, err = Dial(ctx, l.Addr().String(), DialOptions{ConnOptions: o})
	check(err)
	server, err = l.Accept(ctx)
	check(err)
	b.Cleanup(func() {
		client.Close()
		server.Close()
		l.Close()
	})
	return client, server
}

// atOnce is how many connections are made at once.
const atOnce = 50

// settle lets the other end finish with what went before: who closes connections takes time
// from who makes the next. before is how many QPs there were without them.
func settle(b *testing.B, before uint64) {
	for end := time.Now().Add(10 * time.Second); qpCount(b) > before; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			b.Fatal("the other end does not close")
		}
	}
	time.Sleep(20 * time.Millisecond)
}

// qpCount returns how many QPs the device has, of all processes.
func qpCount(b *testing.B) uint64 {
	dev, err := netlinkrdma.DeviceByName(testenv.TheRig().Devices[0])
	if err != nil {
		b.Fatal(err)
	}
	counts, err := netlinkrdma.Resources(dev, netlinkrdma.ListOptions{})
	if err != nil {
		b.Fatal(err)
	}
	return counts.QPs
}

// BenchmarkConnect makes 50 connections at once of IDs, step by step as cmtime of rdma-core
// does, with as much for each: at both ends, which are two processes, an ID and a QP. The QPs of
// an end share two CQs, each with a channel, which are made with the first of them, as rdma_create_qp
// leaves those that it has made in cmtime's options for the next ones. Like cmtime, whose ID
// brings a device along when it finds its way, the client opens its device in that time, and the
// other end when it begins to listen. It takes turns with cmtime, and prints the median of the
// ratios of neighbouring runs.
func BenchmarkConnect(b *testing.B) {
	testenv.Guest(b)
	to := netip.MustParseAddrPort(other(b, "serves steps", ""))
	before := qpCount(b)
	var ratios []float64
	for b.Loop() {
		b.StopTimer()
		client, err := newSteps()
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		took, err := client.connect(b.Context(), to, atOnce)
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := client.close(); err != nil {
			b.Fatal(err)
		}
		settle(b, before)
		if theirs := cmtime(b, atOnce); theirs > 0 {
			ratios = append(ratios, float64(took)/float64(theirs))
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(b.Elapsed())/float64(b.N)/atOnce, "ns/connection")
	if len(ratios) > 0 {
		b.ReportMetric(median(ratios), "x-cmtime")
	}
}

// serveSteps is the other end of BenchmarkConnect. It says on standard output where it
// listens.
func serveSteps(ctx context.Context) error {
	s, err := newSteps()
	if err != nil {
		return err
	}
	l, err := s.channel.NewID(rdmacm.TCP)
	if err != nil {
		return err
	}
	if err := errors.Join(l.Bind(rdmacm.AddrOf(netip.AddrPortFrom(first, 0))), s.open(l), l.Listen(0)); err != nil {
		return err
	}
	addrs, err := l.Addrs()
	if err != nil {
		return err
	}
	fmt.Println(addrs.Local)
	for {
		e, err := s.channel.Next(ctx)
		if err != nil {
			return err
		}
		switch e.Type {
		case rdmacm.EventConnectRequest:
			if err = s.queues(e.ID); err == nil {
				err = e.ID.Accept(rdmacm.ConnParam{})
			}
		case rdmacm.EventDisconnected:
			err = s.hangUp(e.ID)
		}
		if err != nil {
			return err
		}
	}
}

// serveConns is the other end of BenchmarkDial. It says on standard output where it listens.
func serveConns(ctx context.Context, o ConnOptions) error {
	l, err := Listen(ctx, firstAny, ListenOptions{ConnOptions: o})
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	for {
		c, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		go func() {
			c.Recv(ctx) // until the peer closes
			c.Close()
		}()
	}
}

// noEvent stands for a step that is done when it returns.
const noEvent = ^rdmacm.EventType(0)

// steps makes connections step by step.
type steps struct {
	channel *rdmacm.Channel
	dev     *uverbs.Device
	pd      *uverbs.PD
	ids     []*rdmacm.ID
	qps     int            // how many there are
	cqs     [2]completions // of all QPs: for sends and for receives
}

// newSteps opens what a side has before it begins.
func newSteps() (*steps, error) {
	c, err := rdmacm.OpenChannel(rdmacm.ChannelOptions{})
	return &steps{channel: c}, err
}

// open opens the device that an ID is on.
func (s *steps) open(id *rdmacm.ID) error {
	a, err := id.Addrs()
	if err != nil {
		return err
	}
	if s.dev, err = uverbs.Open(a.Device, uverbs.OpenOptions{}); err != nil {
		return err
	}
	s.pd, err = s.dev.AllocPD()
	return err
}

// queues gives an ID a QP.
func (s *steps) queues(id *rdmacm.ID) (err error) {
	for i := range s.cqs {
		c := &s.cqs[i]
		if s.qps > 0 {
			break
		}
		if c.ch, err = s.dev.CreateCompChannel(); err != nil {
			return err
		}
		if c.cq, err = s.dev.CreateCQ(uverbs.CQOptions{Size: 1, Channel: c.ch}); err != nil {
			return err
		}
	}
	s.qps++
	_, err = id.CreateQP(s.pd, uverbs.QPOptions{SendCQ: s.cqs[0].cq, RecvCQ: s.cqs[1].cq, MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1})
	return err
}

// connect makes n connections and returns how long that took. All take a step before any takes
// the next one.
func (s *steps) connect(ctx context.Context, to netip.AddrPort, n int) (time.Duration, error) {
	begin := time.Now()
	for _, step := range []struct {
		do  func(*rdmacm.ID) error
		end rdmacm.EventType
	}{
		{func(id *rdmacm.ID) error { return id.ResolveAddr(rdmacm.Addr{}, rdmacm.AddrOf(to), 2*time.Second) }, rdmacm.EventAddrResolved},
		{func(id *rdmacm.ID) error { return id.ResolveRoute(2 * time.Second) }, rdmacm.EventRouteResolved},
		{s.queues, noEvent},
		{func(id *rdmacm.ID) error {
			return id.Connect(rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 5})
		}, rdmacm.EventEstablished},
	} {
		for i := range n {
			if len(s.ids) < n {
				id, err := s.channel.NewID(rdmacm.TCP)
				if err != nil {
					return 0, err
				}
				s.ids = append(s.ids, id)
			}
			if err := step.do(s.ids[i]); err != nil {
				return 0, err
			}
		}
		left := n
		if step.end == noEvent {
			left = 0
		}
		for left > 0 {
			e, err := s.channel.Next(ctx)
			if err != nil {
				return 0, err
			}
			switch {
			case e.Type == rdmacm.EventAddrResolved && s.dev == nil:
				err = s.open(e.ID)
				left--
			case e.Type == rdmacm.EventAddrError && errors.Is(e.Err(), syscall.ETIMEDOUT):
				err = step.do(e.ID) // as cmtime does
			case e.Type == step.end:
				left--
			default:
				err = fmt.Errorf("%s instead of %s: %w", e.Type, step.end, e.Err())
			}
			if err != nil {
				return 0, err
			}
		}
	}
	return time.Since(begin), nil
}

// hangUp closes a connection, and the CQs with the last one.
func (s *steps) hangUp(id *rdmacm.ID) error {
	if err := id.Close(); err != nil {
		return err
	}
	if s.qps--; s.qps > 0 {
		return nil
	}
	return errors.Join(s.cqs[0].close(), s.cqs[1].close())
}

// close closes all.
func (s *steps) close() error {
	var errs []error
	for _, id := range s.ids {
		errs = append(errs, s.hangUp(id))
	}
	return errors.Join(append(errs, s.channel.Close(), s.pd.Close(), s.dev.Close())...)
}

// dialSizes are the connections that BenchmarkDial makes.
var dialSizes = map[string]ConnOptions{"small": {MessageSize: 64, Depth: 1, Tuning: Tuning{SendDepth: 1, Transfers: 1}}, "default": {}}

// BenchmarkDial dials 50 connections at once, of another process, in turn with cmtime of
// rdma-core, and prints the median of the ratios of neighbouring runs. Of two lots of ours the
// second has the memory and the CQs of the first, as in a program that goes on making
// connections.
func BenchmarkDial(b *testing.B) {
	for name, o := range dialSizes {
		b.Run(name, func(b *testing.B) {
			testenv.Guest(b)
			addr := other(b, "serves "+name, "")
			var first, next []float64
			for b.Loop() {
				cold := dialAll(b, addr, o)
				warm := dialAll(b, addr, o)
				b.StopTimer()
				if theirs := cmtime(b, atOnce); theirs > 0 {
					first = append(first, float64(cold)/float64(theirs))
					next = append(next, float64(warm)/float64(theirs))
				}
				b.StartTimer()
			}
			b.ReportMetric(float64(b.Elapsed())/float64(b.N)/(2*atOnce), "ns/connection")
			if len(first) > 0 {
				b.ReportMetric(median(first), "x-cmtime-at-first")
				b.ReportMetric(median(next), "x-cmtime")
			}
		})
	}
}

// median returns the middle one.
func median(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}

// dialAll makes connections at once, closes them, and returns how long it took until all were
// there.
func dialAll(b *testing.B, addr string, o ConnOptions) time.Duration {
	before := qpCount(b)
	begin := time.Now()
	conns := make([]*Conn, atOnce)
	var wg sync.WaitGroup
	for i := range conns {
		wg.Go(func() {
			var err error
			if conns[i], err = Dial(b.Context(), addr, DialOptions{ConnOptions: o}); err != nil {
				b.Error(err)
			}
		})
	}
	wg.Wait()
	took := time.Since(begin)
	b.StopTimer()
	for _, c := range conns {
		if c != nil {
			c.Close()
		}
	}
	settle(b, before)
	b.StartTimer()
	return took
}

// cmtime returns what cmtime takes for n connections until they are there, 0 if there is no
// cmtime.
func cmtime(b *testing.B, n int) time.Duration {
	if _, err := exec.LookPath("cmtime"); err != nil {
		return 0
	}
	count := strconv.Itoa(n)
	server := exec.Command("cmtime", "-b", first.String(), "-c", count)
	if err := server.Start(); err != nil {
		b.Fatal(err)
	}
	defer server.Wait()
	defer server.Process.Kill()
	time.Sleep(time.Second) // it does not say when it listens
	out, err := exec.Command("cmtime", "-s", first.String(), "-c", count).CombinedOutput()
	if err != nil {
		b.Fatalf("cmtime: %v\n%s", err, out)
	}
	total := 0.0
	for _, phase := range []string{"create id", "resolve addr", "resolve route", "create qp", "connect"} {
		m := regexp.MustCompile(phase + ` *: *([0-9.]+) `).FindSubmatch(out)
		if m == nil {
			b.Fatalf("cmtime says nothing of %s:\n%s", phase, out)
		}
		ms, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			b.Fatal(err)
		}
		total += ms
	}
	return time.Duration(total * float64(time.Millisecond))
}
