package uverbs

import (
	"encoding/binary"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// efaSide is what the device has of a QP in TestEfaConcurrently.
type efaSide struct {
	qp    *QP
	llq   []byte
	bell  *mmio.Index
	sent  uint16
	sends atomic.Int64 // completions of SendSignaled that the program got
}

// efaRing is what the device has of a CQ.
type efaRing struct {
	cq   *CQ
	mem  []byte
	bell *mmio.Index
	done uint32
}

// put writes a completion of a send, if there is room for it. The phase comes last.
func (r *efaRing) put(qpn uint32, id uint16) bool {
	depth := uint32(len(r.mem) / 32)
	if uint16(r.done)-uint16(r.bell.Acquire()) >= uint16(depth) {
		return false
	}
	e := r.mem[r.done%depth*32:][:32]
	first, _ := mmio.IndexAt(e, 0)
	binary.LittleEndian.PutUint32(e[4:], qpn)
	flags := uint32(1<<1) | 1 ^ r.done/depth&1
	first.Release(uint32(id) | flags<<24)
	r.done++
	return true
}

// TestEfaConcurrently posts, polls, arms, resets, closes and looks for requests at the same time, with QPs that share
// CQs in all ways. Every request of a QP that stays has its completion once.
func TestEfaConcurrently(t *testing.T) {
	const total = 2000
	f := newEfaFake()
	dev := value(f.open(t))(t)
	pd := value(dev.AllocPD())(t)
	var rings [2]*efaRing
	for i := range rings {
		cq := value(dev.CreateCQ(CQOptions{Size: 256, Events: true}))(t)
		rings[i] = &efaRing{cq: cq, mem: f.ring[:cq.Size()*32], bell: value(mmio.IndexAt(f.bells["cq"], 16))(t)}
	}
	ah := value(pd.CreateAH(AHAttr{Port: 1, GRH: GRH{DGID: ib.GID{0: 0xfe, 15: 1}}}))(t)
	wr := SendWR{Opcode: WRSend, AH: ah, RemoteQPN: 1, SGL: []SGE{{Addr: 1, Length: 8, LKey: 5}}}
	var mu sync.Mutex // held by the device while it works, and while a QP changes
	sides := map[*efaSide]*efaRing{}
	open := func(send, recv int) *efaSide {
		qp := value(pd.CreateQP(QPOptions{Type: ib.SRD, SendCQ: rings[send].cq, RecvCQ: rings[recv].cq, MaxSendWR: 16}))(t)
		qp.state.Store(uint32(ib.QPRTS))
		s := &efaSide{qp: qp, llq: f.llq, bell: value(mmio.IndexAt(f.bells["sq"], 12))(t)}
		sides[s] = rings[send]
		return s
	}
	stay := []*efaSide{open(0, 1), open(1, 0), open(0, 0)}
	byQPN := map[uint32]*efaSide{}
	for _, s := range stay {
		byQPN[s.qp.qpn] = s
	}
	moves := open(1, 1)
	var all, posters sync.WaitGroup
	var end atomic.Bool
	all.Go(func() { // the device
		for !end.Load() {
			mu.Lock()
			for s, ring := range sides {
				for s.sent != uint16(s.bell.Acquire()) && ring.put(s.qp.qpn, binary.LittleEndian.Uint16(s.llq[s.sent%16*64:])) {
					s.sent++
				}
			}
			mu.Unlock()
			runtime.Gosched()
		}
	})
	for _, ring := range rings {
		all.Go(func() {
			wcs := make([]WC, 8)
			for !end.Load() {
				n, err := ring.cq.Poll(wcs)
				if err != nil {
					t.Error(err)
				}
				for i := range wcs[:n] {
					if s := byQPN[wcs[i].QPN]; s != nil && s.sends.Add(1) != int64(wcs[i].ID) {
						t.Errorf("QP %d: completion %d has the ID %d", wcs[i].QPN, s.sends.Load(), wcs[i].ID)
					}
				}
				if n == 0 {
					runtime.Gosched()
				}
			}
		})
		all.Go(func() {
			for !end.Load() {
				must(t, ring.cq.Notify())
				runtime.Gosched()
			}
		})
	}
	post := func(s *efaSide, id *uint64) error {
		one, quiet := wr, wr
		one.ID, one.Flags = *id+1, SendSignaled
		err := s.qp.PostSend(one, quiet)
		if err == nil {
			*id++
		} else {
			runtime.Gosched()
		}
		return err
	}
	for _, s := range stay {
		posters.Go(func() {
			for id := uint64(0); id < total; {
				if err := post(s, &id); err != nil && err != ErrQueueFull {
					t.Error(err)
					return
				}
				s.qp.sent(id)
			}
		})
	}
	posters.Go(func() { // a QP that is reset, closed and replaced
		for round := range 60 {
			id := uint64(0)
			for range 20 {
				if err := post(moves, &id); err != nil && err != ErrQueueFull {
					t.Error(err)
				}
			}
			mu.Lock()
			if round%3 == 0 {
				delete(sides, moves)
				must(t, moves.qp.Close())
				moves = open(round&1, 1)
			} else {
				must(t, moves.qp.Modify(QPAttr{State: ib.QPReset}, AttrState))
				moves.qp.state.Store(uint32(ib.QPRTS))
				moves.bell.Release(0)
				moves.sent = 0
			}
			mu.Unlock()
		}
	})
	posters.Wait()
	for _, s := range stay {
		for s.sends.Load() != total {
			runtime.Gosched()
		}
	}
	end.Store(true)
	all.Wait()
	must(t, ah.Close(), moves.qp.Close())
	for _, s := range stay {
		must(t, s.qp.Close())
	}
	for _, r := range rings {
		must(t, r.cq.Close())
	}
	must(t, pd.Close())
}
