package uverbs

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/mmio"
)

// BufferOptions are the options of [AllocBuffer]. The zero value is an ordinary buffer.
type BufferOptions struct {
	// HugePages requests huge pages, which the administrator must have reserved (MAP_HUGETLB).
	HugePages bool
	// HugePageSize is the size of a huge page in bytes, by default 2 MiB. Setting it implies
	// HugePages.
	HugePageSize int
	// NUMANode is the preferred node of the memory, ideally that of the device. By default the
	// kernel uses memory near the CPU that writes to it first.
	NUMANode *int
	// Heap is the name of a dma-buf heap, in /dev/dma_heap, that the memory comes from: "system_cc_shared" has
	// memory that a confidential VM shares with its devices. [PD.RegMR] registers it as [PD.RegDMABuf] does,
	// with the same rights and needs, at its own address. It excludes the other options, and [MR.Rereg].
	Heap string
}

// defaultHugePage is a size of huge pages that every amd64 and arm64 machine supports.
const defaultHugePage = 2 << 20

// Buffer is page-aligned, zeroed memory outside the Go heap, for [PD.RegMR]. Its methods are safe
// for concurrent use. Access to its bytes must be synchronized, with other goroutines and with the
// device.
type Buffer struct {
	mu     sync.Mutex
	region *mmio.Region
	size   int
	mrs    int
	heap   *os.File // the dma-buf of memory of a heap, or nil
}

// AllocBuffer returns a buffer of size bytes (ibv_alloc_buf). It fails with ENOMEM if there are too few free
// huge pages; the error says how many there are.
func AllocBuffer(size int, o BufferOptions) (*Buffer, error) {
	const op = "AllocBuffer"
	if size <= 0 {
		return nil, argErr(op, "size", size, "1 byte and more")
	}
	var region *mmio.Region
	var err error
	if o.Heap != "" {
		region, err = mapHeap(op, size, &o)
	} else if o.HugePages || o.HugePageSize != 0 {
		region, err = mapHuge(op, size, cmp.Or(o.HugePageSize, defaultHugePage))
	} else if region, err = mmio.MapAnonymous(size, false); err != nil {
		err = fmt.Errorf("uverbs: %s: %w", op, err)
	}
	if err != nil {
		return nil, err
	}
	if o.NUMANode != nil {
		if err := prefer(op, region, *o.NUMANode); err != nil {
			return nil, errors.Join(err, region.Close())
		}
	}
	return &Buffer{region: region, size: size, heap: region.DMABuf()}, nil
}

// sysHugePages and sysNodes are the sysfs directories of huge page sizes and NUMA nodes.
const (
	sysHugePages = "/sys/kernel/mm/hugepages"
	sysNodes     = "/sys/devices/system/node"
)

// mapHeap maps memory of a dma-buf heap.
func mapHeap(op string, size int, o *BufferOptions) (*mmio.Region, error) {
	if o.HugePages || o.HugePageSize != 0 || o.NUMANode != nil {
		return nil, argErr(op, "Heap", o.Heap, "none with HugePages, HugePageSize or NUMANode")
	}
	region, err := mmio.MapHeap(o.Heap, size)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, argErr(op, "Heap", o.Heap, "the heaps of this machine: %s", strings.Join(mmio.Heaps(), ", "))
	case errors.Is(err, errors.ErrUnsupported):
		return nil, &FeatureError{Feature: "memory of dma-buf heaps", Err: err}
	case err != nil:
		return nil, fmt.Errorf("uverbs: %s: %w", op, err)
	}
	return region, nil
}

// mapHuge maps memory of huge pages.
func mapHuge(op string, size, pageSize int) (*mmio.Region, error) {
	region, err := mmio.MapHuge(size, pageSize)
	switch {
	case errors.Is(err, syscall.EINVAL):
		return nil, argErr(op, "HugePageSize", pageSize, "%s", hugePageSizes(sysHugePages))
	case errors.Is(err, syscall.ENOMEM):
		return nil, fmt.Errorf("uverbs: %s: %w%s", op, err, hugeHint(sysHugePages, size, pageSize))
	case err != nil:
		return nil, fmt.Errorf("uverbs: %s: %w", op, err)
	}
	return region, nil
}

// hugePageSizes lists the huge page sizes that this machine supports.
func hugePageSizes(dir string) string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "none, the kernel has no huge pages"
	}
	var sizes []string
	for _, e := range entries {
		number := strings.TrimSuffix(strings.TrimPrefix(e.Name(), "hugepages-"), "kB")
		if kb, err := strconv.Atoi(number); err == nil {
			sizes = append(sizes, fmt.Sprint(kb<<10))
		}
	}
	return "the sizes of this machine, " + strings.Join(sizes, " and ")
}

// hugeHint compares the requested memory with the free huge pages.
func hugeHint(dir string, size, pageSize int) string {
	dir = filepath.Join(dir, fmt.Sprintf("hugepages-%dkB", pageSize>>10))
	need := (size-1)/pageSize + 1
	var n [3]int
	for i, name := range []string{"nr_hugepages", "free_hugepages", "resv_hugepages"} {
		text, err := readLine(filepath.Join(dir, name))
		if err != nil {
			return ""
		}
		n[i], _ = strconv.Atoi(text)
	}
	return fmt.Sprintf(": %d pages are needed, and of %d only %d are free and not reserved; reserve more (echo %d > %s/nr_hugepages)",
		need, n[0], n[1]-n[2], n[0]+need-(n[1]-n[2]), dir)
}

// prefer makes a NUMA node the preferred one for a region.
func prefer(op string, region *mmio.Region, node int) error {
	err := region.Prefer(node)
	switch {
	case errors.Is(err, syscall.EINVAL):
		nodes, err := readLine(filepath.Join(sysNodes, "has_memory"))
		if err != nil {
			nodes = "unknown"
		}
		return argErr(op, "NUMANode", node, "the nodes with memory: %s", nodes)
	case errors.Is(err, syscall.ENOSYS):
		return &FeatureError{Feature: "placing memory on a NUMA node", Err: err}
	case err != nil:
		return fmt.Errorf("uverbs: %s: %w", op, err)
	}
	return nil
}

// Bytes returns the buffer's memory, or nil after Close. The slice must not be used after Close.
func (b *Buffer) Bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.region == nil {
		return nil
	}
	return b.region.Bytes()[:b.size]
}

// Len returns the buffer's size in bytes.
func (b *Buffer) Len() int { return b.size }

// acquire keeps the buffer from being closed while an MR covers it.
func (b *Buffer) acquire() ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.region == nil {
		return nil, fmt.Errorf("uverbs: Buffer: %w", os.ErrClosed)
	}
	b.mrs++
	return b.region.Bytes()[:b.size], nil
}

// release undoes acquire.
func (b *Buffer) release() {
	b.mu.Lock()
	b.mrs--
	b.mu.Unlock()
}

// Close frees the memory (ibv_free_buf). It fails with EBUSY while an MR covers the buffer.
func (b *Buffer) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.region == nil {
		return nil
	}
	if b.mrs > 0 {
		return fmt.Errorf("uverbs: Buffer: still registered as %d MR; close them first: %w", b.mrs, syscall.EBUSY)
	}
	if err := b.region.Close(); err != nil {
		return fmt.Errorf("uverbs: Buffer: %w", err)
	}
	b.region = nil
	return nil
}
