package cm

import (
	"context"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// Environment variables with limits of what the benchmarks print, beyond which they fail. They are
// for a clock that counts instructions, by which a ratio is the same on a busy machine as on a quiet one.
const (
	pingPongMost = "GOVERBS_PINGPONG_MOST" // of a Conn's time by that of the verbs
	streamLeast  = "GOVERBS_STREAM_LEAST"  // of a stream's bandwidth by that of RDMA WRITE
)

// inTurn has two do a lot each, in turn, and returns the medians of their times and of the ratios
// of the first's by the second's.
func inTurn(b *testing.B, one, other func(b *testing.B)) (first, second time.Duration, ratio float64) {
	does := [2]func(*testing.B){one, other}
	for _, do := range does { // what is done once
		do(b)
	}
	var took [2][]float64
	var ratios []float64
	for i := 0; b.Loop(); i++ {
		var lot [2]float64
		for k := range does {
			which := (i + k) % 2 // each is the first one as often
			begin := time.Now()
			does[which](b)
			lot[which] = float64(time.Since(begin))
			took[which] = append(took[which], lot[which])
		}
		ratios = append(ratios, lot[0]/lot[1])
	}
	b.ReportMetric(0, "ns/op") // it is the time of both
	return time.Duration(median(took[0])), time.Duration(median(took[1])), median(ratios)
}

// bare is a connection of which a benchmark takes the queues to itself.
type bare struct {
	b   *testing.B
	c   *Conn
	wcs [4]uverbs.WC
}

// bareEnds connects two.
func bareEnds(b *testing.B) (client, server *bare) {
	one, other := benchConns(b, ConnOptions{KeepAlive: -1, Depth: firstDepth}) // all of its memory is there
	for _, c := range []*Conn{one, other} {
		if err := c.sendMemory(); err != nil { // nobody else is there yet
			b.Fatal(err)
		}
	}
	return &bare{b: b, c: one}, &bare{b: b, c: other}
}

// post posts a work request.
func (e *bare) post(wr uverbs.SendWR) {
	if err := e.c.qp.PostSend(wr); err != nil {
		e.b.Fatal(err)
	}
}

// await polls until so many have completed: receives, which are posted again, or else what was sent.
func (e *bare) await(n int, receives bool) {
	for n > 0 {
		k, err := e.c.cq.Poll(e.wcs[:min(n, len(e.wcs))]) // no more than the caller counts
		if err != nil {
			e.b.Fatal(err)
		}
		for _, wc := range e.wcs[:k] {
			if err := wc.Err(); err != nil {
				e.b.Fatal(err)
			}
			received := wc.ID&recvBit != 0
			if received == receives {
				n--
			}
			if !received {
				continue
			}
			if err := e.c.postRecv(int(wc.ID &^ recvBit)); err != nil {
				e.b.Fatal(err)
			}
		}
	}
}

// BenchmarkPingPong sends 64 bytes there and back over a Conn and, in turn with it, over the same
// kind of QPs by the verbs alone, and prints the median of the ratios of the times.
func BenchmarkPingPong(b *testing.B) {
	const size = 64
	const lot = 100 // there and back
	for _, wait := range waits {
		b.Run(wait.String(), func(b *testing.B) {
			ctx := context.Background()
			client, server := benchConns(b, ConnOptions{Tuning: Tuning{Wait: wait}})
			bareClient, bareServer := bareEnds(b)
			msg := make([]byte, size)
			conn := func(b *testing.B) {
				for range lot {
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
			}
			send := func(e *bare) {
				e.post(uverbs.SendWR{Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{e.c.out.sge(0, size)}})
			}
			verbs := func(*testing.B) {
				for range lot {
					send(bareClient)
					bareServer.await(1, true)
					send(bareServer)
					bareClient.await(1, true)
				}
			}
			ours, raw, ratio := inTurn(b, conn, verbs)
			b.ReportMetric(float64(ours)/lot, "ns/pingpong")
			b.ReportMetric(float64(raw)/lot, "ns/verbs")
			b.ReportMetric(ratio, "x-verbs")
			if wait != WaitPark { // as the verbs do
				testenv.Limit(b, pingPongMost, ratio, 1)
			}
		})
	}
}

// BenchmarkStream writes 1 MiB at a time to a Stream and, in turn with it, by RDMA WRITE, of which
// as many as a lot has are queued, and prints the bandwidths and the median of their ratios. TCP over
// the same network interfaces is there to compare with.
func BenchmarkStream(b *testing.B) {
	b.Run("Stream", func(b *testing.B) {
		client, server := benchConns(b, ConnOptions{})
		testenv.Limit(b, streamLeast, besideWrite(b, client.Stream(), server.Stream()), -1)
	})
	for _, messages := range []int{16 << 10, 64 << 10} {
		b.Run(fmt.Sprintf("Stream, messages of %d KiB", messages>>10), func(b *testing.B) {
			client, server := benchConns(b, ConnOptions{MessageSize: messages})
			besideWrite(b, client.Stream(), server.Stream())
		})
	}
	b.Run("TCP", func(b *testing.B) {
		testenv.Guest(b)
		l, err := net.Listen("tcp", firstAny)
		if err != nil {
			b.Fatal(err)
		}
		defer l.Close()
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		defer client.Close()
		server, err := l.Accept()
		if err != nil {
			b.Fatal(err)
		}
		defer server.Close()
		besideWrite(b, client, server)
	})
}

// besideWrite compares writing to one end of a stream, and reading from the other, with RDMA
// WRITE, and returns the ratio of the bandwidths.
func besideWrite(b *testing.B, w io.Writer, r io.Reader) float64 {
	const size = 1 << 20
	const lot = 4 // writes of each in turn
	client, server := bareEnds(b)
	var mrs [2]*uverbs.MR
	for i, e := range []*bare{client, server} {
		buf, err := uverbs.AllocBuffer(size, uverbs.BufferOptions{})
		if err != nil {
			b.Fatal(err)
		}
		if mrs[i], err = e.c.PD().RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite}); err != nil {
			b.Fatal(err)
		}
		defer buf.Close()
		defer mrs[i].Close()
	}
	data, into := make([]byte, size), make([]byte, size)
	stream := func(b *testing.B) {
		written := make(chan error, 1)
		go func() {
			for range lot {
				if _, err := w.Write(data); err != nil {
					written <- err
					return
				}
			}
			written <- nil
		}()
		for range lot {
			if _, err := io.ReadFull(r, into); err != nil {
				b.Fatal(err)
			}
		}
		if err := <-written; err != nil {
			b.Fatal(err)
		}
	}
	write := func(*testing.B) {
		for range lot {
			client.post(uverbs.SendWR{Opcode: uverbs.WRRDMAWrite, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{mrs[0].SGE(0, size)},
				RemoteAddr: mrs[1].Addr(), RKey: mrs[1].RKey()})
		}
		client.await(lot, false)
	}
	ours, raw, ratio := inTurn(b, stream, write)
	bandwidth := func(d time.Duration) float64 { return lot * size / (1 << 20) / d.Seconds() }
	b.ReportMetric(bandwidth(ours), "MiB/s")
	b.ReportMetric(bandwidth(raw), "MiB/s-of-WRITE")
	b.ReportMetric(1/ratio, "x-WRITE")
	return 1 / ratio
}

