//go:build amd64 || arm64

package uverbs

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// sendRig is a QP of a driver in RTS whose send ring is plain memory of the test.
type sendRig struct {
	qp   *QP
	ring []byte        // the elements
	room int           // work requests that fit
	next func() uint32 // work requests that were published
	take func()        // completes all that were published
}

// eachSendRig runs a test on each driver. Every call of fresh makes a QP.
func eachSendRig(t *testing.T, test func(t *testing.T, fresh func() *sendRig)) {
	for name, fresh := range map[string]func(t *testing.T) *sendRig{
		"rxe": func(t *testing.T) *sendRig {
			r := newQuietRig(t, 3)
			return &sendRig{r.qp, r.sq.mem[ringData:], 7, func() uint32 { return r.sq.get(ringProducer) }, r.sq.take}
		},
		"mlx5": func(t *testing.T) *sendRig {
			c := newMlx5Card(t, true, false, 64)
			x := &c.qp.mlx5
			ring := c.qp.sqRegion.Bytes()[x.recv.Bytes():][:x.send.Bytes()]
			return &sendRig{c.qp, ring, c.qp.Caps().MaxSendWR, func() uint32 {
				var n uint32
				for id := range uint64(2 * cardCQEs) {
					if _, ok := c.qp.mlx5.sq.Find(id); ok {
						n++
					}
				}
				return n
			}, func() {
				sq := c.qp.mlx5.sq
				for block := range uint16(4 * x.send.Blocks) {
					sq.Complete(block)
				}
			}}
		},
		"siw": func(t *testing.T) *sendRig {
			r := newSiwRig(t)
			return &sendRig{r.qp, r.sq, siwRigSize, func() uint32 {
				var n uint32
				for i := range siwRigSize {
					if r.sq[i*siwSQESize+siwFlags]&siwValid != 0 {
						n++
					}
				}
				return n
			}, func() {
				for more := true; more; {
					_, _, _, more = r.take()
				}
			}}
		},
	} {
		t.Run(name, func(t *testing.T) { test(t, func() *sendRig { return fresh(t) }) })
	}
}

// TestBuilderFull: a batch of the builder fills the ring and not one element more, whether the ring
// is empty or partly filled. A batch that does not fit is not posted in part.
func TestBuilderFull(t *testing.T) {
	eachSendRig(t, func(t *testing.T, fresh func() *sendRig) {
		for first := range fresh().room + 1 {
			r, id := fresh(), uint64(0)
			batch := func(n int) error {
				b := r.qp.BeginSend()
				for range n {
					if id%3 == 0 {
						b.Send(id, 0)
					} else {
						b.SendSGE(id, 0, SGE{Length: 1})
					}
					id++
				}
				return b.Post()
			}
			must(t, batch(first))
			before, published := bytes.Clone(r.ring), r.next()
			more := r.room - first + 1
			err := batch(more)
			arg, ok := errors.AsType[*ArgError](err)
			switch {
			case first == 0 && (!ok || arg.Given != fmt.Sprint(more) || arg.Allowed != fmt.Sprintf("up to %d, the size of the queue", r.room)):
				t.Errorf("%d work requests in an empty queue of %d: %v, want an ArgError with both numbers", more, r.room, err)
			case first > 0 && err != ErrQueueFull:
				t.Errorf("%d work requests after %d in a queue of %d: %v, want ErrQueueFull", more, first, r.room, err)
			}
			if r.next() != published || first == r.room && !bytes.Equal(r.ring, before) {
				t.Errorf("%d work requests after %d in a queue of %d: the ring has changed", more, first, r.room)
			}
			if err := batch(more - 1); err != nil {
				t.Errorf("%d work requests after %d in a queue of %d: %v", more-1, first, r.room, err)
			}
		}
	})
}

