package cm

import (
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/goverbs/goverbs/uverbs"
)

// Registering memory is the most expensive part of making a connection. So the connections on a
// device share registered regions: each connection takes slots from them, and the slots that it
// returns are used by the next connection.

// pool is the registered memory of the connections that share a PD.
type pool struct {
	pd    *uverbs.PD
	least int // smallest size of a region, in bytes

	// registering is held while a region is registered or its registration ends, which takes as long as
	// the device does. It is locked before mu. Connections that need no new region do not wait for it.
	registering sync.Mutex

	mu      sync.Mutex // held for short times, not during a command, except in close
	regions []*region
	used    int  // guarded by mu: bytes of the slots in use
	trim    bool // guarded by mu: a timer for trimIdle is set
}

// region is memory that is registered as a whole.
type region struct {
	buf       *uverbs.Buffer
	mr        *uverbs.MR // nil once the registration has ended
	bytes     []byte
	free      []span    // by offset; adjacent spans are merged
	idleSince time.Time // when the last slot was returned
}

// span is a part of a region.
type span struct{ at, size int }

const (
	slotAlign = 64       // a cache line
	maxRegion = 16 << 20 // unless one connection needs more
	growth    = 4        // a new region is 1/growth of the bytes in use

	firstRegion = 64 << 10 // smallest region for small receives
)

// idle reports whether no slot is in use.
func (r *region) idle() bool { return len(r.free) == 1 && r.free[0].size == len(r.bytes) }

// allocSpan takes up to most adjacent slots from the first free span that has room for one. It
// returns how many; 0 if there is no such span.
func (r *region) allocSpan(size, most int) (at, count int) {
	for i := range r.free {
		f := &r.free[i]
		if f.size < size {
			continue
		}
		at, count = f.at, min(f.size/size, most)
		if f.at, f.size = f.at+count*size, f.size-count*size; f.size == 0 {
			r.free = slices.Delete(r.free, i, i+1)
		}
		return at, count
	}
	return 0, 0
}

// freeSpan returns a span and merges it with its free neighbors.
func (r *region) freeSpan(at, size int) {
	i, _ := slices.BinarySearchFunc(r.free, at, func(f span, at int) int { return f.at - at })
	before := i > 0 && r.free[i-1].at+r.free[i-1].size == at
	after := i < len(r.free) && r.free[i].at == at+size
	switch {
	case before && after:
		r.free[i-1].size += size + r.free[i].size
		r.free = slices.Delete(r.free, i, i+1)
	case before:
		r.free[i-1].size += size
	case after:
		r.free[i] = span{at, size + r.free[i].size}
	default:
		r.free = slices.Insert(r.free, i, span{at, size})
	}
}

// memory is a number of slots of equal size that belong to one connection. The zero value has no
// slots.
type memory struct {
	pool  *pool
	size  int // size of a slot
	slots []slot
}

// slot is a part of a region.
type slot struct {
	region *region
	at     int
}

// alloc returns n slots of at least the given size. They still hold what another connection has
// left there. The size of a new region depends on the bytes in use, so that many connections need
// few regions and little memory is registered in vain.
func (p *pool) alloc(n, size int) (memory, error) {
	size = (size + slotAlign - 1) &^ (slotAlign - 1)
	m := memory{p, size, make([]slot, 0, n)}
	if missing, _ := p.fillFree(&m, n); missing == 0 {
		return m, nil
	}
	p.registering.Lock()
	defer p.registering.Unlock()
	missing, used := p.fillFree(&m, n) // there may be a new region now
	if missing == 0 {
		return m, nil
	}
	r, err := p.register(max(missing, p.least, min(used/growth, maxRegion)))
	if err != nil && max(p.least, used/growth) > missing { // there may be enough memory for a smaller one
		r, err = p.register(missing)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.freeSlots(m.size, m.slots...)
		return memory{}, err
	}
	p.regions = append(p.regions, r)
	p.fill(&m, r, n)
	return m, nil
}

// fillFree takes free slots until there are n. It returns how many bytes are missing, and how many all
// slots in use have.
func (p *pool) fillFree(m *memory, n int) (missing, used int) {
	p.mu.Lock()
	for _, r := range p.regions {
		p.fill(m, r, n)
	}
	used = p.used
	p.mu.Unlock()
	return (n - len(m.slots)) * m.size, used
}

