package soft_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime/pprof"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// The benchmarks below are the rows of test/bench/soft, which compares devices in software with what UDP
// and TCP do through package net. Both ends are in this process.

// benchWays are the ways in which two devices reach each other.
var benchWays = []struct {
	name string
	make func(soft.Options) (*soft.Device, error)
}{{"sockets", soft.NewViaSocket}, {"process", soft.New}}

// processorTime is the time that this process has run, in the kernel too: on the loopback interface what a
// packet costs is all in it, and what else the machine does is not.
func processorTime(b *testing.B) time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// measure runs b.N operations and reports the processor time of one.
func measure(b *testing.B, run func(n int) error) {
	b.ReportAllocs()
	b.ResetTimer()
	before := processorTime(b)
	if err := run(b.N); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
}

const (
	streamDepth  = 64 // messages under way
	streamSignal = 16 // messages of which the last one has a completion
)

// A stream sends messages from one side to the other as fast as one goroutine does it all.
type stream struct {
	x, y  *side
	wrs   []uverbs.SendWR
	recvs []uverbs.RecvWR
	wcs   [2 * streamDepth]uverbs.WC
}

func newStream(b *testing.B, newDevice func(soft.Options) (*soft.Device, error), opcode uverbs.WROpcode, size int) *stream {
	o := uverbs.QPOptions{MaxSendWR: streamDepth, MaxRecvWR: 2 * streamDepth}
	o.Path.Access = uverbs.AccessRemoteWrite | uverbs.AccessRemoteRead
	s := new(stream)
	s.x, s.y = twoSides(b, newDevice, o)
	for i := range streamDepth {
		wr := uverbs.SendWR{Opcode: opcode, SGL: []uverbs.SGE{s.x.mr.SGE(0, size)}}
		if i%streamSignal == streamSignal-1 {
			wr.Flags = uverbs.SendSignaled
		}
		if opcode != uverbs.WRSend {
			wr.RemoteAddr, wr.RKey = s.y.mr.Addr(), s.y.mr.RKey()
		}
		s.wrs = append(s.wrs, wr)
	}
	if opcode != uverbs.WRSend {
		return s
	}
	for range 2 * streamDepth {
		s.recvs = append(s.recvs, uverbs.RecvWR{SGL: []uverbs.SGE{s.y.mr.SGE(0, size)}})
	}
	if err := s.y.qp.PostRecvs(s.recvs...); err != nil {
		b.Fatal(err)
	}
	return s
}

