package uverbs

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/mmio/rxe"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// sendSlotCase is a send and the fields that its slot in the ring must have, except for wr_id.
type sendSlotCase struct {
	name   string
	wr     SendWR
	sigAll bool
	tail   int // bytes of the slot's SGEs or inline data
	want   []slotField
}

// sendSlotCases returns sends of each kind with their slots.
func sendSlotCases() []sendSlotCase {
	opcode := func(v uint32) slotField { return slotField{"wr.opcode", 12, host32(v)} }
	flags := func(v uint32) slotField { return slotField{"wr.send_flags", 16, host32(v)} }
	imm := slotField{"wr.ex.imm_data", 20, wire32(0xc0c1c2c3)}
	remote := []slotField{
		{"wr.wr.rdma.remote_addr", 24, host64(0xe0e1e2e3e4e5e6e7)},
		{"wr.wr.rdma.rkey", 32, host32(0xf0f1f2f3)},
		{"iova", 152, host64(0xe0e1e2e3e4e5e6e7)},
	}
	one := []slotField{
		{"dma.length", 184, host32(0x10203)},
		{"dma.resid", 188, host32(0x10203)},
		{"dma.num_sge", 196, host32(1)},
		{"sge[0].addr", 208, host64(0xa0a1a2a3a4a5a6a7)},
		{"sge[0].length", 216, host32(0x10203)},
		{"sge[0].lkey", 220, host32(0xb0b1b2b3)},
	}
	sgl := []SGE{{Addr: 0xa0a1a2a3a4a5a6a7, Length: 0x10203, LKey: 0xb0b1b2b3}}
	data := []byte("carried in the slot")
	// full returns a request with every field set. Only the fields of its operation may reach the slot.
	full := func(op WROpcode, f SendFlags) SendWR {
		return SendWR{Opcode: op, Flags: f, SGL: sgl, Imm: 0xc0c1c2c3, RemoteAddr: 0xe0e1e2e3e4e5e6e7, RKey: 0xf0f1f2f3}
	}
	join := func(parts ...[]slotField) (all []slotField) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	return []sendSlotCase{
		{"SEND", full(WRSend, SendSignaled), false, 16, join([]slotField{opcode(2), flags(2)}, one)},
		{"SEND of nothing", SendWR{Opcode: WRSend}, false, 0, []slotField{opcode(2)}},
		{"all flags", full(WRSend, SendFence|SendSignaled|SendSolicited), false, 16, join([]slotField{opcode(2), flags(7)}, one)},
		{"SignalAll", full(WRSend, SendSolicited), true, 16, join([]slotField{opcode(2), flags(6)}, one)},
		{"SEND_WITH_IMM", full(WRSendWithImm, 0), false, 16, join([]slotField{opcode(3), imm}, one)},
		{"RDMA_WRITE", full(WRRDMAWrite, 0), false, 16, join([]slotField{opcode(0)}, remote, one)},
		{"RDMA_WRITE_WITH_IMM", full(WRRDMAWriteWithImm, 0), false, 16, join([]slotField{opcode(1), imm}, remote, one)},
		{"RDMA_READ", full(WRRDMARead, SendFence), false, 16, join([]slotField{opcode(4), flags(1)}, remote, one)},
		{"inline SEND", SendWR{Opcode: WRSend, Flags: SendSignaled, Inline: data}, false, len(data), []slotField{
			opcode(2), flags(2 | 8),
			{"dma.length", 184, host32(19)},
			{"dma.resid", 188, host32(19)},
			{"dma.inline_data", 208, data},
		}},
		{"inline RDMA_WRITE, unsignaled", SendWR{Opcode: WRRDMAWrite, Inline: data, RemoteAddr: 0xe0e1e2e3e4e5e6e7, RKey: 0xf0f1f2f3}, false, len(data), join(remote, []slotField{
			opcode(0), flags(8),
			{"dma.length", 184, host32(19)},
			{"dma.resid", 188, host32(19)},
			{"dma.inline_data", 208, data},
		})},
		{"three SGEs", SendWR{Opcode: WRSend, SGL: []SGE{{1 << 40, 1000, 40, false}, {2 << 40, 0, 41, false}, {3 << 40, 1, 42, false}}}, false, 48, []slotField{
			opcode(2),
			{"dma.length", 184, host32(1001)},
			{"dma.resid", 188, host32(1001)},
			{"dma.num_sge", 196, host32(3)},
			{"sge[0].addr", 208, host64(1 << 40)}, {"sge[0].length", 216, host32(1000)}, {"sge[0].lkey", 220, host32(40)},
			{"sge[1].addr", 224, host64(2 << 40)}, {"sge[1].length", 232, host32(0)}, {"sge[1].lkey", 236, host32(41)},
			{"sge[2].addr", 240, host64(3 << 40)}, {"sge[2].length", 248, host32(1)}, {"sge[2].lkey", 252, host32(42)},
		}},
	}
}

