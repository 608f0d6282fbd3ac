package engine

import (
	"net/netip"

	"github.com/goverbs/goverbs/uverbs/soft/internal/fault"
	"github.com/goverbs/goverbs/uverbs/soft/internal/udp"
)

// A Filter stands between a device and the other devices of its [Host], and between two queue pairs of
// the device. It may drop, delay, repeat and record packets. Packets to and from the network do not
// pass through it. Its methods are called by several goroutines at the same time.
type Filter interface {
	// Send takes packets that the device sends to devices of the host and to groups, without ICRCs. It
	// passes them on with [Device.Forward], at once or later. It keeps nothing of the batch.
	Send(from netip.Addr, b *udp.Batch)

	// Receive takes a packet for the device from a device of the host. It passes it on with
	// [Device.Deliver], at once or later. It keeps nothing of the packet.
	Receive(m *Meta, b []byte)
}

// SetFilter makes a Filter that of the device. Without one (nil), packets to devices of the host are
// delivered directly, which is much faster.
func (d *Device) SetFilter(f Filter) {
	if f == nil {
		d.filter.Store(nil)
		return
	}
	d.filter.Store(&f)
}

// SetPlan replaces the faults of queue pairs.
func (d *Device) SetPlan(p fault.Plan) {
	if len(p) == 0 {
		d.plan.Store(nil)
		return
	}
	d.plan.Store(&p)
}

// Forward delivers packets from a local address of the device to the devices of the host that have the
// addresses, or whose queue pairs are in the groups. Packets that are to arrive damaged are lost.
func (d *Device) Forward(from netip.Addr, b *udp.Batch) {
	w := workers.get()
	for i := range b.Len() {
		if _, damaged := b.Flipped(i); damaged {
			continue
		}
		w.makeRoom()
		to, data := b.Packet(i)
		w.source = source{src: from, dst: to.Addr(), ip: b.IP(i), size: len(data)}
		if to.Addr().IsMulticast() {
			w.deliverToGroup(d.config.Host, data)
		} else if other := d.config.Host.find(to.Addr()); other != nil {
			other.arrive(w, data)
		}
	}
	w.flush()
	w.run(d)
}

// Deliver handles a packet from another device of the host.
func (d *Device) Deliver(m *Meta, b []byte) {
	w := workers.get()
	w.source = source{src: m.From, dst: m.To, ip: m.IP, size: len(b)}
	d.receive(w, &w.source, b)
	w.flush()
	w.run(d)
}

// sendThrough gives a packet to the filter of its sender.
func (w *worker) sendThrough(f Filter, way *path, b []byte) {
	w.filtered.Reset()
	copy(w.filtered.Reserve(netip.AddrPortFrom(way.dst, 0), len(b)), b)
	w.filtered.SetIP(way.ip)
	f.Send(way.src, &w.filtered)
}

// arrive gives the packet of w.source to its receiver, or to the filter of that.
func (d *Device) arrive(w *worker, b []byte) {
	f := d.filter.Load()
	if f == nil {
		d.receive(w, &w.source, b)
		return
	}
	s := &w.source
	(*f).Receive(&Meta{From: s.src, To: s.dst, IP: s.ip}, b)
}

// deliverToGroup gives the packet of w.source to all devices of a host. It is a datagram, so it causes no
// response.
func (w *worker) deliverToGroup(h *Host, b []byte) {
	for _, d := range h.devicesNow() {
		d.arrive(w, b)
	}
}
