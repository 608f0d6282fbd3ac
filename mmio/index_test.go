package mmio

import (
	"encoding/binary"
	"testing"
	"unsafe"
)

func TestIndexIsTheBytesOfTheHost(t *testing.T) {
	words := make([]uint64, 4)
	mem := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), 32)
	x, err := IndexAt(mem, 12)
	if err != nil {
		t.Fatal(err)
	}
	x.Release(0x01020304)
	if got := binary.NativeEndian.Uint32(mem[12:]); got != 0x01020304 {
		t.Errorf("memory has %#x, want 0x01020304", got)
	}
	if words[0] != 0 || words[2] != 0 || words[3] != 0 || binary.NativeEndian.Uint32(mem[8:]) != 0 {
		t.Errorf("neighbours changed: %x", words)
	}
	binary.NativeEndian.PutUint32(mem[12:], 77)
	if got := x.Acquire(); got != 77 {
		t.Errorf("Acquire = %d, want 77", got)
	}
}

func TestIndexAtErrors(t *testing.T) {
	words := []uint64{3: 5}
	mem := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), 32)
	for _, tc := range []struct {
		name   string
		mem    []byte
		offset uintptr
	}{
		{"no memory", nil, 0},
		{"three bytes", mem[:3], 0},
		{"past the end", mem, 29},
		{"at the end", mem, 32},
		{"far past the end", mem, ^uintptr(0)},
		{"unaligned offset", mem, 2},
		{"unaligned memory", mem[1:], 4},
	} {
		if x, err := IndexAt(tc.mem, tc.offset); err == nil {
			t.Errorf("%s: IndexAt(%d bytes, %d) = %p, want an error", tc.name, len(tc.mem), tc.offset, x)
		}
	}
	if _, err := IndexAt(mem, 28); err != nil {
		t.Errorf("the last index of the memory: %v", err)
	}
	for _, offset := range []uintptr{4, 28, 32} {
		if _, err := WordAt(mem, offset); err == nil {
			t.Errorf("there is a word at %d", offset)
		}
	}
	if w, err := WordAt(mem, 24); err != nil || w.Load() != words[3] {
		t.Errorf("the last word of the memory: %v", err)
	}
}

// TestIndexPublishes hands values from one goroutine to another through plain
// memory and an Index. Under the race detector it proves that the pair makes a
// happens-before edge; without it, that the CPU keeps the order.
func TestIndexPublishes(t *testing.T) {
	const rounds = 20000
	var words [32]uint64 // data in words[0], indices in cache lines of their own
	mem := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(words)*8)
	prod, err := IndexAt(mem, 64)
	if err != nil {
		t.Fatal(err)
	}
	cons, err := IndexAt(mem, 128)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for i := uint32(1); i <= rounds; i++ {
			words[0] = uint64(i) * 3
			prod.Release(i)
			wait(func() bool { return cons.Acquire() == i })
		}
	}()
	for i := uint32(1); i <= rounds; i++ {
		wait(func() bool { return prod.Acquire() == i })
		if got, want := words[0], uint64(i)*3; got != want {
			t.Fatalf("index %d was seen before its data: %d, want %d", i, got, want)
		}
		cons.Release(i)
	}
}

func BenchmarkIndexAcquire(b *testing.B) {
	var word uint64
	x, _ := IndexAt(unsafe.Slice((*byte)(unsafe.Pointer(&word)), 8), 0)
	for b.Loop() {
		x.Acquire()
	}
}

func BenchmarkIndexRelease(b *testing.B) {
	var word uint64
	x, _ := IndexAt(unsafe.Slice((*byte)(unsafe.Pointer(&word)), 8), 0)
	for b.Loop() {
		x.Release(1)
	}
}
