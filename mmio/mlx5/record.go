package mlx5

import (
	"fmt"
	"math/bits"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/goverbs/goverbs/mmio"
)

// RecordSize is the size of a doorbell record, in bytes. Each has a cache line of its own, so
// that queues which different goroutines use do not take it from each other.
const RecordSize = 64

// A Record is a doorbell record: two big-endian words in memory by which a queue tells the
// device how far it is. Of a QP the first is for receives and the second for sends; of a CQ
// the first is the consumer index and the second what it is armed for; an SRQ has the first
// only.
type Record struct {
	w *[2]uint32
}

// set stores a word. The order before and after is for the caller to make.
func (r Record) set(i int, v uint32) {
	// An atomic store costs a locked instruction on amd64, where a plain one is as good: the
	// compiler neither splits an aligned store nor moves it across the barriers, which are
	// assembly. Nobody but the device reads it.
	r.w[i] = bits.ReverseBytes32(v)
}

// Load returns a word, as the device would read it: 0 for the first, 1 for the second.
func (r Record) Load(i int) uint32 { return bits.ReverseBytes32(atomic.LoadUint32(&r.w[i])) }

// Addr returns the record's address, for the kernel.
func (r Record) Addr() uintptr { return uintptr(unsafe.Pointer(r.w)) }

// clear zeroes both words.
func (r Record) clear() { r.w[0], r.w[1] = 0, 0 }

// Words of a record.
const (
	recRecv = 0 // MLX5_RCV_DBR
	recSend = 1 // MLX5_SND_DBR

	recIndex = 0 // MLX5_CQ_SET_CI
	recArm   = 1 // MLX5_CQ_ARM_DB
)

// recordPage is a page of records.
type recordPage struct {
	region *mmio.Region
	free   []uint16 // slots that are not taken
}

// Records hands out doorbell records. The kernel pins each page once, however many queues
// have records in it. The zero Records is ready for use. It is safe for concurrent use.
type Records struct {
	mu    sync.Mutex
	pages []*recordPage
	left  atomic.Int64 // records that are taken, for tests
}

// recordPageSize is the size of a page of records, in bytes: one of the host, as less cannot be mapped
// or pinned.
var recordPageSize = os.Getpagesize()

// Take returns a zeroed record.
func (r *Records) Take() (Record, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := len(r.pages) - 1; i >= 0; i-- { // the newest has room most likely
		if p := r.pages[i]; len(p.free) > 0 {
			return r.take(p), nil
		}
	}
	region, err := mmio.MapAnonymous(recordPageSize, false)
	if err != nil {
		return Record{}, fmt.Errorf("mlx5: doorbell records: %w", err)
	}
	p := &recordPage{region: region}
	for slot := recordPageSize/RecordSize - 1; slot >= 0; slot-- {
		p.free = append(p.free, uint16(slot))
	}
	r.pages = append(r.pages, p)
	return r.take(p), nil
}

func (r *Records) take(p *recordPage) Record {
	slot := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	r.left.Add(1)
	rec := Record{(*[2]uint32)(unsafe.Pointer(&p.region.Bytes()[int(slot)*RecordSize]))}
	rec.clear()
	return rec
}

// Give takes a record back whose queue is gone. Giving back the zero Record does nothing.
func (r *Records) Give(rec Record) {
	if rec.w == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.pages {
		base := uintptr(unsafe.Pointer(&p.region.Bytes()[0]))
		if off := rec.Addr() - base; off < uintptr(recordPageSize) {
			p.free = append(p.free, uint16(off/RecordSize))
			r.left.Add(-1)
			return
		}
	}
}

// Close gives the memory back. No record may be in use.
func (r *Records) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.pages {
		if err := p.region.Close(); err != nil {
			return err
		}
	}
	r.pages = nil
	return nil
}
