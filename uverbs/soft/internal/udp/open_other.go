//go:build !linux

package udp

import "net/netip"

// openTransport opens the only transport of this system.
func openTransport(local netip.AddrPort, o *Options, c *counters, p *peers) (transport, error) {
	return openPlain(local, o, c, p)
}

// portHolder returns "": the process that uses a port is not known on this system.
func portHolder(netip.AddrPort) string { return "" }
