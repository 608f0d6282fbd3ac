package peer

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
)

// Lookup returns the address of a host; without a host it is the unspecified address.
func Lookup(ctx context.Context, flag, host string) (netip.Addr, error) {
	if host == "" {
		return netip.IPv4Unspecified(), nil
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip, nil
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%s is %s: %w", flag, peertext.Quote(host), err)
	}
	return ips[0].Unmap(), nil
}
