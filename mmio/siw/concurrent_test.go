package siw

import (
	"encoding/binary"
	"runtime"
	"sync/atomic"
	"testing"
)

// TestSendConcurrently has a kernel in another goroutine, which sleeps when it finds nothing and
// wakes by doorbells alone: none of them may be missing. The race detector sees that elements are
// read and written in turn.
func TestSendConcurrently(t *testing.T) {
	const total = 30000
	p, q := newSend(t, 16)
	bell := make(chan struct{}, 1)
	done := make(chan uint64)
	go func() {
		var next uint64
		for range bell {
			for {
				w := p.word(p.at)
				if atomic.LoadUint32(w)&flagValid == 0 {
					break
				}
				e := p.elem(p.at)
				if id, op := binary.LittleEndian.Uint64(e), e[sqeOpcode]; id != next || op != Write || binary.LittleEndian.Uint64(e[sqeRaddr:]) != next {
					t.Errorf("took ID %d, opcode %d, want %d", id, op, next)
				}
				next++
				p.clear(p.at) // with a full barrier, before the next element is looked at
				p.at++
			}
			if next == total {
				break
			}
		}
		done <- next
	}()
	for posted, batch := uint64(0), 1; posted < total; batch = batch%5 + 1 {
		n := min(batch, int(total-posted))
		if !q.Room(n) {
			runtime.Gosched()
			continue
		}
		for i := range n {
			s := q.Slot(i)
			s.Start(posted+uint64(i), Write, 0)
			s.SetRDMA(posted+uint64(i), 0)
		}
		posted += uint64(n)
		if q.Publish(n) {
			select {
			case bell <- struct{}{}:
			default: // it is about to look anyway
			}
		}
	}
	if n := <-done; n != total {
		t.Errorf("the kernel took %d of %d", n, total)
	}
}

// TestArmConcurrently has a kernel in another goroutine that raises an event for a completion if
// it sees that the queue is armed: who arms, looks and waits misses none.
func TestArmConcurrently(t *testing.T) {
	const total = 20000
	p, q := newComp(t, 8)
	event := make(chan struct{}, 1)
	go func() {
		notify := (*uint32)(p.ctrl())
		for id := range uint64(total) {
			for !p.put(id, Recv, 0, 0, 0) {
				runtime.Gosched()
			}
			if atomic.LoadUint32(notify) != 0 {
				atomic.StoreUint32(notify, 0)
				event <- struct{}{}
			}
		}
	}()
	for next := uint64(0); next < total; {
		c, ok := q.Next()
		if !ok {
			q.Arm()
			if c, ok = q.Next(); !ok {
				<-event
				continue
			}
			select { // it may have been raised as well
			case <-event:
			default:
			}
		}
		if c.WRID() != next {
			t.Fatalf("completion %d, want %d", c.WRID(), next)
		}
		q.Release()
		next++
	}
}
