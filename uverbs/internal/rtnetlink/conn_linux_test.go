package rtnetlink

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/test/testenv"
)

// TestKernel compares what the kernel answers with what package netlink makes of it.
func TestKernel(t *testing.T) {
	testenv.IPv6(t)
	runtime.LockOSThread() // and never unlock: the thread ends with the test
	outside, err := Open()
	testenv.Must(t, err)
	defer outside.Close()
	before, err := outside.Links()
	testenv.Must(t, err)
	testenv.NeedsRights(t, "a network namespace", unix.Unshare(unix.CLONE_NEWNET))
	// Link-local addresses would change meanwhile.
	testenv.Must(t, os.WriteFile("/proc/sys/net/ipv6/conf/default/addr_gen_mode", []byte("1"), 0))
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = "link", 1400
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}
	testenv.Must(t, netlink.LinkAdd(veth))
	for _, name := range []string{"lo", "peer", "link"} {
		link, err := netlink.LinkByName(name)
		testenv.Must(t, err)
		testenv.Must(t, netlink.LinkSetUp(link))
	}
	link, err := netlink.LinkByName("link")
	testenv.Must(t, err)
	index := link.Attrs().Index
	for _, a := range []string{"10.9.0.1/24", "fd00:9::1/64"} {
		addr, err := netlink.ParseAddr(a)
		testenv.Must(t, err)
		addr.Flags = unix.IFA_F_NODAD
		testenv.Must(t, netlink.AddrAdd(link, addr))
	}
	peer := &net.IPNet{IP: net.IPv4(10, 8, 0, 2), Mask: net.CIDRMask(24, 32)}
	testenv.Must(t, netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 8, 0, 1), Mask: net.CIDRMask(32, 32)}, Peer: peer}))
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	for _, ip := range []string{"10.9.0.2", "fd00:9::2"} {
		testenv.Must(t, netlink.NeighAdd(&netlink.Neigh{LinkIndex: index, IP: net.ParseIP(ip), HardwareAddr: mac, State: netlink.NUD_PERMANENT}))
	}
	for dst, gateway := range map[string]string{"10.20.0.0/16": "10.9.0.2", "fd20::/16": "fd00:9::2", "10.30.0.0/16": "via fd00:9::2"} {
		_, to, err := net.ParseCIDR(dst)
		testenv.Must(t, err)
		r := &netlink.Route{LinkIndex: index, Dst: to}
		if other, ok := strings.CutPrefix(gateway, "via "); ok {
			r.Via = &netlink.Via{AddrFamily: unix.AF_INET6, Addr: net.ParseIP(other)}
		} else {
			r.Gw = net.ParseIP(gateway)
		}
		testenv.Must(t, netlink.RouteAdd(r))
	}
	inside, err := Open()
	testenv.Must(t, err)
	defer inside.Close()
	for _, c := range []Conn{Here, inside} { // in this goroutine, because another has another thread
		compareWithLibrary(t, c, index)
	}
	if after, err := outside.Links(); err != nil || !cmp.Equal(before, after) {
		t.Errorf("a Conn of another namespace has the network interfaces %+v, %v; had %+v", after, err, before)
	}
	if other, err := outside.Link(index); other.Name == "link" {
		t.Errorf("a Conn of another namespace has the network interface %+v, %v", other, err)
	}
}

