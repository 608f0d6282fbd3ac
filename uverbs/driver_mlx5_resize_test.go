//go:build amd64 || arm64

package uverbs

import (
	"encoding/binary"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// duringResize has the device do something while it has RESIZE_CQ, before it switches rings; after
// does something between that and the kernel's answer.
func (c *card) duringResize(during, after func()) {
	c.answer = func() syscall.Errno {
		during()
		c.put(5, map[int][]byte{32: b32(c.qp.mlx5.index)}) // the mark, with bytes that mean nothing
		after()
		return 0
	}
}

// putNext writes a completion of a send into the ring that a CQ is resized to.
func (c *card) putNext(index uint32, counter uint16) {
	ring := c.cq.mlx5.room.Bytes()
	n := len(ring) / 64
	e := ring[int(c.pi)%n*64:][:64]
	binary.BigEndian.PutUint32(e[32:], index)
	binary.BigEndian.PutUint32(e[56:], cardQPN)
	binary.BigEndian.PutUint16(e[60:], counter)
	e[63] = byte(int(c.pi) / n & 1)
	c.pi++
}

// TestMlx5ResizeWhileClosed: a QP that goes while its CQ is resized takes its completions out of both
// rings, and no others are lost.
func TestMlx5ResizeWhileClosed(t *testing.T) {
	c := newMlx5Card(t, true, false, 64)
	gone := &mlx5Owner{qp: &QP{typ: ib.RC, qpn: 0x99}}
	index := value(c.dev.mlx5.owners.add(gone))(t)
	for i := range uint64(3) {
		must(t, c.qp.PostSend(SendWR{ID: i, Opcode: WRSend, Flags: SendSignaled}))
	}
	foreign := map[int][]byte{32: b32(index), 56: b32(0x99)}
	c.put(0, map[int][]byte{60: b16(0)})
	c.put(0, foreign)
	c.put(0, foreign)
	c.put(0, map[int][]byte{60: b16(1)})
	var wg sync.WaitGroup
	c.duringResize(func() {
		done := make(chan struct{})
		wg.Go(func() {
			c.cq.cleanMlx5(gone)
			close(done)
		})
		select { // it may wait for the end of the command; it may as well go on
		case <-done:
		case <-time.After(20 * time.Millisecond):
		}
	}, func() {
		c.putNext(c.qp.mlx5.index, 2)
		c.putNext(index, 7)
	})
	c.dev.attr.MaxCQE = 1000
	must(t, c.cq.Resize(100))
	wg.Wait()
	c.dev.mlx5.owners.remove(index)
	got := c.poll()
	for i, wc := range got {
		if wc.ID != uint64(i) || wc.Status != WCSuccess {
			t.Errorf("completion %d is %+v", i, wc)
		}
	}
	if len(got) != 3 {
		t.Errorf("%d completions, want 3", len(got))
	}
	if cap := c.cq.Size(); cap != 127 {
		t.Errorf("Size is %d, want 127", cap)
	}
	if got := c.cq.mlx5.rec.Load(0); got != c.pi {
		t.Errorf("the consumer index is %d, want %d", got, c.pi)
	}
}

// TestMlx5ResizeEvent: an event that is delivered while the CQ is resized counts for the requests
// that follow.
func TestMlx5ResizeEvent(t *testing.T) {
	c := newMlx5Card(t, true, false, 64)
	c.cq.ch = &CompChannel{}
	c.dev.attr.MaxCQE = 1000
	c.duringResize(func() { c.cq.raised() }, func() {})
	must(t, c.cq.Resize(100), c.cq.Notify())
	if got := c.cq.mlx5.rec.Load(1); got>>28 != 1 {
		t.Errorf("the CQ is armed with %#x, want sequence number 1", got)
	}
}

// TestMlx5ResizeLost: events may be delivered while a Resize loses the CQ, and afterwards.
func TestMlx5ResizeLost(t *testing.T) {
	c := newMlx5Card(t, true, false, 64)
	c.dev.attr.MaxCQE = 1000
	begun, stop := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		c.cq.raised()
		close(begun)
		for {
			select {
			case <-stop:
				return
			default:
				c.cq.raised()
			}
		}
	})
	c.answer = func() syscall.Errno { // switches without the mark
		<-begun
		return 0
	}
	errorIs(t, c.cq.Resize(100), ErrCQOverrun, "Resize")
	close(stop)
	wg.Wait()
	c.cq.raised()
	errorIs(t, second(c.cq.Poll(make([]WC, 1))), ErrCQOverrun, "Poll")
	must(t, mlx5Driver{}.freeCQ(c.cq))
}

// TestMlx5ResizeRefused: after a Resize that the kernel has refused, or that has nothing to do, the
// next one works.
func TestMlx5ResizeRefused(t *testing.T) {
	c := newMlx5Card(t, true, false, 64)
	c.dev.attr.MaxCQE = 1000
	c.answer = func() syscall.Errno { return syscall.ENOMEM }
	if err := c.cq.Resize(100); err == nil {
		t.Error("Resize succeeds though the kernel refuses")
	}
	must(t, c.cq.Resize(cardCQEs-1)) // as it is
	must(t, c.qp.PostSend(SendWR{ID: 1, Opcode: WRSend, Flags: SendSignaled}), c.qp.PostSend(SendWR{ID: 2, Opcode: WRSend, Flags: SendSignaled}))
	c.put(0, map[int][]byte{60: b16(0)})
	c.put(0, map[int][]byte{60: b16(1)})
	if err := c.cq.Resize(1); err == nil {
		t.Error("a CQ with two completions is resized to one")
	}
	c.duringResize(func() {}, func() {})
	must(t, c.cq.Resize(100))
	if got := c.poll(); len(got) != 2 || got[0].ID != 1 || got[1].ID != 2 {
		t.Errorf("the completions are %+v", got)
	}
	must(t, mlx5Driver{}.freeCQ(c.cq))
	if err := c.cq.Resize(200); err == nil {
		t.Error("a CQ without a ring is resized")
	}
}
