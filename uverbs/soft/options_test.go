package soft

import (
	"errors"
	"io/fs"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/uverbs/internal/inproc"
)

// TestRefusedOptions: the error names the field, its value and what is allowed.
func TestRefusedOptions(t *testing.T) {
	for _, c := range []struct {
		o     Options
		field string
		text  string
		err   error
	}{
		{Options{Name: "soft 0"}, "Name", `Name is "soft 0", must be up to 63 printable bytes`, nil},
		{Options{Name: "a/b"}, "Name", `without a blank, /, %`, nil},
		{Options{Name: "a%d"}, "Name", "%", nil},
		{Options{Name: strings.Repeat("x", 64)}, "Name", "up to 63", nil},
		{Options{Name: "\xff"}, "Name", "printable", nil},
		{Options{MTU: 1500}, "MTU", "MTU is 1500, must be 256, 512, 1024, 2048 or 4096", nil},
		{Options{MTU: -1}, "MTU", "MTU is -1", nil},
		{Options{Addr: netip.MustParseAddr("192.0.2.1")}, "Addr", "Addr is 192.0.2.1, must be an address of this host", syscall.EADDRNOTAVAIL},
		{Options{Addr: netip.MustParseAddr("0.0.0.0")}, "Addr", "not unspecified", nil},
		{Options{Addr: netip.MustParseAddr("224.0.0.1")}, "Addr", "multicast", nil},
		{Options{Addr: netip.MustParseAddr("255.255.255.255")}, "Addr", "broadcast", nil},
		{Options{Addr: netip.MustParseAddr("fe80::1")}, "Addr", "with a zone", nil},
		{Options{Limits: Limits{QPs: -1}}, "Limits.QPs", "Limits.QPs is -1, must be 1 to 1048560, or 0 for 1048560", nil},
		{Options{Limits: Limits{AHs: 1 << 15}}, "Limits.AHs", "1 to 32767", nil},
	} {
		d, err := New(c.o)
		if err == nil {
			d.Close()
			t.Errorf("%+v is allowed", c.o)
			continue
		}
		var e *OptionError
		if !errors.As(err, &e) || e.Field != c.field || !strings.Contains(err.Error(), c.text) || c.err != nil && !errors.Is(err, c.err) {
			t.Errorf("%+v: %v, want field %s and %q", c.o, err, c.field, c.text)
		}
	}
	if all := inproc.All(); len(all) != 0 {
		t.Errorf("%d devices are registered", len(all))
	}
	if len(addresses.all) != 0 {
		t.Errorf("addresses %v are taken", addresses.all)
	}
}

// TestTaken: two devices have neither a name nor an address in common, and a closed one gives back
// both.
func TestTaken(t *testing.T) {
	a := newDevice(t, Options{})
	b := newDevice(t, Options{})
	if a.Name() != "soft0" || b.Name() != "soft1" || a.Addr() == b.Addr() || !a.Addr().IsLoopback() {
		t.Errorf("devices %s at %s and %s at %s", a.Name(), a.Addr(), b.Name(), b.Addr())
	}
	var e *OptionError
	if _, err := New(Options{Name: "soft1"}); !errors.As(err, &e) || e.Field != "Name" || !errors.Is(err, fs.ErrExist) {
		t.Errorf("the name twice: %v", err)
	}
	if _, err := New(Options{Addr: a.Addr()}); !errors.As(err, &e) || e.Field != "Addr" || !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("the address twice: %v", err)
	}
	a.Close()
	if c := newDevice(t, Options{Name: "soft0", Addr: a.Addr()}); c.Name() != "soft0" || c.Addr() != a.Addr() {
		t.Errorf("device %s at %s", c.Name(), c.Addr())
	}
}

// TestSeed: the same seed gives the same numbers.
func TestSeed(t *testing.T) {
	guid := func(seed uint64) uint64 {
		d := newDevice(t, Options{Seed: seed})
		defer d.Close()
		return d.guid
	}
	if a, b := guid(7), guid(7); a != b {
		t.Errorf("GUIDs %#x and %#x", a, b)
	}
	if a, b := guid(7), guid(8); a == b {
		t.Errorf("two seeds give GUID %#x", a)
	}
	if a, b := guid(0), guid(0); a == b {
		t.Errorf("without a seed GUID %#x comes twice", a)
	}
}

// TestMTU: by default the MTU fits the network interface.
func TestMTU(t *testing.T) {
	for link, want := range map[int]int{65536: 4096, 9000: 4096, 4176: 4096, 4175: 2048, 1500: 1024, 300: 256, 100: 256} {
		if got, err := new(Options).activeMTU(&netdev{mtu: link}); got != want || err != nil {
			t.Errorf("MTU of the interface %d: %d, %v, want %d", link, got, err, want)
		}
	}
	own := netip.MustParseAddr("192.0.2.1")
	if _, err := (&Options{Addr: own, MTU: 2048}).activeMTU(&netdev{name: "eth0", mtu: 1500}); err == nil || !strings.Contains(err.Error(), "at most 1024, because network interface eth0 has an MTU of 1500") {
		t.Errorf("2048 on an interface of 1500: %v", err)
	}
	for link, want := range map[int]string{335: "192.0.2.1, must be an address of a network interface with an MTU of at least 336 bytes; eth0 has 335", 336: ""} {
		if _, err := (&Options{Addr: own}).activeMTU(&netdev{name: "eth0", mtu: link}); (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("an address on an interface of %d: %v", link, err)
		}
	}
	if got, err := (&Options{MTU: 2048}).activeMTU(&netdev{mtu: 1500}); got != 2048 || err != nil {
		t.Errorf("2048 that stays in the process: %d, %v", got, err)
	}
}

// TestListed: package uverbs finds in the registry what the commands answer.
func TestListed(t *testing.T) {
	d := newDevice(t, Options{Name: "listed", Auto: true})
	dev := inproc.ByName("listed")
	if dev == nil {
		t.Fatal("the device is not registered")
	}
	info := dev.Info()
	if uint64(info.NodeGUID) != d.guid || info.DriverID != 14 || info.ABI != 2 || info.Linux != [2]int{7, 2} || info.Ports != 1 || info.Netdev == "" {
		t.Errorf("info %+v", info)
	}
	gids, addrs := dev.GIDs(1), dev.Addrs()
	if len(gids) != 3 || len(addrs) != 3 || dev.GIDs(2) != nil || dev.PKeys(2) != nil || dev.Counters(2) != nil {
		t.Fatalf("GIDs %v, addresses %v", gids, addrs)
	}
	for i, g := range gids {
		if g.Index != i || g.GID != d.table[i].gid() || addrs[i].WithZone("").As16() != g.GID {
			t.Errorf("GID %+v of address %s", g, addrs[i])
		}
	}
	if addrs[0].Zone() != info.Netdev || addrs[1] != d.Addr() {
		t.Errorf("addresses %v", addrs)
	}
	if keys := dev.PKeys(1); len(keys) != 1 || keys[0] != 0xffff {
		t.Errorf("partition keys %x", keys)
	}
	names := map[string]bool{}
	for _, c := range dev.Counters(1) {
		if names[c.Name] {
			t.Errorf("counter %s comes twice", c.Name)
		}
		names[c.Name] = true
	}
	if !names["sent_pkts"] || !names["udp_rx_packets"] {
		t.Errorf("counters %v", names)
	}
}
