package memory

import "sync/atomic"

// Indices of MRs and windows (rxe_param.h). A key is an index and 8 more bits.
const (
	firstMR  = 1                   // RXE_MIN_MR_INDEX
	firstMW  = 1<<19 + 1           // RXE_MIN_MW_INDEX
	poolSize = 1 << 19             // indices of a kind
	poolMax  = poolSize - 1        // RXE_MAX_MR and RXE_MAX_MW, which are one less than the indices
	leafSize = 512                 // objects of a leaf
	leaves   = poolSize / leafSize // leaves of a pool
)

// isMW reports whether a key is that of a window (rkey_is_mw).
func isMW(key uint32) bool { return key>>8-firstMW < poolSize }

// A pool finds objects by index. get takes no lock; the other methods need one.
type pool[T any] struct {
	first  uint32 // the smallest index
	next   uint32 // where the search for a free index begins, less first
	used   int
	leaves [leaves]atomic.Pointer[leaf[T]]
}

type leaf[T any] [leafSize]atomic.Pointer[T]

// get returns the object with an index, or nil.
func (p *pool[T]) get(index uint32) *T {
	i := index - p.first
	if i >= poolSize {
		return nil
	}
	l := p.leaves[i/leafSize].Load()
	if l == nil {
		return nil
	}
	return l[i%leafSize].Load()
}

// add makes an object for a free index, and reports false if there is none. Indices go round, so one
// that was freed is not used again soon (xa_alloc_cyclic in __rxe_add_to_pool).
func (p *pool[T]) add(object func(index uint32) *T) bool {
	if p.used >= poolMax {
		return false
	}
	for {
		i := p.next
		p.next = (p.next + 1) % poolSize
		l := p.leaves[i/leafSize].Load()
		if l == nil {
			l = new(leaf[T])
			p.leaves[i/leafSize].Store(l)
		}
		if l[i%leafSize].Load() == nil {
			l[i%leafSize].Store(object(p.first + i))
			p.used++
			return true
		}
	}
}

// remove frees an index that is in use.
func (p *pool[T]) remove(index uint32) {
	i := index - p.first
	p.leaves[i/leafSize].Load()[i%leafSize].Store(nil)
	p.used--
}

// all calls f for every object.
func (p *pool[T]) all(f func(*T)) {
	if p.used == 0 {
		return
	}
	for i := range p.leaves {
		if l := p.leaves[i].Load(); l != nil {
			for j := range l {
				if v := l[j].Load(); v != nil {
					f(v)
				}
			}
		}
	}
}
