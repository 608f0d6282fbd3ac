package wire

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net/netip"
	"testing"
)

// captured are packets from the IP header on, as a packet socket saw them. rxe of Linux 6.1 sent the
// first ones, and that of Linux 7.2 the FLUSH.
var captured = []struct{ name, hex string }{
	{"IPv4", "45000030d7f9400040114ebf0a0100010a010002faa112b7001c00001100ffff0000b59c009f682e1f000001a97d601e"},
	{"IPv6", "60000000001c1140fd000001000000000000000000000001fd000001000000000000000000000002dbd912b7001c00001100ffff00004c3600ede9971f00000162fe8f5a"},
	{"FLUSH", "45000040eacf400040113bd90a0100010a010002e7da12b7002c00001c00ffff000e952a80b653a00000000100007efef3e1e0000324c3ae00001388cc637540"},
}

// split takes an IP packet apart.
func split(b []byte) (src, dst netip.AddrPort, ipID uint16, udp []byte) {
	be := binary.BigEndian
	if b[0]>>4 == 4 {
		src = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[12:16])), be.Uint16(b[20:]))
		dst = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[16:20])), be.Uint16(b[22:]))
		return src, dst, be.Uint16(b[4:]), b[28:]
	}
	src = netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])), be.Uint16(b[40:]))
	dst = netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[24:40])), be.Uint16(b[42:]))
	return src, dst, 0, b[48:]
}

func TestCapturedICRC(t *testing.T) {
	for _, c := range captured {
		t.Run(c.name, func(t *testing.T) {
			src, dst, id, b := split(unhex(t, c.hex))
			want := string(b)
			if got, ok := CheckICRC(src, dst, b); !ok || got != id {
				t.Errorf("CheckICRC returned ID %#x, %v, want %#x", got, ok, id)
			}
			clear(b[len(b)-ICRCSize:])
			SealICRC(src, dst, id, b)
			if string(b) != want {
				t.Errorf("SealICRC wrote % x, want % x", b[len(b)-ICRCSize:], want[len(want)-ICRCSize:])
			}
		})
	}
}

// TestFlushICRC: a FLUSH with the right ICRC is accepted as well, and one with a flipped bit has neither.
func TestFlushICRC(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, p := range paths {
		b := randomPacket(r, 36)
		b[0] = byte(Flush)
		binary.LittleEndian.PutUint32(b[32:], icrc(p.src, p.dst, 0x1234, b))
		if _, ok := CheckICRC(p.src, p.dst, b); !ok {
			t.Errorf("%v: the right ICRC of a FLUSH is refused", p.src)
		}
		SealICRC(p.src, p.dst, 0x1234, b)
		for bit := 8; bit < 8*len(b); bit++ { // the first byte is the opcode
			b[bit/8] ^= 1 << (bit % 8)
			if got, ok := CheckICRC(p.src, p.dst, b); ok {
				t.Errorf("%v, bit %d of byte %d flipped: CheckICRC returned ID %#x", p.src, bit%8, bit/8, got)
			}
			b[bit/8] ^= 1 << (bit % 8)
		}
	}
}

// paths are pairs of addresses of either family.
var paths = []struct{ src, dst netip.AddrPort }{
	{netip.MustParseAddrPort("10.1.0.1:49152"), netip.MustParseAddrPort("10.1.0.2:4791")},
	{netip.MustParseAddrPort("[fd00::1]:4791"), netip.MustParseAddrPort("[fd00::2]:4791")},
}

// randomPacket returns a packet with random bytes.
func randomPacket(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// TestFlippedBits: the ICRC finds every single flipped bit, but for those of BTH byte 4, which it does
// not cover, and whatever ID the sender used.
func TestFlippedBits(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, p := range paths {
		for _, n := range []int{16, 20, 64, 256, 1024 + 32} {
			id := uint16(r.Uint32())
			if n == 64 {
				id = 0
			}
			b := randomPacket(r, n)
			SealICRC(p.src, p.dst, id, b)
			for bit := range 8 * n {
				b[bit/8] ^= 1 << (bit % 8)
				if got, ok := CheckICRC(p.src, p.dst, b); ok != (bit/8 == 4) {
					t.Errorf("%v, %d bytes, bit %d of byte %d flipped: CheckICRC returned ID %#x, %v", p.src, n, bit%8, bit/8, got, ok)
				}
				b[bit/8] ^= 1 << (bit % 8)
			}
		}
	}
}

// TestIPIDs: CheckICRC finds every ID, at sizes within and beyond the cache of powers.
func TestIPIDs(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	p := paths[0]
	for _, n := range []int{16, 1024, 4096 + 48, 65504} {
		b := randomPacket(r, n)
		step := 1
		if n > 1024 {
			step = 997
		}
		for id := 0; id < 1<<16; id += step {
			SealICRC(p.src, p.dst, uint16(id), b)
			if got, ok := CheckICRC(p.src, p.dst, b); !ok || got != uint16(id) {
				t.Fatalf("%d bytes: CheckICRC returned ID %#x, %v, want %#x", n, got, ok, id)
			}
		}
	}
}

// TestICRCCoversPath: the ICRC covers addresses and ports.
func TestICRCCoversPath(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, p := range paths {
		b := randomPacket(r, 64)
		SealICRC(p.src, p.dst, 7, b)
		next := func(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Next(), a.Port()) }
		port := func(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr(), a.Port()^1) }
		for _, q := range [][2]netip.AddrPort{{next(p.src), p.dst}, {p.src, next(p.dst)}, {port(p.src), p.dst}, {p.src, port(p.dst)}} {
			if id, ok := CheckICRC(q[0], q[1], b); ok {
				t.Errorf("sealed from %v to %v: CheckICRC(%v, %v) returned ID %#x", p.src, p.dst, q[0], q[1], id)
			}
		}
	}
}

