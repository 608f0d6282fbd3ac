//go:build amd64 || arm64

package uverbs

import (
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// TestMlx5Poll: completions of all kinds, with both forms of CQEs and of receive queues.
func TestMlx5Poll(t *testing.T) {
	for _, userIndex := range []bool{false, true} {
		for _, shared := range []bool{false, true} {
			for _, size := range []int{64, 128} {
				c := newMlx5Card(t, userIndex, shared, size)
				post := func(id uint64, n int) {
					t.Helper()
					var err error
					if shared {
						err = c.srq.PostRecv(id, c.sge(0, n), c.sge(100, n))
					} else {
						err = c.qp.PostRecv(id, c.sge(0, n), c.sge(100, n))
					}
					must(t, err)
				}
				for i := range uint64(7) {
					post(100+i, 10)
				}
				must(t, c.qp.PostSend(
					SendWR{ID: 1, Opcode: WRSend, SGL: []SGE{c.sge(0, 8)}},
					SendWR{ID: 2, Opcode: WRRDMARead, Flags: SendSignaled, SGL: []SGE{c.sge(0, 8)}},
					SendWR{ID: 3, Opcode: WRLocalInv, Flags: SendSignaled, InvalidateRKey: 5},
					SendWR{ID: 4, Opcode: WRRDMAWrite, Flags: SendSignaled, Inline: []byte{1}},
					SendWR{ID: 5, Opcode: WRFetchAdd, Flags: SendSignaled, SGL: []SGE{c.sge(0, 8)}},
				))
				// READ has one block, the invalidation two, the others one each.
				c.put(0, map[int][]byte{60: b16(1), 44: b32(77), 48: {0, 0, 0, 0, 0, 0, 0, 9}})
				c.put(0, map[int][]byte{60: b16(2)})
				c.put(2, map[int][]byte{60: b16(0), 44: b32(5), 36: b32(0xffff)})
				c.put(3, map[int][]byte{60: b16(1), 44: b32(6), 36: b32(0xabcd)})
				c.put(4, map[int][]byte{60: b16(2), 44: b32(7), 36: b32(0x1234)})
				c.put(1, map[int][]byte{60: b16(3), 44: b32(8), 36: b32(0x55)})
				c.put(13, map[int][]byte{60: b16(4), 55: {0x13}, 54: {0x88}})
				c.put(13, map[int][]byte{60: b16(5), 55: {0x05}, 54: {0xf9}})
				c.put(14, map[int][]byte{60: b16(4), 55: {0x04}})
				want := []WC{
					{ID: 2, Opcode: WCRDMARead, ByteLen: 77, Timestamp: 9},
					{ID: 3, Opcode: WCLocalInv},
					{ID: 100, Opcode: WCRecv, ByteLen: 5},
					{ID: 101, Opcode: WCRecv, ByteLen: 6, Flags: WCWithImm, Imm: 0xabcd},
					{ID: 102, Opcode: WCRecv, ByteLen: 7, Flags: WCWithInv, InvalidatedRKey: 0x1234},
					{ID: 103, Opcode: WCRecvRDMAWrite, ByteLen: 8, Flags: WCWithImm, Imm: 0x55},
					{ID: 4, Status: WCRemAccessErr, VendorErr: 0x88},
					{ID: 5, Status: WCWRFlushErr, VendorErr: 0xf9},
					{ID: 104, Status: WCLocProtErr, Opcode: WCRecv},
				}
				for i := range want {
					want[i].QPN = cardQPN
				}
				if got := c.poll(); !slices.Equal(got, want) {
					t.Errorf("index %v, shared %v, size %d:\n%+v, want\n%+v", userIndex, shared, size, got, want)
				}
				// The first failure is explained, the flush is put down to it.
				wc := WC{ID: 5, Status: WCWRFlushErr, VendorErr: 0xf9, QPN: cardQPN}
				var e *WCError
				if err := c.qp.Err(&wc); !errors.As(err, &e) || e.First == nil || e.First.WC.ID != 4 || !strings.Contains(err.Error(), "RDMA_WRITE of 1 bytes") ||
					!strings.Contains(err.Error(), "the peer refused the key") {
					t.Errorf("the flush is explained as %v", err)
				}

				// Data in the completion goes where the receive says, and nowhere else.
				data := []byte("0123456789abcdefg")
				clear(c.mem)
				c.put(2, map[int][]byte{60: b16(5), 44: b32(uint32(len(data)))}, data...)
				if got := c.poll(); len(got) != 1 || got[0].ID != 105 || got[0].Status != WCSuccess || string(c.mem[:10])+string(c.mem[100:107]) != string(data) || c.mem[10] != 0 || c.mem[107] != 0 {
					t.Errorf("inline data: %+v, %q", got, c.mem[:120])
				}
				c.dev.mrs.remove(c.dev.mrs.get(cardKey))
				c.put(2, map[int][]byte{60: b16(6), 44: b32(uint32(len(data)))}, data...)
				if got := c.poll(); len(got) != 1 || got[0].ID != 106 || got[0].Status != WCLocProtErr {
					t.Errorf("inline data without an MR: %+v", got)
				}
			}
		}
	}
}

// TestMlx5Stray: a completion of nothing is an error that says so, the program's memory and the
// queues are as they were, and the next one is there.
func TestMlx5Stray(t *testing.T) {
	entry := func(n uint16) map[int][]byte { return map[int][]byte{60: b16(n), 44: b32(8)} }
	for _, userIndex := range []bool{false, true} {
		for _, shared := range []bool{false, true} {
			for name, put := range map[string]func(c *card){
				"another queue": func(c *card) {
					c.put(0, map[int][]byte{32: b32(0xabcdef), 56: b32(0xabcdef)})
				},
				"an unknown opcode":            func(c *card) { c.put(9, nil) },
				"a mark of a resized CQ":       func(c *card) { c.put(5, nil) },
				"a receive not posted":         func(c *card) { c.put(2, entry(6)) },
				"its data":                     func(c *card) { c.put(2, entry(6), []byte("12345678")...) },
				"a failed receive not posted":  func(c *card) { c.put(14, entry(6)) },
				"no such entry":                func(c *card) { c.put(14, entry(0xffff)) },
				"a send not posted":            func(c *card) { c.put(0, entry(5)) },
				"a send of another round":      func(c *card) { c.put(0, entry(0x8000)) },
				"data of another round":        func(c *card) { c.put(0, entry(0x8000), []byte("12345678")...) },
				"a failed send not posted":     func(c *card) { c.put(13, entry(2)) },
				"a send that was only written": func(c *card) { c.put(0, entry(1)) },
			} {
				c := newMlx5Card(t, userIndex, shared, 64)
				recv := c.qp.PostRecv
				if shared {
					recv = c.srq.PostRecv
				}
				must(t, recv(50, c.sge(0, 100)))
				must(t, c.qp.PostSend(SendWR{ID: 1, Opcode: WRRDMARead, Flags: SendSignaled, SGL: []SGE{c.sge(0, 50), c.sge(100, 50)}}))
				if err := c.qp.PostSend(SendWR{ID: 1, Opcode: WRSend}, SendWR{Opcode: WRFlush}); !errors.Is(err, ErrOpcode) {
					t.Fatal(err)
				}
				put(c)
				c.put(0, nil)
				c.put(2, entry(0))
				var wcs [4]WC
				if n, err := c.cq.Poll(wcs[:]); n != 0 || !errors.Is(err, ErrCQOverrun) || name != "another queue" && !strings.Contains(err.Error(), "0x123456") {
					t.Errorf("%s: %d, %v", name, n, err)
				}
				if n, err := c.cq.Poll(wcs[:]); n != 2 || err != nil || wcs[0].ID != 1 || wcs[0].Err() != nil || wcs[1].ID != 50 || wcs[1].Err() != nil {
					t.Errorf("%s: the next poll is %d, %v, %+v", name, n, err, wcs[:n])
				}
				if slices.ContainsFunc(c.mem, func(b byte) bool { return b != 0 }) {
					t.Errorf("%s: the memory was written", name)
				}
			}
		}
	}
}

// TestMlx5Reset: completions of a QP that is reset are gone, its SRQ has its places back, and
// both queues begin anew.
func TestMlx5Reset(t *testing.T) {
	for _, userIndex := range []bool{false, true} {
		for _, shared := range []bool{false, true} {
			c := newMlx5Card(t, userIndex, shared, 64)
			other := &mlx5Owner{qp: &QP{typ: ib.RC, qpn: 0x99}}
			index := uint32(0x99)
			if userIndex {
				index = value(c.dev.mlx5.owners.add(other))(t)
			} else {
				c.dev.mlx5.owners.set(0x99, other)
			}
			post := func(id uint64) error {
				if shared {
					return c.srq.PostRecv(id)
				}
				return c.qp.PostRecv(id)
			}
			full := 0
			for post(uint64(full)) == nil {
				full++
			}
			for range 3 {
				must(t, c.qp.PostSend(SendWR{ID: 7, Opcode: WRSend, Flags: SendSignaled}))
			}
			c.put(0, nil)
			c.put(2, map[int][]byte{60: b16(0)})
			foreign := map[int][]byte{32: b32(index), 56: b32(0x99)}
			if !userIndex {
				foreign[32] = b32(0)
			}
			c.put(0, foreign)
			c.put(2, map[int][]byte{60: b16(1)})
			mlx5Driver{}.qpModified(c.qp, ib.QPRTS, ib.QPReset)
			var wcs [4]WC
			if n, err := c.cq.Poll(wcs[:]); n != 0 || !errors.Is(err, ErrCQOverrun) || !strings.Contains(err.Error(), "QP 0x99") {
				t.Errorf("after the reset the CQ has %d, %v, want that of the other QP alone", n, err) // which has no queue
			}
			if n, err := c.cq.Poll(wcs[:]); n != 0 || err != nil {
				t.Errorf("and then %d, %v", n, err)
			}
			want := full
			if shared {
				want = 2
			}
			for i := range want {
				if err := post(uint64(i)); err != nil {
					t.Errorf("index %v, shared %v: receive %d after the reset: %v", userIndex, shared, i, err)
				}
			}
			errorIs(t, post(99), ErrQueueFull, "one more receive")
			for range c.qp.Caps().MaxSendWR {
				must(t, c.qp.PostSend(SendWR{ID: 8, Opcode: WRSend}))
			}
			errorIs(t, c.qp.PostSend(SendWR{ID: 9, Opcode: WRSend}), ErrQueueFull, "one more send")
		}
	}
}

// TestMlx5SendFields: the words of a WQE that differ from one operation to the next, as the manual has
// them: behind the control segment, with the opcode and the immediate, comes that of the operation.
func TestMlx5SendFields(t *testing.T) {
	c := newMlx5Card(t, true, false, 64)
	mw := &MW{number: 1, typ: MWType2}
	mw.dev = c.dev
	mw.setRKey(0x7700)
	bindable := &MR{lkey: cardKey, mem: region{access: AccessMWBind}}
	bindable.dev = c.dev
	remote := append(binary.BigEndian.AppendUint64(nil, 0x1122334455667788), b32(0x9900)...)
	for name, w := range map[string]struct {
		wr     SendWR
		opcode byte
		imm    uint32
		blocks byte // of 16 bytes, with the control segment
		second []byte
	}{
		"SEND with immediate":  {SendWR{Opcode: WRSendWithImm, Imm: 0x01020304}, 0x0b, 0x01020304, 1, nil},
		"SEND with invalidate": {SendWR{Opcode: WRSendWithInv, InvalidateRKey: 0x5566}, 0x01, 0x5566, 1, nil},
		"WRITE":                {SendWR{Opcode: WRRDMAWrite, RemoteAddr: 0x1122334455667788, RKey: 0x9900}, 0x08, 0, 2, remote},
		"WRITE with immediate": {SendWR{Opcode: WRRDMAWriteWithImm, RemoteAddr: 0x1122334455667788, RKey: 0x9900, Imm: 7}, 0x09, 7, 2, remote},
		"READ":                 {SendWR{Opcode: WRRDMARead, RemoteAddr: 0x1122334455667788, RKey: 0x9900}, 0x10, 0, 2, remote},
		"BIND_MW":              {SendWR{Opcode: WRBindMW, Bind: BindInfo{MW: mw, MR: bindable, Addr: 0x1000, Length: 64}}, 0x25, 0x7700, 0, nil},
	} {
		c.qp.mlx5.sq.Reset()
		must(t, c.qp.PostSend(w.wr))
		ring := c.qp.sqRegion.Bytes()[c.qp.mlx5.recv.Bytes():]
		ctrl, second := ring[:16], ring[16:]
		if ctrl[3] != w.opcode || w.blocks != 0 && ctrl[7] != w.blocks || !slices.Equal(ctrl[12:], b32(w.imm)) || !slices.Equal(second[:len(w.second)], w.second) {
			t.Errorf("%s: the WQE begins with %x %x, want opcode %#x, immediate %#x, %d blocks and then %x", name, ctrl, second[:16], w.opcode, w.imm, w.blocks, w.second)
		}
	}
	unbindable := &MR{lkey: cardKey, mem: region{access: AccessLocalWrite}}
	unbindable.dev = c.dev
	if err := c.qp.PostSend(SendWR{Opcode: WRBindMW, Bind: BindInfo{MW: mw, MR: unbindable, Length: 64}}); !errors.Is(err, errBindRight) {
		t.Errorf("a bind to an MR without AccessMWBind: %v, want errBindRight", err)
	}
	var wrong *PostError
	if err := c.qp.PostSend(SendWR{Opcode: WRBindMW, Bind: BindInfo{MW: mw, MR: bindable, Length: 3 << 30}}); !errors.As(err, &wrong) || wrong.Field != "Bind.Length" {
		t.Errorf("a bind of 3 GiB: %v", err)
	}
}

// TestMlx5PostErrors: what is wrong is refused, nothing of its batch is posted, and the next
// batch is as if it had not been.
func TestMlx5PostErrors(t *testing.T) {
	c := newMlx5Card(t, true, false, 64)
	good := SendWR{ID: 1, Opcode: WRSend, Flags: SendSignaled}
	for want, wr := range map[error]SendWR{
		ErrTooManySGE:    {Opcode: WRSend, SGL: []SGE{c.sge(0, 1), c.sge(1, 1), c.sge(2, 1)}},
		errTooLong:       {Opcode: WRSend, SGL: []SGE{{Length: 1 << 31}, {Length: 1}}},
		ErrInlineTooLong: {Opcode: WRSend, Inline: make([]byte, c.qp.caps.MaxInline+1)},
		errInlineUse:     {Opcode: WRSend, Inline: []byte{1}, SGL: []SGE{c.sge(0, 1)}},
		ErrOpcode:        {Opcode: WRFlush},
		errBind:          {Opcode: WRBindMW},
		errNotDatagram:   {Opcode: WRSend, AH: &AH{}},
		errNoInline:      {Opcode: WRLocalInv, Inline: []byte{1}},
	} {
		err := c.qp.PostSend(good, wr)
		var post *PostError
		if !errors.Is(err, want) || !errors.As(err, &post) || post.Index != 1 {
			t.Errorf("%v, want %v of request 1", err, want)
		}
	}
	b := c.qp.BeginSend()
	b.Send(1, 0)
	b.ToSRQ(1)
	if err := b.Post(); !errors.Is(err, errNotXRC) {
		t.Errorf("an SRQ on RC: %v", err)
	}
	must(t, c.qp.PostSend(good))
	ring := c.qp.sqRegion.Bytes()[c.qp.mlx5.recv.Bytes():]
	if !slices.Equal(ring[:16], []byte{0, 0, 0, 0x0a, 0x12, 0x34, 0x56, 1, 0, 0, 0, 8, 0, 0, 0, 0}) {
		t.Errorf("the first WQE is %x", ring[:16])
	}
	for range c.qp.Caps().MaxSendWR - 1 {
		must(t, c.qp.PostSend(good))
	}
	errorIs(t, c.qp.PostSend(good), ErrQueueFull, "one more than the queue holds")
	c.put(0, map[int][]byte{60: b16(uint16(c.qp.Caps().MaxSendWR - 1))}) // all of them, which have one block each
	if got := c.poll(); len(got) != 1 || got[0].ID != 1 {
		t.Errorf("the last one's completion is %+v", got)
	}
	must(t, c.qp.PostSend(slices.Repeat([]SendWR{good}, c.qp.Caps().MaxSendWR)...))
	for _, sgl := range [][]SGE{{{}, {}, {}, {}, {Length: 1}}, {{Length: 1 << 31}, {Length: 1}}, {{outside: true}}} {
		if err := c.qp.PostRecv(1, sgl...); err == nil && len(sgl) != 5 {
			t.Errorf("receive of %+v is posted", sgl)
		}
	}
}

// TestMlx5AllocatesNothing: neither posting nor polling does.
func TestMlx5AllocatesNothing(t *testing.T) {
	for _, shared := range []bool{false, true} {
		c := newMlx5Card(t, true, shared, 64)
		wcs, sgl, inline := make([]WC, 4), []SGE{c.sge(0, 8)}, []byte("12345678")
		i := 0
		if n := testing.AllocsPerRun(200, func() {
			c.pingPong(i, wcs, sgl, inline)
			i++
		}); n != 0 {
			t.Errorf("shared %v: %v allocations, want 0", shared, n)
		}
	}
}

// TestMlx5Goroutines: one goroutine posts sends, one posts receives, one polls, and the
// device works beside them. Under the race detector it proves that they need no lock.
func TestMlx5Goroutines(t *testing.T) {
	const rounds = 3000
	c := newMlx5Card(t, true, false, 64)
	record := c.qp.mlx5.rec.Load
	room := func(pi uint32) bool { return pi-c.cq.mlx5.rec.Load(0) < cardCQEs }
	var wg sync.WaitGroup
	post := func(do func(id uint64) error) {
		wg.Go(func() {
			for id := uint64(0); id < rounds && !t.Failed(); {
				switch err := do(id); {
				case err == nil:
					id++
				case errors.Is(err, ErrQueueFull):
					runtime.Gosched()
				default:
					t.Error(err)
					return
				}
			}
		})
	}
	post(func(id uint64) error { return c.qp.PostSend(SendWR{ID: id, Opcode: WRSend, Flags: SendSignaled}) })
	post(func(id uint64) error { return c.qp.PostRecv(1<<32 + id) })
	wg.Go(func() { // the device
		var sent, received uint32
		for (sent < rounds || received < rounds) && !t.Failed() {
			switch {
			case sent < rounds && record(1) != sent&0xffff && room(c.pi):
				c.fast(0, uint16(sent))
				sent++
			case received < rounds && record(0) != received&0xffff && room(c.pi):
				c.fast(2, uint16(received))
				received++
			default:
				runtime.Gosched()
			}
		}
	})
	var next [2]uint64
	var wcs [5]WC
	for next != [2]uint64{rounds, rounds} && !t.Failed() {
		n, err := c.cq.Poll(wcs[:])
		if err != nil {
			t.Error(err)
		}
		for _, wc := range wcs[:n] {
			which, id := wc.ID>>32, wc.ID&(1<<32-1)
			if id != next[which] {
				t.Errorf("completion of %d of queue %d, want %d", id, which, next[which])
			}
			next[which]++
		}
		if n == 0 {
			runtime.Gosched()
		}
	}
	wg.Wait()
}

func BenchmarkMlx5PingPong(b *testing.B) {
	c := newMlx5Card(b, true, false, 64)
	wcs, sgl, inline := make([]WC, 4), []SGE{c.sge(0, 8)}, []byte("12345678")
	for i := 0; b.Loop(); i++ {
		c.pingPong(i, wcs, sgl, inline)
	}
}

// BenchmarkMlx5PostInline posts a SEND of 64 bytes inline, its doorbell included.
func BenchmarkMlx5PostInline(b *testing.B) {
	c := newMlx5Card(b, true, false, 64)
	wr := SendWR{ID: 1, Opcode: WRSend, Flags: SendSignaled, Inline: make([]byte, 64)}
	for i := 0; b.Loop(); i++ {
		if err := c.qp.PostSend(wr); err != nil {
			b.Fatal(err)
		}
		if _, _, ok := c.qp.mlx5.sq.Complete(uint16(2 * i)); !ok {
			b.Fatal("the completion is of nothing")
		}
	}
}

// BenchmarkMlx5Poll polls one completion of a send.
func BenchmarkMlx5Poll(b *testing.B) {
	c := newMlx5Card(b, true, false, 64)
	var wcs [1]WC
	wrs := slices.Repeat([]SendWR{{Opcode: WRSend}}, c.qp.Caps().MaxSendWR)
	for i, left := uint16(0), 0; b.Loop(); i, left = i+1, left-1 { // each has one block
		if left == 0 {
			b.StopTimer()
			if err := c.qp.PostSend(wrs...); err != nil {
				b.Fatal(err)
			}
			left = len(wrs)
			b.StartTimer()
		}
		c.fast(0, i)
		if n, err := c.cq.Poll(wcs[:]); n != 1 || err != nil {
			b.Fatal(n, err)
		}
	}
}

// TestMlx5NotifyWhileClosed: a Notify that a Close overtakes ends with an error.
func TestMlx5NotifyWhileClosed(t *testing.T) {
	c := newMlx5Card(t, true, false, 64)
	c.cq.ch = &CompChannel{}
	must(t, c.cq.Notify(), mlx5Driver{}.freeCQ(c.cq))
	for _, notify := range []func() error{c.cq.Notify, c.cq.NotifySolicited} {
		if err := notify(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("%v, want one that matches os.ErrClosed", err)
		}
	}
}
