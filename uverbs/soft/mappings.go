package soft

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
)

// offsets hands out the offsets at which the program maps rings. No offset is used twice.
type offsets struct{ used atomic.Uint64 }

// next returns an offset for size bytes.
func (o *offsets) next(size int) uint64 {
	page := uint64(os.Getpagesize())
	n := (uint64(size) + page - 1) &^ (page - 1)
	return o.used.Add(n) - n + page // offset 0 is not used
}

// mappings are the rings of a context that the program has not mapped yet. As in Linux, a ring can be
// mapped once.
type mappings struct {
	mu      sync.Mutex
	pending map[uint64]*ring.Ring // guarded by mu: by offset
}

// add makes a ring available and returns where.
func (m *mappings) add(o *offsets, r *ring.Ring) ring.Map {
	if r == nil {
		return ring.Map{}
	}
	at := ring.MapOf(r, o.next(len(r.Bytes())))
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pending == nil {
		m.pending = map[uint64]*ring.Ring{}
	}
	m.pending[at.Offset] = r
	return at
}

// drop ends the availability of rings.
func (m *mappings) drop(rings ...*ring.Ring) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for offset, r := range m.pending {
		for _, gone := range rings {
			if r == gone {
				delete(m.pending, offset)
			}
		}
	}
}

// dropAll ends the availability of all rings.
func (m *mappings) dropAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pending = nil
}

// open returns the memory of a ring.
func (m *mappings) open(offset uint64, size int) (*mmio.Region, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.pending[offset]
	switch {
	case r == nil:
		return nil, fmt.Errorf("soft: map %d bytes at offset %#x: no object that is not mapped yet has this offset: %w", size, offset, syscall.EINVAL)
	case size <= 0 || size > len(r.Bytes()):
		return nil, fmt.Errorf("soft: map at offset %#x: size: got %d, must be from 1 to %d: %w", offset, size, len(r.Bytes()), syscall.EINVAL)
	}
	delete(m.pending, offset)
	return r.Map(size), nil
}
