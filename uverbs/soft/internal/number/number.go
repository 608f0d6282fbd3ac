// Package number finds objects by their numbers, and chooses numbers that nobody can guess: those of queue pairs
// and the indices of memory keys.
package number

import (
	"math/bits"
	"slices"
	"sync/atomic"
)

// A Map holds objects by number. Find takes no lock; the caller serializes calls of the other methods. The zero
// value is empty.
type Map[T any] struct {
	table  atomic.Pointer[table[T]]
	used   int                // number of objects
	taken  int                // places of the table that an object has or had
	recent [recentSize]uint32 // numbers that were freed last
	freed  int                // numbers that were freed so far
}

// recentSize is how many numbers that were freed are not chosen again: packets for the objects that had them may
// still arrive.
const recentSize = 256

// A table is a hash table with a power of two of places. The place of an object is the first one that was free from
// its number on. It gets a number once, so that a goroutine that has found the number loads no other object. The
// numbers are apart from the objects, as more of them share a cache line.
type table[T any] struct {
	numbers []atomic.Uint32 // 0: free
	objects []atomic.Pointer[T]
}

func newTable[T any](size int) *table[T] {
	return &table[T]{make([]atomic.Uint32, size), make([]atomic.Pointer[T], size)}
}

// Find returns the object with a number, or nil.
func (m *Map[T]) Find(n uint32) *T {
	if t := m.table.Load(); t != nil {
		if i, ok := t.find(n); ok {
			return t.objects[i].Load()
		}
	}
	return nil
}

// find returns the place of a number. It reports false if no object has it.
func (t *table[T]) find(n uint32) (place uint32, ok bool) {
	mask := uint32(len(t.numbers) - 1)
	for i := n & mask; ; i = (i + 1) & mask {
		switch at := t.numbers[i].Load(); {
		case at == 0:
			return 0, false
		case at == n && t.objects[i].Load() != nil: // or else it was removed, and may have been added again
			return i, true
		}
	}
}

// add adds an object.
func (t *table[T]) add(n uint32, x *T) {
	mask := uint32(len(t.numbers) - 1)
	i := n & mask
	for t.numbers[i].Load() != 0 {
		i = (i + 1) & mask
	}
	t.objects[i].Store(x)
	t.numbers[i].Store(n)
}

// Add adds an object.
//
// Preconditions: n is not 0; Find(n) is nil.
func (m *Map[T]) Add(n uint32, x *T) {
	t := m.table.Load()
	if t == nil || 4*(m.taken+1) > 3*len(t.numbers) { // a quarter is free always
		t = newTable[T](max(16, 1<<bits.Len(uint(2*m.used))))
		m.All(t.add)
		m.table.Store(t)
		m.taken = m.used
	}
	t.add(n, x)
	m.used++
	m.taken++
}

// Remove removes the object with a number, if there is one.
func (m *Map[T]) Remove(n uint32) {
	t := m.table.Load()
	if t == nil {
		return
	}
	i, ok := t.find(n)
	if !ok {
		return
	}
	t.objects[i].Store(nil)
	m.used--
	m.recent[m.freed%recentSize] = n
	m.freed++
}

// Len returns the number of objects.
func (m *Map[T]) Len() int { return m.used }

// All calls f for each object.
func (m *Map[T]) All(f func(n uint32, x *T)) {
	t := m.table.Load()
	if t == nil {
		return
	}
	for i := range t.numbers {
		if x := t.objects[i].Load(); x != nil {
			f(t.numbers[i].Load(), x)
		}
	}
}

// Choose returns a number from first to limit-1 that no object has, and that none had until recently. random returns
// random numbers; the result is as hard to guess as these.
//
// Preconditions: 0 < first < limit; most of the numbers are free.
func (m *Map[T]) Choose(random func() uint32, first, limit uint32) uint32 {
	for try := uint32(0); ; try++ {
		n := first + (random()+try)%(limit-first)
		if m.Find(n) == nil && !slices.Contains(m.recent[:], n) {
			return n
		}
	}
}
