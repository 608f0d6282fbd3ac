package uverbs

import (
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// header4 is an IPv4 header from 10.1.0.1 to 10.1.0.2 with a right checksum.
var header4 = []byte{
	0x45, 0x20, 0x00, 0x50, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0x26, 0x79,
	10, 1, 0, 1, 10, 1, 0, 2,
}

// header6 is a GRH from fd00:1::1 to ff0e::7:1.
func header6(t *testing.T, next byte) []byte {
	b := []byte{0x6a, 0xb1, 0x23, 0x45, 0, 0, next, 9}
	from, to := gid(t, "fd00:1::1"), gid(t, "ff0e::7:1")
	return append(append(b, from[:]...), to[:]...)
}

func TestParseGRH(t *testing.T) {
	want4 := ReceivedGRH{SGID: gid(t, "10.1.0.1"), DGID: gid(t, "10.1.0.2"), TrafficClass: 0x20, HopLimit: 0x40, NextHeader: 17, IPv4: true}
	want6 := ReceivedGRH{SGID: gid(t, "fd00:1::1"), DGID: gid(t, "ff0e::7:1"), TrafficClass: 0xab, FlowLabel: 0x12345, HopLimit: 9, NextHeader: nextIB}
	noSum := append([]byte{}, header4...)
	noSum[10], noSum[11] = 0, 0
	rest := make([]byte, 20)
	like6 := append([]byte{}, rest...)
	like6[0] = 0x60
	udp6 := want6
	udp6.NextHeader = nextUDP
	for name, c := range map[string]struct {
		b    []byte
		want ReceivedGRH
	}{
		"IPv4":                          {append(rest, header4...), want4},
		"IPv4 after what looks as IPv6": {append(header6(t, nextUDP)[:20:20], header4...), want4},
		"IPv4 without a checksum":       {append(like6, noSum...), want4},
		"IPv6":                          {header6(t, nextIB), want6},
		"IPv6 of RoCE v2":               {append(header6(t, nextUDP), 1, 2, 3), udp6},
	} {
		got, err := ParseGRH(c.b)
		if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
	for name, b := range map[string][]byte{"39 bytes": make([]byte, 39), "zeros": make([]byte, 40), "nil": nil, "IPv6 of TCP": header6(t, 6)} {
		errorIs(t, second(ParseGRH(b)), syscall.EINVAL, "%s", name)
	}
}

func FuzzParseGRH(f *testing.F) {
	f.Add(append(make([]byte, 20), header4...))
	f.Add(make([]byte, 40))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := ParseGRH(b)
		if err == nil && (h.FlowLabel >= 1<<20 || h.IPv4 != netip.AddrFrom16(h.SGID).Is4In6() && h.IPv4) {
			t.Errorf("%x is %+v", b, h)
		}
	})
}

// TestCreateAHBytes compares CREATE_AH with struct ib_uverbs_create_ah.
func TestCreateAHBytes(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	pd := value(d.AllocPD())(t)
	k.ahNum = 9
	attr := AHAttr{DLID: 1, SL: 2, SrcPathBits: 3, StaticRate: 4, Port: 2, Global: true,
		GRH: GRH{DGID: gid(t, "10.1.0.2"), FlowLabel: 5, SGIDIndex: 6, HopLimit: 7, TrafficClass: 8}}
	ah := value(pd.CreateAH(attr))(t)
	want := abi.CreateAH{PDHandle: pd.handle, Attr: abi.AHAttr{
		GRH:  abi.GlobalRoute{DGID: gid(t, "10.1.0.2"), FlowLabel: 5, SGIDIndex: 6, HopLimit: 7, TrafficClass: 8},
		DLID: 1, SL: 2, SrcPathBits: 3, StaticRate: 4, IsGlobal: 1, PortNum: 2,
	}}
	var got abi.CreateAH
	copy(bytesOf(&got), k.last("CREATE_AH").in)
	if got != want {
		t.Errorf("request is %+v, want %+v", got, want)
	}
	if ah.rxe.num != 9 || ah.Attr() != attr {
		t.Errorf("number %d and attributes %+v", ah.rxe.num, ah.Attr())
	}
	must(t, ah.Close(), ah.Close())
	k.refuse["CREATE_AH"] = syscall.EHOSTUNREACH
	errorIs(t, second(pd.CreateAH(attr)), syscall.EHOSTUNREACH, "refused")
	must(t, pd.Close())
}

// TestUsedUp: where the kernel's EINVAL may mean that there are no more, the error says so.
func TestUsedUp(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	pd := value(d.AllocPD())(t)
	d.attr.MaxAH, d.attr.MaxSRQ = 100, 960
	k.refuse["CREATE_AH"], k.refuse["CREATE_SRQ"] = syscall.EINVAL, syscall.EINVAL
	_, ah := pd.CreateAH(AHAttr{Port: 1})
	_, srq := pd.CreateSRQ(SRQOptions{MaxWR: 1})
	for want, err := range map[string]error{"all 100 AHs of rxe0 may be in use": ah, "all 960 SRQs of rxe0 may be in use": srq} {
		if !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want EINVAL and %q", err, want)
		}
	}
}

// TestEthernetAddr: multicast groups have addresses by rule.
func TestEthernetAddr(t *testing.T) {
	for group, want := range map[string][6]byte{
		"224.129.2.3": {0x01, 0x00, 0x5e, 0x01, 2, 3},
		"ff0e::1:203": {0x33, 0x33, 0, 1, 2, 3},
	} {
		if got, err := ethernetAddr(gid(t, group), 0); err != nil || got != want {
			t.Errorf("%s: %x, %v; want %x", group, got, err, want)
		}
	}
}
