package perf

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs"
)

// addrsOf returns the addresses of a device's network interfaces; what cannot be asked for is left out.
func addrsOf(i uverbs.DeviceInfo) (all []netip.Addr) {
	devs, err := netlinkrdma.Devices()
	at := slices.IndexFunc(devs, func(d netlinkrdma.Device) bool { return d.Index == i.Index })
	if err != nil || at < 0 {
		return nil
	}
	ports, err := netlinkrdma.Ports(devs[at])
	if err != nil {
		return nil
	}
	for _, p := range ports {
		iface, err := net.InterfaceByIndex(p.NetdevIndex)
		if err != nil {
			continue
		}
		addrs, err := iface.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok {
				if ip, ok := netip.AddrFromSlice(n.IP); ok {
					all = append(all, ip.Unmap())
				}
			}
		}
	}
	return all
}

// sourceIWARP returns an address of the device's network interface, of the same family and scope as the peer's.
func (e *End) sourceIWARP(remote netip.Addr) (netip.AddrPort, error) {
	remote = remote.Unmap()
	for _, a := range addrsOf(e.Dev.Info()) {
		if a.Is4() == remote.Is4() && a.IsLinkLocalUnicast() == remote.IsLinkLocalUnicast() {
			return netip.AddrPortFrom(a.WithZone(remote.Zone()), 0), nil
		}
	}
	return netip.AddrPort{}, noSource(e.Dev.Name(), remote)
}

// noSource is the error if the network interface of a device has no address of the kind that a peer needs.
func noSource(dev string, remote netip.Addr) error {
	kind := "IPv6"
	if remote.Is4() {
		kind = "IPv4"
	}
	if remote.IsLinkLocalUnicast() {
		kind += " link-local"
	}
	return fmt.Errorf("the network interface of %s has no %s address, which peer %s needs", dev, kind, remote)
}