// TestBuilderOperations: what a method of the builder puts into the ring is what PostSend does, byte
// by byte, and can be read back.
func TestBuilderOperations(t *testing.T) {
	const raddr, rkey, imm, id = 0x1000_2008, 0x3344, 0xc0c1c2c3, 7
	sge := SGE{Addr: 0x7000, Length: 8, LKey: 0x9}
	data := []byte("12345678")
	value := [8]byte{1, 2, 3, 4, 5, 6, 7, 8}
	remote := fmt.Sprintf(", remote address %#x with rkey %#x", raddr, rkey)
	const local = ", SGE 0 0x7000+8 with lkey 0x9"
	cases := []struct {
		name  string
		build func(b *SendBuilder)
		wr    SendWR
		want  string // what is read back
	}{
		{"Send", func(b *SendBuilder) { b.Send(id, SendSignaled); b.SGE(sge) },
			SendWR{Opcode: WRSend, Flags: SendSignaled, SGL: []SGE{sge}}, "SEND of 8 bytes" + local},
		{"Send inline", func(b *SendBuilder) { b.Send(id, SendSolicited); b.Inline(data) },
			SendWR{Opcode: WRSend, Flags: SendSolicited, Inline: data}, "SEND of 8 bytes"},
		{"Send inline in pieces", func(b *SendBuilder) { b.Send(id, 0); b.Inline(data[:3]); b.Inline(data[3:]) },
			SendWR{Opcode: WRSend, Inline: data}, "SEND of 8 bytes"},
		{"SGEs one by one", func(b *SendBuilder) { b.Send(id, 0); b.SGE(sge); b.SGE(sge) },
			SendWR{Opcode: WRSend, SGL: []SGE{sge, sge}}, "SEND of 16 bytes" + local + ", SGE 1 0x7000+8 with lkey 0x9"},
		{"SendImm", func(b *SendBuilder) { b.SendImm(id, SendFence, imm); b.SGE(sge) },
			SendWR{Opcode: WRSendWithImm, Flags: SendFence, Imm: imm, SGL: []SGE{sge}}, "SEND_WITH_IMM of 8 bytes" + local},
		{"SendInv", func(b *SendBuilder) { b.SendInv(id, 0, rkey); b.SGE(sge) },
			SendWR{Opcode: WRSendWithInv, InvalidateRKey: rkey, SGL: []SGE{sge}}, "SEND_WITH_INV of 8 bytes"},
		{"Write", func(b *SendBuilder) { b.Write(id, 0, raddr, rkey); b.SGE(sge) },
			SendWR{Opcode: WRRDMAWrite, RemoteAddr: raddr, RKey: rkey, SGL: []SGE{sge}}, "RDMA_WRITE of 8 bytes" + remote + local},
		{"WriteImm", func(b *SendBuilder) { b.WriteImm(id, 0, raddr, rkey, imm); b.Inline(data) },
			SendWR{Opcode: WRRDMAWriteWithImm, RemoteAddr: raddr, RKey: rkey, Imm: imm, Inline: data}, "RDMA_WRITE_WITH_IMM of 8 bytes" + remote},
		{"Read", func(b *SendBuilder) { b.Read(id, 0, raddr, rkey); b.SGE(sge) },
			SendWR{Opcode: WRRDMARead, RemoteAddr: raddr, RKey: rkey, SGL: []SGE{sge}}, "RDMA_READ of 8 bytes" + remote + local},
		{"ReadInv", func(b *SendBuilder) { b.ReadInv(id, 0, raddr, rkey); b.SGE(sge) },
			SendWR{Opcode: WRRDMAReadWithInv, RemoteAddr: raddr, RKey: rkey, SGL: []SGE{sge}}, "RDMA_READ_WITH_INV of 8 bytes" + remote + local},
		{"CompareSwap", func(b *SendBuilder) { b.CompareSwap(id, 0, raddr, rkey, 1<<40, 2<<40); b.SGE(sge) },
			SendWR{Opcode: WRCompareSwap, RemoteAddr: raddr, RKey: rkey, CompareAdd: 1 << 40, Swap: 2 << 40, SGL: []SGE{sge}}, "ATOMIC_CMP_AND_SWP of 8 bytes" + remote + local},
		{"FetchAdd", func(b *SendBuilder) { b.FetchAdd(id, 0, raddr, rkey, 1<<40); b.SGE(sge) },
			SendWR{Opcode: WRFetchAdd, RemoteAddr: raddr, RKey: rkey, CompareAdd: 1 << 40, SGL: []SGE{sge}}, "ATOMIC_FETCH_AND_ADD of 8 bytes" + remote + local},
		{"AtomicWrite", func(b *SendBuilder) { b.AtomicWrite(id, 0, raddr, rkey, value) },
			SendWR{Opcode: WRAtomicWrite, RemoteAddr: raddr, RKey: rkey, Inline: value[:]}, "ATOMIC_WRITE of 8 bytes" + remote},
		{"Flush", func(b *SendBuilder) { b.Flush(id, 0, raddr, 4096, rkey, FlushPersistent, FlushMR) },
			SendWR{Opcode: WRFlush, RemoteAddr: raddr, RKey: rkey, Length: 4096, Placement: FlushPersistent, Level: FlushMR}, "FLUSH of 4096 bytes" + remote},
		{"LocalInv", func(b *SendBuilder) { b.LocalInv(id, 0, rkey) },
			SendWR{Opcode: WRLocalInv, InvalidateRKey: rkey}, "LOCAL_INV of 0 bytes"},
		{"SendInline", func(b *SendBuilder) { b.SendInline(id, SendSignaled, data) },
			SendWR{Opcode: WRSend, Flags: SendSignaled, Inline: data}, "SEND of 8 bytes"},
		{"SendInline of nothing", func(b *SendBuilder) { b.SendInline(id, 0, nil) }, SendWR{Opcode: WRSend}, "SEND of 0 bytes"},
		{"SendSGE", func(b *SendBuilder) { b.SendSGE(id, SendFence, sge) },
			SendWR{Opcode: WRSend, Flags: SendFence, SGL: []SGE{sge}}, "SEND of 8 bytes" + local},
		{"WriteInline", func(b *SendBuilder) { b.WriteInline(id, SendSolicited, raddr, rkey, data) },
			SendWR{Opcode: WRRDMAWrite, Flags: SendSolicited, RemoteAddr: raddr, RKey: rkey, Inline: data}, "RDMA_WRITE of 8 bytes" + remote},
		{"WriteSGE", func(b *SendBuilder) { b.WriteSGE(id, 0, raddr, rkey, sge) },
			SendWR{Opcode: WRRDMAWrite, RemoteAddr: raddr, RKey: rkey, SGL: []SGE{sge}}, "RDMA_WRITE of 8 bytes" + remote + local},
		{"ReadSGE", func(b *SendBuilder) { b.ReadSGE(id, SendSignaled, raddr, rkey, sge) },
			SendWR{Opcode: WRRDMARead, Flags: SendSignaled, RemoteAddr: raddr, RKey: rkey, SGL: []SGE{sge}}, "RDMA_READ of 8 bytes" + remote + local},
	}
	eachSendRig(t, func(t *testing.T, fresh func() *sendRig) {
		tried := 0
		for _, c := range cases {
			built, posted := fresh(), fresh()
			if !built.qp.ops[c.wr.Opcode] {
				continue
			}
			tried++
			b := built.qp.BeginSend()
			c.build(b)
			must(t, b.Post())
			c.wr.ID = id
			must(t, posted.qp.PostSend(c.wr))
			if diff := cmp.Diff(posted.ring, built.ring); diff != "" {
				t.Errorf("%s: the ring differs from what PostSend writes (-PostSend +builder):\n%s", c.name, diff)
			}
			if built.next() != posted.next() || built.next() == 0 {
				t.Errorf("%s: index %d, PostSend has %d", c.name, built.next(), posted.next())
			}
			if got := built.qp.request(built.qp.sent(id)).String(); !strings.HasPrefix(got, c.want) || c.want == "" {
				t.Errorf("%s: %q is in the ring, want %q", c.name, got, c.want)
			}
		}
		if tried < 15 {
			t.Errorf("the driver has only %d of the operations", tried)
		}
	})
}

