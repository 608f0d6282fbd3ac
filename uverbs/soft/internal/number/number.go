// Package number finds objects by their numbers, and chooses numbers that nobody can guess: those of queue pairs
// and the indices of memory keys.
package number

import (
	"slices"
	"sync/atomic"
)

// A Map holds objects by number. Find takes no lock; the caller serializes calls of the other methods. The zero
// value is empty.
type Map[T any] struct {
	table  atomic.Pointer[table[T]]
	used   int
	recent [recentSize]uint32 // numbers that were freed last
	freed  int                // numbers that were freed so far
}

// recentSize is how many numbers that were freed are not chosen again: packets for the objects that had them may
// still arrive.
const recentSize = 256

// A table is a hash table with a list of nodes for each remainder of numbers. Its size does not change.
type table[T any] struct {
	lists []atomic.Pointer[node[T]] // a power of two of them
}

// A node never changes.
type node[T any] struct {
	n    uint32
	x    *T
	next *node[T]
}

// list returns the list that may have a number.
func (t *table[T]) list(n uint32) *atomic.Pointer[node[T]] { return &t.lists[n&uint32(len(t.lists)-1)] }

// Find returns the object with a number, or nil.
func (m *Map[T]) Find(n uint32) *T {
	t := m.table.Load()
	if t == nil {
		return nil
	}
	for e := t.list(n).Load(); e != nil; e = e.next {
		if e.n == n {
			return e.x
		}
	}
	return nil
}

// Add adds an object.
//
// Preconditions: Find(n) is nil.
func (m *Map[T]) Add(n uint32, x *T) {
	t := m.table.Load()
	if t == nil || m.used == len(t.lists) {
		t = m.grow(t)
	}
	l := t.list(n)
	l.Store(&node[T]{n, x, l.Load()})
	m.used++
}

// grow makes a table of twice the size.
func (m *Map[T]) grow(old *table[T]) *table[T] {
	size := 16
	if old != nil {
		size = 2 * len(old.lists)
	}
	t := &table[T]{make([]atomic.Pointer[node[T]], size)}
	m.All(func(n uint32, x *T) {
		l := t.list(n)
		l.Store(&node[T]{n, x, l.Load()})
	})
	m.table.Store(t)
	return t
}

// Remove removes the object with a number, if there is one.
func (m *Map[T]) Remove(n uint32) {
	if m.Find(n) == nil {
		return
	}
	l := m.table.Load().list(n)
	var rest *node[T]
	for e := l.Load(); e != nil; e = e.next {
		if e.n != n {
			rest = &node[T]{e.n, e.x, rest}
		}
	}
	l.Store(rest)
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
	for i := range t.lists {
		for e := t.lists[i].Load(); e != nil; e = e.next {
			f(e.n, e.x)
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
