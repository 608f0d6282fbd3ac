package rsocket

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/uverbs"
)

// Memory of the peer, in the tests that need no device.
const (
	peerTableAt  = 1 << 20
	peerTableKey = 5
	peerCredits  = 100
	bareCredits  = 16
	bareBuffer   = 4096
	bareFirst    = 2048
	bareMappings = 2
)

// bareState returns the state of a connection that has no device, and the private data of its peer.
func bareState(iwarp bool) (*state, connData) {
	s := &state{iwarp: iwarp}
	s.init(bareMappings, make([]byte, tableEntries*segmentSize+bareMappings*mappingSize), make([]byte, bareFirst))
	s.grow(bareCredits, make([]byte, bareBuffer))
	peer := connData{credits: peerCredits, table: segment{peerTableAt, peerTableKey, 2}, buffer: segment{1 << 30, 9, 2000}}
	s.connect(peer)
	return s, peer
}

// hostilePeer acts as the peer of a connection without a device, and as the device, which lets the peer
// write anywhere into the buffer and the table.
type hostilePeer struct {
	t *testing.T
	s *state

	writeAt   int    // where the next byte of data goes
	sent      []byte // data that was sent and not read
	dirty     bool   // the peer has written where it must not, so data may be anything
	forged    bool   // the peer has announced buffers against the protocol
	announced []segment
	mapped    []mapping
	entry     int // the next entry to write
}

// deliver completes a receive with a message.
func (p *hostilePeer) deliver(msg, written uint32) error {
	wc := uverbs.WC{Opcode: uverbs.WCRecvRDMAWrite, Flags: uverbs.WCWithImm, ByteLen: written, Imm: msg}
	var number [messageSize]byte
	if p.s.iwarp {
		wc = uverbs.WC{Opcode: uverbs.WCRecv, ByteLen: messageSize}
		p.s.order.PutUint32(number[:], msg)
	}
	return p.s.receive(&wc, number[:])
}

// data sends up to size bytes of data as the protocol wants it.
func (p *hostilePeer) data(size int, kind byte) (good bool, err error) {
	s := p.s
	to := s.recvBuf[p.writeAt:][:len(s.recvBuf)/2-p.writeAt%(len(s.recvBuf)/2)]
	if s.firstLeft > 0 {
		to = s.first[len(s.first)-s.firstLeft:]
	}
	n := min(size, s.granted, len(to))
	for i := range n {
		to[i] = kind + byte(i)
		p.sent = append(p.sent, kind+byte(i))
	}
	if s.firstLeft == 0 {
		p.writeAt = (p.writeAt + n) % len(s.recvBuf)
	}
	return !s.eof && s.waiting < bareCredits, p.deliver(message(opData, uint32(n)), uint32(n))
}

// announce writes a buffer into an entry of the table and says so.
func (p *hostilePeer) announce(at int, b segment, until uint16) (good bool, err error) {
	s := p.s
	waiting := s.announced
	b.put(s.table[at*segmentSize:], binary.LittleEndian)
	good = !p.forged && !s.iwarp && at == p.entry && waiting < tableEntries && b.length > 0 && !b.wraps() && until-s.sent <= peerCredits
	p.forged = p.forged || !good
	if at == p.entry {
		p.entry = (p.entry + 1) % tableEntries
	}
	p.announced = append(p.announced, b)
	return good, p.deliver(message(opCredits, uint32(until)), segmentSize)
}

// act does one step: it returns the error of the connection, and whether the step keeps to the protocol,
// so that it must not cause an error.
func (p *hostilePeer) act(act, kind byte, size int) (good bool, err error) {
	s := p.s
	switch act {
	case 0:
		return p.data(size%1500, kind)
	case 1: // a claim of data that was not written
		n := uint32(size) << (kind % 16) & valueMask
		p.dirty = true
		if kind>>7 != 0 && !s.iwarp {
			if err = p.deliver(message(opData, n), n+1); err == nil {
				p.t.Fatalf("%d bytes are claimed for a WRITE of %d bytes", n, n+1)
			}
			return false, err
		}
		return false, p.deliver(message(opData, n), n)
	case 2: // any message
		p.dirty = true
		return false, p.deliver(uint32(kind)<<24|uint32(size), uint32(size))
	case 3: // credits, forged or not
		return !p.forged && uint16(size)-s.sent <= peerCredits && !s.iwarp, p.deliver(message(opCredits, uint32(size)), 0)
	case 4: // a buffer as the protocol wants it, if there is an entry for it
		return p.announce(p.entry, segment{uint64(kind)<<32 + 1<<40, uint32(kind), uint32(size)}, s.sent+peerCredits)
	case 5: // a forged one
		return p.announce(int(kind)%tableEntries, segment{^uint64(0) - uint64(size), 1, uint32(size) << (kind % 17)}, uint16(size))
	case 6: // a WRITE into the table of any size, with credits
		p.forged = true
		from := int(kind) % len(s.table)
		for i := from; i < min(len(s.table), from+size%33); i++ {
			s.table[i] = byte(size)
		}
		for i := range tableEntries {
			p.announced = append(p.announced, getSegment(s.table[i*segmentSize:], binary.LittleEndian))
		}
		return false, p.deliver(message(opCredits, uint32(s.sent+1)), uint32(size%33))
	case 7: // a WRITE into the buffer without a message
		s.recvBuf[size%len(s.recvBuf)] ^= kind
		p.dirty = true
	case 8:
		return kind%2 == 0, p.deliver(message(opControl, uint32(kind%4)), 0)
	case 9: // another completion
		wc := uverbs.WC{Opcode: uverbs.WCRecv + uverbs.WCOpcode(kind%2), ByteLen: uint32(size), Imm: uint32(size) << 16}
		wc.Flags = []uverbs.WCFlags{0, uverbs.WCWithImm, uverbs.WCWithInv}[kind%3]
		p.dirty = true
		return false, s.receive(&wc, []byte{kind, 0, 0, kind})
	case 10:
		p.read(size)
	case 11:
		p.write(size)
	case 12:
		p.credit()
	case 13:
		return p.remap(kind, size)
	case 14:
		p.writeMapped(uint64(size))
	}
	return true, nil
}

