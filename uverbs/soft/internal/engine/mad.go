package engine

import (
	"net/netip"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// MADSize is the size of a management datagram in bytes.
const MADSize = 256

// receiveMAD gives a management datagram to its user.
func (d *Device) receiveMAD(a *arrival) {
	h := &a.header
	switch {
	case h.Opcode != wire.UD|wire.SendOnly || len(a.payload) != MADSize:
		d.stats.badMAD.Add(1)
	case h.PKey&0x7fff != wire.DefaultPKey&0x7fff:
		d.stats.badPKey.Add(1)
	case h.QKey != wire.GSIQKey:
		d.stats.badQKey.Add(1)
	case d.config.MAD != nil:
		d.config.MAD(MADAddr{Local: a.from.dst, Remote: a.from.src}, a.payload)
	}
}

// SendMAD sends a management datagram from QP 1 of this device to QP 1 of a peer. It is lost if nobody
// is there. mad has MADSize bytes.
func (d *Device) SendMAD(to MADAddr, mad []byte) syscall.Errno {
	to.Local, to.Remote = unmapped(to.Local), unmapped(to.Remote)
	way, errno := d.madPath(to)
	if errno != 0 {
		return errno
	}
	if len(mad) != MADSize {
		return syscall.EINVAL
	}
	h := wire.Header{
		Opcode: wire.UD | wire.SendOnly, MigReq: true, PKey: wire.DefaultPKey, DestQP: wire.GSIQP,
		QKey: wire.GSIQKey, SrcQP: wire.GSIQP, PSN: d.madPSN.Add(1) & wire.PSNMask,
	}
	d.FlushHeld() // a connection that the datagram ends may have received them
	w := workers.get()
	b := w.reserve(&w.requests, way, wire.PacketSize(h.Opcode, len(mad)))
	copy(b[h.Put(b):], mad)
	d.stats.sent(len(b))
	w.deliver()
	w.run(d)
	return 0
}

// madPath returns the path to an address.
func (d *Device) madPath(to MADAddr) (*path, syscall.Errno) {
	for _, e := range *d.gids.Load() {
		if e.Valid && addrOfGID(e.GID) == to.Local {
			return d.pathFrom(to.Local, &AV{DGID: gidOfAddr(to.Remote)})
		}
	}
	return nil, syscall.EADDRNOTAVAIL
}

// unmapped returns an address in the form in which paths have it.
func unmapped(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }
