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

// TestOpenNetdev opens each device by its network interface and by each address of that. Both software
// devices are on the loopback interface, and each has addresses of its own.
func TestOpenNetdev(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		testenv.NeedsRoCE(t, "Ethernet")
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
			if i == 0 || !rig.Soft {
				dev, err := uverbs.OpenNetdev(name)
				opened(name, dev, err)
			}
			link, err := net.InterfaceByName(name)
			must(t, err)
			for _, addr := range addrsOf(t, rig.Devices[i], link) {
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

// addrsOf returns the addresses of a device: those of its network interface, or of the GIDs of a
// software device.
func addrsOf(t *testing.T, device string, link *net.Interface) (all []netip.Addr) {
	t.Helper()
	if rig.Soft {
		table, err := openDevice(t, device).GIDTable(1)
		must(t, err)
		for _, e := range table {
			all = append(all, e.GID.Addr())
		}
		return all
	}
	addrs, err := link.Addrs()
	must(t, err)
	for _, a := range addrs {
		all = append(all, netip.MustParsePrefix(a.String()).Addr())
	}
	return all
}

// TestOpenNetdevNone: the error for an interface or an address without a device names those that have one.
func TestOpenNetdevNone(t *testing.T) {
	testenv.NeedsKernel(t, "network interfaces without a device")
	eachPath(t, func(t *testing.T) {
		testenv.NeedsRoCE(t, "Ethernet")
		_, byName := uverbs.OpenNetdev("lo")
		_, byAddr := uverbs.OpenAddr(netip.MustParseAddr("127.0.0.1"))
		for has, err := range map[string]error{rig.Netdevs[0]: byName, rig.Devices[0] + " has": byAddr, rig.Addrs[0]: byAddr} {
			if _, ok := errors.AsType[*uverbs.DeviceError](err); !ok {
				t.Fatalf("%v, want a DeviceError", err)
			}
			says(t, err, has, rig.Devices[0])
		}
	})
}
