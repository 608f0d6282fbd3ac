package siw

import (
	"fmt"
	"testing"

	"github.com/goverbs/goverbs/mmio/internal/ringbench"
)

// benchSizes are the numbers of entries per batch.
var benchSizes = []int{1, 16, 64}

// perEntry reports the time per entry of a batch.
func perEntry(b *testing.B, n int) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/entry")
}

// drop has the kernel be done with n elements.
func (p *peer) drop(n int) {
	for range n {
		*p.word(p.at) = 0
		p.at++
	}
}

func BenchmarkPostSend(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p, q := newSend(b, 128)
			b.ReportAllocs()
			for b.Loop() {
				if !q.Room(n) {
					b.Fatal("no room")
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
				p.drop(n)
			}
			perEntry(b, n)
		})
	}
}

func BenchmarkPostRecv(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p, q := newRecv(b, 128)
			b.ReportAllocs()
			for b.Loop() {
				if !q.Room(n) {
					b.Fatal("no room")
				}
				for i := range n {
					s := q.Slot(i)
					s.Start(uint64(i))
					if err := s.AddSGE(0x2000, 64, 9); err != nil {
						b.Fatal(err)
					}
				}
				q.Publish(n)
				p.drop(n)
			}
			perEntry(b, n)
		})
	}
}

func BenchmarkPoll(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p, q := newComp(b, 128)
			b.ReportAllocs()
			var sum uint64
			for b.Loop() {
				for i := range uint32(n) {
					*p.word(p.at + i) = flagValid | uint32(Recv)<<8
				}
				p.at += uint32(n)
				for {
					c, ok := q.Next()
					if !ok {
						break
					}
					sum += c.WRID() + uint64(c.Status()) + uint64(c.Opcode()) + uint64(c.ByteLen()) + uint64(c.QPN())
					q.Release()
				}
			}
			perEntry(b, n)
			_ = sum
		})
	}
}

// BenchmarkPostPoll posts WRITEs of one entry and polls for their completions. The doorbell, which is a call
// of the kernel, is not in it.
func BenchmarkPostPoll(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			sends, sq := newSend(b, 128)
			comps, cq := newComp(b, 128)
			var sum uint64
			ringbench.PostPoll(b, n, func(n int) {
				if !sq.Room(n) {
					b.Fatal("no room")
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
				sends.drop(n)
				for i := range uint32(n) {
					*comps.word(comps.at + i) = flagValid | uint32(Write)<<8
				}
				comps.at += uint32(n)
			}, func(n int) {
				for range n {
					c, ok := cq.Next()
					if !ok {
						b.Fatal("no completion")
					}
					sum += c.WRID() + uint64(c.Status()) + uint64(c.Opcode()) + uint64(c.ByteLen()) + uint64(c.QPN())
					cq.Release()
				}
			})
			_ = sum
		})
	}
}
