package uverbs

import (
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// The tests of this file do things at the same time that a lock keeps apart. They prove most under
// the race detector, which sees a missing lock even where nothing goes wrong.

// together runs functions at the same time and waits until all have returned.
func together(fs ...func()) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for _, f := range fs {
		wg.Go(func() {
			<-start
			f()
		})
	}
	close(start)
	wg.Wait()
}

// TestQPTable: QPs come and go while others are looked up.
func TestQPTable(t *testing.T) {
	var table qpTable
	const own = 7
	q := &QP{}
	table.Store(own, q)
	change := func(qpn uint32) func() {
		return func() {
			for range 200 {
				table.Store(qpn, q)
				if got, ok := table.Load(qpn); !ok || got != q {
					t.Errorf("QP %d is %p, %v, want %p", qpn, got, ok, q)
				}
				runtime.Gosched()
				table.Delete(qpn, new(QP)) // not the one that has the number
				if _, ok := table.Load(qpn); !ok {
					t.Errorf("QP %d was removed with another one", qpn)
				}
				table.Delete(qpn, q)
				runtime.Gosched() // so that another goroutine comes before this one takes the lock again
				if _, ok := table.Load(qpn); ok {
					t.Errorf("QP %d is still there", qpn)
				}
			}
		}
	}
	look := func() {
		for range 200 {
			if got, ok := table.Load(own); !ok || got != q {
				t.Errorf("QP %d is %p, %v, want %p", own, got, ok, q)
			}
		}
	}
	together(change(1), change(2), look)
}

// TestSiwFlushedWhilePosting: what is posted while the QP goes into error completes as flushed, each
// work request once.
func TestSiwFlushedWhilePosting(t *testing.T) {
	for range 50 {
		r := newSiwRig(t)
		var posted, received []uint64
		post := func(ids *[]uint64, first uint64, one func(id uint64) error) func() {
			return func() {
				for id := first; id < first+siwRigSize-1; id++ {
					if err := one(id); err != nil {
						t.Error(err)
						return
					}
					*ids = append(*ids, id)
				}
			}
		}
		together(
			post(&posted, 100, func(id uint64) error { return r.qp.PostSend(SendWR{ID: id, Opcode: WRSend}) }),
			post(&received, 200, func(id uint64) error { return r.qp.PostRecv(id) }),
			func() {
				r.qp.state.Store(uint32(ib.QPErr))
				siwDriver{}.qpModified(r.qp, ib.QPRTS, ib.QPErr)
			})
		var sends, recvs []uint64
		for _, wc := range r.poll(t) {
			if wc.Status != WCWRFlushErr {
				t.Fatalf("completion is %+v", wc)
			}
			if wc.ID < 200 {
				sends = append(sends, wc.ID)
			} else {
				recvs = append(recvs, wc.ID)
			}
		}
		if !slices.Equal(sends, posted) || !slices.Equal(recvs, received) {
			t.Fatalf("posted %d and %d, flushed %d and %d", posted, received, sends, recvs)
		}
	}
}

// TestBufferPoolFree: slots are counted while they are taken and put back.
func TestBufferPoolFree(t *testing.T) {
	p, _ := newPool(t, 64, 2)
	use := func() {
		for range 100 {
			if s, err := p.Get(); err == nil {
				runtime.Gosched()
				must(t, p.Put(s))
			} else if !errors.Is(err, ErrPoolEmpty) {
				t.Error(err)
			}
		}
	}
	together(use, use, func() {
		for range 100 {
			if n := p.Free(); n < 0 || n > 2 {
				t.Errorf("%d slots of 2 are free", n)
			}
			runtime.Gosched()
		}
	})
}

// TestMlx5SRQPosted: receives of an SRQ are counted, as for an error of a peer in the process, while others
// complete.
func TestMlx5SRQPosted(t *testing.T) {
	c := newMlx5Card(t, true, true, 64)
	for id := range uint64(4) {
		must(t, c.srq.PostRecv(id, c.sge(0, 8)))
	}
	together(func() {
		for entry := range uint16(4) {
			value(c.srq.completeMlx5(entry))(t)
			runtime.Gosched()
		}
	}, func() {
		for range 100 {
			if n := (mlx5Driver{}).postedRecvs(c.qp); n < 0 || n > 4 {
				t.Errorf("%d receives are posted of 4", n)
			}
			runtime.Gosched()
		}
	})
	if n := (mlx5Driver{}).postedRecvs(c.qp); n != 0 {
		t.Errorf("%d receives are left", n)
	}
}