// TestPostSendBytes compares slots with struct rxe_send_wqe, byte by byte.
func TestPostSendBytes(t *testing.T) {
	id := slotField{"wr.wr_id", 0, host64(0x1122334455667788)}
	for _, c := range sendSlotCases() {
		t.Run(c.name, func(t *testing.T) {
			r := newPostRig(t, 3)
			if c.sigAll {
				r.qp.always = SendSignaled
			}
			c.wr.ID = 0x1122334455667788
			if err := r.qp.PostSend(c.wr); err != nil {
				t.Fatal(err)
			}
			if got := r.sq.get(ringProducer); got != 1 {
				t.Errorf("the producer index is %d, want 1", got)
			}
			checkSlot(t, r.sq.slot(0), sendSlotSize+c.tail, append(c.want, id))
			r.checkDoorbell(t)
		})
	}
}

// TestPostSendBatch: a batch is published at once, in order, around the end of the ring,
// with one doorbell, whether there is little data or much.
func TestPostSendBatch(t *testing.T) {
	r := newPostRig(t, 3)
	if err := r.qp.PostSend(); err != nil {
		t.Errorf("nothing: %v", err)
	}
	r.checkNothing(t, 0, 0)
	next := uint64(0)
	for _, n := range []int{1, 7, 5, 6, 7} {
		wrs := make([]SendWR, n)
		for i := range wrs {
			wrs[i] = SendWR{ID: next + uint64(i), Opcode: WRSend, SGL: []SGE{{Length: 8 << 10 * uint32(i%2+1)}}}
		}
		if err := r.qp.PostSend(wrs...); err != nil {
			t.Fatal(err)
		}
		r.checkDoorbell(t)
		for i := range uint64(n) {
			if got := binary.NativeEndian.Uint64(r.sq.slot(uint32(next + i))); got != next+i {
				t.Errorf("batch of %d: ID %d in the place of %d", n, got, next+i)
			}
		}
		next += uint64(n)
		if got, want := r.sq.get(ringProducer), uint32(next)&7; got != want {
			t.Errorf("batch of %d: the producer index is %d, want %d", n, got, want)
		}
		r.sq.take()
	}
}

// TestPostRecvBytes compares slots with struct rxe_recv_wqe. No doorbell is rung.
func TestPostRecvBytes(t *testing.T) {
	r := newPostRig(t, 3)
	r.qp.state.Store(uint32(ib.QPInit))
	sgl := []SGE{{Addr: 0xa0a1a2a3a4a5a6a7, Length: 0x10203, LKey: 0xb0b1b2b3}, {Addr: 1 << 40, Length: 1, LKey: 7}}
	two := []slotField{
		{"dma.length", 16, host32(0x10204)},
		{"dma.resid", 20, host32(0x10204)},
		{"dma.num_sge", 28, host32(2)},
		{"sge[0].addr", 40, host64(0xa0a1a2a3a4a5a6a7)},
		{"sge[0].length", 48, host32(0x10203)},
		{"sge[0].lkey", 52, host32(0xb0b1b2b3)},
		{"sge[1].addr", 56, host64(1 << 40)},
		{"sge[1].length", 64, host32(1)},
		{"sge[1].lkey", 68, host32(7)},
	}
	if err := r.qp.PostRecv(0x1122334455667788, sgl...); err != nil {
		t.Fatal(err)
	}
	r.checkNothing(t, 0, 1)
	if err := r.qp.PostRecvs(RecvWR{ID: 2}, RecvWR{ID: 3, SGL: sgl}); err != nil {
		t.Fatal(err)
	}
	r.checkNothing(t, 0, 3)
	if err := r.qp.PostRecvs(); err != nil {
		t.Fatal(err)
	}
	r.checkNothing(t, 0, 3)
	checkSlot(t, r.rq.slot(0), recvSlotSize+32, append(two, slotField{"wr_id", 0, host64(0x1122334455667788)}))
	checkSlot(t, r.rq.slot(1), recvSlotSize, []slotField{{"wr_id", 0, host64(2)}})
	checkSlot(t, r.rq.slot(2), recvSlotSize+32, append(two, slotField{"wr_id", 0, host64(3)}))
}

