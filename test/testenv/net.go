package testenv

import (
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// IPv6 skips the test unless this machine has IPv6 on its loopback interface. The test fails instead if
// MustEnv lists IPv6.
func IPv6(tb testing.TB) {
	tb.Helper()
	c, err := net.ListenPacket("udp6", "[::1]:0")
	if err == nil {
		err = c.Close()
	}
	if err == nil {
		return
	}
	if slices.Contains(strings.Split(os.Getenv(MustEnv), ","), "IPv6") {
		tb.Fatalf("IPv6 is promised by %s: %v", MustEnv, err)
	}
	tb.Skipf("this machine has no IPv6: %v", err)
}

// NeedsOS skips a test of what only some operating systems have, as runtime.GOOS names them.
func NeedsOS(tb testing.TB, systems ...string) {
	tb.Helper()
	if !slices.Contains(systems, runtime.GOOS) {
		tb.Skipf("this test is for %s", strings.Join(systems, ", "))
	}
}

// LinkLocal returns the IPv6 link-local address, with its zone, of an interface that can do multicast,
// and skips the test if there is none. The test fails instead if MustEnv lists IPv6.
func LinkLocal(tb testing.TB) netip.Addr {
	tb.Helper()
	all, err := net.Interfaces()
	if err != nil {
		tb.Fatal(err)
	}
	for _, ifi := range all {
		if ifi.Flags&net.FlagUp == 0 || ifi.Flags&net.FlagMulticast == 0 {
			continue
		}
		addrs, err := ifi.Addrs()
		if err != nil {
			continue // it has just been removed
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is6() && p.Addr().IsLinkLocalUnicast() {
				return p.Addr().WithZone(ifi.Name)
			}
		}
	}
	if slices.Contains(strings.Split(os.Getenv(MustEnv), ","), "IPv6") {
		tb.Fatalf("IPv6 is promised by %s, but no interface has a link-local address", MustEnv)
	}
	tb.Skip("no interface has an IPv6 link-local address")
	return netip.Addr{}
}

// NeedsRights skips a test that needs rights which this process does not have, in words that say what it
// tried. err is the error of that.
func NeedsRights(tb testing.TB, what string, err error) {
	tb.Helper()
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
		tb.Skipf("%s: %v", what, err)
	}
	if err != nil {
		tb.Fatalf("%s: %v", what, err)
	}
}
