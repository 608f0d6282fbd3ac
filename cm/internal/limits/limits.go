// Package limits has the limits of listeners and their defaults, and counts what each address holds.
package limits

import (
	"bytes"
	"fmt"
	"math"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"time"
)

// Defaults of the options of listeners. Package cm documents them in one table.
const (
	backlog  = 1024
	maxConns = 16384
	share    = 75

	mostBacklog = 1 << 20
)

// Options are the options of a listener that limit what peers can hold.
type Options struct {
	Backlog, HalfOpen, MaxConns, AddrShare int
	MaxMemory, PerConn                     int64 // in bytes; PerConn is what one connection may need
}

// Limits are options with their defaults filled in.
type Limits struct {
	Backlog   int // Backlog is how many connections may wait for Accept, including requests.
	HalfOpen  int // HalfOpen is how many requests may be in progress.
	Conns     int // Conns is how many connections there may be, including requests.
	AddrShare int // AddrShare is how much of each limit one address may hold, in percent.
}

// Limits returns the limits. The function makes the error for an option that is not valid.
func (o Options) Limits(argErr func(field string, given any, allowed string) error) (l Limits, err error) {
	l = Limits{Backlog: o.Backlog, HalfOpen: o.HalfOpen, AddrShare: o.AddrShare}
	if l.Backlog == 0 {
		l.Backlog = backlog
	}
	if l.HalfOpen == 0 {
		l.HalfOpen = (l.Backlog + 1) / 2
	}
	if l.AddrShare == 0 {
		l.AddrShare = share
	} else if l.AddrShare < 0 {
		l.AddrShare = 100
	}
	most := fmt.Sprintf("1 to %d", mostBacklog)
	switch {
	case l.Backlog < 1 || l.Backlog > mostBacklog:
		return l, argErr("Backlog", o.Backlog, most)
	case l.HalfOpen < 1 || l.HalfOpen > mostBacklog:
		return l, argErr("HalfOpen", o.HalfOpen, most)
	case l.AddrShare > 100:
		return l, argErr("AddrShare", o.AddrShare, "1 to 100, or -1 for no limit")
	case o.MaxMemory > 0 && o.MaxMemory < o.PerConn:
		return l, argErr("MaxMemory", fmt.Sprintf("%d bytes", o.MaxMemory), fmt.Sprintf("at least %d bytes, which one connection may need, or -1 for no limit", o.PerConn))
	}
	switch l.Conns = o.MaxConns; {
	case l.Conns == 0:
		l.Conns = maxConns
	case l.Conns < 0:
		l.Conns = math.MaxInt
	}
	memory := o.MaxMemory
	if memory == 0 {
		memory = max(defaultMemory(), o.PerConn)
	}
	if memory > 0 {
		l.Conns = int(min(int64(l.Conns), memory/o.PerConn))
	}
	return l, nil
}

// defaultMemory returns half of the memory of the machine, or of what its control group allows the process.
var defaultMemory = sync.OnceValue(func() int64 {
	const unknown = 8 << 30
	all := int64(unknown)
	if b, err := os.ReadFile("/proc/meminfo"); err == nil {
		// The first line is "MemTotal:       16318480 kB".
		if words := bytes.Fields(b); len(words) > 1 {
			if kib, err := strconv.ParseInt(string(words[1]), 10, 64); err == nil && kib > 0 {
				all = kib << 10
			}
		}
	}
	if b, err := os.ReadFile("/sys/fs/cgroup/memory.max"); err == nil { // "max" if there is no limit
		if n, err := strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64); err == nil && n > 0 {
			all = min(all, n)
		}
	}
	return all / 2
})

// Count is a number of places.
type Count struct{ Waiting, HalfOpen, Conns int }

// add adds another count.
func (c *Count) add(d Count) {
	c.Waiting += d.Waiting
	c.HalfOpen += d.HalfOpen
	c.Conns += d.Conns
}

// Usage counts the places that are taken, in all and by address. The zero value is ready for use. Its caller
// has the lock.
type Usage struct {
	Count
	addrs map[netip.Addr]Count
}

// Key returns what an address counts as: an IPv6 address as its network of 64 bits, all of which one host
// may have.
func Key(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	if a.Is6() && !a.IsLinkLocalUnicast() {
		p, _ := a.Prefix(64)
		return p.Addr()
	}
	return a
}

// Add adds to what a key holds.
func (u *Usage) Add(key netip.Addr, d Count) {
	u.add(d)
	c := u.addrs[key]
	if c.add(d); c == (Count{}) {
		delete(u.addrs, key)
		return
	}
	if u.addrs == nil {
		u.addrs = map[netip.Addr]Count{}
	}
	u.addrs[key] = c
}

// Largest returns the key with the most half-open requests, if a request of the given key may take the place of one
// of them: the given key has fewer then, and it would not have more afterwards.
func (u *Usage) Largest(asker netip.Addr) (key netip.Addr, ok bool) {
	key = asker
	for k, c := range u.addrs {
		if c.HalfOpen > u.addrs[key].HalfOpen {
			key = k
		}
	}
	return key, u.addrs[key].HalfOpen > u.addrs[asker].HalfOpen+1
}

// Patience is the least time that a peer has to complete its connection before another request may take its
// place: much more than a peer needs that is not too busy, since a refused one tries again. Tests change it.
var Patience = 3 * time.Second

// EvictAfter returns that time for a place that goes to an address with fewer (fairer), or to another.
func EvictAfter(fairer bool) time.Duration {
	if fairer {
		return Patience / 6
	}
	return Patience
}

// Full says which limit a further request of a key would exceed.
type Full uint8

// Values of Full.
const (
	Room   Full = iota
	Total       // there is no place left
	OfAddr      // the address holds its share
)

// Full reports whether there is a place for a request of a key. conns reports whether the number of
// connections is the limit, rather than of those that wait or are half open.
func (l *Limits) Full(u *Usage, key netip.Addr) (full Full, conns bool) {
	own := u.addrs[key]
	most := func(n int) int {
		if l.AddrShare == 100 {
			return math.MaxInt
		}
		return n - n/100*(100-l.AddrShare) - n%100*(100-l.AddrShare)/100
	}
	switch {
	case own.Conns >= most(l.Conns):
		return OfAddr, true
	case own.Waiting >= most(l.Backlog), own.HalfOpen >= most(l.HalfOpen):
		return OfAddr, false
	case u.Conns >= l.Conns:
		return Total, true
	case u.Waiting >= l.Backlog, u.HalfOpen >= l.HalfOpen:
		return Total, false
	}
	return Room, false
}
