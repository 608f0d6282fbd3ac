package uverbs

import (
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/mmio"
)

// BufferOptions are the options of [AllocBufferOptions]; the zero value is an
// ordinary buffer.
type BufferOptions struct {
	HugePages bool // HugePages asks for 2 MiB pages that the administrator has reserved (MAP_HUGETLB).
}

// Buffer is memory outside of the Go heap, page aligned and zeroed, that can be
// registered with [PD.RegMR]. Its bytes may be used from any goroutine; that the
// device writes to it at the same time is the program's to know. Buffer must not
// be closed while it is registered, and Close says so.
type Buffer struct {
	mu     sync.Mutex
	region *mmio.Region
	size   int
	mrs    int
}

// AllocBuffer returns a buffer of size bytes.
func AllocBuffer(size int) (*Buffer, error) {
	return AllocBufferOptions(size, BufferOptions{})
}

// AllocBufferOptions returns a buffer of size bytes. It fails with ENOMEM if there
// are too few free huge pages.
func AllocBufferOptions(size int, o BufferOptions) (*Buffer, error) {
	if size <= 0 {
		return nil, argErr("AllocBuffer", "size", size, "1 byte and more")
	}
	region, err := mmio.MapAnonymous(size, o.HugePages)
	if err != nil {
		hint := ""
		if o.HugePages {
			hint = " of huge pages (reserve them in /proc/sys/vm/nr_hugepages)"
		}
		return nil, fmt.Errorf("uverbs: AllocBuffer: %d bytes%s: %w", size, hint, err)
	}
	return &Buffer{region: region, size: size}, nil
}

// Bytes returns the buffer's memory, or nil after Close. The slice must not be
// used after Close.
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

// hold keeps the buffer from being closed while an MR covers it.
func (b *Buffer) hold() ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.region == nil {
		return nil, fmt.Errorf("uverbs: Buffer: %w", os.ErrClosed)
	}
	b.mrs++
	return b.region.Bytes()[:b.size], nil
}

// release undoes hold.
func (b *Buffer) release() {
	b.mu.Lock()
	b.mrs--
	b.mu.Unlock()
}

// Close gives the memory back. It fails with EBUSY while an MR covers the buffer.
func (b *Buffer) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.region == nil {
		return nil
	}
	if b.mrs > 0 {
		return fmt.Errorf("uverbs: Buffer: %d MR still cover it, close them first: %w", b.mrs, syscall.EBUSY)
	}
	if err := b.region.Close(); err != nil {
		return fmt.Errorf("uverbs: Buffer: %w", err)
	}
	b.region = nil
	return nil
}
