//go:build linux

package s3rdma

import (
	"bytes"
	"errors"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// noHeap says that the kernel makes no dma-bufs for programs.
type noHeap struct{ error }

// Unsupported implements the interface of package testenv.
func (noHeap) Unsupported() (feature string, since [2]int) { return "dma-buf heaps", [2]int{} }

// newDMABuf makes a dma-buf, and maps it.
func newDMABuf(t *testing.T, size int) (*os.File, []byte) {
	t.Helper()
	heap, err := os.OpenFile("/dev/dma_heap/system", os.O_RDWR, 0)
	testenv.Must(t, err)
	defer heap.Close()
	ask := struct { // struct dma_heap_allocation_data (linux/dma-heap.h)
		length      uint64
		fd, fdFlags uint32
		flags       uint64
	}{length: uint64(size), fdFlags: unix.O_RDWR | unix.O_CLOEXEC}
	const alloc = 0xc0184800 // DMA_HEAP_IOCTL_ALLOC
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, heap.Fd(), alloc, uintptr(unsafe.Pointer(&ask))); errno != 0 {
		t.Fatal(errno)
	}
	f := os.NewFile(uintptr(ask.fd), "dma-buf")
	t.Cleanup(func() { closed(t, f) })
	mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	testenv.Must(t, err)
	t.Cleanup(func() { unix.Munmap(mem) })
	return f, mem
}

// TestHeap puts and gets objects with memory of a dma-buf heap and with a part of a dma-buf, as
// that of a GPU is. The data of the latter never goes by a body.
func TestHeap(t *testing.T) {
	testenv.Guest(t)
	testenv.Needs(t, "REG_DMABUF_MR", "mlx5")
	r := newRig(t, InitiatorOptions{Networks: everywhere, Chunk: 4096, Depth: 3})
	const size, offset, room = 50_001, 4097, 1 << 18
	heap, err := r.target.Alloc(size, uverbs.BufferOptions{Heap: "system"})
	if errors.Is(err, errors.ErrUnsupported) {
		testenv.Skip(t, noHeap{err})
	}
	testenv.Must(t, err)
	t.Cleanup(func() { closed(t, heap) })
	f, mem := newDMABuf(t, room)
	device, err := r.target.DMABuf(f, offset, size)
	testenv.Must(t, err)
	t.Cleanup(func() { closed(t, device) })
	for g, memory := range map[*Region][]byte{heap: heap.Bytes(), device: mem[offset:][:size]} {
		c, dir := serveStore(t, func(h http.Handler) http.Handler { return r.initiator.Handler(h, HandlerOptions{}) })
		fill(mem, 2)
		fill(memory, 3)
		want, around := bytes.Clone(memory), bytes.Clone(mem)
		if res, err := c.Put(t.Context(), "b/object", g, size, PutOptions{}); err != nil || !res.RDMA {
			t.Fatalf("Put returns %+v, %v", res, err)
		}
		if got, err := os.ReadFile(filepath.Join(dir, "object")); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("the server has other data, %v", err)
		}
		clear(memory)
		if res, err := c.Get(t.Context(), "b/object", g, GetOptions{Length: size}); err != nil || !res.RDMA || !bytes.Equal(memory, want) || !bytes.Equal(mem, around) {
			t.Fatalf("Get returns %+v, %v, or other data", res, err)
		}
		clear(memory)
		res, err := c.Get(t.Context(), "b/object", g, GetOptions{Offset: 5, Length: 9000})
		if err != nil || !res.RDMA || !bytes.Equal(memory[:9000], want[5:][:9000]) || bytes.ContainsFunc(memory[9000:], func(c rune) bool { return c != 0 }) {
			t.Fatalf("Get of a range returns %+v, %v, or other data", res, err)
		}
	}
	r.initiator.o.Networks = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")} // all offers are declined
	c, _ := serveStore(t, func(h http.Handler) http.Handler { return r.initiator.Handler(h, HandlerOptions{}) })
	if _, err := c.Put(t.Context(), "b/object", device, size, PutOptions{}); !errors.Is(err, ErrDeclined) {
		t.Errorf("Put of a dma-buf by the body: %v", err)
	}
	if res, err := c.Put(t.Context(), "b/object", heap, size, PutOptions{}); err != nil || res.RDMA {
		t.Errorf("Put of a heap's memory by the body: %+v, %v", res, err)
	}
	if _, err := c.Get(t.Context(), "b/object", device, GetOptions{Length: size}); !errors.Is(err, ErrDeclined) {
		t.Errorf("Get into a dma-buf by the body: %v", err)
	}
}
