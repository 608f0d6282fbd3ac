package udp

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// tunMTU is the MTU of the links of these tests.
const tunMTU = 1400

// newTun moves the calling goroutine into a network namespace of its own, in which a TUN device is the
// only link that is up, and returns the device: what the kernel sends is read from it as IP packets, and
// what is written to it arrives. The goroutine must not start others that open sockets.
func newTun(t *testing.T, addrs ...string) *os.File {
	t.Helper()
	runtime.LockOSThread() // and never unlock: the thread ends with the test
	testenv.NeedsRights(t, "a network namespace", unix.Unshare(unix.CLONE_NEWNET))
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	testenv.NeedsRights(t, "/dev/net/tun", err)
	const name = "tun0"
	request, err := unix.NewIfreq(name)
	must(t, err)
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	tun := os.NewFile(uintptr(fd), name)
	t.Cleanup(func() { tun.Close() })
	testenv.NeedsRights(t, "a TUN device", err)
	link, err := netlink.LinkByName(name)
	must(t, err)
	must(t, errors.Join(netlink.LinkSetMTU(link, tunMTU), netlink.LinkSetUp(link)))
	for _, a := range addrs { // after the link is up, so that they can be used at once
		addr, err := netlink.ParseAddr(a)
		must(t, err)
		addr.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(link, addr); errors.Is(err, unix.EACCES) {
			testenv.NeedsRights(t, "an IPv6 address", err) // IPv6 is disabled
		} else if err != nil {
			t.Fatal(err)
		}
	}
	return tun
}

// ipPacket is a UDP datagram as it is on the wire.
type ipPacket struct {
	From, To      string
	ID            uint16
	DontFragment  bool
	Class, Hops   uint8
	Data          string // without the ICRC
	RightICRC     bool
	RecoveredID   uint16
	HeaderOptions bool
}

// readTun reads packets to a UDP port until there are n.
func readTun(t *testing.T, tun *os.File, n int) (all []ipPacket) {
	t.Helper()
	b := make([]byte, 1<<16)
	for len(all) < n {
		size, err := tun.Read(b)
		must(t, err)
		if p, ok := parseIP(b[:size]); ok { // IPv6 sends packets of its own, too
			all = append(all, p)
		}
	}
	return all
}

// parseIP takes a UDP datagram apart.
func parseIP(b []byte) (p ipPacket, ok bool) {
	be := binary.BigEndian
	var src, dst netip.Addr
	var udp []byte
	switch {
	case b[0]>>4 == 4 && b[9] == unix.IPPROTO_UDP:
		p = ipPacket{ID: be.Uint16(b[4:]), DontFragment: be.Uint16(b[6:]) == 0x4000, Class: b[1], Hops: b[8], HeaderOptions: b[0] != 0x45}
		src, dst, udp = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20])), b[20:]
	case b[0]>>4 == 6 && b[6] == unix.IPPROTO_UDP:
		p = ipPacket{Class: uint8(be.Uint16(b) >> 4), Hops: b[7]}
		src, dst, udp = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40])), b[40:]
	default:
		return p, false
	}
	from, to, data := netip.AddrPortFrom(src, be.Uint16(udp)), netip.AddrPortFrom(dst, be.Uint16(udp[2:])), udp[8:]
	p.From, p.To, p.Data = from.String(), to.String(), string(data[:len(data)-wire.ICRCSize])
	p.RecoveredID, p.RightICRC = wire.CheckICRC(from, to, data)
	return p, true
}

// TestOnTheWire: what the kernel makes of packets has the IDs, and so the ICRCs, that they were sealed
// with: 0, or the number of the segment.
func TestOnTheWire(t *testing.T) {
	for _, c := range []struct {
		name, local, peer string
		o                 Options
		ids               []uint16
	}{
		{"IPv4", "10.9.0.1:4791", "10.9.0.2:4791", Options{}, []uint16{0, 1, 2, 3, 0, 1, 0, 0}},
		{"IPv4 without GSO", "10.9.0.1:4791", "10.9.0.2:4791", Options{NoGSO: true}, make([]uint16, 8)},
		{"IPv4 plain", "10.9.0.1:4791", "10.9.0.2:4791", Options{Plain: true}, make([]uint16, 8)},
		{"IPv4 multicast", "10.9.0.1:4791", "239.192.1.2:4791", Options{}, []uint16{0, 1, 2, 3, 0, 1, 0, 0}},
		{"IPv6", "[fd00:9::1]:4791", "[fd00:9::2]:4791", Options{}, make([]uint16, 8)},
		{"IPv6 multicast", "[fd00:9::1]:4791", "[ff05::1234]:4791", Options{}, make([]uint16, 8)},
	} {
		t.Run(c.name, func(t *testing.T) {
			tun := newTun(t, "10.9.0.1/24", "fd00:9::1/64")
			s := open(t, netip.MustParseAddrPort(c.local), c.o)
			to := netip.MustParseAddrPort(c.peer)
			var batch Batch
			for i, size := range []int{1040, 1040, 1040, 24, 64, 64, 1044} {
				fill(t, &batch, to, size, uint64(i))
				batch.SetIP(IP{HopLimit: 3})
			}
			fill(t, &batch, to, 32, 7)
			batch.SetIP(IP{TrafficClass: 0x2a, HopLimit: 9})
			must(t, s.Send(&batch))
			var want []ipPacket
			for i, p := range sent(s, &batch) {
				ip := batch.IP(i)
				if c.o.Plain {
					ip = IP{HopLimit: defaultHop}
				}
				want = append(want, ipPacket{
					From: p.From, To: p.To, Data: p.Data, ID: c.ids[i], RecoveredID: c.ids[i], DontFragment: to.Addr().Is4(),
					Class: ip.TrafficClass, Hops: ip.HopLimit, RightICRC: true,
				})
			}
			if diff := cmp.Diff(want, readTun(t, tun, batch.Len())); diff != "" {
				t.Errorf("(-sent +on the wire):\n%s", diff)
			}
			if n := s.Counters().GSOFallbacks; n > 1 { // 1 before Linux 6.11: the link has no checksums
				t.Errorf("%d GSO fallbacks", n)
			}
		})
	}
}

