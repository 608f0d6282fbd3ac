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

// RecordSize is the size of a doorbell record, in bytes. Each has its own cache line, so that
// queues of different goroutines do not contend for one.
const RecordSize = 64

// A Record is a doorbell record: two big-endian words in memory by which a queue tells the device
// its position. The words of a QP are for receives and for sends; those of a CQ are the consumer
// index and the request for an event. An SRQ has the first word only.
type Record struct {
	w *[2]uint32
}

// set stores a word. The caller is responsible for the order before and after.
func (r Record) set(i int, v uint32) {
	// An atomic store costs a locked instruction on amd64, where a plain one is as good: the
	// compiler neither splits an aligned store nor moves it across the barriers, which are
	// assembly. Only the device reads it.
	r.w[i] = bits.ReverseBytes32(v)
}

// Load returns a word as the device reads it. i is 0 or 1.
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
	free   []uint16 // free slots
}

// Records allocates doorbell records. The kernel pins each page once, however many queues have
// records in it. The zero Records is ready for use. It is safe for concurrent use.
type Records struct {
	mu    sync.Mutex
	pages []*recordPage
	left  atomic.Int64 // records in use, for tests
}

// recordPageSize is the size of a page of records, in bytes: a page of the host, the smallest unit
// that can be mapped and pinned.
var recordPageSize = os.Getpagesize()

// Take allocates a zeroed record.
func (r *Records) Take() (Record, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := len(r.pages) - 1; i >= 0; i-- { // the newest most likely has room
		if p := r.pages[i]; len(p.free) > 0 {
			return r.take(p), nil
		}
	}
	// The second page has no records, and is never touched. gVisor makes a page from the address of a record on
	// accessible to the device, and cannot do so with a register that happens to be mapped there.
	region, err := mmio.MapAnonymous(2*recordPageSize, false)
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

// Give frees the record of a queue that no longer exists. Freeing the zero Record does nothing.
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

// Close frees the memory. No record may be in use.
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
