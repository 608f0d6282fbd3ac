package udp

import (
	"net/netip"
	"testing"
)

// TestOnLink: a packet to a link-local address goes out by the interface of the socket, unless the address
// names another one.
func TestOnLink(t *testing.T) {
	for _, c := range []struct{ to, bound, want string }{
		{"[fe80::2]:4791", "[fe80::1%eth0]:5000", "[fe80::2%eth0]:4791"},
		{"[ff02::2]:4791", "[fe80::1%eth0]:5000", "[ff02::2%eth0]:4791"},
		{"[fe80::2%eth1]:4791", "[fe80::1%eth0]:5000", "[fe80::2%eth1]:4791"},
		{"[fe80::2]:4791", "[fd00::1]:5000", "[fe80::2]:4791"},
		{"[fd00::2]:4791", "[fe80::1%eth0]:5000", "[fd00::2]:4791"},
		{"[ff0e::2]:4791", "[fe80::1%eth0]:5000", "[ff0e::2]:4791"},
		{"169.254.0.2:4791", "169.254.0.1:5000", "169.254.0.2:4791"},
	} {
		if got := onLink(netip.MustParseAddrPort(c.to), netip.MustParseAddrPort(c.bound)); got.String() != c.want {
			t.Errorf("%s from %s: %s, want %s", c.to, c.bound, got, c.want)
		}
	}
}
