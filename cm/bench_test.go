package cm

import (
	"context"
	"fmt"
	"io"
	"net"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// benchConns connects two ends for a benchmark.
func benchConns(b *testing.B, o Options) (client, server *Conn) {
	testenv.Guest(b)
	ctx := b.Context()
	check := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	l, err := Listen(ctx, "10.1.0.1:0", o)
	check(err)
	client, err = Dial(ctx, l.Addr().String(), o)
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

// BenchmarkPingPong sends 64 bytes there and back, over Conn and over the same QPs by the verbs
// alone, and prints the ratio of the times.
func BenchmarkPingPong(b *testing.B) {
	const size = 64
	ctx := context.Background()
	rawTime := time.Duration(0)
	b.Run("verbs", func(b *testing.B) {
		client, server := benchConns(b, Options{Wait: Spin, KeepAlive: -1})
		wcs := make([]uverbs.WC, 4)
		// await polls until a receive completes.
		await := func(c *Conn) {
			for {
				n, err := c.cq.Poll(wcs)
				if err != nil {
					b.Fatal(err)
				}
				for _, wc := range wcs[:n] {
					if err := wc.Err(); err != nil {
						b.Fatal(err)
					}
					if wc.ID&recvBit != 0 {
						c.postRecv(int(wc.ID &^ recvBit))
						return
					}
				}
			}
		}
		post := func(c *Conn) {
			err := c.qp.PostSend(uverbs.SendWR{Opcode: uverbs.WRSend, Flags: uverbs.Signaled, SGL: []uverbs.SGE{c.mr.SGE(c.sendSlot(0), size)}})
			if err != nil {
				b.Fatal(err)
			}
		}
		for b.Loop() {
			post(client)
			await(server)
			post(server)
			await(client)
		}
		rawTime = b.Elapsed() / time.Duration(b.N)
	})
	for _, wait := range waits {
		b.Run("Conn, "+wait.String(), func(b *testing.B) {
			client, server := benchConns(b, Options{Wait: wait})
			msg := make([]byte, size)
			b.ReportAllocs()
			for b.Loop() {
				if err := client.Send(ctx, msg); err != nil {
					b.Fatal(err)
				}
				got, err := server.Recv(ctx)
				if err == nil {
					err = server.Send(ctx, got)
				}
				if err == nil {
					_, err = client.Recv(ctx)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(rawTime), "x-verbs")
		})
	}
}

// BenchmarkStream writes 1 MiB at a time, as RDMA WRITE, over Stream and over TCP, and prints
// the ratio of the bandwidths.
func BenchmarkStream(b *testing.B) {
	const size = 1 << 20
	ctx := context.Background()
	rawTime := time.Duration(0)
	b.Run("RDMA WRITE", func(b *testing.B) {
		client, server := benchConns(b, Options{})
		var mrs [2]*uverbs.MR
		for i, c := range []*Conn{client, server} {
			buf, err := uverbs.AllocBuffer(size)
			if err != nil {
				b.Fatal(err)
			}
			if mrs[i], err = c.PD().RegMR(buf, uverbs.AccessLocalWrite|uverbs.AccessRemoteWrite); err != nil {
				b.Fatal(err)
			}
			defer buf.Close()
			defer mrs[i].Close()
		}
		b.SetBytes(size)
		for b.Loop() {
			if err := client.Write(ctx, mrs[0].SGE(0, size), RemoteOf(mrs[1])); err != nil {
				b.Fatal(err)
			}
		}
		rawTime = b.Elapsed() / time.Duration(b.N)
	})
	// copied writes to one end and reads from the other.
	copied := func(b *testing.B, w, r net.Conn) {
		done := make(chan error, 1)
		go func() {
			_, err := io.Copy(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{r})
			done <- err
		}()
		data := make([]byte, size)
		b.SetBytes(size)
		for b.Loop() {
			if _, err := w.Write(data); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(rawTime)/(float64(b.Elapsed())/float64(b.N)), "x-WRITE")
		w.Close()
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
	for _, messages := range []int{16 << 10, 32 << 10, 64 << 10} {
		b.Run(fmt.Sprintf("Stream, messages of %d KiB", messages>>10), func(b *testing.B) {
			client, server := benchConns(b, Options{MessageSize: messages})
			copied(b, client.Stream(), server.Stream())
		})
	}
	b.Run("TCP", func(b *testing.B) {
		l, err := net.Listen("tcp", "10.1.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		defer l.Close()
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		server, err := l.Accept()
		if err != nil {
			b.Fatal(err)
		}
		defer server.Close()
		copied(b, client, server)
	})
}

// BenchmarkDial connects, 50 at a time, and prints the ratio to the time that cmtime of
// rdma-core takes for it in the same boot.
func BenchmarkDial(b *testing.B) {
	const atOnce = 50
	theirs := cmtime(b)
	for name, o := range map[string]Options{"64 bytes": {MessageSize: 64, Depth: 1, SendDepth: 1, Transfers: 1}, "default": {}} {
		b.Run(name, func(b *testing.B) {
			testenv.Guest(b)
			ctx := b.Context()
			l, err := Listen(ctx, "10.1.0.1:0", o)
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			conns := make(chan *Conn, 2*atOnce)
			begin, dialled := make(chan bool), make(chan bool)
			for range atOnce {
				go func() {
					for range begin {
						c, err := Dial(ctx, l.Addr().String(), o)
						if err != nil {
							b.Error(err)
						}
						conns <- c
						dialled <- true
					}
				}()
			}
			defer close(begin)
			n := 0
			for b.Loop() {
				if n++; n%atOnce != 0 {
					continue // it is of the next lot
				}
				for range atOnce {
					begin <- true
				}
				for range atOnce {
					<-dialled
					s, err := l.Accept(ctx)
					if err != nil {
						b.Fatal(err)
					}
					conns <- s
				}
				b.StopTimer()
				for range 2 * atOnce {
					if c := <-conns; c != nil {
						c.Close()
					}
				}
				b.StartTimer()
			}
			if theirs > 0 {
				b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(theirs), "x-cmtime")
			}
		})
	}
}

// cmtime returns what cmtime takes for a connection until it is there, 0 if there is no cmtime.
func cmtime(b *testing.B) time.Duration {
	testenv.Guest(b)
	if _, err := exec.LookPath("cmtime"); err != nil {
		return 0
	}
	const n = "200"
	server := exec.Command("cmtime", "-b", "10.1.0.1", "-c", n)
	if err := server.Start(); err != nil {
		b.Fatal(err)
	}
	defer server.Wait()
	defer server.Process.Kill()
	time.Sleep(time.Second) // it does not say when it listens
	out, err := exec.Command("cmtime", "-s", "10.1.0.1", "-c", n).CombinedOutput()
	if err != nil {
		b.Fatalf("cmtime: %v\n%s", err, out)
	}
	total := 0.0
	for _, phase := range []string{"create id", "resolve addr", "resolve route", "create qp", "connect"} {
		m := regexp.MustCompile(phase + ` *:.* ([0-9.]+)\n`).FindSubmatch(out)
		if m == nil {
			b.Fatalf("cmtime says nothing of %s:\n%s", phase, out)
		}
		us, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			b.Fatal(err)
		}
		total += us
	}
	return time.Duration(total * float64(time.Microsecond))
}
