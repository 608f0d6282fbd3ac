package ucm

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"syscall"

	"github.com/goverbs/goverbs/cm/internal/ibcm"
	"github.com/goverbs/goverbs/uverbs/soft/gsi"
)

// madSize is the size of a MAD in bytes.
const madSize = ibcm.MADSize

// device is a device and its communication manager.
type device struct {
	gsi.Port
	host *Host
	info gsi.Info
	cm   *ibcm.Manager // guarded by host.mu
}

// Add implements [gsi.Manager]. Listeners on all addresses listen on the device from now on.
func (h *Host) Add(p gsi.Port) {
	d := &device{Port: p, host: h, info: p.Info()}
	d.cm = ibcm.New(ibcm.Config{
		GUID: d.info.NodeGUID, AckDelay: d.info.AckDelay, Flush: d.info.Flush,
		Transport: d, Now: h.clock.Now, Rand: h.rand, Listening: d.listening, Request: d.request,
	})
	h.mu.Lock()
	defer h.unlock()
	h.devices = append(h.devices, d)
	h.count.Add(1)
}

// Remove implements [gsi.Manager]. IDs of the device get DEVICE_REMOVAL and cannot be used any more.
func (h *Host) Remove(p gsi.Port) {
	h.mu.Lock()
	defer h.unlock()
	i := slices.IndexFunc(h.devices, func(d *device) bool { return d.Port == p })
	if i < 0 {
		return
	}
	d := h.devices[i]
	for _, x := range byHandle(maps.Values(h.ids)) {
		if x.dev == d {
			x.deviceRemoved()
		}
	}
	h.devices = slices.Delete(h.devices, i, i+1)
	h.count.Add(-1)
}

// byHandle sorts IDs by handle, which is the order in which they were made.
func byHandle(ids iter.Seq[*id]) []*id {
	return slices.SortedFunc(ids, func(a, b *id) int { return cmp.Compare(a.handle, b.handle) })
}

// Receive implements [gsi.Manager]. It sends nothing itself, so the device may hold locks.
func (h *Host) Receive(p gsi.Port, src, dst netip.Addr, mad []byte) {
	h.mu.Lock()
	defer h.unlockReceived()
	for _, d := range h.devices {
		if d.Port == p {
			d.cm.Receive(src.Unmap().WithZone(""), dst.Unmap().WithZone(""), mad)
		}
	}
}

// maxOutbox is the largest number of MADs that wait for being sent. Whoever sends MADs faster than they are answered
// must not fill the memory. A MAD that is lost is sent again.
const maxOutbox = 16 << 10

// SendMAD implements ibcm.Transport.
func (d *device) SendMAD(src, dst netip.Addr, mad []byte) {
	if len(d.host.outbox) >= maxOutbox {
		return
	}
	d.host.outbox = append(d.host.outbox, outgoing{d.Port, src, dst, [madSize]byte(mad)})
}

// gid returns the entry of the GID table for an address. The index of a network interface other than
// 0 must match.
func (d *device) gid(addr netip.Addr, scope uint32) (gsi.GIDEntry, bool) {
	for _, g := range d.GIDs() {
		if g.Addr == addr && (scope == 0 || g.Interface == scope) {
			return g, true
		}
	}
	return gsi.GIDEntry{}, false
}

// deviceWith returns the device that has an address, and the entry of its GID table.
func (h *Host) deviceWith(addr netip.Addr, scope uint32) (*device, gsi.GIDEntry) {
	for _, d := range h.devices {
		if g, ok := d.gid(addr, scope); ok {
			return d, g
		}
	}
	return nil, gsi.GIDEntry{}
}

// Name returns the name of a device, or "" if there is none with the index.
func (h *Host) Name(index uint32) string {
	h.mu.Lock()
	defer h.unlock()
	for _, d := range h.devices {
		if d.info.Index == index {
			return d.info.Name
		}
	}
	return ""
}

// Addrs lists the addresses of a family that the devices have, in words, without the link-local ones.
func (h *Host) Addrs(is4 bool) (all []string) {
	h.mu.Lock()
	defer h.unlock()
	for _, d := range h.devices {
		for _, g := range d.GIDs() {
			if g.Addr.Is4() == is4 && !g.Addr.IsLinkLocalUnicast() {
				all = append(all, g.Addr.String()+" of "+d.info.Name)
			}
		}
	}
	return all
}

// HasDevices reports whether there are devices. It is fast.
func (h *Host) HasDevices() bool { return h.count.Load() > 0 }

// Len returns the number of IDs of all files.
func (h *Host) Len() int {
	h.mu.Lock()
	defer h.unlock()
	return len(h.ids)
}

// Serves reports whether a connection between two addresses is for a device of this Host. An address
// may be invalid or unspecified.
func (h *Host) Serves(local, remote netip.Addr) bool {
	local, remote = local.Unmap(), remote.Unmap()
	h.mu.Lock()
	defer h.unlock()
	if local.IsValid() && !local.IsUnspecified() {
		at := sockaddrOf(local, 0)
		d, _ := h.deviceWith(at.ip, at.zoneIndex())
		return d != nil
	}
	if !remote.IsValid() || remote.IsUnspecified() {
		return false
	}
	_, d, _, errno := h.route(sockaddr{}, sockaddrOf(remote, 0))
	return errno == 0 && d != nil
}

// route chooses the source address and the device for packets to dst. The source is src unless that
// is unspecified. The device is nil if no device has the source address.
func (h *Host) route(src, dst sockaddr) (netip.Addr, *device, gsi.GIDEntry, syscall.Errno) {
	peer, _ := h.deviceWith(dst.ip, dst.zoneIndex())
	if src.family != 0 && !h.isAny(src) {
		d, g := h.deviceWith(src.ip, src.zoneIndex())
		if d == nil || peer != nil {
			return src.ip, d, g, 0
		}
		_, errno := h.network.Source(src.zoned(), dst.zoned())
		return src.ip, d, g, errno
	}
	from, errno := h.network.Source(netip.Addr{}, dst.zoned())
	from = from.Unmap().WithZone("")
	if errno == 0 {
		if d, g := h.deviceWith(from, dst.zoneIndex()); d != nil {
			return from, d, g, 0
		}
	}
	if peer != nil { // as the kernel does for an address of its own
		g, _ := peer.gid(dst.ip, dst.zoneIndex())
		return dst.ip, peer, g, 0
	}
	if errno == 0 && dst.ip.IsLoopback() { // another process of this machine
		if d, g := h.loopbackDevice(dst.ip.Is4()); d != nil {
			return g.Addr, d, g, 0
		}
	}
	return from, nil, gsi.GIDEntry{}, errno
}

// loopbackDevice returns a device with a loopback address of a family, and the entry of its GID table.
func (h *Host) loopbackDevice(is4 bool) (*device, gsi.GIDEntry) {
	for _, d := range h.devices {
		for _, g := range d.GIDs() {
			if g.Addr.IsLoopback() && g.Addr.Is4() == is4 {
				return d, g
			}
		}
	}
	return nil, gsi.GIDEntry{}
}
