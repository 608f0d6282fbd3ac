package number

import (
	"math/rand/v2"
	"sync"
	"testing"
)

// TestMap adds and removes objects at random, and compares with a Go map.
func TestMap(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var m Map[int]
	want := map[uint32]*int{}
	for range 20000 {
		n := (1 + r.Uint32N(500)) * 64 // many begin to search at the same place
		switch {
		case want[n] == nil && r.IntN(3) > 0:
			want[n] = new(int)
			m.Add(n, want[n])
		default:
			delete(want, n)
			m.Remove(n)
		}
		if m.Len() != len(want) || m.Find(n) != want[n] {
			t.Fatalf("%d objects, want %d; object %d is %v, want %v", m.Len(), len(want), n, m.Find(n), want[n])
		}
	}
	if x := m.Find(0); x != nil {
		t.Errorf("0, which no object has, finds %v", x)
	}
	got := map[uint32]*int{}
	m.All(func(n uint32, x *int) { got[n] = x })
	if len(got) != len(want) {
		t.Errorf("All calls with %d objects, want %d", len(got), len(want))
	}
	for n, x := range want {
		if got[n] != x || m.Find(n) != x {
			t.Errorf("object %d is %v and %v, want %v", n, got[n], m.Find(n), x)
		}
	}
}

// TestFindWhileChanging: an object that stays is found while others come and go.
func TestFindWhileChanging(t *testing.T) {
	var m Map[int]
	stays := new(int)
	m.Add(7, stays)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if m.Find(7) != stays {
				t.Error("the object is not found")
				return
			}
		}
	})
	for i := range uint32(2000) {
		m.Add(8+i, new(int))
		if i%2 == 0 {
			m.Remove(8 + i/2)
		}
	}
	close(stop)
	wg.Wait()
}

// TestChoose: a number is free, was not free until recently, and lies in the range. Numbers do not follow each other.
func TestChoose(t *testing.T) {
	var m Map[int]
	random := rand.New(rand.NewPCG(1, 2)).Uint32
	m.Add(20, new(int))
	m.Remove(20)
	seen := map[uint32]bool{}
	for range 3 * recentSize {
		n := m.Choose(random, 17, 17+8*recentSize)
		if seen[n] || n == 20 && m.freed <= recentSize || n < 17 || n >= 17+8*recentSize {
			t.Fatalf("number %d", n)
		}
		seen[n] = true
		m.Add(n, new(int))
	}
	near := 0
	for range 1000 {
		if a, b := m.Choose(random, 17, 1<<24-1), m.Choose(random, 17, 1<<24-1); a-b < 1<<12 || b-a < 1<<12 {
			near++
		}
	}
	if near > 10 {
		t.Errorf("%d of 1000 pairs of numbers are near each other", near)
	}
}
