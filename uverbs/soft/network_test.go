package soft

import (
	"net/netip"
	"syscall"
	"testing"
)

// TestResolve: only the address of the socket reaches other processes. The errno of the system's
// route lookup is returned.
func TestResolve(t *testing.T) {
	d := newDevice(t, Options{Auto: true})
	ll, own, ula := d.table[0].addr, d.table[1].addr, d.table[2].addr
	for _, c := range []struct {
		from netip.Addr
		to   string
		want syscall.Errno
	}{
		{own, "127.0.0.77", 0},
		{own, "192.0.2.1", syscall.ENETUNREACH}, // from a loopback address
		{own, "0.0.0.0", syscall.ENETUNREACH},
		{own, "239.0.0.1", 0},
		{ula, "fd00::1", syscall.ENETUNREACH},
		{ula, "ff0e::1", 0},
		{ll, "fe80::1", syscall.ENETUNREACH},
	} {
		to := netip.MustParseAddr(c.to)
		at, errno := d.network.Resolve(c.from, to)
		if errno != c.want || errno == 0 && at != netip.AddrPortFrom(to, defaultPort) {
			t.Errorf("from %s to %s: %s, %v, want %v", c.from, to, at, errno, c.want)
		}
	}
	if errno := lookUpRoute(netip.MustParseAddr("192.0.2.7"), netip.MustParseAddrPort("192.0.2.1:4791")); errno != syscall.EADDRNOTAVAIL {
		t.Errorf("from an address of another host: %v", errno)
	}
}
