package uverbs

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/goverbs/goverbs/mmio/mlx5"
)

// mlx5Owner is the owner of a completion: a QP with the SRQ that it uses, an SRQ alone, which
// several QPs of an XRC domain use, or a WQ.
type mlx5Owner struct {
	qp  *QP
	srq *SRQ
	wq  *WQ

	// What Poll needs of the most frequent completions.
	sq *mlx5.SendQueue // of qp, or nil
	rq *mlx5.RecvQueue // of qp, if it is of type RC and has no SRQ; else nil
}

// mlx5Table maps 24-bit numbers to owners. A number is a user index that the library assigned or,
// with completions of version 0, a number that the device assigned. A lookup takes no lock and does
// not allocate.
type mlx5Table struct {
	pages [1 << mlx5TableBits]atomic.Pointer[mlx5TablePage]

	mu   sync.Mutex // held while the table is changed
	free []uint32   // numbers that remove has freed
	next uint32     // the lowest number that add has never used
}

type mlx5TablePage [1 << mlx5TableBits]atomic.Pointer[mlx5Owner]

// mlx5TableBits is half of 24 bits.
const mlx5TableBits = 12

// get returns the owner with a number, or nil.
func (t *mlx5Table) get(number uint32) *mlx5Owner {
	p := t.pages[number>>mlx5TableBits%(1<<mlx5TableBits)].Load()
	if p == nil {
		return nil
	}
	return p[number%(1<<mlx5TableBits)].Load()
}

// set sets the owner with a number; nil removes it.
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

// add adds an owner and returns its new number.
func (t *mlx5Table) add(o *mlx5Owner) (uint32, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	const most = 1<<(2*mlx5TableBits) - 1 // the last number means no index
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

// remove removes an owner and frees its number.
func (t *mlx5Table) remove(number uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.put(number, nil)
	t.free = append(t.free, number)
}

// mlx5TableEntry is a queue's entry in mlx5Context.owners.
type mlx5TableEntry struct {
	owner      mlx5Owner
	index      uint32 // NoUserIndex until register or registerNumber
	registered bool
}

// register adds the queue with a new user index, if the device supports these. It must be called
// before the kernel creates the queue, which needs the index.
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

// registerNumber adds the queue with the number that the device assigned, if the device does not
// support user indices.
func (p *mlx5TableEntry) registerNumber(m *mlx5Context, number uint32) {
	if m.UserIndex {
		return
	}
	m.owners.set(number, &p.owner)
	p.index, p.registered = number, true
}

// unregister removes the queue, if it was added.
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

// recvQueue returns the receive queue of a QP or a WQ, or nil.
func (o *mlx5Owner) recvQueue() *mlx5.RecvQueue {
	switch {
	case o.wq != nil:
		return o.wq.mlx5.rq
	case o.qp != nil:
		return o.qp.mlx5.rq
	}
	return nil
}
