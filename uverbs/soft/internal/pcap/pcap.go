// Package pcap writes packets of RoCE v2 to a file that Wireshark and tcpdump read: pcapng with IP
// packets and timestamps in nanoseconds.
//
// The software device never sees the IP and UDP headers of its packets. A Writer makes them up from the
// addresses, so that they match the ICRC. Wireshark recognizes RoCE v2 by the UDP port 4791.
package pcap

import (
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"sync"
	"time"

	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// Direction says whether a device sent a packet or received it.
type Direction uint8

// Directions, with the numbers of the pcapng option epb_flags.
const (
	Unknown  Direction = 0
	Received Direction = 1
	Sent     Direction = 2
)

// Packet is a packet and what a Writer records of it.
type Packet struct {
	Time         time.Time
	From, To     netip.AddrPort // of one family
	TrafficClass uint8          // TOS of IPv4
	HopLimit     uint8          // TTL of IPv4; 0 is recorded as 64
	ID           uint16         // of the IPv4 header
	Direction    Direction
	// Data is the packet from BTH to ICRC. The Writer does not change it.
	Data []byte
	// Seal makes the Writer compute the ICRC. Packets that stay in the process have no ICRC.
	Seal bool
	// Comment is shown beside the packet. It may be empty.
	Comment string
}

// Writer writes packets. It is safe for concurrent use.
type Writer struct {
	mu    sync.Mutex
	w     io.Writer
	block block // of a packet; its memory is used again
}

// NewWriter begins a file and returns its Writer. Program and device are names that Wireshark shows.
// Every packet is one call of w.Write, so a slow w is best buffered by the caller.
func NewWriter(w io.Writer, program, device string) (*Writer, error) {
	var b block
	b.section(program)
	b.device(device)
	if _, err := w.Write(b.bytes); err != nil {
		return nil, err
	}
	return &Writer{w: w}, nil
}

// maxData is the size of the largest UDP payload over IPv4.
const maxData = 65507

var (
	errFamilies = errors.New("pcap: the addresses are of different families, or one is the zero value")
	errSize     = errors.New("pcap: no packet of RoCE has this size")
)

// Write writes a packet. If it fails, the file may end with a part of it.
func (w *Writer) Write(p *Packet) error {
	from, to := p.From.Addr().Unmap(), p.To.Addr().Unmap()
	if !from.IsValid() || !to.IsValid() || from.Is4() != to.Is4() {
		return errFamilies
	}
	if len(p.Data) < wire.BTHSize+wire.ICRCSize || len(p.Data) > maxData {
		return errSize
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.block.bytes = w.block.bytes[:0]
	w.block.packet(p, from, to)
	_, err := w.w.Write(w.block.bytes)
	return err
}

// putIP writes the IP and UDP headers and the data of a packet, and completes them.
func putIP(b []byte, p *Packet, from, to netip.Addr) {
	hops := p.HopLimit
	if hops == 0 {
		hops = 64
	}
	be := binary.BigEndian
	headers := headersSize(from)
	length := len(b) - headers + udpSize // in the UDP header
	if from.Is4() {
		ip := b[:ipv4Size]
		ip[0], ip[1] = 0x45, p.TrafficClass
		be.PutUint16(ip[2:], uint16(len(b)))
		be.PutUint16(ip[4:], p.ID)
		be.PutUint16(ip[6:], 0x4000) // DF
		ip[8], ip[9] = hops, protoUDP
		be.PutUint16(ip[10:], 0)
		src, dst := from.As4(), to.As4()
		copy(ip[12:], src[:])
		copy(ip[16:], dst[:])
		be.PutUint16(ip[10:], ^fold(sum(0, ip)))
	} else {
		be.PutUint32(b, 6<<28|uint32(p.TrafficClass)<<20)
		be.PutUint16(b[4:], uint16(length))
		b[6], b[7] = protoUDP, hops
		src, dst := from.As16(), to.As16()
		copy(b[8:], src[:])
		copy(b[24:], dst[:])
	}
	udp, data := b[headers-udpSize:], b[headers:]
	be.PutUint16(udp, p.From.Port())
	be.PutUint16(udp[2:], p.To.Port())
	be.PutUint16(udp[4:], uint16(length))
	be.PutUint16(udp[6:], 0)
	copy(data, p.Data)
	if p.Seal {
		wire.SealICRC(netip.AddrPortFrom(from, p.From.Port()), netip.AddrPortFrom(to, p.To.Port()), p.ID, data)
	}
	// The addresses stand right before the UDP header in both families.
	addrs := 2 * from.BitLen() / 8
	checksum := ^fold(sum(uint32(protoUDP+length), b[headers-udpSize-addrs:]))
	if checksum == 0 {
		checksum = 0xffff // 0 means that there is none
	}
	be.PutUint16(udp[6:], checksum)
}

// headersSize returns the size of the IP and UDP headers.
func headersSize(from netip.Addr) int {
	if from.Is4() {
		return ipv4Size + udpSize
	}
	return ipv6Size + udpSize
}

// sum adds big-endian words of 16 bits.
func sum(s uint32, b []byte) uint32 {
	for ; len(b) >= 2; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	return s
}

// fold makes a checksum of a sum. No packet is long enough to overflow the sum.
func fold(s uint32) uint16 {
	s = s>>16 + s&0xffff
	return uint16(s>>16 + s)
}