// TestBuilderWhole: a batch of calls that add a whole work request, of those that begin one, or of both, is
// what PostSend of a list posts, wherever in the ring it begins. A batch that was abandoned, or is in
// progress when PostSend is called, leaves nothing.
func TestBuilderWhole(t *testing.T) {
	data := []byte("forty bytes, which are more than a block")
	sge := SGE{Addr: 0x7000, Length: 8, LKey: 0x9}
	eachSendRig(t, func(t *testing.T, fresh func() *sendRig) {
		built, posted := fresh(), fresh()
		for round := range 3 * built.room {
			b := built.qp.BeginSend()
			switch round % 3 {
			case 0:
				b.SendInline(99, 0, data)
				b.SendSGE(98, SendFence, sge)
				b.Abandon()
				b = built.qp.BeginSend()
			case 1:
				if round%2 == 0 {
					b.WriteSGE(97, 0, 1, 2, sge)
				}
				must(t, built.qp.PostSend(SendWR{ID: 50, Opcode: WRSend}))
				must(t, posted.qp.PostSend(SendWR{ID: 50, Opcode: WRSend}))
				b = built.qp.BeginSend()
			}
			b.SendInline(1, SendSignaled, data)
			if round%2 == 0 {
				b.Send(2, 0)
				b.SGE(sge)
			} else {
				b.SendSGE(2, 0, sge)
			}
			b.ReadSGE(3, 0, 5, 6, sge)
			must(t, b.Post())
			must(t, posted.qp.PostSend(SendWR{ID: 1, Opcode: WRSend, Flags: SendSignaled, Inline: data},
				SendWR{ID: 2, Opcode: WRSend, SGL: []SGE{sge}}, SendWR{ID: 3, Opcode: WRRDMARead, RemoteAddr: 5, RKey: 6, SGL: []SGE{sge}}))
			if built.next() != posted.next() {
				t.Fatalf("round %d: index %d, PostSend has %d", round, built.next(), posted.next())
			}
			for id := range uint64(4) {
				got, want := built.qp.sent(id), posted.qp.sent(id)
				if diff := cmp.Diff(want, got, cmp.AllowUnexported(sentWR{}), cmp.AllowUnexported(SGE{})); diff != "" || (got == nil) != (id == 0) {
					t.Fatalf("round %d: request %d differs from that of PostSend (-PostSend +builder):\n%s", round, id, diff)
				}
			}
			for _, r := range []*sendRig{built, posted} {
				r.take()
			}
		}
	})
}

