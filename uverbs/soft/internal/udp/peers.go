package udp

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// A packet between two loopback addresses never leaves the memory of the kernel. If it is damaged there on purpose, as
// netem can, the kernel makes a checksum of UDP first and checks it afterwards. Making the ICRC and checking it takes
// a quarter of the processor time of a large message. So two sockets with loopback addresses agree to leave it out:
//
//   - A socket marks all packets to a loopback address with bitTakesUnsealed. Reserved bits are ignored by others.
//   - To a peer that has sent such a mark it sends packets of RC and UC unsealed, with zeros in place of the ICRC
//     and bitUnsealed.
//   - From a loopback address it takes these. From elsewhere the mark means nothing, and the ICRC is checked.
//
// A peer that has ended may be replaced by one without support for this. So a packet without bitTakesUnsealed ends
// the agreement, and without any packet from the peer it ends after trustedPackets.
//
// Two sockets agree on large packets in the same way, by bitTakesLarge: a packet of RC has the payload of several
// packets behind one header, as the loopback interface carries datagrams of 64 KiB. Besides the copies, a packet takes
// 0.6 µs of processor time at both ends together. A socket that stops to take them, because faults and recordings are
// for packets of the MTU, does not set the bit any more.

// Bits of byte 4 of a BTH that are reserved, and that the ICRC does not count.
const (
	bitTakesUnsealed = 0x01
	bitUnsealed      = 0x02
	bitTakesLarge    = 0x04

	allBits = bitTakesUnsealed | bitUnsealed | bitTakesLarge
)

// LargePayload is how much payload a large packet has at most, in bytes: a multiple of each MTU.
const LargePayload = 60 << 10

// maxLarge is the size of the largest large packet.
const maxLarge = LargePayload + maxPacket - 4096

// trustedPackets is how many packets go to a peer unsealed after one from it: two windows of a QP.
const trustedPackets = 256

// mostPeers is the number of peers with which a socket agrees. With others it exchanges sealed packets.
const mostPeers = 1024

// peers are the other sockets with loopback addresses. The zero value is for a socket with another address.
type peers struct {
	loopback bool        // the socket has a loopback address
	large    func() bool // whether the socket takes large packets now; nil: never
	tooLong  atomic.Bool // the loopback interface has refused one

	last atomic.Pointer[peer] // the one of the last packet that was received
	mu   sync.Mutex
	all  map[netip.AddrPort]*peer // guarded by mu
}

// A peer is a socket that has marked its packets with bitTakesUnsealed.
type peer struct {
	addr netip.AddrPort
	left atomic.Int32 // packets that may go there unsealed, and large if large is set

	large atomic.Bool // the last packet from there had bitTakesLarge
}

// find returns the peer with an address, or nil.
func (p *peers) find(addr netip.AddrPort) *peer {
	if q := p.last.Load(); q != nil && q.addr == addr {
		return q
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all[addr]
}

// local reports whether packets between the socket and an address stay in the memory of the kernel.
func (p *peers) local(addr netip.AddrPort) bool { return p.loopback && addr.Addr().IsLoopback() }

// received notes what a packet from an address says about its sender, and removes the marks.
func (p *peers) received(from netip.AddrPort, packet []byte) {
	if !p.local(from) {
		return
	}
	q := p.find(from)
	takes, large := packet[4]&bitTakesUnsealed != 0, packet[4]&bitTakesLarge != 0
	packet[4] &^= allBits
	switch {
	case q == nil && takes:
		q = p.add(from)
	case q != nil && !takes:
		q.left.Store(0)
		return
	}
	if q != nil {
		p.last.Store(q)
		q.left.Store(trustedPackets)
		if q.large.Load() != large { // seldom: the processor need not write it
			q.large.Store(large)
		}
	}
}

// add makes a peer, or returns nil if there are too many.
func (p *peers) add(addr netip.AddrPort) *peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	if q := p.all[addr]; q != nil || len(p.all) == mostPeers {
		return q
	}
	if p.all == nil {
		p.all = map[netip.AddrPort]*peer{}
	}
	q := &peer{addr: addr}
	p.all[addr] = q
	return q
}

// marks returns the marks of the next n packets to an address.
func (p *peers) marks(to netip.AddrPort, n int) uint8 {
	if !p.local(to) {
		return 0
	}
	marks := uint8(bitTakesUnsealed)
	if p.large != nil && p.large() {
		marks |= bitTakesLarge
	}
	if q := p.find(to); q != nil && q.left.Load() > 0 && q.left.Add(int32(-n)) >= 0 {
		marks |= bitUnsealed
	}
	return marks
}

// most returns the size of the largest packet that the socket takes from an address.
func (p *peers) most(from netip.AddrPort) int {
	if p.large != nil && p.local(from) {
		return maxLarge
	}
	return maxPacket
}

// takesLarge reports whether a packet to an address may be large.
func (p *peers) takesLarge(to netip.AddrPort) bool {
	if !p.local(to) || p.large == nil || p.tooLong.Load() || !p.large() {
		return false
	}
	q := p.find(to)
	return q != nil && q.large.Load() && q.left.Load() > 0
}

// check reports whether a received packet is undamaged, and the ID of its IP header, which only the ICRC reveals.
func (p *peers) check(from, to netip.AddrPort, packet []byte) (ipID uint16, ok bool) {
	if packet[4]&bitUnsealed != 0 && p.local(from) && mayBeUnsealed(packet) {
		return 0, true
	}
	return wire.CheckICRC(from, to, packet)
}

// mayBeUnsealed reports whether a packet is one of RC or UC. Few datagrams are large, and some of those who read them
// want to know the ID of the IP header.
func mayBeUnsealed(packet []byte) bool {
	t := wire.Opcode(packet[0]).Transport()
	return t == wire.RC || t == wire.UC
}
