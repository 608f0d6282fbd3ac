package places

import (
	"net/netip"
	"strings"
	"testing"
)

// TestPlaces: an address has half of the places, and all addresses have all of them. A place that is left can be
// taken again.
func TestPlaces(t *testing.T) {
	p := &Places{Most: 5}
	for _, c := range []struct {
		addr string
		want string // of the error; empty if there is a place
	}{
		{"10.0.0.1", ""}, {"10.0.0.1", ""}, {"::ffff:10.0.0.1", ""},
		{"10.0.0.1", "3 from its address"}, {"::ffff:10.0.0.1", "3 from its address"},
		{"-10.0.0.1", ""},
		{"2001:db8::1", ""}, {"2001:db8::2", ""}, {"2001:db8:0:0:1::3", ""},
		{"10.0.0.1", "as 5 are being served"}, {"10.0.0.2", "as 5 are being served"},
		{"-2001:db8::1", ""}, {"-10.0.0.1", ""},
		{"2001:db8::3", ""}, {"2001:db8::4", "3 from its address"},
		{"-10.0.0.1", ""},
		{"fe80::1%eth0", ""}, {"fe80::2%eth0", ""},
	} {
		addr, leaves := strings.CutPrefix(c.addr, "-")
		if leaves {
			p.Leave(netip.MustParseAddr(addr))
			continue
		}
		if err := p.Take(netip.MustParseAddr(addr)); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", addr, err, c.want)
		}
	}
	for range 3 {
		p.Leave(netip.MustParseAddr("2001:db8::9"))
	}
	p.Leave(netip.MustParseAddr("fe80::1"))
	p.Leave(netip.MustParseAddr("fe80::2"))
	if p.taken != 0 || len(p.from) != 0 {
		t.Errorf("%d places are taken, by %v", p.taken, p.from)
	}
	one := &Places{Most: 1}
	if err := one.Take(netip.Addr{}); err != nil {
		t.Error(err)
	}
	if one.Leave(netip.Addr{}); len(one.from) != 0 {
		t.Errorf("nobody has %v", one.from)
	}
}
