package cm

import (
	"context"
	"slices"
	"sync"
)

// takeTurn takes the turn to wait on the completion channel, or waits until it is free, the connection changes or ctx ends.
// It reports whether it has taken the turn. The caller holds c.mu.
func (c *Conn) takeTurn(ctx context.Context) bool {
	select {
	case c.parkTurn <- struct{}{}:
		return true
	default:
	}
	w := c.awaitChange()
	c.mu.Unlock()
	taken, changed := false, false
	select {
	case c.parkTurn <- struct{}{}:
		taken = true
	case <-w:
		changed = true
	case <-ctx.Done():
	}
	c.mu.Lock()
	if i := slices.Index(c.waiting, w); i >= 0 {
		c.waiting = slices.Delete(c.waiting, i, i+1)
	} else if !changed { // a change came later
		<-w
	}
	wakers.Put(w)
	return taken
}

// A waker wakes a goroutine that waits for a change of a connection. It has room for one value.
type waker chan struct{}

// wakers holds wakers that are empty, for reuse.
var wakers = sync.Pool{New: func() any { return make(waker, 1) }}

// awaitChange returns a waker that has a value after the next change. The caller holds c.mu.
func (c *Conn) awaitChange() waker {
	w := wakers.Get().(waker)
	c.waiting = append(c.waiting, w)
	return w
}

// notify wakes the goroutines that wait for a change. The caller holds c.mu.
func (c *Conn) notify() {
	for _, w := range c.waiting {
		w <- struct{}{}
	}
	clear(c.waiting)
	c.waiting = c.waiting[:0]
}