// read has the program read.
func (p *hostilePeer) read(size int) {
	got := make([]byte, size)
	n := p.s.read(got)
	if n > len(p.sent) && !p.dirty || n > bareBuffer+bareFirst {
		p.t.Fatalf("%d bytes are read, and %d were sent", n, len(p.sent))
	}
	if !p.dirty && !bytes.Equal(got[:n], p.sent[:n]) {
		p.t.Fatalf("% x is read, % x was sent", got[:n], p.sent[:n])
	}
	p.sent = p.sent[min(n, len(p.sent)):]
}

// write has the program write, into no other memory than the peer has announced.
func (p *hostilePeer) write(size int) {
	s := p.s
	if s.takeBuffer() != nil || !s.mayWrite() {
		return
	}
	if s.sendUntil-s.sent > peerCredits {
		p.t.Fatalf("message %d is sent, with credits up to %d", s.sent, s.sendUntil)
	}
	to := s.advance(min(size, int(s.remote.length)))
	if to.wraps() {
		p.t.Fatalf("a WRITE of %d bytes to %#x", to.length, to.addr)
	}
	for _, b := range p.announced {
		if to.key == b.key && to.addr >= b.addr && to.length <= b.length && to.addr-b.addr <= uint64(b.length-to.length) {
			return
		}
	}
	p.t.Fatalf("a WRITE to %+v, and the peer has announced %+v", to, p.announced)
}

// remap announces a mapping, forged or not.
func (p *hostilePeer) remap(kind byte, size int) (good bool, err error) {
	s := p.s
	index := int(kind % 4)
	m := mapping{uint64(kind) << (kind % 57), segment{uint64(size) << (kind % 49), uint32(kind), uint32(size) << (kind % 17)}}
	if index < bareMappings {
		m.put(s.table[tableEntries*segmentSize+index*mappingSize:], binary.LittleEndian)
	}
	p.mapped = append(p.mapped, m)
	good = index < bareMappings && m.memory.length > 0 && m.memory.addr < 1<<62 && m.offset < 1<<62
	return good, p.deliver(message(opMapping, uint32(index)), mappingSize)
}

// writeMapped has the program write into mapped memory, into no other memory than the peer has mapped.
func (p *hostilePeer) writeMapped(offset uint64) {
	to := p.s.mappedAt(offset)
	if to.length == 0 {
		return
	}
	for _, m := range p.mapped {
		skip := offset - m.offset
		if m.memory.key == to.key && offset >= m.offset && m.memory.addr+skip == to.addr && skip+uint64(to.length) == uint64(m.memory.length) {
			return
		}
	}
	p.t.Fatalf("offset %#x is at %+v, and the peer has mapped %+v", offset, to, p.mapped)
}

// credit has this side give the credits that it owes. It must not grant memory with data that is not
// read.
func (p *hostilePeer) credit() {
	s := p.s
	due, buffer := s.owesCredits()
	if !due {
		return
	}
	if msg := s.credit(); uint16(msg&valueMask)-s.received != bareCredits {
		p.t.Fatalf("message %#x gives %d credits", msg, uint16(msg&valueMask)-s.received)
	}
	if !buffer {
		return
	}
	unread := max(0, p.unread()-len(s.first)+s.firstLeft) // in the halves
	offset, entry := s.grant()
	if entry < peerTableAt || entry > peerTableAt+uint64(s.remoteTable.length-1)*segmentSize {
		p.t.Fatalf("a buffer is announced at %#x, and the table is at %#x", entry, peerTableAt)
	}
	for i := range unread {
		if at := (s.readAt + i) % bareBuffer; at >= offset && at < offset+bareBuffer/2 {
			p.t.Fatalf("bytes %d to %d are granted, and %d is not read", offset, offset+bareBuffer/2, at)
		}
	}
}

