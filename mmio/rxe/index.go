package rxe

// smallRing is the number of elements up to which a ring is searched without an index.
const smallRing = 128

// An IDIndex finds the work requests of a ring by ID. When a queue pair with a deep ring fails,
// each work request is looked up; the index makes that cost one pass over the ring instead of one
// per request. It includes completed work requests that the ring still has. The zero value is ready
// for use. One goroutine at a time may use it.
type IDIndex struct {
	of    *producer   // the ring
	pos   uint64      // position up to which the ring was read: laps and producer index
	slots []indexedID // by element
	byID  map[uint64]indexedSlot
	reads int // of elements, for tests
}

// indexedID is the ID of an element when it was read.
type indexedID struct {
	wrID uint64
	used bool
}

// indexedSlot are the elements that have an ID.
type indexedSlot struct {
	newest uint32 // the last of them to be used again
	count  uint32
}

// find returns the newest element of a ring with an ID. readID returns the ID of an element and
// whether it was ever written.
func (x *IDIndex) find(r *producer, wrID uint64, readID func(index uint32) (uint64, bool)) (index uint32, ok bool) {
	if x != nil && r.mask >= smallRing {
		x.update(r, readID)
		s, ok := x.byID[wrID]
		return s.newest, ok
	}
	head := r.producer.Acquire()
	for back := range r.mask + 1 {
		index := (head - 1 - back) & r.mask
		if id, used := readID(index); used && id == wrID {
			return index, true
		}
	}
	return 0, false
}

// update reads the work requests that were posted since the last update.
func (x *IDIndex) update(r *producer, readID func(index uint32) (uint64, bool)) {
	head, n := r.producer.Acquire()&r.mask, r.mask+1
	// If the other goroutine passes the end of the ring between the two loads, pos is a lap off, and so
	// this update or the next one reads the whole ring.
	pos := uint64(r.laps.Acquire())*uint64(n) + uint64(head)
	if posted := pos - x.pos; x.of == r && posted < uint64(n) {
		// The newest element of the last update is still there, unless the queue pair was reset.
		newest := uint32(x.pos-1) & r.mask
		if id, used := readID(newest); x.slots[newest] == (indexedID{id, used}) {
			n = uint32(posted)
		}
	}
	x.reads++
	if n > r.mask {
		*x = IDIndex{of: r, slots: make([]indexedID, n), byID: make(map[uint64]indexedSlot, n), reads: x.reads}
	}
	for back := n; back > 0; back-- { // the newest last
		index := (head - back) & r.mask
		x.remove(index)
		id, used := readID(index)
		x.slots[index] = indexedID{id, used}
		if used {
			x.byID[id] = indexedSlot{index, x.byID[id].count + 1}
		}
		x.reads++
	}
	x.pos = pos
}

// remove removes an element that is used again. Older elements with its ID were removed before.
func (x *IDIndex) remove(index uint32) {
	old := x.slots[index]
	if !old.used {
		return
	}
	s := x.byID[old.wrID]
	if s.count--; s.count == 0 {
		delete(x.byID, old.wrID)
		return
	}
	x.byID[old.wrID] = s
}