// TestMappedICRC: an IPv4-mapped IPv6 address, as in a GID, is the IPv4 address.
func TestMappedICRC(t *testing.T) {
	p := paths[0]
	mapped := func(a netip.AddrPort) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr().As16()), a.Port())
	}
	b := randomPacket(rand.New(rand.NewPCG(7, 8)), 32)
	SealICRC(mapped(p.src), mapped(p.dst), 9, b)
	if id, ok := CheckICRC(p.src, p.dst, b); !ok || id != 9 {
		t.Errorf("CheckICRC of plain addresses returned ID %d, %v", id, ok)
	}
	if id, ok := CheckICRC(mapped(p.src), p.dst, b); !ok || id != 9 {
		t.Errorf("CheckICRC of a mapped address returned ID %d, %v", id, ok)
	}
}

// TestNoiseICRC: with IPv4, about one of 2^16 random packets passes; with IPv6, none of 2^18 does.
func TestNoiseICRC(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10)) // a fixed seed, so the count is always the same
	for _, p := range paths {
		passed, limit := 0, 16
		if p.src.Addr().Is6() {
			limit = 0
		}
		for range 1 << 18 {
			if _, ok := CheckICRC(p.src, p.dst, randomPacket(r, 16)); ok {
				passed++
			}
		}
		if passed > limit {
			t.Errorf("%v: %d of %d random packets passed", p.src, passed, 1<<18)
		}
	}
}

func TestShortICRC(t *testing.T) {
	for n := range BTHSize + ICRCSize {
		if _, ok := CheckICRC(paths[0].src, paths[0].dst, make([]byte, n)); ok {
			t.Errorf("a packet of %d bytes passed", n)
		}
	}
}

// FuzzICRC: a sealed packet passes, and its neighbours of one bit do not.
func FuzzICRC(f *testing.F) {
	f.Add([]byte("sixteen bytes ..and more"), uint16(3), uint16(100))
	f.Fuzz(func(t *testing.T, b []byte, id, bit uint16) {
		for _, p := range paths {
			CheckICRC(p.src, p.dst, b)
			if len(b) < BTHSize+ICRCSize || len(b) > 65507 {
				continue
			}
			SealICRC(p.src, p.dst, id, b)
			if _, ok := CheckICRC(p.src, p.dst, b); !ok {
				t.Errorf("% x does not pass", b)
			}
			at := int(bit) / 8 % len(b)
			flush := isFlush(b)
			b[at] ^= 1 << (bit % 8)
			if flush || isFlush(b) {
				continue // of two ICRCs, one may be right by chance
			}
			if _, ok := CheckICRC(p.src, p.dst, b); ok != (at == 4) {
				t.Errorf("bit %d of byte %d flipped: CheckICRC returned %v", bit%8, at, ok)
			}
		}
	})
}

func TestAllocations(t *testing.T) {
	b := make([]byte, PacketSize(RC|WriteOnlyImm, 64))
	h := Header{Opcode: RC | WriteOnlyImm, DestQP: 17}
	var got Header
	bad := []byte("too short")
	for _, p := range paths {
		for name, f := range map[string]func(){
			"Put":       func() { h.Put(b) },
			"Parse":     func() { Parse(b, &got) },
			"Parse bad": func() { Parse(bad, &got) },
			"SealICRC":  func() { SealICRC(p.src, p.dst, 5, b) },
			"CheckICRC": func() { CheckICRC(p.src, p.dst, b) },
		} {
			if n := testing.AllocsPerRun(100, f); n != 0 {
				t.Errorf("%s allocates %v times", name, n)
			}
		}
	}
}

func BenchmarkICRC(b *testing.B) {
	for _, p := range paths {
		for _, n := range []int{16, 64, 1024, 4096} {
			packet := make([]byte, PacketSize(RC|SendOnly, n))
			run := func(name string, id uint16, f func()) {
				b.Run(fmt.Sprintf("%s/%v/%d", name, p.src.Addr(), n), func(b *testing.B) {
					b.SetBytes(int64(len(packet)))
					SealICRC(p.src, p.dst, id, packet)
					for b.Loop() {
						f()
					}
				})
			}
			run("seal", 0, func() { SealICRC(p.src, p.dst, 0, packet) })
			run("check", 0, func() { CheckICRC(p.src, p.dst, packet) })
			run("check with ID", 0x1234, func() { CheckICRC(p.src, p.dst, packet) })
		}
	}
}

func BenchmarkParse(b *testing.B) {
	packet := make([]byte, PacketSize(RC|WriteOnly, 64))
	h := Header{Opcode: RC | WriteOnly, DestQP: 17}
	b.Run("Put", func(b *testing.B) {
		for b.Loop() {
			h.Put(packet)
		}
	})
	b.Run("Parse", func(b *testing.B) {
		for b.Loop() {
			Parse(packet, &h)
		}
	})
}

func TestUpdateCRC(t *testing.T) {
	b := randomPacket(rand.New(rand.NewPCG(11, 12)), 100)
	for n := range len(b) {
		if got, want := ^updateCRC(1<<32-1, b[:n]), crc32.ChecksumIEEE(b[:n]); got != want {
			t.Errorf("CRC of %d bytes is %#x, want %#x", n, got, want)
		}
	}
}
