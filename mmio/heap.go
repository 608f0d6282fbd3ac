package mmio

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// heapDir has a device file for each dma-buf heap. Tests replace it.
var heapDir = "/dev/dma_heap"

// Heaps returns the names of the kernel's dma-buf heaps. There are none if the kernel is built without
// CONFIG_DMABUF_HEAPS, and in a container that has no /dev/dma_heap.
func Heaps() []string {
	entries, err := os.ReadDir(heapDir)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// MapHeap allocates size bytes of zeroed memory from a heap of [Heaps] and maps them. [Region.DMABuf]
// returns the dma-buf, which takes a descriptor until the region is closed. The memory is for devices that
// see the processor's caches, as the adapters of this library do: nothing calls DMA_BUF_IOCTL_SYNC.
//
// The error matches [errors.ErrUnsupported] if there is no heap at all, and [os.ErrNotExist] if there is none
// with this name.
func MapHeap(name string, size int) (*Region, error) {
	heaps := Heaps()
	if len(heaps) == 0 {
		return nil, fmt.Errorf("mmio: dma-buf heap %q: there is none in %s (kernel without CONFIG_DMABUF_HEAPS, or container without the files): %w",
			name, heapDir, errors.ErrUnsupported)
	}
	if !slices.Contains(heaps, name) { // also a path out of the directory
		return nil, fmt.Errorf("mmio: dma-buf heap: got %q, must be one of %s: %w", name, strings.Join(heaps, ", "), os.ErrNotExist)
	}
	path := heapDir + "/" + name
	fd, err := allocHeap(path, size)
	if err != nil {
		return nil, fmt.Errorf("mmio: %d bytes of %s: %w", size, path, err)
	}
	f := os.NewFile(fd, path)
	r, err := MapDescriptor(fd, path, 0, size, true)
	if err != nil {
		f.Close()
		return nil, err
	}
	r.owner = f
	return r, nil
}

// DMABuf returns the dma-buf of a region of [MapHeap], which closes it, and nil for any other region.
func (r *Region) DMABuf() *os.File {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.borrowed {
		return nil
	}
	f, _ := r.owner.(*os.File)
	return f
}