// sendsOf returns n empty SENDs.
func sendsOf(n int) []SendWR { return slices.Repeat([]SendWR{{Opcode: WRSend}}, n) }

// TestPostFull: a batch that does not fit is not posted in part, and one that never will
// is another error than one that may fit later.
func TestPostFull(t *testing.T) {
	send := sendsOf
	recv := func(n int) []RecvWR { return make([]RecvWR, n) }
	r := newPostRig(t, 3)
	if err := errors.Join(r.qp.PostSend(send(5)...), r.qp.PostRecvs(recv(5)...)); err != nil {
		t.Fatal(err)
	}
	r.checkDoorbell(t)
	for _, c := range []struct {
		name string
		post func() error
		arg  bool
	}{
		{"PostSend of 3", func() error { return r.qp.PostSend(send(3)...) }, false},
		{"PostRecvs of 3", func() error { return r.qp.PostRecvs(recv(3)...) }, false},
		{"PostSend of 7", func() error { return r.qp.PostSend(send(7)...) }, false},
		{"PostRecvs of 7", func() error { return r.qp.PostRecvs(recv(7)...) }, false},
		{"PostSend of 8", func() error { return r.qp.PostSend(send(8)...) }, true},
		{"PostRecvs of 8", func() error { return r.qp.PostRecvs(recv(8)...) }, true},
	} {
		err := c.post()
		if arg, ok := errors.AsType[*ArgError](err); ok != c.arg || ok && arg.Given != "8" {
			t.Errorf("%s: %v, want an ArgError: %v", c.name, err, c.arg)
		}
		if errors.Is(err, ErrQueueFull) == c.arg {
			t.Errorf("%s: %v, want ErrQueueFull: %v", c.name, err, !c.arg)
		}
		r.checkNothing(t, 5, 5)
	}
	if err := errors.Join(r.qp.PostSend(send(2)...), r.qp.PostRecvs(recv(2)...)); err != nil {
		t.Fatalf("the rest of the ring: %v", err)
	}
	r.checkDoorbell(t)
	if err := r.qp.PostRecv(1); err != ErrQueueFull {
		t.Errorf("PostRecv: %v, want ErrQueueFull", err)
	}
	r.checkNothing(t, 7, 7)
	r.sq.set(ringConsumer, 3)
	r.rq.set(ringConsumer, 3)
	if err := errors.Join(r.qp.PostSend(send(3)...), r.qp.PostRecvs(recv(3)...)); err != nil {
		t.Errorf("after the kernel took three: %v", err)
	}
}

// TestPostHostileIndex: a consumer index that cannot be is found, and nothing is posted.
func TestPostHostileIndex(t *testing.T) {
	for name, consumer := range map[string]uint32{
		"past the producer":     6,
		"past the ring":         8,
		"right but for one bit": 1<<16 + 5,
		"all ones":              math.MaxUint32,
	} {
		t.Run(name, func(t *testing.T) {
			r := newPostRig(t, 3)
			if err := errors.Join(r.qp.PostSend(sendsOf(5)...), r.qp.PostRecvs(make([]RecvWR, 5)...)); err != nil {
				t.Fatal(err)
			}
			r.checkDoorbell(t)
			r.sq.set(ringConsumer, consumer)
			r.rq.set(ringConsumer, consumer)
			for what, err := range map[string]error{
				"PostSend":  r.qp.PostSend(sendsOf(3)...),
				"PostRecvs": r.qp.PostRecvs(make([]RecvWR, 3)...),
			} {
				if !errors.Is(err, ErrQueueCorrupt) || !errors.Is(err, rxe.ErrCorrupt) {
					t.Errorf("%s: %v, want ErrQueueCorrupt", what, err)
				}
			}
			r.checkNothing(t, 5, 5)
		})
	}
}