// compareWithLibrary compares the tables, one network interface and routes.
func compareWithLibrary(t *testing.T, c Conn, index int) {
	var links []Link
	all, err := netlink.LinkList()
	testenv.Must(t, err)
	for _, l := range all {
		a := l.Attrs()
		links = append(links, Link{a.Index, a.Name, a.RawFlags, a.MTU, a.HardwareAddr})
	}
	got, err := c.Links()
	if diff := cmp.Diff(links, got); err != nil || len(got) < 3 || diff != "" {
		t.Errorf("network interfaces: %v, -library +ours:\n%s", err, diff)
	}
	at := slices.IndexFunc(links, func(l Link) bool { return l.Index == index })
	if got, err := c.Link(index); err != nil || !cmp.Equal(got, links[at]) || got.Name != "link" || got.MTU != 1400 {
		t.Errorf("a network interface is %+v, %v; want %+v", got, err, links[at])
	}

	var addrs []Addr
	library, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	testenv.Must(t, err)
	for _, a := range library {
		ip, _ := netip.AddrFromSlice(a.IP)
		ones, _ := a.Mask.Size()
		addrs = append(addrs, Addr{a.LinkIndex, netip.PrefixFrom(ip, ones), uint32(a.Flags)})
	}
	gotAddrs, err := c.Addrs()
	if diff := cmp.Diff(addrs, gotAddrs, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); err != nil || diff != "" {
		t.Errorf("addresses: %v, -library +ours:\n%s", err, diff)
	}
	for _, want := range []string{"127.0.0.1/8", "10.9.0.1/24", "10.8.0.1/32", "fd00:9::1/64"} {
		if !slices.ContainsFunc(gotAddrs, func(a Addr) bool { return a.Prefix.String() == want }) {
			t.Errorf("the addresses %v are without %s", gotAddrs, want)
		}
	}

	mac := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	neighbours, err := c.Neighbours(index)
	for _, ip := range []string{"10.9.0.2", "fd00:9::2"} {
		want := Neighbour{netip.MustParseAddr(ip), mac, unix.NUD_PERMANENT}
		if !slices.ContainsFunc(neighbours, func(n Neighbour) bool {
			return n.IP == want.IP && cmp.Equal(n.HardwareAddr, mac) && n.State == want.State
		}) {
			t.Errorf("the neighbours %+v, %v are without %+v", neighbours, err, want)
		}
	}
	if others, err := c.Neighbours(index + 1000); err != nil || others != nil {
		t.Errorf("the neighbours of no network interface are %+v, %v", others, err)
	}

	for _, r := range []struct {
		to, source, gateway string
		link                int
	}{
		{"10.9.0.7", "10.9.0.1", "", 0},
		{"::ffff:10.9.0.7", "10.9.0.1", "", index},
		{"10.20.0.1", "10.9.0.1", "10.9.0.2", 0},
		{"10.30.0.1", "10.9.0.1", "fd00:9::2", 0},
		{"fd20::1", "fd00:9::1", "fd00:9::2", index},
	} {
		want := Route{Link: index, Source: netip.MustParseAddr(r.source)}
		if r.gateway != "" {
			want.Gateway = netip.MustParseAddr(r.gateway)
		}
		if got, err := c.RouteTo(netip.MustParseAddr(r.to), r.link); err != nil || got != want {
			t.Errorf("the route to %s by %d is %+v, %v; want %+v", r.to, r.link, got, err, want)
		}
	}
	if _, err := c.Link(1 << 20); !errors.Is(err, unix.ENODEV) || !strings.HasPrefix(err.Error(), "network interface 1048576: ") {
		t.Errorf("a network interface that does not exist: %v", err)
	}
	if _, err := c.RouteTo(netip.MustParseAddr("192.0.2.1"), 0); !errors.Is(err, unix.ENETUNREACH) || !strings.HasPrefix(err.Error(), "route to 192.0.2.1: ") {
		t.Errorf("a route that does not exist: %v", err)
	}
}

// TestRepeated: what changed while it was read is read again, but not for ever.
func TestRepeated(t *testing.T) {
	other := errors.New("other")
	for _, c := range []struct {
		errs  []error // of each time; the last stays
		want  error
		reads int
	}{
		{[]error{nil}, nil, 1},
		{[]error{nl.ErrDumpInterrupted, nil}, nil, 2},
		{[]error{nl.ErrDumpInterrupted, other}, other, 2},
		{[]error{nl.ErrDumpInterrupted}, ErrInterrupted, 10},
	} {
		reads := 0
		got, err := repeated(func() ([][]byte, error) {
			reads++
			return make([][]byte, reads), c.errs[min(reads, len(c.errs))-1]
		})
		if err != c.want || reads != c.reads || len(got) != reads {
			t.Errorf("of %v: %v, %v after %d", c.errs, got, err, reads)
		}
	}
}

// FuzzMessage: answers of any bytes are decoded or refused.
func FuzzMessage(f *testing.F) {
	f.Add(make([]byte, unix.SizeofIfAddrmsg))
	f.Add([]byte{2, 24, 0, 0, 1, 0, 0, 0, 8, 0, unix.IFA_LOCAL, 0, 10, 0, 0, 1, 5, 0, unix.IFA_LABEL, 0, 'x'})
	f.Add([]byte{2, 24, 0, 0, 1, 0, 0, 0, 3, 0, unix.IFA_LOCAL, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, header := range []int{unix.SizeofIfAddrmsg, unix.SizeofNdMsg, unix.SizeofIfInfomsg} {
			m, err := parse("answer", b, header)
			if err != nil {
				if !strings.HasPrefix(err.Error(), "answer: ") || len(b) >= header && !errors.Is(err, unix.EINVAL) {
					t.Errorf("%x: %v", b, err)
				}
				continue
			}
			if a := m.addr(); a.Prefix.IsValid() && a.Prefix.Bits() > a.Prefix.Addr().BitLen() {
				t.Errorf("%x is address %v", b, a)
			}
			m.route()
			if header > unix.SizeofIfAddrmsg {
				m.neighbour()
			}
			if header == unix.SizeofIfInfomsg {
				m.link()
			}
		}
	})
}