// fill takes slots from a region until there are n. The caller holds p.mu.
func (p *pool) fill(m *memory, r *region, n int) {
	for len(m.slots) < n {
		at, count := r.allocSpan(m.size, n-len(m.slots))
		if count == 0 {
			return
		}
		for i := range count {
			m.slots = append(m.slots, slot{r, at + i*m.size})
		}
		p.used += count * m.size
	}
}

// register makes a region. The caller holds p.registering.
func (p *pool) register(size int) (*region, error) {
	buf, err := uverbs.AllocBuffer(size, uverbs.BufferOptions{})
	if err != nil {
		return nil, err
	}
	mr, err := p.pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite})
	if err != nil {
		return nil, errors.Join(err, buf.Close())
	}
	return &region{buf: buf, mr: mr, bytes: buf.Bytes(), free: []span{{0, size}}}, nil
}

// bytes returns the bytes of a slot.
func (m *memory) bytes(i int) []byte {
	s := &m.slots[i]
	return s.region.bytes[s.at:][:m.size:m.size]
}

// sge returns a scatter/gather element for the first bytes of a slot.
func (m *memory) sge(i, length int) uverbs.SGE {
	s := &m.slots[i]
	return s.region.mr.SGE(s.at, length)
}

// release returns all slots. Neither the program nor a work request may use them any more.
func (m *memory) release() {
	if m.pool != nil {
		m.pool.release(m.size, m.slots...)
	}
	*m = memory{}
}

// release returns slots of the given size.
func (p *pool) release(size int, slots ...slot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.freeSlots(size, slots...)
}

// freeSlots is release for a caller that holds p.mu. Adjacent slots are one span, as alloc has made
// them.
func (p *pool) freeSlots(size int, slots ...slot) {
	for len(slots) > 0 {
		r, at, n := slots[0].region, slots[0].at, 1
		for n < len(slots) && slots[n] == (slot{r, at + n*size}) {
			n++
		}
		slots = slots[n:]
		r.freeSpan(at, n*size)
		p.used -= n * size
		switch {
		case !r.idle():
		case r.mr == nil: // the device is closed; the program has used the slot until now
			r.buf.Close()
		default:
			r.idleSince = time.Now()
			if !p.trim {
				p.trim = true
				time.AfterFunc(idleGrace, p.trimIdle)
			}
		}
	}
}

// trimIdle closes the regions that were idle for idleGrace.
func (p *pool) trimIdle() {
	p.registering.Lock()
	defer p.registering.Unlock()
	p.mu.Lock()
	var old []*region
	p.regions = slices.DeleteFunc(p.regions, func(r *region) bool {
		if !r.idle() || time.Since(r.idleSince) < idleGrace {
			return false
		}
		old = append(old, r)
		return true
	})
	p.mu.Unlock()
	old = slices.DeleteFunc(old, func(r *region) bool { return r.close() == nil }) // nobody else has them

	p.mu.Lock()
	p.regions = append(p.regions, old...)
	if p.trim = slices.ContainsFunc(p.regions, (*region).idle); p.trim {
		time.AfterFunc(idleGrace, p.trimIdle)
	}
	p.mu.Unlock()
}

// close closes all regions. No slot is in use, except for messages of closed connections that the
// program may still read.
func (p *pool) close() error {
	p.registering.Lock()
	defer p.registering.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	p.regions = slices.DeleteFunc(p.regions, func(r *region) bool {
		err := r.close()
		errs = append(errs, err)
		return err == nil
	})
	return errors.Join(errs...)
}

// close ends the registration, and frees the memory unless a slot is still leased.
func (r *region) close() error {
	if err := r.mr.Close(); err != nil {
		return err
	}
	r.mr = nil
	if !r.idle() {
		return nil
	}
	return r.buf.Close()
}

// recvLease keeps the slot of the message that the program may still read after Close. The zero
// value keeps none.
type recvLease struct {
	mem     memory
	cleanup runtime.Cleanup
}

// leaseSlot returns the memory of a connection except for one slot, which is returned when the
// lease is released or the connection becomes unreachable.
func leaseSlot[T any](conn *T, m *memory, i int) recvLease {
	one := memory{m.pool, m.size, []slot{m.slots[i]}}
	m.slots = slices.Delete(m.slots, i, i+1)
	m.release()
	return recvLease{one, runtime.AddCleanup(conn, func(one memory) { one.release() }, one)}
}

// release returns the slot.
func (l *recvLease) release() {
	l.cleanup.Stop()
	l.mem.release()
}
