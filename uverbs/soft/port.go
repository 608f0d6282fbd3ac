package soft

import (
	"net/netip"

	"github.com/goverbs/goverbs/uverbs/soft/gsi"
	"github.com/goverbs/goverbs/uverbs/soft/internal/engine"
)

// port is the port of a device as the connection manager sees it. It is comparable.
type port struct{ d *Device }

// Info implements [gsi.Port].
func (p port) Info() gsi.Info {
	return gsi.Info{Name: p.d.name, Index: p.d.index, NodeGUID: p.d.guid, AckDelay: localCAAckDelay, Flush: true, NoSocket: p.d.network == nil}
}

// GIDs implements [gsi.Port].
func (p port) GIDs() []gsi.GIDEntry {
	var all []gsi.GIDEntry
	for _, g := range p.d.gids() {
		all = append(all, gsi.GIDEntry{Index: uint8(g.index), Addr: g.addr, Interface: uint32(g.netdev)})
	}
	return all
}

// MTU implements [gsi.Port].
func (p port) MTU() uint8 { return mtuEnum(p.d.engine.MTU()) }

// SendMAD implements [gsi.Port].
func (p port) SendMAD(src, dst netip.Addr, mad []byte) {
	p.d.engine.SendMAD(engine.MADAddr{Local: src, Remote: dst}, mad) // a MAD may get lost
}

// receiveMAD gives a MAD to the connection manager.
func (p port) receiveMAD(from engine.MADAddr, mad []byte) {
	gsi.Receive(p, from.Remote, from.Local, mad)
}

// Join implements [gsi.Port].
func (p port) Join(group netip.Addr) error { return p.d.JoinGroup(group) }

// Leave implements [gsi.Port].
func (p port) Leave(group netip.Addr) { p.d.LeaveGroup(group) }
