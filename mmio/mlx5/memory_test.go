//go:build amd64 || arm64

package mlx5

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestMemoryMap: the offsets of mmap, as the kernel takes them apart, and whole pages.
func TestMemoryMap(t *testing.T) {
	for _, c := range []struct {
		page             uint16
		length, pageSize int
		offset           uint64
		size             int
	}{
		{0, 1, 4096, 0x800000, 4096}, {1, 4096, 4096, 0x801000, 4096}, {255, 4097, 4096, 0x8ff000, 8192},
		{256, 64, 4096, 0x10800000, 4096}, {0xffff, 64, 4096, 0xff08ff000, 4096}, {2, 1 << 17, 65536, 0x8020000, 1 << 17},
	} {
		if offset, size := MemoryMap(c.page, c.length, c.pageSize); offset != c.offset || size != c.size {
			t.Errorf("page %d of %d: %d bytes at %#x, want %d at %#x", c.page, c.pageSize, size, offset, c.size, c.offset)
		}
	}
}

// TestMemory copies to and from the middle of a mapping, more than goes at once.
func TestMemory(t *testing.T) {
	mapped := region(t, 8192)
	const start, length = 64, 5000
	m, err := NewMemory(mapped, start, length)
	must(t, err)
	want, data := slices.Clone(mapped), make([]byte, 3001)
	for i := range data {
		data[i] = byte(i * 3)
	}
	data = data[1:] // of any alignment
	m.Store(8, data)
	m.Store(length-4, data[:4])
	m.Store(0, nil)
	copy(want[start+8:], data)
	copy(want[start+length-4:], data[:4])
	if diff := cmp.Diff(want, mapped); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
	got := make([]byte, 1+len(data))[1:]
	if m.Load(8, got); !slices.Equal(got, data) {
		t.Error("what is loaded is not what was stored")
	}
	m.Load(length, nil)
	for _, c := range []struct {
		start  uint64
		length int
	}{{2, 100}, {64, 8192}, {8196, 0}, {1 << 63, 1}, {0, -1}} {
		errorIs(t, errorOf(NewMemory(mapped, c.start, c.length)), ErrLayout, "%d bytes at %#x", c.length, c.start)
	}
}