// TestBuilderWholeRefuses: a call that adds a whole work request refuses what the calls that begin one and add
// to it refuse, and nothing can be added to it. The batch is not posted.
func TestBuilderWholeRefuses(t *testing.T) {
	sge := SGE{Addr: 0x7000, Length: 8, LKey: 0x9}
	for name, c := range map[string]struct {
		build func(b *SendBuilder)
		index int
		want  error
	}{
		"flags":        {func(b *SendBuilder) { b.SendInline(1, 8, []byte{1}) }, 0, errSendFlags},
		"flags of SGE": {func(b *SendBuilder) { b.SendSGE(1, 0, sge); b.WriteSGE(2, 0x80, 1, 2, sge) }, 1, errSendFlags},
		"outside":      {func(b *SendBuilder) { b.SendSGE(1, 0, sge); b.SendSGE(2, 0, SGE{outside: true}) }, 1, ErrSGERange},
		"too long":     {func(b *SendBuilder) { b.SendSGE(1, 0, sge); b.WriteInline(2, 0, 1, 2, make([]byte, 1000)) }, 1, ErrInlineTooLong},
		"SGE later":    {func(b *SendBuilder) { b.SendSGE(1, 0, sge); b.SGE(sge) }, 1, errNothingBegun},
		"inline later": {func(b *SendBuilder) { b.Send(1, 0); b.SendInline(2, 0, []byte{1}); b.Inline([]byte{2}) }, 2, errNothingBegun},
	} {
		t.Run(name, func(t *testing.T) {
			eachSendRig(t, func(t *testing.T, fresh func() *sendRig) {
				r := fresh()
				b := r.qp.BeginSend()
				c.build(b)
				b.SendSGE(9, 0, sge)
				err := b.Post()
				p, ok := errors.AsType[*PostError](err)
				if !ok || p.Index != c.index || !errors.Is(err, c.want) {
					t.Errorf("%v, want work request %d and %v", err, c.index, c.want)
				}
				if r.next() != 0 {
					t.Error("something was posted")
				}
				must(t, r.qp.PostSend(SendWR{ID: 1, Opcode: WRSend}))
				if r.next() == 0 {
					t.Error("nothing can be posted afterwards")
				}
			})
		})
	}
	q := newMlx5Card(t, true, false, 64).qp
	b := q.BeginSend()
	b.SendSGE(1, 0, sge)
	q.resets.Add(1)
	q.mlx5.sq.Reset()
	b.SendInline(2, 0, []byte{1})
	errorIs(t, b.Post(), ErrState, "a batch during which the QP was reset")
	must(t, q.PostSend(SendWR{ID: 3, Opcode: WRSend}))
	if _, _, ok := q.mlx5.sq.Complete(0); !ok {
		t.Error("after the reset nothing is in the first block")
	}
}

// TestBuilderRoom: PostSend drops a batch that was begun, even an empty one, so that what is added to it
// afterwards finds the queue full.
func TestBuilderRoom(t *testing.T) {
	eachSendRig(t, func(t *testing.T, fresh func() *sendRig) {
		r := fresh()
		b := r.qp.BeginSend()
		for range r.room {
			must(t, r.qp.PostSend(SendWR{Opcode: WRSend}))
		}
		b.SendSGE(1, 0, SGE{Length: 1})
		errorIs(t, b.Post(), ErrQueueFull, "a request for which PostSend has left no room")
	})
}
