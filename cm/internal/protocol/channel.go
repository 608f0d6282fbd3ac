package protocol

import (
	"context"
	"net"
	"net/netip"
	"sync"

	"github.com/goverbs/goverbs/cm/rdmacm"
)

// Channel is an event channel that a listener and its connections share.
type Channel struct {
	*rdmacm.Channel // Channel is the event channel.

	mu    sync.Mutex
	users int // guarded by mu
}

// OpenChannel opens a channel with one user.
func OpenChannel(local, remote netip.Addr) (*Channel, error) {
	c, err := rdmacm.OpenChannel(rdmacm.ChannelOptions{Local: local, Remote: remote})
	if err != nil {
		return nil, err
	}
	return &Channel{Channel: c, users: 1}, nil
}

// Use adds a user.
func (c *Channel) Use() *Channel {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.users++
	return c
}

// Release closes the channel after its last user.
func (c *Channel) Release() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.users--; c.users > 0 {
		return nil
	}
	return c.Close()
}

// Lookup returns the addresses of a "host:port". An empty host is the unspecified address.
func Lookup(ctx context.Context, address string) ([]netip.AddrPort, error) {
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return nil, err
	}
	if host == "" {
		return []netip.AddrPort{netip.AddrPortFrom(netip.IPv6Unspecified(), uint16(port))}, nil
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.AddrPort{netip.AddrPortFrom(ip, uint16(port))}, nil
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	all := make([]netip.AddrPort, len(ips))
	for i, ip := range ips {
		all[i] = netip.AddrPortFrom(ip.Unmap(), uint16(port))
	}
	return all, err
}
