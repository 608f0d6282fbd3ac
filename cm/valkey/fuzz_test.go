package valkey

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/uverbs"
)

// bareBuffer is the size of the buffer of a connection without a device.
const bareBuffer = 4096

// hostilePeer acts as the peer of a connection without a device, and as the device, which lets the peer
// write anywhere into the buffer.
type hostilePeer struct {
	t *testing.T
	s *state

	sent      []byte // data that was sent and not read
	dirty     bool   // the peer has written where it must not, so data may be anything
	announced []segment
	used      int // bytes of the last one that were used
}

// deliver completes a receive of data.
func (p *hostilePeer) deliver(says, written uint32) error {
	return p.s.receive(&uverbs.WC{Opcode: uverbs.WCRecvRDMAWrite, Flags: uverbs.WCWithImm, ByteLen: written, Imm: says}, make([]byte, commandSize))
}

// command completes a receive of a command.
func (p *hostilePeer) command(c command) error {
	var b [commandSize]byte
	c.put(b[:])
	return p.s.receive(&uverbs.WC{Opcode: uverbs.WCRecv, ByteLen: commandSize}, b[:])
}

// data sends up to size bytes of data as the protocol wants it.
func (p *hostilePeer) data(size int, kind byte) error {
	s := p.s
	n := min(size, int(s.granted-s.arrived))
	at := int(s.arrived % bareBuffer)
	for i := range n {
		s.recvBuf[at+i] = kind + byte(i)
		p.sent = append(p.sent, kind+byte(i))
	}
	return p.deliver(uint32(n), uint32(n))
}

// announce announces a buffer, forged or not.
func (p *hostilePeer) announce(b segment) (good bool, err error) {
	good = p.s.remote.length == 0 && b.length > 0 && !b.wraps()
	if good {
		p.announced, p.used = append(p.announced, b), 0
	}
	return good, p.command(command{op: registerXferMemory, buffer: b})
}

// act does one step: it returns the error of the connection, and whether the step keeps to the protocol,
// so that it must not cause an error.
func (p *hostilePeer) act(act, kind byte, size int) (good bool, err error) {
	s := p.s
	switch act {
	case 0:
		return true, p.data(size%3000, kind)
	case 1: // a claim of data that was not written
		n := uint32(size) << (kind % 17)
		p.dirty = true
		return false, p.deliver(n, n)
	case 2: // one of other data than was written
		if err = p.deliver(uint32(size), uint32(size)+1+uint32(kind)); err == nil {
			p.t.Fatalf("%d bytes are claimed, and others were written", size)
		}
		return false, err
	case 3: // a buffer as the protocol wants it
		return p.announce(segment{uint64(kind)<<32 + 1<<40, uint32(size), uint32(kind)})
	case 4: // a forged one
		return p.announce(segment{^uint64(0) - uint64(size), uint32(size) << (kind % 17), 1})
	case 5: // any command
		c := command{op: opcode(kind % 6), selects: uint16(size), features: uint64(size % 2)}
		switch c.op {
		case getServerFeature:
			good = s.server && s.asks < maxAsked
		case setClientFeature:
			good = s.server && c.features == 0
		case keepalive:
			good = true
		case registerXferMemory: // of 0 bytes
		}
		return good, p.command(c)
	case 6: // a WRITE into the buffer without a message
		s.recvBuf[size%len(s.recvBuf)] ^= kind
		p.dirty = true
	case 7: // another completion, or a command of another length
		wc := uverbs.WC{Opcode: uverbs.WCRecv + uverbs.WCOpcode(kind%2), ByteLen: uint32(size), Imm: uint32(size) << 16}
		wc.Flags = []uverbs.WCFlags{0, uverbs.WCWithImm, uverbs.WCWithInv}[kind%3]
		p.dirty = true
		return false, s.receive(&wc, bytes.Repeat([]byte{0, kind}, commandSize/2))
	case 8:
		p.read(size)
	case 9:
		p.write(size)
	case 10:
		p.grant()
	case 11:
		if s.asks > 0 {
			if c := s.answer(); c.op != getServerFeature || c.features != 0 {
				p.t.Fatalf("a question is answered with %+v", c)
			}
		}
	}
	return true, nil
}

// read has the program read.
func (p *hostilePeer) read(size int) {
	got := make([]byte, size)
	n := p.s.read(got)
	if n > len(p.sent) && !p.dirty || n > bareBuffer {
		p.t.Fatalf("%d bytes are read, and %d were sent", n, len(p.sent))
	}
	if !p.dirty && !bytes.Equal(got[:n], p.sent[:n]) {
		p.t.Fatalf("% x is read, % x was sent", got[:n], p.sent[:n])
	}
	p.sent = p.sent[min(n, len(p.sent)):]
}

