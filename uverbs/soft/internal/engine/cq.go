package engine

import (
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
)

// A CQ is a completion queue.
type CQ struct {
	notify func()
	event  func(typ uint32)

	mu       sync.Mutex
	ring     *ring.Ring // guarded by mu
	producer uint32     // guarded by mu
	armed    uint8      // guarded by mu
	failed   bool       // a completion was lost. guarded by mu
}

// Kinds of completions that a CQ is armed for. Both may be set.
const (
	armSolicited = 1 << iota
	armNext
)

// CreateCQ makes a completion queue for at least a number of completions. notify is called once for
// each call of Arm, at the next completion of the given kind; event is called with EventCQErr when a
// completion finds no room, after which the CQ takes no more. Both may be nil.
func (d *Device) CreateCQ(entries int, notify func(), event func(typ uint32)) (*CQ, syscall.Errno) {
	if entries < 0 || entries > MaxCQE {
		return nil, syscall.EINVAL
	}
	r, errno := ring.New(entries, ring.CQESize)
	if errno != 0 {
		return nil, errno
	}
	return &CQ{notify: notify, event: event, ring: r}, 0
}

// Ring returns the ring of completions.
func (c *CQ) Ring() *ring.Ring {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ring
}

// Resize replaces the ring by another one with the same completions. It does not help a CQ that has lost one.
func (c *CQ) Resize(entries int) (*ring.Ring, syscall.Errno) {
	if entries < 0 || entries > MaxCQE {
		return nil, syscall.EINVAL
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	consumer := c.ring.Consumer()
	if c.failed || entries < c.ring.Count(consumer, c.producer) {
		return nil, syscall.EINVAL
	}
	r, producer, errno := c.ring.Resize(entries, c.producer, consumer)
	if errno != 0 {
		return nil, errno
	}
	c.ring, c.producer = r, producer
	return r, 0
}

// Arm asks for one call of notify, at the next completion, or at the next one that is solicited: an error, or the
// receive of a solicited message. Asking for both is asking for the next.
func (c *CQ) Arm(solicitedOnly bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if solicitedOnly {
		c.armed |= armSolicited
	} else {
		c.armed |= armNext
	}
}

// Close releases the CQ.
func (c *CQ) Close() {}

// post adds a completion. It reports false if there is no room, or was none for an earlier one: the CQ is in error
// and the completion is lost. solicited says that the message asked for an event.
func (c *CQ) post(e *ring.Completion, solicited bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed {
		return false
	}
	if c.ring.Full(c.producer, c.ring.Consumer()) {
		c.failed = true
		if c.event != nil {
			c.event(EventCQErr)
		}
		return false
	}
	c.ring.WriteCompletion(c.producer, e)
	c.producer = c.ring.Next(c.producer)
	c.ring.SetProducer(c.producer)
	if c.armed&armNext != 0 || c.armed&armSolicited != 0 && (solicited || e.Status != uint32(StatusSuccess)) {
		c.armed = 0
		if c.notify != nil {
			c.notify()
		}
	}
	return true
}
