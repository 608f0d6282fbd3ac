package siw

import "github.com/goverbs/goverbs/mmio/siw/internal/abi"

// SendInfo describes a posted work request, for messages. It is read from memory that another
// goroutine may write at the same time, so only messages may depend on it.
type SendInfo struct {
	Opcode     uint8     // the operation
	Length     uint32    // in bytes, of all data
	RemoteAddr uint64    // of RDMA
	RKey       uint32    // of RDMA, or the key that is invalidated
	SGEs       []SGEInfo // local memory
}

// SGEInfo is a scatter/gather entry.
type SGEInfo struct {
	Addr   uint64 // first byte
	Length uint32 // in bytes
	LKey   uint32 // key of its MR
}

// Find looks for the latest work request with an ID. Requests that have completed are found until
// their place is used again, because the kernel clears only the flags of an element. Find may be
// called while another goroutine posts.
func (q *SendQueue) Find(wrID uint64) (SendInfo, bool) {
	head := uint32(q.posted.Load())
	for back := range min(head, q.mask+1) {
		w := (*abi.SiwSqe)(q.elem(head - 1 - back))
		if w.ID == wrID {
			return info(w), true
		}
	}
	return SendInfo{}, false
}

// ReadsInARow reports whether two consecutive READs have the given ID, regardless of other requests
// between them. It looks at the same requests as Find.
func (q *SendQueue) ReadsInARow(wrID uint64) bool {
	head := uint32(q.posted.Load())
	before := false // the READ before has it
	for back := range min(head, q.mask+1) {
		w := (*abi.SiwSqe)(q.elem(head - 1 - back))
		if w.Opcode != Read && w.Opcode != ReadInv {
			continue
		}
		has := w.ID == wrID
		if has && before {
			return true
		}
		before = has
	}
	return false
}

// info copies what is of interest. Inline data is one entry without a key.
func info(w *abi.SiwSqe) SendInfo {
	i := SendInfo{Opcode: w.Opcode, RemoteAddr: w.Raddr, RKey: w.RKey}
	for n := range min(int(w.NumSGE), MaxSGE) {
		e := w.SGE[n]
		i.Length += e.Length
		if e.LKey != 0 {
			i.SGEs = append(i.SGEs, SGEInfo{Addr: e.Laddr, Length: e.Length, LKey: e.LKey})
		}
	}
	return i
}