// run sends n messages, rounded up to a multiple of streamSignal.
func (s *stream) run(n int) error {
	n = (n + streamSignal - 1) / streamSignal * streamSignal
	toReceive := 0
	if s.recvs != nil {
		toReceive = n
	}
	posted, sent, received := 0, 0, 0
	for sent < n || received < toReceive {
		if k := min(streamDepth-(posted-sent), n-posted); k > 0 {
			if err := s.x.qp.PostSend(s.wrs[:k]...); err != nil {
				return err
			}
			posted += k
		}
		k, err := s.poll(s.x)
		sent += k * streamSignal
		if err == nil {
			k, err = s.poll(s.y)
			received += k
		}
		if err == nil && k > 0 {
			err = s.y.qp.PostRecvs(s.recvs[:k]...)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// poll returns how many completions a side has.
func (s *stream) poll(x *side) (int, error) {
	n, err := x.cq.Poll(s.wcs[:])
	for i := range s.wcs[:n] {
		err = errors.Join(err, x.qp.Err(&s.wcs[i]))
	}
	return n, err
}

func BenchmarkStream(b *testing.B) {
	for _, way := range benchWays {
		for _, c := range []struct {
			op   string
			code uverbs.WROpcode
			size int
		}{
			{"send", uverbs.WRSend, 2}, {"send", uverbs.WRSend, 4096}, {"send", uverbs.WRSend, 65536},
			{"write", uverbs.WRRDMAWrite, 65536}, {"read", uverbs.WRRDMARead, 65536},
		} {
			b.Run(fmt.Sprintf("%s/%s/%d", way.name, c.op, c.size), func(b *testing.B) {
				s := newStream(b, way.make, c.code, c.size)
				if err := s.run(4 * streamDepth); err != nil { // caches, and memory for reuse
					b.Fatal(err)
				}
				b.SetBytes(int64(c.size))
				measure(b, s.run)
			})
		}
	}
}

// pingBytes is the size of the messages that go there and back. An operation is one way.
const pingBytes = 2

// recvID is the ID of receives, and 0 that of sends.
const recvID = 1

// ping sends a message and receives it at the peer, by polling.
func ping(from, to *side, flags uverbs.SendFlags) error {
	if err := to.qp.PostRecv(recvID, to.mr.SGE(0, pingBytes)); err != nil {
		return err
	}
	if err := from.qp.PostSend(uverbs.SendWR{Opcode: uverbs.WRSend, Flags: flags, SGL: []uverbs.SGE{from.mr.SGE(64, pingBytes)}}); err != nil {
		return err
	}
	for {
		var wcs [4]uverbs.WC
		n, err := to.cq.Poll(wcs[:])
		got := false
		for i := range wcs[:n] {
			err = errors.Join(err, to.qp.Err(&wcs[i]))
			got = got || wcs[i].ID == recvID
		}
		if got || err != nil {
			return err
		}
	}
}

func BenchmarkPingPong(b *testing.B) {
	for _, way := range benchWays {
		b.Run(way.name+"/poll", func(b *testing.B) {
			x, y := twoSides(b, way.make, uverbs.QPOptions{})
			measure(b, func(n int) error {
				for i := 0; i < n; i += 2 {
					flags := uverbs.SendFlags(0)
					if i%(2*streamSignal) == 0 {
						flags = uverbs.SendSignaled
					}
					if err := errors.Join(ping(x, y, flags), ping(y, x, flags)); err != nil {
						return err
					}
				}
				return nil
			})
		})
		b.Run(way.name+"/events", func(b *testing.B) {
			x, y := twoSides(b, way.make, uverbs.QPOptions{})
			measure(b, func(n int) error {
				n = (n + 1) / 2
				if err := y.qp.PostRecv(1, y.mr.SGE(1<<15, 1<<15)); err != nil {
					return err
				}
				done := make(chan error)
				go func() { done <- y.exchange(b.Context(), n, pingBytes, false) }()
				return errors.Join(x.exchange(b.Context(), n, pingBytes, true), <-done)
			})
		})
	}
}

// BenchmarkUDP sends datagrams through package net, to compare with.
func BenchmarkUDP(b *testing.B) {
	b.Run("pingpong", func(b *testing.B) {
		x, y := udpPair(b)
		go func() { // ends when y is closed
			buf := make([]byte, 64)
			for {
				n, from, err := y.ReadFromUDPAddrPort(buf)
				if err != nil {
					return
				}
				if _, err := y.WriteToUDPAddrPort(buf[:n], from); err != nil {
					return
				}
			}
		}()
		to := y.LocalAddr().(*net.UDPAddr).AddrPort()
		measure(b, func(n int) error {
			buf := make([]byte, 64)
			for i := 0; i < n; i += 2 {
				if _, err := x.WriteToUDPAddrPort(buf[:pingBytes], to); err != nil {
					return err
				}
				if _, _, err := x.ReadFromUDPAddrPort(buf); err != nil {
					return err
				}
			}
			return nil
		})
	})
	b.Run("stream", func(b *testing.B) {
		x, y := udpPair(b)
		to := y.LocalAddr().(*net.UDPAddr).AddrPort()
		measure(b, func(n int) error {
			buf := make([]byte, 64)
			for ; n > 0; n -= streamDepth {
				for range min(n, streamDepth) {
					if _, err := x.WriteToUDPAddrPort(buf[:pingBytes], to); err != nil {
						return err
					}
				}
				for range min(n, streamDepth) {
					if _, _, err := y.ReadFromUDPAddrPort(buf); err != nil {
						return err
					}
				}
			}
			return nil
		})
	})
}

func udpPair(b *testing.B) (x, y *net.UDPConn) {
	for _, c := range []**net.UDPConn{&x, &y} {
		var err error
		if *c, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { (*c).Close() })
	}
	return x, y
}

// BenchmarkTCP sends through a TCP connection of package net, to compare with.
func BenchmarkTCP(b *testing.B) {
	for _, size := range []int{4096, 65536} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			done := make(chan error)
			go func() { done <- discard(l) }()
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			b.SetBytes(int64(size))
			measure(b, func(n int) error {
				buf := make([]byte, size)
				for range n {
					if _, err := c.Write(buf); err != nil {
						return err
					}
				}
				return errors.Join(c.Close(), <-done)
			})
		})
	}
}

// discard reads all that comes over one connection.
func discard(l net.Listener) error {
	c, err := l.Accept()
	if err != nil {
		return err
	}
	defer c.Close()
	for buf := make([]byte, 1<<16); err == nil; {
		_, err = c.Read(buf)
	}
	if err == io.EOF {
		return nil
	}
	return err
}

