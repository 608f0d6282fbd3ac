package uverbs

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"syscall"
)

// Errors of a [BufferPool].
var (
	// ErrPoolEmpty is returned by [BufferPool.Get] if no slot is free.
	ErrPoolEmpty = errors.New("uverbs: no free slot in the buffer pool")
	// ErrSlotFree is returned by [BufferPool.Put] if the slot is already free or belongs to another
	// pool.
	ErrSlotFree = errors.New("uverbs: slot is free or belongs to another buffer pool")

	errPoolClosed = &reason{"uverbs: BufferPool: file already closed", os.ErrClosed}
)

// slotAlign is the alignment of slots in bytes: a cache line of common machines.
const slotAlign = 64

// PoolOptions are the options of [NewBufferPool].
type PoolOptions struct {
	SlotSize int           // SlotSize is the size of a slot in bytes. Slots start at multiples of 64 bytes.
	Slots    int           // Slots is the number of slots.
	Access   Access        // Access are the access rights of the memory region.
	Buffer   BufferOptions // Buffer are the options of the memory.
}

// BufferPool is a registered buffer divided into slots of equal size, for many small messages. It
// is safe for concurrent use. Get and Put do not allocate.
type BufferPool struct {
	buf    *Buffer
	mr     *MR
	mem    []byte
	size   int // of a slot, without padding
	stride int // from one slot to the next

	closing sync.Mutex // held by Close; comes before mu

	mu     sync.Mutex
	free   []uint32 // indices of free slots, the last used at the end
	turn   []uint32 // number of Get and Put calls by slot; odd while it is in use
	closed bool     // closed, or being closed
}

// Slot is a piece of a [BufferPool]. The program owns it from Get until Put. Copies of a Slot refer
// to the same memory.
type Slot struct {
	pool  *BufferPool
	index uint32
	turn  uint32
}

// NewBufferPool allocates and registers a pool. It fails with an [ArgError] or with the errors of
// [AllocBuffer] and [PD.RegMR].
func NewBufferPool(pd *PD, o PoolOptions) (*BufferPool, error) {
	const op = "NewBufferPool"
	if pd == nil {
		return nil, argErr(op, "pd", "nil", "a PD")
	}
	if err := pd.usable(); err != nil {
		return nil, err
	}
	if o.SlotSize <= 0 || o.SlotSize > math.MaxUint32-slotAlign {
		return nil, argErr(op, "SlotSize", o.SlotSize, "1 to %d", math.MaxUint32-slotAlign)
	}
	stride := (o.SlotSize + slotAlign - 1) &^ (slotAlign - 1)
	if most := min(math.MaxInt/stride, math.MaxUint32); o.Slots <= 0 || o.Slots > most {
		return nil, argErr(op, "Slots", o.Slots, "1 to %d", most)
	}
	buf, err := AllocBuffer(stride*o.Slots, o.Buffer)
	if err != nil {
		return nil, err
	}
	mr, err := pd.RegMR(buf, MROptions{Access: o.Access})
	if err != nil {
		return nil, errors.Join(err, buf.Close())
	}
	p := &BufferPool{
		buf: buf, mr: mr, mem: buf.Bytes(), size: o.SlotSize, stride: stride,
		free: make([]uint32, o.Slots), turn: make([]uint32, o.Slots),
	}
	for i := range p.free {
		p.free[i] = uint32(o.Slots - 1 - i)
	}
	return p, nil
}

// MR returns the memory region that contains all slots.
func (p *BufferPool) MR() *MR { return p.mr }

// Get returns the free slot that was used last. It does not clear the memory. It fails with
// [ErrPoolEmpty] if no slot is free.
func (p *BufferPool) Get() (Slot, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return Slot{}, errPoolClosed
	}
	n := len(p.free)
	if n == 0 {
		return Slot{}, ErrPoolEmpty
	}
	i := p.free[n-1]
	p.free = p.free[:n-1]
	p.turn[i]++
	return Slot{p, i, p.turn[i]}, nil
}

// Put returns a slot to the pool. All work requests that use it must have completed, and the
// program must not use its memory afterwards. It fails with [ErrSlotFree] if the slot is already
// free or belongs to another pool.
func (p *BufferPool) Put(s Slot) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errPoolClosed
	}
	if s.pool != p || p.turn[s.index] != s.turn {
		return ErrSlotFree
	}
	p.turn[s.index]++
	p.free = append(p.free, s.index)
	return nil
}

// Free returns the number of free slots.
func (p *BufferPool) Free() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.free)
}

// Close deregisters and frees the memory. It fails with EBUSY while slots are in use.
func (p *BufferPool) Close() error {
	if p.mr == nil {
		return errZero("Close")
	}
	p.closing.Lock()
	defer p.closing.Unlock()
	if err := p.setClosed(true); err != nil {
		return err
	}
	err := p.mr.Close()
	if err == nil {
		err = p.buf.Close()
	}
	if err != nil {
		p.setClosed(false)
	}
	return err
}

// setClosed makes Get and Put fail, or no longer. It fails while slots are in use.
func (p *BufferPool) setClosed(closed bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if out := len(p.turn) - len(p.free); out > 0 {
		return fmt.Errorf("uverbs: BufferPool: %d of %d slots are in use; put them back first: %w", out, len(p.turn), syscall.EBUSY)
	}
	p.closed = closed
	return nil
}

// Index returns the number of the slot in its pool, from 0. It can serve as the ID of a work
// request.
func (s Slot) Index() int { return int(s.index) }

// Bytes returns the slot's memory, or nil for the zero Slot.
func (s Slot) Bytes() []byte {
	if s.pool == nil {
		return nil
	}
	at := int(s.index) * s.pool.stride
	return s.pool.mem[at:][:s.pool.size:s.pool.size]
}

// SGE returns a scatter/gather element for the first n bytes of the slot. If the slot is shorter,
// posting the element fails with [ErrSGERange].
func (s Slot) SGE(n int) SGE {
	if s.pool == nil || n > s.pool.size {
		return SGE{outside: true}
	}
	return s.pool.mr.SGE(int(s.index)*s.pool.stride, n)
}
