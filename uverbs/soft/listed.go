package soft

import (
	"net/netip"
	"slices"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/inproc"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// listed is a device as package uverbs finds it in the registry.
type listed struct{ d *Device }

// rxeABI is the version of the driver's private data (RXE_UVERBS_ABI_VERSION).
const rxeABI = 2

// Info implements [inproc.Device].
func (l listed) Info() inproc.Info {
	d := l.d
	return inproc.Info{
		Name: d.name, Index: d.index, NodeGUID: ib.GUID(d.guid),
		DriverID: abi.RDMA_DRIVER_RXE, ABI: rxeABI, Linux: [2]int{7, 2},
		Protocol: "roce", Ports: 1,
		Netdev: d.link.name, NetdevIndex: d.link.index, NoSocket: d.network == nil,
	}
}

// Open implements [inproc.Device].
func (l listed) Open() (kernel.Device, error) { return l.d.open() }

// open returns a new context.
func (d *Device) open() (*context, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errClosed
	}
	c := &context{dev: d}
	c.files.net = d.network != nil
	d.contexts[c] = true
	return c, nil
}

// Addrs implements [inproc.Device]. The link-local address has the zone of the network interface.
func (l listed) Addrs() []netip.Addr {
	var all []netip.Addr
	for _, g := range l.d.gids() {
		a := g.addr
		if a.Is6() && a.IsLinkLocalUnicast() {
			a = a.WithZone(l.d.link.name)
		}
		all = append(all, a)
	}
	return all
}

// GIDs implements [inproc.Device].
func (l listed) GIDs(port uint8) []inproc.GIDEntry {
	if port != 1 {
		return nil
	}
	var all []inproc.GIDEntry
	for _, g := range l.d.gids() {
		all = append(all, inproc.GIDEntry{Index: g.index, GID: g.gid(), Type: abi.IB_UVERBS_GID_TYPE_ROCE_V2, Netdev: g.netdev})
	}
	return all
}

// PKeys implements [inproc.Device].
func (l listed) PKeys(port uint8) []uint16 {
	if port != 1 {
		return nil
	}
	return []uint16{defaultPKey}
}

// defaultPKey is the only partition key.
const defaultPKey = 0xffff

// Counters implements [inproc.Device]. The counters of the socket follow the counters of the
// engine, which include those of rxe.
func (l listed) Counters(port uint8) []inproc.Counter {
	if port != 1 {
		return nil
	}
	var all []inproc.Counter
	for _, c := range l.d.engine.Counters() {
		all = append(all, inproc.Counter{Name: c.Name, Value: c.Value})
	}
	if n := l.d.network; n != nil {
		c := n.socket.Counters()
		i := slices.IndexFunc(all, func(c inproc.Counter) bool { return c.Name == "send_err" })
		all[i].Value = c.Refused()
		for name, value := range c.All() {
			all = append(all, inproc.Counter{Name: name, Value: value})
		}
	}
	return all
}