// BenchmarkQPs writes through several QPs of two devices at the same time, each of which has a goroutine that
// waits for its completions. With -cpu 1,2 it shows what a second processor adds, and with -cpuprofile, by
// go tool pprof -tags, how much of the work the goroutines that receive do.
func BenchmarkQPs(b *testing.B) {
	const depth = 16
	for _, way := range benchWays {
		for _, c := range []struct{ qps, size int }{{1, 4096}, {8, 4096}, {1, 65536}, {8, 65536}} {
			b.Run(fmt.Sprintf("%s/%d/%d", way.name, c.qps, c.size), func(b *testing.B) {
				o := uverbs.QPOptions{MaxSendWR: depth, Path: uverbs.PathOptions{Access: uverbs.AccessRemoteWrite}}
				var devs [2]*soft.Device
				for i := range devs {
					var err error
					pprof.Do(b.Context(), pprof.Labels("goroutine", []string{"receives acknowledgements", "receives writes"}[i]), func(context.Context) {
						devs[i], err = way.make(soft.Options{Auto: true})
					})
					if err != nil {
						b.Fatal(err)
					}
					b.Cleanup(func() { devs[i].Close() })
				}
				var ends [][2]*side
				for range c.qps {
					pair := [2]*side{newSide(b, devs[0], o), newSide(b, devs[1], o)}
					connect(b, pair[0], pair[1])
					ends = append(ends, pair)
				}
				b.SetBytes(int64(c.size))
				measure(b, func(n int) error {
					done := make(chan error)
					for _, pair := range ends {
						go func() { done <- pair[0].writeTo(b.Context(), pair[1], c.size, depth, (n+c.qps-1)/c.qps) }()
					}
					var err error
					for range ends {
						err = errors.Join(err, <-done)
					}
					return err
				})
			})
		}
	}
}

// writeTo writes n times, with up to depth writes under way.
func (s *side) writeTo(ctx context.Context, to *side, size, depth, n int) error {
	wr := uverbs.SendWR{Opcode: uverbs.WRRDMAWrite, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{s.mr.SGE(0, size)}, RemoteAddr: to.mr.Addr(), RKey: to.mr.RKey()}
	wrs := slices.Repeat([]uverbs.SendWR{wr}, depth)
	wcs := make([]uverbs.WC, depth)
	for posted, written := 0, 0; written < n; {
		k := min(depth-(posted-written), n-posted)
		if err := s.qp.PostSend(wrs[:k]...); err != nil {
			return err
		}
		posted += k
		k, err := s.cq.Wait(ctx, wcs)
		for i := range wcs[:k] {
			err = errors.Join(err, s.qp.Err(&wcs[i]))
		}
		if err != nil {
			return err
		}
		written += k
	}
	return nil
}

// BenchmarkInTurn sends a message of 64 B on each of many QPs of two devices in turn. All share two CQs.
func BenchmarkInTurn(b *testing.B) {
	for _, n := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprintf("process/%d", n), func(b *testing.B) {
			x, y := twoSides(b, soft.New, uverbs.QPOptions{})
			qps := createMany(b, [2]*side{x, y}, 2*n)
			at := 0
			run := func(k int) error {
				for range k {
					if err := sendOn(x, y, qps[at], qps[at+1]); err != nil {
						return err
					}
					at = (at + 2) % len(qps)
				}
				return nil
			}
			if err := run(n); err != nil { // memory that the first message of a QP needs
				b.Fatal(err)
			}
			measure(b, run)
		})
	}
}

// sendOn sends a message from a QP of a side to one of another, and takes both completions.
func sendOn(x, y *side, from, to *uverbs.QP) error {
	const size = 64
	if err := to.PostRecv(recvID, y.mr.SGE(0, size)); err != nil {
		return err
	}
	if err := from.PostSend(uverbs.SendWR{Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{x.mr.SGE(0, size)}}); err != nil {
		return err
	}
	for _, end := range []struct {
		cq *uverbs.CQ
		qp *uverbs.QP
	}{{y.cq, to}, {x.cq, from}} {
		var wcs [1]uverbs.WC
		for n := 0; n == 0; {
			var err error
			if n, err = end.cq.Poll(wcs[:]); err != nil {
				return err
			}
		}
		if err := end.qp.Err(&wcs[0]); err != nil {
			return err
		}
	}
	return nil
}
