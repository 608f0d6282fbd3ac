package soft_test

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/uverbs/soft"
)

// holdPort uses a UDP port of all addresses in the network namespace of the thread, as rdma_rxe uses 4791. It
// returns a function that ends that.
func (r *linkRig) holdPort(port int) (release func()) {
	r.t.Helper()
	var all []*net.UDPConn
	for network, ip := range map[string]net.IP{"udp4": net.IPv4zero, "udp6": net.IPv6unspecified} {
		c, err := net.ListenUDP(network, &net.UDPAddr{IP: ip, Port: port})
		r.ok(err)
		r.t.Cleanup(func() { c.Close() })
		all = append(all, c)
	}
	return func() {
		for _, c := range all {
			c.Close()
		}
	}
}

// wantAuto makes a device with Auto, which must have an address and a port.
func (r *linkRig) wantAuto(want string) {
	r.t.Helper()
	d, err := soft.NewViaSocket(soft.Options{Auto: true})
	r.ok(err)
	r.t.Cleanup(func() { d.Close() })
	if got := d.Network().Local; got != netip.MustParseAddrPort(want) {
		r.t.Errorf("the device is at %s, want %s", got, want)
	}
}

// TestAutoPort: where port 4791 is taken on all addresses, a device with Auto has the other port, unless the
// program asks for 4791. If both are taken, or an address is given, the error says by whom and what to do.
func TestAutoPort(t *testing.T) {
	r := newLinkRig(t)
	release := r.holdPort(4791)
	r.wantAuto("127.0.0.1:14791")
	r.wantAuto("127.0.0.2:14791")
	refused := func(o soft.Options, words ...string) {
		t.Helper()
		d, err := soft.NewViaSocket(o)
		if err == nil {
			d.Close()
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("%s: %v, want EADDRINUSE", o, err)
			return
		}
		for _, w := range append(words, "the port is taken by this process") {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: there is no %q in: %v", o, w, err)
			}
		}
	}
	refused(soft.Options{Auto: true, Port: 4791}, "Port is 4791")
	refused(soft.Options{Addr: netip.MustParseAddr("127.0.0.7")}, "Port is 4791", "such as 127.0.0.7:14791, and auto chooses")
	r.ok(netlink.AddrAdd(r.link, r.addr("10.4.4.1/24")))
	refused(soft.Options{Addr: netip.MustParseAddr("10.4.4.1")}, "such as 10.4.4.1:14791: udp")
	r.holdPort(14792)
	refused(soft.Options{Addr: netip.MustParseAddr("127.0.0.7"), Port: 14792}, "such as 127.0.0.7:14791")
	release()
	r.wantAuto("127.0.0.3:4791") // the process has two other addresses
}
