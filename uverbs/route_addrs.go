package uverbs

import (
	"slices"
	"strings"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// addrsOf describes the addresses by which this network namespace reaches devices, such as "rxe0 has
// 10.1.0.1, fe80::1; soft0 has 127.0.0.1", or is empty. It sets the Err of devices that cannot be opened.
func addrsOf(infos []DeviceInfo) string {
	var all []string
	r := hostRoute(ib.GID{})
	for i := range infos {
		info := &infos[i]
		var own []string
		switch {
		case info.Err != nil:
		case info.InProcess:
			for _, a := range info.inproc.Addrs() {
				own = append(own, a.String())
			}
		default:
			own = info.kernelAddrs(r)
		}
		if own = slices.Compact(own); len(own) > 0 {
			all = append(all, info.Name+" has "+strings.Join(own, ", "))
		}
	}
	return strings.Join(all, "; ")
}

// kernelAddrs returns the addresses of a kernel's device: those of its GIDs, or on iWARP those of its
// network interfaces.
func (i *DeviceInfo) kernelAddrs(r gidRoute) (all []string) {
	if i.IWARP() {
		links, _ := i.links()
		for _, a := range r.own {
			if links[a.link] {
				all = append(all, a.addr.String())
			}
		}
		return all
	}
	d, err := open(*i)
	if err != nil {
		i.Err = err
		return nil
	}
	defer d.Close()
	for port := 1; port <= int(d.attr.PhysPortCount); port++ {
		table, _ := d.GIDTable(uint8(port))
		for _, e := range d.ownEntries(table, r) {
			if e.Type != ib.GIDTypeIB {
				all = append(all, e.GID.Addr().String())
			}
		}
	}
	return all
}