// unread returns the number of bytes that are not read.
func (p *hostilePeer) unread() (n int) {
	s := p.s
	for i := range s.waiting {
		n += int(s.lengths[(s.head+i)%len(s.lengths)])
	}
	return n
}

// checkState checks the counts of the connection.
func (p *hostilePeer) checkState() {
	s := p.s
	if s.granted < 0 || s.free < 0 || s.granted+s.free+p.unread() != bareBuffer+len(s.first) {
		p.t.Fatalf("%d bytes are granted, %d free and %d not read, of %d", s.granted, s.free, p.unread(), bareBuffer+len(s.first))
	}
	if s.waiting < 0 || s.waiting > bareCredits || len(s.lengths) != bareCredits {
		p.t.Fatalf("%d messages wait, and the peer has credits for %d", s.waiting, bareCredits)
	}
	if s.sendUntil-s.sent > peerCredits || s.announced > tableEntries {
		p.t.Fatalf("credits up to %d after %d messages, %d buffers", s.sendUntil, s.sent, s.announced)
	}
}

// FuzzHostilePeer: whatever a peer does, in whatever order, a connection gives the program nothing but the
// bytes that were sent, writes into no memory that the peer has not announced, grants no memory twice,
// and needs no more memory; or it ends with EPROTO. Each step of the input is an action with a size.
func FuzzHostilePeer(f *testing.F) {
	for mode := range byte(4) {
		f.Add(mode, []byte{0, 5, 0, 9, 10, 0, 0, 4, 0, 7, 5, 0, 10, 0, 9, 0, 12, 0, 0, 0, 11, 0, 3, 0})
		f.Add(mode, []byte{12, 0, 0, 0, 4, 1, 1, 0, 11, 0, 9, 0, 11, 0, 9, 0, 8, 2, 0, 0, 0, 0, 0, 1})
		f.Add(mode, []byte{5, 1, 0xff, 0xff, 6, 17, 0, 16, 3, 0, 0, 100, 7, 1, 0, 1, 9, 2, 0, 4})
		f.Add(mode, []byte{1, 3, 0xff, 0, 2, 0x60, 0, 0, 9, 1, 0, 0, 8, 1, 0, 0})
		// Just below and above the limits.
		f.Add(mode, []byte{12, 0, 0, 0, 0, 5, 5, 120, 0, 5, 2, 128, 10, 0, 7, 248, 12, 0, 0, 0, 0, 5, 0, 100})
		f.Add(mode, []byte{3, 0, 0, peerCredits, 3, 0, 0, peerCredits + 1})
		f.Add(mode, []byte{1, 0, 8, 0, 1, 0, 0, 1})
		f.Add(mode, []byte{1, 0, 8, 1})
		f.Add(mode, append(bytes.Repeat([]byte{0, 1, 0, 1}, bareCredits), 0, 1, 0, 1))
		f.Add(mode, []byte{11, 0, 3, 232, 11, 0, 3, 231, 11, 0, 0, 2, 11, 0, 0, 2})
		f.Add(mode, []byte{12, 0, 0, 0, 0, 5, 4, 0, 0, 5, 4, 0, 10, 0, 8, 0, 0, 5, 0, 100, 12, 0, 0, 0})
		f.Add(mode, []byte{11, 0, 7, 208, 5, 1, 0, 9, 11, 0, 0, 12})
		f.Add(mode, []byte{1, 128, 0, 9})
		f.Add(mode, []byte{4, 1, 0, 0, 11, 0, 0xff, 0xff, 3, 0, 0, 10}) // a forged buffer is found later
		f.Add(mode, []byte{4, 1, 0, 9, 4, 1, 0, 9, 4, 1, 0, 9})
		f.Add(mode, []byte{13, 4, 0, 9, 14, 0, 0, 66, 13, 5, 0, 9, 14, 0, 0, 163, 13, 2, 0, 1})
		f.Add(mode, []byte{8, 2, 0, 0, 0, 1, 0, 1})
		f.Add(mode, append(bytes.Repeat([]byte{11, 0, 0, 1}, peerCredits), 11, 0, 0, 1))
	}
	f.Fuzz(func(t *testing.T, mode byte, script []byte) {
		s, peer := bareState(mode&1 != 0)
		if s.iwarp && mode&2 != 0 {
			s.order = binary.BigEndian
		}
		p := &hostilePeer{t: t, s: s, announced: []segment{peer.buffer}, entry: 1}
		for ; len(script) >= 4; script = script[4:] {
			act, kind, size := script[0]%15, script[1], int(binary.BigEndian.Uint16(script[2:]))
			good, err := p.act(act, kind, size)
			if err != nil {
				if good || !errors.Is(err, syscall.EPROTO) || !strings.HasPrefix(err.Error(), "the peer ") {
					t.Fatalf("action %d of kind %d and size %d: %v", act, kind, size, err)
				}
				before := *s
				if _, again := p.data(1, 1); again != err || s.waiting != before.waiting || s.granted != before.granted {
					t.Fatalf("after %v a message is handled: %v", err, again)
				}
				return
			}
			p.checkState()
		}
	})
}
