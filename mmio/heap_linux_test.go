package mmio

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestMapHeapRefused plays the directory of the heaps. Its file is none that the kernel made, as the ioctl finds.
func TestMapHeapRefused(t *testing.T) {
	dir := t.TempDir()
	old := heapDir
	t.Cleanup(func() { heapDir = old })
	heapDir = filepath.Join(dir, "dma_heap")
	_, err := MapHeap("system", 1)
	if errorIs(t, err, errors.ErrUnsupported, "no heaps"); Heaps() != nil || !strings.Contains(err.Error(), "CONFIG_DMABUF_HEAPS") {
		t.Errorf("no heaps: %v, %q", err, Heaps())
	}
	must(t, os.Mkdir(heapDir, 0o700), os.WriteFile(filepath.Join(dir, "secret"), nil, 0o600))
	for _, name := range []string{"system", "reserved"} {
		must(t, os.WriteFile(filepath.Join(heapDir, name), nil, 0o600))
	}
	if got := Heaps(); !slices.Equal(got, []string{"reserved", "system"}) {
		t.Errorf("the heaps are %q", got)
	}
	for _, c := range []struct {
		name string
		size int
		want error
		text string
	}{
		{"", 1, os.ErrNotExist, `got "", must be one of reserved, system`},
		{"../secret", 1, os.ErrNotExist, `got "../secret", must be one of reserved, system`},
		{"system", 4096, syscall.ENOTTY, "4096 bytes of " + filepath.Join(heapDir, "system")},
	} {
		r, err := MapHeap(c.name, c.size)
		if errorIs(t, err, c.want, "%d bytes of %q", c.size, c.name); r != nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%d bytes of %q: %v, want %q", c.size, c.name, err, c.text)
		}
	}
}

// TestDMABufOfRegion: a region has a dma-buf if it comes from a heap, and closes it. A file is the dma-buf.
func TestDMABufOfRegion(t *testing.T) {
	f := file(t)
	r, err := Map(f, 0, 4096)
	must(t, err)
	if r.DMABuf() != nil {
		t.Error("a mapped file is a dma-buf")
	}
	r.owner = f // as MapHeap does
	if r.DMABuf() != f || Borrow(make([]byte, 1), f).DMABuf() != nil {
		t.Errorf("the dma-buf is %v, want %v, and none of borrowed memory", r.DMABuf(), f)
	}
	must(t, r.Close(), r.Close())
	if _, err := f.Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the dma-buf of a closed region: %v, want that it is closed", err)
	}
}
