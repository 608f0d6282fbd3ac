package rxe

import (
	"fmt"
	"testing"

	"github.com/goverbs/goverbs/mmio/internal/ringbench"
)

// benchSizes are the numbers of entries per batch.
var benchSizes = []int{1, 16, 64}

func BenchmarkPostSend(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := newPeer(9, 7)
			q := must[*SendQueue](b)(NewSendQueue(p.mem, 127, 4, 64))
			b.ReportAllocs()
			for b.Loop() {
				if ok, err := q.Room(n); !ok || err != nil {
					b.Fatal(ok, err)
				}
				for i := range n {
					s := q.Slot(i)
					s.Start(uint64(i), Write, Signaled)
					s.SetRDMA(0x1000, 7)
					if err := s.AddSGE(0x2000, 64, 9); err != nil {
						b.Fatal(err)
					}
				}
				q.Publish(n)
				p.setConsumer(p.producer()) // the kernel is done with it
			}
			perEntry(b, n)
		})
	}
}

// BenchmarkFillSend is the filling of slots alone, without indices.
func BenchmarkFillSend(b *testing.B) {
	p := newPeer(9, 7)
	q := must[*SendQueue](b)(NewSendQueue(p.mem, 127, 4, 64))
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		s := q.Slot(i & 63)
		s.Start(uint64(i), Write, Signaled)
		s.SetRDMA(0x1000, 7)
		if err := s.AddSGE(0x2000, 64, 9); err != nil {
			b.Fatal(err)
		}
		i++
	}
}

func BenchmarkPostRecv(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := newPeer(7, 7)
			q := must[*RecvQueue](b)(NewRecvQueue(p.mem, 127, 4))
			b.ReportAllocs()
			for b.Loop() {
				if ok, err := q.Room(n); !ok || err != nil {
					b.Fatal(ok, err)
				}
				for i := range n {
					s := q.Slot(i)
					s.Start(uint64(i))
					if err := s.AddSGE(0x2000, 64, 9); err != nil {
						b.Fatal(err)
					}
				}
				q.Publish(n)
				p.setConsumer(p.producer())
			}
			perEntry(b, n)
		})
	}
}

func BenchmarkPoll(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := newPeer(6, 7)
			q := must[*CompQueue](b)(NewCompQueue(p.mem, 127))
			var wcs [64]wc
			b.ReportAllocs()
			for b.Loop() {
				p.index = (p.index + uint32(n)) & p.mask
				p.setProducer(p.index) // the kernel has written n
				if got, err := q.Avail(); got != n || err != nil {
					b.Fatal(got, err)
				}
				for i := range n {
					read(&wcs[i], q.Entry(i))
				}
				q.Release(n)
			}
			perEntry(b, n)
		})
	}
}

// perEntry reports the time per entry of a batch.
func perEntry(b *testing.B, n int) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/entry")
}

// BenchmarkPostPoll posts WRITEs of one entry and polls for their completions. The doorbell, which is a call
// of the kernel, is not in it.
func BenchmarkPostPoll(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			sends, comps := newPeer(9, 7), newPeer(6, 7)
			sq := must[*SendQueue](b)(NewSendQueue(sends.mem, 127, 4, 64))
			cq := must[*CompQueue](b)(NewCompQueue(comps.mem, 127))
			var wcs [ringbench.InFlight]wc
			ringbench.PostPoll(b, n, func(n int) {
				if ok, err := sq.Room(n); !ok || err != nil {
					b.Fatal(ok, err)
				}
				for i := range n {
					s := sq.Slot(i)
					s.Start(uint64(i), Write, Signaled)
					s.SetRDMA(0x1000, 7)
					if err := s.AddSGE(0x2000, 64, 9); err != nil {
						b.Fatal(err)
					}
				}
				sq.Publish(n)
			}, func(n int) {
				sends.setConsumer(sends.producer())
				comps.index = (comps.index + uint32(n)) & comps.mask
				comps.setProducer(comps.index)
			}, func(n int) {
				if got, err := cq.Avail(); got < n || err != nil {
					b.Fatal(got, err)
				}
				for i := range n {
					read(&wcs[i], cq.Entry(i))
				}
				cq.Release(n)
			})
		})
	}
}
