package ring

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"testing"
)

// isMapped reports whether the memory at an address is mapped.
func isMapped(t *testing.T, address int) bool {
	t.Helper()
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var from, to uint64
		if _, err := fmt.Sscanf(s.Text(), "%x-%x", &from, &to); err != nil {
			t.Fatal(err)
		}
		if from <= uint64(address) && uint64(address) < to {
			return true
		}
	}
	return false
}

// collect runs the garbage collector until the memory at an address is not mapped any more.
func collect(t *testing.T, address int) {
	t.Helper()
	for n := 0; isMapped(t, address); n++ {
		if n == 1000 {
			t.Fatal("the memory is still mapped after nothing refers to it")
		}
		runtime.GC()
		runtime.Gosched()
	}
}

// TestLargeRing: a ring that is too large for the Go heap works, stays mapped as long as the device
// has the ring or the program the region, whichever is longer, and is unmapped then.
func TestLargeRing(t *testing.T) {
	const count = heapMost / 64
	for _, programFirst := range []bool{false, true} {
		r := newRing(t, count, 64)
		region := r.Map(len(r.Bytes()))
		p := newProgram(t, region.Bytes())
		p.producer.Release(count)
		p.elem(count)[63] = 7
		at := address(r.Bytes())
		if got := r.Elem(r.Producer())[63]; got != 7 || at != address(region.Bytes()) {
			t.Errorf("the device sees %d, want 7", got)
		}
		if err := region.Retire(); err != nil || region.Bytes() != nil {
			t.Errorf("Retire: %v; Bytes is not nil: %v", err, region.Bytes() != nil)
		}
		p.elem(count)[63]++ // a program may do so by mistake
		if got := r.Elem(count)[63]; got != 8 {
			t.Errorf("the device sees %d after Retire, want 8", got)
		}
		for range 3 {
			runtime.GC()
		}
		if programFirst {
			runtime.KeepAlive(region)
			region = nil
			runtime.GC()
			if !isMapped(t, at) || r.Elem(count)[63] != 8 {
				t.Error("the device's memory is unmapped")
			}
			r = nil
		} else {
			runtime.KeepAlive(r)
			r = nil
			runtime.GC()
			if !isMapped(t, at) || p.elem(count)[63] != 8 {
				t.Error("the program's memory is unmapped")
			}
			runtime.KeepAlive(region)
			region = nil
		}
		collect(t, at)
	}
}

// TestLargeRingsAreCollected: a program that makes and drops large rings, and little else, does not
// keep their memory.
func TestLargeRingsAreCollected(t *testing.T) {
	const size = 128 << 20
	most, before := 0, mappings(t, size)
	for range 100 {
		newRing(t, size/128, 64)
		most = max(most, mappings(t, size)-before)
	}
	if most > 50 {
		t.Errorf("%d of 100 rings were mapped at a time", most)
	}
}

// mappings returns how many mappings of size bytes fit into the memory that is mapped.
func mappings(t *testing.T, size int) int {
	t.Helper()
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var pages int
	if _, err := fmt.Sscan(string(statm), &pages); err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize() / size
}
