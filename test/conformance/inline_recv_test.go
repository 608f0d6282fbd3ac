package conformance

import (
	"bytes"
	"slices"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// TestInlineRecv checks that short messages that the device puts into completions reach their
// buffers, on a receive queue and on an SRQ, with completions of both sizes, in several SGEs.
func TestInlineRecv(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink, testenv.SpecialCard)
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "inline receives", "mlx5")
		for _, size := range []int{64, 128} {
			for _, shared := range []bool{false, true} {
				dev := openDevice(t, deviceName)
				s := newSide(t, dev, uverbs.QPOptions{})
				cq, err := dev.CreateCQ(uverbs.CQOptions{MaxCQE: 16, CQESize: size})
				must(t, err)
				closeLater(t, cq)
				o := uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, MaxRecvSGE: 3, InlineRecv: true, SignalAll: true, Path: uverbs.PathOptions{GID: uverbs.GIDAt(ipv4Index)}}
				if shared {
					o.SRQ, err = s.pd.CreateSRQ(uverbs.SRQOptions{MaxSGE: 3})
					must(t, err)
					closeLater(t, o.SRQ)
					o.MaxRecvSGE = 0
				}
				qp, err := s.pd.CreateQP(o)
				must(t, err)
				closeLater(t, qp)
				s.cq, s.qp = cq, qp
				e, err := qp.Endpoint()
				must(t, err, qp.Connect(t.Context(), e))
				for n := range 80 {
					want := slices.Clone(s.fill(0, n, byte(n)))
					clear(s.buf.Bytes()[4096:8192])
					sgl := []uverbs.SGE{s.mr.SGE(4096, 10), s.mr.SGE(5000, 3), s.mr.SGE(6000, 100)}
					if shared {
						must(t, o.SRQ.PostRecv(7, sgl...))
					} else {
						must(t, qp.PostRecv(7, sgl...))
					}
					must(t, qp.PostSend(send(1, s.mr.SGE(0, n))))
					for range 2 {
						if wc := s.next(t); wc.Err() != nil || wc.Opcode == uverbs.WCRecv && (wc.ID != 7 || int(wc.ByteLen) != n) {
							t.Fatalf("%d bytes: %v, %+v", n, qp.Err(&wc), wc)
						}
					}
					got := slices.Concat(s.buf.Bytes()[4096:4106], s.buf.Bytes()[5000:5003], s.buf.Bytes()[6000:6100])[:n]
					if !bytes.Equal(got, want) {
						t.Fatalf("size %d, shared %v: %d bytes are %x, want %x", size, shared, n, got, want)
					}
					wr := send(2, s.mr.SGE(4096, n))
					wr.Opcode, wr.RemoteAddr, wr.RKey = uverbs.WRRDMARead, s.mr.Addr(), s.mr.RKey()
					must(t, qp.PostSend(wr))
					if wc := s.next(t); wc.Err() != nil {
						t.Fatalf("READ of %d bytes: %v", n, qp.Err(&wc))
					}
					s.holds(t, 4096, want)
				}
			}
		}
	})
}
