package uverbs

import (
	"syscall"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/diag"
)

// routeHint explains why the kernel refused a path to a peer.
func routeHint(d *Device, errno syscall.Errno, ah AHAttr) string {
	table, _ := d.GIDTable(ah.Port)
	p := diag.Path{Errno: errno, Device: d.Name(), Port: ah.Port, Index: int(ah.GRH.SGIDIndex), To: ah.GRH.DGID.Addr()}
	for _, e := range table {
		g := diagGID(e)
		p.Table = append(p.Table, *g)
		if e.Index == p.Index {
			p.From = g
		}
	}
	if e, ok := ChooseGID(table, ah.GRH.DGID); ok {
		p.Better = diagGID(e)
	}
	if errno == syscall.EINVAL && !ah.Global {
		port, err := d.facts(ah.Port)
		p.GRHMissing = err == nil && port.GRHRequired()
	}
	return p.Hint()
}

// diagGID returns the facts about a GID.
func diagGID(e GIDEntry) *diag.GIDEntry {
	return &diag.GIDEntry{Addr: e.GID.Addr(), Netdev: e.Netdev, Type: uint32(e.Type), InfiniBand: e.Type == ib.GIDTypeIB, Text: e.String()}
}
