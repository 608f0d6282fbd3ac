package soft

import "slices"

// linkState is the state of the network interface of a device, as far as it concerns the device.
type linkState struct {
	down      bool // the port is down
	disabled  bool // the administrator has set the interface down
	noAddress bool // the interface does not have the address of the device
	mtu       int  // of the interface, in bytes
}

// Asynchronous events of a port (enum ib_event_type).
const (
	eventPortActive = 9
	eventPortErr    = 10
	eventGIDChange  = 18
)

// setLink takes over the state of the network interface, and tells all contexts what has changed, with the
// events of the kernel (handle_port_event and the GID cache).
func (d *Device) setLink(now linkState) {
	was := d.state.Load()
	if was == nil {
		was = &linkState{}
	}
	d.state.Store(&now)
	d.engine.SetMTU(min(portMTU(now.mtu), d.most)) // there is no event for it (rxe_notify)
	var events []uint32
	switch {
	case now.down && !was.down:
		d.engine.CountLinkDown()
		events = append(events, eventPortErr)
	case !now.down && was.down:
		events = append(events, eventPortActive)
	}
	if now.noAddress != was.noAddress {
		d.engine.RefreshGIDs()
		events = append(events, eventGIDChange)
	}
	if len(events) == 0 {
		return
	}
	for _, c := range d.opened() {
		for _, typ := range events {
			c.files.async(typ, 1) // the number of the port
		}
	}
}

// port returns the state of the port and its physical state (rxe_query_port).
func (s *linkState) port() (state, phys uint8) {
	switch {
	case s == nil || !s.down:
		return portActive, physLinkUp
	case s.disabled:
		return portDown, physDisabled
	}
	return portDown, physPolling
}

// gids returns the entries of the GID table. Without the address on the network interface, its entry is
// not in use.
func (d *Device) gids() []gidEntry {
	if s := d.state.Load(); s == nil || !s.noAddress {
		return d.table
	}
	own := d.addr.WithZone("")
	return slices.DeleteFunc(slices.Clone(d.table), func(g gidEntry) bool { return g.addr == own })
}