// TestPostErrors: a faulty work request is named by its index, and none of its batch is
// posted. The contents of the slots do not matter then.
func TestPostErrors(t *testing.T) {
	mr := &MR{addr: 1 << 20, length: 4096, lkey: 5}
	sge := mr.SGE(0, 1)
	long := SGE{Length: math.MaxUint32}
	for _, c := range []struct {
		name string
		wr   SendWR
		want error
	}{
		{"outside", SendWR{Opcode: WRSend, SGL: []SGE{sge, mr.SGE(4096, 1)}}, ErrSGERange},
		{"one outside", SendWR{Opcode: WRSend, SGL: []SGE{mr.SGE(4096, 1)}}, ErrSGERange},
		{"opcode", SendWR{Opcode: WRSendWithInv + 1}, ErrOpcode},
		{"bind without a window", SendWR{Opcode: WRBindMW}, errBind},
		{"atomic without data", SendWR{Opcode: WRCompareSwap}, errAtomicData},
		{"atomic of 4 bytes", SendWR{Opcode: WRFetchAdd, SGL: []SGE{mr.SGE(0, 4)}}, errAtomicData},
		{"atomic of 4 bytes at 4", SendWR{Opcode: WRCompareSwap, RemoteAddr: 4, SGL: []SGE{mr.SGE(0, 4)}}, errAtomicData},
		{"atomic at 4", SendWR{Opcode: WRFetchAdd, RemoteAddr: 4, SGL: []SGE{mr.SGE(0, 8)}}, errAtomicAddr},
		{"inline atomic", SendWR{Opcode: WRCompareSwap, Inline: make([]byte, 8)}, errInlineUse},
		{"atomic write of 7 bytes", SendWR{Opcode: WRAtomicWrite, Inline: make([]byte, 7)}, errAtomicWrite},
		{"atomic write of an SGE", SendWR{Opcode: WRAtomicWrite, Inline: make([]byte, 8), SGL: []SGE{sge}}, errAtomicWrite},
		{"atomic write at 4", SendWR{Opcode: WRAtomicWrite, RemoteAddr: 4, Inline: make([]byte, 8)}, errAtomicAddr},
		{"invalidate with data", SendWR{Opcode: WRLocalInv, SGL: []SGE{sge}}, errNoSGL},
		{"flush with data", SendWR{Opcode: WRFlush, Inline: []byte{1}}, errNoInline},
		{"AH", SendWR{Opcode: WRSend, AH: &AH{}}, errNotDatagram},
		{"no opcode", SendWR{SGL: []SGE{sge}}, ErrOpcode},
		{"largest opcode", SendWR{Opcode: 255}, ErrOpcode},
		{"inline by flag", SendWR{Opcode: WRSend, Flags: 1 << 3}, errSendFlags},
		{"largest flag", SendWR{Opcode: WRSend, Flags: SendSignaled | 1<<7}, errSendFlags},
		{"inline and SGL", SendWR{Opcode: WRSend, Inline: []byte{1}, SGL: []SGE{sge}}, errInlineUse},
		{"inline READ", SendWR{Opcode: WRRDMARead, Inline: []byte{1}}, errInlineUse},
		{"long inline", SendWR{Opcode: WRSend, Inline: make([]byte, 101)}, ErrInlineTooLong},
		{"four SGEs", SendWR{Opcode: WRSend, SGL: []SGE{sge, sge, sge, sge}}, ErrTooManySGE},
		{"4 GiB", SendWR{Opcode: WRSend, SGL: []SGE{long, sge}}, errTooLong},
	} {
		for _, index := range []int{0, 2} {
			r := newPostRig(t, 3)
			wrs := sendsOf(3)
			wrs[index] = c.wr
			err := r.qp.PostSend(wrs...)
			if post, ok := errors.AsType[*PostError](err); !ok || post.Index != index || !errors.Is(post.Err, c.want) {
				t.Errorf("%s: %v, want a PostError of index %d with %v", c.name, err, index, c.want)
			}
			r.checkNothing(t, 0, 0)
			if c.want != ErrSGERange && c.want != ErrTooManySGE && c.want != errTooLong {
				continue
			}
			recvs := make([]RecvWR, 3)
			recvs[index].SGL = c.wr.SGL
			err = r.qp.PostRecvs(recvs...)
			if post, ok := errors.AsType[*PostError](err); !ok || post.Index != index || !errors.Is(post.Err, c.want) {
				t.Errorf("%s: PostRecvs: %v, want a PostError of index %d with %v", c.name, err, index, c.want)
			}
			err = r.qp.PostRecv(1, c.wr.SGL...)
			if post, ok := errors.AsType[*PostError](err); !ok || post.Index != 0 || !errors.Is(post.Err, c.want) {
				t.Errorf("%s: PostRecv: %v, want a PostError with %v", c.name, err, c.want)
			}
			r.checkNothing(t, 0, 0)
			if err := errors.Join(r.qp.PostSend(SendWR{ID: 9, Opcode: WRRDMAWrite}), r.qp.PostRecv(9)); err != nil {
				t.Fatalf("%s: a good work request afterwards: %v", c.name, err)
			}
			checkSlot(t, r.rq.slot(0)[:recvSlotSize], recvSlotSize, []slotField{{"wr_id", 0, host64(9)}})
			checkSlot(t, r.sq.slot(0)[:sendSlotSize], sendSlotSize, []slotField{{"wr.wr_id", 0, host64(9)}})
		}
	}
	r := newPostRig(t, 3)
	if err := r.qp.PostSend(SendWR{Opcode: WRSend, Inline: make([]byte, 100)}, SendWR{Opcode: WRSend, SGL: []SGE{sge, sge, sge}}); err != nil {
		t.Errorf("the most that the QP was created for: %v", err)
	}
}

