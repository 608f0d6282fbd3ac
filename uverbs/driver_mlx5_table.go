package uverbs

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/goverbs/goverbs/mmio/mlx5"
)

// mlx5Owner is what a completion is about: a QP, the SRQ that it takes receives from, an
// SRQ alone, which several QPs of a domain take from, or a WQ.
type mlx5Owner struct {
	qp  *QP
	srq *SRQ
	wq  *WQ
}

// mlx5Table finds something by a number of 24 bits: the owner of a queue by the index that the
// library gave it or, with completions of version 0, the number that the device did. Looking one up
// takes no lock and allocates nothing.
type mlx5Table struct {
	pages [1 << mlx5TableBits]atomic.Pointer[mlx5TablePage]

	mu   sync.Mutex // held while the table is changed
	free []uint32   // numbers that were given back
	next uint32     // the lowest number that was never given
}

type mlx5TablePage [1 << mlx5TableBits]atomic.Pointer[mlx5Owner]

// mlx5TableBits is half of 24 bits.
const mlx5TableBits = 12

// get returns what has a number, nil if nothing has.
func (t *mlx5Table) get(number uint32) *mlx5Owner {
	p := t.pages[number>>mlx5TableBits%(1<<mlx5TableBits)].Load()
	if p == nil {
		return nil
	}
	return p[number%(1<<mlx5TableBits)].Load()
}

// set enters something, or nil to remove it.
func (t *mlx5Table) set(number uint32, o *mlx5Owner) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.put(number, o)
}

// put is set; the caller holds mu.
func (t *mlx5Table) put(number uint32, o *mlx5Owner) {
	page := &t.pages[number>>mlx5TableBits%(1<<mlx5TableBits)]
	if page.Load() == nil {
		page.Store(new(mlx5TablePage))
	}
	page.Load()[number%(1<<mlx5TableBits)].Store(o)
}

// errTableFull means that no user index is free.
var errTableFull = errors.New("uverbs: all user indices are in use")

// add enters something under a number that nobody has.
func (t *mlx5Table) add(o *mlx5Owner) (uint32, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	const most = 1<<(2*mlx5TableBits) - 1 // the last number means none
	var n uint32
	switch {
	case len(t.free) > 0:
		n = t.free[len(t.free)-1]
		t.free = t.free[:len(t.free)-1]
	case t.next < most:
		n = t.next
		t.next++
	default:
		return 0, errTableFull
	}
	t.put(n, o)
	return n, nil
}

// remove gives a number of add back.
func (t *mlx5Table) remove(number uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.put(number, nil)
	t.free = append(t.free, number)
}

// mlx5TableEntry is a queue's place in the table of owners.
type mlx5TableEntry struct {
	owner      mlx5Owner
	index      uint32 // NoUserIndex until it is registered
	registered bool
}

// register takes an index that completions will carry, if they carry indices of the library's.
// That is before the kernel makes the queue, which is told of it.
func (p *mlx5TableEntry) register(m *mlx5Context) (err error) {
	if !m.UserIndex {
		return nil
	}
	if p.index, err = m.owners.add(&p.owner); err != nil {
		return err
	}
	p.registered = true
	return nil
}

// registerNumber takes the place of a number that the device has given the queue, if completions
// carry that.
func (p *mlx5TableEntry) registerNumber(m *mlx5Context, number uint32) {
	if m.UserIndex {
		return
	}
	m.owners.set(number, &p.owner)
	p.index, p.registered = number, true
}

// unregister gives the place back, if there is one.
func (p *mlx5TableEntry) unregister(m *mlx5Context) {
	if !p.registered {
		return
	}
	if m.UserIndex {
		m.owners.remove(p.index)
	} else {
		m.owners.set(p.index, nil)
	}
	p.registered = false
}

// recvQueue returns the queue of its own that receives of a QP or a WQ are posted to, nil if there is none.
func (o *mlx5Owner) recvQueue() *mlx5.RecvQueue {
	switch {
	case o.wq != nil:
		return o.wq.mlx5.rq
	case o.qp != nil:
		return o.qp.mlx5.rq
	}
	return nil
}
