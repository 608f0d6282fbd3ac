package efa

import (
	"math"
	"unsafe"
)

// SendInfo describes a posted request, for messages. It is read from memory that another goroutine may write
// at the same time, so only messages may depend on it.
type SendInfo struct {
	Op         Op        // operation
	Length     uint32    // bytes of data
	Peer       Peer      // destination
	RemoteAddr uint64    // of RDMA
	RKey       uint32    // of RDMA
	SGEs       []SGEInfo // local memory; empty for inline data
}

// SGEInfo is a scatter/gather entry.
type SGEInfo struct {
	Addr   uint64 // first byte
	Length uint32 // in bytes
	LKey   uint32 // key of its MR
}

// find returns the slot of the latest request with an ID, which may have completed, and its index. Slots are
// found until they are used again.
func (s *slots) find(id uint64) (e *slot, index uint32) {
	published, least := s.published.Acquire(), uint32(math.MaxInt32)
	for i := range s.n {
		f := s.slot(i)
		if back := published - uint32(f.what.Load()) - 1; f.state.Load() != 0 && f.id.Load() == id && back < least {
			e, index, least = f, i, back
		}
	}
	return e, index
}

// Find looks for the latest request with an ID. If its place in the ring is used again, Find knows only the
// operation and the length. It may be called while other goroutines post and complete.
//
//go:norace
func (q *SendQueue) Find(id uint64) (i SendInfo, ok bool) {
	e, index := q.find(id)
	if e == nil {
		return i, false
	}
	what := e.what.Load()
	i.Op, i.Length = Op(e.state.Load()), uint32(what>>32)
	p := q.at(uint32(what))
	word, second := get64(p, 0), get64(p, wqeImm)
	if uint32(word&0xffff) != index|q.gen {
		return i, true
	}
	i.Peer = NewPeer(uint32(get64(p, wqeQKey)), uint16(word>>wordQPN), uint16(second>>32))
	off := uintptr(wqeData)
	if forms[i.Op%numOps].second&formRDMA != 0 {
		i.RKey, i.RemoteAddr = uint32(get64(p, wqeRemote)>>32), get64(p, wqeRemote+8)
		off += sgeSize
	}
	if word&(controlInline<<wordControl) == 0 {
		for n := min(int(word>>wordLength), MaxSendSGE); n > 0 && off < narrow; n, off = n-1, off+sgeSize {
			w := get64(p, off)
			i.SGEs = append(i.SGEs, SGEInfo{Addr: get64(p, off+8), Length: uint32(w), LKey: uint32(w >> 32)})
		}
	}
	return i, true
}

// Find looks for the latest receive with an ID and returns its scatter/gather entries. It returns false if
// there is none, or if its place in the ring is used again. It may be called while other goroutines post and
// complete.
//
//go:norace
func (q *RecvQueue) Find(id uint64) (sges []SGEInfo, ok bool) {
	e, index := q.find(id)
	if e == nil {
		return nil, false
	}
	first := uint32(e.what.Load() >> 32)
	for n := range uint32(e.state.Load() & 0xff) {
		p := q.desc(first + n)
		w := get64(p, 8)
		if begins := w&descFirst != 0; begins != (n == 0) || begins && uint32(w&0xffff) != index|q.gen {
			return nil, false
		}
		sges = append(sges, SGEInfo{Addr: get64(p, 0), Length: uint32(w>>descLength) & 0xffff, LKey: uint32(w>>descKey) & MaxKey})
	}
	return sges, true
}

func get64(p unsafe.Pointer, off uintptr) uint64 { return *(*uint64)(unsafe.Add(p, off)) }