func TestPostState(t *testing.T) {
	for _, c := range []struct {
		state      ib.QPState
		send, recv error
	}{
		{ib.QPReset, ErrState, ErrState},
		{ib.QPInit, ErrState, nil},
		{ib.QPRTR, ErrState, nil},
		{ib.QPRTS, nil, nil},
		{ib.QPErr, nil, nil}, // to be flushed
	} {
		r := newPostRig(t, 3)
		r.qp.state.Store(uint32(c.state))
		if err := r.qp.PostSend(SendWR{Opcode: WRSend}); !errors.Is(err, c.send) {
			t.Errorf("%s: PostSend: %v, want %v", c.state, err, c.send)
		}
		if err := r.qp.PostRecv(1); !errors.Is(err, c.recv) {
			t.Errorf("%s: PostRecv: %v, want %v", c.state, err, c.recv)
		}
		if err := r.qp.PostRecvs(RecvWR{}); !errors.Is(err, c.recv) {
			t.Errorf("%s: PostRecvs: %v, want %v", c.state, err, c.recv)
		}
		if got, want := r.sq.get(ringProducer) == 1, c.send == nil; got != want {
			t.Errorf("%s: the send is in the ring: %v, want %v", c.state, got, want)
		}
		if got, want := r.rq.get(ringProducer) == 2, c.recv == nil; got != want {
			t.Errorf("%s: the receives are in the ring: %v, want %v", c.state, got, want)
		}
	}
	r := newPostRig(t, 3)
	r.qp.sending.Lock() // as Close does
	r.qp.receiving.Lock()
	r.qp.closed.Store(true)
	for what, err := range map[string]error{
		"PostSend":  r.qp.PostSend(SendWR{Opcode: WRSend}),
		"PostRecv":  r.qp.PostRecv(1),
		"PostRecvs": r.qp.PostRecvs(RecvWR{}),
	} {
		errorIs(t, err, os.ErrClosed, "%s of a closed QP", what)
	}
	r.checkNothing(t, 0, 0)
}

// TestDoorbellRefused: the caller learns that the device was not told.
func TestDoorbellRefused(t *testing.T) {
	r := newPostRig(t, 3)
	if err := r.pipe.Close(); err != nil {
		t.Fatal(err)
	}
	err := r.qp.PostSend(SendWR{Opcode: WRSend})
	if e, ok := errors.AsType[*Error](err); !ok || e.Op != "POST_SEND" || e.Errno != syscall.EPIPE || e.Hint == "" {
		t.Errorf("error is %v, want one of POST_SEND with EPIPE", err)
	}
}

// TestPostNoSGEs: a queue that was made for no SGEs takes none.
func TestPostNoSGEs(t *testing.T) {
	r := newPostRig(t, 3)
	r.qp.rxe.sq = *value(rxe.NewSendQueue(r.sq.mem, int(r.sq.mask), 0, 100))(t)
	mr := &MR{addr: 1 << 20, length: 4096, lkey: 5}
	if err := r.qp.PostSend(SendWR{Opcode: WRSend, SGL: []SGE{mr.SGE(0, 1)}}); !errors.Is(err, ErrTooManySGE) {
		t.Errorf("%v, want ErrTooManySGE", err)
	}
	r.checkNothing(t, 0, 0)
}

