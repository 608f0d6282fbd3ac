package limits

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"testing"
)

// argErr is the error of the tests.
func argErr(field string, given any, allowed string) error {
	return fmt.Errorf("%s: %v, allowed are %s", field, given, allowed)
}

// TestDefaults: every limit has a default, -1 is no limit where there may be none, and what is not valid is named.
func TestDefaults(t *testing.T) {
	l, err := Options{PerConn: 1 << 20}.Limits(argErr)
	if most := int(defaultMemory() >> 20); err != nil || l != (Limits{backlog, backlog / 2, min(maxConns, most), share}) {
		t.Errorf("defaults: %+v, %v", l, err)
	}
	l, err = Options{MaxConns: -1, MaxMemory: -1, AddrShare: -1, PerConn: 1}.Limits(argErr)
	if err != nil || l.Conns != math.MaxInt || l.AddrShare != 100 {
		t.Errorf("no limits: %+v, %v", l, err)
	}
	if l, err = (Options{PerConn: math.MaxInt64}).Limits(argErr); err != nil || l.Conns != 1 {
		t.Errorf("large connections: %+v, %v", l, err)
	}
	for want, o := range map[string]Options{
		"Backlog": {Backlog: -1}, "HalfOpen": {HalfOpen: mostBacklog + 1}, "AddrShare": {AddrShare: 101}, "MaxMemory": {MaxMemory: 9},
	} {
		o.PerConn = 10
		if _, err := o.Limits(argErr); err == nil || err.Error()[:len(want)] != want {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestShare: an address cannot take all places, whichever limit it reaches, and others still get one.
func TestShare(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	for name, c := range map[string]struct {
		l     Limits
		each  Count
		conns bool
	}{
		"Conns":    {Limits{1000, 1000, 8, 75}, Count{Conns: 1}, true},
		"Backlog":  {Limits{8, 1000, 1000, 75}, Count{Conns: 1, Waiting: 1}, false},
		"HalfOpen": {Limits{1000, 8, 1000, 75}, Count{Conns: 1, HalfOpen: 1}, false},
	} {
		var u Usage
		take := func(key netip.Addr) (n int, full Full) {
			for {
				full, conns := c.l.Full(&u, key)
				if full != Room {
					if conns != c.conns {
						t.Errorf("%s: conns is %t", name, conns)
					}
					return n, full
				}
				u.Add(key, c.each)
				n++
			}
		}
		if n, full := take(a); n != 6 || full != OfAddr {
			t.Errorf("%s: an address gets %d places of 8, then %d", name, n, full)
		}
		if n, full := take(b); n != 2 || full != Total {
			t.Errorf("%s: another one gets %d places, then %d", name, n, full)
		}
		for key, n := range map[netip.Addr]int{a: 6, b: 2} {
			for range n {
				u.Add(key, Count{-c.each.Waiting, -c.each.HalfOpen, -c.each.Conns})
			}
		}
		if u.Count != (Count{}) || len(u.addrs) != 0 {
			t.Errorf("%s: %+v remains", name, u)
		}
	}
	small := Limits{1, 1, 1, 75}
	if full, _ := small.Full(&Usage{}, a); full != Room {
		t.Error("the only place is for nobody")
	}
}

// TestKey: one host cannot count as many by its addresses.
func TestKey(t *testing.T) {
	for a, want := range map[string]string{"10.0.0.1": "10.0.0.1", "::ffff:10.0.0.1": "10.0.0.1", "2001:db8:1:2:3::4": "2001:db8:1:2::", "fe80::1%eth0": "fe80::1"} {
		if got := Key(netip.MustParseAddr(a)); got != netip.MustParseAddr(want) {
			t.Error(errors.New(a), got)
		}
	}
	if Key(netip.Addr{}).IsValid() {
		t.Error("an address that is not known has a key")
	}
}

// TestLargest: addresses that come after one that holds all places get as many as it keeps.
func TestLargest(t *testing.T) {
	const places = 12
	keys := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), Key(netip.MustParseAddr("fd00::3"))}
	one, less := Count{HalfOpen: 1}, Count{HalfOpen: -1}
	var u Usage
	if _, ok := u.Largest(keys[0]); ok {
		t.Error("an address has a place of those that are free")
	}
	for range places {
		u.Add(keys[0], one)
	}
	for _, k := range keys {
		for range 2 * places {
			from, ok := u.Largest(k)
			if !ok {
				break
			}
			u.Add(from, less)
			u.Add(k, one)
		}
	}
	for _, k := range keys {
		if n := u.addrs[k].HalfOpen; n != places/len(keys) {
			t.Errorf("%s has %d places", k, n)
		}
	}
}
