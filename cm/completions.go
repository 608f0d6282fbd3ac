package cm

import (
	"errors"
	"sync"
	"time"

	"github.com/goverbs/goverbs/uverbs"
)

// completions are a CQ and its channel. Like memory, those of a closed connection serve the
// next one.
type completions struct {
	ch    *uverbs.CompChannel
	cq    *uverbs.CQ
	wcs   *[16]uverbs.WC // where they are polled to
	since time.Time      // when they became idle
}

// completionPool has a device's completions that no connection uses.
type completionPool struct {
	dev *uverbs.Device

	mu   sync.Mutex
	idle map[int][]completions // guarded by mu: by the number of entries, the last used at the end
	n    int                   // guarded by mu: how many that are
	trim bool                  // guarded by mu: a trim is to come
}

// maxIdle is how many are kept. Devices have a few thousand CQs and more.
const maxIdle = 256

// get returns completions with a number of entries.
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
	if c.ch, err = p.dev.CreateCompChannel(); err != nil {
		return completions{}, err
	}
	if c.cq, err = p.dev.CreateCQ(entries, uverbs.CQOptions{Channel: c.ch}); err != nil {
		return completions{}, errors.Join(err, c.ch.Close())
	}
	c.wcs = new([16]uverbs.WC)
	return c, nil
}

// put takes completions back, whose QP is closed. What is in the CQ is dropped. That it may be
// armed still, or have an event in the channel, wakes its next user once for nothing.
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

// trimIdle closes those that were of no use for a moment.
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

// closeWhere closes those of which which says so. The caller holds p.mu.
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

// close closes both.
func (c completions) close() error { return errors.Join(c.cq.Close(), c.ch.Close()) }
