package soft

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
)

// addresses are the addresses of the devices of this process.
var addresses struct {
	mu  sync.Mutex
	all map[netip.Addr]bool // guarded by mu
}

// takePlace gives the device its address, the network interface of the address, the MTU, and a socket
// if other processes are to reach it.
func (d *Device) takePlace(o *Options) error {
	if o.Auto {
		return d.takeFree(o)
	}
	if err := d.takeAddr(o.Addr); err != nil {
		return err
	}
	var err error
	if d.link, err = findNetdev(d.addr); err == nil {
		d.mtu, err = o.activeMTU(&d.link)
		d.most = cmp.Or(o.MTU, mtus[len(mtus)-1])
	}
	if err == nil && o.Addr.IsValid() {
		err = d.connect(o)
	}
	if err != nil {
		d.giveAddr()
	}
	return err
}

// firstAddr is the first address that a device gets by itself.
var firstAddr = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// mostAuto is how many addresses takeFree tries.
const mostAuto = 1024

// takeFree gives the device the first loopback address on which no process uses the port. Without
// another port in the options, the port is 4791, or AutoPort if no address has that free. If there
// is none, the error is about the last address.
func (d *Device) takeFree(o *Options) error {
	ports := []uint16{o.Port}
	if o.Port == 0 {
		ports = []uint16{defaultPort, AutoPort}
	}
	var addr netip.Addr
	for _, o.Port = range ports {
		addr = firstAddr
		for range mostAuto {
			// The error of connect takes much longer, since it says which process uses the port.
			if portFree(netip.AddrPortFrom(addr, o.Port)) {
				err := d.takePlace(&Options{Addr: addr, Port: o.Port, MTU: o.MTU, ViaSocket: o.ViaSocket})
				if !errors.Is(err, syscall.EADDRINUSE) {
					return err
				}
			}
			addr = addr.Next()
		}
	}
	o.Port = ports[0]
	return d.takePlace(&Options{Addr: addr, Port: o.Port, MTU: o.MTU, ViaSocket: o.ViaSocket})
}

// portFree reports whether no process uses a UDP port of an address.
func portFree(at netip.AddrPort) bool {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return !errors.Is(err, syscall.EADDRINUSE)
	}
	c.Close()
	return true
}

// connect gives the device a socket.
func (d *Device) connect(o *Options) (err error) {
	d.network, err = openNetwork(netip.AddrPortFrom(d.addr, o.Port), d.link.index, o.ViaSocket)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return &OptionError{Field: "Port", Value: o.Port, Allowed: allowedPort(d.addr, o.Port), Err: err}
	case err != nil:
		return fmt.Errorf("soft: %w", err)
	}
	return nil
}

// allowedPort describes the ports that a device with an address can have if one is taken.
func allowedPort(addr netip.Addr, taken uint16) string {
	other := uint16(AutoPort)
	if taken == other {
		other++
	}
	s := fmt.Sprintf("a UDP port that is free on %s; the device and its peers can all have another one, such as %s", addr, netip.AddrPortFrom(addr, other))
	if addr.IsLoopback() {
		s += ", and auto chooses an address and a port"
	}
	return s
}

// takeAddr gives the device an address, or the first loopback address that no device of the process
// has.
func (d *Device) takeAddr(addr netip.Addr) error {
	addresses.mu.Lock()
	defer addresses.mu.Unlock()
	if addresses.all == nil {
		addresses.all = map[netip.Addr]bool{}
	}
	if !addr.IsValid() {
		addr = firstAddr
		for addresses.all[addr] {
			addr = addr.Next()
		}
	}
	if addresses.all[addr] {
		return &OptionError{Field: "Addr", Value: addr, Allowed: "an address that no other device of the process has", Err: syscall.EADDRINUSE}
	}
	addresses.all[addr] = true
	d.addr = addr
	return nil
}

// giveAddr frees the address.
func (d *Device) giveAddr() {
	addresses.mu.Lock()
	defer addresses.mu.Unlock()
	delete(addresses.all, d.addr)
}
