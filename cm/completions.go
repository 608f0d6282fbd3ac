package cm

import (
	"errors"
	"sync"
	"time"

	"github.com/goverbs/goverbs/uverbs"
)

// completions are a CQ and its completion channel. They are reused by later connections, as memory
// is.
type completions struct {
	ch    *uverbs.CompChannel
	cq    *uverbs.CQ
	wcs   *[16]uverbs.WC // Poll stores completions here
	since time.Time      // when they became idle
}

// completionPool holds the completions of a device that no connection uses.
type completionPool struct {
	dev *uverbs.Device

	mu   sync.Mutex
	idle map[int][]completions // guarded by mu: by number of entries; the last used is at the end
	n    int                   // guarded by mu: the number of all in idle
	trim bool                  // guarded by mu: a timer for trimIdle is set
}

// maxIdle is how many the pool keeps. Devices have at least a few thousand CQs.
const maxIdle = 256

// get returns completions with the given number of entries.
func (p *completionPool) get(entries int) (c completions, err error) {
	p.mu.Lock()
	if idle := p.idle[entries]; len(idle) > 0 {
		c = idle[len(idle)-1]
		p.idle[entries] = idle[:len(idle)-1]
		p.n--
		p.mu.Unlock()
		return c, nil
	}
	p.mu.Unlock()
	return newCompletions(p.dev, entries)
}

// newCompletions creates a CQ with the given number of entries, and its channel.
func newCompletions(dev *uverbs.Device, entries int) (c completions, err error) {
	if c.ch, err = dev.CreateCompChannel(); err != nil {
		return completions{}, err
	}
	if c.cq, err = dev.CreateCQ(uverbs.CQOptions{Size: entries, Channel: c.ch}); err != nil {
		return completions{}, errors.Join(err, c.ch.Close())
	}
	c.wcs = new([16]uverbs.WC)
	return c, nil
}

// put takes completions back after their QP was closed, and discards what is in the CQ. The CQ may
// still be armed, and its channel may hold an event; then the next user is woken once without need.
func (p *completionPool) put(c completions, entries int) error {
	for {
		n, err := c.cq.Poll(c.wcs[:])
		if err != nil {
			return c.close()
		}
		if n == 0 {
			break
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.n == maxIdle {
		return c.close()
	}
	if p.idle == nil {
		p.idle = map[int][]completions{}
	}
	c.since = time.Now()
	p.idle[entries] = append(p.idle[entries], c)
	p.n++
	if !p.trim {
		p.trim = true
		time.AfterFunc(idleGrace, p.trimIdle)
	}
	return nil
}

// trimIdle closes those that were idle for idleGrace.
func (p *completionPool) trimIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closeWhere(func(c completions) bool { return time.Since(c.since) >= idleGrace })
	if p.trim = p.n > 0; p.trim {
		time.AfterFunc(idleGrace, p.trimIdle)
	}
}

// close closes all.
func (p *completionPool) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closeWhere(func(completions) bool { return true })
}

// closeWhere closes those for which the function returns true. The caller holds p.mu.
func (p *completionPool) closeWhere(which func(completions) bool) error {
	var errs []error
	for entries, idle := range p.idle {
		var stay []completions
		for _, c := range idle {
			if which(c) {
				errs = append(errs, c.close())
				p.n--
			} else {
				stay = append(stay, c)
			}
		}
		if p.idle[entries] = stay; stay == nil {
			delete(p.idle, entries)
		}
	}
	return errors.Join(errs...)
}

// close closes the CQ and the channel, if there are any.
func (c completions) close() error {
	if c.cq == nil {
		return nil
	}
	return errors.Join(c.cq.Close(), c.ch.Close())
}
