package conformance

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// TestInlineRecv checks that short messages that the device puts into completions reach their
// buffers, on a receive queue and on an SRQ, with completions of both sizes, in several SGEs, and that the
// answers of RDMA READ and atomics do.
func TestInlineRecv(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink, testenv.SpecialCard)
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "inline receives", "mlx5")
		for _, size := range []int{64, 128} {
			for _, shared := range []bool{false, true} {
				dev := openDevice(t, deviceName)
				s := newSide(t, dev, uverbs.QPOptions{})
				cq, err := dev.CreateCQ(uverbs.CQOptions{Size: 16, CQESize: size})
				must(t, err)
				closeLater(t, cq)
				o := uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, MaxSendSGE: 3, MaxRecvSGE: 3, InlineRecv: true, SignalAll: true, Path: uverbs.PathOptions{GIDIndex: new(ipv4Index)}}
				if shared {
					o.SRQ, err = s.pd.CreateSRQ(uverbs.SRQOptions{MaxSGE: 3})
					must(t, err)
					closeLater(t, o.SRQ)
					o.MaxRecvSGE = 0
				}
				qp, err := s.pd.CreateQP(o)
				must(t, err)
				closeLater(t, qp)
				s.cq, s.qp = cq, &queuePair{QP: qp}
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
					sgl = slices.Clone(sgl)
					for i, left := 0, n; i < len(sgl); i++ { // a READ has SGEs for what it reads, no more
						sgl[i].Length = uint32(min(int(sgl[i].Length), left))
						left -= int(sgl[i].Length)
					}
					wr := send(2, s.mr.SGE(4096, n))
					wr.Opcode, wr.RemoteAddr, wr.RKey = uverbs.WRRDMARead, s.mr.Addr(), s.mr.RKey()
					must(t, qp.PostSend(wr))
					if wc := s.next(t); wc.Err() != nil {
						t.Fatalf("READ of %d bytes: %v", n, qp.Err(&wc))
					}
					s.holds(t, 4096, want)
					clear(s.buf.Bytes()[4096:8192])
					wr.SGL = sgl
					must(t, qp.PostSend(wr))
					if wc := s.next(t); wc.Err() != nil {
						t.Fatalf("READ of %d bytes into %d SGEs: %v", n, len(sgl), qp.Err(&wc))
					}
					if got := slices.Concat(s.buf.Bytes()[4096:4106], s.buf.Bytes()[5000:5003], s.buf.Bytes()[6000:6100]); !bytes.Equal(got[:n], want) {
						t.Fatalf("READ into %d SGEs: %d bytes are %x, want %x", len(sgl), n, got[:n], want)
					}
				}
				if lacksAtomics(t, dev) {
					continue
				}
				binary.NativeEndian.PutUint64(s.buf.Bytes(), 1<<40)
				for i := range uint64(2) {
					must(t, qp.PostSend(uverbs.SendWR{
						ID: 3, Opcode: uverbs.WRFetchAdd, RemoteAddr: s.mr.Addr(), RKey: s.mr.RKey(), CompareAdd: 5,
						SGL: []uverbs.SGE{s.mr.SGE(4096, 8)},
					}))
					s.want(t, 3, uverbs.WCFetchAdd)
					if got := binary.NativeEndian.Uint64(s.buf.Bytes()[4096:]); got != 1<<40+5*i {
						t.Errorf("size %d: addition %d was told %#x", size, i, got)
					}
				}
			}
		}
	})
}
