// Package places limits the clients of a server, and the share of one address.
package places

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
)

// Places are the places that a server has for clients. An address may have up to half of them,
// rounded up, so that one host cannot keep all others out. The addresses of an IPv6 network of 64
// bits, which one host can have many of, count as one.
type Places struct {
	Most int // Most is the number of places.

	mu    sync.Mutex
	taken int                  // guarded by mu
	from  map[netip.Prefix]int // guarded by mu; places taken by address
}

// AddrOf returns the IP address of an end of a connection; it is invalid for another kind of address.
func AddrOf(a net.Addr) netip.Addr {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return t.AddrPort().Addr()
}

// place returns what an address counts as.
func place(a netip.Addr) netip.Prefix {
	bits := a.BitLen()
	if a = a.Unmap(); a.Is4() {
		bits = 32
	} else if a.IsGlobalUnicast() {
		bits = 64
	}
	p, _ := a.Prefix(bits) // the zero value for an invalid address
	return p
}

// Take takes a place for a client. If there is none, the error says why.
func (p *Places) Take(a netip.Addr) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	share := (p.Most + 1) / 2
	switch from := place(a); {
	case p.taken >= p.Most:
		return fmt.Errorf("as %d are being served", p.taken)
	case p.from[from] >= share:
		return fmt.Errorf("as %d from its address are being served, half of all", share)
	case p.from == nil:
		p.from = map[netip.Prefix]int{}
	}
	p.taken++
	p.from[place(a)]++
	return nil
}

// Leave makes room for another client.
func (p *Places) Leave(a netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	from := place(a)
	if p.from[from]--; p.from[from] == 0 {
		delete(p.from, from)
	}
}