// BenchmarkReads has 16 READs of 64 KiB in flight by one goroutine, by a Conn and, in turn with it, by the verbs
// alone, and prints the ratio of the bandwidths.
func BenchmarkReads(b *testing.B) {
	const size, deep, lot = 64 << 10, 16, 64
	ctx := context.Background()
	conn, peer := benchConns(b, ConnOptions{})
	client, server := bareEnds(b)
	near, far := registered(b, conn, peer)
	bareNear, bareFar := registered(b, client.c, server.c)
	reads := func(b *testing.B) {
		var ops [deep]Op
		for i := range lot + deep {
			var err error
			if i >= deep {
				err = ops[i%deep].Wait(ctx)
			}
			if err == nil && i < lot {
				ops[i%deep], err = conn.StartRead(ctx, near.SGE(0, size), RemoteOf(far))
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	bare := func(*testing.B) {
		for i := range lot + deep {
			if i >= deep {
				client.await(1, false)
			}
			if i < lot {
				client.post(uverbs.SendWR{Opcode: uverbs.WRRDMARead, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{bareNear.SGE(0, size)},
					RemoteAddr: bareFar.Addr(), RKey: bareFar.RKey()})
			}
		}
	}
	ours, raw, ratio := inTurn(b, reads, bare)
	b.ReportMetric(lot*size/(1<<20)/ours.Seconds(), "MiB/s")
	b.ReportMetric(lot*size/(1<<20)/raw.Seconds(), "MiB/s-of-verbs")
	b.ReportMetric(1/ratio, "x-verbs")
}
