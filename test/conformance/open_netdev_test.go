package conformance

import (
	"errors"
	"net"
	"net/netip"
	"strconv"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// TestOpenNetdev opens each device by its network interface and by each address of that.
func TestOpenNetdev(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		testenv.NeedsEthernet(t)
		for i, name := range rig.Netdevs {
			opened := func(what string, dev *uverbs.Device, err error) {
				t.Helper()
				if err != nil || dev.Name() != rig.Devices[i] {
					t.Errorf("%s: %v, want %s", what, err, rig.Devices[i])
				}
				if err == nil {
					must(t, dev.Close())
				}
			}
			dev, err := uverbs.OpenNetdev(name)
			opened(name, dev, err)
			link, err := net.InterfaceByName(name)
			must(t, err)
			addrs, err := link.Addrs()
			must(t, err)
			for _, a := range addrs {
				addr := netip.MustParsePrefix(a.String()).Addr()
				zones := []string{""}
				if addr.IsLinkLocalUnicast() {
					zones = []string{name, strconv.Itoa(link.Index)}
				}
				for _, zone := range zones {
					dev, err := uverbs.OpenAddr(addr.WithZone(zone))
					opened(addr.String()+"%"+zone, dev, err)
				}
			}
		}
	})
}

// TestOpenNetdevNone: the error for an interface without a device names those that have one.
func TestOpenNetdevNone(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		testenv.NeedsEthernet(t)
		_, byName := uverbs.OpenNetdev("lo")
		_, byAddr := uverbs.OpenAddr(netip.MustParseAddr("127.0.0.1"))
		for _, err := range []error{byName, byAddr} {
			if _, ok := errors.AsType[*uverbs.DeviceError](err); !ok {
				t.Fatalf("%v, want a DeviceError", err)
			}
			says(t, err, rig.Netdevs[0], rig.Devices[0])
		}
	})
}
