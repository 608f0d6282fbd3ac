package rsocket

import (
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/internal/protocol"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// bandwidthLeast is a limit of the ratio that BenchmarkBandwidth prints.
const bandwidthLeast = "GOVERBS_RSOCKET_LEAST"

// BenchmarkBandwidth writes 1 MiB at a time through a connection, and the same by bare RDMA WRITE on its
// queues, in turn. It prints the median of the ratios of the bandwidths.
func BenchmarkBandwidth(b *testing.B) {
	const size, times = 1 << 20, 32
	for _, buffer := range []int{128 << 10, 1 << 20, 4 << 20} {
		b.Run(fmt.Sprintf("%d KiB buffers", buffer>>10), func(b *testing.B) {
			o := Options{RecvBuffer: buffer, SendBuffer: buffer, Mappings: 1}
			l := newListener(b, o)
			client, server, err := connect(l, o)
			must(b, err)
			c := client.(*Conn).c
			m, err := server.(*Conn).Map(size, 0)
			must(b, err)
			_, err = server.Write(make([]byte, 1))
			must(b, err)
			_, err = io.ReadFull(client, make([]byte, 1))
			must(b, err)
			src, err := protocol.Register(c.PD, size, 0)
			must(b, err)
			data, sink := make([]byte, size), make([]byte, size)
			stream := func() {
				done := make(chan error, 1)
				go func() {
					for range times {
						if _, err := io.ReadFull(server, sink); err != nil {
							done <- err
							return
						}
					}
					done <- nil
				}()
				for range times {
					_, err := client.Write(data)
					must(b, err)
				}
				must(b, <-done)
			}
			bare := func() {
				const most = 4 // on the way at a time
				c.Mu.Lock()
				defer c.Mu.Unlock()
				to := c.mappedAt(0)
				for range times {
					must(b, c.Wait(&c.Writer, func() bool { return c.Slots > c.SendDepth-most }))
					c.Slots--
					s := c.QP.BeginSend()
					s.Write(protocol.IDData, uverbs.SendSignaled, to.addr, to.key)
					s.SGE(src.MR.SGE(0, size))
					c.Post(s)
				}
				must(b, c.Wait(&c.Writer, c.AllSent), c.Err)
			}
			var ratios []float64
			stream()
			bare()
			for b.Loop() {
				begin := time.Now()
				stream()
				middle := time.Now()
				bare()
				ratios = append(ratios, float64(time.Since(middle))/float64(middle.Sub(begin)))
			}
			slices.Sort(ratios)
			b.ReportMetric(ratios[len(ratios)/2], "x-WRITE")
			testenv.Limit(b, bandwidthLeast, ratios[len(ratios)/2], -1)
			b.ReportMetric(0, "ns/op") // it is the time of both
			must(b, src.Close(), m.Close(), client.Close(), server.Close())
		})
	}
}
