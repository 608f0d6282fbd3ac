package efa

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// Fabric joins cards. Messages arrive in an order of its own.
type Fabric struct {
	mu      sync.Mutex
	wake    sync.Cond
	rand    *rand.Rand
	ports   map[GID]*Device
	pending []*message
	late    []*message // these wait until nothing else is left
	parked  []*message // these wait for a receive, for as long as it takes
	closed  bool
}

// window is how far a message may overtake others.
const window = 16

// pause is how long late messages and those without a receive wait.
const pause = time.Millisecond

// NewFabric makes a fabric. The seed decides on the order in which messages arrive.
func NewFabric(seed uint64) *Fabric {
	f := &Fabric{rand: rand.New(rand.NewPCG(seed, 0)), ports: map[GID]*Device{}}
	f.wake.L = &f.mu
	return f
}

// add puts messages on their way.
func (f *Fabric) add(all ...*message) {
	for _, m := range all {
		if f.rand.IntN(8) == 0 {
			f.late = append(f.late, m)
		} else {
			f.pending = append(f.pending, m)
		}
	}
	f.wake.Signal()
}

// forget takes the messages of a QP back, and returns them. Those that wait for its receives find out themselves.
func (f *Fabric) forget(q *qp) (all []*message) {
	for _, list := range []*[]*message{&f.pending, &f.late, &f.parked, &q.sq.paused} {
		*list = slices.DeleteFunc(*list, func(m *message) bool {
			if m.from == q {
				all = append(all, m)
			}
			return m.from == q
		})
	}
	f.retry(q)
	return all
}

// retry sends the messages again that wait for a receive of a QP.
func (f *Fabric) retry(q *qp) {
	f.parked = slices.DeleteFunc(f.parked, func(m *message) bool {
		if m.to == q.number {
			f.pending = append(f.pending, m)
		}
		return m.to == q.number
	})
	f.wake.Signal()
}

// step delivers a message, if there is one that need not wait.
func (f *Fabric) step() bool {
	if len(f.pending) == 0 {
		return false
	}
	i := f.rand.IntN(min(len(f.pending), window))
	m := f.pending[i]
	f.pending = slices.Delete(f.pending, i, i+1)
	m.from.dev.deliver(m)
	return true
}

// catchUp has late messages wait no longer.
func (f *Fabric) catchUp() bool {
	f.pending, f.late = append(f.pending, f.late...), nil
	return len(f.pending) > 0
}

// Drain delivers all messages but those that wait for a receive.
func (f *Fabric) Drain() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.step() || f.catchUp() {
	}
}

// Run delivers messages until the fabric is closed.
func (f *Fabric) Run() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for !f.closed {
		switch {
		case f.step():
		case len(f.late) > 0:
			f.mu.Unlock()
			time.Sleep(pause)
			f.mu.Lock()
			if len(f.pending) == 0 {
				f.catchUp()
			}
		default:
			f.wake.Wait()
		}
	}
}

// Close ends Run.
func (f *Fabric) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	f.wake.Signal()
}