// fromRxe are ACKs that rxe of Linux 6.1 sent, from the IP header on. Their UDP checksum is 0.
var fromRxe = []struct {
	name, packet, from, to string
	ip                     IP
	id                     uint16
}{
	{
		"IPv4", "45000030d7f9400040114ebf0a0100010a010002faa112b7001c00001100ffff0000b59c009f682e1f000001a97d601e",
		"10.1.0.1:64161", "10.1.0.2:4791", IP{TrafficClass: 0, HopLimit: 64}, 0xd7f9,
	},
	{
		"IPv6", "60000000001c1140fd000001000000000000000000000001fd000001000000000000000000000002dbd912b7001c00001100ffff00004c3600ede9971f00000162fe8f5a",
		"[fd00:1::1]:56281", "[fd00:1::2]:4791", IP{TrafficClass: 0, HopLimit: 64}, 0,
	},
}

// repeatedly writes a packet to a TUN device again and again until stop is called, as the kernel drops
// IPv6 packets until a worker of its own has made a new address known.
func repeatedly(t *testing.T, tun *os.File, packet []byte) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for tick := time.Tick(10 * time.Millisecond); ; {
			if _, err := tun.Write(packet); err != nil {
				t.Error(err)
			}
			select {
			case <-tick:
			case <-done:
				return
			}
		}
	}()
	return func() { close(done); <-ended }
}

// TestFromRxe: the socket receives what rxe has sent.
func TestFromRxe(t *testing.T) {
	for _, c := range fromRxe {
		for _, o := range []Options{{}, {NoGRO: true}} {
			t.Run(c.name, func(t *testing.T) {
				tun := newTun(t, "10.1.0.2/24", "fd00:1::2/64")
				s := open(t, netip.MustParseAddrPort(c.to), o)
				packet, err := hex.DecodeString(c.packet)
				must(t, err)
				stop := repeatedly(t, tun, packet)
				got, metas := collect(t, s, 1)
				stop()
				got, metas = got[:1], metas[:1]
				want := []received{{c.from, c.to, string(packet[len(packet)-20 : len(packet)-4])}}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				if m := metas[0]; m.IP != c.ip || m.ID != c.id {
					t.Errorf("received with %+v and ID %#x, want %+v and %#x", m.IP, m.ID, c.ip, c.id)
				}
			})
		}
	}
}

// TestSmallLink: a link with a small MTU is an error of Open, or else of Send.
func TestSmallLink(t *testing.T) {
	tun := newTun(t, "10.9.0.1/24")
	local, peer := netip.MustParseAddrPort("10.9.0.1:4791"), netip.MustParseAddrPort("10.9.0.2:4791")
	_, err := Open(local, Options{MTU: 2048})
	const want = "udp 10.9.0.1:4791: interface tun0 has an MTU of 1400 bytes, which is too small for an MTU of RoCE of 2048 bytes: at least 2128 are needed"
	if err == nil || err.Error() != want {
		t.Errorf("Open: %v, want %s", err, want)
	}
	s := open(t, local, Options{MTU: 1024})
	var batch Batch
	for i, size := range []int{tunMTU - 27, tunMTU - 27, tunMTU - 28, tunMTU - 28} {
		fill(t, &batch, peer, size, uint64(i))
	}
	fill(t, &batch, netip.MustParseAddrPort("192.0.2.1:4791"), 64, 4)
	errorIs(t, s.Send(&batch), unix.EMSGSIZE, "Send")
	if c := s.Counters(); c.Sent != 2 || c.TooLong != 2 || c.NoRoute != 1 {
		t.Errorf("counters: %+v, want 2 packets sent, 2 too long, 1 without a route", c)
	}
	if got := readTun(t, tun, 2); !got[0].RightICRC || !got[1].RightICRC {
		t.Errorf("a wrong ICRC after a refused packet: %+v", got)
	}
}
