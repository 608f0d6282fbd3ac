package uverbs

import (
	"errors"
	"io/fs"
	"net/netip"
	"strings"
	"testing"
)

// TestOpenNetdevRefused: arguments for which no device is looked for, and names that this host does not
// have.
func TestOpenNetdevRefused(t *testing.T) {
	for _, addr := range []netip.Addr{{}, netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if _, err := OpenAddr(addr); err == nil {
			t.Errorf("OpenAddr(%s): no error", addr)
		} else if arg, ok := errors.AsType[*ArgError](err); !ok || arg.Field != "addr" {
			t.Errorf("OpenAddr(%s): %v", addr, err)
		}
	}
	if _, err := OpenNetdev(""); err == nil {
		t.Error(`OpenNetdev(""): no error`)
	} else if arg, ok := errors.AsType[*ArgError](err); !ok || arg.Field != "name" {
		t.Errorf(`OpenNetdev(""): %v`, err)
	}
	_, netdev := OpenNetdev("goverbs-none")
	_, addr := OpenAddr(netip.MustParseAddr("192.0.2.1")) // of TEST-NET-1
	for want, err := range map[string]error{"goverbs-none": netdev, "192.0.2.1": addr} {
		if d, ok := errors.AsType[*DeviceError](err); !ok || !errors.Is(d, fs.ErrNotExist) || !strings.Contains(d.Error(), want) {
			t.Errorf("%v, want a DeviceError about %s", err, want)
		}
	}
}
