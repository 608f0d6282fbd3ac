package engine

import (
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/soft/internal/memory"
	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
)

// minSRQ is the first number of an SRQ.
const minSRQ = 0x20001

// An SRQInit has the attributes of a new SRQ.
type SRQInit struct {
	PD     memory.PD
	MaxWR  int // at least 1
	MaxSGE int // 0 is taken for 1
	Limit  int // see Modify
	Event  func(typ uint32)
}

// An SRQAttr has the attributes of an SRQ.
type SRQAttr struct {
	MaxWR, MaxSGE, Limit int
}

// An SRQ is a shared receive queue.
type SRQ struct {
	num    uint32
	pd     memory.PD
	maxSGE int
	event  func(typ uint32)

	mu       sync.Mutex
	ring     *ring.Ring // guarded by mu
	consumer uint32     // guarded by mu
	limit    int        // guarded by mu
}

// CreateSRQ makes a shared receive queue (rxe_srq_chk_init, rxe_srq_from_init).
func (d *Device) CreateSRQ(i SRQInit) (*SRQ, syscall.Errno) {
	if i.MaxWR <= 0 || i.MaxWR > MaxSRQWR || i.MaxSGE < 0 || i.MaxSGE > MaxSRQSGE {
		return nil, syscall.EINVAL
	}
	i.MaxSGE = max(i.MaxSGE, 1)
	r, errno := ring.New(i.MaxWR, ring.RecvElemSize(i.MaxSGE))
	if errno != 0 {
		return nil, errno
	}
	d.mu.Lock()
	num := d.nextSRQ
	d.nextSRQ = nextNumber(num, minSRQ, srqLimit)
	d.mu.Unlock()
	return &SRQ{num: num, pd: i.PD, maxSGE: i.MaxSGE, event: i.Event, limit: i.Limit, ring: r}, 0
}

// Num returns the number of the SRQ.
func (s *SRQ) Num() uint32 { return s.num }

// Ring returns the ring of receives.
func (s *SRQ) Ring() *ring.Ring {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ring
}

// Modify changes the size of the queue, for which it returns the new ring, or the limit, or both. A
// limit other than 0 asks for one EventSRQLimit, when a message takes a receive and fewer than limit
// are left. A nil argument leaves its attribute alone (rxe_srq_chk_attr, rxe_srq_from_attr).
func (s *SRQ) Modify(maxWR, limit *int) (*ring.Ring, syscall.Errno) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if maxWR != nil && (*maxWR <= 0 || *maxWR > MaxSRQWR || s.limit != 0 && *maxWR < s.limit) {
		return nil, syscall.EINVAL
	}
	if limit != nil && (*limit < 0 || *limit > MaxSRQWR || *limit > s.ring.Cap()) {
		return nil, syscall.EINVAL
	}
	var resized *ring.Ring
	if maxWR != nil {
		var errno syscall.Errno
		if resized, _, errno = s.ring.Resize(*maxWR, s.ring.Producer(), s.consumer); errno != 0 {
			return nil, errno
		}
		s.ring, s.consumer = resized, 0
	}
	if limit != nil {
		s.limit = *limit
	}
	return resized, 0
}

// Query returns the attributes of the SRQ.
func (s *SRQ) Query() SRQAttr {
	s.mu.Lock()
	defer s.mu.Unlock()
	return SRQAttr{MaxWR: s.ring.Cap(), MaxSGE: s.maxSGE, Limit: s.limit}
}

// Close releases the SRQ.
func (s *SRQ) Close() {}

// take moves the first receive into w. It reports false if there is none. malformed says that what
// the program wrote is no receive; it stays in the queue (get_srq_wqe).
func (s *SRQ) take(w *ring.Recv) (ok, malformed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	producer := s.ring.Producer()
	if s.consumer == producer {
		return false, false
	}
	if !s.ring.ReadRecv(s.consumer, w, s.maxSGE) {
		return false, true
	}
	s.consumer = s.ring.Next(s.consumer)
	s.ring.SetConsumer(s.consumer)
	if s.limit != 0 && s.ring.Count(s.consumer, producer) < s.limit && s.event != nil {
		s.limit = 0
		s.event(EventSRQLimit)
	}
	return true, false
}
