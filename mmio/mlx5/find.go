package mlx5

import "unsafe"

// SendInfo describes a posted work request, for messages.
type SendInfo struct {
	Op         Op        // the operation
	Length     uint32    // in bytes, of all data
	RemoteAddr uint64    // of RDMA and atomics
	RKey       uint32    // of RDMA and atomics; the new key of a window that is bound; the key that is invalidated
	OldKey     uint32    // the key that a window has before it is bound
	RemoteQPN  uint32    // of datagrams
	SGEs       []SGEInfo // local memory
}

// SGEInfo is a scatter/gather entry.
type SGEInfo struct {
	Addr   uint64 // first byte
	Length uint32 // in bytes
	LKey   uint32 // key of its MR
}

// Find looks for the latest work request with an ID. Requests that have completed are found until
// their place is used again. Find may be called while another goroutine posts. A place that is
// filled at the same time may give a wrong result, so use the result for messages only.
func (q *SendQueue) Find(id uint64) (SendInfo, bool) {
	head := q.published.Acquire() // not q.head, which is the poster's
	best, youngest, found := uint32(0), uint32(0), false
	for b := range q.mask + 1 {
		e := q.sent(b)
		if e.id.Load() != id {
			continue
		}
		what := e.what.Load()
		// The age, in work requests. An entry that was never posted, or was overwritten, is
		// older than the ring.
		age := head - 1 - sentHead(what)
		if what&sentPosted != 0 && age <= q.mask && q.begins(b) && (!found || age < youngest) {
			best, youngest, found = b, age, true
		}
	}
	if !found {
		return SendInfo{}, false
	}
	return q.info(best), true
}

// begins reports whether a WQE still begins at a block: it may be in the middle of a later one.
func (q *SendQueue) begins(block uint32) bool {
	ctrl := q.block(block)
	return get32(ctrl, ctrlOpcode)>>8&q.mask&0xffff == block && get32(ctrl, ctrlQPN)&^0xff == q.number
}

// info decodes the WQE that begins at a block.
func (q *SendQueue) info(block uint32) SendInfo {
	i := SendInfo{Op: sentOp(q.sent(block).what.Load()), Length: q.header}
	ctrl := q.block(block)
	if q.transport == Datagram {
		i.RemoteQPN = get32(ctrl, ctrlSize+avDQPN) & indexMask
	}
	switch i.Op {
	case BindMW, LocalInv:
		// The control segment of the UMR fills the block up, and the key's is in the next.
		i.OldKey = get32(ctrl, ctrlImm)
		i.RKey = i.OldKey
		if i.Op == BindMW {
			i.RKey = i.OldKey&^0xff | get32(q.block(block+1), mkeyQPNKey)&0xff
		}
		return i
	case Write, WriteImm, Read, CAS, FAA:
		p := unsafe.Add(ctrl, q.first)
		i.RemoteAddr, i.RKey = get64(p, 0), get32(p, 8)
	}
	q.walk(block, func(addr uint64, length, lkey uint32) bool {
		i.Length += length
		if lkey != 0 || addr != 0 {
			i.SGEs = append(i.SGEs, SGEInfo{Addr: addr, Length: length, LKey: lkey})
		}
		return true
	})
	return i
}

// walk goes over the data segments of the WQE that begins at a block, until f returns false.
// Inline data counts as one of address and key 0.
func (q *SendQueue) walk(block uint32, f func(addr uint64, length, lkey uint32) bool) {
	pos := q.first
	switch sentOp(q.sent(block).what.Load()) {
	case Write, WriteImm, Read:
		pos += raddrSize
	case CAS, FAA:
		pos += raddrSize + atomicSize
	case BindMW, LocalInv:
		return
	}
	end := get32(q.block(block), ctrlQPN) & 0x3f * octoSize
	for ; pos < end; pos += dataSize {
		p := unsafe.Add(q.block(block+pos/blockSize), pos%blockSize)
		length := get32(p, 0)
		if length&inlineFlag != 0 {
			f(0, length&^inlineFlag, 0)
			return
		}
		if length == 0 {
			length = maxLength
		}
		if !f(get64(p, 8), length, get32(p, 4)) {
			return
		}
	}
}

// Scatter calls put for each scatter entry of a Read or an atomic that has completed, until
// put returns false. It is for data that the device has put into the completion.
//
// Preconditions: Waits is true.
func (q *SendQueue) Scatter(counter uint16, put func(addr uint64, length, lkey uint32) bool) {
	q.walk(uint32(counter)&q.mask, put)
}
