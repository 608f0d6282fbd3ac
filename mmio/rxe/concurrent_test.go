package rxe

import (
	"encoding/binary"
	"runtime"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
)

// rounds is how many entries the concurrent tests pass: the ring wraps
// thousands of times.
const rounds = 20000

// TestSendConcurrently runs the kernel's side in another goroutine. Under the
// race detector every access to an element that the indices do not order is
// reported.
func TestSendConcurrently(t *testing.T) {
	p := newPeer(8, 3)
	q := must[*SendQueue](t)(NewSendQueue(p.mem, 7, 2, 32))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for id := uint64(0); id < rounds; {
			e := p.take()
			if e == nil {
				runtime.Gosched()
				continue
			}
			// wr_id, wr.rdma.remote_addr, dma.length, sge[0].addr
			got := [4]uint64{
				binary.NativeEndian.Uint64(e), binary.NativeEndian.Uint64(e[24:]),
				uint64(binary.NativeEndian.Uint32(e[184:])), binary.NativeEndian.Uint64(e[208:]),
			}
			if want := [4]uint64{id, id + 1, id + 2, id + 3}; got != want {
				t.Errorf("the kernel takes %v, want %v", got, want)
				return
			}
			id++
		}
	}()
	for id, batch := uint64(0), 1; id < rounds; batch = batch%7 + 1 {
		batch = min(batch, int(rounds-id))
		for {
			room, err := q.Room(batch)
			testenv.Must(t, err)
			if room {
				break
			}
			select {
			case <-done:
				t.Fatal("the kernel stopped")
			default:
				runtime.Gosched()
			}
		}
		for i := range batch {
			s := q.Slot(i)
			s.Start(id, Write, 0)
			s.SetRDMA(id+1, 1)
			ok(t, s.AddSGE(id+3, uint32(id+2), 1))
			id++
		}
		q.Publish(batch)
	}
	<-done
}

func TestPollConcurrently(t *testing.T) {
	p := newPeer(6, 3)
	q := must[*CompQueue](t)(NewCompQueue(p.mem, 7))
	go func() {
		for id := uint64(0); id < rounds; {
			if p.put(field{"wr_id", 0, id}, field{"byte_len", 20, uint32(id + 1)}, field{"ex.imm_data", 24, be32(id + 2)}) {
				id++
			} else {
				runtime.Gosched()
			}
		}
	}()
	for id := uint64(0); id < rounds; {
		n, err := q.Avail()
		testenv.Must(t, err)
		if n == 0 {
			runtime.Gosched()
		}
		n = min(n, int(id%7)+1) // leave some, now and then
		for i := range n {
			c := q.Entry(i)
			if c.WRID() != id || c.ByteLen() != uint32(id+1) || c.Imm() != uint32(id+2) {
				t.Fatalf("completion %d, %d, %d; want %d, %d, %d", c.WRID(), c.ByteLen(), c.Imm(), id, id+1, id+2)
			}
			id++
		}
		q.Release(n)
	}
}

// TestFindConcurrently looks for work requests while another goroutine posts and the kernel stores
// statuses. That is allowed although nothing orders the accesses: the race detector must not report it.
func TestFindConcurrently(t *testing.T) {
	const id, failure, flushed = 7, 1, 5 // the ID of all work requests, and statuses
	p, rp := newPeer(8, 7), newPeer(6, 7)
	q := must[*SendQueue](t)(NewSendQueue(p.mem, 127, 2, 32))
	r := must[*RecvQueue](t)(NewRecvQueue(rp.mem, 127, 1))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range uint32(rounds) {
			s := q.Slot(0)
			s.Start(id, Write, 0)
			s.SetRDMA(1, 1)
			if err := s.AddSGE(1, 1, 1); err != nil {
				t.Error(err)
			}
			q.Publish(1)
			e := p.elem(i)
			binary.NativeEndian.PutUint32(e[144:], i%2) // status
			binary.NativeEndian.PutUint32(e[148:], stateError)
			p.take()
			w := r.Slot(0)
			w.Start(id)
			r.Publish(1)
			rp.take()
		}
	}()
	var x, rx IDIndex
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		for _, i := range []*IDIndex{nil, &x} {
			q.Find(i, id, false)
			q.Has(i, id)
		}
		r.Has(nil, id)
		r.Has(&rx, id)
		r.Posted()
		q.HasFailed(id, failure)
		q.FindFailed(flushed, false)
	}
	s, found := q.Find(&x, id, false)
	wrID, status, _, failed := q.FindFailed(flushed, false)
	if !found || s.Opcode != Write || !failed || wrID != id || status != failure || !q.HasFailed(id, failure) || !r.Has(&rx, id) {
		t.Errorf("found %v, %+v; failed %v, %d with status %d; receive %v", found, s, failed, wrID, status, r.Has(&rx, id))
	}
}
