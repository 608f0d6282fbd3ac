package strangers

import (
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/cm/internal/ibcm"
)

// roce is the UDP port of RoCE v2.
const roce = 4791

// Opcodes of packets.
const (
	rcSendOnly    = 0x04
	rcWriteOnly   = 0x0a
	rcWriteImm    = 0x0b
	rcReadRequest = 0x0c
	rcAck         = 0x11
	udSendOnly    = 0x64
)

// host is a host without an RDMA device: it makes packets itself, and sends them by UDP from its own address. It is
// also another user of the hosts that have devices, as all addresses are of one machine: it has the port of devices at
// its own address, from which the system lets it send with any source address of the machine.
type host struct {
	t    *testing.T
	conn *net.UDPConn
	addr netip.AddrPort

	forged netip.Addr // the source address of packets that are forged; the zero value if they are not

	mu         sync.Mutex
	sent       int            // bytes
	received   int            // bytes
	data       int            // packets received that are no management datagrams
	replies    []ibcm.REP     // the last replies
	latestFrom netip.AddrPort // the sender of the last packet
}

// newHost makes a host, which receives until the test ends.
func newHost(t *testing.T, addr string) *host {
	t.Helper()
	at := netip.AddrPortFrom(netip.MustParseAddr(addr), roce)
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
	if err != nil {
		t.Fatal(err)
	}
	h := &host{t: t, conn: conn, addr: at}
	done := make(chan struct{})
	go func() { h.receive(); close(done) }()
	t.Cleanup(func() { conn.Close(); <-done })
	return h
}

// receive counts what arrives, and keeps the replies.
func (h *host) receive() {
	b := make([]byte, 1<<16)
	for {
		n, from, err := h.conn.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		h.mu.Lock()
		h.received += n
		h.latestFrom = from
		if _, m, err := ibcm.Decode(b[min(20, n):max(n-4, min(20, n))]); err == nil && b[0] == udSendOnly {
			if rep, ok := m.(*ibcm.REP); ok {
				h.replies = append(h.replies[max(0, len(h.replies)-64):], *rep)
			}
		} else {
			h.data++
		}
		h.mu.Unlock()
	}
}

// packet sends a packet to a device. The payload begins with the extension headers.
func (h *host) packet(to netip.Addr, opcode byte, qpn, psn uint32, payload []byte) {
	pad := -len(payload) & 3
	b := make([]byte, 12, 12+len(payload)+pad+4)
	binary.BigEndian.PutUint32(b[4:], qpn&0xffffff)
	binary.BigEndian.PutUint32(b[8:], psn&0xffffff|1<<31) // asks for an acknowledgement
	b[0], b[1] = opcode, byte(pad)<<4
	binary.BigEndian.PutUint16(b[2:], 0xffff) // P_Key
	b = append(append(b, payload...), make([]byte, pad)...)
	from := h.source()
	b = binary.LittleEndian.AppendUint32(b, icrc(from, to, b))
	control := unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: from.As4()})
	if _, _, err := h.conn.WriteMsgUDPAddrPort(b, control, netip.AddrPortFrom(to, roce)); err != nil {
		return // the receiver's buffer is full
	}
	h.mu.Lock()
	h.sent += len(b)
	h.mu.Unlock()
}

// source returns the source address of packets.
func (h *host) source() netip.Addr {
	if h.forged.IsValid() {
		return h.forged
	}
	return h.addr.Addr()
}

// icrc returns the ICRC of a packet. What routers change counts as ones (IBTA annex A17).
func icrc(from, to netip.Addr, packet []byte) uint32 {
	b := make([]byte, 36, 36+len(packet))
	binary.BigEndian.PutUint64(b, 1<<64-1)
	ip := b[8:]
	ip[0], ip[1], ip[6], ip[8], ip[9], ip[10], ip[11] = 0x45, 0xff, 0x40, 0xff, 17, 0xff, 0xff
	size := uint16(8 + len(packet) + 4)
	binary.BigEndian.PutUint16(ip[2:], 20+size)
	src, dst := from.As4(), to.As4()
	copy(ip[12:], src[:])
	copy(ip[16:], dst[:])
	udp := ip[20:]
	binary.BigEndian.PutUint16(udp, roce)
	binary.BigEndian.PutUint16(udp[2:], roce)
	binary.BigEndian.PutUint16(udp[4:], size)
	udp[6], udp[7] = 0xff, 0xff
	b = append(b, packet...)
	b[36+4] = 0xff
	return crc32.ChecksumIEEE(b)
}

// mad sends a management datagram.
func (h *host) mad(to netip.Addr, mad []byte) {
	deth := []byte{0x80, 1, 0, 0, 0, 0, 0, 1} // Q_Key and QPN of the connection manager
	h.packet(to, udSendOnly, 1, 0, append(deth, mad...))
}

// cm sends a message of the connection manager.
func (h *host) cm(to netip.Addr, m ibcm.Message) {
	var mad [ibcm.MADSize]byte
	ibcm.Encode(&mad, 1, m)
	h.mad(to, mad[:])
}

// lastReply returns a reply that the host was sent, if there was one: half of the time the last one.
func (h *host) lastReply(rng *rand.Rand) (rep ibcm.REP, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(h.replies)
	if n == 0 {
		return rep, false
	}
	return h.replies[max(rng.IntN(n), rng.IntN(2)*(n-1))], true
}

// request returns a request for a connection: the path and the header have the addresses that the sender claims.
func request(gid, header, server netip.Addr, port uint16, comm, qpn uint32, guid uint64, data []byte) *ibcm.REQ {
	m := &ibcm.REQ{
		CommID: comm, Service: 0x0106<<16 | uint64(port), GUID: guid, QPN: qpn, PSN: 0x1000, ResponderResources: 4, InitiatorDepth: 4,
		RemoteTimeout: 20, LocalTimeout: 20, RetryCount: 7, PKey: 0xffff, MTU: 3, RNRRetryCount: 7, MaxRetries: 15, FlowControl: true,
		Primary: ibcm.PathInfo{LocalLID: 0xffff, RemoteLID: 0xffff, LocalGID: gid.As16(), RemoteGID: server.As16(), HopLimit: 64, AckTimeout: 19},
	}
	p := m.Private[:]
	p[1] = 4 << 4
	binary.BigEndian.PutUint16(p[2:], 40000)
	copy(p[16:20], header.AsSlice())
	copy(p[32:36], server.AsSlice())
	copy(p[36:], data)
	return m
}

// helloCM and helloRsocket are the private data of requests of clients of cm.Conn (cm/PROTOCOL.md) and rsocket.
var (
	helloCM      = []byte{'g', 'v', 2, 1, 0, 16, 4, 0, 0, 0, 0x80, 0}
	helloRsocket = []byte{0: 1, 2: 1, 3: 0x80, 8 + 2: 1, 8 + 11: 7, 8 + 15: 2, 24 + 2: 2, 24 + 11: 8, 24 + 13: 1, 39: 0}
)