// TestPostDoesNotAllocate is about all that a program does again and again.
func TestPostDoesNotAllocate(t *testing.T) {
	r := newQuietRig(t, 5)
	mr := &MR{addr: 1 << 20, length: 4096, lkey: 5}
	data := []byte("inline")
	batch := make([]SendWR, 16)
	recvs := make([]RecvWR, 16)
	for i := range batch {
		batch[i] = SendWR{Opcode: WRSend, SGL: []SGE{mr.SGE(i, 64)}}
		recvs[i] = RecvWR{SGL: batch[i].SGL}
	}
	for name, post := range map[string]func() error{
		"PostSend of 1": func() error {
			return r.qp.PostSend(SendWR{ID: 1, Opcode: WRSend, Flags: SendSignaled, SGL: []SGE{mr.SGE(0, 64)}})
		},
		"PostSend inline": func() error { return r.qp.PostSend(SendWR{Opcode: WRSend, Inline: data}) },
		"PostSend of 16":  func() error { return r.qp.PostSend(batch...) },
		"PostSend of 1 MiB": func() error {
			return r.qp.PostSend(SendWR{Opcode: WRSend, SGL: []SGE{{Length: 1 << 20}}})
		},
		"PostRecv":  func() error { return r.qp.PostRecv(1, mr.SGE(0, 64)) },
		"PostRecvs": func() error { return r.qp.PostRecvs(recvs...) },
	} {
		if n := testing.AllocsPerRun(100, func() {
			if err := post(); err != nil {
				t.Fatal(err)
			}
			r.sq.take()
			r.rq.take()
		}); n != 0 {
			t.Errorf("%s makes %v allocations, want 0", name, n)
		}
	}
	for r.qp.PostSend(SendWR{Opcode: WRSend}) == nil {
	}
	if n := testing.AllocsPerRun(100, func() {
		if err := r.qp.PostSend(SendWR{Opcode: WRSend, SGL: []SGE{mr.SGE(0, 64)}}); err != ErrQueueFull {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("PostSend into a full queue makes %v allocations, want 0", n)
	}
}

// TestMRSGE: a range that is not inside the MR is marked, whatever it adds up to.
func TestMRSGE(t *testing.T) {
	const addr, lkey = 1<<63 + 1<<12, 0x1234
	outside := SGE{outside: true}
	for _, c := range []struct {
		size           uint64
		offset, length int
		want           SGE
	}{
		{4096, 0, 4096, SGE{Addr: addr, Length: 4096, LKey: lkey}},
		{4096, 4095, 1, SGE{Addr: addr + 4095, Length: 1, LKey: lkey}},
		{4096, 4096, 0, SGE{Addr: addr + 4096, LKey: lkey}},
		{4096, 0, 4097, outside},
		{4096, 1, 4096, outside},
		{4096, 4097, 0, outside},
		{4096, -1, 1, outside},
		{4096, 1, -1, outside},
		{4096, math.MinInt, math.MinInt, outside},
		{4096, math.MaxInt, 1, outside},
		{4096, 1, math.MaxInt, outside},
		{4096, math.MaxInt, math.MaxInt, outside},
		{1 << 33, 1 << 32, math.MaxUint32, SGE{Addr: addr + 1<<32, Length: math.MaxUint32, LKey: lkey}},
		{1 << 33, 0, 1 << 32, outside},
	} {
		mr := &MR{addr: addr, length: c.size, lkey: lkey}
		got := mr.SGE(c.offset, c.length)
		if got.outside {
			got = outside // the rest is for messages
		}
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(SGE{})); diff != "" {
			t.Errorf("SGE(%d, %d) of %d bytes (-want +got):\n%s", c.offset, c.length, c.size, diff)
		}
	}
}

func benchmarkPostSend(b *testing.B, n int) {
	r := newQuietRig(b, 6)
	wrs := make([]SendWR, n)
	for i := range wrs {
		wrs[i] = SendWR{ID: uint64(i), Opcode: WRSend, Flags: SendSignaled, SGL: []SGE{{Addr: 1 << 20, Length: 64, LKey: 5}}}
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := r.qp.PostSend(wrs...); err != nil {
			b.Fatal(err)
		}
		r.sq.take()
	}
}

func BenchmarkPostSend1(b *testing.B)  { benchmarkPostSend(b, 1) }
func BenchmarkPostSend16(b *testing.B) { benchmarkPostSend(b, 16) }