// write has the program write, into no other memory than the peer has announced, and into each byte once.
func (p *hostilePeer) write(size int) {
	s := p.s
	if s.remote.length == 0 {
		return
	}
	last := p.announced[len(p.announced)-1]
	to := s.advance(min(size, int(s.remote.length)))
	if to.key != last.key || to.addr != last.addr+uint64(p.used) || p.used+int(to.length) > int(last.length) {
		p.t.Fatalf("a WRITE to %+v after %d bytes, and the peer has announced %+v", to, p.used, last)
	}
	p.used += int(to.length)
}

// grant announces a half of the buffer if it is time for that. It must not have data that is not read.
func (p *hostilePeer) grant() {
	s := p.s
	if !s.owesBuffer() {
		return
	}
	first := s.consumed
	offset := s.grant()
	for at := first; at < s.arrived; at++ {
		if i := int(at % bareBuffer); i >= offset && i < offset+bareBuffer/2 {
			p.t.Fatalf("bytes %d to %d are granted, and %d is not read", offset, offset+bareBuffer/2, i)
		}
	}
}

// FuzzHostilePeer: whatever a peer does, in whatever order, a connection gives the program nothing but the
// bytes that were sent, writes into no memory that the peer has not announced, grants no memory twice,
// and needs no more memory; or it ends with EPROTO. Each step of the input is an action with a size.
func FuzzHostilePeer(f *testing.F) {
	for mode := range byte(2) {
		f.Add(mode, []byte{10, 0, 0, 0, 0, 5, 0, 9, 8, 0, 0, 4, 0, 7, 5, 0, 8, 0, 9, 0, 10, 0, 0, 0, 9, 0, 3, 0})
		f.Add(mode, []byte{3, 1, 4, 0, 9, 0, 3, 0, 9, 0, 9, 0, 3, 2, 0, 1, 9, 0, 0, 5})
		f.Add(mode, []byte{3, 1, 4, 0, 9, 0, 3, 255, 3, 2, 0, 1})
		f.Add(mode, []byte{4, 1, 0, 9, 4, 0, 0, 0, 3, 0, 0, 0})
		f.Add(mode, []byte{10, 0, 0, 0, 1, 0, 8, 0, 10, 0, 0, 0, 1, 0, 8, 0, 10, 0, 0, 0, 8, 0, 8, 0, 10, 0, 0, 0, 1, 0, 8, 1})
		f.Add(mode, []byte{10, 0, 0, 0, 1, 0, 8, 1})
		f.Add(mode, []byte{2, 0, 0, 0})
		f.Add(mode, []byte{1, 16, 255, 255})
		f.Add(mode, bytes.Repeat([]byte{5, 0, 0, 7}, maxAsked+1))
		f.Add(mode, append(bytes.Repeat([]byte{5, 0, 0, 7}, maxAsked), 11, 0, 0, 0, 5, 0, 0, 1))
		f.Add(mode, []byte{5, 1, 0, 0, 5, 2, 0, 0, 5, 1, 0, 1})
		f.Add(mode, []byte{5, 5, 0, 0})
		f.Add(mode, []byte{7, 0, 0, 31, 7, 3, 0, 32})
		f.Add(mode, []byte{7, 4, 0, 0})
		f.Add(mode, []byte{6, 1, 0, 1, 10, 0, 0, 0, 0, 1, 0, 9, 8, 0, 0, 9})
	}
	f.Fuzz(func(t *testing.T, mode byte, script []byte) {
		s := &state{server: mode&1 != 0, recvBuf: make([]byte, bareBuffer)}
		p := &hostilePeer{t: t, s: s}
		for ; len(script) >= 4; script = script[4:] {
			act, kind, size := script[0]%12, script[1], int(binary.BigEndian.Uint16(script[2:]))
			good, err := p.act(act, kind, size)
			if err != nil {
				if good || !errors.Is(err, syscall.EPROTO) || !strings.HasPrefix(err.Error(), "the peer ") {
					t.Fatalf("action %d of kind %d and size %d: %v", act, kind, size, err)
				}
				before := *s
				if again := p.command(command{op: keepalive}); again != err || *s.counts() != *before.counts() {
					t.Fatalf("after %v a message is handled: %v", err, again)
				}
				return
			}
			if s.consumed > s.arrived || s.arrived > s.granted || s.granted-s.consumed > bareBuffer || s.asks > maxAsked {
				t.Fatalf("%d bytes are granted, %d have arrived and %d are read, of %d; %d questions", s.granted, s.arrived, s.consumed, bareBuffer, s.asks)
			}
		}
	})
}

// counts returns what messages change.
func (s *state) counts() *[4]uint64 {
	return &[4]uint64{s.granted, s.arrived, uint64(s.remote.length), uint64(s.asks)}
}
